"""Commits: weigh the updates, merge them, and make the result the next version.

Updates are sorted by slot and learner first, so that sums do not depend on the order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from archipel.core.context import ControllerContext
from archipel.core.evidence import record_capped
from archipel.core.parts.clipping import movement_of, norm_of
from archipel.core.parts.merge import Proposal
from archipel.core.parts.privacy import Privacy, SumInEngine
from archipel.core.parts.weighting import Weight
from archipel.core.records import Committed
from archipel.core.state import Update
from archipel.core.summing import begin_sum, take_sum
from archipel.core.tasks import planned, recall, unwanted
from archipel.core.types import Model, Summed

MOST_WEIGHTS = 4096
"""Most weights by layer that are recorded for a commit; thousands of learners and layers would fill the disk."""


def commit(context: ControllerContext, tasks: Sequence[int]) -> None:
    """Make the updates of these tasks a new version; refuse those that cannot be applied."""
    algorithm = context.algorithm
    updates, weights = _weigh(context, _take_from_queue(context, tasks))
    refusal = _refusal(context, updates)
    if refusal is not None:
        for update in updates:
            context.refuse(update.task, update.learner, refusal)
    elif isinstance(algorithm.privacy, SumInEngine):
        begin_sum(context, algorithm.privacy, updates, weights)
    elif updates or _hides_empty_rounds(context):
        weights = _within_shares(context, updates, weights)
        if algorithm.privacy is None or not algorithm.privacy.merges:
            proposal = algorithm.merge.merge(context.view("merge"), updates, weights)
        else:
            proposal = _merge_privately(context, algorithm.privacy, updates, weights)
        record_capped(context, "weight", proposal.cut)
        _adopt(context, updates, weights, proposal)
    context.sweep()


def commit_sum(context: ControllerContext, event: Summed) -> None:
    """Make the engine's sum of updates a new version; its mean is merged like a single update."""
    senders, weights, mean = take_sum(context, event)
    if senders:
        proposal = context.algorithm.merge.merge(context.view("merge"), [mean], [(1.0,) * len(context.layout.layers)])
        _adopt(context, senders, weights, proposal)
    context.state.vectors.discard(event.model)
    context.sweep()


def _adopt(
    context: ControllerContext,
    updates: Sequence[Update],
    weights: Sequence[tuple[float, ...]],
    proposal: Proposal,
) -> None:
    """Apply the server optimiser to the proposal and make it the next version; refuse a result that is not finite."""
    following = context.algorithm.server.step(context.view("server"), proposal)
    if following is not None:
        _set_version(context, updates, weights, proposal, following)
        return
    if proposal.undo is not None:
        proposal.undo()
    for update in updates:
        context.refuse(update.task, update.learner, "the merged model would not be finite")


def _refusal(context: ControllerContext, updates: Sequence[Update]) -> str | None:
    """Return why the privacy part forbids a version made of these updates, or None."""
    privacy = context.algorithm.privacy
    return None if privacy is None else privacy.refusal(context.view("privacy"), updates)


def _hides_empty_rounds(context: ControllerContext) -> bool:
    """Return whether a round without learners must be indistinguishable from any other."""
    return context.account is not None and context.account.sampling == "poisson"


def _merge_privately(
    context: ControllerContext, privacy: Privacy, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
) -> Proposal:
    layers = {layer for update in updates for layer in update.layers}
    if _hides_empty_rounds(context):
        layers = {*context.layout.indices(_round_layers(context))}
    return privacy.merge(context.view("privacy"), context.algorithm.merge, updates, weights, sorted(layers))


def _round_layers(context: ControllerContext) -> list[str]:
    """Return the layers that this round changes; all its tasks ask for the same ones."""
    unused = unwanted(context)
    plan = planned(context, next(iter(context.state.members.values())))  # any learner's plan: all may have left
    return [name for name in plan.sends(context.layout.names) if name not in unused]


def _take_from_queue(context: ControllerContext, tasks: Sequence[int]) -> list[Update]:
    chosen = context.state.dequeue(tasks)
    unused = context.layout.indices(unwanted(context))
    if unused:  # an update may wait for its evidence and be committed in a later round
        for update in chosen:
            update.layers = tuple(place for place in update.layers if place not in unused)
    return sorted(chosen, key=lambda update: (update.slot, update.learner))


def _weigh(context: ControllerContext, updates: Sequence[Update]) -> tuple[list[Update], list[tuple[float, ...]]]:
    """Return the updates that have a weight, and for each its weight for every layer."""
    state, weighting = context.state, context.algorithm.weighting
    weighed: list[Update] = []
    weights: list[tuple[float, ...]] = []
    for update in updates:
        update.stale_versions = state.version - update.version
        update.stale_steps = state.committed - update.committed + update.steps
        weight = weighting.weigh(context.view("weighting"), update)
        if weight is None:
            context.refuse(update.task, update.learner, "too little evidence to weigh it")
        else:
            weighed.append(update)
            weights.append(_per_layer(context, weight, update))
    return weighed, weights


def _per_layer(context: ControllerContext, weight: Weight, update: Update) -> tuple[float, ...]:
    layers = len(context.layout.layers)
    spread = weight if isinstance(weight, tuple) else (weight,) * layers
    if len(spread) != layers or not all(0 <= w < math.inf for w in spread):
        raise ValueError(
            f"{context.algorithm.weighting!r} gave the update of learner {update.learner!r} the weight {weight!r}; "
            f"a weight is one number, or one for each of the {layers} layers, finite and at least 0."
        )
    return spread


def _within_shares(
    context: ControllerContext, updates: Sequence[Update], weights: list[tuple[float, ...]]
) -> list[tuple[float, ...]]:
    """Limit each learner's weight to the largest share allowed, and record the learners limited."""
    if context.state.most_share >= 1:
        return weights
    within = context.algorithm.merge.within_shares(context.view("merge"), updates, weights)
    for update, before, after in zip(updates, weights, within, strict=True):
        if after != before:
            record_capped(context, "weight", update.path)
    return within


def _set_version(
    context: ControllerContext,
    updates: Sequence[Update],
    weights: Sequence[tuple[float, ...]],
    proposal: Proposal,
    following: Tensor,
) -> None:
    """Store the new version, tell the parts, and recall the tasks that have become too stale."""
    state = context.state
    norms = proposal.norms or _norms(context, updates)
    state.version += 1
    state.vain_attempts = 0
    name, changed = f"v{state.version}", set(proposal.layers)
    manifest = tuple(name if place in changed else stamp for place, stamp in enumerate(state.model.manifest))
    version = Model(name, manifest)
    starts = {
        update.learner: _store_start(
            context, f"{name}.{place}", proposal.starts[update.learner], update, version, following
        )
        for place, update in enumerate(updates)
        if update.learner in proposal.starts
    }
    context.models.write(name, following)
    state.set_model(version, starts)
    state.committed += sum(update.steps for update in updates)
    for view, part in context.parts:
        part.committed(view, updates)
    context.record(
        Committed(
            version=state.version,
            rounds=state.rounds,
            learners=tuple(update.learner for update in updates),
            paths=tuple(update.path for update in updates),
            tasks=tuple(update.task for update in updates),
            weights=_recorded(weights),
            stale_versions=tuple(update.stale_versions for update in updates),
            stale_steps=tuple(update.stale_steps for update in updates),
            layers=proposal.layers,
            traffic=dict(state.traffic),
            norms=norms,
            clipped=proposal.clipped,
        )
    )
    _record_notes(context)
    recall(context)


def _recorded(weights: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Return weights as recorded: by layer or, if there are too many different ones, each update's mean over layers."""
    if sum(len(row) for row in weights if row.count(row[0]) < len(row)) <= MOST_WEIGHTS:
        return tuple(weights)
    return tuple((sum(weight / len(row) for weight in row),) * len(row) for row in weights)  # a sum may overflow


def _record_notes(context: ControllerContext) -> None:
    """Record the privacy spent up to the new version, and the notes of the planners."""
    privacy = context.algorithm.privacy
    spent = None if privacy is None else privacy.spent(context.view("privacy"), context.state.version)
    if spent is not None:
        context.record(spent)
    if privacy is None or not privacy.hides_updates:  # planners' notes reveal single updates
        for view, planner in context.planners:
            for note in planner.notes(view):
                context.record(note)


def _norms(context: ControllerContext, updates: Sequence[Update]) -> tuple[float, ...]:
    """Return how far each update would move the model; empty unless the run measures that."""
    if not context.measures_norms:
        return ()
    return tuple(norm_of(movement_of(context.view("merge"), update)) for update in updates)


def _store_start(
    context: ControllerContext, name: str, start: Tensor, update: Update, version: Model, following: Tensor
) -> Model:
    """Store the model that a contributor starts from; layers that the learner already holds keep their stamps."""
    stamps = []
    for place, layer in enumerate(context.layout.layers):
        piece = slice(layer.start, layer.stop)
        if torch.equal(start[piece], following[piece]):
            stamps.append(version.manifest[place])
        elif torch.equal(start[piece], context.models.read(update.model.name, piece)):
            stamps.append(update.model.manifest[place])
        else:
            stamps.append(name)
    context.models.write(name, start)
    return Model(name, tuple(stamps))

"""Sums by the engine: have updates added up, and apply the result."""

from __future__ import annotations

from collections.abc import Sequence

from archipel.core.context import ControllerContext
from archipel.core.parts.privacy import SumInEngine
from archipel.core.state import Sum, Update
from archipel.core.types import AddUp, Metrics, Model, Summed


def begin_sum(
    context: ControllerContext,
    privacy: SumInEngine,
    updates: Sequence[Update],
    weights: Sequence[tuple[float, ...]],
) -> None:
    """Have the engine add up updates; until the answer arrives, the protocol decides nothing."""
    state, layout = context.state, context.layout
    first = updates[0]
    if any(update.layers != first.layers or update.start != first.start for update in updates):
        _refuse(context, updates, "learners have sent different layers, which cannot be added up")
        return
    whole = privacy.whole(weights)
    found = Sum(context.next_task(), list(updates), [(float(weight),) * len(layout.layers) for weight in whole])
    state.begin_sum(found)
    context.issue(
        AddUp(
            found.task,
            tuple(update.task for update in updates),
            tuple(update.learner for update in updates),
            tuple(whole),
            tuple(layout.names[place] for place in first.layers),
            first.start,
            privacy.absent(context.view("privacy"), updates),
        )
    )


def take_sum(context: ControllerContext, event: Summed) -> tuple[list[Update], list[tuple[float, ...]], Update]:
    """Return the updates in a sum, their weights, and their mean as one update; empty lists if it is refused."""
    context.count_traffic("train", event.traffic)
    found = context.state.end_sum()
    for update in found.updates:  # in a simulation the store holds their numbers, which parts must not read
        update.model = Model("", update.model.manifest)
    there = [place for place, update in enumerate(found.updates) if update.task in event.tasks]
    senders, weights = [found.updates[place] for place in there], [found.weights[place] for place in there]
    _refuse(context, [one for one in found.updates if one.task not in event.tasks], "dropped out of the secure sum")
    reason = _objection(context, found, event, senders, weights)
    _summed(context, senders)
    if reason is not None:
        _refuse(context, senders, reason)
        return [], [], found.updates[0]
    first = found.updates[0]
    sent = set(first.layers)
    stamps = [event.model if place in sent else stamp for place, stamp in enumerate(first.model.manifest)]
    mean = Update(
        task=event.task,
        learner="",
        model=Model(event.model, tuple(stamps)),
        layers=first.layers,
        version=first.version,
        committed=first.committed,
        examples=event.weight,
        steps=sum(update.steps for update in senders),
        slot=0,
        metrics=Metrics(),
        path=tuple(update.learner for update in senders),
        start=first.start,
        plan=first.plan,
    )
    return senders, weights, mean


def fail_sum(context: ControllerContext, reason: str) -> None:
    """Refuse updates that could not be added up, or whose sum was refused."""
    updates = context.state.end_sum().updates
    _summed(context, updates)
    _refuse(context, updates, reason)


def _summed(context: ControllerContext, updates: Sequence[Update]) -> None:
    privacy = context.algorithm.privacy
    assert isinstance(privacy, SumInEngine)
    privacy.summed(context.view("privacy"), updates)


def _objection(
    context: ControllerContext,
    found: Sum,
    event: Summed,
    senders: Sequence[Update],
    weights: Sequence[tuple[float, ...]],
) -> str | None:
    """Return why a sum is refused, or None."""
    if found.cancelled:
        return "the model was rolled back"
    privacy = context.algorithm.privacy
    assert privacy is not None
    refusal = privacy.refusal(context.view("privacy"), senders)
    expected = int(sum(weight[0] for weight in weights))
    if refusal is None and event.weight != expected:
        return (
            f"the weights in the sum add up to {event.weight}, and those of its learners to {expected}: one of them "
            "has sent an invalid sum"
        )
    return refusal


def _refuse(context: ControllerContext, updates: Sequence[Update], reason: str) -> None:
    for update in updates:
        context.refuse(update.task, update.learner, reason)

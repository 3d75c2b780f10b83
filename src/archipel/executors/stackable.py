"""Find out whether many learners can be trained as one stack and, if not, why, in terms a user can act on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from random import getstate

import numpy as np
import torch
from torch import Tensor, nn

from archipel.core.binding import Binding
from archipel.core.frozen_weights import copied, has_hooks
from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.core.unsaved_buffers import UnsavedBuffers
from archipel.executors.arithmetic import SMALL, multiplications
from archipel.executors.padding import padding_counts
from archipel.executors.recording import Recorder, UnrecordableError
from archipel.executors.stacked_networks import UNTRIED, Mapped, TrainedParts, classifier_parts, network
from archipel.executors.stacked_steps import ELEMENTWISE, Places, StackedSgd
from archipel.kernels.threads import threads
from archipel.learner.learner import TrainingContext

WIDTH, LEARNERS, RATE = 3, 4, 0.1
"""Examples of a batch, learners, and their learning rate in the trial."""
TOLERANCE = 1e-3
"""Tolerance for gradients of a stack against those of a learner alone, relative to the largest."""

IN_PLACE = "an operation of its forward pass changes a tensor in place"
DIFFERENT = "comes out differently in a stack than alone"
HALF = "its forward pass computes in 16 bits, as under torch.autocast, which a stack rounds in other places"
CAUSES = {
    "broadcast shape": IN_PLACE,
    "inplace": IN_PLACE,
    "in-place": IN_PLACE,
    "data-dependent": "its forward pass branches on the numbers of a tensor",
    ".item()": "its forward pass reads a number out of a tensor",
    "autograd.Function": "an autograd.Function of it has no setup_context() and no vmap rule: "
    "https://docs.pytorch.org/docs/stable/notes/extending.func.html",
    "may have escaped": "it keeps tensors from one operation to a later one, as torch.utils.checkpoint does",
    "data pointer": "its forward pass takes a tensor out of torch, as numpy() does",
    "randomness": "it draws random numbers that are not for one learner each",
}
"""Fragments of torch's errors for networks that vmap cannot map, and what they mean."""


def why_not_stacked(context: TrainingContext, plan: Plan) -> str | None:
    """Return why learners of this network cannot be stepped as one under this plan; None: they can."""
    if context.augment is not None:
        return "its examples are augmented"
    if context.local_noise is not None:
        return "LocalNoise clips the gradient of every example"
    if context.objective is not None:
        return f"its learners minimise another objective than the loss ({context.objective!r})"
    if context.descent is not None:
        return f"its learners do not descend along the gradient ({context.descent!r})"
    if plan.phases:
        return "its tasks have phases, in which different layers or models train"
    if context.has_texts or context.per_token:
        return "its examples are texts, whose padding depends on their batch"
    if plan.accumulate > 1:
        return f"its mini-batches are computed in {plan.accumulate} pieces"
    if plan.optimiser not in ELEMENTWISE:
        return f"{plan.optimiser} is not elementwise"
    if any(map(has_hooks, context.module.parameters())):
        return "a parameter of it has a hook"
    if any(map(_has_rules, context.module.modules())):
        return "an embedding has rules of its own (max_norm, scale_grad_by_freq or sparse)"
    count = multiplications(context)
    if count > SMALL:
        return f"it is large: {count:,} multiplications an example, more than {SMALL:,}"
    if classifier_parts(context) is not None:  # every such network can: its step is written out
        return None
    try:
        made = network(context)
    except UnrecordableError as error:
        return str(error)
    if made.trial == UNTRIED:
        made.trial = _tried(context, made, plan.batch)
    return made.trial


def _tried(context: TrainingContext, made: Mapped, batch: int) -> str | None:
    """Try to step learners of a network as one stack; return why that does not work, or None."""
    if _draws_elsewhere(context):
        return "it draws random numbers from Python's or numpy's generator, which the run does not seed"
    changed = _changed_buffer(context)
    if changed:
        return f"its forward pass changes a buffer, {changed}, that is not saved (persistent=False)"
    # a loss may leave negative targets out of its mean, and the examples of the trial may have none
    made.whole = not context.y.is_floating_point() and int(context.y.min()) < 0
    reason = _trial(context, made)
    if reason == IN_PLACE:
        made.own_tensors = True
        reason = _trial(context, made) and IN_PLACE
    if reason is None:
        depends = not made.whole and padding_counts(context, made, batch)
    else:
        depends = reason.endswith(DIFFERENT)
    if depends:
        made.whole = True
        reason = _trial(context, made)
    return HALF if reason is not None and reason.endswith(DIFFERENT) and _halves(context) else reason


def _trial(context: TrainingContext, made: Mapped) -> str | None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            apart, name = _difference(context, made)
        except Exception as error:  # a network can raise anything under torch.func
            reason: str | None = _cause(error)
        else:
            reason = None if apart <= TOLERANCE else f"{name} {DIFFERENT}"
    looped = next((str(one.message) for one in warned if "performance drop" in str(one.message)), None)
    return reason if looped is None else f"torch maps {_operation(looped)} over learners by a loop only"


def _draws_elsewhere(context: TrainingContext) -> bool:
    """Return whether a forward pass draws from Python's or numpy's generator."""
    module, before = copied(context.module).train(), (getstate(), repr(np.random.get_state()))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module(context.x[[0, -1]])
    return before != (getstate(), repr(np.random.get_state()))


def _changed_buffer(context: TrainingContext) -> str:
    """Return a buffer that is no part of the vector and changes in a forward pass; empty: there is none."""
    module = copied(context.module).train()
    unsaved = UnsavedBuffers(context.layout, module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module(context.x[[0, -1]])
    return next(iter(unsaved.changed()), "")


def _halves(context: TrainingContext) -> bool:
    """Return whether a forward pass computes in 16 bits."""
    module = copied(context.module).train()
    with torch.random.fork_rng(devices=[]), suppress(UnrecordableError), Recorder({}) as recorder:
        module(context.x[[0, -1]])
    made = (place for call in recorder.calls for place in call.outputs if place is not None)
    return any(place.dtype in (torch.bfloat16, torch.float16) for place in made)


def _has_rules(part: nn.Module) -> bool:
    """Return whether an embedding changes gradients or weights by options that a stack would ignore."""
    if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return False
    return part.max_norm is not None or part.scale_grad_by_freq or part.sparse


def _operation(warning: str) -> str:
    """Return the operation that a torch warning names."""
    return next((word.rstrip(".") for word in warning.split() if word.startswith("aten::")), "an operation")


def _cause(error: Exception) -> str:
    if isinstance(error, UnrecordableError):
        return str(error)
    said = str(error)
    known = (cause for sign, cause in CAUSES.items() if sign in said)
    first = said.strip().splitlines()[0] if said.strip() else type(error).__name__
    return next(known, f"torch cannot map it over learners ({first})")


@threads(1)
def _difference(context: TrainingContext, made: Mapped) -> tuple[float, str]:
    """Return how far two steps of stacked learners, the second with short batches, are from those of learners alone.

    The second value is the name of the tensor with the largest difference.
    """
    first, second = _of_all_kinds(context.y, 2 * LEARNERS * WIDTH).view(2, LEARNERS, WIDTH)
    # where no batch may be padded, all of the second step are short
    batches = [first.unbind(), [own[: WIDTH - (made.whole or learner % 2)] for learner, own in enumerate(second)]]
    start = context.layout.vector(context.module)
    stacked = _stacked_steps(made, context, start, batches)
    worst, tensor = 0.0, ""
    for learner, vector in enumerate(stacked):
        expected = _plain_steps(context, start, [own[learner] for own in batches], learner)
        scale = float((expected - start).abs().max().clamp(min=1e-6))
        difference = (vector - expected).nan_to_num(0.0 if bool(vector.isnan().equal(expected.isnan())) else torch.inf)
        apart, place = (difference.abs() / scale).max(dim=0)
        if not float(apart) <= worst:
            worst, tensor = float(apart), _name(context.layout, int(place))
    return worst, tensor


def _of_all_kinds(y: Tensor, count: int) -> Tensor:
    """Return the indices of `count` examples of as many classes as possible: a loss may treat classes differently."""
    if y.is_floating_point() or y.dim() != 1:
        return torch.arange(count) % len(y)
    order = torch.argsort(y, stable=True)
    return order[torch.linspace(0, len(y) - 1, count).round().long()]


def _name(layout: Layout, place: int) -> str:
    """Return the name of the tensor that a number of a vector belongs to."""
    entries = (entry for layer in layout.layers for entry in layer.entries)
    return next(entry.name for entry in entries if entry.start <= place < entry.stop)


def _stacked_steps(
    made: Mapped, context: TrainingContext, start: Tensor, batches: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    models = Places(context.layout, LEARNERS, start)
    models.fill([start] * LEARNERS)
    names = (name for name, parameter in context.module.named_parameters() if parameter.requires_grad)
    trained = TrainedParts(tuple(names))
    optimiser = StackedSgd(Plan(rate=RATE), models, None, None, None)
    if made.draws is not None:
        for learner in range(LEARNERS):
            made.draws.seed(learner, learner)
    with torch.inference_mode():
        for batch in batches:
            width = max(map(len, batch))
            padded = torch.stack([torch.cat([own, own[:1].expand(width - len(own))]) for own in batch])
            weights = torch.stack([(torch.arange(width) < len(own)) / len(own) for own in batch])
            if made.draws is not None:
                made.draws.present = [len(own) for own in batch]
            step = made.step(optimiser.active, trained, optimiser, context.x[padded], context.y[padded])
            step(weights.to(context.x.device), any(len(own) < width for own in batch))
    return models.vectors()


def _plain_steps(context: TrainingContext, start: Tensor, batches: Sequence[Tensor], key: int) -> Tensor:
    module, vector = copied(context.module).train(), start.clone()
    before = _attributes(module)
    binding = Binding(context.layout, module)
    binding.bind(vector)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        for own in batches:
            loss = context.loss(module(context.x[own]), context.y[own])
            gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
            with torch.no_grad():
                for parameter, gradient in zip(trained, gradients, strict=True):
                    parameter.sub_(gradient, alpha=RATE)
    binding.collect(vector)
    changed = [name for name, value in _attributes(module).items() if before.get(name) != value]
    if changed:
        raise UnrecordableError(f"its forward pass changes an attribute, {changed[0]}, that is not a buffer")
    return vector


def _attributes(module: nn.Module) -> dict[str, object]:
    """Return the numbers, strings and tensors that modules hold beside their parameters and buffers."""
    found: dict[str, object] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, bool | int | float | str):
                found[f"{path}.{name}".lstrip(".")] = value
            elif isinstance(value, Tensor):
                found[f"{path}.{name}".lstrip(".")] = (id(value), value._version)
    return found

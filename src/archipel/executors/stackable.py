"""Find out whether many learners can be stepped as one, and if not, why, in words that a user can act on."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from archipel.core.binding import Binding
from archipel.core.frozen_weights import copied
from archipel.core.types import Plan
from archipel.executors.arithmetic import SMALL, multiplications
from archipel.executors.stacked_networks import Mapped, classifier_parts, network
from archipel.executors.stacked_steps import ELEMENTWISE, Places, StackedSgd
from archipel.kernels.threads import threads
from archipel.learner.learner import TrainingContext

WIDTH = 3
"""Examples of a batch in the trial."""
TOLERANCE = 1e-3
"""By which gradients of a stack may differ from those of one learner alone, relative to the largest."""

CAUSES = {
    "broadcast shape": "an operation of its forward pass changes a tensor in place",
    "inplace": "an operation of its forward pass changes a tensor in place",
    "in-place": "an operation of its forward pass changes a tensor in place",
    "data-dependent": "its forward pass branches on the numbers of a tensor",
    ".item()": "its forward pass reads a number out of a tensor",
    "not drawn example by example": "it draws random numbers that are not for one example each",
    "randomness": "it draws random numbers that are not for one learner each",
}
"""What torch says when a network cannot be mapped over learners, and what that means."""


def why_not_stacked(context: TrainingContext, plan: Plan) -> str | None:
    """Return why learners of this network cannot be stepped as one under this plan; None: they can."""
    if context.augment is not None:
        return "its examples are changed at random"
    if context.local_noise is not None:
        return "LocalNoise clips the gradient of every example"
    if context.objective is not None:
        return f"its learners minimise an objective of their own ({context.objective!r})"
    if context.descent is not None:
        return f"its learners descend along something else than a gradient ({context.descent!r})"
    if plan.phases:
        return "its tasks have phases, in which different layers or models train"
    if context.has_texts or context.per_token:
        return "its examples are texts, whose padding depends on their batch"
    if plan.accumulate > 1:
        return f"its mini-batches are computed in {plan.accumulate} pieces"
    if plan.optimiser not in ELEMENTWISE:
        return f"{plan.optimiser} does not change every number by its own gradient alone"
    if any(map(_has_rules, context.module.modules())):
        return "an embedding has rules of its own (padding_idx, max_norm, scale_grad_by_freq or sparse)"
    if not context.y.is_floating_point() and int(context.y.min()) < 0:
        return "some targets are negative, and a loss may leave them out of its mean"
    count = multiplications(context)
    if count > SMALL:
        return f"it is large: {count:,} multiplications an example, more than {SMALL:,}"
    if classifier_parts(context) is not None:  # its step is written out, for every such network
        return None
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            apart = _difference(context)
    except Exception as error:  # whatever a network does that torch.func cannot map
        return _cause(error)
    looped = next((str(one.message) for one in warned if "performance drop" in str(one.message)), None)
    if looped is not None:
        return f"torch maps {_operation(looped)} over learners by a loop only"
    if not apart <= TOLERANCE:
        return (
            "its gradients come out differently in a stack: examples of a batch depend on each other, or the loss is "
            "no mean over examples"
        )
    return None


def _has_rules(part: nn.Module) -> bool:
    """Return whether an embedding changes gradients or weights by rules that a stack would ignore."""
    if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return False
    return part.padding_idx is not None or part.max_norm is not None or part.scale_grad_by_freq or part.sparse


def _operation(warning: str) -> str:
    """Return the operation that a warning of torch is about."""
    return next((word.rstrip(".") for word in warning.split() if word.startswith("aten::")), "an operation")


def _cause(error: Exception) -> str:
    said = str(error)
    known = (cause for sign, cause in CAUSES.items() if sign in said)
    first = said.strip().splitlines()[0] if said.strip() else type(error).__name__
    return next(known, f"torch cannot map it over learners ({first})")


@threads(1)
def _difference(context: TrainingContext) -> float:
    """Return how far a step of two stacked learners, one with a short batch, is from theirs alone."""
    count = len(context.x)
    examples = [torch.arange(WIDTH) % count, torch.arange(WIDTH, 2 * WIDTH - 1) % count]
    start = context.layout.vector(context.module)
    stacked = _stacked_step(network(context), context, start, examples)
    worst = 0.0
    for key, (own, vector) in enumerate(zip(examples, stacked, strict=True)):
        expected = _plain_step(context, start, own, key)
        scale = float((expected - start).abs().max().clamp(min=1e-6))
        difference = (vector - expected).nan_to_num(0.0 if bool(vector.isnan().equal(expected.isnan())) else torch.inf)
        worst = max(worst, float(difference.abs().max()) / scale)
    return worst


def _stacked_step(made: Mapped, context: TrainingContext, start: Tensor, examples: list[Tensor]) -> list[Tensor]:
    layout, width = context.layout, max(map(len, examples))
    models = Places(layout, len(examples), start)
    models.fill([start] * len(examples))
    padded = torch.stack([torch.cat([own, own[:1].expand(width - len(own))]) for own in examples])
    weights = torch.stack([(torch.arange(width) < len(own)) / len(own) for own in examples])
    trained = [name for name, parameter in context.module.named_parameters() if parameter.requires_grad]
    made.train()
    if made.draws is not None:
        made.draws.width, made.draws.present = width, [len(own) for own in examples]
        for learner in range(len(examples)):
            made.draws.seed(learner, learner)
    x, y = context.x[padded], context.y[padded]
    optimiser = StackedSgd(Plan(rate=1.0), models, None, None, None)
    made.step(optimiser.active, trained, optimiser, x, y)(weights.to(context.x.device), True)
    return models.vectors()


def _plain_step(context: TrainingContext, start: Tensor, own: Tensor, key: int) -> Tensor:
    module, vector = copied(context.module).train(), start.clone()
    binding = Binding(context.layout, module)
    binding.bind(vector)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        loss = context.loss(module(context.x[own]), context.y[own])
    gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
    with torch.no_grad():
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.sub_(gradient)
    binding.collect(vector)
    return vector

"""What is known of a network's arithmetic before a run, from which its executor is chosen."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from archipel.core.types import Plan
from archipel.kernels.threads import threads
from archipel.learner.learner import TrainingContext
from archipel.simulation.executors.stacked_networks import can_stack, network

SMALL = 2_000_000
"""Multiplications of one example's forward pass above which one learner alone keeps the cores busy."""


def is_small(context: TrainingContext) -> bool:
    """Return whether one learner alone does not keep the cores busy."""
    return _multiplications(context) <= SMALL


def is_stackable(context: TrainingContext, plan: Plan) -> bool:
    """Return whether many learners can be stepped as one under this plan."""
    known = set(plan.options) <= {"weight_decay", "nesterov"}
    return (
        context.augment is None
        and plan.optimiser == "SGD"
        and known
        and can_stack(context.module, context.loss)
        and not draws(context)
        and _examples_stand_alone(context)
    )


@threads(1)
def _examples_stand_alone(context: TrainingContext) -> bool:
    """Return whether the network can be mapped over learners and no output depends on other examples of a batch."""
    module, x = copy.deepcopy(context.module).eval(), context.x[:2]
    tensors = {name: parameter.detach().expand(2, *parameter.shape) for name, parameter in module.named_parameters()}
    with torch.no_grad():
        together = module(x)
        alone = torch.cat([module(example[None]) for example in x])
        try:
            stacked = network(module, context.loss, context.y).outputs(tensors, x.expand(2, *x.shape))[0]
        except RuntimeError:  # its forward looks at its numbers
            return False
    return all(torch.allclose(together, other, atol=1e-5, equal_nan=True) for other in (alone, stacked))


@threads(1)
def _multiplications(context: TrainingContext) -> int:
    """Return the multiplications of one example's forward pass."""
    counted = 0

    def count(part: nn.Module, _: object, output: object) -> None:
        nonlocal counted
        uses = 1
        if isinstance(part, nn.modules.conv._ConvNd) and isinstance(output, Tensor):
            uses = output[0, 0].numel()  # every weight serves every place of the output
        counted += uses * sum(parameter.numel() for parameter in part.parameters(recurse=False))

    probe = copy.deepcopy(context.module).eval()
    for part in probe.modules():
        part.register_forward_hook(count)
    with torch.no_grad():
        probe(context.x[:1])
    return counted


@threads(1)
def draws(context: TrainingContext) -> bool:
    """Return whether a training step draws from the global generator."""
    probe = copy.deepcopy(context.module).train()
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with torch.no_grad():
            probe(context.x[:2])
        return not torch.equal(before, torch.get_rng_state())

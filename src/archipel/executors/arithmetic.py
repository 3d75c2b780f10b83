"""Properties of a network's arithmetic that are known before a run and decide its executor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from archipel.core.frozen_weights import copied
from archipel.kernels.threads import threads
from archipel.learner.learner import TrainingContext

SMALL = 2_000_000
"""Multiplications in one example's forward pass above which a single learner keeps all cores busy."""


def is_small(context: TrainingContext) -> bool:
    """Return whether a single learner cannot keep all cores busy."""
    return multiplications(context) <= SMALL


@threads(1)
def multiplications(context: TrainingContext) -> int:
    """Return the multiplications of one example's forward pass."""
    counted = 0

    def count(part: nn.Module, _: object, output: object) -> None:
        nonlocal counted
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and not isinstance(part, nn.Embedding):
            whole = isinstance(part, nn.MultiheadAttention)  # its output projection calls no module
            weights = sum(parameter.numel() for parameter in part.parameters(recurse=whole))
            counted += weights * _uses(part, first)

    probe = copied(context.module).train()  # in evaluation mode, attention may take a fused path that calls no hooks
    for part in probe.modules():
        part.register_forward_hook(count)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        probe(context.x[[0, -1]])
    return counted


def _uses(part: nn.Module, output: Tensor) -> int:
    """Return how often an example uses each weight of a part: once for each position of an image or a sequence."""
    if isinstance(part, nn.modules.conv._ConvNd):
        return output[0, 0].numel()
    if isinstance(part, nn.Linear | nn.MultiheadAttention | nn.RNNBase):
        return output[0].numel() // output.shape[-1]
    return 1


@threads(1)
def draws(context: TrainingContext) -> bool:
    """Return whether a training step draws random numbers from the global generator."""
    probe = copied(context.module).train()
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with torch.no_grad():
            probe(context.x[[0, -1]])
        return not torch.equal(before, torch.get_rng_state())

"""Find out whether a network's outputs depend on the padding of a short batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from archipel.core.frozen_weights import copied
from archipel.executors.stacked_networks import Mapped
from archipel.kernels.threads import threads
from archipel.learner.learner import TrainingContext

TOLERANCE = 1e-3
"""Largest difference of outputs, relative to the largest output, that counts as equal."""
FACTORS = (1, 100, -100)
"""Factors of the padding: a network may compare numbers of a whole batch with a bound."""


@threads(1)
def padding_counts(context: TrainingContext, made: Mapped, batch: int) -> bool:
    """Return whether outputs of a short batch change if it is padded to this size, for any of several paddings.

    A network that draws random numbers is tested in evaluation mode, since it draws fewer for a shorter batch.
    """
    alone = copied(context.module).train(made.draws is None)
    made.module.train(made.draws is None)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return any(_differs(context, made, alone, few, batch) for few in sorted({2, batch // 2, batch - 1} - {0, 1}))


def _differs(context: TrainingContext, made: Mapped, alone: nn.Module, few: int, batch: int) -> bool:
    examples = context.x[torch.arange(max(few, batch)) % len(context.x)]
    shares = (torch.arange(len(examples)) < few) / few
    layout = context.layout
    start = layout.vector(context.module)
    expected = _tensors(copied(alone)(examples[:few]))
    for factor in FACTORS if examples.is_floating_point() else (1,):
        filled = torch.cat([examples[:few], examples[few:] * factor]).unsqueeze(0)
        models = {name: tensor.unsqueeze(0).clone() for name, tensor in layout.tensors(start).items()}
        found = _tensors(made.outputs(models, filled, shares.to(filled.device).unsqueeze(0)))
        if not all(_close(mine[0, :few], theirs) for mine, theirs in zip(found, expected, strict=True)):
            return True
    return False


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _close(mine: Tensor, theirs: Tensor) -> bool:
    """Return whether outputs agree; NaN agrees with NaN."""
    if mine.shape != theirs.shape:
        return False
    scale = float(theirs.abs().nan_to_num().max().clamp(min=1e-6))
    return bool(((mine - theirs).abs() <= TOLERANCE * scale).logical_or(mine.isnan() & theirs.isnan()).all())

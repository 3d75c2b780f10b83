"""Targets for every token: the loss, and what is counted of them.

Outputs are [example, position, token or label], targets [example, position]. A position whose target is IGNORED counts
nothing, and so does one that the outputs lack: a network may cut the padding off that a whole batch ends in.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from archipel.core.types import IGNORED


def token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of the tokens that have a target; 0 if none has."""
    targets = targets[:, : outputs.shape[1]]
    total = cross_entropy(outputs.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the losses of every example's tokens."""
    targets = targets[:, : outputs.shape[1]]
    return cross_entropy(outputs.float().mT, targets, ignore_index=IGNORED, reduction="none").sum(dim=1)


def token_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return how many tokens of every example were predicted wrongly and rightly: [example, 2]."""
    targets = targets[:, : outputs.shape[1]]
    counted = (targets != IGNORED).sum(dim=1)
    right = ((outputs.argmax(dim=2) == targets) & (targets != IGNORED)).sum(dim=1)
    return torch.stack([counted - right, right], dim=1)


def targets_of(targets: Tensor) -> Tensor:
    """Return how many targets every example has."""
    return (targets != IGNORED).sum(dim=1)

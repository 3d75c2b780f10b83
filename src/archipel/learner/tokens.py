"""Losses and counts for tasks with a target for every token.

Outputs are [example, position, token or label], targets [example, position]. Positions with the target IGNORED do not
count, nor do those beyond the outputs: a network may cut off the common padding of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from archipel.core.types import IGNORED


def token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of the tokens that have a target; 0 without any."""
    targets = targets[:, : outputs.shape[1]]
    total = cross_entropy(outputs.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each example the sum of its tokens' losses."""
    targets = targets[:, : outputs.shape[1]]
    return cross_entropy(outputs.float().mT, targets, ignore_index=IGNORED, reduction="none").sum(dim=1)


def token_counts(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each example's counts of wrong and right tokens, [example, 2]."""
    targets = targets[:, : outputs.shape[1]]
    counted = (targets != IGNORED).sum(dim=1)
    right = ((outputs.argmax(dim=2) == targets) & (targets != IGNORED)).sum(dim=1)
    return torch.stack([counted - right, right], dim=1)


def targets_of(targets: Tensor) -> Tensor:
    """Return each example's number of targets."""
    return (targets != IGNORED).sum(dim=1)

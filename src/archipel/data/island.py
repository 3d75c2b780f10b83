"""One learner's part of a data set, and checks of indices and labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core.types import Role


@dataclass(frozen=True, eq=False)
class Island:
    """One learner's part of the data."""

    name: str
    """Its index with leading zeros, so that sorting by name is the order of the islands."""
    train: Tensor
    """int64 indices into `Islands.x`."""
    test: Tensor
    """int64 indices of the learner's own test part; may be empty."""
    role: Role = "train"
    """The purpose of the learner; "validation" and "test" learners are held out as a whole."""


def check_index_array(what: str, indices: Tensor) -> None:
    """Refuse anything but int64 in one dimension."""
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise ValueError(
            f"{what} must be int64 indices in one dimension, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}. Convert a mask with mask.nonzero().flatten()."
        )


def check_indices(what: str, indices: Tensor, examples: int) -> None:
    """Refuse anything but a list of different int64 indices of examples."""
    check_index_array(what, indices)
    wrong = indices[(indices < 0) | (indices >= examples)]
    if len(wrong):
        raise ValueError(
            f"{what} holds index {int(wrong[0])}, but there are {examples} examples. "
            f"Use indices from 0 to {examples - 1}."
        )
    values, times = torch.unique(indices, return_counts=True)
    if len(values) < len(indices):
        raise ValueError(f"{what} holds index {int(values[times > 1][0])} more than once. Keep every index once.")


def check_examples(x: Tensor, y: Tensor, classes: int | None, what: str) -> None:
    """Refuse x and y of different lengths, and labels outside their classes."""
    if len(x) != len(y):
        raise ValueError(f"{what}: x has {len(x)} examples, y has {len(y)}. Give one label per example.")
    if classes is None:
        return
    if y.dtype != torch.int64 or y.ndim != 1:
        raise ValueError(
            f"{what}: labels of {classes} classes must be int64 in one dimension, got {y.dtype} of shape "
            f"{tuple(y.shape)}. Convert them, or pass classes=None for a task without classes."
        )
    wrong = y[(y < 0) | (y >= classes)]
    if len(wrong):
        raise ValueError(
            f"{what}: label {int(wrong[0])} is outside the {classes} classes 0 to {classes - 1}. "
            "Number the classes from 0, or raise classes."
        )

"""Divergence of local models by layer (D&C EQ2 and EQ3), and the first layer above its low plateau."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.state import Update, View


def layer_divergence(view: View, updates: Sequence[Update], kind: str) -> list[float]:
    """Return the divergence of each layer: EQ2 or EQ3 of D&C, the mean over all pairs of local models that sent it.

    Empty if no two updates share a layer; NaN for a layer that fewer than two updates hold.
    """
    divergences = []
    for place, layer in enumerate(view.layout.layers):
        piece = slice(layer.start, layer.stop)
        local = [view.models.read(update.model.name, piece).double() for update in updates if place in update.layers]
        divergences.append(mean_divergence(local, kind))
    return [] if all(math.isnan(value) for value in divergences) else divergences


def mean_divergence(local: Sequence[Tensor], kind: str) -> float:
    """Return the mean over all pairs of local models of a layer; NaN for fewer than two."""
    values = [pair_divergence(a, b, kind) for a, b in combinations(local, 2)]
    return sum(values) / len(values) if values else math.nan


def pair_divergence(a: Tensor, b: Tensor, kind: str) -> float:
    norm = float(a.norm())
    if norm == 0:
        return 0.0 if not b.any() else math.inf
    if kind == "euclidean":
        return float((a - b).norm()) / norm  # EQ2
    other = float(b.norm())
    cosine = float(a @ b) / (norm * other) if other else 0.0
    # EQ3, or its numerator alone: the norm grows with a layer's size, and the quotient falls with it
    return (1 - cosine) / norm if kind == "cosine" else 1 - cosine


def first_divergent(layout: Layout, divergence: Sequence[float], threshold: float) -> int:
    """Return the index of the first layer above the low plateau; without one, that of the last layer."""
    parameter_layers = layout.parameter_layers
    values = [divergence[place] for place in parameter_layers]
    known = [value for value in values if math.isfinite(value)]
    if known and min(known) < threshold * max(known):  # else all diverge alike, and there is no plateau
        bar = min(known) + threshold * (max(known) - min(known))
        for place, value in zip(parameter_layers[1:], values[1:], strict=True):  # one layer at least learns features
            if value > bar:
                return place
    return parameter_layers[-1]

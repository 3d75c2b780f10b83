"""A mean of the last layer class by class, weighted by each learner's examples of the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.parts.merge import Mean, Proposal
from archipel.core.parts.neurons import Axis, FloatTable, check_rows, last_rows
from archipel.core.parts.part import Needs
from archipel.core.state import Update, View


@dataclass(frozen=True)
class MeanByClass(Mean):
    """The weighted mean of the batch; the last layer's is taken class by class with class counts (FedMA).

    The weights alone count for a class without examples, and for all classes if a learner reports no counts.
    """

    needs = Needs(reports=("class counts",), single_models=True)

    def check(self, layout: Layout) -> None:
        check_rows("MeanByClass", layout)

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        proposal = super().merge(view, updates, weights)
        head = len(view.layout.layers) - 1
        if head in proposal.layers:
            senders = [place for place, update in enumerate(updates) if head in update.layers]
            sent = [updates[place] for place in senders]
            table = weights_by_class(view.layout, sent, [weights[place] for place in senders])
            vectors = [view.models.read(update.model.name) for update in sent]
            average_by_neuron(last_rows(view.layout), vectors, table, proposal.vector)
        return proposal


def weights_by_class(layout: Layout, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> FloatTable:
    """Return the weight of each learner in each row of the last layer: its weight times its examples of that class.

    The weight alone for a class without examples, and for all classes if a learner reports no counts.
    """
    width = last_rows(layout)[0].shape[0]
    plain = np.array([[weight[-1]] * width for weight in weights])
    counts = [update.metrics.classes for update in updates]
    if any(len(row) != width for row in counts):
        return plain
    table = plain * np.array(counts, dtype=np.float64)
    return np.where(table.sum(axis=0) > 0, table, plain)


def average_by_neuron(axes: Sequence[Axis], vectors: Sequence[Tensor], table: FloatTable, out: Tensor) -> None:
    """Write the mean over the learners by neuron, with weights [learner, neuron], into a vector."""
    total = table.sum(axis=0)
    shares = torch.from_numpy(np.divide(table, total, out=np.zeros_like(table), where=total > 0))
    for axis in axes:
        target = axis.of(out)
        mean = torch.zeros(target.shape, dtype=torch.float64)
        for share, vector in zip(shares, vectors, strict=True):
            mean += share.view(-1, *[1] * (mean.dim() - 1)) * axis.of(vector)
        target.copy_(mean)

"""Robust merges: a minority of wrong updates cannot determine the model.

Each merge works on the layers that the same updates sent, so it goes with periodic upload and private layers. A layer
that no update holds, or too few for the merge's guarantee, stays as it is.

    Median             the median of each coordinate                       Yin et al. 2018, definition 1
    TrimmedMean        the mean of each coordinate without its extremes    Yin et al. 2018, definition 2
    Krum               the updates closest to their neighbours             Blanchard et al. 2017, section 4
    GeometricMedian    the point with the least sum of distances           Pillutla et al. 2022, equation (5)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.core.checks import at_least, between, more_than
from archipel.core.layout import chunks
from archipel.core.parts.merge import Merge, Proposal
from archipel.core.parts.part import Composition, Needs
from archipel.core.parts.weighting import Equally
from archipel.core.state import Update, View
from archipel.kernels.interface import Rows

Matrix: TypeAlias = npt.NDArray[np.float64]
Vector: TypeAlias = npt.NDArray[np.float64]

BLOCK = 1 << 22
"""Numbers that are read into memory at a time, in all rows together."""


class RobustMerge(Merge):
    """A merge that treats all layers with the same senders together."""

    @property
    def needs(self) -> Needs:
        """Require three updates: of two, neither is in the minority."""
        return Needs(at_least=3)

    def conflicts(self, algorithm: Composition) -> str | None:
        together = algorithm.protocol.updates_per_commit
        if together is None or together >= self.needs.at_least:
            return None
        return (
            f"{self!r} needs {self.needs.at_least} updates in a commit, and {algorithm.protocol!r} brings {together}. "
            f"Use Stream(buffer={self.needs.at_least}) or Rounds()."
        )

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        rows = view.models.rows([update.model.name for update in updates])
        proposal = view.kernels.empty(view.layout.size)
        covered: list[int] = []
        for layers, senders in _by_senders(updates, weights, len(view.layout.layers)):
            if len(senders) >= self.needs.at_least:
                amounts = [weights[sender][layers[0]] for sender in senders]
                self._combine(view, rows.select(senders), amounts, view.layout.slices(layers), proposal)
                covered += layers
        return Proposal(proposal, tuple(sorted(covered)))

    @abstractmethod
    def _combine(
        self, view: View, rows: Rows, weights: Sequence[float], pieces: Sequence[slice], proposal: Tensor
    ) -> None:
        """Write these pieces of the proposal."""


class CoordinateMerge(RobustMerge):
    """A merge of each coordinate by its order statistics, without weights."""

    def conflicts(self, algorithm: Composition) -> str | None:
        if isinstance(algorithm.weighting, Equally):
            return super().conflicts(algorithm)
        return (
            f"{self!r} orders the updates' numbers and takes no weights, and the weighting is "
            f"{algorithm.weighting!r}. Use weighting=Equally(), or GeometricMedian(), which takes weights."
        )

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """Leave the weights as they are: they do not matter."""
        return list(weights)

    def _combine(
        self, view: View, rows: Rows, weights: Sequence[float], pieces: Sequence[slice], proposal: Tensor
    ) -> None:
        for piece in chunks(pieces, max(1, BLOCK // len(rows))):
            ordered = torch.stack([rows.read(row, piece) for row in range(len(rows))]).sort(dim=0).values
            proposal[piece] = self._pick(ordered)

    @abstractmethod
    def _pick(self, ordered: Tensor) -> Tensor:
        """Return one number for each column of a matrix whose columns are sorted."""


@dataclass(frozen=True)
class Median(CoordinateMerge):
    """The median of each coordinate; the mean of the middle two where their number is even."""

    def _pick(self, ordered: Tensor) -> Tensor:
        middle = len(ordered) // 2
        if len(ordered) % 2:
            return ordered[middle]
        return ordered[middle - 1 : middle + 1].mean(dim=0)


@dataclass(frozen=True)
class TrimmedMean(CoordinateMerge):
    """The mean of each coordinate without its smallest and its largest numbers."""

    share: float = 0.2
    """Share of the updates to leave out at each end, rounded down to whole updates."""

    def __post_init__(self) -> None:
        between("TrimmedMean", "share", self.share, 0, 0.5)

    def _pick(self, ordered: Tensor) -> Tensor:
        cut = int(self.share * len(ordered))
        return ordered[cut : len(ordered) - cut].mean(dim=0)


@dataclass(frozen=True)
class Krum(RobustMerge):
    """The weighted mean of the updates that are closest to their neighbours (Multi-Krum; Krum with keep=1).

    The score of an update is the sum of its squared distances to its n - attackers - 2 nearest others; those with the
    lowest scores are kept.
    """

    attackers: int = 1
    """Most wrong updates in a commit."""
    keep: int = 1
    """Number of updates to average."""

    def __post_init__(self) -> None:
        at_least(0, "Krum", attackers=self.attackers)
        at_least(1, "Krum", keep=self.keep)

    @property
    def needs(self) -> Needs:
        """Require more than 2 x attackers + 2 updates, as the guarantee does, and at least `keep`."""
        return Needs(at_least=max(2 * self.attackers + 3, self.attackers + self.keep))

    def _combine(
        self, view: View, rows: Rows, weights: Sequence[float], pieces: Sequence[slice], proposal: Tensor
    ) -> None:
        distances = _squared_distances(_products(rows, pieces))
        np.fill_diagonal(distances, 0.0)
        nearest = np.sort(distances, axis=1)[:, 1 : len(rows) - self.attackers - 1]
        kept = sorted(np.argsort(nearest.sum(axis=1), kind="stable")[: self.keep].tolist())
        total = sum(weights[row] for row in kept)
        for piece in pieces:
            view.kernels.weighted_sum(proposal, rows.select(kept), [weights[row] / total for row in kept], piece)


@dataclass(frozen=True)
class GeometricMedian(RobustMerge):
    """The point with the least weighted sum of distances to the updates, by Weiszfeld's iteration (RFA).

    All iterates are weighted means of the updates, so the iteration needs only the products of each two of them.
    """

    iterations: int = 100
    """Most steps."""
    tolerance: float = 1e-7
    """Stop when a step lowers the sum of distances by less than this share of it."""
    smoothing: float = 1e-6
    """Lower bound of distances, as a share of the largest."""

    def __post_init__(self) -> None:
        at_least(1, "GeometricMedian", iterations=self.iterations)
        more_than(0, "GeometricMedian", tolerance=self.tolerance, smoothing=self.smoothing)

    def _combine(
        self, view: View, rows: Rows, weights: Sequence[float], pieces: Sequence[slice], proposal: Tensor
    ) -> None:
        shares = self._shares(_products(rows, pieces), np.array(weights))
        for piece in pieces:
            view.kernels.weighted_sum(proposal, rows, shares.tolist(), piece)

    def _shares(self, products: Matrix, weights: Vector) -> Vector:
        """Return the weights of the mean that is the geometric median."""
        shares: Vector = weights / weights.sum()
        floor = self.smoothing * np.sqrt(_squared_distances(products).max())
        if floor == 0.0:  # the updates are identical
            return shares
        before = np.inf
        for _ in range(self.iterations):
            squared = products.diagonal() - 2 * products @ shares + shares @ products @ shares
            distances = np.sqrt(np.maximum(squared, floor**2))
            objective = float(weights @ distances)
            if before - objective <= self.tolerance * objective:
                break
            before = objective
            shares = weights / distances
            shares /= shares.sum()
        return shares


def _by_senders(
    updates: Sequence[Update], weights: Sequence[Sequence[float]], layers: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Group the layers that the same updates sent with the same weights above zero: (layers, updates)."""
    sent = [frozenset(update.layers) for update in updates]
    groups: dict[tuple[tuple[int, float], ...], list[int]] = {}
    for layer in range(layers):
        senders = tuple(
            (k, weights[k][layer]) for k in range(len(updates)) if layer in sent[k] and weights[k][layer] > 0
        )
        groups.setdefault(senders, []).append(layer)
    for senders, alike in groups.items():
        if senders:
            yield alike, [k for k, _ in senders]


def _products(rows: Rows, pieces: Sequence[slice]) -> Matrix:
    """Return the scalar products of all pairs of rows over these pieces, relative to the first row.

    Rows of a commit differ little: relative to zero, their differences would be lost in rounding.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in chunks(pieces, max(1, BLOCK // len(rows))):
        block = torch.stack([rows.read(row, piece) for row in range(len(rows))]).double()
        block -= block[0].clone()
        total += block @ block.T
    products: Matrix = total.numpy()
    return products


def _squared_distances(products: Matrix) -> Matrix:
    norms = products.diagonal()
    return np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0.0)

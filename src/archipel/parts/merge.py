"""Merge: what the weights act on.

Sums are taken in a fixed order (slot, learner), never in order of arrival, because float addition is not associative.
A layer that nobody sent, or that has no weight at all, stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archipel.checks import share
from archipel.layout import CHUNK, chunks
from archipel.parts.part import Part
from archipel.state import Update, View

COMMIT_CHUNK = 1 << 18
"""Numbers of the community's sum that are changed at a time: everything that is done to them is done in the cache."""

Row: TypeAlias = Callable[[slice], Tensor]
"""A model of which one piece at a time is read: it may lie on a disk."""

GIANT = 2.0**20
"""A term so much larger than all others eats 20 of the 53 bits that float64 has for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What the merge proposes as the next model, and for which layers; elsewhere the vector says nothing."""

    vector: Tensor
    """A new one: it may become the next model itself."""
    layers: tuple[int, ...]
    undo: Callable[[], None] | None = None
    """Take back what the merge has remembered, if the model is refused."""


class Merge(Part):
    accumulates: bool = False
    """It keeps one model for each learner, so an update must be some learner's own."""

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        """Updates come sorted by (slot, learner), with one weight for each layer of the layout."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Merge):
    """The weighted mean of the batch, each layer over those who sent it."""

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        rows: list[Row] = [partial(view.models.read, update.model.name) for update in updates]
        proposal = view.layout.empty()
        covered: list[int] = []
        for layers, shares in _alike(updates, weights, len(view.layout.layers)):
            total = math.fsum(shares.values())
            if total > 0:
                covered.extend(layers)
                senders, normalised = [rows[k] for k in shares], [p / total for p in shares.values()]
                weighted_sum(proposal, senders, normalised, view.layout.slices(layers))
        return Proposal(proposal, tuple(sorted(covered)))


@dataclass(frozen=True)
class Mix(Merge):
    """FedAsync: w <- (1 - a) w + a w_k with a = alpha x weight, which is not normalised."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        share("Mix", "alpha", self.alpha)

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        mixed = view.layout.empty().copy_(view.models.read(view.model.name))
        covered: set[int] = set()
        for update, weight in zip(updates, weights, strict=True):
            for layer in update.layers:
                a = self.alpha * weight[layer]
                if a > 1:
                    raise ValueError(
                        f"Mix: alpha {self.alpha} x weight {weight[layer]} of learner {update.learner!r} is above 1; "
                        "Mix takes weights of at most 1 / alpha, such as ByFreshness gives."
                    )
                if a > 0:
                    covered.add(layer)
                    for piece in view.layout.slices((layer,)):
                        mixed[piece].mul_(1 - a).add_(view.models.read(update.model.name, piece), alpha=a)
        return Proposal(mixed, tuple(sorted(covered)))


@dataclass(frozen=True)
class Community(Merge):
    """Everybody's latest model, at O(M) a commit however many learners there are (Metis section III, Caching Tier).

    W = sum p_k w_k is kept in float64 and P per layer; a commit replaces one learner's term:
    P <- P + p_k - p'_k, W <- W + p_k w_k - p'_k w'_k, w_c = W / P. Where P is 0 the current model stays.
    """

    forget: bool = False
    """Take a leaver's last model out of the sum; by default it stays."""

    accumulates = True

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        memory, _ = self._remembered(view)
        changes = {layer: _Change() for layer in memory["changed"]}
        memory["changed"] = []
        before = {update.learner: dict(memory["latest"].get(update.learner, {})) for update in updates}
        taken: dict[str, str] = {}
        for update, weight in zip(updates, weights, strict=True):
            member = view.state.members.get(update.learner)
            if self.forget and member is not None and not member.active:
                continue  # it left while its update was waiting
            taken[update.model.name] = update.learner
            latest = memory["latest"].setdefault(update.learner, {})
            for layer in update.layers:
                change, p = changes.setdefault(layer, _Change()), weight[layer]
                old, old_p = latest.get(str(layer), (None, 0.0))
                change.add(update.model.name, p)
                if old is not None:
                    change.add(old, -old_p)
                if self._reweigh(memory, layer, old_p, p):
                    changes[layer] = _Change(from_nothing=True)
                self._hold(memory, old, -1)
                self._hold(memory, update.model.name, +1)
                latest[str(layer)] = [update.model.name, p]
        proposal = view.layout.empty()
        sizes = self._apply(view, changes, taken, proposal)
        giants_gone = [self._resize(memory, learner, sizes.get(name, 0.0)) for name, learner in taken.items()]
        if any(giants_gone):
            self._rebuild(view)
            self._apply(view, {layer: _Change() for layer in changes}, (), proposal)
        covered = tuple(layer for layer in sorted(changes) if memory["weight"][layer] > 0)
        return Proposal(proposal, covered, undo=lambda: self._restore(view, before))

    def left(self, view: View, learner: str) -> None:
        if not self.forget or learner not in view.memory.get("latest", {}):
            return
        memory, total = self._remembered(view)
        for key, (name, p) in memory["latest"].pop(learner).items():
            layer = int(key)
            (piece,) = view.layout.slices((layer,))
            total[piece].sub_(view.models.read(name, piece), alpha=p)
            if self._reweigh(memory, layer, p, 0.0):
                total[piece] = 0.0
            self._hold(memory, name, -1)
            memory["changed"].append(layer)
        if self._resize(memory, learner, 0.0):
            self._rebuild(view)

    def holds(self, view: View) -> Collection[str]:
        held: dict[str, int] = view.memory.get("held", {})
        return held.keys()

    def _remembered(self, view: View) -> tuple[dict[str, Any], Tensor]:
        """The part's memory and the vector W, both made at the first commit."""
        memory = view.memory
        if not memory:
            view.models.write(view.name("sum"), torch.zeros(view.layout.size, dtype=torch.float64))
            layers = len(view.layout.layers)
            memory.update(latest={}, held={}, weight=[0.0] * layers, terms=[0] * layers, changed=[])
            memory.update(sizes={}, peak=0.0)
        return memory, view.models.read(view.name("sum"))

    def _apply(
        self, view: View, changes: dict[int, _Change], new: Collection[str], proposal: Tensor
    ) -> dict[str, float]:
        """Change W and write W / P into the proposal in one pass; how large the new models' terms are, by name."""
        memory, total = self._remembered(view)
        room = torch.empty(min(COMMIT_CHUNK, len(total)), dtype=torch.float64)
        sizes: dict[str, float] = {}
        for layers, change, weight in _runs(changes, memory["weight"]):
            for chunk in chunks(view.layout.slices(layers), COMMIT_CHUNK):
                running, wide = total[chunk], room[: chunk.stop - chunk.start]
                if change.from_nothing:
                    running.zero_()
                for name, p in change.terms:
                    part = view.models.read(name, chunk)
                    if name in new:
                        sizes[name] = max(sizes.get(name, 0.0), p * largest(part))
                    running.add_(wide.copy_(part), alpha=p)
                if weight > 0:
                    proposal[chunk].copy_(torch.div(running, weight, out=wide))
        return sizes

    @staticmethod
    def _reweigh(memory: dict[str, Any], layer: int, old: float, new: float) -> bool:
        """P <- P + p_k - p'_k for a layer; True if no term that weighs anything is left."""
        memory["weight"][layer] += new - old
        memory["terms"][layer] += (new > 0) - (old > 0)
        if memory["terms"][layer] == 0:  # what rounding would leave behind is no model
            memory["weight"][layer] = 0.0
            return True
        return False

    @staticmethod
    def _resize(memory: dict[str, Any], learner: str, size: float) -> bool:
        """Note how large a learner's term is; True if a giant has gone, and what it made the sum forget is missing."""
        gone = memory["sizes"].pop(learner, 0.0)
        if size > 0:
            memory["sizes"][learner] = size
        memory["peak"] = max(memory["peak"], size)
        return bool(gone >= memory["peak"] and gone > GIANT * max(memory["sizes"].values(), default=0.0))

    def _restore(self, view: View, before: dict[str, dict[str, list[Any]]]) -> None:
        """Go back to the terms these learners had."""
        for learner, terms in before.items():
            view.memory["latest"][learner] = terms
        self._rebuild(view)

    def _rebuild(self, view: View) -> None:
        """W and P from everybody's latest models: the O(MN) pass that a commit saves."""
        memory, total = self._remembered(view)
        total.zero_()
        memory.update(held={}, weight=[0.0] * len(memory["weight"]), terms=[0] * len(memory["terms"]), sizes={})
        for learner in sorted(memory["latest"]):
            size = 0.0
            for key, (name, p) in memory["latest"][learner].items():
                (piece,) = view.layout.slices((int(key),))
                row = view.models.read(name, piece)
                total[piece].add_(row, alpha=p)
                self._reweigh(memory, int(key), 0.0, p)
                self._hold(memory, name, +1)
                size = max(size, p * largest(row))
            if size > 0:
                memory["sizes"][learner] = size
        memory["peak"] = max(memory["sizes"].values(), default=0.0)

    @staticmethod
    def _hold(memory: dict[str, Any], name: str | None, by: int) -> None:
        if name is not None:
            memory["held"][name] = memory["held"].get(name, 0) + by
            if memory["held"][name] == 0:
                del memory["held"][name]


def _alike(
    updates: Sequence[Update], weights: Sequence[Sequence[float]], layers: int
) -> list[tuple[list[int], dict[int, float]]]:
    """Neighbouring layers that the same updates sent with the same weights: (layers, {update: weight})."""
    runs: list[tuple[list[int], dict[int, float]]] = []
    sent = [frozenset(update.layers) for update in updates]
    for layer in range(layers):
        shares = {k: weights[k][layer] for k in range(len(updates)) if layer in sent[k]}
        if runs and runs[-1][1] == shares:
            runs[-1][0].append(layer)
        else:
            runs.append(([layer], shares))
    return runs


@dataclass(slots=True)
class _Change:
    """What a commit does to a layer of the community's sum."""

    terms: list[tuple[str, float]] = field(default_factory=list)
    """Models and their weights, to be added in this order; a term that goes has its weight negative."""
    from_nothing: bool = False
    """The sum begins at zero."""

    def add(self, name: str, weight: float) -> None:
        self.terms.append((name, weight))


def _runs(changes: dict[int, _Change], weights: Sequence[float]) -> list[tuple[list[int], _Change, float]]:
    """Layers with the same change and the same P together: (layers, change, P)."""
    runs: list[tuple[list[int], _Change, float]] = []
    for layer, change in sorted(changes.items()):
        if runs and runs[-1][1:] == (change, weights[layer]):
            runs[-1][0].append(layer)
        else:
            runs.append(([layer], change, weights[layer]))
    return runs


def largest(vector: Tensor) -> float:
    """The largest magnitude in a vector."""
    low, high = torch.aminmax(vector)
    return max(-float(low), float(high))


def weighted_sum(into: Tensor, rows: Sequence[Row], shares: Sequence[float], pieces: Iterable[slice]) -> None:
    """On these pieces, into = sum of shares x rows, added up row by row from zero: the order of every mean."""
    for chunk in chunks(pieces, CHUNK):
        running = into[chunk].zero_()
        for row, p in zip(rows, shares, strict=True):
            running.add_(row(chunk), alpha=p)

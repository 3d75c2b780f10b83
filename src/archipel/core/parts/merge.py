"""Merge: how the weighted updates become the proposed model.

Sums are taken in a fixed order (slot, learner), never in order of arrival, because float addition is not associative.
A layer that no update holds, or whose weights are all 0, stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from archipel.core.checks import share
from archipel.core.layout import Layout
from archipel.core.parts.part import Composition, Needs, Part
from archipel.core.shares import cap
from archipel.core.state import Update, View

GIANT = 2.0**20
"""A term this many times larger than all others takes 20 of their 53 bits of float64 precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The merge's proposal for the next model, and its layers; the rest of the vector is undefined."""

    vector: Tensor
    """A new vector: it may become the next model itself."""
    layers: tuple[int, ...]
    undo: Callable[[], None] | None = None
    """Called to restore the merge's memory if the model is refused."""
    cut: tuple[str, ...] = ()
    """Learners whose earlier models were cut down to the largest share allowed."""
    starts: Mapping[str, Tensor] = field(default_factory=dict)
    """Models that contributors start their next task from, by learner; all others start from the new version."""
    norms: tuple[float, ...] = ()
    """How far each update would have moved the model, if the merge has measured it."""
    clipped: tuple[bool, ...] = ()
    """Which updates were scaled back, if the merge does so."""


class Merge(Part):
    def initial(self, layout: Layout, vector: Tensor) -> Tensor:
        """Return the model that a run begins with, made from the network's own initial vector."""
        return vector

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """Cut the weights so that no learner's share of a layer exceeds the limit; called only if there is one."""
        within = list(weights)
        for layers, senders, amounts in _alike(updates, weights, len(view.layout.layers)):
            _put(within, layers, senders, amounts, cap(amounts, view.state.most_share))
        return within

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        """Merge updates, sorted by (slot, learner), each with one weight for each layer of the layout."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Merge):
    """The weighted mean of the batch, each layer over the updates that hold it."""

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        rows = view.models.rows([update.model.name for update in updates])
        proposal = view.kernels.empty(view.layout.size)
        covered: list[int] = []
        for layers, senders, shares in _alike(updates, weights, len(view.layout.layers)):
            total = math.fsum(shares)
            if total > 0:
                covered.extend(layers)
                chosen = rows if len(senders) == len(rows) else rows.select(senders)
                for piece in view.layout.slices(layers):
                    view.kernels.weighted_sum(proposal, chosen, [p / total for p in shares], piece)
        return Proposal(proposal, tuple(sorted(covered)))


@dataclass(frozen=True)
class Mix(Merge):
    """FedAsync: w <- (1 - a) w + a w_k with a = alpha x weight, which is not normalised."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        share("Mix", "alpha", self.alpha)

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.weighting.at_most_one:
            return None
        return (
            f"Mix takes the weight itself as mixing coefficient, and {algorithm.weighting!r} gives weights above 1. "
            "Use ByFreshness(...) or Equally() with Mix, or Mean() with this weighting."
        )

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """Leave the weights as they are: they are not normalised, and alpha bounds the effect of one update."""
        return list(weights)

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        mixed = view.kernels.empty(view.layout.size).copy_(view.models.read(view.model.name))
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


Term: TypeAlias = tuple[str, float]
"""A model's name and its weight p."""


@dataclass(slots=True)
class CommunityMemory:
    """Memory of `Community` beside the vector W."""

    weight: list[float]
    """P of each layer."""
    terms: list[int]
    """Number of terms of each layer with a weight above 0."""
    latest: dict[str, dict[int, Term]] = field(default_factory=dict)
    """The term of each learner and layer."""
    held: dict[str, int] = field(default_factory=dict)
    """Number of layers that each model is a term of."""
    changed: list[int] = field(default_factory=list)
    """Layers that changed since the last commit because a learner left."""
    sizes: dict[str, float] = field(default_factory=dict)
    """The largest absolute number of each learner's term."""
    peak: float = 0.0
    """The largest of these so far."""
    largest: list[float] = field(default_factory=list)
    """An upper bound of each layer's largest weight p; empty if shares have no limit."""


@dataclass(frozen=True)
class Community(Merge):
    """The mean of all learners' latest models, at O(M) a commit for any number of learners (Metis III, Caching Tier).

    W = sum p_k w_k is kept in float64 and P per layer; a commit replaces one learner's term:
    P <- P + p_k - p'_k, W <- W + p_k w_k - p'_k w'_k, w_c = W / P. Where P is 0 the current model stays.
    """

    forget: bool = False
    """Remove a learner's model from the sum when it leaves; by default it stays."""

    needs = Needs(single_models=True)

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """Cut the weights to shares of all learners' latest models, not of the commit's."""
        within, memory = list(weights), self._memory(view)
        for layers, senders, amounts in _alike(updates, weights, len(view.layout.layers)):
            for layer in layers:
                old = [memory.latest.get(updates[k].learner, {}).get(layer, ("", 0.0))[1] for k in senders]
                others = memory.terms[layer] - sum(p > 0 for p in old)
                beside = max(0.0, memory.weight[layer] - math.fsum(old)) if others else 0.0
                _put(within, (layer,), senders, amounts, cap(amounts, view.state.most_share, beside, others))
        return within

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        memory = self._memory(view)
        before = {update.learner: dict(memory.latest.get(update.learner, {})) for update in updates}
        merged = [
            (update, weight)
            for update, weight in zip(updates, weights, strict=True)
            if not (self.forget and self._has_left(view, update.learner))
        ]
        changes, emptied = self._replace_terms(view, memory, merged)
        cut = self._cut(view, weights, changes, before) if view.state.most_share < 1 else ()
        proposal = view.kernels.empty(view.layout.size)
        sizes = self._apply(view, _runs(changes, emptied, memory.weight), proposal)
        # a list: `any` of a generator would stop at the first
        giants = [self._resize(memory, update.learner, sizes.get(update.model.name, 0.0)) for update, _ in merged]
        if any(giants):
            self._rebuild(view)
            self._apply(view, _runs(dict.fromkeys(changes, ()), set(), memory.weight), proposal)
        covered = tuple(layer for layer in sorted(changes) if memory.weight[layer] > 0)
        return Proposal(proposal, covered, undo=lambda: self._restore(view, before), cut=cut)

    def left(self, view: View, learner: str) -> None:
        if not self.forget:
            return
        memory, total = self._memory(view), self._sum(view)
        if learner not in memory.latest:
            return
        for layer, (name, p) in memory.latest.pop(learner).items():
            (piece,) = view.layout.slices((layer,))
            total[piece].sub_(view.models.read(name, piece), alpha=p)
            if self._reweigh(memory, (layer,), p, 0.0):
                total[piece] = 0.0
            self._hold(view, memory, name, -1)
            memory.changed.append(layer)
        if self._resize(memory, learner, 0.0):
            self._rebuild(view)

    def _memory(self, view: View) -> CommunityMemory:
        """Return the part's memory; create it and the vector W at the first use."""

        def begin() -> CommunityMemory:
            view.models.write(view.name("sum"), torch.zeros(view.layout.size, dtype=torch.float64))
            layers = len(view.layout.layers)
            return CommunityMemory(weight=[0.0] * layers, terms=[0] * layers)

        return view.memory(CommunityMemory, begin)

    @staticmethod
    def _has_left(view: View, learner: str) -> bool:
        """Return whether a learner left while its update was waiting."""
        member = view.state.members.get(learner)
        return member is not None and not member.active

    def _sum(self, view: View) -> Tensor:
        """Return the vector W."""
        return view.models.read(view.name("sum"))

    def _replace_terms(
        self, view: View, memory: CommunityMemory, merged: Sequence[tuple[Update, Sequence[float]]]
    ) -> tuple[dict[int, _Terms], set[int]]:
        """Replace learners' earlier models by their updates.

        Return the terms to add to each layer of W, and the layers that begin at zero.
        """
        changes: dict[int, _Terms] = dict.fromkeys(memory.changed, ())
        emptied: set[int] = set()
        memory.changed = []
        for update, weight in merged:
            name = update.model.name
            latest = memory.latest.setdefault(update.learner, {})
            for (old, old_p, p), layers in _alike_before(latest, update.layers, weight):
                latest.update((layer, (name, p)) for layer in layers)
                terms = ((name, p),) if old is None else ((name, p), (old, -old_p))
                changes.update((layer, changes.get(layer, ()) + terms) for layer in layers)
                for layer in self._reweigh(memory, layers, old_p, p):
                    emptied.add(layer)
                    changes[layer] = ()
                if old is not None:
                    self._hold(view, memory, old, -len(layers))
            self._hold(view, memory, name, len(update.layers))
        return changes, emptied

    def _apply(self, view: View, changes: Iterable[_Change], proposal: Tensor) -> dict[str, float]:
        """Change W and write W / P into the proposal; return the largest number of each model's term, by name."""
        total = self._sum(view)
        sizes: dict[str, float] = {}
        for change in changes:
            names, factors = [name for name, _ in change.terms], [p for _, p in change.terms]
            rows = view.models.rows(names)
            for piece in view.layout.slices(change.layers):
                largest = view.kernels.replace_terms(
                    total,
                    rows,
                    factors,
                    piece,
                    restart=change.restart,
                    mean=proposal if change.weight > 0 else None,
                    divisor=change.weight,
                )
                for name, p, size in zip(names, factors, largest, strict=True):
                    sizes[name] = max(sizes.get(name, 0.0), p * size)
        return sizes

    def _cut(
        self,
        view: View,
        weights: Sequence[Sequence[float]],
        changes: dict[int, _Terms],
        before: dict[str, dict[int, Term]],
    ) -> tuple[str, ...]:
        """Cut terms that have come to exceed the largest share allowed, because others left or shrank."""
        memory, most, cut = self._memory(view), view.state.most_share, set[str]()
        memory.largest = memory.largest or [0.0] * len(memory.weight)
        for layer in sorted(changes):
            memory.largest[layer] = max(memory.largest[layer], *(weight[layer] for weight in weights))
            if memory.largest[layer] <= most * memory.weight[layer]:
                continue  # no term is above the limit
            terms = {who: latest[layer] for who, latest in memory.latest.items() if layer in latest}
            within = cap([p for _, p in terms.values()], most)
            memory.largest[layer] = max(within, default=0.0)
            for (who, (name, old)), new in zip(terms.items(), within, strict=True):
                if new < old:
                    before.setdefault(who, dict(memory.latest[who]))
                    memory.latest[who][layer] = (name, new)
                    self._reweigh(memory, (layer,), old, new)
                    changes[layer] += ((name, new - old),)
                    cut.add(who)
        return tuple(sorted(cut))

    @staticmethod
    def _reweigh(memory: CommunityMemory, layers: Iterable[int], old: float, new: float) -> list[int]:
        """Set P <- P + p_k - p'_k for some layers; return those whose terms all have weight 0."""
        emptied = []
        for layer in layers:
            memory.weight[layer] += new - old
            memory.terms[layer] += (new > 0) - (old > 0)
            if memory.terms[layer] == 0:  # do not keep rounding errors
                memory.weight[layer] = 0.0
                emptied.append(layer)
        return emptied

    @staticmethod
    def _resize(memory: CommunityMemory, learner: str, size: float) -> bool:
        """Store the size of a learner's term; return whether a giant term that cost others precision is gone."""
        gone = memory.sizes.pop(learner, 0.0)
        if size > 0:
            memory.sizes[learner] = size
        memory.peak = max(memory.peak, size)
        return gone >= memory.peak and gone > GIANT * max(memory.sizes.values(), default=0.0)

    def _restore(self, view: View, before: dict[str, dict[int, Term]]) -> None:
        """Restore the terms that these learners had."""
        self._memory(view).latest.update(before)
        self._rebuild(view)

    def _rebuild(self, view: View) -> None:
        """Compute W and P from all learners' latest models: the O(MN) pass that commits avoid."""
        memory, total = self._memory(view), self._sum(view)
        total.zero_()
        layers = len(view.layout.layers)
        view.release(*memory.held)
        memory.held, memory.weight, memory.terms, memory.sizes = {}, [0.0] * layers, [0] * layers, {}
        for learner in sorted(memory.latest):
            size = 0.0
            for layer, (name, p) in memory.latest[learner].items():
                (piece,) = view.layout.slices((layer,))
                (largest,) = view.kernels.replace_terms(total, view.models.rows([name]), [p], piece)
                self._reweigh(memory, (layer,), 0.0, p)
                self._hold(view, memory, name, +1)
                size = max(size, p * largest)
            if size > 0:
                memory.sizes[learner] = size
        memory.peak = max(memory.sizes.values(), default=0.0)

    @staticmethod
    def _hold(view: View, memory: CommunityMemory, name: str, by: int) -> None:
        """Add to the number of layers that need a model's vector, and hold it while that is above 0."""
        before = memory.held.pop(name, 0)
        if before + by:
            memory.held[name] = before + by
        if before == 0 and by:
            view.hold(name)
        elif before and before + by == 0:
            view.release(name)


def _alike(
    updates: Sequence[Update], weights: Sequence[Sequence[float]], layers: int
) -> Iterator[tuple[tuple[int, ...], Sequence[int], Sequence[float]]]:
    """Group adjacent layers that the same updates hold with the same weights: (layers, updates, weights)."""
    everybody = range(len(updates))
    if any(len(update.layers) < layers for update in updates):
        sent = [frozenset(update.layers) for update in updates]
        some = [{k: weights[k][layer] for k in everybody if layer in sent[k]} for layer in range(layers)]
        for column, run in groupby(range(layers), some.__getitem__):
            yield tuple(run), tuple(column), tuple(column.values())
    elif all(weight.count(weight[0]) == layers for weight in weights):  # the usual case, for up to a thousand updates
        yield tuple(range(layers)), everybody, [weight[0] for weight in weights]
    else:
        columns = list(zip(*weights, strict=True))
        for shares, run in groupby(range(layers), columns.__getitem__):
            yield tuple(run), everybody, shares


def _put(
    weights: list[tuple[float, ...]],
    layers: Sequence[int],
    senders: Sequence[int],
    amounts: Sequence[float],
    within: Sequence[float],
) -> None:
    """Write the amounts that were cut back into the table of weights."""
    if within is amounts:
        return
    for k, amount, limited in zip(senders, amounts, within, strict=True):
        if limited < amount:
            row = list(weights[k])
            for layer in layers:
                row[layer] = limited
            weights[k] = tuple(row)


_Terms: TypeAlias = tuple[Term, ...]
"""Models and their weights, to be added in this order; a removed term has its weight negated."""


class _Change(NamedTuple):
    """A commit's change to adjacent layers of the community's sum."""

    layers: tuple[int, ...]
    terms: _Terms
    restart: bool
    """Whether the sum begins at zero."""
    weight: float
    """P after the change."""


def _alike_before(
    latest: dict[int, Term], layers: Iterable[int], weight: Sequence[float]
) -> Iterator[tuple[tuple[str | None, float, float], tuple[int, ...]]]:
    """Group adjacent layers with the same old model, old weight and new weight."""
    for alike, run in groupby(layers, lambda layer: (*latest.get(layer, (None, 0.0)), weight[layer])):
        yield alike, tuple(run)


def _runs(changes: dict[int, _Terms], emptied: Collection[int], weights: Sequence[float]) -> list[_Change]:
    """Group adjacent layers with the same terms and the same P."""
    runs = groupby(sorted(changes), lambda layer: (changes[layer], layer in emptied, weights[layer]))
    return [_Change(tuple(layers), *alike) for alike, layers in runs]

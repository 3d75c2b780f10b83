"""Merge: what the weights act on.

Sums are taken in a fixed order (slot, learner), never in order of arrival, because float addition is not associative.
A layer that nobody sent, or that has no weight at all, stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from archipel.core.checks import share
from archipel.core.layout import chunks, part
from archipel.core.parts.part import Part
from archipel.core.shares import cap
from archipel.core.state import Models, Update, View
from archipel.kernels.native.merge import add_rows, add_rows_at, commit

CHUNK = 1 << 19
"""Numbers of a model that are read from a file at a time."""

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
    cut: tuple[str, ...] = ()
    """Learners whose earlier models count for less from now on: they had more than anybody's share."""


class Merge(Part):
    accumulates: bool = False
    """It keeps one model for each learner, so an update must be some learner's own."""

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """The weights, cut so that nobody's share of a layer exceeds the state's; called where there is a limit."""
        within = list(weights)
        for layers, senders, amounts in _alike(updates, weights, len(view.layout.layers)):
            _put(within, layers, senders, amounts, cap(amounts, view.state.most_share))
        return within

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        """Updates come sorted by (slot, learner), with one weight for each layer of the layout."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Merge):
    """The weighted mean of the batch, each layer over those who sent it."""

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        batch = _Batch(view, updates)
        proposal = view.layout.empty()
        covered: list[int] = []
        for layers, senders, shares in _alike(updates, weights, len(view.layout.layers)):
            total = math.fsum(shares)
            if total > 0:
                covered.extend(layers)
                batch.add_up(proposal, senders, [p / total for p in shares], view.layout.slices(layers))
        return Proposal(proposal, tuple(sorted(covered)))


@dataclass(frozen=True)
class Mix(Merge):
    """FedAsync: w <- (1 - a) w + a w_k with a = alpha x weight, which is not normalised."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        share("Mix", "alpha", self.alpha)

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """As they are: they are no shares, and alpha bounds what one update does."""
        return list(weights)

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

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """Shares are of everybody's latest models, not of a commit's."""
        within, memory = list(weights), self._remembered(view)
        for layers, senders, amounts in _alike(updates, weights, len(view.layout.layers)):
            for layer in layers:
                old = [memory["latest"].get(updates[k].learner, {}).get(str(layer), (None, 0.0))[1] for k in senders]
                others = memory["terms"][layer] - sum(p > 0 for p in old)
                beside = max(0.0, memory["weight"][layer] - math.fsum(old)) if others else 0.0
                _put(within, (layer,), senders, amounts, cap(amounts, view.state.most_share, beside, others))
        return within

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        memory = self._remembered(view)
        changes: dict[int, _Terms] = dict.fromkeys(memory["changed"], ())
        emptied: set[int] = set()
        memory["changed"] = []
        before = {update.learner: dict(memory["latest"].get(update.learner, {})) for update in updates}
        taken: dict[str, str] = {}
        for update, weight in zip(updates, weights, strict=True):
            member = view.state.members.get(update.learner)
            if self.forget and member is not None and not member.active:
                continue  # it left while its update was waiting
            name = update.model.name
            taken[name] = update.learner
            latest = memory["latest"].setdefault(update.learner, {})
            for (old, old_p, p), layers in _terms(latest, update.layers, weight):
                remembered = [name, p]
                latest.update((str(layer), remembered) for layer in layers)
                terms = ((name, p),) if old is None else ((name, p), (old, -old_p))
                changes.update((layer, changes.get(layer, ()) + terms) for layer in layers)
                for layer in self._reweigh(memory, layers, old_p, p):
                    emptied.add(layer)
                    changes[layer] = ()
                if old is not None:
                    self._hold(memory, old, -len(layers))
            self._hold(memory, name, len(update.layers))
        cut = self._cut(view, weights, changes, before) if view.state.most_share < 1 else ()
        proposal = view.layout.empty()
        sizes = self._apply(view, _runs(changes, emptied, memory["weight"]), proposal)
        giants_gone = [self._resize(memory, learner, sizes.get(name, 0.0)) for name, learner in taken.items()]
        if any(giants_gone):
            self._rebuild(view)
            self._apply(view, _runs(dict.fromkeys(changes, ()), set(), memory["weight"]), proposal)
        covered = tuple(layer for layer in sorted(changes) if memory["weight"][layer] > 0)
        return Proposal(proposal, covered, undo=lambda: self._restore(view, before), cut=cut)

    def left(self, view: View, learner: str) -> None:
        if not self.forget or learner not in view.memory.get("latest", {}):
            return
        memory, total = view.memory, self._sum(view)
        for key, (name, p) in memory["latest"].pop(learner).items():
            layer = int(key)
            (piece,) = view.layout.slices((layer,))
            total[piece].sub_(view.models.read(name, piece), alpha=p)
            if self._reweigh(memory, (layer,), p, 0.0):
                total[piece] = 0.0
            self._hold(memory, name, -1)
            memory["changed"].append(layer)
        if self._resize(memory, learner, 0.0):
            self._rebuild(view)

    def holds(self, view: View) -> Collection[str]:
        held: dict[str, int] = view.memory.get("held", {})
        return held.keys()

    def _remembered(self, view: View) -> dict[str, Any]:
        """The part's memory; it and the vector W are made at the first commit."""
        memory = view.memory
        if not memory:
            view.models.write(view.name("sum"), torch.zeros(view.layout.size, dtype=torch.float64))
            layers = len(view.layout.layers)
            memory.update(latest={}, held={}, weight=[0.0] * layers, terms=[0] * layers, changed=[])
            memory.update(sizes={}, peak=0.0)
        return memory

    def _sum(self, view: View) -> Tensor:
        """The vector W."""
        return view.models.read(view.name("sum"))

    def _apply(self, view: View, changes: Iterable[_Change], proposal: Tensor) -> dict[str, float]:
        """Change W and write W / P into the proposal in one pass; how large the terms are, by the models' names."""
        total = self._sum(view)
        sizes: dict[str, float] = {}
        for change in changes:
            names, factors = [name for name, _ in change.terms], [p for _, p in change.terms]
            for piece, some in _at_once(view.models, names, view.layout.slices(change.layers)):
                found = commit(
                    part(total, piece),
                    [view.models.read(name, piece) for name in names[some]],
                    factors[some],
                    from_nothing=change.from_nothing and some.start == 0,
                    mean=part(proposal, piece) if change.weight > 0 and some.stop == len(names) else None,
                    weight=change.weight,
                )
                for name, p, size in zip(names[some], factors[some], found, strict=True):
                    sizes[name] = max(sizes.get(name, 0.0), p * size)
        return sizes

    def _cut(
        self,
        view: View,
        weights: Sequence[Sequence[float]],
        changes: dict[int, _Terms],
        before: dict[str, dict[str, list[Any]]],
    ) -> tuple[str, ...]:
        """Cut terms that have more than anybody's share now: they came when fewer were there, or others shrank."""
        memory, most, cut = view.memory, view.state.most_share, set[str]()
        largest = memory.setdefault("largest", [0.0] * len(memory["weight"]))
        for layer in sorted(changes):
            largest[layer] = max(largest[layer], *(weight[layer] for weight in weights))
            if largest[layer] <= most * memory["weight"][layer]:
                continue  # nobody has: everybody need not be looked at
            terms = {who: latest[str(layer)] for who, latest in memory["latest"].items() if str(layer) in latest}
            amounts = [p for _, p in terms.values()]
            within = cap(amounts, most)
            largest[layer] = max(within, default=0.0)
            for (who, (name, old)), new in zip(terms.items(), within, strict=True):
                if new < old:
                    before.setdefault(who, dict(memory["latest"][who]))
                    memory["latest"][who][str(layer)] = [name, new]
                    self._reweigh(memory, (layer,), old, new)
                    changes[layer] += ((name, new - old),)
                    cut.add(who)
        return tuple(sorted(cut))

    @staticmethod
    def _reweigh(memory: dict[str, Any], layers: Iterable[int], old: float, new: float) -> list[int]:
        """P <- P + p_k - p'_k for some layers; those of them that no term is left of that weighs anything."""
        weight, terms, emptied = memory["weight"], memory["terms"], []
        for layer in layers:
            weight[layer] += new - old
            terms[layer] += (new > 0) - (old > 0)
            if terms[layer] == 0:  # what rounding would leave behind is no model
                weight[layer] = 0.0
                emptied.append(layer)
        return emptied

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
        memory, total = view.memory, self._sum(view)
        total.zero_()
        memory.update(held={}, weight=[0.0] * len(memory["weight"]), terms=[0] * len(memory["terms"]), sizes={})
        for learner in sorted(memory["latest"]):
            size = 0.0
            for key, (name, p) in memory["latest"][learner].items():
                (piece,) = view.layout.slices((int(key),))
                (largest,) = commit(total[piece], [view.models.read(name, piece)], [p])
                self._reweigh(memory, (int(key),), 0.0, p)
                self._hold(memory, name, +1)
                size = max(size, p * largest)
            if size > 0:
                memory["sizes"][learner] = size
        memory["peak"] = max(memory["sizes"].values(), default=0.0)

    @staticmethod
    def _hold(memory: dict[str, Any], name: str, by: int) -> None:
        """By so many layers more, or fewer, a model's vector is needed."""
        held = memory["held"].pop(name, 0) + by
        if held:
            memory["held"][name] = held


def _alike(
    updates: Sequence[Update], weights: Sequence[Sequence[float]], layers: int
) -> Iterator[tuple[tuple[int, ...], Sequence[int], Sequence[float]]]:
    """Neighbouring layers that the same updates sent with the same weights: layers, places of the updates, weights."""
    everybody = range(len(updates))
    if any(len(update.layers) < layers for update in updates):
        sent = [frozenset(update.layers) for update in updates]
        some = [{k: weights[k][layer] for k in everybody if layer in sent[k]} for layer in range(layers)]
        for column, run in groupby(range(layers), some.__getitem__):
            yield tuple(run), tuple(column), tuple(column.values())
    elif all(weight.count(weight[0]) == layers for weight in weights):  # as a rule, and there may be a thousand
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
    """Write the amounts that were cut into the table of weights."""
    if within is amounts:
        return
    for k, amount, limited in zip(senders, amounts, within, strict=True):
        if limited < amount:
            row = list(weights[k])
            for layer in layers:
                row[layer] = limited
            weights[k] = tuple(row)


class _Batch:
    """The models of some updates; where they are is looked up once for all of their layers."""

    def __init__(self, view: View, updates: Sequence[Update]) -> None:
        self._models = view.models
        self._names = [update.model.name for update in updates]
        self._places = view.models.places(self._names, view.layout.size)

    def add_up(self, into: Tensor, senders: Sequence[int], shares: Sequence[float], pieces: Sequence[slice]) -> None:
        """On these pieces, into = sum of shares x models, added model by model from zero: the order of every mean."""
        if self._places is not None:
            places = self._places if len(senders) == len(self._places) else self._places[list(senders)]
            for piece in pieces:
                add_rows_at(into, places, shares, piece, from_nothing=True)
            return
        for piece in chunks(pieces, CHUNK):
            for k, p in zip(senders, shares, strict=True):
                name, first = self._names[k], k == senders[0]
                add_rows(part(into, piece), [self._models.read(name, piece)], [p], from_nothing=first)


_Terms: TypeAlias = tuple[tuple[str, float], ...]
"""Models and their weights, to be added in this order; a term that goes has its weight negative."""


class _Change(NamedTuple):
    """What a commit does to neighbouring layers of the community's sum."""

    layers: tuple[int, ...]
    terms: _Terms
    from_nothing: bool
    """The sum begins at zero."""
    weight: float
    """P, when it has been done."""


def _terms(
    latest: dict[str, list[Any]], layers: Iterable[int], weight: Sequence[float]
) -> Iterator[tuple[tuple[str | None, float, float], tuple[int, ...]]]:
    """Neighbouring layers that are alike in the model and the weight they had and in the weight they get."""
    for alike, run in groupby(layers, lambda layer: (*latest.get(str(layer), (None, 0.0)), weight[layer])):
        yield alike, tuple(run)


def _runs(changes: dict[int, _Terms], emptied: Collection[int], weights: Sequence[float]) -> list[_Change]:
    """Neighbouring layers with the same terms and the same P together."""
    runs = groupby(sorted(changes), lambda layer: (changes[layer], layer in emptied, weights[layer]))
    return [_Change(tuple(layers), *alike) for alike, layers in runs]


def _at_once(models: Models, names: Sequence[str], pieces: Sequence[slice]) -> Iterator[tuple[slice, slice]]:
    """What is read at a time, of the vectors and of the names: all there is, if it is in memory anyway."""
    if all(map(models.in_memory, names)):
        yield from ((piece, slice(0, len(names))) for piece in pieces)
    else:
        yield from ((chunk, slice(k, k + 1)) for chunk in chunks(pieces, CHUNK) for k in range(len(names)))

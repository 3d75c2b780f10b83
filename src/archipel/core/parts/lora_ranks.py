"""LoRA adapters whose ranks differ between learners.

The network's adapters are divided into blocks of components: every learner trains the first block, and those with
higher ranks also the next ones. `archipel.models.from_hf(..., lora={"ranks": [4, 8]})` makes them. A learner of a low
rank gets the model with the blocks beyond its rank set to zero, which is the model of that rank: a component whose
factors are both zero adds nothing and has no gradient.

    LoraRanks      which group has which rank (Cho et al. 2024, HetLoRA: truncation)
    ZeroPadded     a block that a learner lacks counts as zeros in the mean (HetLoRA: zero-padding)
    StackedLora    the mean of the products B A, exact by stacking the factors (Wang et al. 2024, FLoRA), cut to the
                   highest rank by its singular values (Bai et al. 2024, FlexLoRA)

With `Mean` alone a block is averaged over the learners that have it. FLoRA itself adds the stack to the base, which is
frozen and never sent here; decision 0131.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.merge import Mean, Merge, Proposal
from archipel.core.parts.part import Composition
from archipel.core.parts.planning import Planner
from archipel.core.parts.protocol import Relay
from archipel.core.parts.server import Replace
from archipel.core.state import Update, View
from archipel.core.types import Model, Plan

BLOCK = re.compile(r"(.*)\.lora_([AB])\.(default|rank\d+)")
"""The path of a block's factor: the first block, or the block that ends at a rank."""
ZEROS = "zeros"
"""The stamp of a layer that a task carries as zeros."""
ROW = 3**-0.5
"""The norm of a row of A as LoRA initialises it; keeping it prevents components with two zero factors."""


class LoraBlock(NamedTuple):
    """A block of components of an adapted module: the layers of its factors, and the ranks it spans."""

    first: int
    last: int
    down: int
    """Of A, [components, inputs]."""
    up: int
    """Of B, [outputs, components]."""


def lora_blocks(layout: Layout) -> dict[str, list[LoraBlock]]:
    """Return the blocks of every adapted module, by ascending rank."""
    places: dict[str, dict[str, dict[str, int]]] = {}
    for place, layer in enumerate(layout.layers):
        found = BLOCK.fullmatch(layer.module)
        if found is not None:
            module, factor, block = found.groups()
            places.setdefault(module, {}).setdefault(block, {})[factor] = place
    blocks: dict[str, list[LoraBlock]] = {}
    for module, own in places.items():
        ranks = 0
        for _, factors in sorted(own.items(), key=lambda item: _order(item[0])):
            if len(factors) == 2:
                size = layout.layers[factors["A"]].entries[0].shape[0]
                blocks.setdefault(module, []).append(LoraBlock(ranks, ranks + size, factors["A"], factors["B"]))
                ranks += size
    return blocks


def _order(block: str) -> int:
    return 0 if block == "default" else int(block.removeprefix("rank"))


def _known_ranks(owner: str, layout: Layout) -> tuple[int, ...]:
    """Return the ranks that a learner may have."""
    found = {tuple(block.last for block in own) for own in lora_blocks(layout).values()}
    require(
        len(found) == 1 and len(next(iter(found), ())) > 1,
        f"{owner}: the network has no LoRA adapters of several ranks; make it with from_hf(..., "
        'lora={"ranks": [4, 8]}).',
    )
    return found.pop()


@dataclass(frozen=True)
class LoraRanks(Planner):
    """Give each group of learners a rank: they get, train and send the components up to it."""

    ranks: Mapping[str, int] = field(default_factory=lambda: {"fast": 8, "slow": 4})
    """By group."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.ranks, Mapping) and len(self.ranks) > 0,
            f'LoraRanks: ranks should give the rank of each group, such as {{"fast": 8, "slow": 4}}, got '
            f"{self.ranks!r}.",
        )

    def conflicts(self, algorithm: Composition) -> str | None:
        if isinstance(algorithm.protocol, Relay):
            return "under Relay, a learner of a low rank would drop the components of earlier ones; use Rounds()."
        return super().conflicts(algorithm)

    def check(self, layout: Layout) -> None:
        known = _known_ranks("LoraRanks", layout)
        for group, rank in self.ranks.items():
            require(
                rank in known,
                f"LoraRanks: group {group!r} has rank {rank!r}, and the network has {', '.join(map(str, known))}; give "
                'one of these, or other ranks to from_hf(..., lora={"ranks": [...]}).',
            )

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        return self._planned(view.layout, plan, self._rank(learner.group))

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return tuple(self._planned(layout, plan, rank) for rank in sorted(set(self.ranks.values())))

    def carried(self, view: View, learner: Member, model: Model) -> Model:
        rank = self._rank(learner.group)
        beyond = _beyond(view.layout, rank)
        if not beyond:
            return model
        name = f"{model.name}.rank{rank}"  # named like a model, since it is sent
        if name not in view.state.vectors.counts:
            vector = view.models.read(model.name).clone()
            for piece in view.layout.slices(sorted(beyond)):
                vector[piece] = 0.0
            view.models.write(name, vector)
        stamps = (ZEROS if place in beyond else stamp for place, stamp in enumerate(model.manifest))
        return Model(name, tuple(stamps))

    def _rank(self, group: str) -> int:
        require(
            group in self.ranks,
            f"LoraRanks: the group {group!r} has no rank; groups that have one: {', '.join(self.ranks)}. Name them as "
            "the fleet does.",
        )
        return self.ranks[group]

    @staticmethod
    def _planned(layout: Layout, plan: Plan, rank: int) -> Plan:
        beyond = {layout.names[place] for place in _beyond(layout, rank)}
        if not beyond:
            return plan
        trains = layout.names if plan.trains is None else plan.trains
        sent = layout.names if plan.uploads is None else plan.uploads
        return replace(
            plan,
            trains=tuple(name for name in trains if name not in beyond),
            uploads=tuple(name for name in sent if name not in beyond),
        )


def _beyond(layout: Layout, rank: int) -> set[int]:
    """Return the indices of the layers that a learner of this rank lacks."""
    blocks = (block for own in lora_blocks(layout).values() for block in own if block.last > rank)
    return {place for block in blocks for place in (block.down, block.up)}


@dataclass(frozen=True)
class ZeroPadded(Merge):
    """Fill up adapters of low ranks with zeros, then take the weighted mean over all learners."""

    def check(self, layout: Layout) -> None:
        _known_ranks("ZeroPadded", layout)

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        padding = [(own[0].down, {place for block in own for place in block[2:]}) for own in _modules(view.layout)]
        filled = []
        for update in updates:  # layers that a learner got as zeros are zeros in its vector
            more = {place for first, places in padding if first in update.layers for place in places}
            filled.append(replace(update, layers=tuple(sorted({*update.layers, *more}))))
        return Mean().merge(view, filled, weights)


@dataclass(frozen=True)
class StackedLora(Merge):
    """The mean of the learners' products B A, at the highest rank; other layers as by `Mean`."""

    def check(self, layout: Layout) -> None:
        require(
            bool(lora_blocks(layout)),
            "StackedLora: the network has no LoRA adapters; make it with from_hf(..., lora=8).",
        )

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.server != Replace():
            return (
                f"StackedLora computes new factors for every version, so {algorithm.server!r} cannot compare "
                "versions; use Replace()."
            )
        return None

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        modules = _modules(view.layout)
        factors = {place for own in modules for block in own for place in block[2:]}
        others = [replace(update, layers=tuple(n for n in update.layers if n not in factors)) for update in updates]
        proposal = Mean().merge(view, others, weights)
        covered = {*proposal.layers}
        vectors = [view.models.read(update.model.name) for update in updates]
        for own in modules:
            first = own[0].down
            shares = [
                weights[place][first] if first in update.layers and own[0].up in update.layers else 0.0
                for place, update in enumerate(updates)
            ]
            if sum(shares) > 0:
                self._merge_module(view.layout, own, vectors, shares, proposal.vector)
                covered |= {place for block in own for place in block[2:]}
        return replace(proposal, layers=tuple(sorted(covered)))

    @staticmethod
    def _merge_module(
        layout: Layout, own: Sequence[LoraBlock], vectors: Sequence[Tensor], shares: Sequence[float], into: Tensor
    ) -> None:
        """Write the factors of a module's mean product into a vector."""
        total = sum(shares)
        pairs = [_factors(layout, own, vector) for vector, share in zip(vectors, shares, strict=True) if share > 0]
        counted = [share / total for share in shares if share > 0]
        down = torch.cat([a for a, _ in pairs])
        up = torch.cat([share * b for share, (_, b) in zip(counted, pairs, strict=True)], dim=1)
        a, b = cut_product(up, down, own[-1].last)
        for block in own:
            for place, piece in ((block.down, a[block.first : block.last]), (block.up, b[:, block.first : block.last])):
                layer = layout.layers[place]
                into[layer.start : layer.stop] = piece.reshape(-1).float()


def cut_product(up: Tensor, down: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B of a rank whose product B A is closest to `up` x `down`, the largest components first.

    The rows of A are orthogonal, with the norm that LoRA initialises them to: unneeded components are zero in B alone.
    """
    left, small_left = torch.linalg.qr(up)
    right, small_right = torch.linalg.qr(down.T)
    u, values, v = torch.linalg.svd(small_left @ small_right.T, full_matrices=False)
    kept = min(rank, len(values))
    a, b = down.new_zeros(rank, down.shape[1]), up.new_zeros(up.shape[0], rank)
    a[:kept] = ROW * (right @ v[:kept].T).T
    b[:, :kept] = (left @ u[:, :kept]) * (values[:kept] / ROW)
    return a, b


def _modules(layout: Layout) -> list[list[LoraBlock]]:
    return list(lora_blocks(layout).values())


def _factors(layout: Layout, own: Sequence[LoraBlock], vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and B of a module, in float64."""
    downs = [_tensor(layout, block.down, vector) for block in own]
    ups = [_tensor(layout, block.up, vector) for block in own]
    return torch.cat(downs), torch.cat(ups, dim=1)


def _tensor(layout: Layout, place: int, vector: Tensor) -> Tensor:
    return layout.layers[place].entries[0].tensor(vector).double()

"""Clipping: limit how far an update moves a layer to a multiple of the recent median.

An update moves a layer by the Euclidean norm of its difference from the model that its learner starts from: the current
version, unless the merge gives learners their own. The limit is `multiple` times the median over the learners' latest
movements, one each, so that frequent senders do not dominate it. A layer that moved further is scaled back towards that
model; the direction of its movement stays.

Clipping works layer by layer: learners that send different layers can be compared, large batch counters do not mask
changes of weights, and an update cannot spend the whole model's limit on one small layer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from archipel.core.checks import at_least, require
from archipel.core.layout import Layout, chunks
from archipel.core.parts.merge import Mean, Merge, Proposal
from archipel.core.parts.part import Composition, Needs, Part
from archipel.core.parts.robust import RobustMerge
from archipel.core.state import Update, View
from archipel.core.types import Model

RECENT = 100
"""Most learners whose latest movements are remembered; bounds the cost of a commit."""
ENOUGH = 3
"""Fewest learners for a median; of two, neither is in the minority."""
BLOCK = 1 << 20
"""Numbers of a layer that are processed at a time."""
SUMMED = 1 << 16
"""Squares that are summed in float32 before their sum is added in float64."""


@dataclass(slots=True)
class Movements:
    """What `NormClipped` remembers."""

    latest: list[dict[str, float]] = field(default_factory=list)
    """For each layer, how far each recent learner's latest update would have moved it; newest last."""
    clipped: dict[str, int] = field(default_factory=dict)
    """How many updates of each learner were clipped."""
    copies: list[str] = field(default_factory=list)
    """Names of clipped models that are held until the commit is done."""

    def note(self, layer: int, learner: str, norm: float) -> None:
        """Replace a learner's movement of a layer by its latest."""
        recent = self.latest[layer]
        recent.pop(learner, None)
        recent[learner] = norm
        if len(recent) > RECENT:
            del recent[next(iter(recent))]

    def norms(self) -> dict[str, float]:
        """Return how far the latest update of each recent learner would have moved the whole model."""
        squares: dict[str, float] = {}
        for recent in self.latest:
            for learner, norm in list(recent.items()):
                squares[learner] = squares.get(learner, 0.0) + norm * norm
        return {learner: math.sqrt(square) for learner, square in squares.items()}

    def limit(self, layer: int, multiple: float, current: Tensor) -> float:
        """Return how far an update may move a layer, whose numbers are `current`.

        With too few learners for a median, it is the layer's own norm, or the norm of all ones if that is larger, so
        that the first update of a run is bounded too.
        """
        recent = self.latest[layer]
        if len(recent) < ENOUGH:
            return max(float(torch.linalg.vector_norm(current, dtype=torch.float64)), math.sqrt(current.numel()))
        return multiple * statistics.median_low(recent.values())


@dataclass(frozen=True)
class NormClipped(Merge):
    """Clip each layer of an update to a multiple of the median movement, then merge."""

    then: Merge = Mean()
    """The merge of the clipped updates."""
    multiple: float = 2.0
    """The limit, as a multiple of the median movement."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.then, Merge) and not isinstance(self.then, NormClipped),
            f"NormClipped: `then` should be another merge such as Mean(), got {self.then!r}.",
        )
        at_least(1, "NormClipped", "half of all updates move further than the median", multiple=self.multiple)

    @property
    def needs(self) -> Needs:
        return self.then.needs

    def inner(self) -> tuple[Part, ...]:
        return (self.then, *self.then.inner())

    def conflicts(self, algorithm: Composition) -> str | None:
        return self.then.conflicts(algorithm)

    def check(self, layout: Layout) -> None:
        self.then.check(layout)

    def check_network(self, module: nn.Module, layout: Layout, examples: Tensor) -> None:
        self.then.check_network(module, layout, examples)

    def initial(self, layout: Layout, vector: Tensor) -> Tensor:
        return self.then.initial(layout, vector)

    def observe(self, view: View, update: Update) -> None:
        self.then.observe(view.inner(0), update)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        self.then.committed(view.inner(0), updates)
        memory = self._memory(view)
        view.release(*memory.copies)  # only now: the merge may have been undone
        memory.copies = []

    def left(self, view: View, learner: str) -> None:
        self.then.left(view.inner(0), learner)

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        return self.then.within_shares(view.inner(0), updates, weights)

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        memory = self._memory(view)
        movements = [movement_of(view, update) for update in updates]
        # measure all first: the limit must not depend on the order in the commit
        for update, norms in zip(updates, movements, strict=True):
            for layer, norm in norms.items():
                memory.note(layer, update.learner, norm)
        limits = self._limits(view, memory, {layer for norms in movements for layer in norms})
        clipped = [
            self._clipped(view, memory, update, {n: limits[n] / norm for n, norm in norms.items() if norm > limits[n]})
            for update, norms in zip(updates, movements, strict=True)
        ]
        proposal = self.then.merge(view.inner(0), clipped, weights)
        scaled = tuple(one is not update for one, update in zip(clipped, updates, strict=True))
        return replace(proposal, norms=tuple(norm_of(movement) for movement in movements), clipped=scaled)

    @staticmethod
    def _memory(view: View) -> Movements:
        return view.memory(Movements, lambda: Movements([{} for _ in view.layout.layers]))

    def _limits(self, view: View, memory: Movements, layers: Collection[int]) -> dict[int, float]:
        current = view.models.read(view.model.name)
        pieces = {layer: view.layout.slices((layer,))[0] for layer in layers}
        return {layer: memory.limit(layer, self.multiple, current[piece]) for layer, piece in pieces.items()}

    def _clipped(self, view: View, memory: Movements, update: Update, factors: dict[int, float]) -> Update:
        """Return the update with these layers scaled back towards its start; the same object if there are none."""
        if not factors:
            return update
        memory.clipped[update.learner] = memory.clipped.get(update.learner, 0) + 1
        vector = view.models.read(update.model.name).clone()
        for layer, factor in factors.items():
            for piece in chunks(view.layout.slices((layer,)), BLOCK):
                start = view.models.read(view.start(update.learner).name, piece).double()
                vector[piece] = start + factor * (vector[piece].double() - start)
        name = view.name(f"clipped/{update.model.name}")
        view.models.write(name, vector)
        view.hold(name)
        memory.copies.append(name)
        return replace(update, model=Model(name, update.model.manifest))


def movement_of(view: View, update: Update) -> dict[int, float]:
    """Return how far an update would move each layer it sent."""
    found, begun = {}, view.start(update.learner).name
    for layer in update.layers:
        squares = 0.0
        for piece in chunks(view.layout.slices((layer,)), SUMMED):
            mine, start = view.models.read(update.model.name, piece), view.models.read(begun, piece)
            difference = mine - start
            square = float(torch.dot(difference, difference))  # float32 takes a seventh of the time
            if not math.isfinite(square):
                difference = mine.double() - start
                square = float(torch.dot(difference, difference))
            squares += square
        found[layer] = math.sqrt(squares)
    return found


def norm_of(movement: Mapping[int, float]) -> float:
    """Return the norm of the whole model's movement from those of its layers."""
    return math.sqrt(math.fsum(norm * norm for norm in movement.values()))


def clipped(merge: Merge, multiple: float) -> Merge:
    """Return a merge that clips updates first; return a merge that bounds them already as it is."""
    return merge if isinstance(merge, NormClipped | RobustMerge) else NormClipped(merge, multiple)

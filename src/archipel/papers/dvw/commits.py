"""How long the controller takes for one community model, with Metis' cache and without it.

What is timed is `merge` of the parts `Community` and `Mean` on vectors in the simulator's store, as the controller
calls it. The caches are filled with something else before: in a run there is training between two commits, and ten
small models would lie in a cache that a thousand do not fit into.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.merge import Community, Mean, Merge, Proposal
from archipel.core.randomness import generator
from archipel.core.state import State, Update, View
from archipel.core.types import Metrics, Model
from archipel.kernels import kernels
from archipel.kernels.threads import threads
from archipel.simulation.vectors import MemoryModels
from archipel.study.stopwatch import seconds_of

FAR_LARGER_THAN_CACHE = 1 << 24
"""Numbers."""


class CommitFederation:
    """A controller's memory: learners that have all committed once."""

    def __init__(self, layout: Layout, learners: int) -> None:
        self.layout = layout
        self.models = MemoryModels(in_memory=8 * (learners + 4) * layout.size)  # arithmetic, not a file's pages
        self.models.write("v0", torch.zeros(layout.size))
        self.state = State(0, self._model("v0"))
        self.community = Community()
        drawn = generator(0, "dvw-fig2").standard_normal(layout.size, dtype="float32")
        for k in range(learners):
            self.state.members.join(Member(f"{k:04}", 1, 0, 0, "", "train"))
            self.models.write(f"t{k}", torch.from_numpy(drawn) * (1 + k / learners))
        self.updates = [self._update(k, f"t{k}") for k in range(learners)]
        for update in self.updates:
            self.merge(self.community, [update])
        self.other = torch.ones(FAR_LARGER_THAN_CACHE)

    def with_cache(self, turn: int) -> float:
        """Seconds of a commit: one learner's term is replaced."""
        learner = turn % len(self.updates)
        fresh = self._update(learner, f"c{turn}")
        self.models.write(fresh.model.name, self.models.read(self.updates[learner].model.name) * 0.5)
        seconds = self._timed(self.community, [fresh])
        self.models.drop(self.updates[learner].model.name)
        self.updates[learner] = fresh
        return seconds

    def without(self) -> float:
        """Seconds of a mean over all learners' latest models."""
        return self._timed(Mean(), self.updates)

    def _timed(self, part: Merge, updates: Sequence[Update]) -> float:
        self.other.add_(1)
        return seconds_of(lambda: self.merge(part, updates))

    def merge(self, part: Merge, updates: Sequence[Update]) -> Proposal:
        weights = [(1.0,) * len(self.layout.layers)] * len(updates)
        return part.merge(View(self.state, self.layout, self.models, kernels(), "merge"), updates, weights)

    def _update(self, learner: int, name: str) -> Update:
        everything = tuple(range(len(self.layout.layers)))
        return Update(learner, f"{learner:04}", self._model(name), everything, 0, 0, 1, 1, 0, Metrics())

    def _model(self, name: str) -> Model:
        return Model(name, (name,) * len(self.layout.layers))


def seconds(layout: Layout, learners: int, tries: int) -> tuple[float, float]:
    """With the cache and without it, the least of some tries: what else the machine does can only add to it."""
    with threads(1):  # two that wait for each other on a busy machine take a hundred times as long
        federation = CommitFederation(layout, learners)
        return (
            min(federation.with_cache(turn) for turn in range(tries)),
            min(federation.without() for _ in range(tries)),
        )

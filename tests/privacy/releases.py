"""A merge with noise by hand: updates as vectors in, the released model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from archipel.core.algorithm import Algorithm
from archipel.core.layout import Layout
from archipel.core.parts import CentralNoise, Ending, Equally, Poisson, Rounds
from archipel.core.parts.privacy_account import PrivacyAccount
from archipel.core.state import State, Update, View
from archipel.core.types import Metrics, Model
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels

KEY = "5a" * 32
LAYOUT = Layout.of(nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 4)))


def algorithm(privacy: CentralNoise, **parts: Any) -> Algorithm:
    return Algorithm(**{"name": "noised", "weighting": Equally(), "privacy": privacy, **parts})


def poisson(privacy: CentralNoise, fraction: float = 0.5) -> Algorithm:
    return algorithm(privacy, protocol=Rounds(fraction), selection=Poisson())


@dataclass
class Release:
    """The controller's store and account, at version 0 of a model of zeros."""

    algorithm: Algorithm
    learners: int = 100_000
    ending: Ending = Ending(rounds=10)
    key: str = KEY
    models: MemoryModels = field(default_factory=MemoryModels)

    def __post_init__(self) -> None:
        state = State(0, Model("v0", ("v0",) * len(LAYOUT.layers)), secret=self.key)
        self.models.write("v0", torch.zeros(LAYOUT.size))
        self.view = View(state, LAYOUT, self.models, kernels(), "privacy")
        assert self.algorithm.privacy is not None
        self.privacy = self.algorithm.privacy
        self.privacy.begin(self.view, self.algorithm, self.ending, self.learners, ())

    def sums(self, changes: Mapping[str, Tensor]) -> Tensor:
        """Return what the noise is added to, in float64."""
        pieces = []

        def plain(key: str, place: str, numbers: Any, deviation: float) -> Any:
            pieces.append(torch.from_numpy(numbers.copy()))
            return numbers

        with patch("archipel.core.parts.central_noise.noised", plain):
            self.merge(changes)
        return torch.cat(pieces)

    @property
    def account(self) -> PrivacyAccount:
        return self.view.memory(PrivacyAccount)

    def merge(self, changes: Mapping[str, Tensor], layers: Sequence[int] = (0, 1)) -> Tensor:
        """Return the model that these changes of version 0 are released as."""
        updates = []
        for task, (learner, change) in enumerate(sorted(changes.items())):
            self.models.write(learner, change.float())
            model = Model(learner, (learner,) * len(LAYOUT.layers))
            update = Update(task, learner, model, tuple(layers), 0, 0, 1, 1, 0, Metrics(), (learner,), "v0")
            updates.append(update)
        weights = [(1.0,) * len(LAYOUT.layers)] * len(updates)
        proposal = self.privacy.merge(self.view, self.algorithm.merge, updates, weights, layers)
        return proposal.vector

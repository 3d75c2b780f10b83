"""A controller's memory made by hand, to test one method of a part at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from archipel.core.layout import Layer, Layout, TensorSlot
from archipel.core.members import Member
from archipel.core.parts import Merge, Server
from archipel.core.state import Evidence, State, Update, View
from archipel.core.types import Metrics, Model, Probe, Result, Role, collect_answers
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels


def layout(**sizes: int) -> Layout:
    """Layers with these names and so many numbers each; `norm_buffers` stands for `norm.buffers`."""
    layers: list[Layer] = []
    place = 0
    for name, size in sizes.items():
        name = name.replace("_", ".")
        entry = TensorSlot(f"{name}.weight", (size,), torch.float32, place, place + size)
        layers.append(Layer(name, "Linear", name.removesuffix(".buffers"), name.endswith(".buffers"), (entry,)))
        place += size
    return Layout(tuple(layers))


class Bench:
    """One federation's memory: a model, learners, and updates as they would wait for commit."""

    def __init__(self, layout: Layout, model: Sequence[float] | None = None, *, seed: int = 0) -> None:
        self.layout = layout
        self.models = MemoryModels()
        self.kernels = kernels()
        start = torch.zeros(layout.size) if model is None else torch.tensor(model)
        self.models.write("v0", start)
        self.state = State(seed, Model("v0", ("v0",) * len(layout.layers)))

    def view(self, role: str = "part") -> View:
        return View(self.state, self.layout, self.models, self.kernels, role)

    def join(
        self,
        name: str,
        *,
        examples: int | None = 1,
        validation: int = 0,
        group: str = "",
        role: Role = "train",
        active: bool = True,
    ) -> Member:
        self.state.members.join(Member(name, examples, validation, 0, group, role, active))
        return self.state.members[name]

    def update(
        self,
        learner: str = "a",
        numbers: Sequence[float] | np.ndarray | None = None,
        layers: Sequence[str] | None = None,
        *,
        examples: int | None = 1,
        stale: int = 0,
        metrics: Metrics | None = None,
        evidence: Sequence[tuple[str, Probe, Result | None]] = (),
    ) -> Update:
        """An update by this learner; every number of the vector must be given.

        Its evidence is who was asked, by which probe, and what came back; as one question to many sites, it is kept a
        probe at a time.
        """
        task = self.state.next_task
        self.state.next_task += 1
        name = f"u{task}"
        vector = torch.zeros(self.layout.size) if numbers is None else torch.tensor(numbers, dtype=torch.float32)
        assert len(vector) == self.layout.size
        self.models.write(name, vector)
        answers: dict[Probe, list[Result | None]] = {}
        for _, probe, result in evidence:
            answers.setdefault(probe, []).append(result)
        return Update(
            task=task,
            learner=learner,
            model=Model(name, (name,) * len(self.layout.layers)),
            layers=self.layout.indices(layers),
            version=self.state.version,
            committed=0,
            examples=examples,
            steps=1,
            slot=0,
            metrics=metrics or Metrics(),
            stale_versions=stale,
            start=self.state.model.name,
            evidence=[Evidence(probe, collect_answers(probe, results)) for probe, results in answers.items()],
        )

    def held(self) -> set[str]:
        """The vectors that parts hold."""
        return set(self.state.vectors.counts) - {"v0"}

    def sweep(self) -> None:
        """Drop the vectors that are no longer needed, as after a commit."""
        for name in self.state.vectors.unneeded():
            self.models.drop(name)

    def spread(self, weight: float | tuple[float, ...] | None) -> tuple[float, ...]:
        assert weight is not None, "there is too little evidence to weigh it"
        return weight if isinstance(weight, tuple) else (weight,) * len(self.layout.layers)

    def commit(
        self,
        merge: Merge,
        server: Server,
        updates: Sequence[Update],
        weights: Sequence[float | tuple[float, ...] | None],
    ) -> list[float]:
        """Merge these updates, let the server step, and return the next model."""
        proposal = merge.merge(self.view("merge"), updates, [self.spread(weight) for weight in weights])
        following = server.step(self.view("server"), proposal)
        assert following is not None
        self.state.version += 1
        name = f"v{self.state.version}"
        self.models.write(name, following)
        self.state.model = Model(name, (name,) * len(self.layout.layers))
        numbers: list[float] = following.tolist()
        return numbers

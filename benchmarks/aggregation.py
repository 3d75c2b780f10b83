"""A1: the controller's own arithmetic, against this machine's memory bandwidth and against the naive way.

    python -m benchmarks.aggregation PARAMETERS [--quick] [--repeats N]

prints one JSON line. There is a process for each number of parameters, because one that has held larger models has
memory left for smaller ones, and new memory takes time. What is timed is `merge` of the parts `Mean` and `Community` on
vectors in the simulator's store, as the controller calls it.

The bandwidth of a shared machine changes from second to second, by half as much again where it was looked at. So all
that is compared is timed in turn, the bandwidth too, each with one thread and with two, of which the better counts, and
the medians of the ratios within a turn are told. Everything begins on a machine at rest: torch's threads look out for
more work for some milliseconds, on the core that another pool's thread wants. A commit and what it is held against find
the caches cold: in a run there is training between two commits, and ten small models would lie in a cache that a
thousand do not fit into.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from archipel.core.layout import Layer, Layout, TensorSlot
from archipel.core.members import Member
from archipel.core.parts import Community, Mean
from archipel.core.state import State, Update, View
from archipel.core.types import Metrics, Model
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels

MOST = 4 * 2**30
"""Bytes of all models of a case."""
LAYERS = 10
CASES = {m: [n for n in (10, 100, 1000) if 4 * n * m <= MOST] for m in (10**5, 10**6, 10**7)}
"""By the number of parameters: how many learners."""
QUICK = {10**4: [10, 20]}
FAR_LARGER_THAN_CACHE = 2**26
CHUNK = 2**18
"""Numbers written at a time: torch has no sum of float32 in float64, and what is added up first stays in the cache."""

TURNS = 5
"""Of each repeat."""
REST = 0.01
"""Seconds until no thread looks out for work any more."""

Weights = list[tuple[float, ...]]


@dataclass
class Federation:
    """A controller's memory: so many learners, each with an update of so many parameters waiting in the store."""

    learners: int
    parameters: int

    def __post_init__(self) -> None:
        self.layout = _layout(self.parameters)
        self.models = MemoryModels(in_memory=4 * MOST)  # of the arithmetic, not of a file's pages
        draw = torch.Generator().manual_seed(0)
        self.models.write("v0", torch.zeros(self.parameters))
        self.state = State(0, self._model("v0"))
        row = torch.randn(self.parameters, generator=draw)
        self.updates: list[Update] = []
        for k in range(self.learners):
            self.state.members.join(Member(f"{k:04}", 1, 0, 0, "", "train"))
            name = f"t{k}"  # an update and the store have the same text, not one each, as in a run
            self.models.write(name, row * (1 + k / self.learners))
            self.updates.append(self.update(k, name))

    def view(self) -> View:
        return View(self.state, self.layout, self.models, kernels(), "merge")

    def update(self, learner: int, name: str) -> Update:
        everything = self.layout.indices(None)
        return Update(learner, f"{learner:04}", self._model(name), everything, 0, 0, 1, 1, 0, Metrics())

    def alike(self) -> Weights:
        """One weight a learner."""
        return [(1.0 + k,) * LAYERS for k in range(self.learners)]

    def per_layer(self) -> Weights:
        """Another weight for each layer of each learner."""
        return [tuple(1.0 + k + layer for layer in range(LAYERS)) for k in range(self.learners)]

    def dictionaries(self) -> list[dict[str, Tensor]]:
        """The same models as most frameworks hold them; the numbers are shared, not copied."""
        return [self.layout.tensors(self.models.read(f"t{k}")) for k in range(self.learners)]

    def _model(self, name: str) -> Model:
        return Model(name, (name,) * LAYERS)


class Commits:
    """One commit of the community model after another, each learner in its turn, everybody having committed before."""

    def __init__(self, federation: Federation, cool: Callable[[], object] = lambda: None) -> None:
        self.federation, self.part, self.turn, self.cool = federation, Community(), 0, cool
        self.spare = federation.models.read("t0").clone()
        for update in federation.updates:
            self.part.merge(federation.view(), [update], [(1.0,) * LAYERS])

    def one(self) -> float:
        """The seconds of one."""
        federation, k = self.federation, self.turn % self.federation.learners
        before, update = federation.updates[k], federation.update(k, f"c{self.turn}")
        federation.models.write(update.model.name, self.spare)
        weight = (1.0 + self.turn % 3,) * LAYERS
        self.cool()
        seconds = timed(lambda: self.part.merge(federation.view(), [update], [weight]))
        # the learner's earlier model is nobody's now, and its memory serves the next update
        self.spare = federation.models.read(before.model.name)
        federation.models.drop(before.model.name)
        federation.updates[k] = update
        self.turn += 1
        return seconds


def naive(dictionaries: list[dict[str, Tensor]], weights: list[float]) -> dict[str, Tensor]:
    """A sum over dictionaries of tensors, as it is found in most federated code."""
    total = sum(weights)
    mean = {name: torch.zeros_like(tensor) for name, tensor in dictionaries[0].items()}
    for weight, dictionary in zip(weights, dictionaries, strict=True):
        for name in mean:
            mean[name] += dictionary[name] * (weight / total)
    return mean


class Bandwidth:
    """STREAM's triad, a = b + s c, on arrays far larger than the cache."""

    def __init__(self, numbers: int = FAR_LARGER_THAN_CACHE) -> None:
        self.a, self.b, self.c = (torch.ones(numbers) for _ in range(3))

    def seconds(self) -> float:
        return timed(lambda: torch.add(self.b, self.c, alpha=3.0, out=self.a))

    @property
    def gigabytes(self) -> float:
        """What that moves."""
        return 3 * 4 * len(self.a) / 1e9

    def cool(self) -> None:
        """Fill the caches with something else."""
        self.a[: FAR_LARGER_THAN_CACHE // 4].add_(1)


def two_read_one_written(new: Tensor, old: Tensor, total: Tensor, room: Tensor) -> None:
    """The least that a commit has to do: two models are read and a float64 sum is written."""
    for start in range(0, len(total), CHUNK):
        chunk = slice(start, min(start + CHUNK, len(total)))
        total[chunk].copy_(torch.add(new[chunk], old[chunk], out=room[: chunk.stop - start]))


def timed(work: Callable[[], object]) -> float:
    time.sleep(REST)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Case:
    """So many learners with so many parameters, ready to be timed again and again."""

    def __init__(self, learners: int, parameters: int, bandwidth: Bandwidth) -> None:
        self.learners, self.parameters, self.bandwidth = learners, parameters, bandwidth
        self.federation = Federation(learners, parameters)
        self.dictionaries = self.federation.dictionaries()
        self.commits = Commits(self.federation, bandwidth.cool)
        self.new, self.old = torch.ones(parameters), torch.ones(parameters)
        self.total, self.room = torch.zeros(parameters, dtype=torch.float64), torch.empty(min(parameters, CHUNK))
        self.found: list[dict[str, float]] = []

    def turn(self) -> None:
        """Time everything once more."""
        federation, view = self.federation, self.federation.view()
        alike, per_layer = federation.alike(), federation.per_layer()
        shares = [weights[0] for weights in alike]
        row = quickest(
            {
                "triad": self.bandwidth.seconds,
                "mean": lambda: timed(lambda: Mean().merge(view, federation.updates, alike)),
                "dictionaries": lambda: timed(lambda: naive(self.dictionaries, shares)),
                "per layer": lambda: timed(lambda: Mean().merge(view, federation.updates, per_layer)),
            },
            _tries(self.learners * self.parameters),
        ) | quickest({"commit": self.commits.one, "two read, one written": self._least}, _tries(self.parameters))
        triad = self.bandwidth.gigabytes / row.pop("triad")
        moved = 4 * (self.learners + 1) * self.parameters / 1e9  # every model read, one written
        row["mean of triad"] = moved / row["mean"] / triad
        row["per layer of triad"] = moved / row["per layer"] / triad
        row["mean over dictionaries"] = row["dictionaries"] / row["mean"]
        row["commit over two read, one written"] = row["commit"] / row["two read, one written"]
        row["triad GB/s"] = triad
        self.found.append(row)

    def _least(self) -> float:
        self.bandwidth.cool()
        return timed(lambda: two_read_one_written(self.new, self.old, self.total, self.room))

    def told(self) -> dict[str, Any]:
        """Medians over the turns, of seconds and of ratios within a turn."""
        return {
            "learners": self.learners,
            "parameters": self.parameters,
            **{name: median(row[name] for row in self.found) for name in self.found[0]},
            "lowest and highest": {
                name: [f(row[name] for row in self.found) for f in (min, max)] for name in self.found[0]
            },
        }


def quickest(works: dict[str, Callable[[], float]], tries: int) -> dict[str, float]:
    """The least of the seconds that each tells: what else the machine does can only add to them."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(tries):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for name, seconds in works.items():
                found[name].append(seconds())
    return {name: min(times) for name, times in found.items()}


def _tries(numbers: int) -> int:
    """In a turn: more of what is over at once."""
    return max(1, min(5, 10**7 // numbers))


def cases(parameters: int, numbers: list[int], repeats: int, bandwidth: Bandwidth) -> list[dict[str, Any]]:
    """One for each of these numbers of learners; they are timed in turn, for their commits are compared."""
    together = [Case(learners, parameters, bandwidth) for learners in numbers]
    for _ in range(repeats * TURNS):
        for case in together:
            case.turn()
    return [case.told() for case in together]


def _layout(parameters: int) -> Layout:
    """Layers of equal size."""
    size, layers = parameters // LAYERS, []
    for i in range(LAYERS):
        stop = parameters if i == LAYERS - 1 else (i + 1) * size
        slot = TensorSlot(f"layer{i}.weight", (stop - i * size,), torch.float32, i * size, stop)
        layers.append(Layer(f"layer{i}", "Linear", f"layer{i}", False, (slot,)))
    return Layout(tuple(layers))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parameters", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    learners = (QUICK if given.quick else CASES)[given.parameters]
    bandwidth = Bandwidth(2**16 if given.quick else FAR_LARGER_THAN_CACHE)
    print(json.dumps(cases(given.parameters, learners, given.repeats, bandwidth)))


if __name__ == "__main__":
    main()

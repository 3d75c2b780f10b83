"""A1: the controller's own arithmetic, against this machine's memory bandwidth and against the naive way.

    python -m benchmarks.aggregation [--quick]

prints one JSON line. What is timed is `merge` of the parts `Mean` and `Community` on vectors in the simulator's store,
as the controller calls it. In every repeat all of them are timed in turn, the bandwidth too, so that a busy spell of
the machine meets all alike. A commit and what it is held against find the caches cold: in a run there is training
between two commits, and ten small models would lie in a cache that a thousand do not fit into.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from archipel.engines.memory import MemoryModels
from archipel.layout import Entry, Layer, Layout
from archipel.parts import Community, Mean
from archipel.state import Member, State, Update, View
from archipel.types import Metrics, Model

MOST = 4 * 2**30
"""Bytes of all models of a case."""
LAYERS = 10
CASES = [(n, m) for m in (10**5, 10**6, 10**7) for n in (10, 100, 1000) if 4 * n * m <= MOST]
QUICK = [(10, 10**4), (20, 10**4)]
FAR_LARGER_THAN_CACHE = 2**26
CHUNK = 2**18
"""Numbers written at a time: all at once, torch would make a float32 sum in new memory first and copy that."""

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
        for k in range(self.learners):
            self.state.members[f"{k:04}"] = Member(f"{k:04}", 1, 0, 0, "", "train", True)
            self.models.write(f"t{k}", row * (1 + k / self.learners))
        self.updates = [self.update(k, f"t{k}") for k in range(self.learners)]

    def view(self) -> View:
        return View(self.state, self.layout, self.models, "merge")

    def update(self, learner: int, name: str) -> Update:
        everything = tuple(range(LAYERS))
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

    def gigabytes_per_second(self) -> float:
        """The better of one and two threads."""
        found = []
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            found.append(timed(lambda: torch.add(self.b, self.c, alpha=3.0, out=self.a)))
        return 3 * 4 * len(self.a) / min(found) / 1e9

    def cool(self) -> None:
        """Fill the caches with something else."""
        self.a[: FAR_LARGER_THAN_CACHE // 4].add_(1)


def two_read_one_written(new: Tensor, old: Tensor, total: Tensor) -> None:
    """The least that a commit has to do: two models are read and a float64 sum is written."""
    for start in range(0, len(total), CHUNK):
        chunk = slice(start, start + CHUNK)
        torch.add(new[chunk], old[chunk], out=total[chunk])


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(learners: int, parameters: int, threads: int, repeats: int, bandwidth: Bandwidth) -> dict[str, object]:
    """One case: medians over the repeats, of seconds and of ratios within a repeat."""
    federation = Federation(learners, parameters)
    dictionaries, shares = federation.dictionaries(), [1.0 + k for k in range(learners)]
    alike, per_layer = federation.alike(), federation.per_layer()
    commits = Commits(federation, bandwidth.cool)
    new, old = torch.ones(parameters), torch.ones(parameters)
    written = torch.zeros(parameters, dtype=torch.float64)
    rows, numbers = [], learners * parameters
    for _ in range(repeats):
        triad = bandwidth.gigabytes_per_second()
        torch.set_num_threads(threads)
        row = {
            "mean": _seconds(lambda: Mean().merge(federation.view(), federation.updates, alike), numbers),
            "per layer": _seconds(lambda: Mean().merge(federation.view(), federation.updates, per_layer), numbers),
            "dictionaries": _seconds(lambda: naive(dictionaries, shares), numbers),
            "commit": min(commits.one() for _ in range(_times(parameters))),
            "two read, one written": _seconds(
                lambda: two_read_one_written(new, old, written), parameters, bandwidth.cool
            ),
        }
        moved = 4 * (learners + 1) * parameters / 1e9  # every model read, one written
        row["mean of triad"] = moved / row["mean"] / triad
        row["per layer of triad"] = moved / row["per layer"] / triad
        row["mean over dictionaries"] = row["dictionaries"] / row["mean"]
        row["commit over two read, one written"] = row["commit"] / row["two read, one written"]
        row["triad GB/s"] = triad
        rows.append(row)
    return {
        "learners": learners,
        "parameters": parameters,
        "threads": threads,
        **{name: median(row[name] for row in rows) for name in rows[0]},
        "lowest and highest": {name: [f(row[name] for row in rows) for f in (min, max)] for name in rows[0]},
    }


def _seconds(work: Callable[[], object], numbers: int, cool: Callable[[], object] = lambda: None) -> float:
    """The best of a few, as for the bandwidth: what else the machine does can only add time."""
    found = []
    for _ in range(_times(numbers)):
        cool()
        found.append(timed(work))
    return min(found)


def _times(numbers: int) -> int:
    return max(2, min(50, 5 * 10**7 // numbers))


def cases(quick: bool, repeats: int) -> Iterator[dict[str, object]]:
    """All cases, one and two threads."""
    bandwidth = Bandwidth(2**16 if quick else FAR_LARGER_THAN_CACHE)
    for learners, parameters in QUICK if quick else CASES:
        for threads in (1, 2):
            yield measure(learners, parameters, threads, repeats, bandwidth)


def _layout(parameters: int) -> Layout:
    """Layers of equal size."""
    size, layers = parameters // LAYERS, []
    for i in range(LAYERS):
        stop = parameters if i == LAYERS - 1 else (i + 1) * size
        entry = Entry(f"layer{i}.weight", (stop - i * size,), torch.float32, i * size, stop)
        layers.append(Layer(f"layer{i}", "Linear", f"layer{i}", False, (entry,)))
    return Layout(tuple(layers))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps({"cases": list(cases(given.quick, given.repeats))}))


if __name__ == "__main__":
    main()

"""Every kind of network in the zoo comes to the same models as in plain PyTorch, dropout and batch norm included."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import random
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.executors.choice import choose, executor_of
from archipel.executors.interface import Executor
from archipel.executors.plain import Plain
from archipel.executors.stackable import why_not_stacked
from archipel.executors.workers import Workers
from archipel.learner.learner import Job, Learner, TrainingContext
from benchmarks.zoo_networks import CLASSES, ZOO, Kind
from tests.ways import CHOSEN

SIZES = (45, 60, 22, 7, 43)
"""In batches of 20 all but one end with a short one, and no batch is of one example."""
PERCEPTRONS = ("MLP, ReLU", "MLP, momentum, Nesterov, weight decay")
ON_WORKERS = ("LSTM", "transformer", "residual CNN, batch norm", "CNN, dropout")


def context_of(kind: Kind, sizes: tuple[int, ...] = SIZES) -> TrainingContext:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = kind.make()
    x, y = kind.examples(sum(sizes))
    classes = None if y.is_floating_point() else CLASSES
    return TrainingContext(module, Layout.of(module, x[:2]), kind.loss, x, y, classes)


def plan_of(kind: Kind) -> Plan:
    return Plan(epochs=2, batch=20, **{"rate": 0.05, **kind.training})


def trained(
    executor: Executor,
    at_hand: TrainingContext,
    start: Tensor,
    plan: Plan,
    sizes: tuple[int, ...] = SIZES,
    ahead: int = 0,
) -> list[Job]:
    """Return jobs that are done; ahead: epochs at a time, or all at once."""
    nothing = torch.empty(0, dtype=torch.int64)
    parts = torch.arange(len(at_hand.x)).split(list(sizes))
    jobs = [
        Job.begin(Learner(str(i), part, nothing, nothing), at_hand.layout, start, plan, 7 * i)
        for i, part in enumerate(parts)
    ]
    while not all(job.done for job in jobs):
        executor.submit(jobs, ahead or None)
        executor.wait()
    executor.close()
    return jobs


def apart(mine: list[Job], theirs: list[Job], start: Tensor) -> float:
    """Return how far models are from each other, relative to the way that they have come."""
    return max(
        float((a.vector - b.vector).norm() / (b.vector - start).norm()) for a, b in zip(mine, theirs, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_network_comes_to_the_same_models(name: str) -> None:
    kind = ZOO[name]
    at_hand, plan = context_of(kind), plan_of(kind)
    start = at_hand.layout.vector(at_hand.module).clone()
    way = CHOSEN if name in PERCEPTRONS else "workers" if name in ON_WORKERS else "stacked"
    assert choose(at_hand, plan)[0] == way
    expected = trained(Plain(at_hand), at_hand, start, plan)
    for ahead in (0, 1):
        found = trained(executor_of(at_hand, plan), at_hand, start, plan, ahead=ahead)
        assert apart(found, expected, start) < 5e-3
        assert [job.steps for job in found] == [job.steps for job in expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MLP, dropout", "small CNN, dropout", "small transformer, dropout"])
def test_dropout_on_workers_draws_the_same_numbers(name: str) -> None:
    """To the bit: a worker has a generator of its own."""
    kind = ZOO[name]
    at_hand, plan = context_of(kind), plan_of(kind)
    start = at_hand.layout.vector(at_hand.module).clone()
    expected = trained(Workers(at_hand, 1), at_hand, start, plan)
    for count in (2, 3):
        found = trained(Workers(at_hand, count), at_hand, start, plan)
        assert all(torch.equal(a.vector, b.vector) for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
def test_a_batch_of_one_example_is_refused_by_batch_norm_as_in_plain_pytorch() -> None:
    at_hand = context_of(ZOO["MLP, batch norm"], (21, 40))
    start = at_hand.layout.vector(at_hand.module).clone()
    for executor in (Plain(at_hand), executor_of(at_hand, Plan(), "stacked")):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            trained(executor, at_hand, start, Plan(batch=20), (21, 40))


class Recurrent(nn.Module):
    """A recurrent layer, then a linear one on its last outputs in both directions."""

    def __init__(self, layer: nn.RNNBase, given: bool) -> None:
        super().__init__()
        self.memory, self.given = layer, given
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = words.unsqueeze(-1).float() / 100
        if not self.memory.batch_first:
            x = x.transpose(0, 1)
        ways = self.memory.num_layers * (2 if self.memory.bidirectional else 1)
        first = torch.full((ways, len(words), self.memory.hidden_size), 0.5) if self.given else None
        outputs, ends = self.memory(x, first)
        scores: Tensor = self.head(torch.cat([outputs.mean(1 if self.memory.batch_first else 0), ends[0]], dim=1))
        return scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (lambda: nn.GRU(1, 6, num_layers=2, bidirectional=True, batch_first=True), False),
        (lambda: nn.GRU(1, 6, bias=False), True),
        (lambda: nn.RNN(1, 6, nonlinearity="relu", bidirectional=True), True),
        (lambda: nn.RNN(1, 6, num_layers=2, batch_first=True), False),
    ],
    ids=["GRU, two layers, both ways", "GRU, no bias, given start", "RNN, relu, both ways", "RNN, two layers"],
)
def test_recurrent_layers_of_all_forms_are_stacked(layer: Callable[[], nn.RNNBase], given: bool) -> None:
    def make() -> nn.Module:
        module = Recurrent(layer(), given)
        module(torch.zeros(1, 4))  # tells the lazy layer its inputs
        return module

    at_hand = context_of(Kind(make, data="words"), (7, 12))
    plan, start = Plan(batch=5, rate=0.2), at_hand.layout.vector(at_hand.module).clone()
    assert choose(at_hand, plan) == ("stacked", "")
    expected = trained(Plain(at_hand), at_hand, start, plan, (7, 12))
    found = trained(executor_of(at_hand, plan), at_hand, start, plan, (7, 12))
    assert apart(found, expected, start) < 1e-4


def test_the_set_up_of_a_perceptron_copies_its_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a step that is written out would show nothing, and takes longer than a small run."""
    copies = []
    deepcopy = copy.deepcopy
    at_hand = context_of(ZOO["MLP, ReLU"])

    def counted(value: object, memo: dict[int, object] | None = None) -> object:
        copies.extend([value] * (value is at_hand.module))
        return deepcopy(value, memo)

    monkeypatch.setattr(copy, "deepcopy", counted)
    assert choose(at_hand, Plan())[0] == CHOSEN
    assert len(copies) == 1, "to count its multiplications"
    ap.fedavg().check_network(at_hand.module, at_hand.layout, at_hand.x[:2])
    assert len(copies) == 1


class InPlace(nn.Module):
    """Changes a constant by its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x + torch.arange(64.0).mul_(x.mean()))
        return scores


class Branches(nn.Module):
    """Looks at its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x)
        return scores if scores.sum() > 0 else 2 * scores


class Counts(nn.Module):
    """Changes an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, CLASSES)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        scores: Tensor = self.head(x)
        return 2 * scores if self.passes > 1000 else scores


class Chance(Counts):
    """Draws from Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x)
        return scores if random() < 0.5 else 2 * scores


class Follows(Counts):
    """Assigns a buffer anew, which a stack cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.middle: Tensor = 0.9 * self.middle + 0.1 * x.mean(dim=0)
        scores: Tensor = self.head(x - self.middle)
        return scores


@pytest.mark.parametrize(
    ("make", "optimiser", "reason"),
    [
        (InPlace, "SGD", "changes a tensor in place"),
        (Branches, "SGD", "branches on the numbers of a tensor"),
        (Counts, "SGD", "changes an attribute, passes, that is not a buffer"),
        (Chance, "SGD", "draws random numbers from Python's or numpy's generator"),
        (Follows, "SGD", "middle comes out differently in a stack than alone"),
        (lambda: nn.Sequential(nn.Linear(64, CLASSES), nn.RReLU()), "SGD", "draws random numbers by aten.rrelu"),
        (ZOO["LSTM"].make, "SGD", r"torch cannot map it over learners \(.*lstm"),
        (ZOO["transformer"].make, "SGD", "it is large: .* multiplications an example, more than 2,000,000"),
        (ZOO["MLP, ReLU"].make, "Adafactor", "Adafactor is not elementwise"),
    ],
    ids=["in place", "branch", "counter", "chance", "buffer", "rrelu", "LSTM", "large", "Adafactor"],
)
def test_the_reason_is_told_why_a_network_is_not_stacked(make: type[nn.Module], optimiser: str, reason: str) -> None:
    words = [ZOO[name].make for name in ("LSTM", "transformer")]
    data: Literal["words", "features"] = "words" if make in words else "features"
    at_hand = context_of(Kind(make, data=data))
    plan = Plan(optimiser=optimiser, rate=0.05)
    found = why_not_stacked(at_hand, plan)
    assert found is not None
    with pytest.raises(ValueError, match=f"cannot be stacked: .*{reason}.* Use execution='workers'"):
        executor_of(at_hand, plan, "stacked")
    chosen = executor_of(at_hand, plan)
    assert (chosen.name, chosen.reason) == ("workers", f"not stacked, because {found}")

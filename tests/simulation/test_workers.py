"""Workers: learner by learner in processes, equal to plain PyTorch to the bit, or up to rounding where C convolves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel import models
from archipel.core.types import Cycle, Plan
from archipel.executors.plain import Plain
from archipel.executors.workers import Workers
from archipel.kernels.native import convolution
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, TrainingContext
from tests.simulation.engine_cases import images, islands, jobs, learners, small_islands, work

SIZES = (20, 3, 11, 8)
VALIDATION = (5, 0, 2, 1)
PLAN = Plan(epochs=2, batch=8, rate=0.05, momentum=0.5, reports=("losses",))


def pictures() -> Tensor:
    return torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def characters() -> Tensor:
    return torch.randint(0, 20, (60, 6), generator=torch.Generator().manual_seed(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "small_cnn": (lambda: models.small_cnn(1, 8, 3), pictures, 3),
    "small_lstm": (lambda: models.small_lstm(20), characters, 20),
    "small_resnet": (lambda: models.small_resnet(3, in_channels=1), pictures, 3),
}


def case(network: str) -> TrainingContext:
    make, inputs, classes = NETWORKS[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    x = inputs()
    labels = torch.randint(0, classes, (len(x),), generator=torch.Generator().manual_seed(2))
    labels[0] = classes - 1
    return work(module, x, labels)


def finish(way: Workers, made: Sequence[Job], epochs: int | None = None) -> None:
    """Train jobs, and wait for them."""
    way.submit(made, epochs)
    way.wait()


@pytest.fixture(params=["in C", "in torch"])
def convolves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "in torch":
        monkeypatch.setattr(convolution, "_native", lambda: None)
    return request.param


def assert_alike(convolves: str, network: str, mine: Tensor, theirs: Tensor) -> None:
    if (convolves, network) == ("in C", "small_cnn"):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, proximal=0.5, trains=("head",)),
        replace(PLAN, shift="shift", trains=("head",)),
        replace(PLAN, momentum=0.0, optimiser="Adam", rate=0.01),
        replace(PLAN, cycle=Cycle(tombstones=1, at_most=4)),
    ],
    ids=["momentum", "head alone", "shift", "Adam", "cycle"],
)
def test_workers_are_plain(network: Any, plan: Any, convolves: Any) -> None:
    at_hand = case(network)
    who = learners(at_hand.x, SIZES, VALIDATION)
    mine, theirs = (jobs(at_hand, who, [plan] * len(who)) for _ in range(2))
    before = [job.vector.clone() for job in mine]
    finish(Workers(at_hand, 3), mine)
    Plain(at_hand).submit(theirs)
    for a, b, begin in zip(mine, theirs, before, strict=True):
        assert_alike(convolves, network, a.vector, b.vector)
        assert not torch.equal(a.vector, begin)
        assert a.epochs == b.epochs
        assert_alike(convolves, network, *(torch.tensor(job.losses).nan_to_num() for job in (a, b)))


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_epoch_by_epoch_on_workers_is_all_at_once(network: Any, convolves: Any) -> None:
    at_hand = case(network)
    who = learners(at_hand.x, SIZES)
    mine, theirs = (jobs(at_hand, who, [PLAN] * len(who)) for _ in range(2))
    way = Workers(at_hand, 2)
    for _ in range(PLAN.epochs):
        finish(way, mine, 1)
    Plain(at_hand).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert_alike(convolves, network, a.vector, b.vector)


def test_batch_norm_statistics_are_part_of_the_model() -> None:
    at_hand = case("small_resnet")
    who = learners(at_hand.x, SIZES)
    made = jobs(at_hand, who, [PLAN] * len(who))
    finish(Workers(at_hand, 2), made)
    # 20, 3, 11 and 8 examples in batches of 8 are 3, 1, 2 and 1 steps, twice
    for job, steps in zip(made, (6, 2, 4, 2), strict=True):
        tensors = at_hand.layout.tensors(job.vector)
        assert int(tensors["norm.num_batches_tracked"]) == steps == job.steps
        assert tensors["norm.running_mean"].abs().max() > 0
        assert (tensors["norm.running_var"] != 1).any()


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_frozen_layers_keep_every_bit(network: Any) -> None:
    """Their batch-norm statistics too."""
    at_hand = case(network)
    who = learners(at_hand.x, SIZES)
    made = jobs(at_hand, who, [replace(PLAN, trains=("head",))] * len(who))
    before = [job.vector.clone() for job in made]
    finish(Workers(at_hand, 2), made)
    for job, begin in zip(made, before, strict=True):
        for layer in at_hand.layout.layers:
            piece = slice(layer.start, layer.stop)
            assert torch.equal(job.vector[piece], begin[piece]) == (layer.name != "head"), layer.name


@pytest.mark.slow
def test_a_whole_run_on_workers_is_the_plain_one() -> None:
    data = images(small_islands(6, each=60))
    both: tuple[Any, ...] = ("workers", "plain")
    runs = [
        ap.simulate(
            ap.async_fedavg(batch=16, epochs=1),
            data,
            model=lambda: models.small_resnet(10, in_channels=1),
            fleet=ap.Fleet(fast=3, slow=3),
            ending=ap.Ending(rounds=2),
            execution=way,
        )
        for way in both
    ]
    assert [run.execution for run in runs] == ["workers", "plain"]
    assert runs[0].fingerprint() == runs[1].fingerprint()
    assert repr(runs[0].records) == repr(runs[1].records)


# ------------------------------------------------------------------------------------------------------ when it fails


class Choosy(nn.Module):
    """Refuses a batch that holds a large number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 100:
            raise ArithmeticError(f"a pixel of {float(x.max()):g}")
        outputs: Tensor = self.head(x)
        return outputs


def test_an_error_at_one_learner_surfaces_and_the_workers_go_on() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    x[5] = 1000  # the last learner's
    at_hand = work(Choosy(), x, torch.arange(40) % 3)
    who = learners(x, (10, 10, 20))
    way = Workers(at_hand, 2)
    for _ in range(3):  # more often than there are workers: none is lost to an error
        with pytest.raises(ArithmeticError, match="a pixel of 1000"):
            finish(way, jobs(at_hand, who, [PLAN] * 3))
    mine, theirs = (jobs(at_hand, who[:2], [PLAN] * 2) for _ in range(2))
    finish(way, mine)
    Plain(at_hand).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a.vector, b.vector)


def test_a_wrong_option_of_the_optimiser_surfaces_from_a_run() -> None:
    with pytest.raises(ValueError, match=r"Adam does not take .*'beta': 1"):
        ap.simulate(ap.fedavg(optimiser="Adam", options={"beta": 1}), islands(4), execution="workers")


# ------------------------------------------------------------------------------------------- it leaves no trace


def test_workers_leave_the_module_they_were_given_alone() -> None:
    at_hand = case("small_cnn")
    before = {name: tensor.clone() for name, tensor in at_hand.module.state_dict().items()}
    who = learners(at_hand.x, SIZES)
    finish(Workers(at_hand, 2), jobs(at_hand, who, [PLAN] * len(who)))
    assert all(torch.equal(before[name], tensor) for name, tensor in at_hand.module.state_dict().items())


@pytest.mark.slow
def test_workers_leave_the_global_generator_alone() -> None:
    """Every worker forks the one generator of torch; two that overlap must not leave each other's state behind."""
    at_hand = case("small_cnn")
    who = learners(at_hand.x, (6,) * 10)
    way = Workers(at_hand, 4)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for _ in range(10):
        finish(way, jobs(at_hand, who, [replace(PLAN, epochs=3)] * len(who)))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
        at_hand = case("small_cnn")
        finish(Workers(at_hand, 2), jobs(at_hand, learners(at_hand.x, (6,)), [PLAN]))
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before

"""What a user does wrong through `simulate`: one clear error with the value, both sides and the way out."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.data import Islands
from archipel.models import mnist_mlp, small_mlp
from archipel.simulation.simulate import finished
from tests.simulation.engine_cases import begun, islands, regression, small_islands
from tests.ways import CHOSEN, NATIVE

ROUNDS: dict[str, Any] = {"ending": ap.Ending(rounds=3)}
NOT_FINITE = "holds numbers that are not finite (NaN or infinity); lower the rate or look at the data"


def no_own_tests() -> Islands:
    nothing = torch.empty(0, dtype=torch.int64)
    data = islands(4)
    return replace(data, learners=tuple(replace(island, test=nothing) for island in data.learners))


def no_test_set() -> Islands:
    return replace(islands(4), test=torch.empty(0, dtype=torch.int64))


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)
        self.lock = threading.Lock()


WRONG: dict[str, tuple[Callable[[], Any], list[str]]] = {
    # ------------------------------------------------------------------------------------------------- the model
    "a module without parameters": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=nn.Flatten()),
        ["Flatten has no trainable parameters", "give a module with at least one layer"],
    ),
    "too few outputs": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=small_mlp(64, 7)),
        ["(7,)", "10 classes", "one output a class"],
    ),
    "too many outputs": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=small_mlp(64, 17)),
        ["17", "10 classes", "one output a class"],
    ),
    "a float64 module": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=small_mlp().double()),
        ["float64", "float32", "module.float()"],
    ),
    "a model of other inputs": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=mnist_mlp()),
        ["The model does not accept", "64"],
    ),
    "a model that cannot be copied": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=Locked()),
        ["Locked cannot be copied", "cannot pickle '_thread.lock' object", "Keep locks"],
    ),
    "a model by name": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model="small_mlp"),  # type: ignore[arg-type]
        ["'small_mlp'", "torch.nn.Module", "function"],
    ),
    "a function that makes no module": (
        lambda: ap.simulate(ap.fedavg(), islands(4), model=lambda: 5),  # type: ignore[arg-type, return-value]
        ["model() returned 5", "give a torch.nn.Module, or a function that makes one"],
    ),
    "a regression without a model": (
        lambda: ap.simulate(ap.fedavg(), regression()),
        ["no default model for tasks without classes", "give model=..."],
    ),
    "a regression with the wrong outputs": (
        lambda: ap.simulate(ap.fedavg(batch=8), regression(), model=lambda: nn.Linear(5, 3)),
        ["(3,)", "(1,)", "make the two shapes equal"],
    ),
    "private layers that are not there": (
        lambda: ap.simulate(ap.hdafl(private="fc3"), islands(4)),
        ["PrivateLayers: no layer named 'fc3'", "Layers of this model: fc1, head"],
    ),
    "a net too small to divide": (
        lambda: ap.simulate(ap.divide_and_conquer(), islands(4), model=lambda: nn.Linear(64, 10)),
        ["a network of one layer", "cannot be split", "give two or more"],
    ),
    "nothing but deep layers": (
        lambda: ap.simulate(ap.plu(deep="all"), islands(4)),
        ["all layers (fc1, head) are deep", "name the deep ones with deep=(...)"],
    ),
    # -------------------------------------------------------------------------------------------------- the loss
    "a loss by name": (
        lambda: ap.simulate(ap.fedavg(), islands(4), loss="cross_entropy"),  # type: ignore[arg-type]
        ["loss", "'cross_entropy'", "torch.nn.functional.cross_entropy"],
    ),
    "a loss that does not fit the task": (
        lambda: ap.simulate(ap.fedavg(), islands(4), loss=nn.functional.mse_loss),
        ["loss", "mse_loss"],
    ),
    # --------------------------------------------------------------------------------------------- fleet and data
    "a fleet of another size": (
        lambda: ap.simulate(ap.fedavg(), islands(4), fleet=ap.Fleet(fast=5, slow=5)),
        ["it has 10 learners (5 fast, 5 slow)", "the data have 4 islands", "make them equal"],
    ),
    "a source that was not split": (
        lambda: ap.simulate(ap.fedavg(), ap.data.digits()),  # type: ignore[arg-type]
        ["data", "Source", "split(learners="],
    ),
    "no stimuli for consistency": (
        lambda: ap.simulate(ap.rce(), islands(4, stimuli=0)),
        ["rce compares layers on stimuli", "the data have 0", "split with stimuli=5"],
    ),
    "no stimuli for a product with consistency": (
        lambda: ap.simulate(ap.fed2a(), islands(4, stimuli=0)),
        ["fed2a compares layers on stimuli", "the data have 0"],
    ),
    "no validation for DVW": (
        lambda: ap.simulate(ap.sync_dvw(), islands(4), validation=0),
        ["sync_dvw needs a validation part", "give validation above 0, for example .05"],
    ),
    "more validation than there is": (
        lambda: ap.simulate(ap.sync_dvw(), islands(4), validation=1.5),
        ["validation should be at least 0 and below 1, got 1.5"],
    ),
    "private layers, and no test parts of their own": (
        lambda: ap.simulate(ap.hdafl(), no_own_tests()),
        ["hdafl has private layers", "no learner has one", "split the data with a test part"],
    ),
    # ------------------------------------------------------------------------------------------- other settings
    "an unknown execution": (
        lambda: ap.simulate(ap.fedavg(), islands(4), execution="stack"),  # type: ignore[arg-type]
        ["one of plain, workers, stacked, native, got 'stack'. Did you mean 'stacked'?"],
    ),
    "a device that is not there": (
        lambda: ap.simulate(ap.fedavg(), islands(4), device="nonsense"),
        ["Device 'nonsense' is not available; use 'cpu'"],
    ),
    "an ending without an end": (
        lambda: ap.simulate(ap.fedavg(), islands(4), ending=ap.Ending(target=0.9)),
        ["a target or patience alone may never be reached", "give rounds, commits, seconds, bytes or epsilon"],
    ),
    "an ending with nothing": (
        lambda: ap.simulate(ap.fedavg(), islands(4), ending=ap.Ending()),
        ["give rounds, commits, seconds, bytes or epsilon"],
    ),
    "an ending that is a number": (
        lambda: ap.simulate(ap.fedavg(), islands(4), ending=20),  # type: ignore[arg-type]
        ["ending", "20", "Ending(rounds=20)"],
    ),
    "an algorithm that was not made": (
        lambda: ap.simulate(ap.fedavg, islands(4)),  # type: ignore[arg-type]
        ["algorithm", "fedavg"],
    ),
    "an unknown optimiser": (
        lambda: ap.simulate(ap.fedavg(optimiser="Adma"), islands(4)),
        ["torch.optim has no optimiser 'Adma'", "SGD, Adam"],
    ),
    "an unknown option of the optimiser": (
        lambda: ap.simulate(ap.fedavg(options={"decay": 0.1}), islands(4)),
        ["SGD does not take"],
    ),
    "accuracy of a regression": (
        lambda: ap.simulate(
            ap.fedavg(batch=8), regression(), model=lambda: nn.Linear(5, 1), evaluation=ap.Evaluation(), **ROUNDS
        ).summary(),
        ["accuracy", "classes", "'loss'"],
    ),
    "F1 of two classes where there are ten": (
        lambda: ap.simulate(ap.fedavg(), islands(4), evaluation=ap.Evaluation(metric="binary_f1"), **ROUNDS).summary(),
        ["binary_f1", "two classes", "10", "macro_f1"],
    ),
    "a score at home without a test set": (
        lambda: ap.simulate(ap.fedavg(), no_test_set(), evaluation=ap.Evaluation(at="home"), **ROUNDS).summary(),
        ["home", "test set", "learners"],
    ),
    "DVW by classes for a regression": (
        lambda: ap.simulate(ap.sync_dvw(batch=8), regression(), model=lambda: nn.Linear(5, 1)),
        ["micro_f1, which needs classes", "use the metric 'loss'"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_clear_error(name: str) -> None:
    call, parts = WRONG[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, on the way to the error
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (the parts of the message are looked at below)
            call()
    for part in parts:
        assert part in str(caught.value), f"{part!r} is missing from: {caught.value}"


# ------------------------------------------------------------------------------------------ what goes on all the same


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stacked", "plain", NATIVE])
@pytest.mark.parametrize("place", ["first", "some"])
def test_a_learner_with_nan_in_its_data_is_refused_and_the_others_go_on(way: Any, place: Any) -> None:
    data = islands(4)
    # the very first example, or the first of a learner
    example = 0 if place == "first" else int(data.learners[1].train[5])
    owner = next(island.name for island in data.learners if example in island.train)
    x = data.x.clone()
    x[example, 3] = torch.nan
    ended = ap.simulate(ap.fedavg(epochs=2), replace(data, x=x), execution=way, ending=ap.Ending(rounds=5))
    assert [(record.learner, record.reason) for _, record in ended.refusals] == [(owner, NOT_FINITE)] * 5
    assert all(len(commit.learners) == 3 for _, commit in ended.commits)
    assert ended.reason == "5 local rounds made"
    assert ended.model.isfinite().all()
    assert ended.score > 0.5


def test_nan_in_data_made_from_arrays_is_refused_at_once() -> None:
    x = torch.randn(50, 4)
    x[7, 1] = torch.nan
    with pytest.raises(ValueError, match=r"x holds 1 values of 200 that are NaN or infinite .* Fill them in"):
        ap.data.from_arrays(x, torch.arange(50) % 2)


@pytest.mark.parametrize("way", ["stacked", "plain", NATIVE])
def test_too_high_a_rate_is_refused_and_the_run_ends(way: Any) -> None:
    model = small_mlp()
    ended = ap.simulate(ap.fedavg(rate=1e30, batch=16), small_islands(4), model=model, execution=way, **ROUNDS)
    assert ended.reason == "3 local rounds made"
    assert [record.reason for _, record in ended.refusals] == [NOT_FINITE] * 12
    assert not ended.commits
    assert "12 not applied" in ended.summary()
    for name, tensor in ended.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), "the model should be as it was"


@pytest.mark.parametrize(
    "algorithm",
    [
        ap.fedasync(rate=1e30, batch=16),
        ap.async_fedavg(rate=1e30, batch=16),
        ap.async_dvw(rate=1e30, batch=16, at_most=3),
        ap.fed2a(rate=1e30, batch=16),
        ap.hdafl(rate=1e30, batch=16),
        ap.radfed(rate=1e30, batch=16, hops=2),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_a_run_in_which_everything_is_refused_ends_too(algorithm: Any) -> None:
    """Nothing is ever committed; a stream that counts only commits would go on for ever."""
    simulator = begun(algorithm, small_islands(4), **ROUNDS)
    simulator.run(events=500)
    assert simulator.stopped is not None, f"still running at {simulator.clock.now:.1f} s after 500 events"
    ended = finished(simulator)
    private = "a private layer or kept vector of its learner holds numbers that are not finite"
    assert {record.reason for _, record in ended.refusals} == {private if ended.name == "hdafl" else NOT_FINITE}
    assert not ended.commits


def test_a_learner_without_some_classes_is_fine() -> None:
    data = islands(5, classes=2)
    assert all((row > 0).sum() == 2 for row in data.class_table())
    for algorithm in (ap.fedavg(), ap.sync_dvw(batch=32), ap.hdafl()):
        ended = ap.simulate(algorithm, data, **ROUNDS)
        assert not ended.refusals
        assert len(ended.commits) == 3


def test_a_batch_larger_than_all_data_warns_with_the_way_out() -> None:
    with pytest.warns(
        ap.ArchipelWarning, match=r"a batch of 100 \(the largest has 40\).* for example batch=25"
    ) as told:
        ended = ap.simulate(ap.fedavg(batch=100), small_islands(4), **ROUNDS)
    assert told[0].filename == __file__, "the warning should point at the caller"
    assert {record.steps for _, record in ended.cycles} == {1}


def test_a_batch_larger_than_some_learners_data_is_fine() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ended = ap.simulate(ap.fedavg(batch=50), islands(3, sizes=(100, 40, 1)), **ROUNDS)
    assert [record.steps for _, record in ended.cycles][:3] == [1, 1, 2]


def test_a_diverged_learner_recovers_its_private_layers() -> None:
    """An update that is refused must not leave NaN in the layers that nobody else can mend."""
    data = islands(4)
    broken = data.learners[1].train[0]
    x = data.x.clone()
    simulator = begun(ap.hdafl(fraction=1.0), replace(data, x=x), ending=ap.Ending(rounds=4))
    simulator.run(events=5)  # joined and scored; the first round is out
    clean = simulator.context.x[broken].clone()
    simulator.context.x[broken] = torch.nan
    while not any(type(stamped.record).__name__ == "Committed" for stamped in simulator.records):
        simulator.run(events=1)
    simulator.context.x[broken] = clean  # the data are in order again from the second round on
    simulator.run()
    ended = finished(simulator)
    assert ended.refusals[0][1].learner == "01"
    assert [len(commit.learners) for _, commit in ended.commits] == [3, 4, 4, 4]


# ----------------------------------------------------------------------------------------------------- checkpoints


def longer() -> nn.Module:
    """A network with a layer more than the usual one."""
    module = small_mlp(64, 10)
    module.add_module("4", nn.Linear(10, 10))
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ({"seed": 1}, ["its seed is 0, this one's is 1", "Resume with the same settings, or give another folder"]),
        ({"ending": ap.Ending(rounds=9)}, ["its ending is Ending(rounds=3", "this one's is Ending(rounds=9"]),
        ({"algorithm": ap.fedavg(rate=0.1)}, ["its algorithm is", "rate=0.05", "rate=0.1"]),
        ({"model": longer()}, ["its layers is fc1:2080, head:330", "4:110"]),
        ({"execution": "plain"}, [f"its execution is {CHOSEN}, this one's is plain"]),
        ({"data": islands(4, seed=1)}, ["its data and fleet is"]),
        ({"fleet": ap.Fleet(fast=2, slow=2)}, ["its data and fleet is"]),
        ({"evaluation": ap.Evaluation(every=2)}, ["its evaluation is Evaluation(every=1", "Evaluation(every=2"]),
        ({"shadow": True}, ["is of another run", "shadow"]),
        ({"norms": True}, ["its norms is False, this one's is True"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_other_settings_is_refused(other: Any, parts: Any, tmp_path: Path) -> None:
    begin: dict[str, Any] = {"algorithm": ap.fedavg(), "data": islands(4), "model": small_mlp(), **ROUNDS}
    ap.simulate(checkpoint=tmp_path, **begin)
    with pytest.raises(ValueError, match="is of another run") as caught:
        ap.simulate(checkpoint=tmp_path, **{**begin, **other})
    for part in parts:
        assert part in str(caught.value), f"{part!r} is missing from: {caught.value}"


def test_a_checkpoint_of_another_loss_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": lambda: nn.Linear(5, 1), "checkpoint": tmp_path, **ROUNDS}
    ap.simulate(ap.fedavg(batch=8), regression(), **settings)
    with pytest.raises(ValueError, match=r"is of another run: its loss is .*mse_loss.*, this one's is .*l1_loss"):
        ap.simulate(ap.fedavg(batch=8), regression(), loss=nn.functional.l1_loss, **settings)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="is not a checkpoint of Archipel, or is damaged"):
        ap.simulate(ap.fedavg(), islands(4), checkpoint=tmp_path)


def test_a_finished_checkpoint_gives_the_same_run_again(tmp_path: Path) -> None:
    first, second = (ap.simulate(ap.fedavg(), islands(4), checkpoint=tmp_path, **ROUNDS) for _ in range(2))
    assert first.fingerprint() == second.fingerprint()
    assert first.summary() == second.summary()

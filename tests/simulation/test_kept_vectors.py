"""What learners keep from task to task: under every protocol, in other processes, in saved runs, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.core.records import Handed, Returned
from archipel.core.types import Plan
from archipel.executors.workers import Workers
from archipel.learner import noised_gradient
from archipel.privacy import noise
from archipel.simulation.simulate import finished
from tests.simulation.engine_cases import begun, islands, small_islands

METHODS: dict[str, Callable[..., ap.Algorithm]] = {
    "ditto": ap.ditto,
    "pfedme": lambda **local: ap.pfedme(inner_steps=2, fraction=1.0, **local),
    "apfl": lambda **local: ap.apfl(adaptive=True, **local),
    "per_fedavg": lambda **local: ap.per_fedavg(0.05, "differences", fraction=1.0, **local),
    "moon": ap.moon,
    "fine-tuned": lambda **local: replace(ap.fedavg(**local), name="fine-tuned", personal=ap.FineTuned(1)),
}
PROTOCOLS: dict[str, tuple[Any, ...]] = {
    "rounds": (ap.Rounds(0.5), ap.Mean()),
    "stream": (ap.Stream(), ap.Community()),
    "buffer": (ap.Stream(2), ap.Mean()),
    "relay": (ap.Relay(0.5, 2), ap.Mean()),
}
LOCAL: dict[str, Any] = {"epochs": 1, "batch": 16, "rate": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_under_every_protocol(method: str, protocol: str) -> None:
    how, merge = PROTOCOLS[protocol]
    algorithm = replace(METHODS[method](**LOCAL), protocol=how, merge=merge)
    simulator = begun(algorithm, small_islands(), ending=ap.Ending(rounds=4), fleet=ap.Fleet(fast=2, slow=2))
    simulator.run()
    found = finished(simulator)
    assert found.commits
    assert found.scored_at == ("home" if method == "moon" else "learners")
    trained = {record.learner for _, record in found.of(Returned)}
    kept = {name: {*own} for name, own in simulator.sites.kept.items() if own}
    assert kept == {name: {*algorithm.keeps} for name in trained if algorithm.keeps}
    assert set(found.personal) == (set(kept) if method in ("ditto", "pfedme", "apfl") else set())
    for vector in found.personal.values():
        assert not torch.equal(vector, found.model)
    layers = simulator.context.layout.bytes(range(len(simulator.context.layout.layers)))
    assert found.traffic["train up bytes"] == layers * found.traffic["train up models"], "nothing that is kept is sent"


def drops() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 10)
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10)
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_other_processes_come_to_the_same_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Workers.__init__
    found = []
    for count in (1, 2):
        monkeypatch.setattr(Workers, "__init__", lambda self, context, count=count: made(self, context, count))
        simulator = begun(METHODS[method](**LOCAL), small_islands(), ending=ap.Ending(rounds=3), execution="workers")
        assert simulator.executor.pool.count == count  # type: ignore[attr-defined]
        simulator.run()
        simulator.close()
        found.append(simulator)
    for name, kept in found[0].sites.kept.items():
        for what, vector in kept.items():
            assert torch.equal(vector, found[1].sites.kept[name][what])
    one, other = map(finished, found)
    assert torch.equal(one.model, other.model)
    assert [scores.metrics for _, scores in one.scores] == [scores.metrics for _, scores in other.scores]


@pytest.mark.slow
@pytest.mark.parametrize("network", [drops, convolutions])
@pytest.mark.parametrize(
    "make",
    [*METHODS.values(), lambda **local: ap.per_fedavg(0.05, "exact", fraction=1.0, **local)],
    ids=[*METHODS, "exact"],
)
def test_statistics_dropout_and_convolutions(
    make: Callable[..., ap.Algorithm], network: Callable[[], nn.Module]
) -> None:
    """Networks whose tensors are no views of the vector, or that change as they run."""
    runs = [
        ap.simulate(make(**LOCAL), small_islands(), model=network, ending=ap.Ending(rounds=2), execution=way)
        for way in ("plain", "workers")
    ]
    if network is drops:  # workers join convolutions and maxima, which is the same up to rounding
        assert torch.equal(runs[0].model, runs[1].model)
    torch.testing.assert_close(runs[0].model, runs[1].model, rtol=1e-3, atol=1e-4)
    for name, vector in runs[0].personal.items():
        torch.testing.assert_close(vector, runs[1].personal[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_fine_tuning_takes_the_fast_ways() -> None:
    """A native or stacked run fine-tunes natively or in stacks, to the scores of plain execution up to rounding."""
    algorithm = METHODS["fine-tuned"](**LOCAL)
    scores = {
        way: ap.simulate(algorithm, islands(), ending=ap.Ending(rounds=3), execution=way).score
        for way in ("plain", "stacked", None)
    }
    assert scores["stacked"] == pytest.approx(scores["plain"], abs=0.02)
    assert scores[None] == pytest.approx(scores["plain"], abs=0.02)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("ditto", "its tasks have phases, in which different layers or models train"),
        ("apfl", "its learners do not descend along the gradient (MixedDescent(share=0.5, adaptive=True))"),
        ("moon", "its learners minimise another objective than the loss (ModelContrast(mu=5.0, tau=0.5, head='head'))"),
    ],
)
def test_a_run_says_why_it_is_not_stacked(method: str, reason: str) -> None:
    simulator = begun(METHODS[method](**LOCAL), small_islands())
    assert (simulator.executor.name, simulator.executor.reason) == ("workers", f"not stacked, because {reason}")
    with pytest.raises(ValueError, match="cannot be stacked"):
        begun(METHODS[method](**LOCAL), small_islands(), execution="native")


def test_time_counts_every_gradient() -> None:
    """By 2 epochs of 3 steps: Ditto's own epoch costs time, an inner step of pFedMe as much as a step."""
    local: dict[str, Any] = {"epochs": 2, "batch": 16}
    seconds = {
        algorithm.name: ap.simulate(
            algorithm,
            small_islands(),
            fleet=ap.Fleet(ap.Group("all", 4, train_seconds=1.0, latency=0.0)),
            ending=ap.Ending(rounds=1),
        ).seconds
        for algorithm in (
            ap.fedavg(**local),
            ap.ditto(personal_epochs=3, **local),
            ap.pfedme(inner_steps=4, fraction=1.0, **local),
            ap.apfl(**local),
        )
    }
    assert seconds == {"fedavg": 6, "ditto": 15, "pfedme": 24, "apfl": 12}


@pytest.mark.slow
def test_steps_are_those_of_the_shared_model() -> None:
    found = ap.simulate(ap.ditto(personal_epochs=3, **LOCAL), small_islands(), ending=ap.Ending(rounds=1))
    assert {record.steps for _, record in found.of(Returned)} == {3}
    assert len(found.of(Handed)) == 4


@pytest.mark.slow
def test_no_two_steps_of_both_models_draw_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, str]] = []

    def noised(key: str, place: str, *rest: Any) -> Any:
        drawn.append((key, place))
        return as_before(key, place, *rest)

    as_before = noise.noised
    monkeypatch.setattr(noised_gradient, "noised", noised)
    algorithm = replace(ap.ditto(personal_epochs=2, **LOCAL), privacy=ap.LocalNoise(noise=1.0))
    ap.simulate(algorithm, small_islands(), ending=ap.Ending(rounds=2), execution="plain")
    assert len(drawn) == 4 * 2 * 3 * 3, "every step of 4 learners in 2 rounds of 3 epochs"
    assert len({*drawn}) == len(drawn)


@pytest.mark.slow
def test_losses_are_those_of_the_shared_model() -> None:
    algorithm = replace(ap.ditto(personal_epochs=2, **LOCAL), plan=Plan(epochs=2, batch=16, reports=("losses",)))
    found = ap.simulate(algorithm, small_islands(), ending=ap.Ending(rounds=1), validation=0.2)
    for _, record in found.of(Returned):
        before, first, *others = record.losses
        assert before != first != others[0]
        assert len(others) == 3
        assert len(set(others)) == 1, "the shared model does not change while the own one trains"


@pytest.mark.slow
def test_own_models_are_saved_with_a_run(tmp_path: Path) -> None:
    found = ap.simulate(ap.ditto(fraction=0.5, **LOCAL), small_islands(), ending=ap.Ending(rounds=1))
    found.save(tmp_path)
    again = ap.load_run(tmp_path)
    assert again.personal.keys() == found.personal.keys()
    (name, *_), names = again.personal, [one.name for one in found.participants]
    assert len(again.personal) == 2
    for one in names:
        own, expected = again.state_dict(one), found.state_dict(one)
        assert all(torch.equal(own[tensor], expected[tensor]) for tensor in expected)
    head = [found.state_dict(one)["head.weight"] for one in (name, None)]
    assert not torch.equal(*head)

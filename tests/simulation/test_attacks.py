"""Attackers of a simulated fleet: what they send, by hand numbers and in whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.core.randomness import generator
from archipel.core.scored import ScoreTable
from archipel.simulation.attacks import Attack, Attackers, attack_of, inflated, with_flipped_labels
from archipel.simulation.simulate import prepare
from archipel.study.files import study_of
from tests.ways import NATIVE

EVERY = ["sign_flip", "scaled(100)", "noise(10)", "label_flip", "alie(1.5)", "inner_product(0.5)"]
RECEIVED = torch.tensor([1.0, 1.0])


def sent(text: str, moves: dict[str, list[float]], liars: str = "z") -> list[float]:
    """Return the movement that the last learner sends, when all have trained in this order."""
    attack = attack_of(text)
    assert attack is not None
    attackers = Attackers(dict.fromkeys(liars, attack), seed=7)
    model = RECEIVED
    for task, (name, move) in enumerate(moves.items()):
        model = attackers.sent(name, task, RECEIVED, RECEIVED + torch.tensor(move))
    movement: list[float] = (model - RECEIVED).tolist()
    return movement


# ------------------------------------------------------------------------------------------------------ hand numbers


def test_sign_flip_and_scaling() -> None:
    assert sent("sign_flip", {"z": [1.0, -2.0]}) == [-1.0, 2.0]
    assert sent("sign_flip(3)", {"z": [1.0, -2.0]}) == [-3.0, 6.0]
    assert sent("scaled(10)", {"z": [1.0, -2.0]}) == [10.0, -20.0]


def test_noise_has_the_length_that_was_asked_for_and_is_drawn_by_key() -> None:
    movement = sent("noise(10)", {"z": [3.0, 4.0]})
    assert np.linalg.norm(movement) == pytest.approx(50.0)
    drawn = generator(7, "attack", 0, "z").standard_normal(2, dtype=np.float32)
    assert movement == pytest.approx((50 * drawn / np.linalg.norm(drawn)).tolist(), rel=1e-5)
    assert movement != sent("noise(10)", {"a": [3.0, 4.0], "z": [3.0, 4.0]})  # another task draws others


def test_alie_is_the_mean_less_some_deviations() -> None:
    # movements 1, 3 and 5 in the first coordinate: mean 3, deviation sqrt(8/3)
    moves = {"a": [1.0, 2.0], "b": [3.0, 2.0], "z": [5.0, 2.0]}
    assert sent("alie(1.5)", moves) == pytest.approx([3 - 1.5 * (8 / 3) ** 0.5, 2.0])
    assert sent("alie(1.5)", {"z": [5.0, 2.0]}) == [5.0, 2.0]  # it knows nobody yet


def test_the_inner_product_goes_against_the_honest_mean() -> None:
    moves = {"a": [1.0, 2.0], "b": [3.0, 2.0], "y": [100.0, 100.0], "z": [5.0, 2.0]}
    assert sent("inner_product(0.5)", moves, "yz") == [-1.0, -1.0]
    assert sent("inner_product(0.5)", {"z": [4.0, 2.0]}) == [-2.0, -1.0]


def test_honest_learners_send_what_they_have_trained() -> None:
    assert sent("alie(1.5)", {"z": [5.0, 2.0], "a": [1.0, 2.0]}) == [1.0, 2.0]


def test_flipped_labels_are_copies_and_nobody_elses_change() -> None:
    data = ap.data.digits().split(learners=4)
    liar = data.learners[1]
    flipped = with_flipped_labels(data, {**dict.fromkeys(data.rows.names, ""), liar.name: "label_flip"})
    after = flipped.learners[1]
    assert torch.equal(flipped.y[after.train], 9 - data.y[liar.train])
    assert torch.equal(flipped.x[after.train], data.x[liar.train])
    assert torch.equal(flipped.y[: len(data.y)], data.y)
    for k in (0, 2, 3):
        assert torch.equal(flipped.learners[k].train, data.learners[k].train)
        assert torch.equal(flipped.learners[k].test, data.learners[k].test)
    assert with_flipped_labels(data, {}) is data


def test_claimed_counts_are_consistent() -> None:
    table = ScoreTable(np.array([2, 3]), np.array([1.0, 2.0]), np.array([[[1, 0], [0, 1]], [[3, 0], [0, 0]]]), None)
    claimed = inflated(table, [1, 1000])
    assert claimed.counts.tolist() == [2, 3000]
    assert claimed.confusion is not None
    assert claimed.confusion.sum(axis=(1, 2)).tolist() == [2, 3000]
    assert claimed.losses.tolist() == [1.0, 2000.0]


# --------------------------------------------------------------------------------------------------------- in a fleet


def fleet(attack: str, liars: int = 2, of: int = 6, **more: Any) -> ap.Fleet:
    return ap.Fleet(ap.Group("honest", of - liars), ap.Group("liars", liars, attack=attack, **more))


def run(attack: str, **settings: Any) -> ap.Run:
    merged: dict[str, Any] = {"fleet": fleet(attack), "ending": ap.Ending(rounds=3), **settings}
    return ap.simulate(ap.fedavg(batch=32), ap.data.digits().split(learners=6), **merged)


@pytest.mark.slow
@pytest.mark.parametrize("attack", EVERY)
def test_every_executor_sees_the_same_attack(attack: str) -> None:
    plain = run(attack, execution="plain")
    honest = run("", execution="plain")
    assert not torch.allclose(plain.model, honest.model, atol=1e-4)
    for execution in ("stacked", "workers"):
        other = run(attack, execution=execution)
        assert torch.allclose(plain.model, other.model, rtol=1e-3, atol=1e-3 * float(plain.model.abs().max()))
    assert torch.equal(plain.model, run(attack, execution="plain").model)


@pytest.mark.slow
@pytest.mark.parametrize("execution", [NATIVE])
def test_the_native_executor_too(execution: Any) -> None:
    plain, native = run("alie(1.5)", execution="plain"), run("alie(1.5)", execution=execution)
    assert torch.allclose(plain.model, native.model, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["noise(10)", "alie(1.5)"])
def test_a_resumed_run_comes_to_the_same_bits(attack: str, tmp_path: Path) -> None:
    whole = run(attack)
    settings: dict[str, Any] = {"fleet": fleet(attack), "ending": ap.Ending(rounds=3), "seed": 0}
    data = ap.data.digits().split(learners=6)
    first = prepare(ap.fedavg(batch=32), data, **settings)
    first.begin()
    first.run(11)
    saved = first.save()
    first.close()
    second = prepare(ap.fedavg(batch=32), data, **settings)
    second.load(saved)
    second.run()
    model = second.controller.models.read(second.controller.state.model.name)
    second.close()
    assert torch.equal(model, whole.model)


@pytest.mark.slow
def test_robust_merges_withstand_what_ruins_a_mean() -> None:
    """Not an accuracy threshold: a mean is worse than a guess, and the others are far above it."""
    data = ap.data.digits().split(learners=10, classes="iid")

    def accuracy(merge: ap.Merge, attack: str) -> float:
        algorithm = ap.Algorithm("x", weighting=ap.Equally(), merge=merge, plan=ap.Plan(epochs=2, rate=0.1))
        group = fleet(attack, 2, 10)
        return float(ap.simulate(algorithm, data, fleet=group, ending=ap.Ending(rounds=8)).score)

    ruined = accuracy(ap.Mean(), "scaled(100)")
    for merge in (
        ap.Median(),
        ap.TrimmedMean(0.2),
        ap.Krum(2, keep=5),
        ap.GeometricMedian(),
        ap.NormClipped(ap.Mean()),
    ):
        assert accuracy(merge, "scaled(100)") > ruined + 0.3


@pytest.mark.slow
def test_claims_buy_weight_and_the_largest_share_takes_it_back() -> None:
    def share(most: float) -> float:
        """Return the liars' part of the last commit's weights."""
        result = run("", fleet=fleet("", claims=1000), most_share=most)
        commit = result.commits[-1][1]
        liars = {one.name for one in result.participants if one.group == "liars"}
        weights = {name: row[0] for name, row in zip(commit.learners, commit.weights, strict=True)}
        return sum(weights[name] for name in liars) / sum(weights.values())

    assert share(1.0) > 0.99
    assert share(0.2) < 0.5


# ------------------------------------------------------------------------------------------------ texts and studies


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("signflip", r"attack 'signflip' is not known. Did you mean 'sign_flip\(1\)'"),
        ("scaled()", "is not known"),
        ("scaled(nan)", "is not known"),
        ("label_flip(2)", "is not known"),
        ("__import__('os')", "is not known"),
    ],
)
def test_what_is_no_attack_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ap.Group("liars", 2, attack=text)


def test_the_texts_are_read() -> None:
    assert attack_of("") is None
    assert attack_of("scaled") == Attack("scaled", 100.0)
    assert attack_of("scaled(-3)") == Attack("scaled", -3.0)
    with pytest.raises(ValueError, match="claims should be at least 1"):
        ap.Group("liars", 2, claims=0)


def test_a_study_file_has_attackers() -> None:
    raw = {
        "algorithms": "fedavg",
        "data": {"source": "digits", "split": {"learners": 4}},
        "fleet": {"groups": [{"name": "a", "count": 3}, {"name": "b", "count": 1, "attack": "noise(2)", "claims": 5}]},
    }
    study = study_of(raw)
    assert study.fleet is not None
    assert study.fleet.groups[1].given() == {"name": "b", "count": 1, "attack": "noise(2)", "claims": 5}

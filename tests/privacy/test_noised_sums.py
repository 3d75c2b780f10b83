"""Noise inside secure sums: each learner's part, what it adds up to, and the account of it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from archipel import simulate
from archipel.algorithms import fedavg, fedbuff, oort
from archipel.core.algorithm import Algorithm
from archipel.core.controller import Controller
from archipel.core.parts import CentralNoise, Ending, LocalNoise, Rounds, SecureSum
from archipel.core.records import PrivacySpent
from archipel.core.types import AddUp, Failed
from archipel.data import digits
from archipel.federation.learner.example_privacy import ExamplePrivacy
from archipel.federation.learner.local_state import Memory, StateFolder, Withheld
from archipel.federation.learner.masked_updates import MaskedUpdates, SumSettings
from archipel.federation.learner.policy import Refusal, SiteRules
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.privacy.accounting import Draws, epsilon
from archipel.privacy.secure_sum.discrete_noise import discrete_gaussian
from archipel.privacy.secure_sum.graph import degree, share_threshold, smallest_group
from archipel.privacy.secure_sum.quantiser import Quantiser
from archipel.privacy.secure_sum.sum_messages import SecureSumRefused
from archipel.simulation.fleet import Fleet, Group
from archipel.study.files import study_of
from archipel.study.local_site import take_part, try_out
from tests.federation.in_one_process import study
from tests.federation.test_masked_updates import Trusting
from tests.privacy.documented import refused_rows

# --------------------------------------------------------------------------------------------------------- the noise


@pytest.mark.parametrize("deviation", [0.7, 2.3, 4.0])
def test_noise_has_the_chances_of_a_discrete_gaussian(deviation: float) -> None:
    numbers = discrete_gaussian(bytes(32), deviation, 100_000)
    places = np.arange(-30, 31)
    chances = np.exp(-(places**2) / (2 * deviation**2))
    expected = chances / chances.sum() * len(numbers)
    often = expected > 20
    counts = np.array([(numbers == place).sum() for place in places[often]])
    observed = np.append(counts, len(numbers) - counts.sum())
    assert stats.chisquare(observed, np.append(expected[often], len(numbers) - expected[often].sum())).pvalue > 1e-4


def test_noise_of_many_steps_is_normal_and_follows_from_its_seed() -> None:
    numbers = discrete_gaussian(bytes(32), 1e5, 100_000)
    assert stats.kstest(numbers / 1e5, "norm").pvalue > 1e-4
    assert (numbers == discrete_gaussian(bytes(32), 1e5, 100_000)).all()
    assert abs(np.corrcoef(numbers, discrete_gaussian(bytes(31) + b"1", 1e5, 100_000))[0, 1]) < 0.02


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 60), length=st.floats(0, 1e6), clip=st.floats(1e-3, 100))
def test_no_update_moves_a_sum_by_more_than_the_clip(seed: int, size: int, length: float, clip: float) -> None:
    change = np.random.default_rng(seed).normal(size=size)
    quantiser = Quantiser(clip, 64, 10, noise=0.1)
    own, without = (quantiser.encode(x, 1, b"s" * 32) for x in (change * length, np.zeros(size)))
    moved = [int(step) for step in (own - without)[:-1].view("<i8")]
    assert math.sqrt(sum(step**2 for step in moved)) * quantiser.step <= clip * (1 + 1e-12)


@pytest.mark.parametrize(("cohort", "senders"), [(10, 10), (10, 8), (100, 62)])
def test_the_smallest_sum_that_can_be_opened_has_the_noise_that_is_accounted_for(cohort: int, senders: int) -> None:
    size, noise = 4000, 2.0
    quantiser = SecureSum(noise=noise, clip=0.5).quantiser(cohort, True, noise)
    whole = np.sum([quantiser.encode(np.zeros(size), 1, bytes([k]) * 32) for k in range(senders)], axis=0, dtype="<u4")
    found, weight = quantiser.decode(whole, senders)
    assert weight == senders
    expected = noise * 0.5 * math.sqrt(senders / smallest_group(cohort, 0.75))
    assert senders > smallest_group(cohort, 0.75) or expected == noise * 0.5
    assert found.std() == pytest.approx(expected, rel=4 / math.sqrt(2 * size))


@settings(max_examples=60, deadline=None)
@given(cohort=st.integers(65, 700), threshold=st.sampled_from([0.68, 0.75, 0.9]), seed=st.integers(0, 999))
def test_whoever_has_enough_neighbours_is_in_a_group_as_large_as_promised(
    cohort: int, threshold: float, seed: int
) -> None:
    """Leave learners out of a ring, at random and in a row, then all that have too few beside them."""
    draws = np.random.default_rng(seed)
    half = degree(cohort, threshold) // 2
    there = draws.random(cohort) > draws.uniform(0, 0.4)
    there[: int(draws.integers(0, half))] = False
    while True:
        beside = sum(np.roll(there, step).astype(int) for step in range(-half, half + 1))
        enough = there & (beside >= share_threshold(2 * half, threshold))
        if (enough == there).all():
            break
        there = enough
    assert not there.any() or there.sum() >= smallest_group(cohort, threshold)


# -------------------------------------------------------------------------------------------------------- the account


def test_sums_of_discrete_noise_cost_at_least_what_one_gaussian_does() -> None:
    for rounds in (1, 10, 100):
        draws = (Draws(1, 1, rounds),)
        exactly, bounded = (epsilon(kind, 3.0, draws, 1e-5) for kind in ("counted", "summed"))
        assert exactly < bounded < 1.2 * exactly


@pytest.fixture(scope="module")
def islands() -> Any:
    return digits().split(learners=8, seed=0)


def noised(method: Algorithm | None = None, **given_: Any) -> Algorithm:
    return replace(method or fedavg(equally=True), privacy=SecureSum(**{"clip": 0.5, **given_}))


def test_every_version_tells_its_epsilon_and_the_budget_lasts_for_its_rounds(islands: Any) -> None:
    run = simulate(noised(epsilon=8.0), islands, ending=Ending(rounds=3))
    told = [record.epsilon for _, record in run.of(PrivacySpent)]
    assert len(told) == 3
    assert told == sorted(told)
    assert 0.97 * 8 < told[-1] <= 8


def test_a_run_ends_before_the_budget_of_the_busiest_learner_is_exceeded(islands: Any) -> None:
    run = simulate(noised(fedavg(0.5, equally=True), noise=2.0), islands, ending=Ending(epsilon=6.0))
    told = run.of(PrivacySpent)[-1][1]
    busiest = max(Counter(name for _, commit in run.commits for name in commit.learners).values())
    assert told.epsilon == epsilon("summed", 2.0, (Draws(1, 1, busiest),), 1e-5)
    assert told.epsilon <= 6 < epsilon("summed", 2.0, (Draws(1, 1, busiest + 1),), 1e-5)


def test_noise_moves_the_model_as_much_as_it_says(islands: Any) -> None:
    runs = [simulate(noised(noise=one, clip=1e-6), islands, ending=Ending(rounds=1)) for one in (1.0, 1.0)]
    apart = (runs[0].model - runs[1].model).double().numpy()
    expected = 1e-6 * math.sqrt(8 / smallest_group(8, 0.75)) / 8 * math.sqrt(2)
    assert apart.std() == pytest.approx(expected, rel=0.1)  # models are float32


@pytest.mark.slow
def test_learners_that_drop_out_leave_enough_noise_and_a_version(islands: Any) -> None:
    fleet = Fleet(Group("fast", 8, drop_rate=0.1))
    run = simulate(noised(noise=1.0), islands, fleet=fleet, ending=Ending(rounds=6))
    assert {len(commit.learners) for _, commit in run.commits} & {6, 7}
    assert len(run.of(PrivacySpent)) == len(run.commits)


def test_a_learner_refuses_more_sums_than_its_own_budget_pays_for(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.memory.federation = "here"
    part = SecureSum(noise=3.0, clip=1.0)
    paid = epsilon("summed", 3.0, (Draws(1, 1, 2),), part.delta)
    own = MaskedUpdates("site-0", folder, SumSettings(part, True, 3.0, paid), 20, Trusting())

    def ask(task: int) -> None:
        folder.memory.withheld = Withheld(task, ("0",), torch.zeros(4, dtype=torch.float64))
        step = pb.SumStep(task=task + 100, phase="advertise", training=task, layers=["0"])
        step.terms.CopyFrom(sum_steps.encode_terms(part))
        own.answer(step)

    ask(1)
    ask(2)
    with pytest.raises(SecureSumRefused, match="does not pay for sum 3 of this learner"):
        ask(3)
    assert StateFolder(tmp_path).memory.sums == 2, "a learner that is started again has not forgotten"


def test_a_site_narrows_the_budget_of_sums_and_is_not_trained_in_vain() -> None:
    raw = study(
        algorithms=[{"name": "fedavg", "equally": True, "privacy": "SecureSum(noise=3.0, clip=0.5)"}],
        ending={"rounds": 50},
    )
    both, paid = (epsilon("summed", 3.0, (Draws(1, 1, sums),), 1e-5) for sums in (2, 1))
    island, narrowed = take_part(study_of(raw), "00", rules=SiteRules(max_epsilon=both))
    assert island.sums is not None
    assert island.sums.budget == both
    assert any(f"a budget of epsilon {both:g} pays for 2 sums" in line for line in try_out(narrowed, island))
    memory, plan = Memory(), island.policy.plans[0]
    privacy = ExamplePrivacy(island.budget, memory, len(island.learner.train), island.sums)
    memory.sums = 1
    assert privacy.noise(plan, 0) is None, "nothing is added to gradients"
    memory.sums = 2
    with pytest.raises(Refusal, match="does not pay for sum 3 of this learner"):
        privacy.noise(plan, 1)
    with pytest.raises(ValueError, match=rf"with noise 3 costs epsilon {paid:.3g}, and this learner's budget is 0.1"):
        take_part(study_of(raw), "00", rules=SiteRules(max_epsilon=0.1))
    raw["algorithms"][0]["privacy"] = "SecureSum()"
    with pytest.raises(ValueError, match=r"allows its examples epsilon 9\.0, and learners of fedavg add no noise"):
        take_part(study_of(raw), "00", rules=SiteRules(max_epsilon=9.0))
    raw["algorithms"][0]["privacy"] = "CentralNoise(noise=3.0)"
    with pytest.raises(ValueError, match="learners of fedavg add no noise"):  # it relies on the controller
        take_part(study_of(raw), "00", rules=SiteRules(max_epsilon=9.0))


NOISE: dict[str, Any] = {"noise": 1.0}
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "epsilon 0": (lambda: SecureSum(epsilon=0.0), "SecureSum: epsilon should be more than 0, got 0.0"),
    "no noise": (lambda: SecureSum(noise=0.0), "SecureSum: noise should be at least 0.05 (less protects nothing)"),
    "delta": (lambda: SecureSum(noise=1.0, delta=1.5), "SecureSum: delta should be between 0 and 1"),
    "by examples": (lambda: noised(fedavg(), **NOISE), "Use weighting=Equally()"),
    "losses": (lambda: noised(replace(oort(), weighting=fedavg(equally=True).weighting), **NOISE), "learners report"),
    "first answers": (
        lambda: noised(replace(fedavg(equally=True), protocol=Rounds(0.5, extra=0.5)), **NOISE),
        "SecureSum bounds what one learner adds to a sum",
    ),
    "a stream": (lambda: noised(fedbuff(), **NOISE), "weighs by them or by their time"),
    "for ever": (
        lambda: simulate(noised(epsilon=1.0), digits().split(learners=8), ending=Ending(seconds=1)),
        "epsilon=1.0 has to last for a number of rounds; give Ending(rounds=...)",
    ),
    "not even one": (
        lambda: simulate(noised(noise=1.0), digits().split(learners=8), ending=Ending(epsilon=0.5)),
        "costs epsilon 4.75 for a single sum, and the budget is 0.5. Raise the noise or the budget",
    ),
    "coarse steps": (
        lambda: SecureSum(noise=0.05).quantiser(10**6, True, 0.05).most_norm(10),
        "too coarse for a clip of 10 and noise of 6.45e-05 clips at each learner. Use bits=64",
    ),
    "running statistics": (
        lambda: simulate(
            noised(noise=1.0),
            digits().split(learners=8),
            model=nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)),
        ),
        "SecureSum: the layer '2.buffers' holds running statistics, which noise would make useless. Use group",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_in_one_sentence(case: str) -> None:
    attempt, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attempt()


@pytest.mark.parametrize(("given_", "said"), refused_rows())
def test_the_how_to_quotes_what_is_said_of_a_value(given_: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        eval(given_, {"CentralNoise": CentralNoise, "LocalNoise": LocalNoise, "SecureSum": SecureSum})


def test_sums_that_fail_may_have_been_opened_and_are_paid_for(islands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_controller: Controller, _wire: object, command: AddUp) -> Failed:
        return Failed(command.task, "one of them is beyond the clip")

    monkeypatch.setattr("archipel.simulation.simulator.add_up", fails)
    run = simulate(noised(noise=2.0), islands, ending=Ending(epsilon=6.0))
    assert not run.commits
    assert "is spent at delta 1e-05, and another commit would exceed the budget of 6" in run.reason

"""What `CentralNoise` promises: bounded influence, noise of the stated size that nobody can compute, and refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from archipel import ArchipelWarning, simulate
from archipel.algorithms import divide_and_conquer, fedavg, fedbuff, hdafl, radfed, rce, sync_dvw, tvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    ByFreshness,
    ByLoss,
    CentralNoise,
    Community,
    DivideAndConquer,
    Ending,
    Equally,
    Krum,
    MeanByClass,
    Median,
    Mix,
    Plateau,
    Poisson,
    Rounds,
    Stream,
    Uniform,
    ValidationCycle,
)
from archipel.core.records import Committed, Divergence, PrivacySpent
from archipel.core.types import Cycle, Plan
from archipel.data import digits
from archipel.privacy.noise import derived_key, new_key, normal
from tests.core.hand import Hand, failed, joined, left
from tests.privacy.documented import check_table
from tests.privacy.releases import KEY, LAYOUT, Release, algorithm, poisson

FIXED = CentralNoise(noise=1.0, clip=0.5)


def random_changes(seed: int, learners: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {f"site-{k}": size * torch.randn(LAYOUT.size, generator=draws) for k in range(learners)}


# -------------------------------------------------------------------------------------------------------- sensitivity


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    learners=st.integers(1, 6),
    size=st.sampled_from([1e-30, 1e-6, 1e-3, 0.1, 1.0, 1e3, 1e8, 1e30]),
    clip=st.sampled_from([1e-3, 0.5, 10.0]),
)
def test_no_learner_moves_the_sum_by_more_than_the_clip(seed: int, learners: int, size: float, clip: float) -> None:
    """Neighbouring rounds differ in one learner; rounding is no excuse, since the sum is where the noise comes in."""
    privacy = CentralNoise(noise=1.0, clip=clip)
    mine = random_changes(seed, learners, size)
    without = {name: change for name, change in mine.items() if name != "site-0"}
    one, other = (Release(poisson(privacy), learners=10).sums(changes) for changes in (mine, without))
    assert float((one - other).norm()) <= clip


def test_changes_within_the_clip_stay_as_they_are() -> None:
    changes = random_changes(1, 3, 1e-3)
    sums = Release(algorithm(FIXED)).sums(changes)
    torch.testing.assert_close(sums, torch.stack(list(changes.values())).sum(0).double(), atol=1e-7, rtol=0)


def test_the_divisor_is_the_number_asked_whoever_answers() -> None:
    """A learner whose update comes to nothing, perhaps because of its data, is not told by a smaller divisor."""
    release = Release(algorithm(CentralNoise(noise=1.0, clip=1.0), protocol=Rounds(0.5)), learners=20)
    release.privacy.drawn(release.view, [f"site-{k}" for k in range(10)], 10, 20)
    change = torch.full((LAYOUT.size,), 1e-3)
    with patch("archipel.core.parts.central_noise.noised", lambda key, place, numbers, deviation: numbers):
        moved = release.merge({f"site-{k}": change for k in range(7)})
    torch.testing.assert_close(moved, 0.7 * change)


# -------------------------------------------------------------------------------------------------------------- noise


def test_the_noise_is_normal_and_of_the_stated_size() -> None:
    """Pearson's chi-square over 50 equally likely bins; the key is fixed, so this cannot fail by chance."""
    release = Release(algorithm(CentralNoise(noise=2.0, clip=0.5)))
    rounds = [release.merge({"a": torch.zeros(LAYOUT.size)}).double().numpy() for _ in range(40)]
    numbers = np.concatenate(rounds) / (2.0 * 0.5)
    counts, _ = np.histogram(stats.norm.cdf(numbers), bins=50, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 0.01
    assert stats.kstest(numbers, "norm").pvalue > 0.01


def test_both_tails_are_those_of_a_normal_distribution() -> None:
    """A million numbers, counted beyond 3 to 4.5 deviations on each side; the tails do not end before 9."""
    numbers = normal(KEY, "tails", 10**6)
    for side in (numbers, -numbers):
        beyond = [int((side > z).sum()) for z in (3.0, 3.5, 4.0, 4.5)]
        expected = [stats.norm.sf(z) * 10**6 for z in (3.0, 3.5, 4.0, 4.5)]
        assert all(abs(n - e) < 4 * math.sqrt(e) + 1 for n, e in zip(beyond, expected, strict=True)), (beyond, expected)
    words = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    with patch("archipel.privacy.noise._random_words", lambda key, place, count: words):
        far, near, middle, other_far, other_middle = normal(KEY, "", 5)
    assert far == -other_far
    assert far > near > 9
    assert middle == other_middle == 0


def test_noise_is_drawn_anew_for_every_release() -> None:
    release = Release(algorithm(FIXED))
    first, second = (release.merge({"a": torch.zeros(LAYOUT.size)}) for _ in range(2))
    correlation = np.corrcoef(first.numpy(), second.numpy())[0, 1]
    assert abs(correlation) < 4 / math.sqrt(LAYOUT.size)


def test_a_state_restored_from_a_copy_repeats_no_noise() -> None:
    """The same release once more, with one other update: the difference of both must not be that of the updates."""
    changes = random_changes(4, 3, 1e-3)
    first, again, other = (
        Release(algorithm(FIXED)).merge(told) for told in (changes, changes, {**changes, "site-0": changes["site-1"]})
    )
    assert torch.equal(first, again), "a crash and a replay"
    assert float((first - other).std()) == pytest.approx(2**0.5 * 0.5 / 3, rel=0.2)


def test_adaptive_clipping_spends_no_more_than_the_noise_stated() -> None:
    """The sum with noise z' and the count with noise s together are one release with noise z (Andrew et al.)."""
    privacy = CentralNoise(noise=1.5)
    for count in (1, 10, 100, 1000):
        of_sum, of_count = privacy._noises(1.5, count)
        assert of_sum**-2 + (2 * of_count) ** -2 == pytest.approx(1.5**-2)
        assert of_sum >= 1.5


@pytest.mark.slow
def test_an_adaptive_clip_finds_the_median() -> None:
    changes = {f"site-{k:03}": torch.full((LAYOUT.size,), (k + 1) / math.sqrt(LAYOUT.size)) for k in range(50)}
    release = Release(algorithm(CentralNoise(noise=0.5)))
    for _ in range(100):
        release.merge(changes)
    assert release.account.clip == pytest.approx(25, rel=0.15)


@pytest.mark.slow
def test_an_adaptive_clip_of_one_learner_stays_a_number() -> None:
    release = Release(algorithm(CentralNoise(noise=500.0)))
    for _ in range(200):
        release.merge({"a": torch.zeros(LAYOUT.size)})
    assert 1e-30 < release.account.clip < 1e30


# ------------------------------------------------------------------------------------------------------- not the seed


def small(**changes: Any) -> Algorithm:
    noised = replace(fedavg(0.5, equally=True, batch=8), privacy=CentralNoise(noise=1.0, clip=1.0))
    return replace(noised, **changes)


@pytest.fixture(scope="module")
def islands() -> Any:
    return digits().split(learners=8, seed=3)


@pytest.mark.slow
def test_who_knows_study_and_seed_can_neither_repeat_the_noise_nor_tell_who_took_part(islands: Any) -> None:
    """The same study and seed again, which is all that a learner can compute, gives other noise and other draws."""
    runs = [simulate(small(), islands, ending=Ending(rounds=4), seed=7, validation=0.0) for _ in range(2)]
    drawn = [[commit.learners for _, commit in run.commits] for run in runs]
    assert drawn[0] != drawn[1]
    known = [run.model.double().numpy() for run in runs]
    alone = simulate(replace(small(), privacy=None), islands, ending=Ending(rounds=4), seed=7).model.double().numpy()
    noises = [model - alone for model in known]
    assert abs(np.corrcoef(*noises)[0, 1]) < 0.1
    assert np.std(noises[0] - noises[1]) > np.std(noises[0])  # subtracting adds noise


def test_keys_are_of_the_operating_system() -> None:
    keys = {new_key() for _ in range(20)}
    assert len(keys) == 20
    assert {len(bytes.fromhex(key)) for key in keys} == {32}
    derived = {derived_key(key, purpose) for key in keys for purpose in ("a", "b")}
    assert len(derived | keys) == 60
    assert {len(bytes.fromhex(key)) for key in derived} == {32}


@pytest.mark.parametrize("selection", [Poisson(), Uniform()])
def test_secret_draws_are_fair_and_not_those_of_the_seed(selection: Any) -> None:
    names = [f"site-{k}" for k in range(10)]
    view = Release(poisson(FIXED)).view
    drawn = [selection.select(view, names, 3, f"round {k}") for k in range(2000)]
    counts = [sum(name in one for one in drawn) for name in names]
    assert stats.chisquare(counts).pvalue > 0.01
    assert sum(counts) == pytest.approx(6000, abs=200)
    view.state.secret = ""
    assert drawn != [selection.select(view, names, 3, f"round {k}") for k in range(2000)]


# ------------------------------------------------------------------------------------------------- rounds and budgets


@pytest.mark.slow
def test_a_run_ends_before_it_exceeds_its_budget(islands: Any) -> None:
    run = simulate(small(privacy=CentralNoise(noise=4.0, clip=1.0)), islands, ending=Ending(epsilon=6.0, rounds=50))
    spent = [record.epsilon for _, record in run.of(PrivacySpent)]
    assert len(spent) == len(run.commits) > 2
    assert spent == sorted(spent)
    assert spent[-1] <= 6.0 < 2 * spent[-1] - spent[-2] + 0.5
    assert "another commit would exceed the budget of 6" in run.reason
    assert f"epsilon {spent[-1]:.4g} at delta 1e-05" in run.summary()


@pytest.mark.slow
def test_noise_is_found_for_a_budget_and_rounds(islands: Any) -> None:
    study = small(privacy=CentralNoise(epsilon=3.0, clip=1.0), selection=Poisson())
    run = simulate(study, islands, ending=Ending(rounds=5))
    assert len(run.commits) == 5
    assert 2.97 < run.of(PrivacySpent)[-1][1].epsilon <= 3.0


@pytest.mark.slow
def test_a_round_with_nobody_in_it_is_released_like_any_other(islands: Any) -> None:
    study = small(privacy=CentralNoise(noise=1.0, clip=1.0), selection=Poisson(), protocol=Rounds(0.125))
    run = simulate(study, islands, ending=Ending(rounds=20))
    sizes = [len(commit.learners) for _, commit in run.of(Committed)]
    assert len(sizes) == 20
    assert 0 in sizes, "a third of the rounds draw nobody"
    assert len({commit.layers for _, commit in run.commits}) == 1


def test_a_round_that_everybody_leaves_is_released_too() -> None:
    method = replace(poisson(CentralNoise(noise=1.0, clip=1.0)), protocol=Rounds(1.0))
    hand = Hand(method, learners=2, secret=KEY).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (left("a"),),
        (failed(0), "refused 0 lost"),
        (left("b"),),
        (failed(1), "refused 1 lost", "v1 <-"),
    )
    assert hand.last(PrivacySpent).version == 1


@pytest.mark.slow
def test_under_a_stream_the_busiest_learner_is_accounted_for(islands: Any) -> None:
    study = replace(fedbuff(3), privacy=CentralNoise(noise=3.0, clip=1.0))
    run = simulate(study, islands, ending=Ending(commits=12))
    learners = [name for _, commit in run.commits for name in commit.learners]
    most = max(map(learners.count, learners))
    # the Gaussian mechanism with noise 3 / sqrt(most), by its exact characterisation (Balle and Wang, theorem 8)
    noise, spent = 3.0 / math.sqrt(most), run.of(PrivacySpent)[-1][1].epsilon
    delta = stats.norm.cdf(0.5 / noise - spent * noise) - math.exp(spent) * stats.norm.cdf(-0.5 / noise - spent * noise)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.slow
def test_private_layers_get_no_noise_and_do_not_travel(islands: Any) -> None:
    study = replace(hdafl(), weighting=Equally(), privacy=CentralNoise(noise=1.0, clip=1.0))
    run = simulate(study, islands, ending=Ending(rounds=3))
    head = len(run.layout.layers) - 1
    assert all(head not in commit.layers for _, commit in run.commits)


@pytest.mark.slow
def test_records_hold_nothing_computed_from_single_updates(islands: Any) -> None:
    study = small(privacy=CentralNoise(noise=1.0, clip=1.0), planners=(DivideAndConquer(prepass=0, split=1),))
    assert simulate(replace(study, privacy=None), islands, ending=Ending(rounds=2)).of(Divergence)
    assert not simulate(study, islands, ending=Ending(rounds=2)).of(Divergence)


# ----------------------------------------------------------------------------------------------------------- refusals

noise = CentralNoise(noise=1.0, clip=1.0)
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "nothing given": (lambda: CentralNoise(), "give epsilon=..., a budget"),
    "epsilon 0": (lambda: CentralNoise(epsilon=0.0), "epsilon should be more than 0, got 0.0"),
    "negative epsilon": (lambda: CentralNoise(epsilon=-1.0), "epsilon should be more than 0, got -1.0"),
    "no noise": (lambda: CentralNoise(noise=0.0), "noise should be at least 0.05 (less protects nothing), got 0.0"),
    "delta": (lambda: CentralNoise(noise=1.0, delta=1.0), "delta should be between 0 and 1, such as 1e-5, got 1.0"),
    "clip": (lambda: CentralNoise(noise=1.0, clip=0.0), "clip should be more than 0, got 0.0"),
    "clip by name": (lambda: CentralNoise(noise=1.0, clip="median"), "clip should be a norm such as 1.0"),  # type: ignore[arg-type]
    "by examples": (lambda: replace(fedavg(), privacy=noise), "Use weighting=Equally()"),
    "tvw": (lambda: replace(tvw(), privacy=noise), "ByFreshness(...) under Stream"),
    "dvw": (lambda: replace(sync_dvw(), privacy=noise), "weights that do not depend on the data"),
    "rce": (lambda: replace(rce(), privacy=noise), "weights that do not depend on the data"),
    "median": (lambda: algorithm(noise, merge=Median()), "Median() computes none. Use merge=Mean()"),
    "krum": (lambda: algorithm(noise, merge=Krum()), "Use merge=Mean()"),
    "community": (lambda: algorithm(noise, merge=Community()), "Use merge=Mean()"),
    "mix": (lambda: algorithm(noise, protocol=Stream(), merge=Mix()), "Use merge=Mean()"),
    "relay": (lambda: replace(radfed(), weighting=Equally(), privacy=noise), "Use Rounds(...) or Stream(...)"),
    "losses": (lambda: algorithm(noise, selection=ByLoss(4)), "chooses by what learners report"),
    "split search": (
        lambda: replace(divide_and_conquer(prepass=2), weighting=Equally(), privacy=noise),
        "DivideAndConquer goes with a given split",
    ),
    "classes": (lambda: algorithm(noise, merge=MeanByClass()), "MeanByClass() computes none. Use merge=Mean()"),
    "first answers": (
        lambda: algorithm(noise, protocol=Rounds(0.5, extra=0.5), selection=Poisson()),
        "its update also displaces another one. Leave extra out, or draw a fixed number with selection=Uniform()",
    ),
    "as long as data call for": (
        lambda: replace(algorithm(noise, protocol=Stream(3)), planners=(ValidationCycle(),)),
        "Leave it out, or use rounds that wait for all",
    ),
    "a cycle and a deadline": (
        lambda: algorithm(noise, protocol=Rounds(deadline=9.0), plan=Plan(cycle=Cycle())),
        "Leave it out, or use rounds that wait for all",
    ),
    "plateau": (lambda: replace(algorithm(noise), planners=(Plateau(),)), "plans by single updates or losses"),
    "poisson stream": (lambda: algorithm(noise, protocol=Stream(3), selection=Poisson()), "Use Rounds(fraction)"),
    "epsilon without noise": (
        lambda: Release(algorithm(CentralNoise(epsilon=1.0), protocol=Stream(3), weighting=ByFreshness())),
        "it is unknown how often a learner will contribute. Give noise=... beside epsilon=1",
    ),
    "epsilon for ever": (
        lambda: Release(algorithm(CentralNoise(epsilon=1.0)), ending=Ending(seconds=9)),
        "give Ending(rounds=...) or Ending(commits=...)",
    ),
    "too many rounds": (
        lambda: Release(algorithm(CentralNoise(epsilon=2.0, noise=10.0)), ending=Ending(rounds=1000)),
        "epsilon=2 with noise=10 pays for 25 rounds, and the ending asks for 1000",
    ),
    "not even one": (
        lambda: Release(algorithm(noise), ending=Ending(epsilon=0.1)),
        "costs epsilon 4.38 for a single commit, and the budget is 0.1",
    ),
    "no key": (lambda: Release(algorithm(noise), key=""), "the engine gave the controller no secret key"),
    "not a part": (
        lambda: replace(fedavg(), privacy="strong"),  # type: ignore[arg-type]
        "privacy should be, for example, CentralNoise",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_in_one_sentence(case: str) -> None:
    attempt, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attempt()


def test_the_table_of_the_docs_says_what_is_refused() -> None:
    check_table(noise, weighting=True)


def test_an_ending_by_epsilon_needs_noise(islands: Any) -> None:
    with pytest.raises(ValueError, match=r"fedavg adds no noise, so there is no epsilon. Give it privacy=CentralNoise"):
        simulate(fedavg(), islands, ending=Ending(epsilon=1.0))


def test_a_delta_that_may_reveal_somebody_is_warned_of() -> None:
    with pytest.warns(ArchipelWarning, match=r"delta 0.1 is more than 1 / 50 learners.*usual choice is below 0.01"):
        Release(algorithm(CentralNoise(noise=1.0, delta=0.1)), learners=50)


def test_running_statistics_are_refused(islands: Any) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with pytest.raises(
        ValueError, match=r"holds running statistics, which noise would make useless\. Use group normalisation"
    ):
        simulate(small(), islands, model=network)

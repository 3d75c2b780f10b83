"""A secure sum equals the plain sum, also when learners drop out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel import simulate
from archipel.algorithms import divide_and_conquer, fedadam, fedavg, fedbuff, hdafl, radfed, rce, scaffold, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import Community, Ending, Krum, Median, SecureSum
from archipel.data import digits
from archipel.privacy.secure_sum.graph import EVERYBODY, degree
from archipel.privacy.secure_sum.quantiser import BeyondRange, Quantiser
from archipel.privacy.secure_sum.rehearsal import rehearse
from archipel.simulation.fleet import Fleet, Group
from tests.privacy.documented import DOCS, check_table, mechanism_rows

# ---------------------------------------------------------------------------------------------------------- the sum


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(3, 9),
    size=st.integers(1, 40),
    bits=st.sampled_from([32, 64]),
    data=st.data(),
)
def test_the_sum_is_the_sum_of_who_sent_within_the_stated_error(
    seed: int, count: int, size: int, bits: Any, data: st.DataObject
) -> None:
    names = [f"site-{k}" for k in range(count)]
    senders = data.draw(st.integers(math.ceil(0.75 * count), count))
    draws = np.random.default_rng(seed)
    changes = {name: draws.normal(size=size) / math.sqrt(size) for name in names[:senders]}
    weights = {name: int(draws.integers(1, 50)) for name in changes}
    quantiser = Quantiser(100.0, bits, 50 * count)
    numbers = {name: quantiser.encode(change, weights[name]) for name, change in changes.items()}
    found, weight = quantiser.decode(rehearse(names, "round 1", numbers, least=3, threshold=0.75), senders)
    assert weight == sum(weights.values())
    plain = sum(weights[name] * change for name, change in changes.items())
    assert np.abs(found - plain).max() <= quantiser.error(senders) * (1 + 1e-6)


def test_no_cohort_of_largest_updates_wraps_around() -> None:
    for bits in (32, 64):
        quantiser = Quantiser(3.0, bits, 1000 * 20)
        whole = sum(quantiser.encode(np.array([1e9, 0.0]), 1000) for _ in range(20))
        found, weight = quantiser.decode(np.asarray(whole), 20)
        assert weight == 20_000
        assert found[0] == pytest.approx(3.0 * 20_000, rel=1e-3), "clipped to 3, and not wrapped"


@pytest.mark.parametrize("bits", [32, 64])
def test_the_largest_numbers_are_rounded_to_half_a_step_too(bits: Any) -> None:
    """Compared with fractions: with 64 bits the steps were finer than float64."""
    quantiser, weight = Quantiser(10.0, bits, 1000 * 100), 1000
    change = np.random.default_rng(0).uniform(-1, 1, 50)
    whole = quantiser.encode(change, weight)[:-1].view(f"<i{bits // 8}")
    step = Fraction(quantiser.step)
    worst = max(abs(int(one) - weight * Fraction(x) / step) for one, x in zip(whole, change, strict=True))
    assert float(worst * step) <= quantiser.error(1)
    assert quantiser.error(1) < 0.51 * quantiser.step


@pytest.mark.slow
def test_a_large_cohort_has_few_neighbours_and_the_same_sum() -> None:
    count = EVERYBODY + 16
    names = [f"site-{k}" for k in range(count)]
    draws = np.random.default_rng(0)
    numbers = {name: draws.integers(0, 2**32, 5).astype("<u4") for name in names[:-6]}
    found = rehearse(names, "round 1", numbers, least=3, threshold=0.75)
    assert found.tolist() == (np.sum([number.astype(object) for number in numbers.values()], axis=0) % 2**32).tolist()
    assert degree(count, 0.75) < count - 1


BEYOND: dict[str, tuple[list[float], int, str]] = {
    "a long update": ([9.0, 0.0], 3, "the sum of 2 updates has the norm 9, and with a clip of 1 it is at most 3"),
    "a weight of nobody": ([0.5, 0.0], 1, "the weights of 2 learners add up to 1, which should be 2 to 40"),
    "a weight beyond the cap": ([0.5, 0.0], 41, "the weights of 2 learners add up to 41"),
}


@pytest.mark.parametrize("case", BEYOND)
def test_a_sum_that_honest_learners_cannot_have_sent_is_refused(case: str) -> None:
    change, weight, sentence = BEYOND[case]
    quantiser = Quantiser(1.0, 32, 40)
    steps = np.rint(np.array(change) / quantiser.step).astype(np.int64)
    with pytest.raises(BeyondRange, match=re.escape(sentence)):
        quantiser.decode(np.append(steps, weight).astype("<u4"), 2)


# ----------------------------------------------------------------------------------------------------- in simulation


@pytest.fixture(scope="module")
def islands() -> Any:
    return digits().split(learners=6, seed=3, sizes="skewed")


def sums(method: Algorithm, **settings_: Any) -> Algorithm:
    return replace(method, privacy=SecureSum(**settings_))


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedavg(), fedavg(equally=True), hdafl(1.0), fedadam()], ids=lambda one: one.name)
def test_a_simulation_makes_the_versions_of_the_plain_method_within_rounding(method: Algorithm, islands: Any) -> None:
    ending = Ending(rounds=3)
    plain, secure = (simulate(one, islands, ending=ending) for one in (method, sums(method, bits=64)))
    assert np.abs((plain.model - secure.model).numpy()).max() < 1e-5
    assert [commit.learners for _, commit in plain.commits] == [commit.learners for _, commit in secure.commits]


@pytest.mark.slow
def test_learners_drop_out_and_rounds_below_the_threshold_make_no_version(islands: Any) -> None:
    fleet = Fleet(Group("fast", 6, drop_rate=0.25))
    run = simulate(sums(fedavg()), islands, fleet=fleet, ending=Ending(rounds=12))
    sizes = {len(commit.learners) for _, commit in run.commits}
    assert 5 in sizes, "somebody dropped out, and there was a sum"
    assert min(sizes) >= 5
    reasons = {refused.reason for _, refused in run.refusals}
    assert any("of 6 learners have sent, and a secure sum needs 5" in reason for reason in reasons)


SECURE = SecureSum()
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "threshold": (
        lambda: SecureSum(threshold=0.5),
        "above 2/3 and at most 1, such as 0.75, got 0.5",
    ),
    "a whole share": (
        lambda: SecureSum(threshold=2),
        "above 2/3 and at most 1, such as 0.75, got 2",
    ),
    "broken bits": (lambda: SecureSum(bits=cast("Any", 32.0)), "bits should be 32 or 64, got 32.0"),
    "a broken weight": (lambda: SecureSum(most_examples=cast("Any", 1.5)), "should be a whole number, got 1.5"),
    "clip": (lambda: SecureSum(clip=-1.0), "clip should be more than 0, got -1.0"),
    "bits": (lambda: SecureSum(bits=cast("Any", 16)), "bits should be 32 or 64, got 16"),
    "two learners": (lambda: SecureSum(at_least=2), "of two learners each would know the other's update"),
    "dvw": (lambda: sums(sync_dvw()), "SecureSum hides single models, and ByDistributedValidation"),
    "rce": (lambda: sums(rce()), "Use weighting=Equally() or ByExamples()"),
    "relay": (lambda: sums(radfed()), "has none. Use Rounds(...)"),
    "stream": (lambda: sums(fedbuff()), "weighs by them or by their time"),
    "median": (lambda: sums(replace(fedavg(equally=True), merge=Median())), "Median() needs single models"),
    "krum": (lambda: sums(replace(fedavg(), merge=Krum())), "needs single models. Use merge=Mean()"),
    "community": (lambda: sums(replace(fedavg(), merge=Community())), "needs single models"),
    "split search": (lambda: sums(divide_and_conquer(prepass=2)), "goes with a given split"),
    "scaffold": (lambda: sums(scaffold()), "plans by them"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_in_one_sentence(case: str) -> None:
    attempt, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attempt()


def test_the_table_of_the_docs_says_what_is_refused() -> None:
    check_table(SECURE, weighting=False)


def test_the_table_of_every_method_with_every_mechanism_is_as_they_refuse_each_other() -> None:
    """`python -m tests.privacy.documented` writes it."""
    page = (DOCS / "explanation" / "privacy.md").read_text()
    assert "\n\n" + "\n".join(mechanism_rows()) + "\n\n" in page

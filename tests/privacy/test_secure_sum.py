"""A secure sum is the sum, whoever drops out; and nobody helps to open less than that."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from archipel import simulate
from archipel.algorithms import divide_and_conquer, fedadam, fedavg, fedbuff, hdafl, radfed, rce, scaffold, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import Community, Ending, Krum, Median, SecureSum
from archipel.data import digits
from archipel.privacy.secure_sum.graph import EVERYBODY, degree, neighbours
from archipel.privacy.secure_sum.masking_learner import MaskingLearner, share_threshold
from archipel.privacy.secure_sum.masks import Quantiser, expand
from archipel.privacy.secure_sum.rehearsal import rehearse
from archipel.privacy.secure_sum.shamir import combine, split
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import RevealRequest, RoundKeys, SecureSumRefused
from archipel.simulation.fleet import Fleet, Group
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.privacy.documented import check_table


def learner(name: str, **changes: Any) -> MaskingLearner:
    usual: dict[str, Any] = {"least": 3, "threshold": 0.75, "bits": 32, "sign": lambda text: text, "verify": signed}
    return MaskingLearner(name, "round 1", **(usual | changes))


def signed(name: str, statement: bytes, signature: bytes) -> bool:
    return statement == signature


def cohort(count: int, **changes: Any) -> tuple[dict[str, MaskingLearner], list[RoundKeys]]:
    learners = {f"site-{k}": learner(f"site-{k}", **changes) for k in range(count)}
    return learners, [one.advertise() for one in learners.values()]


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
    found, weight = quantiser.decode(rehearse(names, "round 1", numbers, threshold=0.75, bits=bits))
    assert weight == sum(weights.values())
    plain = sum(weights[name] * change for name, change in changes.items())
    assert np.abs(found - plain).max() <= quantiser.error(senders) * (1 + 1e-6)


def test_no_cohort_of_largest_updates_wraps_around() -> None:
    for bits in (32, 64):
        quantiser = Quantiser(3.0, bits, 1000 * 20)
        whole = sum(quantiser.encode(np.array([1e9, 0.0]), 1000) for _ in range(20))
        found, weight = quantiser.decode(np.asarray(whole))
        assert weight == 20_000
        assert found[0] == pytest.approx(3.0 * 20_000, rel=1e-3), "clipped to 3, and not wrapped"


@pytest.mark.slow
def test_a_large_cohort_has_few_neighbours_and_the_same_sum() -> None:
    count = EVERYBODY + 16
    names = [f"site-{k}" for k in range(count)]
    draws = np.random.default_rng(0)
    numbers = {name: draws.integers(0, 2**32, 5).astype("<u4") for name in names[:-6]}
    found = rehearse(names, "round 1", numbers, threshold=0.75, bits=32)
    assert found.tolist() == (np.sum([number.astype(object) for number in numbers.values()], axis=0) % 2**32).tolist()
    assert degree(count) < count - 1


def test_neighbours_are_mutual_and_follow_from_the_keys() -> None:
    keys = {f"site-{k}": bytes([k, 1]) for k in range(100)}
    found = neighbours(keys)
    assert {len(many) for many in found.values()} == {degree(100)}
    assert all(name in found[other] for name, many in found.items() for other in many)
    assert neighbours({**keys, "site-0": b"another"})["site-1"] != found["site-1"]


def test_masked_numbers_are_uniform() -> None:
    learners, keys = cohort(4)
    collector = SumCollector("round 1", size=20_000, threshold=0.75, bits=32)
    collector.cohort(keys)
    for one in learners.values():
        collector.take_shares(one.share(keys))
    masked = learners["site-0"].mask(collector.boxes_for("site-0"), np.zeros(20_000, dtype="<u4"))
    counts, _ = np.histogram(masked.numbers, bins=64, range=(0, 2**32))
    assert stats.chisquare(counts).pvalue > 1e-9  # keys are real, so this may be small by chance, and never this small


# ----------------------------------------------------------------------------------------------------------- shares


@settings(max_examples=25, deadline=None)
@given(secret=st.binary(min_size=32, max_size=32), holders=st.integers(1, 12), data=st.data())
def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not(
    secret: bytes, holders: int, data: st.DataObject
) -> None:
    needed = data.draw(st.integers(1, holders))
    shares = split(secret, range(1, holders + 1), needed)
    some = data.draw(st.permutations(sorted(shares)))
    assert combine({holder: shares[holder] for holder in some[:needed]}) == secret
    if needed > 1:
        with suppress(ValueError):  # not even a secret
            assert combine({holder: shares[holder] for holder in some[: needed - 1]}) != secret


@pytest.mark.parametrize("neighbours_", [2, 3, 9, 63, 100])
def test_holders_that_give_one_secret_each_cannot_open_both(neighbours_: int) -> None:
    holders, needed = neighbours_ + 1, share_threshold(neighbours_)
    colluding = holders // 3  # give both
    assert holders + colluding < 2 * needed


def test_masks_of_two_learners_cancel() -> None:
    assert expand(bytes(32), 5, 32).tolist() == expand(bytes(32), 5, 32).tolist()
    assert expand(bytes(32), 5, 64).dtype == np.dtype("<u8")


# ---------------------------------------------------------------------------------------------- what a learner refuses


def forged(keys: list[RoundKeys]) -> list[RoundKeys]:
    return [replace(keys[0], masking=bytes(32), signature=b"none"), *keys[1:]]


COHORTS: dict[str, tuple[Callable[[list[RoundKeys]], list[RoundKeys]], str]] = {
    "too small": (lambda keys: keys[2:], "site-3: a cohort of 2 is smaller than 3"),
    "without a signature": (forged, "the keys of site-0 have no valid signature"),
    "twice": (lambda keys: [*keys, keys[0]], "a learner or a key is in the cohort twice"),
    "without itself": (lambda keys: keys[:3], "its own keys are not in the cohort as it has sent them"),
}


@pytest.mark.parametrize("case", COHORTS)
def test_a_learner_refuses_a_cohort(case: str) -> None:
    change, sentence = COHORTS[case]
    learners, keys = cohort(4)
    with pytest.raises(SecureSumRefused, match=re.escape(sentence)):
        learners["site-3"].share(change(keys))


def masked_round(count: int = 4) -> tuple[dict[str, MaskingLearner], SumCollector]:
    """Everybody has shared, and all but the last have sent."""
    learners, keys = cohort(count)
    collector = SumCollector("round 1", size=2, threshold=0.75, bits=32)
    collector.cohort(keys)
    for one in learners.values():
        collector.take_shares(one.share(keys))
    for name in [*learners][:-1]:
        collector.take_numbers(learners[name].mask(collector.boxes_for(name), np.zeros(2, dtype="<u4")))
    return learners, collector


def everybody(*names: str) -> frozenset[str]:
    return frozenset(f"site-{name}" for name in names)


REQUESTS: dict[str, tuple[RevealRequest, str]] = {
    "both secrets": (
        RevealRequest(everybody("0", "1", "2"), everybody("2", "3")),
        "asked for both secrets of site-2, which would open its update",
    ),
    "too few": (
        RevealRequest(everybody("0", "1"), everybody("2", "3")),
        "the sum would be of 2 learners, and a cohort of 4 needs 3",
    ),
    "invented ones": (RevealRequest(everybody("0", "x", "y"), everybody()), "and a cohort of 4 needs 3"),
    "itself": (RevealRequest(everybody("1", "2", "3"), everybody("0")), "is said to have dropped out"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_learner_refuses_to_reveal(case: str) -> None:
    request, sentence = REQUESTS[case]
    learners, _ = masked_round()
    with pytest.raises(SecureSumRefused, match=re.escape(sentence)):
        learners["site-0"].reveal(request)
    with pytest.raises(SecureSumRefused, match="asked to reveal in round round 1, and it is at 'over'"):
        learners["site-0"].reveal(RevealRequest(everybody("0", "1", "2"), everybody("3")))


def test_a_learner_reveals_once_and_one_secret_of_each() -> None:
    learners, collector = masked_round()
    given_ = learners["site-0"].reveal(collector.request())
    assert given_.seeds.keys() == everybody("0", "1", "2")
    assert given_.keys.keys() == everybody("3")
    with pytest.raises(SecureSumRefused, match="it is at 'over'"):
        learners["site-0"].reveal(collector.request())


def test_a_box_that_was_changed_or_comes_from_a_stranger_is_refused() -> None:
    learners, keys = cohort(4)
    boxes = {one.name: one.share(keys).boxes for one in learners.values()}
    mine = {name: boxes[name]["site-0"] for name in boxes if name != "site-0"}
    with pytest.raises(SecureSumRefused, match="the box from site-1 was changed on its way"):
        learners["site-0"].mask({**mine, "site-1": mine["site-2"]}, np.zeros(2, dtype="<u4"))
    theirs = {name: boxes[name]["site-1"] for name in boxes if name != "site-1"}
    with pytest.raises(SecureSumRefused, match="a box came from site-9, which is no neighbour"):
        learners["site-1"].mask({**theirs, "site-9": b""}, np.zeros(2, dtype="<u4"))
    few = {"site-0": boxes["site-0"]["site-2"]}
    with pytest.raises(SecureSumRefused, match="1 of 3 neighbours go on, and 2 are needed"):
        learners["site-2"].mask(few, np.zeros(2, dtype="<u4"))


def test_the_controller_opens_no_sum_of_too_few() -> None:
    learners, collector = masked_round()
    one = learners["site-0"].reveal(collector.request())
    with pytest.raises(SecureSumRefused, match="1 shares of site-0's secret have come, and 3 are needed"):
        collector.total([one])
    small = SumCollector("round 1", size=2, threshold=0.75, bits=32)
    small.cohort(cohort(4)[1])
    with pytest.raises(SecureSumRefused, match="0 of 4 learners have sent numbers, 3 are needed"):
        small.request()


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
    "threshold": (lambda: SecureSum(threshold=0.5), "threshold should be above 2/3 and at most 1, got 0.5"),
    "clip": (lambda: SecureSum(clip=-1.0), "clip should be more than 0, got -1.0"),
    "bits": (lambda: SecureSum(bits=16), "bits should be 32 or 64, got 16"),  # type: ignore[arg-type]
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
    "federation": (
        lambda: host(
            study_of(
                {
                    "algorithms": [{"name": "fedavg", "privacy": "SecureSum()"}],
                    "data": {"source": "digits", "split": {"learners": 3}},
                }
            )
        ),
        "SecureSum works in simulation; a federation cannot exchange its keys and shares yet",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_in_one_sentence(case: str) -> None:
    attempt, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attempt()


def test_the_table_of_the_docs_says_what_is_refused() -> None:
    check_table(SECURE, weighting=False)

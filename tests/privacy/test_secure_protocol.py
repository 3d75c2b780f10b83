"""What learners and the controller of a secure sum refuse, and what shares give."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from archipel.privacy.secure_sum.graph import Ring, colluding, degree, share_threshold
from archipel.privacy.secure_sum.masks import expand
from archipel.privacy.secure_sum.shamir import WrongShares, combine, recover, split
from archipel.privacy.secure_sum.sum_messages import Cohort, RevealedShares, SecureSumRefused, WrongSecret
from tests.privacy.documented import PAGE, neighbour_rows
from tests.privacy.masking import MaskedRound, learner

# ---------------------------------------------------------------------------------------------------- masks and shares


def test_masked_numbers_are_uniform() -> None:
    round_ = MaskedRound(4).until("mask")
    one = round_.learners["site-0"]
    one.mask(round_.collector.boxes_for("site-0"))
    counts, _ = np.histogram(one.masked(np.zeros(20_000, dtype="<u4")), bins=64, range=(0, 2**32))
    assert stats.chisquare(counts).pvalue > 1e-9  # keys are real, so this may be small by chance, and never this small


def test_masks_are_of_any_length() -> None:
    long = expand(bytes(32), 200_000, 32)
    assert expand(bytes(32), 5, 32).tolist() == long[:5].tolist(), "computed block by block"
    assert expand(bytes(32), 0, 32).size == 0
    assert expand(bytes(32), 5, 64).dtype == np.dtype("<u8")


def test_neighbours_are_mutual_and_follow_from_the_keys() -> None:
    keys = {f"site-{k}": bytes([k, 1]) for k in range(100)}
    ring = Ring.of(keys, 0.75)
    found = {name: ring.neighbours(name) for name in keys}
    assert {len(many) for many in found.values()} == {degree(100, 0.75)}
    assert all(name in found[other] for name, many in found.items() for other in many)
    assert Ring.of({**keys, "site-0": b"another"}, 0.75).neighbours("site-1") != found["site-1"]


SECRETS = st.binary(min_size=32, max_size=32)


@settings(max_examples=25, deadline=None)
@given(secret=SECRETS, holders=st.integers(1, 12), data=st.data())
def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not(
    secret: bytes, holders: int, data: st.DataObject
) -> None:
    needed = data.draw(st.integers(1, holders))
    shares = split(secret, range(1, holders + 1), needed, np.random.default_rng(holders).bytes)
    some = data.draw(st.permutations(sorted(shares)))
    assert combine({holder: shares[holder] for holder in some[:needed]}) == secret
    if needed > 1:
        with suppress(WrongShares):  # not even a secret
            assert combine({holder: shares[holder] for holder in some[: needed - 1]}) != secret


@settings(max_examples=25, deadline=None)
@given(secret=SECRETS, needed=st.integers(1, 8), more=st.integers(0, 6), data=st.data())
def test_wrong_shares_are_found_as_long_as_there_are_two_more_for_each(
    secret: bytes, needed: int, more: int, data: st.DataObject
) -> None:
    shares = split(secret, range(1, needed + more + 1), needed, np.random.default_rng(needed).bytes)
    liars = data.draw(st.sets(st.sampled_from(sorted(shares)), max_size=more // 2))
    told = {holder: bytes(33) if holder in liars else share for holder, share in shares.items()}
    found, wrong = recover(told, needed, lambda one: one == secret)
    assert found == secret
    assert wrong <= liars
    assert wrong or not liars & set(sorted(shares)[:needed]), "whose shares were used, and wrong"


@pytest.mark.parametrize(("holders", "needed"), [(4, 3), (6, 5), (12, 9)])
def test_one_more_share_shows_a_wrong_one_among_few(holders: int, needed: int) -> None:
    """With four learners three of four shares are needed, so there are never two more."""
    shares = split(bytes(range(32)), range(1, holders + 1), needed, np.random.default_rng(0).bytes)
    for liar in shares:
        found = recover({**shares, liar: bytes(33)}, needed, lambda one: one == bytes(range(32)))
        assert found[0] == bytes(range(32))
        assert found[1] <= {liar}
        assert found[1] or liar > needed, "only shares that were not needed go unseen"


def test_too_many_wrong_shares_are_no_secret() -> None:
    shares = split(bytes(32), range(1, 6), 3, np.random.default_rng(0).bytes)
    with pytest.raises(WrongShares, match="5 shares are not of one secret of 3"):
        recover({**shares, **dict.fromkeys((1, 2, 3), bytes([7, *bytes(32)]))}, 3, lambda one: one == bytes(32))


@pytest.mark.parametrize("neighbours", [2, 3, 9, 63, 100])
@pytest.mark.parametrize("threshold", [0.667, 0.75, 1.0])
def test_holders_that_give_one_secret_each_cannot_open_both(neighbours: int, threshold: float) -> None:
    holders, needed = neighbours + 1, share_threshold(neighbours, threshold)
    colluders = colluding(neighbours, threshold)  # they give both
    assert colluders >= neighbours // 3
    assert holders - (needed - colluders) < needed, "who is bound not to give the key leaves too few that may"


# ---------------------------------------------------------------------------------------------- what a learner refuses


def forged(cohort: Cohort) -> Cohort:
    keys = {**cohort.keys, "site-0": replace(cohort.keys["site-0"], masking=bytes(32))}
    return Cohort({**cohort.digests, "site-0": keys["site-0"].digest}, keys)


def without(cohort: Cohort, *names: str, digests: bool = True, keys: bool = True) -> Cohort:
    return Cohort(
        {name: one for name, one in cohort.digests.items() if not (digests and name in names)},
        {name: one for name, one in cohort.keys.items() if not (keys and name in names)},
    )


COHORTS: dict[str, tuple[Callable[[Cohort], Cohort], str]] = {
    "too small": (lambda told: without(told, "site-0", "site-1"), "site-3: a cohort of 2 is smaller than 3"),
    "without a signature": (forged, "the keys of site-0 have no valid signature: it is forged"),
    "without itself": (
        lambda told: without(told, "site-3"),
        "the cohort lacks its own keys, or has others than it sent",
    ),
    "without a neighbour's keys": (
        lambda told: without(told, "site-1", digests=False),
        "3 keys came, and not that of its neighbour site-1",
    ),
    "with other keys than those of the cohort": (
        lambda told: Cohort({**told.digests, "site-1": bytes(32)}, told.keys),
        "the keys of site-1 are not those of the cohort",
    ),
}


@pytest.mark.parametrize("case", COHORTS)
def test_a_learner_refuses_a_cohort(case: str) -> None:
    change, sentence = COHORTS[case]
    round_ = MaskedRound(4).until("share")
    with pytest.raises(SecureSumRefused, match=re.escape(sentence)):
        round_.learners["site-3"].share(change(round_.collector.cohort_for("site-3")))


def test_of_a_large_cohort_so_many_keys_are_seen_as_it_has_to_have() -> None:
    round_ = MaskedRound(70, terms={"least": 68}).until("share")
    told = round_.collector.cohort_for("site-3")
    assert len(told.keys) == 68 > degree(70, 0.75) + 1
    few = without(told, *set(told.keys) - {"site-3", *Ring.of(told.digests, 0.75).neighbours("site-3")}, digests=False)
    with pytest.raises(SecureSumRefused, match="the keys of 29 learners came, and 67 others are needed"):
        round_.learners["site-3"].share(few)


def test_a_learner_reveals_once_and_one_secret_of_each() -> None:
    round_ = MaskedRound(4, absent=("site-3",)).until("reveal")
    tags = round_.collector.tags_for("site-0")
    given_ = round_.learners["site-0"].reveal(tags)
    assert (set(given_.seeds), set(given_.keys)) == ({"site-0", "site-1", "site-2"}, {"site-3"})
    with pytest.raises(SecureSumRefused, match="asked to reveal in round round 1, and it is at 'over'"):
        round_.learners["site-0"].reveal(tags)


def test_a_learner_gives_no_shares_unless_its_neighbours_have_confirmed_it() -> None:
    round_ = MaskedRound(4).until("reveal")
    tags = round_.collector.tags_for("site-0")
    forged_ = {**tags, "site-1": bytes(32), "site-2": tags["site-1"]}
    with pytest.raises(SecureSumRefused, match="1 of 3 neighbours have confirmed that it has sent numbers, and 2 are"):
        round_.learners["site-0"].reveal(forged_)


def test_a_learner_confirms_only_what_it_was_shown() -> None:
    round_ = MaskedRound(4).until("confirm")
    tags = round_.collector.tags_for("site-0")
    with pytest.raises(SecureSumRefused, match="1 of 3 neighbours have sent numbers, and 2 are needed"):
        round_.learners["site-0"].confirm({"site-1": tags["site-1"], "site-2": bytes(32)})
    assert set(round_.learners["site-1"].confirm({**round_.collector.tags_for("site-1"), "site-9": b""})) == {
        "site-0",
        "site-2",
        "site-3",
    }


def test_a_box_that_was_changed_or_comes_from_a_stranger_is_refused() -> None:
    round_ = MaskedRound(4).until("mask")
    learners, boxes = round_.learners, round_.collector.boxes_for
    with pytest.raises(SecureSumRefused, match="the box from site-1 was altered in transit"):
        learners["site-0"].mask({**boxes("site-0"), "site-1": boxes("site-0")["site-2"]})
    with pytest.raises(SecureSumRefused, match="a box came from site-9, which is not a neighbour"):
        learners["site-1"].mask({**boxes("site-1"), "site-9": b""})
    with pytest.raises(SecureSumRefused, match="1 of 3 neighbours go on, and 2 are needed"):
        learners["site-2"].mask({"site-0": boxes("site-2")["site-0"]})


def test_told_the_same_again_a_learner_gives_the_same_answers() -> None:
    round_ = MaskedRound(4)
    round_.learners["site-0"], again = learner("site-0", bytes(32)), learner("site-0", bytes(32))
    assert again.advertise() == round_.until("share").collector.cohort_for("site-0").keys["site-0"]
    sealed = again.share(round_.collector.cohort_for("site-0"))
    assert sealed["site-1"] == round_.until("mask").collector.boxes_for("site-1")["site-0"]
    tags = again.mask(round_.collector.boxes_for("site-0"))
    assert tags["site-1"] == round_.until("confirm").collector.tags_for("site-1")["site-0"]
    numbers = np.arange(2, dtype="<u4")
    assert again.masked(numbers).tolist() == round_.learners["site-0"].masked(numbers).tolist()
    tags = again.confirm(round_.collector.tags_for("site-0"))
    assert tags["site-1"] == round_.until("reveal").collector.tags_for("site-1")["site-0"]
    told = round_.collector.tags_for("site-0")
    assert again.reveal(told) == round_.learners["site-0"].reveal(told)


# ------------------------------------------------------------------------------------------ what the controller refuses


def test_the_controller_opens_no_sum_of_too_few() -> None:
    round_ = MaskedRound(4).until("reveal")
    round_.step("site-0")
    with pytest.raises(SecureSumRefused, match="1 learners have revealed shares, too few to open the sum"):
        round_.collector.close()
    few = MaskedRound(4, absent=("site-0", "site-1"))
    with pytest.raises(SecureSumRefused, match="2 of 4 learners have sent numbers, 3 are needed"):
        few.until("confirm")


def test_the_controller_names_who_gave_wrong_shares() -> None:
    round_ = MaskedRound(12, absent=("site-8",), terms={"threshold": 0.667}).until("reveal")
    liar = round_.learners["site-1"].reveal(round_.collector.tags_for("site-1"))
    lies = RevealedShares(dict.fromkeys(liar.seeds, bytes(33)), liar.keys)
    round_.collector.take_shares("site-1", lies)
    for name in sorted(round_.collector.waiting):
        round_.step(name)
    round_.collector.close()
    assert round_.total is not None
    total, wrong = round_.collector.unmask(round_.total)
    assert wrong == {"site-1"}
    assert not total.any()


def test_whoever_is_first_with_wrong_shares_does_not_end_the_round() -> None:
    round_ = MaskedRound(4).until("reveal")
    liar = round_.learners["site-1"].reveal(round_.collector.tags_for("site-1"))
    round_.collector.take_shares("site-1", RevealedShares(dict.fromkeys(liar.seeds, bytes(33)), liar.keys))
    for name in ("site-0", "site-2"):
        round_.step(name)
    assert round_.collector.complete, "there are as many shares as are needed"
    recovered = [round_.collector.recovered]
    round_.step("site-3")
    assert [*recovered, round_.collector.recovered] == [False, True]
    round_.collector.close()
    assert round_.total is not None
    total, wrong = round_.collector.unmask(round_.total)
    assert wrong == {"site-1"}
    assert not total.any()


def test_who_shares_another_secret_than_its_own_is_named() -> None:
    round_ = MaskedRound(4)
    liar = round_.until("share").learners["site-2"]
    liar._seed = bytes(32)  # it has told the hash of another one
    round_.until("reveal")
    for name in sorted(round_.collector.waiting):
        round_.step(name)
    round_.collector.close()
    assert round_.total is not None
    with pytest.raises(WrongSecret, match="the shares of site-2's secret cannot be combined") as refused:
        round_.collector.unmask(round_.total)
    assert refused.value.learner == "site-2"


INVALID: dict[str, tuple[Callable[[MaskedRound], object], str]] = {
    "keys of another length": (
        lambda one: one.collector.take_keys(replace(one.learners["site-0"].advertise(), masking=b"short")),
        "site-0 sent keys that are not of 32 bytes",
    ),
    "keys that are none": (
        lambda one: one.collector.take_keys(replace(one.learners["site-0"].advertise(), masking=bytes(32))),
        "site-0 sent keys that are not X25519 keys",
    ),
    "a forged signature": (
        lambda one: one.collector.take_keys(replace(one.learners["site-0"].advertise(), signature=b"")),
        "the keys of site-0 have no valid signature: it is forged",
    ),
    "out of turn": (lambda one: one.collector.take_boxes("site-0", {}), "site-0 is not asked to share now"),
    "too few boxes": (
        lambda one: one.until("share").collector.take_boxes("site-0", {}),
        "has not sealed a box of 82 bytes for each of its neighbours",
    ),
    "tags for strangers": (
        lambda one: one.until("confirm").collector.take_confirmed("site-0", {"site-9": bytes(32)}),
        "has not sent a tag of 32 bytes for each of its neighbours",
    ),
    "shares of strangers": (
        lambda one: one.until("reveal").collector.take_shares("site-0", RevealedShares({"site-9": bytes(33)}, {})),
        "has revealed something else than shares of its neighbours' secrets",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_the_controller_refuses_what_is_no_answer(case: str) -> None:
    attempt, sentence = INVALID[case]
    with pytest.raises(SecureSumRefused, match=re.escape(sentence)):
        attempt(MaskedRound(4))


@pytest.mark.slow
def test_the_table_of_the_docs_follows_from_the_graph() -> None:
    page = PAGE.with_name("secure-sums.md").read_text()
    assert [row for row in neighbour_rows() if row not in page] == []

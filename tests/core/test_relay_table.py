"""Relays: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    ByDistributedValidation,
)
from archipel.core.records import Committed
from archipel.core.types import (
    Metrics,
)
from tests.core.hand import (
    Hand,
    evaluated,
    failed,
    joined,
    left,
    scored,
    trained,
)
from tests.core.table_hands import relay


def four(algorithm: Algorithm, *expected: str) -> Hand:
    return Hand(algorithm, learners=4).play(
        (joined("a", 1),), (joined("b", 2),), (joined("c", 4),), (joined("d", 8), *expected)
    )


def test_models_travel_and_examples_and_steps_add_up_along_their_paths() -> None:
    hand = four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (trained(1, 2.0, steps=3),),
        (trained(0, 1.0, steps=5), "train 2 c t0", "train 3 d t1"),
        (trained(2, 3.0, steps=7),),
        (trained(3, 6.0, steps=11), "v1 <- 2 3", "train 4 a v1", "train 5 b v1"),
    )
    commit = hand.last(Committed)
    assert commit.paths == (("a", "c"), ("b", "d"))
    assert commit.weights == ((5.0, 5.0), (10.0, 10.0))  # 1 + 4 and 2 + 8 examples
    assert commit.stale_steps == (5 + 7, 3 + 11)
    assert hand.value == 5.0  # (5 x 3 + 10 x 6) / 15
    assert (hand.state.committed, hand.state.rounds) == (26, 2), "each hop is a local round"


def test_a_slot_goes_to_the_learner_in_its_place() -> None:
    four(relay("ba", "ab", hops=3), "train 0 b v0", "train 1 a v0").play(
        (trained(0),),
        (trained(1), "train 2 a t0", "train 3 b t1"),
    )


def test_a_lost_hop_keeps_the_slots_model() -> None:
    hand = four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (trained(0, 1.0),),
        (trained(1, 2.0), "train 2 c t0", "train 3 d t1"),
        (trained(3, 6.0),),
        (failed(2), "refused 2 lost", "v1 <- 0 3", "train 4 a v1", "train 5 b v1"),
    )
    assert hand.last(Committed).paths == (("a",), ("b", "d"))
    assert hand.last(Committed).weights == ((1.0, 1.0), (10.0, 10.0))


def test_a_slot_whose_first_hop_was_lost_sets_out_again() -> None:
    four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (failed(0), "refused 0 lost"),
        (trained(1), "train 2 c v0", "train 3 d t1"),
        (failed(2), "refused 2 lost"),
        (failed(3), "refused 3 lost", "v1 <- 1", "train 4 a v1", "train 5 b v1"),
    )


def test_a_relay_in_which_all_hops_are_lost_passes_without_a_version() -> None:
    hand = four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (failed(0), "refused 0 lost"),
        (failed(1), "refused 1 lost", "train 2 c v0", "train 3 d v0"),
        (failed(2), "refused 2 lost"),
        (failed(3), "refused 3 lost", "train 4 a v0", "train 5 b v0"),
    )
    assert (hand.state.version, hand.state.rounds) == (0, 2)


def test_where_too_few_are_there_the_slots_that_have_travelled_most_rest() -> None:
    hand = four(relay("ab", "c", "d", "abcd", hops=3), "train 0 a v0", "train 1 b v0").play(
        (failed(1), "refused 1 lost"),
        (trained(0), "train 2 c v0"),  # slot 1 has not travelled yet
        (trained(2), "train 3 d t0"),  # both have made one hop: slot 0 goes
        (trained(3), "v1 <- 3 2", "train 4 a v1", "train 5 b v1"),
    )
    assert hand.last(Committed).paths == (("a", "d"), ("c",))


def test_a_relay_waits_while_nobody_is_there() -> None:
    hand = Hand(relay("a", "ab", "b", fraction=1.0), learners=1).play(
        (joined("a"), "train 0 a v0"),
        (left("a"),),
        (failed(0, "left"), "refused 0 left"),
        (joined("b"), "train 1 b v0"),
        (trained(1, 2.0), "v1 <- 1", "train 2 b v1"),
    )
    assert hand.value == 2.0


def test_opinions_on_models_that_travelled() -> None:
    algorithm = replace(relay("ab", "ba", "ab", fraction=1.0), weighting=ByDistributedValidation())
    hand = Hand(algorithm, learners=2).play(
        (joined("a", validation=5),),
        (joined("b", validation=5), "train 0 a v0", "train 1 b v0"),
        (trained(0),),
        (trained(1), "train 2 b t0", "train 3 a t1"),
        (trained(2, 1.0, metrics=Metrics(validation=scored(1, 1))),),
        (trained(3, 3.0, metrics=Metrics(validation=scored(2, 0))), "ask 4 a t2", "ask 5 b t3"),
        (evaluated(5, (2, 0)),),
        (evaluated(4, (0, 2)), "v1 <- 2 3", "train 6 a v1", "train 7 b v1"),
    )
    assert hand.last(Committed).weights == ((0.25, 0.25), (1.0, 1.0))
    assert hand.value == pytest.approx(2.6)

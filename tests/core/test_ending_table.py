"""How runs end: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

import sys

import pytest

from archipel.algorithms import hdafl, local_only, sync_dvw
from archipel.core.parts import (
    Ending,
    Evaluation,
)
from archipel.core.records import Committed
from archipel.core.types import (
    Failed,
    Scored,
    Traffic,
)
from tests.core.hand import (
    Hand,
    Opinions,
    evaluated,
    failed,
    joined,
    trained,
    tried,
    woke,
)
from tests.core.table_hands import one_learner, relay, stream, three_under_dvw


def test_after_so_many_commits() -> None:
    hand = one_learner(Ending(commits=2)).play(
        (joined("a"), "train 0 a v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (trained(1), "v2 <- 1", "stop 2 commits made"),
        (joined("b"),),  # nothing follows any more
        (trained(1),),
    )
    assert hand.state.stopped == "2 commits made"


def test_after_so_many_local_rounds_with_or_without_versions() -> None:
    one_learner(Ending(rounds=2)).play(
        (joined("a"), "train 0 a v0"),
        (failed(0), "refused 0 lost", "train 1 a v0"),
        (trained(1), "v1 <- 1", "stop 2 local rounds made"),
    )


def test_whether_a_run_is_over_takes_no_look_at_the_methods_of_a_memory() -> None:
    """It is asked after every decision; `isinstance` of a structural type lists all methods each time."""
    hand = one_learner(Ending(commits=9)).play((joined("a"), "train 0 a v0"))
    hand.state.memory["privacy"] = object()
    ending, state, called = hand.controller.ending, hand.state, list[str]()
    sys.setprofile(lambda frame, what, _: called.append(frame.f_code.co_name) if what == "call" else None)
    try:
        assert ending.reached(state) is None
    finally:
        sys.setprofile(None)
    assert called == ["reached"]


def wasteful() -> Hand:
    """A stream of two learners that has two local rounds to make, and one task left of them."""
    hand = Hand(stream(), learners=2, ending=Ending(rounds=2)).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (failed(0), "refused 0 lost", "train 2 a v0"),
        (trained(1), "v1 <- 1", "train 3 b v1"),
        (failed(2), "refused 2 lost", "train 4 a v1"),
    )
    assert hand.state.rounds == 1
    return hand


def test_tasks_that_bring_nothing_are_local_rounds_of_a_stream_too() -> None:
    hand = wasteful()
    hand.do(failed(3))
    assert hand.state.stopped == "2 local rounds made"


def test_no_task_is_assigned_while_the_run_is_ending() -> None:
    wasteful().play((failed(3), "refused 3 lost", "stop 2 local rounds made"))


def test_hops_are_local_rounds() -> None:
    one_learner(Ending(rounds=2), algorithm=relay("a", "a", fraction=1.0)).play(
        (joined("a"), "train 0 a v0"),
        (trained(0), "train 1 a t0"),
        (trained(1), "v1 <- 1", "stop 2 local rounds made"),
    )


def test_after_so_many_seconds() -> None:
    one_learner(Ending(seconds=60.0)).play(
        (joined("a"), "wake 60 time is up", "train 0 a v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (woke("time is up"), "stop time is up"),
        (trained(1),),
    )


def test_after_so_many_bytes_both_ways() -> None:
    moved = Traffic(100, 50)
    hand = one_learner(Ending(bytes=400)).play(
        (joined("a"), "train 0 a v0"),
        (trained(0, traffic=moved), "v1 <- 0", "train 1 a v1"),
        (failed(1, traffic=Traffic(100)), "refused 1 lost", "train 2 a v1"),
        (trained(2, traffic=moved), "v2 <- 2", "stop 400 bytes moved"),
    )
    assert hand.last(Committed).traffic == {
        "train down bytes": 300,
        "train down models": 3,
        "train up bytes": 100,
        "train up models": 2,
    }


def test_bytes_for_weighing_count_and_bytes_for_scoring_do_not() -> None:
    hand = Hand(sync_dvw(), learners=2, ending=Ending(bytes=30), evaluation=Evaluation(at="learners")).play(
        (joined("a", validation=5, test=5),),
        (joined("b"), "score a v0", "train 0 a v0", "train 1 b v0"),
        (tried("v0", traffic=Traffic(1000)), "scored v0"),
        (trained(0),),
        (trained(1, traffic=Traffic(10, 10)), "ask 2 a t1"),
        (evaluated(2, traffic=Traffic(10)), "refused 0 too", "v1 <- 1", "score a v1"),
        (tried("v1"), "scored v1", "stop 30 bytes moved"),
    )
    assert hand.state.traffic["score down bytes"] == 1000
    assert hand.state.traffic["evaluate down bytes"] == 10


@pytest.mark.parametrize(
    "answer",
    [evaluated(3, None, (1, 0), traffic=Traffic(72, 0, 2)), failed(3, traffic=Traffic(72, 0, 2))],
    ids=["one of two", "both"],
)
def test_bytes_of_lost_opinions_count_too(answer: Opinions | Failed) -> None:
    hand = three_under_dvw(quorum=0.3).play((answer, "v1 <- 0", "train 4 a v1"))
    assert hand.last(Committed).traffic["evaluate down bytes"] == 72
    assert hand.last(Committed).traffic["evaluate down models"] == 2, "as many as sites it went to"


def test_when_the_target_is_reached() -> None:
    one_learner(Ending(commits=100, target=0.9), Evaluation()).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0", (8, 2)), "scored v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1", (9, 1)), "scored v1", "stop target 0.9 reached"),
    )


def test_a_loss_is_to_fall_to_its_target() -> None:
    one_learner(Ending(commits=100, target=0.5), Evaluation(metric="loss")).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0", Scored(10, 9.0)), "scored v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1", Scored(10, 5.0)), "scored v1", "stop target 0.5 reached"),
    )


def test_when_there_is_no_progress() -> None:
    hand = one_learner(Ending(commits=100, patience=2), Evaluation()).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0", (5, 5)), "scored v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1", (5, 5)), "scored v1"),
        (trained(1), "v2 <- 1", "score home v2", "train 2 a v2"),
        (tried("v2", (6, 4)), "scored v2"),  # a new best
        (trained(2), "v3 <- 2", "score home v3", "train 3 a v3"),
        (tried("v3", (5, 5)), "scored v3"),
        (trained(3), "v4 <- 3", "score home v4", "train 4 a v4"),
        (tried("v4", (5, 5)), "scored v4", "stop no progress in 2 scores"),
    )
    assert hand.state.best == 0.6


def test_a_target_reached_by_an_old_version_has_the_last_one_scored_before_the_stop() -> None:
    one_learner(Ending(commits=100, target=0.9), Evaluation(every=2)).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (tried("v0", (1, 0)), "scored v0", "score home v1"),
        (trained(1),),  # the run is about to end: nothing is handed out
        (tried("v1", (1, 1)), "scored v1", "stop target 0.9 reached"),
    )


def test_bytes_alone_end_no_run_in_which_nothing_is_sent() -> None:
    with pytest.raises(
        ValueError,
        match=r"^Ending\(bytes=1000\) is never reached by local_only: all layers \(0, 1\) are private, "
        r"and after a learner's first task nothing is sent\. Give rounds, commits or seconds as well\.$",
    ):
        Hand(local_only(), ending=Ending(bytes=1000))
    Hand(local_only(), ending=Ending(bytes=1000, rounds=1))  # it ends by rounds
    Hand(hdafl(), ending=Ending(bytes=1000))  # the shared layers are sent

"""Streams: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

from dataclasses import replace

from archipel.algorithms import sync_dvw
from archipel.core.parts import (
    Stream,
)
from archipel.core.records import Committed
from archipel.core.types import (
    Wake,
)
from tests.core.hand import (
    Hand,
    evaluated,
    failed,
    joined,
    left,
    trained,
    woke,
)
from tests.core.table_hands import stream, three_with_opinions


def test_a_full_buffer_is_a_commit_and_only_contributors_get_the_new_model() -> None:
    hand = Hand(stream(2), learners=3).play(
        (joined("a"),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(2, 3.0),),  # c waits for the commit
        (trained(0, 1.0), "v1 <- 0 2", "train 3 a v1", "train 4 c v1"),
        (trained(1, 5.0),),
        (trained(4, 7.0), "v2 <- 1 4", "train 5 b v2", "train 6 c v2"),
    )
    assert hand.value == 6.0
    assert hand.last(Committed).stale_versions == (1, 0)


def test_staleness_is_stamped_at_the_commit_in_versions_and_in_steps() -> None:
    hand = Hand(stream(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, steps=4), "v1 <- 0", "train 2 a v1"),
        (trained(2, steps=5), "v2 <- 2", "train 3 a v2"),
        (trained(1, steps=3), "v3 <- 1", "train 4 b v3"),
    )
    assert [record.stale_versions for record in hand.all(Committed)] == [(0,), (0,), (2,)]
    assert [record.stale_steps for record in hand.all(Committed)] == [(4,), (5,), (4 + 5 + 3,)]


def test_a_buffer_that_waits_too_long_is_committed_and_an_old_timer_is_ignored() -> None:
    hand = Hand(stream(3, max_wait=5.0), learners=3).play(
        (joined("a"),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(0, 1.0), "wake 5 buffer 0"),
        (woke("buffer 0"), "v1 <- 0", "train 3 a v1"),
        (woke("buffer 0"),),
        (trained(1, 2.0), "wake 5 buffer 1"),
        (trained(2, 3.0),),
        (woke("buffer 0"),),
        (trained(3, 4.0), "v2 <- 3 1 2", "train 4 a v2", "train 5 b v2", "train 6 c v2"),
        (trained(5, 0.0), "wake 5 buffer 2"),
        (woke("buffer 1"),),  # the buffer of version 1 was full before its time
        (woke("buffer 2"), "v3 <- 5", "train 7 b v3"),
    )
    assert hand.state.version == 3


def test_a_timer_that_comes_before_the_evidence_commits_as_soon_as_that_is_in() -> None:
    algorithm = replace(sync_dvw(), protocol=Stream(3, max_wait=5.0))
    Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(1), "ask 3 a t1", "wake 5 buffer 0"),
        (woke("buffer 0"),),
        (evaluated(3), "v1 <- 1", "train 4 b v1"),
    )


def test_the_time_of_a_buffer_begins_with_its_first_update() -> None:
    algorithm = replace(sync_dvw(quorum=1.0), protocol=Stream(3, max_wait=5.0))
    hand = Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(1), "ask 3 a t1", "wake 5 buffer 0"),
        (failed(3),),
        # it is left out for lack of evidence: there is no new version, but its buffer is gone
        (woke("buffer 0"), "refused 1 too", "train 4 b v0"),
    )
    assert any(isinstance(command, Wake) for command in hand.do(trained(2))), "a new buffer, a new timer"
    hand.do(evaluated(5))
    assert hand.state.version == 0, "its time is not up yet"


def test_no_more_are_at_work_than_the_concurrency_allows() -> None:
    hand = Hand(stream(concurrency=2), learners=4)
    for name in "abcd":
        hand.do(joined(name))
    seen = set()
    for _ in range(20):
        assert len(hand.state.out) == 2
        seen |= {task.learner for task in hand.state.out.values()}
        hand.do(trained(min(hand.state.out)))
    assert hand.state.version == 20
    assert seen == set("abcd")
    assert hand.state.rounds == 10, "a local round of a stream: as many updates as work side by side"


def test_a_failed_learner_gets_a_new_task() -> None:
    Hand(stream(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(1), "v1 <- 1", "train 2 b v1"),
        (failed(0), "refused 0 lost", "train 3 a v1"),
    )


def test_a_stream_commits_when_nothing_is_out() -> None:
    Hand(stream(3), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(1),),
        (trained(0), "v1 <- 0 1", "train 2 a v1", "train 3 b v1"),
        (trained(2),),
        (left("b"),),
        (failed(3, "left"), "refused 3 left", "v2 <- 2", "train 4 a v2"),
    )


def test_a_stream_hands_out_before_it_finds_that_nothing_is_out() -> None:
    hand = Hand(stream(2, concurrency=1), learners=2)
    hand.do(joined("a"))
    hand.do(joined("b"))
    hand.do(trained(0))
    assert hand.state.version == 0, "the other learner is idle: its update can fill the buffer"
    hand.do(trained(1))
    assert hand.last(Committed).tasks == (0, 1)


def test_who_joins_a_stream_is_given_a_task_at_once() -> None:
    Hand(stream(), learners=1).play((joined("a"), "train 0 a v0"), (joined("b"), "train 1 b v0"))


def test_updates_are_merged_in_order_of_arrival() -> None:
    three_with_opinions("arrival").play(
        (evaluated(4),),
        # each contributor gets the version that its update made
        (evaluated(3), "v1 <- 0", "train 5 a v1", "v2 <- 1", "train 6 b v2"),
    )


def test_the_first_update_with_complete_evidence_is_merged_first() -> None:
    hand = three_with_opinions("ready").play(
        (evaluated(4), "v1 <- 1", "train 5 b v1"),
        (evaluated(3), "v2 <- 0", "train 6 a v2"),
    )
    assert [record.stale_versions for record in hand.all(Committed)] == [(0,), (1,)]


def test_a_mass_disconnect_is_no_more_rounds_than_were_worked() -> None:
    hand = Hand(stream(), learners=4)
    for name in "abcd":
        hand.do(joined(name))
    for name in "bcd":
        hand.do(left(name))
    for task in (1, 2, 3):
        hand.do(failed(task))
    assert hand.state.rounds == 0, "three of the round's four tasks have ended"
    hand.do(trained(0))
    assert hand.state.rounds == 1
    hand.do(trained(4))
    assert hand.state.rounds == 2, "from then on one learner's task is a round"


def test_learners_that_join_make_the_next_round_longer() -> None:
    hand = Hand(stream(), learners=1).play(
        (joined("a"), "train 0 a v0"),
        (joined("b"), "train 1 b v0"),
        (joined("c"), "train 2 c v0"),
        (trained(0), "v1 <- 0", "train 3 a v1"),
    )
    assert hand.state.rounds == 1, "it began with one learner"
    for task in (1, 2):
        hand.do(trained(task))
    assert hand.state.rounds == 1
    hand.do(trained(3))
    assert hand.state.rounds == 2

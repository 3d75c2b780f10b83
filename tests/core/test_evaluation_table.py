"""Scores for the records: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

from typing import Literal

import pytest

from archipel.algorithms import fedavg
from archipel.core.parts import (
    Ending,
    Evaluation,
)
from archipel.core.records import Scores
from tests.core.hand import (
    Hand,
    Opinions,
    joined,
    left,
    trained,
    tried,
    untried,
    woke,
)
from tests.core.table_hands import one_learner


def test_every_so_many_commits_and_the_last_version_always() -> None:
    one_learner(Ending(commits=3), Evaluation(every=2)).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0"), "scored v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (trained(1), "v2 <- 1", "score home v2", "train 2 a v2"),
        (trained(2), "v3 <- 2", "score home v3"),
        (tried("v3"), "scored v3"),  # version 2 is not scored yet
        (tried("v2"), "scored v2", "stop 3 commits made"),
    )


def test_every_so_many_seconds_if_there_is_something_new() -> None:
    one_learner(Ending(commits=9), Evaluation(every=None, seconds=30.0)).play(
        (joined("a"), "score home v0", "wake 30 score now", "train 0 a v0"),
        (tried("v0"), "scored v0"),
        (woke("score now"), "wake 30 score now"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (trained(1), "v2 <- 1", "train 2 a v2"),
        (woke("score now"), "score home v2", "wake 30 score now"),
        (tried("v2"), "scored v2"),
    )


def test_time_is_up_has_the_last_version_scored_before_the_stop() -> None:
    one_learner(Ending(seconds=60.0), Evaluation(every=None, seconds=100.0)).play(
        (joined("a"), "score home v0", "wake 60 time is up", "wake 100 score now", "train 0 a v0"),
        (tried("v0"), "scored v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (woke("time is up"), "score home v1"),
        (trained(1),),
        (woke("score now"), "wake 100 score now"),
        (tried("v1"), "scored v1", "stop time is up"),
    )


@pytest.mark.parametrize(("mean", "accuracy"), [("examples", 0.6), ("learners", 0.75)])
def test_at_the_learners_own_test_parts(mean: Literal["examples", "learners"], accuracy: float) -> None:
    hand = Hand(fedavg(), learners=3, evaluation=Evaluation(at="learners", mean=mean)).play(
        (joined("b", test=8),),
        (joined("c", test=0),),
        (joined("t", test=5, role="test"),),
        (joined("a", test=2), "score a b v0", "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (tried("v0", (2, 0), (4, 4)), "scored v0"),
    )
    scores = hand.last(Scores)
    assert (scores.metrics["accuracy"], scores.examples, scores.sites) == (accuracy, 10, 2)


@pytest.mark.parametrize(("at", "site"), [("held-out test", "t"), ("held-out validation", "v")])
def test_at_learners_held_out(at: Literal["held-out test", "held-out validation"], site: str) -> None:
    Hand(fedavg(), learners=1, evaluation=Evaluation(at=at, validation=False)).play(
        (joined("t", role="test", test=5),),
        (joined("v", role="validation", test=5),),
        (joined("a", test=5), f"score {site} v0", "train 0 a v0"),
        (tried("v0"), "scored v0"),
    )


@pytest.mark.parametrize(("at", "site"), [("held-out test", "t"), ("home", "home")])
def test_validation_learners_are_scored_beside_and_kept_apart(at: Literal["held-out test", "home"], site: str) -> None:
    hand = Hand(fedavg(), learners=1, ending=Ending(commits=2), evaluation=Evaluation(at=at)).play(
        (joined("t", role="test", test=5),),
        (joined("v", role="validation", test=5),),
        (joined("w", role="validation", test=0),),
        (joined("a", test=5), f"score {site} v v0", "train 0 a v0"),
        (tried("v0", (4, 1), (1, 3)), "scored v0"),
        (trained(0), "v1 <- 0", f"score {site} v v1", "train 1 a v1"),
        (tried("v1", None, (1, 3)),),  # a version without a test score is not recorded
        (left("v"),),
        (trained(1), "v2 <- 1", f"score {site} v2"),
        (tried("v2", (5, 0)), "scored v2", "stop 2 commits made"),
    )
    first, last = hand.all(Scores)
    assert (first.metrics["accuracy"], first.examples, first.sites) == (0.8, 5, 1)
    assert first.validation["accuracy"] == 0.25
    assert (last.metrics["accuracy"], last.validation) == (1.0, {})


@pytest.mark.parametrize("answer", [tried("v1", None, None), untried("v1")], ids=["of each", "as a whole"])
def test_a_score_that_does_not_come_is_left_out_and_stops_nobody(answer: Opinions) -> None:
    hand = Hand(fedavg(), learners=2, ending=Ending(commits=1), evaluation=Evaluation(at="learners")).play(
        (joined("a", test=2),),
        (joined("b", test=8), "score a b v0", "train 0 a v0", "train 1 b v0"),
        (tried("v0", None, (6, 2)), "scored v0"),
        (trained(0),),
        (trained(1), "v1 <- 0 1", "score a b v1"),
        (answer, "stop 1 commits made"),
    )
    (scores,) = hand.all(Scores)
    assert (scores.metrics["accuracy"], scores.examples, scores.sites) == (0.75, 8, 1)


def test_scoring_goes_on_beside_the_rounds() -> None:
    Hand(fedavg(), learners=1, evaluation=Evaluation()).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1"), "scored v1"),
        (tried("v0"), "scored v0"),  # its vector is still there, though the model has moved on
    )


def test_how_often_a_model_is_scored_changes_nothing_else() -> None:
    def takes_part(evaluation: Evaluation | None) -> list[tuple[int, str, int]]:
        hand = Hand(fedavg(0.5), learners=4, evaluation=evaluation)
        for name in "abcd":
            hand.do(joined(name))
        for _ in range(8):
            for task in list(hand.state.out):
                hand.do(trained(task))
        return [(train.task, train.learner, train.key) for train in hand.trains.values()]

    assert takes_part(None) == takes_part(Evaluation()) == takes_part(Evaluation(every=3))

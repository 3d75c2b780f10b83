"""Sums that the engine makes: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from archipel.algorithms import fedavg
from archipel.core.controller import ImpossibleEvent
from archipel.core.parts import Ending, Evaluation, PeriodicLayers, Rounds, SecureSum
from archipel.core.records import Committed, Refused, Scores
from archipel.core.types import AddUp, Evaluated, Pooled, PooledScore, RolledBack, Scored, ScoreTable
from tests.core.hand import Hand, Play, failed, joined, scored, summed, tried, withheld

METHOD = replace(fedavg(), privacy=SecureSum(threshold=0.7))
SENT = ((withheld(0),), (withheld(1),), (withheld(2),), (withheld(3), "add 4 a b c d"))


def begun(method: object = METHOD, **settings: object) -> Hand:
    """Four learners with 10, 20, 30 and 4000 examples have a task each."""
    hand = Hand(method, learners=4, **settings)  # type: ignore[arg-type]
    for name, examples in zip("abcd", (10, 20, 30, 4000), strict=True):
        hand.do(joined(name, examples))
    return hand


def test_a_sum_reaches_the_controller_as_one_update_whose_path_is_the_cohort() -> None:
    hand = begun().play(
        *SENT,
        (joined("e"),),  # nothing is handed out until the sum has come
        (
            summed(4, 3.0, (0, 1, 2, 3), 1060),
            "v1 <- 0 1 2 3",
            *(f"train {5 + place} {name} v1" for place, name in enumerate("abcde")),
        ),
    )
    assert hand.value == 3.0
    commit = hand.last(Committed)
    assert commit.learners == ("a", "b", "c", "d")
    assert [weight[0] for weight in commit.weights] == [10.0, 20.0, 30.0, 1000.0]


def test_what_is_to_be_added_up_is_told_with_those_that_are_missing() -> None:
    hand = begun(replace(METHOD, privacy=SecureSum(threshold=0.7, most_examples=25)))
    for event in (withheld(0), failed(1), withheld(2)):
        hand.do(event)
    (command,) = [one for one in hand.do(withheld(3)) if isinstance(one, AddUp)]
    assert command == AddUp(4, (0, 2, 3), ("a", "c", "d"), (10, 25, 25), ("0", "1"), "v0", ("b",))


def test_who_drops_out_of_the_sum_is_not_in_the_version() -> None:
    hand = begun().play(
        *SENT,
        (
            summed(4, 3.0, (0, 1, 2), 60),
            "refused 3 dropped",
            "v1 <- 0 1 2",
            *(f"train {5 + place} {name} v1" for place, name in enumerate("abcd")),
        ),
    )
    assert hand.value == 3.0


FAILS: dict[str, tuple[Play, str]] = {
    "too few": (summed(4, 3.0, (0, 1), 30), "2 of 4 learners have sent, and a secure sum needs 3"),
    "another weight": (
        summed(4, 3.0, (0, 1, 2), 61),
        "the weights in the sum add up to 61, and those of its learners to 60",
    ),
    "the engine gave up": (failed(4, "3 of 4 learners have shared secrets"), "3 of 4 learners have shared secrets"),
}


@pytest.mark.parametrize("case", FAILS)
def test_a_sum_that_does_not_come_makes_no_version_and_the_next_round_begins(case: str) -> None:
    event, reason = FAILS[case]
    hand = begun().play(*SENT)
    hand.do(event)
    assert hand.state.version == 0
    assert hand.state.vain_attempts == 1
    assert [out.learner for out in hand.state.out.values()] == ["a", "b", "c", "d"]
    assert any(reason in one.reason for one in hand.all(Refused))
    assert set(hand.models.names()) == {"v0"}


def test_a_round_of_too_few_is_not_added_up() -> None:
    begun().play(
        (failed(0), "refused 0 lost"),
        (failed(1), "refused 1 lost"),
        (withheld(2),),
        (
            withheld(3),
            "refused 2 2",
            "refused 3 2",
            *(f"train {4 + place} {name} v0" for place, name in enumerate("abcd")),
        ),
    )


def test_learners_that_the_controller_gives_up_are_not_missed() -> None:
    method = replace(METHOD, protocol=Rounds(0.75, extra=0.34), privacy=SecureSum(threshold=1.0))
    hand = begun(method).play(
        (withheld(0),),
        (withheld(1),),
        (withheld(2), "cancel 3"),
        (failed(3, "cancelled"), "refused 3 cancelled", "add 4 a b c"),
    )
    hand.do(summed(4, 1.0, (0, 1, 2), 60))
    assert hand.state.version == 1


def test_the_run_ends_with_the_last_sum_and_its_score() -> None:
    begun(ending=Ending(rounds=1), evaluation=Evaluation(every=1)).play(
        (tried("v0"), "scored v0"),
        *SENT,
        (summed(4, 3.0, (0, 1, 2, 3), 1060), "v1 <- 0 1 2 3", "score home v1"),
        (tried("v1"), "scored v1", "stop 1 local rounds made"),
    )


def test_a_rollback_takes_back_what_is_being_added_up() -> None:
    hand = begun().play(*SENT)
    hand.models.write("back", hand.vector.clone())
    hand.play((RolledBack(0, "back"), "cancel 4"))
    hand.do(summed(4, 3.0, (0, 1, 2, 3), 1060))
    assert (hand.state.version, hand.value) == (1, 0.0)
    assert "the model was rolled back" in {one.reason for one in hand.all(Refused)}


def test_a_sum_that_nobody_asked_for_is_impossible_and_a_second_one_late() -> None:
    hand = begun().play(*SENT)
    with pytest.raises(ImpossibleEvent, match="An answer to task 9"):
        hand.do(summed(9, 1.0, (0,), 1))
    hand.do(summed(4, 3.0, (0, 1, 2, 3), 1060))
    hand.play((summed(4, 5.0, (0, 1, 2, 3), 1060), "refused 4 late"))
    assert hand.value == 3.0


def test_an_update_without_numbers_is_refused_where_nothing_is_added_up() -> None:
    Hand(fedavg(), learners=1).play((joined("a"), "train 0 a v0"), (withheld(0), "refused 0 came", "train 1 a v0"))


def test_layers_that_differ_cannot_be_added_up() -> None:
    hand = begun(replace(METHOD, planners=(PeriodicLayers(2, 1),)))
    sent = hand.controller.wanted(0)
    for task in range(3):
        hand.do(replace(withheld(task), layers=sent))
    hand.do(replace(withheld(3), layers=sent[:-1]))
    assert {one.reason for one in hand.all(Refused)} == {
        "learners have sent different layers, which cannot be added up"
    }


# ---------------------------------------------------------------------------------------------------- scores in sums


def scoring(**settings: object) -> tuple[Hand, int]:
    """Four learners with test parts of 1, 2, 3 and 4 examples, and the question about version 0."""
    hand = Hand(METHOD, learners=4, evaluation=Evaluation(at="learners"), **settings)  # type: ignore[arg-type]
    for test, name in enumerate("abcd", start=1):
        hand.do(joined(name, 10, test=test))
    (task,) = [task for task, question in hand.questions.items() if question.pooled]
    assert hand.questions[task].sites == ("a", "b", "c", "d")
    return hand, task


def test_scores_of_learners_are_asked_for_and_recorded_as_a_sum() -> None:
    hand, task = scoring()
    hand.do(Pooled(task, PooledScore((0, 1, 3), scored(5, 2))))
    told = hand.last(Scores)
    assert (told.version, told.examples, told.sites) == (0, 7, 3)
    assert told.metrics["accuracy"] == pytest.approx(5 / 7)


WRONG: dict[str, tuple[PooledScore, str]] = {
    "more than they have": (PooledScore((0, 1, 2), scored(5, 2)), "a score of 7 examples, 6 were registered"),
    "fewer counts": (
        PooledScore((0, 1, 3), Scored(7, 1.0, np.array([[5, 0], [0, 0]]))),
        "a confusion matrix that does not count 7 examples",
    ),
    "other classes": (
        PooledScore((0, 1, 3), Scored(7, 1.0, np.diag([5, 1, 1]))),
        "a confusion matrix of 3 classes, the task has 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_sum_that_is_not_of_the_learners_examples_is_refused(case: str) -> None:
    hand, task = scoring()
    hand.state.classes = 2
    answer, reason = WRONG[case]
    hand.do(Pooled(task, answer))
    assert any(one.reason.startswith(reason) for one in hand.all(Refused))
    assert not hand.all(Scores)


def test_a_sum_of_scores_that_fails_is_recorded_and_the_run_goes_on() -> None:
    hand, task = scoring(ending=Ending(rounds=1))
    hand.do(failed(task, "2 of 4 learners have shared secrets, 3 are needed"))
    assert any(one.reason.startswith("2 of 4 learners") for one in hand.all(Refused))
    assert len(hand.state.out) == 4


def test_scores_of_single_learners_are_no_answer_to_a_question_about_their_sum() -> None:
    hand, task = scoring()
    with pytest.raises(ImpossibleEvent, match=r"A ScoreTable in answer to task -1, .* added up"):
        hand.do(Evaluated(task, ScoreTable.of([scored(1), None, None, None])))
    single = Hand(
        replace(METHOD, privacy=SecureSum(single_scores=True)), learners=3, evaluation=Evaluation(at="learners")
    )
    for name in "abc":
        single.do(joined(name, 10, test=1))
    (task,) = single.questions
    with pytest.raises(ImpossibleEvent, match=r"A PooledScore in answer to task -1, .* of single sites"):
        single.do(Pooled(task, PooledScore((0, 1, 2), scored(3))))


def test_validation_learners_are_not_asked_for_single_scores_beside() -> None:
    hand = Hand(METHOD, learners=4, evaluation=Evaluation(at="home"))
    hand.do(joined("v", 0, test=5, role="validation"))
    for name in "abcd":
        hand.do(joined(name))
    assert [question.sites for question in hand.questions.values()] == [("home",)]


def test_the_mean_of_learners_scores_is_refused() -> None:
    with pytest.raises(ValueError, match=r'adds up scores, and Evaluation\(mean="learners"\) needs single learners'):
        Hand(METHOD, evaluation=Evaluation(at="learners", mean="learners"))

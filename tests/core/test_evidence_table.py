"""Evidence, layers and recall: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from archipel.algorithms import fedprox, hdafl, plu, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    ByConsistency,
    ByDistributedValidation,
    Community,
    Mean,
    MedianStaleness,
    PrivateLayers,
    Product,
    Stream,
    Weighting,
)
from archipel.core.records import Committed, Refused, Returned
from archipel.core.state import validate
from archipel.core.types import (
    AUC_BINS,
    Consistency,
    Consistent,
    Evaluate,
    Failed,
    Metrics,
    Score,
    Scored,
    ScoreTable,
)
from tests.core.hand import (
    Hand,
    Opinions,
    evaluated,
    failed,
    joined,
    left,
    progress,
    scored,
    trained,
)
from tests.core.table_hands import relay, stream, three_under_dvw


def test_the_others_are_asked_and_the_own_opinion_travels_with_the_update() -> None:
    hand = three_under_dvw().play((evaluated(3, (2, 2), (3, 1)), "v1 <- 0", "train 4 a v1"))
    assert hand.last(Committed).weights == ((0.6, 0.6),)  # (1 + 2 + 3) of 10


@pytest.mark.parametrize("said", [((2, 1), None), (None, (2, 1))], ids=["of c", "of b"])
def test_a_missing_opinion_is_left_out(said: tuple[tuple[int, int] | None, ...]) -> None:
    hand = three_under_dvw().play(
        (evaluated(3, *said), "v1 <- 0", "train 4 a v1"),
        (evaluated(3, (100, 0), (100, 0)), "refused 3 late"),
    )
    assert hand.last(Committed).weights == ((0.6, 0.6),)  # (1 + 2) of 5


def test_an_evaluator_that_leaves_is_a_missing_opinion() -> None:
    three_under_dvw().play(
        (left("c"),),
        (failed(2, "left"), "refused 2 left"),
        (evaluated(3, (1, 0), None), "v1 <- 0", "train 4 a v1"),
        (trained(1), "ask 5 a t1"),  # c is not asked any more
    )


none_at_all = pytest.mark.parametrize("answer", [evaluated(3, None, None), failed(3)], ids=["of each", "as a whole"])


@none_at_all
def test_without_a_quorum_the_update_is_left_out(answer: Opinions | Failed) -> None:
    hand = three_under_dvw(quorum=0.5).play((answer, "refused 0 too", "train 4 a v0"))  # one opinion of three
    assert hand.state.version == 0
    assert hand.last(Refused).reason == "too little evidence to weigh it"


@none_at_all
def test_a_lower_quorum_takes_the_learners_word(answer: Opinions | Failed) -> None:
    hand = three_under_dvw(quorum=0.3).play((answer, "v1 <- 0", "train 4 a v1"))
    assert hand.last(Committed).weights == ((0.5, 0.5),)


def test_only_so_many_evaluators_are_asked_and_only_those_with_a_validation_part() -> None:
    algorithm = Algorithm("dvw", protocol=Stream(), weighting=ByDistributedValidation(evaluators=1))
    hand = Hand(algorithm, learners=4)
    for name in "abcd":
        hand.do(joined(name, validation=0 if name == "d" else 5))
    asked: dict[str, Any] = {}
    for _ in range(30):
        task = min(hand.state.out)
        learner = hand.state.out[task].learner
        commands = hand.do(trained(task, metrics=Metrics(validation=scored(1))))
        (question,) = (command for command in commands if isinstance(command, Evaluate))
        (site,) = question.sites
        asked.setdefault(learner, set()).add(site)
        hand.do(evaluated(question.task))
    assert asked == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}, "d": {"a", "b", "c"}}


def test_with_nobody_to_ask_the_update_is_weighed_at_once() -> None:
    Hand(sync_dvw(), learners=1).play(
        (joined("a", validation=5), "train 0 a v0"),
        (trained(0, metrics=Metrics(validation=scored(1))), "v1 <- 0", "train 1 a v1"),
    )


def test_home_is_asked_to_compare_the_update_with_the_model_of_the_day() -> None:
    from archipel.algorithms import rce

    hand = Hand(rce(buffer=2), learners=2)
    hand.do(joined("a"))
    hand.do(joined("b"))
    (question,) = (command for command in hand.do(trained(0, 2.0)) if isinstance(command, Evaluate))
    assert (question.sites, question.probe) == (("home",), Consistency("cosine"))
    assert question.reference is not None
    assert question.reference.name == "v0"
    hand.play(
        (trained(1, 4.0), "ask 3 home t1"),
        (evaluated(3, Consistent((1.0, 0.25))),),
        (evaluated(2, Consistent((1.0, 0.75))), "v1 <- 0 1", "train 4 a v1", "train 5 b v1"),
    )
    assert hand.values == (3.0, 2.5)
    assert hand.last(Committed).weights == ((1.0, 0.75), (1.0, 0.25))


def three_weighed_by(*factors: Weighting) -> Hand:
    algorithm = Algorithm("product", protocol=Stream(), weighting=Product(*factors), merge=Mean())
    return Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
    )


@pytest.mark.parametrize("order", [(3, 4), (4, 3)], ids=["in order", "the other way"])
def test_two_probes_are_two_tasks_and_the_update_waits_for_both(order: tuple[int, int]) -> None:
    hand = three_weighed_by(ByDistributedValidation(), ByConsistency()).play(
        (trained(0, metrics=Metrics(validation=scored(1, 1))), "ask 3 b c t0", "ask 4 home t0"),
    )
    assert [question.probe for question in hand.questions.values()] == [Score("validation"), Consistency("cosine")]
    assert [inquiry.question for inquiry in hand.state.inquiries.values()] == [0, 1]
    answers = {3: evaluated(3, (2, 1), None), 4: evaluated(4, Consistent((1.0, 0.5)))}
    first, last = order
    hand.play((answers[first],), (answers[last], "v1 <- 0", "train 5 a v1"))
    (weights,) = hand.last(Committed).weights
    assert weights == pytest.approx((0.6, 0.3))  # (1 + 2) of 5


def test_one_of_two_probes_that_fails_leaves_the_update_out_when_the_other_is_answered() -> None:
    three_weighed_by(ByDistributedValidation(), ByConsistency()).play(
        (trained(0, metrics=Metrics(validation=scored(1, 1))), "ask 3 b c t0", "ask 4 home t0"),
        (failed(4),),
        (evaluated(3), "refused 0 too", "train 5 a v0"),
    )


def test_the_same_sites_asked_by_two_probes_answer_each_with_what_it_asks_for() -> None:
    hand = three_weighed_by(ByDistributedValidation("accuracy"), ByDistributedValidation("auc")).play(
        (trained(0), "ask 3 b c t0", "ask 4 b c t0"),
    )
    both = np.zeros((2, 2, AUC_BINS), dtype=int)
    both[:, 1, -1] = both[:, 0, 0] = 2  # two of each class, and every score on its side
    sure = Scored(4, 0.0, np.array([[2, 0], [0, 2]]), both)
    hand.play(
        (evaluated(4, sure, sure),),
        (evaluated(3, (3, 1), (3, 1)), "v1 <- 0", "train 5 a v1"),
    )
    assert hand.last(Committed).weights == ((0.75, 0.75),)


def test_what_two_factors_ask_alike_is_one_task() -> None:
    hand = three_weighed_by(ByDistributedValidation("accuracy"), ByDistributedValidation("micro_f1")).play(
        (trained(0), "ask 3 b c t0"),
        (evaluated(3, (3, 1), (1, 3)), "v1 <- 0", "train 4 a v1"),
    )
    assert hand.last(Committed).weights == ((0.25, 0.25),)


def test_a_question_that_is_out_and_its_evidence_are_a_law() -> None:
    hand = three_under_dvw()
    update, inquiry = hand.state.queue[0], hand.state.inquiries.pop(3)
    with pytest.raises(AssertionError, match=r"update 0 waits for the questions \[0\]"):
        validate(hand.state, hand.models)
    hand.state.inquiries[3] = inquiry
    update.evidence[0].answers = ScoreTable.of((None, None))
    with pytest.raises(AssertionError, match=r"update 0 waits for the questions \[\]"):
        validate(hand.state, hand.models)


def test_a_layer_that_nobody_sent_stays_and_its_stamp_says_so() -> None:
    hand = Hand(hdafl(1.0, private="1"), learners=2, initial=9.0)
    hand.play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, (1.0, float("nan"))),),  # what was not sent is not looked at
        (trained(1, (3.0, 100.0)), "v1 <- 0 1", "train 2 a v1", "train 3 b v1"),
    )
    assert hand.values == (2.0, 9.0)
    assert hand.state.model.manifest == ("v1", "v0")
    assert hand.last(Committed).layers == (0,)
    assert hand.trains[2].plan.private == ("1",)


def test_a_model_that_travels_without_its_private_layers() -> None:
    algorithm = replace(relay("ab", "ba", "ab", fraction=1.0), planners=(PrivateLayers("1"),))
    hand = Hand(algorithm, learners=2, initial=9.0).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, (1.0, 50.0)),),
        (trained(1, (2.0, 60.0)), "train 2 b t0", "train 3 a t1"),
    )
    assert hand.models.read("t0").tolist() == [1.0] * 6 + [9.0] * 3, "private layers do not travel"
    assert hand.trains[2].model.manifest == ("t0", "v0")


def test_periodic_layers_are_asked_for_by_version() -> None:
    hand = Hand(plu(buffer=1, period=2, last=1, deep="1", by="hand-out"), learners=1)
    hand.do(joined("a"))
    for _ in range(5):
        hand.do(trained(max(hand.trains)))
    assert [hand.trains[task].plan.uploads for task in range(6)] == [None, None, ("0",), None, ("0",), None]


def test_periodic_layers_are_used_by_the_version_at_arrival() -> None:
    hand = Hand(plu(buffer=1, period=2, last=1, deep="1"), learners=1)
    hand.do(joined("a"))
    wanted, changed = [], []
    for _ in range(6):
        task = max(hand.trains)
        assert hand.trains[task].plan.uploads is None
        wanted.append(hand.controller.wanted(task))
        hand.do(trained(task))  # with all layers, as a learner that has not asked
        changed.append(hand.controller.state.model.manifest[1])
    assert wanted == [("0", "1"), ("0", "1"), ("0",), ("0", "1"), ("0",), ("0", "1")]
    assert changed == ["v1", "v2", "v2", "v4", "v4", "v6"], "what is unwanted is not used"


def test_the_plan_carries_the_planners_settings() -> None:
    hand = Hand(fedprox(mu=0.5, rate=0.25), learners=1)
    hand.do(joined("a"))
    assert (hand.trains[0].plan.proximal, hand.trains[0].plan.rate) == (0.5, 0.25)


def recalled() -> Hand:
    """Two learners, each with two cycles of effective staleness 10 or more behind it."""
    algorithm = replace(stream(), merge=Community(), recall=MedianStaleness(after=2))
    return Hand(algorithm, learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, steps=10), "v1 <- 0", "train 2 a v1"),
        (progress(2, 99),),  # one cycle is no median
        (trained(2, steps=10), "v2 <- 2", "train 3 a v2"),
    )


def test_a_task_above_the_median_of_its_learner_is_called_back_once() -> None:
    hand = recalled().play(
        (progress(3, 10),),
        (progress(3, 11), "finish 3"),
        (progress(3, 12),),
        (trained(3, steps=12), "v3 <- 3", "train 4 a v3"),
    )
    assert [record.recalled for record in hand.all(Returned)] == [False, False, True]


def test_a_commit_of_another_learner_may_call_a_task_back() -> None:
    recalled().play(
        (progress(3, 1),),
        (trained(1, steps=10), "v3 <- 1", "finish 3", "train 4 b v3"),
        (progress(2, 5),),  # a task that is not out any more
    )

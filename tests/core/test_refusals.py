"""Invalid input from the network must not reach the model: it is refused and recorded, and the run continues."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from archipel.algorithms import async_fedavg, fedadam, fedasync, fedavg, hdafl, plu, radfed_i, rce, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.controller import ImpossibleEvent
from archipel.core.parts import (
    Adagrad,
    Adam,
    ByDistributedValidation,
    ByFreshness,
    ByGradientNorm,
    Community,
    Equally,
    Evaluation,
    Mean,
    Merge,
    Mix,
    Momentum,
    Product,
    Proposal,
    Relay,
    Replace,
    Server,
    Stream,
    Weighting,
    Yogi,
)
from archipel.core.records import Committed, Refused, Scores
from archipel.core.state import Update, View
from archipel.core.types import AUC_BINS, Consistent, Evaluated, Metrics, Scored, ScoreTable, Traffic, Trained
from archipel.learner.probes import squared_correlation
from tests.core.hand import (
    LAYOUT,
    Answer,
    Hand,
    Said,
    evaluated,
    failed,
    joined,
    progress,
    scored,
    trained,
    tried,
)

NAN, INF = math.nan, math.inf
LARGEST = torch.finfo(torch.float32).max


def two(algorithm: Algorithm, **known: Any) -> Hand:
    """Two learners at work: a has task 0 and b task 1 (under Relay, whose slots are drawn, perhaps the other way)."""
    hand = Hand(algorithm, learners=2)
    hand.do(joined("a", validation=3, **known))
    hand.do(joined("b", validation=3, **known))
    return hand


def one_number(place: int, value: float) -> torch.Tensor:
    vector = torch.ones(LAYOUT.size)
    vector[place] = value
    return vector


# ----------------------------------------------------------------------------------------------------- bad updates


BAD = {
    "NaN": (trained(0, NAN), "holds numbers that are not finite"),
    "one NaN among good numbers": (trained(0, one_number(8, NAN)), "holds numbers that are not finite"),
    "infinity": (trained(0, one_number(0, INF)), "holds numbers that are not finite"),
    "minus infinity": (trained(0, one_number(3, -INF)), "holds numbers that are not finite"),
    "infinities that cancel": (trained(0, torch.tensor([INF, -INF, *[1.0] * 7])), "holds numbers that are not finite"),
    "too short": (trained(0, torch.ones(8)), "(8,) numbers, the model has (9,)"),
    "too long": (trained(0, torch.ones(10)), "(10,) numbers, the model has (9,)"),
    "empty": (trained(0, torch.ones(0)), "(0,) numbers, the model has (9,)"),
    "a matrix": (trained(0, torch.ones(3, 3)), "(3, 3) numbers, the model has (9,)"),
    "one number": (trained(0, torch.tensor(1.0)), "() numbers, the model has (9,)"),
    "an unknown layer": (trained(0, layers=("0", "fc3")), "unknown layer 'fc3'; layers of this model: 0, 1"),
    "a layer too few": (trained(0, layers=("0",)), "sent the layers (0), the plan asks for (0, 1)"),
    "no layer": (trained(0, layers=()), "sent the layers (), the plan asks for (0, 1)"),
    "negative steps": (trained(0, steps=-1), "-1 steps"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_is_refused_and_the_round_goes_on_with_the_others(what: str) -> None:
    answer, reason = BAD[what]
    hand = two(fedavg())
    hand.do(answer)
    (refused,) = hand.all(Refused)
    assert (refused.task, refused.learner) == (0, "a")
    assert refused.reason.startswith(reason)
    assert "t0" not in hand.models.names(), "its vector is gone"
    hand.do(trained(1, 3.0))
    assert hand.value == 3.0
    assert hand.last(Committed).tasks == (1,)
    assert {task.learner for task in hand.state.out.values()} == {"a", "b"}, "it may try again"


@pytest.mark.parametrize("algorithm", [fedasync(), async_fedavg(), plu(buffer=1)], ids=lambda a: a.name)
def test_a_stream_gives_a_refused_learner_a_new_task(algorithm: Algorithm) -> None:
    two(algorithm).play((trained(0, NAN), "refused 0 holds", "train 2 a v0"))


def test_a_refused_hop_keeps_the_slots_model() -> None:
    hand = Hand(Algorithm("relay", protocol=Relay(1.0, hops=2), weighting=Equally()), learners=1).play(
        (joined("a"), "train 0 a v0"),
        (trained(0, 2.0), "train 1 a t0"),
        (trained(1, NAN), "refused 1 holds", "v1 <- 0", "train 2 a v1"),
    )
    assert hand.value == 2.0


def test_a_round_of_nothing_but_bad_updates_passes_without_a_version() -> None:
    two(fedavg()).play(
        (trained(0, NAN), "refused 0 holds"),
        (trained(1, INF), "refused 1 holds", "train 2 a v0", "train 3 b v0"),
    )


@pytest.mark.parametrize("layers", [("0", "1"), ("1",)], ids=["all", "the private one"])
def test_layers_that_were_not_asked_for_are_refused(layers: tuple[str, ...]) -> None:
    hand = two(hdafl(1.0, private="1"))
    hand.do(trained(0, layers=layers))
    assert hand.last(Refused).reason == f"sent the layers ({', '.join(layers)}), the plan asks for (0)"


def test_a_layer_sent_twice_does_not_count_twice() -> None:
    # Mix takes in what was sent layer by layer: once is (1 - .5) 0 + .5 x 4 = 2, twice would be 3
    hand = two(Algorithm("mix", protocol=Stream(), merge=Mix(0.5), weighting=Equally()))
    hand.do(trained(0, 4.0, layers=("0", "0", "1")))
    assert hand.all(Refused) or hand.values == (2.0, 2.0)


@pytest.mark.parametrize("norm", [None, NAN, INF, -1.0])
@pytest.mark.parametrize(
    "algorithm",
    [radfed_i(1.0, hops=1), replace(fedavg(), weighting=ByGradientNorm())],
    ids=["importance sampling", "gradient-norm weights"],
)
def test_a_missing_or_impossible_gradient_norm_is_refused(algorithm: Algorithm, norm: float | None) -> None:
    hand = two(algorithm)
    a, b = sorted(hand.state.out, key=lambda task: hand.state.out[task].learner)
    hand.do(trained(a, metrics=Metrics(gradient_norm=norm)))
    assert hand.last(Refused).reason == f"gradient norm {norm!r}, the plan asks for a finite one"
    hand.do(trained(b, 3.0, metrics=Metrics(gradient_norm=2.0)))
    assert hand.last(Committed).learners == ("b",)


def test_a_gradient_norm_that_nobody_asked_for_is_not_looked_at() -> None:
    hand = two(fedavg())
    hand.do(trained(0, metrics=Metrics(gradient_norm=NAN)))
    assert not hand.all(Refused)


# ----------------------------------------------------------------------------------------------- the model is finite


@dataclass(frozen=True)
class Given(Weighting):
    """Weights by learner, as a user may write a weighting."""

    weights: tuple[tuple[str, float | tuple[float, ...] | None], ...]

    at_most_one = True

    def weigh(self, view: View, update: Update) -> float | tuple[float, ...] | None:
        return dict(self.weights)[update.learner]


def given(**weights: float | tuple[float, ...] | None) -> Given:
    return Given(tuple(weights.items()))


@pytest.mark.parametrize("merge", [Mean(), Community(), Mix(1.0)], ids=lambda m: type(m).__name__)
def test_the_model_takes_no_nan_even_with_weight_zero(merge: Merge) -> None:
    # 0 x NaN is NaN: looking at weights would not be enough
    hand = two(Algorithm("zero", protocol=Stream(2), weighting=given(a=0.0, b=1.0), merge=merge))
    hand.play((trained(0, NAN), "refused 0 holds", "train 2 a v0"), (trained(1, 3.0),))
    hand.do(trained(2, one_number(2, NAN)))
    hand.do(trained(3, 7.0))
    assert hand.value == 3.0


@pytest.mark.parametrize(
    "server",
    [Replace(), Replace(0.5), Momentum(), Adam(), Yogi(), Adagrad()],
    ids=lambda s: f"{type(s).__name__}({s.rate})",
)
@pytest.mark.parametrize("merge", [Mean(), Community(), Mix()], ids=lambda m: type(m).__name__)
def test_zero_total_weight_leaves_the_model(merge: Merge, server: Server) -> None:
    hand = two(Algorithm("zero", weighting=given(a=0.0, b=0.0), merge=merge, server=server))
    hand.do(trained(0, 1.0))
    hand.do(trained(1, 3.0))
    assert hand.value == 0.0
    assert hand.last(Committed).layers == ()


def test_zero_weight_on_one_layer_leaves_that_layer() -> None:
    hand = two(replace(fedavg(), weighting=given(a=(1.0, 0.0), b=(3.0, 0.0))))
    hand.do(trained(0, 2.0))
    hand.do(trained(1, 6.0))
    assert hand.values == (5.0, 0.0)
    assert hand.state.model.manifest == ("v1", "v0")


@dataclass(frozen=True)
class Falling(Weighting):
    """a counts .1 and b .2 at first, and nothing after that."""

    def weigh(self, view: View, update: Update) -> float:
        return {"a": 0.1, "b": 0.2}[update.learner] if update.version == 0 else 0.0


def test_zero_total_weight_leaves_a_community_of_models_too() -> None:
    # .1 + .2 - .1 - .2 is 2.8e-17: what rounding leaves behind is no weight
    hand = two(Algorithm("falling", weighting=Falling(), merge=Community()))
    for task, value in enumerate((0.7, 0.3)):
        hand.do(trained(task, value))
    before = hand.vector.clone()
    for task, value in enumerate((5.0, 5.0), start=2):
        hand.do(trained(task, value))
    assert torch.allclose(hand.vector, before)


def test_weight_none_leaves_the_update_out() -> None:
    hand = two(replace(fedavg(), weighting=given(a=None, b=1.0)))
    hand.do(trained(0, 1.0))
    hand.do(trained(1, 3.0))
    assert hand.value == 3.0
    assert hand.last(Refused) == Refused(0, "a", "too little evidence to weigh it")


def test_a_merged_model_that_overflows_is_refused_and_the_run_goes_on() -> None:
    hand = two(replace(fedavg(), server=Replace(2.0)))
    hand.play(
        (trained(0, 3e38),),
        (trained(1, 3e38), "refused 0 the", "refused 1 the", "train 2 a v0", "train 3 b v0"),
    )
    assert hand.last(Refused).reason == "the merged model would not be finite"
    assert hand.state.version == 0
    hand.play((trained(2, 1.0),), (trained(3, 2.0), "v1 <- 2 3", "train 4 a v1", "train 5 b v1"))
    assert hand.value == 3.0
    assert sorted(hand.models.names()) == ["v1"]


def test_the_mean_of_the_largest_numbers_is_no_overflow() -> None:
    hand = two(fedavg())
    hand.do(trained(0, 3e38))
    hand.do(trained(1, 3e38))
    assert hand.value == pytest.approx(3e38)


@pytest.mark.parametrize("server", [Momentum(), Adam(), Yogi(), Adagrad()], ids=lambda s: type(s).__name__)
def test_an_overflow_leaves_no_trace_in_the_server_optimisers_memory(server: Server) -> None:
    hand = two(replace(fedavg(), server=server))
    hand.do(trained(0, 3e38))
    hand.do(trained(1, 3e38))
    hand.do(trained(2, -3e38))
    hand.do(trained(3, -3e38))
    kept = [hand.models.read(name) for name in hand.models.names() if name.startswith("server/")]
    assert all(torch.isfinite(vector).all() for vector in kept), "a moment that is not finite never heals"
    for _ in range(3):
        before = hand.vector.clone()
        for task in list(hand.state.out):
            hand.do(trained(task, 1.0))
    assert torch.isfinite(hand.vector).all()
    assert not torch.equal(hand.vector, before), "the model still moves"


def test_an_overflow_leaves_no_trace_in_the_community() -> None:
    hand = two(Algorithm("doubled", protocol=Stream(), weighting=Equally(), merge=Community(), server=Replace(2.0)))
    hand.play(
        (trained(0, 3e38), "refused 0 the", "train 2 a v0"),
        (trained(1, 1.0), "v1 <- 1", "train 3 b v1"),  # a's model was refused, so b's is the only one
    )
    assert hand.value == 2.0


def test_a_learner_that_diverged_and_recovers_leaves_no_trace_in_the_community() -> None:
    # 1e30 is finite, so it is taken; but float64 forgets 1 beside it
    hand = two(Algorithm("community", protocol=Stream(), weighting=Equally(), merge=Community()))
    hand.do(trained(1, 3.0))
    hand.do(trained(0, 1e30))
    hand.do(trained(max(hand.state.out), 1.0))
    assert [record.learners for record in hand.all(Committed)] == [("b",), ("a",), ("a",)]
    assert hand.value == pytest.approx(2.0)


# ------------------------------------------------------------------------------------------------------ bad weights


@pytest.mark.parametrize(
    "weight", [-1.0, NAN, INF, (1.0, -1.0), (NAN, 1.0), (1.0,), (1.0, 1.0, 1.0), ()], ids=lambda w: str(w)
)
def test_an_invalid_weight_names_its_learner(weight: float | tuple[float, ...]) -> None:
    hand = two(replace(fedavg(), weighting=given(a=1.0, b=weight)))
    hand.do(trained(0))
    with pytest.raises(ValueError, match=r"Given.*gave the update of learner 'b' the weight .*at least 0") as error:
        hand.do(trained(1))
    assert repr(weight) in str(error.value)


def test_withheld_examples_cannot_be_a_weight() -> None:
    hand = Hand(fedavg(), learners=1)
    hand.do(joined("a", None))
    hand.do(trained(0))
    assert hand.last(Refused) == Refused(0, "a", "too little evidence to weigh it")


@pytest.mark.parametrize("examples", [-5, NAN, "many"], ids=str)
def test_an_invalid_number_of_examples_counts_as_missing(examples: Any) -> None:
    hand = two(fedavg())
    hand.do(joined("b", examples))
    hand.do(trained(0, 1.0))
    hand.do(trained(1, 5.0))
    assert hand.last(Committed).learners == ("a",), "the run goes on with the others"
    assert hand.value == 1.0


def test_a_mixing_coefficient_above_one_names_its_learner() -> None:
    @dataclass(frozen=True)
    class Loud(Weighting):
        at_most_one = True

        def weigh(self, view: View, update: Update) -> float:
            return 3.0

    hand = two(Algorithm("loud", protocol=Stream(), weighting=Loud(), merge=Mix(0.5)))
    with pytest.raises(ValueError, match=r"Mix: alpha 0.5 x weight 3.0 of learner 'a' is above 1"):
        hand.do(trained(0))


# ----------------------------------------------------------------------------------------------------- bad opinions


def asked(sites: str = "bc", own: Scored | None = None, metric: str = "micro_f1", quorum: float = 0.5) -> Hand:
    """An update of learner a on which the opinions of these sites are requested."""
    algorithm = Algorithm("dvw", protocol=Stream(), weighting=ByDistributedValidation(metric, quorum))
    hand = Hand(algorithm, learners=1 + len(sites))
    for name in ("a", *sites):
        hand.do(joined(name, validation=3))
    hand.do(trained(0, 2.0, metrics=Metrics(validation=own)))
    (question,) = hand.questions.values()
    assert question.sites == tuple(sites)
    return hand


def weighed(*said: Said, **settings: Any) -> Hand:
    """One update of learner a with the opinions of b, c and so on."""
    hand = asked("bcde"[: len(said)], **settings)
    (task,) = hand.questions
    hand.do(evaluated(task, *said))
    return hand


INVALID = {
    "negative counts": (
        Scored(4, 1.0, np.array([[-9, 0], [0, 13]])),
        "a confusion matrix that does not count 4 examples",
    ),
    "counts that do not add up": (
        Scored(5, 1.0, np.array([[1, 0], [0, 3]])),
        "a confusion matrix that does not count 5 examples",
    ),
}
"""Answers of one site, and why they are refused."""
WRONG_SHAPE = {
    "no matrix": (Scored(4, 1.0, np.array([1, 3])), "a confusion matrix of shape (2,)"),
    "not square": (Scored(4, 1.0, np.array([[1, 3]])), "a confusion matrix of shape (1, 2)"),
    "empty": (Scored(0, 0.0, np.zeros((0, 0), dtype=int)), "a confusion matrix of shape (0, 0)"),
    "three classes": (Scored(3, 1.0, np.eye(3, dtype=int)), "a confusion matrix of 3 classes, the task has 2"),
    "an uncalled-for histogram": (
        replace(scored(4), histogram=np.zeros((2, 2, 3), dtype=int)),
        "a histogram of scores of shape (2, 2, 3)",
    ),
}
"""Answers in tables of another shape, and why all of them are refused."""
USELESS: dict[str, Scored | Consistent] = {"no confusion": Scored(4, 1.0), "another kind": Consistent((1.0, 1.0))}
"""Answers that are valid and not what the weighting needs."""


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_opinion_does_not_end_the_run(what: str) -> None:
    hand = weighed(INVALID[what][0], (3, 1), own=scored(1, 1))
    assert hand.last(Committed).weights == (((1 + 3) / 6,) * 2,), "it is weighed by what the others say"


@pytest.mark.parametrize("what", [*INVALID, *WRONG_SHAPE, *USELESS])
def test_if_no_opinion_is_valid_the_update_is_left_out(what: str) -> None:
    useless = USELESS[what] if what in USELESS else (INVALID | WRONG_SHAPE)[what][0]
    hand = weighed(useless, useless, own=scored(1, 1))
    assert hand.state.version == 0
    assert hand.last(Refused) == Refused(0, "a", "too little evidence to weigh it")


@pytest.mark.parametrize("what", [*INVALID, *WRONG_SHAPE, *USELESS])
def test_an_invalid_score_does_not_end_the_run(what: str) -> None:
    useless = USELESS[what] if what in USELESS else (INVALID | WRONG_SHAPE)[what][0]
    hand = Hand(fedavg(), learners=2, evaluation=Evaluation(at="learners"))
    hand.play(
        (joined("a", test=3),),
        (joined("b", test=3), "score a b v0", "train 0 a v0", "train 1 b v0"),
    )
    hand.do(tried("v0", useless, useless))
    hand.play((trained(0),), (trained(1), "v1 <- 0 1", "score a b v1", "train 2 a v1", "train 3 b v1"))


@pytest.mark.parametrize("place", range(3), ids="bcd".__getitem__)
@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_opinion_among_valid_ones_is_refused_by_name_and_the_others_count(what: str, place: int) -> None:
    invalid, reason = INVALID[what]
    said: list[Said] = [(3, 1), (1, 2)]
    said.insert(place, invalid)
    hand = weighed(*said, own=scored(1, 1))
    (task,) = hand.questions
    assert hand.all(Refused) == [Refused(task, "bcd"[place], reason)]
    assert hand.last(Committed).weights == (((1 + 3 + 1) / (2 + 4 + 3),) * 2,)


@pytest.mark.parametrize("what", WRONG_SHAPE)
def test_every_opinion_of_another_shape_is_refused_by_name_and_a_missing_one_is_not(what: str) -> None:
    invalid, reason = WRONG_SHAPE[what]
    hand = weighed(invalid, None, invalid, own=scored(1, 1), quorum=0.2)
    (task,) = hand.questions
    assert hand.all(Refused) == [Refused(task, "b", reason), Refused(task, "d", reason)]
    assert hand.last(Committed).weights == ((1 / 2,) * 2,), "its own opinion is left"


def test_negative_counts_of_a_histogram_are_refused_by_name() -> None:
    histogram = np.zeros((2, 2, AUC_BINS), dtype=int)
    histogram[:, 1, -1] = histogram[:, 0, 0] = 2  # two of each class, and every score on its side
    sure = Scored(4, 0.0, np.array([[2, 0], [0, 2]]), histogram)
    hand = weighed(replace(sure, histogram=-histogram), sure, metric="auc")
    (task,) = hand.questions
    assert hand.all(Refused) == [Refused(task, "b", "a histogram of scores with negative counts")]
    assert hand.last(Committed).weights == ((1.0, 1.0),)


def test_a_table_holds_answers_of_one_shape() -> None:
    with pytest.raises(ValueError, match=r"ScoreTable: confusion matrices of different shapes, \(2, 2\) and \(3, 3\)"):
        ScoreTable.of([scored(1), Scored(3, 1.0, np.eye(3, dtype=int))])
    with pytest.raises(ValueError, match=r"ScoreTable: histograms of different shapes, None and \(2, 2, 3\)"):
        ScoreTable.of([scored(4), None, WRONG_SHAPE["an uncalled-for histogram"][0]])


def test_another_kind_of_answer_than_was_asked_for_is_impossible() -> None:
    hand = asked("bc")
    (task,) = hand.questions
    with pytest.raises(ImpossibleEvent, match=rf"A tuple in answer to task {task}, which asks for Score\("):
        hand.do(Evaluated(task, (Consistent((1.0, 1.0)), None)))


def test_every_senseless_opinion_is_refused_and_a_missing_one_is_not() -> None:
    senseless, reason = INVALID["negative counts"]
    hand = weighed(senseless, None, (3, 1), senseless, own=scored(1, 1), quorum=0.4)
    (task,) = hand.questions
    assert hand.all(Refused) == [Refused(task, "b", reason), Refused(task, "e", reason)]
    assert hand.last(Committed).weights == (((1 + 3) / (2 + 4),) * 2,)


def test_a_senseless_score_is_refused_by_name_and_the_others_are_written_down() -> None:
    hand = Hand(fedavg(), learners=3, evaluation=Evaluation(at="learners"))
    for name in "abc":
        hand.do(joined(name, test=3))
    hand.play((tried("v0", (3, 1), INVALID["counts that do not add up"][0], (0, 4)), "refused -1 a", "scored v0"))
    assert hand.last(Refused).learner == "b"
    scores = hand.last(Scores)
    assert (scores.metrics["accuracy"], scores.examples, scores.sites) == (3 / 8, 8, 2)


@pytest.mark.parametrize("loss", [NAN, INF, -1e9])
def test_a_loss_that_is_none_is_a_missing_opinion_and_no_veto(loss: float) -> None:
    hand = weighed(Scored(4, loss), Scored(4, 1.0), metric="loss")
    assert hand.last(Committed).weights == ((4.0,) * 2,)  # 1 / (1.0 / 4) by the other alone
    hand = weighed(Scored(4, loss), Scored(4, loss), metric="loss")
    assert hand.last(Refused) == Refused(0, "a", "too little evidence to weigh it")


def test_opinions_on_no_examples_do_not_count_for_the_quorum() -> None:
    hand = weighed(Scored(0, 0.0), Scored(0, 0.0), own=scored(1))
    assert hand.last(Refused) == Refused(0, "a", "too little evidence to weigh it")


@pytest.mark.parametrize("layers", [(NAN, 1.0), (1.0,), (-1.0, 1.0)], ids=str)
def test_an_invalid_consistency_of_home_is_an_error(layers: tuple[float, ...]) -> None:
    # HOME is the controller's own site: a wrong answer there is a bug, not bad luck
    hand = two(rce(buffer=1))
    hand.do(trained(0))
    with pytest.raises(ValueError, match="ByConsistency"):
        hand.do(evaluated(2, Consistent(layers)))


def test_an_update_that_overflows_on_the_stimuli_is_not_consistent() -> None:
    # each layer is finite, so the update is taken; its outputs are not, so it sees no likeness at all
    assert squared_correlation(torch.tensor([NAN, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])) == 0.0


def test_a_missing_consistency_leaves_the_update_out() -> None:
    two(replace(rce(buffer=1), weighting=Product(ByFreshness("inv"), rce().weighting))).play(
        (trained(0), "ask 2 home t0"), (failed(2), "refused 0 too", "train 3 a v0")
    )


# ------------------------------------------------------------------------------------------------ impossible events


@pytest.mark.parametrize(
    "event",
    [
        Answer(7, 1.0),
        evaluated(7),
        failed(7),
        progress(7, 3),
    ],
    ids=["Trained", "Evaluated", "Failed", "Progress"],
)
def test_an_answer_to_a_task_that_was_never_handed_out_is_impossible(event: Trained | Answer) -> None:
    hand = two(fedavg())
    with pytest.raises(ImpossibleEvent, match="task 7, but only"):
        hand.do(event)


def test_an_opinion_in_answer_to_a_training_task_is_impossible() -> None:
    hand = two(fedavg())
    with contextlib.suppress(ImpossibleEvent):
        hand.do(evaluated(0))
    assert 0 in hand.state.out, "the task was closed without a record, and nothing is decided: the round hangs"


def test_an_update_in_answer_to_a_question_is_impossible() -> None:
    hand = two(sync_dvw())
    hand.play((trained(0), "ask 2 b t0"))
    with contextlib.suppress(ImpossibleEvent):
        hand.do(Answer(2, 5.0))
    assert 2 in hand.state.inquiries


@pytest.mark.parametrize("said", [(), ((1, 0),), ((1, 0), None, None)], ids=["none", "too few", "too many"])
def test_more_or_fewer_opinions_than_were_asked_for_are_impossible(said: tuple[tuple[int, int] | None, ...]) -> None:
    hand = asked("bc", own=scored(1, 1))
    (task,) = hand.questions
    opinions = ScoreTable.of([scored(*one) if one is not None else None for one in said])
    with pytest.raises(ImpossibleEvent, match=rf"{len(said)} answers to task {task}.*'b', 'c'"):
        hand.do(Evaluated(task, opinions, Traffic(99)))
    assert task in hand.state.inquiries, "it is still open"
    assert not hand.state.traffic, "and nothing is counted"
    hand.play((evaluated(task, (3, 1), None), "v1 <- 0", f"train {task + 1} a v1"))
    assert hand.last(Committed).weights == (((1 + 3) / 6,) * 2,)


def test_more_scores_than_were_asked_for_are_impossible() -> None:
    hand = Hand(fedavg(), learners=1, evaluation=Evaluation())
    hand.do(joined("a"))
    with pytest.raises(ImpossibleEvent, match=r"2 answers to task -1.*'home'"):
        hand.do(tried("v0", (1, 0), (1, 0)))
    hand.play((tried("v0", (1, 0)), "scored v0"))


def test_nobody_may_join_under_the_name_of_the_controllers_own_site() -> None:
    with pytest.raises((ValueError, ImpossibleEvent), match="home"):
        two(fedavg()).do(joined("home"))


def test_a_server_optimiser_keeps_its_memory_where_nothing_is_refused() -> None:
    hand = two(fedadam(eta=0.1))
    for task, value in enumerate((NAN, 1.0, INF, 1.0)):
        hand.do(trained(task, value))
    assert hand.state.version == 2
    assert torch.isfinite(hand.vector).all()


@dataclass(frozen=True)
class Junk(Merge):
    """A user's merge that forgets to fill in what it proposes."""

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        return Proposal(torch.full((view.layout.size,), NAN), (0, 1))


def test_a_users_merge_cannot_bring_a_nan_into_the_model() -> None:
    hand = two(replace(fedavg(), merge=Junk()))
    hand.do(trained(0))
    hand.do(trained(1))
    assert hand.state.version == 0
    assert {record.reason for record in hand.all(Refused)} == {"the merged model would not be finite"}

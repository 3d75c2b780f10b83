"""Scores from counts: by hand, and against scikit-learn on random predictions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from archipel.core import metrics
from archipel.core.metrics import metric, pooled
from archipel.core.types import Scored, ScoreTable

few = settings(max_examples=30)

# rows are what an example is, columns what it was taken for (Metis section IV)
HAND = np.array([[5, 1, 0], [2, 3, 1], [0, 2, 6]])


def counted(actual: list[int], predicted: list[int], classes: int) -> np.ndarray:
    found: np.ndarray = sk.confusion_matrix(actual, predicted, labels=range(classes))
    return found


@st.composite
def predictions(draw: Any, classes: int | None = None) -> Any:
    """Labels and guesses of up to 40 examples, often with classes that are not there."""
    classes = classes or draw(st.integers(2, 6))
    pairs = draw(st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=40))
    return [a for a, _ in pairs], [p for _, p in pairs], classes


# ----------------------------------------------------------------------------------------------------- by hand


def test_micro_f1_is_equation_3_of_metis() -> None:
    # TP = 5 + 3 + 6 = 14; FP by columns: (7 - 5) + (6 - 3) + (7 - 6) = 6; FN by rows: (6 - 5) + (6 - 3) + (8 - 6) = 6
    # 2 TP / (2 TP + FP + FN) = 28 / (28 + 6 + 6) = 0.7
    assert metrics.micro_f1(HAND) == 0.7


def test_accuracy_is_formula_11_of_fed2a() -> None:
    # 14 of 20 right; for two classes (TP + TN) / all: (7 + 5) / 16
    assert metrics.accuracy(HAND) == 0.7
    assert metrics.accuracy(np.array([[5, 3], [1, 7]])) == 0.75


def test_macro_f1_is_the_mean_over_classes() -> None:
    # F1 = 2 tp / (2 tp + fp + fn): 10 / (10 + 2 + 1) = 10/13; 6 / (6 + 3 + 3) = 1/2; 12 / (12 + 1 + 2) = 4/5
    # mean = (100 + 65 + 104) / 130 / 3 = 269 / 390
    assert metrics.macro_f1(HAND) == pytest.approx(269 / 390, rel=1e-15)


def test_weighted_f1_weighs_the_classes_by_their_examples() -> None:
    # F1 as above: 10/13, 1/2 and 4/5, of 6, 6 and 8 examples: (60/13 + 3 + 6.4) / 20
    assert metrics.weighted_f1(HAND) == pytest.approx((60 / 13 + 3 + 6.4) / 20, rel=1e-15)


def test_weighted_f1_as_the_mean_of_learners() -> None:
    # RADFed: each learner's own weighted F1, then their plain mean, however many examples they have
    one, other = np.array([[4, 0], [0, 0]]), np.array([[1, 1], [1, 5]])  # 1, and (2 x 1/2 + 6 x 5/6) / 8 = 3/4
    answers = ScoreTable.of([Scored(4, 0.0, one), Scored(8, 0.0, other)])
    assert metrics.metrics_of(answers, "learners")["weighted_f1"] == pytest.approx((1 + 3 / 4) / 2, rel=1e-15)
    together = metrics.weighted_f1(one + other)
    assert metrics.metrics_of(answers, "examples")["weighted_f1"] == together != pytest.approx(7 / 8)


def test_binary_f1_is_that_of_class_one() -> None:
    # class 1: tp 7, fp 3, fn 1: 14 / 18; class 0 would give 10 / 14
    assert metrics.binary_f1(np.array([[5, 3], [1, 7]])) == pytest.approx(7 / 9, rel=1e-15)
    with pytest.raises(ValueError, match="two classes, this task has 3; use 'macro_f1'"):
        metrics.binary_f1(HAND)


def test_geometric_mean_of_recalls() -> None:
    # recalls 5/6, 3/6, 6/8: the cube root of 0.3125
    assert metrics.geometric_mean(HAND) == pytest.approx(0.3125 ** (1 / 3), rel=1e-14)


def test_geometric_mean_sees_an_imbalance_that_accuracy_hides() -> None:
    # all 96 examples of class 0 are found, none of the four of class 1
    lazy = np.array([[96, 0], [4, 0]])
    assert metrics.accuracy(lazy) == 0.96
    assert metrics.geometric_mean(lazy) == 0.0
    # half of the small class found, all of the large one: sqrt(1 x 1/2)
    assert metrics.geometric_mean(np.array([[96, 0], [2, 2]])) == pytest.approx(math.sqrt(0.5), rel=1e-15)


def test_matthews_of_two_classes() -> None:
    # tp 7, tn 5, fp 3, fn 1: (35 - 3) / sqrt(10 x 8 x 8 x 6) = 32 / sqrt(3840)
    assert metrics.matthews(np.array([[5, 3], [1, 7]])) == pytest.approx(32 / math.sqrt(3840), rel=1e-14)
    assert metrics.matthews(np.array([[0, 4], [4, 0]])) == pytest.approx(-1.0, rel=1e-14)


def test_matthews_is_zero_where_it_is_undefined() -> None:
    assert metrics.matthews(np.array([[3, 0], [5, 0]])) == 0.0  # one guess for all
    assert metrics.matthews(np.array([[8, 0], [0, 0]])) == 0.0  # one class only


def test_auc_counts_pairs_and_halves_ties() -> None:
    # scores by bin: others at 0, 1, 1, 3; own at 1, 2, 3, 3
    # own 1: above 0, ties with two = 1 + 1 = 2; own 2: above 3; own 3: above 3, ties with one = 3.5, twice
    # (2 + 3 + 3.5 + 3.5) / 16 = 0.75
    of_class_1 = [[1, 2, 0, 1], [0, 1, 1, 2]]
    of_class_0 = [[2, 1, 1, 0], [1, 0, 2, 1]]  # bins reversed: not looked at where there are two classes
    assert metrics.auc(np.array([of_class_0, of_class_1])) == 0.75
    of_class_2 = [[4, 0, 0, 0], [0, 0, 0, 4]]  # 1.0
    # three classes: class 0 has others 0 0 1 2 and own 0 2 2 3: (1 + 3.5 + 3.5 + 4) / 16 = .75
    # the mean: (.75 + .75 + 1) / 3
    assert metrics.auc(np.array([of_class_0, of_class_1, of_class_2])) == pytest.approx(2.5 / 3, rel=1e-15)


def test_auc_leaves_out_classes_that_have_no_pairs() -> None:
    nobody = [[1, 3], [0, 0]]
    everybody = [[0, 0], [2, 2]]
    right = [[4, 0], [0, 4]]
    assert metrics.auc(np.array([nobody, everybody, right])) == 1.0
    assert math.isnan(metrics.auc(np.array([nobody, everybody, nobody])))
    assert math.isnan(metrics.auc(np.array([right, everybody])))  # of two classes the second counts


# ------------------------------------------------------------------------------------------- against scikit-learn


@pytest.mark.slow
@few
@given(predictions())
@example(([0, 0], [0, 0], 2))
@example(([1, 1, 1], [0, 0, 0], 4))
@pytest.mark.filterwarnings("ignore:A single label was found")
def test_scores_agree_with_scikit_learn(data: Any) -> None:
    actual, predicted, classes = data
    confusion = counted(actual, predicted, classes)
    close = pytest.approx
    assert metrics.accuracy(confusion) == close(sk.accuracy_score(actual, predicted), rel=1e-14)
    assert metrics.micro_f1(confusion) == close(sk.f1_score(actual, predicted, average="micro"), rel=1e-14)
    assert metrics.macro_f1(confusion) == close(sk.f1_score(actual, predicted, average="macro"), rel=1e-14)
    assert metrics.weighted_f1(confusion) == close(sk.f1_score(actual, predicted, average="weighted"), rel=1e-14)
    assert metrics.matthews(confusion) == close(sk.matthews_corrcoef(actual, predicted), rel=1e-12, abs=1e-14)
    recalls = sk.recall_score(actual, predicted, labels=sorted(set(actual)), average=None)
    assert metrics.geometric_mean(confusion) == close(scipy.stats.gmean(recalls), rel=1e-12, abs=1e-300)


@pytest.mark.slow
@few
@given(predictions(classes=2))
def test_binary_f1_agrees_with_scikit_learn(data: Any) -> None:
    actual, predicted, _ = data
    found = metrics.binary_f1(counted(actual, predicted, 2))
    if 1 in actual or 1 in predicted:
        assert found == pytest.approx(sk.f1_score(actual, predicted), rel=1e-14)
    else:
        assert math.isnan(found)  # scikit-learn has to be told what to say here


@pytest.mark.slow
@few
@given(st.integers(2, 5), st.data())
def test_auc_agrees_with_scikit_learn(classes: int, data: Any) -> None:
    bins = 8
    n = data.draw(st.integers(2, 40))
    label = st.integers(0, classes - 1)
    actual = np.array(data.draw(st.lists(label, min_size=n, max_size=n)))
    level = np.array(data.draw(st.lists(st.integers(0, bins - 1), min_size=n * classes, max_size=n * classes)))
    level = level.reshape(n, classes)
    histogram = np.zeros((classes, 2, bins), dtype=np.int64)
    for own, levels in zip(actual, level, strict=True):
        for c in range(classes):
            histogram[c, int(own == c), levels[c]] += 1
    asked = range(classes) if classes > 2 else [1]
    areas = [sk.roc_auc_score(actual == c, level[:, c]) for c in asked if 0 < (actual == c).sum() < n]
    if areas:
        assert metrics.auc(histogram) == pytest.approx(np.mean(areas), rel=1e-12)
    else:
        assert math.isnan(metrics.auc(histogram))


@few
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=6))
def test_no_score_is_above_one(sizes: Any) -> None:
    # Mix takes such a weight as its mixing coefficient, and 1 + 2e-16 is more than all
    confusion = np.diag(sizes)
    for compute in (metrics.accuracy, metrics.micro_f1, metrics.macro_f1, metrics.geometric_mean, metrics.matthews):
        value = compute(confusion)
        assert math.isnan(value) or value <= 1.0, compute.__name__


# -------------------------------------------------------------------------------------------- answers and names


@few
@given(predictions(), st.integers(0, 40))
def test_pooled_answers_are_the_answer_of_one_place(data: Any, cut: Any) -> None:
    actual, predicted, classes = data
    parts = [slice(0, cut), slice(cut, None)]
    answers = [
        Scored(len(actual[p]), float(sum(actual[p])), counted(actual[p], predicted[p], classes))
        for p in parts
        if actual[p]
    ]
    together = pooled(ScoreTable.of(answers))
    assert together.count == len(actual)
    assert together.loss == sum(actual)
    assert together.confusion is not None
    assert np.array_equal(together.confusion, counted(actual, predicted, classes))
    assert together.histogram is None


def test_pooled_adds_histograms_and_leaves_out_who_has_none() -> None:
    one = Scored(1, 0.5, None, np.array([[[1, 0], [0, 2]]]))
    two = Scored(2, 1.5, None, np.array([[[3, 1], [1, 0]]]))
    together = pooled(*(ScoreTable.of([scored]) for scored in (one, Scored(3, 1.0), two)))
    assert (together.count, together.loss) == (6, 3.0)
    assert together.histogram is not None
    assert together.histogram.tolist() == [[[4, 1], [1, 2]]]
    assert together.confusion is None


def test_answers_in_columns_are_pooled_as_they_are_one_by_one() -> None:
    draw = np.random.default_rng(0)
    confusion, histogram = draw.integers(9, size=(5, 3, 3)), draw.integers(9, size=(5, 3, 2, 4))
    columns = ScoreTable(confusion.sum(axis=(1, 2)), draw.random(5), confusion, histogram)
    own = Scored(1, 0.1, np.eye(3, dtype=np.int64))
    together, one_by_one = (
        pooled(ScoreTable.of([own]), columns),
        pooled(*(ScoreTable.of([scored]) for scored in (own, *columns))),
    )
    assert (together.count, together.loss) == (one_by_one.count, one_by_one.loss)
    assert together.confusion is not None
    assert together.histogram is not None
    np.testing.assert_array_equal(together.confusion, one_by_one.confusion)
    np.testing.assert_array_equal(together.histogram, one_by_one.histogram)


def test_pooled_scores_are_not_the_mean_of_scores() -> None:
    # 1 of 1 right and 0 of 3 right: 1 of 4, not one half
    small, large = Scored(1, 0.0, np.array([[1, 0], [0, 0]])), Scored(3, 0.0, np.array([[0, 3], [0, 0]]))
    assert metric("accuracy", pooled(ScoreTable.of([small, large]))) == 0.25


def test_mean_loss() -> None:
    assert metric("loss", Scored(4, 3.0)) == 0.75


@pytest.mark.parametrize("name", sorted(metrics.METRICS))
def test_nothing_is_scored_on_no_examples(name: str) -> None:
    empty = Scored(0, 0.0, np.zeros((2, 2), dtype=np.int64), np.zeros((2, 2, 4), dtype=np.int64))
    assert math.isnan(metric(name, empty))
    assert math.isnan(metric(name, pooled(ScoreTable.of([empty, empty]))))
    assert math.isnan(metric(name, pooled()))


def test_counts_of_nothing_give_nothing() -> None:
    nothing = np.zeros((3, 3), dtype=np.int64)
    for compute in (metrics.accuracy, metrics.micro_f1, metrics.macro_f1, metrics.geometric_mean, metrics.matthews):
        assert math.isnan(compute(nothing)), compute.__name__


def test_large_counts_do_not_overflow() -> None:
    # int64 would: n^2 is 9e18 x 4
    assert metrics.matthews(np.array([[3 * 10**9, 0], [0, 3 * 10**9]])) == pytest.approx(1.0)


def test_metrics_by_name() -> None:
    scored = Scored(20, 30.0, HAND)
    assert metric("micro_f1", scored) == 0.7
    assert metric("loss", scored) == 1.5
    with pytest.raises(ValueError, match=r"'mathews' is not known\. Did you mean 'matthews'"):
        metric("mathews", scored)
    with pytest.raises(ValueError, match="accuracy needs classes, and this task has none; use the metric 'loss'"):
        metric("accuracy", Scored(3, 1.0))
    with pytest.raises(ValueError, match=r"auc needs a histogram of class scores; ask with Score\(part, bins=1024\)"):
        metric("auc", scored)


def test_losses_are_better_when_lower() -> None:
    assert [name for name in metrics.METRICS if not metrics.higher_is_better(name)] == ["loss", "perplexity"]


def test_tokens_of_sites_add_up() -> None:
    sites = [Scored(1, 2.0, tokens=np.array([3, 1])), None, Scored(5, 7.0, tokens=np.array([0, 5]))]
    together = pooled(ScoreTable.of(sites))
    assert metric("loss", together) == 9.0 / 9
    assert metric("perplexity", together) == pytest.approx(math.e)
    assert metric("token_accuracy", together) == 6 / 9
    assert metric("perplexity", Scored(1, 1e6, tokens=np.array([1, 0]))) == math.inf
    assert set(metrics.metrics_of(ScoreTable.of(sites), "learners")) == {"loss", "perplexity", "token_accuracy"}
    assert metrics.metrics_of(ScoreTable.of(sites), "learners")["token_accuracy"] == (1 / 4 + 1) / 2
    with pytest.raises(ValueError, match="token_accuracy needs a target for every token, and this task has none; use"):
        metric("token_accuracy", Scored(3, 1.0))


def test_a_share_of_the_tokens_is_capped_by_examples() -> None:
    sites = ScoreTable.of([Scored(90, 90.0, tokens=np.array([90, 0])), Scored(10, 0.0, tokens=np.array([0, 10]))])
    # each counts half: of 100 tokens 50 are right
    assert metric("token_accuracy", pooled(sites, most_share=0.5)) == 0.5

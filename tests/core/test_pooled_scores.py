"""Scores as whole numbers: what they add up to, and what no learners can have sent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipel.core.metrics import pooled
from archipel.core.pooled_scores import LARGEST, STEP, ImpossibleScores, ScoreNumbers
from archipel.core.scored import Scored, ScoreTable
from archipel.core.sparse_counts import MANY_CLASSES, SparseCounts


def score(draws: np.random.Generator, classes: int, bins: int) -> Scored:
    count = int(draws.integers(0, 50))
    cells = draws.multinomial(count, np.full(classes**2, classes**-2.0)).reshape(classes, classes)
    histogram = np.stack([draws.multinomial(count, np.full(2 * bins, 0.5 / bins)) for _ in range(classes)])
    return Scored(count, float(draws.normal(3.0, 2.0)) * count, cells, histogram.reshape(classes, 2, bins))


@given(seed=st.integers(0, 10**6), learners=st.integers(1, 9), classes=st.integers(1, 5), bins=st.integers(1, 4))
def test_sums_of_numbers_are_the_pooled_score(seed: int, learners: int, classes: int, bins: int) -> None:
    draws = np.random.default_rng(seed)
    scores = [score(draws, classes, bins) for _ in range(learners)]
    numbers = ScoreNumbers(classes, bins)
    total = np.sum([numbers.encode(one).view("<u8") for one in scores], axis=0, dtype="<u8")
    found, plain = numbers.decode(total, learners), pooled(ScoreTable.of(scores))
    assert found.count == plain.count
    assert np.array_equal(np.asarray(found.confusion), np.asarray(plain.confusion))
    assert np.array_equal(found.histogram, plain.histogram)  # type: ignore[arg-type]
    assert abs(found.loss - plain.loss) <= learners * STEP / 2 + 1e-9


def test_tokens_many_classes_and_tasks_without_classes() -> None:
    texts = ScoreNumbers(None, per_token=True)
    assert texts.decode(texts.encode(Scored(2, 1.5, tokens=np.array([3, 4]))), 1).tokens.tolist() == [3, 4]  # type: ignore[union-attr]
    plain = ScoreNumbers(None)
    assert plain.decode(plain.encode(Scored(2, -1.5)), 1).loss == -1.5
    cells = SparseCounts.at((MANY_CLASSES, MANY_CLASSES), np.array([0, 5]), np.array([1, 2]))
    many = ScoreNumbers(MANY_CLASSES)
    found = many.decode(many.encode(Scored(3, 1.0, cells)), 1)
    assert np.flatnonzero(np.asarray(found.confusion)).tolist() == [0, 5]


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e300])
def test_a_loss_beyond_all_bounds_is_the_largest(loss: float) -> None:
    numbers = ScoreNumbers(None)
    assert numbers.decode(numbers.encode(Scored(1, loss)), 1).loss == LARGEST
    assert numbers.decode(numbers.encode(Scored(1, loss)) * 100_000, 100_000).loss == 100_000 * LARGEST, "no wrap"


@pytest.mark.parametrize(
    "total",
    [
        [-1, 0, 0, 0, 0, 0],
        [3, 0, 4, -1, 0, 0],
        [3, 2**62, 3, 0, 0, 0],
        [3, -(2**62), 3, 0, 0, 0],
    ],
)
def test_what_learners_cannot_have_sent_is_refused(total: list[int]) -> None:
    with pytest.raises(ImpossibleScores, match=r"the scores of 3 learners add up to .* something else than its score"):
        ScoreNumbers(2).decode(np.array(total, np.int64).view("<u8"), 3)


def test_a_histogram_counts_every_example_for_every_class() -> None:
    total = np.array([1, 0, 1, 0, 0, 0, 1, 0, 0, 0], np.int64)
    with pytest.raises(ImpossibleScores, match="impossible counts of histogram"):
        ScoreNumbers(2, 1).decode(total, 1)


def test_a_score_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"confusion of a score has the shape \(3, 3\), and the task's is \(2, 2\)"):
        ScoreNumbers(2).encode(Scored(3, 1.0, np.eye(3, dtype=np.int64)))

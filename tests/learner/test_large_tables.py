"""Answers of ten thousand sites take time and memory in proportion to them, and not to their square."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.assembly.contexts import context_of
from archipel.core.metrics import pooled
from archipel.core.scored import Scored, ScoreTable
from archipel.core.shares import cap
from archipel.learner.probes import Parts, score_parts

SITES, CLASSES = 200, 10


class Ascending(tuple[int, ...]):
    """Numbers that are not to be searched one by one."""

    __slots__ = ()

    def __contains__(self, number: object) -> bool:
        raise AssertionError("a search one by one")


def test_a_missing_row_is_found_without_a_search_one_by_one() -> None:
    counts = np.arange(1, 7)
    table = ScoreTable(counts, np.zeros(6), None, None, Ascending((1, 4)))
    assert [None if one is None else one.count for one in table] == [1, None, 3, 4, None, 6]


def test_a_pass_counts_in_the_cells_of_its_own_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ap.data.digits().split(learners=SITES, test="none")
    work = replace(context_of(data, None, None, 0, "cpu"), rows=16)
    parts = Parts.of([learner.train for learner in data.learners])
    bincount, cells = torch.bincount, list[int]()

    def counted(*given: Any, minlength: int = 0) -> torch.Tensor:
        cells.append(minlength)
        return bincount(given[0], minlength=minlength)

    monkeypatch.setattr(torch, "bincount", counted)
    table = score_parts(work, work.layout.vector(work.module), parts)
    passes = len(cells)
    assert passes > 50
    assert sum(cells) <= CLASSES**2 * (SITES + passes)
    assert table.confusion is not None
    assert table.confusion.sum(axis=(1, 2)).tolist() == parts.sizes.tolist()
    for site in (0, 77, SITES - 1):
        alone = score_parts(work, work.layout.vector(work.module), Parts.of([data.learners[site].train]))
        assert alone.confusion is not None
        assert np.array_equal(table.confusion[site], alone.confusion[0])
        assert table.losses[site] == pytest.approx(alone.losses[0])


def test_nobody_was_asked() -> None:
    data = ap.data.digits().split(learners=2, test="none")
    work = context_of(data, None, None, 0, "cpu")
    table = score_parts(work, work.layout.vector(work.module), Parts.of([data.learners[0].train[:0]]))
    assert table.counts.tolist() == [0]


def test_a_pooled_score_with_a_cap_takes_no_second_table() -> None:
    matrix = np.diag(np.arange(1, CLASSES + 1))
    answers = [Scored(int(matrix.sum()), 1.0, matrix) for _ in range(2 * SITES)]
    answers[0] = Scored(10**6 * int(matrix.sum()), 1.0, 10**6 * matrix)
    table = ScoreTable.of(answers)
    assert table.confusion is not None
    tracemalloc.start()
    found = pooled(table, most_share=0.25)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < table.confusion.nbytes / 2
    shares = np.array(cap(table.counts.tolist(), 0.25)) / table.counts
    by_hand = (shares[:, None, None] * table.confusion).sum(axis=0)
    assert found.confusion is not None
    np.testing.assert_allclose(found.confusion / found.confusion.sum(), by_hand / by_hand.sum())

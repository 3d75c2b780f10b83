"""Learners as rows of arrays: the same as one object for each."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archipel.data import Island, from_arrays
from archipel.data.home_tests import HomeTests
from archipel.data.index_table import IndexTable, class_counts
from archipel.data.island_table import IslandTable
from archipel.data.splits import own_test

parts = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True), min_size=1, max_size=6)


def tensors(given: list[list[int]]) -> list[Tensor]:
    return [torch.tensor(part, dtype=torch.int64) for part in given]


@given(parts, st.data())
@settings(max_examples=60, deadline=None)
def test_a_table_is_a_list_of_index_arrays(given: list[list[int]], data: st.DataObject) -> None:
    table = IndexTable.of(tensors(given))
    assert [part.tolist() for part in table] == given
    assert table.sizes.tolist() == [len(part) for part in given]
    assert table.distinct()
    assert table.times(10).tolist() == [sum(index in part for part in given) for index in range(10)]
    labels = torch.arange(10) % 3
    counts = class_counts(labels, table, 3).tolist()
    assert counts == [[sum(index % 3 == kind for index in part) for kind in range(3)] for part in given]
    kept = table.where(table.indices % 2 == 0)
    assert [part.tolist() for part in kept] == [[index for index in part if index % 2 == 0] for part in given]
    odd = table.where(table.indices % 2 == 1)
    assert [part.tolist() for part in kept.joined(odd)] == [sorted(part) for part in given]
    row = data.draw(st.integers(0, len(given) - 1))
    other = data.draw(st.lists(st.integers(0, 9), max_size=4))
    replaced = table.replaced({row: torch.tensor(other, dtype=torch.int64)})
    assert [part.tolist() for part in replaced] == [*given[:row], other, *given[row + 1 :]]


def test_a_repeated_index_is_noticed_only_within_a_learner() -> None:
    assert IndexTable.of(tensors([[1, 2], [2, 1]])).distinct()
    assert not IndexTable.of(tensors([[1, 2], [3, 4, 3]])).distinct()


def test_indices_are_grouped_in_their_order() -> None:
    table = IndexTable.grouped(np.array([9, 7, 5, 3, 1]), np.array([1, 0, 1, 4, -1]), 4)
    assert [part.tolist() for part in table] == [[7], [9, 5], [], []]


def test_tests_out_of_home_have_the_sizes_that_are_told_without_drawing_them() -> None:
    draw = np.random.default_rng(3)
    for classes in (2, 5, 9):
        labels = draw.integers(0, classes, 300)
        labels[:40] = draw.integers(0, max(1, classes - 2), 40)  # the test set may lack classes
        train = IndexTable.grouped(np.arange(40, 300), draw.integers(0, 60, 260), 60)
        train = IndexTable.of(part for part in train if len(part))
        tests = HomeTests(labels, train, torch.arange(40), seed=1)
        assert tests.sizes.tolist() == [len(part) for part in tests]
        first = own_test(labels[train[0].numpy()], labels[:40], (1, "data", "own test", 0))
        assert tests[0].tolist() == np.flatnonzero(first).tolist()
        assert tests.replaced({2: torch.tensor([250])}).sizes[2] == 1
        assert tests.distinct()


def test_rows_are_islands() -> None:
    islands = (
        Island("a", torch.tensor([3, 1]), torch.tensor([5])),
        Island("b", torch.tensor([2]), torch.tensor([], dtype=torch.int64), "test"),
    )
    table = IslandTable.of(islands)
    assert [(one.name, one.train.tolist(), one.test.tolist(), one.role) for one in table] == [
        ("a", [3, 1], [5], "train"),
        ("b", [2], [], "test"),
    ]
    assert table[-1].name == "b"
    assert [one.name for one in table[:1]] == ["a"]
    assert table.has("train").tolist() == [True, False]
    with pytest.raises(IndexError):
        table[2]


@pytest.mark.slow
def test_a_split_over_many_learners_keeps_no_object_for_each() -> None:
    import tracemalloc

    learners = 2_000
    y = torch.arange(10 * learners) % 10
    source = from_arrays(torch.zeros(len(y), 1), y)
    tracemalloc.start()
    try:
        islands = source.split(learners, test=0.1)
        kept = tracemalloc.get_traced_memory()[0] / learners
    finally:
        tracemalloc.stop()
    assert len(islands.learners) == learners
    # its name, its rows of starts, roles and sizes, and nine indices; an island object of two tensors takes 1,500
    assert kept < 400

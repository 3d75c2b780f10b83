"""Confusion matrices of many classes: the numbers of whole ones, to the bit, in memory that follows the examples."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import archipel as ap
from archipel.core import scored, sparse_counts
from archipel.core.metrics import metrics_of, pooled
from archipel.core.scored import Scored, ScoreTable
from archipel.core.sparse_counts import MANY_CLASSES, SparseCounts
from archipel.core.types import Evaluated
from archipel.executors import native
from archipel.federation.storage.durable_controller import CODEC
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.learner import probes
from archipel.simulation.attacks import inflated

CLASSES, SITES = 1000, 300


def matrices(sites: int, classes: int, examples: int) -> Iterator[NDArray[np.int64]]:
    """Return confusion matrices of so many examples each."""
    draw = np.random.default_rng(sites)
    for _ in range(sites):
        matrix = np.zeros((classes, classes), np.int64)
        np.add.at(matrix, (draw.integers(classes, size=examples), draw.integers(classes, size=examples)), 1)
        yield matrix


def tables(sites: int = 7, classes: int = MANY_CLASSES) -> tuple[ScoreTable, ScoreTable]:
    """Return the same answers, the confusion matrices once whole and once without their zeros."""
    whole = np.array([*matrices(sites, classes, 50)])
    counts, losses = whole.sum(axis=(1, 2)), np.random.default_rng(1).random(sites)
    return ScoreTable(counts, losses, whole, None), ScoreTable(counts, losses, SparseCounts.of(whole), None)


def same(one: ScoreTable, other: ScoreTable) -> None:
    assert one.counts.tolist() == other.counts.tolist()
    assert one.missing == other.missing
    np.testing.assert_array_equal(np.asarray(one.confusion), np.asarray(other.confusion))


def test_it_is_the_array_without_its_zeros() -> None:
    for whole in (np.array([[[0, 3], [0, 0]], [[0, 0], [0, 0]], [[1, 0], [-2, 5]]]), np.zeros((2, 2, 2), np.int64)):
        sparse = SparseCounts.of(whole)
        assert (sparse.shape, sparse.size, len(sparse)) == (whole.shape, whole.size, len(whole))
        np.testing.assert_array_equal(np.asarray(sparse), whole)
        assert len(sparse.counts) == np.count_nonzero(whole)
        assert sparse.sum() == whole.sum()
        assert sparse.sum(axis=0).tolist() == whole.sum(axis=0).tolist()
        assert sparse.sum(axis=(1, 2)).tolist() == whole.sum(axis=(1, 2)).tolist()
        assert sparse.min() == whole.min()
        assert sparse.min(axis=(1, 2)).tolist() == np.minimum(0, whole.min(axis=(1, 2))).tolist()
        assert [np.asarray(row).tolist() for row in sparse] == whole.tolist()
        assert np.asarray(sparse[1:]).tolist() == whole[1:].tolist()
        assert np.asarray(sparse.without([0])).tolist() == [[[0, 0], [0, 0]], *whole[1:].tolist()]
        again = SparseCounts.stack([*sparse, None], (2, 2))
        assert np.asarray(again).tolist() == [*whole.tolist(), [[0, 0], [0, 0]]]


def test_places_beyond_two_thousand_million_are_kept() -> None:
    table = SparseCounts.stack([None, SparseCounts.of(np.eye(2, dtype=np.int64))], (2, 2))
    far = SparseCounts.at((3000, CLASSES, CLASSES), np.array([2999 * CLASSES**2 + 7]), np.array([4]))
    assert (far[2999].places.tolist(), far[2999].counts.tolist()) == ([7], [4])
    assert table.places.dtype == far[2999].places.dtype == np.int32
    assert far.sum(axis=(1, 2))[2999] == 4


@pytest.mark.parametrize("most_share", [1.0, 0.15])
def test_scores_are_the_same_to_the_bit(most_share: float) -> None:
    dense, sparse = tables()
    dense, sparse = (inflated(table, [1, 5, 1, 2, 1, 1, 9]).without([3]) for table in (dense, sparse))
    same(dense, sparse)
    same(dense.rows(1, 5), sparse.rows(1, 5))
    one, other = (pooled(table, table.rows(0, 2), most_share=most_share) for table in (dense, sparse))
    assert one.confusion is not None
    assert isinstance(other.confusion, np.ndarray)
    assert one.confusion.tobytes() == other.confusion.tobytes()  # type: ignore[union-attr]
    for mean in ("examples", "learners"):
        found = metrics_of(sparse, mean, most_share)
        assert found == metrics_of(dense, mean, most_share)
        assert {"accuracy", "macro_f1", "matthews"} <= found.keys()


def test_answers_of_many_classes_become_such_a_table() -> None:
    dense, sparse = tables()
    answers = [dense.row(0), None, sparse.row(2)]
    table = ScoreTable.of(answers)
    assert isinstance(table.confusion, SparseCounts)
    same(table, dense.rows(0, 3).without([1]))
    few, _ = tables(classes=MANY_CLASSES - 1)
    assert isinstance(ScoreTable.of([*few]).confusion, np.ndarray), "fewer are whole, as before"
    own = dense.row(0)
    assert own is not None
    same(own.as_table(), dense.rows(0, 1))


@pytest.mark.slow
def test_a_thousand_classes_at_many_sites_take_the_memory_and_the_bytes_of_their_examples() -> None:
    """Whole matrices of 300 sites took 2.4 GB, and 3.2 GB in the journal, which wrote so many in full."""
    examples = 100
    said = [
        messages.encode_scored(Scored(examples, 1.0, matrix)).SerializeToString()
        for matrix in matrices(SITES, CLASSES, examples)
    ]
    assert max(map(len, said)) < 8 * examples
    tracemalloc.start()
    heard = [messages.decode_scored(pb.Scored.FromString(one), count=examples, classes=CLASSES, bins=0) for one in said]
    table = ScoreTable.of(heard)
    together = pooled(table, most_share=0.5)
    text = CODEC.text(Evaluated(3, table))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * 8 * CLASSES**2, "a few matrices for the sum, however many sites there are"
    assert len(text) < 30 * examples * SITES
    back = CODEC.value(text).results
    assert isinstance(back.confusion, SparseCounts)
    assert isinstance(together.confusion, np.ndarray)
    for row, matrix in enumerate(matrices(SITES, CLASSES, examples)):
        together.confusion[:] -= matrix
        np.testing.assert_array_equal(np.asarray(back.confusion[row]), matrix)
    assert not together.confusion.any()


def test_a_snapshot_keeps_it(tmp_path: object) -> None:
    path = tmp_path / "saved"  # type: ignore[operator]
    _, sparse = tables()
    CODEC.save(path, sparse)
    same(CODEC.load(path), sparse)


def test_a_table_of_an_older_journal_counts() -> None:
    """It has whole matrices of many classes."""
    dense, sparse = tables()
    back = CODEC.value(CODEC.text(Evaluated(3, dense))).results
    assert isinstance(back.confusion, np.ndarray)
    assert metrics_of(back, "examples") == metrics_of(sparse, "examples")


@pytest.mark.parametrize("execution", ["plain", "stacked", "native"])
def test_a_run_is_the_same_with_whole_matrices(
    execution: Literal["plain", "stacked", "native"], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(900, 6))).float()
    y = torch.from_numpy(draw.permutation(np.arange(900) % 140))
    data = ap.data.from_arrays(x, y).split(3, test="0.2")

    def simulated() -> ap.Run:
        algorithm = ap.algorithms.sync_dvw()
        return ap.simulate(algorithm, data, ending=ap.Ending(rounds=2), execution=execution)

    sparse = simulated()
    for module in (scored, probes, messages, native, sparse_counts):
        monkeypatch.setattr(module, "MANY_CLASSES", 1 << 30)
    whole = simulated()
    assert torch.equal(sparse.model, whole.model)
    assert sparse.records == whole.records
    assert sparse.scores

"""Methods beside their peers: the problem that both sides get, the verdict, and what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import archipel as ap
from benchmarks.peers import __main__ as command
from benchmarks.peers.methods import CORRECTED, CORRECTED_FEDLAB, METHODS, Method
from benchmarks.peers.problem import (
    BATCH,
    LASTS,
    LEARNERS,
    NAMES,
    ROUNDS,
    SEEDS,
    STREAMS,
    TICKS,
    Problem,
    at_ticks,
    tiers,
)
from benchmarks.peers.table import STORED, compare, lines


def test_a_peer_reads_what_archipel_has(tmp_path: Path) -> None:
    given = command.problem()
    given.save(tmp_path / "problem.npz")
    read = Problem.load(tmp_path / "problem.npz")
    assert np.array_equal(read.x, given.x)
    assert np.array_equal(read.y, given.y)
    assert all(map(np.array_equal, read.train + read.test, given.train + given.test))
    assert all(np.array_equal(read.initial[name], given.initial[name]) for name in NAMES)
    assert len(read.train) == LEARNERS
    assert not {*np.concatenate(read.train)} & {*np.concatenate(read.test)}


def test_no_batch_has_one_example() -> None:
    # fluke leaves such a batch out
    sizes = [len(own) for own in command.problem().train]
    assert all(size % batch != 1 for size in sizes for batch in (BATCH, 2 * BATCH))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_is_made_with_all_learners_or_those_that_it_chooses(method: Method) -> None:
    made = command.algorithm(method)
    assert set(method.peers) <= {*command.PACKAGES, CORRECTED, CORRECTED_FEDLAB}
    if method.name in STREAMS:
        assert made.protocol == ap.Stream(method.settings.get("buffer", 1))
        return
    assert isinstance(made.protocol, ap.Rounds)
    assert made.protocol.fraction == method.settings.get("fraction", 1.0)
    assert made.weighting == (ap.Equally() if method.equally else ap.ByExamples())


def test_a_task_takes_the_ticks_that_flgo_is_told() -> None:
    fedbuff = next(method for method in METHODS if method.name == "fedbuff")
    fleet, sizes = command.fleet(fedbuff), [len(own.train) for own in command.islands().learners]
    assert fleet is not None
    groups = [fleet.groups[place] for place in fleet.assign(sizes)]
    for group, size, ticks in zip(groups, sizes, LASTS, strict=True):
        assert group.train_seconds * -(-size // BATCH) == pytest.approx(ticks)
    assert len({*LASTS}) == LEARNERS


def test_tiers_are_those_of_the_fleet() -> None:
    tifl = next(method for method in METHODS if method.name == "tifl")
    fleet, sizes = command.fleet(tifl), [len(own.train) for own in command.islands().learners]
    assert fleet is not None
    assert tiers(sizes) == fleet.assign(sizes).tolist()


def test_a_curve_by_time_has_the_last_score_before_each_mark() -> None:
    curve = at_ticks([(0, 0.1), (TICKS - 1, 0.2), (TICKS + 1, 0.3), (3 * TICKS, 0.4)])
    assert curve[:4] == [0.2, 0.3, 0.4, 0.4]
    assert len(curve) == ROUNDS


def test_curves_are_compared_by_the_deviation_of_seeds() -> None:
    ours = [[0.5, 0.8], [0.6, 0.9], [0.7, 1.0]]
    near = [[0.55, 0.85], [0.65, 0.95], [0.75, 1.05]]
    found = compare(ours, near)
    assert (found.difference, found.deviation) == pytest.approx((0.05, 0.2))
    assert found.alike
    assert not compare(ours, [[score - 0.3 for score in curve] for curve in ours]).alike


def test_what_is_stored_is_whole() -> None:
    stored = json.loads(STORED.read_text())
    assert sorted(stored["methods"]) == sorted(method.name for method in METHODS)
    for method in METHODS:
        sides = stored["methods"][method.name]
        assert set(sides) == {"archipel", *method.peers}
        for curves in sides.values():
            assert [len(curve) for curve in curves] == [ROUNDS] * len(SEEDS)
    rows = [line for line in lines(stored) if line.startswith("| `")]
    assert len(rows) == sum(len(method.peers) for method in METHODS)

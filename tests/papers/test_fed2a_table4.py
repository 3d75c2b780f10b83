"""Fed2A's Table 4: its costs follow from its rounds, and formula 12 counts what a learner really uploads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archipel as ap
from archipel import data
from archipel.data import digits
from archipel.data.source import Source
from archipel.papers.catalogue import reproduction
from archipel.papers.fed2a.cost import GIGABYTE, TABLE_3, NetworkCost, gigabytes, last_rounds
from archipel.papers.fed2a.table4 import GIGABYTES, ROUNDS, SETS, TABLE_4
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.subset import half_side


def test_all_48_costs_of_the_table_follow_from_its_rounds() -> None:
    """With D as our studies set it: a wrong D in a study would show here as well."""
    one = reproduction("fed2a-table4")
    evidence = FinishedRuns(one, "full", Path("nowhere"))
    studies = {part.name: evidence.study(part) for part in one.parts if part.name in SETS}
    places = {column.name: place for place, column in enumerate(TABLE_4.columns)}
    found = {}
    for row in TABLE_4.rows:
        for part, rounds, cost in zip(SETS, ROUNDS, GIGABYTES, strict=True):
            printed = row.paper[places[cost]] if row.paper else None
            if printed is not None:
                number = row.paper[places[rounds]]
                assert number is not None
                last = last_rounds(studies[part], row.method or "")
                found[row.name, part] = gigabytes(TABLE_3[part], int(number), last) - printed
    assert len(found) == 48
    assert {cell: off for cell, off in found.items() if abs(off) > 0.01} == {}


def test_formula_12_counts_the_upload_of_one_of_the_learners() -> None:
    """Where all commit together nobody's task begins in one round and ends in another, and the bytes are the same."""
    learners, rounds = 4, 23
    run = ap.simulate(
        ap.plu(buffer=learners, last=3, epochs=1, batch=64, rate=0.1),
        digits().split(learners=learners),
        ending=ap.Ending(commits=rounds),
    )
    names = run.layout.select("test", "deep")
    deep = sum(layer.size for layer in run.layout.layers if layer.name in names)
    network = NetworkCost(run.layout.size - deep, deep)
    assert [commit.traffic["train up bytes"] for _, commit in run.commits] == [
        pytest.approx(learners * gigabytes(network, number, 3) * GIGABYTE) for number in range(1, rounds + 1)
    ]


def test_by_arrival_a_round_changes_deep_layers_or_it_does_not() -> None:
    """Learners of other speeds begin in one round and end in another, and still no round is a mixture."""
    run = ap.simulate(
        ap.fed2a(buffer=2, period=4, last=1, batch=64, rate=0.1),
        digits().split(learners=5),
        fleet=ap.Fleet(fast=3, slow=2),
        ending=ap.Ending(commits=12),
    )
    assert max(stale for _, commit in run.commits for stale in commit.stale_versions) > 1
    everything, shallow = (0, 1), (0,)
    assert [commit.layers for _, commit in run.commits] == [
        *[everything] * 4,
        *[shallow, shallow, shallow, everything] * 2,
    ]


def test_images_of_half_their_side_are_all_there_with_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Source(torch.arange(32.0).reshape(2, 1, 4, 4), torch.tensor([1, 0]), 2, "made", test=torch.tensor([1]))
    monkeypatch.setattr(data, "gtsrb", lambda: whole)
    small = half_side("gtsrb")
    assert small.x.flatten().tolist() == [2.5, 4.5, 10.5, 12.5, 18.5, 20.5, 26.5, 28.5]
    assert (small.y.tolist(), small.classes) == ([1, 0], 2)
    assert small.test is not None
    assert small.test.tolist() == [1]

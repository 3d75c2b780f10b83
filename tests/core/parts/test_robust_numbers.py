"""Robust merges by hand numbers, against straight-line oracles, and in whole runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ap
from archipel.core.parts import GeometricMedian, Krum, Median, Merge, Replace, TrimmedMean, robust
from tests.core.parts.by_hand import Bench, layout

MERGES = (Median(), TrimmedMean(0.2), Krum(1), Krum(1, keep=3), GeometricMedian())


def merged(merge: Merge, rows: list[list[float]], weights: list[float] | None = None) -> list[float]:
    bench = Bench(layout(w=len(rows[0])))
    updates = [bench.update(f"learner {k:03}", row) for k, row in enumerate(rows)]
    return bench.commit(merge, Replace(), updates, weights or [1.0] * len(rows))


def random_rows(rows: int, columns: int, seed: int = 0) -> list[list[float]]:
    drawn: list[list[float]] = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32).tolist()
    return drawn


# ------------------------------------------------------------------------------------------------------ hand numbers


def test_median_of_an_odd_and_of_an_even_number() -> None:
    assert merged(Median(), [[1.0, 9.0], [5.0, -1.0], [3.0, 1e30]]) == [3.0, 9.0]
    assert merged(Median(), [[1.0], [2.0], [4.0], [1e30]]) == [3.0]


def test_trimmed_mean_leaves_out_one_of_five_at_each_end() -> None:
    assert merged(TrimmedMean(0.2), [[-1e30], [1.0], [2.0], [6.0], [1e30]]) == [3.0]
    assert merged(TrimmedMean(0.0), [[0.0], [3.0], [6.0]]) == [3.0]
    # .19 x 5 is below one: nothing is left out
    assert merged(TrimmedMean(0.19), [[0.0], [1.0], [2.0], [3.0], [4.0]]) == [2.0]


def test_krum_takes_the_update_closest_to_its_neighbours() -> None:
    # attackers 1, n = 5: two nearest. Scores of 0, 1, 2, 4, 100: 1 + 4, 1 + 1, 1 + 4, 4 + 9, 96^2 + 98^2
    rows = [[0.0], [1.0], [2.0], [4.0], [100.0]]
    assert merged(Krum(1), rows) == [1.0]
    assert merged(Krum(1, keep=3), rows) == pytest.approx([1.0])  # 0, 1 and 2
    # the kept ones are averaged by weight: (0 x 1 + 1 x 1 + 2 x 2) / 4
    assert merged(Krum(1, keep=3), rows, [1.0, 1.0, 2.0, 1.0, 50.0]) == pytest.approx([1.25])


def test_the_geometric_median_of_three_corners_of_a_square() -> None:
    # Fermat's point of an isosceles right triangle with its right angle at 0: x = y = (3 - sqrt 3) / 6
    expected = (3 - 3**0.5) / 6
    assert merged(GeometricMedian(), [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]) == pytest.approx([expected] * 2, abs=1e-3)


def test_the_geometric_median_goes_to_whoever_holds_more_than_half_of_the_weight() -> None:
    rows = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert merged(GeometricMedian(), rows, [1.0, 3.0, 1.0]) == pytest.approx([1.0, 0.0], abs=1e-4)


@pytest.mark.parametrize("merge", MERGES, ids=repr)
def test_equal_updates_give_themselves(merge: Merge) -> None:
    assert merged(merge, [[0.5, -2.0]] * 5) == pytest.approx([0.5, -2.0])


# ------------------------------------------------------------------------------------------- against other people's


def test_the_median_is_numpys() -> None:
    for count in (3, 4, 9, 10):
        rows = random_rows(count, 50)
        assert merged(Median(), rows) == pytest.approx(
            np.median(np.asarray(rows, dtype=np.float32), axis=0).tolist(), abs=1e-7
        )


def test_the_trimmed_mean_is_scipys() -> None:
    rows = random_rows(11, 50)
    for share in (0.0, 0.1, 0.2, 0.45):
        expected = scipy.stats.trim_mean(np.array(rows), share)
        assert merged(TrimmedMean(share), rows) == pytest.approx(expected.tolist(), abs=1e-6)


def test_the_geometric_median_is_what_scipys_minimiser_finds() -> None:
    rows, weights = np.array(random_rows(9, 4, seed=1)), np.arange(1.0, 10.0)
    found = scipy.optimize.minimize(
        lambda z: float(weights @ np.linalg.norm(rows - z, axis=1)), rows.mean(axis=0), tol=1e-12
    )
    assert merged(GeometricMedian(tolerance=1e-12), rows.tolist(), weights.tolist()) == pytest.approx(
        found.x.tolist(), abs=1e-4
    )


def krum_by_loops(rows: list[list[float]], attackers: int, keep: int) -> list[float]:
    """Blanchard et al. 2017, section 4, word by word."""
    scores = []
    for i, mine in enumerate(rows):
        distances = sorted(
            sum((a - b) ** 2 for a, b in zip(mine, other, strict=True)) for j, other in enumerate(rows) if j != i
        )
        scores.append((sum(distances[: len(rows) - attackers - 2]), i))
    best = [rows[i] for _, i in sorted(scores)[:keep]]
    return [sum(column) / keep for column in zip(*best, strict=True)]


@pytest.mark.parametrize(("attackers", "keep"), [(0, 1), (1, 1), (2, 3), (3, 6)])
def test_krum_is_the_straight_line_program(attackers: int, keep: int) -> None:
    for seed in range(5):
        rows = random_rows(9, 6, seed)
        assert merged(Krum(attackers, keep), rows) == pytest.approx(krum_by_loops(rows, attackers, keep), abs=1e-6)


def test_small_differences_between_large_models_are_seen() -> None:
    # distances of 1e-3 between models of length 1e4: measured from zero, rounding would drown them
    rows = [[1e4 + delta, 0.0] for delta in (0.0, 0.001, 0.002, 0.004, 0.1)]
    near = np.asarray(rows, dtype=np.float32)[:, 0]
    assert merged(Krum(1), rows)[0] in near[:3].tolist()


# ------------------------------------------------------------------------------------------------------ properties


@settings(max_examples=30)
@given(
    honest=st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=9),
    lie=st.floats(-(2.0**100), 2.0**100, width=32),
)
def test_one_liar_cannot_move_the_model_out_of_the_honest_range(honest: list[float], lie: float) -> None:
    rows = [[value] for value in honest] + [[lie]]
    for merge in (Median(), TrimmedMean(0.26), Krum(1)):
        (value,) = merged(merge, rows)
        assert min(honest) - 1e-4 <= value <= max(honest) + 1e-4, merge


@pytest.mark.parametrize("merge", MERGES, ids=repr)
def test_it_does_not_matter_how_a_vector_is_cut(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(7, 100)
    whole = merged(merge, rows)
    monkeypatch.setattr(robust, "BLOCK", 30)
    assert merged(merge, rows) == pytest.approx(whole, abs=1e-6)


# --------------------------------------------------------------------------------------------- layers and refusals


@pytest.mark.parametrize("merge", MERGES, ids=repr)
def test_a_layer_that_too_few_sent_stays(merge: Merge) -> None:
    bench = Bench(layout(x=1, y=1), [7.0, 8.0])
    updates = [bench.update(f"{k}", [1.0, 2.0], ["x", "y"] if k < 2 else ["x"]) for k in range(5)]
    assert bench.commit(merge, Replace(), updates, [1.0] * 5) == [1.0, 8.0]


def test_each_group_of_senders_has_its_own_median() -> None:
    bench = Bench(layout(x=1, y=1, z=1))
    updates = [bench.update(f"{k}", [k, 10.0 * k, k], ["x", "y", "z"] if k != 4 else ["x", "z"]) for k in range(5)]
    assert bench.commit(Median(), Replace(), updates, [1.0] * 5) == [2.0, 15.0, 2.0]


def test_an_update_without_weight_is_left_out() -> None:
    assert merged(Median(), [[1.0], [2.0], [3.0], [99.0], [99.0], [99.0]], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]) == [2.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrimmedMean(0.5), "TrimmedMean: share should be at least 0 and below 0.5, got 0.5"),
        (lambda: Krum(-1), "Krum: attackers should be at least 0"),
        (lambda: Krum(1, keep=0), "Krum: keep should be at least 1"),
        (lambda: GeometricMedian(iterations=0), "GeometricMedian: iterations should be at least 1"),
        (lambda: GeometricMedian(tolerance=0), "GeometricMedian: tolerance should be more than 0"),
        (lambda: replace(ap.fedavg(), merge=Median()), "takes no weights, and the weighting is ByExamples"),
        (lambda: replace(ap.fed2a(buffer=4), merge=Krum(1)), r"needs 5 updates in a commit.*Use Stream\(buffer=5\)"),
        (lambda: replace(ap.async_fedavg(), merge=GeometricMedian()), "needs 3 updates in a commit"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
@pytest.mark.parametrize("merge", MERGES, ids=repr)
@pytest.mark.parametrize("protocol", [ap.Rounds(), ap.Stream(buffer=5), ap.Relay(fraction=0.5, hops=2)], ids=repr)
def test_every_protocol_trains_with_it(merge: Merge, protocol: ap.Protocol) -> None:
    algorithm = ap.Algorithm("robust", protocol=protocol, merge=merge, weighting=ap.Equally())
    assert eval(repr(algorithm), {name: getattr(ap, name) for name in dir(ap)}) == algorithm
    run = ap.simulate(algorithm, ap.data.digits().split(learners=12), ending=ap.Ending(rounds=4))
    commits = [stamped.record for stamped in run.records if isinstance(stamped.record, ap.records.Committed)]
    assert commits
    assert all(commit.layers == tuple(range(len(run.layout.layers))) for commit in commits)
    assert torch.isfinite(run.model).all()

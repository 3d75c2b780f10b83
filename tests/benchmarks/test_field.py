"""The benchmark of methods: ranks as published, budgets, resuming, and the page."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from benchmarks.field import __main__ as command
from benchmarks.field.outcome import by_problem, page, score_at
from benchmarks.field.problems import METHODS, RATES, SEEDS, Problem, problems
from benchmarks.field.ranks import critical_difference, friedman, ranks_of


def test_ranks_as_published() -> None:
    """Demsar (2006), section 3.2.2: four classifiers on 14 data sets."""
    published = (3.143, 2.000, 2.893, 1.964)
    assert friedman(published, 14) == pytest.approx(9.28, abs=0.02)
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_ranks_are_those_of_scipy() -> None:
    table = np.random.default_rng(0).random((5, 9))
    found = ranks_of({str(i): [*map(float, row)] for i, row in enumerate(table)})
    expected = friedmanchisquare(*table)
    assert (found.statistic, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    ties = ranks_of({"a": [3.0, 1.0], "b": [3.0, 0.5], "c": [1.0, 2.0]})
    assert ties.mean == {"a": 1.75, "b": 2.25, "c": 2.0}
    assert ties.groups() == [("a", "c", "b")]


def test_a_score_within_a_budget() -> None:
    curve = [(0.0, 0, 0, 0.1), (2.0, 1, 100, 0.5), (4.0, 2, 200, 0.7)]
    assert [score_at(curve, 0, budget) for budget in (0.0, 1.9, 2.0, 9.0)] == [0.1, 0.1, 0.5, 0.7]
    assert score_at(curve, 2, 150) == 0.5


def done(split: str) -> list[dict[str, Any]]:
    """Runs of a split in which later methods are better."""
    return [
        {
            "fleet": "alike",
            "split": split,
            "method": method,
            "rate": 0.1,
            "seed": seed,
            "tuning": False,
            "seconds": 1.0,
            "final": 0.5,
            "curve": [[0.0, 0, 0, 0.1], [1.0 + place, 5, 10, place / 100], [50.0, 40, 1000, place / 50]],
        }
        for place, method in enumerate(METHODS)
        for seed in SEEDS
    ]


def test_only_whole_problems_are_compared() -> None:
    runs = [*done("IID"), *done("hospitals")[:-1]]
    scores, cells = by_problem(runs, "local rounds")
    assert cells == 1
    assert [scores[method][0] for method in METHODS] == [place / 50 for place in range(len(METHODS))]
    text = page(runs)
    assert text.index(f"| `{[*METHODS][-1]}` | 1.00") < text.index(f"| `{next(iter(METHODS))}` | {len(METHODS)}.00")
    assert "No problem is finished by all methods yet." in page(done("IID")[:-1])


def test_it_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[float, int, bool]] = []

    def run(self: Problem, rate: float, seed: int, tuning: bool) -> dict[str, Any]:
        ran.append((rate, seed, tuning))
        return {"final": rate if tuning else 0.5, "curve": []}

    monkeypatch.setattr(Problem, "run", run)
    so_far: dict[Any, Any] = {}
    problem, file = next(problems()), io.StringIO()
    for _ in range(2):
        for rate in RATES:
            command.run_once(problem, rate, SEEDS[0], True, so_far, file, float("inf"))
    assert len(ran) == len(RATES), "what is done is not run again"
    assert command.best_rate(problem, so_far) == max(RATES)
    path = tmp_path / "runs.jsonl"
    path.write_text(file.getvalue() + '{"cut off')
    assert {command.key(one) for one in command.read(path)} == {*so_far}
    assert all("curve" not in json.loads(line) for line in file.getvalue().splitlines())

"""The benchmark of methods: ranks as published, budgets, resuming, and the page."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

from benchmarks.field import __main__ as command
from benchmarks.field.diagram import diagram
from benchmarks.field.outcome import ALONE, by_problem, drawings, page, ranks_at, score_at
from benchmarks.field.problems import DATA, METHODS, ONE_BY_ONE, RATES, SEEDS, Problem, problems
from benchmarks.field.ranks import Ranks, critical_difference, friedman, ranks_of
from benchmarks.field.runs import best_rate, key, read, store, stored
from benchmarks.page import METHODS as METHODS_PAGE


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


def run_of(split: str, method: str, rate: float, seed: int, tuning: bool) -> dict[str, Any]:
    place = [*METHODS].index(method)
    return {
        "data": "heart disease",
        "fleet": "alike",
        "split": split,
        "method": method,
        "rate": rate,
        "seed": seed,
        "tuning": tuning,
        "seconds": 1.0,
        "final": 0.5 if rate == 0.1 else 0.4,
        "curve": [[0.0, 0, 0, 0.1], [1.0 + place, 5, 10, place / 100], [50.0, 40, 1000, place / 50]],
    }


def done(split: str) -> list[dict[str, Any]]:
    """Runs of a split in which later methods are better."""
    return [
        *(run_of(split, method, rate, SEEDS[0], True) for method in METHODS for rate in RATES),
        *(run_of(split, method, 0.1, seed, False) for method in METHODS for seed in SEEDS),
    ]


def test_only_whole_problems_are_compared() -> None:
    runs = [*done("IID"), *done("hospitals")[:-1]]
    scores = by_problem(runs, "local rounds")
    assert [*scores] == [("heart disease", "alike", "IID")]
    assert [scores["heart disease", "alike", "IID"][method] for method in METHODS] == pytest.approx(
        [place / 50 for place in range(len(METHODS))]
    )
    text = page(runs)
    wanted = {name: 3 * len(of.splits) * len(METHODS) * (len(RATES) + len(SEEDS)) for name, of in DATA.items()}
    assert f"{len(runs)} of {sum(wanted.values()):,} runs are stored" in text
    assert f"| heart disease | {len(runs)} of {wanted['heart disease']:,} | 1 of 15 | IID (alike) |" in text
    assert "No problem is finished by all methods yet." in page(done("IID")[:-1])
    assert not drawings(done("IID")[:-1])


def test_runs_with_other_rates_than_the_best_do_not_count() -> None:
    runs = done("IID")
    others = [{**run, "rate": 0.3, "curve": [[0.0, 0, 0, 0.0]]} for run in runs if not run["tuning"]]
    assert by_problem([*runs, *others], "bytes") == by_problem([*others, *runs], "bytes") == by_problem(runs, "bytes")
    untried = [run for run in runs if not (run["tuning"] and run["method"] == "moon" and run["rate"] == RATES[0])]
    assert not by_problem(untried, "bytes"), "a rate may still turn out to be better"


def test_the_page_tells_how_often_the_best_rate_is_at_an_edge() -> None:
    runs = done("IID")
    assert "the best rate was the lowest one tried in 0% of 28 pairs and the highest in 0%" in page(runs).replace(
        "\n  ", " "
    )
    for run in runs:
        if run["tuning"] and run["method"] in ("moon", "apfl") and run["rate"] == RATES[0]:
            run["final"] = 0.6
    assert "the lowest one tried in 7% of 28 pairs" in page(runs).replace("\n  ", " ")


def test_methods_that_are_said_not_to_be_stacked_are_not() -> None:
    for name in METHODS:
        made = METHODS[name](0.1)
        alone = (
            made.objective is not None
            or made.descent is not None
            or any(type(one).__name__ in ("HeadFirst", "PersonalPhase") for one in made.planners)
        )
        assert alone == (name in ONE_BY_ONE), name


def test_seeds_of_a_problem_are_one_comparison() -> None:
    ranks = ranks_at([*done("IID"), *done("hospitals")], "virtual time")
    assert ranks is not None
    assert (ranks.problems, ranks.difference) == (2, critical_difference(len(METHODS), 2))


def test_a_method_that_sends_nothing_sets_no_budget() -> None:
    runs = done("IID")
    for run in runs:
        if run["method"] == ALONE:
            run["curve"] = [[0.0, 0, 0, 0.1], [1.0, 5, 1, 0.3], [50.0, 40, 1, 0.4]]
    scores = by_problem(runs, "bytes")["heart disease", "alike", "IID"]
    assert scores[ALONE] == pytest.approx(0.4)
    assert scores["radfed"] == pytest.approx([*METHODS].index("radfed") / 50)


def test_a_diagram_names_all_and_joins_those_that_are_alike() -> None:
    ranks = Ranks({"best": 1.0, "near": 1.5, "worst": 3.5}, 5, 9.0, 0.01, 1.0)
    drawn = diagram(ranks)
    assert re.findall(r">(\w+ [\d.]+)<", drawn) == ["best 1.0", "near 1.5", "worst 3.5"]
    assert drawn.count('stroke-width="3.5"') == len(ranks.groups()) == 1
    axis = re.search(r'd="M182.0 24L(\S+) 24"', drawn)
    assert axis is not None
    assert float(axis[1]) == pytest.approx(182 + (578 - 182) / 3, abs=0.1), "the bar has the length of one rank"


def test_the_page_and_its_pictures_are_those_of_the_stored_runs() -> None:
    runs = stored()
    assert METHODS_PAGE.read_text() == page(runs), "make pages"
    found = drawings(runs)
    assert len(found) == 3
    for file, drawn in found.items():
        assert (METHODS_PAGE.parent.parent / "pictures" / file).read_text() == drawn, "make pages"


def test_the_readme_says_what_the_stored_runs_show() -> None:
    scores = by_problem(stored(), "local rounds")

    def best(split: str) -> str:
        cells = [of for (_, _, name), of in scores.items() if name == split]
        return max(METHODS, key=lambda method: sum(of[method] for of in cells))

    told = " ".join((METHODS_PAGE.parent.parent.parent / "README.md").read_text().split())
    assert f"On [{len(scores)} small problems]" in told
    assert f"`{best('IID')}` has the best mean accuracy where all learners' data are alike" in told
    assert f"`{best('Dirichlet .1')}` where their classes differ (Dirichlet .1)" in told
    assert f"two classes no method reaches `{best('Non-IID(2)')}`" in told


def test_runs_are_stored_once_and_to_the_same_bytes(tmp_path: Path) -> None:
    runs = done("IID")
    store([*runs, *runs[:5]], tmp_path / "one.gz")
    store(runs[::-1], tmp_path / "other.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "other.gz").read_bytes()
    assert {key(run) for run in stored(tmp_path / "one.gz")} == {key(run) for run in runs}
    assert len(stored(tmp_path / "one.gz")) == len(runs)


def test_an_interrupted_benchmark_is_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    assert best_rate(problem, so_far) == max(RATES)
    path = tmp_path / "runs.jsonl"
    path.write_text(file.getvalue() + '{"cut off')
    assert {key(one) for one in read(path)} == {*so_far}
    assert all("curve" not in json.loads(line) for line in file.getvalue().splitlines())

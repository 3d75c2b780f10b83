"""The page and its pictures: ranks of the methods at equal rounds, time and bytes, and what tuning has cost."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.field.diagram import diagram
from benchmarks.field.problems import BATCH, DATA, FLEETS, LEARNERS, METHODS, RATES, SEEDS, Problem
from benchmarks.field.ranks import Ranks, ranks_of
from benchmarks.field.runs import best_rate, key

BUDGETS = {"local rounds": 1, "virtual time": 0, "bytes": 2}
"""Columns of a curve by which methods are made equal."""

ALONE = "local_only"
"""It fetches one model and sends nothing, so it does not set a budget."""

COMMON = 0.1
"""The rate that tuning is compared with."""

NOTHING_YET = "No problem is finished by all methods yet."

Run = dict[str, Any]
Cell = tuple[str, str, str]
"""A problem: data, fleet and split."""


def score_at(curve: Sequence[Sequence[float]], column: int, budget: float) -> float:
    """Return the score of the last version that was made within a budget."""
    within = [point for point in curve if point[column] <= budget]
    return float((within or curve[:1])[-1][3])


def by_problem(runs: Sequence[Run], budget: str) -> dict[Cell, dict[str, float]]:
    """Return the score of every method, a mean over the seeds, on each problem that all methods have finished."""
    column = BUDGETS[budget]
    best = best_rates(runs)
    cells: dict[Cell, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        problem = Problem(run["data"], run["fleet"], run["split"], run["method"])
        if not run["tuning"] and run.get("curve") and run["rate"] == best.get(problem):
            cells[run["data"], run["fleet"], run["split"]][run["method"]][run["seed"]] = run
    found = {}
    for cell, made in cells.items():
        if set(made) != set(METHODS) or any(len(of_seed) < len(SEEDS) for of_seed in made.values()):
            continue
        scores: dict[str, list[float]] = {method: [] for method in METHODS}
        for seed in SEEDS:
            curves = {method: made[method][seed]["curve"] for method in METHODS}
            least = min(curve[-1][column] for method, curve in curves.items() if method != ALONE)
            for method, curve in curves.items():
                scores[method].append(score_at(curve, column, least))
        found[cell] = {method: fmean(of_seed) for method, of_seed in scores.items()}
    return found


def best_rates(runs: Sequence[Run]) -> dict[Problem, float]:
    """Return the rate of every problem whose rates have all been tried."""
    done = {key(run): run for run in runs if run["tuning"]}
    tried = {Problem(run["data"], run["fleet"], run["split"], run["method"]) for run in done.values()}
    found = {problem: best_rate(problem, done) for problem in tried}
    return {problem: rate for problem, rate in found.items() if rate is not None}


def ranks_at(runs: Sequence[Run], budget: str) -> Ranks | None:
    """Return the ranks over all finished problems, if there is one."""
    scores = by_problem(runs, budget)
    table = {method: [of_cell[method] for of_cell in scores.values()] for method in METHODS}
    return ranks_of(table) if scores else None


def write(runs: Sequence[Run], page_at: Path, pictures: Path) -> None:
    """Write the page and a diagram for each budget."""
    page_at.write_text(page(runs))
    for name, drawn in drawings(runs).items():
        (pictures / name).write_text(drawn)


def drawings(runs: Sequence[Run]) -> dict[str, str]:
    """Return the diagrams by the names of their files."""
    found = {budget: ranks_at(runs, budget) for budget in BUDGETS}
    return {picture(budget): diagram(ranks) for budget, ranks in found.items() if ranks is not None}


def picture(budget: str) -> str:
    """Return the name of a budget's diagram."""
    return f"methods-at-equal-{budget.replace(' ', '-')}.svg"


def page(runs: Sequence[Run]) -> str:
    """Return the page of the documentation."""
    lines = [
        "# Methods compared",
        "",
        *_wrapped(
            f"{len(METHODS)} methods on the same problems, at equal local rounds, equal virtual time and equal bytes. "
            "A problem is a data set, a split and a fleet (learners alike, half of them slow, a fifth of the tasks "
            "lost). `make pages` writes this page from stored runs; `python -m benchmarks.field --out FOLDER` "
            "continues them."
        ),
        "",
        *_settings(),
        "",
        "## Runs behind this page",
        "",
        *_extent(runs),
    ]
    for budget in BUDGETS:
        lines += ["", f"## At equal {budget}", "", *_ranks(runs, budget)]
    lines += ["", "## Accuracy", "", *_accuracy(runs)]
    lines += ["", "## What tuning costs", "", *_tuning(runs), "", *_edges(runs), ""]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """Break a paragraph, or an item of a list, into lines."""
    return textwrap.wrap(text, 118, subsequent_indent="  " if text.startswith("* ") else "", break_on_hyphens=False)


def _settings() -> Iterator[str]:
    for item in (
        f"{LEARNERS} learners (hospitals: 4), half of them in a round; two epochs in batches of {BATCH} a task; a "
        "network with one hidden layer.",
        f"Every method chooses its rate from {', '.join(map(str, RATES))} by its score on the learners' validation "
        "parts with the first seed. Other settings are its own defaults or those of `benchmarks/field/problems.py`.",
        "The score is the mean accuracy of the learners on their own test parts, with the model that each uses for "
        f"itself; {len(SEEDS)} seeds.",
    ):
        yield from _wrapped(f"* {item}")
    yield from (
        "",
        "| data | examples | hidden units | local rounds |",
        "| --- | --- | --- | --- |",
    )
    for name, about in DATA.items():
        examples = "all" if about.examples is None else f"{about.examples:,} drawn"
        yield f"| {name} | {examples} | {about.hidden} | {about.rounds} |"


def _extent(runs: Sequence[Run]) -> Iterator[str]:
    whole = by_problem(runs, "local rounds")
    planned = 0
    rows = []
    for name, about in DATA.items():
        cells = len(about.splits) * len(FLEETS)
        wanted = cells * len(METHODS) * (len(RATES) + len(SEEDS))
        planned += wanted
        made = sum(run["data"] == name for run in runs)
        finished = [f"{split} ({fleet})" for data, fleet, split in whole if data == name]
        among = f"{len(finished)} of {cells} | {', '.join(finished) or 'none'}"
        rows.append(f"| {name} | {made:,} of {wanted:,} | {among} |")
    yield from _wrapped(
        f"{len(runs):,} of {planned:,} runs are stored, tuning included. Only problems that every method has finished "
        f"count: {len(whole)} so far. Problems with the same data are not independent of each other, so the tests "
        "below take differences for surer than they are."
    )
    yield from ("", "| data | runs | problems | finished |", "| --- | --- | --- | --- |", *rows)
    refused = sorted({(run["split"], run["method"], run["refused"]) for run in runs if "refused" in run})
    yield from ("", *(f"* Refused: {split}, `{method}`: {why}" for split, method, why in refused)) if refused else ()


def _ranks(runs: Sequence[Run], budget: str) -> Iterator[str]:
    ranks = ranks_at(runs, budget)
    if ranks is None:
        yield NOTHING_YET
        return
    yield from _wrapped(
        f"{ranks.problems} problems; the budget of each is the least that a method other than `{ALONE}` has used on "
        f"it. Friedman's test: chi squared {ranks.statistic:.1f}, p = {ranks.p:.2g}. Two methods differ at 5 % "
        f"(Nemenyi) if their mean ranks are more than {ranks.difference:.2f} apart; bars join methods that do not. "
        f"{_verdict(ranks)}"
    )
    yield from ("", f"![Mean ranks at equal {budget}, the best on the left](../pictures/{picture(budget)})")


def _verdict(ranks: Ranks) -> str:
    best = min(ranks.mean, key=ranks.mean.__getitem__)
    beaten = [name for name, rank in ranks.mean.items() if rank - ranks.mean[best] > ranks.difference]
    if ranks.p > 0.05 or not beaten:
        return "No method is told apart from the best one."
    beaten.sort(key=ranks.mean.__getitem__)
    return f"`{best}` has the best mean rank and is told apart from {', '.join(f'`{name}`' for name in beaten)}."


def _accuracy(runs: Sequence[Run]) -> Iterator[str]:
    scores = by_problem(runs, "local rounds")
    if not scores:
        yield NOTHING_YET
        return
    yield "At equal local rounds, the mean over the finished problems of each data set:"
    yield from _means(scores, 0, [*DATA])
    yield from ("", "And of each split, over the data sets that have it:")
    yield from _means(scores, 2, list(dict.fromkeys(split for about in DATA.values() for split in about.splits)))


def _means(scores: dict[Cell, dict[str, float]], place: int, names: Sequence[str]) -> Iterator[str]:
    """Yield a table of every method's means over the problems with each name at this place."""
    known = [name for name in names if any(cell[place] == name for cell in scores)]
    yield from ("", f"| method | {' | '.join(known)} |", f"| --- |{' --- |' * len(known)}")
    for method in METHODS:
        means = (fmean(of[method] for cell, of in scores.items() if cell[place] == name) for name in known)
        yield f"| `{method}` | {' | '.join(f'{mean:.3f}' for mean in means)} |"


def _tuning(runs: Sequence[Run]) -> Iterator[str]:
    whole = sum(run["seconds"] for run in runs)
    if not whole:
        yield NOTHING_YET
        return
    spent = sum(run["seconds"] for run in runs if run["tuning"])
    told = (
        f"Tuning took {spent:.0f} s of the {whole:.0f} s of CPU time of the runs' own processes ({spent / whole:.0%})."
    )
    finals: dict[tuple[Any, ...], dict[float, float]] = defaultdict(dict)
    for run in runs:
        if run["tuning"] and run.get("final") is not None:
            finals[run["data"], run["fleet"], run["split"], run["method"]][run["rate"]] = run["final"]
    tried = [of for of in finals.values() if set(of) == set(RATES)]
    if tried:
        lost = fmean(max(of.values()) - of[COMMON] for of in tried)
        told += (
            f" With rate {COMMON} for all, accuracy on the validation parts would have been {lost:.3f} lower on "
            f"average over {len(tried):,} pairs of method and problem."
        )
    yield from _wrapped(told)


def _edges(runs: Sequence[Run]) -> Iterator[str]:
    """Yield how often the best rate was the lowest or the highest of those tried, where others may be better."""
    best = best_rates(runs)
    for name in DATA:
        chosen = [rate for problem, rate in best.items() if problem.data == name]
        if chosen:
            low, high = (chosen.count(edge(RATES)) for edge in (min, max))
            yield from _wrapped(
                f"* {name}: the best rate was the lowest one tried in {low / len(chosen):.0%} of {len(chosen):,} pairs "
                f"and the highest in {high / len(chosen):.0%}; lower or higher ones were not tried."
            )

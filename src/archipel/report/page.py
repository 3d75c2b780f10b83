"""The page of a report: one file that can be sent to a colleague, with its pictures inside it.

This module says what is on the page, `page.html` and `page.css` how it looks; `frozen_page` adds the live page. Jinja2
escapes everything that users wrote.
"""

from __future__ import annotations

import ast
import base64
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from archipel.report.frozen_page import frozen_page
from archipel.report.measures import (
    COLUMNS,
    SLACK,
    Marks,
    MeasureColumn,
    Measured,
    ahead,
    decimals,
    number,
    shown,
)
from archipel.runs.final_score import Share, final_stretch
from archipel.runs.grouping import groups, label
from archipel.runs.run import Run

CURVES = "score-curves"
"""Name of the figure that the page begins with."""


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    name: str
    title: str
    caption: str
    svg: bytes
    links: tuple[str, ...]
    """Its files, relative to the page."""

    @property
    def source(self) -> str:
        """The picture itself, as an address."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"


@dataclass(frozen=True)
class MethodText:
    """What is said of a method."""

    name: str
    about: str
    story: str
    expressions: tuple[str, ...]
    """Its algorithm; more than one where tuning has chosen."""


@dataclass(frozen=True)
class MeasureTable:
    """A table of measures, a row for each method."""

    name: str
    title: str
    text: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MeasureCell, ...]], ...]


@dataclass(frozen=True)
class MeasureCell:
    """A measure of a method, or why there is none."""

    mean: str
    deviation: str = ""
    share: str = ""
    """How many of the runs have the number, if not all."""
    value: float | None = None
    """What the table is sorted by."""
    bold: bool = False


def page(
    title: str,
    runs: Sequence[Run],
    at: Marks,
    methods: Sequence[Measured],
    pictures: Sequence[Picture],
    notes: Sequence[str] = (),
) -> str:
    """Return the page as text; the same runs give the same text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_file("page.html"))
    sorting = _file("sorting.js")
    return template.render(
        frozen=frozen_page(runs, _file("page.css"), sorting),
        sorting=sorting,
        title=title,
        summary=summary(runs, methods),
        cautions=list(cautions(runs, at, methods)),
        notes=notes,
        curves=[picture for picture in pictures if picture.name == CURVES],
        further=[picture for picture in pictures if picture.name != CURVES],
        places=places(at),
        legend=LEGEND,
        tables=[table(name, at, methods) for name in ("scores", "target", "traffic", "course")],
        methods=list(map(method_text, methods, groups(runs).values())),
        version=version("archipel"),
    )


def _file(name: str) -> str:
    """Return a file of the page."""
    return (files("archipel.report") / name).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------- cautions


def cautions(runs: Sequence[Run], at: Marks, methods: Sequence[Measured]) -> Iterator[str]:
    """Yield warnings about the comparison of these methods."""
    alike: dict[str, list[str]] = {}
    for one in methods:
        alike.setdefault(one.scoring, []).append(one.method)
    if len(alike) > 1:
        ways = "; ".join(f"{', '.join(names)} by {how}" for how, names in alike.items())
        yield f"The methods were scored differently, so their scores do not compare: {ways}."
    if len({one.stretch for one in methods}) > 1:
        ways = "; ".join(f"{one.method} over {one.stretch}" for one in methods)
        yield f"Final scores are taken over different budgets, so they do not compare: {ways}."
    stretches = [(run, final_stretch(run)) for run in runs]
    copies = Counter((label(run), run.seed, run.fold) for run in runs)
    doubts: dict[str, Callable[[Run, Sequence[Share]], bool]] = {
        f"ended before {number(at.seconds.value)} s and stand there with their last score": (
            lambda run, shares: run.seconds * (1 + SLACK) < at.seconds.value
        ),
        f"ended before {number(at.rounds.value)} local rounds and stand there with their last score": (
            lambda run, shares: run.rounds < at.rounds.value
        ),
        "have a single score in the last fifth of their budget, and single scores vary": (
            lambda run, shares: len(shares) == 1
        ),
        "have no final score, as one in the last fifth of their budget is not finite: did they diverge?": (
            lambda run, shares: any(math.isnan(share.score) for share in shares)
        ),
        "share their seed with another run of their method, and copies of one run make a deviation look small": (
            lambda run, shares: copies[label(run), run.seed, run.fold] > 1
        ),
    }
    sizes = {one.method: one.runs for one in methods}
    for doubt, holds in doubts.items():
        who = Counter(label(run) for run, shares in stretches if holds(run, shares))
        if who:
            yield f"Runs that {doubt}: {', '.join(f'{name} ({n} of {sizes[name]})' for name, n in who.items())}."


# ---------------------------------------------------------------------------------------------------- what was run


def summary(runs: Sequence[Run], methods: Sequence[Measured]) -> str:
    """Return a sentence on what is compared."""
    scorings = {one.scoring for one in methods}
    scored = f"scored by {scorings.pop()}" if len(scorings) == 1 else "scored differently"
    return f"{count(len(methods), 'method')}, {count(len(runs), 'run')}, {scored}."


def method_text(measured: Measured, runs: Sequence[Run]) -> MethodText:
    """Describe the runs of a method."""
    training = [[one for one in run.participants if one.role == "train"] for run in runs]
    learners = between([len(there) for there in training])
    examples = between([sum(one.examples for one in there) for there in training])
    folds = f", {listed('fold', measured.folds)}" if measured.folds else ""
    endings = "; ".join(dict.fromkeys(run.reason for run in runs))
    executions = ", ".join(
        dict.fromkeys(
            f"{run.execution} ({run.execution_reason})" if run.execution_reason else run.execution for run in runs
        )
    )
    return MethodText(
        measured.method,
        f"{listed('seed', measured.seeds)}{folds}; {learners} learners with {examples} examples to train on",
        f"Scored by {measured.scoring}, the final score over {measured.stretch}. Ended because {endings}. "
        f"Executed {executions}.",
        tuple(laid_out(expression) for expression in dict.fromkeys(run.algorithm for run in runs)),
    )


def laid_out(expression: str) -> str:
    """Return an algorithm's expression with a line for each of its parts; anything else as it is."""
    try:
        call = ast.parse(expression, mode="eval").body
    except SyntaxError:  # a user's own part may have any repr
        return expression
    if not isinstance(call, ast.Call):
        return expression
    parts = "".join(f"    {ast.unparse(part)},\n" for part in (*call.args, *call.keywords))
    return f"{ast.unparse(call.func)}(\n{parts})"


# -------------------------------------------------------------------------------------------------------- measures

LEGEND = (
    "Numbers are means over a method's runs ± the sample deviation. Bold is a mean that is better than every other of "
    "its column by more than one deviation of either, among methods whose every run has the number; with one run each, "
    "or where methods were scored differently, nothing is bold. A click on a column's head sorts by it."
)


def places(at: Marks) -> str:
    """Return where methods are compared, and why."""
    targets = " and ".join(
        f"the target {metric} {number(mark.value)} ({mark.why})" for metric, mark in at.targets.items()
    )
    return (
        f"Methods are compared at {number(at.seconds.value)} s ({at.seconds.why}), at {number(at.rounds.value)} local "
        f"rounds ({at.rounds.why}) and at {targets}. Seconds are virtual in a simulation, real in a federation. A "
        "local round is one round of local training by those who take part; each hop of a relay counts one."
    )


def caption(name: str, at: Marks) -> tuple[str, str]:
    """Return the title of a table and what it shows."""
    targets = " or ".join(f"{metric} {number(mark.value)}" for metric, mark in at.targets.items())
    return {
        "scores": (
            "Scores.",
            "Final is the mean over the last fifth of each run's budget (its local rounds where it ended by rounds, "
            "else its seconds), each version counting as long as it was the current one; swing is how far apart the "
            "scores in it lie, for on data that are not IID single ones swing by several points from one round to the "
            "next. Last version is the single score at the end, at best validation the test score of the version that "
            "the validation learners score best, where there are such learners. Best is the best of all test scores. "
            "At a time or a number of rounds, the last score by then is shown.",
        ),
        "target": (
            f"To reach {targets}.",
            "What it took until a score first met the target (Fed2A's indicators I2 and I3): the mean over the runs "
            "that reached it. MB are all that were moved by then, up, down and for weighing.",
        ),
        "traffic": (
            "Traffic of whole runs.",
            "What was moved for training and for weighing; what was moved for scoring alone does not count. An MB is "
            "2^20 bytes.",
        ),
        "course": (
            "Course of whole runs.",
            "A commit is a new version of the model. Staleness is how many versions passed while an update was made, "
            "its mean over all updates.",
        ),
    }[name]


def table(name: str, at: Marks, methods: Sequence[Measured]) -> MeasureTable:
    """Return one of the tables of measures."""
    columns = [column for column in COLUMNS if column.table == name]
    if not any(one.validated.n for one in methods):  # there are no validation learners
        columns = [column for column in columns if column.name != "validated"]
    heads = [column.head.format(seconds=number(at.seconds.value), rounds=number(at.rounds.value)) for column in columns]
    winners = {column.name: ahead(methods, column) for column in columns}
    digits = {column.name: decimals(column, methods) for column in columns}
    rows = []
    for one in methods:
        cells = [cell(one, column, digits[column.name], winners[column.name] is one) for column in columns]
        if name == "target":
            n = one.target_seconds.n
            cells.insert(0, MeasureCell(f"{n} of {one.runs}", value=n / one.runs))
        rows.append((one.method, tuple(cells)))
    first = ["method", "reached"] if name == "target" else ["method"]
    return MeasureTable(name, *caption(name, at), (*first, *heads), tuple(rows))


def cell(measured: Measured, column: MeasureColumn, digits: int, bold: bool) -> MeasureCell:
    """Return one measure of a method."""
    spread = measured[column.name]
    if not spread.n:
        return MeasureCell("not reached" if column.table == "target" else "–")
    mean, deviation = shown(spread, digits)
    partial = spread.n < measured.runs and column.table != "target"  # there, a column of its own shows it
    return MeasureCell(mean, deviation, f"({spread.n} of {measured.runs})" if partial else "", spread.mean, bold)


# ----------------------------------------------------------------------------------------------------- small things


def count(n: int, what: str) -> str:
    """Return a number of things: "1 run", "2 runs"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def listed(what: str, numbers: Sequence[int]) -> str:
    """Return numbered things: "seed 0", "seeds 0, 1"."""
    return f"{what}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def between(counts: Sequence[int]) -> str:
    """Return the range of some counts."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

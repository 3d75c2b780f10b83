"""The page: one file that can be sent to a colleague, with its pictures inside it and nothing to load elsewhere."""

from __future__ import annotations

import ast
import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template

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


@dataclass(frozen=True)
class Picture:
    """A figure as the page shows it."""

    name: str
    title: str
    caption: str
    svg: bytes
    links: tuple[str, ...]
    """Its files, relative to the page."""


def page(
    title: str,
    runs: Sequence[Run],
    at: Marks,
    methods: Sequence[Measured],
    pictures: Sequence[Picture],
    notes: Sequence[str] = (),
) -> str:
    """The page as text; the same runs give the same text."""
    body = (
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="lede">{escape(in_short(runs, methods))}</p></header>',
        contents(pictures, bool(notes)),
        caution(list(cautions(runs, at, methods))),
        section("notes", "Notes", [f"<p>{escape(note)}</p>" for note in notes]),
        section("runs", "What was run", map(method, methods, groups(runs).values())),
        section(
            "measures",
            "Measures",
            [
                f"<p>{escape(places(at))}</p>",
                f"<p>{escape(LEGEND)}</p>",
                *(table(name, at, methods) for name in ("scores", "target", "traffic", "course")),
                '<p class="files"><a href="table.csv">All of it as CSV</a></p>',
            ],
        ),
        section("figures", "Figures", map(figure, pictures)),
        f"<footer>Written by Archipel {escape(version('archipel'))}. This page loads nothing from elsewhere.</footer>",
    )
    template = Template((files("archipel.report") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), body="\n".join(filter(None, body)))


def section(name: str, title: str, parts: Iterable[str]) -> str:
    """Nothing if there is nothing in it."""
    inside = "\n".join(parts)
    return f'<section id="{name}"><h2>{title}</h2>\n{inside}\n</section>' if inside else ""


# ---------------------------------------------------------------------------------------------- before one compares


def caution(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<aside class="caution"><h2>Before you compare</h2><ul>{items}</ul></aside>' if items else ""


def cautions(runs: Sequence[Run], at: Marks, methods: Sequence[Measured]) -> Iterator[str]:
    """What a reader has to know before comparing these methods."""
    alike: dict[str, list[str]] = {}
    for one in methods:
        alike.setdefault(one.scoring, []).append(one.method)
    if len(alike) > 1:
        ways = "; ".join(f"{', '.join(names)} by {how}" for how, names in alike.items())
        yield f"The methods were not scored alike, so their scores do not compare: {ways}."
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
        "have a single score in the last fifth of their budget, and single scores swing": (
            lambda run, shares: len(shares) == 1
        ),
        "have no final score, as one in the last fifth of their budget is no finite number: did they diverge?": (
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


def in_short(runs: Sequence[Run], methods: Sequence[Measured]) -> str:
    scorings = {one.scoring for one in methods}
    scored = f"scored by {scorings.pop()}" if len(scorings) == 1 else "not scored alike"
    return f"{count(len(methods), 'method')}, {count(len(runs), 'run')}, {scored}."


def contents(pictures: Sequence[Picture], notes: bool) -> str:
    entries = [
        *([("notes", "Notes")] if notes else []),
        ("runs", "What was run"),
        ("measures", "Measures"),
        *((f"figure-{picture.name}", picture.title) for picture in pictures),
    ]
    items = "".join(f'<li><a href="#{escape(name)}">{escape(text)}</a></li>' for name, text in entries)
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>'


def method(measured: Measured, runs: Sequence[Run]) -> str:
    training = [[one for one in run.participants if one.role == "train"] for run in runs]
    learners = between([len(there) for there in training])
    examples = between([sum(one.examples for one in there) for there in training])
    folds = f", {listed('fold', measured.folds)}" if measured.folds else ""
    about = f"{listed('seed', measured.seeds)}{folds}; {learners} learners with {examples} examples to train on"
    endings = "; ".join(dict.fromkeys(run.reason for run in runs))
    executions = ", ".join(dict.fromkeys(run.execution for run in runs))
    scored = f"Scored by {measured.scoring}, the final score over {measured.stretch}."
    story = f"{scored} Ended because {endings}. Executed {executions}."
    # more than one where tuning has chosen
    expressions = "".join(
        f"<pre><code>{escape(laid_out(expression))}</code></pre>"
        for expression in dict.fromkeys(run.algorithm for run in runs)
    )
    return (
        f"<details><summary><strong>{escape(measured.method)}</strong>: {escape(about)}</summary>"
        f"<p>{escape(story)}</p>{expressions}</details>"
    )


def laid_out(expression: str) -> str:
    """An algorithm's expression with a line for each of its parts; anything else as it is."""
    try:
        call = ast.parse(expression, mode="eval").body
    except SyntaxError:  # a part of a user's own may print as it likes
        return expression
    if not isinstance(call, ast.Call):
        return expression
    parts = "".join(f"    {ast.unparse(part)},\n" for part in (*call.args, *call.keywords))
    return f"{ast.unparse(call.func)}(\n{parts})"


# -------------------------------------------------------------------------------------------------------- measures

LEGEND = (
    "Numbers are means over a method's runs ± the sample deviation. Bold is a mean that is better than every other of "
    "its column by more than one deviation of either, among methods whose every run has the number; with one run each, "
    "or where methods were not scored alike, nothing is bold. A click on a column's head sorts by it."
)


def places(at: Marks) -> str:
    targets = " and ".join(
        f"the target {metric} {number(mark.value)} ({mark.why})" for metric, mark in at.targets.items()
    )
    return (
        f"Methods are compared at {number(at.seconds.value)} s ({at.seconds.why}), at {number(at.rounds.value)} local "
        f"rounds ({at.rounds.why}) and at {targets}. Seconds are virtual in a simulation, real in a federation. A "
        "local round is one round of local training by those who take part; each hop of a relay counts one."
    )


def caption(name: str, at: Marks) -> str:
    targets = " or ".join(f"{metric} {number(mark.value)}" for metric, mark in at.targets.items())
    title, text = {
        "scores": (
            "Scores.",
            "Final is the mean over the last fifth of each run's budget (its local rounds where it ended by rounds, "
            "else its seconds), each version counting as long as it was the current one; swing is how far apart the "
            "scores in it lie, for on data that are not IID single ones swing by several points from one round to the "
            "next. Last version is the single score at the end, at best validation the test score of the version that "
            "the validation learners score best, where there are such learners. Best is the best of all test scores. "
            "At a time or a number of rounds stands the last score by then.",
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
    return f"<strong>{escape(title)}</strong> {escape(text)}"


def table(name: str, at: Marks, methods: Sequence[Measured]) -> str:
    columns = [column for column in COLUMNS if column.table == name]
    if not any(one.validated.n for one in methods):  # there are no validation learners
        columns = [column for column in columns if column.name != "validated"]
    first = ["method", "reached"] if name == "target" else ["method"]
    texts = (column.head.format(seconds=number(at.seconds.value), rounds=number(at.rounds.value)) for column in columns)
    heads = [f'<th scope="col">{escape(text)}</th>' for text in (*first, *texts)]
    winners = {column.name: ahead(methods, column) for column in columns}
    places = {column.name: decimals(column, methods) for column in columns}
    rows = []
    for one in methods:
        row = [f'<th scope="row" data-value="{escape(one.method)}">{escape(one.method)}</th>']
        if name == "target":
            n = one.target_seconds.n
            row.append(f'<td data-value="{n / one.runs}">{n} of {one.runs}</td>')
        row += [cell(one, column, places[column.name], winners[column.name] is one) for column in columns]
        rows.append(f"<tr>{''.join(row)}</tr>")
    # the box scrolls sideways where the table is too wide, by keyboard as well
    return (
        f'<div class="wide" role="region" aria-label="{name}" tabindex="0">'
        f"<table><caption>{caption(name, at)}</caption><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def cell(measured: Measured, column: MeasureColumn, places: int, bold: bool) -> str:
    spread = measured[column.name]
    if not spread.n:
        return f'<td class="none">{"not reached" if column.table == "target" else "–"}</td>'
    mean, deviation = shown(spread, places)
    text = f"<strong>{mean}</strong>" if bold else mean
    if deviation:
        text += f" <small>± {deviation}</small>"
    if spread.n < measured.runs and column.table != "target":  # there, a column of its own tells it
        text += f" <small>({spread.n} of {measured.runs})</small>"
    return f'<td data-value="{spread.mean!r}">{text}</td>'


# --------------------------------------------------------------------------------------------------------- figures


def figure(picture: Picture) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture.svg).decode()}"
    links = "".join(f'<a href="{escape(link)}">{escape(link.rpartition(".")[2].upper())}</a>' for link in picture.links)
    return (
        f'<figure id="figure-{escape(picture.name)}"><h3>{escape(picture.title)}</h3>'
        f'<div class="card" tabindex="0"><img src="{source}" alt="{escape(picture.title)}"></div>'
        f'<figcaption><p>{escape(picture.caption)}</p><p class="files">{links}</p></figcaption></figure>'
    )


# ----------------------------------------------------------------------------------------------------- small things


def count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def listed(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def between(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

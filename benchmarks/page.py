"""Write what benchmarks/measured holds into docs/explanation: `python -m benchmarks.page`.

The page on methods is generated as a whole, with its pictures. Of four others everything between two markers,
`<!-- NAME -->` and `<!-- end -->`, is replaced. No figure is typed by hand, and a test compares the pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import cluster_table, scale
from benchmarks.federation import table as federation
from benchmarks.field import outcome as field
from benchmarks.field.runs import stored
from benchmarks.measures import spread
from benchmarks.peers.table import table as peers
from benchmarks.results import Sorted
from benchmarks.targets import Verdict, aggregation, verdicts
from benchmarks.zoo_networks import GOALS

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "benchmarks" / "measured"
PAGES = tuple(
    ROOT / "docs" / "explanation" / name
    for name in ("performance.md", "scale.md", "reliability.md", "methods-and-peers.md")
)
METHODS = ROOT / "docs" / "explanation" / "methods-compared.md"
MARKED = re.compile(r"(<!-- (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
RATES = (("W2", "first second"), ("W2", "warm"), ("W1", "warm"), ("W3", "warm"))
"""Workloads and measures of the table of updates a second."""


STORED = {
    "whole-avx512": "660bf60, 2026-11-16, two repeats",
    "A1-avx512": "accbfe6, 2026-11-16, three repeats",
    "whole-avx2": "b650f0d, 2026-11-17, one repeat",
    "A1-avx2": "b650f0d, 2026-11-17, five repeats",
}
"""The commit that stored each outcome, since these do not say which commit they measured."""


def page(path: Path) -> str:
    """Return a page with the tables of the stored outcomes."""

    def filled(found: re.Match[str]) -> str:
        made = {
            "federation": federation.table,
            "zoo": zoo,
            "adapters": adapters,
            "cluster": cluster_table.table,
            "peers": peers,
            **scale.TABLES,
        }.get(found[2])
        text = tables(found[2]) if made is None else made()
        return f"{found[1]}{text}\n{found[3]}"

    return MARKED.sub(filled, path.read_text())


def zoo() -> str:
    """Return the table of networks of all kinds, from `python -m benchmarks.zoo`."""
    found = json.loads((MEASURED / "zoo.json").read_text())
    facts, turns = found["machine"], len(found["zoo"][0]["turns"])
    lines = [
        "",
        f"{facts['cores']} cores ({facts['cpu']}), torch {facts['torch']}, middle of {turns} turns (least to most):",
        "",
        "| network | executed | times the loop | goal | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in found["zoo"]:
        ratios, goal = sorted(one["ratios"]), GOALS[one["goal"]]
        middle = ratios[len(ratios) // 2]
        reached = "reached" if middle >= goal else "**not reached**"
        cells = (
            one["network"],
            one["execution"],
            f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            f"{goal:g}",
            reached,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def adapters() -> str:
    """Return the table of a round with adapters, from `python -m benchmarks.adapters`."""
    found = json.loads((MEASURED / "adapters.json").read_text())
    facts, turns = found["machine"], found["turns"]

    def middle(who: str, what: str) -> float:
        values: list[float] = [turn[who][what] for turn in turns]
        return median(values)

    allowed = middle("round", "allowed beyond imports (MB)")
    rows = [
        ("bytes down, of the adapters' own", middle("round", "down / adapters"), 1.01, ".2f"),
        ("bytes up, of the adapters' own", middle("round", "up / adapters"), 1.01, ".2f"),
        (
            "memory of driver and two workers beyond the imports (MB)",
            middle("round", "beyond imports (MB)"),
            allowed,
            ".0f",
        ),
        ("time of the better loop (one or two threads), two workers", middle("round", "seconds / loop"), 1.1, ".2f"),
        ("time of the loop with one thread, in the process itself", middle("plain", "seconds / loop"), 1.1, ".2f"),
        ("a base of 100 million parameters: all memory (MB)", middle("large", "all processes (MB)"), 3072, ".0f"),
    ]
    lines = [
        "",
        f"{facts['cores']} cores ({facts['cpu']}), torch {facts['torch']}, middle of {len(turns)} turns, "
        f"{found['load'][0]:g} processes wanted a core before.",
        "",
        "| | measured | at most | |",
        "| --- | --- | --- | --- |",
        *(
            f"| {what} | {value:{form}} | {goal:{form}} | {'reached' if value <= goal else '**not reached**'} |"
            for what, value, goal, form in rows
        ),
        "",
        "| | Archipel | Flower |",
        "| --- | --- | --- |",
        f"| seconds of the round | {middle('round', 'seconds'):.1f} | {middle('flower', 'seconds'):.1f} |",
        f"| memory of all processes (MB) | {middle('round', 'all processes (MB)'):,.0f} "
        f"| {middle('flower', 'all processes (MB)'):,.0f} |",
        f"| adapters of all, each way (MB) | {middle('round', 'adapters of all (MB)'):.2f} "
        f"| {middle('flower', 'adapters of all (MB)'):.2f} |",
    ]
    return "\n".join(lines) + "\n"


def tables(name: str) -> str:
    """Return the two tables of a machine, from its run of everything and its run of A1."""
    files = (f"whole-{name}", f"A1-{name}")
    whole, merges = (json.loads((MEASURED / f"{file}.json").read_text()) for file in files)
    found = Sorted(whole)
    facts = whole["machine"]
    lines = [
        "",
        f"{facts['cores']} cores, Python {facts['python']}, torch {facts['torch']}.",
        "",
        *(f"* `python -m benchmarks --show benchmarks/measured/{file}.json`: commit {STORED[file]}" for file in files),
        "",
        "| workload | target | measured | |",
        "| --- | --- | --- | --- |",
        *(_row(verdict) for verdict in verdicts(found.comparable, ())),
        *(_row(verdict) for verdict in _grouped(aggregation(merges["A1"]))),
        "",
        "Updates a second:",
        "",
        "| | " + " | ".join(f"{workload}, {measure}" for workload, measure in RATES) + " |",
        "| --- |" + " --- |" * len(RATES),
        *_rates(found),
    ]
    return "\n".join(lines) + "\n"


def _row(verdict: Verdict) -> str:
    reached = {True: "reached", False: "**not reached**", None: "open"}[verdict.reached]
    return f"| {verdict.workload} | {verdict.says} | {verdict.measured} | {reached} |"


def _grouped(found: Sequence[Verdict]) -> Iterator[Verdict]:
    """Join the verdicts on several sizes: "10 x 1e+07: mean of triad at least 0.9" and others of the same target."""
    groups: dict[str, list[tuple[str, Verdict]]] = {}
    for verdict in found:
        size, separate, says = verdict.says.partition(": ")
        groups.setdefault(says if separate else verdict.says, []).append((size if separate else "", verdict))
    for says, members in groups.items():
        measured = ", ".join(f"{size}: {one.measured}" if size else one.measured for size, one in members)
        yield Verdict(members[0][1].workload, says, measured, all(one.reached for _, one in members))


def _rates(found: Sorted) -> Iterator[str]:
    names: Mapping[str, Any] = found.comparable["W2"]
    for name in names:
        rows = (found.comparable[workload].get(name) for workload, _ in RATES)
        shown = (
            _rate(spread(lines, measure).middle) if lines else "–"
            for lines, (_, measure) in zip(rows, RATES, strict=True)
        )
        yield f"| {name} | " + " | ".join(shown) + " |"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path))
    field.write(stored(), METHODS, ROOT / "docs" / "pictures")

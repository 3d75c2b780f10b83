"""What a person sees: ratios first, because absolute figures hold for one machine on one day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measures import Spread, ratio, spread
from benchmarks.results import Sorted
from benchmarks.targets import verdicts
from benchmarks.zoo_networks import BATCH, EXAMPLES, GOALS, LEARNERS, NEVER_BELOW

MARKS = {True: "[green]reached[/]", False: "[red]not reached[/]", None: "[yellow]open[/]"}


def show(results: Mapping[str, Any]) -> None:
    """Print everything a run has found."""
    console = Console()
    found = Sorted(results)
    console.print("  ".join(f"{name}: {value}" for name, value in results["machine"].items()))
    console.print(f"load average before: {results['load before']}, after: {results.get('load after', 'cut off')}")
    for workload in found.laps:
        console.print(_ratios(workload, found), _figures(workload, found))
    if results.get("A1"):
        console.print(_aggregation(results["A1"]))
    if results.get("zoo"):
        console.print(zoo_table(results["zoo"]))
    if results["quick"]:
        console.print("A quick run measures nothing: no target is looked at.")
    else:
        console.print(_targets(found, results))
    for name, reason in results["absent"].items():
        console.print(f"{name} is absent: {reason}")


def _ratios(workload: str, found: Sorted) -> Table:
    # a stream is set against Archipel's own rounds, for no peer does it
    ours = next(
        (rows["archipel"] for name in (workload, "W2") if "archipel" in (rows := found.comparable.get(name, {}))), {}
    )
    table = Table(
        *("contender", "first second", "warm", "whole command", "memory", "how"),
        title=f"{workload}: how many times faster Archipel is, and how many times their memory it holds",
    )
    for name, lines in found.laps[workload].items():
        remark = found.remarks.get((workload, name))
        times = [ratio(ours, lines, measure) for measure in ("first second", "warm", "whole", "memory")]
        how = [f"{line['version']}, {line['setting']}" for line in lines.values()][:1]
        table.add_row(
            name,
            *("" if remark or one is None else _brief(one) for one in times),
            "; ".join([*how, *([remark] if remark else [])]),
        )
    return table


def _figures(workload: str, found: Sorted) -> Table:
    table = Table(
        *("contender", "updates/s", "updates/s warm", "start-up s", "whole s", "peak MB", "loss"),
        title=f"{workload}: figures of this machine, now",
    )
    for name, lines in found.laps[workload].items():
        if lines:
            figures = [spread(lines, measure) for measure in ("first second", "warm", "start-up", "whole", "memory")]
            losses = Spread.of([line["loss"] for line in lines.values()])
            table.add_row(name, *map(_brief, figures), f"{losses.middle:.4f}")
    return table


def _targets(found: Sorted, results: Mapping[str, Any]) -> Table:
    table = Table("workload", "target", "measured", "", title="Targets")
    for verdict in verdicts(found.comparable, results.get("A1", ())):
        table.add_row(verdict.workload, verdict.says, verdict.measured, MARKS[verdict.reached])
    return table


def _aggregation(cases: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "N x M",
        "mean / triad",
        "per layer / triad",
        "dictionaries / mean",
        "commit / two read, one written",
        "triad GB/s",
        "commit ms",
        title="A1: aggregation",
    )
    for case in cases:
        names = ("mean of triad", "per layer of triad", "mean over dictionaries", "commit over two read, one written")
        table.add_row(
            f"{case['learners']:,} x {case['parameters']:.0e}",
            *(_brief(Spread(case[name], *case["lowest and highest"][name])) for name in (*names, "triad GB/s")),
            f"{case['commit'] * 1e3:.2f}",
        )
    return table


def zoo_table(measured: Sequence[Mapping[str, Any]], one_core: bool = False) -> Table:
    """Return what was measured as a table; the goals are for two cores."""
    found = Table(
        *("network", "executed", "updates/s", "bare loop's", "ratio", "goal on two cores"),
        title=f"Zoo: {LEARNERS} learners x {EXAMPLES} examples, batches of {BATCH}{', one core' * one_core}",
    )
    for case in measured:
        ours = Spread.of([turn["archipel"] for turn in case["turns"]])
        bare = Spread.of([max(rate for who, rate in turn.items() if who != "archipel") for turn in case["turns"]])
        ratio, goal = Spread.of(case["ratios"]), GOALS[case["goal"]]
        reached = (
            ""
            if one_core
            else "reached"
            if ratio.middle >= goal
            else "above the least"
            if ratio.middle >= NEVER_BELOW
            else "MISSED"
        )
        found.add_row(
            *(case["network"], case["execution"], f"{ours.middle:,.0f}", f"{bare.middle:,.0f}"),
            f"{ratio.middle:.2f} ({ratio.low:.2f}–{ratio.high:.2f})",
            f"{goal:g} x {reached}",
        )
    return found


def _brief(one: Spread) -> str:
    """Three digits and the spread: 1.31 (1.25–1.40)."""
    middle, low, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (one.middle, one.low, one.high)
    )
    return middle if low == high else f"{middle} ({low}–{high})"

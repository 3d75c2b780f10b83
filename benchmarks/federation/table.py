"""The table of docs/explanation/reliability.md, from benchmarks/measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

INPUTS, HISTORIES = 10_000_000, 10_000
GIGABYTES = 10
RATE, GROWN = 0.8, 64
MEASURED = Path(__file__).parent.parent / "measured"
HEAD = ["| what | target | measured | command | stored in |", "| --- | --- | --- | --- | --- |"]


def table() -> str:
    """Return the table, and where the kills of the controller fell."""
    rows = [*_kills(), *_recovery(), *_crowd(), *_large(), *_growth(), *_strangers(), *_fuzz()]
    return "\n".join(["", *HEAD, *(f"| {' | '.join(row)} |" for row in rows), "", _moments(), ""])


def _read(name: str) -> Any:
    return json.loads((MEASURED / f"{name}.json").read_text())


def _file(name: str) -> str:
    return f"[{name}.json](../../benchmarks/measured/{name}.json)"


def _seconds(found: list[float], target: float) -> str:
    middle = f"{median(found):.2f} s"
    return f"{middle if median(found) <= target else f'**{middle}**'} ({min(found):.2f} to {max(found):.2f})"


def _kills() -> Iterator[tuple[str, ...]]:
    """Yield a row for each protocol; a run with a finding would show it."""
    told = _read("chaos")
    for protocol in ("rounds", "stream", "relay"):
        runs = [run for run in told["runs"] if run["setting"].startswith(f"{protocol}:")]
        wrong = [name for run in runs for name in run["findings"]["wrong"]]
        acknowledged = sum(run["findings"]["acknowledged"] for run in runs)
        kills = sum(run["kills"] for run in runs)
        yield (
            f"updates lost or applied twice under `{protocol.capitalize()}`, with {kills} kills of the controller",
            "none",
            f"**{', '.join(wrong)}**" if wrong else f"none of {acknowledged:,}; replayed to the bit",
            "`python -m tests.federation.chaos --kills 100 --seed 4`",
            f"{_file('chaos')}, 743b94c",
        )


def _recovery() -> Iterator[tuple[str, ...]]:
    killed = _read("recovery")["recovery"][0]["killed"]
    command = "`python -m benchmarks.federation.recovery --kills 6 --algorithms async_fedavg`"
    for who, what in (
        ("controller", "time from `kill -9` of the controller to the first receipt; 100 learners, 1e6 parameters"),
        ("keeper and controller", "the same, with the keeper killed too and the command started again"),
    ):
        yield what, "2 s", _seconds(killed[who]["seconds"], 2), command, f"{_file('recovery')}, 20dc637"


def _crowd() -> Iterator[tuple[str, ...]]:
    told = _read("throughput")
    where = "`python -m benchmarks.federation.throughput --rounds 10 --processes 2`", f"{_file('throughput')}, 20dc637"
    what = f"durable updates of {told['kib']} KiB from {told['learners']:,} learners"
    yield what, "500 a second", f"{told['updates_a_second']:.0f} a second, {told['errors']} errors", *where
    yield "time to a receipt there, 99th percentile", "5 s", f"{told['p99_seconds']:.1f} s", *where
    yield "memory of that controller", "400 MB", f"{told['controller_peak_mb']:.0f} MB", *where


def _large() -> Iterator[tuple[str, ...]]:
    for told in _read("large"):
        yield (
            f"memory of a controller, {told['learners']} learners, 1e7 parameters, `{told['method']}`",
            f"{told['allowed_mb']:.0f} MB",
            f"{told['controller_peak_mb']:.0f} MB",
            "`python -m benchmarks.federation.large --rounds 1`",
            f"{_file('large')}, 20dc637",
        )
    told = _read("round-quiet")
    yield (
        "a round of 4 learners, 1e7 parameters, relative to bare gRPC streams to disk",
        "1.5 x",
        f"{told['ratio']:.2f} x ({min(told['ratios']):.2f} to {max(told['ratios']):.2f})",
        "`python -m benchmarks.federation.round --repeats 4`",
        f"{_file('round-quiet')}, 20dc637",
    )


def _growth() -> Iterator[tuple[str, ...]]:
    """Yield what a million commits would take; one of `fedavg` holds an update of every learner."""
    for method, told in _read("growth").items():
        whole = told["gigabytes_for_a_million_extrapolated"]
        amount = f"{whole:.1f} GB" if whole <= GIGABYTES else f"**{whole:.1f} GB**"
        yield (
            f"state of a controller after a million commits, {told['learners']} learners, `{method}`, extrapolated",
            f"{GIGABYTES} GB",
            f"{amount}, from {told['bytes_a_commit']:,.0f} bytes a commit in the second half of {told['commits']:,}",
            f"`python -m benchmarks.federation.growth --methods {method}`",
            _file("growth"),
        )


def _strangers() -> Iterator[tuple[str, ...]]:
    """Yield what callers without a listed certificate cost."""
    for what, told in _read("strangers").items():
        if what == "restarts":
            continue
        count = next(told[name] for name in ("connections", "calls", "PERMISSION_DENIED") if name in told)
        rate, cpu, memory = told["share_of_the_rate"], told["share_of_updates_a_cpu_second"], told["megabytes"]
        grown = memory["peak"] - memory["before"]
        yield (
            f"rate and memory of a controller with {count:,} {what} of strangers",
            f"{RATE:.0%}, +{GROWN} MB",
            f"{_bold(f'{rate:.1%}', rate >= RATE)} ({cpu:.0%} by the controller's CPU time), "
            f"{_bold(f'+{max(0, grown)} MB', grown <= GROWN)}, then +{max(0, memory['after'] - memory['before'])} MB",
            "`python -m benchmarks.federation.strangers`",
            _file("strangers"),
        )


def _bold(text: str, reached: bool) -> str:
    return text if reached else f"**{text}**"


def _fuzz() -> Iterator[tuple[str, ...]]:
    """Yield what `make fuzz` made; it may have been stopped before its end."""
    told, lived = _read("fuzz"), _read("histories")
    yield (
        f"changed inputs to {len(told['by parser'])} parsers of bytes from outside, and wrong errors among them",
        f"{INPUTS:,}; none",
        f"{_reached(told['executions'], INPUTS)}; {len(told['problems']) or 'none'}",
        f"`python -m tests.fuzz --executions {INPUTS} --seed {told['seed']}`",
        _file("fuzz"),
    )
    yield (
        f"random histories of the controller, {lived['steps']} steps each, with its laws checked after every event",
        f"{HISTORIES:,}",
        f"{_reached(lived['histories'], HISTORIES)}, {lived['events']:,} events",
        f"`python -m tests.fuzz.histories --seed {lived['seed']}`",
        _file("histories"),
    )


def _reached(count: int, target: int) -> str:
    return f"{count:,}" if count >= target else f"**{count:,}**"


def _moments() -> str:
    runs = _read("chaos")["runs"]
    kills, both = sum(run["kills"] for run in runs), sum(run["kills"] - run["kept"] for run in runs)
    where = Counter[str]()
    for run in runs:
        where.update(run["where"])
    moments = "; ".join(f"{moment} ({count})" for moment, count in where.most_common())
    return f"Of the {kills} kills, {both} ended the keeper too. When they fell, several at a time: {moments}."

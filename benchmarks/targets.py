"""What Archipel should reach, as ratios in one run, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.entries import ENTRIES, PEERS
from benchmarks.measures import Laps, Line, Spread, best, ratio, spread


@dataclass(frozen=True)
class Target:
    """Ours is at least so many times as good as theirs; of memory, at most so many times as large."""

    workload: str
    measure: str
    against: tuple[str, ...]
    """Contenders, the best of which counts."""
    factor: float
    ours: str = "archipel"
    their_workload: str = ""
    """Another than ours."""


@dataclass(frozen=True)
class Verdict:
    """A target, what was measured, and whether that reaches it; None: somebody it needs did not take part."""

    workload: str
    says: str
    measured: str
    reached: bool | None


TARGETS = (
    *(Target("W2", "first second", (name,), factor) for name, factor in (("flower", 30), ("pfl", 6), ("fluke", 6))),
    Target("W2", "first second", ("fedjax",), 2),
    Target("W2", "first second", ("centralised",), 4),
    Target("W2", "whole", ("flower",), 8),
    Target("W2", "whole", ("pfl",), 2),
    Target("W2-long", "first second", ("flower",), 45),
    Target("W2-long", "first second", ("pfl",), 9),
    Target("W1", "warm", ("flower",), 1.6),
    Target("W1", "warm", PEERS, 1.25),
    Target("W1", "warm", ("bare",), 1.2),
    Target("W1", "warm", ("flower",), 1.6, ours="archipel on Ray"),
    Target("W2", "warm", ("flower",), 10, ours="archipel on Ray"),
    Target("W3", "warm", PEERS, 1.1),
    Target("W3", "warm", ("centralised",), 1.0),
    Target("W4", "warm", ("archipel",), 0.5, ours="async_fedavg", their_workload="W2"),
    Target("W4", "warm", ("archipel",), 0.25, ours="async_dvw", their_workload="W2"),
    # one process against one process: a second worker has activations of its own
    *(Target(name, "memory", ("bare",), 1.3, ours="archipel plain") for name in ("W1", "W2", "W3")),
    *(Target(name, "memory", ("flower",), 1.0) for name in ("W1", "W2", "W3")),
)

MILLIONS_BELOW_MB = 6 * 1024
"""A thousand learners of a million parameters, asynchronously."""


def verdicts(laps: Laps, cases: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """All targets of the workloads that were run."""
    found = [judge(target, laps) for target in TARGETS if target.workload in laps]
    if "M1" in laps:
        found.append(_millions(laps["M1"]))
    if cases:
        found += aggregation(cases)
    return found


def judge(target: Target, laps: Laps) -> Verdict:
    """One target on these laps."""
    at_most = target.measure == "memory"
    theirs = _rows(laps.get(target.their_workload or target.workload, {}), target.against)
    ours = _rows(laps[target.workload], (target.ours,))
    who = "the best peer" if target.against == PEERS else target.against[0]
    where = f" on {target.their_workload}" if target.their_workload else ""
    who_we_are = "" if target.ours == "archipel" else f"{target.ours} "
    says = f"{who_we_are}{target.measure} {'at most' if at_most else 'at least'} {target.factor:g} x {who}{where}"
    if not ours or not theirs:
        return Verdict(target.workload, says, "did not take part", None)
    chosen = best(theirs, target.measure)
    times = ratio(ours[best(ours, target.measure)], theirs[chosen], target.measure)
    if times is None:
        return Verdict(target.workload, says, "no repeat has both", None)
    reached = times.middle <= target.factor if at_most else times.middle >= target.factor
    return Verdict(target.workload, says, f"{shown(times)} ({chosen})", reached)


def aggregation(cases: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """The targets of A1."""
    found = []
    for case in sorted(cases, key=lambda case: (case["learners"], case["parameters"])):
        n, m = case["learners"], case["parameters"]
        size = f"{n} x {m:.0e}"
        if 4 * n * m >= 4e8:
            for name, least in (("mean of triad", 0.9), ("mean over dictionaries", 3.0)):
                found.append(
                    Verdict("A1", f"{size}: {name} at least {least}", f"{case[name]:.2f}", case[name] >= least)
                )
        over = case["commit over two read, one written"]
        found.append(Verdict("A1", f"{size}: commit at most 2 x two read, one written", f"{over:.2f}", over <= 2))
    for m in sorted({case["parameters"] for case in cases}):
        commits = {case["learners"]: case["commit"] for case in cases if case["parameters"] == m}
        flat = max(commits.values()) / min(commits.values())
        learners = ", ".join(map(str, sorted(commits)))
        found.append(
            Verdict("A1", f"commit at {m:.0e} flat over N = {learners} within 1.1", f"{flat:.2f}", flat <= 1.1)
        )
    return found


def shown(times: Spread) -> str:
    """A median and its spread."""
    single = times.low == times.high
    return f"{times.middle:.2f}" if single else f"{times.middle:.2f} [{times.low:.2f} to {times.high:.2f}]"


def _rows(laps: Mapping[str, Mapping[int, Line]], contenders: Sequence[str]) -> dict[str, Mapping[int, Line]]:
    names = {entry.name for entry in ENTRIES if entry.contender in contenders}
    return {name: lines for name, lines in laps.items() if name in names and lines}


def _millions(laps: Mapping[str, Mapping[int, Line]]) -> Verdict:
    says = f"1,000 learners x 1e6 parameters asynchronously below {MILLIONS_BELOW_MB:,} MB"
    rows = _rows(laps, ("async_fedavg",))
    if not rows:
        return Verdict("M1", says, "did not take part", None)
    peak = spread(next(iter(rows.values())), "memory")
    return Verdict("M1", says, f"{peak.middle:,.0f} MB", peak.middle < MILLIONS_BELOW_MB)

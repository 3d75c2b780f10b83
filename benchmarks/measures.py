"""From the contenders' lines to rates, medians, spreads and ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.workloads import Workload

Line = Mapping[str, Any]
"""What a contender tells of one lap, and what the harness adds."""
Laps = Mapping[str, Mapping[str, Mapping[int, Line]]]
"""By workload, entry and repeat."""

MORE_IS_BETTER = ("first second", "warm")


@dataclass(frozen=True)
class Spread:
    """A median and how far single repeats lie from it."""

    middle: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


def measure(line: Line, name: str) -> float:
    """One measure of one lap.

    The warm-up is the first fifth of the rounds. What a contender compiles or imports lazily once data and model are
    ready counts from the first second.
    """
    ends = line["rounds"]
    match name:
        case "first second":
            return float(line["updates"] / (ends[-1] - line["ready"]))
        case "warm":
            left_out = len(ends) // 5
            began = ends[left_out - 1] if left_out else line["ready"]
            return float(line["updates"] * (len(ends) - left_out) / len(ends) / (ends[-1] - began))
        case "whole":
            return float(line["whole"])
        case "start-up":
            return float(line["ready"])
        case "memory":
            return float(line["peak_mb"])
    raise ValueError(f"measure: no measure {name!r}.")


def spread(lines: Mapping[int, Line], name: str) -> Spread:
    """A measure over the repeats."""
    return Spread.of([measure(line, name) for line in lines.values()])


def ratio(ours: Mapping[int, Line], theirs: Mapping[int, Line], name: str) -> Spread | None:
    """How many times better ours is, lap against lap of the same repeat, because the machine is not always as busy.

    For memory it is how many times theirs we hold. None: no repeat has both.
    """
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return None
    pairs = [(measure(ours[i], name), measure(theirs[i], name)) for i in both]
    inverse = name not in MORE_IS_BETTER and name != "memory"
    return Spread.of([b / a if inverse else a / b for a, b in pairs])


def best(rows: Mapping[str, Mapping[int, Line]], name: str) -> str:
    """The row that is best by the median of a measure."""
    sign = 1 if name in MORE_IS_BETTER else -1
    return max(rows, key=lambda row: sign * spread(rows[row], name).middle)


def other_work(line: Line, workload: Workload, reference: float | None) -> str | None:
    """What this lap did differently from what was asked; None: nothing.

    reference: the final loss of the bare loop. Batches are drawn anew by every contender, so losses may differ by a
    tenth of the way that training has come from a blind guess, or by a hundredth if it has hardly begun.
    """
    updates = workload.rounds * workload.per_round
    steps = updates * workload.steps
    if (line["updates"], line["steps"]) != (updates, steps):
        return f"{line['updates']} updates of {line['steps']} steps in all, not {updates} of {steps}"
    if reference is not None:
        allowed = max(0.01, 0.1 * abs(math.log(workload.classes) - reference))
        if not abs(line["loss"] - reference) <= allowed:
            return f"final loss {line['loss']:.4f}, not {reference:.4f} ± {allowed:.4f}"
    return None

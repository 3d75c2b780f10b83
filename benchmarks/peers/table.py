"""The table of methods beside their peers, from benchmarks/measured/peers.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

STORED = Path(__file__).parent.parent / "measured" / "peers.json"

Curves = Sequence[Sequence[float]]
"""Accuracies by seed and round."""


@dataclass(frozen=True)
class Compared:
    """A method's curves in Archipel and in a peer."""

    difference: float
    """Mean over the rounds of the distance between the two mean curves."""
    deviation: float
    """Mean over the rounds of both sides' standard deviations over the seeds, added."""

    @property
    def alike(self) -> bool:
        return self.difference <= self.deviation


def compare(ours: Curves, theirs: Curves) -> Compared:
    """Compare mean curves by how much seeds differ."""
    rounds = [([*mine], [*its]) for mine, its in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)]
    difference = fmean(abs(fmean(mine) - fmean(its)) for mine, its in rounds)
    return Compared(difference, fmean(stdev(mine) + stdev(its) for mine, its in rounds))


def lines(stored: dict[str, Any]) -> Iterator[str]:
    """Yield the table."""
    versions = ", ".join(
        f"{name} {number}" for name, number in sorted(stored["versions"].items()) if name != "archipel"
    )
    yield from ("", f"{versions}; accuracy in the last round, mean and deviation over the seeds:", "")
    yield "| method | peer | Archipel | the peer | difference of the curves | deviation of seeds | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, sides in sorted(stored["methods"].items()):
        ours = sides["archipel"]
        for peer in sorted(set(sides) - {"archipel"}):
            found = compare(ours, sides[peer])
            alike = "alike" if found.alike else "**differ**"
            yield (
                f"| `{name}` | {peer} | {_last(ours)} | {_last(sides[peer])} | {found.difference:.3f} | "
                f"{found.deviation:.3f} | {alike} |"
            )


def table() -> str:
    """Return the table of what is stored."""
    return "\n".join(lines(json.loads(STORED.read_text()))) + "\n"


def _last(curves: Curves) -> str:
    ends = [curve[-1] for curve in curves]
    return f"{fmean(ends):.3f} ± {stdev(ends):.3f}"

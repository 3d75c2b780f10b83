"""Tables of simulations on a cluster, from what `python -m benchmarks.cluster` and a race with Flower have stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cluster import ACTORS, DRIVER, PARTS, RAY
from benchmarks.results import Sorted
from benchmarks.targets import verdicts

MEASURED = Path(__file__).parent / "measured"
LONGER = 1.25
"""Times the time of local workers, at most."""
KEPT_BUSY = {(16, 0.2): 0.9, (64, 0.2): 0.8}
"""Efficiency, at least, by actors and seconds of a task."""
MODELS, MEGABYTES = 6, 300
"""Of the driver's memory, at most."""
LOST_SECONDS = 10
"""That a loss may cost, beside the work that is lost."""


class Goal(NamedTuple):
    """A row of the table of goals."""

    what: str
    measured: str
    goal: str
    reached: bool | None


def table() -> str:
    """Return the goals with what was measured, and how busy the actors were kept."""
    found = json.loads((MEASURED / "cluster.json").read_text())
    facts = found["machine"]
    loads = ", ".join(f"{found[part]['load before']:g} before {part}" for part in PARTS if part in found)
    marks = {True: "reached", False: "**not reached**", None: "open"}
    lines = [
        "",
        f"{facts['cores']} cores ({facts['cpu']}), torch {facts['torch']}. Processes that wanted a core: {loads}.",
        "",
        "| | measured | goal | |",
        "| --- | --- | --- | --- |",
        *(f"| {one.what} | {one.measured} | {one.goal} | {marks[one.reached]} |" for one in goals(found)),
        *busy(found.get("sleeping", {})),
    ]
    return "\n".join(lines) + "\n"


def goals(found: dict[str, Any]) -> Iterator[Goal]:
    """Yield all goals and whether they are reached; what was not measured is open."""
    for name in ("W1", "W3"):
        what, goal = f"{name}: time of local workers", f"at most {LONGER:g}"
        ratios = sorted(found["workloads"][name]["time over local workers"]) if "workloads" in found else []
        if ratios:
            middle = median(ratios)
            told = f"{middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            yield Goal(what, told, goal, middle <= LONGER)
        else:
            yield Goal(what, "–", goal, None)
    for (actors, seconds), least in KEPT_BUSY.items():
        what, goal = f"{actors} actors, tasks of {seconds * 1000:.0f} ms: efficiency", f"at least {least:g}"
        rows = [
            row
            for row in found.get("sleeping", {}).get("rows", ())
            if (row["actors"], row["seconds"]) == (actors, seconds)
        ]
        for row in rows:
            told = f"{row['efficiency']:.2f}"
            yield Goal(f"{what}, on {row['actors on']}", told, goal, row["efficiency"] >= least)
        if not rows:
            yield Goal(what, "–", goal, None)
    yield from losses(found["losses"])
    yield memory(found["memory"])
    flower = MEASURED / "cluster-flower.json"
    compared = Sorted(json.loads(flower.read_text())).comparable if flower.exists() else {}
    for one in verdicts(compared, ()):
        if "archipel on Ray" in one.says:
            yield Goal(f"{one.workload}: {one.says}", one.measured, "", one.reached)


def losses(found: dict[str, Any]) -> Iterator[Goal]:
    """Yield how much longer a run took after each kind of loss."""
    for name, seconds in found.items():
        if name.endswith("seconds more"):
            goal = f"lost work and {LOST_SECONDS} s"
            yield Goal(name.replace(":", ","), f"{seconds:.1f}", goal, seconds <= LOST_SECONDS)


def memory(found: dict[str, Any]) -> Goal:
    """Return what the driver needed."""
    allowed = MODELS * found["model (MB)"] + MEGABYTES
    sizes = f"{found['parameters']:,} parameters, {found['actors']} actors, {found['learners']} learners"
    told = f"{found['driver (MB)']:.0f} MB; {found['driver with a small network (MB)']:.0f} MB with a small network"
    goal = f"{MODELS} models and {MEGABYTES} MB: {allowed:.0f} MB"
    return Goal(f"driver's memory with {sizes}", told, goal, found["driver (MB)"] <= allowed)


def busy(sleeping: dict[str, Any]) -> Iterator[str]:
    """Yield the table of sleeping learners and what one driver carries."""
    if not sleeping:
        return
    yield ""
    yield (
        "| actors | on | a task | efficiency | predicted | actors elsewhere | "
        + " | ".join(f"{who}, ms a task" for who in (DRIVER, "its process", RAY, ACTORS))
        + " |"
    )
    yield "| --- " * 10 + "|"
    for row in sleeping["rows"]:
        shares = (row["predicted here"], row["predicted, actors elsewhere"])
        used = (row[who] * 1000 for who in (DRIVER, "process of the driver", RAY, ACTORS))
        yield (
            f"| {row['actors']} | {row['actors on']} | {row['seconds'] * 1000:.0f} ms | {row['efficiency']:.2f} | "
            + " | ".join(f"{share:.2f}" for share in shares)
            + " | "
            + " | ".join(f"{one:.1f}" for one in used)
            + " |"
        )
    carried = sleeping["actors that one driver carries at 0.8"]
    yield ""
    yield (
        "By the time that a task takes of the driver's thread, one driver keeps so many actors busy at 0.8: "
        + ", ".join(f"{count:,} with {what}" for what, count in carried.items())
        + "."
    )

"""The tables of docs/explanation/scale.md, from what `idle`, `core_start` and `population` have stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

MEASURED = Path(__file__).parent / "measured"

FLAT = 0.8
"""The slowest size of a flat row is at least this share of the fastest."""
SPLIT_SECONDS, START_UP, MEGABYTES = 60.0, 1.3, 4096.0


def idle() -> str:
    """Return commits a second by the number of learners, from `python -m benchmarks.idle`."""
    found = _stored("idle")
    rows = []
    for name, by_size in found["methods"].items():
        slowest, fastest = min(by_size.values()), max(by_size.values())
        rates = "; ".join(f"{int(learners):,}: {rate:,.0f}" for learners, rate in by_size.items())
        rows.append((f"`{name}`", rates, f"{slowest / fastest:.2f}", f"{FLAT:g}", _reached(slowest / fastest >= FLAT)))
    heads = ("method", "commits a CPU second by the number of learners", "slowest / fastest", "at least", "")
    return _told(found) + _table(heads, rows)


def splits() -> str:
    """Return the CPU time of splits, from `python -m benchmarks.population splits`."""
    found = _stored("splits")
    sizes = sorted({row["learners"] for row in found["splits"]})
    by_split: dict[str, dict[int, float]] = {}
    for row in found["splits"]:
        by_split.setdefault(row["split"], {})[row["learners"]] = row["CPU seconds"]
    rows = [
        (
            name,
            *(f"{spent[size]:.2f}" for size in sizes),
            f"{SPLIT_SECONDS:g}",
            _reached(spent[sizes[-1]] <= SPLIT_SECONDS),
        )
        for name, spent in by_split.items()
    ]
    return _told(found) + _table(("split", *(f"{size:,}" for size in sizes), "at most", ""), rows)


def rounds() -> str:
    """Return rounds, set-up and memory by the number of learners, from `python -m benchmarks.population rounds`."""
    found = _stored("rounds")
    rows = [
        (
            f"{row['learners']:,}",
            f"{row['split']:.2f}",
            f"{row['set-up of a learner'] * 1e6:.1f}",
            f"{row['rounds a CPU second']:.1f}",
            f"{row['peak MB']:,.0f}",
        )
        for row in found["rounds"]
    ]
    rates = [row["rounds a CPU second"] for row in found["rounds"]]
    flat, peak = min(rates) / max(rates), found["rounds"][-1]["peak MB"]
    heads = ("learners", "split (s)", "set-up of a learner (µs)", "rounds a CPU second", "peak MB")
    return (
        _told(found)
        + _table(heads, rows)
        + f"\nSlowest / fastest: {flat:.2f} (at least {FLAT:g}: {_reached(flat >= FLAT)}). "
        + f"Memory of the largest: {peak:,.0f} MB (at most {MEGABYTES:,.0f}: {_reached(peak <= MEGABYTES)}).\n"
    )


def commits() -> str:
    """Return the table of a run of many commits, from `python -m benchmarks.population commits`."""
    found = _stored("commits")
    rows = [
        (f"{one['commits']:,}", f"{one['commits a CPU second']:,.0f}", f"{one['peak MB']:,.0f}")
        for one in found["commits"]["tenths"]
    ]
    return _told(found) + _table(("commits", "commits a CPU second", "peak MB"), rows)


def start_up() -> str:
    """Return start-up beside a bare loop's, from `python -m benchmarks.core_start`."""
    found = _stored("start-up")
    rows = []
    for name in found["laps"][0]:
        taken = median(lap[name] for lap in found["laps"])
        ratio = median(lap["archipel"] / lap[name] for lap in found["laps"])
        compared = name != "archipel"
        rows.append(
            (
                name,
                f"{taken:.2f}",
                f"{ratio:.2f}" if compared else "",
                f"{START_UP:g}" if compared else "",
                _reached(ratio <= START_UP) if compared else "",
            )
        )
    return _told(found) + _table(("program", "CPU seconds", "Archipel takes times", "at most", ""), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "idle": idle,
    "splits": splits,
    "rounds": rounds,
    "commits": commits,
    "start-up": start_up,
}


def _stored(name: str) -> Any:
    return json.loads((MEASURED / f"{name}.json").read_text())


def _told(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    return (
        f"\n{machine['cores']} cores ({machine['cpu']}), torch {machine['torch']}; "
        f"{found['load before']:g} processes wanted a core before.\n\n"
    )


def _reached(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

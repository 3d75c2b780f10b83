"""Run the benchmark: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import aggregation
from benchmarks.entries import ENTRIES, Entry, why_absent
from benchmarks.machine import facts, load
from benchmarks.race import ROOT, race
from benchmarks.tables import show
from benchmarks.workloads import WORKLOADS

ALL = ("W2", "W1", "W3", "W4", "W2-long", "A1", "M1", "zoo")
RESULTS = Path(__file__).parent / "results"
QUICK = {"W1": 1, "W2": 3, "W2-long": 3, "W3": 1, "W4": 100, "M1": 20}
"""Rounds in a smoke test."""


def main() -> None:
    given = _arguments()
    if given.show:
        show(json.loads(given.show.read_text()))
        return
    results: dict[str, Any] = {
        "machine": facts(),
        "quick": given.quick,
        "load before": load(),
        "absent": {},
        "laps": [],
    }
    entries = _present(given.contenders, results["absent"])
    for name in given.workloads:
        if name == "A1":
            if given.contenders is None or "archipel" in given.contenders:
                results["A1"] = _aggregation(given.quick, given.repeats)
            continue
        if name == "zoo":
            if given.contenders is None or "archipel" in given.contenders:
                results["zoo"] = _zoo(given.quick, given.repeats)
            continue
        rounds = QUICK.get(name) if given.quick else None
        running = [entry for entry in entries if name in entry.workloads]
        for entry, repeat, line in race(running, name, given.repeats, rounds) if running else ():
            lap = {"workload": name, "entry": entry.name, "repeat": repeat, "asked": rounds, "load": load(), **line}
            results["laps"].append(lap)
            print(f"{name} {entry.name}, repeat {repeat + 1}: {_briefly(line)}", file=sys.stderr, flush=True)
            _save(results, given.out)  # what was measured stays when the rest is cut off
    results["load after"] = load()
    _save(results, given.out)
    show(results)


def _arguments() -> argparse.Namespace:
    contenders = sorted({entry.contender for entry in ENTRIES})
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS, "A1", "zoo"], default=ALL)
    parser.add_argument("--contenders", nargs="+", choices=contenders, help="all, if not given")
    parser.add_argument("--repeats", type=int, help="3; in a quick run 1")
    parser.add_argument("--quick", action="store_true", help="a few rounds each: does everything run?")
    parser.add_argument("--out", type=Path, default=RESULTS / "latest.json")
    parser.add_argument("--show", type=Path, metavar="RESULTS", help="print the tables of an earlier run")
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    return given


def _present(contenders: list[str] | None, absent: dict[str, str]) -> list[Entry]:
    """The entries that can run here; why the others cannot is noted."""
    present = []
    for entry in ENTRIES:
        if contenders is None or entry.contender in contenders:
            reason = why_absent(entry)
            if reason is None:
                present.append(entry)
            else:
                absent[entry.name] = reason
    return present


def _aggregation(quick: bool, repeats: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for parameters in aggregation.QUICK if quick else aggregation.CASES:
        command = [sys.executable, "-m", "benchmarks.aggregation", str(parameters), "--repeats", str(repeats)]
        command += ["--quick"] * quick
        found += json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    return found


def _zoo(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Measure the zoo in a process of its own, since it changes torch's threads."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "zoo.json"
        command = [sys.executable, "-m", "benchmarks.zoo", "--repeats", str(repeats), "--out", str(out)]
        command += ["--seconds", "0.01"] * quick
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        found: list[dict[str, Any]] = json.loads(out.read_text())["zoo"]
    return found


def _briefly(line: dict[str, Any]) -> str:
    for trouble in ("failed", "cannot"):
        if trouble in line:
            return f"{trouble}: {line[trouble]}"
    return f"{line['whole']:.1f} s, {line['peak_mb']:.0f} MB"


def _save(results: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_suffix(".part")
    unfinished.write_text(json.dumps(results))
    unfinished.replace(out)


if __name__ == "__main__":
    main()

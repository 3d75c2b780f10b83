"""Is this source slower than an earlier commit? Both race on the workloads, in turn, in one run.

    python -m benchmarks.earlier COMMIT [--workloads W1 W2 W3 W4] [--repeats 5] [--out FILE]

The earlier source is installed, with its C library, beside its own benchmarks in a temporary folder, and runs with the
packages of this environment. Ratios are of the laps of one turn: above 1, today's source is faster; of memory, it needs
more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.entries import ENTRIES, Entry
from benchmarks.machine import facts, load
from benchmarks.measures import ratio
from benchmarks.race import ROOT, lap

MEASURES = ("warm", "first second", "start-up", "whole", "memory")


def installed(commit: str, folder: Path) -> Path:
    """Check a commit out into a folder, with the package installed in `site`."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "site", folder], check=True)
    return folder


def raced(earlier: Path, entry: Entry, workload: str, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Return the laps of both sources; the one that begins alternates."""
    laps: dict[str, list[dict[str, Any]]] = {"today": [], "earlier": []}
    for repeat in range(repeats):
        order = ("today", "earlier") if repeat % 2 == 0 else ("earlier", "today")
        for source in order:
            line = lap(entry, workload, root=ROOT if source == "today" else earlier)
            if "failed" in line:
                raise SystemExit(f"{entry.name} of {source} on {workload}: {line['failed']}")
            laps[source].append(line)
    return laps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--workloads", nargs="+", default=("W1", "W2", "W3", "W4"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    told: dict[str, Any] = {"machine": facts(), "commit": given.commit, "load": [load()], "ratios": []}
    with tempfile.TemporaryDirectory() as folder:
        earlier = installed(given.commit, Path(folder))
        for workload in given.workloads:
            for entry in (one for one in ENTRIES if one.script == "archipel_" and workload in one.workloads):
                if "cluster" in entry.options:  # the earlier source may have none
                    continue
                laps = raced(earlier, entry, workload, given.repeats)
                today, before = (dict(enumerate(laps[source])) for source in ("today", "earlier"))
                found = {name: ratio(today, before, name) for name in MEASURES}
                shown = {name: [one.low, one.middle, one.high] for name, one in found.items() if one}
                told["ratios"].append({"workload": workload, "entry": entry.name, **shown})
                print(workload, entry.name, {name: round(of[1], 3) for name, of in shown.items()}, flush=True)
    told["load"].append(load())
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

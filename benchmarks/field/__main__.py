"""Run the benchmark of methods, as far as it goes, and tell what has come of it.

python -m benchmarks.field --out FOLDER [--minutes 10]     run; the same command goes on where it ended
python -m benchmarks.field --out FOLDER --page             print the page from the runs that are there
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.field.outcome import page
from benchmarks.field.problems import RATES, SEEDS, Problem, problems


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--minutes", type=float, default=float("inf"))
    asked.add_argument("--page", action="store_true")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.page:
        print(page(read(given.out / "runs.jsonl")), end="")
        return
    warnings.simplefilter("ignore")  # of learners with fewer examples than a batch
    until = time.monotonic() + 60 * given.minutes
    done = {key(run): run for run in read(given.out / "runs.jsonl")}
    with open(given.out / "runs.jsonl", "a") as file:
        for problem in problems():
            for rate, seed, tuning in [(rate, SEEDS[0], True) for rate in RATES]:
                run_once(problem, rate, seed, tuning, done, file, until)
            best = best_rate(problem, done)
            for seed in SEEDS if best is not None else ():
                assert best is not None
                run_once(problem, best, seed, False, done, file, until)
            if time.monotonic() > until:
                return


def run_once(
    problem: Problem, rate: float, seed: int, tuning: bool, done: dict[Any, Any], file: Any, until: float
) -> None:
    """Run a cell unless it has been run, or the time is up."""
    about = {**vars(problem), "rate": rate, "seed": seed, "tuning": tuning}
    if key(about) in done or time.monotonic() > until:
        return
    began = time.process_time()
    try:
        found = problem.run(rate, seed, tuning)
    except ValueError as error:
        found = {"refused": str(error)}
    run = {**about, "seconds": round(time.process_time() - began, 3), **found}
    if tuning:
        run.pop("curve", None)
    done[key(run)] = run
    file.write(json.dumps(run) + "\n")
    file.flush()


def best_rate(problem: Problem, done: dict[Any, Any]) -> float | None:
    """Return the rate with the best final score on validation data; None if no run has one."""
    about = {**vars(problem), "seed": SEEDS[0], "tuning": True}
    scored = {rate: done.get(key({**about, "rate": rate}), {}).get("final") for rate in RATES}
    known = {rate: score for rate, score in scored.items() if score is not None}
    return max(known, key=known.__getitem__) if len(scored) == len(RATES) and known else None


def key(run: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells runs apart."""
    return tuple(run[name] for name in ("fleet", "split", "method", "rate", "seed", "tuning"))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs that are there; a line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


if __name__ == "__main__":
    main()

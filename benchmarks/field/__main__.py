"""Run the benchmark of methods, and store its runs.

python -m benchmarks.field --out FOLDER [--minutes 10] [--data CIFAR-10]
                                               run what is not stored; the same command continues
python -m benchmarks.field --out FOLDER --store            add the runs of FOLDER to those in benchmarks/measured

`make pages` then writes docs/explanation/methods-compared.md and its pictures from the stored runs.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.field.problems import DATA, RATES, SEEDS, Problem, problems
from benchmarks.field.runs import best_rate, key, read, store, stored


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--minutes", type=float, default=float("inf"))
    asked.add_argument("--data", nargs="*", choices=tuple(DATA), default=tuple(DATA))
    asked.add_argument("--store", action="store_true")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = [*stored(), *read(given.out / "runs.jsonl")]
    if given.store:
        store(runs)
        return
    warnings.simplefilter("ignore")  # of learners with fewer examples than a batch
    until = time.monotonic() + 60 * given.minutes
    done = {key(run): run for run in runs}
    with open(given.out / "runs.jsonl", "a") as file:
        for problem in (one for one in problems() if one.data in given.data):
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


if __name__ == "__main__":
    main()

"""Fuzz every parser and say how many executions were made: `python -m tests.fuzz --executions 1000000`.

Writes the counts to --out after every thousand rounds; ends with exit code 1 and the inputs if a parser raised
something that it should not.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from pathlib import Path

from archipel.core.randomness import generator
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, problem

EACH = {"study in TOML": 1, "study in YAML": 1, "journal": 1, "split file": 2}
"""Executions a round; the others, which are a hundred times faster, have 50."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    corpora = {target.name: target.corpus() for target in TARGETS}
    counts, problems, began, number = Counter[str](), list[str](), time.monotonic(), 0
    while counts.total() < given.executions and time.monotonic() - began < given.seconds and len(problems) < 20:
        for target in TARGETS:
            draw = generator(given.seed, "fuzz", target.name, number)
            for _ in range(EACH.get(target.name, 50)):
                counts[target.name] += 1
                found = problem(target, mutated(corpora[target.name], draw))
                if found is not None:
                    problems.append(found)
        number += 1
        if given.out is not None and number % 1000 == 0:
            save(given.out, counts, problems, given.seed)
    if given.out is not None:
        save(given.out, counts, problems, given.seed)
    print(f"{counts.total():,} executions in {time.monotonic() - began:.0f} s, {len(problems)} problems")
    print(*problems, sep="\n")
    return 1 if problems else 0


def save(path: Path, counts: Counter[str], problems: list[str], seed: int) -> None:
    told = {"executions": counts.total(), "by parser": dict(counts), "problems": len(problems), "seed": seed}
    path.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())

"""Random histories of the controller, 100 events each: `python -m tests.fuzz.histories --histories 10000`.

The laws are those of tests/core/test_properties.py, checked after every event.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from archipel.core.randomness import generator
from tests.core.test_properties import ALGORITHMS, WHATS, live

STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names, began, made, events = list(ALGORITHMS), time.monotonic(), 0, 0
    while made < given.histories and time.monotonic() - began < given.seconds:
        draw = generator(given.seed, "history", made)
        name = names[made % len(names)]
        history = [(WHATS[draw.integers(len(WHATS))], int(draw.integers(12))) for _ in range(STEPS)]
        try:
            events += len(live(name, history).log.events)
        except BaseException:
            print(f"{name}, history {made} of seed {given.seed}:\n{history}")
            raise
        made += 1
    told = {"histories": made, "steps": STEPS, "events": events, "seed": given.seed}
    print(json.dumps(told))
    if given.out is not None:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""CPU seconds from the start of Python to the end of a first round, beside a bare loop's to its first step.

    python -m benchmarks.core_start
    python -m benchmarks.core_start --repeats 9 --out FILE

Both programs take turns, each in a process of its own. The bare loop is measured twice: with an optimiser of
`torch.optim`, whose first use loads further modules, and with the descent written by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import facts, load
from benchmarks.measures import Spread

EXAMPLES = """
import time, torch
from torch import nn
x, y = torch.randn(400, 20), torch.randint(0, 2, (400,))
network = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2))
"""
LOSS = "nn.functional.cross_entropy(network(x[:20]), y[:20]).backward()\n"
PROGRAMS = {
    "archipel": f"""{EXAMPLES}
import archipel as ap
nothing = torch.empty(0, dtype=torch.int64)
islands = tuple(ap.data.Island(str(i), own, nothing) for i, own in enumerate(torch.arange(400).split(100)))
data = ap.data.Islands(x, y, islands, nothing, nothing, 2, "start")
ap.simulate(ap.fedavg(1.0), data, model=network, ending=ap.Ending(rounds=1))
""",
    "bare, torch.optim": f"{EXAMPLES}steps = torch.optim.SGD(network.parameters(), lr=0.1)\n{LOSS}steps.step()\n",
    "bare, by hand": f"""{EXAMPLES}{LOSS}
with torch.no_grad():
    for parameter in network.parameters():
        parameter.sub_(parameter.grad, alpha=0.1)
""",
}


def seconds(program: str) -> float:
    """Return the CPU time of a process that runs this program."""
    command = [sys.executable, "-c", f"{program}print(time.process_time())"]
    # an installed package has its bytecode, as torch has
    caching = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=caching)
    return float(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a JSON file for what was measured")
    given = parser.parse_args()
    told = {"machine": facts(), "load before": load()}
    laps = [{name: seconds(program) for name, program in PROGRAMS.items()} for _ in range(given.repeats)]
    for name in PROGRAMS:
        taken = Spread.of([lap[name] for lap in laps])
        ratio = Spread.of([lap["archipel"] / lap[name] for lap in laps])
        print(f"{name:18} {taken.middle:.2f} s [{taken.low:.2f} to {taken.high:.2f}], archipel {ratio.middle:.2f} x")
    if given.out:
        given.out.write_text(json.dumps({**told, "laps": laps}) + "\n")


if __name__ == "__main__":
    main()

"""One round of four learners with ten million parameters and no training, beside bare gRPC streams of the same bytes.

    python -m benchmarks.federation.round [--parameters 10000000] [--rounds 6] [--repeats 3] [--flower] [--out FILE]

Both have the clients in one process and the server in another, mutual TLS, and everything durable. A round of ours is
the time between two commits: models out, updates made up (one multiplication), back, hashed, checked, on disk, merged,
the version's digest on disk. The laps of the two take turns.

With --flower, Flower's SuperLink and four SuperNodes take their turn too, with the model and with 1,000 parameters,
which is its fixed cost: it asks for results every three seconds and starts a process for each update. That is taken off
Flower's time alone. The first round is left out everywhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path

from archipel.runs.load import load_run
from benchmarks.federation import flower, raw
from benchmarks.federation.crowd import certify, controller, crowd, free_port, write_study
from benchmarks.machine import load


def ours(folder: Path, papers: Path, names: list[str], parameters: int, rounds: int) -> list[float]:
    study = write_study(
        folder,
        names,
        parameters,
        ending={"rounds": rounds},
        federation={"learners": names, "example": [parameters // 2 - 1], "classes": 2, "silence": 120.0},
    )
    port = free_port()
    with (
        controller(folder, study, papers, port) as process,
        crowd(folder, study, papers, port, names, 1, echo=True),
    ):
        if process.wait():
            raise RuntimeError((folder / "controller.log").read_text()[-3000:])
    times = [time for time, _ in load_run(folder / "state" / "run").commits]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def measure(parameters: int, rounds: int, repeats: int, with_flower: bool = False) -> dict[str, object]:
    before = load()
    names = [f"l{i}" for i in range(4)]
    mine: list[float] = []
    bare: list[float] = []
    theirs: list[float] = []
    fixed: list[float] = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            folder = Path(name)
            papers = certify(folder, names)
            streams = raw.rounds(papers, folder, names, 4 * parameters, rounds)[1:]
            lap = ours(folder, papers, names, parameters, rounds)
            bare.append(statistics.median(streams))
            mine.append(statistics.median(lap))
        if with_flower:
            theirs.append(statistics.median(flower.rounds(parameters, rounds)[1:]))
            fixed.append(statistics.median(flower.rounds(1000, rounds)[1:]))
    ratios = [one / other for one, other in zip(mine, bare, strict=True)]
    told: dict[str, object] = {
        "parameters": parameters,
        "load_before": before,
        "raw_seconds": bare,
        "archipel_seconds": mine,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "reached": statistics.median(ratios) <= 1.5,
    }
    if with_flower:
        whole = [one / other for one, other in zip(theirs, mine, strict=True)]
        variable = [(one - still) / other for one, still, other in zip(theirs, fixed, mine, strict=True)]
        told |= {
            "flower_seconds": theirs,
            "flower_fixed_seconds": fixed,
            "flower_ratio": statistics.median(whole),
            "flower_ratio_without_fixed": statistics.median(variable),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--flower", action="store_true", help="beside Flower's SuperLink and four SuperNodes too")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    told = measure(arguments.parameters, arguments.rounds, arguments.repeats, arguments.flower)
    print(json.dumps(told, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What does a population of learners cost that mostly does not take part? Splits, set-up, rounds and memory.

    python -m benchmarks.population splits                    # CPU seconds of the splits of 10 examples a learner
    python -m benchmarks.population rounds                    # set-up, rounds a CPU second and memory, 100 a round
    python -m benchmarks.population commits --commits 1000000 # memory of a long run without rounds, tenth by tenth
    python -m benchmarks.population day --learners 1000000    # a simulated day with absences, and its report
    python -m benchmarks.population splits --learners 1000 10000 --out FILE

CPU time is measured, so that other work on the machine counts as little as possible; memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import archipel as ap
from archipel.data import Islands, Source
from archipel.report.write import write_report
from archipel.runs.record_log import KEPT
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from benchmarks.machine import facts, load

EXAMPLES, FEATURES, CLASSES = 10, 20, 10
DAY = 24 * 3600.0
SPLITS: dict[str, dict[str, object]] = {
    "uniform": {},
    "power law": {"sizes": "powerlaw"},
    "Non-IID(3)": {"classes": 3},
    "dirichlet(1)": {"classes": "dirichlet(1)"},
}


def source(learners: int, features: int = FEATURES) -> Source:
    """Ten examples for every learner, of classes that a perceptron can tell apart a little."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, CLASSES, learners * EXAMPLES)
    x = draw.standard_normal((len(y), features), dtype=np.float32)
    x[np.arange(len(y)), y % features] += 2
    return Source(torch.from_numpy(x), torch.from_numpy(y), CLASSES, "population")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def splits(sizes: list[int]) -> list[dict[str, Any]]:
    found = []
    for learners in sizes:
        data = source(learners, features=1)
        for name, settings in SPLITS.items():
            began = time.process_time()
            data.split(learners, test="none", **settings)  # type: ignore[arg-type]
            spent = time.process_time() - began
            found.append({"split": name, "learners": learners, "CPU seconds": spent, "peak MB": megabytes()})
            print(f"{name:14} {learners:>9,} learners  {spent:7.2f} s of CPU time, {megabytes():,.0f} MB", flush=True)
    return found


def held_out(learners: int) -> Islands:
    """A split with a test set of 2,000 examples at HOME."""
    return source(learners).split(learners, test=min(0.2, 2000 / (learners * EXAMPLES)), stimuli=0)


def rounds(sizes: list[int], seconds: float, warm: int = KEPT) -> list[dict[str, Any]]:
    """Return set-up, memory and rounds a CPU second: the best of three counts, of all sizes in turn."""
    runs, found = [], []
    for learners in sizes:
        began = time.process_time()
        data = held_out(learners)
        dealt = time.process_time()
        algorithm = ap.fedavg(100 / learners, epochs=1, batch=10)
        run = prepare(algorithm, data, model=perceptron, ending=ap.Ending(rounds=1 << 30), seed=1)
        run.begin()
        run.run(events=learners)  # they join
        joined = time.process_time()
        while len(run.records) <= warm:  # until records go to a file, as in any long run
            run.run(events=1000)
        runs.append(run)
        set_up = (joined - dealt) / learners
        found.append(
            {"learners": learners, "split": dealt - began, "set-up of a learner": set_up, "peak MB": megabytes()}
        )
    counts = [[rounds_a_second(run, seconds / 3) for run in runs] for _ in range(3)]
    for run, row, rates in zip(runs, found, zip(*counts, strict=True), strict=True):
        run.close()
        row["rounds a CPU second"] = max(rates)
        print(
            f"{row['learners']:>9,} learners  split {row['split']:6.1f} s, set-up and joins "
            f"{row['set-up of a learner'] * 1e6:5.1f} µs a learner, {max(rates):6.1f} rounds/s, "
            f"{row['peak MB']:,.0f} MB",
            flush=True,
        )
    return found


def rounds_a_second(run: Simulator, seconds: float) -> float:
    """Return the rounds a second of CPU time in the next so many seconds."""
    first, start = run.controller.state.version, time.process_time()
    while time.process_time() - start < seconds:
        run.run(events=500)
    return (run.controller.state.version - first) / (time.process_time() - start)


def commits(learners: int, count: int) -> dict[str, Any]:
    algorithm = ap.fedasync(epochs=1, batch=10)
    ending, scored = ap.Ending(commits=count), ap.Evaluation(every=max(1, count // 10))
    run = prepare(algorithm, held_out(learners), model=perceptron, ending=ending, evaluation=scored, seed=1)
    run.begin()
    tenths: list[dict[str, float]] = []
    for tenth in range(1, 11):
        began = time.process_time()
        while run.stopped is None and run.controller.state.version < tenth * count // 10:
            run.run(events=1000)
        rate = count / 10 / (time.process_time() - began)
        tenths.append({"commits": tenth * count // 10, "commits a CPU second": rate, "peak MB": megabytes()})
        print(f"{tenth * count // 10:>9,} commits  {rate:7.1f} commits/s, {megabytes():,.0f} MB", flush=True)
    run.close()
    return {"learners": learners, "tenths": tenths}


def day(learners: int, a_round: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Rounds of `a_round` learners with a deadline; phones are there for a third of the time, in stretches of hours."""
    began, clock = time.process_time(), time.monotonic()
    fast, slow = learners // 2, learners - learners // 2
    up, down, varies = 2 * 3600.0, 4 * 3600.0, 0.5
    fleet = ap.Fleet(
        ap.Group("fast", fast, train_seconds=2.0, bandwidth=1e6, up=up, down=down, varies=varies),
        ap.Group("slow", slow, train_seconds=20.0, bandwidth=1e5, up=up, down=down, varies=varies),
    )
    algorithm = ap.fedavg(a_round / learners, epochs=1, batch=10, deadline=300.0)
    data = held_out(learners)
    run = prepare(algorithm, data, model=perceptron, fleet=fleet, ending=ap.Ending(seconds=seconds), seed=1)
    run.begin()
    run.run()
    run.close()
    ended = finished(run)
    simulated = time.process_time() - began
    page = write_report([ended], folder / "report")
    print(ended.summary())
    found = {
        "learners": learners,
        "a round": a_round,
        "virtual hours": seconds / 3600,
        "versions": run.controller.state.version,
        "events": run.handled,
        "CPU seconds": simulated,
        "CPU seconds with the report": time.process_time() - began,
        "minutes by the clock": (time.monotonic() - clock) / 60,
        "peak MB": megabytes(),
    }
    print(", ".join(f"{name}: {value:,.1f}" for name, value in found.items()), f"; {page.name} written")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("splits", "rounds", "commits", "day"))
    parser.add_argument("--learners", type=int, nargs="+", help="numbers of learners")
    parser.add_argument("--seconds", type=float, default=15.0, help="CPU seconds for each rate")
    parser.add_argument("--warm", type=int, default=KEPT, help="with `rounds`, records before a rate is taken")
    parser.add_argument("--out", type=Path, help="a JSON file for what was measured")
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--a-round", type=int, default=10_000, help="learners of a round of the day")
    parser.add_argument("--virtual", type=float, default=DAY, help="virtual seconds of the day")
    given = parser.parse_args(arguments)
    sizes = given.learners or [1_000, 10_000, 100_000, 1_000_000]
    told = {"machine": facts(), "load before": load()}
    with tempfile.TemporaryDirectory() as folder:
        measures: dict[str, Callable[[], Any]] = {
            "splits": lambda: splits(sizes),
            "rounds": lambda: rounds(sizes, given.seconds, given.warm),
            "commits": lambda: commits(given.learners[0] if given.learners else 100, given.commits),
            "day": lambda: day(sizes[-1], given.a_round, given.virtual, Path(folder)),
        }
        told[given.what] = measures[given.what]()
    if given.out:
        given.out.write_text(json.dumps({**told, "load after": load()}) + "\n")


if __name__ == "__main__":
    main()

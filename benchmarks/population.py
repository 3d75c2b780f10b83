"""What does a population of learners cost that mostly does not take part? Splits, set-up, rounds and memory.

    python -m benchmarks.population splits                    # CPU seconds of the splits of 10 examples a learner
    python -m benchmarks.population rounds                    # set-up, rounds a CPU second and memory, 100 a round
    python -m benchmarks.population commits --commits 1000000 # memory of a long run without rounds, tenth by tenth
    python -m benchmarks.population day --learners 1000000    # a simulated day with absences, and its report
    python -m benchmarks.population splits --learners 1000 10000

CPU time is measured, so that other work on the machine counts as little as possible; memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import archipel as ap
from archipel.data import Islands, Source
from archipel.report.write import write_report
from archipel.simulation.simulate import finished, prepare
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


def splits(sizes: list[int]) -> None:
    for learners in sizes:
        data = source(learners, features=1)
        for name, settings in SPLITS.items():
            began = time.process_time()
            data.split(learners, test="none", **settings)  # type: ignore[arg-type]
            spent = time.process_time() - began
            print(f"{name:14} {learners:>9,} learners  {spent:7.2f} s of CPU time, {megabytes():,.0f} MB", flush=True)


def held_out(learners: int) -> Islands:
    """A split with a test set of 2,000 examples at HOME."""
    return source(learners).split(learners, test=min(0.2, 2000 / (learners * EXAMPLES)), stimuli=0)


def rounds(sizes: list[int], seconds: float) -> None:
    for learners in sizes:
        began = time.process_time()
        data = held_out(learners)
        dealt = time.process_time()
        algorithm = ap.fedavg(100 / learners, epochs=1, batch=10)
        run = prepare(algorithm, data, model=perceptron, ending=ap.Ending(rounds=1 << 30), seed=1)
        run.begin()
        run.run(events=learners)  # they join
        joined = time.process_time()
        run.run(events=1000)
        first, start = run.controller.state.version, time.process_time()
        while time.process_time() - start < seconds:
            run.run(events=500)
        rate = (run.controller.state.version - first) / (time.process_time() - start)
        run.close()
        print(
            f"{learners:>9,} learners  split {dealt - began:6.1f} s, set-up and joins "
            f"{(joined - dealt) / learners * 1e6:5.1f} µs a learner, {rate:6.1f} rounds/s, {megabytes():,.0f} MB",
            flush=True,
        )


def commits(learners: int, count: int, out: Path | None = None) -> None:
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
    if out is not None:
        out.write_text(json.dumps({"machine": facts(), "load after": load(), "learners": learners, "tenths": tenths}))


def day(learners: int, a_round: int, seconds: float, folder: Path) -> None:
    """Rounds of `a_round` learners with a deadline; phones are there for a third of the time, in stretches of hours."""
    began = time.process_time()
    fleet = ap.Fleet(
        ap.Group("fast", learners // 2, train_seconds=2.0, bandwidth=1e6, up=2 * 3600.0, down=4 * 3600.0, varies=0.5),
        ap.Group(
            "slow",
            learners - learners // 2,
            train_seconds=20.0,
            bandwidth=1e5,
            up=2 * 3600.0,
            down=4 * 3600.0,
            varies=0.5,
        ),
    )
    algorithm = ap.fedavg(a_round / learners, epochs=1, batch=10, deadline=300.0)
    data = held_out(learners)
    run = prepare(algorithm, data, model=perceptron, fleet=fleet, ending=ap.Ending(seconds=seconds), seed=1)
    run.begin()
    run.run()
    run.close()
    spent = time.process_time() - began
    ended = finished(run)
    page = write_report([ended], folder / "report")
    print(ended.summary())
    print(
        f"{learners:,} learners, {seconds / 3600:.1f} h of virtual time: {spent:,.0f} s of CPU time, with the report "
        f"{time.process_time() - began:,.0f} s; {run.handled:,} events; {megabytes():,.0f} MB; {page.name} written"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("splits", "rounds", "commits", "day"))
    parser.add_argument("--learners", type=int, nargs="+", help="numbers of learners")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds for each rate")
    parser.add_argument("--out", type=Path, help="with `commits`, a JSON file for what was measured")
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--a-round", type=int, default=10_000, help="learners of a round of the day")
    parser.add_argument("--virtual", type=float, default=DAY, help="virtual seconds of the day")
    given = parser.parse_args()
    sizes = given.learners or [1_000, 10_000, 100_000, 1_000_000]
    if given.what == "splits":
        splits(sizes)
    elif given.what == "rounds":
        rounds(sizes, given.seconds)
    elif given.what == "commits":
        commits(given.learners[0] if given.learners else 100, given.commits, given.out)
    else:
        with tempfile.TemporaryDirectory() as folder:
            day(sizes[-1], given.a_round, given.virtual, Path(folder))


if __name__ == "__main__":
    main()

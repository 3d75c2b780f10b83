"""Measure what the five papers leave open, and write docs/explanation/open-questions.md.

python measure.py          run what is not in measured.jsonl yet, then write the page
python measure.py --page   write the page from what was measured
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import archipel as ap
from archipel.data import Islands

HERE = Path(__file__).parent
MEASURED = HERE / "measured.jsonl"
PAGE = HERE.parents[1] / "docs" / "explanation" / "open-questions.md"
SEEDS = range(10)
CLEAR = 2.0
"""A mean difference of so many standard errors counts."""


@dataclass(frozen=True)
class Question:
    title: str
    paper: str
    setting: str
    methods: Mapping[str, ap.Algorithm]
    """The first is what the others are compared with."""
    rounds: int
    classes: str | int = 3
    sizes: str = "uniform"
    test: str | float = 0.2
    validation: float = 0.05
    fleet: ap.Fleet | None = None


@dataclass(frozen=True)
class Result:
    question: str
    method: str
    seed: int
    accuracy: float
    """Mean over the last fifth of the budget."""
    down: float
    """Megabytes to learners, for training and for opinions."""
    up: float


PLAN = ap.Plan(epochs=1, batch=16, rate=0.1, momentum=0.5)
HALVES = ap.Fleet(fast=5, slow=5)


def questions() -> dict[str, Question]:
    """Return every question by a short name."""
    dvw = ap.sync_dvw(epochs=1, batch=16, rate=0.1, momentum=0.5)
    stream = ap.async_dvw(adaptive=False, epochs=1, batch=16, rate=0.5, momentum=0.5)
    fedavg = ap.fedavg(1.0, epochs=1, batch=16, rate=0.1, momentum=0.5)
    radfed = ap.radfed(0.5, 10, epochs=1, batch=16, rate=0.1)
    buffered = ap.tvw(buffer=5, epochs=1, batch=16, rate=0.1)
    periodic = ap.PeriodicLayers(period=10, last=5, deep="head")
    return {
        "rate": Question(
            "A rate that falls when the validation loss stops falling",
            "Metis, section VII",
            "`async_dvw(adaptive=False)` at a rate of 0.5, half of the learners slow, 40 rounds",
            {
                "constant rate": stream,
                "`Plateau(patience=50, window=10)`": replace(stream, planners=(ap.Plateau(patience=50, window=10),)),
            },
            rounds=40,
            fleet=HALVES,
        ),
        "all data": Question(
            "Training on all data after the validation phase",
            "Metis, section VII",
            "`sync_dvw()`, 20 % of the data reserved for validation, 30 rounds",
            {
                "validation to the end": dvw,
                "`all_data_after=15`": ap.sync_dvw(epochs=1, batch=16, rate=0.1, momentum=0.5, all_data_after=15),
            },
            rounds=30,
            validation=0.2,
        ),
        "evaluators": Question(
            "Evaluators chosen by data distribution",
            "Metis, section VII",
            "`sync_dvw()`, 20 % reserved for validation, 20 rounds",
            {
                "three evaluators, drawn": replace(dvw, weighting=ap.ByDistributedValidation(evaluators=3)),
                "three evaluators, representative": replace(
                    dvw, weighting=ap.ByDistributedValidation(evaluators=3, choice="representative")
                ),
                "all nine": dvw,
            },
            rounds=20,
            validation=0.2,
        ),
        "downlink": Question(
            "Periodic layer upload on the downlink",
            "Fed2A, section 5",
            "`tvw(buffer=5)`, the last layer sent back in 5 of 10 rounds, 100 rounds",
            {"all layers": buffered, "`PeriodicLayers(10, 5)`": replace(buffered, planners=(periodic,))},
            rounds=100,
        ),
        "head by class": Question(
            "A last layer averaged by class counts",
            "D&C, after FedMA",
            "`fedavg()`, disjoint classes (two a learner, five learners), 30 rounds",
            {"by examples": fedavg, "`MeanByClass()`": replace(fedavg, merge=ap.MeanByClass())},
            rounds=30,
            classes="disjoint(2)",
        ),
        "relay in turn": Question(
            "A relay in which every model visits every learner once",
            "RADFed",
            "`radfed(0.5, hops=10)`, 100 rounds",
            {"drawn": radfed, "`LatinSquare()`": replace(radfed, selection=ap.LatinSquare())},
            rounds=100,
        ),
        "mixed head": Question(
            "A private head mixed with the shared one for rare classes",
            "HDAFL",
            "Dirichlet(0.3), every learner tested on 30 % of its own data, mean of the learners, 30 rounds",
            {
                "`hdafl()`: the head is private": ap.hdafl(1.0, epochs=1, batch=16, rate=0.1, momentum=0.5),
                "`fedavg()`: it is shared": fedavg,
                "`fedavg()` with `MixedHead(rare=10)`": replace(fedavg, personal=ap.MixedHead()),
            },
            rounds=30,
            classes="dirichlet(0.3)",
            test="own(0.3)",
        ),
    }


def learners(question: Question) -> int:
    return 5 if question.classes == "disjoint(2)" else 10


@cache
def islands(count: int, classes: str | int, sizes: str, test: str | float, seed: int) -> Islands:
    return ap.data.digits().split(count, sizes=sizes, classes=classes, test=test, seed=seed)


def measure(name: str, method: str, seed: int) -> Result:
    question = questions()[name]
    run = ap.simulate(
        question.methods[method],
        islands(learners(question), question.classes, question.sizes, question.test, seed),
        model=partial(ap.models.mlp, 64, 10, (32,)),
        fleet=question.fleet,
        ending=ap.Ending(rounds=question.rounds),
        evaluation=ap.Evaluation(at="learners", mean="learners") if question.test != 0.2 else None,
        validation=question.validation,
        seed=seed,
    )
    moved = {kind: run.traffic.get(f"{kind} bytes", 0) / 2**20 for kind in ("train down", "evaluate down", "train up")}
    down, up = moved["train down"] + moved["evaluate down"], moved["train up"]
    return Result(name, method, seed, round(run.final_score, 5), round(down, 4), round(up, 4))


def measured() -> list[Result]:
    lines = MEASURED.read_text().splitlines() if MEASURED.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def cases() -> Iterator[tuple[str, str, int]]:
    """All cases, in the order in which they are measured."""
    for name, question in questions().items():
        for seed in SEEDS:
            for method in question.methods:
                yield name, method, seed


# ------------------------------------------------------------------------------------------------------------ the page

HEAD = f"""# What the papers leave open

Ideas that the authors name for later, or that their methods suggest, are parts here, and none is a default
([0057](../decisions/0057-what-the-authors-left-open.md)). This page shows where one helps and where it does not. It is
written by `python examples/open_questions/measure.py`.

Digits, {len(SEEDS)} seeds (of the split and of the run), a perceptron with 32 hidden units; 10 learners with three
classes each, unless a line says otherwise. Accuracy is the final score in per cent, mean ± deviation over the seeds.
The difference is that between runs of one seed, with its standard error; {CLEAR:g} standard errors or more count. One
data set and one setting for each question, chosen before it was measured; a trial with another seed came before.
Learners are sent only layers that they do not have: that is all that a periodic upload does on the downlink.
"""


def page(found: list[Result]) -> str:
    sections = [
        section(question, [one for one in found if one.question == name]) for name, question in questions().items()
    ]
    return HEAD + "\n" + "\n".join(sections)


def section(question: Question, found: list[Result]) -> str:
    first, *others = question.methods
    lines = ["| | accuracy | difference | MB to learners | MB back |", "| --- | --- | --- | --- | --- |"]
    verdicts = []
    for method in question.methods:
        mine = sorted((one for one in found if one.method == method), key=lambda one: one.seed)
        scores = [100 * one.accuracy for one in mine]
        told = ""
        if method in others:
            mean, error = difference(found, first, method)
            told = f"{mean:+.1f} ± {error:.1f}"
            verdicts.append(verdict(method, mean, error))
        cells = (
            f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f}",
            told,
            f"{statistics.fmean(one.down for one in mine):.2f}",
            f"{statistics.fmean(one.up for one in mine):.2f}",
        )
        lines.append(f"| {method} | {' | '.join(cells)} |")
    table, outcome = "\n".join(lines), " ".join(verdicts)
    return f"## {question.title}\n\n{question.paper}. {question.setting}.\n\n{table}\n\n{outcome}\n"


def difference(found: list[Result], first: str, method: str) -> tuple[float, float]:
    """Return the mean difference in per cent between runs of one seed, and its standard error."""
    before = {one.seed: one.accuracy for one in found if one.method == first}
    gaps = [100 * (one.accuracy - before[one.seed]) for one in found if one.method == method]
    return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))


def verdict(method: str, mean: float, error: float) -> str:
    if abs(mean) < CLEAR * error:
        return f"**{method}** makes no clear difference here."
    return f"**{method}** {'helps' if mean > 0 else 'costs accuracy'} here."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore", ap.ArchipelWarning)  # of learners with fewer examples than a batch
    found = measured()
    known = {(one.question, one.method, one.seed) for one in found}
    for case in () if given.page else cases():
        if case not in known:
            found.append(measure(*case))
            with MEASURED.open("a") as file:
                file.write(json.dumps(asdict(found[-1])) + "\n")
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()

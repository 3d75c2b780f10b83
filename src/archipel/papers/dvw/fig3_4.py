"""Figures 3 and 4: validation cycles of fast and slow learners, and how stale their updates are."""

from __future__ import annotations

import statistics
from itertools import chain

from archipel.papers.claims import rows_higher
from archipel.papers.dvw import CLUSTER, FOLDER, PAPER
from archipel.papers.dvw.table1 import SETTINGS, TUTORIAL, halved
from archipel.papers.figure_measures import of_runs
from archipel.papers.reproduction import Measure, PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale
from archipel.runs.run import Run

TITLE = "Validation cycles and effective staleness, by group"
FIRST = 20
"""Cycles of each learner whose staleness Figure 4 shows."""
UNIFORM = SETTINGS[0]


def members(run: Run, group: str) -> set[str]:
    return {one.name for one in run.participants if one.group == group}


def staleness(run: Run, group: str) -> list[list[int]]:
    """Effective staleness of the first cycles of each learner of a group, in steps."""
    own: dict[str, list[int]] = {name: [] for name in sorted(members(run, group))}
    for _, commit in run.commits:
        for learner, steps in zip(commit.learners, commit.stale_steps, strict=True):
            if learner in own and len(own[learner]) < FIRST:
                own[learner].append(steps)
    return [values for values in own.values() if values]


def median_staleness(group: str) -> Measure:
    return of_runs(lambda run: statistics.median(chain(*staleness(run, group))))


def spread_within(group: str) -> Measure:
    """How far the learners' own medians lie apart, in per cent of the group's."""

    def find(run: Run) -> float:
        medians = [statistics.median(values) for values in staleness(run, group)]
        return 100 * (max(medians) - min(medians)) / statistics.median(medians)

    return of_runs(find)


def epochs_of_cycles(group: str) -> Measure:
    return of_runs(
        lambda run: statistics.fmean(one.epochs for _, one in run.cycles if one.learner in members(run, group))
    )


ADAPTIVE = {"name": "async_dvw", "label": "AsyncDVW(a)"} | {
    "loss": {"fast": 0, "slow": 1},
    "tombstones": {"fast": 4, "slow": 1},
}
QUANTITIES = {
    "epochs of a cycle": epochs_of_cycles,
    "median staleness, steps": median_staleness,
    "spread of the learners' medians, per cent": spread_within,
}

REPRODUCTION = Reproduction(
    name="dvw-fig3-4",
    paper=PAPER,
    title="Figures 3 and 4: validation cycles, and the staleness of the first 20 of each learner",
    folder=FOLDER,
    parts=(UNIFORM.part("heterogeneous"),),
    tables=(
        PaperTable(
            TITLE,
            (PaperColumn("ours"),),
            tuple(
                PaperRow(f"{quantity}, {group}", measure=measure(group))
                for quantity, measure in QUANTITIES.items()
                for group in ("fast", "slow")
            ),
            part=UNIFORM.folder("heterogeneous"),
            method="AsyncDVW(a)",
        ),
    ),
    claims=(
        rows_higher(
            "Slow learners are staler than fast ones",
            TITLE,
            "median staleness, steps, slow",
            ("median staleness, steps, fast",),
        ),
    ),
    scales={
        "smoke": Scale(
            "40 images of each class, the tutorial's five layers, a quarter as wide, at half the side, 1 virtual "
            "second.",
            {
                "seeds": [0],
                "algorithms": [{**ADAPTIVE, "at_most": 2}],
                "model": TUTORIAL,
                "data.source": halved("cifar10", 40, 5),
                "fleet": {"fast": 5, "slow": 5},
                "ending.seconds": 1,
                "evaluation.seconds": 1,
                "report.seconds": 1,
            },
        ),
        "small": Scale(
            "The tutorial's five layers, a quarter as wide, on images of half their side, 400 images of each class in "
            "batches of 20, 40 virtual seconds at 0.01 and 0.1 a training step, two seeds.",
            {
                "seeds": [0, 1],
                "algorithms": [ADAPTIVE],
                "model": TUTORIAL,
                "data.source": halved("cifar10", 400, 100),
                "training.batch": 20,
                "fleet": {"fast": 5, "slow": 5},
                "ending.seconds": 40,
                "evaluation.seconds": 4,
                "report.seconds": 40,
            },
        ),
        "full": Scale("The paper's network and images, 14,000 virtual seconds.", {"algorithms": [ADAPTIVE]}),
    },
    readings=(*CLUSTER, "The figures have no numbers in the text apart from VC_loss 0 and 1, VC_tomb 4 and 1."),
    scored=False,
)

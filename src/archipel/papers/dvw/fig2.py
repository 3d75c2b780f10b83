"""Figure 2: what a community model costs the controller as the federation grows."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from archipel.core.layout import Layout
from archipel.models import resnet_cifar
from archipel.papers.claims import above, below
from archipel.papers.dvw import FOLDER, PAPER
from archipel.papers.dvw.commits import seconds
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.reproduction import Measure, PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale, ScaleName
from archipel.report.measures import Spread

FEW, MORE = 10, (100, 1000)
DEPTHS: Mapping[ScaleName, tuple[int, ...]] = {"smoke": (8,), "small": (8, 20, 50), "full": (8, 20, 50)}
TRIES: Mapping[ScaleName, int] = {"smoke": 3, "small": 20, "full": 20}
WAYS = ("with", "without")


def row(depth: int, way: str) -> str:
    return f"ResNet-{depth}, {way} cache"


def time(learners: int, *, relative: bool) -> Measure:
    """Milliseconds, or how many times that with few learners; the row names the network and the way."""

    def measure(evidence: FinishedRuns, part: str, named: str) -> Spread | None:
        found: dict[str, dict[str, float]] = evidence.once("commits", lambda: find(evidence.scale))
        if named not in found:
            return None
        return Spread.of([found[named][str(learners)] / (found[named][str(FEW)] if relative else 1e-3)])

    return measure


def find(scale: ScaleName) -> dict[str, dict[str, float]]:
    """Seconds, by row and number of learners."""
    found: dict[str, dict[str, float]] = {row(depth, way): {} for depth in DEPTHS[scale] for way in WAYS}
    for depth in DEPTHS[scale]:
        layout = Layout.of(resnet_cifar(depth, 100), torch.zeros(1, 3, 32, 32))
        for learners in (FEW, *MORE):
            for way, took in zip(WAYS, seconds(layout, learners, TRIES[scale]), strict=True):
                found[row(depth, way)][str(learners)] = took
    return found


TITLE = "Time of one community model"
COLUMNS = (
    PaperColumn(f"{FEW} learners, ms", measure=time(FEW, relative=False), digits=2),
    *(PaperColumn(f"{n:,} learners, times that", measure=time(n, relative=True), digits=2) for n in MORE),
)

REPRODUCTION = Reproduction(
    name="dvw-fig2",
    paper=PAPER,
    title="Figure 2: the time of a community model with and without the cache, up to 1,000 learners",
    folder=FOLDER,
    parts=(),
    tables=(
        PaperTable(
            TITLE,
            COLUMNS,
            tuple(PaperRow(row(depth, way), method=row(depth, way)) for depth in DEPTHS["full"] for way in WAYS),
        ),
    ),
    claims=(
        below(
            "With the cache the time is constant: with 1,000 learners less than twice that with 10",
            TITLE,
            COLUMNS[-1].name,
            2.0,
            rows=[row(depth, "with") for depth in DEPTHS["full"]],
        ),
        above(
            "Without it the time is linear: with 1,000 learners at least 30 times that with 10",
            TITLE,
            COLUMNS[-1].name,
            30.0,
            rows=[row(depth, "without") for depth in DEPTHS["full"]],
        ),
    ),
    scored=False,
    scales={
        "smoke": Scale("ResNet-8 with 10, 100 and 1,000 learners, the best of 3 tries."),
        "small": Scale("ResNet-8, -20 and -50 with 10, 100 and 1,000 learners, the best of 20 tries; 4 GB of memory."),
        "full": Scale("As small, which is the paper's own."),
    },
    readings=(
        'Section III says "different sizes of a ResNet community model (in the Cifar100 domain)" and not which; these '
        "are depths 8, 20 and 50 of the family that it trains. The figure's curves carry no numbers.",
        "Timed is the merge itself, as the controller calls it, on one thread and with cold caches: `Community` with "
        "the cache, `Mean` over everybody's latest model without it. Transfers, evaluation and waiting are not in it.",
    ),
)

"""D&C fig. 7: divergence by layer under class imbalance, and one class at each collaborator."""

from __future__ import annotations

import math
from pathlib import Path

from archipel.papers import claims
from archipel.papers.dnc import PAPER
from archipel.papers.dnc.fig4_6 import NAMES, diverged, last_whole
from archipel.papers.dnc.scales import BY_CLASS, FEDAVG, SMALL, SMOKE, divided
from archipel.papers.figure_measures import of_runs, score
from archipel.papers.reproduction import PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale, StudyPart
from archipel.runs.run import Run

LAYERS = "Fig. 7: divergence of each layer in the last round of the whole net (EQ3)"
FLATNESS = "The lowest layer's divergence in per cent of the highest's"
ONE_CLASS = "One class at each of ten collaborators: accuracy"
METHODS = ("FedAvg", "D&C", "FedAvg, head by class", "D&C, head by class")
IMBALANCED, SKEWED = "class imbalance", "colour skew"


def flatness(run: Run) -> float:
    """How far the lowest layer's divergence reaches up to the highest's: 100 where all layers diverge alike."""
    values = [value for value in last_whole(run).values if math.isfinite(value)]
    return 100 * min(values) / max(values)


def one_class(**settings: int) -> list[dict[str, object]]:
    return [
        FEDAVG,
        divided("D&C", split=8, **settings),
        {**FEDAVG, **BY_CLASS, "label": "FedAvg, head by class"},
        divided("D&C, head by class", split=8, **BY_CLASS, **settings),
    ]


REPRODUCTION = Reproduction(
    name="dnc-fig7",
    paper=PAPER,
    title="Fig. 7: divergence by layer under class imbalance, and one class at each collaborator",
    folder=Path(__file__).parent,
    parts=(
        StudyPart(IMBALANCED, "fig7.toml"),
        StudyPart(SKEWED, "prepass.toml"),
        StudyPart("one class", "one_class.toml"),
    ),
    tables=(
        PaperTable(
            LAYERS,
            (PaperColumn(IMBALANCED, IMBALANCED, digits=5), PaperColumn(SKEWED, SKEWED, digits=5)),
            tuple(
                PaperRow(f"L{number} {name}", measure=diverged(number - 1))
                for number, name in enumerate(NAMES, start=1)
            ),
            method="EQ3",
        ),
        PaperTable(
            FLATNESS,
            (PaperColumn(IMBALANCED, IMBALANCED), PaperColumn(SKEWED, SKEWED)),
            (PaperRow("EQ3", method="EQ3"),),
            measure=of_runs(flatness),
        ),
        PaperTable(
            ONE_CLASS,
            tuple(PaperColumn(method, method=method) for method in METHODS),
            (PaperRow("10 collaborators"),),
            part="one class",
            measure=score(),
        ),
    ),
    claims=(
        claims.higher(
            "Under class imbalance divergence is high in all layers: the lowest is nearer to the highest than under "
            "colour skew",
            FLATNESS,
            IMBALANCED,
            SKEWED,
        ),
    ),
    scales={
        "smoke": Scale(
            "20 images a collaborator, 2 rounds of one epoch, a VGG9 of an eighth of the widths on images of half the "
            "side.",
            {**SMOKE, "ending.rounds": 2},
            {
                "fig7.toml": {"EQ3.prepass": 2},
                "prepass.toml": {"algorithms": [divided("EQ3", prepass=2)]},
                "one_class.toml": {"algorithms": one_class(tuning_epochs=1)},
            },
        ),
        "small": Scale(
            "A VGG9 of an eighth of the widths on images of half the side, 200 images of each class, 8 rounds (5 under "
            "colour skew) of 10 epochs in batches of 32; one class each: 18 rounds (fine-tuning 2 epochs); two seeds.",
            {**SMALL, "seeds": [0, 1]},
            {
                "prepass.toml": {"algorithms": [divided("EQ3")]},
                "one_class.toml": {"algorithms": one_class(tuning_epochs=2)},
            },
        ),
        "full": Scale(
            "VGG9 on all of CIFAR-10, three seeds.",
            {"seeds": [0, 1, 2]},
            {"prepass.toml": {"algorithms": [divided("EQ3")]}},
        ),
    },
    readings=(
        "The figure has no numbers in the text; M5 is the model of the fifth round. Divergence is the mean over pairs "
        "of collaborators (docs/decisions/0011), in a net that trains as a whole.",
        "One class at each collaborator is not in the paper. The net is divided behind layer 8, as for class "
        "imbalance.",
        "Images, partition and optimiser are those of dnc-table1 and dnc-table2.",
    ),
)

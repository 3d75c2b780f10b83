"""D&C Table 1: two collaborators with five classes of CIFAR-10 each, one mostly grey, one mostly in colour."""

from __future__ import annotations

from pathlib import Path

from archipel.papers import claims
from archipel.papers.dnc import PAPER
from archipel.papers.dnc.colouring import scored_in
from archipel.papers.dnc.rounds import bytes_beside
from archipel.papers.dnc.scales import BY_CLASS, FEDAVG, FEDMA, FEDPROX, SMALL, SMOKE, divided, images
from archipel.papers.figure_measures import score
from archipel.papers.reproduction import PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale, StudyPart

ACCURACY = "Table 1: accuracy after 18 rounds"
POOLED = "The images of both collaborators in one place"
COLOURS = "The last model on test images in other colours"
SKEWS = ("95-5", "75-25", "50-50")
SGD, STEADY = "95-5, SGD with momentum", "95-5, rate that does not fall"
WIDER = "95-5, a wider net and more images"
VARIANTS = (SGD, STEADY)
FEDAVG_BY_CLASS = {**FEDAVG, **BY_CLASS, "label": "FedAvg, head by class"}


def methods(**settings: int) -> list[dict[str, object]]:
    """All methods of the table, and two of ours; settings: those of D&C."""
    by_class = divided("D&C, head by class", split=5, **BY_CLASS, **settings)
    return [FEDAVG, FEDPROX, FEDMA, divided("D&C", split=5, **settings), FEDAVG_BY_CLASS, by_class]


REPRODUCTION = Reproduction(
    name="dnc-table1",
    paper=PAPER,
    title="Table 1: colour-skewed CIFAR-10 on two collaborators, three levels of skew",
    folder=Path(__file__).parent,
    parts=(
        *(StudyPart(skew, "colour.toml", {"data.colour_skew.share": skew}) for skew in SKEWS),
        StudyPart(
            SGD,
            "variants.toml",
            {"training.optimiser": "SGD", "training.momentum": 0.9, "training.rate": 0.01},
        ),
        StudyPart(
            STEADY,
            "variants.toml",
            {"algorithms": [{**FEDAVG, "more_planners": []}, divided("D&C", split=5, decay=1.0)]},
        ),
        StudyPart(WIDER, "wider.toml"),
        StudyPart("in one place", "pooled.toml"),
    ),
    tables=(
        PaperTable(
            ACCURACY,
            (
                PaperColumn("FedAvg", method="FedAvg"),
                PaperColumn("FedProx", method="FedProx"),
                PaperColumn("FedMA", method="FedMA"),
                PaperColumn("D&C", method="D&C"),
                PaperColumn(
                    "bytes of D&C, % of FedAvg's",
                    method="D&C",
                    measure=bytes_beside("FedAvg"),
                ),
                PaperColumn("FedAvg, head by class", method="FedAvg, head by class"),
                PaperColumn("D&C, head by class", method="D&C, head by class"),
            ),
            (
                PaperRow("95-5", (53.1, 56.2, 81.0, 80.1, None, None, None), part="95-5"),
                PaperRow("75-25", (52.8, 74.6, 78.8, 79.2, None, None, None), part="75-25"),
                PaperRow("50-50", (49.1, 67.2, 79.9, 81.8, None, None, None), part="50-50"),
                *(PaperRow(part, part=part) for part in (*VARIANTS, WIDER)),
            ),
            measure=score(),
        ),
        PaperTable(
            POOLED,
            (PaperColumn("accuracy", measure=score()),),
            (PaperRow("95-5", part="in one place", method="centralised"),),
        ),
        PaperTable(
            COLOURS,
            tuple(PaperColumn(colour, measure=scored_in(colour)) for colour in ("alike", "colour", "grey")),
            tuple(
                PaperRow(f"{part}: {method}", part=part, method=method)
                for part in (*SKEWS, *VARIANTS)
                for method in ("FedAvg", "D&C")
            ),
        ),
    ),
    claims=(
        claims.higher(
            "D&C is far above FedAvg, by 10 points or more, at every skew (the paper: by 26 to 33)",
            ACCURACY,
            "D&C",
            "FedAvg",
            rows=(*SKEWS, *VARIANTS, WIDER),
            by=10,
            floor=20,
        ),
        claims.higher(
            "D&C is within 3 points of FedMA, or above it, at every skew (the paper: -0.9, +0.4 and +1.9)",
            ACCURACY,
            "D&C",
            "FedMA",
            rows=(*SKEWS, WIDER),
            by=-3,
            floor=20,
        ),
    ),
    scales={
        "smoke": Scale(
            "20 images a collaborator, 7 rounds of one epoch, a VGG9 of an eighth of the widths on images of half the "
            "side.",
            SMOKE,
            parts=("95-5", "in one place"),
        ),
        "small": Scale(
            "A VGG9 of an eighth of the widths on images of half the side, 200 images of each class, 18 rounds of "
            "10 epochs (fine-tuning 2) in batches of 32, and 6 of them in one place; two seeds of each skew, one of "
            "the variants and in one place. The wider net: a VGG9 of half the widths with dropout, 400 images of each "
            "class in full, 5 epochs (fine-tuning 1), one seed.",
            {"seeds": [0]},
            {
                "colour.toml": {**SMALL, "seeds": [0, 1], "algorithms": methods(tuning_epochs=2)},
                "variants.toml": {**SMALL, "D&C.tuning_epochs": 2},
                "pooled.toml": {**SMALL, "ending.rounds": 6},
                "wider.toml": {"data.source": images(400, 100), "algorithms": methods(tuning_epochs=1)},
            },
        ),
        "full": Scale(
            "VGG9 on all of CIFAR-10, 18 rounds, three seeds.",
            {"seeds": [0, 1, 2]},
            parts=(*SKEWS, *VARIANTS, "in one place"),
        ),
    },
    readings=(
        'Models and conditions are "as in [13]", FedMA\'s published code: training images are padded, cropped at '
        "random, flipped and normalised; the net has dropout; half of the test images of every class are grey; the "
        "seed draws which five classes are mostly grey.",
        "The optimiser is not given: section 2 names SGD, sections 4 and 5 a rate of .001. As in FedMA's code, "
        "FedAvg and D&C use Adam at .001 with weight decay 1e-4 and amsgrad, FedProx (mu .001) and FedMA SGD with "
        "momentum at .01. FedAvg and D&C by SGD have a row of their own.",
        "FedAvg has equal weights (Algorithm 1) and D&C's 20 epochs and falling rate; one row has a constant rate "
        "for both.",
        "D&C divides behind layer 5 (section 5.1), without a pre-pass: rounds 1, 3, 5 and so on learn features. The "
        "split that divergence finds is in dnc-fig4-6.",
        "FedMA settles one layer a round, so 18 rounds are two of its communication rounds. It averages the last "
        "layer by class counts; two columns of ours have FedAvg and D&C do the same.",
        "Grey is the luma of ITU-R 601; FedMA's code copies the red channel.",
    ),
    remarks=(
        "The paper's collaborators have 25,000 images each and VGG9 in full: some 7,800 local steps a round against "
        "320 here.",
    ),
)

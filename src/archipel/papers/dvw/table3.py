"""Table III: asynchronous policies on EMNIST ByClass, on a heterogeneous cluster."""

from __future__ import annotations

from archipel.papers.dvw import CLUSTER, FOLDER, PAPER
from archipel.papers.dvw.asynchronous import accuracies, adaptive_is_first, part
from archipel.papers.dvw.table1 import first_of_each
from archipel.papers.reproduction import PaperRow, Reproduction
from archipel.papers.studies import Scale

TITLE = "EMNIST ByClass: test accuracy in per cent after equal virtual time"
STUDY = "emnist.toml"

REPRODUCTION = Reproduction(
    name="dvw-table3",
    paper=PAPER,
    title="Table III: asynchronous policies on EMNIST ByClass, five fast and five slow learners",
    folder=FOLDER,
    parts=(
        part(STUDY, "uniform-iid", "uniform", "iid"),
        part(STUDY, "skewed-30", "skewed", 30),
        part(STUDY, "powerlaw-iid", "powerlaw", "iid"),
    ),
    tables=(
        accuracies(
            TITLE,
            PaperRow("Uniform, IID", (85.86, 86.0, 85.88, 86.31), part="uniform-iid"),
            PaperRow("Skewed, Non-IID(30)", (79.11, 73.46, 81.03, 82.85), part="skewed-30"),
            PaperRow("Power law, IID", (51.07, 68.33, 67.23, 71.07), part="powerlaw-iid"),
        ),
    ),
    claims=(adaptive_is_first(TITLE, floor=10.0),),
    scales={
        "smoke": Scale(
            "Skewed, Non-IID(30), on files of noise in the official format (20 images of each class) with a small CNN, "
            "for one virtual second. There is nothing to learn, so that no claim is judged.",
            {
                "seeds": [0],
                "model": {"name": "small_cnn"},
                "data.source": {"name": "archipel.papers.dvw.generated:emnist", "each": 20},
                "training.epochs": 1,
                "AsyncDVW(a).at_most": 1,
                "ending.seconds": 1.0,
                "evaluation.seconds": 0.5,
                "report.seconds": 1.0,
            },
            parts=("skewed-30",),
        ),
        "small": Scale(
            "All rows with a small CNN; the first 300 training and 30 test images of each class, 200 virtual seconds, "
            "the better of two rates for each method by validation data. It needs the real images (`archipel data get "
            "emnist`).",
            {
                "seeds": [0, 1],
                "model": {"name": "small_cnn"},
                "data.source": first_of_each("emnist", 300, 30),
                "ending.seconds": 200,
                "evaluation.seconds": 5,
                "report.seconds": 200,
                "tune": {"training.rate": [0.01, 0.05]},
            },
        ),
        "full": Scale(
            "The paper's own: all rows, LEAF's 2-CNN, all 697,932 images, 30,000 virtual seconds, seed 1990."
        ),
    },
    readings=CLUSTER,
    remarks=(
        "The images were not available where this was written, so only `smoke` was run, on generated files. It shows "
        "that the study works, and says nothing about the claim.",
    ),
)

"""Table II: asynchronous policies on CIFAR-100 with a ResNet-50, on a heterogeneous cluster."""

from __future__ import annotations

from archipel.papers.dvw import CLUSTER, FOLDER, PAPER
from archipel.papers.dvw.asynchronous import accuracies, adaptive_is_first, part
from archipel.papers.dvw.table1 import SMALL_CNN, first_of_each
from archipel.papers.reproduction import PaperRow, Reproduction
from archipel.papers.studies import Scale

TITLE = "CIFAR-100: test accuracy in per cent after equal virtual time"
STUDY = "cifar100.toml"

REPRODUCTION = Reproduction(
    name="dvw-table2",
    paper=PAPER,
    title="Table II: asynchronous policies on CIFAR-100 with a ResNet-50, five fast and five slow learners",
    folder=FOLDER,
    parts=(
        part(STUDY, "uniform-iid", "uniform", "iid"),
        part(STUDY, "uniform-50", "uniform", 50),
        part(STUDY, "skewed-iid", "skewed", "iid"),
        part(STUDY, "skewed-50", "skewed", 50),
        part(STUDY, "powerlaw-iid", "powerlaw", "iid"),
        part(STUDY, "powerlaw-50x5", "powerlaw", "84x1,76x1,68x1,64x1,55x1,50x5"),
    ),
    tables=(
        accuracies(
            TITLE,
            PaperRow("Uniform, IID", (59.62, 57.45, 59.31, 59.96), part="uniform-iid"),
            PaperRow("Uniform, Non-IID(50)", (51.89, 49.44, 51.79, 55.8), part="uniform-50"),
            PaperRow("Skewed, IID", (54.37, None, None, 57.74), part="skewed-iid"),
            PaperRow("Skewed, Non-IID(50)", (34.02, None, None, 44.59), part="skewed-50"),
            PaperRow("Power law, IID", (None, None, None, 44.44), part="powerlaw-iid"),
            PaperRow("Power law, Non-IID(50x5)", (None, None, None, 26.05), part="powerlaw-50x5"),
        ),
    ),
    claims=(adaptive_is_first(TITLE, floor=5.0),),
    scales={
        "smoke": Scale(
            "Uniform, Non-IID(50), on files of noise in the official format (6 images of each class) with a ResNet of "
            "depth 8, for half a virtual second. There is nothing to learn, so that no claim is judged.",
            {
                "seeds": [0],
                "model": {"name": "small_resnet"},
                "data.source": {"name": "archipel.papers.dvw.generated:cifar100", "each": 6},
                "training.epochs": 1,
                "AsyncDVW(a).at_most": 1,
                "ending.seconds": 0.5,
                "evaluation.seconds": 0.5,
                "report.seconds": 0.5,
            },
            parts=("uniform-50",),
        ),
        "small": Scale(
            "Uniform and power law, both IID, with a 2-CNN on images of half their side; the first 100 training and 50 "
            "test images of each class, 150 virtual seconds, the better of two rates for each method by validation "
            "data. It needs the real images (`archipel data get cifar100`).",
            {
                "seeds": [0, 1],
                "model": SMALL_CNN,
                "data.source": first_of_each("cifar100", 100, 50),
                "ending.seconds": 150,
                "evaluation.seconds": 5,
                "report.seconds": 150,
                "tune": {"training.rate": [0.02, 0.1]},
            },
            parts=("uniform-iid", "powerlaw-iid"),
        ),
        "full": Scale("The paper's own: all rows, ResNet-50, all 50,000 images, 14,000 virtual seconds, seed 1990."),
    },
    readings=(
        *CLUSTER,
        "ResNet-50 is the one that TensorFlow's code makes for CIFAR (6n + 2 layers, 764,468 parameters). The running "
        "statistics of batch normalisation travel with the other numbers; section VI names gamma and beta only.",
        "Non-IID(50x5) is (84x1,76x1,68x1,64x1,55x1,50x5). In the text of the paper that we have, seven figures of "
        "Table II are lost, and 0.1653, which is AsyncFedAvg's in one of the two power-law rows, cannot be placed.",
    ),
    remarks=(
        "The images were not available where this was written, so only `smoke` was run, on generated files. It shows "
        "that the study works, and says nothing about the claim.",
    ),
)

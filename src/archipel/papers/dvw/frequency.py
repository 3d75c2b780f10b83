"""Section VI: update frequencies uf of 1 to 32 local epochs, compared after equal virtual time."""

from __future__ import annotations

from archipel.papers.claims import rows_higher
from archipel.papers.dvw import CLUSTER, FOLDER, PAPER
from archipel.papers.dvw.table1 import SYNC, TUTORIAL, halved
from archipel.papers.figure_measures import score
from archipel.papers.reproduction import PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale, StudyPart

TITLE = "Accuracy in per cent by update frequency, after equal virtual time"
FREQUENCIES = (1, 2, 4, 8, 16, 32)

REPRODUCTION = Reproduction(
    name="dvw-frequency",
    paper=PAPER,
    title="Section VI: update frequencies of synchronous policies",
    folder=FOLDER,
    parts=tuple(StudyPart(f"uf-{uf}", "frequency.toml", {"training.epochs": uf}) for uf in FREQUENCIES),
    tables=(
        PaperTable(
            TITLE,
            tuple(PaperColumn(method, method=method) for method in SYNC),
            tuple(PaperRow(f"uf = {uf}", part=f"uf-{uf}") for uf in FREQUENCIES),
            measure=score(),
        ),
    ),
    claims=(
        rows_higher(
            "uf = 4 is the best update frequency, or at most 1 point behind it",
            TITLE,
            "uf = 4",
            [f"uf = {uf}" for uf in FREQUENCIES if uf != 4],
            by=-1.0,
            floor=15,
        ),
    ),
    scales={
        "smoke": Scale(
            "uf of 1 and 4, 40 images of each class, a quarter of the widths at half the side, 2 virtual seconds.",
            {
                "seeds": [0],
                "model": TUTORIAL,
                "data.source": halved("cifar10", 40, 5),
                "ending.seconds": 2,
                "evaluation.seconds": 1,
            },
            parts=("uf-1", "uf-4"),
        ),
        "small": Scale(
            "The tutorial's five layers, a quarter as wide, on images of half their side, 200 images of each class in "
            "batches of 20, 120 virtual seconds, which are 15 rounds with uf = 4; five seeds.",
            {
                "seeds": [0, 1, 2, 3, 4],
                "model": TUTORIAL,
                "data.source": halved("cifar10", 200, 100),
                "training.batch": 20,
                "ending.seconds": 120,
                "evaluation.seconds": 4,
            },
        ),
        "full": Scale("The paper's network and images, 8,000 virtual seconds, which are 200 rounds with uf = 4."),
    },
    readings=(
        *CLUSTER[:1],
        "The paper does not say on which data the frequencies were compared: skewed sizes and five classes each here. "
        "Asynchronous FedAvg, which it names too, is left out.",
    ),
)

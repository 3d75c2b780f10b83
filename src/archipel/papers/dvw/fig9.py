"""Figure 9: update requests, and the models that are moved for them, by policy."""

from __future__ import annotations

from archipel.papers.claims import near_paper, rows_higher
from archipel.papers.dvw import CLUSTER, FOLDER, PAPER
from archipel.papers.dvw.table1 import ALL, SETTINGS, SMALL_CNN, first_of_each
from archipel.papers.figure_measures import of_runs
from archipel.papers.reproduction import PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale
from archipel.runs.history import WORK, moved
from archipel.runs.run import Run

TITLE = "Requests, and models exchanged"
REQUESTS, A_REQUEST = "update requests", "models a request"
SHOWN = [one for one in SETTINGS if one.row.endswith(("Non-IID(3)", "Non-IID(3x8)"))]
"""One setting for each kind of data sizes."""
STREAMS = ("AsyncFedAvg", "FedAsync", "AsyncDVW(na)")


def requests(run: Run) -> float:
    """Return the number of updates sent, each of which is answered by a community model."""
    return len(run.cycles)


def models(run: Run) -> float:
    return moved(run.traffic, "models", *WORK)


def evaluated(run: Run) -> float:
    return moved(run.traffic, "models", "evaluate")


def label(setting: str, method: str) -> str:
    return f"{setting}: {method}"


REPRODUCTION = Reproduction(
    name="dvw-fig9",
    paper=PAPER,
    title="Figure 9: update requests and models exchanged, by policy",
    folder=FOLDER,
    parts=tuple(one.part("heterogeneous") for one in SHOWN),
    tables=(
        PaperTable(
            TITLE,
            (
                PaperColumn(REQUESTS, measure=of_runs(requests), digits=0),
                PaperColumn("models exchanged", measure=of_runs(models), digits=0),
                PaperColumn("of them for evaluation", measure=of_runs(evaluated), digits=0),
                PaperColumn(A_REQUEST, measure=of_runs(lambda run: models(run) / requests(run)), digits=2),
            ),
            tuple(
                PaperRow(
                    label(one.row, method),
                    (None, None, None, 11.0 if "DVW" in method else 2.0),
                    part=one.folder("heterogeneous"),
                    method=method,
                )
                for one in SHOWN
                for method in ALL
            ),
        ),
    ),
    claims=(
        near_paper("A request moves 2 models, with DVW 11, for ten learners", TITLE, A_REQUEST, within=0.5),
        *(
            rows_higher(
                f"{one.row}: adaptive DVW makes fewer requests than the other asynchronous policies",
                TITLE,
                label(one.row, "AsyncDVW(a)"),
                [label(one.row, method) for method in STREAMS],
                columns=(REQUESTS,),
                by=1.0,
                lower=True,
            )
            for one in SHOWN
        ),
    ),
    scored=False,
    scales={
        "smoke": Scale(
            "Power law, Non-IID(3x8), 40 images of each class, a small CNN, 0.2 virtual seconds.",
            {
                "seeds": [0],
                "model": SMALL_CNN,
                "data.source": first_of_each("cifar10", 40, 5),
                "fleet": {"fast": 5, "slow": 5},
                "training.epochs": 1,
                "AsyncDVW(a).at_most": 2,
                "ending.seconds": 0.2,
                "evaluation.seconds": 0.1,
                "report.seconds": 0.2,
            },
            parts=(SHOWN[-1].folder("heterogeneous"),),
        ),
        "small": Scale(
            "Uniform and power law; 100 images of each class, a 2-CNN of 10,218 parameters, batches of 20, 4 virtual "
            "seconds at 0.01 (fast) and 0.1 (slow) a training step.",
            {
                "seeds": [0, 1],
                "model": SMALL_CNN,
                "data.source": first_of_each("cifar10", 100, 20),
                "training.batch": 20,
                "fleet": {"fast": 5, "slow": 5},
                "ending.seconds": 4,
                "evaluation.seconds": 2,
                "report.seconds": 4,
            },
            parts=(SHOWN[0].folder("heterogeneous"), SHOWN[-1].folder("heterogeneous")),
        ),
        "full": Scale("The paper's own: Table I's heterogeneous cluster, one row for each kind of data sizes."),
    },
    readings=(
        *CLUSTER,
        "The bars carry no numbers, and the paper does not say which row of each data size they are of; these are the "
        "ones with three classes. A request is an update that was sent in; what is still being trained when time is up "
        "is none. 11 is one model up, nine to the other learners' evaluators and one down; opinions that are still out "
        "when time is up are not counted, which makes it a little less.",
    ),
)

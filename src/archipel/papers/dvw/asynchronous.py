"""What Tables II and III share: four asynchronous policies, compared by accuracy after equal virtual time."""

from __future__ import annotations

from archipel.papers.claims import higher
from archipel.papers.figure_measures import score
from archipel.papers.reproduction import Claim, PaperColumn, PaperRow, PaperTable
from archipel.papers.studies import StudyPart

METHODS = ("AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)")


def part(study: str, name: str, sizes: str, classes: str | int) -> StudyPart:
    """Return a row's split of the data of a study."""
    return StudyPart(name, study, {"data.split.sizes": sizes, "data.split.classes": classes})


def accuracies(title: str, *rows: PaperRow) -> PaperTable:
    """Return the table of these rows, with a column for each policy."""
    return PaperTable(title, tuple(PaperColumn(method, method=method) for method in METHODS), rows, measure=score())


def adaptive_is_first(title: str, floor: float) -> Claim:
    """Claim that AsyncDVW(a) is first in every row of a table, where something is learned."""
    return higher("AsyncDVW(a) is first in every row", title, "AsyncDVW(a)", METHODS[:-1], floor=floor)

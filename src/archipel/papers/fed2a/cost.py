"""When a target is reached, and what Fed2A counts as communication until then (formula 12): one upload a round.

Shallow layers are counted in every round, deep ones in those in which PLU uploads them: all of the first period, then
the last D of each. Every cost of Table 4 follows from its round so.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core.parts.planning import PeriodicLayers
from archipel.papers.finished_runs import FinishedRuns
from archipel.report.measures import Spread, reached
from archipel.runs.history import history
from archipel.study.files import method_label, methods
from archipel.study.schema import Study

PERIOD = 10
"""P of all rows of Table 4."""
BYTES = 4
GIGABYTE = 2**30


@dataclass(frozen=True)
class NetworkCost:
    """Parameters of the paper's network for a data set (Table 3)."""

    shallow: int
    deep: int


TABLE_3 = {
    "fmnist": NetworkCost(206_592, 3_413_770),
    "cifar10": NetworkCost(829_184, 9_574_154),
    "gtsrb": NetworkCost(209_792, 2_403_499),
}


def gigabytes(network: NetworkCost, rounds: int, last: int = PERIOD) -> float:
    """cost_all of formula 12 up to a round, with deep layers in the last D rounds of a period."""
    layers = PeriodicLayers(PERIOD, last)
    deep = sum(layers.uploads_deep(number) for number in range(1, rounds + 1))
    return BYTES * (rounds * network.shallow + deep * network.deep) / GIGABYTE


def last_rounds(study: Study, method: str) -> int:
    """D of a method as its study has it; methods without PLU upload deep layers in all rounds of a period."""
    (entry,) = (entry for entry in methods(study.raw) if method_label(entry) == method)
    return int(entry.get("last", PERIOD)) if isinstance(entry, dict) else PERIOD


def arrivals(evidence: FinishedRuns, part: str, method: str) -> list[int]:
    """Return the round in which each run reaches the target; empty if none does.

    One that does not, where others do, counts with all its rounds, as in fig. 7: else it would help the mean.
    """
    runs, targets = evidence.runs(part, method), evidence.marks(part).targets
    found = [reached(run, history(run), targets[run.metric].value) for run in runs]
    if not any(found):
        return []
    return [len(run.commits) if point is None else point.version for run, point in zip(runs, found, strict=True)]


def rounds_to_target(evidence: FinishedRuns, part: str, method: str) -> Spread:
    """I2."""
    return Spread.of(arrivals(evidence, part, method))


def gigabytes_to_target(evidence: FinishedRuns, part: str, method: str) -> Spread:
    """I3: what the paper's network would cost until our runs reach the target."""
    (study,) = (evidence.study(one) for one in evidence.studies.parts if one.name == part)
    last = last_rounds(study, method)
    return Spread.of(gigabytes(TABLE_3[part], rounds, last) for rounds in arrivals(evidence, part, method))

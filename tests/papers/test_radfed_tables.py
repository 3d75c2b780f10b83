"""RADFed's tables: the figures as printed, the measures by hand numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from archipel.core.records import Shadow
from archipel.papers import claims
from archipel.papers.figure_measures import at_share, gain_over
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.radfed import fig6_7, table3
from archipel.runs.run import Run
from tests.made_runs import written


def test_table_3_is_copied_without_a_slip() -> None:
    """The paper's own last line follows from the nine above it: the means of the scores, not of the gains."""
    printed = (85.77, 0.37, 0.38, -0.26, 1.79, 1.47, 1.51, 1.82, 1.71)
    fedavg = [line[0] for line in table3.FIGURES.values()]
    assert sum(fedavg) / 9 == pytest.approx(printed[0], abs=0.005)
    for place in range(1, 9):
        scores = [line[0] * (1 + line[place] / 100) for line in table3.FIGURES.values()]
        assert 100 * (sum(scores) / sum(fedavg) - 1) == pytest.approx(printed[place], abs=0.01)


def test_hops_are_those_of_table_2() -> None:
    wanted = {
        "Cifar10": (15, 100),
        "Shakespeare": (15, 100),
        "COVFEAT-G": (20, 20),
        "COVFEAT-L": (20, 20),
        "COVCLS-G": (22, 22),
        "COVCLS-L": (22, 22),
        "MNIST-1": (22, 22),
        "MNIST-0.1": (15, 15),
        "eICU": (80, 80),
    }
    evidence = FinishedRuns(table3.REPRODUCTION, "full", Path("nowhere"))
    for part in table3.PARTS:
        methods = {method.name: method.given for method in evidence.study(part).algorithms}
        found = {name: methods[name]["hops"] for name in table3.RELAYS}
        assert (found.pop("radfed"), found.pop("radfed_i")) == wanted[part.name]
        assert set(found.values()) == {wanted[part.name][0]}
        if part.name in fig6_7.HOPS:
            assert fig6_7.HOPS[part.name] == wanted[part.name][0]


# ------------------------------------------------------------------------------------------------------ by hand numbers


def scored(seed: int, score: float) -> Run:
    """A run of five rounds that has this score in the last one, and .1 before."""
    return written([0.1, 0.1, 0.1, 0.1, 0.1, score], seed=seed, fold=0)


@dataclass
class Made:
    """Evidence that was never run."""

    by_method: dict[str, list[Run]] = field(default_factory=dict)

    def has(self, part: str) -> bool:
        return part == "there"

    def runs(self, part: str, method: str) -> list[Run]:
        return self.by_method[method]


def made(**by_method: list[float]) -> FinishedRuns:
    """Scores by seed; the other method's runs lie in another order."""
    found = {name: [scored(seed, score) for seed, score in enumerate(scores)] for name, scores in by_method.items()}
    found["fedavg"].reverse()
    return cast(FinishedRuns, Made(found))


def test_a_gain_is_taken_run_by_run() -> None:
    spread = gain_over("fedavg")(made(fedavg=[0.5, 0.8], radfed=[0.6, 0.8]), "there", "radfed")
    assert spread is not None
    assert spread.mean == pytest.approx(10.0)  # 20 % and 0 %
    assert spread.n == 2
    halfway = gain_over("fedavg", at_share(0.5))(made(fedavg=[0.5, 0.8], radfed=[0.6, 0.8]), "there", "radfed")
    assert halfway is not None
    assert halfway.mean == pytest.approx(0.0), "until then all had the same score"


def test_wilcoxon_over_pairs() -> None:
    base = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    above = [score + 0.01 * (place + 1) for place, score in enumerate(base)]
    claim = claims.significant("", ("there", "not run"), "radfed", ("fedavg",))
    ahead = claim.judge({}, made(fedavg=base, radfed=above))
    assert ahead.holds
    assert "6 pairs, p = 0.0312" in ahead.why  # 2 / 2^6: the smallest that six pairs can give
    assert claim.judge({}, made(fedavg=above, radfed=base)).holds is False, "it is behind"
    mixed = [*above[:3], *(score - 0.02 for score in base[3:])]
    assert claim.judge({}, made(fedavg=base, radfed=mixed)).holds is False
    assert claim.judge({}, made(fedavg=base[:5], radfed=above[:5])).holds is None


def test_divergence_between_aggregations() -> None:
    """Two aggregations, at the third and the sixth local round; then one more round."""
    told = [
        (1, None, 0.1),
        (2, None, 0.3),
        (3, 0.5, 0.4),
        (4, None, 0.2),
        (5, None, 0.1),
        (6, 0.7, 0.6),
        (7, None, 0.2),
    ]
    run = cast(Run, type("Made", (), {"shadows": [(float(at), Shadow(at, dc, dl)) for at, dc, dl in told]}))
    assert fig6_7.periods(run) == [[0.1, 0.3, 0.4], [0.2, 0.1, 0.6], [0.2]]
    assert fig6_7.last_half(run) == pytest.approx(0.7)
    assert fig6_7.after(run) == pytest.approx(0.5 / 3)
    assert fig6_7.before(run) == pytest.approx(1.2 / 3)
    thirds = [fig6_7.in_third(place, run) for place in range(3)]
    assert thirds == pytest.approx([0.15, 0.2, 0.5]), "the last period is not whole"
    assert fig6_7.grows(run) == pytest.approx(75.0)
    assert fig6_7.falls(run) == 100.0

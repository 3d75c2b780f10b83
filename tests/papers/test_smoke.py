"""Every reproduction once at smoke scale: the command works, and no table stays empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.outcome import Outcome, reproduce
from tests.real_files import CLOTHES, needs

pytestmark = pytest.mark.slow

NEEDS = {
    "dvw-table1": [needs("cifar10"), CLOTHES],
    "dvw-frequency": [needs("cifar10")],
    "dvw-fig3-4": [needs("cifar10")],
    "dvw-fig9": [needs("cifar10")],
    "fed2a-table4": [CLOTHES, needs("cifar10"), needs("gtsrb")],
    "dnc-table1": [needs("cifar10")],
    "dnc-table2": [needs("cifar10")],
    "dnc-table3": [needs("shakespeare")],
    "dnc-fig4-6": [needs("cifar10")],
    "dnc-fig7": [needs("cifar10")],
    "hdafl-table5": [needs("iscx_vpn")],
    "radfed-table1": [needs("mnist")],
    "radfed-table3": [needs("eicu_demo")],
    "radfed-fig6-7": [needs("covertype")],
}
"""Real files that they cannot do without."""


def models_exchanged_by_a_request(outcome: Outcome) -> None:
    exchanged = {row: figures.ours(row, "models a request") for figures in outcome.figures for row, _ in figures.cells}
    assert exchanged["Power law, Non-IID(3x8): FedAsync"] == 2
    assert exchanged["Power law, Non-IID(3x8): SyncDVW"] == 11


CHECKS = {"dvw-fig9": models_exchanged_by_a_request}
"""What else holds of an outcome."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in NAMES])
def test_it_runs(name: str, real: None, tmp_path: Path) -> None:
    outcome = reproduce(reproduction(name), "smoke", tmp_path / "out", processes=1)
    assert outcome is not None
    ran = {None, *(part.name for part in reproduction(name).parts_at("smoke"))}
    found = 0
    for figures in outcome.figures:
        if not ran & {row.part for row in figures.table.rows}:
            continue  # of studies that this scale leaves out
        assert any(cell.ours is not None and cell.ours.n for cell in figures.cells.values()), figures.table.title
        found += 1
    assert found
    CHECKS.get(name, lambda _: None)(outcome)

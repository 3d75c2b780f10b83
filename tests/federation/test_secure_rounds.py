"""Secure sums over the wire: the simulator's bits, refusals, and what the disk holds meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.federation.security.authority import create_authority, issue
from tests.federation.in_one_process import hold, study
from tests.federation.test_conformance import simulated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a controller and four learners."""
    folder = tmp_path_factory.mktemp("authority") / "ca"
    create_authority(folder)
    issue(folder, "controller", hosts=["localhost"])
    for number in range(4):
        issue(folder, "learner", f"0{number}")
    return folder


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedadam": {"name": "fedadam", "privacy": "SecureSum(bits=64)"},
    "fedprox": {"name": "fedprox", "mu": 0.1},
    "hdafl": {"name": "hdafl", "fraction": 1.0},
    "d&c, given split": {"name": "divide_and_conquer", "split": 1},
    "plu in rounds": {"name": "fedavg", "more_planners": ["PeriodicLayers(2, 1)"]},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_comes_to_the_simulators_bits(method: str, tmp_path: Path, papers: Path) -> None:
    raw = study(
        algorithms=[{"privacy": "SecureSum()", **METHODS[method]}],
        data={"split": {"learners": 4}},
        ending={"rounds": 3},
    )
    held = hold(raw, tmp_path, papers=papers)
    expected = simulated(raw)
    assert held.run is not None
    assert len(held.run.commits) == 3
    assert torch.equal(held.run.model, expected.model)
    assert held.run.traffic == expected.traffic
    assert [c.weights for _, c in held.run.commits] == [c.weights for _, c in expected.commits]

"""What a checkpoint costs does not grow with the data at every save."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archipel as ap
from archipel.data import Island, Islands
from archipel.simulation import checkpoint
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator


def test_the_data_are_hashed_once_for_all_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Simulator] = []
    find = checkpoint._data_hash

    def noted(simulator: Simulator) -> str:
        hashed.append(simulator)
        return find(simulator)

    monkeypatch.setattr(checkpoint, "_data_hash", noted)
    nothing = torch.empty(0, dtype=torch.int64)
    parts = [Island(str(i), torch.arange(4 * i, 4 * i + 4), nothing) for i in range(3)]
    data = Islands(torch.randn(12, 2), torch.arange(12) % 2, tuple(parts), nothing, nothing, 2, "few")
    made = [
        prepare(ap.fedavg(1.0, batch=2), data, model=torch.nn.Linear(2, 2), ending=ap.Ending(rounds=3))
        for _ in range(2)
    ]
    saved = checkpoint.Checkpoint(tmp_path)
    made[0].begin()
    for _ in range(3):
        made[0].run(events=2)
        saved.save(made[0])
    assert hashed == [made[0]]
    saved.load(made[1])
    assert hashed == made, "another simulator is compared by its own data"
    for one in made:
        one.close()

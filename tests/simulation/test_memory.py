"""The store of a simulation, on both sides of the size above which vectors go to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.kernels.rows import MemoryRows
from archipel.simulation import simulate as experiment
from archipel.simulation import vectors as memory
from archipel.simulation.vectors import MemoryModels
from tests.simulation.engine_cases import small_islands

LENGTH = 3000
BYTES = 4 * LENGTH


def numbers(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def filed(models: MemoryModels, name: str) -> bool:
    """A tensor over a file's pages cannot be resized, because torch has not allocated it."""
    return not models.read(name).untyped_storage().resizable()


def test_vectors_above_the_stated_size_go_to_the_file_and_read_the_same() -> None:
    models = MemoryModels(in_memory=2 * BYTES)
    for k in range(5):
        models.write(f"t{k}", numbers(k))
    models.write("merge/sum", numbers(9, torch.float64))
    assert [filed(models, f"t{k}") for k in range(5)] == [False, False, True, True, True]
    assert filed(models, "merge/sum")
    assert models.names() == ["t0", "t1", "t2", "t3", "t4", "merge/sum"]
    for k in range(5):
        assert torch.equal(models.read(f"t{k}"), numbers(k))
    assert torch.equal(models.read("merge/sum"), numbers(9, torch.float64))


def test_a_vector_in_the_file_can_be_changed_in_place() -> None:
    models = MemoryModels(in_memory=0)
    mine = numbers(1)
    models.write("a", mine)
    models.read("a").add_(1)
    assert torch.equal(models.read("a"), numbers(1) + 1)
    assert torch.equal(mine, numbers(1)), "the file has a copy"


def test_dropping_makes_room_in_memory() -> None:
    models = MemoryModels(in_memory=BYTES)
    models.write("a", numbers(1))
    models.write("a", numbers(2))  # in place of the first
    assert not filed(models, "a")
    models.write("b", numbers(3))
    assert filed(models, "b")
    models.drop("a")
    models.drop("a stranger")
    models.write("c", numbers(4))
    assert not filed(models, "c")


def addresses(models: MemoryModels, *names: str) -> list[int] | None:
    """Where the rows begin in memory; None if they are read piece by piece."""
    rows = models.rows(names)
    assert len(rows) == len(names)
    return rows.addresses.tolist() if isinstance(rows, MemoryRows) else None


def test_rows_have_addresses_if_all_are_float32_vectors_in_memory_of_one_length() -> None:
    models = MemoryModels(in_memory=5 * BYTES)
    first, second = numbers(1), numbers(2)
    models.write("a", first)
    models.write("b", second)
    assert addresses(models, "b", "a", "b") == [second.data_ptr(), first.data_ptr(), second.data_ptr()]
    models.write("a", numbers(3, torch.float64))
    assert addresses(models, "a") is None
    models.write("a", first)
    models.write("b", numbers(4)[:1])
    assert addresses(models, "a", "b") is None, "they are of different lengths"
    models.write("b", torch.stack([first, first], dim=1)[:, 0])
    assert addresses(models, "b") is None, "there is another number between two of them"
    models.write("b", third := numbers(5))
    assert addresses(models, "b") == [third.data_ptr()]
    assert addresses(models) is None
    models = MemoryModels(in_memory=0)
    models.write("a", first)
    assert addresses(models, "a") is None, "what lies in the file is read piece by piece"
    assert torch.equal(models.rows(["a"]).read(0, slice(0, LENGTH)), first)


def test_space_in_the_file_is_reused_only_when_nobody_needs_it() -> None:
    models = MemoryModels(in_memory=0)
    models.write("a", numbers(1))
    place = models.read("a").data_ptr()
    models.drop("a")
    models.write("b", numbers(2))
    assert models.read("b").data_ptr() == place
    kept = models.read("b")
    models.drop("b")
    models.write("c", numbers(3))
    assert models.read("c").data_ptr() != place
    assert torch.equal(kept, numbers(2)), "whoever holds a vector may go on reading it"


def test_released_memory_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "AWAKE", BYTES)
    monkeypatch.setattr(memory, "SEGMENT", 2 * BYTES)
    models = MemoryModels(in_memory=0)
    for k in range(7):
        models.write(f"t{k}", numbers(k))
        models.read(f"t{k}").mul_(2)
    for k in range(7):
        assert torch.equal(models.read(f"t{k}"), 2 * numbers(k))


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    models = MemoryModels(in_memory=0)
    models.write("a", numbers(1))
    assert os.listdir(tmp_path) == []
    assert torch.equal(models.read("a"), numbers(1))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ap.fedavg(batch=20), ap.async_fedavg(batch=20)], ids=["rounds", "stream"])
def test_a_run_does_not_depend_on_where_its_vectors_lie(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = []

    def small_store() -> MemoryModels:
        stores.append(MemoryModels(in_memory=3 * 4 * 65 * 10))  # three vectors of this network
        return stores[-1]

    def run() -> ap.Run:
        return ap.simulate(algorithm, small_islands(), model=lambda: nn.Linear(64, 10), ending=ap.Ending(commits=12))

    in_memory = run()
    monkeypatch.setattr(experiment, "MemoryModels", small_store)
    in_the_file = run()
    (store,) = stores
    assert any(filed(store, name) for name in store.names())
    assert in_memory.fingerprint() == in_the_file.fingerprint()

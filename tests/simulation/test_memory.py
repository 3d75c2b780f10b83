"""The store of a simulation, on both sides of the size above which vectors go to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from engine_cases import small_islands
from torch import nn

import archipel as ap
from archipel.simulation import simulate as experiment
from archipel.simulation import vectors as memory
from archipel.simulation.vectors import MemoryModels

LENGTH = 3000
BYTES = 4 * LENGTH


def numbers(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def filed(models: MemoryModels, name: str) -> bool:
    """A tensor over a file's pages cannot be resized, because torch has not allocated it."""
    return not models.read(name).untyped_storage().resizable()


def test_vectors_above_the_stated_size_go_to_the_file_and_read_the_same():
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


def test_a_vector_in_the_file_can_be_changed_in_place():
    models = MemoryModels(in_memory=0)
    mine = numbers(1)
    models.write("a", mine)
    models.read("a").add_(1)
    assert torch.equal(models.read("a"), numbers(1) + 1)
    assert torch.equal(mine, numbers(1)), "the file has a copy"


def test_dropping_makes_room_in_memory():
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


def test_places_are_those_of_float32_vectors_in_memory_of_this_length():
    models = MemoryModels(in_memory=5 * BYTES)
    first, second = numbers(1), numbers(2)
    models.write("a", first)
    models.write("b", second)
    found = models.places(["b", "a", "b"], LENGTH)
    assert found is not None
    assert found.tolist() == [second.data_ptr(), first.data_ptr(), second.data_ptr()]
    assert models.places(["a"], LENGTH - 1) is None, "it would be read beyond its end, or not to it"
    assert models.places(["a", "a stranger"], LENGTH) is None
    models.write("a", numbers(3, torch.float64))
    assert models.places(["a"], LENGTH) is None
    models.write("b", numbers(4)[:1])  # what stood there was of another length
    assert models.places(["b"], LENGTH) is None
    models.write("b", torch.stack([first, first], dim=1)[:, 0])
    assert models.places(["b"], LENGTH) is None, "there is another number between two of them"
    models.write("b", third := numbers(5))
    assert models.places(["b"], LENGTH) == [third.data_ptr()]
    models.drop("b")
    assert models.places(["b"], LENGTH) is None
    models = MemoryModels(in_memory=0)
    models.write("a", first)
    assert models.places(["a"], LENGTH) is None, "what lies in the file is read piece by piece"


def test_room_in_the_file_is_used_again_and_never_under_somebodys_hands():
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


def test_letting_memory_go_loses_nothing(monkeypatch):
    monkeypatch.setattr(memory, "AWAKE", BYTES)
    monkeypatch.setattr(memory, "SEGMENT", 2 * BYTES)
    models = MemoryModels(in_memory=0)
    for k in range(7):
        models.write(f"t{k}", numbers(k))
        models.read(f"t{k}").mul_(2)
    for k in range(7):
        assert torch.equal(models.read(f"t{k}"), 2 * numbers(k))


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    models = MemoryModels(in_memory=0)
    models.write("a", numbers(1))
    assert os.listdir(tmp_path) == []
    assert torch.equal(models.read("a"), numbers(1))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ap.fedavg(batch=20), ap.async_fedavg(batch=20)], ids=["rounds", "stream"])
def test_a_run_does_not_depend_on_where_its_vectors_lie(algorithm, monkeypatch):
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

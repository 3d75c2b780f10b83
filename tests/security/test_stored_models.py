"""Files that are named by a hash are compared with it when they are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from archipel.core.layout import Layout
from archipel.federation.storage.blobs import Blobs
from archipel.federation.storage.stored_models import Delivery, StoredModels, as_bytes

LAYOUT = Layout.of(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2)))


def change_one_number(path: Path, place: int) -> None:
    """Flip a bit of a number in a file; its size and name stay."""
    with open(path, "r+b") as file:
        file.seek(4 * place)
        byte = file.read(1)
        file.seek(4 * place)
        file.write(bytes([byte[0] ^ 1]))


def saved(folder: Path, fill: Callable[[StoredModels], None]) -> dict[str, Any]:
    models = StoredModels(LAYOUT, Blobs(folder))
    fill(models)
    return models.save()


def loaded(folder: Path, saved: dict[str, Any]) -> StoredModels:
    """As another process finds them."""
    models = StoredModels(LAYOUT, Blobs(folder))
    models.load(saved)
    return models


def test_a_part_that_was_changed_on_disk_is_refused(tmp_path: Path) -> None:
    total = torch.arange(LAYOUT.size, dtype=torch.float64)
    told = saved(tmp_path, lambda models: models.write("merge/sum", total.clone()))
    assert torch.equal(loaded(tmp_path, told).read("merge/sum"), total)
    (name,) = Blobs(tmp_path).digests()
    change_one_number(tmp_path / name, 5)
    with pytest.raises(OSError, match=rf"{name} was damaged or changed: .* Restore the state's folder"):
        loaded(tmp_path, told)


@pytest.mark.parametrize("piece", [None, slice(60, 62)], ids=["whole", "piece"])
def test_a_version_that_was_changed_on_disk_is_refused(piece: slice | None, tmp_path: Path) -> None:
    version = torch.randn(LAYOUT.size)
    told = saved(tmp_path, lambda models: models.write("v3", version))
    assert torch.equal(loaded(tmp_path, told).read("v3", piece), version if piece is None else version[piece])
    (name,) = Blobs(tmp_path).digests()
    change_one_number(tmp_path / name, LAYOUT.size - 1)
    models = loaded(tmp_path, told)
    for _ in range(2):  # what was refused once is not taken the second time
        with pytest.raises(OSError, match=f"{name} was damaged or changed"):
            models.read("v3", piece)


def test_layers_that_were_not_changed_are_still_read(tmp_path: Path) -> None:
    version = torch.randn(LAYOUT.size)
    told = saved(tmp_path, lambda models: models.write("v3", version))
    (name,) = Blobs(tmp_path).digests()
    change_one_number(tmp_path / name, LAYOUT.size - 1)
    first = slice(LAYOUT.layers[0].start, LAYOUT.layers[0].stop)
    assert torch.equal(loaded(tmp_path, told).read("v3", first), version[first])


def test_an_update_that_was_changed_on_disk_is_refused(tmp_path: Path) -> None:
    """As when the events behind a snapshot are told again: updates lie behind the header of their file."""
    version, update = torch.zeros(LAYOUT.size), torch.randn(LAYOUT.size)
    header = b"a header of 24 bytes ..."

    def fill(models: StoredModels) -> None:
        models.write("v0", version)
        models.write("t", update)

    telling = StoredModels(LAYOUT, Blobs(tmp_path))
    fill(telling)
    blob = telling.blobs.put([header, as_bytes(update)])
    delivery = Delivery(
        blob, len(header), tuple(range(len(LAYOUT.layers))), dict(zip(LAYOUT.names, telling.digests("t"), strict=True))
    )
    again = StoredModels(LAYOUT, Blobs(tmp_path))
    again.write("v0", version)
    again.adopt("t0", "v0", delivery)
    assert torch.equal(again.read("t0"), update)
    change_one_number(tmp_path / blob, len(header) // 4 + 3)
    again = StoredModels(LAYOUT, Blobs(tmp_path))
    again.write("v0", version)
    again.adopt("t0", "v0", delivery)
    with pytest.raises(OSError, match=re.escape(blob)):
        again.read("t0")


def test_storing_again_repairs_a_changed_file(tmp_path: Path) -> None:
    body = os.urandom(4096)
    name = Blobs(tmp_path).put([body])
    change_one_number(tmp_path / name, 100)
    assert Blobs(tmp_path).put([body]) == name
    assert (tmp_path / name).read_bytes() == body

"""Saved values load as they were, and what cannot be saved is refused on saving."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archipel.core import members, records, state, types
from archipel.core.types import Cycle, Metrics, Model, Plan, Scored, Trained
from archipel.storage.dataclass_codec import Codec

CODEC = Codec(types, records, members, state)


def through(tmp_path: Path, value: Any) -> Any:
    path = tmp_path / "saved.safetensors"
    CODEC.save(path, value)
    return CODEC.load(path)


def test_plain_data_come_back_with_their_kinds(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": (1, (2, [3])), 7: {"c": ()}, "d": [], "e": -0.0}
    back = through(tmp_path, value)
    assert back == value
    assert isinstance(back["b"], tuple)
    assert isinstance(back["b"][1][1], list)
    assert math.copysign(1, back["e"]) == -1


def test_floats_come_back_to_the_bit_and_so_do_nan_and_infinity(tmp_path: Path) -> None:
    value = [0.1 + 0.2, 1e-320, math.inf, -math.inf, math.nan]
    back = through(tmp_path, value)
    assert back[:4] == value[:4]
    assert math.isnan(back[4])


def test_dataclasses_tensors_and_arrays(tmp_path: Path) -> None:
    scored = Scored(3, 1.5, np.array([[1, 0], [2, 0]]))
    event = Trained(4, "t4", ("fc",), 9, Metrics(1.0, (0.5, 0.4), scored))
    plan = Plan(cycle=Cycle(1.0, 2), options={"weight_decay": 1e-4}, uploads=("fc",))
    tensor = torch.randn(5, dtype=torch.float64)
    back = through(tmp_path, {"event": event, "plan": plan, "tensor": tensor, "model": Model("v0", ("v0",))})
    assert back["plan"] == plan
    assert back["model"] == Model("v0", ("v0",))
    assert torch.equal(back["tensor"], tensor)
    assert back["tensor"].dtype == torch.float64
    assert back["event"].metrics.losses == (0.5, 0.4)
    assert scored.confusion is not None
    assert np.array_equal(back["event"].metrics.validation.confusion, scored.confusion)


def test_two_views_of_one_tensor_are_both_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    back = through(tmp_path, [whole[:3], whole[2:]])
    assert back[0].tolist() == [0, 1, 2]
    assert back[1].tolist() == [2, 3, 4, 5]


def test_what_cannot_be_saved_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"value\['memory'\]\[0\].*set.*plain|dicts, lists") as caught:
        CODEC.save(tmp_path / "x.safetensors", {"memory": [{1, 2}]})
    assert "value['memory'][0]" in str(caught.value)
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"nonsense" * 100])
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "saved.safetensors"
    CODEC.save(path, {"a": torch.ones(100)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="not a checkpoint of Archipel, or is damaged"):
        CODEC.load(path)


def test_a_cut_off_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "saved.safetensors"
    CODEC.save(path, "old")

    def cut(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("archipel.storage.dataclass_codec.os.replace", cut)
    with pytest.raises(OSError, match="disk full"):
        CODEC.save(path, "new")
    assert CODEC.load(path) == "old"


def test_a_text_holds_repeated_floats_and_sparse_counts_once() -> None:
    weights = tuple((0.1 * learner,) * 62 for learner in range(1, 5001))
    text = CODEC.text(weights)
    assert CODEC.value(text) == weights
    assert len(text) < 62 * len('["repeated",[0.30000000000000004,62]],') + 5000 * 40
    confusion = np.zeros((1000, 1000), np.int64)
    confusion[::10, 7] = np.arange(100) + 1
    text = CODEC.text(confusion)
    assert len(text) < 2000
    back = CODEC.value(text)
    assert back.dtype == confusion.dtype
    assert np.array_equal(back, confusion)


@pytest.mark.parametrize(
    "value",
    [
        (0.0, -0.0, 0.0, 0.0),
        (1.0, 1, True, 1.0),
        (0.5, 0.5, 0.5, 0.25),
        (2.0,) * 3,
        (math.inf,) * 4,
        [1.5] * 9,
    ],
)
def test_what_only_looks_repeated_comes_back_as_it_was(value: Any) -> None:
    assert repr(CODEC.value(CODEC.text(value))) == repr(value)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
def test_arrays_come_back_to_the_bit(dtype: Any, share: float) -> None:
    generator = np.random.default_rng(3)
    array = np.where(generator.random((3, 4, 25)) < share, generator.integers(1, 200, (3, 4, 25)), 0).astype(dtype)
    if dtype in (np.float32, np.float64):
        array[0, 0, 0] = -0.0
    back = CODEC.value(CODEC.text(array))
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()
    assert back.shape == array.shape


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('["bytes",[",i8",[1],"AAAAAAAAAAA="]]', "',i8' is not a type of numbers"),
        ('["bytes",["O",[1],"AAAAAAAAAAA="]]', "'O' is not a type of numbers"),
        ('["sparse",["<i8",[99999999,99999999],"",""]]', "has 9999999800000001 items; at most 268435456"),
        ('["repeated",[0.5,99999999999]]', "has 99999999999 items; at most 16777216"),
        ('["sparse",["<i8",[2],"BQAAAA==","AAAAAAAAAAA="]]', "index 5 is out of bounds"),
    ],
)
def test_a_forged_array_is_refused_and_takes_no_memory(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Codec().value(text)

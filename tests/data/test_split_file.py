"""A split in a file: the same islands to the bit, or one clear error."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import archipel.data
from archipel.data import Island, Islands, Source, digits, from_arrays, load_split, split_file

DIGITS = digits()
ISLANDS = DIGITS.split(7, "powerlaw", 3)


def same(one: Islands, other: Islands) -> bool:
    pairs = [(one.test, other.test), (one.stimuli, other.stimuli), (one.x, other.x), (one.y, other.y)]
    for mine, yours in zip(one.learners, other.learners, strict=True):
        pairs += [(mine.train, yours.train), (mine.test, yours.test)]
    names = [[(learner.name, learner.role) for learner in islands.learners] for islands in (one, other)]
    return (
        all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
        and names[0] == names[1]
        and (one.classes, one.name) == (other.classes, other.name)
    )


@pytest.mark.parametrize(
    "islands",
    [
        ISLANDS,
        ISLANDS.with_own_test(0.3),
        ISLANDS.folds(rotations=1)[2].islands,
        ISLANDS.pooled(),
        DIGITS.split(3, stimuli=0),
    ],
    ids=["split", "own test", "fold", "pooled", "no stimuli"],
)
def test_a_split_comes_back(islands: Islands, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "digits.split"
    islands.save_split(path)
    back = load_split(DIGITS, path)
    assert same(back, islands)
    assert back.x is DIGITS.x
    assert os.listdir(path.parent) == ["digits.split"]
    assert path.stat().st_size < 12_000


@given(
    examples=st.integers(1, 40),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.bfloat16]),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_islands_come_back(tmp_path: Path, examples: int, seed: int, dtype: torch.dtype) -> None:
    random = np.random.default_rng(seed)
    # in any order: a part need not ascend
    order = torch.from_numpy(random.permutation(examples))
    cuts = [1, *sorted(random.integers(1, examples + 1, 3).tolist())]
    first, second, test, stimuli = (order[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False))
    learners = [Island("Île d'Ouessant ☂", first, test)]
    if len(second):
        learners.append(Island("", second, test[:0], "validation"))
    x = torch.from_numpy(random.normal(0, 9, (examples, 2))).to(dtype)
    source = Source(x, x.float().sum(1), None, "any")
    islands = Islands(source.x, source.y, tuple(learners), test, stimuli, None, "any")
    islands.save_split(tmp_path / "any")
    assert same(load_split(source, str(tmp_path / "any")), islands)


@pytest.mark.slow
def test_a_new_process_reads_and_writes_the_same(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    source = from_arrays(torch.arange(400.0).reshape(200, 2), torch.arange(200) % 5)
    islands = source.split(6, "powerlaw", 2, seed=3)
    islands.save_split(here)
    program = (
        "import sys, torch; from archipel.data import from_arrays, load_split\n"
        "source = from_arrays(torch.arange(400.0).reshape(200, 2), torch.arange(200) % 5)\n"
        "load_split(source, sys.argv[1]).save_split(sys.argv[2])"
    )
    root = str(Path(archipel.data.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", program, str(here), str(there)], env=env, check=True)
    assert here.read_bytes() == there.read_bytes()
    assert same(load_split(source, there), islands)


def test_the_header_can_be_read_by_anybody(tmp_path: Path) -> None:
    ISLANDS.save_split(tmp_path / "split")
    with safe_open(tmp_path / "split", framework="np") as file:
        header = json.loads(file.metadata()["archipel split"])
    assert header["format"] == 1
    contents = header["contents"]
    assert (contents["source"], contents["examples"], contents["classes"]) == ("digits", 1797, 10)
    assert contents["learners"][6] == ["06", "train", len(ISLANDS.learners[6].train), len(ISLANDS.learners[6].test)]
    x, y = (f"{t.dtype} {tuple(t.shape)};".encode() + t.numpy().tobytes() for t in (DIGITS.x, DIGITS.y))
    assert contents["checksum"] == hashlib.sha256(x + y).hexdigest()


def one_bit(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed[-1] += 1
    return changed


@pytest.mark.parametrize(
    "other",
    [
        Source(one_bit(DIGITS.x), DIGITS.y, 10, "other"),
        Source(DIGITS.x, DIGITS.y.flip(0), 10, "other"),
        Source(DIGITS.x.double(), DIGITS.y, 10, "other"),
        Source(DIGITS.x.reshape(-1, 8, 8), DIGITS.y, 10, "other"),
        Source(DIGITS.x[:-1], DIGITS.y[:-1], 10, "other"),
    ],
    ids=["x", "y", "dtype", "shape", "length"],
)
def test_another_source_is_refused_with_both_checksums(other: Source, tmp_path: Path) -> None:
    path = tmp_path / "split"
    ISLANDS.save_split(path)
    with pytest.raises(ValueError, match="is a split of another source") as error:
        load_split(other, path)
    for source in (DIGITS, other):
        told = f"{source.name!r}, {len(source.x)} examples, checksum {split_file.checksum(source.x, source.y)}"
        assert told in str(error.value)


def test_a_name_does_not_matter_but_the_data_do(tmp_path: Path) -> None:
    ISLANDS.save_split(tmp_path / "split")
    copied = Source(DIGITS.x.t().contiguous().t(), DIGITS.y.clone(), 10, "another name")
    assert same(load_split(copied, tmp_path / "split"), ISLANDS)


def test_standardised_islands_are_of_another_x(tmp_path: Path) -> None:
    new = ISLANDS.standardised("global")
    new.save_split(tmp_path / "split")
    with pytest.raises(ValueError, match="save it before standardising"):
        load_split(DIGITS, tmp_path / "split")
    assert same(load_split(replace(DIGITS, x=new.x), tmp_path / "split"), new)


@pytest.mark.slow
def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "split"
    ISLANDS.save_split(path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for place in [*range(0, 1200, 7), *random.integers(1200, len(whole), 60).tolist(), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="split"):
            load_split(DIGITS, path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else", None])
def test_another_or_a_truncated_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "split"
    ISLANDS.save_split(path)
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(ValueError, match=r"split is not a split file of Archipel, or it is damaged: .* Save or copy"):
        load_split(DIGITS, path)


def test_tensors_of_something_else_are_refused(tmp_path: Path) -> None:
    save_file({"weights": torch.zeros(2)}, tmp_path / "model")
    with pytest.raises(ValueError, match="model is not a split file of Archipel"):
        load_split(DIGITS, tmp_path / "model")


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(split_file, "FORMAT", 2)
        ISLANDS.save_split(tmp_path / "split")
    with pytest.raises(ValueError, match=r"saved by a newer Archipel: its format is 2, this one reads up to 1. Update"):
        load_split(DIGITS, tmp_path / "split")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_split(DIGITS, tmp_path / "nowhere")


def test_saving_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "split"
    DIGITS.split(3).save_split(path)
    ISLANDS.save_split(path)
    assert same(load_split(DIGITS, path), ISLANDS)

"""LEAF's JSON: FEMNIST with writers, Shakespeare with roles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.data import fetch, lazy
from archipel.data.sources.shakespeare import ALPHABET
from tests.real_files import cache

WRITERS = {"f0001_01": 5, "f0002_07": 3, "f0003_41": 4}


def image(writer: int, number: int) -> list[float]:
    return [round(((writer * 31 + number * 7 + place) % 256) / 255, 6) for place in range(784)]


def leaf(users: dict[str, dict[str, list[Any]]]) -> str:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(data["y"]) for data in users.values()],
            "user_data": users,
        }
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def writers(numbers: slice) -> dict[str, dict[str, list[Any]]]:
    return {
        name: {
            "x": [image(place, number) for number in range(count)[numbers]],
            "y": [(place * 20 + number) % 62 for number in range(count)[numbers]],
        }
        for place, (name, count) in enumerate(WRITERS.items())
    }


@pytest.mark.parametrize("inside", ["", "data"])
def test_femnist_with_a_test_part(alone: Path, inside: str) -> None:
    home = alone / "femnist" / inside
    known, held_out = writers(slice(0, -1)), writers(slice(-1, None))
    for number, name in enumerate(WRITERS):
        write(home / "train" / f"all_data_{number}_niid_0_keep_0_train_9.json", leaf({name: known[name]}))
    write(home / "test" / "all_data_0_niid_0_keep_0_test_9.json", leaf(held_out))
    source = ap.data.femnist()
    assert (source.x.shape, source.x.dtype) == ((12, 1, 28, 28), torch.float32)
    assert (source.classes, source.name, source.site_names) == (62, "femnist", tuple(WRITERS))
    assert source.sites is not None
    assert source.sites.tolist() == [0] * 4 + [1] * 2 + [2] * 3 + [0, 1, 2]
    assert source.y.tolist() == [0, 1, 2, 3, 20, 21, 40, 41, 42, 4, 22, 43]
    assert source.test is not None
    assert source.test.tolist() == [9, 10, 11]
    assert torch.allclose(source.x[5].flatten(), torch.tensor(image(1, 1)))


def test_femnist_before_it_is_split(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(alone / "femnist" / "data" / "all_data" / "all_data_0.json", leaf(writers(slice(None))))
    source = ap.data.femnist()
    assert source.test is None
    assert source.sites is not None
    assert torch.bincount(source.sites).tolist() == list(WRITERS.values())
    monkeypatch.setattr(lazy, "LARGE", 10_000)
    for _ in range(2):
        mapped = ap.data.femnist()
        assert torch.equal(mapped.x, source.x)
        assert mapped.site_names == source.site_names
        assert mapped.sites is not None
        assert torch.equal(mapped.sites, source.sites)
        assert mapped.test is None
    assert len(list(fetch.cache().glob("decoded/femnist-*/x.npy"))) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (leaf(writers(slice(None)))[:-50], r"all_data_0.json is truncated or damaged: .* Make it again with LEAF"),
        ("[1, 2]", r"all_data_0.json is not LEAF's JSON: it lacks 'users' or 'user_data'"),
        (leaf({"a": {"x": [[0.5] * 784], "y": [1, 2]}}), r"user 'a' should have as many x as y, got 1 and 2"),
        (leaf({"a": {"x": [[0.5] * 783], "y": [1]}}), r"the images of writer 'a' should be lists of 784 numbers"),
        (leaf({"a": {"x": [[0.5] * 784, [0.5]], "y": [1, 2]}}), r"the images of writer 'a' should be lists of 784"),
        (leaf({"a": {"x": [[0.5] * 784] * 2, "y": [1, 62]}}), r"label 62 is outside the 62 classes"),
        (leaf({"a": {"x": [[float("nan")] * 784], "y": [1]}}), r"writer 'a' has images that are not 784 numbers each"),
    ],
)
def test_damaged_femnist(alone: Path, text: str, error: str) -> None:
    write(alone / "femnist" / "all_data" / "all_data_0.json", text)
    with pytest.raises(ValueError, match=error):
        ap.data.femnist()
    assert cache() == ["decoded"]


def test_without_femnist_one_error_says_how_it_is_made(alone: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)femnist: its files .*preprocess.sh.*Put the files into"):
        ap.data.femnist()


def role(text: str) -> dict[str, list[Any]]:
    """LEAF's windows: every line after 80 spaces."""
    padded = " " * 80 + text
    return {
        "x": [padded[at : at + 80] for at in range(len(text))],
        "y": [padded[at + 80] for at in range(len(text))],
    }


def test_shakespeare_from_leaf(alone: Path) -> None:
    home = alone / "shakespeare" / "data"
    words = "To be, or not to be: that is the question\n"
    write(home / "train" / "all_data_train_9.json", leaf({"HAMLET": role(words), "GHOST": role("Mark me.\n")}))
    write(home / "test" / "all_data_test_9.json", leaf({"HAMLET": role("Words, words, w~rds.\n")}))
    source = ap.data.shakespeare("leaf")
    assert (source.x.dtype, source.classes, source.site_names) == (torch.int64, 80, ("HAMLET", "GHOST"))
    assert source.x.shape == (len(words) + 9 + 21, 80)
    assert "".join(ALPHABET[number] for number in source.y[: len(words)].tolist()) == words
    assert "".join(ALPHABET[number] for number in source.x[20].tolist()) == " " * 60 + words[:20]
    assert source.test is not None
    assert source.test.tolist() == list(range(len(words) + 9, len(source.x)))
    # what is not among the 80 characters is a space
    assert "".join(ALPHABET[number] for number in source.y[source.test].tolist()) == "Words, words, w rds.\n"
    large = ap.data.shakespeare("leaf", at_least=10)
    assert (large.site_names, len(large.x)) == (("HAMLET",), len(words) + 21)


def test_damaged_shakespeare_from_leaf(alone: Path) -> None:
    write(alone / "shakespeare" / "all_data" / "all_data.json", leaf({"A": {"x": ["abc", "abcd"], "y": ["d", "e"]}}))
    with pytest.raises(ValueError, match=r"the examples of 'A' should be 80 characters and the one after, got 3 and 1"):
        ap.data.shakespeare("leaf")
    with pytest.raises(ValueError, match=r"step=2, but LEAF's files hold examples, not text"):
        ap.data.shakespeare("leaf", step=2)
    with pytest.raises(ValueError, match=r"no role has 5000 characters"):
        ap.data.shakespeare("leaf", at_least=5000)
    assert cache() == ["decoded"]


def test_leafs_alphabet() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert np.array_equal(np.sort([ord(character) for character in ALPHABET]), [ord(c) for c in ALPHABET])

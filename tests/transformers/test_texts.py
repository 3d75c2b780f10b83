"""Texts as whole numbers: ids, masks, targets and padding by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.core.types import IGNORED
from archipel.data.tokenizers import ByteTokenizer
from tests.transformers.small_transformers import TEXTS, spoken

A, B, C, D = (3 + ord(letter) for letter in "abcd")
I = IGNORED  # noqa: E741


def test_the_target_of_a_token_is_the_next_one() -> None:
    source = ap.data.from_texts(["abc", "d", "abcda"], length=4)
    # "d" has nothing to predict, and "abcda" makes one example of four and one of a single token, which is left out
    assert source.x.dtype == source.y.dtype == torch.int64
    assert source.x.tolist() == [[[A, B, C, 0], [1, 1, 1, 0]], [[A, B, C, D], [1, 1, 1, 1]]]
    assert source.y.tolist() == [[B, C, I, I], [B, C, D, I]]
    assert source.classes is None
    assert source.split(learners=1, test="none").per_token


def test_texts_keep_their_sites_when_they_are_cut() -> None:
    source = ap.data.from_texts(["abcdab", "ab"], length=3, sites=["x", "y"])
    assert source.sites is not None
    assert [source.site_names[site] for site in source.sites.tolist()] == ["x", "x", "y"]


def test_labels_of_texts_are_classes() -> None:
    source = ap.data.from_texts(["ab", "abcd"], task="sequence-classification", labels=["no", "yes"], length=3)
    assert source.x[:, 0].tolist() == [[2, A, B], [2, A, B]]
    assert (source.y.tolist(), source.classes) == ([0, 1], 2)
    more = ap.data.from_texts(["ab"], task="sequence-classification", labels=["yes"], classes=["maybe", "no", "yes"])
    assert (more.y.tolist(), more.classes) == ([2], 3)


def test_the_first_token_of_a_word_has_its_label() -> None:
    source = ap.data.from_texts([["ab", "c"]], task="token-classification", labels=[["x", "y"]])
    assert source.x[0, 0].tolist() == [A, B, 3 + ord(" "), C]
    assert source.y.tolist() == [[0, I, 1, I]]


def test_masked_tokens_are_the_targets() -> None:
    source, plain = spoken("masked-lm", sites=None), spoken(sites=None)
    ids, masks, whole = source.x[:, 0], source.x[:, 1], plain.x[:, 0]
    chosen = source.y != IGNORED
    assert bool((chosen.sum(dim=1) >= 1).all())
    assert bool((source.y[chosen] == whole[chosen]).all())
    assert bool((ids[~chosen] == whole[~chosen]).all())
    assert not bool((chosen & (masks == 0)).any())
    assert 0.1 < float(chosen.sum() / masks.sum()) < 0.3
    assert 0.6 < float((ids[chosen] == ByteTokenizer.mask_token_id).float().mean()) < 0.95
    assert torch.equal(source.x, spoken("masked-lm", sites=None).x)
    assert not torch.equal(source.x, spoken("masked-lm", sites=None, seed=1).x)


def test_bytes_decode_to_what_was_encoded() -> None:
    assert ByteTokenizer().decode(ByteTokenizer()("Größe")["input_ids"]) == "Größe"


def test_a_table_of_texts(tmp_path: Path) -> None:
    (tmp_path / "said.csv").write_text('text,who\n"to be, or not",hamlet\nall the world,jaques\n')
    source = ap.data.from_text_csv(tmp_path / "said.csv", site="who", length=8)
    same = ap.data.from_texts(["to be, or not", "all the world"], sites=["hamlet", "jaques"], length=8)
    assert torch.equal(source.x, same.x)
    assert source.site_names == ("hamlet", "jaques")
    with pytest.raises(ValueError, match=r"from_text_csv: .*said\.csv has no column 'role'; it has text, who\.$"):
        ap.data.from_text_csv(tmp_path / "said.csv", site="role")


class Rows(dict[str, list[object]]):
    """As a data set of Hugging Face is read."""

    @property
    def column_names(self) -> list[str]:
        return list(self)

    def __len__(self) -> int:
        return len(self["text"])


def test_a_data_set_of_hugging_face_with_a_tokenizer() -> None:
    rows = Rows(text=["ab", "cd"], label=[1, 0], ward=["x", "y"])
    source = ap.data.from_hf(rows, tokenizer="bytes", site="ward", length=4)
    assert source.y.tolist() == [1, 0]
    assert source.x[:, 0].tolist() == [[2, A, B], [2, C, D]]
    assert ap.data.from_hf(rows, tokenizer="bytes", task="causal-lm").y.tolist() == [[B, I], [D, I]]
    with pytest.raises(ValueError, match=r"from_hf: there is no column 'body' for texts of causal-lm; columns: text"):
        ap.data.from_hf(rows, tokenizer="bytes", task="causal-lm", features=["body"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"task": "translation"}, r"from_texts: task should be one of .*causal-lm.*got 'translation'"),
        ({"task": "sequence-classification"}, "sequence-classification needs labels, and there are none; give labels"),
        ({"labels": ["x"] * 24}, "causal-lm has no labels, and some are given; leave them out"),
        ({"task": "sequence-classification", "labels": ["x"]}, "there are 24 texts and 1 labels"),
        (
            {"task": "token-classification", "labels": ["x"] * 24},
            "text 0 should be words with a label each, got 18 and 1",
        ),
        (
            {"task": "sequence-classification", "labels": ["x"] * 24, "classes": ["y"]},
            "the label 'x' is not among the classes y",
        ),
        ({"length": 1}, "length should be at least 2, got 1"),
        ({"tokenizer": "nowhere"}, "tokenizer: there is no folder nowhere"),
    ],
)
def test_texts_that_do_not_fit_their_task(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ap.data.from_texts(TEXTS, **settings)  # type: ignore[arg-type]


def test_texts_of_one_token_are_refused() -> None:
    with pytest.raises(ValueError, match="no text has the two tokens that causal-lm needs"):
        ap.data.from_texts(["a", "b"])
    with pytest.raises(ValueError, match="there are no texts"):
        ap.data.from_texts([])


class Words:
    """A tokenizer without tokens of its own: a text of spaces has none."""

    pad_token_id, mask_token_id = 0, None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [1 + len(word) for word in text.split()]}


@pytest.mark.parametrize(
    ("texts", "settings", "told"),
    [
        ("one text", {}, r"texts should be several strings, got one: 'one text'. Give \[text\]"),
        (["a text", None], {}, "text 1 should be a string, got None"),
        (["a b", " "], {"task": "sequence-classification", "labels": [0, 1]}, "text 1, ' ', has no tokens"),
        ([["a"], [" "]], {"task": "token-classification", "labels": [[0], [1]]}, r"text 1, \[' '\], has no tokens"),
        (["a", "b"], {"task": "sequence-classification", "labels": [1, "b"]}, "labels of several types have no order"),
        (
            ["a", "b"],
            {"task": "sequence-classification", "labels": ["x", "y"], "classes": ["x", "y", "x"]},
            "classes should differ, got 'x', 'y', 'x'",
        ),
    ],
)
def test_texts_that_cannot_be_learnt_from(texts: list[object], settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ap.data.from_texts(texts, Words(), **settings)  # type: ignore[arg-type]


def test_a_cell_may_hold_a_play(tmp_path: Path) -> None:
    (tmp_path / "play.csv").write_text("text\n" + "to be " * 30_000 + "\n")
    assert len(ap.data.from_text_csv(tmp_path / "play.csv", length=64).x) == -(-6 * 30_000 // 64)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no column 'text'; it has no header"),
        (b"text,label\nto be,x\nor not\n", "line 3: a row has more or fewer cells than the 2 of the header"),
        (b"text,label\nto be, or not,x\n", "line 2: a row has more or fewer cells than the 2 of the header"),
        (b"text,label\n\xff\xfe,x\n", "is no table of texts in UTF-8"),
    ],
)
def test_invalid_tables(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        ap.data.from_text_csv(tmp_path / "texts.csv", task="sequence-classification", label="label")


def test_padding_is_no_number_of_a_text() -> None:
    x = spoken().x
    lengths = x[:, 1].sum(dim=1)
    assert np.unique(lengths.numpy()).size > 1
    for ids, length in zip(x[:, 0], lengths.tolist(), strict=True):
        assert bool((ids[length:] == 0).all())
        assert bool((ids[:length] >= 3).all())

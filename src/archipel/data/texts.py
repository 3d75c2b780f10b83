"""Sources of texts: token ids and attention masks as whole numbers, and targets for a text or for every token.

x is [example, input, position] of int64, the inputs being token ids and attention mask; texts end in padding up to the
longest, which networks of `archipel.models.from_hf` cut off batch by batch. y is [example] for the classification of
texts, else [example, position]: the target at a position belongs to the output there, so for causal language modelling
it is the next token. Padding has the target IGNORED.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import at_least, one_of, require
from archipel.core.randomness import generator
from archipel.core.types import IGNORED, TextTask
from archipel.data.in_memory import Sites, site_codes
from archipel.data.source import Source
from archipel.data.tokenizers import Tokenizer, tokenizer_of

TASKS: tuple[TextTask, ...] = ("causal-lm", "masked-lm", "sequence-classification", "token-classification")

LONGEST = 1 << 30
"""Letters of a cell of a table; the csv module has a limit of 131,072 by itself, which a play exceeds."""
MASKED = 0.15
"""Share of the tokens that are to be predicted in masked language modelling; of these,"""
HIDDEN, REPLACED = 0.8, 0.1
"""the shares that are replaced by the mask, and by another token (BERT)."""


def from_texts(
    texts: Sequence[Any],
    tokenizer: str | Path | Tokenizer = "bytes",
    task: TextTask = "causal-lm",
    labels: Sequence[Any] | None = None,
    sites: Sites | None = None,
    length: int = 128,
    classes: Sequence[Any] | None = None,
    seed: int = 0,
    name: str = "texts",
) -> Source:
    """Make a source from texts.

    texts: strings; for token-classification a sequence of words each.
    tokenizer: a folder that `save_pretrained` made, a tokenizer of transformers, or "bytes": every byte is a token.
    task: causal-lm or masked-lm, where a long text makes several examples; sequence-classification, where it is cut;
    or token-classification.
    labels: of the texts; for token-classification one for each word.
    sites: label of every text's site, for `natural`; None: there are no sites.
    length: tokens of an example at most.
    classes: all labels, in the order of their numbers; None: those that there are.
    seed: of the tokens that are masked.
    name: of the source.
    """
    one_of("from_texts", "task", task, TASKS)
    at_least(2, "from_texts", length=length)
    _check_texts(task, texts)
    _check_labels(task, texts, labels)
    encoder = tokenizer_of(tokenizer)
    known = _classes(task, labels, classes)
    rows: list[tuple[int, list[int], list[int]]] = []
    for number, text in enumerate(texts):
        label = None if labels is None else labels[number]
        made = list(_MAKE[task](encoder, text, label, known, length))
        require(
            not task.endswith("classification") or len(made[0][0]) > 0,
            f"from_texts: text {number}, {text!r}, has no tokens, so there is nothing to classify. Leave it out.",
        )
        rows += [(number, *row) for row in made]
    require(
        bool(rows),
        f"from_texts: no text has the two tokens that {task} needs. Give longer texts, or another tokenizer.",
    )
    codes, names = site_codes("from_texts", sites, len(texts))
    owner = torch.tensor([number for number, _, _ in rows])
    x = _padded([ids for _, ids, _ in rows], encoder.pad_token_id or 0)
    width = x.shape[2]
    targets = [row for _, _, row in rows]
    if task == "sequence-classification":
        y, count = torch.tensor(targets)[:, 0], len(known)
    else:
        y, count = torch.tensor([row + [IGNORED] * (width - len(row)) for row in targets]), None
    if task == "masked-lm":
        x, y = _masked(x, encoder, seed)
    return Source(x, y, count, name, sites=None if codes is None else codes[owner], site_names=names)


def from_text_csv(
    path: str | Path,
    tokenizer: str = "bytes",
    task: TextTask = "causal-lm",
    text: str = "text",
    label: str | None = None,
    site: str | None = None,
    length: int = 128,
    classes: Sequence[str] | None = None,
    seed: int = 0,
) -> Source:
    """Make a source from a CSV file with a header and a column of texts.

    path: of the file.
    tokenizer: a folder that `save_pretrained` made, or "bytes": every byte is a token.
    task: causal-lm, masked-lm or sequence-classification.
    text: column of the texts.
    label: column of the labels, for sequence-classification.
    site: column that names the site; None: there are no sites.
    length: tokens of an example at most; longer texts make several examples, or are cut for sequence-classification.
    classes: all labels, in the order of their numbers; None: those in the file.
    seed: of the tokens that are masked.
    """
    path = Path(path)
    require(path.is_file(), f"from_text_csv: there is no file {path}. Give the path of a CSV file with a header.")
    one_of("from_text_csv", "task", task, TASKS[:3])
    wanted = [column for column in (text, label, site) if column is not None]
    rows = _rows(path, wanted)
    columns = {column: [row[column] for row in rows] for column in wanted}
    return from_texts(
        columns[text],
        tokenizer,
        task,
        columns[label] if label is not None else None,
        columns[site] if site is not None else None,
        length,
        classes,
        seed,
        path.stem,
    )


def _rows(path: Path, wanted: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table that has these columns."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            found = reader.fieldnames or ()
            lacking = [column for column in wanted if column not in found]
            require(
                not lacking,
                f"from_text_csv: {path} has no column {lacking[0] if lacking else ''!r}; it has "
                f"{', '.join(found) or 'no header'}.",
            )
            rows = []
            for row in reader:
                require(
                    None not in row and None not in row.values(),
                    f"from_text_csv: {path}, line {reader.line_num}: a row has more or fewer cells than the "
                    f"{len(found)} of the header. Put texts with commas into quotation marks.",
                )
                rows.append(row)
            return rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"from_text_csv: {path} is no table of texts in UTF-8 ({error}). Save it as CSV in UTF-8."
        ) from None


# ------------------------------------------------------------------------------------------------------------ examples

Row: TypeAlias = tuple[list[int], list[int]]
"""Token ids, and targets: of every token, or one of the text."""


def _causal(encoder: Tokenizer, text: Any, label: Any, known: Mapping[Any, int], length: int) -> Iterator[Row]:
    ids = _ids(encoder, text, special=False)
    for start in range(0, len(ids), length):
        piece = ids[start : start + length]
        if len(piece) > 1:
            yield piece, [*piece[1:], IGNORED]


def _labelled(encoder: Tokenizer, text: Any, label: Any, known: Mapping[Any, int], length: int) -> Iterator[Row]:
    yield _ids(encoder, text, special=True, most=length), [known[label]]


def _worded(encoder: Tokenizer, text: Any, label: Any, known: Mapping[Any, int], length: int) -> Iterator[Row]:
    ids: list[int] = []
    targets: list[int] = []
    for place, (word, own) in enumerate(zip(text, label, strict=True)):
        pieces = _ids(encoder, word if place == 0 else f" {word}", special=False)
        ids += pieces
        targets += [known[own], *[IGNORED] * (len(pieces) - 1)][: len(pieces)]
    yield ids[:length], targets[:length]


_MAKE: dict[TextTask, Callable[[Tokenizer, Any, Any, Mapping[Any, int], int], Iterator[Row]]] = {
    "causal-lm": _causal,
    "masked-lm": _causal,
    "sequence-classification": _labelled,
    "token-classification": _worded,
}


def _ids(encoder: Tokenizer, text: str, special: bool, most: int | None = None) -> list[int]:
    """Return the tokens of a text, with those that mark its beginning and end or without."""
    return list(encoder(text, add_special_tokens=special, truncation=most is not None, max_length=most)["input_ids"])


def _padded(rows: Sequence[list[int]], padding: int) -> Tensor:
    width = max(map(len, rows))
    x = torch.full((len(rows), 2, width), padding)
    x[:, 1] = 0
    for place, ids in enumerate(rows):
        x[place, 0, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        x[place, 1, : len(ids)] = 1
    return x


def _masked(x: Tensor, encoder: Tokenizer, seed: int) -> tuple[Tensor, Tensor]:
    """Hide some tokens, at least one of every example, and make them the targets."""
    mask = encoder.mask_token_id
    if mask is None:
        raise ValueError("from_texts: masked-lm needs a tokenizer with a mask token, and this one has none.")
    ids, there = x[:, 0].numpy(), x[:, 1].numpy() == 1
    draws = np.where(there, generator(seed, "data", "masked").random(ids.shape), 1.0)
    chosen = (draws < MASKED) | (there & (draws == draws.min(axis=1, keepdims=True)))
    y = torch.from_numpy(np.where(chosen, ids, IGNORED))
    how = generator(seed, "data", "hidden").random(ids.shape)
    others = generator(seed, "data", "replaced").choice(np.unique(ids[there]), ids.shape)
    hidden = np.where(chosen & (how < HIDDEN), mask, ids)
    hidden = np.where(chosen & (how >= HIDDEN) & (how < HIDDEN + REPLACED), others, hidden)
    return torch.stack([torch.from_numpy(hidden), x[:, 1]], dim=1), y


# -------------------------------------------------------------------------------------------------------------- labels


def _check_texts(task: TextTask, texts: Sequence[Any]) -> None:
    require(
        not isinstance(texts, str | bytes),
        f"from_texts: texts should be several strings, got one: {texts[:20]!r}. Give [text].",
    )
    require(len(texts) > 0, "from_texts: there are no texts. Give at least one.")
    if task != "token-classification":
        for number, text in enumerate(texts):
            require(isinstance(text, str), f"from_texts: text {number} should be a string, got {text!r}. Leave it out.")


def _check_labels(task: TextTask, texts: Sequence[Any], labels: Sequence[Any] | None) -> None:
    wanted = task.endswith("classification")
    require(
        wanted == (labels is not None),
        f"from_texts: {task} {'needs labels, and there are none' if wanted else 'has no labels, and some are given'}; "
        f"{'give labels' if wanted else 'leave them out'}, or choose another task: {', '.join(TASKS)}.",
    )
    if labels is None:
        return
    require(
        len(labels) == len(texts),
        f"from_texts: there are {len(texts)} texts and {len(labels)} labels. Give one label for each text.",
    )
    if task == "token-classification":
        for number, (words, own) in enumerate(zip(texts, labels, strict=True)):
            require(
                not isinstance(words, str) and not isinstance(own, str) and len(words) == len(own),
                f"from_texts: text {number} should be words with a label each, got {len(words)} and {len(own)}. Split "
                "the text into words, and give every word its label.",
            )


def _classes(task: TextTask, labels: Sequence[Any] | None, classes: Sequence[Any] | None) -> dict[Any, int]:
    """Return the number of every label."""
    if labels is None:
        return {}
    found = set(labels) if task == "sequence-classification" else {label for own in labels for label in own}
    try:
        known = sorted(found) if classes is None else list(classes)
    except TypeError:
        raise ValueError(
            f"from_texts: labels of several types have no order: {', '.join(map(repr, found))}. Give classes=[...], "
            "all of them in the order of their numbers."
        ) from None
    require(len(set(known)) == len(known), f"from_texts: classes should differ, got {', '.join(map(repr, known))}.")
    strange = [label for label in found if label not in known]
    require(
        not strange,
        f"from_texts: the label {strange[0] if strange else ''!r} is not among the classes "
        f"{', '.join(map(str, known))}. Add it, or leave those texts out.",
    )
    return {label: number for number, label in enumerate(known)}

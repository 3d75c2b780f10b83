"""Take a part of a data set, for small scales."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from archipel import data
from archipel.core.checks import one_of, require
from archipel.data.source import Source
from archipel.data.sources.catalogue import FILES


def first_of_each(of: str, train: int, test: int) -> Source:
    """Return the first training and test examples of each class, in the official order.

    of: the data set, by name; it has an official test set.
    train: examples of each class that are dealt out; test: those that models are scored on.
    """
    one_of("first_of_each", "of", of, FILES)
    whole: Source = getattr(data, of)()
    require(whole.test is not None, f"first_of_each: {of} has no official test set.")
    assert whole.test is not None
    tested = torch.zeros(len(whole.y), dtype=torch.bool)
    tested[whole.test] = True
    kept = torch.cat([_first(whole.y, ~tested, train), _first(whole.y, tested, test)])
    return Source(
        whole.x[kept],
        whole.y[kept],
        whole.classes,
        f"{of}, first {train} + {test} of each class",
        tested[kept].nonzero().flatten(),
    )


def half_side(of: str, train: int | None = None, test: int | None = None) -> Source:
    """Return images of half their side, each pixel the mean of four.

    of: the data set, by name; train, test: the first images of each class, as `first_of_each` takes them; without them,
    all there are.
    """
    one_of("half_side", "of", of, FILES)
    whole: Source = getattr(data, of)() if train is None or test is None else first_of_each(of, train, test)
    return replace(whole, x=avg_pool2d(whole.x, 2), name=f"{whole.name}, half side")


def thinned(of: str, each: int, **options: Any) -> Source:
    """Return one in every `each` examples of a data set without an official test set.

    of: the data set, by name; each: of so many one is kept; options: arguments of the data set itself.
    """
    one_of("thinned", "of", of, FILES)
    return _thinned(of, each, json.dumps(options, sort_keys=True))


@lru_cache(maxsize=1)
def _thinned(of: str, each: int, options: str) -> Source:
    # remembered: to read a large table takes longer than to train on a part of it
    whole: Source = getattr(data, of)(**json.loads(options))
    require(whole.test is None, f"thinned: {of} has an official test set.")
    return Source(
        whole.x[::each].clone(),
        whole.y[::each].clone(),
        whole.classes,
        f"{of}, one in {each}",
        categories={name: codes[::each].clone() for name, codes in whole.categories.items()},
    )


def _first(labels: Tensor, among: Tensor, each: int) -> Tensor:
    return torch.cat([torch.nonzero((labels == label) & among).flatten()[:each] for label in labels.unique()])

"""Choose the categories of features of every learner: RADFed's feature skew (formula 2).

  "dirichlet(0.1)"                   every learner has its own distribution over the categories of each feature, drawn
                                     from a Dirichlet distribution with this concentration (RADFed's theta)
  {"wilderness": 0.1, "soil": 1}     only these features, each with its concentration; also "wilderness=0.1,soil=1"

Categories are those of `Source.categories`. `bucketed` makes categories of a continuous feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.checks import nearest
from archipel.core.randomness import generator
from archipel.data.array_types import FloatArray, IntArray
from archipel.data.forms import a_number, call, positive, unknown

FORMS = ("dirichlet(0.1)",)


def bucketed(values: NDArray[Any] | Tensor, count: int) -> Tensor:
    """Divide a continuous feature into buckets of about equally many examples; return their int64 numbers.

    values: one number per example; count: number of buckets.

    Equal values share a bucket, so a feature with few values has fewer buckets.
    """
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or len(column) == 0:
        raise ValueError(
            f"bucketed: values should be one number per example, got shape {column.shape}. "
            "Take one column, such as source.x[:, 0]."
        )
    if not np.isfinite(column).all():
        raise ValueError(
            f"bucketed: {(~np.isfinite(column)).sum()} of {len(column)} values are NaN or infinite. "
            "Fill them in, or leave those examples out."
        )
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise ValueError(f"bucketed: count should be a whole number of at least 2, got {count!r}.")
    below = column[column < column.max()]
    if len(below) == 0:
        raise ValueError(f"bucketed: all {len(column)} values are {column[0]}: a single value cannot be divided.")
    edges = np.quantile(column, np.arange(1, count) / count, method="inverted_cdf")
    # a bucket ends with its edge, so the largest value is not an edge; if most values are the largest, it has its own
    edges = np.unique(np.minimum(edges, below.max()))
    return torch.from_numpy(np.searchsorted(edges, column, side="left").astype(np.int64))


def concentrations(features: object, categories: Mapping[str, Tensor], name: str) -> dict[str, float]:
    """Parse the setting: return every skewed feature's concentration, by name."""
    if not categories:
        raise ValueError(
            f"split: features={features!r}, but {name!r} has no categories. Give it some with "
            "source.with_category('height', bucketed(source.x[:, 0], 4))."
        )
    if isinstance(features, str):
        listed = pairs(features)
        if listed is None:
            match call(features):
                case "dirichlet", concentration:
                    listed = dict.fromkeys(categories, concentration)
                case _:
                    example = ",".join(f"{feature}=0.1" for feature in categories)
                    raise unknown("features", features, (*FORMS, example))
        features = listed
    if not isinstance(features, Mapping) or not features:
        raise ValueError(
            f"split: features={features!r} names no features. Give a concentration for each, such as "
            f"{dict.fromkeys(categories, 0.1)}, or 'dirichlet(0.1)' for all."
        )
    for feature in features:
        if feature not in categories:
            raise ValueError(
                f"split: features: {name!r} has no category {feature!r}. Did you mean "
                f"{nearest(str(feature), categories)!r}? Categories: {', '.join(categories)}."
            )
    # in the source's own order: the split must not depend on the order in which they were named
    return {
        feature: positive(f"features[{feature!r}]", features[feature], "the concentration")
        for feature in categories
        if feature in features
    }


def pairs(text: str) -> dict[str, float] | None:
    """Parse names and numbers such as "wilderness=0.1,soil=1"; return None for another form."""
    found: dict[str, float] = {}
    for part in text.split(","):
        feature, equals, number = part.partition("=")
        value = a_number(number)
        if not equals or value is None or feature.strip() in found:
            return None
        found[feature.strip()] = value
    return found


def configurations(labels: IntArray, columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Enumerate the combinations of class and categories in the data.

    Return every example's number, and the class and categories of each: [configurations, 1 + features].
    """
    number = ranked(labels)
    for column in columns:
        # ranked after each feature: the product over all could overflow
        codes = ranked(column)
        number = ranked(number * (int(codes.max()) + 1) + codes)
    first = np.empty(int(number.max()) + 1, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, np.stack([column[first] for column in (labels, *columns)], axis=1)


def ranked(values: IntArray) -> IntArray:
    """Renumber whole numbers from 0 without gaps, in their order."""
    if values.max() > 10 * len(values):
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    # counting is faster than sorting half a million examples
    ranks: IntArray = np.cumsum(np.bincount(values) > 0) - 1
    return ranks[values]


def drawn(categories: int, concentration: float, learners: int, key: tuple[int | str, ...]) -> FloatArray:
    """Draw every learner's distribution over categories: [learners, categories]."""
    return generator(*key).dirichlet(np.full(categories, concentration), learners)

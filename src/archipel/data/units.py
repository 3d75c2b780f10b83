"""Ranges of quantities, and hints that a column is in another unit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.checks import ArchipelWarning

UNITS = 50.0
"""Sites whose medians differ by more than this factor may use different units: cm and m differ by 100."""

CONVERSIONS = (
    ("10 x", 10, 0),
    ("x / 10", 1 / 10, 0),
    ("100 x", 100, 0),
    ("x / 100", 1 / 100, 0),
    ("1000 x", 1000, 0),
    ("x / 1000", 1 / 1000, 0),
    ("2.54 x", 2.54, 0),
    ("x / 2.54", 1 / 2.54, 0),
    ("0.4536 x", 0.4536, 0),
    ("x / 0.4536", 1 / 0.4536, 0),
    ("1.8 x + 32", 1.8, 32),
    ("(x - 32) / 1.8", 1 / 1.8, -32 / 1.8),
)
"""Conversions between usual units, as a factor and an offset: powers of ten, inches, pounds, Fahrenheit."""


def low_and_high(owner: str, name: str, pair: object) -> tuple[float, float]:
    """Return a range as two numbers, one of which may be infinite."""
    ends = list(pair) if isinstance(pair, Sequence) else []
    sound = all(isinstance(end, int | float | np.number) and not isinstance(end, bool) for end in ends)
    if len(ends) != 2 or not sound or not ends[0] < ends[1]:
        raise ValueError(
            f"{owner}: the range of {name!r} should be its lowest and its highest value, such as [30, 250], got "
            f"{pair!r}."
        )
    return float(ends[0]), float(ends[1])


def unit_hint(median: float, low: float, high: float) -> str:
    """Return a hint if a median outside its range would be inside in another unit, else an empty text."""
    if low <= median <= high:
        return ""
    fits = [
        f"{way} = {median * factor + shift:.4g}"
        for way, factor, shift in CONVERSIONS
        if low <= median * factor + shift <= high
    ]
    if not fits:
        return ""
    return f"; its median x = {median:.4g} would be inside as {' or '.join(fits)}: is it in another unit?"


def spelled(value: float) -> str:
    """Format a number without a needless decimal point: 250, not 250.0."""
    return repr(value).removesuffix(".0")


def warn_of_units(
    owner: str, x: Tensor, where: NDArray[np.int64], sites: Sequence[str], columns: Mapping[str, int]
) -> None:
    """Warn of columns that sites seem to have in different units."""
    if not columns:
        return
    medians = []
    for place in range(len(sites)):
        mine = np.flatnonzero(where == place)
        # about a thousand rows of each site are enough for a median
        some = torch.from_numpy(mine[:: max(1, len(mine) // 1000)])
        medians.append(np.median(np.abs(x[some].numpy()), axis=0))
    table = np.stack(medians)
    for column, at in columns.items():
        positive = np.flatnonzero(table[:, at] > 0)
        if len(positive) < 2:
            continue
        values = table[positive, at]
        low, high = positive[values.argmin()], positive[values.argmax()]
        if table[high, at] > UNITS * table[low, at]:
            warnings.warn(
                f"{owner}: column {column} has a median of {table[high, at]:g} at {sites[high]!r} and of "
                f"{table[low, at]:g} at {sites[low]!r}. Do sites measure in different units? If so, convert them; if "
                "not, standardise it for every learner.",
                ArchipelWarning,
                stacklevel=5,
            )

"""Values of a table's columns: missing ones, texts, numbers, and the numbers that stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

INFINITE = ("inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")


def absent(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark values of a column that are missing or infinite."""
    gone: NDArray[np.bool_]
    if values.dtype.kind == "U":
        gone = (values == "") | np.isin(np.strings.lower(values), INFINITE)
    else:
        gone = ~np.isfinite(values)
    return gone


def words(values: NDArray[Any]) -> NDArray[np.str_]:
    """Return a column as text; whole numbers without a decimal point."""
    if values.dtype.kind == "U":
        return values
    texts = [str(int(value)) if np.isfinite(value) and value % 1 == 0 else str(value) for value in values.tolist()]
    return np.array(texts, dtype=np.str_)


def number(text: str) -> float | None:
    """Parse a number; return None for other text."""
    try:
        return float(text)
    except ValueError:
        return None


def all_numbers(kinds: Sequence[str]) -> bool:
    """Return whether all texts are numbers."""
    return all(number(kind) is not None for kind in kinds)


def meant(kind: str, by_value: bool) -> str | float:
    """Return a key that is equal for spellings of one class: if all classes are numbers, 1 and 1.0 are one class."""
    value = number(kind) if by_value else None
    return kind if value is None else value


def first_text(values: NDArray[Any]) -> str | None:
    """Return the first value that is not a number, if there is one."""
    try:
        values.astype(np.float64)
    except ValueError:
        return next((value for value in values.tolist() if number(value) is None), None)
    return None


def in_order(kinds: Mapping[str, object]) -> list[str]:
    """Sort values by number if all are numbers, otherwise alphabetically."""
    numbers = {kind: number(kind) for kind in kinds}
    if any(value is None for value in numbers.values()):
        return sorted(kinds)
    return sorted(kinds, key=lambda kind: (numbers[kind], kind))


def code(values: NDArray[Any], numbers: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the number of every value."""
    kinds, places = np.unique(words(values), return_inverse=True)
    return np.array([numbers[kind] for kind in kinds.tolist()], dtype=np.int64)[places.ravel()]

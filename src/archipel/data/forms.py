"""Parse settings written as text, so that a flag can express what an argument in Python can.

name           "iid", "powerlaw"
name(number)   "dirichlet(0.1)", "disjoint(2)"
low-high       "1500-2500", "2-6": a whole number in this range, both ends included
numbers        "8,4,3,3" or "8x1,4x1,3x8", where 3x8 is eight times 3
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from archipel.core.checks import nearest

MOST = 10**6
"""Limit on the numbers in a text, so that a typing error such as "3x99999999999" does not exhaust memory."""


def call(text: str) -> tuple[str, float] | None:
    """Parse "name(number)"; return None for another form."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\(\s*([^()\s]+)\s*\)\s*", text)
    number = None if match is None else a_number(match[2])
    return None if match is None or number is None else (match[1], number)


def span(text: str) -> tuple[int, int] | None:
    """Parse "low-high"; return None for another form."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*-\s*(\d{1,15})\s*", text)
    return None if match is None else (int(match[1]), int(match[2]))


def numbers(text: str) -> list[int] | None:
    """Parse whole numbers such as "8,4,3,3" or "8x1,4x1,3x8"; return None for another form."""
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,15})\s*(?:x\s*(\d{1,7})\s*)?", part)
        times = 0 if match is None else int(match[2] or 1)
        if match is None or len(values) + times > MOST:
            return None
        values += [int(match[1])] * times
    return values


def a_number(text: str) -> float | None:
    """Parse a finite number; return None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def positive(what: str, value: object, meaning: str) -> float:
    """Return the value as a float; refuse anything but a finite number above 0."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"split: {what}: {meaning} should be more than 0, got {value!r}.")
    return float(number)


def unknown(what: str, value: object, known: Iterable[str], otherwise: str = "") -> ValueError:
    """Return the error for a text in none of the known forms; it names the most similar one."""
    forms = list(known)
    return ValueError(
        f"split: {what}={value!r} is not known. Did you mean {nearest(str(value), forms)!r}? "
        f"Known: {', '.join(forms)}{otherwise}."
    )

"""How many training examples every learner gets.

  uniform    the same for all (the first few get one more when the total does not divide)
  skewed     linearly falling shares N, N-1, ..., 1, so no two learners are alike (from N(N+1)/2 examples on).
             Metis (section VI) says only "rightly skewed"; this is the plainest rule that fits its words.
  powerlaw   shares proportional to rank ** -1.5, Metis' exponent
  a sequence of whole numbers, one per learner, taken as they are

The largest learner comes first. A later shape is one more function from a number of learners to their shares.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64]
Shares: TypeAlias = NDArray[np.float64]


def uniform(learners: int) -> Shares:
    """The same share for every learner."""
    return np.ones(learners)


def skewed(learners: int) -> Shares:
    """Linearly falling shares: N, N-1, ..., 1."""
    return np.arange(learners, 0, -1.0)


def powerlaw(learners: int) -> Shares:
    """Shares proportional to rank ** -1.5."""
    return np.arange(1.0, learners + 1) ** -1.5


SHAPES: dict[str, Callable[[int], Shares]] = {"uniform": uniform, "skewed": skewed, "powerlaw": powerlaw}


def shape_of(sizes: str | Sequence[int], learners: int) -> Shares:
    """The learners' shares of the data, up to a common factor."""
    if not isinstance(sizes, str):
        return np.array(one_per_learner("sizes", sizes, learners), dtype=np.float64)
    if sizes not in SHAPES:
        raise ValueError(
            f"split: sizes={sizes!r} is not known. Did you mean {nearest(sizes, SHAPES)!r}? "
            f"Known: {', '.join(SHAPES)}, or one whole number per learner."
        )
    return SHAPES[sizes](learners)


def apportion(total: int, shares: Shares, at_least: Counts) -> Counts:
    """Divide a total by shares, in whole numbers by largest remainder, nobody below their minimum."""
    if at_least.sum() > total:
        raise ValueError(
            f"split: {len(shares)} learners need at least {at_least.sum()} training examples, one for each "
            f"of their classes, but there are {total}. Ask for fewer learners or fewer classes per learner."
        )
    raised = np.zeros(len(shares), dtype=bool)
    while True:
        # those whose share is below their minimum get the minimum, and the others share what is left
        rest = total - at_least[raised].sum()
        quota = np.where(raised, at_least, shares * rest / max(shares[~raised].sum(), np.finfo(float).tiny))
        short = ~raised & (quota < at_least)
        if not short.any():
            break
        raised |= short
    whole = np.floor(quota + 1e-9).astype(np.int64)
    # rounded, so that equal remainders stay equal and the earlier learner wins
    by_remainder = np.argsort(-np.round(quota - whole, 9), kind="stable")
    whole[by_remainder[: total - whole.sum()]] += 1
    return whole


def one_per_learner(what: str, values: Iterable[int], learners: int) -> list[int]:
    """The values as whole numbers from 1, one for each learner."""
    if not isinstance(values, Iterable):
        raise ValueError(f"split: {what}={values!r} is no list. Give one whole number per learner.")
    numbers = list(values)
    if len(numbers) != learners:
        raise ValueError(
            f"split: {what} has {len(numbers)} numbers for {learners} learners. Give one number per learner."
        )
    return [whole_number(f"{what}[{place}]", value) for place, value in enumerate(numbers)]


def whole_number(what: str, value: object, at_least: int = 1) -> int:
    """The value as an int, refused when it is none or too small."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the check is the point
    except TypeError:
        raise ValueError(f"split: {what}={value!r} is not a whole number. Give an int.") from None
    if number < at_least:
        raise ValueError(f"split: {what}={number} is too small. Give a number of at least {at_least}.")
    return number


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]

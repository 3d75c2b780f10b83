"""Choose how many training examples every learner gets.

  "uniform"         the same for all (the first few get one more when the total does not divide)
  "skewed"          linearly falling shares N, N-1, ..., 1, so no two sizes are equal (from N(N+1)/2 examples on).
                    Metis (section VI) says only "rightly skewed"; this is the simplest rule that fits the text.
  "powerlaw"        shares proportional to rank ** -1.5, Metis' exponent; "powerlaw(2)" is rank ** -2
  "1500-2500"       a number from the range for every learner, each equally likely (Fed2A section 4.1)
  "dirichlet(1)"    shares drawn from a Dirichlet distribution, RADFed's mu
  (300, 200, 100)   one whole number per learner, taken as it is; also "300,200,100" or "300x1,200x2"

The largest learner comes first, except where numbers are given. With a range, the sum of the drawn numbers is used. If
that is more than the data have (30 learners with 1,500 to 2,500 need 60,000 on average, all of Fashion-MNIST), the
parts above the lower end are scaled down by a common factor: sizes stay in the range.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from archipel.core.randomness import generator
from archipel.data.array_types import FloatArray, IntArray
from archipel.data.forms import call, numbers, positive, span, unknown


def uniform(learners: int) -> FloatArray:
    """Return the same share for every learner."""
    return np.ones(learners)


def skewed(learners: int) -> FloatArray:
    """Return linearly falling shares: N, N-1, ..., 1."""
    return np.arange(learners, 0, -1.0)


def powerlaw(learners: int, exponent: float = 1.5) -> FloatArray:
    """Return shares proportional to rank ** -exponent."""
    return np.arange(1.0, learners + 1) ** -exponent


SHAPES: dict[str, Callable[[int], FloatArray]] = {"uniform": uniform, "skewed": skewed, "powerlaw": powerlaw}
FORMS = (*SHAPES, "powerlaw(1.5)", "1500-2500", "dirichlet(1)")


@dataclass(frozen=True, eq=False)
class Wish:
    """Wanted sizes: a least size, and shares of the rest."""

    shares: FloatArray
    """Up to a common factor."""
    least: int = 0
    """The lower end of a range; no learner gets fewer."""
    most: int | None = None
    """The higher end of a range; no learner gets more."""
    total: int | None = None
    """The sum of a range's draws or of given numbers; None: all examples."""
    exact: bool = False
    """Whether sizes were given as numbers, which are never changed."""

    def divide(self, total: int, at_least: IntArray) -> IntArray:
        """Return sizes that add up to a total, none below its minimum."""
        if not self.least:
            return apportion(total, self.shares, at_least)
        more = np.maximum(at_least - self.least, 0)
        above = max(total - self.least * len(self.shares), int(more.sum()))
        sizes: IntArray = self.least + apportion(above, self.shares, more)
        return sizes

    def fitted(self, available: int, at_least: IntArray) -> IntArray:
        """Return sizes for the available examples."""
        if self.exact:
            return self.shares.astype(np.int64)
        return self.divide(available if self.total is None else min(available, self.total), at_least)


def wish(sizes: str | Sequence[int], learners: int, seed: int) -> Wish:
    """Parse the setting."""
    listed = numbers(sizes) if isinstance(sizes, str) else sizes
    if listed is not None:
        exact = np.array(one_per_learner("sizes", listed, learners), dtype=np.float64)
        return Wish(exact, total=int(exact.sum()), exact=True)
    assert isinstance(sizes, str)
    ends = span(sizes)
    if ends is None:
        return Wish(shape_of(sizes, learners, seed))
    low, high = ends
    if not 1 <= low <= high:
        raise ValueError(
            f"split: sizes={sizes!r} is not a range of sizes. Give the lower end, at least 1, and then the higher."
        )
    drawn = -np.sort(-generator(seed, "data", "sizes").integers(low, high + 1, learners))
    return Wish((drawn - low).astype(np.float64), low, high, int(drawn.sum()))


def shape_of(sizes: str | Sequence[int], learners: int, seed: int = 0) -> FloatArray:
    """Return the learners' shares of the data, up to a common factor."""
    if not isinstance(sizes, str):
        return np.array(one_per_learner("sizes", sizes, learners), dtype=np.float64)
    if sizes in SHAPES:
        return SHAPES[sizes](learners)
    match call(sizes):
        case "powerlaw", exponent:
            return powerlaw(learners, positive(f"sizes={sizes!r}", exponent, "the exponent"))
        case "dirichlet", concentration:
            concentration = positive(f"sizes={sizes!r}", concentration, "the concentration")
            drawn = generator(seed, "data", "sizes").dirichlet(np.full(learners, concentration))
            return -np.sort(-drawn)
        case _:
            raise unknown("sizes", sizes, FORMS, ", or one whole number per learner")


def check_total(asked: Wish, sizes: str | Sequence[int], available: int) -> None:
    """Refuse sizes that need more examples than are available."""
    learners = len(asked.shares)
    if learners > available:
        raise ValueError(
            f"split: learners={learners}, but there are only {available} training examples. "
            "Ask for fewer learners, or hold out less."
        )
    if asked.exact and asked.total is not None and asked.total > available:
        raise ValueError(
            f"split: sizes add up to {asked.total}, but there are {available} training examples. "
            f"Ask for at most {available} together, or name a shape such as 'powerlaw'."
        )
    if asked.least * learners > available:
        raise ValueError(
            f"split: sizes={sizes!r} gives {learners} learners at least {asked.least * learners} together, but there "
            f"are {available} training examples. Ask for {available // asked.least} learners at most, or a range that "
            f"begins at {available // learners} or below."
        )


def apportion(total: int, shares: FloatArray, at_least: IntArray) -> IntArray:
    """Divide a total by shares, in whole numbers by largest remainder, none below its minimum."""
    if at_least.sum() > total:
        raise ValueError(
            f"split: {len(shares)} learners need at least {at_least.sum()} training examples, one for each "
            f"of their classes, but there are {total}. Ask for fewer learners or fewer classes per learner."
        )
    raised = np.zeros(len(shares), dtype=bool)
    while True:
        # learners whose share is below their minimum get the minimum, and the others share the rest
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
    """Return the values as ints of at least 1; refuse a list that has not one for each learner."""
    if not isinstance(values, Iterable):
        raise ValueError(f"split: {what}={values!r} is not a list. Give one whole number per learner.")
    listed = list(values)
    if len(listed) != learners:
        raise ValueError(
            f"split: {what} has {len(listed)} numbers for {learners} learners. Give one number per learner."
        )
    return [whole_number(f"{what}[{place}]", value) for place, value in enumerate(listed)]


def whole_number(what: str, value: object, at_least: int = 1) -> int:
    """Return the value as an int; refuse one that is not whole or too small."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the check is the point
    except TypeError:
        raise ValueError(f"split: {what}={value!r} is not a whole number. Give an int.") from None
    if number < at_least:
        raise ValueError(f"split: {what}={number} is too small. Give a number of at least {at_least}.")
    return number

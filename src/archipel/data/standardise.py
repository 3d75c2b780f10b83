"""Standardisation: every feature with mean 0 and deviation 1.

  "none"     x as it is
  "global"   by the statistics of the training parts of the learners that train, as if they were pooled
  "local"    every learner by its own statistics (RADFed section V.D, "to let each client perform standardization with
             its own statistics")

How it is computed. A learner counts its examples, sums each feature, and sums the squares of each feature's distance
to its own mean (`moments`); HOME combines these without seeing an example (`combine`), and everybody goes by what comes
of it (`standardised_by`). In a real federation the first and the last are done by each learner with its own table, and
the same bits come out. Squares are taken about the mean because plain sums of squares lose a small deviation beside a
large mean. All in float64; the deviation is that of a population (divided by n), as in scikit-learn.

Who is measured, and by what it is standardised:
  1. Statistics are of training parts only: no test example and no stimulus moves them. The validation part that an
     algorithm reserves in a run is a piece of the training part.
  2. "local": a learner's training part and its own test part go by the statistics of its training part. A learner that
     is held out goes by its own too, of all it is tried on (its `train`), without labels: it has nothing else.
  3. "local": the test set at HOME, the stimuli and examples of nobody go by the global statistics: they are no
     learner's, and the global ones are what HOME can know. So an example that is in a learner's own test part and also
     at HOME or with another learner is repeated at the end of x and y, one copy for each: `with_own_test` first spares
     these copies.
  4. A feature that does not vary in the examples that are measured is 0 wherever these statistics are used, and is
     divided by nothing: a model cannot have learnt what its other values mean. (One learner of Covertype meets a few of
     the 40 soil types only.) A learner with a single example trains on zeros.

A feature is one number of an example: for images that is each pixel of each channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from archipel.core.checks import one_of, require
from archipel.data.splits import nobody_elses

if TYPE_CHECKING:
    from archipel.data.islands import Islands

Statistics: TypeAlias = Literal["none", "global", "local"]

CHUNK = 2**22
"""Numbers that are worked on at a time: float64 copies of a large x would not fit beside it."""
CONSTANT = 1e-12
"""A deviation of less than this part of the mean is a rounding error; one step of a float32 is 60,000 times that."""


@dataclass(frozen=True, eq=False)
class Moments:
    """What standardisation needs to know of some examples; those of several learners combine."""

    count: int
    """Examples."""
    sum: Tensor
    """Sum of every feature over them, float64."""
    squares: Tensor
    """Sum of the squared distances of every feature to its mean, float64."""

    @property
    def mean(self) -> Tensor:
        return self.sum / self.count

    @property
    def deviation(self) -> Tensor:
        """Deviation of every feature; exactly 0 where a feature does not vary."""
        deviation = (self.squares / self.count).sqrt()
        return torch.where(deviation <= CONSTANT * self.mean.abs(), 0.0, deviation)


def moments(x: Tensor, indices: Tensor) -> Moments:
    """Count, sum and squares of every feature of these examples."""
    require(len(indices) > 0, "moments: there are no examples to measure. Give at least one index.")
    return combine(_measure(x[rows]) for rows in _chunks(x, indices))


def combine(parts: Iterable[Moments]) -> Moments:
    """The moments of all examples together, from those of the parts."""
    parts = tuple(parts)
    require(len(parts) > 0, "combine: there are no moments to combine. Give at least one.")
    count, total = sum(part.count for part in parts), torch.stack([part.sum for part in parts]).sum(0)
    between = [part.count * (part.mean - total / count) ** 2 for part in parts]
    within = [part.squares for part in parts]
    return Moments(count, total, torch.stack(within + between).sum(0))


def standardised_by(x: Tensor, by: Moments) -> Tensor:
    """A new tensor: every example of x, standardised by these moments."""
    _refuse_whole_numbers("standardised_by: x", x)
    require(
        x.shape[1:] == by.sum.shape == by.squares.shape,
        f"standardised_by: an example of x has shape {tuple(x.shape[1:])}, the sums {tuple(by.sum.shape)} and the "
        f"squares {tuple(by.squares.shape)}. Measure the same features as are standardised.",
    )
    require(by.count > 0, f"standardised_by: moments of {by.count} examples. Measure at least one.")
    # squares from a stranger may be negative
    wrong = int((~(by.mean + by.deviation).isfinite()).sum())
    require(
        wrong == 0,
        f"standardised_by: {wrong} features of {by.sum.numel()} have no finite mean and deviation. Measure examples "
        "without NaN and infinite values.",
    )
    new = torch.empty_like(x, memory_format=torch.contiguous_format)
    everyone = torch.arange(len(x))
    _write(new, everyone, x, everyone, by)
    return new


def standardised(islands: Islands, statistics: Statistics) -> Islands:
    """New islands with standardised x; `Islands.standardised` documents it."""
    one_of("standardised", "statistics", statistics, ("none", "global", "local"))
    if statistics == "none":
        return islands
    x, learners = islands.x, islands.learners
    _refuse_whole_numbers(f"standardised: x of {islands.name!r}", x)
    measured = [moments(x, learner.train) for learner in learners]
    for learner, mine in zip(learners, measured, strict=True):
        wrong = int((~(mine.sum + mine.squares).isfinite()).sum())
        require(
            wrong == 0,
            f"standardised: learner {learner.name!r} has {wrong} features of {mine.sum.numel()} without a finite mean "
            "and deviation. Fill in NaN and infinite values, or leave those examples out.",
        )
    common = combine(mine for mine, learner in zip(measured, learners, strict=True) if learner.role == "train")
    if statistics == "global":
        return replace(islands, x=standardised_by(x, common))

    own = nobody_elses((learner.test for learner in learners), islands.test, len(x))
    copied = torch.cat([learner.test[~own[learner.test]] for learner in learners])
    new = x.new_empty((len(x) + len(copied), *x.shape[1:]))
    nobodys = torch.ones(len(x), dtype=torch.bool)
    end = len(x)
    moved = []
    for learner, mine in zip(learners, measured, strict=True):
        shared = ~own[learner.test]
        test = learner.test.clone()
        test[shared] = torch.arange(end, end + int(shared.sum()))
        end += int(shared.sum())
        _write(new, torch.cat([learner.train, test]), x, torch.cat([learner.train, learner.test]), mine)
        nobodys[torch.cat([learner.train, learner.test[~shared]])] = False
        moved.append(replace(learner, test=test))
    rest = nobodys.nonzero().flatten()
    _write(new, rest, x, rest, common)
    return replace(islands, x=new, y=torch.cat([islands.y, islands.y[copied]]), learners=tuple(moved))


def _refuse_whole_numbers(what: str, x: Tensor) -> None:
    require(
        x.is_floating_point(),
        f"{what} holds {x.dtype}, and whole numbers such as token ids have no mean that says anything. Leave it at "
        "'none'; if they are measurements or pixels, convert them with x.float() first.",
    )


def _measure(examples: Tensor) -> Moments:
    values = examples.to(torch.float64)
    total = values.sum(0)
    return Moments(len(values), total, (values - total / len(values)).square().sum(0))


def _write(new: Tensor, places: Tensor, x: Tensor, rows: Tensor, by: Moments) -> None:
    """Standardise some rows of x into some places of another tensor."""
    mean, deviation = by.mean, by.deviation
    constant = deviation == 0
    divisor = torch.where(constant, 1.0, deviation)
    for some, there in zip(_chunks(x, rows), _chunks(x, places), strict=True):
        values = (x[some].to(torch.float64) - mean) / divisor
        new[there] = torch.where(constant, 0.0, values).to(new.dtype)


def _chunks(x: Tensor, indices: Tensor) -> Iterator[Tensor]:
    yield from indices.split(max(1, CHUNK // max(1, x.shape[1:].numel())))

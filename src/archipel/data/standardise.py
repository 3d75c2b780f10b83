"""Standardisation: every feature gets mean 0 and deviation 1.

  "none"     x as it is
  "global"   by the statistics of the training parts of the learners that train, as if they were pooled
  "local"    every learner by its own statistics (RADFed section V.D, "to let each client perform standardization with
             its own statistics")

How it is computed. A learner counts its examples, sums each feature, and sums the squares of each feature's distance
to its own mean (`moments`). HOME combines these without seeing an example (`combine`), and every learner standardises
its examples with the result (`standardised_by`). In a real federation each learner does the first and the last step
with its own table, and the result has the same bits. Squares are taken about the mean because plain sums of squares
lose a small deviation beside a large mean. All sums are float64; the deviation is that of a population (divided by n),
as in scikit-learn.

Which examples are measured, and by which statistics they are standardised:
  1. Statistics are of training parts only: test examples and stimuli do not change them. The validation part that an
     algorithm reserves during a run is a piece of the training part.
  2. "local": a learner's training part and its own test part use the statistics of its training part. A held-out
     learner uses its own too: those of all examples it is scored on (its `train`), without labels.
  3. "local": the test set at HOME, the stimuli and examples without a learner use the global statistics, which HOME
     knows. An example that is in a learner's own test part and also at HOME or with another learner is therefore
     repeated at the end of x and y, one copy for each. Calling `with_own_test` first avoids the copies.
  4. A feature that does not vary in the measured examples becomes 0 wherever these statistics are used: a model cannot
     have learnt what its other values mean. (A learner of Covertype may have only a few of the 40 soil types.) A
     learner with a single example trains on zeros.

A feature is one number of an example: for images that is each pixel of each channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from archipel.core.checks import require

Statistics: TypeAlias = Literal["none", "global", "local"]

CHUNK = 2**22
"""Numbers converted at a time: a float64 copy of a large x might not fit into memory."""
CONSTANT = 1e-12
"""A deviation below this share of the mean is a rounding error; one step of a float32 is 60,000 times as large."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of some examples that standardisation needs; those of several learners can be combined."""

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
    """Count these examples, and sum every feature and its squares."""
    require(len(indices) > 0, "moments: there are no examples to measure. Give at least one index.")
    return combine(_measure(x[rows]) for rows in _chunks(x, indices))


def combine(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all examples together, from those of the parts."""
    parts = tuple(parts)
    require(len(parts) > 0, "combine: there are no moments to combine. Give at least one.")
    count, total = sum(part.count for part in parts), torch.stack([part.sum for part in parts]).sum(0)
    between = [part.count * (part.mean - total / count) ** 2 for part in parts]
    within = [part.squares for part in parts]
    return Moments(count, total, torch.stack(within + between).sum(0))


def standardised_by(x: Tensor, by: Moments) -> Tensor:
    """Return a new tensor with every example of x, standardised by these moments."""
    refuse_whole_numbers("standardised_by: x", x)
    require(
        x.shape[1:] == by.sum.shape == by.squares.shape,
        f"standardised_by: an example of x has shape {tuple(x.shape[1:])}, the sums {tuple(by.sum.shape)} and the "
        f"squares {tuple(by.squares.shape)}. Measure the same features as are standardised.",
    )
    require(by.count > 0, f"standardised_by: moments of {by.count} examples. Measure at least one.")
    # squares from another machine may be negative
    wrong = int((~(by.mean + by.deviation).isfinite()).sum())
    require(
        wrong == 0,
        f"standardised_by: {wrong} features of {by.sum.numel()} have no finite mean and deviation. Measure examples "
        "without NaN and infinite values.",
    )
    new = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = torch.arange(len(x))
    _write(new, rows, x, rows, by)
    return new


def standardised_locally(
    x: Tensor,
    trains: Sequence[Tensor],
    tests: Sequence[Tensor],
    exclusive: Tensor,
    measured: Sequence[Moments],
    common: Moments,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Standardise every learner's examples by its own moments, and all others by the common ones.

    trains, tests: indices of every learner's training part and own test part.
    exclusive: marks the examples that are in one learner's own test part and nowhere else.
    measured: every learner's moments; common: moments of the other examples.

    Return the new x, the indices of the examples that are repeated at its end, and the learners' new test indices.
    """
    copied = torch.cat([test[~exclusive[test]] for test in tests])
    new = x.new_empty((len(x) + len(copied), *x.shape[1:]))
    without_learner = torch.ones(len(x), dtype=torch.bool)
    end = len(x)
    moved = []
    for train, test, mine in zip(trains, tests, measured, strict=True):
        shared = ~exclusive[test]
        places = test.clone()
        places[shared] = torch.arange(end, end + int(shared.sum()))
        end += int(shared.sum())
        _write(new, torch.cat([train, places]), x, torch.cat([train, test]), mine)
        without_learner[torch.cat([train, test[~shared]])] = False
        moved.append(places)
    rest = without_learner.nonzero().flatten()
    _write(new, rest, x, rest, common)
    return new, copied, moved


def refuse_whole_numbers(what: str, x: Tensor) -> None:
    """Refuse x that is not floating point."""
    require(
        x.is_floating_point(),
        f"{what} holds {x.dtype}, and the mean of whole numbers such as token ids has no meaning. Leave it at "
        "'none'; if they are measurements or pixels, convert them with x.float() first.",
    )


def _measure(examples: Tensor) -> Moments:
    values = examples.to(torch.float64)
    total = values.sum(0)
    return Moments(len(values), total, (values - total / len(values)).square().sum(0))


def _write(new: Tensor, places: Tensor, x: Tensor, rows: Tensor, by: Moments) -> None:
    """Standardise some rows of x and write them to the given places of another tensor."""
    mean, deviation = by.mean, by.deviation
    constant = deviation == 0
    divisor = torch.where(constant, 1.0, deviation)
    for some, there in zip(_chunks(x, rows), _chunks(x, places), strict=True):
        values = (x[some].to(torch.float64) - mean) / divisor
        new[there] = torch.where(constant, 0.0, values).to(new.dtype)


def _chunks(x: Tensor, indices: Tensor) -> Iterator[Tensor]:
    yield from indices.split(max(1, CHUNK // max(1, x.shape[1:].numel())))

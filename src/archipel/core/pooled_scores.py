"""Scores as whole numbers, so that a secure sum can add them up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from archipel.core.scored import Scored

STEP = 2.0**-16
"""The step that a learner's sum of losses is rounded to."""
LARGEST = 2.0**30
"""The largest sum of losses of a learner; a larger one, and one that is not finite, is sent as this one. The sum of
130,000 learners cannot wrap around."""


class ImpossibleScores(ValueError):
    """A sum that learners cannot have sent."""


@dataclass(frozen=True, slots=True)
class ScoreNumbers:
    """The numbers of one learner's score: its examples, the sum of its losses, and its counts."""

    classes: int | None
    """None for tasks without classes."""
    bins: int = 0
    """Of the histograms of class scores; 0: none."""
    per_token: bool = False
    """Whether tokens are counted, in place of classes."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a score's counts, in the order in which they are sent."""
        if self.per_token:
            return {"tokens": (2,)}
        if self.classes is None:
            return {}
        confusion = {"confusion": (self.classes, self.classes)}
        return confusion | ({"histogram": (self.classes, 2, self.bins)} if self.bins else {})

    @property
    def size(self) -> int:
        return 2 + sum(math.prod(shape) for shape in self.shapes.values())

    def encode(self, scored: Scored) -> npt.NDArray[np.int64]:
        """Return a learner's numbers; raise `ValueError` if its score counts something else.

        >>> ScoreNumbers(2).encode(Scored(3, 0.5, np.array([[1, 0], [1, 1]]))).tolist()
        [3, 32768, 1, 0, 1, 1]
        """
        loss = scored.loss if math.isfinite(scored.loss) else LARGEST
        head = [scored.count, round(min(max(loss, -LARGEST), LARGEST) / STEP)]
        pieces = [np.array(head, np.int64)]
        for name, shape in self.shapes.items():
            counts = np.asarray(getattr(scored, name), np.int64)
            if counts.shape != shape:
                raise ValueError(f"the {name} of a score has the shape {counts.shape}, and the task's is {shape}")
            pieces.append(counts.ravel())
        return np.concatenate(pieces)

    def decode(self, total: npt.NDArray[Any], learners: int) -> Scored:
        """Return the score that so many learners' numbers add up to; refuse what they cannot add up to."""
        whole = np.ascontiguousarray(total).view(np.int64)
        count, loss, place = int(whole[0]), float(whole[1]) * STEP, 2
        found: dict[str, Any] = {}
        for name, shape in self.shapes.items():
            found[name] = whole[place : place + math.prod(shape)].reshape(shape).copy()
            place += math.prod(shape)
        wrong = [name for name, counts in found.items() if counts.min() < 0]
        if "histogram" in found and found["histogram"].sum(axis=(1, 2)).tolist() != [count] * len(found["histogram"]):
            wrong.append("histogram")
        if count < 0 or wrong or abs(loss) > learners * LARGEST:
            raise ImpossibleScores(
                f"the scores of {learners} learners add up to {count} examples, a loss of {loss:.4g} and impossible "
                f"counts of {' and '.join(dict.fromkeys(wrong)) or 'nothing'}: one of them has sent something else "
                "than its score"
            )
        return Scored(count, loss, **found)

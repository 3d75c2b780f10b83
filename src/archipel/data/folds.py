"""Held-out learners: k-fold cross-validation by learner (RADFed section IV.C).

"We split all clients into 5 sets. One by one, a set is selected as the test set. For the remaining sets, one by one, a
set is selected as the validation set and the others are used as the training set": 20 combinations of five folds, each
60/20/20. Table III reports 5 folds times 3 seeds, one validation set each: that is `rotations=1`.

Laws:
  1. every learner is in one fold, and folds differ by one learner at most (143 learners: 85/29/29, as in the paper);
  2. over the combinations every learner is as often a test learner as every other, and so for validation;
  3. the order is fixed: by the test fold, then by the validation fold's distance after it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipel.core.checks import at_least, require
from archipel.core.randomness import generator
from archipel.core.types import Role

if TYPE_CHECKING:
    from archipel.data.islands import Islands


@dataclass(frozen=True, eq=False)
class Fold:
    """One combination: the learners of two folds are held out, the others train."""

    islands: Islands
    test: int
    """Number of the fold whose learners have the role "test"."""
    validation: int
    """Number of the fold whose learners have the role "validation"."""

    def __repr__(self) -> str:
        roles = [learner.role for learner in self.islands.learners]
        counts = "/".join(str(roles.count(role)) for role in ("train", "validation", "test"))
        return f"<Fold test={self.test} validation={self.validation}: {counts} learners of {self.islands.name!r}>"


def folds(islands: Islands, count: int = 5, seed: int = 0, rotations: int | None = None) -> tuple[Fold, ...]:
    """Every combination of a test fold and a validation fold; `Islands.folds` documents it."""
    count = whole("count", count)
    rotations = count - 1 if rotations is None else whole("rotations", rotations)
    at_least(3, "folds", "one to test, one to validate, one to train", count=count)
    at_least(1, "folds", rotations=rotations)
    require(
        rotations < count,
        f"folds: rotations={rotations}, but beside the test fold there are {count - 1} others to validate on. "
        f"Give 1 to {count - 1}.",
    )
    require(
        len(islands.learners) >= count,
        f"folds: count={count}, but there are only {len(islands.learners)} learners. "
        "Ask for fewer folds, or split over more learners.",
    )
    for learner in islands.learners:
        require(
            learner.role == "train",
            f"folds: learner {learner.name!r} is held out already, its role is {learner.role!r}. "
            "Take folds of islands where every learner trains.",
        )
    number_of = deal(len(islands.learners), count, whole("seed", seed))
    # a learner that is held out is tried on all it has
    held_out = islands.without_own_test().learners
    combinations = []
    for test in range(count):
        for step in range(1, rotations + 1):
            validation = (test + step) % count
            roles: dict[int, Role] = {test: "test", validation: "validation"}
            learners = tuple(
                replace(undivided, role=roles[number]) if number in roles else learner
                for learner, undivided, number in zip(islands.learners, held_out, number_of, strict=True)
            )
            combinations.append(Fold(replace(islands, learners=learners), test, validation))
    return tuple(combinations)


def deal(learners: int, count: int, seed: int) -> list[int]:
    """The fold of every learner, at random; the first folds get one more when the number does not divide."""
    number_of = [0] * learners
    for place, learner in enumerate(generator(seed, "data", "folds").permutation(learners)):
        number_of[learner] = place % count
    return number_of


def whole(name: str, value: int) -> int:
    """The value as an int, refused when it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"folds: {name} should be a whole number, got {value!r}.") from None

"""Held-out learners: k-fold cross-validation by learner (RADFed section IV.C).

"We split all clients into 5 sets. One by one, a set is selected as the test set. For the remaining sets, one by one, a
set is selected as the validation set and the others are used as the training set": 20 combinations of five folds, each
60/20/20. Table III reports 5 folds times 3 seeds, one validation set each: that is `rotations=1`.

Laws:
  1. every learner is in one fold, and sizes of folds differ by at most one (143 learners: 85/29/29, as in the paper);
  2. over all combinations every learner is a test learner equally often, and a validation learner equally often;
  3. the order is fixed: by the test fold, then by the validation fold's distance after it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from archipel.core.checks import at_least, require
from archipel.core.randomness import generator
from archipel.core.types import Role


@dataclass(frozen=True)
class FoldRoles:
    """One combination of a test fold and a validation fold."""

    test: int
    """Number of the fold whose learners have the role "test"."""
    validation: int
    """Number of the fold whose learners have the role "validation"."""
    roles: tuple[Role, ...]
    """The role of every learner."""


def fold_roles(learners: int, count: int, seed: int, rotations: int | None) -> list[FoldRoles]:
    """Return every combination of a test fold and a validation fold; `Islands.folds` documents the arguments."""
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
        learners >= count,
        f"folds: count={count}, but there are only {learners} learners. "
        "Ask for fewer folds, or split over more learners.",
    )
    fold_of = deal_learners(learners, count, whole("seed", seed))
    combinations = []
    for test in range(count):
        for step in range(1, rotations + 1):
            validation = (test + step) % count
            held_out: dict[int, Role] = {test: "test", validation: "validation"}
            roles = tuple(held_out.get(fold, "train") for fold in fold_of)
            combinations.append(FoldRoles(test, validation, roles))
    return combinations


def deal_learners(learners: int, count: int, seed: int) -> list[int]:
    """Return the fold of every learner, at random; the first folds get one more if the division has a remainder."""
    fold_of = [0] * learners
    for place, learner in enumerate(generator(seed, "data", "folds").permutation(learners)):
        fold_of[learner] = place % count
    return fold_of


def whole(name: str, value: int) -> int:
    """Return the value as an int; refuse anything but a whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"folds: {name} should be a whole number, got {value!r}.") from None

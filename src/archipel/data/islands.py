"""What a split gives: all data in one tensor each for x and y, and every learner an index array into them.

Laws, checked when islands are made:
  1. a training index belongs to one learner only;
  2. no training index is in a test part or among the stimuli, and no stimulus is in a test part;
  3. every learner has training examples, and at least one learner trains.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import require
from archipel.core.types import Role
from archipel.data.folds import Fold, folds
from archipel.data.splits import carve_test, check_fraction, nobody_elses
from archipel.data.standardise import Statistics, standardised

ROLES = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Island:
    """One learner's part of the data."""

    name: str
    """Its index with leading zeros, so that sorting by name is the order of the islands."""
    train: Tensor
    """int64 indices into `Islands.x`."""
    test: Tensor
    """int64 indices of the learner's own test part; may be empty."""
    role: Role = "train"
    """What it is for: "validation" and "test" are learners held out as a whole."""


@dataclass(frozen=True, eq=False)
class Islands:
    """A data set split over learners."""

    x: Tensor
    y: Tensor
    learners: tuple[Island, ...]
    test: Tensor
    """int64 indices of the global test set at HOME; may be empty."""
    stimuli: Tensor
    """int64 indices held out of the test score, for representational consistency; may be empty."""
    classes: int | None
    """How many classes there are; None for a task without classes."""
    name: str

    def __post_init__(self) -> None:
        check_examples(self.x, self.y, self.classes, f"Islands {self.name!r}")
        names = [learner.name for learner in self.learners]
        for name, times in Counter(names).items():
            require(times == 1, f"Islands: two learners are called {name!r}. Give every learner its own name.")
        for learner in self.learners:
            require(
                learner.role in ROLES,
                f"Islands: learner {learner.name!r} has the unknown role {learner.role!r}. "
                f"Known roles: {', '.join(ROLES)}.",
            )
            self._check_indices(f"train of learner {learner.name!r}", learner.train)
            self._check_indices(f"test of learner {learner.name!r}", learner.test)
            require(
                len(learner.train) > 0,
                f"Islands: learner {learner.name!r} has no training examples: "
                "leave it out, or split over fewer learners.",
            )
        require(
            any(learner.role == "train" for learner in self.learners),
            f"Islands: none of the {len(names)} learners trains. Give at least one the role 'train'.",
        )
        self._check_indices("test", self.test)
        self._check_indices("stimuli", self.stimuli)
        self._check_laws()

    def _check_indices(self, what: str, indices: Tensor) -> None:
        check_indices(f"Islands: {what}", indices, len(self.x))

    def _check_laws(self) -> None:
        owner = torch.full((len(self.x),), -1)
        for number, learner in enumerate(self.learners):
            taken = learner.train[owner[learner.train] >= 0]
            if len(taken):
                other = self.learners[int(owner[taken[0]])].name
                raise ValueError(
                    f"Islands: example {int(taken[0])} is in the training part of both {other!r} and "
                    f"{learner.name!r}. Give every training example to one learner."
                )
            owner[learner.train] = number
        tests = [("the test set", self.test)]
        tests += [(f"the test part of {learner.name!r}", learner.test) for learner in self.learners]
        for what, indices in [*tests, ("the stimuli", self.stimuli)]:
            trained = indices[owner[indices] >= 0]
            if len(trained):
                trainer = self.learners[int(owner[trained[0]])].name
                raise ValueError(
                    f"Islands: example {int(trained[0])} is in {what} and in the training part of "
                    f"{trainer!r}. Take it out of one of them."
                )
        for what, indices in tests:
            shown = indices[torch.isin(indices, self.stimuli)]
            if len(shown):
                raise ValueError(
                    f"Islands: example {int(shown[0])} is in {what} and among the stimuli. Take it out of one of them."
                )

    def __repr__(self) -> str:
        return (
            f"<Islands {self.name!r}: {len(self.learners)} learners, {sum(self.sizes())} training, "
            f"{len(self.test)} test, {len(self.stimuli)} stimuli>"
        )

    def sizes(self) -> list[int]:
        """How many training examples every learner has."""
        return [len(learner.train) for learner in self.learners]

    def class_table(self) -> Tensor:
        """How many training examples of every class every learner has: [learners, classes], int64."""
        if self.classes is None:
            raise ValueError(f"class_table: {self.name!r} has no classes. Use sizes() instead.")
        rows = [torch.bincount(self.y[learner.train], minlength=self.classes) for learner in self.learners]
        return torch.stack(rows)

    def pooled(self) -> Islands:
        """One learner with everybody's training data: the centralised yardstick; held-out learners stay."""
        trainers = [learner for learner in self.learners if learner.role == "train"]
        pool = Island(
            trainers[0].name,
            # ascending, so that the yardstick does not depend on how the pool had been dealt out
            union(learner.train for learner in trainers),
            union(learner.test for learner in trainers),
        )
        learners = tuple(
            pool if learner is trainers[0] else learner
            for learner in self.learners
            if learner is trainers[0] or learner.role != "train"
        )
        return replace(self, learners=learners)

    def with_own_test(self, fraction: float = 0.2, seed: int = 0) -> Islands:
        """Every learner's own test part, taken out of its own data: training examples move to its test part.

        Class by class: the fraction of each to the example, one of each is left to train on, and a learner with two
        or more examples of a class has at least one to test on. One with a single example keeps it and is not tested.
        It takes the place of the own test parts there were (`without_own_test` says what happens to those), so doing
        it twice is doing it once. Learners that are held out stay as they are.
        """
        check_fraction("with_own_test: fraction", fraction)
        learners = []
        for learner, undivided in zip(self.learners, self.without_own_test().learners, strict=True):
            if learner.role == "train":
                mine = undivided.train
                labels = np.zeros(len(mine), dtype=np.int64) if self.classes is None else self.y[mine].numpy()
                tested = torch.from_numpy(carve_test(labels, fraction, (seed, "data", "carved test", learner.name)))
                learner = replace(learner, train=mine[~tested], test=mine[tested])
            learners.append(learner)
        return replace(self, learners=tuple(learners))

    def without_own_test(self) -> Islands:
        """Learners without own test parts: they train on what only they had tested on, and on nothing else more.

        Examples of the test set at HOME, and examples that several learners tested on, are not trained on.
        """
        own = nobody_elses((learner.test for learner in self.learners), self.test, len(self.x))
        learners = tuple(
            replace(
                learner,
                train=union((learner.train, learner.test[own[learner.test]])),
                test=learner.test[:0],
            )
            for learner in self.learners
        )
        return replace(self, learners=learners)

    def folds(self, count: int = 5, seed: int = 0, rotations: int | None = None) -> tuple[Fold, ...]:
        """Cross-validation by learner (RADFed): every fold once as test, the others in turn as validation.

        count: folds into which learners are dealt; of five come 20 combinations of 60/20/20, in a fixed order.
        seed: of the draw.
        rotations: how many of the other folds take a turn as validation beside each test fold; None: all; with 1 only
        the next one, for studies that cannot afford 20.

        A learner that is held out is tried on all it has, also on what `with_own_test` had put aside.

            for fold in islands.folds():
                run = simulate(algorithm, fold.islands.standardised("global"))
        """
        return folds(self, count, seed, rotations)

    def standardised(self, statistics: Statistics) -> Islands:
        """Features of mean 0 and deviation 1, by nobody's, everybody's or every learner's own statistics.

        statistics: "none", as they are; "global", by the training learners' training parts, as if pooled; "local",
        every learner by its own training part (RADFed section V.D).

        Islands that are standardised are new: these stay as they are. Take folds and own test parts first, since
        statistics are of what is trained on; save a split first, since its checksum is of x. The file `standardise.py`
        tells the rest.
        """
        return standardised(self, statistics)

    def save_split(self, path: str | os.PathLike[str]) -> None:
        """Save who has which examples, but no data, into one small file; `load_split(source, path)` reads it.

        It holds a checksum of x and y as they are here. So save before standardising, or any other change of x, and
        do the same after loading: nobody could load it from the source otherwise.
        """
        # imported late: the file is read into islands, so it needs this module
        from archipel.data.split_file import save_split

        save_split(self, path)


def union(parts: Iterable[Tensor]) -> Tensor:
    """All indices of the parts, without repeats, ascending."""
    indices: Tensor = torch.unique(torch.cat(list(parts)), sorted=True)
    return indices


def check_indices(what: str, indices: Tensor, examples: int) -> None:
    """Refuse what is no list of different int64 indices of examples."""
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise ValueError(
            f"{what} must be int64 indices in one dimension, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}. Convert a mask with mask.nonzero().flatten()."
        )
    wrong = indices[(indices < 0) | (indices >= examples)]
    if len(wrong):
        raise ValueError(
            f"{what} holds index {int(wrong[0])}, but there are {examples} examples. "
            f"Use indices from 0 to {examples - 1}."
        )
    values, times = torch.unique(indices, return_counts=True)
    if len(values) < len(indices):
        raise ValueError(f"{what} holds index {int(values[times > 1][0])} more than once. Keep every index once.")


def check_examples(x: Tensor, y: Tensor, classes: int | None, what: str) -> None:
    """Refuse x and y of different lengths, and labels outside their classes."""
    if len(x) != len(y):
        raise ValueError(f"{what}: x has {len(x)} examples, y has {len(y)}. Give one label per example.")
    if classes is None:
        return
    if y.dtype != torch.int64 or y.ndim != 1:
        raise ValueError(
            f"{what}: labels of {classes} classes must be int64 in one dimension, got {y.dtype} of shape "
            f"{tuple(y.shape)}. Convert them, or say classes=None for a task without classes."
        )
    wrong = y[(y < 0) | (y >= classes)]
    if len(wrong):
        raise ValueError(
            f"{what}: label {int(wrong[0])} is outside the {classes} classes 0 to {classes - 1}. "
            "Number the classes from 0, or raise classes."
        )

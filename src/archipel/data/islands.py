"""What a split gives: all data in one tensor each for x and y, and every learner an index array into them.

Laws, checked when islands are made:
  1. a training index belongs to one learner only;
  2. no training index is in a test part or among the stimuli, and no stimulus is in a test part;
  3. every learner has training examples, and at least one learner trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.types import Role

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
        if len(set(names)) < len(names):
            twice = next(name for name, times in Counter(names).items() if times > 1)
            raise ValueError(f"Islands: two learners are called {twice!r}. Give every learner its own name.")
        for learner in self.learners:
            if learner.role not in ROLES:
                raise ValueError(
                    f"Islands: learner {learner.name!r} has the unknown role {learner.role!r}. "
                    f"Known roles: {', '.join(ROLES)}."
                )
            self._check_indices(f"train of learner {learner.name!r}", learner.train)
            self._check_indices(f"test of learner {learner.name!r}", learner.test)
            if len(learner.train) == 0:
                raise ValueError(
                    f"Islands: learner {learner.name!r} has no training examples: "
                    "leave it out, or split over fewer learners."
                )
        if not any(learner.role == "train" for learner in self.learners):
            raise ValueError(f"Islands: none of the {len(names)} learners trains. Give at least one the role 'train'.")
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
        return Islands(self.x, self.y, learners, self.test, self.stimuli, self.classes, self.name)


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

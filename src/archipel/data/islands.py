"""The result of a split: all data in one tensor each for x and y, and every learner a row of indices into them.

Laws, checked when islands are made:
  1. a training index belongs to one learner only;
  2. no training index is in a test part or among the stimuli, and no stimulus is in a test part;
  3. every learner has training examples, and at least one learner trains.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import one_of, require
from archipel.core.randomness import generator
from archipel.core.types import Role
from archipel.data.augment import Augment
from archipel.data.folds import fold_roles
from archipel.data.index_table import IndexTable, class_counts
from archipel.data.island import Island, check_examples, check_indices
from archipel.data.island_table import ROLES, IslandTable, union
from archipel.data.split_file import SavedSplit, checksum, write_split
from archipel.data.splits import carve_tests, check_fraction, exclusive_tests
from archipel.data.standardise import (
    Statistics,
    combine,
    moments,
    refuse_whole_numbers,
    standardised_by,
    standardised_locally,
)


@dataclass(frozen=True, eq=False)
class Islands:
    """A data set split over learners."""

    x: Tensor
    y: Tensor
    learners: Sequence[Island]
    """Kept as rows of arrays, as `rows` returns them."""
    test: Tensor
    """int64 indices of the global test set at HOME; may be empty."""
    stimuli: Tensor
    """int64 indices held out of the test score, for representational consistency; may be empty."""
    classes: int | None
    """Number of classes; None for a task without classes."""
    name: str
    augment: Augment | None = None
    """How training images are changed at random, in every epoch anew."""

    @property
    def per_token(self) -> bool:
        """Whether every token of an example has its own target."""
        return self.classes is None and self.y.dtype == torch.int64 and self.y.ndim == 2

    def __post_init__(self) -> None:
        check_examples(self.x, self.y, self.classes, f"Islands {self.name!r}")
        if self.augment is not None:
            self.augment.check(self.x, self.name)
        if not isinstance(self.learners, IslandTable):
            object.__setattr__(self, "learners", IslandTable.of(self.learners))
        names = self.rows.names
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise ValueError(f"Islands: two learners are called {twice!r}. Give every learner its own name.")
        sound = self._is_sound()
        if not sound:  # find the first mistake, and say whose it is
            self._check_learners()
        require(
            bool(self.rows.has("train").any()),
            f"Islands: none of the {len(names)} learners trains. Give at least one the role 'train'.",
        )
        self._check_indices("test", self.test)
        self._check_indices("stimuli", self.stimuli)
        if not sound:
            self._check_laws()

    @property
    def rows(self) -> IslandTable:
        """The learners as rows of arrays: to look at all of them without an object for each."""
        assert isinstance(self.learners, IslandTable)
        return self.learners

    def _is_sound(self) -> bool:
        """Return whether all learners' parts obey all laws, in one pass over all of them."""
        if not all(part.dtype == torch.int64 and part.ndim == 1 for part in (self.test, self.stimuli)):
            return False
        if not self.rows.train.sizes.all():
            return False
        train, test = self.rows.train.indices, self.rows.tests.used
        used = torch.cat([train, test, self.test, self.stimuli])
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < len(self.x):
            return False
        trained, shown = (torch.zeros(len(self.x), dtype=torch.bool) for _ in range(2))
        trained[train] = True
        shown[self.stimuli] = True
        return (
            int(trained.sum()) == len(train)
            and not trained[used[len(train) :]].any()
            and not shown[test].any()
            and not shown[self.test].any()
            and self.rows.tests.distinct()
        )

    def _check_learners(self) -> None:
        """Refuse the first learner whose parts are wrong."""
        for learner in self.learners:
            self._check_indices(f"train of learner {learner.name!r}", learner.train)
            self._check_indices(f"test of learner {learner.name!r}", learner.test)
            require(
                len(learner.train) > 0,
                f"Islands: learner {learner.name!r} has no training examples: "
                "leave it out, or split over fewer learners.",
            )

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
        """Return the number of training examples of every learner."""
        return [int(size) for size in self.rows.train.sizes]

    def class_table(self) -> Tensor:
        """Count the training examples of every class at every learner: [learners, classes], int64."""
        if self.classes is None:
            raise ValueError(f"class_table: {self.name!r} has no classes. Use sizes() instead.")
        return class_counts(self.y, self.rows.train, self.classes)

    def pooled(self) -> Islands:
        """Give all training data to one learner, as a centralised baseline; held-out learners stay."""
        rows = self.rows
        train = rows.has("train")
        # ascending, so that the baseline does not depend on how the data were split
        everything, tested = (union(parts, train, len(self.x)) for parts in (rows.train, rows.tests))
        first = int(train.argmax())
        pool = Island(rows.names[first], everything, tested)
        kept = np.flatnonzero(~train | (np.arange(len(rows)) == first)).tolist()
        return replace(self, learners=[pool if row == first else rows[row] for row in kept])

    def with_own_test(self, fraction: float = 0.2, seed: int = 0) -> Islands:
        """Move a part of every learner's training examples to its own test part.

        The fraction holds for each class, exact to the example. One example of each class is left to train on, and a
        learner with two or more examples of a class has at least one to test on. A learner with a single example keeps
        it and is not tested. Existing own test parts are replaced (`without_own_test` says what happens to their
        examples), so a second call has the effect of the first. Held-out learners stay as they are.
        """
        check_fraction("with_own_test: fraction", fraction)
        rows, undivided = self.rows, self.without_own_test().rows.train
        labels = torch.zeros(len(self.y), dtype=torch.int64) if self.classes is None else self.y
        draws = (generator(seed, "data", "carved test", name) for name in rows.names)
        tested = torch.from_numpy(carve_tests(labels[undivided.indices].numpy(), undivided.starts, fraction, draws))
        carved = replace(rows, train=undivided.where(~tested), tests=undivided.where(tested))
        held_out = np.flatnonzero(~rows.has("train")).tolist()
        return replace(self, learners=carved.replaced({row: rows[row] for row in held_out}))

    def without_own_test(self) -> Islands:
        """Remove the own test parts; examples that were only in one of them return to its training part.

        Examples of the test set at HOME, and examples in the test parts of several learners, are not trained on.
        """
        rows = self.rows
        exclusive = exclusive_tests(rows.tests, self.test, len(self.x))
        returned = IndexTable.empty(len(rows))
        if exclusive.any():
            returned = IndexTable.of(part[exclusive[part]] for part in rows.tests)
        whole = replace(rows, train=rows.train.joined(returned), tests=IndexTable.empty(len(rows)))
        return replace(self, learners=whole)

    def folds(self, count: int = 5, seed: int = 0, rotations: int | None = None) -> tuple[Fold, ...]:
        """Cross-validate by learner (RADFed): every fold is the test fold once, the others are validation in turn.

        count: number of folds; five give 20 combinations of 60/20/20, in a fixed order.
        seed: of the random draw.
        rotations: number of other folds that are used as validation beside each test fold; None: all; with 1 only
        the next one, for studies that cannot afford 20.

        A held-out learner is scored on all its examples, including those that `with_own_test` has set aside.

            for fold in islands.folds():
                run = simulate(algorithm, fold.islands.standardised("global"))
        """
        rows = self.rows
        combinations = fold_roles(len(rows), count, seed, rotations)
        for row in np.flatnonzero(~rows.has("train"))[:1].tolist():
            raise ValueError(
                f"folds: learner {rows.names[row]!r} is held out already, its role is {rows.role(row)!r}. "
                "Take folds of islands where every learner trains."
            )
        undivided = self.without_own_test().learners

        def fold_learners(roles: tuple[Role, ...]) -> IslandTable:
            held_out = {row: role for row, role in enumerate(roles) if role != "train"}
            return rows.replaced({row: replace(undivided[row], role=role) for row, role in held_out.items()})

        return tuple(
            Fold(replace(self, learners=fold_learners(one.roles)), one.test, one.validation) for one in combinations
        )

    def standardised(self, statistics: Statistics) -> Islands:
        """Return islands with features of mean 0 and deviation 1.

        statistics: "none", x as it is; "global", by the training learners' training parts, as if pooled; "local",
        every learner by its own training part (RADFed section V.D).

        These islands stay as they are. Call `folds` and `with_own_test` first, since statistics are of training parts;
        save a split first, since its checksum is of x. The file `standardise.py` describes the details.
        """
        one_of("standardised", "statistics", statistics, ("none", "global", "local"))
        if statistics == "none":
            return self
        refuse_whole_numbers(f"standardised: x of {self.name!r}", self.x)
        rows = self.rows
        measured = [moments(self.x, train) for train in rows.train]
        for name, mine in zip(rows.names, measured, strict=True):
            wrong = int((~(mine.sum + mine.squares).isfinite()).sum())
            require(
                wrong == 0,
                f"standardised: learner {name!r} has {wrong} features of {mine.sum.numel()} without a finite "
                "mean and deviation. Fill in NaN and infinite values, or leave those examples out.",
            )
        common = combine(measured[row] for row in np.flatnonzero(rows.has("train")))
        if statistics == "global":
            return replace(self, x=standardised_by(self.x, common))
        exclusive = exclusive_tests(rows.tests, self.test, len(self.x))
        x, copied, moved = standardised_locally(self.x, [*rows.train], [*rows.tests], exclusive, measured, common)
        learners = replace(rows, tests=IndexTable.of(moved))
        return replace(self, x=x, y=torch.cat([self.y, self.y[copied]]), learners=learners)

    def augmented(self, pad: int = 4, flip: bool = True) -> Islands:
        """Return islands whose training images are cropped and flipped at random, in every epoch anew.

        pad: pixels of padding on each side, by reflection, out of which an image of the old size is cropped.
        flip: flip half of the images, left to right.

        Validation and test images stay as they are.
        """
        return replace(self, augment=Augment(pad, flip))

    def save_split(self, path: str | os.PathLike[str]) -> None:
        """Save the learners' indices, but no data, into one small file; `load_split(source, path)` reads it.

        The file holds a checksum of x and y. Save before standardising or changing x in another way, and repeat that
        after loading: the split can only be loaded with a source that has the same x.
        """
        saved = SavedSplit(
            self.name,
            len(self.x),
            self.classes,
            checksum(self.x, self.y),
            self.learners,
            self.test,
            self.stimuli,
        )
        write_split(saved, Path(path))


@dataclass(frozen=True, eq=False)
class Fold:
    """One combination: the learners of two folds are held out, the others train."""

    islands: Islands
    test: int
    """Number of the fold whose learners have the role "test"."""
    validation: int
    """Number of the fold whose learners have the role "validation"."""

    def __repr__(self) -> str:
        counts = "/".join(str(self.islands.rows.has(role).sum()) for role in ROLES)
        return f"<Fold test={self.test} validation={self.validation}: {counts} learners of {self.islands.name!r}>"

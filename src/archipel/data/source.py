"""A data set before it is split, and the ways to split it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import require
from archipel.core.randomness import generator
from archipel.data.array_types import IntArray
from archipel.data.classes import Feature, deal
from archipel.data.colour import grey_images, grey_share, with_grey
from archipel.data.features import concentrations
from archipel.data.forms import a_number, call, unknown
from archipel.data.home_tests import HomeTests
from archipel.data.index_table import IndexTable, LearnerParts
from archipel.data.island import check_examples, check_indices
from archipel.data.island_table import IslandTable
from archipel.data.islands import Islands
from archipel.data.natural import named, owners
from archipel.data.normalise import normalised
from archipel.data.sizes import whole_number
from archipel.data.split_file import checksum, read_split
from archipel.data.splits import check_fraction, hold_out, take_stimuli


@dataclass(frozen=True, eq=False)
class Source:
    """A data set before it is split; x and y are kept as they are."""

    x: Tensor
    y: Tensor
    classes: int | None
    """Number of classes; None for a task without classes."""
    name: str
    test: Tensor | None = None
    """int64 indices of the official test set, if there is one."""
    sites: Tensor | None = None
    """int64 number of every example's natural site (writer, role, hospital, track …), if the data have sites."""
    site_names: tuple[str, ...] = ()
    """Names of the sites, by number."""
    categories: Mapping[str, Tensor] = field(default_factory=dict)
    """int64 codes of categorical features, by name, that a feature skew can be drawn over (RADFed formula 2)."""

    def __post_init__(self) -> None:
        check_examples(self.x, self.y, self.classes, f"Source {self.name!r}")
        if self.test is not None:
            check_indices(f"Source {self.name!r}: test", self.test, len(self.x))
        if self.sites is not None:
            check_codes(f"Source {self.name!r}: sites", self.sites, len(self.x), len(self.site_names))
        for feature, codes in self.categories.items():
            check_codes(f"Source {self.name!r}: category {feature!r}", codes, len(self.x), None)

    def __repr__(self) -> str:
        task = "no classes" if self.classes is None else f"{self.classes} classes"
        return f"<Source {self.name!r}: {len(self.x)} examples, {task}>"

    def split(
        self,
        learners: int,
        sizes: str | Sequence[int] | None = None,
        classes: str | int | Sequence[int] = "iid",
        test: float | str | None = 0.2,
        stimuli: int = 5,
        seed: int = 0,
        features: str | Mapping[str, float] | None = None,
    ) -> Islands:
        """Split the data over learners.

        learners: number of learners.
        sizes: number of examples of each learner: "uniform" (the default), "skewed", "powerlaw" or "powerlaw(1.5)",
        "1500-2500", "dirichlet(1)", or one number per learner.
        classes: classes of each learner: "iid", the same number of classes for every learner, or one number per learner
        ("8x1,4x1,3x8"), "2-6", "dirichlet(0.1)", or "disjoint(2)", which gives every learner all examples of its
        classes unless sizes are given.
        test: fraction held out as the global test set (a source with an official test set uses that one); "none":
        nothing is held out, and official test images are split with the rest; "own" or "own(0.2)": this fraction of
        every learner's own examples is its own test part.
        stimuli: examples of each class, taken out of the global test set, on which layers are compared.
        seed: of all random draws.
        features: skew of categories: "dirichlet(0.1)" for all of the source's, "soil=0.1" or {"soil": 0.1} for some.

        The files `sizes.py`, `classes.py` and `features.py` describe each setting.
        """
        learners = whole_number("learners", learners)
        seed = whole_number("seed", seed, at_least=0)
        if self.classes is None and not (isinstance(classes, str) and classes == "iid"):
            raise ValueError(f"split: classes={classes!r}, but {self.name!r} has no classes. Leave classes at 'iid'.")
        labels = self._labels()
        part, own = held_out(test)
        pool, home, seen = self._hold_out(labels, np.arange(len(labels)), labels, part, stimuli, seed)
        skewed = {} if features is None else concentrations(features, self.categories, self.name)
        columns = [
            Feature(feature, self.categories[feature].numpy()[pool], concentration)
            for feature, concentration in skewed.items()
        ]
        owner = deal(labels[pool], learners, sizes, classes, seed, columns)
        train = IndexTable.grouped(pool, owner, learners)
        tests = own_tests(labels, train, home, seed)
        return self._islands(numbered(learners), train, tests, home, seen, own, seed)

    def natural(
        self,
        learners: int | None = None,
        at_least: int = 1,
        test: float | str | None = 0.2,
        stimuli: int = 5,
        seed: int = 0,
        merged: bool = False,
    ) -> Islands:
        """Make every site (writer, role, hospital …) a learner: all of them, or some drawn at random.

        learners: number of sites drawn; None: all.
        at_least: sites with fewer examples are left out.
        test: fraction held out as the global test set (a source with an official test set uses that one); "none":
        nothing is held out; "own" or "own(0.2)": this fraction of every learner's own examples is its own test part.
        stimuli: examples of each class, taken out of the global test set, on which layers are compared.
        seed: of all random draws.
        merged: distribute all sites over the learners, several to each (HDAFL: FEMNIST's writers on 100 learners).

        The global test set holds a part of every class of every site, and a learner's own test part is what it holds of
        the learner's site. If the official test set is from other sites, the own test part has the learner's class
        proportions.
        """
        seed = whole_number("seed", seed, at_least=0)
        if self.sites is None:
            raise ValueError(
                f"natural: {self.name!r} has no sites. Use split(), or give the source its sites: "
                "from_arrays(x, y, sites=...)."
            )
        labels, sites = self._labels(), self.sites.numpy()
        part, own = held_out(test)
        official = np.zeros(len(labels), dtype=bool)
        if part is not None and self.test is not None:
            official[self.test.numpy()] = True
        counts = np.bincount(sites[~official], minlength=len(self.site_names))
        owner = owners(self.name, counts, at_least, learners, merged, seed)
        names = numbered(int(owner.max()) + 1)
        here = np.flatnonzero((owner[sites] >= 0) | official)
        # a stratum for every class at every site
        strata = np.unique(sites[here] * (int(labels.max()) + 1) + labels[here], return_inverse=True)[1]
        pool, home, seen = self._hold_out(labels, here, strata.astype(np.int64), part, stimuli, seed)
        train = IndexTable.grouped(pool, owner[sites[pool]], len(names))
        from_here = owner[sites[home]]
        if (from_here >= 0).any():
            tests: LearnerParts = IndexTable.grouped(home, from_here, len(names))
        else:
            tests = own_tests(labels, train, home, seed)
        if not merged:
            names = named(names, owner, self.site_names)
        return self._islands(names, train, tests, home, seen, own, seed)

    def colour_skew(self, share: float | str = 0.95, test: str = "alike", seed: int = 0) -> Source:
        """Make colour images mostly grey in the first half of the classes and rarely grey in the second half (D&C).

        share: fraction of the first half's images that become grey; 1 - share of the others do; or "95-5".
        test: official test images: "alike", with the same shares; "half", one half of every class is grey; "colour",
        none is; or "grey", all are.
        seed: of all random draws.

        With `.split(learners=2, classes="disjoint(5)")` each half of ten classes is at one learner.
        """
        seed = whole_number("seed", seed, at_least=0)
        part = grey_share(share)
        require(
            self.x.ndim == 4 and self.x.shape[1] == 3,
            f"colour_skew: {self.name!r} has no colour images: x should have the shape [examples, 3, height, width], "
            f"got {tuple(self.x.shape)}.",
        )
        grey = grey_images(self.name, self.y.numpy(), self.classes, self.test, part, test, seed)
        return replace(self, x=with_grey(self.x, grey), name=f"{self.name}, {part:.0%} and {1 - part:.0%} grey")

    def with_classes_drawn(self, seed: int = 0) -> Source:
        """Renumber the classes in an order drawn at random: `disjoint` and `colour_skew` then group others together."""
        if self.classes is None:
            raise ValueError(f"with_classes_drawn: {self.name!r} has no classes. Leave draw_classes out.")
        order = generator(seed, "data", "order of classes").permutation(self.classes)
        return replace(self, y=torch.from_numpy(order)[self.y])

    def normalised(self, mean: Sequence[float], deviation: Sequence[float]) -> Source:
        """Subtract a mean from every channel of the images and divide by a deviation, training and test images alike.

        mean, deviation: one number for each channel, such as those that a network was trained with.
        """
        return replace(self, x=normalised(self.x, mean, deviation, self.name))

    def with_category(self, feature: str, codes: Tensor) -> Source:
        """Add a category to skew: `source.with_category("height", bucketed(source.x[:, 0], 4))`."""
        return replace(self, categories={**self.categories, feature: codes})

    def _labels(self) -> IntArray:
        """Return every example's class; a task without classes is split as one class."""
        return np.zeros(len(self.y), dtype=np.int64) if self.classes is None else self.y.numpy()

    def _hold_out(
        self, labels: IntArray, here: IntArray, strata: IntArray, part: float | None, stimuli: int, seed: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Divide the examples `here`, each in a stratum, into training examples, global test set and stimuli."""
        stimuli = whole_number("stimuli", stimuli, at_least=0)
        tested = np.zeros(len(labels), dtype=bool)
        if part is not None and self.test is not None:
            tested[self.test.numpy()] = True
        elif part is not None:
            tested[here] = hold_out(strata, part, seed)
        pool, home = here[~tested[here]], here[tested[here]]
        shown = take_stimuli(labels[home], stimuli, seed)
        return pool, home[~shown], home[shown]

    def _islands(
        self,
        names: list[str],
        train: IndexTable,
        tests: LearnerParts,
        home: IntArray,
        seen: IntArray,
        own: float | None,
        seed: int,
    ) -> Islands:
        """Return the islands with these names and parts."""
        learners = IslandTable.training(names, train, tests)
        home_test, stimuli = torch.from_numpy(home), torch.from_numpy(seen)
        islands = Islands(self.x, self.y, learners, home_test, stimuli, self.classes, self.name)
        return islands if own is None else islands.with_own_test(own, seed)


def numbered(learners: int) -> list[str]:
    """Return numbers as names of equal length, which sort in the order of the numbers."""
    digits = max(2, len(str(learners - 1)))
    return [f"{number:0{digits}}" for number in range(learners)]


def own_tests(labels: IntArray, train: IndexTable, home: IntArray, seed: int) -> LearnerParts:
    """Return every learner's own test part, taken from the test set at HOME."""
    return HomeTests(labels, train, torch.from_numpy(home), seed) if len(home) else IndexTable.empty(len(train))


def held_out(test: float | str | None) -> tuple[float | None, float | None]:
    """Return the fraction held out as the global test set and that of own test parts; at most one is not None."""
    if test is None or test == "none":
        return None, None
    if test == "own":
        return None, 0.2
    number = a_number(test) if isinstance(test, str) else test
    if isinstance(number, int | float | np.floating):
        check_fraction("split: test", number)
        return number, None
    match call(str(test)):
        case "own", part:
            check_fraction("split: test: own", part)
            return None, part
        case _:
            raise unknown("test", test, ("0.2", "none", "own", "own(0.2)"))


def check_codes(what: str, codes: Tensor, examples: int, known: int | None) -> None:
    """Refuse anything but a tensor with one int64 number for every example."""
    if not isinstance(codes, Tensor) or codes.dtype != torch.int64 or tuple(codes.shape) != (examples,):
        kind = f"a {type(codes).__module__.partition('.')[0]} {type(codes).__name__}"
        if isinstance(codes, Tensor):
            kind = f"{codes.dtype} of shape {tuple(codes.shape)}"
        raise ValueError(
            f"{what} must be a torch tensor with one int64 number for each of the {examples} examples, got {kind}. "
            "Number the values with torch.from_numpy(np.unique(values, return_inverse=True)[1]); from_arrays(x, y, "
            "sites=values) does so for sites."
        )
    if int(codes.min()) < 0 or (known is not None and int(codes.max()) >= known):
        raise ValueError(
            f"{what} are numbered from {int(codes.min())} to {int(codes.max())}, and there are {known} names. "
            "Number them from 0, with a name for each."
        )


def load_split(source: Source, path: str | os.PathLike[str]) -> Islands:
    """Load islands that `Islands.save_split` saved, with the data of the source that they were split from.

    A split of a source whose x was changed, for example by `colour_skew`, loads with a source that has the same change.
    """
    saved = read_split(Path(path))
    mine = checksum(source.x, source.y)
    require(
        mine == saved.checksum,
        f"{path} is a split of another source.\n"
        f"  saved:  {saved.source!r}, {saved.examples} examples, checksum {saved.checksum}\n"
        f"  given:  {source.name!r}, {len(source.x)} examples, checksum {mine}\n"
        "Load it with the source it was split from, prepared in the same way; save it before standardising.",
    )
    return Islands(source.x, source.y, saved.learners, saved.test, saved.stimuli, saved.classes, saved.source)

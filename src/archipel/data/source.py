"""A data set before it is split, and how to make one from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.classes import Feature, deal
from archipel.data.colour import colour_skewed
from archipel.data.features import concentrations
from archipel.data.forms import a_number, call, unknown
from archipel.data.islands import Island, Islands, check_examples, check_indices
from archipel.data.natural import gathered, named, owners
from archipel.data.sizes import Counts, whole_number
from archipel.data.splits import check_fraction, hold_out, own_test, take_stimuli


@dataclass(frozen=True, eq=False)
class Source:
    """A data set before it is split; x and y are kept as they are."""

    x: Tensor
    y: Tensor
    classes: int | None
    """How many classes there are; None for a task without classes."""
    name: str
    test: Tensor | None = None
    """int64 indices of the official test set, if there is one."""
    sites: Tensor | None = None
    """int64 number of the natural site (writer, role, hospital, track …) of every example, if there are such."""
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
        """Split the data over learners: how many examples each gets, of which classes, and what is held out.

        learners: how many there are.
        sizes: how many examples each has: "uniform" (as without it), "skewed", "powerlaw" or "powerlaw(1.5)",
        "1500-2500", "dirichlet(1)", or one number per learner.
        classes: which classes each has: "iid", a number of classes for everyone, or one per learner ("8x1,4x1,3x8"),
        "2-6", "dirichlet(0.1)", or "disjoint(2)", which gives every learner all examples of its classes unless sizes
        are named.
        test: the part held out as the global test set (a source with an official test set uses that one); "none":
        nothing is held out, and official test images are dealt out with the rest; "own" or "own(0.2)": that part of
        every learner's own examples is its own test part.
        stimuli: examples of each class, taken out of the global test set, on which layers are compared.
        seed: of everything that is drawn.
        features: skew of categories: "dirichlet(0.1)" for all of the source's, "soil=0.1" or {"soil": 0.1} for some.

        The files `sizes.py`, `classes.py` and `features.py` say more about each.
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
        parts = [pool[positions] for positions in deal(labels[pool], learners, sizes, classes, seed, columns)]
        tests = own_tests(labels, parts, home, seed)
        return self._islands(numbered(learners), parts, tests, home, seen, own, seed)

    def natural(
        self,
        learners: int | None = None,
        at_least: int = 1,
        test: float | str | None = 0.2,
        stimuli: int = 5,
        seed: int = 0,
        merged: bool = False,
    ) -> Islands:
        """Every site (writer, role, hospital …) is a learner: all of them, or so many drawn at random.

        learners: how many sites are drawn; None: all.
        at_least: sites with fewer examples are left out.
        test: the part held out as the global test set (a source with an official test set uses that one); "none":
        nothing is held out; "own" or "own(0.2)": that part of every learner's own examples is its own test part.
        stimuli: examples of each class, taken out of the global test set, on which layers are compared.
        seed: of everything that is drawn.
        merged: deal all sites out to the learners, several to each (HDAFL: FEMNIST's writers on 100 learners).

        The global test set has every site's and every class's part, and a learner's own test part is what of it is from
        its site; an official test set from other sites gives it as much as has its proportions.
        """
        seed = whole_number("seed", seed, at_least=0)
        if self.sites is None:
            raise ValueError(f"natural: {self.name!r} has no sites. Use split(), or give the source its sites.")
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
        parts = gathered(pool, owner[sites[pool]], len(names))
        from_here = owner[sites[home]]
        if (from_here >= 0).any():
            tests = gathered(home, from_here, len(names))
        else:
            tests = own_tests(labels, parts, home, seed)
        if not merged:
            names = named(names, owner, self.site_names)
        return self._islands(names, parts, tests, home, seen, own, seed)

    def colour_skew(self, share: float | str = 0.95, test: str = "alike", seed: int = 0) -> Source:
        """Colour images, mostly grey in the first half of the classes and mostly not in the others (D&C).

        share: part of the first half's images turned to grey, and 1 - share is that of the others; or "95-5".
        test: official test images are turned "alike", or all stay in "colour", or are all "grey".
        seed: of the images that are drawn.

        With `.split(learners=2, classes="disjoint(5)")` each half of ten classes is at one learner.
        """
        return colour_skewed(self, share, test, whole_number("seed", seed, at_least=0))

    def with_category(self, feature: str, codes: Tensor) -> Source:
        """The source with one more category to skew: `source.with_category("height", bucketed(source.x[:, 0], 4))`."""
        return replace(self, categories={**self.categories, feature: codes})

    def _labels(self) -> Counts:
        """Every example's class; a task without classes is split as one class."""
        return np.zeros(len(self.y), dtype=np.int64) if self.classes is None else self.y.numpy()

    def _hold_out(
        self, labels: Counts, here: Counts, strata: Counts, part: float | None, stimuli: int, seed: int
    ) -> tuple[Counts, Counts, Counts]:
        """Which of the examples here, each in a stratum, are for training, for the global test set, and stimuli."""
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
        parts: list[Counts],
        tests: list[Counts],
        home: Counts,
        seen: Counts,
        own: float | None,
        seed: int,
    ) -> Islands:
        """The islands with these names and parts."""
        learners = tuple(
            Island(name, torch.from_numpy(train), torch.from_numpy(test))
            for name, train, test in zip(names, parts, tests, strict=True)
        )
        home_test, stimuli = torch.from_numpy(home), torch.from_numpy(seen)
        islands = Islands(self.x, self.y, learners, home_test, stimuli, self.classes, self.name)
        return islands if own is None else islands.with_own_test(own, seed)


def numbered(learners: int) -> list[str]:
    """Names that sort in the order of the numbers."""
    digits = max(2, len(str(learners - 1)))
    return [f"{number:0{digits}}" for number in range(learners)]


def own_tests(labels: Counts, parts: list[Counts], home: Counts, seed: int) -> list[Counts]:
    """Every learner's own test part, taken from the test set at HOME."""
    return [
        home[own_test(labels[part], labels[home], (seed, "data", "own test", number))]
        for number, part in enumerate(parts)
    ]


def held_out(test: float | str | None) -> tuple[float | None, float | None]:
    """The part held out as the global test set, or of every learner's own examples, or neither."""
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
    """Refuse what is not one int64 number of a kind for every example."""
    if codes.dtype != torch.int64 or tuple(codes.shape) != (examples,):
        raise ValueError(
            f"{what} must be one int64 number for each of the {examples} examples, got {codes.dtype} of shape "
            f"{tuple(codes.shape)}. Number the kinds with np.unique(values, return_inverse=True)[1]."
        )
    if int(codes.min()) < 0 or (known is not None and int(codes.max()) >= known):
        raise ValueError(
            f"{what} are numbered from {int(codes.min())} to {int(codes.max())}, and there are {known} names. "
            "Number them from 0, with a name for each."
        )


def from_arrays(x: NDArray[Any] | Tensor, y: NDArray[Any] | Tensor, name: str = "arrays") -> Source:
    """A source from your own numpy arrays or tensors.

    Whole-number labels are classes, float labels a regression. x becomes float32;
    for x that must stay whole numbers, such as token ids, make a `Source` directly.
    """
    features, labels = as_numpy(x), as_numpy(y)
    for what, values in (("x", features), ("y", labels)):
        if values.dtype.kind not in "fiub" or values.ndim == 0:
            raise ValueError(
                f"from_arrays: {what} must be an array of numbers, got {values.dtype} of shape "
                f"{values.shape}. Encode text and categories as numbers first."
            )
    if len(features) != len(labels):
        raise ValueError(
            f"from_arrays: x has {len(features)} examples, y has {len(labels)}. Give one label per example."
        )
    if len(features) == 0:
        raise ValueError("from_arrays: x and y are empty. Give at least one example.")
    if labels.dtype.kind == "f":
        targets = float32("y", labels)
        if (labels == np.round(labels)).all():
            raise ValueError(
                f"from_arrays: y holds floats that are all whole numbers, such as {labels.flat[0]}. "
                "For classes pass y.astype('int64') (y.long() in torch); for a regression make "
                "Source(x, y, classes=None, name=...) directly."
            )
        return Source(float32("x", features), targets, None, name)
    if labels.ndim != 1:
        raise ValueError(
            f"from_arrays: class labels must have one dimension, got shape {labels.shape}. "
            "Pass y.ravel(), or y.argmax(1) when the labels are one-hot."
        )
    if labels.min() < 0:
        raise ValueError(
            f"from_arrays: y holds the negative label {labels.min()}. Number the classes from 0, "
            "for example with np.unique(y, return_inverse=True)[1]."
        )
    whole = torch.from_numpy(labels.astype(np.int64))
    return Source(float32("x", features), whole, int(whole.max()) + 1, name)


def as_numpy(values: NDArray[Any] | Tensor) -> NDArray[Any]:
    """The values as a numpy array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16
        return (values.float() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def float32(what: str, values: NDArray[Any]) -> Tensor:
    """The values as a float32 tensor of its own, refused when one is not finite."""
    # a copy: the data must not change behind a run's back
    tensor = torch.from_numpy(values.astype(np.float32, order="C"))
    wrong = int((~tensor.isfinite()).sum())
    if wrong:
        raise ValueError(
            f"from_arrays: {what} holds {wrong} values of {tensor.numel()} that are NaN or infinite in "
            "float32. Fill them in, or leave those examples out."
        )
    return tensor

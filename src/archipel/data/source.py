"""A data set before it is split, and how to make one from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.classes import deal
from archipel.data.islands import Island, Islands, check_examples, check_indices
from archipel.data.sizes import whole_number
from archipel.data.splits import hold_out, own_test, take_stimuli


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
        sizes: str | Sequence[int] = "uniform",
        classes: str | int | Sequence[int] = "iid",
        test: float = 0.2,
        stimuli: int = 5,
        seed: int = 0,
    ) -> Islands:
        """Split the data over learners: how many examples each gets, of which classes, and what is held out.

        `sizes` is "uniform", "skewed", "powerlaw" or one number per learner; `classes` is "iid", a number of
        classes for everyone, or one number per learner. `test` is the part held out as the global test set;
        a source with an official test set uses that one. `stimuli` is a number per class, taken out of the
        test set.
        """
        learners = whole_number("learners", learners)
        stimuli = whole_number("stimuli", stimuli, at_least=0)
        seed = whole_number("seed", seed, at_least=0)
        if self.classes is None and not (isinstance(classes, str) and classes == "iid"):
            raise ValueError(f"split: classes={classes!r}, but {self.name!r} has no classes. Leave classes at 'iid'.")
        # a task without classes is split as one class
        labels = np.zeros(len(self.y), dtype=np.int64) if self.classes is None else self.y.numpy()
        if self.test is None:
            tested = hold_out(labels, test, seed)
        else:
            tested = np.zeros(len(labels), dtype=bool)
            tested[self.test.numpy()] = True
        pool, home = np.flatnonzero(~tested), np.flatnonzero(tested)
        shown = take_stimuli(labels[home], stimuli, seed)
        home, seen = home[~shown], home[shown]

        parts = [pool[positions] for positions in deal(labels[pool], learners, sizes, classes, seed)]
        digits = max(2, len(str(learners - 1)))
        islands = tuple(
            Island(
                name=f"{number:0{digits}}",
                train=torch.from_numpy(part),
                test=torch.from_numpy(home[own_test(labels[part], labels[home], (seed, "data", "own test", number))]),
            )
            for number, part in enumerate(parts)
        )
        return Islands(self.x, self.y, islands, torch.from_numpy(home), torch.from_numpy(seen), self.classes, self.name)


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

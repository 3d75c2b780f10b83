"""Examples held out of training: the test set at HOME, the stimuli, own test parts and validation parts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import require
from archipel.core.randomness import generator
from archipel.data.array_types import BoolArray, IntArray
from archipel.data.index_table import LearnerParts
from archipel.data.sizes import apportion


def stratified_validation(
    labels: Tensor | None, fraction: float, key: tuple[int | str, ...], examples: int | None = None
) -> tuple[Tensor, Tensor]:
    """Divide one learner's examples into positions to train on and positions to validate on, class by class.

    A class with two or more examples has at least one on either side; a single example is for training. Without
    classes (labels=None and a number of examples, or targets that are not classes) the part is random.
    """
    check_fraction("stratified_validation: fraction", fraction)
    if labels is None:
        if examples is None:
            raise ValueError(
                "stratified_validation: labels=None does not say how many examples there are. "
                "Give examples=..., or pass the targets."
            )
        strata = np.zeros(examples, dtype=np.int64)
    elif labels.is_floating_point() or labels.ndim != 1:
        strata = np.zeros(len(labels), dtype=np.int64)
    else:
        # numbered by rank, so that a learner that holds only classes 7 and 9 has two strata
        strata = np.unique(labels.numpy(), return_inverse=True)[1].astype(np.int64)
    supply = np.bincount(strata)
    wanted = np.floor(fraction * supply + 0.5).astype(np.int64)
    mask = draw(strata, np.minimum(np.maximum(wanted, 1), supply - 1), generator(*key))
    return indices(~mask), indices(mask)


def validation_sizes(table: Tensor | None, sizes: IntArray, fraction: float) -> IntArray:
    """Return how many examples `stratified_validation` reserves of every learner's; a fraction of 0 reserves none.

    table: examples of every class at every learner; None: there are no classes. sizes: examples of every learner.
    """
    supply = sizes[:, None] if table is None else table.numpy()
    wanted = np.maximum(np.floor(fraction * supply + 0.5).astype(np.int64), 1)
    reserved: IntArray = np.minimum(wanted, np.maximum(supply - 1, 0)).sum(1)
    return reserved if fraction else np.zeros_like(reserved)


def hold_out(labels: IntArray, fraction: float, seed: int) -> BoolArray:
    """Mark a test set, stratified by class, that leaves at least one example of every class for training."""
    check_fraction("split: test", fraction)
    supply = np.bincount(labels)
    test = apportion(round(fraction * len(labels)), supply.astype(np.float64), np.zeros_like(supply))
    return draw(labels, np.minimum(test, np.maximum(supply - 1, 0)), generator(seed, "data", "test"))


def take_stimuli(labels: IntArray, per_class: int, seed: int) -> BoolArray:
    """Mark the stimuli among the test examples: `per_class` of every class, but never more than half of a class."""
    counts = np.minimum(per_class, np.bincount(labels) // 2)
    return draw(labels, counts, generator(seed, "data", "stimuli"))


def own_test(train: IntArray, labels: IntArray, key: tuple[int | str, ...]) -> BoolArray:
    """Mark a learner's own test part: the largest part of the test set with the proportions of its training labels.

    No training data are used, and learners may share test examples. Classes that the test set lacks are left out of the
    proportions; at least one example of the learner's largest other class is taken.
    """
    width = int(max(train.max(), labels.max(initial=0))) + 1
    available = np.bincount(labels, minlength=width)
    mine = np.bincount(train, minlength=width) * (available > 0)
    if not mine.any():
        return np.zeros(len(labels), dtype=bool)
    total = mine.sum()
    most = int((available[mine > 0] * total // mine[mine > 0]).min())
    counts = apportion(most, mine.astype(np.float64), np.zeros_like(mine))
    counts[mine.argmax()] = max(1, counts[mine.argmax()])
    return draw(labels, counts, generator(*key))


def carve_tests(labels: IntArray, starts: IntArray, fraction: float, draws: Iterable[np.random.Generator]) -> BoolArray:
    """Mark a test part of every learner's own examples: this fraction of every class, exact to the example.

    labels: of all learners' examples, one learner after the other; starts: where each learner's begin, and the end.
    draws: a generator for each learner.

    Every class keeps one example to train on. A learner with two or more examples of a class has at least one to test
    on.
    """
    check_fraction("with_own_test: fraction", fraction)
    sizes = np.diff(starts)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # a stratum is a class of a learner; they are numbered learner by learner
    cells, stratum, supply = np.unique(
        owner * (int(labels.max(initial=0)) + 1) + labels, return_inverse=True, return_counts=True
    )
    whose = cells // (int(labels.max(initial=0)) + 1)
    strata = np.bincount(whose, minlength=len(sizes))
    turns, shuffled = np.empty(len(cells), np.int64), np.empty(len(labels), np.int64)
    place = 0
    for random, kinds, start, size in zip(draws, strata.tolist(), starts[:-1].tolist(), sizes.tolist(), strict=True):
        turns[place : place + kinds] = random.permutation(kinds)
        shuffled[start : start + size] = start + random.permutation(size)
        place += kinds
    counts = _carved_counts(fraction, sizes, supply, whose, turns)
    grouped = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    mask = np.zeros(len(labels), dtype=bool)
    mask[grouped[_places(supply) < np.repeat(counts, supply)]] = True
    return mask


def _carved_counts(fraction: float, sizes: IntArray, supply: IntArray, whose: IntArray, turns: IntArray) -> IntArray:
    """Return how many examples of each stratum are for the test; equal remainders are served in the order of turns."""
    shares = fraction * supply
    # the small addend: a share that is whole but for rounding errors must not lose its last example
    counts: IntArray = np.floor(shares + 1e-9).astype(np.int64)
    missing = np.rint(fraction * sizes).astype(np.int64) - _sums(counts, whose, len(sizes))
    # ties in random order: many small learners would otherwise all be tested on their first classes
    order = np.lexsort((turns, -np.round(shares - counts, 9), whose))
    rank = _places(np.bincount(whose, minlength=len(sizes)))
    counts[order[rank < missing[whose[order]]]] += 1
    np.minimum(counts, supply - 1, out=counts)
    # a learner without one takes one of the largest class, the first in this order
    largest = order[np.lexsort((rank, -supply[order], whose[order]))][rank == 0]
    largest = largest[_sums(counts, whose, len(sizes))[whose[largest]] == 0]
    counts[largest] = np.minimum(1, supply[largest] - 1)
    return counts


def _places(counts: IntArray) -> IntArray:
    """Return the number of every member of groups of these sizes, in each group from 0."""
    places: IntArray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


def _sums(values: IntArray, group: IntArray, groups: int) -> IntArray:
    """Add up the values of every group."""
    return np.bincount(group, weights=values, minlength=groups).astype(np.int64)


def exclusive_tests(tests: LearnerParts, home: Tensor, examples: int) -> Tensor:
    """Mark the examples that are in exactly one learner's own test part and not in the test set at HOME."""
    outside = torch.ones(examples, dtype=torch.bool)
    outside[home] = False
    if not outside[tests.used].any():
        return torch.zeros(examples, dtype=torch.bool)
    return outside & (tests.times(examples) == 1)


def draw(labels: IntArray, counts: IntArray, random: np.random.Generator) -> BoolArray:
    """Mark `counts` examples of every class, drawn at random."""
    shuffled = random.permutation(len(labels))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    supply = np.bincount(labels, minlength=len(counts))
    mask = np.zeros(len(labels), dtype=bool)
    mask[grouped[_places(supply) < np.repeat(counts, supply)]] = True
    return mask


def indices(mask: BoolArray) -> Tensor:
    """Return where the mask is true, ascending."""
    return torch.from_numpy(np.flatnonzero(mask))


def check_fraction(what: str, fraction: float) -> None:
    """Refuse a fraction that would leave one side empty."""
    require(
        0 < fraction < 1,
        f"{what}={fraction} is not a fraction. Give a number between 0 and 1, such as 0.2.",
    )

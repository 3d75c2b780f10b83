"""What is held out: the test set at HOME, the stimuli, a learner's own test part, and its validation part."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archipel.data.classes import Held
from archipel.data.sizes import Counts, apportion
from archipel.randomness import generator


def stratified_validation(
    labels: Tensor | None, fraction: float, key: tuple[int | str, ...], examples: int | None = None
) -> tuple[Tensor, Tensor]:
    """Divide one learner's examples into positions to train on and positions to validate on, class by class.

    Every class of two or more has at least one on either side, a single example is trained on. Without
    classes (labels None and a number of examples, or float targets) it is a plain random part.
    """
    check_fraction("stratified_validation: fraction", fraction)
    if labels is None:
        if examples is None:
            raise ValueError(
                "stratified_validation: labels=None does not say how many examples there are. "
                "Give examples=..., or pass the targets."
            )
        strata = np.zeros(examples, dtype=np.int64)
    elif labels.is_floating_point():
        strata = np.zeros(len(labels), dtype=np.int64)
    else:
        # numbered by rank, so that a learner that holds only classes 7 and 9 has two strata
        strata = np.unique(labels.numpy(), return_inverse=True)[1].astype(np.int64)
    supply = np.bincount(strata)
    wanted = np.floor(fraction * supply + 0.5).astype(np.int64)
    mask = draw(strata, np.minimum(np.maximum(wanted, 1), supply - 1), generator(*key))
    return indices(~mask), indices(mask)


def hold_out(labels: Counts, fraction: float, seed: int) -> Held:
    """Mark a test set, stratified by class, that leaves at least one example of every class for training."""
    check_fraction("split: test", fraction)
    supply = np.bincount(labels)
    test = apportion(round(fraction * len(labels)), supply.astype(np.float64), np.zeros_like(supply))
    return draw(labels, np.minimum(test, np.maximum(supply - 1, 0)), generator(seed, "data", "test"))


def take_stimuli(labels: Counts, per_class: int, seed: int) -> Held:
    """Mark the stimuli among the test examples: so many per class, but never more than half of a class."""
    counts = np.minimum(per_class, np.bincount(labels) // 2)
    return draw(labels, counts, generator(seed, "data", "stimuli"))


def own_test(train: Counts, labels: Counts, key: tuple[int | str, ...]) -> Held:
    """Mark a learner's own test part: as much of the test set as has the proportions of its training labels.

    It costs no training data, and learners may share test examples. Classes that the test set lacks are
    left out of the proportions; of the learner's largest class among the others at least one is taken.
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


def draw(labels: Counts, counts: Counts, random: np.random.Generator) -> Held:
    """Mark so many examples of every class, drawn at random."""
    shuffled = random.permutation(len(labels))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    supply = np.bincount(labels, minlength=len(counts))
    place = np.arange(len(labels)) - np.repeat(np.cumsum(supply) - supply, supply)
    mask = np.zeros(len(labels), dtype=bool)
    mask[grouped[place < np.repeat(counts, supply)]] = True
    return mask


def indices(mask: Held) -> Tensor:
    """Where the mask is true, ascending."""
    return torch.from_numpy(np.flatnonzero(mask))


def check_fraction(what: str, fraction: float) -> None:
    """Refuse a fraction that would leave one side empty."""
    if not 0 < fraction < 1:
        raise ValueError(f"{what}={fraction} is no part of a whole. Give a number between 0 and 1, such as 0.2.")

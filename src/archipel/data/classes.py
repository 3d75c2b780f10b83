"""Choose the classes of every learner, and how many examples of each it gets.

  "iid"             every learner holds all classes in the proportions of the data
  3                 Non-IID(3): 3 classes for every learner, except where 3 classes have too few examples for its size
  (8, 4, 3, 3)      one number of classes per learner: Metis' Non-IID(8x1,4x1,3x2), also "8x1,4x1,3x2"
  "2-6"             a number of classes from the range for every learner, each equally likely (Fed2A section 4.1)
  "dirichlet(0.1)"  a distribution over all classes for every learner, RADFed's lambda; every example is used
  "disjoint(2)"     2 classes for every learner, none shared (HDAFL section 5.1): the first learner holds the first 2

The exception for 3 is Metis' "to preserve scale invariance" (section VI): that learner gets the smallest number of
classes that have enough examples for its size, after one example for each other learner that shares them. If the
learners together hold fewer classes than there are (learners * x < classes), only that part of the data is used, and
sizes are shares of that part; learners with "uniform" sizes therefore always hold exactly x.

Every class is held by a learner if the learners together hold enough classes. If sizes do not fit into the classes, all
are scaled down by the smallest common factor: their shape stays, and the remaining examples are not used. Sizes given
as numbers are never changed, and those of a range never leave it: if they do not fit, the error says which would.

Dirichlet classes, and features with any classes, are reconciled with the sizes by RADFed's quadratic programme. With
Dirichlet classes a learner's classes are as near as possible to the distribution drawn (formula 2); with any other
setting they are exactly as asked, and only the features are approximate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np

from archipel.core.randomness import generator
from archipel.data.array_types import BoolArray, IntArray
from archipel.data.features import configurations, drawn
from archipel.data.forms import call, numbers, positive, span, unknown
from archipel.data.reconcile import TableMargins, Target, reconcile
from archipel.data.sizes import Wish, apportion, check_total, one_per_learner, whole_number, wish
from archipel.data.transport import allocate

DRAWS = 8
"""Random choices of classes tried before sizes are scaled down: some fit larger sizes than others."""
CHUNK = 4096
"""Permutations drawn at a time."""
FORMS = ("iid", "3", "8x1,4x1,3x8", "2-6", "dirichlet(0.1)", "disjoint(2)")


@dataclass(frozen=True)
class Dirichlet:
    """A random distribution over all classes for every learner."""

    concentration: float


@dataclass(frozen=True)
class Disjoint:
    """The same number of classes for every learner, none shared."""

    count: int


@dataclass(frozen=True)
class Feature:
    """A categorical feature of the training examples, to be skewed."""

    name: str
    codes: IntArray
    """The category of every example."""
    concentration: float


ClassRule: TypeAlias = str | int | tuple[int, ...] | Dirichlet | Disjoint
"""A parsed setting: "iid", one number for all learners, one number per learner, or one of the two above."""


def deal(
    labels: IntArray,
    learners: int,
    sizes: str | Sequence[int] | None,
    classes: str | int | Sequence[int],
    seed: int,
    features: Sequence[Feature] = (),
) -> IntArray:
    """Distribute the examples: return the number of every example's learner; unused ones have that of none."""
    rule = read(classes, learners, seed)
    if isinstance(rule, Dirichlet) or features:
        kinds, table = skewed_table(labels, learners, sizes, classes, seed, features)
    else:
        kinds, table = labels, class_table(np.bincount(labels), learners, sizes, classes, seed)
    shuffled = generator(seed, "data", "examples").permutation(len(labels))
    stacks = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    # the examples of every kind go to the learners in turn; one more row takes those that are left over
    supply = np.bincount(kinds, minlength=table.shape[1])
    dealt = np.vstack([table, supply - table.sum(0)])
    owner = np.empty(len(labels), np.int64)
    owner[stacks] = np.repeat(np.tile(np.arange(learners + 1), table.shape[1]), dealt.T.ravel())
    return owner


def read(classes: str | int | Sequence[int], learners: int, seed: int) -> ClassRule:
    """Parse the setting."""
    if not isinstance(classes, str):
        if isinstance(classes, Iterable):
            return tuple(one_per_learner("classes", classes, learners))
        return whole_number("classes", classes)
    if classes == "iid":
        return "iid"
    listed, ends = numbers(classes), span(classes)
    if listed is not None and len(listed) == 1 and "x" not in classes:
        return whole_number("classes", listed[0])
    if listed is not None:
        return tuple(one_per_learner("classes", listed, learners))
    if ends is not None:
        low, high = ends
        if not 1 <= low <= high:
            raise ValueError(
                f"split: classes={classes!r} is not a range. Give the lower end, at least 1, and then the higher."
            )
        return tuple(generator(seed, "data", "numbers of classes").integers(low, high + 1, learners).tolist())
    match call(classes):
        case "dirichlet", concentration:
            return Dirichlet(positive(f"classes={classes!r}", concentration, "the concentration"))
        case "disjoint", count if count == int(count):
            return Disjoint(whole_number("classes: disjoint", int(count)))
        case _:
            raise unknown("classes", classes, FORMS, ", or one number of classes per learner")


def class_table(
    supply: IntArray,
    learners: int,
    sizes: str | Sequence[int] | None,
    classes: str | int | Sequence[int],
    seed: int,
) -> IntArray:
    """Return the number of examples of every class for every learner: [learners, classes]."""
    rule, available = read(classes, learners, seed), int(supply.sum())
    if isinstance(rule, Disjoint):
        return disjoint_table(supply, learners, sizes, rule.count, seed)
    if isinstance(rule, Dirichlet):
        margins, target = drawn_classes(supply, np.arange(len(supply)), learners, sizes, rule, seed)
        return reconcile(margins, [target], generator(seed, "data", "reconciled"))
    sizes = "uniform" if sizes is None else sizes
    asked = wish(sizes, learners, seed)
    check_total(asked, sizes, available)
    if isinstance(rule, int | tuple):
        return table_by_class(supply, asked, sizes, rule, classes, seed)
    wanted = asked.fitted(available, np.ones(learners, np.int64))
    shares = np.outer(wanted, supply)
    table = allocate(wanted, supply, at_least=shares // available, at_most=-(-shares // available))
    assert table is not None, "a table with whole margins can always be rounded to whole numbers"
    return table


def drawn_classes(
    supply: IntArray, codes: IntArray, learners: int, sizes: str | Sequence[int] | None, rule: Dirichlet, seed: int
) -> tuple[TableMargins, Target]:
    """Return the margins and the target of a table whose classes are drawn; codes are the configurations' classes."""
    sizes = "uniform" if sizes is None else sizes
    asked = wish(sizes, learners, seed)
    check_total(asked, sizes, int(supply.sum()))
    wanted = asked.fitted(int(supply.sum()), np.ones(learners, np.int64))
    # unused examples are taken from every kind in proportion
    used = apportion(int(wanted.sum()), supply.astype(np.float64), np.zeros_like(supply))
    present = np.unique(codes[supply > 0])
    examples = np.zeros((learners, int(codes.max()) + 1))
    shares = drawn(len(present), rule.concentration, learners, (seed, "data", "class shares"))
    examples[:, present] = shares * wanted[:, None]
    return TableMargins(wanted[:, None], used, np.zeros_like(used)), Target(codes, examples)


def skewed_table(
    labels: IntArray,
    learners: int,
    sizes: str | Sequence[int] | None,
    classes: str | int | Sequence[int],
    seed: int,
    features: Sequence[Feature],
) -> tuple[IntArray, IntArray]:
    """Return every example's configuration, and the number of every configuration for every learner."""
    number, kinds = configurations(labels, [feature.codes for feature in features])
    supply, rule = np.bincount(number), read(classes, learners, seed)
    targets: list[Target] = []
    if isinstance(rule, Dirichlet):
        margins, in_classes = drawn_classes(supply, kinds[:, 0], learners, sizes, rule, seed)
        targets.append(in_classes)
    else:
        table = class_table(np.bincount(labels), learners, sizes, classes, seed)
        used = np.zeros_like(supply)
        for c in np.flatnonzero(table.sum(0)):
            mine = kinds[:, 0] == c
            used[mine] = apportion(int(table[:, c].sum()), supply[mine].astype(np.float64), 0 * supply[mine])
        margins = TableMargins(table, used, kinds[:, 0])
    for place, feature in enumerate(features):
        values, codes = np.unique(kinds[:, place + 1], return_inverse=True)
        shares = drawn(len(values), feature.concentration, learners, (seed, "data", "feature", feature.name))
        targets.append(Target(codes.astype(np.int64), shares * margins.rows.sum(1)[:, None]))
    return number, reconcile(margins, targets, generator(seed, "data", "reconciled"))


def disjoint_table(
    supply: IntArray, learners: int, sizes: str | Sequence[int] | None, count: int, seed: int
) -> IntArray:
    """Return the table if no class is shared: all examples of a learner's classes, or sizes that fit into them."""
    present = np.flatnonzero(supply)
    if learners * count > len(present):
        feasible = [f"{len(present) // count} learners"] if count <= len(present) else []
        feasible += [f"disjoint({len(present) // learners})"] if learners <= len(present) else []
        raise ValueError(
            f"split: classes='disjoint({count})' with {learners} learners needs {learners * count} classes, but the "
            f"training examples have {len(present)}. Ask for {' or '.join(feasible) or 'fewer of both'} at most."
        )
    held = np.zeros((learners, len(supply)), dtype=bool)
    held[np.repeat(np.arange(learners), count), present[: learners * count]] = True
    everything: IntArray = held * supply
    if sizes is None:
        return everything
    asked, counts = wish(sizes, learners, seed), np.full(learners, count)
    check_total(asked, sizes, int(everything.sum()))
    wanted = asked.fitted(int(everything.sum()), counts)
    check_room(wanted, counts, asked, sizes)
    return fitting(fill(wanted, asked, supply, held), wanted, asked, sizes, counts, supply)


def table_by_class(
    supply: IntArray, asked: Wish, sizes: str | Sequence[int], rule: int | tuple[int, ...], classes: object, seed: int
) -> IntArray:
    """Return the table if learners hold some of the classes only."""
    learners, available, present = len(asked.shares), int(supply.sum()), int((supply > 0).sum())
    one_number = isinstance(rule, int)
    counts = np.full(learners, rule, dtype=np.int64) if one_number else np.array(rule, dtype=np.int64)
    if counts.max() > present:
        raise ValueError(
            f"split: classes={classes!r} asks for {counts.max()} classes, but the training examples have "
            f"{present}. Ask for 1 to {present}, or 'iid'."
        )
    places = int(counts.sum())
    total = min(available, available * places // present) if one_number and asked.total is None else available
    wanted = asked.fitted(total, counts)
    if one_number:
        shared = max(0, places // present - 1)
        holding = np.cumsum(np.sort(np.maximum(supply - shared, 0))[::-1])
        counts = np.maximum(counts, np.minimum(np.searchsorted(holding, wanted) + 1, present))
    check_room(wanted, counts, asked, sizes)
    random = generator(seed, "data", "classes")
    best = np.zeros((learners, len(supply)), np.int64)
    for _ in range(DRAWS):
        table = fill(wanted, asked, supply, choose(counts, wanted, supply, random))
        if table.sum() > best.sum():
            best = table
        if best.sum() == wanted.sum():
            break
    return fitting(best, wanted, asked, sizes, counts, supply)


def check_room(wanted: IntArray, counts: IntArray, asked: Wish, sizes: str | Sequence[int]) -> None:
    """Refuse sizes that are smaller than the numbers of classes."""
    if (wanted < counts).any():
        k = int(np.argmax(wanted < counts))
        raise ValueError(
            f"split: sizes[{k}]={wanted[k]}, but this learner holds {counts[k]} classes and needs an example "
            f"of each. Give it at least {counts[k]} examples, or fewer classes."
        )
    if asked.most is not None and wanted.max() > asked.most:
        raise ValueError(
            f"split: sizes={sizes!r}, but a learner holds {counts.max()} classes and needs an example of each. "
            f"Give a range that ends at {counts.max()} or above, or fewer classes."
        )


def fitting(
    table: IntArray, wanted: IntArray, asked: Wish, sizes: str | Sequence[int], counts: IntArray, supply: IntArray
) -> IntArray:
    """Return the table; refuse one that is smaller than sizes that must not be scaled down."""
    if asked.exact and table.sum() < wanted.sum():
        raise ValueError(
            f"split: sizes={wanted.tolist()} do not fit into {counts.tolist()} classes each, with "
            f"{supply.tolist()} training examples per class. About these would: sizes={table.sum(1).tolist()}."
        )
    if table.sum(1).min() < asked.least:
        raise ValueError(
            f"split: sizes={sizes!r} do not fit into {counts.tolist()} classes each, with {supply.tolist()} training "
            f"examples per class: {asked.least} for every learner are too many. Ask for smaller sizes, fewer learners "
            "or more classes per learner."
        )
    return table


def choose(counts: IntArray, sizes: IntArray, supply: IntArray, random: np.random.Generator) -> BoolArray:
    """Choose every learner's classes: the least used first, ties in random order, so that all are used alike."""
    learners, places, kinds = len(counts), int(counts.sum()), range(len(supply))
    all_fit = places >= (supply > 0).sum()
    # plain numbers: there are few classes, and a learner takes of what those before it have left
    stock, holders = supply.tolist(), [0] * len(supply)
    left = [float(count) for count in stock]  # examples of every class that the learners so far are expected to leave
    chosen: list[int] = []
    # the largest learners first: small ones fit into what is left
    turns = np.argsort(-sizes, kind="stable")
    wanted = zip(
        counts[turns].tolist(), sizes[turns].tolist(), permutations(learners, len(supply), random), strict=True
    )
    for turn, (count, size, lot) in enumerate(wanted):
        # a class has at most as many holders as examples: where that matters, take classes with most room first
        room = [min(stock[c] - holders[c], learners - turn) for c in kinds]
        rank = [(-room[c], 1 - left[c] / max(stock[c], 1), lot[c]) for c in kinds]
        order = sorted([c for c in kinds if room[c] > 0], key=rank.__getitem__)
        places -= count
        unheld = [c for c in order if holders[c] == 0]
        # the remaining learners must be able to hold the classes that no learner holds yet
        must = max(0, len(unheld) - places) if all_fit else 0
        picked = pick(must, unheld, [], left, size) if must else []
        picked = pick(count, order, picked, left, size)
        if len(picked) < count:
            raise ValueError(
                f"split: {counts.sum()} classes are to be held by {learners} learners together, but with "
                f"{supply.tolist()} training examples per class there is room for "
                f"{np.minimum(supply, learners).sum()} at most, one example each. "
                "Ask for fewer learners or fewer classes per learner."
            )
        chosen += picked
        need = float(size)
        for place, c in enumerate(sorted(picked, key=left.__getitem__)):
            holders[c] += 1
            taken = min(left[c], need / (count - place))
            left[c] -= taken
            need -= taken
    held = np.zeros((learners, len(supply)), dtype=bool)
    held[np.repeat(turns, counts[turns]), chosen] = True
    return held


def permutations(count: int, length: int, random: np.random.Generator) -> Iterator[list[int]]:
    """Yield permutations of the numbers below a length, the same as drawn one by one."""
    for first in range(0, count, CHUNK):
        ordered = np.tile(np.arange(length), (min(CHUNK, count - first), 1))
        yield from random.permuted(ordered, axis=1).tolist()


def pick(count: int, order: list[int], picked: list[int], left: list[float], size: int) -> list[int]:
    """Add classes in this order up to a count, except those that would leave too few examples for the size."""
    picked = list(picked)
    roomiest = sorted([c for c in order if c not in picked], key=lambda c: -left[c])
    # if no choice has enough examples, aim at the largest
    goal = min(float(size), sum([left[c] for c in picked + roomiest[: count - len(picked)]])) - 1e-6
    for c in order:
        if len(picked) >= count:
            break
        if c not in picked:
            others = islice((d for d in roomiest if d != c and d not in picked), count - len(picked) - 1)
            if sum([left[d] for d in (*picked, c, *others)]) >= goal:
                picked.append(c)
    return picked


def fill(wanted: IntArray, asked: Wish, supply: IntArray, held: BoolArray) -> IntArray:
    """Fill the learners' classes up to the wanted sizes, or to smaller sizes of the same shape that fit."""
    one_each = held.astype(np.int64)
    all_there_is: IntArray = held * supply
    table = allocate(wanted, supply, one_each, all_there_is)
    if table is not None:
        return table
    table, fits, too_much = one_each, int(held.sum()), int(wanted.sum())
    if asked.least:
        fits = asked.least * len(wanted)
        attempt = allocate(asked.divide(fits, held.sum(1)), supply, one_each, all_there_is)
        if attempt is None:
            return one_each
        table = attempt
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        attempt = allocate(asked.divide(middle, held.sum(1)), supply, one_each, all_there_is)
        if attempt is None:
            too_much = middle
        else:
            table, fits = attempt, middle
    return table

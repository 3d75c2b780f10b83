"""Which classes every learner holds, and how many examples of each.

  "iid"          every learner holds all classes in the data's own proportions
  x              Non-IID(x): x classes for every learner, except where x classes cannot hold a learner's size
  (8, 4, 3, 3)   exactly so many classes for each learner: Metis' Non-IID(8x1,4x1,3x2)

The exception is Metis' "to preserve scale invariance" (section VI): that learner gets the smallest number of
classes that can hold its size beside one example for each of the others that share them. Places for fewer
classes than there are (learners * x < classes) can hold that part of the data only, and sizes are then shares
of that part; so learners of one named size, "uniform", always hold exactly x.

Every class is held by somebody when there are places enough. When sizes do not fit into the classes, all are
scaled down by a common factor as little as possible: the shape stays, the remainder is dropped. Sizes given
as numbers are never changed: if they do not fit, the error says which would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from archipel.data.sizes import Counts, Shares, apportion, nearest, one_per_learner, shape_of, whole_number
from archipel.randomness import generator

Held: TypeAlias = NDArray[np.bool_]

DRAWS = 8
"""So many choices of classes are tried before sizes are scaled down: some pairings hold more than others."""


def deal(
    labels: Counts, learners: int, sizes: str | Sequence[int], classes: str | int | Sequence[int], seed: int
) -> list[Counts]:
    """Deal the examples out: every learner's positions in the labels, ascending, none given twice."""
    table = class_table(np.bincount(labels), learners, sizes, classes, seed)
    shuffled = generator(seed, "data", "examples").permutation(len(labels))
    parts: list[list[Counts]] = [[] for _ in range(learners)]
    for number in range(table.shape[1]):
        stack = shuffled[labels[shuffled] == number]
        for part, positions in zip(parts, np.split(stack, np.cumsum(table[:, number]))[:-1], strict=True):
            part.append(positions)
    return [np.sort(np.concatenate(part)) for part in parts]


def class_table(
    supply: Counts, learners: int, sizes: str | Sequence[int], classes: str | int | Sequence[int], seed: int
) -> Counts:
    """How many examples of every class every learner gets: [learners, classes]."""
    available = int(supply.sum())
    if learners > available:
        raise ValueError(
            f"split: learners={learners}, but there are only {available} training examples. "
            "Ask for fewer learners, or hold out less."
        )
    shape = shape_of(sizes, learners)
    asked = None if isinstance(sizes, str) else shape.astype(np.int64)
    if asked is not None and asked.sum() > available:
        raise ValueError(
            f"split: sizes add up to {asked.sum()}, but there are {available} training examples. "
            f"Ask for at most {available} together, or name a shape such as 'powerlaw'."
        )
    if not isinstance(classes, str):
        return table_by_class(supply, shape, asked, classes, seed)
    if classes != "iid":
        raise ValueError(
            f"split: classes={classes!r} is not known. Did you mean {nearest(classes, ['iid'])!r}? "
            "Known: iid, a number of classes, or one number per learner."
        )
    wanted = apportion(available, shape, np.ones(learners, np.int64)) if asked is None else asked
    shares = np.outer(wanted, supply)
    table = allocate(wanted, supply, at_least=shares // available, at_most=-(-shares // available))
    assert table is not None, "a table with whole margins can always be rounded to whole numbers"
    return table


def table_by_class(
    supply: Counts, shape: Shares, asked: Counts | None, classes: int | Sequence[int], seed: int
) -> Counts:
    """The table when learners hold some of the classes only."""
    learners, available, present = len(shape), int(supply.sum()), int((supply > 0).sum())
    one_number = not isinstance(classes, Iterable)
    if isinstance(classes, Iterable):
        counts = np.array(one_per_learner("classes", classes, learners), dtype=np.int64)
    else:
        counts = np.full(learners, whole_number("classes", classes), dtype=np.int64)
    if counts.max() > present:
        raise ValueError(
            f"split: classes={classes!r} asks for {counts.max()} classes, but the training examples have "
            f"{present}. Ask for 1 to {present}, or 'iid'."
        )
    places = int(counts.sum())
    total = min(available, available * places // present) if one_number else available
    wanted = apportion(total, shape, counts) if asked is None else asked
    if one_number:
        shared = max(0, places // present - 1)
        holding = np.cumsum(np.sort(np.maximum(supply - shared, 0))[::-1])
        counts = np.maximum(counts, np.minimum(np.searchsorted(holding, wanted) + 1, present))
    if (wanted < counts).any():
        k = int(np.argmax(wanted < counts))
        raise ValueError(
            f"split: sizes[{k}]={wanted[k]}, but this learner holds {counts[k]} classes and needs an example "
            f"of each. Give it at least {counts[k]} examples, or fewer classes."
        )
    random = generator(seed, "data", "classes")
    best = np.zeros((learners, len(supply)), np.int64)
    for _ in range(DRAWS):
        table = fill(wanted, shape, supply, choose(counts, wanted, supply, random))
        if table.sum() > best.sum():
            best = table
        if best.sum() == wanted.sum():
            return best
    if asked is not None:
        raise ValueError(
            f"split: sizes={asked.tolist()} do not fit into {counts.tolist()} classes each, with "
            f"{supply.tolist()} training examples per class. About these would: sizes={best.sum(1).tolist()}."
        )
    return best


def choose(counts: Counts, sizes: Counts, supply: Counts, random: np.random.Generator) -> Held:
    """Choose every learner's classes: the least used first, ties by lot, so that all are used alike."""
    learners, places = len(counts), int(counts.sum())
    everyone_fits = places >= (supply > 0).sum()
    held = np.zeros((learners, len(supply)), dtype=bool)
    left = supply.astype(np.float64)  # what the learners so far are expected to leave of every class
    # the largest learners first: the small ones fit into what is left, and not the other way round
    for turn, k in enumerate(np.argsort(-sizes, kind="stable")):
        holders = held.sum(0)
        # no class can be held by more learners than it has examples: where that matters, roomy ones first
        room = np.minimum(supply - holders, learners - turn)
        used = 1 - left / np.maximum(supply, 1)
        order = [c for c in np.lexsort((random.permutation(len(supply)), used, -room)) if room[c] > 0]
        places -= int(counts[k])
        unheld = [c for c in order if holders[c] == 0]
        # the places that remain after this learner must suffice for the classes that nobody holds yet
        must = max(0, len(unheld) - places) if everyone_fits else 0
        picked = pick(must, unheld, [], left, sizes[k])
        picked = pick(int(counts[k]), order, picked, left, sizes[k])
        if len(picked) < counts[k]:
            raise ValueError(
                f"split: {counts.sum()} classes are to be held by {learners} learners together, but with "
                f"{supply.tolist()} training examples per class there is room for "
                f"{np.minimum(supply, learners).sum()} at most, one example each. "
                "Ask for fewer learners or fewer classes per learner."
            )
        held[k, picked] = True
        need = float(sizes[k])
        for place, c in enumerate(sorted(picked, key=lambda c: left[c])):
            taken = min(left[c], need / (len(picked) - place))
            left[c] -= taken
            need -= taken
    return held


def pick(count: int, order: list[int], picked: list[int], left: Shares, size: int) -> list[int]:
    """Add classes in this order up to a count, except those that would leave too little for the size."""
    picked = list(picked)
    roomiest = sorted((c for c in order if c not in picked), key=lambda c: -left[c])
    # when nothing is enough, the most there is
    goal = min(float(size), sum(left[c] for c in picked + roomiest[: count - len(picked)])) - 1e-6
    for c in order:
        if len(picked) >= count:
            break
        if c not in picked:
            others = [d for d in roomiest if d != c and d not in picked][: count - len(picked) - 1]
            if sum(left[d] for d in [*picked, c, *others]) >= goal:
                picked.append(c)
    return picked


def fill(wanted: Counts, shape: Shares, supply: Counts, held: Held) -> Counts:
    """Fill the learners' classes up to the wanted sizes, or to sizes of the same shape that fit."""
    one_each = held.astype(np.int64)
    all_there_is: Counts = held * supply
    table = allocate(wanted, supply, one_each, all_there_is)
    if table is not None:
        return table
    table, fits, too_much = one_each, int(held.sum()), int(wanted.sum())
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        attempt = allocate(apportion(middle, shape, held.sum(1)), supply, one_each, all_there_is)
        if attempt is None:
            too_much = middle
        else:
            table, fits = attempt, middle
    return table


def allocate(sizes: Counts, supply: Counts, at_least: Counts, at_most: Counts) -> Counts | None:
    """Fill every size within bounds, near the data's own proportions; None when it cannot be done.

    A maximum flow, so the answer is exact: proportional shares are the start, augmenting paths do the rest.
    """
    rows, columns = sizes - at_least.sum(1), supply - at_least.sum(0)
    room: Counts = at_most - at_least
    shares = (room > 0) * columns.astype(np.float64)
    for _ in range(50):
        shares *= (rows / np.maximum(shares.sum(1), 1e-12))[:, None]
        shares *= np.minimum(1, columns / np.maximum(shares.sum(0), 1e-12))
    # the small addend: a share that is whole but for rounding errors must not lose its last example
    table = np.minimum(np.floor(shares + 1e-6).astype(np.int64), room)
    room -= table
    spare: Counts = columns - table.sum(0)
    for k in range(len(rows)):
        by_remainder = np.argsort(table[k] - shares[k], kind="stable")
        one_more = by_remainder[((room[k] > 0) & (spare > 0))[by_remainder]][: rows[k] - table[k].sum()]
        table[k, one_more] += 1
        room[k, one_more] -= 1
        spare[one_more] -= 1
    for k in range(len(rows)):
        while (lack := int(rows[k] - table[k].sum())) > 0:
            if not augment(k, lack, table, room, spare):
                return None
    filled: Counts = table + at_least
    return filled


def augment(start: int, lack: int, table: Counts, room: Counts, spare: Counts) -> bool:
    """Give a learner more by the shortest chain of exchanges that ends in a class with spare examples."""
    taker: dict[int, int] = {}  # class -> the learner that would take of it
    gives: dict[int, int] = {}  # learner -> the class it would give to the taker of that class
    queue = [start]
    for learner in queue:
        for c in np.flatnonzero(room[learner]).tolist():
            if c in taker:
                continue
            taker[c] = learner
            if spare[c] > 0:
                chain = [(learner, c)]
                while chain[-1][0] != start:
                    given = gives[chain[-1][0]]
                    chain.append((taker[given], given))
                bounds = [int(room[k, taken]) for k, taken in chain]
                bounds += [int(table[k, gives[k]]) for k, _ in chain[:-1]]
                amount = min(lack, int(spare[c]), *bounds)
                spare[c] -= amount
                for k, taken in chain:
                    move(k, taken, amount, table, room)
                    if k != start:
                        move(k, gives[k], -amount, table, room)
                return True
            for other in np.flatnonzero(table[:, c]).tolist():
                if other != start and other not in gives:
                    gives[other] = c
                    queue.append(other)
    return False


def move(learner: int, taken: int, amount: int, table: Counts, room: Counts) -> None:
    """Give a learner more of a class, or less."""
    table[learner, taken] += amount
    room[learner, taken] -= amount

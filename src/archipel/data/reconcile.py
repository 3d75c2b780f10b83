"""RADFed's partitioner (section IV.A): distributions drawn independently, reconciled by a quadratic programme.

Sizes, classes and features of the learners are drawn without regard to one another, so no table of examples has them
all: there are only so many examples of every kind. Implemented are
  formula 1      the nearest table with the right margins: learners and classes
  formula 2      the same with features: columns are configurations, that is combinations of class and categories that
                 the data have, and what is to be near are the learner's sums over the configurations of each class
                 and of each category
  Algorithm 3    not the optimum, but a random table near it, by moves that keep the margins
and, not in the paper, rounding to whole examples that keeps the margins exactly.

How it is solved. The tables with given margins are a convex set onto which `transport.project` projects exactly. For
formula 1 that projection is the answer. Formula 2 is minimised by gradient steps, each followed by the projection,
with Nesterov's acceleration, from a random table: where many tables are best, the start chooses among them.

How Algorithm 3 is read (docs/data.md shows the numbers):
  1. The step size xi = 0.002 is a share of the smaller of the two entries that give: eps ~ uniform(0, xi min{A_ij,
     A_i'j'}). The paper prints min{A_ij, A_i'j', xi}. In examples that is no step at all; as a share of all data it is
     so large that after 1e5 moves nothing is left of lambda (C-score 0.82 for MNIST-0.1, where Table I has 1.29).
     Read like this, the C-scores of Table I come out, and the authors' published script has it so.
  2. The first phase ends when the loss, as a distance, is a tenth above the optimum's, or after P moves: the script
     has this too. Without it a table that fits well would be walked away from.
  3. P and Q are per entry, 100 and 500: the paper's 1e5 and 5e5 for its tables of 100 learners and 10 classes. The
     second phase ends early when a hundred sweeps in a row found nothing better, since the loss only drifts upwards.
  4. A sweep pairs all rows and all columns at random and makes the moves of all rectangles at once. They share no
     entry, so the order among them does not matter; the loss is looked at after every sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from archipel.data.sizes import Counts, Shares
from archipel.data.transport import project, rounded

STEP = 0.002
"""xi, the largest part of an entry that one move takes away."""
WORSE = 1.1
"""The random table's distance from what was drawn, beside the optimum's."""
BURN_IN, SEARCH = 100, 500
"""P and Q: moves per entry in the two phases."""
PATIENCE = 100
"""Sweeps without a better table before the second phase ends."""
STEPS, WINDOW, PRECISION = 3000, 20, 1e-6
"""Gradient steps end when so many of them have lowered the loss by less than this part."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """What one feature (or the classes) should look like at every learner."""

    codes: Counts
    """The category of every configuration."""
    examples: Shares
    """How many examples of every category every learner should have: [learners, categories]."""


@dataclass(frozen=True, eq=False)
class Margins:
    """What every table must keep: blocks of columns, and in every block so much for every learner."""

    rows: Counts
    """Examples of every learner in every block: [learners, blocks]."""
    columns: Counts
    """Examples of every configuration."""
    block: Counts
    """The block of every configuration: all 0 when only a learner's size is given, its class when its classes are."""

    def parts(self) -> list[tuple[Counts, Counts]]:
        """Rows and columns of every block that have examples."""
        blocks = range(self.rows.shape[1])
        return [
            (np.flatnonzero(self.rows[:, b]), np.flatnonzero((self.block == b) & (self.columns > 0))) for b in blocks
        ]


def reconcile(margins: Margins, wanted: list[Wanted], random: np.random.Generator) -> Counts:
    """A random whole table with these margins, near what is wanted: [learners, configurations]."""
    # one thread: the products are small, and sums must not depend on how many there are
    with threadpool_limits(1, "blas"):
        best = optimum(margins, wanted, random)
        table = randomised(best, margins, wanted, random)
    whole = np.zeros(table.shape, dtype=np.int64)
    for b, (rows, columns) in enumerate(margins.parts()):
        place = np.ix_(rows, columns)
        whole[place] = rounded(table[place], margins.rows[rows, b], margins.columns[columns], random)
    return whole


def loss(table: Shares, wanted: list[Wanted]) -> float:
    """Formula 2; with one configuration per class and no features, formula 1."""
    return sum(float(np.vdot(gap, gap)) for gap in gaps(table, wanted))


def gaps(table: Shares, wanted: list[Wanted]) -> list[Shares]:
    """What learners have of every category beyond what they should have."""
    return [table @ indicator(one) - one.examples for one in wanted]


def indicator(one: Wanted) -> Shares:
    """Which configuration is of which category: [configurations, categories]."""
    marks: Shares = (one.codes[:, None] == np.arange(one.examples.shape[1])).astype(np.float64)
    return marks


def optimum(margins: Margins, wanted: list[Wanted], random: np.random.Generator) -> Shares:
    """A table of the least loss."""
    sums = np.concatenate([indicator(one) for one in wanted], axis=1)
    aims = np.concatenate([one.examples for one in wanted], axis=1)
    steepest = float(np.linalg.norm(sums, 2)) ** 2
    onto = Projection(margins)
    mass = np.outer(margins.rows.sum(1), margins.columns) / margins.columns.sum()
    table = onto(mass * random.exponential(size=mass.shape))
    # values are half the loss, whose gradient is (table @ sums - aims) @ sums.T
    ahead, pace, falling = table, 1.0, [half(table, sums, aims)]
    for _ in range(STEPS):
        further = onto(ahead - (ahead @ sums - aims) @ sums.T / steepest)
        value = half(further, sums, aims)
        if value > falling[-1] and ahead is not table:
            ahead, pace = table, 1.0  # it overshot: start again from the best table without momentum
            continue
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead, pace = further + (pace - 1) / faster * (further - table), faster
        if value <= falling[-1]:
            table = further
        falling.append(min(value, falling[-1]))
        if len(falling) > WINDOW and falling[-WINDOW] - falling[-1] <= PRECISION * falling[-1]:
            break
    return table


def half(table: Shares, sums: Shares, aims: Shares) -> float:
    """Half the loss."""
    gap = table @ sums - aims
    return 0.5 * float(np.vdot(gap, gap))


class Projection:
    """The nearest table with the right margins; it remembers the last answer as a start for the next."""

    def __init__(self, margins: Margins) -> None:
        self.parts = [
            (
                np.ix_(rows, columns),
                margins.rows[rows, b].astype(np.float64),
                margins.columns[columns].astype(np.float64),
            )
            for b, (rows, columns) in enumerate(margins.parts())
            if len(rows) and len(columns)
        ]
        self.duals: list[tuple[Shares, Shares] | None] = [None] * len(self.parts)

    def __call__(self, wanted: Shares) -> Shares:
        table = np.zeros_like(wanted)
        for number, (place, rows, columns) in enumerate(self.parts):
            table[place], self.duals[number] = project(wanted[place], rows, columns, self.duals[number])
        return table


def randomised(best: Shares, margins: Margins, wanted: list[Wanted], random: np.random.Generator) -> Shares:
    """Algorithm 3: a random table with the same margins, not much farther from what is wanted than the best."""
    sweep = Sweep(best, margins, random)
    least = loss(best, wanted)
    for _ in range(sweep.sweeps(BURN_IN)):
        sweep()
        if loss(sweep.table, wanted) > WORSE**2 * least:
            break
    lowest, found, waited = np.inf, best, 0
    for _ in range(sweep.sweeps(SEARCH)):
        sweep()
        value = loss(sweep.table, wanted)
        waited += 1
        if value < lowest:
            lowest, found, waited = value, sweep.table.copy(), 0
        if waited == PATIENCE:
            break
    return found


class Sweep:
    """RandomizeSolution, for all rows and columns in random pairs at once."""

    def __init__(self, table: Shares, margins: Margins, random: np.random.Generator) -> None:
        self.table = table.copy()
        self.random = random
        self.block = margins.block
        # two columns of a pair are of one block: sorted by block, those at even places in it and their followers
        blocks = np.sort(self.block)
        place = np.arange(len(blocks)) - np.searchsorted(blocks, blocks)
        follows = np.append(blocks[1:] == blocks[:-1], False)
        self.first = np.flatnonzero((place % 2 == 0) & follows)

    def sweeps(self, per_entry: int) -> int:
        """How many sweeps make so many moves per entry."""
        moves = len(self.table) // 2 * len(self.first)
        return -(-per_entry * self.table.size // moves) if moves else 0

    def __call__(self) -> None:
        table, random = self.table, self.random
        learners = random.permutation(len(table))[: len(table) // 2 * 2]
        kinds = np.lexsort((random.permutation(table.shape[1]), self.block))
        one, other = learners[::2, None], learners[1::2, None]
        left, right = kinds[self.first], kinds[self.first + 1]
        given = random.uniform(0, STEP, (len(one), len(left)))
        given *= np.minimum(table[one, left], table[other, right])
        table[one, left] -= given
        table[other, right] -= given
        table[one, right] += given
        table[other, left] += given

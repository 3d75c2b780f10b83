"""RADFed's partitioner (section IV.A): distributions drawn independently, reconciled by a quadratic programme.

Sizes, classes and features of the learners are drawn independently of one another. In general no table of examples has
all of them, since the number of examples of every kind is given. Implemented are
  formula 1      the nearest table with the right margins: learners and classes
  formula 2      the same with features: columns are configurations, that is combinations of class and categories that
                 the data have; a learner's sums over the configurations of each class and of each category are to be
                 near their targets
  Algorithm 3    not the optimum, but a random table near it, by moves that keep the margins
and, which the paper does not have, rounding to whole examples that keeps the margins exactly.

How it is solved. The tables with given margins are a convex set onto which `transport.project` projects exactly. For
formula 1 that projection is the solution. Formula 2 is minimised by projected gradient steps with Nesterov's
acceleration, from a random table: if there are several optima, the start decides which one is found.

How Algorithm 3 is read (docs/explanation/partitioner.md shows the numbers):
  1. The step size xi = 0.002 is a share of the smaller of the two entries that give: eps ~ uniform(0, xi min{A_ij,
     A_i'j'}). The paper prints min{A_ij, A_i'j', xi}. As a number of examples that is negligible; as a share of all
     data it is so large that after 1e5 moves lambda has no effect (C-score 0.82 for MNIST-0.1, where Table I has 1.29).
     This reading reproduces the C-scores of Table I and is that of the authors' published script.
  2. The first phase ends when the loss, as a distance, is a tenth above the optimum's, or after P moves, as in the
     script. Without this rule the walk would leave a table that fits well.
  3. P and Q are per entry, 100 and 500: the paper's 1e5 and 5e5 for its tables of 100 learners and 10 classes. The
     second phase ends early when a hundred sweeps in a row found nothing better, since the loss only drifts upwards.
  4. A sweep pairs all rows and all columns at random and makes the moves of all rectangles at once. They share no
     entry, so their order does not matter; the loss is computed after every sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from archipel.data.array_types import FloatArray, IntArray
from archipel.data.transport import project, rounded

STEP = 0.002
"""xi, the largest part of an entry that one move takes away."""
WORSE = 1.1
"""Largest distance of the random table from the targets, as a multiple of the optimum's."""
BURN_IN, SEARCH = 100, 500
"""P and Q: moves per entry in the two phases."""
CHUNK = 4096
"""Pairs of learners that exchange examples together."""
PATIENCE = 100
"""Sweeps without a better table before the second phase ends."""
STEPS, WINDOW, PRECISION = 3000, 20, 1e-6
"""Limit on gradient steps; they end when the last `WINDOW` have lowered the loss by less than this share."""


@dataclass(frozen=True, eq=False)
class Target:
    """The distribution that one feature, or the classes, should have at every learner."""

    codes: IntArray
    """The category of every configuration."""
    examples: FloatArray
    """Wanted number of examples of every category at every learner: [learners, categories]."""


@dataclass(frozen=True, eq=False)
class TableMargins:
    """Sums that every table must have: those of its columns, and each learner's in every block of columns."""

    rows: IntArray
    """Examples of every learner in every block: [learners, blocks]."""
    columns: IntArray
    """Examples of every configuration."""
    block: IntArray
    """The block of every configuration: all 0 when only a learner's size is given, its class when its classes are."""

    def parts(self) -> list[tuple[IntArray, IntArray]]:
        """Return the rows and columns with examples of every block."""
        blocks = range(self.rows.shape[1])
        return [
            (np.flatnonzero(self.rows[:, b]), np.flatnonzero((self.block == b) & (self.columns > 0))) for b in blocks
        ]


def reconcile(margins: TableMargins, targets: list[Target], random: np.random.Generator) -> IntArray:
    """Return a random whole table with these margins, near the targets: [learners, configurations]."""
    # one thread: the products are small, and sums must not depend on the number of threads
    with threadpool_limits(1, "blas"):
        best = optimum(margins, targets, random)
        table = randomised(best, margins, targets, random)
    whole = np.zeros(table.shape, dtype=np.int64)
    for b, (rows, columns) in enumerate(margins.parts()):
        place = np.ix_(rows, columns)
        whole[place] = rounded(table[place], margins.rows[rows, b], margins.columns[columns], random)
    return whole


def loss(table: FloatArray, targets: list[Target]) -> float:
    """Return the loss of formula 2; with one configuration per class and no features, that of formula 1."""
    return sum(float(np.vdot(gap, gap)) for gap in gaps(table, targets))


def gaps(table: FloatArray, targets: list[Target]) -> list[FloatArray]:
    """Return the difference between the learners' examples of every category and the targets."""
    return [product(table, indicator(one)) - one.examples for one in targets]


def indicator(one: Target) -> FloatArray:
    """Return 1 where a configuration is of a category, 0 elsewhere: [configurations, categories]."""
    marks: FloatArray = (one.codes[:, None] == np.arange(one.examples.shape[1])).astype(np.float64)
    return marks


def product(table: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return the product; that with the identity, as in formula 1, is the table itself."""
    identity = matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix)))
    return table if identity else table @ matrix


def optimum(margins: TableMargins, targets: list[Target], random: np.random.Generator) -> FloatArray:
    """Return a table of the least loss."""
    sums = np.concatenate([indicator(one) for one in targets], axis=1)
    aims = np.concatenate([one.examples for one in targets], axis=1)
    steepest = float(np.linalg.norm(sums, 2)) ** 2
    onto = Projection(margins)
    mass = np.outer(margins.rows.sum(1), margins.columns) / margins.columns.sum()
    table = onto(mass * random.exponential(size=mass.shape))
    # values are half the loss, whose gradient is (table @ sums - aims) @ sums.T
    ahead, pace, falling = table, 1.0, [half(table, sums, aims)]
    for _ in range(STEPS):
        further = onto(ahead - product(product(ahead, sums) - aims, sums.T) / steepest)
        value = half(further, sums, aims)
        if value > falling[-1] and ahead is not table:
            ahead, pace = table, 1.0  # overshoot: start again from the best table without momentum
            continue
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead, pace = further + (pace - 1) / faster * (further - table), faster
        if value <= falling[-1]:
            table = further
        falling.append(min(value, falling[-1]))
        if len(falling) > WINDOW and falling[-WINDOW] - falling[-1] <= PRECISION * falling[-1]:
            break
    return table


def half(table: FloatArray, sums: FloatArray, aims: FloatArray) -> float:
    """Return half the loss."""
    gap = product(table, sums) - aims
    return 0.5 * float(np.vdot(gap, gap))


class Projection:
    """Projection onto the tables with given margins, started from the duals of the previous call."""

    def __init__(self, margins: TableMargins) -> None:
        rows_and_columns = len(margins.rows) * len(margins.columns)
        self.parts = [
            (
                np.ix_(rows, columns) if len(rows) * len(columns) < rows_and_columns else slice(None),
                margins.rows[rows, b].astype(np.float64),
                margins.columns[columns].astype(np.float64),
            )
            for b, (rows, columns) in enumerate(margins.parts())
            if len(rows) and len(columns)
        ]
        self.duals: list[tuple[FloatArray, FloatArray] | None] = [None] * len(self.parts)

    def __call__(self, wanted: FloatArray) -> FloatArray:
        table = np.zeros_like(wanted)
        for number, (place, rows, columns) in enumerate(self.parts):
            table[place], self.duals[number] = project(wanted[place], rows, columns, self.duals[number])
        return table


def randomised(
    best: FloatArray, margins: TableMargins, targets: list[Target], random: np.random.Generator
) -> FloatArray:
    """Run Algorithm 3: return a random table with the same margins whose loss is little above the least."""
    sweep = Sweep(best, margins, random)
    least = loss(best, targets)
    for _ in range(sweep.sweeps(BURN_IN)):
        sweep()
        if loss(sweep.table, targets) > WORSE**2 * least:
            break
    lowest, found, waited = np.inf, best, 0
    for _ in range(sweep.sweeps(SEARCH)):
        sweep()
        value = loss(sweep.table, targets)
        waited += 1
        if value < lowest:
            lowest, found, waited = value, sweep.table.copy(), 0
        if waited == PATIENCE:
            break
    return found


class Sweep:
    """RandomizeSolution, for all rows and columns in random pairs at once."""

    def __init__(self, table: FloatArray, margins: TableMargins, random: np.random.Generator) -> None:
        self.table = table.copy()
        self.random = random
        self.block = margins.block
        # the two columns of a pair are in one block: in block order, one at an even place and the next one
        blocks = np.sort(self.block)
        place = np.arange(len(blocks)) - np.searchsorted(blocks, blocks)
        follows = np.append(blocks[1:] == blocks[:-1], False)
        self.first = np.flatnonzero((place % 2 == 0) & follows)

    def sweeps(self, per_entry: int) -> int:
        """Return the number of sweeps that make this number of moves per entry."""
        moves = len(self.table) // 2 * len(self.first)
        return -(-per_entry * self.table.size // moves) if moves else 0

    def __call__(self) -> None:
        table, random = self.table, self.random
        learners = random.permutation(len(table))[: len(table) // 2 * 2]
        kinds = np.lexsort((random.permutation(table.shape[1]), self.block))
        left, right = kinds[self.first], kinds[self.first + 1]
        given = random.uniform(0, STEP, (len(learners) // 2, len(left)))
        # some whole rows at a time: pairs of learners are anywhere in memory
        for first in range(0, len(given), CHUNK):
            some = given[first : first + CHUNK]
            pairs = learners[2 * first : 2 * (first + CHUNK)]
            one, other = table[pairs[::2]], table[pairs[1::2]]
            some *= np.minimum(one[:, left], other[:, right])
            one[:, left] -= some
            other[:, right] -= some
            one[:, right] += some
            other[:, left] += some
            table[pairs[::2]], table[pairs[1::2]] = one, other

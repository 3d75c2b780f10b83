"""Tables with given margins: the sums of every row (a learner) and of every column (a kind of examples).

`allocate` fills a table in whole numbers within bounds, `project` finds the nearest table with given margins, `rounded`
rounds a table to whole numbers and keeps its margins. All three are exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from archipel.data.array_types import BoolArray, FloatArray, IntArray

ROUNDS = 500
"""Limit on the steps of Newton's method, which needs about six."""
CHUNK = 1024
"""Learners that are looked at together."""


def allocate(sizes: IntArray, supply: IntArray, at_least: IntArray, at_most: IntArray) -> IntArray | None:
    """Fill every size within bounds, near the proportions of the data; return None if that is impossible.

    The result is an exact maximum flow: it starts from proportional shares and adds augmenting paths.
    """
    rows, columns = sizes - at_least.sum(1), supply - at_least.sum(0)
    room: IntArray = at_most - at_least
    shares = (room > 0) * columns.astype(np.float64)
    for _ in range(50):
        shares *= (rows / np.maximum(shares.sum(1), 1e-12))[:, None]
        shares *= np.minimum(1, columns / np.maximum(shares.sum(0), 1e-12))
    filled = complete(shares, rows, columns, room)
    return None if filled is None else filled + at_least


def complete(shares: FloatArray, rows: IntArray, columns: IntArray, room: IntArray) -> IntArray | None:
    """Return a whole table with these row sums, near the shares, within the limits of columns and entries."""
    # the small addend: rounding errors must not cost a whole share its last example
    table = np.minimum(np.floor(shares + 1e-6).astype(np.int64), room)
    room = room - table
    spare: IntArray = columns - table.sum(0)
    short = np.flatnonzero(table.sum(1) < rows)
    for first in range(0, len(short), CHUNK):
        learners, classes = one_more(short[first : first + CHUNK], shares, rows, table, room, spare)
        table[learners, classes] += 1
        room[learners, classes] -= 1
        spare -= np.bincount(classes, minlength=len(spare))
    exchange = Exchange(table, room, spare)
    for k in np.flatnonzero(table.sum(1) < rows).tolist():
        while (lack := int(rows[k] - table[k].sum())) > 0:
            if not exchange.augment(k, lack):
                return None
    return table


def one_more(
    learners: IntArray, shares: FloatArray, rows: IntArray, table: IntArray, room: IntArray, spare: IntArray
) -> tuple[IntArray, IntArray]:
    """Return where learners get one more, each in turn by largest remainder, as long as there are spare examples."""
    by_remainder = np.argsort(table[learners] - shares[learners], axis=1, kind="stable")
    has_room = np.take_along_axis(room[learners] > 0, by_remainder, 1)
    lacks = rows[learners] - table[learners].sum(1)
    left, served, classes = spare.tolist(), list[int](), list[int]()
    # plain numbers: a learner takes of what those before it have left, so they cannot be served at once
    for k, lack, order, open_ in zip(
        learners.tolist(), lacks.tolist(), by_remainder.tolist(), has_room.tolist(), strict=True
    ):
        for c, fits in zip(order, open_, strict=True):
            if fits and left[c] > 0:
                left[c] -= 1
                served.append(k)
                classes.append(c)
                lack -= 1
                if not lack:
                    break
    return np.array(served, np.int64), np.array(classes, np.int64)


class Exchange:
    """Learners that give each other examples, so that one of them gets more."""

    def __init__(self, table: IntArray, room: IntArray, spare: IntArray) -> None:
        """Change these arrays in place: what learners have, what they may take, and what nobody has."""
        self.table, self.room, self.spare = table, room, spare
        self.chunk = CHUNK
        # searches begin at the first learners, who in time have nothing left to give: whole chunks are passed over
        self._holders = np.add.reduceat(table > 0, np.arange(0, len(table), self.chunk), axis=0, dtype=np.int64)
        """How many learners of each chunk hold each class."""

    def augment(self, start: int, lack: int) -> bool:
        """Give a learner more by the shortest augmenting path, a chain of exchanges to a class with spare examples."""
        taker: dict[
            int, int
        ] = {}  # class -> the learner that would take of it, in the order in which they were reached
        gives: dict[int, int] = {}  # learner -> the class it would give to the taker of that class
        for learner in self._reached(start, taker, gives):
            for c in np.flatnonzero(self.room[learner]).tolist():
                if c in taker:
                    continue
                taker[c] = learner
                if self.spare[c] > 0:
                    chain = [(learner, c)]
                    while chain[-1][0] != start:
                        given = gives[chain[-1][0]]
                        chain.append((taker[given], given))
                    bounds = [int(self.room[k, taken]) for k, taken in chain]
                    bounds += [int(self.table[k, gives[k]]) for k, _ in chain[:-1]]
                    amount = min(lack, int(self.spare[c]), *bounds)
                    self.spare[c] -= amount
                    for k, taken in chain:
                        self._move(k, taken, amount)
                        if k != start:
                            self._move(k, gives[k], -amount)
                    return True
        return False

    def _reached(self, start: int, taker: dict[int, int], gives: dict[int, int]) -> Iterator[int]:
        """Yield learners breadth first: the first, then holders of a class that is to be taken; note what they give.

        Only those are reached that would take a class which nobody reached before would take, so there are never more
        of them than classes.
        """
        yield start
        done = 0
        while done < len(taker):
            c = list(taker)[done]
            for chunk in np.flatnonzero(self._holders[:, c]).tolist():
                first = chunk * self.chunk
                some = slice(first, first + self.chunk)
                holds = self.table[some, c] > 0
                while (wanting := holds & self._takes_new(some, taker)).any():
                    other = first + int(wanting.argmax())
                    gives[other] = c
                    yield other
            done += 1

    def _takes_new(self, some: slice, taker: dict[int, int]) -> BoolArray:
        """Tell which of these learners have room for a class that is in no taker's reach."""
        new = [kind for kind in range(self.table.shape[1]) if kind not in taker]
        takes: BoolArray = np.any(self.room[some, new] > 0, axis=1)
        return takes

    def _move(self, learner: int, taken: int, amount: int) -> None:
        """Add an amount, which may be negative, to a learner's examples of a class."""
        before = self.table[learner, taken] > 0
        self.table[learner, taken] += amount
        self.room[learner, taken] -= amount
        self._holders[learner // self.chunk, taken] += int(self.table[learner, taken] > 0) - int(before)


def rounded(table: FloatArray, rows: IntArray, columns: IntArray, random: np.random.Generator) -> IntArray:
    """Round a table to whole numbers with the same whole margins; an entry changes by less than one.

    An entry is rounded up with about the probability of its fraction, and learners are processed in random order:
    otherwise all small ones would end with the same class. Such a table exists by the integrality of flows; rounding
    errors in the margins may change an entry by one more.
    """
    # remove rounding errors from entries that are whole
    table = np.maximum(np.round(table, 6), 0)
    turns = random.permutation(len(rows))
    table, rows = table[turns], rows[turns]
    whole = np.empty(table.shape, dtype=np.int64)
    for slack in (0, 1, int(rows.max(initial=0))):
        floor = np.maximum(np.floor(table).astype(np.int64) - slack, 0)
        room = np.ceil(table).astype(np.int64) + slack - floor
        lower, higher = rows - floor.sum(1), columns - floor.sum(0)
        if (lower < 0).any() or (higher < 0).any():
            continue
        fractions = table - floor
        # the largest of these keys are a sample without replacement, weighted by the fractions
        keys = 0.99 * random.random(table.shape) ** (1 / np.maximum(fractions, 1e-9))
        rest = complete(np.minimum(fractions, 0.99) if slack else keys, lower, higher, room)
        if rest is not None:
            whole[turns] = floor + rest
            return whole
    raise AssertionError(f"rows add up to {rows.sum()} and columns to {columns.sum()}, which should be the same")


def project(
    wanted: FloatArray, rows: FloatArray, columns: FloatArray, duals: tuple[FloatArray, FloatArray] | None = None
) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
    """Return the nearest table to the wanted one with no negative entry and these margins, all above 0; and its duals.

    RADFed's formula 1. The solution is max(0, wanted + u_row + v_column); u and v maximise a concave dual function with
    one number per row and column, by Newton's method. A step eliminates the longer side, so it costs rows x columns x
    the shorter side. The duals of a similar problem are a good start.
    """
    scale = float(max(rows.max(), columns.max()))
    if duals is None:
        # solve every row, then every column on its own
        u = levels(wanted, rows)
        duals = u, levels((wanted + u[:, None]).T, columns)
    u, v = duals
    table = np.empty_like(wanted)
    value = dual(wanted, rows, columns, u, v, table)
    active, shared = np.empty_like(wanted), np.empty_like(wanted)
    for _ in range(ROUNDS):
        short, low = rows - table.sum(1), columns - table.sum(0)
        error = max(np.abs(short).max(), np.abs(low).max()) / scale
        if error <= 1e-10:
            break
        np.greater(table, 0, out=active)
        # damping keeps the system regular if rows and columns share no active entry
        damping = 1e-9 + 1e-4 * min(1.0, error)
        in_row, in_column = active.sum(1) + damping, active.sum(0) + damping
        if len(rows) >= len(columns):
            system = np.diag(in_column) - active.T @ np.divide(active, in_row[:, None], out=shared)
            dv = np.linalg.solve(system, low - active.T @ (short / in_row))
            du = (short - active @ dv) / in_row
        else:
            system = np.diag(in_row) - (active / in_column) @ active.T
            du = np.linalg.solve(system, short - active @ (low / in_column))
            dv = (low - du @ active) / in_column
        slope, step = float(short @ du + low @ dv), 1.0
        while True:
            higher = dual(wanted, rows, columns, u + step * du, v + step * dv, table)
            if higher >= value + 1e-4 * step * slope - 1e-13 * abs(value) or step < 1e-12:
                break
            step /= 2
        u, v, value = u + step * du, v + step * dv, higher
    return table, (u, v)


def dual(
    wanted: FloatArray, rows: FloatArray, columns: FloatArray, u: FloatArray, v: FloatArray, table: FloatArray
) -> float:
    """Fill the table for u and v, and return the value of the dual function."""
    # in place: memory for a large table costs more than its arithmetic
    np.add(wanted, u[:, None], out=table)
    table += v
    np.maximum(table, 0, out=table)
    return float(u @ rows + v @ columns - 0.5 * np.vdot(table, table))


def levels(values: FloatArray, totals: FloatArray) -> FloatArray:
    """Return what to add to every row so that its positive entries add up to its total."""
    falling = -np.sort(-values, axis=1)
    raised = (totals[:, None] - falling.cumsum(1)) / np.arange(1, values.shape[1] + 1)
    # the last place where the raised entry is still above 0; the first always is
    last = values.shape[1] - 1 - np.argmax((falling + raised > 0)[:, ::-1], axis=1)
    found: FloatArray = raised[np.arange(len(values)), last]
    return found

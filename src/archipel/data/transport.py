"""Tables with given margins: so much in every row (a learner), so much in every column (a kind of examples).

`allocate` fills a table in whole numbers within bounds, `project` finds the nearest table to any numbers, `rounded`
makes a table whole without touching its margins. All three are exact.
"""

from __future__ import annotations

import numpy as np

from archipel.data.sizes import Counts, Shares

ROUNDS = 500
"""Newton's method needs about six; beyond this many the problem is none that we know."""


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
    filled = complete(shares, rows, columns, room)
    return None if filled is None else filled + at_least


def complete(shares: Shares, rows: Counts, columns: Counts, room: Counts) -> Counts | None:
    """A whole table with these rows, near the shares, where columns and entries have only so much room."""
    # the small addend: a share that is whole but for rounding errors must not lose its last example
    table = np.minimum(np.floor(shares + 1e-6).astype(np.int64), room)
    room = room - table
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
    return table


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


def rounded(table: Shares, rows: Counts, columns: Counts, random: np.random.Generator) -> Counts:
    """The table in whole numbers with the same whole margins; an entry moves by less than one.

    An entry is rounded up about as often as its fraction says, and learners take turns in random order: else the small
    ones would all end with the same class. That there is such a table is the integrality of flows; rounding errors in
    the margins may cost an entry one more.
    """
    # what is whole but for rounding errors is whole
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
    wanted: Shares, rows: Shares, columns: Shares, duals: tuple[Shares, Shares] | None = None
) -> tuple[Shares, tuple[Shares, Shares]]:
    """The table without negative entries and with these margins, all above 0, that is nearest to the wanted one.

    RADFed's formula 1. The answer is max(0, wanted + u_row + v_column); u and v maximise a concave function with one
    number per row and column, which is climbed by Newton's method. A step eliminates the longer side, so it costs
    rows x columns x the shorter side. The duals of a near problem are a good start.
    """
    scale = float(max(rows.max(), columns.max()))
    if duals is None:
        # every row, then every column as if it were alone
        u = levels(wanted, rows)
        duals = u, levels((wanted + u[:, None]).T, columns)
    u, v = duals
    table, value = dual(wanted, rows, columns, u, v)
    for _ in range(ROUNDS):
        short, low = rows - table.sum(1), columns - table.sum(0)
        error = max(np.abs(short).max(), np.abs(low).max()) / scale
        if error <= 1e-10:
            break
        active = (table > 0).astype(np.float64)
        # rows and columns that share no active entry could drift apart: the addend holds them
        damping = 1e-9 + 1e-4 * min(1.0, error)
        in_row, in_column = active.sum(1) + damping, active.sum(0) + damping
        if len(rows) >= len(columns):
            system = np.diag(in_column) - active.T @ (active / in_row[:, None])
            dv = np.linalg.solve(system, low - active.T @ (short / in_row))
            du = (short - active @ dv) / in_row
        else:
            system = np.diag(in_row) - (active / in_column) @ active.T
            du = np.linalg.solve(system, short - active @ (low / in_column))
            dv = (low - du @ active) / in_column
        slope, step = float(short @ du + low @ dv), 1.0
        while True:
            table, higher = dual(wanted, rows, columns, u + step * du, v + step * dv)
            if higher >= value + 1e-4 * step * slope - 1e-13 * abs(value) or step < 1e-12:
                break
            step /= 2
        u, v, value = u + step * du, v + step * dv, higher
    return table, (u, v)


def dual(wanted: Shares, rows: Shares, columns: Shares, u: Shares, v: Shares) -> tuple[Shares, float]:
    """The table that belongs to u and v, and the dual function there."""
    table = np.maximum(wanted + u[:, None] + v, 0)
    return table, float(u @ rows + v @ columns - 0.5 * np.vdot(table, table))


def levels(values: Shares, totals: Shares) -> Shares:
    """By how much to raise every row so that what is above 0 adds up to its total."""
    falling = -np.sort(-values, axis=1)
    raised = (totals[:, None] - falling.cumsum(1)) / np.arange(1, values.shape[1] + 1)
    # the last place where the entry would still be above 0; the first always is
    last = values.shape[1] - 1 - np.argmax((falling + raised > 0)[:, ::-1], axis=1)
    found: Shares = raised[np.arange(len(values)), last]
    return found

"""Shamir's secret sharing of 256-bit numbers: any `threshold` shares give the secret, fewer reveal nothing.

Wrong shares are corrected as long as there are two additional valid ones for each (Berlekamp and Welch). Of few shares
all choices of `threshold` are tried, since a secret is known when it is seen: then one additional share is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb, prod
from operator import mul

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""
SECRET_BYTES = 32
SHARE_BYTES = 33
DRAWN_BYTES = 40
"""Random bytes for a number below the prime: enough that probabilities differ by at most 2^-64."""


TRIES = 5000
"""Most choices of shares that are tried."""


class WrongShares(ValueError):
    """More wrong shares than can be corrected."""


def split(secret: bytes, holders: Sequence[int], threshold: int, draw: Callable[[int], bytes]) -> dict[int, bytes]:
    """Return a share for each holder, numbered from 1; draw: returns random bytes."""
    drawn = draw(DRAWN_BYTES * (threshold - 1))
    places = range(0, len(drawn), DRAWN_BYTES)
    numbers = [int.from_bytes(drawn[place : place + DRAWN_BYTES], "little") % PRIME for place in places]
    polynomial = [*numbers, int.from_bytes(secret, "little")]
    return {holder: _value(polynomial, holder).to_bytes(SHARE_BYTES, "little") for holder in holders}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of these shares; for too few or wrong ones, another number or an error."""
    holders = tuple(sorted(shares))
    numbers = (int.from_bytes(shares[holder], "little") for holder in holders)
    return _secret(sum(map(mul, numbers, _factors(holders))) % PRIME)


def recover(
    shares: Mapping[int, bytes], threshold: int, valid: Callable[[bytes], bool]
) -> tuple[bytes, frozenset[int]]:
    """Return the valid secret of at least `threshold` shares, and the holders of wrong ones, if any were used."""
    some = {holder: shares[holder] for holder in sorted(shares)[:threshold]}
    try:
        secret = combine(some)
        if valid(secret):
            return secret, frozenset()
    except WrongShares:
        pass
    points = {holder: int.from_bytes(share, "little") for holder, share in shares.items()}
    polynomial = _corrected(points, threshold)
    if polynomial is not None and polynomial[-1] < 2**256 and valid(secret := _secret(polynomial[-1])):
        return secret, frozenset(holder for holder, value in points.items() if _value(polynomial, holder) != value)
    right = _tried(shares, threshold, valid)
    if right is None:
        raise WrongShares(f"{len(shares)} shares are not of one secret of {threshold}.")
    secret = combine({holder: shares[holder] for holder in right})
    others = shares.keys() - set(right)
    return secret, frozenset(one for one in others if not _agrees(shares, (one, *right[1:]), secret))


def _tried(shares: Mapping[int, bytes], threshold: int, valid: Callable[[bytes], bool]) -> tuple[int, ...] | None:
    """Return the holders of shares that give the valid secret; None if there are none, or too many choices."""
    if comb(len(shares), threshold) > TRIES:
        return None
    for holders in combinations(sorted(shares), threshold):
        try:
            if valid(combine({holder: shares[holder] for holder in holders})):
                return holders
        except WrongShares:
            continue
    return None


def _agrees(shares: Mapping[int, bytes], holders: Sequence[int], secret: bytes) -> bool:
    try:
        return combine({holder: shares[holder] for holder in holders}) == secret
    except WrongShares:
        return False


def _secret(number: int) -> bytes:
    if number >= 2**256:
        raise WrongShares("These shares are not of one secret.")
    return number.to_bytes(SECRET_BYTES, "little")


def _value(polynomial: Iterable[int], at: int) -> int:
    """Return the value of a polynomial with the highest coefficient first."""
    value = 0
    for coefficient in polynomial:
        value = (value * at + coefficient) % PRIME
    return value


@lru_cache(maxsize=64)
def _factors(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange coefficients of the holders' shares at 0."""
    everybody = prod(holders)
    above = [everybody // mine for mine in holders]
    below = [prod([other - mine for other in holders if other != mine]) for mine in holders]
    inverse = pow(prod(below) % PRIME, -1, PRIME)  # one for all: an inversion costs a hundred multiplications
    before, behind = [1], [1]
    for number in below[:-1]:
        before.append(before[-1] * number % PRIME)
    for number in reversed(below[1:]):
        behind.append(behind[-1] * number % PRIME)
    return tuple(
        up % PRIME * (left * right % PRIME * inverse) % PRIME
        for up, left, right in zip(above, before, reversed(behind), strict=True)
    )


def _corrected(points: Mapping[int, int], threshold: int) -> list[int] | None:
    """Return the polynomial through all but the wrong points, highest coefficient first.

    With e wrong points there are E of degree e, zero at those, and Q = E P with Q(x) = y E(x) for all of them.
    """
    wrong = (len(points) - threshold) // 2
    if not wrong:
        return None
    rows = []
    for at, value in points.items():
        powers = [pow(at, n, PRIME) for n in range(threshold + wrong)]
        errors = [-value * power % PRIME for power in powers[:wrong]]
        rows.append([*powers, *errors, value * pow(at, wrong, PRIME) % PRIME])
    solved = _solved(rows)
    if solved is None:
        return None
    product, errors = solved[: threshold + wrong][::-1], [1, *solved[threshold + wrong :][::-1]]
    return _divided(product, errors)


def _solved(rows: list[list[int]]) -> list[int] | None:
    """Solve linear equations, each given as its coefficients and its right side; return None without a solution."""
    unknowns, pivots = len(rows[0]) - 1, list[int]()
    for column in range(unknowns):
        top = len(pivots)
        row = next((row for row in rows[top:] if row[column]), None)
        if row is None:
            continue
        rows.remove(row)
        inverse = pow(row[column], -1, PRIME)
        row = [number * inverse % PRIME for number in row]
        for place, other in enumerate(rows):
            if factor := other[column]:
                rows[place] = [(a - factor * b) % PRIME for a, b in zip(other, row, strict=True)]
        rows.insert(top, row)
        pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    solution = [0] * unknowns
    for row, column in zip(rows, pivots, strict=False):
        solution[column] = row[-1]
    return solution


def _divided(numbers: Sequence[int], by: Sequence[int]) -> list[int] | None:
    """Return the quotient of two polynomials, the divisor being monic; None if there is a remainder."""
    rest, quotient = list(numbers), list[int]()
    for place in range(len(rest) - len(by) + 1):
        factor = rest[place]
        quotient.append(factor)
        for step, coefficient in enumerate(by):
            rest[place + step] = (rest[place + step] - factor * coefficient) % PRIME
    return None if any(rest[len(quotient) :]) else quotient

"""Inputs that are nearly valid: a valid one, changed in a few places."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

MOST_BYTES = 1 << 17
WORDS = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff" * 9 + b"\x01"),
    *(b"-1", b"0", b"1e308", b"NaN", b"Infinity", b"99999999999999999999", b"null", b"true", b'""', b"[]", b"{}"),
    *(b"[" * 200, b"(" * 200, b"-" * 500, b"../", b":", b'"', b"'", b"\n", b"=", b"\\u0000", b"\xf0\x9f\x8f\x9d"),
    *(b"os:system('id')", b"Mean()", b"Product(Product(", b"!!python/name:os.system", b"&a [*a]", b"__class__"),
)
"""What parsers have stumbled over before."""


def mutated(corpus: Sequence[bytes], draw: Random) -> bytes:
    """Return an input of the corpus with one to eight changes."""
    data = bytearray(_one(corpus, draw))
    for _ in range(1 + _below(8, draw)):
        place = _below(len(data) + 1, draw)
        match _below(6, draw):
            case 0 if data:
                data[place % len(data)] ^= 1 << _below(8, draw)
            case 1:
                del data[place : place + 1 + _below(16, draw)]
            case 2:
                data[place:place] = draw.randbytes(1 + _below(16, draw))
            case 3:
                data[place:place] = _one(WORDS, draw)
            case 4:
                word = _one(WORDS, draw)
                data[place : place + len(word)] = word
            case _:
                other = _one(corpus, draw)
                data[place:] = other[_below(len(other) + 1, draw) :]
    return bytes(data[:MOST_BYTES])


def _below(most: int, draw: Random) -> int:
    """Four times as fast as `randrange`, whose exact fairness is not needed here."""
    return int(draw.random() * most)


def _one(of: Sequence[bytes], draw: Random) -> bytes:
    return of[_below(len(of), draw)]

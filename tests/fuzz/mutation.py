"""Inputs that are nearly valid: a valid one, changed in a few places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MOST_BYTES = 1 << 17
WORDS = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff" * 9 + b"\x01"),
    *(b"-1", b"0", b"1e308", b"NaN", b"Infinity", b"99999999999999999999", b"null", b"true", b'""', b"[]", b"{}"),
    *(b"[" * 200, b"(" * 200, b"-" * 500, b"../", b":", b'"', b"'", b"\n", b"=", b"\\u0000", b"\xf0\x9f\x8f\x9d"),
    *(b"os:system('id')", b"Mean()", b"Product(Product(", b"!!python/name:os.system", b"&a [*a]", b"__class__"),
)
"""What parsers have stumbled over before."""


def mutated(corpus: Sequence[bytes], draw: np.random.Generator) -> bytes:
    """Return an input of the corpus with one to eight changes."""
    data = bytearray(corpus[int(draw.integers(len(corpus)))])
    for _ in range(int(draw.integers(1, 9))):
        place = int(draw.integers(len(data) + 1))
        match int(draw.integers(6)):
            case 0 if data:
                data[place % len(data)] ^= 1 << int(draw.integers(8))
            case 1:
                del data[place : place + int(draw.integers(1, 17))]
            case 2:
                data[place:place] = draw.bytes(int(draw.integers(1, 17)))
            case 3:
                data[place:place] = WORDS[int(draw.integers(len(WORDS)))]
            case 4:
                word = WORDS[int(draw.integers(len(WORDS)))]
                data[place : place + len(word)] = word
            case _:
                other = corpus[int(draw.integers(len(corpus)))]
                begin = int(draw.integers(len(other) + 1))
                data[place:] = other[begin:]
    return bytes(data[:MOST_BYTES])

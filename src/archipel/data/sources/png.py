"""PNG images of 8-bit colours without interlacing, decoded with zlib alone."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3}
"""Colour types that are read: grey and RGB."""

NONE, SUB, UP, AVERAGE, PAETH = range(5)


def png_array(data: bytes, what: str) -> NDArray[np.uint8]:
    """The colours of an image: [height, width, channels]."""
    head, packed = chunks(data, what)
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    depth, kind, interlaced = head[8], head[9], head[12]
    if depth != 8 or kind not in CHANNELS or interlaced:
        raise ValueError(f"{what} is a PNG of {depth} bits and colour type {kind}; only 8-bit grey and RGB are read.")
    channels = CHANNELS[kind]
    try:
        raw = zlib.decompress(packed)
    except zlib.error as error:
        raise ValueError(f"{what} is cut short or damaged: {error}. Copy it again.") from error
    if len(raw) != height * (1 + width * channels):
        raise ValueError(f"{what} is cut short or damaged: {len(raw)} bytes are not {height} rows of {width} pixels.")
    lines = np.frombuffer(raw, np.uint8).reshape(height, -1)
    filters, image = lines[:, 0], lines[:, 1:].reshape(height, width, channels).copy()
    if filters.max(initial=0) > PAETH:
        raise ValueError(f"{what} is damaged: a row has the filter {filters.max()}. Copy it again.")
    # a row that refers only to itself is the running sum of what is stored, modulo 256
    alone = filters == SUB
    image[alone] = np.cumsum(image[alone], axis=1, dtype=np.uint8)
    above = np.zeros((width, channels), np.uint8)
    for row in np.flatnonzero(filters > SUB):
        if row:
            above = image[row - 1]
        if filters[row] == UP:
            image[row] += above
        else:
            image[row] = unfiltered(image[row], above, filters[row] == PAETH)
    return image


def unfiltered(row: NDArray[np.uint8], above: NDArray[np.uint8], paeth: bool) -> NDArray[np.uint8]:
    """A row whose pixels refer to those on the left and in the row above."""
    done = np.zeros_like(row)
    left = corner = np.zeros(row.shape[1], np.int64)
    for place, (stored, over) in enumerate(zip(row.astype(np.int64), above.astype(np.int64), strict=True)):
        if paeth:
            guess = left + over - corner
            distances = np.abs(np.stack([guess - left, guess - over, guess - corner]))
            predicted = np.choose(distances.argmin(0), [left, over, corner])
        else:
            predicted = (left + over) // 2
        left, corner = (stored + predicted) % 256, over
        done[place] = left
    return done


def chunks(data: bytes, what: str) -> tuple[bytes, bytes]:
    """The header and the packed pixels; every chunk carries its own checksum."""
    if not data.startswith(SIGNATURE):
        raise ValueError(f"{what} is not a PNG image. Copy it again.")
    head, parts, place = b"", [], len(SIGNATURE)
    while True:
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        content = data[place + 8 : place + 8 + length]
        check = data[place + 8 + length : place + 12 + length]
        if len(check) < 4 or zlib.crc32(kind + content) != int.from_bytes(check, "big"):
            raise ValueError(f"{what} is cut short or damaged at byte {place}. Copy it again.")
        if kind == b"IHDR":
            head = content
        elif kind == b"IDAT":
            parts.append(content)
        elif kind == b"IEND":
            return head, b"".join(parts)
        place += 12 + length

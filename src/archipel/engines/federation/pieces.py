"""Pieces of models as messages, without the copies that protobuf makes of them.

A message that holds nothing but bytes is a tag, their length, and the bytes. protobuf reads and writes the same, by way
of copies of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archipel.durability.blobs import Buffer
from archipel.engines.federation import federation_pb2 as pb

PIECE = bytes([pb.Piece.DATA_FIELD_NUMBER << 3 | 2])
PORTION = bytes([pb.Portion.DATA_FIELD_NUMBER << 3 | 2])
"""Tags: which field, and that its length comes next."""


@dataclass(frozen=True, slots=True)
class Portion:
    """`pb.Portion`, read."""

    head: pb.Head | None
    data: Buffer


def say_piece(*data: Buffer) -> bytes:
    """`pb.Piece`, written."""
    return _written(PIECE, data)


def hear_piece(message: bytes) -> Buffer:
    """The data of a `pb.Piece`."""
    alone = _alone(PIECE, message)
    return pb.Piece.FromString(message).data if alone is None else alone


def say_portion(*data: Buffer) -> bytes:
    """`pb.Portion` without a head, written."""
    return _written(PORTION, data)


def hear_portion(message: bytes) -> Portion:
    alone = _alone(PORTION, message)
    if alone is not None:
        return Portion(None, alone)
    whole = pb.Portion.FromString(message)
    return Portion(whole.head if whole.HasField("head") else None, whole.data)


def written(message: Any) -> bytes:
    """A message as it travels; a piece of a model is that already."""
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def _written(tag: bytes, data: tuple[Buffer, ...]) -> bytes:
    left, length = sum(map(len, data)), bytearray()
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return b"".join((tag, length, *data))


def _alone(tag: bytes, message: bytes) -> memoryview | None:
    """The bytes of this field in a message that holds nothing else; None if it does."""
    if not message.startswith(tag):
        return None
    length = 0
    for place, byte in enumerate(message[1:11]):
        length |= (byte & 127) << 7 * place
        if byte < 128:
            begin = place + 2
            return memoryview(message)[begin:] if begin + length == len(message) else None
    return None

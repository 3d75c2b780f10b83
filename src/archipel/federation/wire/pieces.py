"""Pieces of models as messages, without the copies that protobuf makes of them.

A message that holds nothing but bytes is a tag, their length, and the bytes. protobuf reads and writes the same, by way
of copies of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archipel.federation.storage.blobs import Buffer
from archipel.federation.wire import federation_pb2 as pb

PIECE = bytes([pb.Piece.DATA_FIELD_NUMBER << 3 | 2])
HEAD = bytes([pb.Portion.HEAD_FIELD_NUMBER << 3 | 2])
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
    data = _rest(PIECE, message, 0)
    return pb.Piece.FromString(message).data if data is None else data


def say_portion(*data: Buffer) -> bytes:
    """`pb.Portion` without a head, written."""
    return _written(PORTION, data)


def hear_portion(message: bytes) -> Portion:
    head, begin = None, 0
    if (found := _field(HEAD, message, 0)) is not None:
        first, begin = found
        head = pb.Head.FromString(message[first:begin])
    data = _rest(PORTION, message, begin)
    if data is not None:
        return Portion(head, data)
    whole = pb.Portion.FromString(message)  # as somebody else may write it
    head = pb.Head()
    head.CopyFrom(whole.head)  # a part of a message keeps the whole of it alive
    return Portion(head if whole.HasField("head") else None, whole.data)


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


def _rest(tag: bytes, message: bytes, begin: int) -> Buffer | None:
    """The bytes of this field in a message that holds nothing else from this place on; None if it does."""
    if begin == len(message):
        return b""  # what is empty is not said
    found = _field(tag, message, begin)
    return memoryview(message)[found[0] :] if found is not None and found[1] == len(message) else None


def _field(tag: bytes, message: bytes, begin: int) -> tuple[int, int] | None:
    """From where to where the bytes of this field are, if it begins here and is whole."""
    if not message.startswith(tag, begin):
        return None
    length = 0
    for place, byte in enumerate(message[begin + 1 : begin + 11]):
        length |= (byte & 127) << 7 * place
        if byte < 128:
            first = begin + place + 2
            return (first, first + length) if first + length <= len(message) else None
    return None

"""Pieces of models that are encoded and read by hand are what protobuf writes and reads."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from archipel.federation.learner import link
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import CHUNK
from archipel.federation.wire.pieces import decode_piece, decode_portion, encode_piece, encode_portion

SIZES = [1, 127, 128, 129, 16_383, 16_384, CHUNK]


def data(size: int) -> bytes:
    return bytes(place % 251 for place in range(size))


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written(size: int) -> None:
    whole = data(size)
    assert encode_piece(whole) == pb.Piece(data=whole).SerializeToString()
    assert encode_piece(whole[:100], memoryview(whole)[100:]) == encode_piece(whole)
    assert encode_portion(whole) == pb.Portion(data=whole).SerializeToString()


@pytest.mark.parametrize("size", [0, *SIZES])
def test_what_is_read(size: int) -> None:
    whole = data(size)
    assert decode_piece(pb.Piece(data=whole).SerializeToString()) == whole
    assert decode_piece(encode_piece(whole)) == whole
    portion = decode_portion(pb.Portion(data=whole).SerializeToString())
    assert (portion.head, portion.data) == (None, whole)


def test_what_is_read_with_a_head() -> None:
    portion = decode_portion(pb.Portion(head=pb.Head(task=7), data=b"numbers").SerializeToString())
    assert (portion.head, portion.data) == (pb.Head(task=7), b"numbers")


@pytest.mark.parametrize(
    "message",
    [
        pb.Portion(data=b"first").SerializeToString() + pb.Portion(data=b"last").SerializeToString(),
        pb.Portion(data=b"last").SerializeToString() + pb.Portion(head=pb.Head(task=7)).SerializeToString(),
        b"\x12\x84\x00last",  # a length that is encoded longer than it has to be
        pb.Portion(data=b"last").SerializeToString() + b"\x1a\x01x",  # a field that nobody knows
        pb.Portion(head=pb.Head(task=7)).SerializeToString()
        + pb.Portion(head=pb.Head(sequence=1), data=b"last").SerializeToString(),
    ],
    ids=["twice", "before the head", "long length", "unknown field", "a head in two parts"],
)
def test_what_protobuf_allows_is_read_as_protobuf_reads_it(message: bytes) -> None:
    read, heard = pb.Portion.FromString(message), decode_portion(message)
    assert read.data == heard.data == b"last"
    assert (read.head if read.HasField("head") else None) == heard.head


@pytest.mark.parametrize("message", [b"\x12", b"\x12\x05last", b"\x12" + b"\xff" * 12, b"\x12\x80", b"\xff"])
def test_what_is_no_message_is_an_error(message: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_portion(message)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, CHUNK, 2 * CHUNK + 5, 3 * CHUNK + 9, 3 * CHUNK + 10])
def test_a_body_in_parts_goes_out_as_if_it_were_one(offset: int) -> None:
    parts = data(10), memoryview(data(3 * CHUNK))
    first, *rest = link._portions(pb.Head(task=7), parts, offset)
    assert isinstance(first, pb.Portion)
    assert first == pb.Portion(head=pb.Head(task=7))  # its data wait until they are asked for
    pieces = [bytes(decode_portion(bytes(message)).data) for message in rest if isinstance(message, bytes)]
    assert len(pieces) == len(rest)
    assert b"".join(pieces) == b"".join(parts)[offset:]
    assert all(len(piece) == CHUNK for piece in pieces[:-1])

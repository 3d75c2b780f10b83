"""Models on the wire: safetensors, whose header is parsed strictly and compared with the layout.

Both sides know the layout, so the header of some layers is known before it comes. It is read all the same, for two
reasons: what is wrong can be told by its name, and any program that knows safetensors can read what was sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from archipel.core.layout import Layout

HEADER = 1 << 20
"""Bytes that a header may have: some ten thousand tensors."""
REMEMBERED = 64
"""Headers that are kept: a run's plans ask for a few choices of layers again and again."""
WIDTH = 8
"""Bytes of the number that says how long the header is."""


APART = b"archipel"
"""Before what is hashed for a fingerprint: as the length of a header it would be too long, so that no fingerprint is
the hash of a whole body."""


class InvalidUpdate(Exception):
    """What is wrong with something that came, in words for the operator of whoever sent it."""


def fingerprint(header: bytes | bytearray, layers: Iterable[str]) -> str:
    """Return the digest of a body: the SHA-256 of its header and of its layers' SHA-256s.

    Every number stands behind it, and none is hashed twice.
    """
    found = hashlib.sha256(APART + header)
    for layer in layers:
        found.update(bytes.fromhex(layer))
    return found.hexdigest()


class Bodies:
    """What bodies of a model's layers look like."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._headers: dict[tuple[int, ...], bytes] = {}

    def header(self, layers: Sequence[int]) -> bytes:
        """Return the beginning of a body that holds these layers, up to the first number."""
        key = tuple(layers)
        if key not in self._headers:
            if len(self._headers) >= REMEMBERED:  # whoever asks for every choice of layers must not fill the memory
                self._headers.clear()
            text = json.dumps(self._expected(key), separators=(",", ":")).encode()
            text += b" " * (-len(text) % WIDTH)  # so that the numbers are aligned
            self._headers[key] = len(text).to_bytes(WIDTH, "little") + text
        return self._headers[key]

    def size(self, layers: Sequence[int]) -> int:
        """Bytes of a body that holds these layers; of none there is no body."""
        return len(self.header(layers)) + self.layout.bytes(layers) if layers else 0

    def check_header(self, layers: Sequence[int], begins: bytes, whole: int) -> int:
        """Return where the numbers begin in a body of `whole` bytes, or raise `InvalidUpdate` if it holds other layers.

        begins: its first bytes, at least as many as a header may have, or all.
        """
        usual = self.header(layers)
        if whole == len(usual) + self.layout.bytes(layers) and begins.startswith(usual):
            return len(usual)  # as our own learners write it; others may write it otherwise
        length = int.from_bytes(begins[:WIDTH], "little")
        if whole < WIDTH or length > min(HEADER, whole - WIDTH):
            raise InvalidUpdate(f"a header of {length:,} bytes in a body of {whole:,}; at most {HEADER:,} are read")
        try:
            told = json.loads(begins[WIDTH : WIDTH + length])
        except (ValueError, RecursionError):
            raise InvalidUpdate("a header that is no JSON") from None
        if not isinstance(told, dict):
            raise InvalidUpdate("a header that names no tensors")
        told.pop("__metadata__", None)
        expected = self._expected(layers)
        for name in expected:
            if name not in told:
                raise InvalidUpdate(f"tensor {name!r} is missing")
        for name in told:
            if name not in expected:
                raise InvalidUpdate(f"tensor {name[:100]!r} was not asked for")
        for name, wanted in expected.items():
            for what, value in wanted.items():
                there = told[name].get(what) if isinstance(told[name], dict) else None
                if there != value:
                    raise InvalidUpdate(f"tensor {name!r} has the {what} {str(there)[:100]}, expected {value}")
        if whole != WIDTH + length + self.layout.bytes(layers):
            raise InvalidUpdate(f"a body of {whole:,} bytes, expected {WIDTH + length + self.layout.bytes(layers):,}")
        return WIDTH + length

    def _expected(self, layers: Iterable[int]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        place = 0
        for layer in layers:
            for entry in self.layout.layers[layer].entries:
                end = place + 4 * (entry.stop - entry.start)
                told[entry.name] = {"dtype": "F32", "shape": list(entry.shape), "data_offsets": [place, end]}
                place = end
        return told

"""Receiving an update: it is written to disk piece by piece, and checked before it is used."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from archipel.core.layout import Layer
from archipel.federation.controller.terms import RetryLater
from archipel.federation.storage.blobs import Blobs, Buffer, Parcel
from archipel.federation.storage.stored_models import Delivery, StoredModels
from archipel.federation.wire.body import HEADER, WIDTH, Bodies, InvalidUpdate, fingerprint

SMALL = 1 << 18
"""Largest body that is received as a whole, and written to disk together with others."""
TOO_MUCH = "more than the {:,} bytes that were announced"
BROKEN_OFF = "The answer was interrupted after {:,} of {:,} bytes: send the rest."
DAMAGED = "the body's header and the hashes of its layers do not give the SHA-256 that was announced: it was damaged"


@dataclass(frozen=True)
class Expected:
    """The expected update, from its task and its own announcement."""

    base: str
    """The model that the task carried."""
    digests: Mapping[str, str]
    """Of all layers that are sent."""
    inside: tuple[int, ...]
    """Places of those that differ from the task's model: the body holds them."""
    size: int
    """Of the body."""
    name: str
    """The body's fingerprint."""


def announced(
    bodies: Bodies,
    models: StoredModels,
    base: str,
    asked: Sequence[str],
    digests: Mapping[str, str],
    size: int,
    name: str,
) -> Expected:
    """Check a learner's announcement, before a byte of its update is read."""
    missing, more = [name for name in asked if name not in digests], [name for name in digests if name not in asked]
    if missing:
        raise InvalidUpdate(f"layer {missing[0]!r} is missing; the plan asks for {', '.join(asked)}")
    if more:
        raise InvalidUpdate(f"layer {more[0][:100]!r} was not asked for; the plan asks for {', '.join(asked)}")
    carried = models.digests(base)
    places = bodies.layout.indices(asked)
    inside = tuple(place for place in places if digests[bodies.layout.names[place]] != carried[place])
    wanted = bodies.size(inside)
    if size != wanted:
        raise InvalidUpdate(f"a body of {size:,} bytes, expected {wanted:,}")
    if inside and len(name) != 64:
        raise InvalidUpdate(f"a SHA-256 of {len(name) // 2} bytes for the body")
    return Expected(base, digests, inside, size, name)


class Upload:
    """One update on its way in; used by one call at a time."""

    def __init__(self, blobs: Blobs, label: str, check: UpdateCheck) -> None:
        self.expected = check.expected
        self.check = check
        self.parcel: Parcel = blobs.parcel(label)
        self.resumed = False

    def begin_at(self, offset: int) -> None:
        self.resumed = offset > 0
        if offset == 0:
            self.parcel.begin_anew()
        elif offset != self.parcel.size:
            raise RetryLater(
                f"The data begin at byte {offset:,}, but {self.parcel.size:,} bytes are stored: begin there."
            )

    def take(self, data: Buffer) -> None:
        """Check the next piece, and store it."""
        if self.parcel.size + len(data) > self.expected.size:
            raise InvalidUpdate(TOO_MUCH.format(self.expected.size))
        with self._beginning_on_trial():
            self._check_beginning()
            self.parcel.write(data)
            self.check.check(data)

    def finish(self) -> Delivery:
        """Write all of it to disk; raise `InvalidUpdate` with what is wrong, `RetryLater` if the rest is missing."""
        with self._beginning_on_trial():
            return self._finish()

    @contextmanager
    def _beginning_on_trial(self) -> Iterator[None]:
        """Drop the beginning of an interrupted upload if it is damaged, as after a power failure."""
        try:
            yield
        except InvalidUpdate as bad:
            if not self.resumed:
                raise
            self.parcel.discard()
            raise RetryLater(f"The stored beginning was damaged ({bad}): begin at byte 0.") from None

    def _check_beginning(self) -> None:
        """Check what an earlier call has stored."""
        if self.resumed and not self.check.seen:
            for block in self.parcel.blocks():
                self.check.check(block)

    def _finish(self) -> Delivery:
        expected = self.expected
        self._check_beginning()  # that may be all of it, if the call was interrupted after its last byte
        if not expected.inside:
            self.parcel.discard()
            return Delivery("", 0, (), dict(expected.digests))
        if self.parcel.size != expected.size:
            # an interrupted connection looks like a finished caller
            raise RetryLater(BROKEN_OFF.format(self.parcel.size, expected.size))
        start = self.check.passed()
        self.parcel.finish(expected.name)
        return Delivery(expected.name, start, expected.inside, dict(expected.digests))

    def put_aside(self) -> None:
        """Keep the beginning for the next call."""
        self.parcel.close()

    def discard(self) -> None:
        self.parcel.discard()


def received(body: Buffer, check: UpdateCheck) -> Delivery:
    """Check a small update in one message; it is written to disk together with others."""
    expected = check.expected
    if not expected.inside:
        return Delivery("", 0, (), dict(expected.digests))
    check.check(body)
    return Delivery("", check.passed(), expected.inside, dict(expected.digests))


class UpdateCheck:
    """Checks a body as it arrives, piece by piece: nothing has to be read again."""

    def __init__(self, expected: Expected, bodies: Bodies, models: StoredModels, bound: float | None) -> None:
        """`bound`: how far the update may move the model."""
        self.expected = expected
        self.seen = 0
        """Bytes that were checked."""
        self._bodies = bodies
        self._models = models
        self._bound = bound
        self._squares = 0.0
        self._beginning = bytearray()
        """Bytes of an incomplete header, afterwards of an incomplete number."""
        self._begins = b""
        """The header, as it was received."""
        self._start: int | None = None
        """Offset of the numbers."""
        self._layers = iter(expected.inside)
        self._layer: Layer | None = None
        self._place = 0
        """Index of the next number in the vector."""
        self._digest = hashlib.sha256()

    def check(self, data: Buffer) -> None:
        """Raise `InvalidUpdate` if something is wrong with it."""
        self.seen += len(data)
        view = memoryview(data)
        if self._start is None:
            view = self._header(view)
        while len(view) and self._start is not None:
            if self._layer is None or self._place == self._layer.stop:
                self._next_layer()
            assert self._layer is not None
            wanted = 4 * (self._layer.stop - self._place) - len(self._beginning)
            self._numbers(view[:wanted])
            view = view[wanted:]

    def passed(self) -> int:
        """Where in the body its numbers begin; raises `InvalidUpdate` if something was wrong with them."""
        self._close_layer()
        for place in self._layers:  # empty layers at the end have no numbers
            self._layer, self._digest = self._bodies.layout.layers[place], hashlib.sha256()
            self._close_layer()
        if self._bound is not None and math.sqrt(self._squares) > self._bound:
            moved = math.sqrt(self._squares)
            raise InvalidUpdate(f"the update moves the model by {moved:.4g}, the study allows {self._bound:g}")
        if self._start is None:
            raise InvalidUpdate("no numbers")
        names = self._bodies.layout.names
        inside = [self.expected.digests[names[place]] for place in self.expected.inside]
        if fingerprint(self._begins, inside) != self.expected.name:
            raise InvalidUpdate(DAMAGED)
        return self._start

    def _header(self, view: memoryview) -> memoryview:
        """Read the header further; return the data behind it."""
        if self._beginning:
            view = memoryview(bytes(self._beginning) + view)
        length = int.from_bytes(view[:WIDTH], "little")
        if len(view) < min(WIDTH + min(length, HEADER), self.expected.size) or len(view) < WIDTH:
            self._beginning[:] = view
            return view[:0]
        begins = bytes(view[: WIDTH + HEADER])
        self._start = self._bodies.check_header(self.expected.inside, begins, self.expected.size)
        self._begins = begins[: self._start]
        self._beginning.clear()
        return view[self._start :]

    def _numbers(self, view: memoryview) -> None:
        assert self._layer is not None
        self._digest.update(view)
        if self._beginning or len(view) % 4:
            self._beginning += view
            whole = len(self._beginning) // 4 * 4
            view = memoryview(bytes(self._beginning[:whole]))
            del self._beginning[:whole]
        if not view:
            return
        numbers = np.frombuffer(view, np.float32)
        with np.errstate(all="ignore"):
            # the sum is finite only if all terms are: one fast pass; a sum that overflows asks for the slow one
            fine = math.isfinite(numbers.sum()) or np.isfinite(numbers).all()
        if not fine:
            raise InvalidUpdate(
                f"layer {self._layer.name!r} holds numbers that are not finite (NaN or infinity); "
                "lower the rate or look at the data"
            )
        until = self._place + len(numbers)
        if self._bound is not None:
            carried = self._models.read(self.expected.base, slice(self._place, until)).numpy()
            self._squares += float(np.square(numbers.astype(np.float64) - carried).sum())
        self._place = until

    def _next_layer(self) -> None:
        self._close_layer()
        self._layer = self._bodies.layout.layers[next(self._layers)]
        self._place = self._layer.start
        self._digest = hashlib.sha256()

    def _close_layer(self) -> None:
        layer = self._layer
        if layer is not None and self._digest.hexdigest() != self.expected.digests[layer.name]:
            raise InvalidUpdate(f"the SHA-256 of layer {layer.name!r} is not the announced one")

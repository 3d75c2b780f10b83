"""Taking in an update: piece by piece onto the disk, and looked at before anybody relies on it."""

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
"""Bytes of a body that is taken in as a whole, and brought to the disk together with others."""
TOO_MUCH = "more than the {:,} bytes that were announced"
BROKEN_OFF = "The answer broke off after {:,} of {:,} bytes: bring the rest."
DAMAGED = "the body's header and the hashes of its layers do not give the SHA-256 that was announced: it was damaged"


@dataclass(frozen=True)
class Expected:
    """What an update should be, from its task and its own announcement."""

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
    """Look at what a learner says it will send, before a byte of it is taken."""
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
            raise RetryLater(f"Data from byte {offset:,} on, and {self.parcel.size:,} are here: begin there.")

    def take(self, data: Buffer) -> None:
        """Look at the next piece, and keep it."""
        if self.parcel.size + len(data) > self.expected.size:
            raise InvalidUpdate(TOO_MUCH.format(self.expected.size))
        with self._beginning_on_trial():
            self._check_beginning()
            self.parcel.write(data)
            self.check.check(data)

    def finish(self) -> Delivery:
        """Write all of it to disk; raise `InvalidUpdate` with what is wrong, `RetryLater` if the rest is to come."""
        with self._beginning_on_trial():
            return self._finish()

    @contextmanager
    def _beginning_on_trial(self) -> Iterator[None]:
        """Drop the beginning of an upload that broke off: it may be damaged if the machine went down."""
        try:
            yield
        except InvalidUpdate as bad:
            if not self.resumed:
                raise
            self.parcel.discard()
            raise RetryLater(f"What came before was damaged ({bad}): begin at byte 0.") from None

    def _check_beginning(self) -> None:
        """Check what an earlier call has brought."""
        if self.resumed and not self.check.seen:
            for block in self.parcel.blocks():
                self.check.check(block)

    def _finish(self) -> Delivery:
        expected = self.expected
        self._check_beginning()  # all of it, if that call was broken off behind its last byte
        if not expected.inside:
            self.parcel.discard()
            return Delivery("", 0, (), dict(expected.digests))
        if self.parcel.size != expected.size:
            # a line that broke looks like a caller who has said everything
            raise RetryLater(BROKEN_OFF.format(self.parcel.size, expected.size))
        start = self.check.passed()
        self.parcel.finish(expected.name)
        return Delivery(expected.name, start, expected.inside, dict(expected.digests))

    def put_aside(self) -> None:
        """Keep what a broken call has brought for the next one."""
        self.parcel.close()

    def discard(self) -> None:
        self.parcel.discard()


def received(body: Buffer, check: UpdateCheck) -> Delivery:
    """Check a small update that came whole; it is written to disk together with others."""
    expected = check.expected
    if not expected.inside:
        return Delivery("", 0, (), dict(expected.digests))
    check.check(body)
    return Delivery("", check.passed(), expected.inside, dict(expected.digests))


class UpdateCheck:
    """Looks at a body as it comes, piece by piece: nothing has to be read again."""

    def __init__(self, expected: Expected, bodies: Bodies, models: StoredModels, bound: float | None) -> None:
        """`bound`: how far the update may move the model."""
        self.expected = expected
        self.seen = 0
        """Bytes that were looked at."""
        self._bodies = bodies
        self._models = models
        self._bound = bound
        self._squares = 0.0
        self._beginning = bytearray()
        """Until the header is whole; afterwards bytes of a number that has not come whole."""
        self._begins = b""
        """The header, as it came."""
        self._start: int | None = None
        """Where the numbers begin."""
        self._layers = iter(expected.inside)
        self._layer: Layer | None = None
        self._place = 0
        """Of the next number, in the vector."""
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
        for place in self._layers:  # those at the end that are empty: no number of them has come
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
        """Read on in the header; what is left behind it."""
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
            raise InvalidUpdate(f"the SHA-256 of layer {layer.name!r} is not the one that was announced")

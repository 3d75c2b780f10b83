"""Taking in an update: piece by piece onto the disk, and looked at before anybody relies on it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from archipel.durability.blobs import BLOCK, Blobs, Parcel
from archipel.durability.stored_models import Delivery, StoredModels
from archipel.engines.federation.body import HEADER, WIDTH, Bad, Bodies
from archipel.layout import finite


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
    sha256: str


def announced(
    bodies: Bodies,
    models: StoredModels,
    base: str,
    asked: Sequence[str],
    digests: Mapping[str, str],
    size: int,
    sha256: str,
) -> Expected:
    """Look at what a learner says it will send, before a byte of it is taken."""
    missing, more = [name for name in asked if name not in digests], [name for name in digests if name not in asked]
    if missing:
        raise Bad(f"layer {missing[0]!r} is missing; the plan asks for {', '.join(asked)}")
    if more:
        raise Bad(f"layer {more[0][:100]!r} was not asked for; the plan asks for {', '.join(asked)}")
    carried = models.digests(base)
    places = bodies.layout.indices(asked)
    inside = tuple(place for place in places if digests[bodies.layout.names[place]] != carried[place])
    wanted = bodies.size(inside)
    if size != wanted:
        raise Bad(f"a body of {size:,} bytes, expected {wanted:,}")
    return Expected(base, digests, inside, size, sha256)


class Reception:
    """One update on its way in; used by one call at a time."""

    def __init__(self, blobs: Blobs, label: str, expected: Expected) -> None:
        self.expected = expected
        self.parcel: Parcel = blobs.parcel(label)

    def begin_at(self, offset: int) -> None:
        if offset == 0:
            self.parcel.begin_anew()
        elif offset != self.parcel.size:
            raise Bad(f"data from byte {offset:,} on, and {self.parcel.size:,} are here")

    def take(self, data: bytes) -> None:
        if self.parcel.size + len(data) > self.expected.size:
            raise Bad(f"more than the {self.expected.size:,} bytes that were announced")
        self.parcel.write(data)

    def finish(self, bodies: Bodies, models: StoredModels, bound: float | None) -> Delivery:
        """Have all of it looked at and on the disk; raises `Bad` with what is wrong."""
        expected = self.expected
        if not expected.inside:
            self.parcel.discard()
            return Delivery("", 0, (), dict(expected.digests))
        if self.parcel.size != expected.size:
            raise Bad(f"{self.parcel.size:,} bytes, {expected.size:,} were announced")
        if self.parcel.digest() != expected.sha256:
            raise Bad("the SHA-256 of the body is not the one that was announced: it was damaged on its way")
        start = self._look(bodies, models, bound)
        return Delivery(self.parcel.finish(), start, expected.inside, dict(expected.digests))

    def _look(self, bodies: Bodies, models: StoredModels, bound: float | None) -> int:
        layout, expected = bodies.layout, self.expected
        squares = 0.0
        with open(self.parcel.path, "rb") as file:
            start = bodies.look_at(expected.inside, file.read(WIDTH + HEADER), expected.size)
            file.seek(start)
            for place in expected.inside:
                layer, digest = layout.layers[place], hashlib.sha256()
                for first in range(layer.start, layer.stop, BLOCK // 4):
                    last = min(first + BLOCK // 4, layer.stop)
                    block = bytearray(file.read(4 * (last - first)))
                    digest.update(block)
                    numbers = torch.frombuffer(block, dtype=torch.float32)
                    if not finite(numbers):
                        raise Bad(
                            f"layer {layer.name!r} holds numbers that are not finite (NaN or infinity); "
                            "lower the rate or look at the data"
                        )
                    if bound is not None:
                        moved = numbers.double() - models.read(expected.base, slice(first, last))
                        squares += float(moved.square().sum())
                if digest.hexdigest() != expected.digests[layer.name]:
                    raise Bad(f"the SHA-256 of layer {layer.name!r} is not the one that was announced")
        if bound is not None and math.sqrt(squares) > bound:
            raise Bad(f"the update moves the model by {math.sqrt(squares):.4g}, the study allows {bound:g}")
        return start

    def put_aside(self) -> None:
        """The call broke off: what has come stays for the next one."""
        self.parcel.close()

    def discard(self) -> None:
        self.parcel.discard()

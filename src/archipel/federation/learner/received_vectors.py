"""Vectors as they come from the controller: layers out of bodies, each compared with its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from archipel.core.types import Plan
from archipel.federation.learner.link import Link
from archipel.federation.storage.stored_models import as_bytes
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import HEADER, WIDTH, Bodies, InvalidUpdate


async def receive_shift(link: Link, bodies: Bodies, order: pb.Train, plan: Plan) -> Tensor:
    """Return the vector that a task adds to gradients; it is zero in layers that do not train or are private."""
    layout = bodies.layout
    places = layout.shared_parameters(plan.trains, plan.private)
    names, digests = [layout.names[place] for place in places], messages.decode_layers(order.shift)
    if list(digests) != names:
        raise ValueError(f"The task's shift has {len(digests)} layers, and {len(names)} train and are not private.")
    body: bytearray | memoryview = bytearray(order.enclosed_shift.body)
    if not body:
        body = await link.fetch(order.task, names, bodies.size(places), shift=True)
    vector = torch.zeros(layout.size)
    for name, numbers in unpack(bodies, body, names, digests).items():
        layout.numbers_of(vector, name).copy_(numbers)
    return vector


def unpack(
    bodies: Bodies, body: bytearray | memoryview, names: Sequence[str], digests: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the layers of a body; refuse one whose numbers are not those of its digest."""
    layout = bodies.layout
    strange = [name for name in names if name not in digests or not layout.knows(name)]
    if strange:
        raise InvalidUpdate(f"layer {strange[0][:100]!r} came, and is none of the layers that were announced")
    place = bodies.check_header(layout.indices(names), bytes(body[: WIDTH + HEADER]), len(body))
    numbers = torch.frombuffer(body, dtype=torch.float32, offset=place)
    found = {}
    place = 0
    for name in names:
        size = layout.layers[layout.index(name)].size
        found[name] = numbers[place : place + size]
        place += size
        if digest_of_numbers(found[name]) != digests[name]:
            raise ValueError(f"Layer {name!r} of the controller's model came damaged.")
    return found


def digest_of_numbers(numbers: Tensor) -> str:
    """Return the SHA-256 of numbers as they travel."""
    return hashlib.sha256(as_bytes(numbers)).hexdigest()

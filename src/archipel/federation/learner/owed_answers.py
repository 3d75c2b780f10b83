"""The answer to a training task: made once, written to disk, then sent until the controller has it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.parts.secure_sum import change_of_layers
from archipel.core.types import Metrics
from archipel.federation.learner.local_state import Memory, Owed, Withheld
from archipel.federation.learner.received_vectors import digest_of_numbers
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import Bodies, fingerprint
from archipel.learner.learner import Job


def owe(
    memory: Memory,
    layout: Layout,
    task: int,
    job: Job,
    layers: tuple[str, ...],
    had: Mapping[str, str],
    metrics: Metrics,
) -> Owed:
    """Note an answer; had: hashes of the layers of the task's model, which need not be sent back."""
    vector = job.vector.cpu()
    digests = {name: digest_of_numbers(layout.numbers_of(vector, name)) for name in layers}
    changed = tuple(name for name in layers if digests[name] != had[name])
    pieces = [layout.numbers_of(vector, name) for name in changed]
    memory.sequence += 1
    memory.trained += 1
    numbers = torch.cat(pieces) if pieces else torch.empty(0)
    memory.owed = Owed(task, memory.sequence, layers, changed, digests, numbers, job.steps, metrics)
    return memory.owed


def withhold(
    memory: Memory, layout: Layout, task: int, job: Job, carried: Tensor, layers: tuple[str, ...], metrics: Metrics
) -> Owed:
    """Note an answer without numbers, and keep the change for a secure sum."""
    change = change_of_layers(job.vector.cpu(), carried.cpu(), layout.slices(layout.indices(layers)))
    if not bool(torch.isfinite(change).all()):
        raise ValueError("its update holds numbers that are not finite")
    memory.sequence += 1
    memory.trained += 1
    memory.withheld = Withheld(task, layers, change)
    memory.owed = Owed(task, memory.sequence, layers, (), {}, torch.empty(0), job.steps, metrics)
    return memory.owed


def head_of(owed: Owed, bodies: Bodies) -> tuple[pb.Head, bytes]:
    """Return the head of an answer, and how its body begins."""
    header, name = b"", ""
    if owed.changed:
        header = bodies.header(bodies.layout.indices(owed.changed))
        name = fingerprint(header, [owed.digests[layer] for layer in owed.changed])
    layers = messages.encode_layers(owed.layers, [owed.digests.get(layer, "") for layer in owed.layers])
    head = pb.Head(
        task=owed.task,
        sequence=owed.sequence,
        size=len(header) + owed.numbers.nbytes,
        sha256=bytes.fromhex(name),
        trained=messages.encode_metrics(owed.metrics, layers, owed.steps),
    )
    return head, header

"""Prepare a recording for a number of learners: bind its operations to preallocated tensors.

Intermediate results share one block of memory, whose pieces are reused as soon as they are no longer needed, to keep
the working set small. Operations with the same result in each step run once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload

from archipel.executors.recording import (
    DRAWS,
    PerLearner,
    Rate,
    RecordedCall,
    Recording,
    Size,
    TensorPlace,
    transformed,
)
from archipel.executors.simplify import lasting, read, written

Operation: TypeAlias = Callable[[], object]
Draw: TypeAlias = Callable[[int, Tensor, RecordedCall], Operation]
"""Returns the call that writes the random numbers of a draw, given by its number, into a tensor."""
ALIGNED = 64
"""Alignment of tensors in bytes."""


@dataclass(frozen=True)
class ReadyStep:
    """A step that is ready to be run."""

    calls: Sequence[Operation]
    results: Sequence[Tensor]
    """Its results, the same tensors in each step."""


class RecordedStep:
    """A recording with its plan of memory for any number of learners."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._once = _constant(recording)
        """Calls whose results are the same in every step."""
        self.lives = _Lifetimes(recording, self._once)

    def prepare(self, learners: int, given: Mapping[str, Tensor], rate: float, draw: Draw | None) -> ReadyStep:
        """Return the step of this many learners on these tensors, which must be contiguous."""
        memory = _Memory(self, learners, given)
        once: list[Operation] = []
        always: list[Operation] = []
        draws = 0
        for number, call in enumerate(self.recording.calls):
            if call.name in DRAWS:
                assert draw is not None
                (output,) = call.outputs
                assert output is not None
                always.append(draw(draws, memory.tensor(output), call))
                draws += 1
            else:
                (once if number in self._once else always).append(_ready(call, memory, rate))
        for operation in once:
            operation()
        return ReadyStep(always, [memory.tensor(place) for place in self.recording.results])


def _constant(recording: Recording) -> set[int]:
    """Return the numbers of the calls whose results are the same in every step."""
    writes: dict[int, int] = {}
    for call in recording.calls:
        for memory in written(call):
            writes[memory] = writes.get(memory, 0) + 1
    varying = {*recording.given.values()}
    once = set()
    for number, call in enumerate(recording.calls):
        own = written(call)
        again = own & recording.held.keys() or any(writes[memory] > 1 for memory in own)
        if call.name in DRAWS or read(call) & varying or again:
            varying |= own
        else:
            once.add(number)
    return once


class _Lifetimes:
    """First write and last use of each piece of memory, and which pieces can reuse another's."""

    def __init__(self, recording: Recording, once: set[int]) -> None:
        self.first: dict[int, int] = {}
        """The call that writes each piece first; -1, before all calls, if it is the same in each step."""
        self.last: dict[int, int] = {}
        self.places: dict[int, set[TensorPlace]] = {}
        for number, call in enumerate(recording.calls):
            for place in (*call.reads, *filter(None, call.outputs)):
                self.places.setdefault(place.memory, set()).add(place)
                self.first.setdefault(place.memory, -1 if number in once else number)
                self.last[place.memory] = number
        same = {memory for memory, first in self.first.items() if first < 0}
        self.last |= dict.fromkeys(lasting(recording) | same, len(recording.calls))
        self.instead = self._instead(recording)
        """Results that overwrite an argument: computed elementwise from an argument that is not needed later."""

    def _instead(self, recording: Recording) -> dict[int, int]:
        found: dict[int, int] = {}
        for number, call in enumerate(recording.calls):
            output = call.outputs[0] if len(call.outputs) == 1 else None
            number_by_number = torch.Tag.pointwise in call.operation.tags and out_variant(call.operation) is not None
            if output is None or not number_by_number or self.first[output.memory] != number:
                continue
            arguments = [*call.reads]
            for argument in arguments:
                dies = self.last[argument.memory] == number and self.first[argument.memory] >= 0
                alone = sum(one.memory == argument.memory for one in arguments) == 1
                if dies and alone and replace(argument, memory=output.memory) == output:
                    found[output.memory] = argument.memory
                    break
        return found


class _Memory:
    """The tensors of a step of a number of learners."""

    def __init__(self, replay: RecordedStep, learners: int, given: Mapping[str, Tensor]) -> None:
        recording = replay.recording
        self._learners = learners
        self._held = recording.held
        self._outside = {memory: given[name] for name, memory in recording.given.items()} | dict(recording.held)
        lives = replay.lives
        arena = _Arena()
        begins: dict[int, list[int]] = {}
        ends: dict[int, list[int]] = {}
        for memory, first in lives.first.items():
            if memory not in self._outside:
                begins.setdefault(first, []).append(memory)
                ends.setdefault(lives.last[memory], []).append(memory)
        inherited = set(lives.instead.values())
        self._starts: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for number in range(-1, len(recording.calls)):
            for memory in begins.get(number, ()):
                if memory in lives.instead:
                    argument = lives.instead[memory]
                    self._starts[memory], sizes[memory] = self._starts[argument], sizes[argument]
                else:
                    sizes[memory] = max(map(self._bytes, lives.places[memory]))
                    self._starts[memory] = arena.take(sizes[memory])
            for memory in ends.get(number, ()):
                if memory not in inherited:
                    arena.give_back(self._starts[memory], sizes[memory])
        with torch.inference_mode(False):  # steps within that mode and outside of it use the same memory
            self._bytes_of_all = torch.empty(arena.size + ALIGNED, dtype=torch.uint8)
        self._tensors: dict[TensorPlace, Tensor] = {}

    def _bytes(self, place: TensorPlace) -> int:
        spans = ((self.size(n) - 1) * self.size(step) for n, step in zip(place.shape, place.stride, strict=True))
        return (self.size(place.offset) + sum(spans) + 1) * place.dtype.itemsize

    def size(self, size: Size) -> int:
        """Return a size for the number of learners."""
        return size if isinstance(size, int) else size.at(self._learners)

    def tensor(self, place: TensorPlace) -> Tensor:
        """Return the tensor at a place."""
        found = self._tensors.get(place)
        if found is None:
            shape, stride = ([*map(self.size, sizes)] for sizes in (place.shape, place.stride))
            offset = self.size(place.offset)
            whole = self._outside.get(place.memory)
            if whole is None:
                whole = self._bytes_of_all.view(place.dtype)
                offset += self._starts[place.memory] // place.dtype.itemsize
            else:
                offset += int(whole.storage_offset()) if place.memory not in self._held else 0
            found = self._tensors[place] = whole.as_strided(shape, stride, offset)
        return found


class _Arena:
    """An allocator of pieces of one block of memory."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []
        """Free pieces: begin and end, ascending."""

    def take(self, size: int) -> int:
        """Allocate a piece of this size and return where it begins."""
        size = _aligned(size)
        fitting = [(end - begin, begin, end) for begin, end in self._free if end - begin >= size]
        if fitting:
            _, begin, end = min(fitting)
            self._free.remove((begin, end))
            if begin + size < end:
                insort(self._free, (begin + size, end))
            return begin
        begin = self.size
        if self._free and self._free[-1][1] == self.size:
            begin, _ = self._free.pop()
        self.size = begin + size
        return begin

    def give_back(self, begin: int, size: int) -> None:
        """Free a piece."""
        end = begin + _aligned(size)
        for neighbour in [*self._free]:
            if neighbour[1] == begin or neighbour[0] == end:
                self._free.remove(neighbour)
                begin, end = min(begin, neighbour[0]), max(end, neighbour[1])
        insort(self._free, (begin, end))


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _ready(call: RecordedCall, memory: _Memory, rate: float) -> Operation:
    """Bind an operation to its tensors."""

    def change(value: TensorPlace | PerLearner | Rate) -> object:
        if isinstance(value, TensorPlace):
            return memory.tensor(value)
        return rate * value.factor if isinstance(value, Rate) else memory.size(value)

    args, kwargs = transformed(call.args, change), transformed(call.kwargs, change)
    operation = call.operation._op
    known = {place.memory for place in call.reads}
    fresh = [(number, place) for number, place in enumerate(call.outputs) if place and place.memory not in known]
    if not fresh:
        return partial(operation, *args, **kwargs)
    into = out_variant(call.operation)
    if into is not None and len(fresh) == len(call.outputs):
        variant, names = into
        outputs = {name: memory.tensor(place) for name, (_, place) in zip(names, fresh, strict=True)}
        return partial(variant._op, *args, **kwargs, **outputs)
    targets = [(number, memory.tensor(place)) for number, place in fresh]

    def compute_and_copy() -> None:
        results = operation(*args, **kwargs)
        for number, target in targets:
            target.copy_(results[number] if isinstance(results, tuple | list) else results)

    return compute_and_copy


@cache
def out_variant(operation: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """Return the out= variant of an operation and the names of its out arguments; None if it has none."""
    wanted = [(one.name, str(one.type)) for one in operation._schema.arguments]
    packet = operation._overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        arguments = overload._schema.arguments
        names = tuple(one.name for one in arguments if one.is_out)
        if names and [(one.name, str(one.type)) for one in arguments if not one.is_out] == wanted:
            return overload, names
    return None

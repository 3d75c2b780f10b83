"""Random numbers of a stack: each learner draws the same numbers as when it is trained alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from archipel.executors.recorded_step import Operation
from archipel.executors.recording import DRAWS, RecordedCall, Recorder, TensorPlace, UnrecordableError, fixed


@dataclass(frozen=True)
class DrawForm:
    """The tensor that a draw fills when a learner is trained alone."""

    shape: tuple[int, ...]
    """Its shape with one example."""
    example: int | None
    """The dimension of the examples; None: all examples share the numbers."""
    order: tuple[int, ...]
    """Its dimensions in memory order, which is the order of the draws."""

    def sizes(self, examples: int) -> tuple[int, ...]:
        """Return its sizes for this many examples."""
        return tuple(examples if place == self.example else size for place, size in enumerate(self.shape))

    def in_order(self, numbers: Tensor, examples: int) -> Tensor:
        """View numbers in the order of their draws as a tensor of this many examples; leading dimensions stay."""
        sizes, leading = self.sizes(examples), numbers.dim() - 1
        drawn = numbers.unflatten(-1, [sizes[place] for place in self.order]) if sizes else numbers.squeeze(-1)
        places = [leading + self.order.index(place) for place in range(len(sizes))]
        return drawn.permute(*range(leading), *places)


def draw_forms(module: nn.Module, x: Tensor) -> list[DrawForm]:
    """Return the draws of a network in training mode in one forward pass."""
    with torch.random.fork_rng(devices=[]):
        two, three = (_draws(module, x[torch.arange(count) % len(x)]) for count in (2, 3))
    if len(two) != len(three):
        raise UnrecordableError("its random draws depend on the number of examples")
    return [_form(*both) for both in zip(two, three, strict=True)]


def _draws(module: nn.Module, x: Tensor) -> list[TensorPlace]:
    with Recorder({}) as recorder:
        module(x)
    return [_drawn(call) for call in recorder.calls if call.name in DRAWS]


def _drawn(call: RecordedCall) -> TensorPlace:
    (place,) = call.outputs
    assert place is not None
    return place


def _form(two: TensorPlace, three: TensorPlace) -> DrawForm:
    differing = [n for n, sizes in enumerate(zip(two.shape, three.shape, strict=True)) if sizes[0] != sizes[1]]
    sizes = [fixed(size) for size in three.shape]
    order = sorted(range(len(sizes)), key=lambda place: (-fixed(three.stride[place]), place))
    span = 1
    for place in reversed(order):
        if sizes[place] > 1 and fixed(three.stride[place]) != span:
            raise UnrecordableError("it draws random numbers into parts of a tensor")
        span *= sizes[place]
    if len(differing) > 1 or any(sizes[place] != 3 for place in differing):
        raise UnrecordableError("it draws random numbers that are not for one example each")
    example = differing[0] if differing else None
    shape = tuple(1 if place == example else size for place, size in enumerate(sizes))
    return DrawForm(shape, example, tuple(order))


class LearnersDraws:
    """Gives each learner of a stack the random numbers that it would draw alone."""

    def __init__(self, forms: Sequence[DrawForm]) -> None:
        self.forms = forms
        self.generators: list[torch.Generator] = []
        self.present: Sequence[int] = ()
        """Number of examples in each learner's batch without padding."""
        self._scratch: dict[torch.dtype, Tensor] = {}

    def seed(self, learner: int, key: int) -> None:
        """Seed a learner's generator as for a pass over its data."""
        while learner >= len(self.generators):
            self.generators.append(torch.Generator())
        self.generators[learner].manual_seed(key)

    def ready(self, number: int, target: Tensor, call: RecordedCall) -> Operation:
        """Return the call that fills a tensor [learner, ...] with a forward pass's draw of this number."""
        form, learners = self.forms[number], len(target)
        width = 1 if form.example is None else target.shape[1 + form.example]
        kind = DRAWS[call.name]
        in_order = form.order == tuple(range(len(form.order)))
        if target.shape[1:] != form.sizes(width) or (kind == "normal" and not in_order):
            raise UnrecordableError("it draws other random numbers in a stack than alone")
        count = prod(form.sizes(width))
        numbers = self._numbers(torch.float64 if kind == "bernoulli" else target.dtype, learners, count)
        rows, whole = numbers.unbind(), form.in_order(numbers, width)
        fill, put = _distribution(kind, call)

        def draw() -> None:
            if form.example is None or min(self.present) == width:
                for row, generator in zip(rows, self.generators, strict=False):
                    fill(row, generator=generator)
                put(whole, target)
                return
            target.zero_()
            for own, row, generator, present in zip(target, rows, self.generators, self.present, strict=False):
                drawn = fill(row[: count // width * present], generator=generator)
                put(form.in_order(drawn, present), own.narrow(form.example, 0, present))

        return draw

    def _numbers(self, dtype: torch.dtype, learners: int, count: int) -> Tensor:
        """Return memory for the learners' numbers, shared by all draws."""
        if dtype not in self._scratch or self._scratch[dtype].numel() < learners * count:
            with torch.inference_mode(False):  # steps within that mode and outside of it use the same memory
                self._scratch[dtype] = torch.empty(learners * count, dtype=dtype)
        return self._scratch[dtype][: learners * count].view(learners, count)


def _distribution(kind: str, call: RecordedCall) -> tuple[Callable[..., Tensor], Callable[[Tensor, Tensor], object]]:
    """Return functions that fill memory with random numbers and that write them into a tensor.

    `bernoulli_` sets 1 where a uniform number in double precision is below the probability. Drawing uniform numbers
    gives the same bits in a third of the time.
    """
    settings = call.args[1:] if call.name.endswith("_") or kind == "bernoulli" else ()
    if kind == "bernoulli":
        chance = settings[0] if settings else 0.5
        return Tensor.uniform_, lambda numbers, target: torch.lt(numbers, chance, out=target)

    def fill(numbers: Tensor, generator: torch.Generator) -> Tensor:
        draw = numbers.uniform_ if kind == "uniform" else numbers.normal_
        return draw(*settings, generator=generator)

    return fill, lambda numbers, target: target.copy_(numbers)

"""Record the operations of a step, for any number of learners.

A step of a network that `torch.func` maps over learners is always the same list of operations on tensors whose sizes
depend on the number of learners. It is run for two and for three learners, and its operations are recorded below
autograd and vmap. Sizes that differ between the two recordings grow linearly with the number of learners; everything
else is the same for any number. `recorded_step.py` replays the operations without the overhead of dispatching them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = {
    "aten::bernoulli.p": "bernoulli",
    "aten::bernoulli_.float": "bernoulli",
    "aten::rand": "uniform",
    "aten::rand_like": "uniform",
    "aten::uniform_": "uniform",
    "aten::randn": "normal",
    "aten::randn_like": "normal",
    "aten::normal_": "normal",
}
"""Operations that draw random numbers and can be replayed, and their distributions."""


class UnrecordableError(Exception):
    """A step cannot be recorded; the message says why."""


@dataclass(frozen=True)
class PerLearner:
    """A size that grows by the same amount with each learner."""

    base: int
    slope: int

    def at(self, learners: int) -> int:
        """Return the size for this many learners."""
        return self.base + self.slope * learners


Size: TypeAlias = int | PerLearner


def fixed(size: Size) -> int:
    """Return a size that does not depend on the number of learners."""
    assert isinstance(size, int)
    return size


@dataclass(frozen=True)
class Rate:
    """The learning rate times a factor; it may differ from task to task."""

    factor: float


@dataclass(frozen=True)
class TensorPlace:
    """A tensor's location: its memory, sizes and strides."""

    memory: int
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


Form: TypeAlias = Any
"""Nested arguments of an operation, with places for tensors; sizes may be per learner."""


@dataclass(frozen=True)
class RecordedCall:
    """One operation."""

    operation: OpOverload
    args: tuple[Form, ...]
    kwargs: dict[str, Form]
    outputs: tuple[TensorPlace | None, ...]

    @property
    def name(self) -> str:
        """The operation's name."""
        return str(self.operation.name())

    @property
    def reads(self) -> Iterator[TensorPlace]:
        """The tensors among the arguments, including those changed in place."""
        yield from places((self.args, self.kwargs))

    @property
    def changes(self) -> Iterator[TensorPlace]:
        """The tensors among the arguments that are changed in place."""
        arguments = self.operation._schema.arguments
        given = [*zip(arguments, self.args, strict=False)]
        given += [(one, self.kwargs[one.name]) for one in arguments if one.name in self.kwargs]
        for argument, value in given:
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from places(value)


@dataclass(frozen=True)
class Recording:
    """The operations of a step in their order."""

    calls: tuple[RecordedCall, ...]
    results: tuple[TensorPlace, ...]
    """The results of the step."""
    given: Mapping[str, int]
    """The memory of the step's inputs, by name."""
    held: Mapping[int, Tensor] = field(default_factory=dict)
    """The memory of other tensors that the step reads, the network's constants."""


def places(form: Form) -> Iterator[TensorPlace]:
    """Yield all tensors of a form."""
    if isinstance(form, TensorPlace):
        yield form
    elif isinstance(form, tuple | list):
        for inner in form:
            yield from places(inner)
    elif isinstance(form, dict):
        yield from places([*form.values()])


def transformed(form: Form, change: Callable[[TensorPlace | PerLearner | Rate], Any]) -> Form:
    """Return a form with its tensors, sizes and rates replaced."""
    if isinstance(form, TensorPlace | PerLearner | Rate):
        return change(form)
    if isinstance(form, tuple | list):
        return type(form)(transformed(inner, change) for inner in form)
    if isinstance(form, dict):
        return {name: transformed(inner, change) for name, inner in form.items()}
    return form


class Recorder(TorchDispatchMode):
    """Records every operation on tensors within a block."""

    def __init__(self, given: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[RecordedCall] = []
        self.held: dict[int, Tensor] = {}
        self._alive: list[Tensor] = []
        """All tensors, kept alive so that no memory is reused."""
        self._memory: dict[int, int] = {}
        self.given = {name: self.place(tensor).memory for name, tensor in given.items()}
        self._varying = {*self.given.values()}
        """The memory whose contents change from step to step."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, which avoids loading torch.compile; that takes a second."""
        return False

    def place(self, tensor: Tensor, made: bool = True) -> TensorPlace:
        """Return a tensor's place; made: it is an input or a result, so that its memory is not a constant."""
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise UnrecordableError("it computes with sparse tensors or with views that torch computes when read")
        self._alive.append(tensor)
        key = tensor.untyped_storage()._cdata
        if key not in self._memory:
            self._memory[key] = len(self._memory)
            if not made:
                self.held[self._memory[key]] = tensor
        memory = self._memory[key]
        return TensorPlace(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _form(self, value: Any) -> Form:
        if isinstance(value, Tensor):
            return self.place(value, made=False)
        if isinstance(value, tuple | list):
            return tuple(map(self._form, value)) if isinstance(value, tuple) else [*map(self._form, value)]
        if isinstance(value, dict):
            return {name: self._form(inner) for name, inner in value.items()}
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        args_form, kwargs_form = self._form(args), self._form(kwargs)
        varies = any(place.memory in self._varying for place in places((args_form, kwargs_form)))
        _check(func, varies)
        result = func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:  # changes the view and not the contents
            return result
        outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
        if not varies and _decides(func):
            for one in outputs:
                self._form(one)
            return result
        if not all(one is None or isinstance(one, Tensor) for one in outputs):
            raise UnrecordableError(f"its forward pass uses the result of {func} outside of tensors")
        made = tuple(None if one is None else self.place(one) for one in outputs)
        call = RecordedCall(func, args_form, kwargs_form, made)
        if varies or func.name() in DRAWS:
            self._varying |= {place.memory for place in (*call.changes, *filter(None, made))}
        self.calls.append(call)
        return result


def _decides(operation: OpOverload) -> bool:
    """Return whether later operations may depend on an operation's result."""
    return torch.Tag.data_dependent_output in operation.tags or torch.Tag.dynamic_output_shape in operation.tags


def _check(operation: OpOverload, varies: bool) -> None:
    """Raise if an operation cannot be replayed; varies: its arguments change from step to step."""
    tags = operation.tags
    if varies and torch.Tag.data_dependent_output in tags:
        raise UnrecordableError("its forward pass reads a number out of a tensor")
    if varies and torch.Tag.dynamic_output_shape in tags:
        raise UnrecordableError(f"the sizes of its tensors depend on their numbers ({operation})")
    if torch.Tag.nondeterministic_seeded in tags and operation.name() not in DRAWS:
        raise UnrecordableError(f"it draws random numbers by {operation}, which is not supported")


StepBody: TypeAlias = Callable[[], Sequence[Tensor]]


def recorded(step: Callable[[int], tuple[Mapping[str, Tensor], StepBody]]) -> Recording:
    """Record a step; `step` returns the inputs and the body for a number of learners."""
    counts = (2, 3)
    first, second = (_recorded(*step(count)) for count in counts)
    try:
        return _merged(first, second, counts)
    except _DifferError as error:
        raise UnrecordableError(f"its operations depend on the number of learners ({error})") from None


def _recorded(given: Mapping[str, Tensor], step: StepBody) -> Recording:
    with Recorder(given) as recorder:
        results = step()
    return Recording(tuple(recorder.calls), tuple(map(recorder.place, results)), recorder.given, recorder.held)


class _DifferError(Exception):
    """Two recordings differ."""


def _merged(first: Recording, second: Recording, counts: tuple[int, int]) -> Recording:
    """Merge recordings for two numbers of learners into one for any number."""
    if [call.name for call in first.calls] != [call.name for call in second.calls]:
        raise _DifferError("the operations differ")
    if first.held.keys() != second.held.keys():
        raise _DifferError("the constants differ")
    for memory, tensor in first.held.items():
        if not _same_numbers(tensor, second.held[memory]):
            raise _DifferError("the values of constants differ")
    calls = [
        replace(one, **{name: _joined(getattr(one, name), getattr(other, name), counts) for name in PARTS})
        for one, other in zip(first.calls, second.calls, strict=True)
    ]
    return replace(first, calls=tuple(calls), results=_joined(first.results, second.results, counts))


PARTS = ("args", "kwargs", "outputs")
"""Fields of a call that may depend on the number of learners."""


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other)))


def _joined(one: Form, other: Form, counts: tuple[int, int]) -> Form:
    """Return the form that equals `one` for the first number of learners and `other` for the second."""
    if type(one) is not type(other):
        raise _DifferError(f"{one} and {other}")
    if isinstance(one, TensorPlace):
        sizes = [_joined(getattr(one, name), getattr(other, name), counts) for name in ("shape", "stride", "offset")]
        if (one.memory, one.dtype) != (other.memory, other.dtype):
            raise _DifferError("other memory")
        return TensorPlace(one.memory, one.dtype, *sizes)
    if isinstance(one, tuple | list):
        if len(one) != len(other):
            raise _DifferError(f"{one} and {other}")
        return type(one)(_joined(*both, counts) for both in zip(one, other, strict=True))
    if isinstance(one, dict):
        if one.keys() != other.keys():
            raise _DifferError(f"{one} and {other}")
        return {name: _joined(one[name], other[name], counts) for name in one}
    if one == other or one != one:
        return one
    if type(one) is int:
        return _through(one, other, counts)
    raise _DifferError(f"{one} and {other}")


def _through(one: int, other: int, counts: tuple[int, int]) -> PerLearner:
    slope, rest = divmod(other - one, counts[1] - counts[0])
    if rest:
        raise _DifferError(f"sizes of {one} and {other}")
    return PerLearner(one - slope * counts[0], slope)

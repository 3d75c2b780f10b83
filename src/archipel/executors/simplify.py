"""Simplify a recording to fewer and larger operations.

Every function takes a recording and returns one that leaves the same numbers in its results and inputs, up to rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from archipel.executors.recording import (
    DRAWS,
    Form,
    PerLearner,
    Rate,
    RecordedCall,
    Recording,
    Size,
    TensorPlace,
    fixed,
    transformed,
)

aten = torch.ops.aten
EMPTY = {
    f"aten::{name}" for name in ("empty.memory_format", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
}
"""Operations that allocate memory without writing to it."""
FILLED = {f"aten::{name}" for name in ("ones_like", "zeros_like", "full_like", "new_zeros", "new_ones", "new_full")}
"""Operations that use only the size of their argument."""
PRODUCTS = {"aten::mul.Scalar", "aten::mul.Tensor", "aten::div.Scalar", "aten::div.Tensor"}


def simplified(recording: Recording) -> Recording:
    """Apply all simplifications."""
    for change in (_without_views, _without_ones, _needed, _with_biases, _contiguous):
        recording = change(recording)
    return recording


def descending(recording: Recording, names: Sequence[str]) -> Recording:
    """Return a recording that subtracts its results, scaled by the rate, from the inputs of these names, in order."""
    descents = [
        RecordedCall(
            aten.sub_.Tensor, (given := _whole(recording.given[name], result), result), {"alpha": Rate(1.0)}, (given,)
        )
        for name, result in zip(names, recording.results, strict=True)
    ]
    recording = replace(recording, calls=(*recording.calls, *descents), results=())
    return _with_descents(_updated_early(recording))


# ------------------------------------------------------------------------------------------------- memory and calls


def read(call: RecordedCall) -> set[int]:
    """Return the memory that an operation reads."""
    if call.name in DRAWS or call.name in FILLED:
        return {place.memory for place in call.changes}
    return {place.memory for place in call.reads}


def written(call: RecordedCall) -> set[int]:
    """Return the memory that an operation writes."""
    if call.name in EMPTY:
        return set()
    changed = {place.memory for place in call.changes}
    outputs = {place.memory for place in call.outputs if place is not None}
    return changed | (outputs - {place.memory for place in call.reads})


def lasting(recording: Recording) -> set[int]:
    """Return the memory that outlives a step: inputs, results and constants."""
    return {*recording.given.values(), *recording.held, *(place.memory for place in recording.results)}


def _undisturbed(calls: Iterable[RecordedCall], memory: set[int]) -> bool:
    """Return whether no operation writes this memory."""
    return not any(written(call) & memory for call in calls)


def _whole(memory: int, like: TensorPlace) -> TensorPlace:
    """Return a whole piece of memory as a contiguous tensor with the sizes of another."""
    stride, strides = 1, []
    for size in reversed(like.shape[1:]):
        strides.append(stride)
        stride *= fixed(size)
    return TensorPlace(memory, like.dtype, like.shape, (stride, *strides[::-1]), 0)


# ---------------------------------------------------------------------------------------------------- less to do


def _without_views(recording: Recording) -> Recording:
    """Remove operations that write nothing, such as views and allocations."""
    return replace(recording, calls=tuple(call for call in recording.calls if written(call)))


def _without_ones(recording: Recording) -> Recording:
    """Remove copies and multiplications by one, if neither side is changed later."""
    writes = Counter(memory for call in recording.calls for memory in written(call))
    writes.update(recording.given.values())
    fixed_memory = {*recording.given.values(), *recording.held}
    kept: list[RecordedCall] = []
    same: dict[int, TensorPlace] = {}
    """Removed memory, and the place to read instead."""
    for recorded in recording.calls:
        call = replace(recorded, args=_redirected(recorded.args, same), kwargs=_redirected(recorded.kwargs, same))
        source, copy = _source(call), call.outputs[0] if call.outputs else None
        if source is None or copy is None or writes[source.memory] > 1 or writes[copy.memory] > 1:
            kept.append(call)
        elif _lies_like(source, copy) and copy.memory not in fixed_memory:
            same[copy.memory] = source
        else:
            kept.append(call)
    results = tuple(_redirected(result, same) for result in recording.results)
    return replace(recording, calls=tuple(kept), results=results)


def _source(call: RecordedCall) -> TensorPlace | None:
    """Return the tensor that an operation merely copies, or None."""
    one = call.name in PRODUCTS and type(call.args[1]) in (int, float) and call.args[1] == 1
    if (one or call.name == "aten::clone") and isinstance(call.args[0], TensorPlace):
        return call.args[0]
    return None


def _lies_like(one: TensorPlace, other: TensorPlace) -> bool:
    """Return whether two tensors have the same sizes and strides; strides of dimensions of size 1 are ignored."""
    strides = zip(one.shape, one.stride, other.stride, strict=True) if one.shape == other.shape else [(2, 0, 1)]
    return one.dtype == other.dtype and all(size == 1 or mine == theirs for size, mine, theirs in strides)


def _redirected(form: Form, same: Mapping[int, TensorPlace]) -> Form:
    """Return arguments or results with removed memory replaced by the place to read instead."""

    def change(value: object) -> object:
        if isinstance(value, TensorPlace) and value.memory in same:
            source = same[value.memory]
            return replace(value, memory=source.memory, offset=_sum(value.offset, source.offset))
        return value

    return transformed(form, change)


def _sum(one: Size, other: Size) -> Size:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    first, second = (PerLearner(size, 0) if isinstance(size, int) else size for size in (one, other))
    return PerLearner(first.base + second.base, first.slope + second.slope)


def _needed(recording: Recording) -> Recording:
    """Remove operations that no result needs."""
    wanted, kept = lasting(recording), []
    for call in reversed(recording.calls):
        if written(call) & wanted:
            wanted |= read(call)
            kept.append(call)
    return replace(recording, calls=tuple(kept[::-1]))


# ------------------------------------------------------------------------------------------------- larger operations


class _Products:
    """The batched products of a recording with a result that only one other operation uses."""

    def __init__(self, recording: Recording) -> None:
        self.calls = [*recording.calls]
        uses = Counter(memory for call in recording.calls for memory in {place.memory for place in call.reads})
        writes = Counter(memory for call in recording.calls for memory in written(call))
        self._at = {
            call.outputs[0].memory: number
            for number, call in enumerate(recording.calls)
            if call.name == "aten::bmm" and call.outputs[0] is not None
        }
        kept = lasting(recording)
        self._at = {
            memory: number
            for memory, number in self._at.items()
            if uses[memory] == 1 and writes[memory] == 1 and memory not in kept
        }

    def before(self, number: int, memory: int) -> RecordedCall | None:
        """Return the product that made this memory, if it can be moved to a later operation."""
        at = self._at.get(memory)
        if at is None or at >= number:
            return None
        call = self.calls[at]
        return call if _undisturbed(self.calls[at + 1 : number], read(call)) else None

    def join(self, number: int, product: RecordedCall, joined: RecordedCall) -> None:
        """Replace an operation and the product before it by one operation."""
        self.calls[self.calls.index(product)] = NOTHING
        self.calls[number] = joined


NOTHING = RecordedCall(aten.empty.memory_format, (), {}, ())


def _with_biases(recording: Recording) -> Recording:
    """Fuse an addition to a product into the product (baddbmm)."""
    products = _Products(recording)
    for number, call in enumerate(products.calls):
        if call.name != "aten::add.Tensor" or call.kwargs or not all(isinstance(one, TensorPlace) for one in call.args):
            continue
        (sum_,) = call.outputs
        for product, added in (call.args, call.args[::-1]):
            made = products.before(number, product.memory)
            if made is None or sum_ is None or product.dtype != added.dtype:
                continue
            (whole,) = made.outputs
            assert whole is not None
            bias = _as_bias(added, whole)
            if bias is not None and product.shape == sum_.shape and _lies_like(product, sum_) and product.offset == 0:
                result = replace(whole, memory=sum_.memory)
                products.join(number, made, RecordedCall(aten.baddbmm.default, (bias, *made.args), {}, (result,)))
                break
    return _without_views(replace(recording, calls=tuple(products.calls)))


def _as_bias(added: TensorPlace, product: TensorPlace) -> TensorPlace | None:
    """Return one row for each learner, shaped to be added to [learner, row, column]; None for other tensors."""
    (first, *middle, last), shape = added.shape, product.shape
    if len(added.shape) < 2 or any(size != 1 for size in middle) or (first, last) != (shape[0], shape[2]):
        return None
    return TensorPlace(
        added.memory, added.dtype, (first, 1, last), (added.stride[0], 0, added.stride[-1]), added.offset
    )


def _contiguous(recording: Recording) -> Recording:
    """Compute transposed results of products as products of transposed operands, so that they are contiguous."""
    calls, results = [*recording.calls], [*recording.results]
    uses = Counter(memory for call in calls for memory in {place.memory for place in call.reads})
    at = {call.outputs[0].memory: i for i, call in enumerate(calls) if call.name == "aten::bmm" and call.outputs[0]}
    for number, result in enumerate(results):
        place = at.get(result.memory)
        if place is None or uses[result.memory] or sum(one.memory == result.memory for one in results) > 1:
            continue
        (product,) = calls[place].outputs
        assert product is not None
        if len(result.shape) == 3 and result == _transposed(product):
            left, right = calls[place].args
            results[number] = _whole(result.memory, result)
            turned = (_transposed(right), _transposed(left))
            calls[place] = RecordedCall(aten.bmm.default, turned, {}, (results[number],))
    return replace(recording, calls=tuple(calls), results=tuple(results))


def _transposed(place: TensorPlace) -> TensorPlace:
    shape, stride = place.shape, place.stride
    return replace(place, shape=(shape[0], shape[2], shape[1]), stride=(stride[0], stride[2], stride[1]))


# ------------------------------------------------------------------------------------------------------ descents


def _updated_early(recording: Recording) -> Recording:
    """Move updates of inputs to just after the last use of the old values."""
    given, calls = {*recording.given.values()}, [*recording.calls]
    for number in range(len(calls)):
        call = calls[number]
        if not written(call) & given:
            continue
        earliest = number
        while earliest and not _clash(calls[earliest - 1], call):
            earliest -= 1
        calls.insert(earliest, calls.pop(number))
    return replace(recording, calls=tuple(calls))


def _clash(one: RecordedCall, other: RecordedCall) -> bool:
    """Return whether two operations cannot be swapped."""
    mine, theirs = written(one), written(other)
    draws = one.name in DRAWS and other.name in DRAWS
    return draws or bool(mine & (theirs | read(other)) or theirs & read(one))


def _with_descents(recording: Recording) -> Recording:
    """Fuse an update along a product into the product."""
    products = _Products(recording)
    for number, call in enumerate(products.calls):
        if call.name != "aten::sub_.Tensor" or not isinstance(call.kwargs.get("alpha"), Rate):
            continue
        target, gradient = call.args
        made = products.before(number, gradient.memory)
        if made is not None and made.outputs[0] == gradient and target.shape == gradient.shape:
            rate = {"beta": 1, "alpha": replace(call.kwargs["alpha"], factor=-call.kwargs["alpha"].factor)}
            products.join(number, made, RecordedCall(aten.baddbmm_.default, (target, *made.args), rate, (target,)))
    return _without_views(replace(recording, calls=tuple(products.calls)))

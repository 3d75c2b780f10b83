"""The C structs that Python fills in, and a check that both languages lay them out alike."""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p, pointer, sizeof
from itertools import count


class TaskStruct(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("run", "argument", "next")),
        *((name, c_int) for name in ("done", "cancelled", "paused", "generation")),
    )


class LayerStruct(Structure):
    _fields_ = tuple((name, c_int64) for name in ("inputs", "outputs", "weight", "bias", "rectified", "trained"))


class NetworkStruct(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("y", c_void_p),
        ("layer", POINTER(LayerStruct)),
        ("layers", c_int64),
        ("rate", c_float),
        ("momentum", c_float),
        ("proximal", c_float),
        ("decay", c_float),
        ("nesterov", c_int32),
    )


class TrialStruct(Structure):
    _fields_ = (
        ("task", TaskStruct),
        ("network", c_void_p),
        ("model", c_void_p),
        ("examples", c_void_p),
        ("sizes", c_void_p),
        ("parts", c_int64),
        ("losses", c_void_p),
        ("confusion", c_void_p),
        ("failed", c_int64),
    )


class TrainingStruct(Structure):
    _fields_ = (
        ("task", TaskStruct),
        ("network", c_void_p),
        ("model", c_void_p),
        ("anchor", c_void_p),
        ("shift", c_void_p),
        ("momentum", c_void_p),
        ("indices", c_void_p),
        ("order", c_void_p),
        ("examples", c_int64),
        ("batch", c_int64),
        ("steps", c_int64),
        ("steps_done", c_int64),
        ("epoch_done", c_int64),
        ("then", c_void_p),
        ("failed", c_int64),
    )


_SHAPE = ("batch", "height", "width", "channels", "filters", "rows", "columns", "padding_rows", "padding_columns")
_TENSORS = ("images", "weight", "bias", "out", "argmax")
_GRADIENTS = ("out_gradient", "images_gradient", "weight_gradient", "bias_gradient")


class ConvolutionStruct(Structure):
    _fields_ = (*((name, c_int64) for name in _SHAPE), *((name, c_void_p) for name in (*_TENSORS, *_GRADIENTS)))


STRUCTS: dict[str, type[Structure]] = {
    "task": TaskStruct,
    "layer": LayerStruct,
    "network": NetworkStruct,
    "trial": TrialStruct,
    "training": TrainingStruct,
    "convolution": ConvolutionStruct,
}
"""By their names in C."""


def mismatch(library: CDLL) -> str | None:
    """Describe the first struct that the library lays out differently, or return None."""
    for name, struct in STRUCTS.items():
        try:
            in_c = _layout_in_c(library, name)
        except ValueError:
            return f"it does not describe struct {name}"
        in_python = {field[0]: getattr(struct, field[0]).offset for field in struct._fields_} | {"end": sizeof(struct)}
        if in_c != in_python:
            return f"struct {name} has the offsets {in_c} in C and {in_python} in Python"
    return None


class _Member(Structure):
    _fields_ = (("name", c_char_p), ("offset", c_int64))


def _layout_in_c(library: CDLL, struct: str) -> dict[str, int]:
    """Return the offset of every member, and of the end, from the library's own table."""
    table = pointer(_Member.in_dll(library, f"archipel_{struct}_members"))
    layout: dict[str, int] = {}
    for i in count():
        name, offset = table[i].name, table[i].offset
        if name is None:
            break
        layout[name.decode()] = offset
    return layout | {"end": offset}

"""Convert plain data to a safetensors file or a line of text, and back; nothing is unpickled.

Plain data are known dataclasses, tuples, lists, dicts, numbers, strings, None, tensors and arrays. Anything else is
refused when it is saved.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archipel.storage.atomic_files import fsync_directory

TEXT = "text"
"""Name of the tensor that holds everything but tensors, as UTF-8."""
CHECKSUM = "sha256"
PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of values that JSON has."""
PLACES = "<u4"
"""Type of the places of numbers in a sparse array."""
NUMBERS = re.compile(r"[<>|][biuf][0-9]{1,2}")
"""Types of arrays; NumPy evaluates other descriptions as expressions."""
MOST_SPARSE, MOST_REPEATED = 1 << 28, 1 << 24
"""Numbers that a short text may stand for: a forged one takes no more memory."""
ValuePath: TypeAlias = "tuple[ValuePath, str] | None"
"""The steps from a value to a part of it, the last one first; joined only for error messages."""


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


class Codec:
    """Encodes and decodes the dataclasses that it was given, and those of modules that it was given."""

    def __init__(self, *known: object) -> None:
        self._known = known
        named = {
            name: kind
            for one in known
            for name, kind in ({one.__name__: one} if isinstance(one, type) else vars(one)).items()
        }
        self._kinds: dict[str, type[Any]] = {
            name: kind for name, kind in named.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        }
        self._fields = {
            kind: [(field.name, f".{field.name}") for field in dataclasses.fields(kind)]
            for name, kind in self._kinds.items()
            if kind.__name__ == name
        }
        """Looked up once, since a federation encodes several values for every update."""

    def also(self, *known: object) -> Codec:
        """Return a codec that knows these dataclasses, or those of these modules, too."""
        return Codec(*self._known, *known)

    def save(self, path: Path, value: object) -> None:
        """Write a value to a file atomically."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(self._encode(value, tensors, (None, "value"))).encode()
        tensors[TEXT] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.touch(mode=0o600)  # it may hold a controller's secret
        unfinished.chmod(0o600)
        save_file(tensors, unfinished, metadata={CHECKSUM: _checksum(tensors)})
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        fsync_directory(path.parent)

    def load(self, path: Path) -> Any:
        """Return the value in a file; refuse a damaged one."""
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
                expected = (file.metadata() or {}).get(CHECKSUM)
            if expected != _checksum(tensors):
                raise ValueError("its checksum does not match its contents")
            text = json.loads(tensors.pop(TEXT).numpy().tobytes())
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a checkpoint of Archipel, or is damaged: {error}") from None
        return self._decode(text, tensors)

    def text(self, value: object) -> str:
        """Return a value as one line of JSON; arrays are allowed, tensors are not."""
        return json.dumps(self._encode(value, None, (None, "value")), separators=(",", ":"))

    def value(self, text: str) -> Any:
        """Return the value of a line that `text` returned; refuse another one."""
        try:
            return self._decode(json.loads(text), {})
        except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"{text[:100]!r} is not a value that Archipel has written: {error}") from None

    def _encode(self, value: Any, tensors: dict[str, Tensor] | None, where: ValuePath) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in self._fields:
            # plain values are taken here, not by a call for each: a run has a million of them
            return [
                kind.__name__,
                {
                    name: one if type(one) in PLAIN else self._encode(one, tensors, (where, step))
                    for name, step in self._fields[kind]
                    for one in (getattr(value, name),)
                },
            ]
        if kind is tuple and _repeats(value):
            return ["repeated", [value[0], len(value)]]
        if isinstance(value, tuple | list):
            items = [
                item if type(item) in PLAIN else self._encode(item, tensors, (where, f"[{i}]"))
                for i, item in enumerate(value)
            ]
            return ["tuple" if isinstance(value, tuple) else "list", items]
        if isinstance(value, dict):
            keys = [key if type(key) in PLAIN else self._encode(key, tensors, where) for key in value]
            items = [
                item if type(item) in PLAIN else self._encode(item, tensors, (where, f"[{key!r}]"))
                for key, item in value.items()
            ]
            return ["dict", [keys, items]]
        if isinstance(value, Tensor) and tensors is not None:
            name = str(len(tensors))
            tensors[name] = value.detach().cpu().contiguous().clone()
            return ["tensor", name]
        if isinstance(value, np.ndarray) and tensors is None:
            return _array_text(value)
        if isinstance(value, np.ndarray) and tensors is not None:
            name = str(len(tensors))
            tensors[name] = torch.from_numpy(value.copy())
            return ["array", name]
        if isinstance(value, int | float | str):  # of a subclass
            return value
        raise TypeError(
            f"{_words(where)} holds a {kind.__module__}.{kind.__name__}, which cannot be saved; a part's memory is "
            "a dataclass of dicts, lists, tuples, numbers, strings and None; vectors go into the store."
        )

    def _decode(self, value: Any, tensors: dict[str, Tensor]) -> Any:
        if not isinstance(value, list):
            return value
        kind, content = value
        if kind in self._kinds:
            return self._kinds[kind](**{name: self._decode(item, tensors) for name, item in content.items()})
        match kind:
            case "tuple":
                return tuple([self._decode(item, tensors) for item in content])
            case "repeated":
                item, count = content
                _check_size(count, MOST_REPEATED)
                return (item,) * count
            case "list":
                return [self._decode(item, tensors) for item in content]
            case "dict":
                keys, items = content
                return {
                    self._decode(key, tensors): self._decode(item, tensors)
                    for key, item in zip(keys, items, strict=True)
                }
            case "tensor":
                return tensors[content]
            case "array":
                return tensors[content].numpy()
            case "bytes":
                dtype, shape, numbers = content
                return np.frombuffer(base64.b64decode(numbers), _dtype(dtype)).reshape(shape)
            case "sparse":
                dtype, shape, places, numbers = content
                _check_size(math.prod(shape), MOST_SPARSE)
                array = np.zeros(shape, _dtype(dtype))
                array.flat[np.frombuffer(base64.b64decode(places), PLACES)] = np.frombuffer(
                    base64.b64decode(numbers), array.dtype
                )
                return array
        raise ValueError(f"The checkpoint holds a {kind!r}, which this version of Archipel does not know.")


def _repeats(value: tuple[Any, ...]) -> bool:
    """Return whether it is one float several times, as a weight is for all layers; zeros differ in their sign."""
    if not 3 < len(value) <= MOST_REPEATED:
        return False
    return set(map(type, value)) == {float} and value[0] != 0 and value.count(value[0]) == len(value)


def _array_text(array: npt.NDArray[Any]) -> list[Any]:
    """Return an array as text; of counts that are mostly zero, only the others."""
    if array.dtype.kind in "iu" and array.size <= MOST_SPARSE:
        places = np.flatnonzero(array).astype(PLACES)
        numbers = array.flat[places]
        if places.nbytes + numbers.nbytes < array.nbytes / 2:
            return ["sparse", [array.dtype.str, array.shape, _base64(places), _base64(numbers)]]
    return ["bytes", [array.dtype.str, array.shape, _base64(array)]]


def _dtype(text: str) -> np.dtype[Any]:
    if NUMBERS.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a type of numbers that Archipel writes.")
    return np.dtype(text)


def _check_size(count: int, most: int) -> None:
    if not 0 <= count <= most:
        raise ValueError(f"An array or tuple has {count} items; at most {most} are written so.")


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _words(where: ValuePath) -> str:
    return "" if where is None else _words(where[0]) + where[1]

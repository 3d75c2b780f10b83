"""Plain data to one safetensors file, or to a line of text, and back: nothing is ever unpickled.

Dataclasses of Archipel, tuples, lists, dicts, numbers, strings, None, tensors and arrays; anything else is refused when
it is saved, not when it is missed.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archipel.durability.blobs import sync_folder

TEXT = "text"
"""Name of the tensor that holds everything but tensors, as UTF-8."""


CHECKSUM = "sha256"


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


class Codec:
    """Knows some dataclasses, and those of some modules, by name."""

    def __init__(self, *known: object) -> None:
        named = {
            name: kind
            for one in known
            for name, kind in ({one.__name__: one} if isinstance(one, type) else vars(one)).items()
        }
        self._kinds: dict[str, type[Any]] = {
            name: kind for name, kind in named.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        }

    def save(self, path: Path, value: object) -> None:
        """Write the file whole or not at all."""
        tensors: dict[str, Tensor] = {}
        text = json.dumps(self._encode(value, tensors, "value")).encode()
        tensors[TEXT] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        save_file(tensors, unfinished, metadata={CHECKSUM: _checksum(tensors)})
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_folder(path.parent)

    def load(self, path: Path) -> Any:
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
                expected = (file.metadata() or {}).get(CHECKSUM)
            if expected != _checksum(tensors):
                raise ValueError("its checksum does not fit its contents")
            text = json.loads(tensors.pop(TEXT).numpy().tobytes())
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is no checkpoint of Archipel, or it is damaged: {error}") from None
        return self._decode(text, tensors)

    def text(self, value: object) -> str:
        """One line of JSON; arrays are in it, tensors cannot be."""
        return json.dumps(self._encode(value, None, "value"), separators=(",", ":"))

    def value(self, text: str) -> Any:
        """What a line of `text` says."""
        return self._decode(json.loads(text), {})

    def _encode(self, value: object, tensors: dict[str, Tensor] | None, where: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor) and tensors is not None:
            name = str(len(tensors))
            tensors[name] = value.detach().cpu().contiguous().clone()
            return ["tensor", name]
        if isinstance(value, np.ndarray) and tensors is None:
            return ["bytes", [value.dtype.str, value.shape, base64.b64encode(value.tobytes()).decode()]]
        if isinstance(value, np.ndarray) and tensors is not None:
            name = str(len(tensors))
            tensors[name] = torch.from_numpy(value.copy())
            return ["array", name]
        if isinstance(value, tuple | list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return [kind, [self._encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]]
        if isinstance(value, dict):
            keys = [self._encode(key, tensors, where) for key in value]
            items = [self._encode(item, tensors, f"{where}[{key!r}]") for key, item in value.items()]
            return ["dict", [keys, items]]
        name = type(value).__name__
        if self._kinds.get(name) is type(value):
            fields = {
                field.name: self._encode(getattr(value, field.name), tensors, f"{where}.{field.name}")
                for field in dataclasses.fields(value)  # type: ignore[arg-type]
            }
            return [name, fields]
        raise TypeError(
            f"{where} holds a {type(value).__module__}.{name}, which cannot be saved; a part's memory is made of "
            "dicts, lists, tuples, numbers, strings and None, and vectors go into the store."
        )

    def _decode(self, value: Any, tensors: dict[str, Tensor]) -> Any:
        if not isinstance(value, list):
            return value
        kind, content = value
        match kind:
            case "tensor":
                return tensors[content]
            case "array":
                return tensors[content].numpy()
            case "bytes":
                dtype, shape, numbers = content
                return np.frombuffer(base64.b64decode(numbers), np.dtype(dtype)).reshape(shape)
            case "tuple":
                return tuple(self._decode(item, tensors) for item in content)
            case "list":
                return [self._decode(item, tensors) for item in content]
            case "dict":
                keys, items = content
                return {
                    self._decode(key, tensors): self._decode(item, tensors)
                    for key, item in zip(keys, items, strict=True)
                }
        if kind not in self._kinds:
            raise ValueError(f"The checkpoint holds a {kind!r}, which this version of Archipel does not know.")
        return self._kinds[kind](**{name: self._decode(item, tensors) for name, item in content.items()})

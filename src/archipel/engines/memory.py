"""Vectors in memory."""

from __future__ import annotations

from torch import Tensor


class MemoryModels:
    """The store of a simulation."""

    def __init__(self) -> None:
        self._vectors: dict[str, Tensor] = {}

    def read(self, name: str) -> Tensor:
        return self._vectors[name]

    def write(self, name: str, vector: Tensor) -> None:
        self._vectors[name] = vector

    def drop(self, name: str) -> None:
        self._vectors.pop(name, None)

    def names(self) -> list[str]:
        return list(self._vectors)

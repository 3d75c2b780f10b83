"""Buffers that a network does not save: no part of its vector, and the same for every learner when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from archipel.core.layout import Layout


class UnsavedBuffers:
    """The buffers of a network that its layout has no place for, such as those with persistent=False.

    They stay at a learner, so whatever a forward pass writes into them would be seen by the learner that is trained
    next. `reset` brings back the values that they had when this object was made.
    """

    def __init__(self, layout: Layout, module: nn.Module) -> None:
        self._placed = {entry.name for layer in layout.layers for entry in layer.entries}
        self._owners = [(f"{path}." if path else "", part._buffers) for path, part in module.named_modules()]
        self._count = sum(len(buffers) for _, buffers in self._owners)
        self._first = {name: (buffers, key, buffers[key]) for name, buffers, key in self._here()}
        self._copies = {id(one): _copy(one) for _, _, one in self._first.values() if one is not None}
        """First values by the identity of their tensor: modules may share one."""
        self._now = {name: (one, _version(one)) for name, (_, _, one) in self._first.items()}
        """The tensors that `reset` has put there last, and how often they had been changed then."""

    def reset(self, changed: Mapping[str, Tensor] | None = None) -> None:
        """Bring back the first values; changed: what `changed` has returned, to bring back too."""
        if not changed and not self._has_changed():
            return
        for name, buffers, key in list(self._here()):
            if name not in self._first:
                del buffers[key]
        copies = {identity: _copy(first) for identity, first in self._copies.items()}
        for name, (buffers, key, first) in self._first.items():
            buffers[key] = one = None if first is None else copies[id(first)]
            self._now[name] = one, _version(one)
        for name, value in (changed or {}).items():
            path, _, key = name.rpartition(".")
            owner = next(buffers for prefix, buffers in self._owners if prefix == (f"{path}." if path else ""))
            first = self._first[name][2] if name in self._first else None
            owner[key] = _copy(value) if first is None else _copy(value).to(first.device, first.dtype)

    def changed(self) -> dict[str, Tensor]:
        """Return the buffers that are no longer what `reset` has put there, of types that NumPy has."""
        found = {name: buffers[key] for name, buffers, key in self._here() if self._moved(name, buffers[key])}
        return {
            name: _copy(one).to("cpu", torch.float32 if one.dtype == torch.bfloat16 else one.dtype)
            for name, one in found.items()
            if one is not None
        }

    def _has_changed(self) -> bool:
        if not self._first and sum([len(buffers) for _, buffers in self._owners]) == self._count:
            return False  # nearly all networks
        here = {name: buffers[key] for name, buffers, key in self._here()}
        return here.keys() != self._first.keys() or any(self._moved(name, one) for name, one in here.items())

    def _moved(self, name: str, here: Tensor | None) -> bool:
        one, version = self._now.get(name, (None, 0))
        return here is not one or _version(here) != version

    def _here(self) -> Iterator[tuple[str, dict[str, Tensor | None], str]]:
        """Yield the names of such buffers, the dictionaries that hold them, and their names there."""
        for prefix, buffers in self._owners:
            for key in buffers:
                if prefix + key not in self._placed:
                    yield prefix + key, buffers, key


def _version(tensor: Tensor | None) -> int:
    """Return how often a tensor has been changed in place; -1 where torch does not count it."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy that can take part in training."""
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()

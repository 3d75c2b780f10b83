"""Models in the object store of the cluster, each put there once."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from archipel.simulation.cluster.connection import ClusterError
from archipel.simulation.cluster.requests import array_of


class PlacedModels:
    """Keeps the reference of a model as long as the model itself is needed in this process."""

    def __init__(self, ray: Any, size: int) -> None:
        """size: numbers of a model; what has another size is none."""
        self.ray = ray
        self.size = size
        self._kept: dict[int, tuple[weakref.ref[Tensor], int, Any]] = {}
        """By identity: the tensor, how often it had been changed in place, and the reference."""

    def is_model(self, tensor: Tensor) -> bool:
        """Return whether a tensor travels as a model."""
        return tensor.numel() == self.size

    def reference(self, model: Tensor) -> Any:
        """Return a reference to a model, by which every node reads the same copy."""
        key = id(model)
        kept = self._kept.get(key)
        if kept is None or kept[1] != model._version:
            gone = weakref.ref(model, lambda _: self._kept.pop(key, None))
            kept = self._kept[key] = gone, model._version, self._put(model)
        return kept[2]

    def _put(self, model: Tensor) -> Any:
        try:
            return self.ray.put(array_of(model))
        except self.ray.exceptions.ObjectStoreFullError as error:
            raise ClusterError(
                f"cluster: a model of {model.nbytes / 2**20:,.0f} MB does not fit into the object store of this "
                "machine's Ray. Start it with a larger --object-store-memory, or use fewer actors. Ray reports: "
                + " ".join(str(error).split())
            ) from None

"""Binding: a module's parameters as views into a vector, so that training the module changes the vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from archipel.core.layout import Layout, TensorSlot
from archipel.core.unsaved_buffers import UnsavedBuffers


class Binding:
    """A module that is bound to one vector at a time."""

    def __init__(self, layout: Layout, module: nn.Module) -> None:
        """Look up the module's tensors once; binding happens at every task and every score."""
        self.layout = layout
        self._tensors: list[tuple[TensorSlot, dict[str, Any], str]] = []
        """Each tensor's slot in the vector, the module's dictionary that holds it, and its name there."""
        self._bound: dict[str, Tensor] = {}
        """The tensors that `bind` has put there, by name."""
        self.unsaved = UnsavedBuffers(layout, module)
        for layer in layout.layers:
            for entry in layer.entries:
                path, _, name = entry.name.rpartition(".")
                owner = module.get_submodule(path)
                self._tensors.append((entry, owner._buffers if layer.buffers else owner._parameters, name))

    def bind(self, vector: Tensor) -> None:
        """Make the parameters views into this vector.

        Weights of convolutions become channels-last copies, which are faster on a CPU; `collect` copies them back.
        Unsaved buffers are reset to their initial values.
        """
        self.layout.check("Binding", vector)
        self.unsaved.reset()
        for entry, tensors, name in self._tensors:
            tensor = entry.tensor(vector)
            if len(entry.shape) == 4:
                tensor = tensor.clone(memory_format=torch.channels_last)
            self._bound[entry.name] = tensor
            parameter = tensors[name]
            if isinstance(parameter, nn.Parameter):
                parameter.data = tensor
            else:
                tensors[name] = tensor

    def collect(self, vector: Tensor) -> None:
        """Copy back into the vector what `bind` could not make a view of, and buffers that were reassigned."""
        for entry, tensors, name in self._tensors:
            assigned_anew = tensors[name] is not self._bound.get(entry.name, tensors[name])
            if not entry.is_view or (assigned_anew and not isinstance(tensors[name], nn.Parameter)):
                vector[entry.start : entry.stop].view(entry.shape).copy_(tensors[name].detach())

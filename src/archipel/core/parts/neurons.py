"""Neurons of the hidden layers, and the numbers of a model's vector that belong to each.

The neurons of a hidden layer can be permuted without changing the network's outputs, if the weights that read them are
permuted too. So a neuron is a slice of several tensors: its incoming weights and biases, and the weights of the next
layer that read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.core.checks import require
from archipel.core.layout import Layer, Layout, TensorSlot

FloatTable: TypeAlias = npt.NDArray[np.float64]
GATES = 4
"""Rows of weights for each neuron of an LSTM."""
LSTM_ENTRY = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)")


@dataclass(frozen=True, slots=True)
class Axis:
    """A tensor in the vector, in a shape that has an axis of neurons."""

    start: int
    stop: int
    shape: tuple[int, ...]
    axis: int

    def of(self, vector: Tensor) -> Tensor:
        """Return a view of the vector's numbers, neurons first."""
        return vector[self.start : self.stop].view(self.shape).movedim(self.axis, 0)


@dataclass(frozen=True, slots=True)
class Neurons:
    """The neurons of one hidden layer; a stack of LSTMs has several groups of neurons in one layer."""

    layer: int
    """The layer's index in the layout."""
    name: str
    width: int
    compared: tuple[Axis, ...]
    """Weights from the layer before, and biases."""
    recurrent: tuple[Axis, ...]
    """Recurrent weights, from the same neurons one step earlier."""
    outgoing: tuple[Axis, ...]
    """Weights that read the neurons: those of the next layer, and recurrent ones."""

    @property
    def incoming(self) -> tuple[Axis, ...]:
        return (*self.compared, *self.recurrent)

    def rows(self, vector: Tensor) -> Tensor:
        """Return for each neuron the row of numbers that matching compares."""
        return torch.cat([axis.of(vector).reshape(self.width, -1) for axis in self.compared], dim=1)

    def used(self, vector: Tensor) -> list[int]:
        """Return the neurons with a weight or bias other than 0; the others are empty."""
        found: list[int] = self.rows(vector).any(dim=1).nonzero().flatten().tolist()
        return found

    def moved(self, vector: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
        """Return a copy with neuron old[i] at new[i]; all others are empty."""
        moved = vector.clone()
        for axis in (*self.incoming, *self.outgoing):
            target = axis.of(moved)
            kept = target[list(old)].clone()
            target.zero_()
            target[list(new)] = kept
        return moved

    def only(self, vector: Tensor, kept: Sequence[int]) -> Tensor:
        """Return a copy in which all other neurons are empty."""
        return self.moved(vector, kept, kept)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Weights from the previous neurons to those of a layer."""

    layer: int
    name: str
    width: int
    reads: TensorSlot | None
    """The tensor whose second axis counts the inputs; None: it reads only the examples."""
    compared: tuple[Axis, ...]
    recurrent: tuple[Axis, ...] = ()
    recurrent_reads: tuple[Axis, ...] = ()


def hidden_neurons(owner: str, layout: Layout) -> tuple[Neurons, ...]:
    """Return the neurons of all layers but the last, from input to output; refuse what cannot be matched."""
    require(
        not layout.tied,
        f"{owner}: {', '.join(layout.tied)} share parameters with other layers, so their neurons cannot be matched one "
        "layer at a time; use a network without tied weights.",
    )
    stages = [stage for place, layer in enumerate(layout.layers) for stage in _stages(owner, place, layer)]
    last = layout.layers[-1]
    require(
        last.kind == "Linear",
        f"{owner}: the last layer {last.name!r} is a {last.kind}; it must be a Linear layer of class scores.",
    )
    found = []
    for stage, following in pairwise(stages):
        outgoing = (_reading(owner, stage, following), *stage.recurrent_reads)
        found.append(Neurons(stage.layer, stage.name, stage.width, stage.compared, stage.recurrent, outgoing))
    return tuple(found)


def last_rows(layout: Layout) -> tuple[Axis, ...]:
    """Return the last layer's weights and biases by class."""
    return tuple(_axis(entry, 0) for entry in layout.layers[-1].entries)


def check_rows(owner: str, layout: Layout) -> None:
    """Refuse a network whose last layer does not have a row for each class."""
    last = layout.layers[-1]
    require(
        last.kind == "Linear" and not last.buffers,
        f"{owner}: the last layer, {last.name!r}, is a {last.kind}; it must be Linear, an output for each class.",
    )


def _stages(owner: str, place: int, layer: Layer) -> list[_Stage]:
    entries = {entry.name.rpartition(".")[2]: entry for entry in layer.entries}
    kinds = ("Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LSTM")
    require(
        layer.kind in kinds and not layer.buffers,
        f"{owner}: layer {layer.name!r} is a {layer.kind}, whose neurons cannot be matched; it matches "
        f"{', '.join(kinds)}. Batch normalisation, for example, has statistics that belong to one learner's "
        "neurons; leave it out, or use another method.",
    )
    if layer.kind == "LSTM":
        return _lstm_stages(owner, place, layer, entries)
    weight = entries["weight"]
    if layer.kind == "Embedding":
        return [_Stage(place, layer.name, weight.shape[1], None, (_axis(weight, 1),))]
    compared = tuple(_axis(entry, 0) for entry in layer.entries)
    return [_Stage(place, layer.name, weight.shape[0], weight, compared)]


def _lstm_stages(owner: str, place: int, layer: Layer, entries: dict[str, TensorSlot]) -> list[_Stage]:
    require(
        all(LSTM_ENTRY.fullmatch(name) for name in entries),
        f"{owner}: LSTM {layer.name!r} has {', '.join(entries)}; one that is bidirectional or projects its output "
        "cannot be matched. Use one without.",
    )
    stages = []
    for number in range(sum(name.startswith("weight_ih") for name in entries)):
        reads, again = entries[f"weight_ih_l{number}"], entries[f"weight_hh_l{number}"]
        biases = [entries[name] for name in (f"bias_ih_l{number}", f"bias_hh_l{number}") if name in entries]
        width = reads.shape[0] // GATES
        compared = tuple(_gates(entry, width) for entry in (reads, *biases))
        to = _gates(again, width)
        by = Axis(again.start, again.stop, (GATES * width, width), 1)
        stages.append(_Stage(place, layer.name, width, reads, compared, (to,), (by,)))
    return stages


def _axis(entry: TensorSlot, axis: int) -> Axis:
    return Axis(entry.start, entry.stop, entry.shape, axis)


def _gates(entry: TensorSlot, width: int) -> Axis:
    """Return the axis of neurons in stacked gates, each of which has a row for every neuron."""
    return Axis(entry.start, entry.stop, (GATES, width, *entry.shape[1:]), 1)


def _reading(owner: str, stage: _Stage, following: _Stage) -> Axis:
    """Return a layer's weights by the neurons of the previous layer; behind a flatten, each neuron has several."""
    entry = following.reads
    inputs = 0 if entry is None else entry.shape[1]
    positions, rest = divmod(inputs, stage.width)
    require(
        entry is not None and positions > 0 and rest == 0 and (positions == 1 or len(entry.shape) == 2),
        f"{owner}: layer {following.name!r} reads {inputs} inputs, and {stage.name!r} before it puts out "
        f"{stage.width}. Layers must follow one another in a row, without groups of channels or shortcuts.",
    )
    assert entry is not None
    shape = (entry.shape[0], stage.width, positions * math.prod(entry.shape[2:]))
    return Axis(entry.start, entry.stop, shape, 1)

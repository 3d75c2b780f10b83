"""`perceptron.c` from Python: records of what is to be trained or tried, which the library's threads see to."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, POINTER, Structure, addressof, byref, c_float, c_int, c_int32, c_int64, c_void_p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Linear(NamedTuple):
    """A linear layer."""

    inputs: int
    outputs: int
    weight: int
    """Where it begins in a model,"""
    bias: int
    """and where the bias does; -1: there is none."""
    rectified: bool
    trained: bool = False


class Descent(NamedTuple):
    """How a step goes down, as torch.optim.SGD does it with a proximal term."""

    rate: float = 0.0
    momentum: float = 0.0
    proximal: float = 0.0
    decay: float = 0.0
    nesterov: bool = False


class Network:
    """Layers, the tensors that hold the examples, and how it is trained."""

    def __init__(self, library: CDLL, x: Tensor, y: Tensor, layers: Sequence[Linear], descent: Descent) -> None:
        self.library, self.classes = library, layers[-1].outputs
        self._layers = (_Layer * len(layers))(*(_Layer(*layer) for layer in layers))
        self._examples = (x, y)
        self._record = _Network(x.data_ptr(), y.data_ptr(), self._layers, len(layers), *descent)
        self.address = addressof(self._record)


class _Begun:
    """A record that a thread works on. It and all that it points to stay where they are until it was waited for."""

    _library: CDLL
    _record: _Trial | _Training
    _under_way = False

    def wait(self) -> None:
        self._under_way = False
        if not self._library.archipel_wait(byref(self._record)):
            raise RuntimeError("What was begun before a process was forked is not done in the fork: settle it before.")
        if self._record.failed:
            raise MemoryError("There is no memory left for a network's activations; give fewer examples a batch.")

    def __del__(self) -> None:
        if self._under_way:
            self._library.archipel_wait(byref(self._record))


class Trial(_Begun):
    """A model on the examples of some parts: sums of losses, and who was taken for what, by part."""

    def __init__(self, network: Network, model: Tensor, examples: Tensor, sizes: NDArray[np.int64]) -> None:
        """examples: of all parts, one after the other."""
        parts, classes = len(sizes), network.classes
        self.sizes, self.losses = sizes, np.zeros(parts)
        self.confusion = np.zeros((parts, classes, classes), dtype=np.int64)
        self._library, self._needed = network.library, (network, model, examples)
        self._record = _Trial(
            network=network.address,
            model=model.data_ptr(),
            examples=examples.data_ptr(),
            sizes=_address(sizes),
            parts=parts,
            losses=_address(self.losses),
            confusion=_address(self.confusion),
        )
        self.address = addressof(self._record)

    def begin(self) -> None:
        self._under_way = True
        self._library.archipel_begin_trial(byref(self._record))


class Training(_Begun):
    """So many steps of one learner. The model, and the momentum if there is one, are changed."""

    def __init__(
        self,
        network: Network,
        model: Tensor,
        own: Tensor,
        order: NDArray[np.int64],
        batch: int,
        steps: int,
        anchor: Tensor | None = None,
        momentum: Tensor | None = None,
        then: Trial | None = None,
    ) -> None:
        """own: the learner's examples; order: places among them, epoch by epoch; then: a trial of what comes out."""
        self.model, self.momentum, self.then = model, momentum, then
        self._library, self._needed = network.library, (network, own, order, anchor)
        self._record = _Training(
            network=network.address,
            model=model.data_ptr(),
            anchor=None if anchor is None else anchor.data_ptr(),
            momentum=None if momentum is None else momentum.data_ptr(),
            own=own.data_ptr(),
            order=_address(order),
            examples=len(own),
            batch=batch,
            steps=steps,
            then=None if then is None else then.address,
        )

    def begin(self) -> None:
        self._under_way = True
        self._library.archipel_begin_training(byref(self._record))


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# ------------------------------------------------------------------------------------------ as `perceptron.c` has them


class _Task(Structure):
    _fields_ = (("run", c_void_p), ("given", c_void_p), ("next", c_void_p), ("done", c_int), ("generation", c_int))


class _Layer(Structure):
    _fields_ = tuple((name, c_int64) for name in Linear._fields)


class _Network(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("y", c_void_p),
        ("layer", POINTER(_Layer)),
        ("layers", c_int64),
        ("rate", c_float),
        ("momentum", c_float),
        ("proximal", c_float),
        ("decay", c_float),
        ("nesterov", c_int32),
    )


class _Trial(Structure):
    _fields_ = (
        ("task", _Task),
        ("network", c_void_p),
        ("model", c_void_p),
        ("examples", c_void_p),
        ("sizes", c_void_p),
        ("parts", c_int64),
        ("losses", c_void_p),
        ("confusion", c_void_p),
        ("failed", c_int64),
    )


class _Training(Structure):
    _fields_ = (
        ("task", _Task),
        ("network", c_void_p),
        ("model", c_void_p),
        ("anchor", c_void_p),
        ("momentum", c_void_p),
        ("own", c_void_p),
        ("order", c_void_p),
        ("examples", c_int64),
        ("batch", c_int64),
        ("steps", c_int64),
        ("then", c_void_p),
        ("failed", c_int64),
    )

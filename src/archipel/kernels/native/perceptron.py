"""`perceptron.c` from Python: trainings and trials that run on the library's threads."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, addressof, byref
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from archipel.kernels.native import structs

NEVER, INTERRUPTED = 0, 2
"""What the library says of a wait that has not ended with the task (`enum waited` in pool.h)."""


class Linear(NamedTuple):
    """A linear layer."""

    inputs: int
    outputs: int
    weight: int
    """Offset of the weight in a model."""
    bias: int
    """Offset of the bias; -1: none."""
    rectified: bool
    trained: bool = False


class SgdOptions(NamedTuple):
    """The options of a step, as in torch.optim.SGD, with a proximal term."""

    rate: float = 0.0
    momentum: float = 0.0
    proximal: float = 0.0
    decay: float = 0.0
    nesterov: bool = False


class NativeNetwork:
    """Layers, the tensors that hold the examples, and the options of training."""

    def __init__(self, library: CDLL, x: Tensor, y: Tensor, layers: Sequence[Linear], descent: SgdOptions) -> None:
        self.library, self.classes = library, layers[-1].outputs
        self._layers = (structs.LayerStruct * len(layers))(*(structs.LayerStruct(*layer) for layer in layers))
        self._examples = (x, y)
        self._record = structs.NetworkStruct(x.data_ptr(), y.data_ptr(), self._layers, len(layers), *descent)
        self.address = addressof(self._record)


class _Begun:
    """A task of the library. Its memory, and all that it points to, must stay in place until the task is done."""

    _library: CDLL
    _record: structs.TrialStruct | structs.TrainingStruct
    _under_way = False

    def wait(self) -> None:
        """Return once the task is done; run other tasks of the queue meanwhile."""
        waited = INTERRUPTED
        while waited == INTERRUPTED:  # between two calls Python handles signals, and may raise
            waited = self._library.archipel_wait(byref(self._record))
        self._under_way = False
        if waited == NEVER:
            raise RuntimeError(
                "A task that was begun before a fork never runs in the child: wait for it before forking."
            )
        if self._record.failed:
            raise MemoryError("There is not enough memory for a network's activations: use a smaller batch.")

    def cancel(self) -> None:
        """Stop a training soon, without a result."""
        self._library.archipel_cancel(byref(self._record))

    def __del__(self) -> None:
        if self._under_way:
            self.cancel()
            while self._library.archipel_wait(byref(self._record)) == INTERRUPTED:
                pass


class NativeTrial(_Begun):
    """The evaluation of a model on parts of the examples: each part's sum of losses and confusion matrix."""

    def __init__(self, network: NativeNetwork, model: Tensor, examples: Tensor, sizes: NDArray[np.int64]) -> None:
        """examples: indices, part after part."""
        parts, classes = len(sizes), network.classes
        self.sizes, self.losses = sizes, np.zeros(parts)
        self.confusion = np.zeros((parts, classes, classes), dtype=np.int64)
        self._library, self._needed = network.library, (network, model, examples)
        self._record = structs.TrialStruct(
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


class NativeTraining(_Begun):
    """Some steps of one learner. The model, and the momentum if there is one, are updated in place."""

    def __init__(
        self,
        network: NativeNetwork,
        model: Tensor,
        own: Tensor,
        order: NDArray[np.int64],
        batch: int,
        steps: int,
        anchor: Tensor | None = None,
        shift: Tensor | None = None,
        momentum: Tensor | None = None,
        then: NativeTrial | None = None,
    ) -> None:
        """own: indices of the learner's examples; order: positions in it, epoch by epoch; then: runs afterwards."""
        self.model, self.momentum, self.then = model, momentum, then
        self._library, self._needed = network.library, (network, own, order, anchor, shift)
        self._record = structs.TrainingStruct(
            network=network.address,
            model=model.data_ptr(),
            anchor=None if anchor is None else anchor.data_ptr(),
            shift=None if shift is None else shift.data_ptr(),
            momentum=None if momentum is None else momentum.data_ptr(),
            indices=own.data_ptr(),
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

"""The same work for every contender: shapes, synthetic data, the initial model and who takes part when.

Needs numpy alone, because it is imported in every peer's own environment.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 5


@dataclass(frozen=True)
class Workload:
    """What is trained, by whom and how often.

    The network: for every number in `convolutions` a 5 x 5 convolution of that width with padding 2, ReLU and a 2 x 2
    max pool; then for every number in `hidden` a linear layer of that width and ReLU; then a linear layer to the
    classes. The loss is cross entropy, the optimiser SGD, new for every task.
    """

    name: str
    shape: tuple[int, ...]
    """Of one example: channels, height and width, or features."""
    classes: int
    convolutions: tuple[int, ...]
    hidden: tuple[int, ...]
    learners: int
    examples: int
    """Of one learner."""
    batch: int
    per_round: int
    """Learners that take part in a round."""
    rounds: int
    """Under asynchrony, commits."""
    rate: float
    momentum: float = 0.0
    epochs: int = 1
    speeds: tuple[float, ...] = ()
    """Virtual seconds a step, for equal groups of learners; none: everybody is as fast and there are rounds."""

    @property
    def steps(self) -> int:
        """SGD steps of one learner-update."""
        return self.epochs * -(-self.examples // self.batch)


_MLP: dict[str, Any] = {
    "shape": (54,),
    "classes": 7,
    "convolutions": (),
    "hidden": (64, 64),
    "learners": 100,
    "examples": 500,
}
_W2: dict[str, Any] = {**_MLP, "batch": 50, "per_round": 10, "rate": 0.1}
_IMAGES: dict[str, Any] = {"shape": (3, 32, 32), "classes": 10, "convolutions": (64, 64), "hidden": (384, 192)}
_MILLION: dict[str, Any] = {"shape": (100,), "classes": 10, "convolutions": (), "hidden": (950, 950)}
_TINY: dict[str, Any] = {
    "shape": (6,),
    "classes": 3,
    "convolutions": (),
    "hidden": (8,),
    "examples": 20,
    "batch": 5,
    "rate": 0.1,
}

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", (1, 28, 28), 62, (32, 64), (128,), 100, 200, batch=20, per_round=10, rounds=20, rate=0.05),
        Workload("W2", **_W2, rounds=50),
        Workload("W2-long", **_W2, rounds=500),
        Workload(
            "W3", **_IMAGES, learners=10, examples=1000, batch=100, per_round=10, rounds=5, rate=0.05, momentum=0.75
        ),
        Workload("W4", **_MLP, batch=50, per_round=1, rounds=2000, rate=0.1, speeds=(0.01, 0.02, 0.04, 0.08, 0.16)),
        # for memory: a thousand learners of a million parameters, every one of which has committed by the end
        Workload(
            "M1", **_MILLION, learners=1000, examples=20, batch=20, per_round=1, rounds=1500, rate=0.1, speeds=(1, 2)
        ),
        # for smoke tests
        Workload("tiny", **_TINY, learners=6, per_round=3, rounds=4, momentum=0.5),
        Workload("tiny-images", (1, 8, 8), 3, (4,), (8,), 4, 12, batch=4, per_round=2, rounds=2, rate=0.1),
        Workload("tiny-stream", **_TINY, learners=10, per_round=1, rounds=30, speeds=(0.01, 0.02)),
    )
}


def data(workload: Workload) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All examples, learner after learner: normal inputs, labelled by a random linear teacher.

    There is something to learn, so the losses of two contenders that did the same work agree, and others do not.
    """
    draw = _generator(workload, "data")
    count, features = workload.learners * workload.examples, int(np.prod(workload.shape))
    x = draw.standard_normal((count, features), dtype=np.float32)
    teacher = draw.standard_normal((features, workload.classes), dtype=np.float32)
    return x.reshape(count, *workload.shape), (x @ teacher).argmax(axis=1)


def mine(workload: Workload, learner: int) -> slice:
    """The examples of one learner."""
    return slice(learner * workload.examples, (learner + 1) * workload.examples)


def selections(workload: Workload) -> list[list[int]]:
    """Who takes part in each round, in ascending order."""
    draw = _generator(workload, "selections")
    return [
        sorted(draw.choice(workload.learners, workload.per_round, replace=False).tolist())
        for _ in range(workload.rounds)
    ]


def initial(workload: Workload) -> list[NDArray[np.float32]]:
    """The initial model as PyTorch lays it out: weight [out, in, ...] and bias of each layer, as PyTorch draws them."""
    draw = _generator(workload, "initial")
    arrays = []
    for shape in _weight_shapes(workload):
        bound = 1 / np.sqrt(np.prod(shape[1:]))
        arrays += [draw.uniform(-bound, bound, size).astype(np.float32) for size in (shape, shape[:1])]
    return arrays


def _weight_shapes(workload: Workload) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    channels = workload.shape[0]
    for wider in workload.convolutions:
        shapes.append((wider, channels, 5, 5))
        channels = wider
    # every pool halves the sides
    width = channels * int(np.prod([side >> len(workload.convolutions) for side in workload.shape[1:]]))
    for wider in (*workload.hidden, workload.classes):
        shapes.append((wider, width))
        width = wider
    return shapes


def _generator(workload: Workload, what: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(f"{workload.name} {what}".encode())])

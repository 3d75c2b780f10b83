"""Division of examples into mini-batches: a function of the task's key, the same under every execution."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.randomness import generator
from archipel.core.types import Plan


def steps_of_epoch(examples: int, batch: int) -> int:
    """Return the number of mini-batches of a full pass; the last one may be smaller."""
    return -(-examples // batch)


def epochs_of(plan: Plan, examples: int) -> int:
    """Return the most passes of a plan; an incomplete one counts."""
    if plan.steps is not None:
        return -(-plan.steps // steps_of_epoch(examples, plan.batch))
    return plan.epochs if plan.cycle is None else plan.cycle.at_most


def steps_after(plan: Plan, examples: int, epochs: int) -> int:
    """Return the number of steps made after this many passes; 0 if no layer trains."""
    if plan.trains == ():
        return 0
    steps = epochs * steps_of_epoch(examples, plan.batch)
    return steps if plan.steps is None else min(steps, plan.steps)


def shuffled(key: int, examples: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the examples in this pass of the task with this key."""
    return generator(key, "epoch", epoch).permutation(examples)


def batches(plan: Plan, key: int, examples: int, epoch: int) -> list[Tensor]:
    """Return the mini-batches of one pass, as positions among the learner's training examples."""
    pieces = list(torch.from_numpy(shuffled(key, examples, epoch)).split(plan.batch))
    steps = steps_after(plan, examples, epoch + 1) - steps_after(plan, examples, epoch)
    return pieces[:steps]

"""Choose an executor by the network's arithmetic, never by timing or free memory: a seed always gives the same bits."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import nn

from archipel.core.checks import one_of, require
from archipel.core.types import Plan
from archipel.executors.interface import Executor
from archipel.executors.native import Native, linear_layers
from archipel.executors.plain import Plain
from archipel.executors.stackable import why_not_stacked
from archipel.executors.stacked import Stacked
from archipel.executors.stacked_steps import by_hand
from archipel.executors.workers import Workers
from archipel.learner.learner import TrainingContext, optimiser

Way: TypeAlias = Literal["plain", "workers", "stacked", "native"]
WAYS: dict[Way, type[Plain] | type[Workers] | type[Stacked] | type[Native]] = {
    "plain": Plain,
    "workers": Workers,
    "stacked": Stacked,
    "native": Native,
}


def choose(context: TrainingContext, plan: Plan) -> tuple[Way, str]:
    """Return how to execute: "native" or "stacked" for small networks that allow it, else "workers", and why."""
    reason = why_not_stacked(context, plan)
    if reason is not None:
        return "workers", f"not stacked, because {reason}"
    if by_hand(plan) and linear_layers(context) is not None:
        return "native", ""
    return "stacked", ""


def executor_alone(context: TrainingContext, plan: Plan, way: Way | None, threads: int) -> Executor:
    """Return the executor for one learner in a process of its own; threads: their number for a large network.

    It never forks, since jobs come one at a time.
    """
    reason = ""
    if way is None:
        way, reason = choose(context, plan)
    executor = executor_of(context, plan, way) if way != "workers" else Workers(context, 1, threads)
    executor.reason = reason
    return executor


def executor_of(context: TrainingContext, plan: Plan, way: Way | None = None) -> Executor:
    """Return the requested executor, or else the one that suits the network."""
    if way is None:
        way, reason = choose(context, plan)
    else:
        one_of("execution", "way", way, tuple(WAYS))
        _check(context, plan, way)
        reason = ""
    if (
        way in ("plain", "workers") or plan.options
    ):  # stacked SGD needs no torch optimiser, and these take a second to load
        optimiser(plan, [nn.Parameter(torch.zeros(1))])  # raises now for settings that it does not accept
    executor = WAYS[way](context)
    executor.reason = reason
    return executor


def _check(context: TrainingContext, plan: Plan, way: Way) -> None:
    """Raise if the network cannot be executed as requested."""
    name = type(context.module).__name__
    if way in ("stacked", "native"):
        require(
            context.augment is None,
            f"execution: {way!r} does not support augmentation, and the examples have "
            f"{context.augment!r}. Use execution='workers' or 'plain'.",
        )
        reason = why_not_stacked(context, plan)
        require(
            reason is None,
            f"execution: {name} with {plan.optimiser} cannot be stacked: {reason}. Use execution='workers'.",
        )
    require(
        way != "native" or (by_hand(plan) and linear_layers(context) is not None),
        f"execution: {name} with {plan.optimiser} cannot be trained natively: only linear layers and ReLU in a row "
        "that end in class scores under cross entropy, trained by SGD on a CPU, can, and only if a C compiler was "
        "available when Archipel was installed. Use execution='stacked' or 'workers'.",
    )

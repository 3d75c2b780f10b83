"""Choose an executor by the network's arithmetic, never by timing or free memory: a seed always gives the same bits."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import nn

from archipel.core.checks import one_of, require
from archipel.core.types import Plan
from archipel.learner.learner import TrainingContext, optimiser
from archipel.simulation.executors.arithmetic import draws, is_small, is_stackable
from archipel.simulation.executors.interface import Executor
from archipel.simulation.executors.native import Native, linear_layers
from archipel.simulation.executors.plain import Plain
from archipel.simulation.executors.stacked import Stacked
from archipel.simulation.executors.workers import Workers

Way: TypeAlias = Literal["plain", "workers", "stacked", "native"]


def choose(context: TrainingContext, plan: Plan) -> Way:
    """Return "native" or "stacked" for small networks that allow it, "plain" for those with dropout, else "workers"."""
    if is_stackable(context, plan) and is_small(context):
        return "stacked" if linear_layers(context) is None else "native"
    return "plain" if draws(context) else "workers"


def executor_of(context: TrainingContext, plan: Plan, way: Way | None = None) -> Executor:
    """Return the executor that was asked for, or the one that suits the network."""
    asked, way = way, way or choose(context, plan)
    one_of("execution", "way", way, ("plain", "workers", "stacked", "native"))
    if way in ("plain", "workers") or plan.options:  # torch's optimisers take a second to load; the others need none
        optimiser(plan, [nn.Parameter(torch.zeros(1))])  # settings that it does not accept are reported before the run
    require(
        asked not in ("stacked", "native") or context.augment is None,
        f"execution: {asked!r} trains on examples as they are, and these are changed at random ({context.augment!r}). "
        "Use execution='workers' or 'plain'.",
    )
    require(
        asked != "stacked" or is_stackable(context, plan),
        f"execution: {type(context.module).__name__} with {plan.optimiser} cannot be stacked: only linear layers, "
        "layer norm, embeddings and activations, a loss that is a mean over examples, and SGD can. "
        "Use execution='workers'.",
    )
    require(
        asked != "workers" or not draws(context),
        f"execution: {type(context.module).__name__} draws random numbers in training (dropout), which workers would "
        "take from one another. Use execution='plain'.",
    )
    require(
        asked != "native" or (is_stackable(context, plan) and linear_layers(context) is not None),
        f"execution: {type(context.module).__name__} with {plan.optimiser} cannot be trained natively: only linear "
        "layers and ReLU in a row that end in class scores under cross entropy, trained by SGD on a CPU, can, and only "
        "if a C compiler was there when Archipel was installed. Use execution='stacked' or 'workers'.",
    )
    ways: dict[Way, type[Plain] | type[Workers] | type[Stacked] | type[Native]]
    ways = {"plain": Plain, "workers": Workers, "stacked": Stacked, "native": Native}
    return ways[way](context)

"""FedMA's parts: neurons are matched before they are averaged, and layers are fixed one after the other.

A sweep has a round for each layer. In the round of layer n, layers before n are the same at all learners and frozen;
layer n and later ones train and are sent. The commit matches the learners' neurons layer by layer and averages those
matched. Then layer n is fixed, and every learner continues with its own later layers, in the order of the shared
neurons. After the last layer, a learner starts from the averaged network, restricted to its own neurons.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from archipel.core.binding import Binding
from archipel.core.checks import at_least, more_than, require
from archipel.core.frozen_weights import copied
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.class_mean import average_by_neuron, weights_by_class
from archipel.core.parts.matching import Prior, match
from archipel.core.parts.merge import Merge, Proposal
from archipel.core.parts.neurons import FloatTable, Neurons, hidden_neurons, last_rows
from archipel.core.parts.part import Composition, Needs
from archipel.core.parts.planning import Decay, Planner, Proximal, ValidationCycle
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.server import Replace
from archipel.core.randomness import generator
from archipel.core.state import Update, View
from archipel.core.types import Plan

ANY_LAYERS = (Decay, Proximal, ValidationCycle)
"""Planners that do not choose which layers train and are sent."""


def layer_in_turn(layout: Layout, version: int) -> int:
    """Return the layer that the commit after this version fixes."""
    return version % len(layout.layers)


@dataclass(frozen=True)
class LayerByLayer(Planner):
    """FedMA: in round n of a sweep the layers before layer n are frozen, and only the others are sent."""

    def conflicts(self, algorithm: Composition) -> str | None:
        if not any(isinstance(merge, MatchedMean) for merge in (algorithm.merge, *algorithm.merge.inner())):
            return f"LayerByLayer needs a merge that fixes layers in turn; use MatchedMean(), not {algorithm.merge!r}."
        return super().conflicts(algorithm)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        return self._from(view.layout, plan, layer_in_turn(view.layout, view.version))

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return tuple(self._from(layout, plan, turn) for turn in range(len(layout.layers)))

    @staticmethod
    def _from(layout: Layout, plan: Plan, turn: int) -> Plan:
        return replace(plan, trains=layout.names[turn:], uploads=layout.names[turn:])


@dataclass(slots=True)
class MatchedMemory:
    owned: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    """The shared neurons of each group that a learner was matched with in this sweep."""


@dataclass(frozen=True)
class MatchedMean(Merge):
    """FedMA: the mean of matched neurons, and of the last layer by the learners' class counts.

    A network keeps its shape: some neurons of every hidden layer are empty at the start, and a learner's neuron without
    a match takes the place of an empty one.
    """

    sigma: float = 1.0
    """Standard deviation of a learner's neurons around the shared ones."""
    sigma0: float = 1.0
    """Standard deviation of the shared neurons around zero."""
    gamma: float = 7.0
    """Mass of the Beta process: a larger one makes more new neurons."""
    iterations: int = 5
    """Number of times that each learner is matched again."""
    growth: float = 1.5
    """A hidden layer's width relative to its initial neurons; 1: no room for new ones."""

    needs = Needs(reports=("class counts",), single_models=True)

    def __post_init__(self) -> None:
        more_than(0, "MatchedMean", sigma=self.sigma, sigma0=self.sigma0, gamma=self.gamma)
        at_least(0, "MatchedMean", iterations=self.iterations)
        at_least(1, "MatchedMean", growth=self.growth)

    # ------------------------------------------------------------------------------------------- what it can work with

    def conflicts(self, algorithm: Composition) -> str | None:
        if not isinstance(algorithm.protocol, Rounds):
            return f"MatchedMean needs all learners at the same layer; use Rounds(), not {algorithm.protocol!r}."
        if algorithm.server != Replace():
            return (
                f"MatchedMean reorders neurons, so {algorithm.server!r} cannot compare a model with the "
                "previous one; use Replace()."
            )
        if not any(isinstance(planner, LayerByLayer) for planner in algorithm.planners):
            return "MatchedMean fixes one layer a round; add LayerByLayer() to the planners."
        others = [p for p in algorithm.planners if not isinstance(p, (LayerByLayer, *ANY_LAYERS))]
        if others or algorithm.plan.private or algorithm.plan.uploads is not None or algorithm.plan.trains is not None:
            which = ", ".join(type(planner).__name__ for planner in others) or "the plan"
            return f"LayerByLayer and {which} both choose which layers train and are sent; use one of them."
        return None

    def check(self, layout: Layout) -> None:
        hidden_neurons("MatchedMean", layout)

    def check_network(self, module: nn.Module, layout: Layout, examples: Tensor) -> None:
        """Refuse a network whose neurons cannot be permuted, or whose empty neurons do not stay empty."""
        module, draws = copied(module), generator(0, "network")
        if examples.is_floating_point():
            examples = examples + torch.from_numpy(draws.standard_normal(examples.shape)).to(examples)
        vector = layout.vector(module)
        vector += 0.01 * torch.from_numpy(draws.standard_normal(layout.size)).float()
        groups = hidden_neurons("MatchedMean", layout)
        expected = _outputs(module, layout, vector, examples)
        for neurons in groups:
            order = draws.permutation(neurons.width).tolist()
            found = _outputs(module, layout, neurons.moved(vector, range(neurons.width), order), examples)
            require(
                torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())),
                f"MatchedMean: permuting the neurons of {neurons.name!r} changes the network's outputs, so they "
                "cannot be matched: something besides the next layer reads them, such as a residual connection, or "
                "treats them differently, such as normalisation across channels. Use a network of layers in a row, "
                "or another method.",
            )
        if self.growth > 1:
            _check_empty(module, layout, groups, vector, examples)

    def initial(self, layout: Layout, vector: Tensor) -> Tensor:
        for neurons in hidden_neurons("MatchedMean", layout):
            vector = neurons.only(vector, range(max(1, int(neurons.width / self.growth))))
        return vector

    # ------------------------------------------------------------------------------------------------------- the merge

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        layout, turn = view.layout, layer_in_turn(view.layout, view.version)
        counted = [k for k in range(len(updates)) if all(w > 0 for w in weights[k])]
        if not counted:
            return Proposal(view.kernels.empty(layout.size), ())
        learners = [updates[k].learner for k in counted]
        vectors = [view.models.read(updates[k].model.name) for k in counted]
        merged = view.models.read(view.model.name).clone()
        memory = view.memory(MatchedMemory)
        before = copy.deepcopy(memory.owned)
        if turn == 0:
            memory.owned = {}
        for number, neurons in enumerate(hidden_neurons("MatchedMean", layout)):
            if neurons.layer >= turn:
                places, vectors = self._matched(view, number, neurons, vectors)
                shares = [[weights[k][neurons.layer]] * neurons.width for k in counted]
                average_by_neuron(neurons.incoming, vectors, _owned(shares, places), merged)
                if neurons.layer == turn:
                    for learner, placed in zip(learners, places, strict=True):
                        memory.owned.setdefault(learner, {})[number] = sorted(placed)
        average_by_neuron(
            last_rows(layout),
            vectors,
            weights_by_class(layout, [updates[k] for k in counted], [weights[k] for k in counted]),
            merged,
        )
        starts = {
            learner: self._start(layout, turn, merged, vector, memory.owned.get(learner, {}))
            for learner, vector in zip(learners, vectors, strict=True)
        }

        def undo() -> None:
            memory.owned = before

        return Proposal(merged, tuple(range(turn, len(layout.layers))), undo=undo, starts=starts)

    def _matched(
        self, view: View, number: int, neurons: Neurons, vectors: Sequence[Tensor]
    ) -> tuple[list[list[int]], list[Tensor]]:
        """Match the learners' neurons; return where each learner's neurons belong, and the reordered models."""
        used = [neurons.used(vector) for vector in vectors]
        rows = [neurons.rows(vector)[own].double().numpy() for vector, own in zip(vectors, used, strict=True)]
        prior = Prior(self.sigma, self.sigma0, self.gamma)
        places = match(rows, neurons.width, prior, self.iterations, view.generator("match", view.version, number))
        moved = [neurons.moved(*moves) for moves in zip(vectors, used, places, strict=True)]
        return places, moved

    @staticmethod
    def _start(layout: Layout, turn: int, merged: Tensor, own: Tensor, owned: dict[int, list[int]]) -> Tensor:
        """Return the model that a learner continues with."""
        settled = layout.layers[turn].stop
        if turn < len(layout.layers) - 1:
            return torch.cat([merged[:settled], own[settled:]])
        start = merged
        for number, neurons in enumerate(hidden_neurons("MatchedMean", layout)):
            if number in owned:
                start = neurons.only(start, owned[number])
        return start


def _owned(shares: list[list[float]], places: Sequence[Sequence[int]]) -> FloatTable:
    """Return the weight of each learner in each neuron; 0 for neurons it lacks."""
    table = np.array(shares)
    for row, placed in zip(table, places, strict=True):
        row[np.setdiff1d(np.arange(len(row)), placed)] = 0.0
    return table


def _outputs(module: nn.Module, layout: Layout, vector: Tensor, examples: Tensor) -> Tensor:
    Binding(layout, module).bind(vector.to(examples.device))
    module.eval()
    with torch.no_grad():
        outputs: Tensor = module(examples.clone())
    return outputs


def _check_empty(
    module: nn.Module, layout: Layout, groups: Sequence[Neurons], vector: Tensor, examples: Tensor
) -> None:
    """Refuse a network in which a neuron without weights gets a gradient."""
    for neurons in groups:
        vector = neurons.only(vector, range(neurons.width // 2))
    Binding(layout, module).bind(vector.to(examples.device))
    module.eval()
    outputs = module(examples.clone())
    (outputs * torch.linspace(1, 2, outputs.numel(), device=outputs.device).view_as(outputs)).sum().backward()
    parameters = dict(module.named_parameters())
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
    gradient = layout.joined(gradients)
    for neurons in groups:
        empty = range(neurons.width // 2, neurons.width)
        moves = any(bool(axis.of(gradient)[list(empty)].any()) for axis in (*neurons.incoming, *neurons.outgoing))
        require(
            not moves,
            f"MatchedMean: a neuron of {neurons.name!r} without weights does not stay empty in training, so there is "
            "no room for new neurons. Use an activation that is 0 at 0, such as ReLU or tanh, or growth=1.",
        )

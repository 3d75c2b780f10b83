"""What the straight-line programs of this folder have in common: a network, local training, a mean, an evaluator.

Nothing here comes from archipel but the split of the data and the documented random keys:
  the initial model     torch.manual_seed(derive(seed, "model")), PyTorch's own draws
  a mini-batch          generator(derive(seed, "training", learner, nth task), "epoch", epoch).permutation(examples)
  a round's learners    generator(seed, "selection", "round n").permutation(learners), n from 0
A mean starts from zero and adds up row by row, by learner's name: `mean`. Arithmetic is written with PyTorch's own
in-place operations where bits are asked for: a.add_(b, alpha=c) rounds once, a + c * b twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

import archipel as ap
from archipel.core.randomness import derive, generator
from archipel.data import Islands, digits, stratified_validation
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Observer, Simulator

SEED = 7


@functools.cache
def islands(learners: int = 5, classes: str | int = 4) -> Islands:
    """Half of the digits, a few classes at each learner, the largest learner first."""
    return digits().split(learners, sizes="skewed", classes=classes, test=0.5, stimuli=2, seed=SEED)


def run(
    algorithm: ap.Algorithm, data: Islands, widths: Sequence[int], *observers: Observer, **settings: Any
) -> tuple[ap.Run, Simulator]:
    """What archipel makes of it, and the simulator it ran in."""
    features, *hidden, classes = widths
    if hidden:
        model = functools.partial(ap.models.mlp, features, classes, hidden)
    else:
        model = functools.partial(ap.models.logistic_regression, features, classes)
    simulator = prepare(algorithm, data, model=model, execution="plain", seed=SEED, **settings)
    simulator.observers = observers
    simulator.begin()
    simulator.run()
    return finished(simulator), simulator


# -------------------------------------------------------------------------------------------------- the network


class Net:
    """A fully connected network whose weights are one vector: weight and bias of the first layer, then the next."""

    def __init__(self, *widths: int) -> None:
        self.shapes = [(n, m) for m, n in pairwise(widths)]
        ends = np.cumsum([0] + [n * m + n for n, m in self.shapes]).tolist()
        self.layers = [slice(a, b) for a, b in pairwise(ends)]
        self.size = ends[-1]

    def initial(self) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(SEED, "model"))
            made = [nn.Linear(m, n) for n, m in self.shapes]
        return torch.cat([p.detach().flatten() for layer in made for p in (layer.weight, layer.bias)])

    def outputs(self, w: Tensor, x: Tensor) -> list[Tensor]:
        """What each layer puts out, before its activation."""
        found: list[Tensor] = []
        x = x.flatten(1)
        for (n, m), layer in zip(self.shapes, self.layers, strict=True):
            weight, bias = w[layer][: n * m].view(n, m), w[layer][n * m :]
            found.append(linear(relu(found[-1]) if found else x, weight, bias))
        return found

    def loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.outputs(w, x)[-1], y)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        return torch.autograd.grad(self.loss(w, x, y), w)[0]

    def span(self, places: Sequence[int]) -> slice:
        """Neighbouring layers as one slice."""
        return slice(self.layers[places[0]].start, self.layers[places[-1]].stop)


# ------------------------------------------------------------------------------------------------- the learners


class Client:
    """A learner: its examples, and how many tasks it was given."""

    def __init__(self, net: Net, data: Islands, name: str, train: Tensor, validation: Tensor) -> None:
        self.net, self.name, self.tasks = net, name, 0
        self.x, self.y = data.x[train], data.y[train]
        self.vx, self.vy = data.x[validation], data.y[validation]
        self.n = len(train)

    def epochs(self, w: Tensor, **settings: Any) -> Iterator[Tensor]:
        """Another task: the model after one pass over the data, after two, and so on for ever."""
        key = derive(SEED, "training", self.name, self.tasks)
        self.tasks += 1
        return self._sgd(w, key, **settings)

    def _sgd(
        self,
        w: Tensor,
        key: int,
        batch: int,
        rate: float,
        momentum: float = 0.0,
        proximal: float = 0.0,
        trains: slice = slice(None),
        shift: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """u <- momentum u + grad F(w) + shift + proximal (w - w'); w <- w - rate u, on the part of w that trains."""
        received, w = w, w.clone()
        u = torch.zeros_like(w)
        for epoch in count():
            order = torch.from_numpy(generator(key, "epoch", epoch).permutation(self.n))
            for b in order.split(batch):
                g = self.net.gradient(w, self.x[b], self.y[b])
                if shift is not None:
                    g.add_(shift)
                g.add_(w - received, alpha=proximal)
                u.mul_(momentum).add_(g)
                w[trains] = w[trains].add(u[trains], alpha=-rate)
            yield w.clone()

    def batches(self, epochs: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Another task: its mini-batches, one after the other."""
        key = derive(SEED, "training", self.name, self.tasks)
        self.tasks += 1
        for epoch in range(epochs):
            order = torch.from_numpy(generator(key, "epoch", epoch).permutation(self.n))
            for b in order.split(batch):
                yield self.x[b], self.y[b]

    def train(self, w: Tensor, epochs: int, **settings: Any) -> Tensor:
        """w_k after so many epochs."""
        return next(islice(self.epochs(w, **settings), epochs - 1, None))

    def steps(self, batch: int) -> int:
        """Mini-batches of one epoch."""
        return math.ceil(self.n / batch)

    def validation_loss(self, w: Tensor) -> float:
        return float(self.net.loss(w, self.vx, self.vy))

    def confusion(self, w: Tensor) -> np.ndarray:
        """[actual, predicted] counts on the validation part."""
        table = np.zeros((10, 10))
        for actual, predicted in zip(self.vy, self.net.outputs(w, self.vx)[-1].argmax(1), strict=True):
            table[actual, predicted] += 1
        return table


def clients(net: Net, data: Islands, validation: float = 0.0) -> dict[str, Client]:
    """The learners by name; with a validation part where the method asks for one."""
    made = {}
    for island in data.learners:
        kept, apart = torch.arange(len(island.train)), torch.empty(0, dtype=torch.int64)
        if validation:
            kept, apart = stratified_validation(data.y[island.train], validation, (SEED, island.name))
        made[island.name] = Client(net, data, island.name, island.train[kept], island.train[apart])
    return made


def selected(names: Sequence[str], m: int, number: int) -> list[str]:
    """m learners drawn for this round, in the order of the draw."""
    order = generator(SEED, "selection", f"round {number}").permutation(len(names))
    return [sorted(names)[i] for i in order[:m]]


# ----------------------------------------------------------------------------------------------- the controller


def mean(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Sum of p_k / P w_k, from zero, row by row."""
    total = math.fsum(weights)
    found = torch.zeros_like(rows[0])
    for row, p in zip(rows, weights, strict=True):
        found.add_(row, alpha=p / total)
    return found


def micro_f1(cm: np.ndarray) -> float:
    """Metis equation 3."""
    tp = sum(cm[i, i] for i in range(len(cm)))
    fp = sum(cm[:, j].sum() - cm[j, j] for j in range(len(cm)))
    fn = sum(cm[i, :].sum() - cm[i, i] for i in range(len(cm)))
    return float(2 * tp / (2 * tp + fp + fn))


def fleet(training: Mapping[str, float], evaluating: Mapping[str, float], loss: float = 0.0) -> ap.Fleet:
    """One group for each learner with its own seconds a step, so that no two things happen at once.

    The fleet hands its groups out by falling size of the data, which is the order of the islands.
    """
    return ap.Fleet(
        *(ap.Group(k, 1, train_seconds=s, evaluate_seconds=evaluating[k], drop_rate=loss) for k, s in training.items()),
    )

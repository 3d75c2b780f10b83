"""Probes, which leave a model unchanged: scores from counts, representational consistency, gradient norms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from archipel.core.sparse_counts import MANY_CLASSES, Confusion, SparseCounts
from archipel.core.types import Consistent, Distance, Scored, ScoreTable
from archipel.learner.learner import TrainingContext
from archipel.learner.tokens import targets_of, token_counts, token_losses

SHORT = 16
"""Numbers in a vector register; over fewer, torch's softmax is several times faster along the first dimension."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The examples of several sites, for scores by site."""

    examples: Tensor
    """Their indices, concatenated by site."""
    sizes: NDArray[np.int64]
    """Number of examples of each site."""

    @staticmethod
    def of(parts: Sequence[Tensor]) -> Parts:
        """Concatenate the sites' tensors of indices."""
        together = torch.cat([*parts]) if parts else torch.empty(0, dtype=torch.int64)
        return Parts(together, np.array([len(part) for part in parts], dtype=np.int64))


def mean_loss(work: TrainingContext, examples: Tensor) -> float:
    """Return the mean loss of the bound model; NaN without examples."""
    if len(examples) == 0:
        return math.nan
    if work.per_token:
        total = sum(float(token_losses(o, t).double().sum()) for o, t in _forward(work, examples))
        return total / max(1, int(targets_of(work.y[examples]).sum()))
    return sum(float(work.loss(o, t)) * len(t) for o, t in _forward(work, examples)) / len(examples)


def loss_moments(work: TrainingContext, vector: Tensor, examples: Tensor) -> tuple[float, float]:
    """Return the mean of a model's losses on single examples, and the mean of their squares."""
    work.binding.bind(vector)
    losses = torch.cat([_each(work, outputs, targets).double() for outputs, targets in _forward(work, examples)])
    if work.per_token:
        losses /= targets_of(work.y[examples]).clamp(min=1).cpu()
    return float(losses.mean()), float(losses.square().mean())


def score(work: TrainingContext, vector: Tensor, examples: Tensor, bins: int = 0) -> Scored:
    """Return the counts and sums of a model on these examples."""
    scored = score_parts(work, vector, Parts.of([examples]), bins).row(0)
    assert scored is not None
    return scored


def score_parts(work: TrainingContext, vector: Tensor, parts: Parts, bins: int = 0) -> ScoreTable:
    """Score one model on the examples of several sites, in one pass over all of them."""
    work.binding.bind(vector)
    sizes = parts.sizes
    tally = Tally(sizes, work.classes, bins, work.per_token)
    owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).split(work.rows)
    for (outputs, targets), owner in zip(_forward(work, parts.examples), owners, strict=True):
        tally.add(work, outputs, targets, owner)
    return tally.table()


class Tally:
    """Counts and sums of sites of these sizes, added pass by pass."""

    def __init__(self, sizes: NDArray[np.int64], classes: int | None, bins: int = 0, per_token: bool = False) -> None:
        self.sizes, self.classes = sizes, classes
        count = len(sizes)
        self.losses = np.zeros(count)
        self.tokens = np.zeros((count, 2), dtype=np.int64) if per_token else None
        self.histogram: NDArray[np.int64] | None = None
        self.confusion: NDArray[np.int64] | None = None
        self._cells: list[NDArray[np.int64]] = []
        """Of many classes, the cell that each example counts in."""
        if classes is not None and bins:
            self.histogram = np.zeros((count, classes, 2, bins), dtype=np.int64)
        if classes is not None and classes < MANY_CLASSES:
            self.confusion = np.zeros((count, classes, classes), dtype=np.int64)

    def add(self, work: TrainingContext, outputs: Tensor, targets: Tensor, whose: Tensor) -> None:
        """Add examples, each to the row of its site."""
        if not len(whose):
            return
        # elsewhere nothing is added: a pass costs as much as its sites
        first, last = int(whose.min()), int(whose.max()) + 1
        whose = whose - first
        losses = self.losses[first:last]
        losses += np.bincount(whose.numpy(), _each(work, outputs, targets).numpy(), minlength=len(losses))
        if self.tokens is not None:
            np.add.at(self.tokens[first:last], whose.numpy(), token_counts(outputs, targets).cpu().numpy())
        if self.classes is not None:
            cells = (whose.to(targets.device) * self.classes + targets) * self.classes + outputs.argmax(dim=1)
            self._count(cells, first, last)
        if self.histogram is not None:
            self._add_scores(self.histogram[first:last], outputs, targets, whose)

    def table(self) -> ScoreTable:
        """Return what was counted."""
        confusion: Confusion | None = self.confusion
        if self.classes is not None and confusion is None:
            shape = (len(self.sizes), self.classes, self.classes)
            confusion = SparseCounts.counted(shape, np.concatenate([np.empty(0, np.int64), *self._cells]))
        return ScoreTable(self.sizes, self.losses, confusion, self.histogram, tokens=self.tokens)

    def _count(self, cells: Tensor, first: int, last: int) -> None:
        """Count examples in the confusion matrices of the sites from `first` to `last`."""
        if self.confusion is None:
            assert self.classes is not None
            self._cells.append(cells.cpu().numpy() + first * self.classes**2)
            return
        confusion = self.confusion[first:last]
        confusion += torch.bincount(cells, minlength=confusion.size).cpu().numpy().reshape(confusion.shape)

    @staticmethod
    def _add_scores(histogram: NDArray[np.int64], outputs: Tensor, targets: Tensor, whose: Tensor) -> None:
        """Count the softmax scores of all classes."""
        classes, bins = histogram.shape[1], histogram.shape[3]
        level = (outputs.softmax(dim=1) * bins).long().clamp_(max=bins - 1).cpu()
        own = nn.functional.one_hot(targets, classes).cpu()
        kind = (whose[:, None] * classes + torch.arange(classes)) * 2 + own
        counted = torch.bincount((kind * bins + level).flatten(), minlength=histogram.size)
        histogram += counted.numpy().reshape(histogram.shape)


def _forward(work: TrainingContext, examples: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if work.module.training:  # switching modes takes as long as a layer
        work.module.eval()
    with torch.no_grad():
        for chosen in examples.split(work.rows):
            chosen = chosen.to(work.x.device)
            yield work.module(work.x.index_select(0, chosen)), work.y.index_select(0, chosen)


def _each(work: TrainingContext, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each example; for tokens, their sum."""
    if work.per_token:
        return token_losses(outputs, targets).cpu()
    if work.loss is nn.functional.cross_entropy and targets.dim() == 1 and outputs.shape[1] < SHORT:
        scores = outputs.T.contiguous().log_softmax(dim=0)
        return scores.gather(0, targets[None])[0].neg_().cpu()
    if work.loss is nn.functional.cross_entropy:
        return nn.functional.cross_entropy(outputs, targets, reduction="none").cpu()
    try:
        return vmap(lambda o, t: work.loss(o[None], t[None]))(outputs, targets).cpu()
    except RuntimeError:  # vmap cannot map a loss that branches on numbers
        return torch.stack([work.loss(o[None], t[None]) for o, t in zip(outputs, targets, strict=True)]).cpu()


# ----------------------------------------------------------------------------------- consistency (Fed2A, RCE)


def consistency(
    work: TrainingContext, vector: Tensor, reference: Tensor, stimuli: Tensor, distance: Distance
) -> Consistent:
    """Return rc of formula 10 for each layer of a model against a reference, on the stimuli."""
    local, community = layer_outputs(work, vector, stimuli), layer_outputs(work, reference, stimuli)
    return Consistent(
        tuple(
            squared_correlation(dissimilarities(mine, distance), dissimilarities(theirs, distance))
            for mine, theirs in zip(local, community, strict=True)
        )
    )


def layer_outputs(work: TrainingContext, vector: Tensor, stimuli: Tensor) -> list[Tensor]:
    """Return v_l of formula 5: each layer's outputs, one row per stimulus."""
    work.binding.bind(vector)
    work.module.eval()
    seen: dict[str, Tensor] = {}
    # an adapter's outputs may be all zeros, so the outputs of the module it adapts are compared
    places = [layer.adapts or layer.module for layer in work.layout.layers]
    paths = dict.fromkeys(places)

    def keep(path: str, output: object) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        assert isinstance(tensor, Tensor)
        seen[path] = tensor.detach().reshape(len(stimuli), -1).double()

    hooks = [
        work.module.get_submodule(path).register_forward_hook(lambda _, __, output, path=path: keep(path, output))
        for path in paths
    ]
    try:
        with torch.no_grad():
            work.module(work.x[stimuli])
    finally:
        for hook in hooks:
            hook.remove()
    silent = torch.zeros(len(stimuli), 1, dtype=torch.float64)  # a layer that was never called
    return [seen.get(place, silent) for place in places]


def dissimilarities(outputs: Tensor, distance: Distance) -> Tensor:
    """Return the upper triangle of the RDM (formula 6) by the distance of formula 7, 8 or 9."""
    if distance == "euclidean":
        pairs = torch.cdist(outputs, outputs)
    else:
        if distance == "correlation":
            outputs = outputs - outputs.mean(dim=1, keepdim=True)
        norms = outputs.norm(dim=1, keepdim=True)
        units = torch.where(norms > 0, outputs / norms, torch.zeros_like(outputs))
        # formula 8 is written as a similarity; one minus it has the same squared correlation
        pairs = 1 - units @ units.T
    rows, columns = torch.triu_indices(len(outputs), len(outputs), offset=1)
    return pairs[rows, columns]


def squared_correlation(a: Tensor, b: Tensor) -> float:
    """Return rho^2 of formula 10; if a matrix is constant: 1 if both are, else 0."""
    a, b = a - a.mean(), b - b.mean()
    # treat distances that differ by rounding only as constant
    flat_a, flat_b = float(a.abs().max()) < 1e-12, float(b.abs().max()) < 1e-12
    if flat_a or flat_b:
        return float(flat_a and flat_b)
    squared = float((a @ b) ** 2 / ((a @ a) * (b @ b)))
    return min(1.0, squared) if math.isfinite(squared) else 0.0  # overflow counts as no correlation


# ------------------------------------------------------------------------------------ gradient norms (RADFed)


def squared_gradient_norm(work: TrainingContext, vector: Tensor, examples: Tensor, batch: int | None) -> float:
    """Return the mean squared gradient norm at a model: of single examples (batch None) or of mini-batches.

    RADFed Alg. 2, ClientUpdate line 3: p = (1 / |D|) sum over d of ||grad l_d(w*)||^2; section III.B takes
    mini-batches instead.
    """
    if batch is None and _one_by_one_in_parallel(work):
        return _per_sample(work, vector, examples)
    work.binding.bind(vector)
    work.module.eval()
    total, count = 0.0, 0
    for chosen in examples.split(batch or 1):
        work.module.zero_grad()
        work.loss(work.module(work.x[chosen]), work.y[chosen]).backward()
        total += sum(float(p.grad.double().pow(2).sum()) for p in work.module.parameters() if p.grad is not None)
        count += 1
    work.module.zero_grad()
    return total / count


def _per_sample(work: TrainingContext, vector: Tensor, examples: Tensor) -> float:
    tensors = work.layout.tensors(vector)
    work.module.eval()

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return work.loss(functional_call(work.module, parameters, (x[None],)), y[None])

    trained = {name: tensors[name] for name, p in work.module.named_parameters() if p.requires_grad}
    fixed = {name: tensor for name, tensor in tensors.items() if name not in trained}
    gradient = vmap(grad(lambda p, x, y: loss({**fixed, **p}, x, y)), in_dims=(None, 0, 0))
    room = max(1, 4_000_000 // work.layout.size)  # gradients held at a time
    total = 0.0
    for chosen in examples.split(room):
        found = gradient(trained, work.x[chosen], work.y[chosen])
        total += sum(float(g.double().pow(2).sum()) for g in found.values())
    return total / len(examples)


def _one_by_one_in_parallel(work: TrainingContext) -> bool:
    """Return whether torch.func can map the network: not with recurrent layers, nor texts cut to their lengths."""
    return not work.has_texts and not any(isinstance(part, nn.RNNBase) for part in work.module.modules())

"""Build a network and a loss for the data, and check that they fit; build the learner of an island."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.frozen_weights import copied
from archipel.core.layout import Layout
from archipel.core.randomness import derive
from archipel.data import Island, Islands, stratified_validation
from archipel.kernels.threads import threads
from archipel.learner.learner import Learner, Loss, TrainingContext
from archipel.learner.tokens import token_cross_entropy
from archipel.models import small_mlp

TEXTS = 64
"""Most texts that are evaluated at a time: the memory of a transformer grows with the tokens,"""
NUMBERS = 1 << 23
"""and that of their outputs."""


@threads(1)  # two examples are too few to divide
def context_of(
    data: Islands,
    model: nn.Module | Callable[[], nn.Module] | None,
    loss: Loss | None,
    seed: int,
    device: str,
    algorithm: Algorithm | None = None,
) -> TrainingContext:
    """Return the network, the loss and the examples on a device, once they are known to fit together.

    model: a module, a function that makes one, or None for a small MLP. loss: None for cross entropy, or mean squared
    error where there are no classes, or cross
    entropy of the tokens where each has a target.
    """
    _check_device(device)
    module = _module(data, model, seed)
    try:
        layout = Layout.of(module, data.x[:2].clone())  # a network may change its input in place
        with torch.no_grad():
            outputs = copied(module).eval()(data.x[:2].clone())
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(
            f"The model does not accept the data's examples, of shape {tuple(data.x.shape[1:])} and {data.x.dtype}; "
            f"give a model that fits them. torch reports: {error}"
        ) from None
    _check_outputs(outputs, data)
    if loss is None:
        loss = _default_loss(data)
    _check_loss(loss, outputs, data.y[:2])
    x, y = data.x.to(device), data.y.to(device)
    context = TrainingContext(module.to(device), layout, loss, x, y, data.classes, data.augment)
    if algorithm is not None:
        context = replace(
            context,
            objective=algorithm.objective,
            local_noise=algorithm.local_noise,
            descent=algorithm.descent,
            personal=algorithm.personal,
            keeps=algorithm.keeps,
            tuning=None if algorithm.personal is None else algorithm.personal.tuning(algorithm.plan),
        )
    rows = max(1, min(TEXTS, NUMBERS // outputs[0].numel()))
    return replace(context, rows=rows) if context.has_texts else context


def _default_loss(data: Islands) -> Loss:
    if data.per_token:
        return token_cross_entropy
    return nn.functional.mse_loss if data.classes is None else nn.functional.cross_entropy


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # torch raises AssertionError if it was built without this kind of device
        raise ValueError(f"Device {device!r} is not available; use 'cpu'. torch reports: {error}") from None


def _module(data: Islands, model: nn.Module | Callable[[], nn.Module] | None, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return copied(model)
    require(
        model is None or callable(model),
        f"model must be a torch.nn.Module or a function that makes one, got {model!r}.",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        if model is not None:
            made = model()
            require(
                isinstance(made, nn.Module),
                f"model() returned {made!r}; give a torch.nn.Module, or a function that makes one.",
            )
            return made
        require(
            data.classes is not None,
            "There is no default model for tasks without classes; give model=...",
        )
        return small_mlp(features=data.x[0].numel(), classes=data.classes or 0)


def _check_outputs(outputs: Tensor, data: Islands) -> None:
    if data.per_token:
        require(
            outputs.dim() == 3,
            f"The model's output for an example has the shape {tuple(outputs.shape[1:])}, and every token has a "
            "target; give a model with outputs for every token, for example from_hf(..., task='causal-lm').",
        )
        require(
            int(data.y.max()) < outputs.shape[2],
            f"The targets go up to {int(data.y.max())}, and the model has {outputs.shape[2]} outputs a token; give it "
            "as many as there are tokens or labels.",
        )
    elif data.classes is None:
        require(
            outputs.shape == data.y[:2].shape,
            f"The model's output for an example has the shape {tuple(outputs.shape[1:])}, a target has "
            f"{tuple(data.y.shape[1:])}; make the two shapes equal.",
        )
    else:
        require(
            tuple(outputs.shape[1:]) == (data.classes,),
            f"The model's output for an example has the shape {tuple(outputs.shape[1:])}, the data have {data.classes} "
            "classes; give the last layer one output a class.",
        )


def _check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a broadcast before it fails on it
            value = loss(outputs, targets)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"The loss {loss!r} does not accept outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)} and {targets.dtype}; give one that fits the task. torch reports: {error}"
        ) from None
    require(
        isinstance(value, Tensor) and value.numel() == 1,
        f"The loss returned {value!r}; it must return one number, the mean over the batch.",
    )


def learner_of(island: Island, data: Islands, validation: float, seed: int) -> Learner:
    """Return the learner of an island, with this share of its examples reserved for validation."""
    nothing = torch.empty(0, dtype=torch.int64)
    if island.role != "train":  # a held-out learner evaluates on all its examples
        return Learner(island.name, nothing, nothing, island.train)
    train, reserved = island.train, nothing
    if validation:
        labels = None if data.classes is None else data.y[island.train]
        kept, apart = stratified_validation(labels, validation, (seed, island.name), len(island.train))
        train, reserved = island.train[kept], island.train[apart]
    return Learner(island.name, train, reserved, island.test)

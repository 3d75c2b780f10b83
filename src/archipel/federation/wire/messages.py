"""Convert between protobuf messages and Archipel's types; every received value is checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from archipel.core.sparse_counts import MANY_CLASSES, Confusion, SparseCounts
from archipel.core.types import AUC_BINS, Cycle, Metrics, Phase, Plan, Reports, Scored, Spent
from archipel.data.standardise import Moments
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import InvalidUpdate
from archipel.learner.batches import steps_of_epoch

PROTOCOL = 6
"""Raised when an older side would misunderstand a newer one."""
MOST = 2**40
"""Examples, or steps, that anybody may claim to have or to have made: sums of such counts are exact."""
LARGEST_LOSS, LARGEST_SQUARE = 1e12, 1e30
"""Of an example, a token or their mean; and of its square, or the square of a gradient's norm. Methods raise what
learners report to powers and add it up: far larger numbers would overflow, which would end the controller."""
LARGEST = 1e39
"""Features are float32, which ends before this: moments of such features stay finite when they are combined."""


# --------------------------------------------------------------------------------------------------------------- plans


def encode_plan(plan: Plan, key: int) -> pb.Plan:
    """Return a plan with the seed of its task's randomness."""
    cycle = plan.cycle
    return pb.Plan(
        epochs=plan.epochs,
        steps=plan.steps,
        batch=plan.batch,
        accumulate=plan.accumulate,
        all_data=plan.all_data,
        rate=plan.rate,
        momentum=plan.momentum,
        optimiser=plan.optimiser,
        options=json.dumps(dict(plan.options)),
        cycle=None if cycle is None else pb.Cycle(loss=cycle.loss, tombstones=cycle.tombstones, at_most=cycle.at_most),
        trains=None if plan.trains is None else pb.Names(names=plan.trains),
        phases=[
            pb.Phase(epochs=phase.epochs, trains=phase.trains, rate=phase.rate, proximal=phase.proximal, of=phase.of)
            for phase in plan.phases
        ],
        uploads=None if plan.uploads is None else pb.Names(names=plan.uploads),
        private=plan.private,
        proximal=plan.proximal,
        shift=plan.shift or "",
        reports=plan.reports,
        key=key,
    )


def decode_plan(said: pb.Plan) -> Plan:
    known = get_args(Reports)
    try:
        options = json.loads(said.options or "{}")
    except RecursionError:
        options = None
    if not isinstance(options, dict):
        raise ValueError(f"options {said.options[:100]!r}, which are no JSON object")
    return Plan(
        epochs=said.epochs,
        steps=said.steps if said.HasField("steps") else None,
        batch=said.batch,
        accumulate=said.accumulate or 1,
        all_data=said.all_data,
        rate=said.rate,
        momentum=said.momentum,
        optimiser=said.optimiser,
        options={name: tuple(value) if isinstance(value, list) else value for name, value in options.items()},
        cycle=Cycle(said.cycle.loss, said.cycle.tombstones, said.cycle.at_most) if said.HasField("cycle") else None,
        trains=tuple(said.trains.names) if said.HasField("trains") else None,
        phases=tuple(map(_phase, said.phases)),
        uploads=tuple(said.uploads.names) if said.HasField("uploads") else None,
        private=tuple(said.private),
        proximal=said.proximal,
        shift=said.shift or None,
        reports=tuple(report for report in known if report in said.reports),
    )


def _phase(said: pb.Phase) -> Phase:
    proximal = said.proximal if said.HasField("proximal") else None
    return Phase(said.epochs, tuple(said.trains), said.rate, proximal, said.of)


# ------------------------------------------------------------------------------------------------------------- answers


def encode_scored(scored: Scored) -> pb.Scored:
    confusion, histogram = scored.confusion, scored.histogram
    told = pb.Scored(
        count=scored.count,
        loss=scored.loss,
        bins=0 if histogram is None else histogram.shape[-1],
        histogram=() if histogram is None else histogram.ravel().tolist(),
        tokens=() if scored.tokens is None else scored.tokens.tolist(),
    )
    if confusion is not None:
        told.classes = len(confusion)
        sparse = SparseCounts.of(confusion)
        if 0 < 2 * len(sparse.places) < confusion.size:  # of many classes most are never confused
            told.cells.extend(sparse.places.tolist())
            told.confusion.extend(sparse.counts.tolist())
        else:
            told.confusion.extend(np.asarray(confusion).ravel().tolist())
    return told


def decode_scored(said: pb.Scored, *, count: int, classes: int | None, bins: int, per_token: bool = False) -> Scored:
    """Check counts of so many examples against those registered when the learner joined; per_token: count tokens."""
    if said.count != count:
        raise InvalidUpdate(f"counts of {said.count} examples, {count} were registered")
    if not abs(said.loss) <= LARGEST_LOSS * max(1, count, *said.tokens):
        raise InvalidUpdate(f"a loss of {said.loss} of {count} examples, at most {LARGEST_LOSS:g} of each are taken")
    if per_token:
        return Scored(count, said.loss, tokens=_counts(said.tokens, "count of tokens", (len(said.tokens),), (2,), MOST))
    if classes is None:
        return Scored(count, said.loss)
    confusion = _confusion(said, classes, count)
    if int(confusion.sum()) != count:
        raise InvalidUpdate(f"a confusion matrix of {int(confusion.sum())} examples, {count} were registered")
    if not bins:
        return Scored(count, said.loss, confusion)
    shape = (classes, 2, bins)
    histogram = _counts(said.histogram, "histogram of scores", (classes, 2, said.bins), shape, count)
    if histogram.sum(axis=(1, 2)).tolist() != [count] * classes:
        raise InvalidUpdate(f"a histogram of scores that does not count {count} examples for each class")
    return Scored(count, said.loss, confusion, histogram)


def _confusion(said: pb.Scored, classes: int, most: int) -> Confusion:
    """Return the confusion matrix, which came whole or as the cells that are not zero."""
    shape = (said.classes, said.classes)
    if not said.cells:
        whole = _counts(said.confusion, "confusion matrix", shape, (classes, classes), most)
        return SparseCounts.of(whole) if classes >= MANY_CLASSES else whole
    cells = np.array(said.cells, np.int64)
    if shape != (classes, classes) or len(cells) != len(said.confusion):
        raise InvalidUpdate(
            f"a confusion matrix of shape {shape} with {len(said.confusion)} counts in {len(cells)} cells, expected "
            f"{(classes, classes)}"
        )
    if cells[-1] >= classes * classes or not (np.diff(cells) > 0).all():
        raise InvalidUpdate(f"cells of a confusion matrix that are not ascending places below {classes * classes}")
    counts = _counts(said.confusion, "confusion matrix", cells.shape, cells.shape, most)
    sparse = SparseCounts.at((classes, classes), cells, counts)
    return sparse if classes >= MANY_CLASSES else np.asarray(sparse)


def _counts(said: Sequence[int], what: str, shape: tuple[int, ...], wanted: tuple[int, ...], most: int) -> np.ndarray:
    if shape != wanted or len(said) != math.prod(wanted):
        raise InvalidUpdate(f"a {what} of shape {shape} with {len(said)} counts, expected {wanted}")
    if max(said, default=0) > most:
        raise InvalidUpdate(f"a {what} that counts {max(said)} examples in one place, {most} were registered")
    return np.array(said, dtype=np.int64).reshape(wanted)


def encode_metrics(metrics: Metrics, layers: Iterable[pb.Layer], steps: int) -> pb.Trained:
    return pb.Trained(
        layers=layers,
        steps=steps,
        epochs=metrics.epochs,
        losses=metrics.losses,
        validation=None if metrics.validation is None else encode_scored(metrics.validation),
        gradient_norm=metrics.gradient_norm,
        classes=metrics.classes,
        training_loss=metrics.training_loss,
        squared_loss=metrics.squared_loss,
        spent=None if metrics.spent is None else pb.Spent(**asdict(metrics.spent)),
    )


def decode_metrics(
    said: pb.Trained,
    plan: Plan,
    *,
    examples: int | None,
    validation: int,
    classes: int | None,
    per_token: bool = False,
) -> Metrics:
    """Keep the reports that the plan asks for; refuse what is malformed, or more than such a task can come to."""
    epochs, asked = most_epochs(plan), plan.reports
    if not 0 <= said.epochs <= epochs:
        raise InvalidUpdate(f"{said.epochs} epochs, the plan asks for at most {epochs}")
    if said.steps > most_steps(plan, examples):
        raise InvalidUpdate(f"{said.steps} steps, the plan asks for at most {most_steps(plan, examples)}")
    if len(said.losses) > epochs + 1:
        raise InvalidUpdate(f"{len(said.losses)} losses, at most {epochs + 1} of {epochs} epochs are taken")
    losses: tuple[float, ...] = ()
    scored = norm = None
    # a loss of an empty validation part is none: that costs the curve, not the update
    if (plan.cycle is not None or "losses" in asked) and all(abs(loss) <= LARGEST_LOSS for loss in said.losses):
        losses = tuple(said.losses)
    if said.HasField("validation"):
        bins = AUC_BINS if "validation scores" in asked else 0
        scored = decode_scored(said.validation, count=validation, classes=classes, bins=bins, per_token=per_token)
    if not {"validation", "validation scores"} & set(asked):
        scored = None
    if said.HasField("gradient_norm") and any(report.startswith("gradient norm") for report in asked):
        norm = _small("gradient norm", said.gradient_norm)
    counts = tuple(said.classes) if "class counts" in asked else ()
    if counts and (len(counts) != classes or (examples is not None and sum(counts) != examples)):
        raise InvalidUpdate(
            f"{sum(counts)} examples of {len(counts)} classes, {examples} of {classes} classes were registered"
        )
    told = "training loss" in asked and said.HasField("training_loss") and said.HasField("squared_loss")
    moments: tuple[float | None, float | None] = (None, None)
    if told:
        moments = _small("training loss", said.training_loss), _small("squared loss", said.squared_loss)
    return replace(Metrics(said.epochs, losses, scored, norm, counts, *moments), spent=_spent(said))


def _spent(said: pb.Trained) -> Spent | None:
    if not said.HasField("spent"):
        return None
    told = said.spent
    if not (0 <= told.epsilon < math.inf and 0 < told.delta < 1 and 0 < told.noise < math.inf):
        raise InvalidUpdate(f"an account of epsilon {told.epsilon} at delta {told.delta} with noise {told.noise}")
    return Spent(told.epsilon, told.delta, told.noise, told.rests)


def _small(what: str, told: float) -> float:
    """Refuse a report that no arithmetic survives; that it is a number at least 0 is checked by the controller."""
    if told > (most := LARGEST_LOSS if what == "training loss" else LARGEST_SQUARE):
        raise InvalidUpdate(f"a {what} of {told:g}, at most {most:g} is taken")
    return told


def most_epochs(plan: Plan) -> int:
    """Return the most passes of a task; with steps instead of epochs, each pass takes one step or more."""
    if plan.steps is not None:
        return plan.steps
    return plan.epochs if plan.cycle is None else plan.cycle.at_most


def most_steps(plan: Plan, examples: int | None) -> int:
    """Return the most steps of a task at a learner of so many examples."""
    if plan.steps is not None:
        return plan.steps
    return MOST if examples is None else most_epochs(plan) * max(1, steps_of_epoch(examples, plan.batch))


# -------------------------------------------------------------------------------------------------- layers and moments


def encode_layers(names: Iterable[str], digests: Iterable[str]) -> list[pb.Layer]:
    return [pb.Layer(name=name, sha256=bytes.fromhex(d)) for name, d in zip(names, digests, strict=True)]


def decode_layers(said: Iterable[pb.Layer]) -> Mapping[str, str]:
    """Digests by layer, in their order."""
    found: dict[str, str] = {}
    for layer in said:
        if layer.name in found:
            raise InvalidUpdate(f"layer {layer.name[:100]!r} twice")
        if len(layer.sha256) != 32:
            raise InvalidUpdate(f"a SHA-256 of {len(layer.sha256)} bytes for layer {layer.name[:100]!r}")
        found[layer.name] = layer.sha256.hex()
    return found


def encode_moments(moments: Moments) -> pb.Moments:
    return pb.Moments(count=moments.count, sum=_bytes(moments.sum), squares=_bytes(moments.squares))


def decode_moments(said: pb.Moments, shape: Sequence[int], largest: float = LARGEST) -> Moments:
    """Moments of features of which none is above `largest`: then those of several learners combine to such ones."""
    size = 8 * math.prod(shape)
    for what, numbers in (("sums", said.sum), ("squares", said.squares)):
        if len(numbers) != size:
            raise InvalidUpdate(f"{what} of {len(numbers) // 8} features, expected {size // 8}")
    total, squares = _numbers(said.sum, shape), _numbers(said.squares, shape)
    if not 1 <= said.count <= MOST:
        raise InvalidUpdate(f"moments of {said.count} examples")
    means, variances = total / said.count, squares / said.count
    if not bool(((variances >= 0) & (means.square() + variances <= largest**2)).all()):
        raise InvalidUpdate("moments that are none: numbers that are not finite, or too large, or negative squares")
    return Moments(said.count, total, squares)


def _bytes(numbers: Tensor) -> bytes:
    return numbers.to(torch.float64).contiguous().numpy().astype("<f8").tobytes()


def _numbers(data: bytes, shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, "<f8").astype(np.float64)).reshape(tuple(shape))

"""Check before a run that the data have what its algorithm and its evaluation need."""

from __future__ import annotations

import warnings

from archipel.core.algorithm import Algorithm
from archipel.core.checks import ArchipelWarning, between, require
from archipel.core.layout import Layout
from archipel.core.metrics import OF_TOKENS
from archipel.core.parts.all_data import AllData
from archipel.core.parts.evaluation import HELD_OUT, Evaluation
from archipel.core.parts.planning import DivideAndConquer
from archipel.core.parts.protocol import Relay, Rounds, participants
from archipel.core.parts.weighting import ByDistributedValidation, Product, Weighting
from archipel.core.scoring import hides_scores
from archipel.data import Islands
from archipel.data.array_types import IntArray

MIN_STIMULI = 3
"""Two stimuli have one distance, which correlates with nothing."""


def evaluation_of(algorithm: Algorithm, data: Islands, layout: Layout) -> Evaluation:
    """Return where a run is scored by default.

    Where layers are private or learners have models of their own, at their own test parts; else at learners held out
    for the test, on the global test set, or at all learners' own test parts, whichever there is first.
    """
    metric = default_metric(data)
    if algorithm.private(layout) or algorithm.personal is not None:
        own = "private layers" if algorithm.private(layout) else "a model for every learner"
        require(
            bool(data.rows.tests.sizes[data.rows.has("train")].any()),
            f"{algorithm.name} has {own}, so it is scored on the learners' own test parts, but no learner has one; "
            "split the data with a test part.",
        )
        return Evaluation(at="learners", mean="examples" if hides_scores(algorithm) else "learners", metric=metric)
    if data.rows.has("test").any():
        return Evaluation(at="held-out test", metric=metric)
    return Evaluation(at="home" if len(data.test) else "learners", metric=metric)


def default_metric(data: Islands) -> str:
    """Return the metric that a run is scored by where none is given."""
    if data.per_token:
        return "perplexity"
    return "loss" if data.classes is None else "accuracy"


def check_evaluation(evaluation: Evaluation, algorithm: Algorithm, data: Islands, layout: Layout) -> None:
    """Check that a model of this algorithm can be scored there, by that metric."""
    _check_metric("The run is scored by", evaluation.metric, data)
    require(
        evaluation.at_training_learners or not algorithm.private(layout),
        f"{algorithm.name} has private layers, which only the learners that train them have, and is scored at "
        f"{evaluation.at!r}; use Evaluation(at='learners', mean='learners').",
    )
    require(
        not (evaluation.validates and any(isinstance(planner, AllData) for planner in algorithm.planners)),
        f"{algorithm.name} trains on the validation parts in the end, and is scored on them; leave AllData out, or "
        "score with Evaluation(at='home') or at held-out learners.",
    )
    if evaluation.at in HELD_OUT:
        role = HELD_OUT[evaluation.at]
        require(
            bool(data.rows.has(role).any()),
            f"The run is scored at learners held out for {role}, and there are none; take folds of the data, or score "
            "with Evaluation(at='home').",
        )
    require(
        evaluation.at != "home" or len(data.test) > 0,
        "The run is scored at home, and the data have no global test set; split with a test part, or score with "
        "Evaluation(at='learners').",
    )


def reserved_share(algorithm: Algorithm, evaluation: Evaluation | None, validation: float) -> float:
    """Return the share of its examples that a learner reserves for validation: 0 unless something asks for it."""
    between("simulate", "validation", validation, 0, 1)
    asking = [algorithm.name] if algorithm.validates else []
    if evaluation is not None and evaluation.validates:
        asking.append(repr(evaluation))
    for name in asking:
        require(
            validation > 0,
            f"{name} needs a validation part at every learner; give validation above 0, for example .05.",
        )
    return validation if asking else 0.0


def check_stimuli(algorithm: Algorithm, data: Islands) -> None:
    """Check that there are stimuli for an algorithm that compares layers on them."""
    require(
        not algorithm.needs.stimuli or len(data.stimuli) >= MIN_STIMULI,
        f"{algorithm.name} compares layers on stimuli, and the data have {len(data.stimuli)}; split with stimuli=5 "
        "(examples of each class, taken from the test set).",
    )


def check_learners(
    algorithm: Algorithm, evaluation: Evaluation, data: Islands, training: IntArray, validation: IntArray
) -> None:
    """Check that the learners that train are enough and have the parts that are needed; warn if none fills a batch.

    training, validation: how many examples each of them has to train and to validate on.
    """
    check_stimuli(algorithm, data)
    require(len(training) > 0, "No learner trains, all are held out; give one the role 'train'.")
    if algorithm.validates or evaluation.validates:
        name = algorithm.name if algorithm.validates else repr(evaluation)
        require(
            bool(validation.any()),
            f"{name} needs validation parts, and no learner has enough examples to reserve one.",
        )
    for metric in _weighting_metrics(algorithm.weighting):
        _check_metric(f"{algorithm.name} weighs by", metric, data)
    _check_cohort(algorithm, len(training))
    batch, most = algorithm.plan.batch, int(training.max())
    if most < batch:
        warnings.warn(
            f"No learner has as many examples as a batch of {batch} (the largest has {most}): each trains on all it "
            f"has in one step an epoch. Give a smaller batch to change that, for example batch={max(1, batch // 4)}.",
            ArchipelWarning,
            stacklevel=4,  # the caller of `simulate`
        )


def _check_cohort(algorithm: Algorithm, learners: int) -> None:
    protocol = algorithm.protocol
    if isinstance(protocol, Rounds | Relay):
        require(
            protocol.at_least <= learners,
            f"{protocol!r} needs {protocol.at_least} learners, and {learners} train; ask for fewer.",
        )
        taking_part = participants(protocol.fraction, protocol.at_least, learners)
        for _, part in algorithm.parts():
            splits = isinstance(part, DivideAndConquer)
            way_out = "give split=..., or a larger fraction" if splits else "give a larger fraction, or more learners"
            require(
                taking_part >= part.needs.at_least,
                f"{type(part).__name__} compares the updates of a commit and needs {part.needs.at_least}, and "
                f"{protocol!r} of {learners} learners brings {taking_part}; {way_out}.",
            )


def _weighting_metrics(weighting: Weighting) -> list[str]:
    if isinstance(weighting, Product):
        return [name for factor in weighting.factors for name in _weighting_metrics(factor)]
    return [weighting.metric] if isinstance(weighting, ByDistributedValidation) else []


def _check_metric(what: str, metric: str, data: Islands) -> None:
    if data.per_token:
        known = ("loss", *OF_TOKENS)
        require(metric in known, f"{what} {metric}, and every token has a target; use one of {', '.join(known)}.")
        return
    require(
        metric not in OF_TOKENS,
        f"{what} {metric}, which needs a target for every token, and {data.name!r} has one for an example; use "
        "another metric.",
    )
    require(
        data.classes is not None or metric == "loss",
        f"{what} {metric}, which needs classes, and {data.name!r} has none; use the metric 'loss'.",
    )
    require(
        metric != "binary_f1" or data.classes == 2,
        f"{what} binary_f1, which is for two classes, and {data.name!r} has {data.classes}; use 'macro_f1'.",
    )

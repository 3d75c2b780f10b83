"""From an algorithm, data and a fleet to a finished run, in one call."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from archipel.core.algorithm import Algorithm
from archipel.core.checks import ArchipelWarning, between, one_of, require
from archipel.core.controller import Controller
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import HELD_OUT, Evaluation
from archipel.core.parts.protocol import Relay, Rounds, participants
from archipel.core.parts.weighting import ByDistributedValidation, Product, Weighting
from archipel.core.randomness import derive
from archipel.data import Island, Islands, stratified_validation
from archipel.kernels import kernels
from archipel.learner.learner import Learner, Loss, Work
from archipel.models import small_mlp
from archipel.runs.run import Participant, Run
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.divergences import ShadowRun
from archipel.simulation.executors.choice import Way, execution, threads
from archipel.simulation.fleet import Fleet
from archipel.simulation.simulator import Simulator, Site
from archipel.simulation.vectors import MemoryModels


class Settings(TypedDict, total=False):
    """What a simulation takes beside an algorithm and data."""

    model: nn.Module | Callable[[], nn.Module]
    fleet: Fleet
    ending: Ending
    evaluation: Evaluation
    loss: Loss
    validation: float
    seed: int
    device: str
    execution: Way
    shadow: bool


def simulate(
    algorithm: Algorithm,
    data: Islands,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    **settings: Unpack[Settings],
) -> Run:
    """Run an algorithm on islands of data under a virtual clock.

    checkpoint: a folder; the run saves itself there every `checkpoint_every` events and, if it was cut off before, goes
    on from there to the same bits.

    Settings:
    model: a module, or a function that makes one; default: a small MLP that fits the data.
    fleet: how fast the learners are; default: all fast.
    ending: when it is over; default: after 20 local rounds.
    evaluation: when and where the model is scored; default: at every commit; where layers are private, by the learners'
    mean on their own test parts; else at learners held out for the test, on the global test set, or at all learners'
    own test parts, whichever there is first.
    loss: of outputs and targets; default: cross entropy, or mean squared error for tasks without classes.
    validation: share of its data a learner reserves if the algorithm asks for that; default: .05.
    seed: of everything that is drawn; default: 0.
    device: of the learners' arithmetic; default: "cpu".
    execution: "plain", "workers", "stacked" or "native" instead of the way chosen from the model.
    shadow: also record RADFed's divergences DC and DL and the layers' divergence between local models (D&C), at the
    cost of a centralised run beside this one.
    """
    simulator = prepare(algorithm, data, **settings)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint))
    if saved is not None and saved.exists():
        saved.load(simulator)
    else:
        simulator.begin()
    while simulator.stopped is None:
        simulator.run(None if saved is None else checkpoint_every)
        if saved is not None:
            saved.save(simulator)
    return finished(simulator)


def finished(simulator: Simulator) -> Run:
    """What a stopped simulator leaves behind."""
    controller = simulator.controller
    require(simulator.stopped is not None, "finished: the simulation is still running; call run() first.")
    work, evaluation = simulator.work, controller.evaluation
    assert evaluation is not None, "prepare gives one"
    return Run(
        name=controller.algorithm.name,
        algorithm=repr(controller.algorithm),
        seed=simulator.seed,
        participants=tuple(
            Participant(
                name,
                site.group.name,
                site.role,
                len(mine := site.learner.train if site.role == "train" else site.learner.test),
                () if work.classes is None else tuple(torch.bincount(work.y[mine], minlength=work.classes).tolist()),
            )
            for name, site in simulator.sites.items()
        ),
        layout=controller.layout,
        model=controller.models.read(controller.state.model.name),
        private={name: dict(site.learner.private) for name, site in simulator.sites.items() if site.learner.private},
        records=tuple(simulator.records),
        seconds=simulator.clock.now,
        reason=str(simulator.stopped),
        execution=simulator.execution.name,
        metric=evaluation.metric,
        scored_at=evaluation.at,
        scored_mean=evaluation.mean,
        rounds=controller.state.rounds,
        budget=controller.ending.budget,
        traffic=dict(controller.state.traffic),
        layers={kind: dict(ledger) for kind, ledger in simulator.wire.moved.items()},
    )


def prepare(algorithm: Algorithm, data: Islands, **settings: Unpack[Settings]) -> Simulator:
    """A simulator that is ready to begin; `simulate` documents the settings."""
    _look_at_settings(algorithm, data, settings)
    seed, device = settings.get("seed", 0), settings.get("device", "cpu")
    if algorithm.pooled:
        data = data.pooled()
    work = work_of(data, settings.get("model"), settings.get("loss"), seed, device)
    fleet = settings.get("fleet")
    if fleet is None or algorithm.pooled:
        fleet = Fleet(fast=len(data.learners))
    evaluation = settings.get("evaluation") or evaluation_of(algorithm, data, work.layout)
    _look_at_evaluation(evaluation, algorithm, data, work.layout)
    reserve = settings.get("validation", 0.05)
    between("simulate", "validation", reserve, 0, 1)
    for asks, who in ((algorithm.validates, algorithm.name), (evaluation.validates, repr(evaluation))):
        require(
            reserve > 0 or not asks,
            f"simulate: {who} needs a validation part at every learner; give validation above 0, such as .05.",
        )
    sites = _sites(data, fleet, reserve if algorithm.validates or evaluation.validates else 0.0, seed)
    _look_at_data(algorithm, evaluation, data, sites)
    controller = Controller(
        algorithm,
        work.layout,
        MemoryModels(),
        ending=settings.get("ending") or Ending(rounds=20),
        evaluation=evaluation,
        learners=sum(site.role == "train" for site in sites.values()),
        seed=seed,
        kernels=kernels(),
        classes=data.classes,
        initial=work.layout.vector(work.module),
    )
    simulator = Simulator(
        controller,
        work,
        sites,
        execution(work, algorithm.plan, settings.get("execution")),
        test=data.test,
        stimuli=data.stimuli,
        seed=seed,
    )
    if settings.get("shadow"):
        simulator.observers = (ShadowRun(simulator),)
    return simulator


def _look_at_settings(algorithm: Algorithm, data: Islands, settings: Settings) -> None:
    require(
        isinstance(algorithm, Algorithm),
        f"simulate: algorithm should be an Algorithm such as archipel.fedavg(), got {algorithm!r}.",
    )
    require(
        isinstance(data, Islands),
        f"simulate: data should be Islands, got {data!r}; split a source with .split(learners=10).",
    )
    kinds = {"fleet": Fleet(fast=10), "ending": Ending(rounds=20), "evaluation": Evaluation()}
    for name, value in settings.items():
        one_of("simulate", "setting", name, Settings.__annotations__)
        if name in kinds:
            such = kinds[name]
            require(isinstance(value, type(such)), f"simulate: {name} should be such as {such!r}, got {value!r}.")
    loss = settings.get("loss")
    require(
        loss is None or callable(loss),
        f"simulate: loss should be a function of outputs and targets such as torch.nn.functional.cross_entropy, "
        f"got {loss!r}.",
    )


@threads(1)  # a look at two examples is too small to share
def work_of(
    data: Islands,
    model: nn.Module | Callable[[], nn.Module] | None,
    loss: Loss | None,
    seed: int,
    device: str,
) -> Work:
    """The network and the loss, seen to fit the data."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a kind of device
        raise ValueError(f"simulate: device {device!r} is not to be had; leave it at 'cpu'. It says: {error}") from None
    module = _module(data, model, seed)
    try:
        layout = Layout.of(module, data.x[:2].clone())  # a network may change its input in place
        with torch.no_grad():
            outputs = copy.deepcopy(module).eval()(data.x[:2].clone())
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(
            f"simulate: the model does not take the data's examples, of shape {tuple(data.x.shape[1:])} and "
            f"{data.x.dtype}; give a model that fits them. It says: {error}"
        ) from None
    if loss is None:
        loss = nn.functional.mse_loss if data.classes is None else nn.functional.cross_entropy
    if data.classes is None:
        require(
            outputs.shape == data.y[:2].shape,
            f"simulate: the model puts out {tuple(outputs.shape[1:])} for an example, the targets are "
            f"{tuple(data.y.shape[1:])}; make the two shapes equal.",
        )
    else:
        require(
            tuple(outputs.shape[1:]) == (data.classes,),
            f"simulate: the model puts out {tuple(outputs.shape[1:])} for an example, the data have {data.classes} "
            "classes; give the last layer one output a class.",
        )
    _look_at_loss(loss, outputs, data.y[:2])
    return Work(module.to(device), layout, loss, data.x.to(device), data.y.to(device), data.classes)


def _look_at_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a broadcast before it fails on it
            value = loss(outputs, targets)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"simulate: the loss {loss!r} does not take outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)} and {targets.dtype}; give one that fits the task. It says: {error}"
        ) from None
    require(
        isinstance(value, Tensor) and value.numel() == 1,
        f"simulate: the loss gave {value!r}; it should give one number, the mean over the batch.",
    )


def _module(data: Islands, model: nn.Module | Callable[[], nn.Module] | None, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    require(
        model is None or callable(model),
        f"simulate: model should be a torch.nn.Module or a function that makes one, got {model!r}.",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        if model is not None:
            made = model()
            require(
                isinstance(made, nn.Module),
                f"simulate: model() gave {made!r}; give a torch.nn.Module, or a function that makes one.",
            )
            return made
        require(
            data.classes is not None,
            "simulate: there is no default model for tasks without classes; give model=...",
        )
        return small_mlp(features=data.x[0].numel(), classes=data.classes or 0)


def _sites(data: Islands, fleet: Fleet, validation: float, seed: int) -> dict[str, Site]:
    groups = fleet.assign([island.name for island in data.learners], data.sizes())
    return {
        island.name: Site(learner_of(island, data, validation, seed), groups[island.name], island.role)
        for island in data.learners
    }


def learner_of(island: Island, data: Islands, validation: float, seed: int) -> Learner:
    """The learner of an island, which reserves so much of its data for validation."""
    nothing = torch.empty(0, dtype=torch.int64)
    if island.role != "train":  # a learner held out is tried on all it has
        return Learner(island.name, nothing, nothing, island.train)
    train, reserved = island.train, nothing
    if validation:
        labels = None if data.classes is None else data.y[island.train]
        kept, apart = stratified_validation(labels, validation, (seed, island.name), len(island.train))
        train, reserved = island.train[kept], island.train[apart]
    return Learner(island.name, train, reserved, island.test)


def _look_at_data(algorithm: Algorithm, evaluation: Evaluation, data: Islands, sites: dict[str, Site]) -> None:
    """Say before the run what would fail or surprise in it."""
    require(
        not algorithm.needs.stimuli or len(data.stimuli) >= 3,
        f"simulate: {algorithm.name} compares layers on stimuli, and the data have {len(data.stimuli)}; "
        "split with stimuli=5 (examples of each class, taken from the test set).",
    )
    training = [site.learner for site in sites.values() if site.role == "train"]
    require(bool(training), "simulate: no learner trains, all are held out; give one the role 'train'.")
    if algorithm.validates or evaluation.validates:
        who = algorithm.name if algorithm.validates else repr(evaluation)
        require(
            any(len(learner.validation) for learner in training),
            f"simulate: {who} needs validation parts, and no learner has examples enough to reserve one.",
        )
    for name in _weighting_metrics(algorithm.weighting):
        _look_at_metric(f"{algorithm.name} weighs by", name, data)
    _look_at_numbers(algorithm, len(training))
    batch = algorithm.plan.batch
    small = [learner.name for learner in training if len(learner.train) < batch]
    if len(small) == len(training):
        warnings.warn(
            f"No learner has as many examples as a batch of {batch} (the largest has "
            f"{max(len(learner.train) for learner in training)}): each trains on all it has in one step an epoch. "
            f"Give a smaller batch to change that, such as batch={max(1, batch // 4)}.",
            ArchipelWarning,
            stacklevel=4,
        )


def _look_at_numbers(algorithm: Algorithm, learners: int) -> None:
    protocol = algorithm.protocol
    if isinstance(protocol, Rounds | Relay):
        require(
            protocol.at_least <= learners,
            f"simulate: {protocol!r} needs {protocol.at_least} learners, and {learners} train; ask for fewer.",
        )
        taking_part = participants(protocol.fraction, protocol.at_least, learners)
        require(
            taking_part >= algorithm.needs.at_least,
            f"simulate: DivideAndConquer compares the updates of a commit to find its split, and {protocol!r} of "
            f"{learners} learners brings {taking_part}; give split=..., or a larger fraction.",
        )


def _weighting_metrics(weighting: Weighting) -> list[str]:
    if isinstance(weighting, Product):
        return [name for factor in weighting.factors for name in _weighting_metrics(factor)]
    return [weighting.metric] if isinstance(weighting, ByDistributedValidation) else []


def _look_at_metric(who: str, metric: str, data: Islands) -> None:
    require(
        data.classes is not None or metric == "loss",
        f"simulate: {who} {metric}, which needs classes, and {data.name!r} has none; use the metric 'loss'.",
    )
    require(
        metric != "binary_f1" or data.classes == 2,
        f"simulate: {who} binary_f1, which is for two classes, and {data.name!r} has {data.classes}; use 'macro_f1'.",
    )


def _look_at_evaluation(evaluation: Evaluation, algorithm: Algorithm, data: Islands, layout: Layout) -> None:
    _look_at_metric("it is scored by", evaluation.metric, data)
    require(
        evaluation.at_training_learners or not algorithm.private(layout),
        f"simulate: {algorithm.name} has private layers, which only the learners that train them have, and is scored "
        f"at {evaluation.at!r}; use Evaluation(at='learners', mean='learners').",
    )
    if evaluation.at in HELD_OUT:
        role = HELD_OUT[evaluation.at]
        require(
            any(island.role == role for island in data.learners),
            f"simulate: it is scored at learners held out for {role}, and there are none; take folds of the data, or "
            "score with Evaluation(at='home').",
        )
    require(
        evaluation.at != "home" or len(data.test) > 0,
        "simulate: it is scored at home, and the data have no global test set; split with a test part, "
        "or score with Evaluation(at='learners').",
    )


def evaluation_of(algorithm: Algorithm, data: Islands, layout: Layout) -> Evaluation:
    """Where a run is scored if nobody says."""
    metric = "loss" if data.classes is None else "accuracy"
    if algorithm.private(layout):
        require(
            any(len(island.test) for island in data.learners if island.role == "train"),
            f"simulate: {algorithm.name} has private layers, so it is scored on the learners' own test parts, and no "
            "learner has one; split the data with a test part.",
        )
        return Evaluation(at="learners", mean="learners", metric=metric)
    if any(island.role == "test" for island in data.learners):
        return Evaluation(at="held-out test", metric=metric)
    return Evaluation(at="home" if len(data.test) else "learners", metric=metric)

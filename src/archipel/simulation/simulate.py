"""From an algorithm, data and a fleet to a finished run, in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from archipel.assembly.contexts import context_of
from archipel.assembly.finished_run import run_of
from archipel.assembly.requirements import check_evaluation, check_learners, evaluation_of, reserved_share
from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.controller import Controller
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.data import Islands
from archipel.executors.choice import Way, choose, executor_of
from archipel.executors.interface import Executor
from archipel.kernels import kernels
from archipel.learner.learner import Loss, TrainingContext
from archipel.privacy.noise import new_key
from archipel.runs.run import Run
from archipel.runs.run_data import Participant
from archipel.simulation.attacks import with_flipped_labels
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.cluster.connection import Cluster
from archipel.simulation.cluster.opening import open_cluster
from archipel.simulation.divergences import ShadowRun
from archipel.simulation.example_budgets import ExampleBudgets
from archipel.simulation.fleet import Fleet
from archipel.simulation.personal_models import models_at_end
from archipel.simulation.simulated_sites import SimulatedSites
from archipel.simulation.simulator import Simulator
from archipel.simulation.vectors import MemoryModels

DEFAULT_ENDING = Ending(rounds=20)
TRIED = 4
"""Examples on which a network is checked before the run."""


def simulate(
    algorithm: Algorithm,
    data: Islands,
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    fleet: Fleet | None = None,
    ending: Ending | None = None,
    evaluation: Evaluation | None = None,
    loss: Loss | None = None,
    validation: float = 0.05,
    seed: int = 0,
    device: str = "cpu",
    execution: Way | None = None,
    cluster: str | Cluster | None = None,
    shadow: bool = False,
    norms: bool = False,
    most_share: float = 1.0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
) -> Run:
    """Run an algorithm on islands of data under a virtual clock.

    model: a module, or a function that makes one; default: a small MLP that fits the data.
    fleet: how fast the learners are; default: all fast.
    ending: when the run is over; default: after 20 local rounds.
    evaluation: when and where the model is scored; default: at every commit; where layers are private, by the learners'
    mean on their own test parts; else at learners held out for the test, on the global test set, or at all learners'
    own test parts, whichever there is first.
    loss: of outputs and targets; default: cross entropy, or mean squared error for tasks without classes.
    validation: share of its data that a learner reserves if the algorithm or the evaluation asks for that.
    seed: of all random numbers.
    device: of the learners' arithmetic.
    execution: "plain", "workers", "stacked" or "native"; default: chosen from the model.
    cluster: "local", "auto" or an address of a Ray cluster on which learners are trained, to the same bits;
    `archipel.Cluster` has further settings.
    shadow: also record RADFed's divergences DC and DL and the layers' divergence between local models (D&C), at the
    cost of a centralised run beside this one.
    norms: also record how far each update would move the model; where updates are clipped, that is recorded anyway.
    most_share: the largest share of one learner in a merge's weights or a pooled score; 1: no limit.
    checkpoint: a folder; the run is saved there every `checkpoint_every` events, and a run that was interrupted
    resumes from there to the same bits.
    """
    simulator = prepare(
        algorithm,
        data,
        model=model,
        fleet=fleet,
        ending=ending,
        evaluation=evaluation,
        loss=loss,
        validation=validation,
        seed=seed,
        device=device,
        execution=execution,
        cluster=cluster,
        shadow=shadow,
        norms=norms,
        most_share=most_share,
    )
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint))
    if saved is not None and saved.exists():
        saved.load(simulator)
    else:
        simulator.begin()
    try:
        while simulator.stopped is None:
            simulator.run(None if saved is None else checkpoint_every)
            if saved is not None:
                saved.save(simulator)
    finally:
        simulator.close()
    return finished(simulator)


def prepare(
    algorithm: Algorithm,
    data: Islands,
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    fleet: Fleet | None = None,
    ending: Ending | None = None,
    evaluation: Evaluation | None = None,
    loss: Loss | None = None,
    validation: float = 0.05,
    seed: int = 0,
    device: str = "cpu",
    execution: Way | None = None,
    cluster: str | Cluster | None = None,
    shadow: bool = False,
    norms: bool = False,
    most_share: float = 1.0,
) -> Simulator:
    """Return a simulator that is ready to begin; `simulate` documents the settings."""
    _check_settings(algorithm, data, fleet=fleet, ending=ending, evaluation=evaluation, loss=loss)
    data = data.pooled() if algorithm.pooled else data
    fleet = Fleet(fast=len(data.learners)) if fleet is None or algorithm.pooled else fleet
    algorithm.selection.check_groups([group.name for group in fleet.groups])
    assigned = fleet.assign(data.sizes())
    data = with_flipped_labels(data, fleet.attacks(data.rows.names, assigned))
    context = context_of(data, model, loss, seed, device, algorithm)
    algorithm.check_network(context.module, context.layout, context.x[:TRIED])
    evaluation = evaluation or evaluation_of(algorithm, data, context.layout)
    check_evaluation(evaluation, algorithm, data, context.layout)
    sites = SimulatedSites(data, fleet, assigned, reserved_share(algorithm, evaluation, validation), seed)
    trains = data.rows.has("train")
    check_learners(algorithm, evaluation, data, sites.train_sizes[trains], sites.validation_sizes[trains])
    learners = int(trains.sum())
    budgets = ExampleBudgets.of_run(algorithm, context.layout, ending or DEFAULT_ENDING, sites.train_sizes[trains])
    controller = _controller(algorithm, data, context, ending, evaluation, learners, seed, most_share, norms)
    simulator = Simulator(
        controller,
        context,
        sites,
        _executor(context, algorithm, execution, cluster),
        test=data.test,
        stimuli=data.stimuli,
        seed=seed,
        budgets=budgets,
    )
    simulator.observers = (ShadowRun(simulator),) if shadow else ()
    return simulator


def _controller(
    algorithm: Algorithm,
    data: Islands,
    context: TrainingContext,
    ending: Ending | None,
    evaluation: Evaluation,
    learners: int,
    seed: int,
    most_share: float,
    norms: bool,
) -> Controller:
    return Controller(
        algorithm,
        context.layout,
        MemoryModels(),
        ending=ending or DEFAULT_ENDING,
        evaluation=evaluation,
        learners=learners,
        seed=seed,
        kernels=kernels(),
        classes=data.classes,
        per_token=data.per_token,
        most_share=most_share,
        secret=_secret(algorithm),
        norms=norms,
        initial=context.layout.vector(context.module),
    )


def _secret(algorithm: Algorithm) -> str:
    """Return a new key for the controller, if the algorithm needs one."""
    return new_key() if algorithm.privacy is not None and algorithm.privacy.keyed else ""


def _executor(
    context: TrainingContext, algorithm: Algorithm, execution: Way | None, cluster: str | Cluster | None
) -> Executor:
    plan, *_ = algorithm.plans(context.layout)
    here = executor_of(context, plan, execution)
    if cluster is None:
        return here
    way = execution or choose(context, plan)[0]
    cluster = Cluster(cluster) if isinstance(cluster, str) else cluster
    return open_cluster(cluster, here, way, context, plan)


def finished(simulator: Simulator) -> Run:
    """Return the run of a simulator that has stopped."""
    require(simulator.stopped is not None, "finished: the simulation is still running; call run() first.")
    sites, controller = simulator.sites, simulator.controller
    return run_of(
        controller,
        participants=participants(sites),
        records=simulator.records.finished(),
        seconds=simulator.clock.now,
        reason=str(simulator.stopped),
        execution=simulator.executor.name,
        execution_reason=simulator.executor.reason,
        layers=simulator.wire.moved,
        private={name: dict(private) for name, private in sites.private.items() if private},
        personal=models_at_end(simulator.context, sites, controller.models.read(controller.state.model.name)),
    )


def participants(sites: SimulatedSites) -> Iterator[Participant]:
    """Yield the learners of a simulation, without their data."""
    for name, site in sites.items():
        own = site.learner.train if sites.role(name) == "train" else site.learner.test
        classes, y = sites.data.classes, sites.data.y
        labels = () if classes is None else torch.bincount(y[own], minlength=classes).tolist()
        yield Participant(name, site.group.name, sites.role(name), len(own), tuple(labels))


def _check_settings(algorithm: Algorithm, data: Islands, *, loss: Loss | None, **parts: object) -> None:
    require(
        isinstance(algorithm, Algorithm),
        f"simulate: algorithm must be an Algorithm, for example archipel.fedavg(), got {algorithm!r}.",
    )
    require(
        isinstance(data, Islands),
        f"simulate: data must be Islands, got {data!r}; split a source with .split(learners=10).",
    )
    examples: Mapping[str, object]
    examples = {"fleet": Fleet(fast=10), "ending": Ending(rounds=20), "evaluation": Evaluation()}
    for name, value in parts.items():
        example = examples[name]
        require(
            value is None or isinstance(value, type(example)),
            f"simulate: {name} must be, for example, {example!r}, got {value!r}.",
        )
    require(
        loss is None or callable(loss),
        "simulate: loss must be a function of outputs and targets, for example torch.nn.functional.cross_entropy, got "
        f"{loss!r}.",
    )

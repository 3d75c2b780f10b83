"""No method of Archipel asks anything that a learner with the same study refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.algorithm import Algorithm
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.types import HOME, Evaluate, Event, Score, Train, Trained
from archipel.federation.learner.policy import Policy, SiteRules
from archipel.federation.wire import messages
from archipel.simulation.simulate import prepare
from archipel.study.schema import METHODS

pytestmark = pytest.mark.slow

LEARNERS = 4
ENDING = Ending(rounds=12)
MIXTURES: dict[str, Algorithm] = {
    "every planner but cycles": ap.Algorithm(
        "mixed",
        weighting=ap.Product(ap.ByDistributedValidation("auc"), ap.ByExamples()),
        planners=(
            ap.Proximal(0.1),
            ap.Decay(0.9),
            ap.PrivateLayers("head"),
            ap.PeriodicLayers(3, 1, "deep"),
            ap.DivideAndConquer(prepass=2, epochs=2, tuning_epochs=1),
        ),
    ),
    "cycles by group": ap.Algorithm(
        "cycles",
        ap.Stream(),
        merge=ap.Community(),
        planners=(ap.ValidationCycle({"fast": 0, "slow": 1}, {"fast": 0, "slow": 2}, at_most=3),),
        recall=ap.MedianStaleness(2),
    ),
    "importance measured first": ap.radfed_i(0.5, 2, first="measured"),
    "a share of the learners": replace(ap.sync_dvw(), protocol=ap.Rounds(0.5)),
}


def made(name: str) -> Algorithm:
    algorithm = MIXTURES[name] if name in MIXTURES else METHODS[name]()
    return replace(algorithm, plan=replace(algorithm.plan, batch=16))


def network() -> torch.nn.Module:
    layers = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers)


def normalised() -> torch.nn.Module:
    return torch.nn.Sequential(network(), torch.nn.BatchNorm1d(2))


def islands(stimuli: bool) -> Any:
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
    return ap.data.from_arrays(x, (x[:, 0] > 0).long()).split(
        LEARNERS, test="0.2" if stimuli else "own(0.2)", stimuli=5 if stimuli else 0
    )


class Learners:
    """What the learners of a run would say to each of its commands."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.trained: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.at: dict[int, str] = {}
        self.plans = 0

    def hear(self, command: Any) -> None:
        if isinstance(command, Train):
            self.policy.check_plan(messages.decode_plan(messages.encode_plan(command.plan, command.key)))
            self.at[command.task] = command.learner
            self.plans += 1
        elif isinstance(command, Evaluate) and isinstance(command.probe, Score):
            for site in set(command.sites) - {HOME}:
                self.policy.check_probe(command.probe.part, command.probe.bins)
                self.policy.check_budget(self.answered[site], self.trained[site])
                self.answered[site] += 1


@pytest.mark.parametrize("at", ["learners", "validation parts"])
@pytest.mark.parametrize("name", [*METHODS, *MIXTURES])
def test_no_honest_controller_is_refused(name: str, at: Any) -> None:
    algorithm = made(name)
    stimuli = algorithm.needs.stimuli
    at = "home" if stimuli else at
    data = islands(stimuli)
    if algorithm.pooled:
        pytest.skip("a yardstick in simulation, which a federation refuses")
    evaluation = Evaluation(at=at, metric="auc" if at == "learners" else "accuracy")
    fleet = ap.Fleet(fast=2, slow=2)
    simulator = prepare(
        algorithm,
        data,
        model=normalised if name == "fedbn" else network,
        ending=ENDING,
        evaluation=evaluation,
        fleet=fleet,
        validation=0.2,
        execution="plain",
    )
    learners = Learners(Policy.of(algorithm, simulator.controller.layout, evaluation, ENDING, LEARNERS, SiteRules()))
    handle = simulator.controller.handle

    def heard(event: Event) -> Sequence[object]:
        if isinstance(event, Trained):
            learners.trained[learners.at[event.task]] += 1
        commands = handle(event)
        for command in commands:
            learners.hear(command)
        return commands

    simulator.controller.handle = heard  # type: ignore[method-assign,assignment]
    simulator.begin()
    simulator.run()
    assert learners.plans >= 8

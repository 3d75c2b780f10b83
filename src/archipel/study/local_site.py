"""Build one learner's side of a real federation from a study."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from archipel.assembly.contexts import context_of, learner_of
from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.parts.ending import Ending
from archipel.core.parts.secure_sum import SecureSum
from archipel.core.parts.weighting import Equally
from archipel.core.types import Plan
from archipel.data import Island, Islands
from archipel.data.standardise import Moments, moments, standardised_by
from archipel.executors.arithmetic import is_small
from archipel.executors.choice import executor_alone
from archipel.federation.learner.masked_updates import SumSettings
from archipel.federation.learner.policy import Policy, SiteRules
from archipel.federation.learner.site_data import LocalSite
from archipel.kernels import kernels
from archipel.learner.example_budget import BudgetTerms, ExampleAccount, ExampleBudget, check_budget
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import score
from archipel.learner.training import advance
from archipel.study.build import Settings, build_algorithm, build_data, build_settings, build_source
from archipel.study.federate import one_run
from archipel.study.schema import Study

TRIED = 4
"""Examples on which a network is checked."""
UNLISTED = 100
"""Most learners of a federation, where a learner's copy of the study lists none."""


NO_RULES = SiteRules()


def take_part(
    study: Study, name: str, table: Path | None = None, rules: SiteRules = NO_RULES
) -> tuple[LocalSite, Study]:
    """Return one learner's side of a study, with a table of its own or with its part of the study's data.

    rules: the rules of its site file.
    """
    study = one_run(study)
    (seed,) = study.seeds
    algorithm = build_algorithm(study)
    data, part = _own_table(study, name, table, seed) if table is not None else _own_part(study, name)
    everybodys = study.data.standardise == "global"
    if not everybodys:
        data = data.standardised(study.data.standardise)
        part = data.learners[data.rows.names.index(name)]
    settings: Settings = build_settings(study, data)
    evaluation = settings.get("evaluation")
    reserve = algorithm.validates or (evaluation is not None and evaluation.validates)
    learner = learner_of(part, data, study.validation if reserve else 0.0, seed)
    model, loss = settings.get("model"), settings.get("loss")
    work = context_of(data, model, loss, seed, study.simulation.device, algorithm)
    listed = len(study.federation.learners) or (len(data.learners) if table is None else UNLISTED)
    ending = settings.get("ending") or Ending(rounds=20)
    policy = Policy.of(algorithm, work.layout, evaluation, ending, listed, rules)
    policy.check_site(len(learner.train) or len(learner.test))
    budget = BudgetTerms.of(algorithm, work.layout, ending, rules.max_epsilon)
    execution, sums = study.simulation.execution, _sums(algorithm, ending, rules.max_epsilon)
    _check_budget(algorithm, work, learner, budget, sums, rules)
    if not everybodys:
        return LocalSite(work, learner, policy, seed, execution=execution, sums=sums, budget=budget), study
    x = data.x

    def standardise(by: Moments) -> TrainingContext:
        return replace(work, x=standardised_by(x, by).to(work.x.device))

    return LocalSite(work, learner, policy, seed, moments(x, part.train), standardise, execution, sums), study


def _sums(algorithm: Algorithm, ending: Ending, most: float | None) -> SumSettings | None:
    """Return what the study says of secure sums, if it has them; most: epsilon that the site allows at most."""
    settings = algorithm.privacy
    if not isinstance(settings, SecureSum):
        return None
    noise = settings.noise_of(ending)
    given = [one for one in (settings.epsilon, ending.epsilon, most if noise else None) if one is not None]
    budget = min(given, default=math.inf)
    return SumSettings(settings, isinstance(algorithm.weighting, Equally), noise, budget)


def _check_budget(
    algorithm: Algorithm,
    work: TrainingContext,
    learner: Learner,
    budget: BudgetTerms | None,
    sums: SumSettings | None,
    rules: SiteRules,
) -> None:
    """Check that the study has the noise that the site file demands, and that the budget pays for a task."""
    noised = sums if sums is not None and sums.noise else None
    require(
        rules.max_epsilon is None or budget is not None or noised is not None,
        f"This site allows its examples epsilon {rules.max_epsilon}, and learners of {algorithm.name} add no noise. "
        'Ask for a study with privacy = "LocalNoise(...)" or "SecureSum(noise=..., ...)", or leave max_epsilon out of '
        "the site file.",
    )
    if noised is not None:
        require(
            noised.refusal(1) is None,
            f"A single sum with noise {noised.noise:g} costs epsilon {noised.cost(1):.3g}, and this learner's budget "
            f"is {noised.budget:g}. Ask for more noise, or raise max_epsilon in the site file.",
        )
    if budget is not None and len(learner.train):
        algorithm.check_network(work.module, work.layout, work.x[learner.train[:TRIED]])
        check_budget(ExampleBudget(budget, len(learner.train), ExampleAccount()), "this learner")


def _own_table(study: Study, name: str, table: Path, seed: int) -> tuple[Islands, Island]:
    _same_columns_everywhere(study)
    source = build_source(study, {"path": table.resolve(), "site": None})  # the table has one site only
    dealing: Any = study.data.split or study.data.natural
    held: Any = "none" if dealing is None else dealing.given().get("test", 0.2)
    if not isinstance(held, str):  # in a simulation that share of all data is at home
        held = "none" if held is None else f"own({held})"
    data = source.split(learners=1, test=held, stimuli=0, seed=seed)
    (whole,) = data.learners
    data = replace(data, learners=(replace(whole, name=name),))
    if study.data.augment is not None:
        data = data.augmented(**study.data.augment.given())
    return data, data.learners[0]


def _same_columns_everywhere(study: Study) -> None:
    """Check that the study lists columns and classes, since one table does not show what the others hold."""
    call = study.data.source
    require(
        call.name in ("from_csv", "from_parquet"),
        f"--data: the study's source is {call.name}, which is not a table. Leave --data out, or give the study "
        'source = {name = "from_csv", ...}.',
    )
    given = call.given
    missing = ["features"] if given.get("features") is None else []
    if not isinstance(given.get("categories", {}), Mapping):
        missing.append('the values of every category, categories = {sex = ["f", "m"]}')
    if given.get("classes") is None and not given.get("regression", False):
        missing.append("classes")
    require(
        not missing,
        f"data.source: one table does not tell what the others' hold. List in the study: {'; '.join(missing)}.",
    )


def _own_part(study: Study, name: str) -> tuple[Islands, Island]:
    data = build_data(study).split
    names = data.rows.names
    require(
        name in names,
        f"The study's data are split over {', '.join(names)}, and this learner is {name}. Give it its own table with "
        "--data, or a certificate with one of these names.",
    )
    return data, data.learners[names.index(name)]


def try_out(study: Study, island: LocalSite, threads: int = 1) -> list[str]:
    """Describe a learner's data and how it trains, and train one step; nothing leaves this process."""
    work, learner = island.work, island.learner
    told = [
        f"data: {len(learner.train)} examples to train on, {len(learner.validation)} to validate, "
        f"{len(learner.test)} to test, each of shape {tuple(work.x.shape[1:])}; at least "
        f"{island.policy.rules.min_rows} are needed"
    ]
    if island.refuses:
        told.append(f"site: refuses {', '.join(sorted(island.refuses))}")
    if work.classes is not None:
        counts = torch.bincount(work.y[learner.train], minlength=work.classes).tolist()
        told.append(f"labels: {counts} examples of the {work.classes} classes")
    if island.standardise is not None and island.moments is not None:
        work = island.standardise(island.moments)  # as if all learners had data like these
        still = int((island.moments.deviation == 0).sum())
        told.append(f"features: {still} of {island.moments.sum.numel()} are constant here")
    told.append(_executor(island, work, threads))
    plan = replace(build_algorithm(study).plan, epochs=1, steps=1)
    noise = None
    if island.budget is not None:
        budget = ExampleBudget(island.budget, len(learner.train), ExampleAccount())
        noise = budget.of_task(plan, "dry run")
        told.append(f"privacy: noise {budget.noise:.3g} x clip in every step; {_paid(budget, island.budget.plans[0])}")
    if island.sums is not None and island.sums.noise:
        told.append(f"privacy: noise {island.sums.noise:.3g} x clip in every sum; {_sums_paid(island.sums)}")
    job = Job.begin(learner, work.layout, work.layout.vector(work.module), plan, noise=noise)
    before = score(work, job.vector, learner.train).loss
    advance(work, job)
    require(
        kernels().finite(job.vector),
        f"One step of training made numbers that are not finite: look at the data, or lower the rate ({plan.rate}).",
    )
    after, count = score(work, job.vector, learner.train).loss, max(1, len(learner.train))
    told.append(f"training: one step took the loss from {before / count:.4f} to {after / count:.4f}")
    told.append("nothing was sent; leave --dry-run out to take part")
    return told


def _executor(island: LocalSite, work: TrainingContext, threads: int) -> str:
    """Return a line on how the learner trains, and what would make a large network faster."""
    executor = executor_alone(work, island.policy.plans[0], island.execution, threads)
    executor.close()
    told = f"executor: {executor.name}{f', {executor.reason}' if executor.reason else ''}"
    if is_small(work):
        return told
    return f"{told}; a large network, on {threads} of this machine's {os.cpu_count()} cores (--threads)"


def _paid(budget: ExampleBudget, plan: Plan) -> str:
    """Say how far a budget goes."""
    epsilon = budget.terms.budget
    if math.isinf(epsilon):
        return "no budget limits it"
    return f"a budget of epsilon {epsilon:g} pays for {budget.tasks_paid(plan)} tasks"


def _sums_paid(sums: SumSettings) -> str:
    """Say how far a budget goes."""
    if math.isinf(sums.budget):
        return "no budget limits it"
    paid = 1
    while sums.refusal(2 * paid) is None:
        paid *= 2
    first, last = paid, 2 * paid  # the first is paid for, and the last is not
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if sums.refusal(middle) is None else (first, middle)
    return f"a budget of epsilon {sums.budget:g} pays for {first} sums"


def save_model(island: LocalSite, model: Tensor, path: Path) -> None:
    """Save the model that this learner uses at the end, by the names of the network's tensors."""
    tensors = island.work.layout.tensors(model)
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)

"""What `LocalNoise` promises: bounded influence of an example, secret noise, a true account, and refusals."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from archipel import ArchipelWarning, algorithms, simulate
from archipel.algorithms import (
    async_fedavg,
    ditto,
    fedavg,
    fedlc,
    fedntd,
    hdafl,
    moon,
    oort,
    per_fedavg,
    radfed,
    radfed_i,
    scaffold,
    sync_dvw,
)
from archipel.core.algorithm import Algorithm
from archipel.core.layout import Layout
from archipel.core.parts import AllData, Ending, FineTuned, LocalNoise, Rounds, Stream
from archipel.core.records import LearnerSpent, PrivacySpent
from archipel.core.types import Plan
from archipel.data import digits
from archipel.learner.example_budget import BudgetTerms, ExampleAccount, ExampleBudget, StepNoise
from archipel.learner.example_gradients import example_gradients, without_dropout
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.noised_gradient import NoisedGradient
from archipel.privacy.accounting import NoisedSteps, epsilon_of_steps
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.example_budgets import ExampleBudgets
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.privacy.documented import methods_told

KEY = "a5" * 32
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "local-noise.md"
NOISE = LocalNoise(noise=1.0)
NOTHING = torch.empty(0, dtype=torch.int64)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def context(module: nn.Module, x: torch.Tensor, local_noise: LocalNoise = NOISE) -> TrainingContext:
    y = torch.arange(len(x)) % 3
    loss = nn.functional.cross_entropy
    return TrainingContext(module, Layout.of(module), loss, x, y, 3, local_noise=local_noise)


def gradient(work: TrainingContext, *, noise: float = 1.0, batch: int = 4) -> NoisedGradient:
    plan = Plan(batch=batch)
    job = Job.begin(
        Learner("a", torch.arange(len(work.x)), NOTHING, NOTHING),
        work.layout,
        work.layout.vector(work.module),
        plan,
        noise=StepNoise(KEY, noise, batch / len(work.x)),
    )
    return NoisedGradient(work, job, plan, list(work.module.parameters()))


def flat(module: nn.Module) -> torch.Tensor:
    """Return the gradients of a network, one behind the other."""
    return torch.cat([torch.empty(0) if p.grad is None else p.grad.flatten() for p in module.parameters()])


def with_secret(simulator: Simulator) -> ExampleBudgets:
    assert simulator.flights.budgets is not None
    return simulator.flights.budgets


# -------------------------------------------------------------------------------------------------------- sensitivity


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1e-6, 1.0, 1e4, 1e18, 1e38, math.inf, math.nan]),
    clip=st.sampled_from([1e-3, 1.0, 100.0]),
)
def test_no_example_moves_the_sum_by_more_than_the_clip(seed: int, size: float, clip: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 6, generator=draws)
    x[0] *= size
    work = context(perceptron(), x, LocalNoise(noise=1.0, clip=clip))
    steps = gradient(work)
    one, other = steps.clipped_sum(work.x, work.y), steps.clipped_sum(work.x[1:], work.y[1:])
    assert float((one - other).norm()) <= clip


def test_gradients_within_the_clip_stay_as_they_are() -> None:
    work = context(perceptron(), torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))
    work.loss(work.module(work.x), work.y).backward()
    mean = flat(work.module).double()
    whole = gradient(context(work.module, work.x, LocalNoise(noise=1.0, clip=1e6))).clipped_sum(work.x, work.y)
    torch.testing.assert_close(whole / 5, mean, atol=1e-6, rtol=1e-5)


def test_the_noise_is_normal_of_the_stated_size_and_new_in_every_step() -> None:
    """Pearson's chi-square over 50 equally likely bins; the key is fixed, so this cannot fail by chance."""
    work = context(perceptron(), torch.zeros(8, 6), LocalNoise(noise=1.0, clip=0.5))
    steps = gradient(work, noise=3.0)
    rows = []
    for step in range(300):
        steps.write(work.x[:0], work.y[:0], step)  # a batch that nobody was drawn for
        rows.append(flat(work.module).double().numpy())
    numbers = np.concatenate(rows) * 4 / (3.0 * 0.5)
    counts, _ = np.histogram(stats.norm.cdf(numbers), bins=50, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 0.01
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.5


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "perceptron": (perceptron, (6,), "mapped"),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(16, 3)
        ),
        (1, 4, 4),
        "mapped",
    ),
    "reads a number": (lambda: Reads(), (6,), "hooked"),
    "recurrent": (lambda: Recurrent(), (4, 2), "single"),
}


class Reads(nn.Module):
    """Branches on a number of its input, which cannot be mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(x if float(x.detach().abs().max()) < 1e9 else x * 0)
        return outputs


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.linear = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(self.gru(x)[0][:, -1])
        return outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_single_examples_are_the_same_in_every_way(name: str) -> None:
    make, shape, way = NETWORKS[name]
    work = context(make(), torch.randn(4, *shape, generator=torch.Generator().manual_seed(2)))
    parameters = list(work.module.parameters())
    job = Job.begin(Learner("a", torch.arange(4), NOTHING, NOTHING), work.layout, torch.zeros(1), Plan())
    gradients = example_gradients(work, job, parameters)
    assert list(work.gradient_ways.values()) == [way]
    without_dropout(work.module)
    found = torch.cat([g.flatten(1) for g in gradients(work.x, work.y)], 1)
    for i in range(4):
        work.module.zero_grad()
        work.loss(work.module(work.x[i : i + 1]), work.y[i : i + 1]).backward()
        torch.testing.assert_close(found[i], flat(work.module), atol=1e-5, rtol=1e-3)


# ------------------------------------------------------------------------------------------------------------ account


@pytest.mark.slow
def test_accounts_are_those_of_dp_accounting_and_opacus() -> None:
    from opacus.accountants import PRVAccountant  # imported late: it takes seconds

    for noise, chance, times, delta in [(1.0, 0.1, 100, 1e-5), (0.7, 0.02, 3000, 1e-6), (2.0, 0.5, 40, 1e-5)]:
        mine = epsilon_of_steps((NoisedSteps(noise, chance, times),), delta)
        event = dp_accounting.PoissonSampledDpEvent(chance, dp_accounting.GaussianDpEvent(noise))
        theirs = PLDAccountant().compose(event, times).get_epsilon(delta)
        assert theirs <= mine <= theirs * 1.005
        opacus = PRVAccountant()
        opacus.history = [(noise, chance, times)]
        assert mine == pytest.approx(opacus.get_epsilon(delta=delta), abs=0.05)


def test_steps_of_different_noise_add_up() -> None:
    mixed = epsilon_of_steps((NoisedSteps(1.0, 1.0, 2), NoisedSteps(2.0, 1.0, 4)), 1e-5)
    assert mixed == pytest.approx(epsilon_of_steps((NoisedSteps(1.0, 1.0, 3),), 1e-5)), "2 / 1 + 4 / 4 = 3 / 1"
    sampled = epsilon_of_steps((NoisedSteps(2.0, 0.1, 50), NoisedSteps(2.0, 0.2, 50)), 1e-5)
    assert (
        epsilon_of_steps((NoisedSteps(2.0, 0.1, 100),), 1e-5)
        < sampled
        < epsilon_of_steps((NoisedSteps(2.0, 0.2, 100),), 1e-5)
    )


def budget(mechanism: LocalNoise, examples: int, ending: Ending, site: float | None = None, **local: Any) -> Any:
    method = replace(fedavg(**local), privacy=mechanism)
    terms = BudgetTerms.of(method, Layout.of(perceptron()), ending, site)
    assert terms is not None
    return ExampleBudget(terms, examples, ExampleAccount(KEY))


@pytest.mark.slow
def test_each_of_noise_epsilon_and_tasks_follows_from_the_others() -> None:
    plan = Plan(batch=10)
    computed = budget(LocalNoise(epsilon=2.0), 100, Ending(rounds=20), batch=10)
    assert computed.chance(plan) == pytest.approx(0.1, rel=0.05)
    assert computed.tasks_paid(plan) == 20
    for _ in range(20):
        assert computed.refusal(plan) is None
        told = computed.charge(plan, 1)
    assert 1.97 < told.epsilon <= 2.0
    assert told.rests
    assert "does not pay for another task; epsilon" in computed.refusal(plan)
    given = budget(LocalNoise(noise=computed.noise), 100, Ending(epsilon=2.0), batch=10)
    assert given.tasks_paid(plan) == 20
    shuffled = budget(LocalNoise(noise=4.0, batches="shuffled"), 100, Ending(rounds=20), batch=10, epochs=2)
    told = shuffled.charge(replace(plan, epochs=2), 2)
    assert told.epsilon == pytest.approx(epsilon_of_steps((NoisedSteps(4.0, 1.0, 2),), 1e-5))
    narrowed = budget(LocalNoise(epsilon=2.0), 100, Ending(rounds=20), site=0.5, batch=10)
    assert narrowed.noise > 2 * computed.noise, "a site's smaller budget lasts as long, with more noise"


# --------------------------------------------------------------------------------------------------------------- runs


FEDAVG = fedavg(batch=16)


def noised(method: Algorithm = FEDAVG, mechanism: LocalNoise = NOISE) -> Algorithm:
    return replace(method, privacy=mechanism)


@pytest.fixture(scope="module")
def islands() -> Any:
    return digits().split(learners=3, seed=3)


def run_with(secret: str, islands: Any, **more: Any) -> Any:
    simulator = prepare(noised(), islands, ending=Ending(rounds=2), **more)
    with_secret(simulator).secret = secret
    simulator.begin()
    simulator.run()
    simulator.close()
    return finished(simulator)


@pytest.mark.slow
def test_executors_agree_to_the_bit_or_hand_over_by_name(islands: Any) -> None:
    plain, workers = (run_with(KEY, islands, execution=way) for way in ("plain", "workers"))
    assert plain.fingerprint() == workers.fingerprint()
    assert run_with("5a" * 32, islands, execution="plain").fingerprint() != plain.fingerprint()
    for way in ("stacked", "native"):
        with pytest.raises(
            ValueError, match=r"LocalNoise clips the gradient of every example. Use execution='workers'"
        ):
            prepare(noised(), islands, execution=way)


@pytest.mark.slow
def test_who_knows_study_and_seed_cannot_subtract_the_noise(islands: Any) -> None:
    """The same study and seed again, which is all that others can compute, gives other batches and other noise."""
    runs = [simulate(noised(), islands, ending=Ending(rounds=2), seed=7) for _ in range(2)]
    alone = simulate(fedavg(batch=16), islands, ending=Ending(rounds=2), seed=7).model.double()
    noises = [(run.model.double() - alone).numpy() for run in runs]
    assert np.std(noises[0] - noises[1]) > 0.5 * np.std(noises[0])
    assert runs[0].fingerprint() != runs[1].fingerprint()


@pytest.mark.slow
def test_a_checkpoint_repeats_the_noise_and_nobody_else_may_read_it(islands: Any, tmp_path: Path) -> None:
    whole = prepare(noised(), islands, ending=Ending(rounds=4))
    secret = with_secret(whole).secret
    whole.begin()
    whole.run(events=8)
    Checkpoint(tmp_path).save(whole)
    assert stat.S_IMODE((tmp_path / "checkpoint.safetensors").stat().st_mode) == 0o600
    resumed = prepare(noised(), islands, ending=Ending(rounds=4))
    Checkpoint(tmp_path).load(resumed)
    for simulator in (whole, resumed):
        simulator.run()
        simulator.close()
    assert finished(whole).fingerprint() == finished(resumed).fingerprint()
    assert finished(whole).of(LearnerSpent) == finished(resumed).of(LearnerSpent)
    finished(whole).save(tmp_path / "run")
    held = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert not held


@pytest.mark.slow
def test_learners_rest_before_they_exceed_their_budgets() -> None:
    """Two learners of different sizes: the smaller one, whose examples are drawn more often, rests first."""
    islands = digits().split(learners=2, sizes=[300, 900], seed=1)
    method = noised(fedavg(batch=64), LocalNoise(noise=0.9, delta=1e-3))
    run = simulate(method, islands, ending=Ending(epsilon=3.5))
    told = [record for _, record in run.of(LearnerSpent)]
    by_learner = {name: [one for one in told if one.learner == name] for name in {one.learner for one in told}}
    assert all(one.epsilon <= 3.5 for one in told)
    assert all([one.rests for one in mine] == [False] * (len(mine) - 1) + [True] for mine in by_learner.values())
    assert len({len(mine) for mine in by_learner.values()}) == 2
    assert "no learner has privacy budget left" in run.reason
    assert not run.refusals
    assert run.of(PrivacySpent)[-1][1].epsilon == max(one.epsilon for one in told)
    assert "for any one example of a learner" in run.summary()


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10))


COMPOSED: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "private layers": (hdafl(batch=64), {}),
    "corrections, from what was noised": (scaffold(1.0, 1.0, batch=64), {}),
    "models that travel": (radfed(fraction=0.4, hops=2, batch=64), {}),
    "a stream": (async_fedavg(batch=64), {}),
    "evaluated by others": (sync_dvw(batch=64), {}),
    "a model that learners keep": (ditto(batch=64), {}),
    "an objective": (fedntd(fraction=1.0, epochs=1, batch=64), {}),
    "dropout and Adam": (fedavg(batch=64, optimiser="Adam", rate=0.01), {"model": with_dropout}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSED)
def test_local_noise_composes_with(name: str, islands: Any) -> None:
    method, settings = COMPOSED[name]
    run = simulate(noised(method), islands, ending=Ending(rounds=2), **settings)
    assert run.commits
    assert not run.refusals
    assert run.of(LearnerSpent)


# ----------------------------------------------------------------------------------------------------------- refusals


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.Linear(24, 10))


def counting() -> nn.Module:
    class Counts(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.seen += x.flatten(1).sum(0).detach()
            return x.flatten(1)

    return nn.Sequential(Counts(), nn.Linear(64, 10))


def start(mechanism: LocalNoise, ending: Ending, method: Algorithm = FEDAVG, **more: Any) -> object:
    return prepare(noised(method, mechanism), digits().split(learners=3, seed=3), ending=ending, **more)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "nothing given": (lambda: LocalNoise(), "give epsilon=..., a budget"),
    "epsilon 0": (lambda: LocalNoise(epsilon=0.0), "epsilon should be more than 0, got 0.0"),
    "negative epsilon": (lambda: LocalNoise(epsilon=-1.0), "epsilon should be more than 0, got -1.0"),
    "no noise": (lambda: LocalNoise(noise=0.0), "noise should be at least 0.05 (less protects nothing), got 0.0"),
    "delta": (lambda: LocalNoise(noise=1.0, delta=0.0), "delta should be between 0 and 1, such as 1e-5, got 0.0"),
    "clip": (lambda: LocalNoise(noise=1.0, clip=-1.0), "clip should be more than 0, got -1.0"),
    "batches": (lambda: LocalNoise(noise=1.0, batches="drawn"), "poisson"),  # type: ignore[arg-type]
    "tasks": (lambda: LocalNoise(epsilon=1.0, tasks=0), "tasks should be at least 1, got 0"),
    "broken tasks": (lambda: LocalNoise(epsilon=1.0, tasks=1.5), "should be a whole number, got 1.5"),  # type: ignore[arg-type]
    "gradient norms": (lambda: noised(radfed_i()), "ByImportance"),
    "losses": (lambda: noised(oort()), "has learners report their training loss, computed from the same examples"),
    "class counts": (lambda: noised(fedlc()), "how many there are of each class. Leave it out"),
    "another descent": (lambda: noised(per_fedavg()), "steps along something else"),
    "features": (lambda: noised(moon()), "compares the inputs of a layer"),
    "fine-tuning": (
        lambda: replace(FEDAVG, personal=FineTuned(), privacy=NOISE),
        "trains on the learner's examples without noise",
    ),
    "all data": (lambda: replace(noised(), planners=(AllData(5),)), "tasks train on the validation part too"),
    "batch norm": (
        lambda: start(NOISE, Ending(rounds=1), model=normed),
        "BatchNorm1d '2' mixes the examples of a batch. Use group normalisation: torch.nn.GroupNorm(8, 24)",
    ),
    "running statistics": (
        lambda: start(NOISE, Ending(rounds=1), model=counting),
        "training updates 0.seen from the examples without noise",
    ),
    "a stream for ever": (
        lambda: start(LocalNoise(epsilon=1.0), Ending(commits=9), async_fedavg()),
        "it is unknown how many tasks a learner will get. Give tasks=..., or noise=... beside epsilon",
    ),
    "epsilon for ever": (
        lambda: start(LocalNoise(epsilon=1.0), Ending(seconds=9)),
        "give Ending(rounds=...), tasks=... or noise=...",
    ),
    "too many rounds": (
        lambda: start(LocalNoise(epsilon=2.0, noise=1.0), Ending(rounds=1000)),
        "pays for 2 tasks of a learner with 480 examples",
    ),
    "not even one": (
        lambda: start(LocalNoise(noise=0.5), Ending(epsilon=0.1)),
        "Raise the noise or the budget, make tasks shorter, or leave noise out to have it computed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_in_one_sentence(case: str) -> None:
    attempt, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attempt()


def test_the_table_of_the_docs_says_what_is_refused() -> None:
    told = methods_told(PAGE, NOISE)
    for name, said in told.items():
        try:
            noised(getattr(algorithms, name)())
            refused = ""
        except ValueError as error:
            refused = str(error)
        assert bool(refused) == said.startswith("refused"), f"{name}: {refused}"
    assert set(algorithms.__all__) - told.keys() == {"local_only", "centralised", "fedbn"}


def test_a_delta_that_may_reveal_an_example_is_warned_of() -> None:
    with pytest.warns(ArchipelWarning, match=r"delta 0.1 is more than 1 / 480 examples.*usual choice is below 0.001"):
        start(LocalNoise(noise=1.0, delta=0.1), Ending(rounds=1))


def test_tasks_to_come_follow_from_the_rounds() -> None:
    mechanism = LocalNoise(epsilon=1.0)
    assert mechanism.tasks_of(fedavg(), Ending(rounds=50)) == 50
    assert mechanism.tasks_of(fedavg(0.25), Ending(rounds=64)) == 16 + 4
    assert mechanism.tasks_of(radfed(fraction=0.1, hops=10), Ending(commits=10)) == 10 + 4
    assert LocalNoise(epsilon=1.0, tasks=7).tasks_of(replace(fedavg(), protocol=Stream()), Ending(seconds=1)) == 7
    assert Rounds(0.25).fraction == 0.25

"""Local noise in a federation: each learner reads it from its own study and has its own secret."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from archipel.core.records import LearnerSpent
from archipel.core.types import Metrics, Spent
from archipel.federation.learner.example_privacy import ExamplePrivacy
from archipel.federation.learner.local_state import Memory, StateFolder
from archipel.federation.learner.policy import Refusal, SiteRules
from archipel.federation.security.names import Identity
from archipel.federation.wire import messages
from archipel.federation.wire.body import InvalidUpdate
from archipel.learner.learner import Job
from archipel.learner.training import advance
from archipel.study.files import study_of
from archipel.study.local_site import take_part, try_out
from tests.federation.in_one_process import hold, study

pytestmark = pytest.mark.slow


def noised(privacy: str = "LocalNoise(noise=1.0)", **sections: Any) -> dict[str, Any]:
    return study(algorithms=[{"name": "fedavg", "batch": 64, "privacy": privacy}], **sections)


def test_a_federation_tells_epsilon_and_every_learner_has_a_secret_of_its_own(tmp_path: Path) -> None:
    held = hold(noised(ending={"rounds": 2}), tmp_path)
    assert held.run is not None
    told = [record for _, record in held.run.of(LearnerSpent)]
    assert len(told) == 6
    secrets = set()
    for name in held.agents:
        account = StateFolder(tmp_path / name).memory.examples
        assert account is not None
        secrets.add(account.key)
        assert sum(times for _, _, times in account.spent) == sum(8 for one in told if one.learner == name)
        assert stat.S_IMODE((tmp_path / name / "learner.safetensors").stat().st_mode) == 0o600
    assert len(secrets) == 3
    state = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not any(secret.encode() in content for secret in secrets for content in state)
    status = held.federation.status.report(Identity("operator", "alice"))
    assert status["epsilon"]["spent"] == max(one.epsilon for one in told)
    assert {one["name"]: one["epsilon"] for one in status["learners"]} == {
        one.learner: one.epsilon for one in told[-3:]
    }


def test_learners_rest_and_the_run_ends(tmp_path: Path) -> None:
    held = hold(noised("LocalNoise(noise=0.8, delta=1e-3)", ending={"rounds": 50, "epsilon": 5.0}), tmp_path)
    assert held.run is not None
    assert "no learner has privacy budget left" in held.run.reason
    assert all(record.epsilon <= 5.0 for _, record in held.run.of(LearnerSpent))
    states = {one["state"] for one in held.federation.status.report(Identity("operator", "alice"))["learners"]}
    assert states <= {"privacy budget spent", "gone"}


def test_a_site_narrows_the_budget_and_refuses_what_it_does_not_pay_for() -> None:
    island, _ = take_part(study_of(noised("LocalNoise(noise=1.0)")), "00", rules=SiteRules(max_epsilon=4.5))
    memory, plan = Memory(), island.policy.plans[0]
    privacy = ExamplePrivacy(island.budget, memory, len(island.learner.train))
    spent = None
    while spent is None or not spent.rests:
        assert privacy.noise(plan, 0) is not None
        spent = privacy.charged(Metrics(), plan, 1).spent
        assert spent is not None
    with pytest.raises(Refusal, match=r"the privacy budget of 4.5 does not pay for another task"):
        privacy.noise(plan, 1)
    assert 3.0 < spent.epsilon <= 4.5
    again = ExamplePrivacy(island.budget, memory, len(island.learner.train))  # killed, and started again
    with pytest.raises(Refusal):
        again.noise(plan, 0)
    with pytest.raises(ValueError, match=r"allows its examples epsilon 3.0, and learners of fedavg add no noise"):
        take_part(study_of(study()), "00", rules=SiteRules(max_epsilon=3.0))
    with pytest.raises(ValueError, match=r"for this learner, with \d+ examples, a task costs epsilon"):
        take_part(study_of(noised()), "00", rules=SiteRules(max_epsilon=0.1))


def test_no_plan_of_a_controller_trains_without_noise() -> None:
    island, narrowed = take_part(study_of(noised()), "00")
    assert island.work.local_noise is not None
    vector = island.work.layout.vector(island.work.module)
    job = Job.begin(island.learner, island.work.layout, vector, island.policy.plans[0])
    with pytest.raises(RuntimeError, match="noise=None, and the study LocalNoise"):
        advance(island.work, job)
    assert any("privacy: noise 1 x clip in every step" in line for line in try_out(narrowed, island))


def test_a_task_that_is_asked_for_twice_gets_other_noise() -> None:
    island, _ = take_part(study_of(noised()), "00")
    memory, plan = Memory(), island.policy.plans[0]
    privacy = ExamplePrivacy(island.budget, memory, len(island.learner.train))
    first = privacy.noise(plan, 5)
    assert first == privacy.noise(plan, 5), "killed before its answer left: the same bits"
    memory.trained += 1
    assert first != privacy.noise(plan, 5)


def test_accounts_travel_and_nonsense_is_refused() -> None:
    told = Spent(1.5, 1e-5, 0.8, True)
    plan = study_plan()
    sent = messages.encode_metrics(Metrics(spent=told), [], 1)
    known: dict[str, Any] = {"examples": 100, "validation": 0, "classes": 10}
    assert messages.decode_metrics(sent, plan, **known).spent == told
    for field, value in (("epsilon", -1.0), ("epsilon", float("inf")), ("delta", 2.0), ("noise", 0.0)):
        wrong = messages.encode_metrics(Metrics(spent=told), [], 1)
        setattr(wrong.spent, field, value)
        with pytest.raises(InvalidUpdate, match="an account of epsilon"):
            messages.decode_metrics(wrong, plan, **known)


def study_plan() -> Any:
    return take_part(study_of(study()), "00")[0].policy.plans[0]

"""The controller's secret outlives a crash, and is nowhere but where it must be."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from archipel.algorithms import fedavg
from archipel.core.parts import CentralNoise, Ending, NormClipped
from archipel.core.records import PrivacySpent
from archipel.core.state import Update
from archipel.core.types import Metrics, Model
from archipel.data import digits
from archipel.federation.security.names import Identity
from archipel.federation.storage.durable_controller import CODEC
from archipel.federation.storage.journal import Journal
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.simulate import finished, prepare
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.in_one_process import hold, study

pytestmark = pytest.mark.slow


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def holding(folder: Path, secret: str) -> set[str]:
    """Return the files under a folder that hold the secret."""
    forms = (secret.encode(), bytes.fromhex(secret))
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in files if any(form in path.read_bytes() for form in forms)}


def noised(**federation: Any) -> dict[str, Any]:
    method = {"name": "fedavg", "equally": True, "privacy": "CentralNoise(noise=1.0, clip=1.0)"}
    return study(algorithms=[method], federation=federation)


def test_a_federations_journal_repeats_the_noise_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    held = hold(noised(), tmp_path)
    assert held.run is not None
    secret = held.hosting.secret
    assert len(secret) == 64
    told = host(study_of(noised())).replay(tmp_path / "state")  # compares every version with the journal's digest
    assert told.controller.state.version == 3
    assert told.controller.state.secret == secret
    assert not isinstance(told.controller.algorithm.merge, NormClipped), "medians of others would break the bound"
    state = tmp_path / "state"
    assert holding(tmp_path, secret) <= {"journal.sqlite", "journal.sqlite-wal"}
    assert {mode(path) for path in state.glob("journal.sqlite*")} == {0o600}


def test_no_message_or_record_holds_the_secret(tmp_path: Path) -> None:
    held = hold(noised(), tmp_path)
    assert held.run is not None
    records = "".join(CODEC.text(stamped) for stamped in held.run.records)
    journal = Journal(tmp_path / "state" / "journal.sqlite")
    events = "".join(line.event + line.beside for line in journal.events())
    journal.close()
    held.run.save(tmp_path / "run")
    assert held.hosting.secret not in records + events
    assert holding(tmp_path / "run", held.hosting.secret) == set()
    status = held.federation.status.report(Identity("operator", "alice"))
    assert held.hosting.secret not in json.dumps(status)
    spent = held.run.of(PrivacySpent)[-1][1]
    assert status["epsilon"] == {"spent": spent.epsilon, "delta": 1e-5, "noise": 1.0}


def test_a_learner_is_not_told_how_many_take_part(tmp_path: Path) -> None:
    federation = hold(noised(), tmp_path).federation
    queue = federation.log.state.queue
    queue[99] = federation_update = Update(99, "learner-1", Model("t99", ()), (), 0, 0, 1, 1, 0, Metrics())
    asked: tuple[tuple[Literal["operator", "learner"], int], ...] = (("operator", 1), ("learner", 0))
    for who, waiting in asked:
        assert federation.status.report(Identity(who, "learner-0"))["updates waiting"] == waiting
    assert federation.status.report(Identity("learner", federation_update.learner))["updates waiting"] == 1


def test_statistics_of_all_rows_are_refused() -> None:
    raw = noised()
    raw["data"]["standardise"] = "global"
    with pytest.raises(ValueError, match=r"CentralNoise does not account for that. Use 'none' or 'local'"):
        host(study_of(raw))


def test_a_checkpoint_repeats_the_noise_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    islands = digits().split(learners=4, seed=0)
    method = replace(fedavg(0.5, equally=True), privacy=CentralNoise(noise=1.0))
    whole = prepare(method, islands, ending=Ending(rounds=4))
    whole.begin()
    whole.run(events=6)
    Checkpoint(tmp_path).save(whole)
    assert mode(tmp_path / "checkpoint.safetensors") == 0o600
    resumed = prepare(method, islands, ending=Ending(rounds=4))
    assert resumed.controller.state.secret != whole.controller.state.secret
    Checkpoint(tmp_path).load(resumed)
    for simulator in (whole, resumed):
        simulator.run()
    assert finished(whole).fingerprint() == finished(resumed).fingerprint()
    assert [*finished(whole).records] == [*finished(resumed).records]

"""Checkpoints that do not fit, and checkpoints that go on in another process."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import archipel as ap
from archipel.algorithms import fedavg
from archipel.core.parts import (
    Ending,
    Equally,
    Evaluation,
)
from archipel.data import Islands
from archipel.models import mlp
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.simulator import Simulator
from archipel.storage import dataclass_codec as codec
from tests.core.crash_cases import (
    islands,
    log_of,
    simulator,
)
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def saved_run(folder: Path, **settings: Any) -> Checkpoint:
    run = simulator(fedavg(batch=8), **settings)
    run.begin()
    run.run(events=15)
    checkpoint = Checkpoint(folder)
    checkpoint.save(run)
    return checkpoint


def other_data() -> Islands:
    data = islands()
    return replace(data, x=data.x + 1e-3)


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - nn.functional.one_hot(targets, 10)).pow(2).mean()


def smooth() -> nn.Module:
    """The network, with other activations."""
    layers = OrderedDict(mlp(64, 10, hidden=(8,)).named_children())
    return nn.Sequential(layers | {"relu1": nn.Tanh()})


OTHERS: dict[str, tuple[str, Callable[[], Simulator]]] = {
    "the rate": ("algorithm", lambda: simulator(fedavg(batch=8, rate=0.1))),
    "the weighting": ("algorithm", lambda: simulator(replace(fedavg(batch=8), weighting=Equally()))),
    "the ending": ("ending", lambda: simulator(fedavg(batch=8), ending=Ending(rounds=6))),
    "the evaluation": ("evaluation", lambda: simulator(fedavg(batch=8), evaluation=Evaluation(every=2))),
    "the seed": ("seed", lambda: simulator(fedavg(batch=8), seed=1)),
    "the layers": ("layers", lambda: simulator(fedavg(batch=8), model=lambda: mlp(64, 10, hidden=(9,)))),
    "the execution": ("execution", lambda: simulator(fedavg(batch=8), execution="plain")),
    "the fleet": ("data and fleet", lambda: simulator(fedavg(batch=8), lost=0.1)),
    "the data": ("data and fleet", lambda: simulator(fedavg(batch=8), data=other_data())),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_other_settings_is_refused_and_says_which(what: str, tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path)
    field, other = OTHERS[what]
    with pytest.raises(
        ValueError, match=rf"is of another run: its {field} is .*, this one's is .*Resume with the same"
    ):
        checkpoint.load(other())


NOT_IN_THE_ALGORITHM: dict[str, dict[str, Any]] = {
    "the loss": {"loss": squares},
    "the activations": {"model": smooth},
    "the test set at home": {"data": lambda: replace(islands(), test=islands().test[:-1])},
    "the stimuli": {"data": lambda: replace(islands(), stimuli=islands().stimuli[:-1])},
    "a shadow run": {"shadow": True},
}


@pytest.mark.parametrize(
    "what",
    NOT_IN_THE_ALGORITHM,
)
def test_a_checkpoint_of_another_run_is_refused(what: str, tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path, execution="plain")
    settings: dict[str, Any] = dict(NOT_IN_THE_ALGORITHM[what])
    if "data" in settings:
        settings["data"] = settings["data"]()
    with pytest.raises(ValueError, match="is of another run"):
        checkpoint.load(simulator(fedavg(batch=8), execution="plain", **settings))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut short": lambda whole: whole[: len(whole) // 2],
    "cut by one byte": lambda whole: whole[:-1],
    "something else": lambda whole: b"PK" + whole[2:],
    "zeros behind it": lambda whole: whole + bytes(8),
}
NO_CHECKPOINT = r"checkpoint.safetensors is not a checkpoint of Archipel, or is damaged"


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_refused(what: str, tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path)
    checkpoint.path.write_bytes(DAMAGE[what](checkpoint.path.read_bytes()))
    with pytest.raises(ValueError, match=NO_CHECKPOINT):
        checkpoint.load(simulator(fedavg(batch=8)))


@pytest.mark.slow
def test_one_wrong_bit_is_damage(tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path)
    whole = checkpoint.path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 30).astype(int):
        checkpoint.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=NO_CHECKPOINT):
            checkpoint.load(simulator(fedavg(batch=8)))


def test_a_safetensors_file_of_something_else_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    safetensors.torch.save_file({"weight": torch.zeros(3)}, checkpoint.path)
    with pytest.raises(ValueError, match="is not a checkpoint of Archipel"):
        checkpoint.load(simulator(fedavg(batch=8)))


def test_a_checkpoint_of_a_newer_version_says_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "newer.safetensors"

    @dataclass
    class Novelty:
        value: int

    codec.Codec(SimpleNamespace(Novelty=Novelty)).save(path, Novelty(1))
    with pytest.raises(ValueError, match="holds a 'Novelty', which this version of Archipel does not know"):
        codec.Codec().load(path)


def test_a_save_that_was_cut_off_leaves_the_last_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = saved_run(tmp_path)
    before = checkpoint.path.read_bytes()
    run = simulator(fedavg(batch=8))
    checkpoint.load(run)
    run.run(events=5)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            checkpoint.save(run)
    assert checkpoint.path.read_bytes() == before
    checkpoint.load(simulator(fedavg(batch=8)))
    checkpoint.save(run)
    assert checkpoint.path.read_bytes() != before


def digest() -> str:
    """Return a hash of the commands and results of some runs."""
    found = hashlib.sha256()
    for name in ("sync_dvw", "async_dvw", "fed2a", "radfed_i", "hdafl"):
        log = log_of(name, 0.2)
        found.update(repr(log.commands).encode())
        for vector in log.vectors.values():
            found.update(vector.numpy().tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_another_process_that_hashes_otherwise_comes_to_the_same_bits() -> None:
    command = [sys.executable, "-c", "from tests.core.test_crash_misfits import digest; print(digest())"]
    modules = os.pathsep.join(sys.path)  # this one among them
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONHASHSEED": "12345",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": modules,
    }
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


def whole_run(checkpoint: str | None = None) -> tuple[str, int]:
    run = ap.simulate(
        ap.async_dvw(batch=8, at_most=4, recall_after=3),
        ap.data.digits().split(learners=6, classes=3),
        fleet=ap.Fleet(fast=3, slow=3),
        ending=ap.Ending(rounds=12),
        checkpoint=checkpoint,
        checkpoint_every=25,
    )
    return run.fingerprint(), len(run.records)


KILLED = """
import sys
import threading
from archipel.simulation.checkpoint import Checkpoint
from tests.core.test_crash_misfits import whole_run

save, saved = Checkpoint.save, []

def held(self, simulator):
    save(self, simulator)
    saved.append(simulator)
    if len(saved) == 3:  # to be killed by now
        threading.Event().wait(600)

Checkpoint.save = held
whole_run(sys.argv[1])
"""


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """`kill -9` at an arbitrary moment, then the same run again, in this process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    victim = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=environment)
    saved = tmp_path / "checkpoint.safetensors"
    until(lambda: saved.exists() or victim.poll() is not None, "a checkpoint")
    victim.kill()
    assert victim.wait() == -signal.SIGKILL, "it was to be killed before it had ended"
    assert whole_run(str(tmp_path)) == whole_run()

"""What the tools themselves have stored is what the records say, also when a run was cut off in between."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import archipel as ap
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.simulate import finished
from archipel.trackers import track, tracker
from tests.forked import Forked
from tests.trackers import tracked

pytestmark = pytest.mark.slow

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "sqlalchemy", "wandb": "wandb"}
"""What has to be there; MLflow's SQLite store needs SQLAlchemy beside mlflow-skinny."""


@pytest.fixture(params=PACKAGES)
def tool(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"{request.param} is an extra")
    pytest.importorskip(PACKAGES[request.param], reason=f"{request.param} is an extra")
    return str(request.param)


def look(tool: str, folder: Path, run: ap.Run) -> None:
    """Every chart is there with every point and no other; TensorBoard keeps single precision."""
    stored, due = tracked.read(tool, folder), tracked.charts_of(run)
    assert sorted(stored) == sorted(due)
    for chart, points in due.items():
        exact = 1e-6 if tool == "tensorboard" else 0
        assert stored[chart] == pytest.approx(points, rel=exact, abs=0), chart


@pytest.mark.parametrize("make", [tracked.stream, tracked.relay], ids=["stream", "relay"])
def test_every_value_is_told(tool: str, make: Any, tmp_path: Path) -> None:
    run = make()
    track(run, tracker(tool), tmp_path)
    look(tool, tmp_path, run)


def test_a_run_that_was_stopped_goes_on_in_the_same_charts(tool: str, tmp_path: Path) -> None:
    saved, listener, simulator = Checkpoint(tmp_path), tracker(tool), tracked.simulator()
    listener.begin("cut", tracked.SETTINGS, tmp_path)
    simulator.begin()
    simulator.run(30)
    saved.save(simulator)
    simulator.run(20)  # told, but after the checkpoint: it will happen again
    for stamped in simulator.records:
        listener.record(stamped)
    listener.end(None)
    told_before = len(simulator.records)

    listener, simulator = tracker(tool), tracked.simulator()
    saved.load(simulator)
    assert 0 < len(simulator.records) < told_before
    listener.begin("cut", tracked.SETTINGS, tmp_path)
    simulator.run()
    for stamped in simulator.records:
        listener.record(stamped)
    run = finished(simulator)
    listener.end(run)
    assert len(run.records) > told_before
    look(tool, tmp_path, run)


KILLED = """
import os, signal, sys
from pathlib import Path

import archipel as ap
from archipel.trackers import tracker

folder, tools = Path(sys.argv[1]), sys.argv[2:]
run = ap.load_run(folder)
listeners = [tracker(tool) for tool in tools]
for listener in listeners:
    listener.begin(run.name, {}, folder)
    for stamped in run.records[: len(run.records) // 2]:
        listener.record(stamped)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_that_begin_at_once_and_are_killed_go_on_in_the_same_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that none of them finds there, and without a login."""
    for package in (*PACKAGES, *PACKAGES.values()):
        pytest.importorskip(package, reason=f"{package} is an extra")
    run, folders = tracked.stream(), (tmp_path / "one", tmp_path / "two")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new.db")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_ERROR_REPORTING": "false"}
    processes = []
    for folder in folders:
        run.save(folder)
        with (folder / "errors").open("wb") as errors:
            streams = (None, None, errors.fileno())
            processes.append(Forked([folder, *PACKAGES], None, environment, streams, program=KILLED))
    for process, folder in zip(processes, folders, strict=True):
        assert process.wait(300) == -9, (folder / "errors").read_text()
    for folder in folders:
        begun = [(folder / f"{tool}-run-id").read_text() for tool in ("mlflow", "wandb")]
        for tool in PACKAGES:
            track(run, tracker(tool), folder)
            look(tool, folder, run)
        assert begun == [(folder / f"{tool}-run-id").read_text() for tool in ("mlflow", "wandb")]

"""Studies on a Ray cluster: their runs are spread, and nothing is lost with a node, the driver or the head."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import archipel as ap
from archipel.cli.run import cluster_of
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.cluster.connection import Cluster
from archipel.simulation.simulate import prepare
from archipel.study import cluster_runs
from archipel.study.cluster_runs import work_on_cluster
from archipel.study.execute import RunJob, execute
from archipel.study.results import Results
from archipel.study.worker_pool import Began, Broke, Ended, Message, Told
from tests.cluster.conftest import Machines
from tests.forked import Forked
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.slow

STUDY = """
title = "spread"
seeds = [0, 1]
ending = {rounds = 3}
algorithms = ["fedavg", "own.py:halves"]
model = {name = "own.py:Net"}
[data]
source = "digits"
split = {learners = 4}
"""
OWN = """
from torch import nn
import archipel as ap
from neighbour import WIDTH

class Net(nn.Sequential):
    def __init__(self, features: int = 64, classes: int = 10) -> None:
        super().__init__(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

def halves():
    return ap.fedavg(fraction=0.5)
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    (folder / "own.py").write_text(OWN)
    (folder / "neighbour.py").write_text("WIDTH = 12\n")
    return folder / "study.toml"


def same(one: Results, other: Results) -> None:
    assert [run.name for run in one] == [run.name for run in other]
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.model, theirs.model)
        assert mine.records == theirs.records


def test_runs_are_spread_with_the_studys_own_code(machines: Machines, study: Path, tmp_path: Path) -> None:
    spread = ap.run_study(study, tmp_path / "spread", cluster="auto")
    assert len(spread) == 4
    assert not spread.unfinished
    same(spread, ap.run_study(study, tmp_path / "here", processes=1))
    for one in ("study.toml", "split.safetensors", "run.json", "checkpoint.safetensors"):
        files = [sorted(path.name for path in (tmp_path / where).rglob(one)) for where in ("spread", "here")]
        assert files[0] == files[1]
    written = (tmp_path / "spread" / "fedavg" / "seed-0" / "study.toml").read_text()
    assert str(study.parent) in written  # the node's temporary folder is nobody's business


def job_of(study: Path, folder: Path, seed: int) -> RunJob:
    """Return one run of the study, as `run_study` would."""
    read = ap.read_study(study, algorithms=["fedavg"], changes=[f"seeds=[{seed}]"])
    return RunJob(read.raw, str(folder / str(seed)), {}, {}, None)


HELD = """
import os, time
from pathlib import Path
from torch.nn.functional import cross_entropy

def held(outputs, targets):
    while not Path({go!r}).exists():
        time.sleep(0.01)
    return cross_entropy(outputs, targets)
"""


def test_a_run_whose_node_is_killed_goes_to_another(machines: Machines, study: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    (study.parent / "held.py").write_text(HELD.format(go=str(go)))
    study.write_text(STUDY.replace("seeds", 'loss = "held.py:held"\nseeds'))
    jobs = [job_of(study, tmp_path, seed) for seed in (0, 1)]
    heard: list[Message] = []

    def hear(message: Message) -> None:
        heard.append(message)
        if [type(one) for one in heard].count(Began) == 2 and not go.exists():
            machines.kill(machines.nodes[0])  # both runs are out, and held
            go.touch()

    assert work_on_cluster(Cluster("auto"), jobs, 1, hear)
    assert sorted(one.job for one in heard if isinstance(one, Ended)) == [0, 1]
    assert sorted(one.job for one in heard if isinstance(one, Began)) == [0, 1]  # told once, though one began twice
    assert not [one for one in heard if isinstance(one, Broke)]
    assert all((tmp_path / str(seed) / "run.json").exists() for seed in (0, 1))


def test_ctrl_c_saves_the_runs_and_they_go_on_elsewhere(machines: Machines, study: Path, tmp_path: Path) -> None:
    study.write_text(STUDY.replace("rounds = 3", "rounds = 400"))
    jobs = [job_of(study, tmp_path, seed) for seed in (0, 1)]

    def interrupt(message: Message) -> None:
        if isinstance(message, Told):
            os.kill(os.getpid(), signal.SIGINT)

    assert not work_on_cluster(Cluster("auto"), jobs, 1, once(interrupt))
    begun = [seed for seed in (0, 1) if (tmp_path / str(seed) / "checkpoint.safetensors").exists()]
    assert begun
    assert not (tmp_path / str(begun[0]) / "run.json").exists()
    ended: list[Message] = []
    assert work_on_cluster(Cluster("auto"), [jobs[begun[0]]], 1, ended.append)
    here = execute(replace(jobs[begun[0]], folder=str(tmp_path / "here")), lambda news: True)
    assert here
    resumed, whole = (ap.load_run(tmp_path / name) for name in (str(begun[0]), "here"))
    assert torch.equal(resumed.model, whole.model)
    assert resumed.records == whole.records


def once(function: Callable[[Message], None]) -> Callable[[Message], None]:
    """Call a function until it has had an effect: the second Ctrl-C would not wait."""
    told: list[Message] = []

    def hear(message: Message) -> None:
        if isinstance(message, Told) and not told:
            told.append(message)
            function(message)

    return hear


def test_a_run_that_fails_says_so_and_costs_no_other(machines: Machines, study: Path, tmp_path: Path) -> None:
    (study.parent / "failing.py").write_text("def failing(outputs, targets):\n    raise ArithmeticError('of a kind')\n")
    good = job_of(study, tmp_path, 1)
    broken = replace(good, study={**good.study, "loss": "failing.py:failing"}, folder=str(tmp_path / "0"))
    heard: list[Message] = []
    assert work_on_cluster(Cluster("auto"), [broken, good], 1, heard.append)
    (failed,) = (one for one in heard if isinstance(one, Broke))
    assert failed.job == 0
    assert "ArithmeticError: of a kind" in failed.reason
    assert "Traceback" in failed.story
    assert [one.job for one in heard if isinstance(one, Ended)] == [1]


def test_a_file_that_another_node_has_otherwise(
    machines: Machines, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files outside the study's folder are not sent, so the node's own would be used."""
    monkeypatch.setattr(cluster_runs, "hashes", lambda study: {"own.py": "of the driver"})
    heard: list[Message] = []
    assert work_on_cluster(Cluster("auto"), [job_of(study, tmp_path, 0)], 1, heard.append)
    (failed,) = (one for one in heard if isinstance(one, Broke))
    assert re.search(r"node \S+ \(\w{6}\) does not have .*own.py.* as the driver has it", failed.reason)


LOST = """
import sys, warnings
import archipel as ap
warnings.simplefilter("ignore")
data = ap.data.digits().split(learners=4)
try:
    ap.simulate(ap.async_fedavg(), data, cluster="local", execution="workers", checkpoint=sys.argv[1],
                checkpoint_every=3, ending=ap.Ending(rounds=10**6))
except OSError as error:
    print(error)
"""


def test_a_run_whose_whole_cluster_is_lost_ends_with_a_checkpoint(tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as said:
        driver = Forked([tmp_path], streams=(None, said.fileno(), None), program=LOST)
    try:
        until((tmp_path / "checkpoint.safetensors").exists, "the first checkpoint")
        head = until(lambda: children(driver.pid, "gcs_server"), "the head's process")
        os.kill(head[0], signal.SIGKILL)
        driver.wait(LIMIT)
    finally:
        driver.kill()
    told = (tmp_path / "said").read_text()
    assert "cluster 'local' is lost: its head node no longer answers. Resume the run" in told
    simulator = prepare(
        ap.async_fedavg(), ap.data.digits().split(learners=4), execution="workers", ending=ap.Ending(rounds=10**6)
    )
    Checkpoint(tmp_path).load(simulator)
    assert simulator.handled > 0
    simulator.run(events=3)


def children(parent: int, name: str) -> list[int]:
    """Return the processes of this name that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, command, _, owner, *_ = path.read_text().split()
            if int(owner) == parent and command.strip("()") == name:
                found.append(int(number))
    return found


@pytest.mark.parametrize("option", ["cpus=0", "cpus=x", "cores=1", "gpus=-1", "cpus"])
def test_per_actor_takes_cores_and_gpus(option: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cpus"):
        cluster_of("auto", option, False, None)
    assert cluster_of("auto", "cpus=2, gpus=0.25", True, tmp_path) == Cluster("auto", 2.0, 0.25, True, str(tmp_path))

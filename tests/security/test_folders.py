"""What a controller writes is for its owner alone; and the files it is deployed with set limits."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.federation.stage import LONGEST, Crowd, Setting, set_up

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
def test_nobody_else_reads_the_state(there: bool, tmp_path: Path) -> None:
    stage = set_up(tmp_path, Setting('"fedavg"', 2))
    if there:
        stage.state.mkdir(mode=0o755)
    process = stage.controller()
    with Crowd(stage):
        assert process.wait(LONGEST) == 0, process.last_words()
    assert mode(stage.state) == 0o700
    files = [Path(folder) / name for folder, _, names in os.walk(stage.state) for name in names]
    assert {path.name for path in files} >= {"journal.sqlite", "records.jsonl", "run.json"}
    assert [path for path in files if mode(path) & 0o077] == []


def test_a_folder_of_somebody_else_is_used_as_it_is(tmp_path: Path) -> None:
    """As the root of a container's volume: nobody but its owner can close it."""
    code = """
import pathlib, sys
def chmod(self, mode):
    raise PermissionError
pathlib.Path.chmod = chmod
from archipel.storage.lock import closed
(closed(pathlib.Path(sys.argv[1])) / "file").touch()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert mode(tmp_path / "file") == 0o600


@pytest.mark.parametrize("unit", ["archipel-controller.service", "archipel-learner@.service"])
def test_units_limit_files_memory_and_tasks(unit: str) -> None:
    lines = (DEPLOY / unit).read_text().splitlines()
    settings: dict[str, Any] = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert int(settings["LimitNOFILE"]) >= 4096
    assert settings["MemoryMax"].endswith("%")
    assert int(settings["TasksMax"]) > 0
    assert settings["UMask"] == "0077"


def test_containers_limit_files_memory_and_processes() -> None:
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        assert service["ulimits"]["nofile"] >= 4096, name
        assert service["mem_limit"], name
        assert service["pids_limit"] > 0, name

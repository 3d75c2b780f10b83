"""`archipel new`: what it makes runs, passes its own test, and never replaces anything."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

import archipel as ap
from archipel.cli.new import machines
from archipel.cli.program import app
from archipel.study import read_study
from archipel.study.grid import cells
from archipel.study.tuning import candidates

MADE = {"README.md", "study.toml", "network.py", "test_study.py", "data.csv"}


def archipel(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("somewhere") / "new" / "project"
    archipel("new", folder)
    return folder


def test_the_project_is_whole_and_the_next_commands_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()  # an empty one will do
    text = archipel("new", folder)
    assert {path.name for path in folder.iterdir()} == MADE
    told = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert told == [f"cd '{folder}'", "archipel run study.toml", "python -m pytest"]


def test_as_data(tmp_path: Path) -> None:
    told = json.loads(archipel("new", tmp_path / "a", "--json"))
    assert told["folder"] == str(tmp_path / "a")
    assert set(told["files"]) == MADE
    assert told["next"] == [f"cd {tmp_path / 'a'}", "archipel run study.toml", "python -m pytest"]


@pytest.mark.slow
def test_its_own_test_passes(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_its_study_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    short = ["--set", "ending={rounds=2}", "--set", "seeds=[0]", "--jobs", "1", "--json"]
    told = json.loads(archipel("run", "study.toml", *short))
    assert [method["method"] for method in told["methods"]] == ["local_only", "fedavg", "fedprox", "hdafl"]
    assert (project / "results" / "first-study" / "fedavg" / "seed-0" / "run.json").exists()


def test_what_its_readme_tells_to_try_can_be_read(project: Path) -> None:
    commands = re.findall(r"^    (archipel run study.toml.*?)(?:  +#.*)?$", (project / "README.md").read_text(), re.M)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        changes = [value for flag, value in pairwise(words) if flag == "--set"]
        study = read_study(project / "study.toml", changes=changes)
        candidates(study, cells(study))


def test_its_data_are_the_same_every_time_and_differ_by_site(project: Path) -> None:
    assert list(machines()) == list(machines())
    assert list(machines()) != list(machines(seed=1))
    table = ap.data.from_csv(project / "data.csv", label="failed", site="plant", categories=["kind"])
    assert table.sites is not None
    assert table.site_names == ("north", "south", "west")
    assert table.sites.bincount().tolist() == [250, 140, 60]
    failed = [table.y[table.sites == site].float().mean().item() for site in range(3)]
    assert max(failed) > 2 * min(failed)
    # learners need both classes to be tested on
    assert all(0.1 < share < 0.9 for share in failed)


# ------------------------------------------------------------------------------------------------------- nonsense


def refused(folder: Path) -> str:
    with pytest.raises(FileExistsError) as caught:
        archipel("new", folder)
    return str(caught.value)


def test_a_folder_that_is_not_empty_is_left_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "study.toml"
    mine.write_text("mine")
    message = refused(tmp_path)
    assert message.startswith(f"archipel new: {tmp_path} exists and is not empty; nothing was changed.")
    assert f"such as {tmp_path / 'study'}" in message
    assert list(tmp_path.iterdir()) == [mine]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("below", ["", "project", "a/b"])
def test_a_file_in_the_way_is_left_as_it_is(below: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    assert refused(mine / below) == f"archipel new: {mine} is a file, not a folder. Give another name."
    assert mine.read_text() == "mine"


def test_a_project_is_not_made_twice(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.iterdir() if path.is_file()}
    refused(project)
    assert {path: path.read_bytes() for path in project.iterdir() if path.is_file()} == before


def test_a_folder_has_to_be_named() -> None:
    assert CliRunner().invoke(app, ["new"]).exit_code == 2

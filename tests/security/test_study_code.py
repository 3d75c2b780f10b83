"""What a study file may run: nothing on its own, the files beside it, and the rest only with --allow-code."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archipel.cli.program import app
from archipel.study.files import read_study
from archipel.study.grid import cells
from archipel.study.results import run_study

STUDY = """
algorithms = ["fedavg"]
data.source = "digits"
data.split = { learners = 3 }
ending.rounds = 1
"""
OWN = """
from os import system
from pathlib import Path
from subprocess import getoutput

import torch
from archipel import ByExamples

Path(__file__).with_name("imported").touch()


class Counting(ByExamples):
    pass


class Other:
    def __init__(self) -> None:
        Path(__file__).with_name("called").touch()


def net(features: int, classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(features, classes))


def part() -> ByExamples:
    Path(__file__).with_name("called").touch()
    return ByExamples()
"""


def written(folder: Path, text: str = STUDY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "study.toml"
    path.write_text(textwrap.dedent(text))
    return path


def with_code(folder: Path) -> Path:
    study = written(folder)
    (folder / "own.py").write_text(OWN)
    return study


def refused(path: Path, *changes: str, code: str = "beside") -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the text is what the tests compare)
        cells(read_study(path, changes=changes, code=code))  # type: ignore[arg-type]
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- a study file alone

ALONE = [
    """algorithms=[{name="fedavg", weighting="os:system('touch here')"}]""",
    """algorithms=[{name="fedavg", planners=["os:system('touch here')"]}]""",
    """algorithms=[{name="os:system", command="touch here"}]""",
    """model={name="subprocess:getoutput", cmd="touch here"}""",
    """data.source={name="subprocess:getoutput", cmd="touch here"}""",
    """loss="subprocess:getoutput" """,
]


@pytest.mark.parametrize("change", ALONE)
def test_a_study_file_alone_runs_nothing(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key, _, value = change.partition("=")
    others = [line for line in STUDY.splitlines() if not line.startswith(f"{key} ")]
    study = written(tmp_path, "\n".join([f"{key} = {value}", *others]))
    assert "is code that may not run without --allow-code" in refused(study)
    done = CliRunner().invoke(app, ["learner", str(study), "--insecure", "learner/00", "--dry-run"])
    assert "is code that may not run without --allow-code" in str(done.exception)
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("name", ["sub/own.py:net", "../own.py:net", "./own.py:net", "{absolute}:net"])
def test_files_elsewhere_are_not_run(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study = written(folder)
    for place in (tmp_path, folder, folder / "sub"):
        place.mkdir(exist_ok=True)
        (place / "own.py").write_text(OWN)
    name = name.format(absolute=tmp_path / "own.py")
    assert "is code that may not run without --allow-code" in refused(study, f"model={name!r}")
    assert not list(tmp_path.rglob("imported"))
    cells(read_study(study, changes=[f"model={name!r}"], code="any"))


def test_a_study_cannot_name_another_folder_as_its_own(tmp_path: Path) -> None:
    with_code(tmp_path / "theirs")
    for folder in (tmp_path / "theirs", "../theirs"):
        study = written(tmp_path / "mine", f'folder = "{folder}"\nmodel = "own.py:net"\n{STUDY}')
        assert "is code that may not run without --allow-code" in refused(study)
    assert not list(tmp_path.rglob("imported"))


# ------------------------------------------------------------------------------------------------ files beside a study


def test_files_beside_a_study_are_run_and_resumed_without_a_flag(tmp_path: Path) -> None:
    study = with_code(tmp_path)
    own = ["""algorithms=[{name="fedavg", weighting="own.py:Counting"}]""", "model='own.py:net'"]
    results = run_study(read_study(study, changes=own), tmp_path / "results" / "title", processes=1)
    assert len(results.runs) == 1
    assert cells(read_study(results.folder / "study.toml"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("weighting='own.py:Other'", "should be a class derived from Weighting"),
        ("weighting='own.py:part'", "should be a class derived from Weighting"),
        ("""weighting="own.py:system('touch here')" """, "should be a class derived from Weighting"),
        ("merge='own.py:Counting'", "should be a class derived from Merge"),
        ("merge='ByExamples()'", "should make a Merge, and ByExamples is none"),
        ("weighting='3'", "should make a Weighting"),
    ],
)
def test_only_a_class_of_the_kind_asked_for_is_called(change: str, words: str, tmp_path: Path) -> None:
    study = with_code(tmp_path)
    for code in ("beside", "any"):
        assert words in refused(study, f"algorithms=[{{name='fedavg', {change}}}]", code=code)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("name", ["getoutput", "system", "Other"])
def test_a_file_lends_no_function_that_it_only_imports(name: str, tmp_path: Path) -> None:
    study = with_code(tmp_path)
    for change in (f"model='own.py:{name}'", f"data.source='own.py:{name}'", f"loss='own.py:{name}'"):
        assert "defined in that file" in refused(study, change)
    assert not (tmp_path / "called").exists()


# -------------------------------------------------------------------------------------------------- asked and unasked


def test_a_dry_run_runs_no_code_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_code(tmp_path)
    written(tmp_path, f'model = "own.py:net"\n{STUDY}')
    command = ["learner", "study.toml", "--insecure", "learner/00", "--dry-run"]
    done = CliRunner().invoke(app, command)
    assert "'own.py:net' is code that may not run without --allow-code" in str(done.exception)
    assert not (tmp_path / "imported").exists()
    done = CliRunner().invoke(app, [*command, "--allow-code"])
    assert "nothing was sent" in done.output
    assert (tmp_path / "imported").exists()


def test_the_data_command_takes_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_code(tmp_path)
    done = CliRunner().invoke(app, ["data", "show", "own.py:net"])
    assert done.exit_code != 0
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("command", ["run", "controller", "learner", "replay"])
def test_every_command_that_reads_a_study_has_the_flag(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "--allow-code" in CliRunner().invoke(app, [command, "--help"], color=False).output

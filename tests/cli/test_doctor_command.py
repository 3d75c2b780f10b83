"""`archipel doctor`: what it looks at, and what it calls broken."""

import ctypes
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner, Result

import archipel as ap
from archipel.cli.doctor import Package, extra_of
from archipel.data import sources
from archipel.kernels.native.library import Library
from tests.cli.small_program import app, program

module = sys.modules["archipel.cli.doctor"]
"""The command of the same name may stand in its place in the package."""


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests are not about the training."""
    monkeypatch.setattr(module, "check_training", list)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)


def broken(result: Result) -> dict[str, str]:
    """Return what was found broken, and check the exit code."""
    found = json.loads(result.stdout)
    wrong = {check["name"]: check["found"] for check in found["checks"] if not check["passed"]}
    assert result.exit_code == (1 if wrong else 0)
    assert found["well"] is not bool(wrong)
    return wrong


@pytest.mark.slow
def test_a_machine_that_is_well(places: Path) -> None:
    result = asked("--json")
    assert broken(result) == {}
    found = json.loads(result.stdout)
    assert [check["name"] for check in found["checks"]] == [
        *("packages", "$ARCHIPEL_DATA", "cache", "same seed, same bits", "training")
    ]
    assert found["version"] == ap.__version__
    assert found["packages"]["torch"] == importlib.metadata.version("torch")
    assert found["machine"]["cores"] >= 1
    assert "digits" in found["at_hand"]
    assert sorted(found["at_hand"] + found["absent"]) == sorted(sources.__all__)
    assert found["places"][0] == str(places / "cache" / "archipel")
    assert not (places / "cache").exists(), "looking leaves nothing behind"


@pytest.mark.slow
def test_in_words_for_a_pipe(places: Path) -> None:
    done = program("doctor", ARCHIPEL_DATA=str(places / "nowhere"))
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"archipel {ap.__version__}, Python 3")
    assert "  not looked for, because $ARCHIPEL_DATA is wrong" in lines
    assert f"$ARCHIPEL_DATA: ARCHIPEL_DATA={places / 'nowhere'} is not a folder." in " ".join(done.stdout.split())
    assert any(line.startswith("  ok      same seed, same bits: two rounds on digits ended with") for line in lines)
    assert lines[-1] == "Broken: $ARCHIPEL_DATA."


@pytest.mark.usefixtures("untrained")
def test_a_cache_that_cannot_be_written(places: Path) -> None:
    (places / "cache").write_text("a file, where a folder should be")
    assert "set XDG_CACHE_HOME to a folder" in broken(asked("--json"))["cache"]


@pytest.mark.usefixtures("untrained")
def test_extras_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=2.0", "torch>=2.6", "rich", 'pyarrow>=17; extra == "parquet"', 'ruff>=0.6; extra == "dev"']
    needs += ['pandas>=2.2; extra == "pandas"', 'archipel[parquet,pandas]; extra == "test"']
    installed = {"numpy": "2.0.1", "torch": "2.6.0+cpu", "rich": "1", "pandas": "2.10"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    monkeypatch.setattr(importlib.metadata, "version", version)
    result = asked("--json")
    assert broken(result) == {}
    found = json.loads(result.stdout)
    assert found["packages"] == {"numpy": "2.0.1", "torch": "2.6.0+cpu", "rich": "1"}
    assert found["extras"] == [
        {"name": "parquet", "installed": False, "command": "pip install '.[parquet]'"},
        {"name": "pandas", "installed": True, "command": "pip install '.[pandas]'"},
    ]
    assert "missing: pip install '.[parquet]'" in asked().stdout
    installed["torch"] = "2.5.9"
    del installed["rich"]
    assert broken(asked("--json"))["packages"].startswith("torch 2.5.9 (needs >=2.6); rich is not installed")


@pytest.mark.usefixtures("untrained")
def test_the_c_library_and_why_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Library("avx2", ctypes.CDLL(None), "")
    monkeypatch.setattr(module, "load", lambda: found)
    machine = json.loads(asked("--json").stdout)["machine"]
    assert (machine["native"], machine["native_kind"], machine["native_reason"]) == (True, "avx2", "")
    assert "C library: loaded, for avx2" in asked().stdout
    found = Library("avx2", None, "avx2.so was not compiled: command 'cc' failed")
    result = asked("--json")
    assert broken(result) == {}, "torch can do without"
    machine = json.loads(result.stdout)["machine"]
    assert (machine["native"], machine["native_reason"]) == (False, "avx2.so was not compiled: command 'cc' failed")
    assert "C library: not loaded, torch is used instead: avx2.so was not compiled" in " ".join(asked().stdout.split())


@pytest.mark.slow
def test_training_that_does_not_repeat_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(3))

    def restless(*arguments: Any, **settings: Any) -> ap.Run:
        return ap.simulate(*arguments, **settings, seed=next(seeds))

    monkeypatch.setattr(module, "simulate", restless)
    assert list(broken(asked("--json"))) == ["same seed, same bits", "training"]


def test_training_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **settings: Any) -> ap.Run:
        raise RuntimeError("no kernel for this machine")

    monkeypatch.setattr(module, "simulate", fails)
    assert broken(asked("--json")) == {"training": "RuntimeError: no kernel for this machine"}


@pytest.mark.parametrize(
    ("requirement", "extra"),
    [
        ("numpy>=2.0", ""),
        ("numpy>=2.0,<3", ""),
        ('matplotlib>=3.9; extra == "plots"', "plots"),
        ("tomli; python_version < '4' and extra == 'data'", "data"),
        ("tomli; python_version < '3' and extra == 'data'", None),
        ("tomli; python_version < '3'", None),
        ('archipel[plots,parquet]; extra == "test"', "test"),
    ],
)
def test_a_requirement_belongs_to_an_extra_or_to_the_core(requirement: str, extra: str | None) -> None:
    assert extra_of(Requirement(requirement)) == extra


@pytest.mark.parametrize(
    ("version", "needed", "works"),
    [
        ("2.10", ">=2.9", True),
        ("2", ">=2.0.1", False),
        ("2.13.0+cpu", ">=2.13", True),
        ("2.0rc1", ">=2.0", False),
        ("3.0rc1", ">=2.0", True),
        ("3.1", ">=2.0,<3", False),
        ("1", "", True),
        (None, "", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str | None, needed: str, works: bool) -> None:
    assert Package("numpy", version, SpecifierSet(needed), "").works is works


STUDY = """
title = "ways"
algorithms = [{{name = "fedavg"}}, {{name = "fedprox"}}]
ending = {{rounds = 1}}
model = {{name = "net.py:net"}}
[data]
source = "digits"
split.learners = 3
"""
NET = """
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        y = self.head(x)
        return y if {condition} else 2 * y

def net():
    return Branches()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "execution", "advice"),
    [("y.sum() > 0", "workers", "torch.where"), ("self.training", "stacked", "")],
    ids=["a branch", "none"],
)
def test_it_tells_how_a_study_is_trained_and_what_to_change(
    condition: str, execution: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET.format(condition=condition))
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format())
    found = json.loads(asked(str(study), "--json").stdout)
    assert [one["method"] for one in found] == ["fedavg", "fedprox"]
    assert {one["execution"] for one in found} == {execution}
    assert all(advice in one["advice"] and bool(one["reason"]) == bool(advice) for one in found)
    shown = asked(str(study)).stdout
    assert execution in shown
    assert ("It costs speed" in shown) == bool(advice)

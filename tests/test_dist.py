"""The project's outside: one version, workflows that can run, and a wheel that works without the source tree."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import archipel as ap
from archipel import algorithms
from archipel.cli import program

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "archipel"

# ------------------------------------------------------------------------------------------------------------ version


def test_the_version_is_told_everywhere_as_in_the_package() -> None:
    assert importlib.metadata.version("archipel") == ap.__version__
    assert CliRunner().invoke(program.app, ["--version"]).stdout == f"{ap.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == ap.__version__


def test_the_changelog_has_the_version_below_what_is_unreleased() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", ap.__version__]


def test_workflows_and_contributors_make_what_is_there() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    steps = [
        step for path in workflows for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]
    ]
    made = {command[1] for step in steps if (command := step.get("run", "").split())[:1] == ["make"]}
    assert {"lint", "test", "coverage", "docs", "dist"} <= made <= targets
    told = set(re.findall(r"^    make (\w+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert told
    assert told <= targets


def test_the_citation_names_methods_that_are_there() -> None:
    references = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    assert len(references) == 5
    named = {name for paper in references for name in paper["notes"].removeprefix("In Archipel: ").split(", ")}
    assert named <= set(algorithms.__all__)


# ----------------------------------------------------------------------------------------------------------- archives


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the settings of this environment; return what it prints."""
    environment: dict[str, Any] = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV_", "PYTEST"))
    }
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, env={**environment, "COLUMNS": "120"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both archives as `make dist` does: the wheel from the unpacked source archive."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("archipel-*.whl")
    return path


@pytest.mark.slow
def test_the_archives_have_all_sources_and_data(dist: Path, wheel: Path) -> None:
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".pyi", ".toml", ".html", ".typed", ".md")
    }
    assert package <= set(zipfile.ZipFile(wheel).namelist())
    (archive,) = dist.glob("archipel-*.tar.gz")
    with tarfile.open(archive) as packed:
        sources = {name.partition("/src/")[2] for name in packed.getnames()}
    native = {path.relative_to(ROOT / "src").as_posix() for path in (PACKAGE / "kernels" / "native").glob("*.[ch]")}
    assert native
    assert package | native <= sources


@pytest.mark.slow
def test_the_wheel_runs_the_demo_outside_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    """Install the wheel into a fresh environment and run two rounds of the demo.

    Only the wheel is installed. Its dependencies are this environment's, found over a .pth file behind the fresh
    environment's own packages, so that nothing is downloaded; that pip can resolve them is not tested here.
    """
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    told = json.loads(
        run(
            python,
            "-c",
            "import archipel, importlib.metadata as m, json;"
            "print(json.dumps([archipel.__file__, m.version('archipel')]))",
            cwd=tmp_path,
        )
    )
    assert told == [str(site / "archipel" / "__init__.py"), ap.__version__]
    command = tmp_path / "venv" / "bin" / "archipel"
    assert run(command, "--version", cwd=tmp_path) == f"{ap.__version__}\n"
    assert "fedavg" in run(command, "run", "-a", "fedavg", "-s", "ending.rounds=2", cwd=tmp_path)
    (report,) = (tmp_path / "results").rglob("index.html")
    assert "fedavg" in report.read_text()
    # a compiler here is a compiler for the wheel too
    here, there = (
        {path.name.partition(".")[0] for path in (package / "native").glob("*.so")}
        for package in (PACKAGE, site / "archipel")
    )
    assert there == here

"""`setup.py`: one wheel for every Python, and a build that fails aloud."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = re.findall(r'f"(archipel[\w.]*)\.\{kind\}"', (ROOT / "setup.py").read_text())[0].replace(".", "/")

pytest.importorskip("setuptools")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the same setup.py, and next to nothing to compile."""
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "archipel"\nversion = "1"\n')
    folder = tmp_path / "src" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "answer.c").write_text("int archipel_answer(void) { return 42; }\n")
    return tmp_path


def run(project: Path, *command: str, **environment: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *command],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def wheel(project: Path, **environment: Any) -> tuple[str, list[str], str]:
    """The wheel's name, its files beside the metadata, and what was printed to stderr."""
    told = run(project, "bdist_wheel", **environment).stderr
    (made,) = (project / "dist").iterdir()
    with ZipFile(made) as archive:
        names = [Path(name).name for name in archive.namelist() if name.startswith(PACKAGE)]
    return made.name, sorted(names), told


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_a_wheel_is_for_every_python_of_a_platform(project: Path) -> None:
    name, files, told = wheel(project)
    assert re.fullmatch(r"archipel-1-py3-none-(?!any)\w+\.whl", name)
    assert "default.so" in files
    assert not any(file.endswith(".failed.txt") for file in files)
    assert "was not compiled" not in told


@pytest.mark.slow
def test_a_build_that_fails_tells_why(project: Path) -> None:
    name, files, told = wheel(project, CC="no-such-compiler")
    assert name.startswith("archipel-1-py3-none-")
    assert "default.failed.txt" in files
    assert not any(file.endswith(".so") for file in files)
    assert re.search("archipel: the C library default.so was not compiled: .*no-such-compiler", told)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_an_older_library_does_not_outlive_a_failed_build(project: Path) -> None:
    folder = project / "src" / PACKAGE
    run(project, "build_ext", "--inplace")
    assert (folder / "default.so").exists()
    run(project, "build_ext", "--inplace", CC="no-such-compiler")
    assert not (folder / "default.so").exists()
    assert "no-such-compiler" in (folder / "default.failed.txt").read_text()
    run(project, "build_ext", "--inplace")
    assert not (folder / "default.failed.txt").exists()
    assert (folder / "default.so").exists()

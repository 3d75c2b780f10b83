"""The library's C under sanitisers: no access beside what was given, nothing undefined, no race between threads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import archipel.kernels.native

SOURCES = Path(archipel.kernels.native.__file__).parent
DRIVER = Path(__file__).with_name("perceptrons.c")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    quiet = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # looking for leaks needs rights that a container has not
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=quiet)


def compiled(sanitisers: str, source: Path, to: Path) -> Path:
    options = (f"-fsanitize={sanitisers}", "-fno-sanitize-recover=all", "-std=gnu11", "-O1", "-g", "-Wno-psabi")
    told = run("gcc", *options, f"-I{SOURCES}", source, "-o", to, "-lm", "-lpthread")
    assert told.returncode == 0, told.stderr
    return to


@pytest.fixture
def there(sanitisers: str, tmp_path: Path) -> None:
    """Skip where there is no compiler, or the sanitiser does not run."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    (tmp_path / "nothing.c").write_text("int main(void) { return 0; }")
    try:
        told = run(compiled(sanitisers, tmp_path / "nothing.c", tmp_path / "nothing"))
    except AssertionError as error:
        pytest.skip(f"gcc has no sanitiser {sanitisers}: {error}")
    if told.returncode != 0:
        pytest.skip(f"{sanitisers} does not run here: {told.stderr}")


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("sanitisers", "threads"), [("address,undefined", 1), ("thread", 4)])
def test_perceptrons_of_random_shapes(sanitisers: str, threads: int, tmp_path: Path) -> None:
    told = run(compiled(sanitisers, DRIVER, tmp_path / "perceptrons"), "300", str(threads))
    assert told.returncode == 0, told.stdout + told.stderr

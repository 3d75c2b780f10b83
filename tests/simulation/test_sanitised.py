"""All C sources under sanitisers: no access out of bounds, no undefined behaviour, no data race."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import archipel.kernels.native

pytestmark = pytest.mark.slow

SOURCES = Path(archipel.kernels.native.__file__).parent
DRIVERS = Path(__file__).parent

MEMORY, RACES = "address,undefined", "thread"
MARCH = {"default": (), "avx2": ("-march=x86-64-v3",), "avx512": ("-march=x86-64-v4",)}
KINDS = {"AVX512": ("default", "avx512"), "AVX2": ("default", "avx2")}
"""The shortest and the longest vectors of each kind of processor: they decide what is read beyond an end."""

CASES = [
    *((driver, MEMORY, kind) for driver in ("perceptrons", "merges", "convolutions") for kind in MARCH),
    *((driver, RACES, "default") for driver in ("perceptrons", "merges", "convolutions")),
]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    # LeakSanitizer needs ptrace, which containers deny
    environment: dict[str, Any] = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=environment)


def compiled(source: Path, to: Path, sanitisers: str, kind: str = "default") -> Path:
    options = (
        f"-fsanitize={sanitisers}",
        "-fno-sanitize-recover=all",
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wno-psabi",
    )
    exact = "-ffp-contract=off"  # so that a driver's plain loop gives the same bits
    done = run("gcc", *options, *MARCH[kind], exact, f"-I{SOURCES}", source, "-o", to, "-lm", "-lpthread")
    assert done.returncode == 0, done.stderr
    return to


@cache
def why_not(sanitisers: str) -> str | None:
    """Return why this sanitiser cannot be used: there is no compiler, or it does not run."""
    if shutil.which("gcc") is None:
        return "there is no gcc"
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "empty.c"
        source.write_text("int main(void) { return 0; }")
        try:
            done = run(compiled(source, Path(place) / "empty", sanitisers))
        except AssertionError as error:
            return f"gcc has no sanitiser {sanitisers}: {error}"
    return f"the sanitiser {sanitisers} does not run here: {done.stderr}" if done.returncode else None


@pytest.mark.parametrize(("driver", "sanitisers", "kind"), CASES)
def test_random_shapes(driver: str, sanitisers: str, kind: str, tmp_path: Path) -> None:
    if (reason := why_not(sanitisers)) is not None:
        pytest.skip(reason)
    if kind not in KINDS.get(torch.backends.cpu.get_cpu_capability(), ("default",)):
        pytest.skip(f"{kind} is neither the least nor the most of this processor")
    arguments = ["40", "4"]
    if driver == "perceptrons" and sanitisers == MEMORY:  # ThreadSanitizer supports no threads after a fork
        arguments += ["fork"]
    done = run(compiled(DRIVERS / f"{driver}.c", tmp_path / driver, sanitisers, kind), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_source_has_a_driver() -> None:
    included = "".join(path.read_text() for path in DRIVERS.glob("*.c"))
    assert [source.name for source in SOURCES.glob("*.c") if f'#include "{source.name}"' not in included] == []

"""The C library: what is loaded, what is refused and why, and what its threads do when a process ends or forks."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import archipel.kernels.native
from archipel.kernels.native import structs
from archipel.kernels.native.library import Library, load, load_from
from tests.ways import needs_library

FOLDER = Path(archipel.kernels.native.__file__).parent

# ----------------------------------------------------------------------------------------------------------- loading


@needs_library
def test_what_is_loaded() -> None:
    found = load()
    assert (found.loaded is not None, found.reason) == (True, "")
    assert (FOLDER / f"{found.kind}.so").exists()


def test_one_that_was_not_built(tmp_path: Path) -> None:
    assert load_from(tmp_path, "avx2") == Library("avx2", None, "none was built for a processor of kind avx2")


def test_one_whose_build_failed(tmp_path: Path) -> None:
    (tmp_path / "avx2.failed.txt").write_text("avx2.so was not compiled: no cc\n")
    assert load_from(tmp_path, "avx2") == Library("avx2", None, "avx2.so was not compiled: no cc")


def test_one_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "avx2.so").write_text("text")
    with pytest.warns(RuntimeWarning, match=r"avx2\.so is not used, and torch computes instead: .*Install Archipel"):
        found = load_from(tmp_path, "avx2")
    assert found.loaded is None
    assert found.reason.startswith("avx2.so cannot be used: ")


class Longer(ctypes.Structure):
    _fields_ = (*structs.TrainingStruct._fields_, ("more", ctypes.c_int64))


class Swapped(ctypes.Structure):
    _fields_ = (
        *structs.TrainingStruct._fields_[:2],
        *structs.TrainingStruct._fields_[3:1:-1],
        *structs.TrainingStruct._fields_[4:],
    )


@needs_library
@pytest.mark.parametrize("other", [Longer, Swapped])
def test_one_with_other_structs_is_refused(other: type[ctypes.Structure], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(structs.STRUCTS, "training", other)
    with pytest.warns(RuntimeWarning, match="compiled from other sources: struct training has the offsets"):
        found = load_from(FOLDER, load().kind)
    assert found.loaded is None
    assert "in C and" in found.reason


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_one_that_describes_no_structs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.c").write_text("int archipel_wait(void) { return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "old.c", "-o", tmp_path / "avx2.so"], check=True)
    with pytest.warns(RuntimeWarning, match="it does not describe struct task"):
        assert load_from(tmp_path, "avx2").loaded is None


# ---------------------------------------------------------------------------------------------------- ending and forks

ENDING = """
import os, sys
import torch
from tests.simulation.perceptrons import case
from tests.simulation.test_native_threads import begun

torch.get_num_threads = lambda: 4  # for the library alone: threads of torch's own crash in a fork's exit handlers
at_hand = case(64, 64, 10, examples=2000)
begun(at_hand)[0].wait()  # the workers have started
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        begun(at_hand)[0].wait()
        left = begun(at_hand)
        sys.exit(0)  # runs the handlers in the child
    assert os.waitpid(child, 0)[1] == 0
left = begun(at_hand)
print("alive")
"""


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("way", ["alone", "fork"])
def test_a_process_ends_while_workers_are_busy(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", ENDING, way],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr

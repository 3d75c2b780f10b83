"""Load the compiled library, or find out why there is none."""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from archipel.kernels.native.structs import mismatch


class Library(NamedTuple):
    """The library for this processor."""

    kind: str
    """Of the processor, as torch calls it: default, avx2 or avx512."""
    loaded: ctypes.CDLL | None
    reason: str
    """Why it was not loaded; empty if it was."""


def library() -> ctypes.CDLL | None:
    """Return the library that was compiled for this kind of processor, or None if there is none."""
    return load().loaded


@cache
def load() -> Library:
    """Load the library once; warn if there is one that cannot be used."""
    return load_from(Path(__file__).parent, torch.backends.cpu.get_cpu_capability().lower())


def load_from(folder: Path, kind: str) -> Library:
    path, failure = folder / f"{kind}.so", folder / f"{kind}.failed.txt"  # as setup.py names them
    if not path.exists():
        known = failure.read_text().strip() if failure.exists() else f"none was built for a processor of kind {kind}"
        return Library(kind, None, known)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error)
    else:
        different = mismatch(loaded)
        if different is None:
            return Library(kind, loaded, "")
        reason = f"it was compiled from other sources: {different}"
    warnings.warn(
        f"The C library {path} is not used, and torch computes instead: {reason}. Install Archipel again.",
        RuntimeWarning,
        stacklevel=2,
    )
    return Library(kind, None, f"{path.name} cannot be used: {reason}")

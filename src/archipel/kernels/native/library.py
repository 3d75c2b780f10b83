"""The compiled library, if there is one."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch


@cache
def library() -> ctypes.CDLL | None:
    """What was compiled for this kind of machine when Archipel was installed; None where there was no compiler."""
    kind = torch.backends.cpu.get_cpu_capability().lower()
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"{kind}{suffix}")
        if path.exists():
            return ctypes.CDLL(str(path))
    return None

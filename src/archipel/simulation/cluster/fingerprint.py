"""What must be the same on all nodes for the same bits: versions, code, and the processor's instructions."""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy
import torch

from archipel.kernels.native.library import load
from archipel.kernels.products import one_dnn_is_faster

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, also outside the environment: `pip install --user`, path files."""
COMPARED = frozenset({"archipel", "torch", "numpy", *sys.stdlib_module_names, "__main__"})
"""Packages that a `Fingerprint` covers, and what is always sent along."""


@dataclass(frozen=True)
class Fingerprint:
    """What the bits of a result depend on beside its inputs."""

    archipel: str
    """Hash of Archipel's own files."""
    python: str
    torch: str
    numpy: str
    processor: str
    """The instructions that torch uses, and whether oneDNN makes large products."""
    native: str
    """The variant of Archipel's C library, or why there is none."""

    def differences(self, other: Fingerprint) -> list[str]:
        """Describe what differs: "torch 2.13.0 here, 2.12.0 there"."""
        return [
            f"{field.name} {mine} here, {theirs} there"
            for field in fields(self)
            if (mine := getattr(self, field.name)) != (theirs := getattr(other, field.name))
        ]


@cache
def fingerprint() -> Fingerprint:
    """Return the fingerprint of this process."""
    return Fingerprint(
        archipel=_source_hash(Path(__file__).parents[2]),
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=numpy.__version__,
        processor=torch.backends.cpu.get_cpu_capability() + (" with oneDNN" if one_dnn_is_faster() else ""),
        native=load().kind if load().loaded is not None else "absent",
    )


def _source_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# --------------------------------------------------------------------------- code of other packages that a network uses


def installed_code(objects: Iterable[object]) -> dict[str, str]:
    """Return the hashes of the installed modules that define these objects, their classes and base classes.

    The user's own modules are not among them: they are sent along.
    """
    found: dict[str, str] = {}
    for thing in objects:
        kinds = type(thing).__mro__ if not isinstance(getattr(thing, "__qualname__", None), str) else (thing,)
        for kind in kinds:
            name = str(getattr(kind, "__module__", None))
            module = sys.modules.get(name)
            if name not in found and name.split(".")[0] not in COMPARED and module and not is_users(module):
                found[name] = _file_hash(module)
    return found


def code_differences(expected: Mapping[str, str]) -> list[str]:
    """Describe which installed modules differ here from those of the driver."""
    mine = {name: _file_hash(importlib.import_module(name)) for name in expected}
    return [f"{name} {there} here, {mine[name]} there" for name, there in expected.items() if mine[name] != there]


def is_users(module: object) -> bool:
    """Return whether a module is neither installed nor a part of Python or Archipel."""
    path = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not path or module.__name__.split(".")[0] in ("archipel", "__main__"):
        return False
    if not INSTALLED.isdisjoint(Path(path).parts):
        return False
    return not any(Path(path).is_relative_to(prefix) for prefix in {sys.prefix, sys.base_prefix})


def _file_hash(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12] if path else "no file"

"""The user's own code in a study: "network.py:Net" or "package.module:Net"."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from archipel.core.checks import nearest, require


def is_own(name: str) -> bool:
    return ":" in name


def load(name: str, folder: Path) -> Callable[..., Any]:
    """What stands behind the colon, from a file beside the study or from an installed package."""
    place, _, attribute = name.rpartition(":")
    module = _file(folder / place) if place.endswith(".py") else _package(place, name)
    if not hasattr(module, attribute):
        known = [known for known in vars(module) if not known.startswith("_")]
        hint = f" Did you mean {nearest(attribute, known)!r}?" if known else ""
        raise ValueError(f"{name!r}: {place} has no {attribute!r}.{hint}")
    found = getattr(module, attribute)
    require(callable(found), f"{name!r} should be a function or a class, got {found!r}.")
    return found  # type: ignore[no-any-return]


def _package(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise ValueError(
            f"{name!r}: {error}. Install the package, or name a file beside the study: 'file.py:name'."
        ) from None


def _file(path: Path) -> ModuleType:
    path = path.resolve()
    require(path.is_file(), f"There is no file {path}. Paths in a study start from the study's own folder.")
    # one module for one content, so that what it defines is the same class wherever it is asked for, and what was
    # changed in between, as in a notebook, is read again
    content = path.read_bytes()
    called = f"archipel_own_code.{path.stem}_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if called in sys.modules:
        return sys.modules[called]
    spec = importlib.util.spec_from_file_location(called, path, loader=_AsRead(called, path, content))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module
    sys.path.insert(0, str(path.parent))  # it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[called]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


class _AsRead(SourceFileLoader):
    """Compiles what was read: Python takes bytecode for fresh if its source was written within the same second."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, self.path)

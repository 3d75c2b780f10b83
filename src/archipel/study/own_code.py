"""Find a study's own code: "network.py:Net", or where it is allowed "package.module:Net" (decision 0039)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal, TypeAlias

from torch import nn

from archipel.core.checks import nearest, require


@dataclass(frozen=True)
class ApprovedCode:
    """Files beside a study that a site has approved, by name and SHA-256; no other code is run."""

    files: tuple[tuple[str, str], ...]

    def read(self, path: Path) -> bytes:
        """Return the contents of a file; raise unless they are the ones approved."""
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        approved = dict(self.files).get(path.name)
        require(
            approved == digest,
            f"{path.name} has the SHA-256 {digest}, and the site file approves {approved or 'no file of that name'}. "
            f'Read it, and if you trust it, put this under [code] there: "{path.name}" = "{digest}".',
        )
        return content


Code: TypeAlias = Literal["none", "beside", "any"] | ApprovedCode
"""Which code a study may run: none, the files beside it that it names, installed modules and other folders too, or
files beside it that were approved."""


def is_own(name: str) -> bool:
    return ":" in name


@dataclass(frozen=True)
class OwnCode:
    """The code that one study may run, found by name and checked before anything of it is called."""

    folder: Path
    """The study's folder."""
    allowed: Code = "beside"

    def part(self, name: str, kind: type) -> Callable[..., Any]:
        """Find a class of this kind; nothing else can stand in an expression."""
        found, _ = self._find(name)
        require(_is_a(found, kind), f"{name!r} should be a class derived from {kind.__name__}, got {found!r}.")
        return found  # type: ignore[no-any-return]

    def maker(self, name: str, kind: type) -> Callable[..., Any]:
        """Find a class of this kind, or a function that returns one."""
        found, module = self._find(name)
        require(
            _is_a(found, kind) or self._is_function_of(found, module),
            f"{name!r} should be a class derived from {kind.__name__}, or a function that is defined in that file and "
            f"returns one, got {found!r}.",
        )
        return found  # type: ignore[no-any-return]

    def loss(self, name: str) -> Callable[..., Any]:
        """Find a function of outputs and targets, or a torch module that is one."""
        found, module = self._find(name)
        require(
            isinstance(found, nn.Module) or self._is_function_of(found, module),
            f"{name!r} should be a function that is defined in that file, or a torch.nn.Module, got {found!r}.",
        )
        return found  # type: ignore[no-any-return]

    def _find(self, name: str) -> tuple[Any, ModuleType]:
        place, _, attribute = name.rpartition(":")
        file = place.endswith(".py")
        # subfolders hold virtual environments, and with them installed modules
        beside = file and Path(place).name == place
        require(
            self.allowed == "any" or (self.allowed != "none" and beside),
            f"{name!r} is code that may not run without --allow-code: a study runs files beside it, as in "
            "'file.py:name', and a dry "
            'run none. Read it, and if you trust it, give --allow-code (in Python: code="any"), or where a site file '
            "approves code, put it beside the study and approve it there.",
        )
        module = _file(self.folder / place, self.allowed) if file else _package(place, name)
        if not hasattr(module, attribute):
            known = [known for known in vars(module) if not known.startswith("_")]
            hint = f" Did you mean {nearest(attribute, known)!r}?" if known else ""
            raise ValueError(f"{name!r}: {place} has no {attribute!r}.{hint}")
        return getattr(module, attribute), module

    def _is_function_of(self, found: Any, module: ModuleType) -> bool:
        """Return whether it is a function that the file defines, or with code="any" one from elsewhere."""
        if not callable(found) or isinstance(found, type):
            return False
        inner = inspect.unwrap(found)
        return inspect.isfunction(inner) and (self.allowed == "any" or inner.__module__ == module.__name__)


def _is_a(found: Any, kind: type) -> bool:
    return isinstance(found, type) and issubclass(found, kind)


def _package(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise ValueError(
            f"{name!r}: {error}. Install the package, or name a file beside the study: 'file.py:name'."
        ) from None


def _file(path: Path, allowed: Code) -> ModuleType:
    path = Path(os.path.realpath(path))  # a cyclic link counts as a missing file
    require(path.is_file(), f"There is no file {path}. Paths in a study start from the study's own folder.")
    # one module for each content: the same file gives the same classes, and a file that has changed, as in a
    # notebook, is read again
    content = allowed.read(path) if isinstance(allowed, ApprovedCode) else path.read_bytes()
    called = f"archipel_own_code.{path.stem}_{hashlib.sha256(str(path).encode() + content).hexdigest()[:16]}"
    if called in sys.modules:
        return sys.modules[called]
    spec = importlib.util.spec_from_file_location(called, path, loader=_AsRead(called, path, content))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module
    try:
        with _neighbours_of(path, allowed):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[called]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def _neighbours_of(path: Path, allowed: Code) -> Iterator[None]:
    """Let a file import the modules beside it; where code has to be approved, the approved ones."""
    before = [*sys.path]
    if isinstance(allowed, ApprovedCode):
        finder = _ApprovedFinder(path.parent, allowed)
        sys.path[:] = [entry for entry in before if os.path.realpath(entry) != str(path.parent)]
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            sys.path[:] = before
    else:
        sys.path.insert(0, str(path.parent))
        try:
            yield
        finally:
            sys.path.remove(str(path.parent))


class _ApprovedFinder(MetaPathFinder):
    """Find approved modules in one folder."""

    def __init__(self, folder: Path, approved: ApprovedCode) -> None:
        self.folder = folder
        self.approved = approved

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.folder / f"{fullname}.py"
        if path is not None or not file.is_file():
            return None
        loader = _AsRead(fullname, file, self.approved.read(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


class _AsRead(SourceFileLoader):
    """Compile the source that was read: Python would use old bytecode of a file that changed within the same second."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, self.path)

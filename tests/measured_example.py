"""Examples that measure something and write a page: their measure.py as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_measure(name: str) -> ModuleType:
    """Return measure.py of an example."""
    spec = importlib.util.spec_from_file_location(f"measure_{name}", EXAMPLES / name / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module

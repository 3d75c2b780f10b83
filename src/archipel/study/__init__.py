"""Studies: a file that says what to run, its runs, and the folder of their results."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archipel.study.files import read_study
    from archipel.study.results import load_results, run_study
    from archipel.study.schema import Study
else:
    # imported when they are asked for: `archipel algorithms` reads docstrings with study.docs and needs no schema
    _HOMES = {"Study": "schema", "load_results": "results", "read_study": "files", "run_study": "results"}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'archipel.study' has no attribute {name!r}")
        return getattr(importlib.import_module(f"archipel.study.{_HOMES[name]}"), name)


__all__ = ["Study", "load_results", "read_study", "run_study"]

"""Archipel: federated learning on islands of data that differ in what they hold and how fast they compute."""

import gc
import importlib
import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for true; typing is not imported, as Ctrl-C is not handled yet

if TYPE_CHECKING:
    __all__: list[str]
    from archipel import algorithms as algorithms
    from archipel import data as data
    from archipel import models as models
    from archipel.algorithms import *  # noqa: F403  (the constructors are the front door)
    from archipel.core import parts as parts
    from archipel.core import records as records
    from archipel.core.algorithm import Algorithm as Algorithm
    from archipel.core.checks import ArchipelWarning as ArchipelWarning
    from archipel.core.layout import Layout as Layout
    from archipel.core.parts import *  # noqa: F403  (so are the parts they are made of)
    from archipel.core.types import Cycle as Cycle
    from archipel.core.types import Plan as Plan
    from archipel.runs.load import load_run as load_run
    from archipel.runs.run import Run as Run
    from archipel.simulation.cluster.connection import Cluster as Cluster
    from archipel.simulation.fleet import Fleet as Fleet
    from archipel.simulation.fleet import Group as Group
    from archipel.simulation.simulate import simulate as simulate
    from archipel.study import load_results as load_results
    from archipel.study import read_study as read_study
    from archipel.study import run_study as run_study
else:
    # Everything is imported when it is first asked for: torch takes a second and pydantic with the studies' schema
    # another third, and `archipel --help` needs neither. Type checkers see the imports above instead, so that a name
    # that does not exist is still an error to them.
    _MODULES = {
        "algorithms": "algorithms",
        "data": "data",
        "models": "models",
        "parts": "core.parts",
        "records": "core.records",
    }
    _HOMES = {
        "Algorithm": "core.algorithm",
        "ArchipelWarning": "core.checks",
        "Cluster": "simulation.cluster.connection",
        "Cycle": "core.types",
        "Fleet": "simulation.fleet",
        "Group": "simulation.fleet",
        "Layout": "core.layout",
        "Plan": "core.types",
        "Run": "runs.run",
        "load_results": "study",
        "load_run": "runs.load",
        "read_study": "study",
        "run_study": "study",
        "simulate": "simulation.simulate",
    }

    _FOUND: list[str] = []

    def _submodules() -> list[str]:
        if not _FOUND:  # the folder is read once: many tools ask each module for names that it does not have
            import pkgutil  # imported late: it takes longer than the rest of this module

            _FOUND.extend(module.name for module in pkgutil.iter_modules(__path__))  # noqa: F405
        return _FOUND

    def _imported(name: str) -> object:
        """Import a module without garbage collection, which would go through all of torch and find nothing."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return importlib.import_module(f"archipel.{name}")
        finally:
            if collects:
                gc.enable()

    def __getattr__(name: str) -> object:
        if name in _MODULES or (name not in _HOMES and name in _submodules()):
            return _imported(_MODULES.get(name, name))
        if name in _HOMES:
            value = getattr(_imported(_HOMES[name]), name)
        else:
            algorithms, parts = _imported("algorithms"), _imported("core.parts")
            if name == "__all__":
                value = [*algorithms.__all__, *parts.__all__, *sorted([*_HOMES, *_MODULES])]
            elif name in algorithms.__all__:
                value = getattr(algorithms, name)
            elif name in parts.__all__:
                value = getattr(parts, name)
            else:
                # with its name and module, Python itself tells the nearest name
                raise AttributeError(
                    f"module 'archipel' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
                )
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*__getattr__("__all__"), *_submodules(), *(name for name in globals() if name.startswith("__"))})

"""Archipel: federated learning on islands of data that differ in what they hold and how fast they compute."""

from archipel import algorithms, data, models, parts, records
from archipel.algorithm import Algorithm
from archipel.algorithms import *  # noqa: F403  (the constructors are the front door)
from archipel.checks import ArchipelWarning
from archipel.durability.run_folder import load_run
from archipel.engines.fleet import Fleet, Group
from archipel.experiment import simulate
from archipel.layout import Layout
from archipel.parts import *  # noqa: F403  (so are the parts they are made of)
from archipel.run import Run
from archipel.study import load_results, read_study, run_study
from archipel.types import Cycle, Plan

__version__ = "0.1.0"

__all__ = [
    *algorithms.__all__,
    *parts.__all__,
    "Algorithm",
    "ArchipelWarning",
    "Cycle",
    "Fleet",
    "Group",
    "Layout",
    "Plan",
    "Run",
    "algorithms",
    "data",
    "load_results",
    "load_run",
    "models",
    "parts",
    "read_study",
    "records",
    "run_study",
    "simulate",
]

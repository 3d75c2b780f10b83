from pathlib import Path

import pytest
import torch

# one thread everywhere: small products do not gain from a second, and tests run side by side
torch.set_num_threads(1)

WHOLE_RUNS = (
    "benchmarks",
    "cli",
    "core/test_crash_anywhere.py",
    "core/test_properties.py",
    "data",
    "simulation",
    "federation/test_chaos.py",
    "federation/test_commands.py",
    "federation/test_conformance.py",
    "federation/test_faults.py",
    "federation/test_learners.py",
    "federation/test_malformed.py",
    "federation/test_review.py",
    "algorithms",
    "report/test_figures_look.py",
    "report/test_page.py",
    "report/test_report_command.py",
    "papers/test_reproduction.py",
    "papers/test_smoke.py",
    "security/test_connections.py",
    "security/test_folders.py",
    "security/test_joining.py",
    "security/test_reports.py",
    "security/test_shares.py",
    "security/test_withdrawing.py",
    "security/test_honest_controllers.py",
    "study/test_study_runs.py",
    "trackers",
    "test_docs.py",
    "test_examples.py",
    "test_first_program.py",
)
"""Tests that run simulations or split whole data sets: they are slow together, even where each is quick."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here)
        if any(place.is_relative_to(path) for path in WHOLE_RUNS):
            item.add_marker(pytest.mark.slow)

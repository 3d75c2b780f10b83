from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Stores on this disk, one for all tests: wandb reads its environment once, and MLflow's takes seconds to make."""
    place = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.delenv("WANDB_PROJECT", raising=False)
        yield place


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow puts artefacts where the program runs."""
    monkeypatch.chdir(tmp_path)

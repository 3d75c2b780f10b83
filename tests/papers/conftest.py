"""Tests of reproductions read the real files, leave the user's cache alone, and run in one process."""

from pathlib import Path

import pytest

from tests.forked import composed
from tests.real_files import REAL


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if REAL.is_dir():
        monkeypatch.setenv("ARCHIPEL_DATA", str(REAL))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("archipel.study.results.cores", lambda: 1)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", composed)  # tests/report renders

"""Tests of reproductions read the real files, leave the user's cache alone, and run in one process."""

from pathlib import Path

import pytest

from tests.forked import composed
from tests.real_files import REAL


@pytest.fixture(scope="session")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests: decoding a data set takes longer than most runs."""
    return tmp_path_factory.mktemp("decoded")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, decoded: Path) -> None:
    if REAL.is_dir():
        monkeypatch.setenv("ARCHIPEL_DATA", str(REAL))
    monkeypatch.setenv("XDG_CACHE_HOME", str(decoded))
    monkeypatch.setattr("archipel.study.results.cores", lambda: 1)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", composed)  # tests/report renders

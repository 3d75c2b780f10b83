"""Tests of data keep away from the user's cache and from the network."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archipel.data import download, fetch
from tests.real_files import REAL


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for data and an empty cache, without Debian's packages and without a network."""

    def offline(url: str, *_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("ARCHIPEL_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(download, "get", offline)
    yield data
    # decoded sets are large, and pytest keeps folders of several runs
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.fixture
def real(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the real files."""
    monkeypatch.setenv("ARCHIPEL_DATA", str(REAL))
    return REAL

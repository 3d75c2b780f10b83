"""Runs that others are compared with, and authorities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from archipel.federation.security.authority import create_authority, issue
from archipel.federation.security.certificates import YEAR
from tests.federation.hand_made import Left, crash, run


@pytest.fixture(scope="session")
def without(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A run in which the learner's first task simply failed."""
    return run(tmp_path_factory.mktemp("without"), crash)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A run in which nothing happened."""
    return run(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with everybody that should get through, and some that should not."""
    folder, now = tmp_path_factory.mktemp("authority") / "ca", datetime.now(UTC)
    create_authority(folder)
    issue(folder, "controller", hosts=["localhost", "127.0.0.1"])
    issue(folder, "learner", "hospital-1")
    issue(folder, "learner", "hospital-2")
    issue(folder, "learner", "stranger")
    issue(folder, "operator", "alice")
    issue(folder, "learner", "expired", at=now - timedelta(days=2 * YEAR))
    issue(folder, "learner", "early", at=now + timedelta(days=9))
    return folder


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another authority, which gives the same names."""
    folder = tmp_path_factory.mktemp("other") / "ca"
    create_authority(folder)
    issue(folder, "controller", hosts=["localhost"])
    issue(folder, "learner", "hospital-1")
    return folder

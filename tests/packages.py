"""Skip tests of extras whose package is not installed, without importing it: that takes seconds for some."""

from __future__ import annotations

import importlib.util

import pytest


def needs_package(name: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test if a package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is an extra")

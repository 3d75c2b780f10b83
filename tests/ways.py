"""Native execution in tests: it is there only where a C compiler was when Archipel was installed."""

from __future__ import annotations

import pytest

from archipel.kernels.native.library import library

needs_library = pytest.mark.skipif(library() is None, reason="Archipel was installed without a C compiler")
NATIVE = pytest.param("native", marks=needs_library)
CHOSEN = "stacked" if library() is None else "native"
"""The way that is chosen for a small perceptron under cross entropy."""

"""The handwritten digits of scikit-learn, which need no download."""

from __future__ import annotations

from archipel.data.in_memory import from_arrays
from archipel.data.source import Source


def digits() -> Source:
    """Load 1,797 handwritten digits of 8 x 8 pixels between 0 and 1, in 10 classes."""
    # imported late: scikit-learn takes a second to load
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return from_arrays(x / 16, y, name="digits")

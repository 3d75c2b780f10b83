"""Types of numpy arrays that the modules of this package exchange."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
"""Indices, labels, counts."""
FloatArray: TypeAlias = NDArray[np.float64]
"""Shares and tables of examples before they are rounded."""
BoolArray: TypeAlias = NDArray[np.bool_]
"""Masks of examples, and which learner holds which class."""

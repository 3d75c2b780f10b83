"""A loss that waits while the file $HOLD exists: a test holds a learner in the middle of its training."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import Tensor
from torch.nn.functional import cross_entropy


def loss(output: Tensor, target: Tensor) -> Tensor:
    hold = Path(os.environ.get("HOLD", ""))
    while output.requires_grad and hold.is_file():  # it is tried once before there is any training
        hold.with_suffix(".reached").touch()
        time.sleep(0.005)
    return cross_entropy(output, target)

"""What is looked at in an update before anybody relies on it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from archipel.core.layout import Layout
from archipel.federation.controller.uploads import Expected, UpdateCheck, received
from archipel.federation.storage.blobs import Blobs
from archipel.federation.storage.stored_models import StoredModels
from archipel.federation.wire.body import Bodies, InvalidUpdate, fingerprint


class Ending(nn.Module):
    """A network whose last layer has no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 1)
        self.last = nn.ParameterList([nn.Parameter(torch.zeros(0))])


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_hash_of_an_empty_layer_is_compared(tmp_path: Path, honest: bool, at_once: bool) -> None:
    layout = Layout.of(Ending())
    bodies, models = Bodies(layout), StoredModels(layout, Blobs(tmp_path))
    numbers = np.arange(layout.size, dtype=np.float32)
    first, last = (
        hashlib.sha256(numbers.data).hexdigest(),
        hashlib.sha256(b"" if honest else b"something").hexdigest(),
    )
    header = bodies.header((0, 1))
    body = header + numbers.tobytes()
    digests = dict(zip(layout.names, (first, last), strict=True))
    expected = Expected("v0", digests, (0, 1), len(body), fingerprint(header, (first, last)))
    check = UpdateCheck(expected, bodies, models, None)

    def look() -> int:
        if at_once:
            return received(body, check).start
        for place in range(0, len(body), 3):
            check.check(body[place : place + 3])
        return check.passed()

    if honest:
        assert look() == len(header)
    else:
        with pytest.raises(InvalidUpdate, match="not the announced one"):
            look()

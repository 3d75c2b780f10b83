"""A running simulation on disk: everything that a resumed run needs to reach the same bits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from archipel.core import members, records, state, types
from archipel.core.checks import require
from archipel.simulation import clock, evaluations, network
from archipel.simulation.record_file import RecordFile
from archipel.simulation.simulator import Simulator
from archipel.storage.dataclass_codec import Codec

CODEC = Codec(types, records, members, state, clock, evaluations, network)
FORMAT = 5
"""The format of the file; other formats cannot be read."""


class Checkpoint:
    """One file in a folder, which is replaced whole, and beside it the records, which are appended to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoint.safetensors"
        self._records: RecordFile | None = None
        self._identities: dict[Simulator, dict[str, Any]] = {}
        """What a simulation has to be resumed with, found once: it takes as long as the data are large."""

    def exists(self) -> bool:
        """Return whether a simulation was saved here."""
        return self.path.exists()

    def save(self, simulator: Simulator) -> None:
        """Write the simulation to the file."""
        if self._records is None or self._records.log is not simulator.records:
            self._records = RecordFile.beside(self.path, simulator.records)
        saved = {"simulator": simulator.save(), "records": self._records.append()}
        _codec(simulator).save(self.path, {"of": self._identity(simulator), **saved})
        self._records.remove_others()

    def load(self, simulator: Simulator) -> None:
        """Restore the saved state in a simulator that was prepared with the same settings."""
        saved = _codec(simulator).load(self.path)
        for what, own in self._identity(simulator).items():
            found = saved["of"].get(what)
            require(
                found == own,
                f"{self.path} is of another run: its {what} is {found}, this one's is {own}. "
                "Resume with the same settings, or give another folder.",
            )
        self._records = RecordFile.load(self.path.parent, saved["records"])
        simulator.load(saved["simulator"])
        simulator.records = self._records.log

    def _identity(self, simulator: Simulator) -> dict[str, Any]:
        if simulator not in self._identities:
            self._identities = {simulator: _identity(simulator)}
        return self._identities[simulator]


def _codec(simulator: Simulator) -> Codec:
    return CODEC.also(*simulator.controller.algorithm.memories())


def _identity(simulator: Simulator) -> dict[str, Any]:
    """Return what must be the same for a run to be resumed."""
    controller, context = simulator.controller, simulator.context
    return {
        "checkpoint format": FORMAT,
        "algorithm": repr(controller.algorithm),
        "ending": repr(controller.ending),
        "evaluation": repr(controller.evaluation),
        "seed": controller.state.seed,
        "layers": ", ".join(f"{layer.name}:{layer.size}" for layer in context.layout.layers),
        "network": repr(context.module),
        "execution": simulator.executor.name,
        "loss": getattr(context.loss, "__qualname__", repr(context.loss)),
        "shadow or other observers": [type(observer).__name__ for observer in simulator.observers],
        "norms": controller.norms,
        "data and fleet": _data_hash(simulator),
    }


def _data_hash(simulator: Simulator) -> str:
    context, evaluated, sites = simulator.context, simulator.evaluations, simulator.sites
    rows = sites.data.rows
    digest = hashlib.sha256()
    digest.update(f"{rows.names} {sites.fleet!r} {sites.validation} {sites.seed}".encode())
    for numbers in (rows.roles, sites.assigned, rows.train.starts, rows.tests.sizes):
        digest.update(numbers.tobytes())
    for tensor in (rows.train.indices, rows.tests.used, context.x, context.y, evaluated.test, evaluated.stimuli):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

"""Save a finished run in a folder, for people, other tools and Archipel.

    run.json             the run: algorithm, seed, learners, layout, totals, versions
    records.jsonl        everything that happened, one record a line
    records.parquet      the same as one flat table, where pyarrow is installed
    model.safetensors    the model by the names of its tensors, without frozen weights, of which run.json has the hash
    model.pt             the same as a plain state_dict, for torch.load(path, weights_only=True)
    private.safetensors  the layers that learners kept, as <learner>/<tensor>, if there are any
    personal.safetensors the models that learners have of their own, as <learner>/<tensor>, if there are any

Nothing is unpickled when it is read: model.pt is for other programs, Archipel reads model.safetensors.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from archipel.runs.final_score import final_score
from archipel.runs.record_lines import record_line
from archipel.runs.run_data import RunData
from archipel.runs.versions import versions
from archipel.storage.atomic_files import write_lines, write_text

FORMAT = 1
"""To be raised when an older Archipel could not read the folder."""

PLAIN = (
    "name",
    "algorithm",
    "seed",
    "settings",
    "tuned",
    "fold",
    "metric",
    "scored_at",
    "scored_mean",
    "seconds",
    "rounds",
    "budget",
    "reason",
    "execution",
    "traffic",
)
"""Fields of a run that are JSON as they are."""


def save_run(run: RunData, folder: str | os.PathLike[str], parquet: bool = True) -> None:
    """Write the folder; run.json comes last, so that a folder that has one is complete.

    Without `parquet` the flat table is left out: pyarrow takes as much memory as some hundred learners' connections.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").unlink(missing_ok=True)
    write_lines(folder / "records.jsonl", map(record_line, run.records))
    if parquet and importlib.util.find_spec("pyarrow"):
        _write_parquet(run, folder / "records.parquet")
    tensors = run.state_dict()
    save_file({name: tensors[name] for name in tensors if name not in run.layout.tied}, folder / "model.safetensors")
    torch.save(tensors, folder / "model.pt")
    if run.private:
        save_file(dict(_private_tensors(run)), folder / "private.safetensors")
    if run.personal:
        save_file(dict(_personal_tensors(run)), folder / "personal.safetensors")
    write_text(folder / "run.json", json.dumps(_description(run), indent=2) + "\n")


def _description(run: RunData) -> dict[str, object]:
    """Return the content of run.json."""
    final = final_score(run)
    return {
        "format": FORMAT,
        **{name: getattr(run, name) for name in PLAIN},
        "execution_reason": run.execution_reason,
        "final_score": None if math.isnan(final) else final,
        "score": None if math.isnan(run.score) else run.score,
        "fingerprint": run.fingerprint(),
        "versions": versions(),
        "participants": [dataclasses.asdict(participant) for participant in run.participants],
        "bytes_by_layer": run.layers,
        "tied": dict(run.layout.tied),
        "frozen": None if run.layout.frozen is None else dataclasses.asdict(run.layout.frozen),
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "module": layer.module,
                "buffers": layer.buffers,
                "adapts": layer.adapts,
                "tensors": [
                    [entry.name, list(entry.shape), str(entry.dtype).removeprefix("torch."), entry.start, entry.stop]
                    for entry in layer.entries
                ],
            }
            for layer in run.layout.layers
        ],
    }


def _write_parquet(run: RunData, path: Path) -> None:
    """Write the records as one flat table."""
    # imported late and by name: it is an extra
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    rows = run.rows()
    columns = dict.fromkeys(column for row in rows for column in row)
    parquet.write_table(arrow.table({column: [row.get(column) for row in rows] for column in columns}), path)


def _private_tensors(run: RunData) -> Iterable[tuple[str, Tensor]]:
    """Yield the tensors that learners kept, by their names in the file."""
    for learner, kept in run.private.items():
        tensors = run.layout.tensors(run.layout.with_layers(run.model, kept))
        for name in kept:
            for entry in run.layout.layers[run.layout.index(name)].entries:
                yield f"{learner}/{entry.name}", tensors[entry.name].clone()


def _personal_tensors(run: RunData) -> Iterable[tuple[str, Tensor]]:
    """Yield the tensors of the learners' own models, by their names in the file."""
    for learner, vector in run.personal.items():
        for name, tensor in run.layout.tensors(vector).items():
            yield f"{learner}/{name}", tensor.clone()

"""A finished run in a folder, to be read by people, by other tools and by Archipel again.

    run.json             what it was: algorithm, seed, learners, layout, totals, versions
    records.jsonl        everything that happened, one record a line
    records.parquet      the same as one flat table, where pyarrow is installed
    model.safetensors    the model by the names of its tensors
    model.pt             the same as a plain state_dict, for torch.load(path, weights_only=True)
    private.safetensors  the layers that learners kept, as <learner>/<tensor>, if there are any

Nothing is unpickled when it is read: model.pt is for others, Archipel reads model.safetensors.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from archipel.core import records
from archipel.core.layout import Entry, Layer, Layout
from archipel.core.records import Stamped
from archipel.runs.run import Participant, Run
from archipel.storage.files import write_text

FORMAT = 1
"""Raise it when an older Archipel could not read the folder."""

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(records.Record)}


def save_run(run: Run, folder: str | os.PathLike[str], parquet: bool = True) -> None:
    """Write the folder; run.json comes last, so that a folder with one is whole.

    Without `parquet` the flat table is left out: pyarrow takes as much memory as some hundred learners' connections.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").unlink(missing_ok=True)
    write_text(folder / "records.jsonl", "".join(line(stamped) + "\n" for stamped in run.records))
    if parquet and importlib.util.find_spec("pyarrow"):
        write_parquet(run, folder / "records.parquet")
    tensors = run.state_dict()
    save_file({name: tensors[name] for name in tensors if name not in run.layout.tied}, folder / "model.safetensors")
    torch.save(tensors, folder / "model.pt")
    if run.private:
        save_file(dict(private_tensors(run)), folder / "private.safetensors")
    write_text(folder / "run.json", json.dumps(description(run), indent=2) + "\n")


def load_run(folder: str | os.PathLike[str]) -> Run:
    """The run that was saved."""
    folder = Path(folder)
    try:
        told = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no finished run: there is no run.json in it.") from None
    except ValueError as error:
        raise ValueError(f"{folder / 'run.json'} is damaged: {error}. Run it again.") from None
    if told.get("format", 0) > FORMAT:
        raise ValueError(
            f"{folder} was saved by a newer Archipel: its format is {told['format']}, this one reads up to {FORMAT}. "
            "Update Archipel."
        )
    try:
        if "budget" not in told:  # it was saved before final scores were taken over a budget
            by_rounds = told["reason"].endswith(("local rounds made", "commits made"))
            told["budget"] = "rounds" if by_rounds else "seconds"
        layout = Layout(tuple(map(layer_of, told["layers"])), told["tied"])
        return Run(
            layout=layout,
            model=layout.joined(load_file(folder / "model.safetensors")),
            private=load_private(folder / "private.safetensors", layout),
            records=tuple(map(stamped_of, (folder / "records.jsonl").read_text().splitlines())),
            participants=tuple(Participant(**{**one, "labels": tuple(one["labels"])}) for one in told["participants"]),
            layers=told["bytes_by_layer"],
            **{name: told[name] for name in PLAIN},
        )
    except (KeyError, TypeError, ValueError, OSError, SafetensorError, ValidationError) as error:
        raise ValueError(f"{folder} is damaged or not whole: {error}. Run it again.") from None


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    packages = ("archipel", "numpy", "safetensors", "scikit-learn", "torch")
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
        "machine": f"{platform.system()} {platform.machine()}",
    }


# ------------------------------------------------------------------------------------------------------- run.json

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


def description(run: Run) -> dict[str, object]:
    return {
        "format": FORMAT,
        **{name: getattr(run, name) for name in PLAIN},
        "final_score": None if math.isnan(run.final_score) else run.final_score,
        "score": None if math.isnan(run.score) else run.score,
        "fingerprint": run.fingerprint(),
        "versions": versions(),
        "participants": [dataclasses.asdict(participant) for participant in run.participants],
        "bytes_by_layer": run.layers,
        "tied": dict(run.layout.tied),
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "module": layer.module,
                "buffers": layer.buffers,
                "tensors": [
                    [entry.name, list(entry.shape), str(entry.dtype).removeprefix("torch."), entry.start, entry.stop]
                    for entry in layer.entries
                ],
            }
            for layer in run.layout.layers
        ],
    }


def layer_of(told: dict[str, Any]) -> Layer:
    entries = tuple(
        Entry(name, tuple(shape), getattr(torch, dtype), start, stop)
        for name, shape, dtype, start, stop in told["tensors"]
    )
    return Layer(told["name"], told["kind"], told["module"], told["buffers"], entries)


# --------------------------------------------------------------------------------------------------------- records


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """Made when it is needed: a controller that begins needs none."""
    return TypeAdapter(KINDS[kind])


def line(stamped: Stamped) -> str:
    """A record as JSON; numbers that are not finite are the words NaN, Infinity and -Infinity."""
    kind = type(stamped.record).__name__
    told = _adapter(kind).dump_python(stamped.record)
    return json.dumps({"time": stamped.time, "record": kind, **speakable(told)}, separators=(",", ":"), allow_nan=False)


def speakable(value: Any) -> Any:
    """JSON has no word for numbers that are not finite."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: speakable(item) for key, item in value.items()}
    return [speakable(item) for item in value] if isinstance(value, list | tuple) else value


def stamped_of(text: str) -> Stamped:
    told = json.loads(text)
    time, kind = told.pop("time"), told.pop("record")
    return Stamped(time, _adapter(kind).validate_python(told))


def write_parquet(run: Run, path: Path) -> None:
    # imported late and by name: it is an extra
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    rows = run.rows()
    columns = dict.fromkeys(column for row in rows for column in row)
    parquet.write_table(arrow.table({column: [row.get(column) for row in rows] for column in columns}), path)


# --------------------------------------------------------------------------------------------------------- tensors


def private_tensors(run: Run) -> Iterable[tuple[str, Tensor]]:
    for learner, kept in run.private.items():
        tensors = run.state_dict(learner)
        for name in kept:
            for entry in run.layout.layers[run.layout.index(name)].entries:
                yield f"{learner}/{entry.name}", tensors[entry.name]


def load_private(path: Path, layout: Layout) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    if not path.exists():
        return found
    tensors = load_file(path)
    owner = {entry.name: layer.name for layer in layout.layers for entry in layer.entries}
    for full in tensors:
        learner, _, name = full.rpartition("/")
        layer = layout.layers[layout.index(owner[name])]
        if layer.name not in found.setdefault(learner, {}):
            pieces = [tensors[f"{learner}/{entry.name}"].flatten().float() for entry in layer.entries]
            found[learner][layer.name] = torch.cat(pieces)
    return found

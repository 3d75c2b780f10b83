"""Read a run's folder, as `archipel.runs.save` describes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from archipel.core.frozen_weights import FrozenWeights
from archipel.core.layout import Layer, Layout, TensorSlot
from archipel.runs.record_lines import parse_record
from archipel.runs.run import Run
from archipel.runs.run_data import Participant
from archipel.runs.save import FORMAT, PLAIN


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Return the run that was saved in a folder."""
    folder = Path(folder)
    try:
        saved = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no finished run: there is no run.json in it.") from None
    except ValueError as error:
        raise ValueError(f"{folder / 'run.json'} is damaged: {error}. Run it again.") from None
    if saved.get("format", 0) > FORMAT:
        raise ValueError(
            f"{folder} was saved by a newer Archipel: its format is {saved['format']}, this one reads up to {FORMAT}. "
            "Update Archipel."
        )
    try:
        if "budget" not in saved:  # runs saved by versions without final scores over a budget
            by_rounds = saved["reason"].endswith(("local rounds made", "commits made"))
            saved["budget"] = "rounds" if by_rounds else "seconds"
        layout = Layout(tuple(map(_layer, saved["layers"])), saved["tied"], _frozen(saved.get("frozen")))
        return Run(
            layout=layout,
            model=layout.joined(load_file(folder / "model.safetensors")),
            private=_private(folder / "private.safetensors", layout),
            personal=_personal(folder / "personal.safetensors", layout),
            records=tuple(map(parse_record, (folder / "records.jsonl").read_text().splitlines())),
            participants=tuple(Participant(**{**one, "labels": tuple(one["labels"])}) for one in saved["participants"]),
            layers=saved["bytes_by_layer"],
            **{name: saved[name] for name in PLAIN},
            execution_reason=saved.get("execution_reason", ""),  # earlier versions did not store it
        )
    except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged or incomplete: {error}. Run it again.") from None


def _layer(saved: dict[str, Any]) -> Layer:
    """Return a layer of the layout that run.json describes."""
    entries = tuple(
        TensorSlot(name, tuple(shape), getattr(torch, dtype), start, stop)
        for name, shape, dtype, start, stop in saved["tensors"]
    )
    return Layer(saved["name"], saved["kind"], saved["module"], saved["buffers"], entries, saved.get("adapts", ""))


def _frozen(saved: dict[str, Any] | None) -> FrozenWeights | None:
    """Return what run.json says of the frozen weights."""
    return None if saved is None else FrozenWeights(**{**saved, "types": tuple(saved["types"])})


def _private(path: Path, layout: Layout) -> dict[str, dict[str, Tensor]]:
    """Return the layers that learners kept, by learner and layer."""
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


def _personal(path: Path, layout: Layout) -> dict[str, Tensor]:
    """Return the models that learners have of their own."""
    found: dict[str, dict[str, Tensor]] = {}
    for full, tensor in load_file(path).items() if path.exists() else ():
        learner, _, name = full.rpartition("/")
        found.setdefault(learner, {})[name] = tensor
    return {learner: layout.joined(tensors) for learner, tensors in found.items()}

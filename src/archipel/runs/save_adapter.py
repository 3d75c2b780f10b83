"""Save the adapters of a run in a folder that PEFT reads."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from archipel.core.checks import require
from archipel.runs.run_data import RunData
from archipel.storage.atomic_files import write_text

ADAPTER = "default"
"""The name that PEFT gives to the first adapter of a network; its files are without it."""
BLOCK = re.compile(r"(?<=\.lora_[AB])\.rank(\d+)")
"""The name of a further block of an adapter whose ranks differ between learners, where it stands in a path."""
PROMPTS = "prompt_encoder.default.embedding.weight"
"""What prompt tuning trains, and PEFT calls `prompt_embeddings`."""
OTHER_NAMES = ("P_TUNING", "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "VBLORA")
"""Adapters that PEFT saves under names, or in a form, of their own."""


def save_adapter(run: RunData, folder: str | os.PathLike[str], learner: str | None = None) -> None:
    """Write adapter_config.json and adapter_model.safetensors; learner: whose private layers are taken."""
    frozen = run.layout.frozen
    require(
        frozen is not None and bool(frozen.adapter_config),
        f"save_adapter: the network of {run.name} has no adapters of PEFT; save the whole run with run.save(folder).",
    )
    assert frozen is not None
    config = json.loads(frozen.adapter_config)
    require(
        config["peft_type"] not in OTHER_NAMES,
        f"save_adapter: PEFT saves {config['peft_type']} in a form of its own; load run.state_dict() into the module "
        "with strict=False, and save that with its save_pretrained.",
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_renamed(run.state_dict(learner), frozen.adapter_path), folder / "adapter_model.safetensors")
    write_text(folder / "adapter_config.json", json.dumps({**config, "inference_mode": True}, indent=2) + "\n")


def _renamed(tensors: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """Return the tensors by the names that PEFT looks for, without the path of the wrapped network."""
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for name, tensor in tensors.items():
        inside = name.removeprefix(f"{path}." if path else "")
        if inside == PROMPTS:
            inside = "prompt_embeddings"
        inside = inside.replace(f".modules_to_save.{ADAPTER}", "").replace(f".{ADAPTER}", "")
        found.setdefault(BLOCK.sub("", inside), []).append((_rank(inside), tensor))
    return {name: _joined(name, blocks) for name, blocks in found.items()}


def _rank(name: str) -> int:
    """Return the rank that a block of an adapter ends at; 0 for the first one, and for what has no blocks."""
    block = BLOCK.search(name)
    return 0 if block is None else int(block.group(1))


def _joined(name: str, blocks: list[tuple[int, Tensor]]) -> Tensor:
    """Return the factor of the whole adapter: its blocks are one behind the other in order of their ranks."""
    tensors = [tensor for _, tensor in sorted(blocks, key=lambda block: block[0])]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=0 if ".lora_A." in name else 1)

"""Save the adapters of a run in a folder that PEFT reads."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

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
ENCODER = f"prompt_encoder.{ADAPTER}."
"""Paths of an adapter's prompts, or of the network that computes them."""
PROMPTS = f"{ENCODER}embedding.weight"
"""What prompt tuning trains, and PEFT calls `prompt_embeddings`."""
ENCODERS = {"P_TUNING": "PromptEncoder", "PREFIX_TUNING": "PrefixEncoder"}
"""The class of PEFT that computes the prompts of an adapter from what trains."""
WITH_FROZEN_PARTS = ("CARTRIDGE", "CPT", "SHADOW")
"""Adapters whose file holds more than what trains."""
FULL = {"save_projection": False, "save_only_topk_weights": False}
"""Settings of PEFT for a file with all that trains, and without what is drawn again from a seed."""


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
        config["peft_type"] not in WITH_FROZEN_PARTS,
        f"save_adapter: the file of {config['peft_type']} holds more than what trains; load run.state_dict() into the "
        "module with strict=False, and save that with its save_pretrained.",
    )
    tensors = _with_prompts(_inside(run.state_dict(learner), frozen.adapter_path), config)
    saved = config | {name: value for name, value in FULL.items() if name in config} | {"inference_mode": True}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_renamed(tensors), folder / "adapter_model.safetensors")
    write_text(folder / "adapter_config.json", json.dumps(saved, indent=2) + "\n")


def _inside(tensors: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """Return the tensors by their names inside the network that PEFT has wrapped, which is at a path."""
    return {name.removeprefix(f"{path}." if path else ""): tensor for name, tensor in tensors.items()}


def _with_prompts(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Replace the encoder of prompts by the prompts that it computes: PEFT loads nothing else."""
    encoder = {name.removeprefix(ENCODER): tensor for name, tensor in tensors.items() if name.startswith(ENCODER)}
    if len(encoder) < 2:  # the prompts themselves train
        return tensors
    import peft  # imported late: it is an extra, and its import takes seconds

    made = getattr(peft, ENCODERS[config["peft_type"]])(peft.get_peft_config(dict(config))).eval()
    made.load_state_dict(encoder)
    with torch.no_grad():
        prompts = made(torch.arange(config["num_virtual_tokens"]).unsqueeze(0))[0]
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(ENCODER)} | {PROMPTS: prompts}


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by the names that PEFT looks for."""
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for inside, tensor in tensors.items():
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

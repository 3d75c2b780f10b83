"""The work of `benchmarks.adapters`: a network, adapters and texts, without Archipel: all contenders read it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEARNERS, RANK, RATE, BATCH, LENGTH, BATCHES = 8, 8, 1e-3, 8, 32, 2
SIZES = {"vocab_size": 259, "num_attention_heads": 8, "max_position_embeddings": LENGTH, "model_type": "llama"}
SMALL: dict[str, Any] = {**SIZES, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8}
LARGE: dict[str, Any] = {**SIZES, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14}
LORA = {"r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}


def letters(learners: int) -> Tensor:
    """Return random letters, [example, position], for so many learners and a few more to score at the end."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(97, 123, (learners * BATCHES * BATCH + 8, LENGTH), generator=draw)

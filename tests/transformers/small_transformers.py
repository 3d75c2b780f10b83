"""Transformers of a few thousand parameters with random weights, and texts to read."""

from __future__ import annotations

from typing import Any

import archipel as ap
from archipel.data import Source
from tests.packages import needs_package

needs_peft = needs_package("peft")

SIZES = {
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
LLAMA: dict[str, Any] = {"model_type": "llama", "num_key_value_heads": 2, **SIZES}
BERT: dict[str, Any] = {"model_type": "bert", "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, **SIZES}

TEXTS = ["to be or not to be", "all the world's a stage", "now is the winter", "a horse, a horse, my kingdom"] * 6
ROLES = ["hamlet", "jaques", "richard", "richard"] * 6


def spoken(task: Any = "causal-lm", **how: Any) -> Source:
    """Lines of roles, or, for a classification, the roles as labels."""
    labels = ROLES if task == "sequence-classification" else None
    settings: dict[str, Any] = {"length": 16, "labels": labels, "sites": ROLES, **how}
    return ap.data.from_texts(TEXTS, task=task, **settings)

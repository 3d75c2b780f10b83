"""Networks of Hugging Face's transformers, whole or frozen with adapters of PEFT; extra `hf`."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from archipel.core.checks import one_of, require
from archipel.core.types import TextTask

Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]

HEADS: dict[str, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}
"""The class of transformers that each task takes."""
PEFT_TASKS = {
    "causal-lm": "CAUSAL_LM",
    "masked-lm": "FEATURE_EXTRACTION",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
}


def from_hf(
    base: str | os.PathLike[str] | Mapping[str, Any],
    task: TextTask = "causal-lm",
    lora: int | Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
    classes: int | None = None,
    precision: Precision = "float32",
    autocast: Precision | None = None,
    checkpointing: bool = False,
) -> nn.Module:
    """Build a transformer for texts: all of it trains, or adapters alone and the base is frozen.

    base: a folder that `save_pretrained` made; or a config such as {"model_type": "llama", "hidden_size": 64}, whose
    weights are drawn at random. Nothing is downloaded.
    task: causal-lm, masked-lm, sequence-classification or token-classification.
    lora: the rank of LoRA adapters, or the arguments of `peft.LoraConfig`; with "ranks" such as [4, 8] instead of "r",
    learners may have any of these ranks (`LoraRanks`). None: no LoRA.
    adapter: any other adapter of PEFT: its peft_type, such as "IA3", and the arguments of its config.
    classes: labels of a classification.
    precision: type of the frozen weights: float32, bfloat16 or float16. What trains is float32.
    autocast: type that products are computed in, as by `torch.autocast`; None: in that of the weights.
    checkpointing: compute activations again in the backward pass instead of keeping them.
    """
    one_of("from_hf", "task", task, HEADS)
    one_of("from_hf", "precision", precision, ("float32", "bfloat16", "float16"))
    require(lora is None or adapter is None, "from_hf: lora and adapter are both given; give one of them.")
    require(
        precision == "float32" or lora is not None or adapter is not None,
        f"from_hf: precision={precision!r} is for frozen weights, and without an adapter all of them train; give "
        "lora=8, or precision='float32'.",
    )
    require(
        classes is None or task.endswith("classification"),
        f"from_hf: classes={classes} is for a classification, and the task is {task}; leave it out.",
    )
    network = _network(base, task, classes, getattr(torch, precision))
    network.config.use_cache = False
    if lora is not None or adapter is not None:
        network = _adapted(network, task, _lora(lora) if lora is not None else dict(adapter or {}))
    if checkpointing:
        getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)(
            {"use_reentrant": False}
        )
        network.enable_input_require_grads()
    return TextNetwork(network, per_token=task != "sequence-classification", autocast=autocast or "")


class TextNetwork(nn.Module):
    """A transformer that reads texts, [example, token ids or attention mask, position], and returns logits.

    The padding that all texts of a batch end in is cut off, so outputs for tokens may be fewer than positions.
    """

    def __init__(self, network: nn.Module, per_token: bool, autocast: str) -> None:
        super().__init__()
        self.network = network
        self.per_token = per_token
        self.autocast = autocast

    def forward(self, x: Tensor) -> Tensor:
        ids, mask = x.unbind(dim=1)
        length = max(1, int(mask.sum(dim=1).max()))
        ids, mask = ids[:, :length], mask[:, :length]
        self._check(ids)
        with self._computing(x.device.type):
            logits: Tensor = self.network(input_ids=ids, attention_mask=mask).logits
        # adapters of prompts put virtual tokens before the text
        return (logits[:, -length:] if self.per_token else logits).float()

    def _computing(self, device: str) -> contextlib.AbstractContextManager[object]:
        if not self.autocast:
            return contextlib.nullcontext()
        return torch.autocast(device, getattr(torch, self.autocast))

    def _check(self, ids: Tensor) -> None:
        config: Any = self.network.config
        most, known = getattr(config, "max_position_embeddings", None), config.vocab_size
        require(
            most is None or ids.shape[1] <= most,
            f"A text has {ids.shape[1]} tokens, and the model takes {most}; cut the texts with length={most}, or take "
            "a model for longer ones.",
        )
        largest = int(ids.max())
        require(
            largest < known,
            f"A text holds the token {largest}, and the model knows {known}: it was made by another tokenizer than the "
            "model's. Give the tokenizer that belongs to the model.",
        )


def _network(base: str | os.PathLike[str] | Mapping[str, Any], task: str, classes: int | None, dtype: Any) -> Any:
    """Return the network with the weights of a folder, or with random ones."""
    transformers = _package("transformers")
    kind = getattr(transformers, HEADS[task])
    labels = {} if classes is None else {"num_labels": classes}
    if isinstance(base, Mapping):
        settings = {**base, **labels}
        require("model_type" in settings, f"from_hf: the config {dict(base)} has no model_type, such as 'llama'.")
        config = transformers.AutoConfig.for_model(**settings)
        return kind.from_config(config, dtype=dtype)
    require(
        (Path(base) / "config.json").is_file(),
        f"from_hf: there is no config.json in {os.fspath(base)!r}. Give a folder that model.save_pretrained made; "
        "nothing is downloaded.",
    )
    return kind.from_pretrained(os.fspath(base), local_files_only=True, dtype=dtype, **labels)


def _lora(lora: int | Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(lora) if isinstance(lora, Mapping) else {"r": lora, "lora_alpha": 2 * lora}
    return {"peft_type": "LORA", **settings}


def _adapted(network: Any, task: str, settings: dict[str, Any]) -> Any:
    """Return the network, frozen, with adapters that train."""
    peft = _package("peft")
    known = sorted(kind.value for kind in peft.PeftType)
    one_of("from_hf", "peft_type", str(settings.get("peft_type")), known)
    first, further = _blocks(settings)
    try:
        adapted = peft.get_peft_model(network, peft.get_peft_config({"task_type": PEFT_TASKS[task], **first}))
        for rank, block in further:
            adapted.add_adapter(f"rank{rank}", peft.get_peft_config({"task_type": PEFT_TASKS[task], **block}))
        _use_blocks(adapted, ["default", *(f"rank{rank}" for rank, _ in further)])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"from_hf: the adapter {settings} does not fit this model: {str(error).rstrip('.')}."
        ) from None
    for part in adapted.modules():
        own = [parameter for parameter in part.parameters(recurse=False) if parameter.requires_grad]
        for parameter in own:
            if parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
        if own and not hasattr(part, "adapter_layer_names"):
            part.register_forward_pre_hook(_in_float32)
    return adapted


def _blocks(settings: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    """Return the settings of an adapter; of one with several ranks, those of the first block and of each further one.

    A block is an adapter of its own, and all are active at once. They have one scale, so together they are the adapter
    of the highest rank.
    """
    if "ranks" not in settings:
        return settings, []
    others = {name: value for name, value in settings.items() if name != "ranks"}
    ranks = settings["ranks"]
    clear = isinstance(ranks, Sequence) and len(ranks) > 1 and all(type(rank) is int for rank in ranks)
    require(
        clear and ranks[0] > 0 and all(low < high for low, high in pairwise(ranks)),
        f"from_hf: lora ranks should be two or more in ascending order, such as [4, 8], got {ranks!r}.",
    )
    strange = [name for name in ("r", "use_dora", "use_rslora", "rank_pattern", "alpha_pattern") if others.get(name)]
    require(
        settings["peft_type"] == "LORA" and not strange,
        f"from_hf: lora with ranks={list(ranks)} goes with plain LoRA, without {', '.join(strange) or 'another type'}.",
    )
    scale = others.pop("lora_alpha", 2 * ranks[-1]) / ranks[-1]
    sizes = [high - low for low, high in pairwise([0, *ranks])]
    made = [{**others, "r": size, "lora_alpha": scale * size} for size in sizes]
    return made[0], list(zip(ranks[1:], made[1:], strict=True))


def _use_blocks(adapted: Any, names: list[str]) -> None:
    """Make all blocks of an adapter active; what is trained beside them, such as a head, is there once."""
    if len(names) == 1:
        return
    for part in adapted.modules():
        copies = getattr(part, "modules_to_save", None)
        if isinstance(copies, nn.ModuleDict):
            for name in names[1:]:
                copies.pop(name)
        elif hasattr(part, "adapter_layer_names"):
            part.set_adapter(names)


def _in_float32(part: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert what a layer that trains is given: frozen layers before it may compute in half precision."""
    return tuple(one.float() if isinstance(one, Tensor) and one.is_floating_point() else one for one in inputs)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)  # late: it is an extra, and takes seconds
    except ImportError as error:
        raise ImportError(f"from_hf needs {name}: pip install '.[hf]' in the source folder") from error

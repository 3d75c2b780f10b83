"""Networks of Hugging Face's transformers, whole or frozen with adapters of PEFT; extra `hf`."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from archipel.core.checks import at_least, one_of, require
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
CLASSIFIERS = r".*(classifier|score)(\..*)?"
"""The layers that PEFT trains whole where the task is a classification."""
WITHOUT_OTHER_INPUTS = ("MULTITASK_PROMPT_TUNING", "POLY", "XLORA")
"""Adapters that need more than a text: the number of its task, or adapters that are trained already."""
STARTS = ("gaussian", "orthogonal", "olora", "pissa")
"""First weights of LoRA that follow from the frozen ones and a seed."""
MISTAKES = (ValueError, TypeError, KeyError, AttributeError, AssertionError, ArithmeticError, IndexError, RuntimeError)
"""What transformers and PEFT raise for settings that do not fit, by the place where they stumble."""


def from_hf(
    base: str | os.PathLike[str] | Mapping[str, Any],
    task: TextTask = "causal-lm",
    lora: int | Mapping[str, Any] | None = None,
    adapter: Mapping[str, Any] | None = None,
    classes: int | None = None,
    precision: Precision = "float32",
    autocast: Literal["bfloat16", "float16"] | None = None,
    checkpointing: bool = False,
) -> nn.Module:
    """Build a transformer for texts: all of it trains, or adapters alone and the base is frozen.

    base: a folder that `save_pretrained` made; or a config such as {"model_type": "llama", "hidden_size": 64}, whose
    weights are drawn at random. Nothing is downloaded.
    task: causal-lm, masked-lm, sequence-classification or token-classification.
    lora: the rank of LoRA adapters, or the arguments of `peft.LoraConfig`; with "ranks" such as [4, 8] instead of "r",
    learners may have any of these ranks (`LoraRanks`). Without target_modules the layers are those that PEFT names for
    this kind of network, or all linear ones if it names none. None: no LoRA.
    adapter: any other adapter of PEFT: its peft_type, such as "IA3", and the arguments of its config.
    classes: labels of a classification.
    precision: type of the frozen weights: float32, bfloat16 or float16. What trains is float32.
    autocast: type that products are computed in, as by `torch.autocast`; None: in that of the weights.
    checkpointing: compute activations again in the backward pass instead of keeping them.
    """
    one_of("from_hf", "task", task, HEADS)
    one_of("from_hf", "precision", precision, ("float32", "bfloat16", "float16"))
    if autocast is not None:
        one_of("from_hf", "autocast", autocast, ("bfloat16", "float16"))
    if classes is not None:
        at_least(2, "from_hf", classes=classes)
    require(
        adapter is None or isinstance(adapter, Mapping),
        f"from_hf: adapter should be a table such as {{'peft_type': 'IA3'}}, got {adapter!r}.",
    )
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
    if task == "causal-lm":
        _check_direction(network.config)
    network.config.use_cache = False
    _pad(network.config)
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
        # a decoder reads a text's class at the last token that is no padding, and knows it by the number alone
        config: Any = self.network.config
        ids = ids.masked_fill(mask == 0, config.pad_token_id)
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
            most in (None, -1) or ids.shape[1] <= most,
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
        _check_config(settings)
        with _told(settings["model_type"], task):
            return kind.from_config(transformers.AutoConfig.for_model(**settings), dtype=dtype)
    require(
        isinstance(base, str | os.PathLike) and (Path(base) / "config.json").is_file(),
        f"from_hf: there is no config.json in {str(base)!r}. Give a folder that model.save_pretrained made; nothing is "
        "downloaded.",
    )
    with _told(str(base), task):
        return kind.from_pretrained(str(base), local_files_only=True, dtype=dtype, **labels)


def _check_config(settings: Mapping[str, Any]) -> None:
    """Refuse a setting that is misspelt: transformers keeps what it does not know and never reads it."""
    require("model_type" in settings, f"from_hf: the config {dict(settings)} has no model_type, such as 'llama'.")
    kinds = _package("transformers").CONFIG_MAPPING
    one_of("from_hf", "model_type", settings["model_type"], kinds)
    kind = kinds[settings["model_type"]]
    known = {"model_type", "num_labels", *kind.attribute_map, *(field.name for field in fields(kind))}
    for name in settings.keys() - known:  # older configs have names that no longer mean anything: they may stay
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        require(
            not close,
            f"from_hf: a config of {settings['model_type']} has no {name!r}. Did you mean {' '.join(close)!r}?",
        )


@contextlib.contextmanager
def _told(what: str, task: str) -> Iterator[None]:
    """Say in a sentence why transformers has not built a network."""
    from huggingface_hub.errors import StrictDataclassError  # late: they come with the extra
    from safetensors import SafetensorError

    try:
        yield
    except (*MISTAKES, OSError, StrictDataclassError, SafetensorError) as error:
        reason = " ".join(str(error).split("Model type should be one of")[0].split())
        raise ValueError(
            f"from_hf: transformers builds no network for {task} from {what!r}: {reason.rstrip('.:')}."
        ) from error


def _check_direction(config: Any) -> None:
    """Refuse a network that sees the token that it should predict."""
    encoders = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_MASKED_LM_MAPPING_NAMES
    require(
        getattr(config, "is_decoder", False) or config.model_type not in encoders,
        f"from_hf: {config.model_type} reads texts in both directions, so in causal-lm it would see the token that it "
        "should predict; give task='masked-lm', or is_decoder=True in its config.",
    )


def _pad(config: Any) -> None:
    """Choose a token for padding if the network has none; what it is matters to no result, since it is masked."""
    if getattr(config, "pad_token_id", None) is None:
        end = getattr(config, "eos_token_id", None)
        config.pad_token_id = end if isinstance(end, int) and 0 <= end < config.vocab_size else 0


def _lora(lora: int | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of LoRA; by its rank alone, with a scale of two."""
    if not isinstance(lora, Mapping):
        require(
            type(lora) is int and lora > 0,
            f"from_hf: lora should be a rank such as 8, or a table of peft.LoraConfig's arguments, got {lora!r}.",
        )
    settings = dict(lora) if isinstance(lora, Mapping) else {"r": lora, "lora_alpha": 2 * lora}
    return {"peft_type": "LORA", **settings}


def _adapted(network: Any, task: str, settings: dict[str, Any]) -> Any:
    """Return the network, frozen, with adapters that train."""
    peft = _package("peft")
    known = sorted(kind.value for kind in peft.PeftType)
    kind = str(settings.get("peft_type"))
    one_of("from_hf", "peft_type", kind, known)
    require(
        kind not in WITHOUT_OTHER_INPUTS,
        f"from_hf: {kind} needs more than a text, the number of its task or adapters that are trained already, and "
        "examples have none; give another peft_type, such as 'LORA'.",
    )
    if kind == "LORA":
        _check_start(settings)
        settings = _targeted(settings, task, network.config.model_type)
    first, further = _blocks(settings)
    try:
        with warnings.catch_warnings():
            # what PEFT asks of transformers by an old name is not the user's to change
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            adapted = peft.get_peft_model(network, peft.get_peft_config({"task_type": PEFT_TASKS[task], **first}))
        for rank, block in further:
            adapted.add_adapter(f"rank{rank}", peft.get_peft_config({"task_type": PEFT_TASKS[task], **block}))
        _use_blocks(adapted, ["default", *(f"rank{rank}" for rank, _ in further)])
    except MISTAKES as error:
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


def _check_start(settings: dict[str, Any]) -> None:
    """Refuse LoRA whose first weights are not the same at every learner."""
    start = settings.get("init_lora_weights", True)
    require(
        isinstance(start, bool) or start in STARTS,
        f"from_hf: init_lora_weights={start!r} takes the first weights from data, or draws them at each learner; give "
        f"True, False, or one of {', '.join(STARTS)}.",
    )


def _targeted(settings: dict[str, Any], task: str, model_type: str) -> dict[str, Any]:
    """Return the settings of LoRA with the layers that it adapts."""
    if settings.get("target_modules") or settings.get("target_parameters"):
        return settings
    known = importlib.import_module("peft.utils").TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    if model_type in known:
        return {**settings, "target_modules": known[model_type]}
    others = {"exclude_modules": CLASSIFIERS} if task.endswith("classification") else {}
    return {"target_modules": "all-linear", **others, **settings}


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

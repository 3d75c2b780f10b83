"""Frozen parameters: outside a model's vector, never sent, and shared by all copies of a network."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class FrozenWeights:
    """The parameters of a network that do not train."""

    digest: str
    """SHA-256 of their names, types, shapes and numbers; it must be the same at all sites."""
    parameters: int
    """Their count of numbers."""
    types: tuple[str, ...]
    """Their dtypes, such as "bfloat16"."""
    head: str = ""
    """The network's last layer, if that is frozen."""
    adapter_path: str = ""
    """Path of the submodule that PEFT has wrapped; empty if it is the whole network, or none."""
    adapter_config: str = ""
    """PEFT's config of the trained adapters, as JSON; empty if there are none."""
    autocast: str = ""
    """The dtype of matrix products, as `archipel.models.from_hf` sets it; empty: that of the weights."""


def frozen_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the frozen parameters by name, tied ones once."""
    return {name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}


def frozen_weights(module: nn.Module, head: str = "") -> FrozenWeights | None:
    """Describe the frozen parameters; None if there are none. head: the last layer, if it is frozen."""
    frozen = frozen_parameters(module)
    if not frozen:
        return None
    path, config = _adapter(module)
    digest = hashlib.sha256()
    for name, parameter in sorted(frozen.items()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(_bytes(parameter).data)
    return FrozenWeights(
        digest.hexdigest(),
        sum(parameter.numel() for parameter in frozen.values()),
        tuple(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in frozen.values()})),
        head,
        path,
        config,
        str(getattr(module, "autocast", "")),
    )


def _adapter(module: nn.Module) -> tuple[str, str]:
    """Return where PEFT has wrapped a network, and its config as JSON; both are empty without PEFT."""
    for path, part in module.named_modules():
        configs = getattr(part, "peft_config", None)
        if isinstance(configs, dict) and configs:
            config, *further = (own.to_dict() for own in configs.values())
            for block in further:  # an adapter whose ranks differ between learners
                config |= {name: config[name] + block[name] for name in ("r", "lora_alpha")}
            return path, json.dumps(config, default=lambda v: sorted(v) if isinstance(v, set) else str(v))
    return "", ""


def copied(module: M) -> M:
    """Return a copy of a network that shares the frozen parameters with it; hooks of the others are copied too."""
    frozen = {id(parameter): parameter for parameter in frozen_parameters(module).values()}
    try:
        made = copy.deepcopy(module, frozen)
    except Exception as error:
        raise ValueError(
            f"{type(module).__name__} cannot be copied, and learners train on copies of it: {error}. Keep locks, open "
            "files and results of computations out of its attributes."
        ) from None
    for parameter, own in zip(module.parameters(), made.parameters(), strict=True):
        if own is not parameter:
            for hook in (parameter._backward_hooks or {}).values():
                own.register_hook(hook)
            for hook in (_after_backward(parameter) or {}).values():
                own.register_post_accumulate_grad_hook(hook)
    return made


def has_hooks(parameter: nn.Parameter) -> bool:
    """Return whether a parameter has gradient hooks, which may change its gradient."""
    return bool(parameter._backward_hooks or _after_backward(parameter))


def _after_backward(parameter: nn.Parameter) -> dict[int, Callable[[Tensor], None]] | None:
    hooks: dict[int, Callable[[Tensor], None]] | None = parameter._post_accumulate_grad_hooks
    return hooks


def taken_apart(module: M) -> tuple[M, list[NDArray[np.uint8]]]:
    """Return a copy of a network with empty frozen parameters, and their bytes apart."""
    frozen = frozen_parameters(module).values()
    empty = {id(parameter): nn.Parameter(parameter.data.new_empty(0), requires_grad=False) for parameter in frozen}
    return copy.deepcopy(module, empty), [_bytes(parameter) for parameter in frozen]


def put_together(module: nn.Module, shapes: Iterable[torch.Size], numbers: Iterable[Tensor]) -> None:
    """Restore the frozen parameters that `taken_apart` has emptied, without a copy."""
    for parameter, shape, own in zip(frozen_parameters(module).values(), shapes, numbers, strict=True):
        parameter.data = own.view(parameter.dtype).view(shape)


def _bytes(parameter: Tensor) -> NDArray[np.uint8]:
    """Return a tensor's bytes, without a copy where it is contiguous and on the CPU."""
    flat: NDArray[np.uint8] = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat

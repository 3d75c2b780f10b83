"""Self-attention with a shorter backward pass: torch's bits, and torch's own way where it is asked for more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archipel.executors.self_attention import SelfAttention
from archipel.executors.shortcuts import with_shortcuts

LENGTH, BATCH, WIDTH = 6, 5, 12


def outcome(attention: nn.MultiheadAttention, how: dict[str, Any], other: Tensor | None = None) -> list[Tensor]:
    """Return outputs, gradients and the state of the generator after a pass in both directions."""
    torch.manual_seed(3)
    shape = (BATCH, LENGTH, WIDTH) if attention.batch_first else (LENGTH, BATCH, WIDTH)
    x = torch.randn(shape, requires_grad=True)
    key = x if other is None else other
    out, weights = attention(x, key, key, **how)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    assert x.grad is not None
    gradients = [parameter.grad for parameter in attention.parameters() if parameter.grad is not None]
    return [out, x.grad, *gradients, torch.get_rng_state(), *([] if weights is None else [weights])]


CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
WAYS: dict[str, dict[str, Any]] = {
    "alone": {"need_weights": False},
    "causal": {"need_weights": False, "attn_mask": CAUSAL, "is_causal": True},
    "masked": {"need_weights": False, "attn_mask": CAUSAL},
    "padded": {"need_weights": False, "key_padding_mask": torch.arange(LENGTH).repeat(BATCH, 1) > 3},
    "weights": {},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", [{"batch_first": True}, {}, {"bias": False, "dropout": 0.3}], ids=str)
def test_it_comes_to_the_bits_of_torch(way: str, training: bool, settings: dict[str, Any]) -> None:
    torch.manual_seed(1)
    plain = nn.MultiheadAttention(WIDTH, 3, **settings).train(training)
    faster = SelfAttention(copy.deepcopy(plain))
    mine, expected = outcome(faster, WAYS[way]), outcome(plain, WAYS[way])
    assert len(mine) == len(expected)
    assert all(map(torch.equal, mine, expected))


def test_attention_to_another_sequence_is_torchs_own() -> None:
    torch.manual_seed(1)
    plain = nn.MultiheadAttention(WIDTH, 3)
    faster, other = SelfAttention(copy.deepcopy(plain)), torch.randn(4, BATCH, WIDTH)
    way = WAYS["alone"]
    assert all(map(torch.equal, outcome(faster, way, other), outcome(plain, way, other)))


def test_a_transformer_takes_the_shortcut_and_keeps_its_names() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 3, 16, 0.1, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    faster = with_shortcuts(copy.deepcopy(plain))
    assert sum(isinstance(part, SelfAttention) for part in faster.modules()) == 2
    assert [*faster.state_dict()] == [*plain.state_dict()]
    x = torch.randn(BATCH, LENGTH, WIDTH)
    for training in (True, False):
        outputs = []
        for network in (plain, faster):
            torch.manual_seed(5)
            outputs.append(network.train(training)(x))
        assert torch.equal(*outputs)


@pytest.mark.parametrize("settings", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4, "vdim": 4}], ids=str)
def test_attention_with_more_to_it_stays_as_it_is(settings: dict[str, Any]) -> None:
    network = nn.Sequential(nn.MultiheadAttention(WIDTH, 3, **settings))
    assert not any(isinstance(part, SelfAttention) for part in with_shortcuts(network).modules())


def test_attention_that_somebody_listens_to_stays_as_it_is() -> None:
    attention = nn.MultiheadAttention(WIDTH, 3)
    attention.register_forward_hook(lambda *_: None)
    assert with_shortcuts(nn.Sequential(attention))[0] is attention  # type: ignore[index]

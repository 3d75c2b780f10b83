"""Networks of many kinds, each by its config alone: with LoRA where nobody names layers, as classifiers, padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import archipel as ap
from tests.transformers.small_transformers import LLAMA, SIZES, needs_peft, spoken

pytestmark = [needs_peft, pytest.mark.slow]

GPT2 = {"vocab_size": 259, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "mistral": {**SIZES, "num_key_value_heads": 2},
    "qwen2": {**SIZES, "num_key_value_heads": 2},
    "gemma": {**SIZES, "head_dim": 8, "num_key_value_heads": 1},
    "phi3": {**SIZES, "pad_token_id": 0},
    "olmo": SIZES,
    "starcoder2": {**SIZES, "num_key_value_heads": 2},
    "mixtral": {**SIZES, "num_key_value_heads": 2, "num_local_experts": 2},
    "gpt2": GPT2,
    "gpt_neox": SIZES,
    "opt": {**SIZES, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "bloom": {"vocab_size": 259, "hidden_size": 16, "n_layer": 2, "n_head": 2},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": {**SIZES, "max_position_embeddings": 40},
    "distilbert": {"vocab_size": 259, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2},
    "electra": {**SIZES, "embedding_size": 16},
    "deberta-v2": SIZES,
    "albert": {**SIZES, "embedding_size": 8},
    "modernbert": {**SIZES, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
    "camembert": {**SIZES, "max_position_embeddings": 40},
}


def made(kind: str, sizes: dict[str, Any], task: Any, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return ap.models.from_hf({"model_type": kind, **sizes}, task, **settings)


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODERS])
def test_adapters_train_where_nobody_names_layers(kind: str) -> None:
    task: Any = "causal-lm" if kind in DECODERS else "masked-lm"
    sizes = DECODERS.get(kind) or ENCODERS[kind]
    run = ap.simulate(
        ap.fedavg(rate=0.01, batch=4, optimiser="AdamW"),
        spoken(task).split(learners=2, stimuli=0),
        model=lambda: made(kind, sizes, task, lora=2),
        ending=ap.Ending(rounds=1),
    )
    assert all("lora_" in name for name in run.layout.names)
    assert not torch.equal(run.model, run.layout.vector(made(kind, sizes, task, lora=2)))


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODERS])
def test_padding_does_not_change_a_class(kind: str) -> None:
    sizes = DECODERS.get(kind) or ENCODERS[kind]
    network = made(kind, sizes, "sequence-classification", classes=3).eval()
    x = spoken("sequence-classification", length=24).x
    lengths = x[:, 1].sum(dim=1)
    short, longer = int(lengths.argmin()), int(lengths.argmax())
    assert lengths[short] < lengths[longer]
    with torch.no_grad():
        alone = network(x[[short], :, : int(lengths[short])])[0]
        for padding in (0, 7, 200):
            padded = x[[short, longer]].clone()
            padded[:, 0][padded[:, 1] == 0] = padding
            torch.testing.assert_close(network(padded)[0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [*DECODERS, *ENCODERS])
def test_the_layers_that_tell_classes_train_whole(kind: str) -> None:
    sizes = DECODERS.get(kind) or ENCODERS[kind]
    network = made(kind, sizes, "sequence-classification", classes=3, lora=2)
    trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    whole = [name for name in trained if "lora_" not in name]
    assert whole
    assert all("modules_to_save" in name and ("classifier" in name or "score" in name) for name in whole)
    assert any("lora_" in name for name in trained)


def test_a_network_that_reads_both_ways_predicts_no_next_token() -> None:
    with pytest.raises(ValueError, match=r"bert reads texts in both directions, .*give task='masked-lm', or is_decode"):
        made("bert", SIZES, "causal-lm")
    network = made("bert", SIZES | {"is_decoder": True}, "causal-lm").eval()
    x = spoken().x[:1]
    with torch.no_grad():
        seen = network(x)[0, 3]
        x[0, 0, 4:] = 9
        torch.testing.assert_close(network(x)[0, 3], seen)


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not known. Did you mean 'llama'?"),
        (LLAMA | {"hiden_size": 8}, "a config of llama has no 'hiden_size'. Did you mean 'hidden_size'?"),
        (LLAMA | {"hidden_size": "big"}, "builds no network for causal-lm from 'llama': .*hidden_size"),
        (LLAMA | {"hidden_size": -4}, "builds no network for causal-lm from 'llama': .*negative dimension"),
        (LLAMA | {"num_attention_heads": 0}, "builds no network for causal-lm from 'llama': .*zero"),
        ({"model_type": "vit"}, "builds no network for causal-lm from 'vit': Unrecognized configuration class"),
        (7, "there is no config.json in '7'"),
    ],
)
def test_an_invalid_base_network(base: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ap.models.from_hf(base)


@pytest.mark.parametrize("content", ["{nonsense", "{}", '{"model_type": "llama"}'])
def test_a_folder_that_holds_no_network(content: str, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="transformers builds no network for causal-lm from"):
        ap.models.from_hf(tmp_path)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lora": True}, "lora should be a rank such as 8, or a table of peft.LoraConfig's arguments, got True"),
        ({"lora": "8"}, "lora should be a rank such as 8"),
        ({"lora": 0}, "lora should be a rank such as 8"),
        ({"lora": {"r": 2, "bias": "x"}}, "does not fit this model: Requested bias: x"),
        ({"lora": {"r": 2, "init_lora_weights": "eva"}}, "init_lora_weights='eva' takes the first weights from data"),
        ({"adapter": "IA3"}, "adapter should be a table such as {'peft_type': 'IA3'}, got 'IA3'"),
        ({"lora": 2, "autocast": "float32"}, "autocast should be one of bfloat16, float16, got 'float32'"),
        ({"task": "sequence-classification", "classes": 1}, "classes should be at least 2, got 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ap.models.from_hf(**{"base": LLAMA, **settings})

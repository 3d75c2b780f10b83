"""Transformers of Hugging Face with adapters of PEFT: built, trained, saved, and refused in one sentence."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.core.frozen_weights import frozen_parameters
from archipel.core.layout import Layout
from archipel.learner.tokens import token_cross_entropy
from archipel.runs.run import Run
from tests.transformers.small_transformers import BERT, LLAMA, needs_peft, spoken

pytestmark = [needs_peft, pytest.mark.slow]

SGD: dict[str, Any] = {"rate": 0.5, "batch": 4}


def made(base: Any = LLAMA, task: Any = "causal-lm", **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return ap.models.from_hf(base, task, **settings)


def layout_of(module: nn.Module) -> Layout:
    return Layout.of(module, spoken().x[:2])


# ------------------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        # rank 2 at two projections of two layers of width 16
        ({"lora": 2}, 2 * 2 * (2 * 16 + 16 * 2)),
        ({"lora": {"r": 2, "target_modules": ["q_proj"]}}, 2 * (2 * 16 + 16 * 2)),
        ({"adapter": {"peft_type": "IA3"}}, 2 * (16 + 16 + 32)),
        ({"adapter": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3}}, 3 * 16),
        ({}, None),
    ],
)
def test_the_vector_holds_the_adapters(settings: dict[str, Any], trained: int | None) -> None:
    module = made(**settings)
    layout = layout_of(module)
    assert layout.size == (trained or sum(p.numel() for p in module.parameters()))
    outputs = module(spoken().x[:3])
    longest = int(spoken().x[:3, 1].sum(dim=1).max())
    assert outputs.shape == (3, longest, 259)
    if "lora" in settings:
        assert layout.select("test", "adapters") == layout.select("test", "features") == layout.names
        assert len(layout.select("test", "layers.1")) == len(layout.names) / 2
        with pytest.raises(ValueError, match=r"the last layer, '.*lm_head', is frozen, so this model has no head"):
            layout.select("test", "head")


def test_nothing_is_said_that_a_user_cannot_change(recwarn: pytest.WarningsRecorder) -> None:
    made(lora=2)
    assert [str(warning.message) for warning in recwarn] == []


def test_the_head_of_a_classifier_is_found_under_the_wrappers() -> None:
    layout = Layout.of(made(BERT, "sequence-classification", lora=2, classes=3), spoken().x[:2])
    (head,) = layout.select("test", "head")
    assert layout.select("test", "classifier") == (head,)
    assert layout.layers[layout.index(head)].size == 16 * 3 + 3
    assert layout.select("test", "adapters") == layout.select("test", "features") == layout.names[:-1]


def test_the_loss_is_that_of_transformers() -> None:
    module, source = made(lora=2), spoken()
    x, y = source.x[:5], source.y[:5]
    ids, mask = x.unbind(1)
    network: Any = module.network
    theirs = network(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
    torch.testing.assert_close(token_cross_entropy(module(x), y), theirs)


def test_padding_changes_nothing() -> None:
    module, x = made(BERT, "masked-lm", lora={"r": 2, "target_modules": ["query"]}).eval(), spoken("masked-lm").x
    short = int(x[:, 1].sum(dim=1).argmin())
    together, alone = module(x), module(x[[short]])
    torch.testing.assert_close(together[short, : alone.shape[1]], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_base_in_half_precision_is_frozen_and_what_trains_is_float32(precision: Any) -> None:
    module = made(BERT, "sequence-classification", lora=2, classes=3, precision=precision)
    layout = Layout.of(module, spoken().x[:2])
    assert layout.frozen is not None
    assert layout.frozen.types == (precision,)
    assert all(entry.dtype == torch.float32 for layer in layout.layers for entry in layer.entries)
    outputs = module(spoken().x[:4])
    assert outputs.dtype == torch.float32
    outputs.square().sum().backward()
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad)


def test_autocast_and_checkpointing_are_choices() -> None:
    x = spoken().x[:4]
    plain, saving, cast = (made(lora=2, **more) for more in ({}, {"checkpointing": True}, {"autocast": "bfloat16"}))
    gradients = []
    for module in (plain, saving):
        module.train()
        module(x).square().sum().backward()
        gradients.append([p.grad for p in module.parameters() if p.requires_grad])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    difference = (cast(x) - plain(x)).detach().abs().max()
    assert 0 < float(difference) < 0.05
    frozen = layout_of(cast).frozen
    assert frozen is not None
    assert frozen.autocast == "bfloat16"


def test_a_folder_of_weights_is_mapped(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(3)
    saved = AutoModelForCausalLM.from_config(LlamaConfig(**{**LLAMA, "hidden_size": 64}))
    saved.save_pretrained(tmp_path / "base")
    module = made(tmp_path / "base", lora=2)
    network: Any = module.network
    weight = network.base_model.model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(weight, saved.model.layers[0].mlp.up_proj.weight)
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split(" ")[0].split("-"))
        if first <= weight.data_ptr() < last:
            assert line.endswith("model.safetensors")


# ----------------------------------------------------------------------------------------------------------------- runs


@cache
def finished() -> Run:
    data = spoken("sequence-classification").split(learners=3, stimuli=0)
    return ap.simulate(ap.fedavg(**SGD), data, model=classifier, ending=ap.Ending(rounds=2))


def classifier() -> nn.Module:
    return made(BERT, "sequence-classification", lora=2, classes=3)


def test_only_adapters_are_sent() -> None:
    run = finished()
    assert run.traffic["train down bytes"] == run.traffic["train up bytes"] == 2 * 3 * 4 * run.layout.size
    assert run.layout.size == 2 * 2 * 64 + 51


def test_peft_alone_loads_a_saved_adapter(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, BertConfig

    run = finished()
    run.save(tmp_path / "run")
    ap.load_run(tmp_path / "run").save_adapter(tmp_path / "adapter")
    base = AutoModelForSequenceClassification.from_config(BertConfig(**BERT, num_labels=3))
    ours = classifier()
    frozen = {n.removeprefix("network.base_model.model."): p for n, p in frozen_parameters(ours).items()}
    base.load_state_dict({n.replace(".base_layer", ""): p for n, p in frozen.items() if "original" not in n}, False)
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    ours.load_state_dict(run.state_dict(), strict=False)
    ids, mask = spoken().x[:4].unbind(1)
    torch.testing.assert_close(loaded(input_ids=ids, attention_mask=mask).logits, ours.eval()(spoken().x[:4]))
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2


def test_a_run_without_adapters_has_none_to_save(tmp_path: Path) -> None:
    data = ap.data.digits().split(learners=2)
    run = ap.simulate(ap.fedavg(), data, ending=ap.Ending(rounds=1))
    with pytest.raises(ValueError, match="save_adapter: the network of fedavg has no adapters of PEFT; save the whole"):
        run.save_adapter(tmp_path)


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"lora": {"r": 2, "target_modules": ["nothing"]}},
            r"from_hf: the adapter .* does not fit this model: .*nothing",
        ),
        ({"lora": {"rank": 2}}, "from_hf: the adapter .*'rank': 2.* does not fit this model: .*rank"),
        ({"adapter": {"peft_type": "LORRA"}}, "from_hf: peft_type 'LORRA' is not known"),
        ({"lora": 2, "adapter": {"peft_type": "IA3"}}, "lora and adapter are both given; give one of them"),
        (
            {"precision": "bfloat16"},
            "precision='bfloat16' is for frozen weights, and without an adapter all of them train",
        ),
        ({"classes": 2}, "classes=2 is for a classification, and the task is causal-lm; leave it out"),
        ({"base": {"hidden_size": 8}}, "the config {'hidden_size': 8} has no model_type, such as 'llama'"),
        ({"base": "nowhere"}, "there is no config.json in 'nowhere'. Give a folder that model.save_pretrained made"),
        ({"task": "question"}, "from_hf: task should be one of .*got 'question'"),
    ],
)
def test_a_network_that_cannot_be_built(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        made(**settings)


@pytest.mark.parametrize(
    ("source", "base", "told"),
    [
        (
            {"length": 48},
            LLAMA | {"max_position_embeddings": 8},
            "A text has 23 tokens, and the model takes 8; cut the",
        ),
        (
            {},
            LLAMA | {"vocab_size": 100},
            r"A text holds the token \d+, and the model knows 100: it was made by another",
        ),
    ],
)
def test_texts_that_a_network_does_not_take(source: dict[str, Any], base: dict[str, Any], told: str) -> None:
    data = spoken(**source).split(learners=2, stimuli=0)
    with pytest.raises(ValueError, match=told):
        ap.simulate(ap.fedavg(), data, model=lambda: made(base, lora=2))


def test_labels_that_do_not_fit() -> None:
    data = spoken("sequence-classification").split(learners=2, stimuli=0)
    with pytest.raises(
        ValueError, match=r"has the shape \(2,\), the data have 3 classes; give the last layer one output"
    ):
        ap.simulate(ap.fedavg(), data, model=lambda: made(BERT, "sequence-classification", lora=2, classes=2))
    with pytest.raises(ValueError, match="and every token has a target; give a model with outputs for every token"):
        ap.simulate(
            ap.fedavg(),
            spoken().split(learners=2, stimuli=0),
            model=lambda: made(BERT, "sequence-classification", lora=2, classes=2),
        )

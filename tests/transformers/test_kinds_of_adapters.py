"""Every adapter of PEFT: it trains, and PEFT alone computes the same with what is saved; or it is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.runs.run import Run
from tests.transformers.small_transformers import LLAMA, needs_peft, spoken

pytestmark = [needs_peft, pytest.mark.slow]

PROMPTS = {"num_virtual_tokens": 3}
KINDS: dict[str, dict[str, Any]] = {
    "ADALORA": {"total_step": 100},
    "ADAMSS": {"r": 4, "num_subspaces": 2},
    "ADAPTION_PROMPT": {"adapter_len": 3, "adapter_layers": 1},
    "BEFT": {},
    "BOFT": {},
    "C3A": {"block_size": 16},
    "DEFT": {},
    "DELORA": {},
    "FOURIERFT": {"n_frequency": 20},
    "FROD": {},
    "GLORA": {},
    "GRALORA": {"r": 4},
    "HIRA": {},
    "HRA": {},
    "IA3": {},
    "LILY": {},
    "LN_TUNING": {},
    "LOHA": {},
    "LOKR": {},
    "LORA": {},
    "MISS": {"r": 4},
    "OFT": {},
    "OSF": {},
    "PEANUT": {},
    "PREFIX_TUNING": PROMPTS,
    "PROMPT_TUNING": PROMPTS,
    "PSOFT": {"r": 4},
    "PVERA": {},
    "P_TUNING": {**PROMPTS, "encoder_hidden_size": 8},
    "RANDLORA": {"r": 4},
    "ROAD": {"group_size": 8},
    "SHIRA": {"r": 2},
    "SUPERTUNING": {},
    "TINYLORA": {},
    "TRAINABLE_TOKENS": {"token_indices": [100, 104]},
    "UNILORA": {},
    "VBLORA": {"vector_length": 8, "num_vectors": 8, "save_only_topk_weights": True},
    "VERA": {},
    "WAVEFT": {"n_frequency": 20},
}
UNSAVED = {"CARTRIDGE": PROMPTS | {"num_frozen_tokens": 1}, "CPT": PROMPTS, "SHADOW": {}}
REFUSED = ("MULTITASK_PROMPT_TUNING", "POLY", "XLORA")


def base_folder(folder: Path) -> Path:
    """Save a network with random weights, in the form of a pretrained one."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LLAMA))
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_folder(tmp_path_factory.mktemp("base"))


def adapted(base: Path, kind: str, settings: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return ap.models.from_hf(base, adapter={"peft_type": kind, **settings})


def trained(base: Path, kind: str, settings: dict[str, Any]) -> Run:
    data = spoken().split(learners=2, stimuli=0)
    rate = ap.fedavg(rate=0.05, batch=4, optimiser="AdamW")
    return ap.simulate(rate, data, model=lambda: adapted(base, kind, settings), ending=ap.Ending(rounds=1))


def saved_outputs(base: Path, folder: Path, x: Tensor) -> Tensor:
    """Return what PEFT computes with the base and the saved adapter, without a line of Archipel."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    network = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()
    with torch.no_grad():
        logits: Tensor = network(input_ids=x[:, 0], attention_mask=x[:, 1]).logits[:, -x.shape[2] :]
    return logits


@cache
def whole_texts() -> Tensor:
    """Some texts without padding."""
    x = spoken().x
    return x[x[:, 1].all(dim=1)][:3]


@pytest.mark.parametrize("kind", KINDS)
def test_peft_alone_computes_the_same(kind: str, base: Path, tmp_path: Path) -> None:
    run = trained(base, kind, KINDS[kind])
    run.save_adapter(tmp_path)
    ours = adapted(base, kind, KINDS[kind])
    ours.load_state_dict(run.state_dict(), strict=False)
    first = run.layout.vector(adapted(base, kind, KINDS[kind]))
    assert not torch.equal(run.model, first), "nothing was trained"
    with torch.no_grad():
        expected = ours.eval()(whole_texts())
    torch.testing.assert_close(saved_outputs(base, tmp_path, whole_texts()), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", UNSAVED)
def test_an_adapter_whose_file_holds_more_says_so(kind: str, base: Path, tmp_path: Path) -> None:
    run = trained(base, kind, UNSAVED[kind])
    with pytest.raises(ValueError, match=f"save_adapter: the file of {kind} holds more than what trains; load"):
        run.save_adapter(tmp_path / "adapter")


@pytest.mark.parametrize("kind", REFUSED)
def test_an_adapter_that_needs_more_than_a_text(kind: str, base: Path) -> None:
    with pytest.raises(ValueError, match=f"from_hf: {kind} needs more than a text"):
        adapted(base, kind, {})


def test_no_adapter_is_forgotten() -> None:
    from peft import PeftType

    assert {kind.value for kind in PeftType} == {*KINDS, *UNSAVED, *REFUSED}

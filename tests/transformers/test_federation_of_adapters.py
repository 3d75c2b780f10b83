"""A real federation on adapters: a controller and two learners of different ranks, each a process, over mutual TLS."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from archipel.runs.load import load_run
from tests.federation.test_commands import Wards, a_port, said
from tests.transformers.small_transformers import TEXTS, needs_peft
from tests.waiting import until

pytestmark = [needs_peft, pytest.mark.slow]

STUDY = """
title = "adapters between processes"

[[algorithms]]
name = "fedavg"
planners = ["LoraRanks({'large': 3, 'small': 1})"]
merge = "StackedLora()"

[data]
split = { learners = 2, test = 0.25, stimuli = 0 }

[data.source]
name = "from_text_csv"
path = "texts.csv"
task = "causal-lm"
length = 16

[model]
name = "from_hf"
task = "causal-lm"
lora = { ranks = [1, 3], target_modules = ["q_proj"] }

[model.base]
model_type = "llama"
vocab_size = 259
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32

[training]
batch = 4
rate = 0.02
optimiser = "AdamW"

[ending]
rounds = 2

[evaluation]
at = "learners"
metric = "perplexity"

[federation]
learners = [{ name = "00", group = "large" }, { name = "01", group = "small" }]
heartbeat = 0.5
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wards]:
    (tmp_path / "study.toml").write_text(STUDY)
    with (tmp_path / "texts.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["text"], *([text] for text in TEXTS)])
    said("ca", "init", tmp_path / "ca", "--no-passphrase")
    for arguments in (["controller"], ["learner", "00"], ["learner", "01"]):
        said("ca", arguments[0], tmp_path / "ca", *arguments[1:])
    monkeypatch.chdir(tmp_path)
    made = Wards(tmp_path, a_port())
    yield made
    for one in made.running:
        one.process.kill()
        one.process.wait()


def test_three_processes_train_adapters_of_two_ranks(site: Wards) -> None:
    controller = site.controller()
    until(lambda: "listening" in controller.errors.read_text(), lambda: controller.errors.read_text())
    learners = [site._started(name, "learner", "study.toml", *site.asks(name)) for name in ("00", "01")]
    for one in (controller, *learners):
        code, told = one.ended()
        assert code == 0, told
    run = load_run(site.folder / "state" / "run")
    assert (len(run.commits), run.execution) == (2, "federation")
    losses = [scores.metrics["perplexity"] for _, scores in run.scores]
    assert losses[-1] < 300
    sent = {record.learner: record.layers for _, record in run.cycles}
    assert len(sent["00"]) == 2 * len(sent["01"]) == len(run.layout.names)
    # only adapters were sent: at most what both hold, and what messages are wrapped in
    assert run.layout.frozen is not None
    assert run.traffic["train up bytes"] < 4 * run.layout.size * 2 * 2 < 4 * run.layout.frozen.parameters
    run.save_adapter(site.folder / "adapter")
    assert (site.folder / "adapter" / "adapter_model.safetensors").exists()

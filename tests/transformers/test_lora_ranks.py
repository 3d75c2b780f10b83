"""LoRA adapters whose ranks differ between learners: what a learner is given, what it sends, and how that is merged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.binding import Binding
from archipel.core.layout import Layout
from archipel.core.parts import Adam, LoraRanks, Merge, NormClipped, StackedLora, ZeroPadded
from archipel.core.parts.lora_ranks import ROW, cut_product, lora_blocks
from archipel.core.parts.merge import Mean
from archipel.core.types import Plan
from archipel.data import Islands
from archipel.models import from_hf
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.core.parts.by_hand import Bench
from tests.transformers.small_transformers import BERT, LLAMA, needs_peft, spoken

pytestmark = [needs_peft, pytest.mark.slow]

RANKS = {"ranks": [1, 3], "target_modules": ["q_proj"], "lora_alpha": 6}
FLEET = ap.Fleet(ap.Group("small", 2), ap.Group("large", 1))


def network(base: Any = LLAMA, task: Any = "causal-lm", lora: Any = RANKS, **settings: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return from_hf(base, task=task, lora=lora, **settings)


def layout_of(module: torch.nn.Module) -> Layout:
    return Layout.of(module, torch.ones(1, 2, 4, dtype=torch.int64))


def islands() -> Islands:
    return spoken(sites=None).split(learners=3, stimuli=0)


def method(merge: Merge) -> ap.Algorithm:
    plain = ap.fedavg(batch=4, rate=0.01, optimiser="AdamW")
    return replace(plain, merge=merge, planners=(LoraRanks({"small": 1, "large": 3}),))


# ------------------------------------------------------------------------------------------------------------ networks


def test_blocks_together_are_the_adapter_of_the_highest_rank() -> None:
    module = network().eval()
    layout = layout_of(module)
    blocks = lora_blocks(layout)
    assert [
        (block.first, block.last) for block in blocks["network.base_model.model.model.layers.0.self_attn.q_proj"]
    ] == [
        (0, 1),
        (1, 3),
    ]
    vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(1))
    Binding(layout, module).bind(vector)
    whole = network(lora={"r": 3, "target_modules": ["q_proj"], "lora_alpha": 6}).eval()
    state = whole.state_dict()
    for own in blocks.values():
        path = layout.layers[own[0].down].path
        tensors = [layout.layers[place].entries[0].tensor(vector) for block in own for place in block[2:]]
        state[f"{path}.lora_A.default.weight"] = torch.cat(tensors[::2])
        state[f"{path}.lora_B.default.weight"] = torch.cat(tensors[1::2], dim=1)
    whole.load_state_dict(state)
    x = torch.stack([torch.arange(5, 13), torch.ones(8, dtype=torch.int64)]).unsqueeze(0)
    torch.testing.assert_close(module(x), whole(x))


def test_a_head_is_there_once() -> None:
    layout = layout_of(network(BERT, "sequence-classification", {"ranks": [1, 2]}, classes=3))
    assert sum("classifier" in layer.path for layer in layout.layers) == 1
    assert layout.frozen is not None
    assert json.loads(layout.frozen.adapter_config)["r"] == 2


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ({"ranks": [8, 4]}, r"should be two or more in ascending order, such as \[4, 8\], got \[8, 4\]"),
        ({"ranks": [4]}, "should be two or more"),
        ({"ranks": 4}, "should be two or more"),
        ({"ranks": [1, 2], "r": 3}, "goes with plain LoRA, without r"),
        ({"ranks": [1, 2], "use_dora": True}, "without use_dora"),
        ({"ranks": [1, 2], "target_modules": ["nothing"]}, "does not fit this model"),
    ],
)
def test_impossible_ranks(lora: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        network(lora=lora)


# -------------------------------------------------------------------------------------------------------------- merges


def hand_made(bench: Bench, rank: int, seed: int) -> tuple[list[float], list[str]]:
    """Return a learner's numbers, zeros beyond its rank, and the names of the layers that it sends."""
    numbers = torch.randn(bench.layout.size, generator=torch.Generator().manual_seed(seed))
    plan = LoraRanks({"own": rank})._planned(bench.layout, Plan(), rank)
    sent = plan.sends(bench.layout.names)
    for place, layer in enumerate(bench.layout.layers):
        if bench.layout.names[place] not in sent:
            numbers[layer.start : layer.stop] = 0
    return numbers.tolist(), list(sent)


def products(layout: Layout, vector: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for own in lora_blocks(layout).values():
        tensors = [layout.layers[place].entries[0].tensor(vector).double() for block in own for place in block[2:]]
        found.append(torch.cat(tensors[1::2], dim=1) @ torch.cat(tensors[::2]))
    return found


@pytest.fixture(scope="module")
def adapters() -> Layout:
    return layout_of(network())


def merged(
    layout: Layout, merge: Merge, ranks: tuple[int, ...], weights: list[float]
) -> tuple[torch.Tensor, list[Any]]:
    """Return the merged model, and the learners' products."""
    bench = Bench(layout)
    rows = [hand_made(bench, rank, seed) for seed, rank in enumerate(ranks)]
    updates = [bench.update(f"learner-{n}", numbers, sent) for n, (numbers, sent) in enumerate(rows)]
    proposal = merge.merge(bench.view("merge"), updates, [[w] * len(layout.layers) for w in weights])
    assert proposal.layers == tuple(range(len(layout.layers)))
    return proposal.vector, [products(layout, torch.tensor(numbers)) for numbers, _ in rows]


def test_the_mean_of_a_block_is_over_those_who_have_it(adapters: Layout) -> None:
    bench = Bench(adapters)
    (small, _), (large, _) = hand_made(bench, 1, 0), hand_made(bench, 3, 1)
    mean, _ = merged(adapters, Mean(), (1, 3), [1.0, 3.0])
    padded, _ = merged(adapters, ZeroPadded(), (1, 3), [1.0, 3.0])
    own = next(iter(lora_blocks(adapters).values()))
    shared, further = adapters.layers[own[0].up], adapters.layers[own[1].up]
    both = (torch.tensor(small) + 3 * torch.tensor(large)) / 4
    for vector in (mean, padded):
        torch.testing.assert_close(vector[shared.start : shared.stop], both[shared.start : shared.stop])
    alone = torch.tensor(large)[further.start : further.stop]
    torch.testing.assert_close(mean[further.start : further.stop], alone)
    torch.testing.assert_close(padded[further.start : further.stop], 0.75 * alone)


def test_a_stack_is_the_mean_of_products_where_the_rank_suffices(adapters: Layout) -> None:
    vector, (first, second, third) = merged(adapters, StackedLora(), (1, 1, 1), [1.0, 1.0, 2.0])
    for found, a, b, c in zip(products(adapters, vector), first, second, third, strict=True):
        torch.testing.assert_close(found, (a + b + 2 * c) / 4, rtol=1e-4, atol=1e-5)


def test_a_stack_is_the_closest_product_of_its_rank_otherwise(adapters: Layout) -> None:
    vector, (first, second) = merged(adapters, StackedLora(), (3, 3), [1.0, 1.0])
    for found, a, b in zip(products(adapters, vector), first, second, strict=True):
        values = torch.linalg.svdvals((a + b) / 2)
        assert float((found - (a + b) / 2).norm()) == pytest.approx(float(values[3:].norm()), rel=1e-4)


def test_no_component_dies_and_the_largest_come_first() -> None:
    up, down = torch.zeros(5, 2, dtype=torch.float64), torch.zeros(2, 7, dtype=torch.float64)
    up[:, 0], down[0] = 3.0, 1.0
    a, b = cut_product(up, down, 2)
    torch.testing.assert_close(b @ a, up @ down)
    torch.testing.assert_close(a.norm(dim=1), torch.full((2,), ROW, dtype=torch.float64))
    assert float(b[:, 0].norm()) > float(b[:, 1].norm()) == pytest.approx(0.0, abs=1e-9)


# ---------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("merge", [Mean(), ZeroPadded(), StackedLora(), NormClipped(StackedLora())], ids=repr)
def test_learners_train_and_send_their_own_rank(merge: Merge, tmp_path: Path) -> None:
    run = ap.simulate(method(merge), islands(), model=network, fleet=FLEET, ending=ap.Ending(rounds=3))
    sent = {record.learner: set(record.layers) for _, record in run.cycles}
    groups = {one.name: one.group for one in run.participants}
    for name, layers in sent.items():
        assert any(".rank3" in layer for layer in layers) == (groups[name] == "large")
    assert run.scores[-1][1].metrics["perplexity"] < run.scores[0][1].metrics["perplexity"] < 300
    # of rank 1 are a third of the numbers: 1/3 + 1/3 + 1 each way, and the zeros once
    numbers = 4 * run.layout.size * 3
    assert run.traffic["train up bytes"] == pytest.approx(numbers * 5 / 3)
    assert run.traffic["train down bytes"] == pytest.approx(numbers * 5 / 3 + numbers / 3 * 4 / 3)
    run.save_adapter(tmp_path)
    _loads_alone(run, tmp_path)


def _loads_alone(run: ap.Run, folder: Path) -> None:
    """PEFT alone computes from the saved adapter what our network of blocks computes."""
    import peft
    import transformers

    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**LLAMA))
    alone = peft.PeftModel.from_pretrained(base, str(folder)).eval()
    ours = network().eval()
    ours.load_state_dict(run.state_dict(), strict=False)
    x = torch.stack([torch.arange(5, 13), torch.ones(8, dtype=torch.int64)]).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(alone(input_ids=x[:, 0]).logits, ours(x))


def test_a_run_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    def begun() -> Simulator:
        settings: dict[str, Any] = {"fleet": FLEET, "ending": ap.Ending(rounds=2)}
        return prepare(method(StackedLora()), islands(), model=network(), execution="plain", **settings)

    whole, saved = begun(), Checkpoint(tmp_path)
    whole.begin()
    whole.run(events=5)  # tasks of both ranks are out
    assert any(".rank" in name for name in whole.controller.models.names())
    saved.save(whole)
    whole.run()
    resumed = begun()
    saved.load(resumed)
    resumed.run()
    assert finished(resumed).fingerprint() == finished(whole).fingerprint()
    assert not any(".rank" in name for name in whole.controller.models.names()), "what nobody needs is dropped"


def test_a_small_learner_computes_with_its_own_rank_alone() -> None:
    """A federation of small learners is one whose network has their rank only."""
    small = replace(method(Mean()), planners=(LoraRanks({"small": 1}),))
    one = {"r": 1, "target_modules": ["q_proj"], "lora_alpha": 2}
    plain = replace(method(Mean()), planners=())
    settings: dict[str, Any] = {"fleet": ap.Fleet(ap.Group("small", 3)), "ending": ap.Ending(rounds=2)}
    nested = ap.simulate(small, islands(), model=network, **settings)
    alone = ap.simulate(plain, islands(), model=lambda: network(lora=one), **settings)
    assert [scores.metrics["loss"] for _, scores in nested.scores] == pytest.approx(
        [scores.metrics["loss"] for _, scores in alone.scores], rel=1e-5
    )


# ---------------------------------------------------------------------------------------------------------- bad inputs


@pytest.mark.parametrize(
    ("algorithm", "module", "told"),
    [
        (method(Mean()), lambda: network(lora=3), "has no LoRA adapters of several ranks"),
        (replace(method(Mean()), planners=(LoraRanks({"small": 2}),)), network, "has rank 2, and the network has 1, 3"),
        (replace(method(Mean()), planners=(LoraRanks({"tiny": 1}),)), network, "group 'small' has no rank.*: tiny"),
        (replace(method(ZeroPadded()), planners=()), lambda: network(lora=3), "ZeroPadded: the network has no LoRA"),
    ],
)
def test_ranks_that_do_not_fit(algorithm: ap.Algorithm, module: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ap.simulate(algorithm, islands(), model=module, fleet=FLEET)


def test_parts_that_do_not_go_with_ranks() -> None:
    with pytest.raises(ValueError, match="StackedLora computes new factors for every version"):
        replace(method(StackedLora()), server=Adam())
    with pytest.raises(ValueError, match="a learner of a low rank would drop"):
        replace(ap.radfed(), planners=(LoraRanks({"small": 1}),))
    with pytest.raises(ValueError, match="ranks should give the rank of each group"):
        LoraRanks({})

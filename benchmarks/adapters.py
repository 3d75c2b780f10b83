"""What does a round with adapters on a frozen transformer cost? Bytes, memory and time, beside a loop by hand.

    python -m benchmarks.adapters [--out FILE]      # everything below, each in a process of its own, three turns
    python -m benchmarks.adapters round             # 8 learners, a Llama of 25 million parameters, LoRA of rank 8
    python -m benchmarks.adapters plain             # the same with one thread and without workers
    python -m benchmarks.adapters loop              # the same batches in a loop with transformers and PEFT alone
    python -m benchmarks.adapters threads           # the loop with two threads
    python -m benchmarks.adapters large             # two learners and a base of 100 million parameters: its memory

All weights are random; nothing is downloaded. Memory is that of the driver and its two workers, which are processes;
what they share counts once. Goals: bytes within 1 % of the adapters' own; memory beyond the imports at most 1.2 bases
and 300 MB; at most 1.1 times the time of the loop, with two workers of the better loop; the large base in less than
3 GB, with everything. The loop makes the same steps on the same mini-batches, and its adapters are compared with the
run's: another result is no comparison.
Needs the extra hf.

Flower takes part in an environment of its own (environments/flowertune.txt), in the way of its FlowerTune recipe; its
mini-batches are drawn by itself, and its seconds have the start of Ray's actors in them.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import archipel as ap
from archipel.core.randomness import derive
from archipel.data import Islands
from archipel.learner.batches import batches
from archipel.simulation.simulate import finished, prepare
from benchmarks.contenders.adapters_work import BATCH, BATCHES, LARGE, LEARNERS, LENGTH, LORA, RATE, SMALL, letters
from benchmarks.environments.prepare import prepare as prepare_environment
from benchmarks.machine import facts, load
from benchmarks.race import watched


def data(learners: int) -> Islands:
    """Texts of random letters, all of the same length."""
    each = BATCHES * BATCH
    texts = [bytes(row.tolist()).decode() for row in letters(learners)]
    source = ap.data.from_texts(texts, "bytes", length=LENGTH)
    return source.split(learners=learners, sizes=(each,) * learners, test=0.03, stimuli=0)


def network(base: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return ap.models.from_hf(base, "causal-lm", lora=LORA)


PROGRAMS = ("loop", "threads", "round", "plain", "large")


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cpu() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def prepared(base: dict[str, Any], learners: int, execution: Any) -> Any:
    return prepare(
        ap.fedavg(epochs=1, rate=RATE, batch=BATCH, optimiser="AdamW"),
        data(learners),
        model=network(base),
        ending=ap.Ending(rounds=1),
        evaluation=ap.Evaluation(every=1000, metric="loss"),
        execution=execution,
    )


def archipel(base: dict[str, Any], learners: int, execution: str, result: Path) -> dict[str, float]:
    """One round of Archipel; write its adapters."""
    imports = megabytes()
    simulator = prepared(base, learners, execution)
    at, spent = time.perf_counter(), cpu()
    with watched() as peak:
        simulator.begin()
        simulator.run()
        simulator.close()
    figures = {"seconds": time.perf_counter() - at, "CPU seconds": cpu() - spent}
    run = finished(simulator)
    save_file({name: tensor.contiguous() for name, tensor in run.state_dict().items()}, result)
    frozen = run.layout.frozen
    assert frozen is not None
    own = 4 * run.layout.size * learners
    return {
        **figures,
        "base (MB)": 4 * frozen.parameters / 2**20,
        "adapters of all (MB)": own / 2**20,
        "down / adapters": run.traffic["train down bytes"] / own,
        "up / adapters": run.traffic["train up bytes"] / own,
        "beyond imports (MB)": peak[0] - imports,
        "all processes (MB)": peak[0],
    }


def loop(base: dict[str, Any], learners: int, result: Path) -> dict[str, float]:
    """The same steps with transformers and PEFT, without the rest; write the mean of the adapters."""
    simulator = prepared(base, learners, "plain")  # knows the batches
    method, islands = simulator.controller.algorithm, simulator.sites
    x, y = simulator.context.x[:, 0], simulator.context.y
    parts = [islands[name].learner.train for name in islands]
    chosen = [
        [part[piece] for piece in batches(method.plan, derive(0, "training", name, 0), len(part), 0)]
        for name, part in zip(islands, parts, strict=True)
    ]
    simulator.close()
    torch.manual_seed(0)
    llama = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**base))
    module = peft.get_peft_model(llama, peft.LoraConfig(task_type="CAUSAL_LM", **LORA)).train()
    own = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    begin = {name: copy.deepcopy(parameter.data) for name, parameter in own.items()}
    at, spent = time.perf_counter(), cpu()
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in begin.items()}
    for pieces in chosen:
        for name, parameter in own.items():
            parameter.data.copy_(begin[name])
        optimiser = torch.optim.AdamW(own.values(), lr=RATE)
        for piece in pieces:
            optimiser.zero_grad()
            mask = torch.ones_like(x[piece])
            logits: Tensor = module(input_ids=x[piece], attention_mask=mask).logits
            nn.functional.cross_entropy(logits.flatten(0, 1), y[piece].flatten(), ignore_index=-100).backward()
            optimiser.step()
        for name, parameter in own.items():
            total[name] += parameter.data.double() * (sum(map(len, pieces)) / sum(map(len, parts)))
    figures = {"seconds": time.perf_counter() - at, "CPU seconds": cpu() - spent}
    save_file({f"network.{name}": value.float() for name, value in total.items()}, result)
    return figures | {"process (MB)": megabytes()}


def measure(what: str, result: Path) -> dict[str, float]:
    torch.set_num_threads(1 if what in ("plain", "loop") else 2)  # as many workers as threads
    match what:
        case "round":
            return archipel(SMALL, LEARNERS, "workers", result)
        case "plain":
            return archipel(SMALL, LEARNERS, "plain", result)
        case "loop" | "threads":
            return loop(SMALL, LEARNERS, result)
        case _:
            return archipel(LARGE, 2, "workers", result)


def difference(one: Path, other: Path) -> float:
    """Return how far two results are from each other, relative to how far the second is from zero."""
    a, b = load_file(one), load_file(other)
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())[:4]
    numbers = [torch.cat([tensors[name].flatten() for name in sorted(b)]) for tensors in (a, b)]
    return float((numbers[0] - numbers[1]).norm() / numbers[1].norm())


def turn() -> dict[str, dict[str, float]]:
    """Run each in a process of its own, and compare."""
    told: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for what in PROGRAMS:
            told[what] = _run([sys.executable, "-m", "benchmarks.adapters", what, "--result", f"{folder}/{what}"])
        for what in ("round", "plain"):
            apart = difference(Path(folder, what), Path(folder, "loop"))
            told[what]["adapters differ from the loop's by"] = apart
            if apart > 1e-3:
                raise SystemExit(f"{what}: its adapters are another result than the loop's ({apart:.2g})")
    told["flower"] = _run([str(prepare_environment("flowertune")), "-m", "benchmarks.contenders.flower_adapters"])
    for what in ("round", "plain"):
        loops = [told["loop"]] if what == "plain" else [told["loop"], told["threads"]]
        told[what]["seconds / loop"] = told[what]["seconds"] / min(one["seconds"] for one in loops)
    told["round"]["allowed beyond imports (MB)"] = 1.2 * told["round"]["base (MB)"] + 300
    return told


def _run(command: list[str]) -> dict[str, float]:
    """Run a program that prints its figures last."""
    root = str(Path(__file__).parent.parent)
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": root}
    )
    figures: dict[str, float] = json.loads(found.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=PROGRAMS)
    parser.add_argument("--result", type=Path, help="file to write the adapters to")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file for the figures of all turns")
    chosen = parser.parse_args()
    if chosen.what is None:
        before, turns = load(), [turn() for _ in range(chosen.turns)]
        told = {"machine": facts(), "load": [before, load()], "turns": turns}
        print(json.dumps(told, indent=2))
        if chosen.out:
            chosen.out.write_text(json.dumps(told, indent=2) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(chosen.what, chosen.result or Path(folder) / "adapters")))


if __name__ == "__main__":
    main()

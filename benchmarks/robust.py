"""Compare the robust merges with Flower's, number by number, on the same vectors.

    python -m benchmarks.robust [--out benchmarks/measured/robust.json]

Flower runs in its own environment (benchmarks/environments/flower.txt). The vectors are drawn from a seed: honest ones
around a common point, attackers far away. Flower has no geometric median; tests compare ours with scipy's minimiser.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from archipel.core.layout import Layer, Layout, TensorSlot
from archipel.core.parts import Krum, Median, Merge, TrimmedMean
from archipel.core.state import State, Update, View
from archipel.core.types import Metrics, Model
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels
from benchmarks.environments.prepare import prepare

HERE = Path(__file__).parent
BOUND = 1e-6
"""The largest difference allowed, relative to the largest number."""
CASES = ((10, 1_000, 2), (50, 1_000, 15), (11, 100_000, 4))
"""(updates, parameters, attackers)"""
SHARE = 0.2


def ours(merge: Merge, rows: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Merge the rows as a commit would."""
    size = rows.shape[1]
    slot = TensorSlot("w.weight", (size,), torch.float32, 0, size)
    layout, models = Layout((Layer("w", "Linear", "w", False, (slot,)),)), MemoryModels()
    models.write("v0", torch.zeros(size))
    updates = []
    for k, row in enumerate(rows):
        models.write(f"u{k}", torch.from_numpy(row))
        model = Model(f"u{k}", (f"u{k}",))
        updates.append(Update(k, f"{k:04}", model, (0,), 0, 0, int(examples[k]), 1, 0, Metrics()))
    view = View(State(0, Model("v0", ("v0",))), layout, models, kernels(), "merge")
    return merge.merge(view, updates, [(float(n),) for n in examples]).vector.numpy()


def compare(updates: int, parameters: int, attackers: int) -> dict[str, object]:
    """Return the largest relative difference to Flower of each merge."""
    rng = np.random.default_rng(updates)
    rows = rng.normal(size=parameters) + 0.1 * rng.normal(size=(updates, parameters))
    rows[:attackers] += 5 * rng.normal(size=(attackers, parameters))
    rows, examples = rows.astype(np.float32), rng.integers(10, 500, size=updates)
    keep = updates - attackers - 2
    mine = {
        "Median": Median(),
        "TrimmedMean": TrimmedMean(SHARE),
        "Krum": Krum(attackers),
        "Multi-Krum": Krum(attackers, keep),
    }
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "given.npz"), Path(folder, "out.npz")
        np.savez(given, rows=rows, examples=examples, attackers=attackers, keep=keep, share=SHARE)
        subprocess.run(
            [str(prepare("flower")), str(HERE / "contenders" / "flower_robust.py"), str(given), str(out)], check=True
        )
        theirs = dict(np.load(out))
    differences = {
        name: float(np.abs(ours(merge, rows, examples) - theirs[name]).max() / np.abs(theirs[name]).max())
        for name, merge in mine.items()
    }
    return {"updates": updates, "parameters": parameters, "attackers": attackers, "differences": differences}


def main() -> None:
    """Compare all cases; end with 1 if a difference is above the bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robust", description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = [compare(*case) for case in CASES]
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"bound": BOUND, "cases": found}, indent=1) + "\n")
    worst = max(max(case["differences"].values()) for case in found)  # type: ignore[attr-defined]
    print(f"largest relative difference {worst:.1e}, allowed {BOUND:.0e}")
    sys.exit(int(worst > BOUND))


if __name__ == "__main__":
    main()

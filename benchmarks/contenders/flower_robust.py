"""Merge vectors with Flower's robust strategies, in Flower's own environment.

python benchmarks/contenders/flower_robust.py VECTORS.npz OUT.npz
"""

import sys

import numpy as np
from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg


def main(vectors: str, out: str) -> None:
    """Read rows and examples, merge them in every way, and write one vector for each."""
    given = np.load(vectors)
    results = [([row], int(examples)) for row, examples in zip(given["rows"], given["examples"], strict=True)]
    attackers, keep, share = int(given["attackers"]), int(given["keep"]), float(given["share"])
    merged = {
        "Median": aggregate_median(results),
        "TrimmedMean": aggregate_trimmed_avg(results, share),
        "Krum": aggregate_krum(results, attackers, 0),
        "Multi-Krum": aggregate_krum(results, attackers, keep),
    }
    np.savez(out, **{name: arrays[0] for name, arrays in merged.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])

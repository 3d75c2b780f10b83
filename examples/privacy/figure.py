"""Draw what `measure.py` has measured: accuracy against epsilon, means and standard deviations over the seeds.

python figure.py measured.jsonl accuracy-against-epsilon.svg
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "archipel"
import matplotlib.pyplot as plt  # noqa: E402


def main() -> None:
    measured = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    sizes = sorted({one["learners"] for one in measured})
    figure, panels = plt.subplots(1, len(sizes), figsize=(8, 3.2), sharey=True, layout="constrained")
    for panel, learners in zip(panels, sizes, strict=True):
        mine = [one for one in measured if one["learners"] == learners]
        for number, method in enumerate(dict.fromkeys(one["method"] for one in mine)):
            seeds = defaultdict(list)
            for one in mine:
                if one["method"] == method:
                    seeds[one["epsilon"]].append(one["accuracy"])
            panel.axhline(fmean(seeds.pop(None)), color=f"C{number}", linestyle=":")
            means, deviations = ([of(seeds[epsilon]) for epsilon in sorted(seeds)] for of in (fmean, stdev))
            panel.errorbar(sorted(seeds), means, deviations, marker="o", color=f"C{number}", label=method, capsize=2)
        panel.set_xscale("log", base=2)
        panel.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        panel.set_title(f"{learners} learners")
        panel.set_xlabel("epsilon (dotted: no noise)")
    panels[0].set_ylabel("accuracy")
    panels[0].legend()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()

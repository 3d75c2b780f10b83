"""Draw what `measure.py` has measured: accuracy against epsilon.

python figure.py measured.jsonl accuracy-against-epsilon.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
            noised = sorted(
                (one["epsilon"], one["accuracy"]) for one in mine if one["method"] == method and one["epsilon"]
            )
            panel.plot(*zip(*noised, strict=True), marker="o", color=f"C{number}", label=method)
            for one in mine:
                if one["method"] == method and one["epsilon"] is None:
                    panel.axhline(one["accuracy"], color=f"C{number}", linestyle=":")
        panel.set_xscale("log", base=2)
        panel.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        panel.set_title(f"{learners} learners")
        panel.set_xlabel("epsilon (dotted: no noise)")
    panels[0].set_ylabel("accuracy")
    panels[0].legend()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()

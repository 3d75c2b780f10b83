"""Put a finished outcome beside the documents: `python -m archipel.papers.store results/dvw-table1-small docs/papers`.

Its figures become <name>.json, its curves <name>.png and the scores of its runs <name>.scores.json.gz.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from archipel.core.checks import require
from archipel.papers.kept_scores import SCORES_FILE
from archipel.papers.outcome import FILE


def store(results: Path, documents: Path) -> None:
    """Copy the files of an outcome at the scale `small`."""
    path = results / FILE
    require(path.exists(), f"{results} has no {FILE}: no reproduction was finished in it.")
    told = json.loads(path.read_text())
    name, scale = told["name"], told["scale"]
    require(scale == "small", f"{results} holds {name} at the scale {scale!r}; the documents show 'small'.")
    for file, ending in ((FILE, "json"), ("curves.png", "png"), (SCORES_FILE, "scores.json.gz")):
        if (results / file).exists():
            shutil.copyfile(results / file, documents / f"{name}.{ending}")


if __name__ == "__main__":
    store(Path(sys.argv[1]), Path(sys.argv[2]))

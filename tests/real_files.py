"""Where tests find real files, and what is in the cache."""

import os
from pathlib import Path

import pytest

from archipel.data import fetch

BESIDE = Path(__file__).parents[2] / "shared" / "data"
REAL = Path(os.environ.get("ARCHIPEL_DATA") or BESIDE)


def needs(folder: str) -> pytest.MarkDecorator:
    """Skip a test where the real files of a data set are absent."""
    return pytest.mark.skipif(
        not (REAL / folder).is_dir(),
        reason=f"no real files: neither $ARCHIPEL_DATA nor ../shared/data beside the repository holds {folder}/",
    )


CLOTHES = pytest.mark.skipif(
    not any(folder.is_dir() for folder in (REAL / "fmnist", REAL / "fashion-mnist", fetch.DEBIAN / "fashion-mnist")),
    reason="no Fashion-MNIST: neither Debian's dataset-fashion-mnist nor $ARCHIPEL_DATA holds it",
)


def cache() -> list[str]:
    """Everything in the cache, by name."""
    home = fetch.cache()
    return sorted(str(path.relative_to(home)) for path in home.rglob("*")) if home.exists() else []

"""Where tests find real files, and what is in the cache."""

import os
from pathlib import Path

import pytest

from archipel.data import fetch

BESIDE = Path(__file__).parents[3] / "shared" / "data"
REAL = Path(os.environ.get("ARCHIPEL_DATA") or BESIDE)


def needs(folder: str) -> pytest.MarkDecorator:
    """Skip a test where the real files of a data set are absent."""
    return pytest.mark.skipif(
        not (REAL / folder).is_dir(),
        reason=f"no real files: neither $ARCHIPEL_DATA nor ../shared/data beside the repository holds {folder}/",
    )


def cache() -> list[str]:
    """Everything in the cache, by name."""
    home = fetch.cache()
    return sorted(str(path.relative_to(home)) for path in home.rglob("*")) if home.exists() else []

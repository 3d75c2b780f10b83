"""Sites of a federation compare their tokenizers when a learner joins."""

from __future__ import annotations

import shutil
from pathlib import Path

from archipel.study.federate import hashes_of
from archipel.study.files import read_study

LLAMA = Path(__file__).parents[2] / "examples" / "adapters" / "llama.toml"


def site(folder: Path, words: str) -> dict[str, str]:
    """Return the hashes of a site whose tokenizer has these words."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "vocab.json").write_text(words)
    shutil.copy(LLAMA, folder / "study.toml")
    return hashes_of(read_study(folder / "study.toml", changes=["data.source.tokenizer=tokenizer"]))


def test_another_tokenizer_is_told_apart_by_its_contents(tmp_path: Path) -> None:
    one, same, other = (site(tmp_path / name, words) for name, words in (("a", "{}"), ("b", "{}"), ("c", '{"a": 0}')))
    assert one == same
    assert {name for name in one if one[name] != other[name]} == {"the tokenizer"}

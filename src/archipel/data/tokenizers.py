"""What turns a text into whole numbers: a tokenizer of transformers, or the bytes themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from archipel.core.checks import require

BYTES = "bytes"


class Tokenizer(Protocol):
    """As transformers has them."""

    @property
    def pad_token_id(self) -> int | None: ...

    @property
    def mask_token_id(self) -> int | None: ...

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> Mapping[str, Sequence[int]]:
        """Return the token ids of a text as "input_ids"."""


class ByteTokenizer:
    """Every byte of a text is a token, behind those for padding, mask and the beginning of a text."""

    pad_token_id = 0
    mask_token_id = 1
    start_token_id = 2
    vocab_size = 3 + 256

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[int]]:
        ids = [self.start_token_id] * add_special_tokens + [3 + byte for byte in text.encode()]
        return {"input_ids": ids[:max_length] if truncation else ids}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some token ids."""
        return bytes(number - 3 for number in ids if number >= 3).decode(errors="replace")


def tokenizer_of(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    """Return a tokenizer by the folder it was saved in, by the word "bytes", or as it is."""
    if tokenizer == BYTES:
        return ByteTokenizer()
    if not isinstance(tokenizer, str | Path):
        return tokenizer
    require(
        Path(tokenizer).is_dir(),
        f"tokenizer: there is no folder {tokenizer}. Give a folder that tokenizer.save_pretrained made, or 'bytes'.",
    )
    try:
        # imported late: it is an extra, and takes seconds
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(
            "A tokenizer's folder needs transformers: pip install '.[hf]' in the source folder"
        ) from error
    made: Tokenizer = AutoTokenizer.from_pretrained(str(tokenizer), local_files_only=True)
    return made

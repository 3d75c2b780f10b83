"""What must be the same on all nodes for the same bits: versions, code, and the processor's instructions."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy
import torch

from archipel.kernels.native.library import load


@dataclass(frozen=True)
class Fingerprint:
    """What the bits of a result depend on beside its inputs."""

    archipel: str
    """Hash of Archipel's own files."""
    python: str
    torch: str
    numpy: str
    processor: str
    """The instructions that torch uses."""
    native: str
    """The variant of Archipel's C library, or why there is none."""

    def differences(self, other: Fingerprint) -> list[str]:
        """Describe what differs: "torch 2.13.0 here, 2.12.0 there"."""
        return [
            f"{field.name} {mine} here, {theirs} there"
            for field in fields(self)
            if (mine := getattr(self, field.name)) != (theirs := getattr(other, field.name))
        ]


@cache
def fingerprint() -> Fingerprint:
    """Return the fingerprint of this process."""
    return Fingerprint(
        archipel=_source_hash(Path(__file__).parents[2]),
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=numpy.__version__,
        processor=torch.backends.cpu.get_cpu_capability(),
        native=load().kind if load().loaded is not None else "absent",
    )


def _source_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]

"""Write what each extra needs beyond a lock, with hashes: `python tools/extra_locks.py LOCK ALL FOLDER COMMAND...`.

COMMAND is `uv pip compile` with its options; ALL is the lock of all extras, which versions and hashes are from.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PIN = re.compile(r"^([A-Za-z0-9._-]+)==.*?(?=^[A-Za-z0-9]|\Z)", re.MULTILINE | re.DOTALL)
NOT_TO_RUN = ("dev", "docs", "federation", "test")
"""Extras that nobody installs in a container, and the one that is in the lock."""


def extras() -> list[str]:
    """Return the extras that an image may have."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in NOT_TO_RUN]


def pins(text: str) -> dict[str, str]:
    """Return the entries of a lock by package."""
    return {found[1]: found[0] for found in PIN.finditer(text)}


def main() -> None:
    lock, every, folder, *command = sys.argv[1:]
    there, known = pins(Path(lock).read_text()), pins(Path(every).read_text())
    Path(folder).mkdir(exist_ok=True)
    for extra in extras():
        asked = [*command, "-c", every, "--extra", "federation", "--extra", extra, "pyproject.toml"]
        needed = pins(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
        rest = (known[name] for name in sorted(needed) if name not in there)
        Path(folder, f"{extra}.lock").write_text("".join(rest))


if __name__ == "__main__":
    main()

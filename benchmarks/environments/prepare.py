"""One virtual environment for each peer, made once, with every package pinned.

    python benchmarks/environments/prepare.py [name ...]

<name>.txt lists all packages of a peer, those its packages need included, and pip is told to add none of its own: so
what is measured is what is written here, and an upper or lower bound that the registry cannot serve does not stand in
the way. An environment is made anew when its list changes. The lists were resolved for Python 3.11.
"""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".venvs"
PEERS = tuple(sorted(path.stem for path in HERE.glob("*.txt")))

# FLGo, fluke and FedLab import torchvision for data sets and networks that no workload uses. Its wheels are tied to a
# CUDA build of torch, so here every name of it is an empty class.
NEED_TORCHVISION = ("fedlab", "flgo", "fluke")
TORCHVISION = '''"""A stand-in: every name that a peer imports from torchvision and never uses is an empty class."""

import sys
from types import ModuleType


class Absent:
    pass


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent


for part in ("datasets", "datasets.utils", "models", "transforms"):
    module = sys.modules[f"{__name__}.{part}"] = ModuleType(f"{__name__}.{part}")
    module.__getattr__ = __getattr__
    globals()[part] = module
'''


def prepare(name: str) -> Path:
    """Make the peer's environment unless it is there already, and return its python."""
    if name not in PEERS:
        raise SystemExit(f"prepare: no environment {name!r}. There are: {', '.join(PEERS)}.")
    requirements = HERE / f"{name}.txt"
    home = ENVIRONMENTS / name
    python = home / "bin" / "python"
    stand_in = TORCHVISION if name in NEED_TORCHVISION else ""
    stamp = home / "requirements.sha256"
    wanted = hashlib.sha256((requirements.read_text() + stand_in).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python

    venv.create(home, clear=True, with_pip=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--requirement", requirements], check=True)
    if stand_in:
        (site_packages,) = home.glob("lib/python*/site-packages")
        (site_packages / "torchvision.py").write_text(stand_in)
    stamp.write_text(wanted)  # last, so that an interrupted installation starts again
    return python


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PEERS:
        print(prepare(chosen))

"""The versions of what a run's figures depend on."""

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on, and the kind of machine."""
    packages = ("archipel", "numpy", "safetensors", "scikit-learn", "torch")
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
        "machine": f"{platform.system()} {platform.machine()}",
    }

"""A network namespace for a learner: the kernel cuts its connection."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Network:
    name: str
    address: str
    """Of this side, as the other one sees it."""

    def cut(self) -> None:
        """Drop everything both ways, without notice."""
        _ip("link", "set", self.name, "down")

    def heal(self) -> None:
        _ip("link", "set", self.name, "up")

    @contextmanager
    def site(self, folder: Path, raw: dict[str, Any], name: str, port: int, papers: Path) -> Iterator[None]:
        """`archipel learner` on the other side."""
        study = folder / f"{name}.json"
        study.write_text(json.dumps(raw))
        command = (
            sys.executable,
            "-m",
            "archipel.cli",
            "learner",
            str(study),
            "--controller",
            f"{self.address}:{port}",
        )
        with open(folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command, "--tls", str(papers), "--state", str(folder / name)],
                stdout=log,
                stderr=log,
                env={**os.environ, "no_proxy": "*"},  # there is nobody on that side but the controller
            )
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def network() -> Iterator[Network]:
    """This side and another one with a cable between them; skips where that is not allowed."""
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces: there is no `ip` (of iproute2)")
    name, begin = f"archipel{os.getpid()}", f"198.18.{os.getpid() % 256}."  # a range that is set aside for tests
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces: {error.stderr.strip()}")
    try:
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("address", "add", f"{begin}1/30", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", name, "address", "add", f"{begin}2/30", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        yield Network(name, f"{begin}1")
    finally:
        _ip("netns", "delete", name)  # its end of the cable goes with it, and so this one


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

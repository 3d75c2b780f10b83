"""Fifty learners with ten million parameters: how much memory the controller takes, with Mean and with Community.

python -m benchmarks.federation.large [--learners 50] [--parameters 10000000] [--rounds 2] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path

from archipel.federation.wire import federation_pb2 as pb
from benchmarks.federation.crowd import certify, controller, crowd, free_port, peak_memory, read_receipts, write_study
from tests.federation.kept import controllers_of


def measure(learners: int, parameters: int, rounds: int, method: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        names = [f"l{i:02d}" for i in range(learners)]
        study = write_study(
            folder,
            names,
            parameters,
            algorithms=method,
            ending={"rounds": rounds},
            federation={"silence": 300.0, "learners": names, "example": [parameters // 2 - 1], "classes": 2},
        )
        papers, port = certify(folder, names), free_port()
        began = time.monotonic()
        with (
            controller(folder, study, papers, port) as process,
            crowd(folder, study, papers, port, names, 2, echo=True) as files,
        ):
            peak = 0
            while process.poll() is None:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, AssertionError):
                    for pid in controllers_of(process.pid):
                        peak = peak_memory(pid)
                time.sleep(0.2)
            if process.wait():
                raise RuntimeError((folder / "controller.log").read_text()[-3000:])
        receipts = read_receipts(files)
        allowed = 300e6 + 8 * 4 * parameters
        return {
            "method": method,
            "learners": learners,
            "parameters": parameters,
            "updates": len(receipts),
            "errors": sum(receipt.verdict != pb.Receipt.KEPT for receipt in receipts),
            "controller_peak_mb": peak / 1e6,
            "allowed_mb": allowed / 1e6,
            "reached": peak <= allowed,
            "seconds": time.monotonic() - began,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=50)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "async_fedavg"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    told = [measure(arguments.learners, arguments.parameters, arguments.rounds, method) for method in arguments.methods]
    print(json.dumps(told, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

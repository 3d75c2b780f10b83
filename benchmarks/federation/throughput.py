"""A thousand learners over mutual TLS: how many durable updates a second, how long a receipt takes, how much memory.

python -m benchmarks.federation.throughput [--learners 1000] [--rounds 12] [--kib 64] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from archipel.federation.wire import federation_pb2 as pb
from benchmarks.federation.crowd import (
    certify,
    controller,
    cpu_seconds,
    crowd,
    free_port,
    peak_memory,
    proportional_memory,
    read_receipts,
    write_study,
)
from tests.federation.kept import controllers_of


def measure(learners: int, rounds: int, kib: int, processes: int, method: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        names = [f"l{i:04d}" for i in range(learners)]
        # a stream counts a round for every learner's turn
        study = write_study(folder, names, kib * 256, algorithms=method, ending={"rounds": rounds})
        papers, port = certify(folder, names), free_port()
        with (
            controller(folder, study, papers, port) as process,
            crowd(folder, study, papers, port, names, processes, parrot=True) as files,
        ):
            peak = cpu = kept = both = 0.0
            looks = itertools.count()
            while process.poll() is None:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, AssertionError, ValueError):
                    for pid in controllers_of(process.pid):
                        peak, cpu = peak_memory(pid), cpu_seconds(pid)
                        if next(looks) % 10 == 0:  # to count pages takes the time of the process they belong to
                            kept = max(kept, proportional_memory([process.pid]))
                            both = max(both, proportional_memory([process.pid, pid]))
                time.sleep(0.2)
            code = process.wait()
        receipts = sorted(read_receipts(files), key=lambda receipt: receipt.sent + receipt.seconds)
        journal = folder / "state" / "journal.sqlite"
        log = (folder / "controller.log").read_text()
        if code:
            raise RuntimeError(f"the controller ended with {code}:\n{log[-3000:]}")
        times = np.array([receipt.sent + receipt.seconds for receipt in receipts])
        latencies = np.array([receipt.seconds for receipt in receipts])
        warm = len(times) // 5  # everybody joins, and the first models go out
        return {
            "method": method,
            "learners": learners,
            "kib": kib,
            "updates": len(receipts),
            "errors": sum(receipt.verdict != pb.Receipt.KEPT for receipt in receipts),
            "updates_a_second": (len(times) - warm - 1) / (times[-1] - times[warm]),
            "p50_seconds": float(np.percentile(latencies[warm:], 50)),
            "p99_seconds": float(np.percentile(latencies[warm:], 99)),
            "controller_peak_mb": peak / 1e6,
            "keeper_proportional_peak_mb": kept / 1e6,
            "keeper_and_controller_proportional_peak_mb": both / 1e6,
            "controller_cpu_ms_an_update": 1000 * cpu / len(receipts),
            "journal_mb": journal.stat().st_size / 1e6,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--kib", type=int, default=64)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    told = measure(arguments.learners, arguments.rounds, arguments.kib, arguments.processes, arguments.method)
    print(json.dumps(told, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Who takes part: every contender with every setting it is tried in."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environments.prepare import prepare

ROUNDS = ("W1", "W2", "W2-long", "W3", "tiny", "tiny-images")
STREAMS = ("W4", "M1", "tiny-stream")


@dataclass(frozen=True)
class Entry:
    """One row of the tables."""

    name: str
    script: str
    """Its file in contenders/."""
    contender: str
    """Rows of one contender differ in settings; where it is compared, its best counts."""
    options: dict[str, str] = field(default_factory=dict)
    environment: str | None = None
    """The peer's own; None: this one."""
    workloads: tuple[str, ...] = ROUNDS
    limit: bool = False
    """It is no federation, so its loss is another one."""

    def python(self) -> Path:
        """The Python that runs it; its environment is made where it is missing."""
        return Path(sys.executable) if self.environment is None else prepare(self.environment)


PEERS = ("flower", "pfl", "fluke", "fedlab", "fedjax")

ENTRIES = (
    Entry("archipel", "archipel_", "archipel"),
    Entry(
        "archipel, plain", "archipel_", "archipel plain", {"execution": "plain"}, workloads=("W1", "W2", "W3", "tiny")
    ),
    Entry("archipel, Ray", "archipel_", "archipel on Ray", {"cluster": "local"}, workloads=("W1", "W2", "tiny")),
    *(
        Entry(f"archipel, {name}", "archipel_", name, {"algorithm": name}, workloads=workloads)
        for name, workloads in (
            ("async_fedavg", STREAMS),
            ("async_dvw", ("W4", "tiny-stream")),
            ("async_dvw adaptive", ("W4", "tiny-stream")),
        )
    ),
    *(
        Entry(f"{name}, {words}", name, name, {"threads": threads}, limit=name == "centralised")
        for name in ("bare", "centralised")
        for threads, words in (("1", "1 thread"), ("2", "2 threads"))
    ),
    Entry("flower", "flower", "flower", environment="flower"),
    *(Entry(name, f"{name}_", name, environment=name) for name in PEERS[1:]),
)


def why_absent(entry: Entry) -> str | None:
    """Why it cannot take part here; None: it can."""
    if not (Path(__file__).parent / "contenders" / f"{entry.script}.py").exists():
        return f"there is no contenders/{entry.script}.py"
    try:
        entry.python()
    except (subprocess.CalledProcessError, OSError, SystemExit) as error:
        return f"its environment could not be made: {type(error).__name__}"
    return None

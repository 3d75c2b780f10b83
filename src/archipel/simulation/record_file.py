"""Records of a simulation beside its checkpoint: a file of lines that is only appended to.

The checkpoint says how many bytes of it count and what their checksum is. What a crash leaves behind them is cut off
before the next records are written.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from archipel.core.checks import require
from archipel.runs.record_lines import parse_record, record_line
from archipel.runs.record_log import RecordLog


class RecordFile:
    """The file of one simulation's records."""

    def __init__(self, path: Path, log: RecordLog) -> None:
        self.path = path
        self.log = log
        self._count = self._size = 0
        self._digest = hashlib.sha256()

    @staticmethod
    def beside(checkpoint: Path, log: RecordLog) -> RecordFile:
        """Return a file of a name that is not in use: an earlier checkpoint needs its own until it is replaced."""
        numbered = (checkpoint.with_name(f"records-{number}.jsonl") for number in range(1 << 30))
        return RecordFile(next(path for path in numbered if not path.exists()), log)

    def append(self) -> dict[str, str | int]:
        """Write the records that were added since the last call; return what `load` needs."""
        digest, size = self._digest.copy(), self._size
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.truncate(size)
            file.seek(size)
            for stamped in self.log[self._count :]:
                line = record_line(stamped).encode() + b"\n"
                file.write(line)
                digest.update(line)
                size += len(line)
            file.flush()
            os.fsync(file.fileno())
        self._digest, self._size, self._count = digest, size, len(self.log)
        return {"file": self.path.name, "bytes": size, "sha256": digest.hexdigest()}

    @staticmethod
    def load(folder: Path, described: dict[str, str | int]) -> RecordFile:
        """Return the records that `append` wrote; refuse a file that was changed."""
        path, left = folder / str(described["file"]), int(described["bytes"])
        loaded = RecordFile(path, RecordLog())
        damaged = f"{path} does not hold the records of its checkpoint. Remove both, and start the run again."
        require(path.exists(), damaged)
        with open(path, "rb") as file:
            while loaded._size < left:
                line = file.readline(left - loaded._size)
                require(line.endswith(b"\n"), damaged)
                loaded._digest.update(line)
                loaded._size += len(line)
                loaded.log.append(parse_record(line.decode()))
        require(loaded._digest.hexdigest() == described["sha256"], damaged)
        loaded._count = len(loaded.log)
        return loaded

    def remove_others(self) -> None:
        """Remove records of checkpoints that this one has replaced."""
        for path in self.path.parent.glob("records-*.jsonl"):
            if path != self.path:
                path.unlink()

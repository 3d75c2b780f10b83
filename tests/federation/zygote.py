"""Has imported all that a learner needs, and forks one for every line it reads: a start takes no second then.

What the learner does from there on is what the command does. A line is a JSON object: arguments of the command, a file
for what it says, and one that holds its training while it exists (held_loss.py). The answer is the process's id.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

from archipel.cli import main

for module in ("cli.learner", "study.federate", "study.files", "federation.processes"):
    importlib.import_module(f"archipel.{module}")


def live(arguments: list[str], log: str, hold: str) -> int:
    """In the new process: its exit code."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive whoever forked it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream, end in ((0, nothing), (1, nothing), (2, said)):
        os.dup2(end, stream)
    sys.argv[1:] = arguments
    os.environ["HOLD"] = hold
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are nobody's business here
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = live(**json.loads(line))
            os.write(2, f"exit code {code}\n".encode())
            os._exit(code)
        print(pid, flush=True)

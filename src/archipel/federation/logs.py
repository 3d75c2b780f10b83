"""Logs of a federation's processes: one line per event, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest is what this one is about."""


def printable(text: str) -> str:
    """Replace what a terminal obeys, or that hides or turns round what it shows: the other side may have written it."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)


class Lines(logging.Formatter):
    """2026-01-31 12:00:00 the line broke reason='...'; as JSON, an object a line."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        about = {name: value for name, value in vars(record).items() if name not in USUAL}
        if record.exc_info:
            about["error"] = printable(self.formatException(record.exc_info))
        if self.as_json:
            told = {"at": at.isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
            return json.dumps({**told, "event": record.getMessage(), **about}, default=str)
        words = " ".join(f"{name}={value!r}" for name, value in about.items())
        return f"{at:%Y-%m-%d %H:%M:%S} {record.getMessage()} {words}".rstrip()


def say_on_stderr(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(as_json))
    logger = logging.getLogger("archipel")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False

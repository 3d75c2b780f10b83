"""Convert records to lines of JSON and back."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from archipel.core import records
from archipel.core.records import Stamped

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(records.Record)}


def record_line(stamped: Stamped) -> str:
    """Return a record as JSON; numbers that are not finite become the words nan, inf and -inf."""
    kind = type(stamped.record).__name__
    told = {"time": stamped.time, "record": kind, **_adapter(kind).dump_python(stamped.record)}
    try:
        return _compact(told)
    except ValueError:
        return _compact(_finite(told))


def _compact(told: Any) -> str:
    return json.dumps(told, separators=(",", ":"), allow_nan=False)


def parse_record(line: str) -> Stamped:
    """Return the record of a line."""
    told = json.loads(line)
    time, kind = told.pop("time"), told.pop("record")
    return Stamped(time, _adapter(kind).validate_python(told))


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """Return the adapter of a kind of record, made when it is first needed."""
    from pydantic import TypeAdapter  # slow to import, and only needed for saved runs

    return TypeAdapter(KINDS[kind])


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by words, as JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value

"""A run's records in the page's format: short lines of JSON in which learners are numbers.

    L number name group role examples                 a learner
    h time task learner version                       a learner was given a task
    r time task steps epochs loss-before loss-after recalled
    x time task learner reason                        an answer was refused
    c time version rounds [bytes by kind] [[task learner weight stale-versions stale-steps path] ...] [layers]
    s time version rounds metrics validation          a score
    m time learner there                              a learner joined or left
    p time task [[learner seconds] ...]               sites evaluate a model
    d time version names values split                 divergence by layer
    k time learner what share                         a claim was cut
    b time version earlier                            the model was rolled back
    n time learner norm clipped                       how far a learner's update would have moved the model
    e time version epsilon delta                      what the versions so far reveal of any learner
    y time bytes-by-kind-and-layer                    traffic so far

`page/timeline.js` reads them. The curve is a second, shorter text: [time, rounds, megabytes, version, score].
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from archipel.live.growing_text import GrowingText

KINDS = ("train down bytes", "train up bytes", "evaluate down bytes", "score down bytes")
"""The traffic of a commit's line, in this order."""
WORK = KINDS[:3]
"""Traffic of the method itself, without scores for the records."""
REASON = 300
"""Most characters of a reason that are shown."""


class Timeline:
    """Convert the records of one run, in order."""

    def __init__(self, metric: str = "") -> None:
        self.metric = metric
        """The metric of the curve; without one, the first of the first score."""
        self.events = GrowingText()
        self.curve = GrowingText()
        self.time = 0.0
        """Time of the last record."""
        self._learners: dict[str, int] = {}
        self._moved = array("d", [0.0])
        """Megabytes by version, since a score may arrive after the next version."""
        self._layers: object = None

    def flush(self) -> None:
        """Make everything so far readable."""
        self.events.flush()
        self.curve.flush()

    # ------------------------------------------------------------------------------------------------ what is added

    def learner(self, name: str, group: str = "", role: str = "train", examples: int | None = None) -> int:
        """Return the number of a learner; a new name gets the next one."""
        number = self._learners.get(name)
        if number is None:
            number = self._learners[name] = len(self._learners)
            self._add("L", number, name, group, role, examples)
        return number

    def record(self, time: float, kind: str, record: Mapping[str, Any]) -> None:
        """Add a record, given as its fields; ignore kinds that the page does not show."""
        self.time = max(self.time, time)
        add = getattr(self, f"_{kind.lower()}", None)
        if add is not None:
            add(round(time, 4), record)

    def layers(self, time: float, moved: Mapping[str, Mapping[str, int]]) -> None:
        """Add the bytes moved so far, by kind and layer, if they have changed."""
        if moved and moved != self._layers:
            self._layers = moved
            self._add("y", round(time, 4), moved)

    def _add(self, *line: object) -> None:
        self.events.append(json.dumps(line, separators=(",", ":"), ensure_ascii=False))

    # ------------------------------------------------------------------------------------------------- by kind

    def _handed(self, time: float, record: Mapping[str, Any]) -> None:
        self._add("h", time, record["task"], self.learner(record["learner"]), record["version"])

    def _returned(self, time: float, record: Mapping[str, Any]) -> None:
        losses = [_short(loss) for loss in record["losses"]] or [None]
        steps, epochs = record["steps"], _short(record["epochs"])
        self._add("r", time, record["task"], steps, epochs, losses[0], losses[-1], int(record["recalled"]))

    def _refused(self, time: float, record: Mapping[str, Any]) -> None:
        learner = self.learner(record["learner"]) if record["learner"] else -1
        self._add("x", time, record["task"], learner, record["reason"][:REASON])

    def _committed(self, time: float, record: Mapping[str, Any]) -> None:
        traffic = [record["traffic"].get(kind, 0) for kind in KINDS]
        moved = sum(record["traffic"].get(kind, 0) for kind in WORK) / 2**20
        while len(self._moved) <= record["version"]:
            self._moved.append(moved)
        columns = ("tasks", "learners", "weights", "stale_versions", "stale_steps", "paths")
        parts = []
        for task, learner, weights, versions, steps, path in zip(*(record[name] for name in columns), strict=True):
            one = [task, self.learner(learner), _weight(weights), versions, steps]
            parts.append([*one, [self.learner(name) for name in path]] if len(path) > 1 else one)
        self._add("c", time, record["version"], record["rounds"], traffic, parts, record["layers"])
        norms = record.get("norms", ())
        clipped = record.get("clipped") or [False] * len(norms)
        for learner, norm, cut in zip(record["learners"][: len(norms)], norms, clipped, strict=True):
            self._add("n", time, self.learner(learner), _short(norm), int(cut))

    def _scores(self, time: float, record: Mapping[str, Any]) -> None:
        metrics, version = _numbers(record["metrics"]), record["version"]
        self._add("s", time, version, record["rounds"], metrics, _numbers(record.get("validation", {})))
        self.metric = self.metric or next(iter(metrics), "")
        moved = self._moved[min(version, len(self._moved) - 1)]
        point = (time, record["rounds"], round(moved, 3), version, metrics.get(self.metric))
        self.curve.append(json.dumps(point, separators=(",", ":")))

    def _membership(self, time: float, record: Mapping[str, Any]) -> None:
        self._add("m", time, self.learner(record["learner"]), int(record["there"]))

    def _probed(self, time: float, record: Mapping[str, Any]) -> None:
        asked = zip(map(self.learner, record["evaluators"]), map(_short, record["seconds"]), strict=True)
        self._add("p", time, record["task"], [*asked])

    def _divergence(self, time: float, record: Mapping[str, Any]) -> None:
        values = [_short(value) for value in record["values"]]
        self._add("d", time, record["version"], record["names"], values, record["split"])

    def _privacyspent(self, time: float, record: Mapping[str, Any]) -> None:
        self._add("e", time, record["version"], _short(record["epsilon"]), record["delta"])

    def _capped(self, time: float, record: Mapping[str, Any]) -> None:
        self._add("k", time, self.learner(record["learner"]), record["what"], record["most_share"])

    def _restored(self, time: float, record: Mapping[str, Any]) -> None:
        self._add("b", time, record["version"], record["earlier"])


def _short(value: float | str | None) -> float | None:
    """Round a number to five digits; return None if it is not finite (files store such numbers as strings)."""
    if value is None or not math.isfinite(float(value)):
        return None
    return float(f"{float(value):.5g}")


def _weight(weights: Sequence[float]) -> float | list[float | None] | None:
    """Return a weight as one number, or as one for each layer if they differ."""
    short = [_short(weight) for weight in weights]
    return short[0] if len(set(short)) == 1 else short


def _numbers(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _short(value) for name, value in metrics.items()}

"""The Grafana dashboard: its panels name metrics that a controller has, and every metric has a panel."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from archipel.federation.controller.meters import Meters

BOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "archipel.json"

pytestmark = pytest.mark.skipif(not BOARD.exists(), reason="not in a checkout of the source")


def families() -> dict[str, set[str]]:
    """Return the names under which Prometheus has each metric, with the labels of its samples."""
    kinds = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name: {family.name + end for end in kinds[family.type]} for family in Meters().registry.collect()}


def expressions() -> list[str]:
    board = json.loads(BOARD.read_text())
    variables = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]] + variables


def test_panels_name_metrics_that_exist() -> None:
    named = {name for expression in expressions() for name in re.findall(r"\barchipel_\w+", expression)}
    existing = families()
    assert named <= set().union(*existing.values())
    assert [family for family, names in existing.items() if not names & named] == []


def test_legends_name_labels_that_exist() -> None:
    meters = Meters()
    labels = {
        name: set(metric._labelnames)
        for metric in vars(meters).values()
        if hasattr(metric, "_labelnames")
        for name in (metric._name, f"{metric._name}_total", f"{metric._name}_bucket")
    }
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel["targets"]:
            (name,) = set(re.findall(r"\barchipel_\w+", target["expr"]))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels[name], panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells

"""A learner's operator can read every order and every answer; before there was no record at the learner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archipel.federation.learner import order_record
from archipel.federation.learner.order_record import FILE, OLDER, OrderRecord, read_record
from archipel.federation.wire import federation_pb2 as pb
from tests.federation.in_one_process import hold, study


@pytest.mark.slow
def test_every_order_and_every_answer_is_in_the_record(tmp_path: Path) -> None:
    raw = study(algorithms="sync_dvw", validation=0.2, ending={"rounds": 2})
    held = hold(raw, tmp_path)
    for name, agent in held.agents.items():
        rows = [json.loads(line) for line in read_record(tmp_path / name)]
        trains = [row for row in rows if row.get("order") == "train"]
        assert [row["task"] for row in rows if row.get("answer") == "trained"] == [row["task"] for row in trains]
        assert len(trains) == agent.memory.trained == 2
        asked = {row["task"] for row in rows if row.get("order") == "evaluate"}
        assert {row["task"] for row in rows if row.get("answer") == "scored"} <= asked
        assert asked
        assert [row["order"] for row in rows if row.get("order") == "stop"] == ["stop"]
        assert all(row["verdict"] in ("kept", "late") for row in rows if "answer" in row)
        (first, *_) = trains
        assert (first["epochs"], first["batch"]) == (agent.island.policy.plans[0].epochs, first["batch"])


def test_heartbeats_are_left_out_and_text_of_a_caller_forges_no_line(tmp_path: Path) -> None:
    record = OrderRecord(tmp_path)
    record.order(pb.Order(ping=pb.Ping()))
    record.order(pb.Order(evaluate=pb.Evaluate(task=-1, part='x"}\n{"at": "now", "order": "none\x1b[2J')))
    (line,) = read_record(tmp_path)
    assert json.loads(line)["part"].startswith('x"}\n')
    assert line.isprintable()


def test_a_large_record_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_record, "LARGEST", 100)
    for task in range(12):
        OrderRecord(tmp_path).order(pb.Order(cancel=pb.Task(task=task)))
    assert (tmp_path / OLDER.format(1)).exists()
    assert (tmp_path / FILE).stat().st_size < 300
    assert [json.loads(line)["task"] for line in read_record(tmp_path)] == list(range(12))


def test_of_an_endless_record_the_latest_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there was one file beside the last: 32 MB of orders were enough to hide what was asked first."""
    monkeypatch.setattr(order_record, "LARGEST", 0)
    monkeypatch.setattr(order_record, "KEPT", 3)
    for task in range(10):
        OrderRecord(tmp_path).order(pb.Order(cancel=pb.Task(task=task)))
    assert [json.loads(line)["task"] for line in read_record(tmp_path)] == [6, 7, 8, 9]


def test_an_order_of_any_size_is_a_line_of_a_bounded_one(tmp_path: Path) -> None:
    plan = pb.Plan(reports=["x" * 10_000] * 300, private=["y"] * 100_000)
    layers = [pb.Layer(name="z", sha256=b"0" * 32)] * 50_000
    OrderRecord(tmp_path).order(pb.Order(train=pb.Train(task=1, plan=plan, model=layers)))
    OrderRecord(tmp_path).order(pb.Order(evaluate=pb.Evaluate(task=1, part="p" * 4_000_000)))
    assert [len(line) < 100_000 for line in read_record(tmp_path)] == [True, True]

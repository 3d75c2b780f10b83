"""What a lying controller could compute from answers: rows one by one, and counts of whatever it likes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archipel.federation.learner.policy import Policy, SiteRules
from archipel.federation.wire.messages import decode_scored
from tests.security.lying_controller import Site, study

LINEAR: dict[str, Any] = {"name": "logistic_regression"}


def rebuilt(one: Site, tasks: int) -> list[tuple[Tensor, int]]:
    """Ask for one step on one example, again and again; return the rows that the updates reveal.

    The gradient of a linear layer is g x' and that of its bias g, so their quotient is the example.
    """
    found = []
    for _ in range(tasks):
        before = len(one.agent.link.sent)  # type: ignore[attr-defined]
        one.train(replace(one.honest, batch=1, epochs=1, steps=1))
        if len(one.agent.link.sent) > before:  # type: ignore[attr-defined]
            began = one._vector()
            weight, bias = one.layout.tensors(began - one.agent.link.sent[-1]).values()  # type: ignore[attr-defined]
            most = int(bias.abs().argmax())
            found.append((weight[most] / bias[most], int(bias.argmin())))
    return found


def are_rows(one: Site, found: list[tuple[Tensor, int]]) -> int:
    """Count the rows that are in the learner's table, with their labels."""
    work, train = one.agent.island.work, one.agent.island.learner.train
    x, y = work.x[train].flatten(1), work.y[train]
    return sum(bool(((x - row).abs().amax(1) < 1e-2)[y == label].any()) for row, label in found)


def test_rows_are_rebuilt_only_if_the_learner_checks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Site(study(model=LINEAR), tmp_path / "checks")
    assert rebuilt(one, 10) == []
    assert one.told[-1].failed.startswith("this task is not of the study")
    monkeypatch.setattr(Policy, "check_plan", lambda policy, plan: None)
    naive = Site(study(model=LINEAR), tmp_path / "naive")
    found = rebuilt(naive, 10)
    assert len(found) == are_rows(naive, found) == 10


def counting(one: Site, pixel: int, threshold: float) -> Tensor:
    """Return a model that says class 1 where a feature exceeds a threshold, else class 0."""
    vector = torch.zeros(one.layout.size)
    weight, bias = one.layout.tensors(vector).values()
    bias[2:] = -1e6
    weight[1, pixel] = 1e3
    bias[1] = -1e3 * threshold
    return vector


def count(one: Site, pixel: int, threshold: float) -> int | None:
    """Ask how many test examples have a feature above a threshold; None if it is not answered."""
    head = one.ask("test", vector=counting(one, pixel, threshold))
    if head.WhichOneof("result") != "scored":
        return None
    heard = decode_scored(head.scored, count=head.scored.count, classes=10, bins=0)
    assert heard.confusion is not None
    return int(np.asarray(heard.confusion)[:, 1].sum())


@pytest.mark.parametrize(("rules", "answers"), [(SiteRules(), 2), (SiteRules(max_questions=1), 1)])
def test_a_crafted_model_counts_until_the_budget_is_spent(tmp_path: Path, rules: SiteRules, answers: int) -> None:
    one = Site(study(model=LINEAR), tmp_path, rules)
    work, test = one.agent.island.work, one.agent.island.learner.test
    pixel = work.x[test].flatten(1)[:, 20]
    thresholds = [0.1 + place / 10 for place in range(8)]
    told = [count(one, 20, threshold) for threshold in thresholds]
    true = [int((pixel > threshold).sum()) for threshold in thresholds]
    assert told == true[:answers] + [None] * (8 - answers)
    assert "questions were answered after 0 training tasks, and the study has no more" in one.told[-1].failed

"""The last model of a run on test images of other colours than the study's."""

from __future__ import annotations

import copy

import torch
from torch import nn

from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.reproduction import Measure
from archipel.report.measures import Spread
from archipel.runs.run import Run
from archipel.study.build import build_data, build_settings
from archipel.study.files import put, study_of
from archipel.study.schema import Study


def scored_in(colour: str) -> Measure:
    """Return the last model's accuracy in per cent on test images of one colour; training is unchanged."""

    def measure(evidence: FinishedRuns, part: str, method: str) -> Spread:
        study = evidence.study(next(one for one in evidence.studies.parts if one.name == part))
        runs = evidence.runs(part, method)
        found = evidence.once(f"{part}, {method}, {colour}", lambda: [accuracy(study, run, colour) for run in runs])
        return Spread.of(found)

    return measure


def accuracy(study: Study, run: Run, colour: str) -> float:
    raw = copy.deepcopy(study.raw)
    put(raw, "data.colour_skew.test", colour)
    one = study_of({**raw, "seeds": [run.seed]}, code="any")
    data = build_data(one).islands
    make = build_settings(one, data)["model"]
    assert callable(make)
    module = make()
    assert isinstance(module, nn.Module)
    module.load_state_dict(run.state_dict())
    module.eval()
    with torch.no_grad():
        guessed = torch.cat([module(data.x[some]).argmax(1) for some in data.test.split(1000)])
    return 100 * float((guessed == data.y[data.test]).double().mean())

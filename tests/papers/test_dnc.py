"""D&C's tables: what its rounds move, which kind they are, where the net is divided, and that all of it runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import archipel as ap
from archipel import data, models
from archipel.core.layout import Layout
from archipel.papers.catalogue import reproduction
from archipel.papers.dnc import table2
from archipel.papers.dnc.fig4_6 import NAMES, last_whole, layers_before_the_split
from archipel.papers.dnc.network import half_side_vgg9
from archipel.papers.dnc.rounds import bytes_beside, bytes_of_rounds, kinds, score_after
from archipel.papers.dvw.network import half_side_cnn
from archipel.papers.finished_runs import FinishedRuns
from archipel.runs.run import Run
from archipel.study.schema import Study

LEARNERS, PREPASS, ROUNDS = 3, 2, 7


@cache
def run(name: str) -> Run:
    """Seven rounds on digits: FedAvg, or D&C with two rounds of the whole net and five of its parts."""
    islands = data.digits().split(learners=LEARNERS, classes="dirichlet(0.5)")
    algorithm = {
        "fedavg": ap.fedavg(equally=True, epochs=1, rate=0.1),
        "found": ap.divide_and_conquer(PREPASS, tuning_epochs=1, epochs=1, rate=0.1),
        "given": ap.divide_and_conquer(PREPASS, 1, tuning_epochs=1, epochs=1, rate=0.1),
    }[name]
    model = models.mlp(features=64, classes=10, hidden=(32, 16))
    return ap.simulate(algorithm, islands, model=model, ending=ap.Ending(rounds=ROUNDS))


class Made(FinishedRuns):
    """Runs that are there already."""

    def __init__(self) -> None:
        pass

    def runs(self, part: str, method: str) -> list[Run]:
        return [run(method)]


# ------------------------------------------------------------------------------------------------------------ rounds


def test_rounds_behind_the_pre_pass_train_the_first_and_the_last_layers_in_turn() -> None:
    assert list(kinds(run("given")).values()) == ["whole"] * 2 + ["features", "tuning"] * 2 + ["features"]
    assert set(kinds(run("fedavg")).values()) == {"whole"}


def test_what_a_round_moves_by_hand() -> None:
    first, rest = 4 * (64 * 32 + 32), 4 * (32 * 16 + 16 + 16 * 10 + 10)
    whole = first + rest
    expected = [
        *[2 * whole] * PREPASS,
        whole + first,  # everything has changed in the pre-pass; the first layer goes back
        *[first + rest] * 4,  # what the round before has changed comes, what this one has changed goes back
    ]
    assert list(bytes_of_rounds(run("given")).values()) == [LEARNERS * one for one in expected]
    assert list(bytes_of_rounds(run("fedavg")).values()) == [LEARNERS * 2 * whole] * ROUNDS
    shares = {
        (rounds, divided): bytes_beside("fedavg", rounds=rounds, divided=divided)(Made(), "", "given")
        for rounds in (None, 3)
        for divided in (False, True)
    }
    assert {key: spread.mean for key, spread in shares.items() if spread is not None} == {
        (None, False): pytest.approx(100 * sum(expected) / (2 * whole * ROUNDS)),
        (None, True): pytest.approx(100 * sum(expected[PREPASS:]) / (2 * whole * 5)),
        (3, False): pytest.approx(100 * sum(expected[:3]) / (2 * whole * 3)),
        (3, True): pytest.approx(100 * expected[2] / (2 * whole)),
    }


def test_scores_after_a_kind_of_round() -> None:
    scores = {one.version: 100 * one.metrics["accuracy"] for _, one in run("given").scores}
    for kind, versions in (("features", (3, 5, 7)), ("tuning", (4, 6))):
        spread = score_after(kind)(Made(), "", "given")  # type: ignore[arg-type]
        assert spread is not None
        assert spread.mean == pytest.approx(sum(scores[one] for one in versions) / len(versions))


def test_the_split_is_read_off_the_last_round_of_the_whole_net() -> None:
    found = last_whole(run("found"))
    assert found.version == PREPASS
    assert found.split is not None
    assert layers_before_the_split(run("found")) == found.names.index(found.split)
    first = next(commit for _, commit in run("found").commits if commit.version == PREPASS + 1)
    assert len(first.layers) == layers_before_the_split(run("found")), "which is what the next round trains"


# ----------------------------------------------------------------------------------------------------------- studies


def test_the_small_network_is_divided_as_vgg9_is() -> None:
    assert Layout.of(half_side_vgg9()).names == Layout.of(models.vgg9()).names == NAMES


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("learners", [5, 10])
def test_table_2_ends_with_the_bytes_of_18_rounds_of_fedavg(scale: str, learners: int) -> None:
    one = reproduction("dnc-table2")
    part = next(part for part in one.parts if part.name == str(learners))
    study = FinishedRuns(one, scale, Path("nowhere")).study(part)  # type: ignore[arg-type]
    assert study.raw["ending"]["bytes"] == 18 * learners * 2 * 4 * parameters(study)
    assert study.raw["data"]["split"]["learners"] == learners


def parameters(study: Study) -> int:
    assert study.model is not None
    module = {"vgg9": models.vgg9(), table2.CNN: half_side_cnn(3, 32, 10)}[study.model.name]
    return sum(one.numel() for one in module.parameters())

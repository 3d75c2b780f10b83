"""The study works: it can be read, the network takes the data, and two rounds learn something, twice the same.

They go by what study.toml says, so they hold for your own data and network too.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from archipel import Run
from archipel.study import read_study, run_study
from archipel.study.build import build_data, build_settings
from archipel.study.grid import cells

STUDY = Path(__file__).with_name("study.toml")
SHORT = ["ending={rounds=2}", "seeds=[0]"]


def run_short(folder: Path) -> Sequence[Run]:
    results = run_study(read_study(STUDY, changes=SHORT), folder, processes=1)
    errors = [(folder / run / "error.txt").read_text() for run in results.unfinished]
    assert not errors, "\n".join(errors)
    return results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Run]:
    return run_short(tmp_path_factory.mktemp("results") / "first")


def test_the_network_takes_the_data() -> None:
    first = cells(read_study(STUDY))[0].study
    data = build_data(first).islands
    network = build_settings(first, data)["model"]()
    assert network(data.x[:5]).shape == (5, data.classes)


def test_every_method_learns_something(runs: Sequence[Run]) -> None:
    assert runs
    for run in runs:
        losses = [scores.metrics["loss"] for _, scores in run.scores]
        assert losses[-1] < losses[0], run.name


def test_the_same_seed_gives_the_same_bits(runs: Sequence[Run], tmp_path: Path) -> None:
    again = run_short(tmp_path / "again")
    assert [run.fingerprint() for run in again] == [run.fingerprint() for run in runs]

"""Every example runs as documented, in a short form, and learns; what it demonstrates is present."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch

import archipel as ap
from archipel.study import read_study, run_study
from archipel.study.federate import hashes_of, host, layout_hash
from archipel.study.local_site import take_part, try_out
from archipel.study.results import Results
from tests.real_files import REAL, needs

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs take all cores they see, and tests run side by side: an LSTM that waits for a thread is ten times slower."""
    monkeypatch.setattr("archipel.study.results.cores", lambda: 1)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the real files; the user's cache is left alone."""
    monkeypatch.setenv("ARCHIPEL_DATA", str(REAL))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return REAL


def copied(name: str, tmp_path: Path) -> Path:
    """Copy an example, so that its output stays out of the repository."""
    return Path(
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    )


def run_short(folder: Path, *changes: str) -> Results:
    results = run_study(read_study(folder / "study.toml", changes=changes), folder / "results", processes=1)
    errors = [(results.folder / run / "error.txt").read_text() for run in results.unfinished]
    assert not errors, "\n".join(errors)
    return results


def learned(results: Results, above: float) -> None:
    for run in results:
        losses = [scores.metrics["loss"] for _, scores in run.scores]
        assert losses[-1] < losses[0], run.name
        assert run.score > above, run.name


@pytest.mark.slow
@needs("heart_disease")
def test_heart_disease(real: Path, tmp_path: Path) -> None:
    folder = copied("heart_disease", tmp_path)
    runpy.run_path(str(folder / "make_csv.py"), run_name="__main__")
    results = run_short(folder, "seeds=[0]", "ending={rounds=4}")
    assert [run.name for run in results] == ["local_only", "fedavg", "async_dvw", "hdafl", "centralised"]
    assert [p.name for p in results[1].participants] == ["00-cleveland", "01-hungarian", "02-switzerland", "03-va"]
    assert {layer.name for layer in results[1].layout.layers} == {"body", "head"}
    learned(results, above=0.6)


@needs("heart_disease")
def test_the_table_of_heart_disease_tells_what_the_official_files_do(real: Path, tmp_path: Path) -> None:
    folder = copied("heart_disease", tmp_path)
    runpy.run_path(str(folder / "make_csv.py"), run_name="__main__")
    given = read_study(folder / "study.toml").data.source.given
    table = ap.data.from_csv(**{**given, "path": folder / "heart.csv"})
    known = ap.data.heart_disease()
    assert table.sites is not None
    assert known.sites is not None
    assert table.site_names == known.site_names
    assert torch.equal(table.sites, known.sites)
    assert torch.equal(table.y, known.y)
    # the table has a column for unknown kinds, where the source has zeros, and one for ages that are missing
    assert table.x.shape == (920, 30 + 5 + 1)
    for name, kinds in table.categories.items():
        assert torch.equal(kinds.bincount().sort().values, known.categories[UCI[name]].bincount().sort().values)


UCI = {
    "sex": "sex",
    "chest_pain": "cp",
    "high_sugar": "fbs",
    "ecg": "restecg",
    "exercise_angina": "exang",
    "st_slope": "slope",
    "thallium": "thal",
}
"""The names of the official files."""


@pytest.mark.slow
@needs("shakespeare")
def test_shakespeare(real: Path, tmp_path: Path) -> None:
    short = ["data.source.length=20", "data.source.step=80", "data.natural.learners=4", "ending={rounds=4}"]
    results = run_short(copied("shakespeare", tmp_path), *short)
    assert [run.name for run in results] == ["fedavg", "hdafl", "radfed"]
    learned(results, above=0.1)


@pytest.mark.slow
def test_own_weighting(tmp_path: Path) -> None:
    results = run_short(copied("own_weighting", tmp_path), "seeds=[0]", "ending={rounds=6}")
    assert ["ByPower(power=0.5)" in run.algorithm for run in results] == [False, True, False]
    by_examples, by_root, _ = (run.commits[0][1] for run in results)
    assert [weight**0.5 for (weight, *_) in by_examples.weights] == [weight for (weight, *_) in by_root.weights]
    learned(results, above=0.4)


@pytest.mark.slow
def test_matched_averaging(tmp_path: Path) -> None:
    folder = copied("matched_averaging", tmp_path)
    results = run_short(folder, "seeds=[0]", "ending={rounds=6}", "tune.training.rate=[0.03]")
    fedavg, fedprox, fedma, *_ = results
    assert [run.name for run in results] == ["fedavg", "fedprox", "fedma", "fedma, gamma 1", "fedma, growth 1"]
    assert fedma.traffic["train up bytes"] < fedavg.traffic["train up bytes"] == fedprox.traffic["train up bytes"]
    learned(results, above=0.5)


@pytest.mark.slow
def test_mixtures(tmp_path: Path) -> None:
    results = run_short(copied("mixtures", tmp_path), "seeds=[0]", "ending={seconds=14}", "evaluation.seconds=2")
    radfed, relay, hdafl, stream, divided, periodic = results
    assert "Relay(" in relay.algorithm
    assert "ByDistributedValidation(metric='macro_f1'" in relay.algorithm
    assert relay.traffic["evaluate down bytes"] > radfed.traffic.get("evaluate down bytes", 0)
    assert "Stream(" in stream.algorithm
    assert len(stream.commits) > len(hdafl.commits)
    assert all(set(kept) == {"head"} for run in (hdafl, stream) for kept in run.private.values())
    assert periodic.traffic["train up bytes"] < divided.traffic["train up bytes"]
    learned(results, above=0.25)


def test_federation_in_the_simulator(tmp_path: Path) -> None:
    folder = copied("federation", tmp_path)
    runpy.run_path(str(folder / "make_tables.py"), run_name="__main__")
    (run,) = run_short(folder, "ending={rounds=12}")
    assert [one.name for one in run.participants] == ["00-north", "01-south", "02-west"]
    assert run.score > 0.8


def test_federation_with_a_table_each(tmp_path: Path) -> None:
    """Both sides of the study without all.csv, which nobody has; between processes it runs in test_docs.py."""
    folder = copied("federation", tmp_path)
    runpy.run_path(str(folder / "make_tables.py"), run_name="__main__")
    everybody = (folder / "all.csv").read_text().splitlines()
    (folder / "all.csv").unlink()
    study = read_study(folder / "study.toml")
    hosting = host(study)
    assert hosting.work is None
    assert (hosting.evaluation.at, hosting.terms.wait_for) == ("learners", 2)
    for name in hosting.terms.learners:
        island, narrowed = take_part(study, name, folder / f"{name}.csv")
        assert layout_hash(island.work.layout) == layout_hash(hosting.layout)
        assert hashes_of(narrowed) == hashes_of(hosting.study)
        assert try_out(narrowed, island)[-1] == "nothing was sent; leave --dry-run out to take part"
    # a table that names the site is as good: nobody looks at the column
    (folder / "named.csv").write_text("\n".join(row for row in everybody if row.startswith(("hospital,", "west,"))))
    named, _ = take_part(study, "west", folder / "named.csv")
    assert torch.equal(named.work.x, island.work.x)


def test_every_example_is_in_the_list_and_says_how_to_run_it() -> None:
    listed = re.findall(r"^\| \[\w+\]\((\w+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    studies = sorted(EXAMPLES.glob("*/*.toml"))
    assert sorted(listed) == sorted({path.parent.name for path in studies})
    for path in studies:
        head = path.read_text().partition("title =")[0]
        assert re.search(rf"^#   archipel run {path.name}(?: +# .*)?$", head, re.MULTILINE), path

"""Study files: three formats, one meaning; an error names its line and the way out."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml

import archipel as ap
from archipel.study import run_study
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.document import document
from archipel.study.files import embedded, read_study
from archipel.study.grid import cells
from archipel.study.schema import METHODS, MODELS, SOURCES, Study
from archipel.study.tuning import candidates

ROOT = Path(__file__).parent.parent.parent


def written(folder: Path, text: str, name: str = "study.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path | None = None, **changes: Any) -> str:
    """The error about a study before anything runs."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the text is what the tests compare)
        _looked_through(path, **changes)
    return str(caught.value)


def _looked_through(path: Path | None, **changes: Any) -> None:
    study = read_study(path, **changes)
    candidates(study, cells(study))


# ------------------------------------------------------------------------------------------------------- formats


def test_toml_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    raw = tomllib.loads(embedded())
    with_null = {**raw, "evaluation": {**raw["evaluation"], "every": None}}
    paths = [
        written(tmp_path, tomlkit.dumps(raw)),
        written(tmp_path, yaml.safe_dump(with_null), "study.yaml"),
        written(tmp_path, yaml.safe_dump(with_null), "study.yml"),
        written(tmp_path, json.dumps(with_null), "study.json"),
    ]
    first, *others = [read_study(path) for path in paths]
    assert all(other.raw == first.raw for other in others)
    assert [repr(build_algorithm(cell.study)) for cell in cells(first)] == [
        repr(build_algorithm(cell.study)) for cell in cells(others[0])
    ]


def test_the_embedded_study_is_what_the_issue_asks_for() -> None:
    runs = cells(read_study())
    assert [cell.name for cell in runs] == [
        *("fedavg", "fedasync", "async_dvw", "fed2a", "divide_and_conquer", "hdafl", "radfed")
    ]
    data = build_data(runs[0].study).islands
    assert data.name == "digits"
    assert len(data.learners) == 10
    assert sorted(data.sizes())[-1] > 3 * sorted(data.sizes())[0]  # power law
    largest, *others = (int((row > 0).sum()) for row in data.class_table())
    assert others == [3] * 9
    assert largest == 6  # nobody has 720 examples of three classes: Metis gives its largest more, too
    settings = build_settings(runs[0].study, data)
    assert settings["fleet"] == ap.Fleet(fast=5, slow=5)
    algorithms = {cell.name: build_algorithm(cell.study) for cell in runs}
    assert algorithms["async_dvw"] == ap.async_dvw(
        epochs=2, batch=16, rate=0.1, momentum=0.0, tombstones={"fast": 4, "slow": 1}, loss={"fast": 0, "slow": 1}
    )
    assert algorithms["fedavg"] == ap.fedavg(epochs=2, batch=16, rate=0.1, momentum=0.0)


def test_a_file_that_is_no_study_says_so(tmp_path: Path) -> None:
    assert "should be" in refused(
        written(tmp_path, "algorithms = 3\n[data]\nsource = 'digits'\nsplit = {learners = 2}")
    )
    assert "is not valid TOML" in refused(written(tmp_path, "title = "))
    assert "is not valid YAML" in refused(written(tmp_path, "a: [1", "study.yaml"))
    assert "consists of keys and tables" in refused(written(tmp_path, "- 1\n- 2\n", "study.yaml"))
    twice = written(tmp_path, "title: a\ndata:\n  source: digits\n  source: mnist\n", "study.yaml")
    assert "line 4: source is given already, in line 3" in refused(twice)
    twice = written(tmp_path, '{"title": "a",\n\t"title": "b"}', "study.json")
    assert "line 2: title is given already, in line 1" in refused(twice)
    assert "is not valid JSON: Expecting value: line 1 column 11" in refused(
        written(tmp_path, '{"title": }', "study.json")
    )
    assert "ends in .toml" in refused(written(tmp_path, "", "study.txt"))
    other = tmp_path / "other.toml"
    other.write_bytes(b'title = "\xff"')
    assert "is not UTF-8 text (byte 9)" in refused(other)
    (tmp_path / "folder.toml").mkdir()
    assert "cannot be read: it is a directory, and a file is needed" in refused(tmp_path / "folder.toml")
    (tmp_path / "cycle.toml").symlink_to("cycle.toml")
    assert "cannot be read: it is a symbolic link that leads back to itself" in refused(tmp_path / "cycle.toml")
    with pytest.raises(FileNotFoundError, match=r"There is no study .*archipel new"):
        read_study(tmp_path / "none.toml")


def test_a_mark_at_the_beginning_of_a_file_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, TOML)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_study(path).title == "x"


def test_json_may_be_indented_with_tabs(tmp_path: Path) -> None:
    text = json.dumps(tomllib.loads(TOML), indent="\t")
    study = read_study(written(tmp_path, text, "study.json"))
    assert study.raw == read_study(written(tmp_path, TOML)).raw
    wrong = text.replace('"title"', '"titel"')
    line = next(number for number, one in enumerate(wrong.splitlines(), start=1) if "titel" in one)
    assert f"line {line}: titel: is not known; did you mean 'title'?" in refused(written(tmp_path, wrong, "study.json"))


def test_own_code_that_is_a_cyclic_link_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").symlink_to("own.py")
    with pytest.raises(ValueError, match=r"There is no file .*own\.py"):
        read_study(written(tmp_path, TOML), changes=["model='own.py:net'"])


# --------------------------------------------------------------------------------------------- mistakes and lines


TOML = """\
title = "x"
seeds = [0]
algorithms = ["fedavg"]

[data]
source = "digits"

[data.split]
learners = 4

[[fleet.groups]]
name = "a"
count = 2

[[fleet.groups]]
name = "b"
count = 2
"""

YAML = """\
algorithms:
  - fedavg
  - name: fedprox
    mu: 1
data:
  source: digits
  split:
    learners: 4
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("seeds = [0]", "seed = [0]", 2, "seed: is not known; did you mean 'seeds'?"),
        ("learners = 4", "learner = 4", 9, "data.split.learner: is not known; did you mean 'learners'?"),
        ('source = "digits"', 'source = "digit"', 6, "data.source: there is no source 'digit'. Did you mean"),
        ("learners = 4", 'learners = "many"', 9, "data.split.learners: should be a whole number, got 'many'"),
        ('["fedavg"]', '["fedavgg"]', 3, "fedavgg: there is no algorithm 'fedavgg'. Did you mean 'fedavg'?"),
        ('["fedavg"]', '[{name="fedavg", fracton=1}]', 3, "fedavg.fracton: is not known; did you mean 'fraction'?"),
        (
            "[data.split]",
            "[training]\nepoch = 1\n[data.split]",
            9,
            "training.epoch: is not known; did you mean 'epochs'?",
        ),
        ('name = "b"\ncount = 2', 'name = "b"\ncuont = 2', 17, "fleet.groups.1.cuont: is not known; did you mean"),
        ('["fedavg"]', '[\n  "fedavg",\n  # why\n  { name = "fedprox", muu = 3 },\n]', 6, "fedprox.muu: is not known;"),
        ('["fedavg"]', '[\n  "fedavg",\n  "fedproxx",\n]', 5, "fedproxx: there is no algorithm 'fedproxx'."),
        ("seeds = [0]", "seeds = [-1]", 2, "seeds.0: should be at least 0, got -1."),
    ],
)
def test_a_mistake_in_toml_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: int, told: str) -> None:
    text = TOML.replace(old, new)
    assert text != TOML
    path = written(tmp_path, text)
    assert refused(path).startswith(f"{path}, line {line}: {told}")


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("mu: 1", "fractoin: 1", 4, "fedprox.fractoin: is not known; did you mean 'fraction'?"),
        ("mu: 1", "mu: much", 4, "fedprox.mu: should be a number, got 'much'"),
        ("learners: 4", "sizes: powerlaw", 7, "data.split.learners: is missing"),
        ("- fedavg", "- fedavgg", 2, "fedavgg: there is no algorithm 'fedavgg'."),
    ],
)
def test_a_mistake_in_yaml_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: int, told: str) -> None:
    path = written(tmp_path, YAML.replace(old, new), "study.yaml")
    assert refused(path).startswith(f"{path}, line {line}: {told}")


def test_several_mistakes_are_told_together(tmp_path: Path) -> None:
    text = TOML.replace("learners = 4", 'learners = "many"').replace("seeds = [0]", "seeds = [1.5]")
    assert len(refused(written(tmp_path, text)).splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("rate", "--set rate: give key=value"),
        ("fedavgg.rate=1", "no section and no method 'fedavgg'; did you mean 'fedavg'?"),
        ("fedavg=3", "say which setting of fedavg"),
        ("data.split.learners.x=3", "learners is not a table"),
        ("data.split=3", "data.split: should be a table, got 3."),
        ("data.natural.learners=3", "give one of split, natural and split_file, got split and natural."),
        ("grid.training.rate=1", "give the values to try as a list, got 1"),
        ("grid.trainin.rate=[1]", "did you mean 'training'?"),
        ("tune.trainin.rate=[1]", "did you mean 'training'?"),
        ("ending.seconds=-1", "seconds should be more than 0"),
        ("fedavg.weighting=ByExample()", "there is no part 'ByExample'. Did you mean 'ByExamples'?"),
        ("fedavg.weighting=ByFreshness('invv')", "Did you mean 'inv'?"),
        ("fedavg.weighting=__import__('os').system('x')", "should make a Weighting"),
        ("fedavg.weighting=Product(__import__('os').system('x'), 1)", "neither a part nor a number"),
        ("fedavg.weighting=ByFreshness(", "is not an expression"),
        ("model=small_mlpp", "Did you mean 'small_mlp'?"),
        ("loss=cross_entropyy", "did you mean 'cross_entropy'?"),
        ("model='nowhere.py:Net'", "There is no file"),
        ("model='no_such_package:Net'", "is code that may not run without --allow-code"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(change: str, told: str) -> None:
    assert told in refused(changes=[change])


def test_a_package_that_is_not_installed_is_told() -> None:
    told = refused(changes=["model='no_such_package:Net'"], code="any")
    assert "Install the package, or name a file beside the study" in told


def test_parts_that_make_no_sense_together_are_refused_before_anything_runs() -> None:
    message = refused(algorithms=["async_fedavg"], changes=["async_fedavg.protocol=Relay()"])
    assert message.startswith("async_fedavg: Relay does not go with Community")


def test_two_methods_of_one_name_need_labels() -> None:
    assert "two methods are called fedavg" in refused(changes=['algorithms=["fedavg", "fedavg"]'])
    runs = cells(read_study(changes=['algorithms=["fedavg", {name="fedavg", label="half", fraction=0.5}]']))
    assert [cell.name for cell in runs] == ["fedavg", "half"]
    assert build_algorithm(runs[1].study).name == "half"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("seeds=[0,0]", "fedavg/seed-0 would be the folder of two runs"),
        ("grid.training.rate=[0.1,0.1]", "would be the folder of two runs"),
        ("tune.training.rate=[0.1,0.1]", "would be the folder of two runs"),
        ("algorithms=[{name='fedavg', label='report'}]", "'report' cannot be a label"),
    ],
)
def test_every_run_has_a_folder_of_its_own(change: str, told: str) -> None:
    assert told in refused(changes=[change])


def test_long_settings_have_folders_of_their_own() -> None:
    sizes = [[100 + n, *[10] * 39] for n in range(3)]
    runs = cells(read_study(algorithms=["fedavg"], changes=[f"grid.data.split.sizes={sizes}"]))
    assert len({run.place for run in runs}) == 3
    assert max(len(part) for run in runs for part in run.place.parts) <= 150


def test_a_studys_folder_starts_from_the_study(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = written(tmp_path, 'folder = "sub"\n' + TOML)
    assert read_study(path).folder == (tmp_path / "sub").resolve()


# ------------------------------------------------------------------------------------------- what a study can say


def test_changes_reach_sections_methods_and_short_forms() -> None:
    study = read_study(
        algorithms=["async_dvw", "fedprox"],
        data="heart_disease",
        changes=["training.rate=0.5", "fedprox.mu=2", "data.source.classes=5", "title=other"],
    )
    dvw, prox = (build_algorithm(cell.study) for cell in cells(study))
    assert dvw.planners[0] == ap.ValidationCycle({"fast": 0, "slow": 1}, {"fast": 4, "slow": 1}, 50)  # the study's own
    assert prox == ap.fedprox(mu=2, epochs=2, batch=16, rate=0.5, momentum=0.0)
    assert study.data.source.name == "heart_disease"
    assert study.data.source.given == {"classes": 5}
    assert study.title == "other"


def test_parts_can_be_exchanged_by_expressions() -> None:
    entry = """{name="fedavg", label="mix", weighting="Product(ByExamples(), ByFreshness('inv'))", merge="Mean",
        protocol="Stream(buffer=3)", planners=["PrivateLayers(('head',))", "Decay(0.9)"], server="Adam(0.1)"}"""
    (run,) = cells(read_study(changes=[f"algorithms=[{entry}]".replace("\n", " ")]))
    made = build_algorithm(run.study)
    assert made.name == "mix"
    assert made.weighting == ap.Product(ap.ByExamples(), ap.ByFreshness("inv"))
    assert made.protocol == ap.Stream(buffer=3)
    assert made.planners == (ap.PrivateLayers(("head",)), ap.Decay(0.9))
    assert made.server == ap.Adam(0.1)
    (run,) = cells(read_study(changes=["algorithms=[{name='fedprox', mu=3, more_planners=['Decay(0.9)']}]"]))
    assert build_algorithm(run.study).planners == (ap.Proximal(3), ap.Decay(0.9))


OWN = '''
from dataclasses import dataclass, replace
import torch
from torch import nn
import archipel as ap
from archipel.core.parts import Weighting


class Net(nn.Module):
    def __init__(self, features: int, hidden: int = 7, classes: int = 2) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())


@dataclass(frozen=True)
class Squared(Weighting):
    """Weigh by the square of the number of examples."""

    power: float = 2.0

    def weigh(self, view, update):
        return float(update.examples) ** self.power


def mine(fraction: float = 0.5, rate: float = 0.1):
    return replace(ap.fedavg(fraction, rate=rate), name="whatever", weighting=Squared())


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def source(count: int = 200):
    torch.manual_seed(0)
    x = torch.randn(count, 5)
    return ap.data.from_arrays(x, (x[:, 0] > 0).long(), name="coins")


def line():
    x = torch.linspace(0, 1, 250).reshape(50, 5)
    return ap.data.from_arrays(x, x[:, 0] * 2, name="line")
'''


def test_own_code_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    study = written(
        tmp_path,
        """
        algorithms = [{name = "own.py:mine", fraction = 1.0}, {name = "fedavg", weighting = "own.py:Squared(3)"}]
        loss = "own.py:loss"
        [model]
        name = "own.py:Net"
        hidden = 3
        [data]
        source = {name = "own.py:source", count = 90}
        split = {learners = 3}
        [training]
        epochs = 2
        rate = 0.3
        [ending]
        rounds = 1
        """,
    )
    first, second = cells(read_study(study))
    mine, weighed = build_algorithm(first.study), build_algorithm(second.study)
    assert mine.name == "mine"
    assert mine.plan.rate == 0.3  # what it takes of the training settings
    assert mine.plan.epochs == 1  # and what it does not
    assert weighed.weighting.power == 3  # type: ignore[attr-defined]
    data = build_data(first.study).islands
    settings = build_settings(first.study, data)
    network: Any = settings["model"]()
    assert network.body.weight.shape == (3, 5)  # features from the data, hidden from the study
    assert network.head.weight.shape == (2, 3)  # somebody's own default is meant
    assert settings["loss"].__name__ == "loss"
    assert [run.commits[-1][1].weights[0][0] for run in run_study(study, tmp_path / "results", processes=1)] == [
        len(data.learners[0].train) ** 2,
        len(data.learners[0].train) ** 3,
    ]
    message = refused(study, changes=["model.hiden=3"])
    assert "model.hiden: is not known; did you mean 'hidden'?" in message
    (tmp_path / "deep.py").write_text("def deep(depth: int): ...")
    assert "model.depth: is missing; give it." in refused(study, changes=["model='deep.py:deep'"])
    assert "Did you mean 'Net'?" in refused(study, changes=["model.name='own.py:Nett'"])
    (tmp_path / "broken.py").write_text("import nothing_like_this")
    assert "cannot be imported: ModuleNotFoundError" in refused(study, changes=["model.name='broken.py:Net'"])


def test_networks_take_their_sizes_from_the_data() -> None:
    runs = cells(read_study(algorithms=["fedavg"], changes=["model=mlp", "model.hidden=[5]"]))
    data = build_data(runs[0].study).islands
    network = build_settings(runs[0].study, data)["model"]()
    assert [tuple(tensor.shape) for tensor in network.parameters()] == [(5, 64), (5,), (10, 5), (10,)]


def test_a_size_that_the_data_do_not_tell_has_to_be_given(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    changes = ["data.source='own.py:line'", "model=mlp", f"folder={tmp_path}"]
    (run,) = cells(read_study(algorithms=["fedavg"], changes=[*changes, "data.split={learners=3}"]))
    with pytest.raises(ValueError, match=r"model.classes: it does not follow from 'line', .* shape \(5,\); give it"):
        build_settings(run.study, build_data(run.study).islands)


# ------------------------------------------------------------------------------------------------------ documents


@pytest.mark.slow
def test_the_document_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "reference" / "study.md").read_text() == document(), (
        "python -m archipel.study.document > docs/reference/study.md"
    )


def test_the_document_has_every_key_and_a_meaning_for_each() -> None:
    text = document()
    for name in (*METHODS, *MODELS, *SOURCES):
        assert f"### `{name}`\n" in text
    for key in Study.model_fields:
        assert f"| `{key}` |" in text
    without = [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not without

"""`archipel algorithms`: what it says is what the constructors do, at 80 columns and in a pipe."""

import inspect
import json
from typing import Any

import pytest
from typer.testing import CliRunner

import archipel as ap
from archipel import algorithms
from archipel.cli.algorithms import expression
from archipel.core.types import Local
from tests.cli.small_program import app, program


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["algorithms", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_list_names_every_method_its_paper_and_its_parts() -> None:
    text = said()
    for name in algorithms.__all__:
        assert f"\n  {name} " in text
    assert "FedProx: T. Li et al., Federated Optimization in Heterogeneous Networks, 2020." in text
    assert "Stream(), ByDistributedValidation(), Community()," in text
    assert "Relay(), Equally(), Mean(), Replace(rate=0.6)" in text


def test_the_list_as_data() -> None:
    methods = {method["name"]: method for method in json.loads(said("--json"))}
    assert sorted(methods) == sorted(algorithms.__all__)
    assert methods["fedavg"] == {
        "name": "fedavg",
        "summary": "FedAvg: rounds of local training and a mean weighted by the number of examples.",
        "paper": "FedAvg: B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, 2017.",
        "parts": {"protocol": "Rounds()", "weighting": "ByExamples()", "merge": "Mean()"},
    }
    assert methods["divide_and_conquer"]["parts"]["planners"] == "DivideAndConquer(), Decay()"
    assert methods["async_dvw"]["parts"]["recall"] == "MedianStaleness()"
    assert methods["radfed_i"]["parts"]["selection"] == "ByImportance()"


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.__all__)
def test_everything_about_one(name: str) -> None:
    constructor = getattr(ap, name)
    method = json.loads(said(name, "--json"))
    # the expression makes the method again
    assert eval(method["expression"], {name: getattr(ap, name) for name in ap.__all__}) == constructor()
    signature = inspect.signature(constructor).parameters
    assert [setting["name"] for setting in method["settings"]] == [key for key in signature if key != "local"]
    assert [setting["name"] for setting in method["local"]] == list(Local.__annotations__)
    for setting in method["settings"]:
        default = signature[setting["name"]].default
        assert setting["default"] == (list(default) if isinstance(default, tuple) else default)
    assert {setting["name"]: setting["default"] for setting in method["local"]} == {
        key: getattr(constructor().plan, key) for key in Local.__annotations__
    }
    text = said(name)
    assert "…" not in text
    for setting in method["settings"] + method["local"]:
        assert f" {setting['name']}: {setting['type']} = {setting['default']!r} " in " ".join(text.split())
        assert setting["meaning"] in " ".join(text.split())
    assert method["expression"] in text


def test_a_page_ends_with_how_the_paper_was_read() -> None:
    text = " ".join(said("fed2a").split())
    assert "Fed2A: Federated Learning Mechanism in Asynchronous and Adaptive Modes, 2022. Implemented: the" in text
    assert "Read so (docs/decisions/0006, 0008 to 0010): the first period uploads all layers;" in text


def test_a_misspelt_name_gets_the_nearest() -> None:
    result = CliRunner().invoke(app, ["algorithms", "fedasinc"])
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).endswith("Did you mean 'fedasync'?")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (ap.Rounds(), "Rounds()"),
        (ap.Stream(5, concurrency=3), "Stream(buffer=5, concurrency=3)"),
        (ap.Product(ap.ByExamples(), ap.ByFreshness("inv")), "Product(ByExamples(), ByFreshness(curve='inv'))"),
        (ap.PrivateLayers(("fc1", "head")), "PrivateLayers(layers=('fc1', 'head'))"),
        (ap.ValidationCycle({"fast": 0.0, "slow": 1.0}), "ValidationCycle(loss={'fast': 0.0, 'slow': 1.0})"),
        ((ap.Decay(),), "(Decay(),)"),
        (ap.Plan(options={"weight_decay": 0.1}), "Plan(options={'weight_decay': 0.1})"),
    ],
)
def test_expressions_leave_defaults_out(part: Any, text: str) -> None:
    assert expression(part) == text
    assert eval(text, {name: getattr(ap, name) for name in ap.__all__}) == part


@pytest.mark.slow
def test_in_a_pipe_of_80_columns() -> None:
    done = program("algorithms")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line != line.rstrip() or "…" in line or "\x1b" in line]

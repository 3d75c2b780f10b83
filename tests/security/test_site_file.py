"""A site file narrows what a controller may ask, and what code a study may run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archipel.cli.program import app
from archipel.federation.learner.policy import SiteRules
from archipel.study.files import read_study, study_of
from archipel.study.local_site import take_part, try_out
from archipel.study.site_file import SiteFile, read_site
from tests.security.lying_controller import Site, study


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., SiteFile]:
    def write(text: str) -> SiteFile:
        (tmp_path / "site.toml").write_text(text)
        return read_site(tmp_path / "site.toml")

    return write


# ------------------------------------------------------------------------------------------------------------- the file


def test_an_empty_file_demands_nothing(site: Callable[..., SiteFile]) -> None:
    assert site("") == SiteFile()


def test_all_keys(site: Callable[..., SiteFile]) -> None:
    found = site(
        'min_rows = 100\nmin_scored_rows = 50\nmin_batch = 16\nmax_questions = 7\nrefuse = ["test", "moments"]\n'
    )
    assert found.rules == SiteRules(100, 50, 16, 7, frozenset({"test", "moments"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nmin_row = 3", "site.toml, line 2: min_row: is not known; did you mean 'min_rows'?"),
        ("min_rows = 9", "site.toml, line 1: min_rows: should be at least 10, got 9."),
        ('refuse = [\n  "test",\n  "all",\n]', "site.toml, line 3: refuse.1: should be 'validation', 'test' or"),
        ('[code]\n"a.py" = "12"', "site.toml, line 2: code.a.py: string should match pattern"),
        ("min_rows = 1 2", "site.toml is not valid TOML"),
    ],
)
def test_mistakes_are_told_with_their_line(site: Callable[..., SiteFile], text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        site(text)


def test_a_file_that_is_missing_or_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no site file"):
        read_site(tmp_path / "site.toml")
    with pytest.raises(ValueError, match=r"a site file ends in .toml, got '.yaml'"):
        read_site(tmp_path / "site.yaml")


# ------------------------------------------------------------------------------------------------------------ the rules


def take(rules: SiteRules, **sections: Any) -> list[str]:
    island, narrowed = take_part(study_of(study(**sections)), "00", rules=rules)
    return try_out(narrowed, island)


def test_fewer_rows_than_the_site_demands_are_refused() -> None:
    with pytest.raises(ValueError, match=r"This learner has 47\d examples, .* At least 1000 are needed"):
        take(SiteRules(min_rows=1000))
    assert "at least 400 are needed" in take(SiteRules(min_rows=400))[0]
    with pytest.raises(ValueError, match=r"tasks of 64 examples .* At least 400"):
        take(SiteRules(min_rows=400), training={"batch": 32, "steps": 2})


def test_smaller_batches_than_the_site_demands_are_refused() -> None:
    with pytest.raises(ValueError, match="batches of 1, and this site with 8 at least"):
        take(SiteRules(min_batch=8), training={"batch": 1, "steps": 12})
    take(SiteRules(min_batch=8), training={"batch": 8, "steps": 12})


def test_models_are_not_tried_on_a_small_part(tmp_path: Path) -> None:
    assert "site: refuses test" in take(SiteRules(min_scored_rows=500))
    one = Site(study(), tmp_path / "small", SiteRules(min_scored_rows=500))
    assert one.ask("test").failed == "the operator refuses to try models on the test part"
    large = Site(study(), tmp_path / "large", SiteRules(min_scored_rows=50))
    assert large.ask("test").WhichOneof("result") == "scored"


def test_what_the_site_refuses_is_refused(tmp_path: Path) -> None:
    one = Site(study(), tmp_path, SiteRules(refuse=frozenset({"test"})))
    assert one.ask("test").failed == "the operator refuses to try models on the test part"


def test_no_more_questions_are_answered_than_the_site_allows(tmp_path: Path) -> None:
    one = Site(study(), tmp_path, SiteRules(max_questions=2))
    results = []
    for _ in range(3):
        results.append(one.ask("test").WhichOneof("result"))
        assert one.train(one.honest).WhichOneof("result") == "trained"
    assert results == ["scored", "scored", "failed"]
    assert Site(study(), tmp_path / "more", SiteRules(max_questions=10**9)).agent.island.policy.budget.allowed(0) == 2


# ------------------------------------------------------------------------------------------------------------- the code

NETWORK = "from torch import nn\nfrom {neighbour} import WIDTH\n\n\nclass Net(nn.Linear):\n    pass\n"
NEIGHBOUR = "WIDTH = 3\n"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def approval(neighbour: str) -> str:
    """Return the lines that approve the code of the study below."""
    net = digest(NETWORK.format(neighbour=neighbour))
    return f'[code]\n"net.py" = "{net}"\n"{neighbour}.py" = "{digest(NEIGHBOUR)}"\n'


@pytest.fixture
def with_code(tmp_path: Path) -> Callable[..., Path]:
    """Write a study whose network imports a neighbour with a name of its own, since modules are loaded once."""

    def write(neighbour: str) -> Path:
        (tmp_path / "net.py").write_text(NETWORK.format(neighbour=neighbour))
        (tmp_path / f"{neighbour}.py").write_text(NEIGHBOUR)
        (tmp_path / "study.toml").write_text(
            'algorithms = "fedavg"\n[model]\nname = "net.py:Net"\nin_features = 64\nout_features = 10\n'
            '[data]\nsource = "digits"\nsplit = { learners = 2 }\n'
        )
        return tmp_path / "study.toml"

    return write


def test_approved_code_runs_with_its_approved_neighbours(
    site: Callable[..., SiteFile], with_code: Callable[..., Path]
) -> None:
    path = with_code("width_a")
    found = site(approval("width_a"))
    assert found.code is not None
    chosen = read_study(path, code=found.code)
    assert chosen.model is not None
    assert chosen.model.constructor.__name__ == "Net"


def test_code_that_nobody_approved_does_not_run(site: Callable[..., SiteFile], with_code: Callable[..., Path]) -> None:
    path = with_code("width_b")
    net = digest(NETWORK.format(neighbour="width_b"))
    for text, words in (
        ("[code]", f"net.py has the SHA-256 {net}, and the site file approves no file of that name."),
        (f'[code]\n"net.py" = "{"0" * 64}"', f"net.py has the SHA-256 {net}, and the site file approves {'0' * 64}."),
        (f'[code]\n"net.py" = "{net}"', "width_b.py has the SHA-256"),
    ):
        found = site(text)
        assert found.code is not None
        with pytest.raises(ValueError, match=re.escape(words)):
            read_study(path, code=found.code)


def test_installed_modules_cannot_be_approved(site: Callable[..., SiteFile], with_code: Callable[..., Path]) -> None:
    path = with_code("width_c")
    path.write_text(path.read_text().replace("net.py:Net", "torch.nn:Linear"))
    with pytest.raises(ValueError, match="where a site file approves code, put it beside the study"):
        read_study(path, code=site("[code]").code)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_goes_by_the_site_file(tmp_path: Path, with_code: Callable[..., Path]) -> None:
    path = with_code("width_d")
    (tmp_path / "site.toml").write_text("min_rows = 5000\n[code]\n")

    def said(*more: str) -> str:
        arguments = [
            "learner",
            str(path),
            "--insecure",
            "learner/00",
            "--dry-run",
            "--site",
            str(tmp_path / "site.toml"),
        ]
        result = CliRunner().invoke(app, [*arguments, *more], env={"COLUMNS": "200"})
        return f"{result.stdout}{result.exception or ''}"

    assert "and the site file approves no file of that name" in said()
    assert "and the site file approves no file of that name" in said("--allow-code")
    (tmp_path / "site.toml").write_text("min_rows = 5000\n" + approval("width_d"))
    assert "At least 5000 are needed" in said()
    (tmp_path / "site.toml").write_text("min_rows = 500\n" + approval("width_d"))
    assert "at least 500 are needed" in said()

"""The documents: their programs and commands run, and what the code cites is there."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch import nn

import archipel as ap
from archipel import algorithms
from archipel.cli import program as cli
from archipel.core.algorithm import Algorithm
from archipel.core.controller import Controller
from archipel.core.types import HOME, Command, Evaluate, Event, Train, Trained
from archipel.federation.controller.meters import Meters
from archipel.runs.load import load_run
from tests.forked import archipel

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
ADDING = DOCS / "how-to" / "add-an-algorithm.md"
README = ROOT / "README.md"

DOCUMENTS = [path for path in (README, *sorted(DOCS.rglob("*.md")), ROOT / "deploy" / "README.md") if path.exists()]
PROGRAMS = [path for path in DOCUMENTS if "```python" in path.read_text()]
COMMANDS = [path for path in (*DOCUMENTS, ROOT / "examples" / "README.md") if path.exists()]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?: {4})?((?:archipel|make|pip) .*)$", re.MULTILINE)
FILE = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
CITED = re.compile(r"docs/decisions/(\d{4}(?:(?:,| to| and) \d{4})*)")


def blocks(path: Path) -> list[str]:
    """The Python programs of a document, each behind empty lines, so that errors name the document's own."""
    text = path.read_text()
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


def cited(text: str) -> set[str]:
    """Numbers of the decisions that a text cites; "0008 to 0010" is three of them."""
    numbers: set[str] = set()
    for found in CITED.findall(" ".join(text.split())):
        for first, _, last in (part.partition(" to ") for part in re.split(", | and ", found)):
            numbers |= {f"{number:04}" for number in range(int(first), int(last or first) + 1)}
    return numbers


def save_files(path: Path, folder: Path) -> None:
    """Write the files of a document into a folder: fenced blocks with a title, which is the file's name."""
    for title, text in FILE.findall(path.read_text()):
        (folder / title).write_text(text)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_programs_run_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    programs = blocks(path)
    for program in programs:
        exec(compile(program, str(path), "exec"), namespace)
    assert not programs or capsys.readouterr().out, "a document's program shows something"


TOML = re.compile(r"^```toml.*?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STUDIES = (
    ROOT / "src" / "archipel" / "cli" / "project" / "study.toml",
    ROOT / "examples" / "federation" / "study.toml",
)
"""The studies that the tutorial quotes."""


def contains(whole: Any, part: Any) -> bool:
    """Tell whether a study says everything that a fragment says."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    return bool(whole == part)


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if TOML.search(path.read_text())], ids=name)
def test_studies_are_valid_and_fragments_are_quoted(path: Path, tmp_path: Path) -> None:
    known = [tomllib.loads(study.read_text()) for study in STUDIES]
    for text in TOML.findall(path.read_text()):
        settings = tomllib.loads(text)
        if "algorithms" in settings:
            (tmp_path / "study.toml").write_text(text)
            ap.read_study(tmp_path / "study.toml")
        elif path.parent.name == "tutorial":
            assert any(contains(whole, settings) for whole in known), f"no study of the tutorial says {settings}"


QUOTED = re.compile(r"^    >>> (.*)\n((?:    \S.*\n)+)", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if QUOTED.search(path.read_text())], ids=name)
def test_errors_are_quoted_as_they_are_raised(path: Path) -> None:
    namespace: dict[str, Any] = {"ap": ap, "replace": replace}
    for program, quoted in QUOTED.findall(path.read_text()):
        kind, _, message = " ".join(quoted.split()).partition(": ")
        assert kind == "ValueError"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            eval(program, namespace)


def test_the_readme_lists_every_method() -> None:
    listed = re.findall(r"^\| (`.*?) \|", README.read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(listed))) == sorted(algorithms.__all__)


def code(path: Path) -> list[str]:
    """The blocks of a document that are indented, or fenced and not in Python."""
    return re.findall(r"(?:^(?: {4}.*|)\n)+|^```(?:sh|console)?\n(?:.*\n)*?```$", path.read_text(), re.MULTILINE)


def side_by_side(block: str) -> bool:
    """Commands of which some go on while others run: such a block is run as a whole."""
    return re.search(r" &$", block, re.MULTILINE) is not None


def commands(path: Path, program: str) -> list[list[str]]:
    """The commands of a document's code blocks that start with this program, without their comments."""
    lines = [line for block in code(path) if not side_by_side(block) for line in COMMAND.findall(block)]
    found = [shlex.split(line, comments=True) for line in lines]
    return [command for command in found if command[0] == program]


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in COMMANDS if commands(path, "archipel")], ids=name)
def test_commands_run_one_after_the_other(path: Path, tmp_path: Path) -> None:
    """In an empty folder, with runs cut short: `archipel run` in full is what `make demo` does."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    save_files(path, tmp_path)
    for command in commands(path, "archipel"):
        # in one process: others would import torch for a second of work
        cut = ["-s", "ending={rounds=2}", "--jobs", "1"]
        short = cut if command[1] == "run" and "--resume" not in command else []
        if "--scale" in command:
            short = ["--jobs", "1"]
        ran = archipel([*command[1:], *short], tmp_path, {**os.environ, "COLUMNS": "80"}, rendered=False)
        assert ran.returncode == 0, f"{shlex.join(command)} gave {ran.returncode}: {ran.stdout}{ran.stderr}"
        assert ran.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A folder with `archipel` and `python` in bin/, as in an environment; codes.txt tells how they ended."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = f'{shlex.quote(sys.executable)} -m archipel.cli "$@"; code=$?; echo "$1 $code" >> {tmp_path}/codes.txt'
    (folder / "archipel").write_text(f"#!/bin/bash\n{program}; exit $code\n")
    (folder / "python").write_text(f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_a_federation_by_copy_and_paste(shell: Path) -> None:
    """Run the lines of the tutorial, with a free port in place of theirs."""
    (block,) = (block for block in code(DOCS / "tutorial" / "federation.md") if side_by_side(block))
    assert block.count(" &\n") == 3
    made = shutil.ignore_patterns("*.csv", "*.log", "ca", "state", "learner-*", "results", "__pycache__")
    shutil.copytree(ROOT / "examples" / "federation", shell / "examples" / "federation", ignore=made)
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    ran = subprocess.run(
        ["bash"],
        input=re.sub(r"^ {4}", "", block, flags=re.MULTILINE).replace("9443", str(port)),
        cwd=shell,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{shell / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    ended = sorted((shell / "codes.txt").read_text().splitlines())
    assert ended == [*["ca 0"] * 4, "controller 0", "learner 0", "learner 0", "replay 0", "report 0"], ran.stderr
    folder = shell / "examples" / "federation"
    run = load_run(folder / "state" / "run")
    assert (run.execution, len(run.commits), len(run.participants)) == ("federation", 20, 2)
    assert run.score > 0.8
    assert (folder / "state" / "run" / "report" / "index.html").exists()
    for seen in ("a learner has joined learner='north'", "the run is over"):
        assert seen in ran.stderr
    for seen in ("fedavg: auc 0.", "Run: state/run", "The run is over: 20 local rounds made.", "as recorded"):
        assert seen in ran.stdout
    for name in ("north", "south"):
        assert f"Model: learner-{name}/model.safetensors" in ran.stdout
        assert "joined" in (folder / f"{name}.log").read_text()


PROMPT = re.compile(r"^ {4}(?:\w*\$ )(archipel .*)$", re.MULTILINE)
"""A command for a machine that a document names before the $, such as hospital$."""


def parsed(arguments: list[str]) -> None:
    """Refuse what the command line would: a command, an option or a value that is not known."""
    name, *rest = arguments
    command = cli.command(name)
    while hasattr(command, "commands"):
        first, *rest = rest
        command = command.commands[first]
    command.make_context(name, list(rest))


@pytest.mark.parametrize("path", [path for path in COMMANDS if PROMPT.search(path.read_text())], ids=name)
def test_commands_for_other_machines_can_be_understood(path: Path) -> None:
    for line in PROMPT.findall(path.read_text()):
        parsed(shlex.split(line, comments=True)[1:])


def test_what_documents_make_and_install_is_there() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    made = [command for path in COMMANDS for command in commands(path, "make")]
    assert ["make", "demo"] in made
    assert {target for command in made for target in command[1:]} <= targets
    installed = [command for path in COMMANDS for command in commands(path, "pip")]
    assert installed
    for command in installed:
        wanted = re.search(r"\[([\w,]+)\]", command[-1])
        assert wanted is None or set(wanted[1].split(",")) <= extras.keys()


def test_a_new_weighting_takes_less_than_thirty_lines() -> None:
    new = [
        (program, part)
        for program in blocks(ADDING)
        for part in ast.parse(program).body
        if isinstance(part, ast.ClassDef) and any(ast.unparse(base) == "Weighting" for base in part.bases)
    ]
    assert [part.name for _, part in new] == ["ByAgreement"]
    program, _ = new[0]
    assert len(program.strip().splitlines()) < 30  # with its imports


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("as read (docs/decisions/0007)", {"0007"}),
        ("docs/decisions/0006, 0008 to\n0010): the", {"0006", "0008", "0009", "0010"}),
        ("docs/decisions/0001 and 0003, 12 learners", {"0001", "0003"}),
    ],
)
def test_citations_are_understood(text: str, numbers: set[str]) -> None:
    assert cited(text) == numbers


def test_every_decision_that_the_code_cites_is_there() -> None:
    there = {path.name[:4] for path in DECISIONS.glob("[0-9]*.md")}
    for source in sorted((ROOT / "src").rglob("*.py")):
        missing = cited(source.read_text()) - there
        assert not missing, f"{name(source)} cites {', '.join(sorted(missing))}; there are {', '.join(sorted(there))}"


def test_every_decision_is_in_the_index_under_its_title() -> None:
    index = (DECISIONS / "README.md").read_text()
    decisions = sorted(DECISIONS.glob("[0-9]*.md"))
    numbers = [path.name[:4] for path in decisions]
    assert len(set(numbers)) == len(numbers), "two decisions have the same number"
    for path in decisions:
        number, _, title = path.read_text().splitlines()[0].removeprefix("# ").partition(" ")
        assert path.name.startswith(f"{number}-")
        assert f"* [{number}]({path.name}) {title}\n" in index


# ------------------------------------------------------------------------------------------------------------ privacy

TOLD = {
    "validation": "a confusion matrix",
    "validation scores": "histograms of scores",
    "losses": "losses",
    "progress": "progress",
    "gradient norm per sample": "a gradient norm",
    "gradient norm per batch": "a gradient norm",
    "class counts": "its examples of each class",
    "training loss": "its training loss",
}
"""What a learner tells with its model, in the words of docs/explanation/privacy.md."""


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def seen_by(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A row of the table in docs/explanation/privacy.md, from what the controller has learners do in a short run."""
    told: list[tuple[Event, list[Command]]] = []
    handle = Controller.handle

    def overheard(self: Controller, event: Event) -> list[Command]:
        commands = handle(self, event)
        told.append((event, commands))
        return commands

    rng = np.random.default_rng(0)
    source = ap.data.from_arrays(rng.normal(size=(240, 4)).astype(np.float32), rng.integers(0, 2, 240))
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "handle", overheard)
        model = normalised if algorithm.name == "fedbn" else None
        run = ap.simulate(algorithm, source.split(learners=6), model=model, ending=ap.Ending(rounds=24), validation=0.2)
    updates = {event.model: event for event, _ in told if isinstance(event, Trained)}
    sends = [set(update.layers) for update in updates.values()]
    given = [command for _, commands in told for command in commands if isinstance(command, Train | Evaluate)]
    seen = ["the controller"] if any(sends) else ["nobody"]
    if any(isinstance(c, Evaluate) and c.model.name in updates and set(c.sites) != {HOME} for c in given):
        seen.append("other learners, who evaluate it")
    if any(isinstance(command, Train) and command.model.name in updates for command in given):
        seen.append("other learners, who train it further")
    everything, sent = set(run.layout.names), set().union(*sends)
    private = set(algorithm.private(run.layout))
    trained = {name for c in given if isinstance(c, Train) for name in c.plan.trains or everything}
    assert sent | private == trained
    missing = "private" if private else "frozen"
    layers = "all layers" if sent == everything else f"all but the {missing} layers" if sent else "no layer"
    if any(send != sent for send in sends):
        layers += ", not in every round"
    reports = {report for command in given if isinstance(command, Train) for report in command.plan.reports}
    if any(isinstance(command, Train) and command.plan.cycle is not None for command in given):
        reports.add("losses")
    beside = [words for report, words in TOLD.items() if report in reports]
    of_a_version = {None: "all of a round", 1: "one"}
    size = algorithm.protocol.updates_per_commit
    return ["; ".join(seen), layers, ", ".join(beside), of_a_version.get(size, str(size))]


@pytest.mark.slow
def test_who_sees_whose_model_is_as_the_controller_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "explanation" / "privacy.md").read_text()
    first_table = page.split("| method | who sees")[1].split("\n\n")[0]
    table: dict[str, list[str]] = {}
    for line in re.findall(r"^\| `.*$", first_table, re.MULTILINE):
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for method in re.findall(r"`(\w+)`", first):
            assert method not in table, f"{method} is there twice"
            table[method] = cells
    assert sorted(table) == sorted(algorithms.__all__)
    small: dict[str, dict[str, Any]] = {
        "divide_and_conquer": {"prepass": 1, "epochs": 1, "tuning_epochs": 1},
        **{method: {"fraction": 0.5, "hops": 3} for method in table if method.startswith("radfed")},
    }
    for method, cells in table.items():
        algorithm = getattr(algorithms, method)(**small.get(method, {}), batch=8)
        if algorithm.pooled:
            assert cells[0] == "a federation refuses it"
        else:
            assert cells == seen_by(algorithm, monkeypatch), method


def test_every_metric_of_a_controller_is_documented() -> None:
    page = (DOCS / "reference" / "federation.md").read_text()
    documented = set(re.findall(r"`(archipel_\w+?)(?:_total)?(?:\{(?:\w+)\})?`", page))
    assert documented == {family.name for family in Meters().registry.collect()}


# ------------------------------------------------------------------------------------------------------------- deploy

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_units_start_what_the_command_line_knows(path: Path) -> None:
    unit = re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE)
    settings: dict[str, Any] = dict(unit)
    program, *arguments = shlex.split(settings["ExecStart"])
    assert program == "/opt/archipel/bin/archipel"
    parsed(arguments)
    # --tls is the folder in which systemd puts what it has loaded
    loaded = {value.partition(":")[0] for key, value in unit if key == "LoadCredential"}
    assert loaded == {"key.pem", "certificate.pem", "authority.pem"}
    assert "--tls ${CREDENTIALS_DIRECTORY}" in settings["ExecStart"]
    assert "--state ${STATE_DIRECTORY}" in settings["ExecStart"]
    assert settings["StateDirectory"]
    # a run that is over ends with 0, and is not begun again; Ctrl-C and SIGTERM give 130
    assert (settings["Restart"], settings["SuccessExitStatus"]) == ("on-failure", "130")


@pytest.mark.parametrize("path", UNITS, ids=name)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_units_are_as_systemd_wants_them(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/archipel/bin/archipel", sys.executable))
    ran = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_compose_file_starts_what_the_command_line_knows() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(compose) == {"name", "x-archipel", "services", "volumes"}
    for service, told in compose["services"].items():
        assert (DEPLOY / told["build"]["context"] / told["build"]["dockerfile"]).is_file()
        arguments = shlex.split(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", told["command"]))
        parsed(arguments)
        there = {mount.split(":")[-2 if mount.endswith(":ro") else -1]: mount for mount in told["volumes"]}
        options: dict[str, Any] = dict(pairwise(arguments))
        wanted = {options[option] for option in ("--tls", "--data", "--state") if option in options}
        assert there.keys() == {"/study/study.toml", *wanted}
        assert there["/state"] == f"{service}:/state"
        assert service in compose["volumes"]
        assert there["/tls"].endswith(f"/ca/{service}:/tls:ro")  # nobody's but its own


def test_the_image_has_what_is_copied_into_it() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [source for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for source in line.split()[:-1]]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0]) == ["archipel"]

"""The documents: their programs and commands run, what the code cites is there, and no link leads nowhere."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
ADDING = DOCS / "adding-an-algorithm.md"
README = ROOT / "README.md"

DOCUMENTS = [path for path in (README, *sorted(DOCS.rglob("*.md"))) if path.exists()]
PROGRAMS = [path for path in DOCUMENTS if "```python" in path.read_text()]
COMMANDS = [path for path in (*DOCUMENTS, ROOT / "examples" / "README.md") if path.exists()]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?: {4})?((?:archipel|make|pip) .*)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
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


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_programs_run_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    programs = blocks(path)
    for program in programs:
        exec(compile(program, str(path), "exec"), namespace)
    assert not programs or capsys.readouterr().out, "a document's program shows something"


def commands(path: Path, program: str) -> list[list[str]]:
    """The commands of a document's code blocks that start with this program, without their comments."""
    blocks = re.findall(r"(?:^(?: {4}.*|)\n)+|^```(?:sh|console)?\n(?:.*\n)*?```$", path.read_text(), re.MULTILINE)
    found = [shlex.split(line, comments=True) for block in blocks for line in COMMAND.findall(block)]
    return [command for command in found if command[0] == program]


@pytest.mark.parametrize("path", [path for path in COMMANDS if commands(path, "archipel")], ids=name)
def test_commands_run_one_after_the_other(path: Path, tmp_path: Path) -> None:
    """In an empty folder, with runs cut short: `archipel run` in full is what `make demo` does."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in commands(path, "archipel"):
        short = ["-s", "ending={rounds=2}"] if command[1] == "run" and "--resume" not in command else []
        ran = subprocess.run(
            [sys.executable, "-m", "archipel.cli", *command[1:], *short],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "80"},
            timeout=300,
        )
        assert ran.returncode == 0, f"{shlex.join(command)} gave {ran.returncode}: {ran.stdout}{ran.stderr}"
        assert ran.stdout


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
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        number, _, title = path.read_text().splitlines()[0].removeprefix("# ").partition(" ")
        assert path.name.startswith(f"{number}-")
        assert f"* [{number}]({path.name}) {title}\n" in index


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if not re.match(r"[a-z]+:|#", target):
            assert (path.parent / target.partition("#")[0]).exists(), f"{name(path)} links to {target}"

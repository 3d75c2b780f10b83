"""The pages for readers: short, in plain words, and true to the tree of packages."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

from tools import command_page, package_graph

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "archipel"
BESIDE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *ROOT.glob("*/README.md")]
PAGES = sorted([*DOCS.rglob("*.md"), *BESIDE])
TO_READ = [path for path in PAGES if not {"decisions", "reference"} & set(path.parts)]

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
FIVE_MINUTES = 5 * 250
"""Words, at 250 a minute."""
WITH_READINGS = 6 * 250
"""Of a page of a paper, which lists how each of its tables was read."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """Return the text of a page without code blocks, tables and pictures."""
    lines = FENCED.sub("", path.read_text()).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("    ", "|", "![")))


@pytest.mark.parametrize("path", TO_READ, ids=name)
def test_a_page_is_read_in_five_minutes(path: Path) -> None:
    words = len(prose(path).split())
    assert words <= (WITH_READINGS if path.parent.name == "papers" else FIVE_MINUTES), (
        f"{name(path)} has {words} words beside code and tables; split or shorten it"
    )


# ------------------------------------------------------------------------------------------------------- plain words

RETIRED = (
    "Book",
    "Course",
    "Seat",
    "Turns",
    "Hands",
    "Errand",
    "Trials",
    "Tallies",
    "Work",
    "Bad",
    "Busy",
    "speech",
)
"""Class and module names that were replaced by plain ones."""
DIALECT = {
    "gone on with": "continued",
    "goes on where it was": "continues",
    "what was begun": "a run that was started",
    "to be had": "available",
    "at hand": "available",
    "half read": "partially read",
    "half written": "partially written",
    "told otherwise": "conflicts with an earlier answer",
    "swallows": "drops silently",
    "should be such as": "must be, for example,",
    "last words": "while the run is ending",
    "left to happen": "no events are scheduled",
    "different makings": "do not match",
    "in secret": "over a secure channel",
    "errand": "task",
    "of one's own": "of your own",
    "in one go": "at once",
    "takes its time": "is slow",
    "as it should be": "valid",
    "turned away": "rejected",
    "keeps to itself": "withholds",
    "comes to stand": "is",
}
"""Phrases that a reader has to learn, and what to write instead."""
PHRASES = re.compile(rf"\b({'|'.join(DIALECT)})\b(?!-)")
OLD_NAMES = re.compile(rf"`({'|'.join(RETIRED)})`")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_are_in_plain_words(path: Path) -> None:
    text = " ".join(FENCED.sub("", path.read_text()).split())
    found = [f"{phrase!r} (write: {DIALECT[phrase]})" for phrase in PHRASES.findall(text)]
    found += [f"`{old}`, which has another name now" for old in OLD_NAMES.findall(text)]
    assert not found, f"{name(path)}: {'; '.join(found)}"


def test_a_word_has_one_meaning() -> None:
    glossary = (DOCS / "reference" / "glossary.md").read_text()
    words = [
        word
        for row in re.findall(r"^\| (\*\*.*?) \|", glossary, re.MULTILINE)
        for word in re.findall(r"\*\*(.*?)\*\*", row)
    ]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


# ---------------------------------------------------------------------------------------------------------- generated


@pytest.mark.slow
def test_the_picture_of_the_packages_is_the_one_that_was_drawn() -> None:
    drawn = package_graph.drawing(package_graph.packages())
    assert (DOCS / "pictures" / "packages.svg").read_text() == drawn, "make pages"


def test_an_edge_that_follows_from_others_is_not_drawn() -> None:
    graph = {"cli": {"study", "core"}, "study": {"core"}, "core": set()}
    assert package_graph.reduced(graph) == {"cli": {"study"}, "study": {"core"}, "core": set()}
    assert package_graph.layers(package_graph.reduced(graph)) == [["cli"], ["study"], ["core"]]


def test_the_page_on_commands_is_the_one_that_was_generated() -> None:
    assert (DOCS / "reference" / "command-line.md").read_text() == command_page.page(), "make pages"


# --------------------------------------------------------------------------------------------------------------- code

NAMED = re.compile(r"`([A-Z][a-z]\w+)(?:\(.*?\)|\.\w+)?`")
"""A name that looks like a class, alone, called, or with one attribute."""
FOREIGN = {"PyInit", "Range", "RayCluster", "RayJob"}
"""Names of other programs."""


def defined() -> set[str]:
    """Return every name that the source defines, and Python's own."""
    names = set(dir(builtins)) | FOREIGN
    for node in (node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.slow
def test_classes_that_pages_name_exist() -> None:
    known = defined()
    unknown = {
        (name(path), found)
        for path in PAGES
        for found in NAMED.findall(FENCED.sub("", path.read_text()))
        if found not in known
    }
    assert not unknown


def test_the_text_of_a_link_to_a_source_file_is_its_name() -> None:
    for path in PAGES:
        for text, target in re.findall(r"\[([^\]]*\.py)\]\(([^)]*)\)", path.read_text()):
            assert target.endswith(text), f"{name(path)}: [{text}]({target})"


# --------------------------------------------------------------------------------------------------------------- tree


def test_the_tree_of_the_architecture_is_the_tree_of_the_source() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+/`(?:, )?)+) \| (.*) \|$", page, re.MULTILINE)
    told = [folder for folders, _ in rows for folder in re.findall(r"`(\w+)/`", folders)]
    there = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert sorted(told) == sorted(there)
    for folders, holds in rows:
        inner = re.findall(r"`(\w+)/`", holds)
        parents = [SOURCE / folder for folder in re.findall(r"`(\w+)/`", folders)]
        assert all(any((parent / folder).is_dir() for parent in parents) for folder in inner), folders

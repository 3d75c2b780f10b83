"""The documentation site and the links between documents: none leads nowhere, and no public name is left out."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pymdownx.slugs import slugify

import archipel as ap

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
API = DOCS / "reference" / "api"
FOLDERS = ("docs", "benchmarks", "deploy", "examples", ".github")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
DOCUMENTS = [path for path in DOCUMENTS if ".venvs" not in path.parts]

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OBJECT = re.compile(r"^::: (\S+)$", re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and the site make them."""
    headings = HEADING.findall(FENCED.sub("", path.read_text()))
    return {slugify(case="lower")(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading), "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    for link in LINK.findall(FENCED.sub("", path.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        there = path.parent / target if target else path
        assert there.exists(), f"{name(path)} links to {link}: there is no such file"
        if anchor:
            assert anchor in anchors(there), f"{name(path)} links to {link}: there is no such heading"


# ---------------------------------------------------------------------------------------------------------- reference


def documented(path: str) -> object:
    """Return the object that a line of the API reference names."""
    module, _, last = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), last)


def test_the_reference_has_every_public_name() -> None:
    objects = {path: documented(path) for page in API.glob("*.md") for path in OBJECT.findall(page.read_text())}
    known = list(objects.values())
    missing = []
    for public in ap.__all__:
        value = getattr(ap, public)
        if isinstance(value, ModuleType) or value in known:  # the packages have a test of their own
            continue
        if not any(f"{value.__module__}.".startswith(f"{path}.") for path in objects):
            missing.append(public)
    assert not missing, f"not in docs/reference/api: {', '.join(missing)}"


@pytest.mark.parametrize("package", ["algorithms", "parts", "data", "models"])
def test_the_reference_has_every_name_of_a_public_package(package: str) -> None:
    paths = OBJECT.findall((API / f"{package}.md").read_text())
    module = getattr(ap, package)
    homes = {public: getattr(module, public).__module__ for public in module.__all__}
    missing = [public for public, home in homes.items() if not any(f"{home}.".startswith(f"{path}.") for path in paths)]
    assert not missing, f"not in docs/reference/api/{package}.md: {', '.join(missing)}"


# --------------------------------------------------------------------------------------------------------------- site


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value and tag in ("a", "img", "link", "script"):
                self.links.add(value)
            if key == "id" and value:
                self.anchors.add(value)


def leaves(entry: Any) -> Iterator[str]:
    """Yield the pages of a navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for item in entry:
            yield from leaves(item)
    elif isinstance(entry, dict):
        for item in entry.values():
            yield from leaves(item)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, str(ROOT / "tools" / "stage_site.py"), str(folder / "build" / "docs")], check=True)
    settings = (ROOT / "zensical.toml").read_text().replace('paths = ["src"]', f'paths = ["{ROOT / "src"}"]')
    (folder / "zensical.toml").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_navigation_has_every_page_once(built: Path) -> None:
    nav = sorted(leaves(tomllib.loads((built / "zensical.toml").read_text())["project"]["nav"]))
    pages = built / "build" / "docs"
    there = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    # a decision is found by the index of decisions
    assert nav == sorted(page for page in there if not re.match(r"decisions/\d", page))


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(built: Path) -> None:
    site = built / "site"
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            anchor = unquote(parts.fragment)
            if not there.exists() or (anchor and there in pages and anchor not in pages[there].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 40
    assert not broken, "\n".join(broken[:20])


@pytest.mark.slow
def test_the_reference_is_made_from_the_docstrings(built: Path) -> None:
    page = Page(built / "site" / "reference" / "api" / "parts" / "index.html")
    assert {"archipel.core.parts.weighting.ByExamples", "archipel.core.parts.protocol.Rounds"} <= page.anchors
    methods = Page(built / "site" / "reference" / "api" / "algorithms" / "index.html").anchors
    for method in ap.algorithms.__all__:
        assert f"{getattr(ap, method).__module__}.{method}" in methods

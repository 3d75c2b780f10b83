"""Gather the pages of the documentation site: `stage_site.py FOLDER`.

The documents link to each other and to the source as they lie in the repository. Copies of docs/ and of the documents
beside it are put into FOLDER, where links between pages lead to the copies. A link to anything else becomes its text,
in code font if that is the name of a file or folder.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "deploy/README.md": "deploy.md",
    "examples/README.md": "examples.md",
}
"""Documents outside docs/ and their names on the site."""

SUFFIXES = (".md", ".png", ".svg", ".css")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def pages() -> dict[Path, Path]:
    """Return every file of the site: where it lies in the repository, and its path on the site."""
    found = {path: path.relative_to(DOCS) for path in sorted(DOCS.rglob("*")) if path.suffix in SUFFIXES}
    return found | {ROOT / path: Path(name) for path, name in BESIDE.items() if (ROOT / path).exists()}


def relinked(source: Path, site: dict[Path, Path]) -> str:
    """Return a document whose links fit the site."""

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups(default="")
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = Path(os.path.normpath(source.parent / target))
        place = site.get(path) or site.get(path / "README.md")
        if place is None:
            return f"`{text}`" if Path(text).name == path.name else text
        return f"{image}[{text}]({os.path.relpath(place, site[source].parent)}{anchor})"

    return LINK.sub(link, source.read_text())


def main(folder: Path) -> None:
    """Replace what the folder holds by the pages as they are now."""
    shutil.rmtree(folder, ignore_errors=True)
    site = pages()
    for source, place in site.items():
        copy = folder / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy.write_text(relinked(source, site))
        else:
            shutil.copy(source, copy)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

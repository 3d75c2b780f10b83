"""Bundle the page: markup, style and scripts of the folder `page` in one file that loads nothing else.

The content security policy allows the style and the script by hash only, so nothing injected by a name can run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

SCRIPTS = (
    *("uPlot.iife.min.js", "elements.js", "timeline.js", "feed.js", "curves.js", "gantt.js", "panels.js"),
    *("story.js", "federation.js", "main.js"),
)
STYLES = ("uPlot.min.css", "palette.css", "page.css")


@dataclass(frozen=True)
class PageFile:
    """The page and its content security policy."""

    text: bytes
    policy: str


def live_page() -> PageFile:
    """Return the page that the server sends."""
    style, script = bundle(STYLES), bundle(SCRIPTS)
    text = _part("page.html").replace("<!-- panels -->", _part("panels.html"))
    text = text.replace("<!-- style -->", f"<style>{style}</style>")
    text = text.replace("<!-- script -->", f"<script>{script}</script>")
    sources = f"default-src 'none'; style-src {source(style)}; script-src {source(script)}"
    policy = (
        f"{sources}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return PageFile(text.encode(), policy)


def bundle(names: Sequence[str]) -> str:
    """Return concatenated files of the page."""
    return "\n".join(_part(name) for name in names)


def source(content: str) -> str:
    """Return a content's hash as a source of the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def embedded(data: object) -> str:
    """Return data as JSON that cannot end the script element around it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _part(name: str) -> str:
    return (files("archipel.live") / "page" / name).read_text(encoding="utf-8")

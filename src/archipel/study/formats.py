"""The formats of study files: TOML, YAML and JSON, with the lines of their keys for error messages."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import tomlkit
from tomlkit.items import AoT, InlineTable, Table

from archipel.core.checks import require
from archipel.study.arguments import NONE
from archipel.study.path_errors import reason

Raw: TypeAlias = dict[str, Any]
"""A study as it was written, before it is checked."""
Place: TypeAlias = tuple[str | int, ...]
"""Where in a study something is: ("algorithms", 2, "mu")."""
LineOf: TypeAlias = Callable[[Place], int | None]
"""The line of a place in its file; None if the file does not have it."""

MOST_PLACES = 200_000
"""Keys and items of a YAML or JSON file."""
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters of terminals and of the direction of text, other than tabs and line ends."""
MARK = "archipel: the line of this"
"""Stands in a copy of a TOML text at the place whose line is looked for."""


def no_lines(place: Place) -> int | None:
    """Return None: a study that was read from no file has no lines."""
    return None


def read_file(path: Path) -> tuple[Raw, LineOf]:
    """Return what a study file says, and the lines of its keys."""
    formats = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml, ".json": _json}
    require(
        path.suffix in formats,
        f"{path}: a study is a file that ends in .toml, .yaml, .yml or .json, got {path.suffix or 'no ending'!r}.",
    )
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no study {path}. `archipel new DIR` makes one to start from; `archipel run` alone runs the "
            "embedded one."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from None
    try:
        raw, lines = formats[path.suffix](text, path)
        _check_texts(raw, path, lines)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply, or holds a YAML alias that refers to itself.") from None
    require(isinstance(raw, dict), f"{path}: a study consists of keys and tables, got {type(raw).__name__}.")
    return raw, lines


def _check_texts(raw: object, path: Path, lines: LineOf) -> None:
    """Refuse texts with control characters: a study may come from others, and its texts are printed."""
    seen: set[int] = set()

    def visit(value: object, place: Place) -> None:
        if id(value) in seen:  # an alias of YAML
            return
        if isinstance(value, str) and (found := CONTROLS.search(value)):
            at = f", line {line}" if (line := lines(place)) is not None else ""
            raise ValueError(f"{path}{at}: {value[:100]!r} holds the control character {found[0]!r}. Remove it.")
        if isinstance(value, Mapping):
            seen.add(id(value))
            for key, inner in value.items():
                visit(key, place)
                visit(inner, (*place, key))
        elif isinstance(value, list):
            seen.add(id(value))
            for number, inner in enumerate(value):
                visit(inner, (*place, number))

    visit(raw, ())


# ------------------------------------------------------------------------------------------------------------ TOML


def _toml(text: str, path: Path) -> tuple[Raw, LineOf]:
    try:
        return tomllib.loads(text), lambda place: _toml_line(text, place)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None


def _toml_line(text: str, place: Place) -> int | None:
    """Return the line of a place: mark it, and find the mark in the text that tomlkit writes back."""
    document = tomlkit.parse(text)
    *parents, last = place
    table: Any = document
    try:
        for step in parents:
            table = table[step]
        item = table[last]
    except (KeyError, IndexError, TypeError):
        return None
    item = item[0] if isinstance(item, AoT) else item
    if isinstance(item, Table) and not item.is_super_table():
        item.comment(MARK)
    elif isinstance(item, Mapping) and not isinstance(item, InlineTable):  # it has no header, only dotted keys
        return _toml_line(text, (*place, next(iter(item))))
    else:
        table[last] = MARK
    before, _, _ = document.as_string().partition(MARK)
    return before.count("\n") + 1


# ---------------------------------------------------------------------------------------------------- YAML and JSON


def _yaml(text: str, path: Path) -> tuple[Raw, LineOf]:
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    lines: dict[Place, int] = {}
    _collect_lines(node, (), lines, path)
    return _without_none(raw), lines.get


def _json(text: str, path: Path) -> tuple[Raw, LineOf]:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from None
    # JSON with spaces for tabs is YAML, whose parser gives the lines of keys; strings in JSON have no bare tabs
    _, lines = _yaml(text.replace("\t", " "), path)
    return _without_none(raw), lines


def _collect_lines(node: Any, place: Place, lines: dict[Place, int], path: Path) -> None:
    """Collect the lines of a YAML node and of everything in it; refuse a key that is there twice."""
    if node is None:
        return
    require(
        len(lines) < MOST_PLACES,
        f"{path}: more than {MOST_PLACES:,} keys and items. YAML aliases of aliases multiply them.",
    )
    lines.setdefault(place, node.start_mark.line + 1)
    if node.id == "mapping":
        for key, value in node.value:
            line, inner = key.start_mark.line + 1, (*place, key.value)
            require(
                inner not in lines,
                f"{path}, line {line}: {key.value} is given already, in line {lines.get(inner)}; keep one of them.",
            )
            lines[inner] = line
            _collect_lines(value, inner, lines, path)
    elif node.id == "sequence":
        for number, item in enumerate(node.value):
            _collect_lines(item, (*place, number), lines, path)


def _without_none(value: Any) -> Any:
    """Replace null by the word that TOML has for it, so that every study can be saved as TOML."""
    if isinstance(value, dict):
        return {str(key): _without_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return NONE if value is None else value

"""Study files: TOML, YAML or JSON in, a checked `Study` out; what is wrong is told with its line."""

from __future__ import annotations

import copy
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import tomli_w
from pydantic import ValidationError

from archipel.core.checks import nearest, require
from archipel.storage.atomic_files import write_text
from archipel.study.arguments import NONE
from archipel.study.own_code import Code
from archipel.study.path_errors import reason
from archipel.study.schema import Study

Raw: TypeAlias = dict[str, Any]
"""A study as it was written, before it is checked."""
Place: TypeAlias = tuple[str | int, ...]
"""Where in a study something is: ("algorithms", 2, "mu")."""


def read_study(
    path: str | Path | None = None,
    *,
    algorithms: Iterable[str] = (),
    data: str | None = None,
    changes: Iterable[str] = (),
    code: Code = "beside",
) -> Study:
    """The study in a file, or the embedded one, with changes.

    algorithms: keep only these methods, with the study's settings for them where it has them.
    data: another data source; changes: "key=value", such as "training.rate=0.1" or "fedprox.mu=1".
    code: which code it may run: "none", the files "beside" it, or "any", which is for studies that you trust.
    """
    if path is None:
        raw, lines, name, folder = tomllib.loads(embedded()), {}, "the embedded study", Path.cwd()
    else:
        path = Path(path)
        raw, lines, name, folder = *_read(path), str(path), _absolute(path).parent
    home = _absolute(folder / raw.get("folder", ""))
    if code == "beside" and not _absolute(folder).is_relative_to(home):
        code = "none"  # a file that names another folder names code that did not come with it
    raw["folder"] = str(home)
    if wanted := list(algorithms):
        there = {method_label(entry): entry for entry in methods(raw)}
        raw["algorithms"] = [there.get(label, label) for label in wanted]
    if data is not None:
        raw.setdefault("data", {})["source"] = data
    for change in changes:
        key, equals, text = change.partition("=")
        require(bool(equals), f"--set {change}: give key=value, such as training.rate=0.1.")
        put(raw, key.strip(), value_of(text.strip()))
    return study_of(raw, name, lines, code)


def study_of(raw: Raw, name: str = "study", lines: Mapping[Place, int] | None = None, code: Code = "beside") -> Study:
    """A checked study; every mistake is a line of one error."""
    try:
        study = Study.model_validate(raw, context={"folder": raw.get("folder", "."), "code": code})
    except ValidationError as error:
        told = [_told(detail, raw, name, lines or {}) for detail in error.errors(include_url=False)]
        raise ValueError("\n".join(dict.fromkeys(told))) from None
    study._raw, study._code = raw, code
    return study


def embedded() -> str:
    """The study that `archipel run` runs when it is given nothing else."""
    return resources.files("archipel.study").joinpath("default.toml").read_text(encoding="utf-8")


def write_study(raw: Raw, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, tomli_w.dumps(raw))


# -------------------------------------------------------------------------------------------- methods and settings


def methods(raw: Raw) -> list[Any]:
    """The algorithms of a study, one or several."""
    entries = raw.get("algorithms", [])
    return entries if isinstance(entries, list) else [entries]


def method_label(entry: Any) -> str:
    """What a method of a study is called."""
    if isinstance(entry, dict):
        entry = entry.get("label") or entry.get("name", "")
    return str(entry).rpartition(":")[2]


def put(raw: Raw, key: str, value: Any) -> None:
    """Set a key such as "training.rate", or "fedprox.mu" for the method of that label."""
    first, *rest = key.split(".")
    if first not in Study.model_fields:
        labels = [method_label(entry) for entry in methods(raw)]
        known = [*Study.model_fields, *labels]
        require(
            first in labels,
            f"{key}: there is no section and no method {first!r}; did you mean {nearest(first, known)!r}?",
        )
        require(bool(rest), f"{key}: say which setting of {first}, such as {first}.rate.")
        raw["algorithms"] = [
            _with(entry, rest, value) if label == first else entry
            for entry, label in zip(methods(raw), labels, strict=True)
        ]
        return
    table: Any = raw
    for step in (first, *rest)[:-1]:
        if isinstance(table.get(step), str) and step in ("source", "model"):
            table[step] = {"name": table[step]}
        table = table.setdefault(step, {})
        require(isinstance(table, dict), f"{key}: {step} is no table, so it has no keys of its own.")
    table[(first, *rest)[-1]] = value


def _with(entry: Any, path: list[str], value: Any) -> Raw:
    table: Raw = {"name": entry} if isinstance(entry, str) else copy.deepcopy(entry)
    inner = table
    for step in path[:-1]:
        inner = inner.setdefault(step, {})
    inner[path[-1]] = value
    return table


def value_of(text: str) -> Any:
    """A value as TOML writes it; what is none is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# -------------------------------------------------------------------------------------------------- files and lines


def _absolute(path: Path) -> Path:
    """Return the path without symbolic links; unlike `Path.resolve`, a cyclic one is no error."""
    return Path(os.path.realpath(path))


def _read(path: Path) -> tuple[Raw, dict[Place, int]]:
    kinds = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml, ".json": _json}
    require(
        path.suffix in kinds,
        f"{path}: a study is a file that ends in .toml, .yaml, .yml or .json, got {path.suffix or 'no ending'!r}.",
    )
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no study {path}. `archipel new DIR` makes one to start from; `archipel run` alone runs the "
            "embedded one."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 (byte {error.start}). Save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}.") from None
    raw, lines = kinds[path.suffix](text, path)
    require(isinstance(raw, dict), f"{path}: a study is made of keys and tables, this is {type(raw).__name__}.")
    return raw, lines


def _toml(text: str, path: Path) -> tuple[Raw, dict[Place, int]]:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}.") from None
    lines: dict[Place, int] = {}
    table: Place = ()
    counts: dict[Place, int] = {}
    listed: Place | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?$", line):
            table = tuple(_keys(header[1]))
            if line.lstrip().startswith("[["):
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line):
            place = table
            for step in _keys(key[1]):
                place = (*place, step)
                lines.setdefault(place, number)
            listed, items = (place, 0) if line[key.end() :].strip() == "[" else (None, 0)
        elif listed is not None and re.match(r"""\s*["'{\[\d]""", line):  # an item of a list, one to a line
            lines[(*listed, items)] = number
            items += 1
    return raw, lines


def _keys(text: str) -> list[str]:
    """The steps of a dotted key."""
    return [key.strip("\"'") for key in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", text)]


def _yaml(text: str, path: Path) -> tuple[Raw, dict[Place, int]]:
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}.") from None
    lines: dict[Place, int] = {}
    _walk(node, (), lines, path)
    return _without_none(raw), lines


def _json(text: str, path: Path) -> tuple[Raw, dict[Place, int]]:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}.") from None
    # JSON with spaces for tabs is YAML, whose parser tells the lines of keys; strings in JSON hold no bare tabs
    _, lines = _yaml(text.replace("\t", " "), path)
    return _without_none(raw), lines


def _walk(node: Any, place: Place, lines: dict[Place, int], path: Path) -> None:
    if node is None:
        return
    lines.setdefault(place, node.start_mark.line + 1)
    if node.id == "mapping":
        for key, value in node.value:
            line, inner = key.start_mark.line + 1, (*place, key.value)
            require(
                inner not in lines,
                f"{path}, line {line}: {key.value} is there already, in line {lines.get(inner)}; keep one of them.",
            )
            lines[inner] = line
            _walk(value, inner, lines, path)
    elif node.id == "sequence":
        for number, item in enumerate(node.value):
            _walk(item, (*place, number), lines, path)


def _without_none(value: Any) -> Any:
    """YAML's null as the word that TOML has for it, so that every study can be saved as TOML."""
    if isinstance(value, dict):
        return {str(key): _without_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return NONE if value is None else value


# ---------------------------------------------------------------------------------------------------------- errors


def _told(detail: Mapping[str, Any], raw: Raw, name: str, lines: Mapping[Place, int]) -> str:
    place = tuple(step for step in detail["loc"] if not (isinstance(step, str) and step.startswith("function-")))
    place = _written(place, raw)
    known = next((place[:n] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    where = name if known is None else f"{name}, line {lines[known]}"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        message = "is missing; give it."
    elif detail["type"] == "model_type":
        message = f"should be a table, got {detail['input']!r}."
    elif detail["type"] not in ("value_error", "unknown_key"):
        message = f"{message[0].lower()}{message[1:]}, got {detail['input']!r}."
    return f"{where}: {_spoken(place, raw)}: {message}" if place else f"{where}: {message}"


def _written(place: Place, raw: Raw) -> Place:
    """The part of a place that the study has written; unions put steps of their own into it."""
    kept: list[str | int] = []
    value: Any = raw
    for number, step in enumerate(place):
        if isinstance(value, dict) and step in value:
            value = value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        elif number == len(place) - 1 and isinstance(value, dict | str) and isinstance(step, str):
            pass  # a key that is missing, also where a name alone stands for a table
        else:
            continue
        kept.append(step)
    return tuple(kept)


def _spoken(place: Place, raw: Raw) -> str:
    """A place in words: methods by their labels."""
    if len(place) > 1 and place[0] == "algorithms" and isinstance(place[1], int):
        place = (method_label(methods(raw)[place[1]]), *place[2:])
    return ".".join(str(step) for step in place)

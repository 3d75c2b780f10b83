"""Read study files into checked studies; an error names the line of the mistake."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomlkit
from pydantic import ValidationError

from archipel.core.checks import nearest, require
from archipel.storage.atomic_files import write_text
from archipel.study.formats import LineOf, Place, Raw, no_lines, read_file
from archipel.study.own_code import Code
from archipel.study.schema import Study

WANTED = {
    "model_": "should be a table",
    "int_": "should be a whole number",
    "float_": "should be a number",
    "finite_number": "should be a finite number",
    "bool_": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be a table",
    "literal_error": "should be {expected}",
    "greater_than_equal": "should be at least {ge}",
    "greater_than": "should be more than {gt}",
    "less_than_equal": "should be at most {le}",
    "less_than": "should be less than {lt}",
    "too_short": "should have {min_length} or more items",
}
"""What a value should be, by the beginning of the kind of pydantic's error."""


def read_study(
    path: str | Path | None = None,
    *,
    algorithms: Iterable[str] = (),
    data: str | None = None,
    changes: Iterable[str] = (),
    code: Code = "beside",
) -> Study:
    """Return the study in a file, or the embedded one, with changes.

    algorithms: keep only these methods, with the study's settings for them where it has them.
    data: another data source; changes: "key=value", such as "training.rate=0.1" or "fedprox.mu=1".
    code: which code it may run: "none", the files "beside" it, or "any" (only for studies that you trust); or an
    `ApprovedCode`.
    """
    lines: LineOf = no_lines
    if path is None:
        raw, name, folder = tomllib.loads(embedded()), "the embedded study", Path.cwd()
    else:
        path = Path(path)
        raw, lines, name, folder = *read_file(path), str(path), _absolute(path).parent
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


def study_of(raw: Raw, name: str = "study", lines: LineOf = no_lines, code: Code = "beside") -> Study:
    """Return a checked study; raise one error with a line for each mistake."""
    try:
        study = Study.model_validate(raw, context={"folder": raw.get("folder", "."), "code": code})
    except ValidationError as error:
        raise in_lines(error, raw, name, lines) from None
    study._raw, study._code = raw, code
    return study


def embedded() -> str:
    """Return the text of the study that `archipel run` runs without arguments."""
    return resources.files("archipel.study").joinpath("default.toml").read_text(encoding="utf-8")


def write_study(raw: Raw, path: Path) -> None:
    """Write a study as TOML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, tomlkit.dumps(raw))


# -------------------------------------------------------------------------------------------- methods and settings


def methods(raw: Raw) -> list[Any]:
    """Return the algorithms of a study, one or several."""
    entries = raw.get("algorithms", [])
    return entries if isinstance(entries, list) else [entries]


def method_label(entry: Any) -> str:
    """Return the label of a method of a study."""
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
        require(isinstance(table, dict), f"{key}: {step} is not a table, so it has no keys of its own.")
    table[(first, *rest)[-1]] = value


def _with(entry: Any, path: list[str], value: Any) -> Raw:
    table: Raw = {"name": entry} if isinstance(entry, str) else copy.deepcopy(entry)
    inner = table
    for step in path[:-1]:
        inner = inner.setdefault(step, {})
    inner[path[-1]] = value
    return table


def value_of(text: str) -> Any:
    """Return a value written as in TOML; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _absolute(path: Path) -> Path:
    """Return the absolute path; unlike `Path.resolve`, a cyclic link is no error."""
    return Path(os.path.realpath(path))


# ---------------------------------------------------------------------------------------------------------- errors


def in_lines(error: ValidationError, raw: Raw, name: str, lines: LineOf) -> ValueError:
    """Return an error with a line for each mistake in a file."""
    told = [_told(detail, raw, name, lines) for detail in error.errors(include_url=False)]
    return ValueError("\n".join(dict.fromkeys(told)))


def _told(detail: Mapping[str, Any], raw: Raw, name: str, lines: LineOf) -> str:
    place = tuple(step for step in detail["loc"] if not (isinstance(step, str) and step.startswith("function-")))
    place = _written(place, raw)
    found = (lines(place[:n]) for n in range(len(place), 0, -1))
    line = next((number for number in found if number is not None), None)
    where = name if line is None else f"{name}, line {line}"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "missing":
        message = "is missing; give it."
    elif detail["type"] not in ("value_error", "unknown_key"):
        message = f"{_wanted(detail)}, got {detail['input']!r}."
    return f"{where}: {_spoken(place, raw)}: {message}" if place else f"{where}: {message}"


def _wanted(detail: Mapping[str, Any]) -> str:
    """Return what a value should be, in plain words for the mistakes that people make."""
    kind, bounds = detail["type"], detail.get("ctx", {})
    for beginning, wanted in WANTED.items():
        if kind.startswith(beginning):
            return wanted.format(**bounds)
    return str(detail["msg"][0].lower() + detail["msg"][1:])


def _written(place: Place, raw: Raw) -> Place:
    """Return the part of a place that is in the study; pydantic adds steps for unions."""
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
    """Return a place as a dotted key, with methods by their labels."""
    if len(place) > 1 and place[0] == "algorithms" and isinstance(place[1], int):
        place = (method_label(methods(raw)[place[1]]), *place[2:])
    return ".".join(str(step) for step in place)

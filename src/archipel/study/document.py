"""`docs/reference/study.md`, generated: `python -m archipel.study.document > docs/reference/study.md`."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from archipel.study.arguments import arguments, local_fields
from archipel.study.docs import summary_of
from archipel.study.files import embedded
from archipel.study.schema import (
    FROM_DATA,
    METHODS,
    MODELS,
    SOURCES,
    AugmentTable,
    BesideMethod,
    BesideModel,
    ColourTable,
    DataSection,
    EndingTable,
    EvaluationTable,
    FederationSection,
    FleetSection,
    FoldsTable,
    GroupTable,
    GuestTable,
    LimitsTable,
    NaturalTable,
    NormaliseTable,
    ReportSection,
    SimulationSection,
    SplitTable,
    Study,
)
from archipel.study.site_file import SiteTable

INTRODUCTION = """# Study files

This page is generated from the code: `python -m archipel.study.document > docs/reference/study.md`. A test compares it.

A study is a TOML, YAML or JSON file. `archipel run study.toml` runs it, `archipel run` alone the embedded one:

```toml
{embedded}```

**A study is code.** A study that names files beside it runs them with your rights, so accept studies only from people
from whom you would accept a program, and read those files first. A study file alone runs nothing but
Archipel: it can name neither installed modules nor files in other folders, unless you give `--allow-code` (in Python:
`read_study(path, code="any")`). `archipel learner --dry-run` runs not even the files beside it without that flag;
`archipel data` and `archipel report` run no code of a study.

Rules that hold everywhere:

* Where a table names a constructor (`data.source`, `model`, an entry of `algorithms`), its further keys are that
  constructor's own arguments; the name alone, as in `source = "digits"`, is short for a table with nothing else.
* `"file.py:name"` is code of your own, in a file beside the study: a class, or for networks, data, methods and losses
  a function that the file defines. `"package.module:name"` and files elsewhere need `--allow-code`. Other paths start
  from the study's folder.
* `"none"` stands for nothing, which TOML has no word for; in YAML and JSON it is `null`.
* A key that is not known is an error that names its line and the nearest known key.
* Parts of a method can be exchanged, written as in Python: `weighting = "Product(ByExamples(), ByFreshness('inv'))"`.
  They are parsed, never evaluated.
* `--set key=value` changes one setting on the command line; `--set fedprox.mu=1` one of a method by its label. Values
  are written as in TOML: `--set seeds=[0,1,2]`, `--set grid.training.rate=[0.1,0.01]`.

"""

SITE_FILES = """What `archipel learner --site site.toml` reads, a TOML file that belongs to one site ([how to use
it](../how-to/restrict-a-site.md)). Its rules narrow what the study allows, and never widen it."""


def document() -> str:
    """Return the page."""
    return "".join(_document())


def _document() -> Iterator[str]:
    yield INTRODUCTION.format(embedded=embedded())
    yield "## Top level\n\n" + _table(Study)
    for key, model in (
        ("data", DataSection),
        ("data.split", SplitTable),
        ("data.natural", NaturalTable),
        ("data.colour_skew", ColourTable),
        ("data.normalise", NormaliseTable),
        ("data.augment", AugmentTable),
        ("data.folds", FoldsTable),
        ("fleet", FleetSection),
        ("fleet.groups", GroupTable),
        ("ending", EndingTable),
        ("evaluation", EvaluationTable),
        ("simulation", SimulationSection),
        ("federation", FederationSection),
        ("federation.learners", GuestTable),
        ("federation.limits", LimitsTable),
        ("report", ReportSection),
    ):
        several = key in ("fleet.groups", "federation.learners")
        yield f"## `[{'[' * several}{key}]{']' * several}`\n\n" + _table(model)
    yield "## `[training]`, and further keys of every algorithm\n\n"
    yield _rows((name, info) for name, (_, info) in local_fields().items())
    yield "## Algorithms\n\nBeside its own arguments and those of `[training]`, every algorithm takes\n\n"
    yield _table(BesideMethod)
    yield from _constructors(METHODS, skipped=tuple(local_fields()))
    yield f"## Networks\n\nWhat is left open of {', '.join(f'`{name}`' for name in FROM_DATA)} is taken from the data. "
    yield "Every network takes\n\n" + _table(BesideModel)
    yield from _constructors(MODELS)
    yield "## Data sources\n\n"
    yield from _constructors(SOURCES)
    yield f"## Site files\n\n{SITE_FILES}\n\n" + _table(SiteTable)


def _constructors(known: dict[str, Callable[..., Any]], skipped: tuple[str, ...] = ()) -> Iterator[str]:
    for name, constructor in known.items():
        yield f"### `{name}`\n\n{summary_of(constructor)}\n\n"
        model = arguments(constructor, ("name",), FROM_DATA)
        mine = [(key, info) for key, info in model.model_fields.items() if key not in skipped]
        if mine:
            yield _rows(mine)


def _table(model: type[BaseModel]) -> str:
    about = summary_of(model) if model.__doc__ and model.__module__ == Study.__module__ else ""
    return (f"{about}\n\n" if about else "") + _rows(model.model_fields.items())


def _rows(fields: typing.Iterable[tuple[str, FieldInfo]]) -> str:
    lines = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for name, info in fields:
        meaning = info.description or (summary_of(info.annotation) if _is_table(info.annotation) else "")
        lines.append(f"| `{name}` | {_kind(info.annotation)} | {_default(info)} | {_sentence(meaning)} |")
    return "\n".join(lines) + "\n\n"


def _sentence(text: str) -> str:
    """Return a meaning as a sentence of a table, with None as the word that studies have for it."""
    text = re.sub(r"\bNone\b", '`"none"`', re.sub(r"\s+", " ", text).strip()).replace("|", "\\|")
    if text[1:2] != " ":  # a letter of a formula stays as it is
        text = text[:1].upper() + text[1:]
    return text and f"{text.rstrip('.')}."


def _is_table(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "needed"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return ""
    value = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(value)}`"


def _kind(hint: Any) -> str:
    """Return a type in words that a person who does not write Python understands."""
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path", Any: "expression"}
    if hint in plain:
        return plain[hint]
    origin, inside = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _kind(inside[0])
    if origin in (Union, types.UnionType):
        words = [_kind(kind) for kind in inside if kind is not type(None)]
        return " or ".join(dict.fromkeys(word for word in words if word))
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in inside)
    if origin is dict or (isinstance(origin, type) and issubclass(origin, typing.Mapping)):
        return "table" if inside[1] is Any else f"table of {_kind(inside[1])}"
    if origin is not None and inside:
        return f"list of {_kind(inside[0])}"
    if _is_table(hint):
        return "table"
    return "name or table" if getattr(hint, "__name__", "") == "ConstructorCall" else ""


if __name__ == "__main__":
    print(document(), end="")

"""`archipel algorithms`: the methods, the parts each is made of, and everything that can be set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from itertools import groupby
from typing import Annotated, Any, get_type_hints

import typer

import archipel.algorithms
from archipel.cli.compositions import CONTROLLERS, LEARNERS, ROLES, Combination, choices, combinations, refusals
from archipel.cli.console import AsJson, out, print_json
from archipel.cli.folding import MARGIN, heading, write
from archipel.core.algorithm import Algorithm
from archipel.core.checks import one_of
from archipel.core.parts.weighting import Product
from archipel.core.types import Local, Plan
from archipel.study.docs import PARAGRAPHS, fields_of, one_line, settings_of, spelled, summary_of

METHODS: dict[str, Callable[..., Algorithm]] = {
    name: getattr(archipel.algorithms, name) for name in archipel.algorithms.__all__
}
ALWAYS = ("protocol", "weighting", "merge")
"""Parts that tell methods apart: they are named even where they are the default."""
FURTHER = ("selection", "server", "planners", "recall", "objective", "descent", "personal")


@dataclass(frozen=True)
class Method:
    """A summary of a method."""

    name: str
    summary: str
    paper: str
    """The first line of its file: the paper, or a description if there is none."""
    parts: dict[str, str]


@dataclass(frozen=True)
class MethodSetting:
    """An argument of a constructor."""

    name: str
    type: str
    default: object
    meaning: str


@dataclass(frozen=True)
class Details(Method):
    """A method with its parts and settings."""

    notes: tuple[str, ...]
    """What is implemented of the paper, what is not, and how ambiguous places were read."""
    settings: tuple[MethodSetting, ...]
    local: tuple[MethodSetting, ...]
    """The settings of local training, with the method's own defaults."""
    expression: str
    """Its parts as a Python expression, without arguments that have their defaults."""


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show everything about this method.", show_default=False, autocompletion=lambda: list(METHODS)
        ),
    ] = None,
    compose: Annotated[
        bool, typer.Option("--compose", help="Show which protocols, weightings, merges and planners go together.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods and their parts; with a name, show everything about one."""
    if compose:
        both: tuple[tuple[str, ...], ...] = (CONTROLLERS, LEARNERS)
        found = {roles: [one for one, _ in combinations(roles)] for roles in both}
        if as_json:
            print_json([asdict(combination) for group in found.values() for combination in group])
        else:
            show_combinations(found)
    elif name is not None:
        one_of("archipel algorithms", "the name", name, METHODS)
        method = details(name)
        print_json(asdict(method)) if as_json else show(method)
    else:
        methods = sorted((outline(name) for name in METHODS), key=lambda method: method.paper)
        print_json([asdict(method) for method in methods]) if as_json else show_all(methods)


# -----------------------------------------------------------------------------------------------------------
# descriptions


def outline(name: str) -> Method:
    constructor = METHODS[name]
    algorithm = constructor()
    default = {field.name: field.default for field in fields(Algorithm)}
    parts = {role: getattr(algorithm, role) for role in (*ALWAYS, *FURTHER)}
    named = {role: part for role, part in parts.items() if role in ALWAYS or part != default[role]}
    return Method(
        name,
        summary_of(constructor),
        summary_of(inspect.getmodule(constructor)),
        {role: ", ".join(map(expression, part if role == "planners" else (part,))) for role, part in named.items()},
    )


def details(name: str) -> Details:
    constructor = METHODS[name]
    algorithm = constructor()
    hints, meanings = get_type_hints(constructor), settings_of(constructor)
    settings = [
        MethodSetting(parameter.name, spelled(hints[parameter.name]), parameter.default, meanings[parameter.name])
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    of_plans = fields_of(Plan)
    local = [
        MethodSetting(name, spelled(hint), getattr(algorithm.plan, name), of_plans[name])
        for name, hint in get_type_hints(Local).items()
    ]
    notes = PARAGRAPHS.split(inspect.getdoc(inspect.getmodule(constructor)) or "")[1:]
    return Details(
        **vars(outline(name)),
        notes=tuple(map(one_line, notes)),
        settings=tuple(settings),
        local=tuple(local),
        expression="\n".join(["Algorithm(", *(f"    {argument}," for argument in arguments(algorithm)), ")"]),
    )


def expression(value: object) -> str:
    """Return the Python expression of a value, without arguments that have their default."""
    if isinstance(value, tuple):
        return f"({', '.join(map(expression, value))}{',' if len(value) == 1 else ''})"
    return f"{type(value).__name__}({', '.join(arguments(value))})" if is_dataclass(value) else repr(value)


def arguments(value: Any) -> list[str]:
    """Return the arguments that a part was made with, without those that have their default."""
    if isinstance(value, Product):  # its factors are arguments without a name
        return [expression(factor) for factor in value.factors]
    changed = []
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if getattr(value, field.name) != default:
            changed.append(f"{field.name}={expression(getattr(value, field.name))}")
    return changed


# ---------------------------------------------------------------------------------------------------- on the terminal


def show_all(methods: list[Method]) -> None:
    column = 2 * MARGIN + max(map(len, METHODS))
    for paper, its_own in groupby(methods, key=lambda method: method.paper):
        heading(paper)
        for method in its_own:
            write(method.summary, column, name=method.name)
            write(", ".join(method.parts.values()), column, "dim")
        write("")
    write("archipel algorithms NAME shows all settings and how the paper was read.")


def show_combinations(found: Mapping[tuple[str, ...], Sequence[Combination]]) -> None:
    for role in ROLES:
        write(", ".join(choices(role)), 2 * MARGIN, name=f"{role}:")
    for roles, group in found.items():
        good = sum(combination.refused is None for combination in group)
        write("")
        write(f"{', '.join(roles)}: {good:,} of {len(group):,} combinations can be made. The others, and why not:")
        for refusal in refusals(group, roles):
            write("")
            heading(" + ".join(" or ".join(names) for names in refusal.names.values() if names is not None))
            write(refusal.sentence)


def show(method: Details) -> None:
    heading(method.name)
    write(method.summary)
    for title, settings in (("Settings", method.settings), ("Local training", method.local)):
        if settings:
            write("")
            heading(title)
        for setting in settings:
            write(f"{setting.type} = {setting.default!r}", 2 * MARGIN, name=f"{setting.name}:")
            write(setting.meaning, 3 * MARGIN)
    write("")
    heading("Parts")
    # never folded: it can be copied into a program
    out.print(method.expression, markup=False, highlight=False, soft_wrap=True)
    write("")
    heading(method.paper)
    for note in method.notes:
        write(note)

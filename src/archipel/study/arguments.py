"""A function's arguments as a pydantic model, so that a study file is checked against the constructors themselves.

Names, types and defaults come from the signature and meanings from the docstring: nothing is written twice.
"""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from archipel.core.types import Local, Plan
from archipel.study.docs import fields_of, settings_of

NONE = "none"
"""Stands for None, which TOML has no word for."""
RENAMED = {"loss": "drop_rate"}
"""Keys by their old names, and what they are called in tables that have no such key any more."""


class StudyTable(BaseModel):
    """A table of a study. An unknown key is an error that names the nearest one; "none" means not given."""

    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, protected_namespaces=(), use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        fields = cls.model_fields
        refuse_unknown(table, fields)
        return {key: value for key, value in table.items() if value != NONE or fields[key].default is not None}


class Arguments(StudyTable, use_attribute_docstrings=False):
    """The arguments that a study gives to a constructor; the others keep the constructor's defaults."""

    # meanings come from the signature; looking for a source, pydantic would search all modules, thousands with torch

    def given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def refuse_unknown(table: Mapping[str, object], known: Collection[str]) -> None:
    errors = []
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(known)}"
            if RENAMED.get(key) in known:
                hint = f"it is called '{RENAMED[key]}' now"
            errors.append(
                InitErrorDetails(
                    type=PydanticCustomError("unknown_key", "is not known; {hint}", {"hint": hint}),
                    loc=(key,),
                    input=table[key],
                )
            )
    if errors:
        raise ValidationError.from_exception_data("study", errors)


@cache
def arguments(
    constructor: Callable[..., object], leave_out: tuple[str, ...] = (), filled: tuple[str, ...] = ()
) -> type[Arguments]:
    """Return a model of a constructor's arguments.

    leave_out: arguments that a study cannot give; filled: arguments that may be left open, as they come from elsewhere.
    """
    fields: dict[str, Any] = {}
    meanings = fields_of(constructor) if is_dataclass(constructor) else settings_of(constructor)
    hints = _hints(constructor)
    for name, parameter in inspect.signature(constructor).parameters.items():
        if name in leave_out or name == "self" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is not parameter.VAR_KEYWORD:
            default = parameter.default
            if default is parameter.empty:
                default = None if name in filled else ...
            fields[name] = (_type(hints.get(name, Any)), Field(default, description=meanings.get(name)))
        elif name == "local":
            fields |= local_fields()
    return create_model(getattr(constructor, "__name__", "Own"), __base__=Arguments, **fields)


def takes_anything(constructor: Callable[..., object]) -> bool:
    """Return whether a constructor has **arguments other than those of local training."""
    parameters = inspect.signature(constructor).parameters.values()
    return any(p.kind is p.VAR_KEYWORD and p.name != "local" for p in parameters)


def local_fields() -> dict[str, Any]:
    """Return the settings of local training that every algorithm takes."""
    meanings = fields_of(Plan)
    return {
        name: (_type(hint), Field(None, description=meanings[name])) for name, hint in get_type_hints(Local).items()
    }


def _hints(constructor: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(vars(constructor)["__init__"] if _own_init(constructor) else constructor)
    except NameError:  # a name that only type checkers see, in somebody's own code
        return {}


def _own_init(constructor: Callable[..., object]) -> bool:
    """Return whether a class has an __init__ of its own, whose hints differ from those of the class."""
    return isinstance(constructor, type) and not is_dataclass(constructor) and "__init__" in vars(constructor)


def _type(hint: Any) -> Any:
    """Return the type, with the word "none" accepted where None is."""
    if get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
        return Annotated[hint, BeforeValidator(lambda value: None if value == NONE else value)]
    return hint

"""Build the objects that `simulate` takes from a study of one run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from archipel.core.algorithm import Algorithm
from archipel.core.binding import Binding
from archipel.core.checks import nearest, require
from archipel.core.frozen_weights import frozen_parameters
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.data import Islands, Source, load_split
from archipel.data.tokenizers import BYTES
from archipel.executors.choice import Way
from archipel.learner.learner import Loss
from archipel.simulation.fleet import Fleet, Group
from archipel.study.files import method_label, methods
from archipel.study.inputs import hashes
from archipel.study.own_code import OwnCode, is_own
from archipel.study.schema import FROM_DATA, SOURCES, ConstructorCall, DataSection, Study


class Settings(TypedDict, total=False):
    """Keywords of `simulate` that a study sets."""

    model: Callable[[], nn.Module]
    fleet: Fleet
    ending: Ending
    evaluation: Evaluation
    loss: Loss
    validation: float
    seed: int
    device: str
    execution: Way
    shadow: bool
    norms: bool
    most_share: float


@dataclass(frozen=True, eq=False)
class Dealt:
    """The data of a run."""

    split: Islands
    """The examples of each learner, before features are standardised; saved in a split file."""
    islands: Islands


def build_algorithm(study: Study) -> Algorithm:
    """Build the algorithm of a study of one run."""
    (method,) = study.algorithms
    (entry,) = methods(study.raw)
    training = _accepted(method, study.training.given())
    try:
        algorithm: Algorithm = method.constructor(**{**training, **method.given})
    except TypeError as error:
        raise ValueError(f"{method_label(entry)}: {error}.") from None
    require(isinstance(algorithm, Algorithm), f"{method.name} should give an archipel.Algorithm, got {algorithm!r}.")
    parts = {name: value for name, value in method.beside.items() if name != "label"}
    more = parts.pop("more_planners", ())
    parts["planners"] = (*parts.get("planners", algorithm.planners), *more)
    label = method.beside.get("label") or (algorithm.name if not is_own(method.name) else method_label(entry))
    algorithm = replace(algorithm, name=label, **parts)
    _check_statistics(algorithm, study.data.standardise)
    return algorithm


def _check_statistics(algorithm: Algorithm, standardise: str) -> None:
    """Refuse to standardise features by sums that the privacy account of the method does not cover."""
    privacy = algorithm.privacy
    if privacy is not None:
        require(
            standardise in privacy.statistics,
            f"data.standardise = {standardise!r} reveals statistics of all rows, and {type(privacy).__name__} "
            f"does not account for that. Use {' or '.join(map(repr, privacy.statistics))}; normalise images by given "
            "means.",
        )


def _accepted(method: ConstructorCall, training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all methods that a constructor takes; a user's own may take fewer."""
    parameters = inspect.signature(method.constructor).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(training)
    return {name: value for name, value in training.items() if name in parameters}


def build_data(study: Study) -> Dealt:
    """Build the data of a study of one run; the last ones are cached for the next run."""
    (seed,) = study.seeds
    raw = json.dumps(study.raw["data"], sort_keys=True, default=str)
    return _build_data(raw, str(study.folder), seed, tuple(hashes(study).items()), study.own_code)


@lru_cache(maxsize=1)
def _build_data(raw: str, folder: str, seed: int, files: tuple[tuple[str, str], ...], code: OwnCode) -> Dealt:
    section = DataSection.model_validate(json.loads(raw), context={"folder": folder, "code": code.allowed})
    source = _source(section.source, Path(folder))
    if section.draw_classes:
        source = source.with_classes_drawn(seed)
    if section.colour_skew is not None:
        source = source.colour_skew(**{"seed": seed, **section.colour_skew.given()})
    if section.normalise is not None:
        source = source.normalised(**section.normalise.given())
    if section.split_file is not None:
        islands = load_split(source, Path(folder) / section.split_file)
    elif section.split is not None:
        islands = source.split(**{"seed": seed, **section.split.given()})
    else:
        assert section.natural is not None
        islands = source.natural(**{"seed": seed, **section.natural.given()})
    if section.folds is not None:
        combinations = islands.folds(**{"seed": seed, **section.folds.given()})
        assert section.fold is not None
        require(
            section.fold < len(combinations),
            f"data.fold is {section.fold}, and there are {len(combinations)} combinations, numbered from 0.",
        )
        islands = combinations[section.fold].islands
    if section.augment is not None:
        islands = islands.augmented(**section.augment.given())
    return Dealt(islands, islands.standardised(section.standardise))


def build_source(study: Study, instead: Mapping[str, Any]) -> Source:
    """Build the study's source, with some of its arguments replaced."""
    call = study.data.source
    return _source(replace(call, given={**call.given, **instead}), Path(study.folder or "."))


def _source(call: ConstructorCall, folder: Path) -> Source:
    given = dict(call.given)
    if call.name in SOURCES:
        given |= {key: folder / given[key] for key in ("path", "folder") if key in given}
        if given.get("tokenizer", BYTES) != BYTES:
            given["tokenizer"] = folder / given["tokenizer"]
    source = call.constructor(**given)
    require(isinstance(source, Source), f"{call.name} should give an archipel.data.Source, got {source!r}.")
    return source  # type: ignore[no-any-return]


def build_settings(study: Study, data: Islands) -> Settings:
    """Return what `simulate` takes beside the algorithm and the data."""
    (seed,) = study.seeds
    settings = Settings(
        seed=seed,
        validation=study.validation,
        device=study.simulation.device,
        shadow=study.simulation.shadow,
        norms=study.simulation.norms,
        most_share=study.simulation.most_share,
    )
    if study.simulation.execution is not None:
        settings["execution"] = study.simulation.execution
    if study.ending is not None:
        settings["ending"] = Ending(**study.ending.given())
    if study.evaluation is not None:
        settings["evaluation"] = Evaluation(**study.evaluation.given())
    if study.fleet is not None:
        groups = [Group(**group.given()) for group in study.fleet.groups]
        settings["fleet"] = Fleet(*groups, fast=study.fleet.fast, slow=study.fleet.slow)
    if study.model is not None:
        settings["model"] = _model(study.model, data, Path(study.folder or "."), seed)
    if study.loss is not None:
        settings["loss"] = _loss(study.loss, study.own_code)
    return settings


def _model(call: ConstructorCall, data: Islands, folder: Path, seed: int) -> Callable[[], nn.Module]:
    """Return a function that makes the network; `simulate` calls it under the run's seed."""
    known = _from_data(data)
    filled: dict[str, int] = {}
    for name, parameter in inspect.signature(call.constructor).parameters.items():
        # a default in a user's network is meant; Archipel's are for the data set of the paper
        if name in FROM_DATA and (not is_own(call.name) or parameter.default is parameter.empty):
            require(
                name in known or name in call.given or parameter.default is not parameter.empty,
                f"model.{name}: it does not follow from {data.name!r}, whose examples have the shape "
                f"{tuple(data.x.shape[1:])}; give it.",
            )
            filled |= {name: known[name]} if name in known else {}
    weights = call.beside.get("weights")
    given = {**filled, **call.given}
    if call.name == "from_hf":
        if isinstance(given.get("base"), str):
            given["base"] = folder / given["base"]
        if not given.get("task", "causal-lm").endswith("classification"):
            given.pop("classes", None)

    def make() -> nn.Module:
        try:
            module = call.constructor(**given)
        except TypeError as error:
            raise ValueError(f"model {call.name}: {error}.") from None
        require(isinstance(module, nn.Module), f"{call.name} should give a torch.nn.Module, got {module!r}.")
        if weights is not None:
            _load_weights(module, folder / weights)
        return module  # type: ignore[no-any-return]

    return make


def _from_data(data: Islands) -> dict[str, int]:
    """Return the arguments of a network that follow from the data."""
    known = {"features": data.x[0].numel()}
    if data.classes is not None:
        known["classes"] = data.classes
    if data.x.ndim == 4:
        known |= {"channels": data.x.shape[1], "in_channels": data.x.shape[1], "size": data.x.shape[-1]}
    else:
        known["length"] = data.x.shape[-1]
    if data.x.dtype == torch.int64 and data.classes is not None:
        known["vocabulary"] = data.classes  # the target is the next character of the same vocabulary
    return known


def _load_weights(module: nn.Module, path: Path) -> None:
    """Load initial weights; refuse a file that lacks a tensor of the network or has another shape."""
    require(
        path.suffix == ".safetensors",
        f"model.weights: {path.name} should be a safetensors file; of a state_dict in a .pt make one with "
        "safetensors.torch.save_file(torch.load('x.pt', weights_only=True), 'x.safetensors').",
    )
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"model.weights: {path} is damaged or not a safetensors file: {error}.") from None
    layout, frozen = Layout.of(module), frozen_parameters(module)
    names = dict(module.named_parameters(remove_duplicate=False))
    tied = {name for name in names if name not in dict(module.named_parameters())}
    here, there = set(module.state_dict()) - tied, set(tensors) - tied
    require(
        here == there,
        f"model.weights: {path.name} belongs to another network: the network lacks "
        f"{sorted(there - here) or 'nothing'}, "
        f"the file lacks {sorted(here - there) or 'nothing'}.",
    )
    for name, parameter in frozen.items():
        require(
            tensors[name].shape == parameter.shape,
            f"model.weights: {name} has the shape {tuple(tensors[name].shape)} in {path.name}, and "
            f"{tuple(parameter.shape)} in the network.",
        )
        parameter.data = tensors[name]  # mapped from the file: processes that use it share the memory
    Binding(layout, module).bind(layout.joined(tensors))


def _loss(name: str, code: OwnCode) -> Loss:
    if is_own(name):
        return code.loss(name)
    known = [known for known in dir(nn.functional) if known.endswith(("loss", "entropy", "entropy_with_logits"))]
    require(
        name in known,
        f"loss: torch.nn.functional has no {name!r}; did you mean {nearest(name, known)!r}? "
        "One of your own is 'mine.py:loss'.",
    )
    return getattr(nn.functional, name)  # type: ignore[no-any-return]


def check(study: Study) -> None:
    """Build what needs no data, so that mistakes show before anything runs."""
    build_algorithm(study)
    if study.ending is not None:
        Ending(**study.ending.given())
    if study.evaluation is not None:
        Evaluation(**study.evaluation.given())
    if study.loss is not None:
        _loss(study.loss, study.own_code)

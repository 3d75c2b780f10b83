"""Models are vectors: one flat float32 vector and a `Layout` that says which slice is which layer.

A layer is a module with parameters of its own, in forward order. Parameters that do not require a gradient are frozen:
they are not in the vector, and the layout has only their hash. A layer's buffers (batch-norm statistics) are a layer
of their own, named `<layer>.buffers`, right behind it: they travel and are averaged like any other layer, and a method
that wants them local declares them private.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from archipel.core.checks import require
from archipel.core.frozen_weights import FrozenWeights, frozen_weights

BUFFERS = ".buffers"
COPY = ".modules_to_save."
"""Part of the path of a module that PEFT trains a copy of."""
ROOT = "."
"""Name of the layer with the network's own parameters; no submodule can have it."""

LISTED = 12
"""Most layers that an error lists; a transformer has hundreds."""
LACKING = {"norms": "normalisation layers", "adapters": "adapters"}
"""Words for groups of layers that a network may lack, and what an error calls them."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor of the module and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int

    @property
    def is_view(self) -> bool:
        """Whether the module's tensor can be a view into the vector."""
        return self.dtype == torch.float32 and len(self.shape) != 4

    def tensor(self, vector: Tensor) -> Tensor:
        """Return this tensor from a vector: a view if the dtype is the same, else a copy."""
        view = vector[self.start : self.stop].view(self.shape)
        if self.dtype == torch.float32:
            return view
        return view.to(self.dtype) if self.dtype.is_floating_point else view.round().to(self.dtype)


@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    kind: str
    """The module's class, such as Conv2d."""
    module: str
    """The module's path in the network; "" for the network itself."""
    buffers: bool
    """Whether these are the module's buffers (running statistics), not its parameters."""
    entries: tuple[TensorSlot, ...]
    adapts: str = ""
    """Path of the module that it adapts, if it is a PEFT adapter; else empty."""

    @property
    def path(self) -> str:
        """The path in the network as the user wrote it: without the wrappers that PEFT adds."""
        return self.adapts or self.module.partition(COPY)[0]

    @property
    def start(self) -> int:
        return self.entries[0].start

    @property
    def stop(self) -> int:
        return self.entries[-1].stop

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Names, shapes and slices of a module's layers in its vector."""

    layers: tuple[Layer, ...]
    tied: Mapping[str, str] = field(default_factory=dict)
    """Other names of tied parameters, and the name each has here."""
    frozen: FrozenWeights | None = None
    """The parameters outside the vector; None: there are none."""

    @staticmethod
    def of(module: nn.Module, example: Tensor | None = None) -> Layout:
        """Return the layout of a module; with an example input, layers are in the order of their calls."""
        for name, parameter in module.named_parameters():
            require(
                parameter.dtype == torch.float32 or not parameter.requires_grad,
                f"Layout: parameter {name!r} is {parameter.dtype}, models are float32 vectors; convert the module with "
                "module.float(), or freeze it with requires_grad_(False).",
            )
        order = _registration_order(module) if example is None else _forward_order(module, example)
        layers = _layers(order, _adapted(module))
        require(
            any(not layer.buffers for layer in layers),
            f"Layout: {type(module).__name__} has no trainable parameters; give a module with at least one "
            "layer that requires gradients.",
        )
        trained = {n: p for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        placed = {entry.name for layer in layers for entry in layer.entries}
        owners = {id(parameter): name for name, parameter in trained.items() if name in placed}
        tied = {name: owners[id(parameter)] for name, parameter in trained.items() if name not in placed}
        return Layout(layers, tied, frozen_weights(module, _frozen_head(order, layers)))

    # ---------------------------------------------------------------------------------------------------- names

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    @cached_property
    def size(self) -> int:
        return self.layers[-1].stop

    @cached_property
    def parameter_layers(self) -> tuple[int, ...]:
        """Indices of the layers that have parameters."""
        return tuple(place for place, layer in enumerate(self.layers) if not layer.buffers)

    def shared_parameters(self, trains: Collection[str] | None, private: Collection[str]) -> tuple[int, ...]:
        """Return the indices of the layers with parameters that train (None: all do) and are not private."""
        return tuple(
            place
            for place in self.parameter_layers
            if (trains is None or self.names[place] in trains) and self.names[place] not in private
        )

    def numbers_of(self, vector: Tensor, name: str) -> Tensor:
        """Return a layer's numbers in a vector, as a view."""
        layer = self.layers[self.index(name)]
        return vector[layer.start : layer.stop]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        return self._places[name]

    def knows(self, name: str) -> bool:
        return name in self._places

    def indices(self, names: Iterable[str] | None) -> tuple[int, ...]:
        """Return the indices of these layers in ascending order; None means all."""
        if names is None or names is self.names:
            return self._all
        return tuple(sorted(self._places[name] for name in names))

    @cached_property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(len(self.layers)))

    def with_layers(self, vector: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Return a copy of the vector with these values in their layers."""
        changed = vector.clone()
        for name, numbers in values.items():
            layer = self.layers[self._places[name]]
            changed[layer.start : layer.stop] = numbers
        return changed

    def slices(self, indices: Iterable[int]) -> list[slice]:
        """Return the slices of the vector that these layers cover; adjacent ones are joined."""
        if indices == self._all:
            return [slice(0, self.size)]
        joined: list[slice] = []
        for index in indices:
            piece = self._slices[index]
            if joined and joined[-1].stop == piece.start:
                joined[-1] = slice(joined[-1].start, piece.stop)
            else:
                joined.append(piece)
        return joined

    @cached_property
    def _slices(self) -> tuple[slice, ...]:
        """The slices of every layer, cached for commits."""
        return tuple(slice(layer.start, layer.stop) for layer in self.layers)

    def bytes(self, indices: Iterable[int]) -> int:
        return sum(map(self._bytes.__getitem__, indices))

    @cached_property
    def _bytes(self) -> tuple[int, ...]:
        """The bytes of every layer, cached for messages."""
        return tuple(4 * layer.size for layer in self.layers)

    def select(self, owner: str, choice: str | Sequence[str]) -> tuple[str, ...]:
        """Return layers by name, by the name of a module around them, or by one of these words.

        `all`; `head`, the last layer; `features`, all before it; `adapters`, those that PEFT added, without a head that
        it trains as a whole; `deep`, the fully connected layers behind the last
        convolution, or, in a net without convolutions, all layers behind the first; `shallow`, the others;
        `buffers`, the batch-norm statistics; `norms`, all normalisation layers with their statistics.
        """
        require(
            isinstance(choice, str) or bool(choice),
            f"{owner}: no layer is given. {self._listed()}",
        )
        chosen: set[str] = set()
        for word in (choice,) if isinstance(choice, str) else tuple(choice):
            if word in ("all", "head", "features", "adapters", "deep", "shallow", "buffers", "norms"):
                named = self._by_word(word)
                require(
                    bool(named) or word not in LACKING,
                    f"{owner}: this model has no {LACKING.get(word)}. {self._listed()}",
                )
                require(
                    word != "head" or self.frozen is None or not self.frozen.head,
                    f"{owner}: the last layer, {self.frozen.head if self.frozen else ''!r}, is frozen, so this model "
                    "has no head. Let it train, or name other layers, for example 'adapters'.",
                )
                chosen.update(named)
                continue
            matches = [layer.name for layer in self.layers if _is_in(layer, word)]
            matches = matches or [layer.name for layer in self.layers if _mentions(layer, word)]
            require(
                bool(matches),
                f"{owner}: no layer named {word!r}. {self._listed()}",
            )
            chosen.update(matches)
        return tuple(name for name in self.names if name in chosen)

    def _listed(self) -> str:
        """Return a list of the model's layers for an error; a long one is shortened."""
        if len(self.names) <= LISTED:
            return f"Layers of this model: {', '.join(self.names)}."
        some = f"{', '.join(self.names[: LISTED - 1])} ... {self.names[-1]}"
        return (
            f"Layers of this model, {len(self.names)} in all: {some}. A piece of a path is enough, such as 'layers.3'."
        )

    def _by_word(self, word: str) -> tuple[str, ...]:
        if word == "all":
            return self.names
        if word == "norms":
            return tuple(layer.name for layer in self.layers if "Norm" in layer.kind)
        if word == "buffers":
            return tuple(layer.name for layer in self.layers if layer.buffers)
        if word == "adapters":
            return tuple(layer.name for layer in self.layers if layer.adapts)
        parameter_layers = self.parameter_layers
        if word in ("head", "features"):
            if self.frozen is not None and self.frozen.head:
                return self.names
            last = self.layers[parameter_layers[-1]].path
            first = next(place for place in parameter_layers if self.layers[place].path == last)
        else:
            convolutions = [place for place in parameter_layers if self.layers[place].kind.startswith("Conv")]
            if convolutions:
                behind = [place for place in parameter_layers if place > convolutions[-1]]
                linear = [place for place in behind if self.layers[place].kind == "Linear"]
                first = linear[0] if linear else len(self.layers)
            else:
                first = parameter_layers[1] if len(parameter_layers) > 1 else len(self.layers)
        return self.names[first:] if word in ("head", "deep") else self.names[:first]

    # -------------------------------------------------------------------------------------------------- vectors

    def vector(self, module: nn.Module) -> Tensor:
        """Return a module's parameters and buffers as a new vector."""
        return self.joined(dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers()))

    def joined(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors, such as those of a state_dict, as a new vector."""
        vector = torch.empty(self.size)
        for layer in self.layers:
            for entry in layer.entries:
                require(
                    entry.name in tensors and tuple(tensors[entry.name].shape) == entry.shape,
                    f"Layout: expected {entry.name!r} with shape {entry.shape}, there is "
                    f"{tuple(tensors[entry.name].shape) if entry.name in tensors else 'no such tensor'}.",
                )
                vector[entry.start : entry.stop] = tensors[entry.name].detach().reshape(-1).float().cpu()
        return vector

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the vector as named tensors, for `torch.func` and `load_state_dict`; float tensors are views."""
        return {entry.name: entry.tensor(vector) for layer in self.layers for entry in layer.entries}

    def check(self, owner: str, vector: Tensor) -> None:
        require(
            vector.dtype == torch.float32 and tuple(vector.shape) == (self.size,),
            f"{owner}: expected {self.size:,} numbers of torch.float32 in one row, "
            f"got shape {tuple(vector.shape)} of {vector.dtype}.",
        )


def chunks(pieces: Iterable[slice], size: int) -> Iterator[slice]:
    """Yield these pieces of a vector, cut into chunks of at most `size` numbers."""
    for piece in pieces:
        for start in range(piece.start, piece.stop, size):
            yield slice(start, min(start + size, piece.stop))


def _layers(order: Iterable[tuple[str, nn.Module]], adapted: Mapping[str, str]) -> tuple[Layer, ...]:
    """Return the layers of these modules in order; adapted: the module that each adapter adapts."""
    layers: list[Layer] = []
    place = 0
    seen: set[int] = set()
    for name, part in order:
        prefix = f"{name}." if name else ""
        own: list[tuple[str, Tensor]] = [
            (prefix + n, p) for n, p in part.named_parameters(recurse=False) if id(p) not in seen and p.requires_grad
        ]
        seen.update(id(p) for _, p in own)
        unsaved = part._non_persistent_buffers_set
        kept = [(prefix + n, b) for n, b in part.named_buffers(recurse=False) if n not in unsaved]
        groups: list[tuple[str, list[tuple[str, Tensor]]]] = [("", own), (BUFFERS, kept)]
        for suffix, tensors in groups:
            if tensors:
                entries = []
                for tensor_name, tensor in tensors:
                    entries.append(
                        TensorSlot(tensor_name, tuple(tensor.shape), tensor.dtype, place, place + tensor.numel())
                    )
                    place += tensor.numel()
                kind, called = type(part).__name__, (name or ROOT) + suffix
                layers.append(Layer(called, kind, name, suffix == BUFFERS, tuple(entries), adapted.get(name, "")))
    return tuple(layers)


def _adapted(module: nn.Module) -> dict[str, str]:
    """Return the path of each module inside an adapter and of the module it adapts; PEFT lists an adapter's parts."""
    found: dict[str, str] = {}
    for path, part in module.named_modules():
        for name in getattr(part, "adapter_layer_names", ()):
            adapter = getattr(part, name, None)
            inside = f"{path}.{name}".lstrip(".")
            if isinstance(adapter, nn.Module) and name != COPY.strip("."):
                found |= {f"{inside}.{inner}".rstrip("."): path for inner, _ in adapter.named_modules()}
    return found


def _frozen_head(order: Sequence[tuple[str, nn.Module]], layers: Sequence[Layer]) -> str:
    """Return the last module with parameters, if it is frozen and has no adapter; else an empty string."""
    last = [name for name, part in order if next(part.parameters(recurse=False), None) is not None][-1]
    return "" if any(_is_in(layer, last) or last.startswith(f"{layer.path}.") for layer in layers) else last


def _is_in(layer: Layer, path: str) -> bool:
    """Return whether a layer has this name, or is inside the module of this path."""
    return layer.name == path or layer.name.startswith(f"{path}.")


def _mentions(layer: Layer, path: str) -> bool:
    """Return whether this occurs in a layer's path as the user wrote it."""
    return f".{path}." in f".{layer.path}."


def _registration_order(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (name, part)
        for name, part in module.named_modules()
        if next(part.parameters(recurse=False), None) is not None or part._buffers
    ]


def _forward_order(module: nn.Module, example: Tensor) -> list[tuple[str, nn.Module]]:
    registered = _registration_order(module)
    called: list[nn.Module] = []
    hooks = [part.register_forward_pre_hook(lambda m, _: called.append(m)) for _, part in registered]
    training = module.training
    try:
        module.eval()  # finding the order must not change batch-norm statistics
        with torch.no_grad():
            module(example)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    rank = {id(part): place for place, part in reversed(list(enumerate(called)))}
    ranked = sorted(registered, key=lambda item: rank.get(id(item[1]), len(called)))
    return [(name, part) for name, part in ranked if id(part) in rank or not _is_frozen(part)]


def _is_frozen(part: nn.Module) -> bool:
    """Return whether a module's own parameters are all frozen and it has no buffers."""
    return not part._buffers and not any(parameter.requires_grad for parameter in part.parameters(recurse=False))

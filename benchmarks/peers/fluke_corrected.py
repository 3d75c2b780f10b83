"""fluke's methods where they depart from their papers, each with the one thing changed that the page names.

If a method differs from Archipel's as fluke has it and not as it stands here, that thing is the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

import torch
from fluke.algorithms.apfl import APFL, APFLClient
from fluke.algorithms.fedavgm import FedAVGM, FedAVGMServer
from fluke.algorithms.feddyn import FedDyn, FedDynClient, get_all_params_of
from fluke.algorithms.fednova import FedNova, FedNovaServer
from fluke.algorithms.fedopt import FedOpt, FedOptServer
from fluke.algorithms.per_fedavg import PerFedAVG, PerFedAVGOptimizer
from fluke.algorithms.pfedme import PFedMe, PFedMeClient
from fluke.comm import Message
from fluke.server import Server
from fluke.utils.model import aggregate_models, merge_models, state_dict_zero_like
from torch import nn


class MomentumFromTheStart(FedAVGMServer):
    """The first round's update is not thrown away."""

    momentum_vector: Any

    def aggregate(self, eligible: Sequence[Any], client_models: Collection[nn.Module]) -> None:
        if self.momentum_vector is None:
            self.momentum_vector = state_dict_zero_like(self.model.state_dict())
        super().aggregate(eligible, client_models)


class NormalisedChanges(FedNovaServer):
    """Changes are scaled and added to the model; weights of models need not add up to 1."""

    @torch.no_grad()
    def aggregate(self, eligible: Sequence[Any], client_models: Collection[nn.Module]) -> None:
        own = torch.tensor([self.channel.receive("server", client.index, "local_a").payload for client in eligible])
        shares = torch.tensor(self._get_client_weights(eligible))
        weights = shares * (shares * own).sum() / own
        rest = 1 - weights.sum()
        models = [*client_models, deepcopy(self.model)]
        aggregate_models(self.model, models, [*weights.tolist(), float(rest)], 1.0)


class PlainMean(Server):
    """The mean that the adaptive step starts from does not use the server's rate."""

    def aggregate(self, eligible: Sequence[Any], client_models: Collection[nn.Module]) -> None:
        rate, self.hyper_params.lr = self.hyper_params.lr, 1.0
        super().aggregate(eligible, client_models)
        self.hyper_params.lr = rate


class RateOnce(FedOptServer, PlainMean):
    """FedOpt above that mean."""


class DynamicClient(FedDynClient):
    """What is kept is the sum of the movements, as in the authors' program; all learners have the same alpha."""

    prev_grads: Any

    def _receive_weights(self) -> None:
        super()._receive_weights()
        self.weight = 1.0

    def fit(self, override_local_epochs: int = 0) -> float:
        before, received = self.prev_grads.clone(), get_all_params_of(self.model)
        loss = super().fit(override_local_epochs)
        self.prev_grads = before + get_all_params_of(self.model) - received
        return loss


class EnvelopeClient(PFedMeClient):
    """The own model is held near the local one and not near itself; the local one is sent."""

    optimizer: Any

    def receive_model(self) -> None:
        super().receive_model()
        self.internal_model.load_state_dict(self.model.state_dict())

    def fit(self, override_local_epochs: int = 0) -> float:
        if self.optimizer is None:
            self.optimizer, self.scheduler = self._optimizer_cfg(self.model)
        settings = self.optimizer.defaults
        for _ in range(self.hyper_params.local_epochs):
            for x, y in self.train_set:
                for _ in range(self.hyper_params.k):
                    self.optimizer.zero_grad()
                    self.hyper_params.loss_fn(self.model(x), y).backward()
                    self.optimizer.step(list(self.internal_model.parameters()))
                for own, local in zip(self.model.parameters(), self.internal_model.parameters(), strict=True):
                    local.data -= settings["lamda"] * settings["lr"] * (local.data - own.data)
        return 0.0

    def send_model(self) -> None:
        self.channel.send(Message(self.internal_model, "model", self.index, inmemory=True), "server")


class Restoring(PerFedAVGOptimizer):
    """The step ahead is taken back before the step of the meta-gradient."""

    kept: Any

    def step(self, closure: Any = None, beta: float = 0.0, grads: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        if beta:
            for parameter, kept in zip(parameters, self.kept, strict=True):
                parameter.data.copy_(kept)
        else:
            self.kept = [parameter.data.clone() for parameter in parameters]
        return super().step(closure, beta, grads)


class MixedClient(APFLClient):
    """The gradient of the mixture reaches the personal model, which is not replaced by the mixture."""

    optimizer: Any

    def fit(self, override_local_epochs: int = 0) -> float:
        share = self.hyper_params.lam
        if self.optimizer is None:
            self.optimizer, self.scheduler = self._optimizer_cfg(self.model)
            self.pers_optimizer, self.pers_scheduler = self._optimizer_cfg(self.personalized_model)
        for _ in range(self.hyper_params.local_epochs):
            for x, y in self.train_set:
                mixture = merge_models(self.model, self.personalized_model, share)
                mixture.zero_grad()
                self.hyper_params.loss_fn(mixture(x), y).backward()
                self.optimizer.zero_grad()
                self.hyper_params.loss_fn(self.model(x), y).backward()
                self.optimizer.step()
                for own, mixed in zip(self.personalized_model.parameters(), mixture.parameters(), strict=True):
                    own.grad = share * mixed.grad
                self.pers_optimizer.step()
        return 0.0


def _with(base: type, **classes: type) -> type:
    """Return a method with other classes of clients, server or optimiser."""
    made = {f"get_{part}_class": lambda self, found=found: found for part, found in classes.items()}
    return type(base.__name__, (base,), made)


CORRECTED = {
    "fedavgm": _with(FedAVGM, server=MomentumFromTheStart),
    "fednova": _with(FedNova, server=NormalisedChanges),
    **dict.fromkeys(("fedadam", "fedyogi", "fedadagrad"), _with(FedOpt, server=RateOnce)),
    "feddyn": _with(FedDyn, client=DynamicClient),
    "pfedme": _with(PFedMe, client=EnvelopeClient),
    "per_fedavg": _with(PerFedAVG, optimizer=Restoring),
    "apfl": _with(APFL, client=MixedClient),
}

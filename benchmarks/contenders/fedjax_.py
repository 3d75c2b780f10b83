"""FedJAX: its federated averaging with the compiled for_each_client, the networks in plain JAX."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms.fed_avg import federated_averaging
from jax import Array

from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, data, initial, mine, selections

jax.tree_map = jax.tree.map  # FedJAX 0.0.17 knows it by the name that JAX has dropped since


def logits(params: Sequence[Array], x: Array) -> Array:
    """The workload's network on parameters in PyTorch's layout."""
    *inner, last = zip(params[::2], params[1::2], strict=True)
    for weight, bias in inner:
        x = jax.nn.relu(layer(weight, bias, x))
        if weight.ndim == 4:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return layer(*last, x)


def layer(weight: Array, bias: Array, x: Array) -> Array:
    if weight.ndim == 4:
        return jax.lax.conv(x, weight, (1, 1), "SAME") + bias[:, None, None]
    return x.reshape(len(x), -1) @ weight.T + bias


def loss(params: Sequence[Array], x: Array, y: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1).mean()


def gradient(params: Sequence[Array], batch: dict[str, Array], _random: Array) -> Sequence[Array]:
    return jax.grad(loss)(params, batch["x"], batch["y"])


def main() -> None:
    lap = Lap(backend="jit")
    workload = lap.workload
    if workload.speeds:
        lap.cannot("fedjax", "its algorithms know rounds only")
    fedjax.set_for_each_client_backend(lap.options["backend"])
    x, y = data(workload)
    y = y.astype(np.int32)
    learners = [
        fedjax.ClientDataset({"x": x[own], "y": y[own]})
        for own in (mine(workload, learner) for learner in range(workload.learners))
    ]
    algorithm = federated_averaging(
        gradient,
        fedjax.optimizers.sgd(workload.rate, workload.momentum or None),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(workload.batch, num_epochs=workload.epochs),
    )
    state = algorithm.init([jnp.asarray(array) for array in initial(workload)])
    random = jax.random.PRNGKey(SEED)
    lap.ready()

    updates = 0
    for chosen in selections(workload):
        random, *keys = jax.random.split(random, len(chosen) + 1)
        clients = [(learner, learners[learner], key) for learner, key in zip(chosen, keys, strict=True)]
        state, diagnostics = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        updates += len(diagnostics)
        lap.round()

    lap.tell(
        "fedjax",
        version("fedjax"),
        setting=f"1 process, for_each_client {lap.options['backend']}; steps not counted but computed",
        updates=updates,
        steps=updates * workload.steps,
        loss=lambda: float(
            np.mean([jax.jit(loss)(state.params, part.raw_examples["x"], part.raw_examples["y"]) for part in learners])
        ),
    )


if __name__ == "__main__":
    main()

"""Flower: a ServerApp with FedAvg and a ClientApp on its simulation runtime, whose workers are Ray's actors."""

from __future__ import annotations

import os
from functools import cache

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing may go out of here

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, WORKLOADS, data, mine

client = ClientApp()


@cache
def prepared(name: str, threads: int) -> tuple[Tensor, Tensor, nn.Module]:
    """Data and network, once in every actor."""
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    x, y = map(torch.from_numpy, data(WORKLOADS[name]))
    return x, y, network(WORKLOADS[name])


@client.train()
def train(message: Message, context: Context) -> Message:
    asked = message.content["config"]
    workload = WORKLOADS[asked["workload"]]
    x, y, module = prepared(workload.name, asked["threads"])
    own = mine(workload, context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=workload.rate, momentum=workload.momentum)
    steps = 0
    for _ in range(workload.epochs):
        for batch in torch.randperm(workload.examples).split(workload.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[own][batch]), y[own][batch]).backward()
            optimiser.step()
            steps += 1
    answer = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": workload.examples, "steps": steps}),
    }
    return Message(RecordDict(answer), reply_to=message)


def totals(replies: list[RecordDict], _weight: str) -> MetricRecord:
    return MetricRecord({"updates": len(replies), "steps": sum(reply["metrics"]["steps"] for reply in replies)})


def main() -> None:
    lap = Lap(cpus="1")
    workload = lap.workload
    if workload.speeds:
        lap.cannot("flower", "its strategies know rounds only")
    cpus = float(lap.options["cpus"])
    threads = max(1, int(cpus))
    module = network(workload)
    results: list[Result] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=workload.per_round / workload.learners,
            fraction_evaluate=0.0,
            min_train_nodes=workload.per_round,
            min_available_nodes=workload.learners,
            train_metrics_aggr_fn=totals,
        )
        results.append(
            strategy.start(
                grid,
                ArrayRecord(module.state_dict()),
                num_rounds=workload.rounds,
                train_config=ConfigRecord({"workload": workload.name, "threads": threads}),
                evaluate_fn=lambda done, _: lap.round() if done else None,
            )
        )

    lap.ready()

    run_simulation(
        server,
        client,
        num_supernodes=workload.learners,
        backend_config={
            "init_args": {"num_cpus": 2},
            "client_resources": {"num_cpus": cpus, "num_gpus": 0.0},
        },
    )

    (result,) = results
    rounds = result.train_metrics_clientapp.values()
    module.load_state_dict(result.arrays.to_torch_state_dict())
    lap.tell(
        "flower",
        flwr.__version__,
        setting=(
            f"{int(2 / cpus)} Ray actors, {threads} threads each; its own uniform selection; "
            "the actors' start is in the first round"
        ),
        updates=sum(metrics["updates"] for metrics in rounds),
        steps=sum(metrics["steps"] for metrics in rounds),
        loss=lambda: mean_loss(module, *map(torch.from_numpy, data(workload))),
    )


if __name__ == "__main__":
    # the actors must find the client by this module's name: what is pickled out of __main__ keeps nothing between tasks
    from benchmarks.contenders import flower

    flower.main()

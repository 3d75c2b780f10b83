"""The app that Flower runs for flower.py: FedAvg over one array, and clients that do not train.

It is copied into a project of its own and runs in Flower's environment, so it imports nothing of ours.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    (carried,) = message.content["arrays"].to_numpy_ndarrays()
    # each another array: what the SuperLink has already, it would not ask for
    factor = np.float32(1 + 1e-6 * (1 + context.node_config["number"]))
    answer = {"arrays": ArrayRecord([carried * factor]), "metrics": MetricRecord({"num-examples": 100})}
    return Message(RecordDict(answer), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    given = context.run_config
    model = np.random.default_rng(0).standard_normal(given["parameters"], dtype=np.float32)
    ticks: list[float] = []
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=given["nodes"],
        min_available_nodes=given["nodes"],
        train_metrics_aggr_fn=lambda replies, _weight: MetricRecord({"updates": len(replies)}),
    )
    result = strategy.start(
        grid,
        ArrayRecord([model]),
        num_rounds=given["rounds"],
        evaluate_fn=lambda _round, _model: ticks.append(time.monotonic()),  # before the first round, and after each
    )
    updates = [metrics["updates"] for metrics in result.train_metrics_clientapp.values()]
    if updates != [given["nodes"]] * given["rounds"]:
        raise RuntimeError(f"Updates of each round: {updates}. Of each, {given['nodes']} were asked for.")
    Path(given["ticks"]).write_text(json.dumps(ticks))

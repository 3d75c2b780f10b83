"""Flower on the work of `benchmarks.adapters`, as its FlowerTune recipe does it: PEFT's adapters travel, not the base.

A client makes the network for every task, as in the recipe. Prints the bytes of the adapters, the seconds of the run
with the start of Ray's actors, and the memory of all processes, shared pages once.
"""

from __future__ import annotations

import json
import os
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing may go out of here

import peft
import torch
import transformers
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.contenders.adapters_work import BATCH, BATCHES, LEARNERS, LORA, RATE, SMALL, letters
from benchmarks.race import watched

client = ClientApp()


def network() -> nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    llama = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**SMALL))
    return peft.get_peft_model(llama, peft.LoraConfig(task_type="CAUSAL_LM", **LORA))


@client.train()
def train(message: Message, context: Context) -> Message:
    module = network().train()
    peft.set_peft_model_state_dict(module, message.content["arrays"].to_torch_state_dict())
    first = int(context.node_config["partition-id"]) * BATCHES * BATCH
    ids = letters(LEARNERS)[first : first + BATCHES * BATCH] + 3
    optimiser = torch.optim.AdamW([one for one in module.parameters() if one.requires_grad], lr=RATE)
    for batch in torch.randperm(len(ids)).split(BATCH):
        optimiser.zero_grad()
        module(input_ids=ids[batch], attention_mask=torch.ones_like(ids[batch]), labels=ids[batch]).loss.backward()
        optimiser.step()
    own = ArrayRecord(peft.get_peft_model_state_dict(module))
    return Message(RecordDict({"arrays": own, "metrics": MetricRecord({"num-examples": len(ids)})}), reply_to=message)


def main() -> None:
    begin = peft.get_peft_model_state_dict(network())
    results: list[Result] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=LEARNERS, min_available_nodes=LEARNERS
        )
        results.append(strategy.start(grid, ArrayRecord(begin), num_rounds=1))

    at = time.perf_counter()
    backend = {"init_args": {"num_cpus": 2, "address": "local"}, "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    with watched() as peak:
        run_simulation(server, client, num_supernodes=LEARNERS, backend_config=backend)
    took = time.perf_counter() - at
    (result,) = results
    moved = result.arrays.to_torch_state_dict()
    assert any(not torch.equal(moved[name], begin[name]) for name in begin), "nothing was learnt"
    figures = {
        "seconds": took,
        "adapters of all (MB)": LEARNERS * sum(tensor.nbytes for tensor in moved.values()) / 2**20,
        "all processes (MB)": peak[0],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    # the actors must find the client by this module's name
    from benchmarks.contenders import flower_adapters

    flower_adapters.main()

"""No federation at all: as many steps of the same batch size over the same samples, pooled. A limit, not a peer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, Workload, data


def main() -> None:
    lap = Lap(threads="1")
    workload = lap.workload
    if workload.speeds:
        lap.cannot("centralised", "there is nobody to wait for")
    torch.set_num_threads(int(lap.options["threads"]))
    torch.manual_seed(SEED)
    x, y = map(torch.from_numpy, data(workload))
    module = network(workload)
    if workload.convolutions:
        x = x.to(memory_format=torch.channels_last)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    lap.ready()

    optimiser = torch.optim.SGD(module.parameters(), lr=workload.rate, momentum=workload.momentum)
    batches = endless(workload)
    for _ in range(workload.rounds):
        for _ in range(workload.per_round * workload.steps):
            batch = next(batches)
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
        lap.round()

    updates = workload.rounds * workload.per_round
    lap.tell(
        "centralised",
        torch.__version__,
        setting=f"torch threads: {torch.get_num_threads()}" + (", channels-last" if workload.convolutions else ""),
        updates=updates,
        steps=updates * workload.steps,
        loss=lambda: mean_loss(module, x, y),
    )


def endless(workload: Workload) -> Iterator[Tensor]:
    """Mini-batches of one pass over everybody's samples after the other."""
    while True:
        yield from torch.randperm(workload.learners * workload.examples).split(workload.batch)


if __name__ == "__main__":
    main()

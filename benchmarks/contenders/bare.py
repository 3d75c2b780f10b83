"""The loop a good engineer writes by hand: one network, every learner's turn, the mean in place."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, data, mine, selections


def main() -> None:
    lap = Lap(threads="1")
    workload = lap.workload
    if workload.speeds:
        lap.cannot("bare", "it has no virtual clock")
    torch.set_num_threads(int(lap.options["threads"]))
    torch.manual_seed(SEED)
    x, y = map(torch.from_numpy, data(workload))
    module = network(workload)
    local: list[torch.Tensor] = list(module.parameters())
    model = [parameter.detach().clone() for parameter in local]
    lap.ready()

    updates = steps = 0
    for chosen in selections(workload):
        mean = [torch.zeros_like(tensor) for tensor in model]
        for learner in chosen:
            own = mine(workload, learner)
            with torch.no_grad():
                torch._foreach_copy_(local, model)
            optimiser = torch.optim.SGD(local, lr=workload.rate, momentum=workload.momentum)
            for _ in range(workload.epochs):
                for batch in torch.randperm(workload.examples).split(workload.batch):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(module(x[own][batch]), y[own][batch]).backward()
                    optimiser.step()
                    steps += 1
            with torch.no_grad():
                torch._foreach_add_(mean, local, alpha=1 / len(chosen))  # all learners have as many examples
            updates += 1
        model = mean
        lap.round()

    with torch.no_grad():
        torch._foreach_copy_(local, model)
    lap.tell(
        "bare",
        torch.__version__,
        setting=f"torch threads: {torch.get_num_threads()}",
        updates=updates,
        steps=steps,
        loss=lambda: mean_loss(module, x, y),
    )


if __name__ == "__main__":
    main()

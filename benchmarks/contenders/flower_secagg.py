"""Add up vectors with Flower's SecAgg+, workflow and client mod in one process, in Flower's own environment.

    python -m benchmarks.contenders.flower_secagg LEARNERS NUMBERS NEIGHBOURS THRESHOLD DROPPING

Messages are handed over without a network. Prints a line of JSON: CPU seconds, and whether the sum is right.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from copy import deepcopy
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Stage
from flwr.common.secure_aggregation.secaggplus_constants import Key as Entry
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity

CLIP, EXAMPLES = 8.0, 1
LATE = (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK)


class Strategy:
    """Asks everybody, and keeps the mean."""

    def __init__(self, learners: range) -> None:
        self.learners = learners
        self.mean: np.ndarray | None = None

    def configure_fit(self, _round: int, parameters: Parameters, _manager: object) -> list[Any]:
        return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in self.learners]

    def aggregate_fit(self, _round: int, results: list[Any], _failures: list[Any]) -> tuple[None, dict[str, Any]]:
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


class Cohort:
    """Stands for the grid: every message is answered by its learner's mod at once."""

    def __init__(self, vectors: dict[int, np.ndarray], learners: range) -> None:
        self.vectors = vectors
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in learners}

    def send_and_receive(self, messages: Iterable[Message], **_: object) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self.vectors and message.content.config_records[RECORD_KEY_CONFIGS][Entry.STAGE] in LATE:
            return Message(Error(0, "dropped out"), reply_to=message)
        message.content = deepcopy(message.content)  # the workflow sends one to all, and mods take it apart
        return secaggplus_mod(message, self.contexts[node], self.train)

    def train(self, message: Message, _context: Context) -> Message:
        vector = self.vectors[message.metadata.dst_node_id]
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), EXAMPLES, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=True), reply_to=message)


def main(learners: int, numbers: int, neighbours: int, threshold: float, dropping: float) -> None:
    """Run one sum, and tell what it took."""
    nodes, draws = range(1, learners + 1), np.random.default_rng(0)
    vectors = {node: draws.uniform(-1, 1, numbers) for node in nodes[: round(learners * (1 - dropping))]}
    strategy = Strategy(nodes)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    configs, context = ConfigRecord({Key.CURRENT_ROUND: 1}), Context(1, 0, {}, RecordDict(), {})
    context.state.config_records[MAIN_CONFIGS_RECORD] = configs
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(1)])
    manager = SimpleNamespace(num_available=lambda: learners)
    legacy = LegacyContext(context, strategy=strategy, client_manager=manager)
    workflow = SecAggPlusWorkflow(
        neighbours + 1, round(threshold * (neighbours + 1)), clipping_range=CLIP, max_weight=1.0
    )
    began = time.process_time()
    workflow(Cohort(vectors, nodes), legacy)
    seconds = time.process_time() - began
    right = strategy.mean is not None and bool(
        np.abs(strategy.mean - np.mean(list(vectors.values()), axis=0)).max() < 1e-4
    )
    print(json.dumps({"flwr": version("flwr"), "cpu": seconds, "right": right}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *map(float, sys.argv[4:]))

"""What travels, in bytes and models, by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from torch import nn

import archipel as ap
from archipel.core.layout import Layout
from archipel.core.parts.weighting import EvidenceRequest
from archipel.core.records import Committed, Handed, Record, Returned
from archipel.core.state import Update, View
from archipel.core.types import HOME, Command, Evaluated, Event, Model, Score, Traffic
from archipel.models import mlp, small_mlp
from archipel.simulation.network import Wire
from archipel.simulation.simulate import finished
from archipel.simulation.simulator import Simulator
from tests.simulation.engine_cases import begun, islands, small_islands
from tests.watching import Watching

FC1, FC2, HEAD = 4 * (64 * 20 + 20), 4 * (20 * 12 + 12), 4 * (12 * 10 + 10)
"""Bytes of the layers of `network`."""
ALL = FC1 + FC2 + HEAD


def network() -> nn.Module:
    return mlp(64, 10, hidden=(20, 12))


class Ledger:
    """Notes what every training task moved, learner by learner."""

    def __init__(self, simulator: Simulator) -> None:
        self.down: dict[str, list[int]] = {}
        self.up: dict[str, list[int]] = {}
        deliver, send = simulator.wire.deliver, simulator.wire.send

        def delivered(learner: str, model: Model, own: Collection[str]) -> int:
            self.down.setdefault(learner, []).append(deliver(learner, model, own))
            return self.down[learner][-1]

        def sent(learner: str, name: str, sent: Iterable[str]) -> int:
            self.up.setdefault(learner, []).append(send(learner, name, sent))
            return self.up[learner][-1]

        simulator.wire.deliver, simulator.wire.send = delivered, sent  # type: ignore[method-assign]


def models(run: ap.Run) -> int:
    """Models that were moved for training and weighing."""
    return sum(n for kind, n in run.traffic.items() if kind.endswith("models") and not kind.startswith("score"))


# ----------------------------------------------------------------------------------------------------- the wire


def test_only_layers_with_a_new_stamp_are_sent() -> None:
    wire = Wire(Layout.of(network()))
    assert wire.deliver("00", Model("v0", ("v0", "v0", "v0")), ()) == ALL
    assert wire.deliver("00", Model("v0", ("v0", "v0", "v0")), ()) == 0
    assert wire.deliver("00", Model("v1", ("v0", "v1", "v0")), ()) == FC2
    assert wire.deliver("00", Model("v2", ("v2", "v1", "v2")), ()) == FC1 + HEAD
    assert wire.deliver("01", Model("v2", ("v2", "v1", "v2")), ()) == ALL, "what one learner has, another has not"
    assert wire.deliver("00", Model("v0", ("v0", "v0", "v0")), ()) == ALL, "old versions are not kept"


def test_a_learner_has_what_it_sent() -> None:
    wire = Wire(Layout.of(network()))
    wire.deliver("00", Model("v0", ("v0", "v0", "v0")), ())
    assert wire.send("00", "t5", ("fc1", "head")) == FC1 + HEAD
    assert wire.deliver("00", Model("t5", ("t5", "v0", "t5")), ()) == 0
    assert wire.send("00", "t6", ("fc2",)) == FC2
    assert wire.deliver("00", Model("t5", ("t5", "v0", "t5")), ()) == 0, "it was received since"
    assert wire.deliver("00", Model("t6", ("v0", "t6", "t5")), ()) == FC1


def test_private_layers_that_a_learner_has_are_not_sent() -> None:
    wire = Wire(Layout.of(network()))
    assert wire.deliver("00", Model("v0", ("v0", "v0", "v0")), ()) == ALL
    assert wire.deliver("00", Model("v1", ("v1", "v1", "v0")), ("head",)) == FC1 + FC2
    assert wire.deliver("00", Model("v2", ("v2", "v2", "v2")), ("head", "fc1")) == FC2


def test_a_model_shown_for_evaluation_is_not_kept() -> None:
    wire = Wire(Layout.of(network()))
    shown = Model("t1", ("t1", "t1", "t1"))
    for _ in range(2):
        assert wire.show([("00", ())], shown) == [ALL]
    wire.deliver("00", Model("v1", ("t1", "v1", "v1")), ())
    assert wire.show([("00", ())], shown) == [FC2 + HEAD]
    assert wire.show([("00", ("head",))], shown) == [FC2]
    assert wire.deliver("00", shown, ()) == FC2 + HEAD


def test_each_of_many_sites_is_shown_what_it_lacks() -> None:
    wire = Wire(Layout.of(network()))
    wire.deliver("01", Model("v1", ("v1", "t1", "v1")), ())
    wire.deliver("02", Model("t1", ("t1", "t1", "t1")), ())
    wire.deliver("04", Model("v1", ("v1", "v1", "v1")), ())
    wire.send("04", "t1", ("fc1",))
    train = {kind: dict(layers) for kind, layers in wire.moved.items()}
    sites = {"05": (), "04": (), "03": ("head",), "02": (), "01": ("fc1",), "00": ()}
    assert wire.show(sites.items(), Model("t1", ("t1", "t1", "t1")), "score down") == [
        ALL,  # 05 has nothing
        FC2 + HEAD,  # what it sent is fc1
        FC1 + FC2,  # its head is private
        0,  # it was given this very model
        HEAD,
        ALL,
    ]
    assert wire.moved == {**train, "score down": {"fc1": 3 * FC1, "fc2": 4 * FC2, "head": 4 * HEAD}}
    # a stamp says something of its own layer only: v1 has another fc1 than t1, whatever t1's fc2 is
    assert wire.show([("01", ())], Model("odd", ("t1", "v1", "t1"))) == [ALL]


# ----------------------------------------------------------------------------- Metis fig. 9: models of a request


@pytest.mark.parametrize("algorithm", [ap.fedavg(batch=16), ap.async_fedavg(batch=16, epochs=1)], ids=lambda a: a.name)
def test_fedavg_moves_two_models_a_request(algorithm: Any) -> None:
    run = ap.simulate(algorithm, small_islands(10), fleet=ap.Fleet(fast=5, slow=5), ending=ap.Ending(rounds=4))
    requests = run.traffic["train up models"]
    assert requests == 40
    assert models(run) == 2 * requests
    size = run.layout.bytes(range(len(run.layout.layers)))
    assert run.traffic["train down bytes"] == run.traffic["train up bytes"] == requests * size
    assert not any(kind.startswith("evaluate") for kind in run.traffic)


def test_synchronous_dvw_with_ten_learners_moves_eleven() -> None:
    run = ap.simulate(
        ap.sync_dvw(batch=16, epochs=1),
        small_islands(10),
        fleet=ap.Fleet(fast=5, slow=5),
        ending=ap.Ending(rounds=3),
    )
    assert run.traffic["train up models"] == 30
    assert models(run) == 11 * 30
    size = run.layout.bytes(range(len(run.layout.layers)))
    assert run.traffic["evaluate down bytes"] == 9 * 30 * size
    assert run.summary().splitlines()[2].startswith("  330 models moved")


def test_asynchronous_dvw_with_ten_learners_moves_eleven() -> None:
    # alike and of different speeds, so that no two updates are weighed at the same time
    groups = [ap.Group(f"g{i}", 1, train_seconds=0.1 + 0.0137 * i, evaluate_seconds=1e-6) for i in range(10)]
    run = ap.simulate(
        ap.async_dvw(adaptive=False, batch=16, epochs=1),
        small_islands(10),
        fleet=ap.Fleet(*groups),
        ending=ap.Ending(commits=50),
    )
    assert run.traffic["train up models"] == 50
    assert models(run) == 11 * 50


def test_fewer_evaluators_move_fewer_models() -> None:
    run = ap.simulate(ap.sync_dvw(batch=16, epochs=1, evaluators=3), small_islands(10), ending=ap.Ending(rounds=2))
    assert models(run) == (2 + 3) * 20


class Shown(Watching):
    """Notes the bytes and models of every answer to a question about an update, and of every score."""

    def __init__(self, simulator: Simulator) -> None:
        self.evidence: list[Traffic] = []
        self.scores: list[Traffic] = []
        simulator.observers = (*simulator.observers, self)

    def before(self, simulator: Simulator, event: Event) -> None:
        if isinstance(event, Evaluated):
            (self.evidence if event.task >= 0 else self.scores).append(event.traffic)

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]:
        return ()


def test_sites_that_hold_some_layers_are_shown_the_others() -> None:
    """An update that leaves its head at home is the community's model there, which every site was given to train."""
    algorithm = ap.sync_dvw(batch=16, epochs=1)
    simulator = begun(
        replace(algorithm, planners=(*algorithm.planners, ap.PeriodicLayers(period=1, last=0, deep=("head",)))),
        small_islands(4),
        model=network,
        ending=ap.Ending(rounds=3),
        evaluation=ap.Evaluation(every=1, at="learners"),
    )
    shown = Shown(simulator)
    simulator.run()
    run = finished(simulator)
    # the first round sends everything, the two after it all but the head
    assert shown.evidence == [Traffic(3 * ALL, 0, 3)] * 4 + [Traffic(3 * (FC1 + FC2), 0, 3)] * 8
    assert run.traffic["evaluate down bytes"] == 12 * ALL + 24 * (FC1 + FC2)
    assert run.traffic["evaluate down models"] == 36
    assert run.layers["evaluate down"] == {"fc1": 36 * FC1, "fc2": 36 * FC2, "head": 12 * HEAD}
    # a version that is handed out to all to train is there to be scored; the last one is not, but its head is
    assert shown.scores == [Traffic(0, 0, 0)] * 3 + [Traffic(4 * (FC1 + FC2), 0, 4)]
    assert simulator.controller.state.traffic["score down models"] == 4


def test_a_model_that_is_there_already_is_no_model_on_the_wire() -> None:
    """Two of four train, and are not sent the version once more to score it."""
    simulator = begun(
        ap.fedavg(fraction=0.5, batch=16),
        small_islands(4),
        model=network,
        ending=ap.Ending(rounds=3),
        evaluation=ap.Evaluation(at="learners"),
    )
    shown = Shown(simulator)
    simulator.run()
    assert shown.scores == [Traffic(2 * ALL, 0, 2)] * 3 + [Traffic(4 * ALL, 0, 4)]


# -------------------------------------------------------------------------------------------------------- Fed2A


def test_plu_uploads_deep_layers_only_in_the_last_rounds_of_a_period() -> None:
    run = ap.simulate(
        ap.plu(buffer=4, period=4, last=1, deep=("fc2", "head"), batch=16),
        small_islands(4),
        model=network,
        ending=ap.Ending(commits=12),
    )
    # all four commit together: rounds 1 to 4 upload all layers, then every fourth does
    layers = [record.layers for _, record in run.cycles]
    whole, shallow = ("fc1", "fc2", "head"), ("fc1",)
    assert layers == [whole] * 16 + ([shallow] * 12 + [whole] * 4) * 2
    assert run.traffic["train up bytes"] == 24 * ALL + 24 * FC1
    # in the rounds after 5, 6, 7, 9, 10 and 11 only fc1 has changed
    assert run.traffic["train down bytes"] == 4 * (6 * ALL + 6 * FC1)


def test_plu_under_asynchrony_uploads_by_the_version_at_hand_out() -> None:
    run = ap.simulate(
        ap.plu(buffer=2, period=3, last=1, deep=("head",), by="hand-out", batch=16),
        small_islands(6),
        model=network,
        fleet=ap.Fleet(fast=3, slow=3),
        ending=ap.Ending(commits=20),
    )
    versions = {record.task: record.version for _, record in run.of(Handed)}
    assert len({versions[task] for _, commit in run.commits[-1:] for task in commit.tasks}) == 2, "some should be stale"
    uploaded = 0
    last = next(place for place, stamped in enumerate(run.records) if stamped.record is run.commits[-1][1])
    for record in [stamped.record for stamped in run.records[:last] if isinstance(stamped.record, Returned)]:
        version = versions[record.task]
        # a task that starts from version 5 makes round 6: the last of the second period
        deep = version < 3 or version % 3 == 2
        assert record.layers == (("fc1", "fc2", "head") if deep else ("fc1", "fc2"))
        uploaded += ALL if deep else FC1 + FC2
    assert run.commits[-1][1].traffic["train up bytes"] == uploaded


@pytest.mark.parametrize("bandwidth", [None, 100_000.0], ids=["at once", "a slow line"])
def test_plu_under_asynchrony_uploads_by_the_version_at_the_end_of_a_task(bandwidth: Any) -> None:
    run = ap.simulate(
        ap.plu(buffer=2, period=3, last=1, deep=("head",), batch=16),
        small_islands(6),
        model=network,
        fleet=ap.Fleet(
            ap.Group("fast", 3, train_seconds=0.01, bandwidth=bandwidth),
            ap.Group("slow", 3, train_seconds=0.1, bandwidth=bandwidth),
        ),
        ending=ap.Ending(commits=20),
    )
    uploaded, version = 0, 0
    for record in (stamped.record for stamped in run.records):
        if isinstance(record, Returned) and version < 20:
            deep = version < 3 or version % 3 == 2
            uploaded += ALL if "head" in record.layers else FC1 + FC2
            if bandwidth is None:  # what arrives after version 5 makes round 6: the last of the second period
                assert record.layers == (("fc1", "fc2", "head") if deep else ("fc1", "fc2"))
        elif isinstance(record, Committed):
            version = record.version
            # what was sent in a round with deep layers and arrives in one without is not used
            silent = version > 3 and version % 3 != 0
            assert (2 in record.layers) <= (not silent)
    assert run.commits[-1][1].traffic["train up bytes"] == uploaded < 40 * ALL


def test_an_answer_without_deep_layers_is_shorter_on_a_slow_line() -> None:
    """One learner alone: its rounds differ by the seconds of the head's bytes."""
    run = ap.simulate(
        ap.plu(buffer=1, period=2, last=1, deep=("head",), batch=16),
        small_islands(1),
        model=network,
        fleet=ap.Fleet(ap.Group("slow", 1, train_seconds=0.01, bandwidth=1000.0)),
        ending=ap.Ending(commits=6),
    )
    times = [0.0, *(time for time, _ in run.commits)]
    seconds = [after - before for before, after in pairwise(times)]
    # the head goes up in rounds 1, 2, 4 and 6, and down in 1, 2, 3 and 5
    whole = seconds[0]
    assert seconds == pytest.approx([whole] * 2 + [whole - HEAD / 1000] * 4)


# ---------------------------------------------------------------------------------------------------------- D&C


def test_divide_and_conquer_moves_half_the_bytes_after_the_prepass() -> None:
    settings: dict[str, Any] = {"model": network, "ending": ap.Ending(rounds=10)}
    data = small_islands(4)
    divided = ap.simulate(
        ap.divide_and_conquer(prepass=3, split="fc1", epochs=1, tuning_epochs=1, batch=16, rate=0.05), data, **settings
    )
    whole = ap.simulate(ap.fedavg(batch=16), data, **settings)

    def moved(run: ap.Run, way: str) -> list[int]:
        """Bytes of each round for each of the four learners."""
        totals = [0, *(commit.traffic[f"train {way} bytes"] for _, commit in run.commits)]
        return [(after - before) // 4 for before, after in pairwise(totals)]

    assert moved(whole, "up") == moved(whole, "down") == [ALL] * 10
    rest = FC2 + HEAD
    assert moved(divided, "up") == [ALL, ALL, ALL, FC1, rest, FC1, rest, FC1, rest, FC1]
    # what the last round changed has to go down: after the pre-pass everything, then the part that trained before
    assert moved(divided, "down") == [ALL, ALL, ALL, ALL, FC1, rest, FC1, rest, FC1, rest]
    for way in ("up", "down"):
        pairs = sum(moved(divided, way)[4:])
        assert pairs == pytest.approx(sum(moved(whole, way)[4:]) / 2)


# -------------------------------------------------------------------------------------------------------- HDAFL


def test_private_layers_travel_down_once_to_each_learner_and_never_up() -> None:
    simulator = begun(ap.hdafl(fraction=0.5, batch=16), small_islands(6), model=network, ending=ap.Ending(rounds=12))
    ledger = Ledger(simulator)
    simulator.run()
    run = finished(simulator)
    shared = FC1 + FC2
    assert sorted(ledger.down) == ["00", "01", "02", "03", "04", "05"]
    for name in ledger.down:
        assert len(ledger.down[name]) > 2
        # a learner drawn twice in a row still needs what the others have changed
        assert ledger.down[name] == [ALL] + [shared] * (len(ledger.down[name]) - 1)
        assert set(ledger.up[name]) == {shared}
    assert all(record.layers == ("fc1", "fc2") for _, record in run.cycles)
    assert run.traffic["train down bytes"] == 6 * ALL + (36 - 6) * shared
    assert run.traffic["train up bytes"] == 36 * shared
    assert all(commit.layers == (0, 1) for _, commit in run.commits)


def test_a_late_joiner_gets_the_private_layers_too() -> None:
    simulator = begun(ap.hdafl(fraction=1.0, batch=16), small_islands(4), model=network, ending=ap.Ending(rounds=6))
    ledger = Ledger(simulator)
    simulator.controller.learners = 3  # the fourth comes when two rounds are over
    simulator.clock.heap = [item for item in simulator.clock.heap if getattr(item[2], "learner", "") != "03"]
    simulator.clock.after(0.07, simulator.availability.joined("03", fresh=True))
    initial = simulator.controller.models.read("v0").clone()
    simulator.run()
    run = finished(simulator)
    assert [len(commit.learners) for _, commit in run.commits] == [3, 3, 3, 4, 4, 4]
    assert [len(ledger.down[name]) for name in ("00", "01", "02", "03")] == [6, 6, 6, 3]
    for down in ledger.down.values():
        assert down == [ALL] + [FC1 + FC2] * (len(down) - 1)
    heads = [site.learner.private["head"] for site in simulator.sites.values()]
    assert len({tuple(head.tolist()) for head in heads}) == 4, "everybody has a head of its own by now"
    last = run.layout.layers[run.layout.index("head")]
    assert run.model[last.start : last.stop].equal(initial[last.start : last.stop]), "the community's never moved"


def test_nothing_travels_up_when_everybody_trains_alone() -> None:
    simulator = begun(ap.local_only(batch=16), small_islands(3), model=network, ending=ap.Ending(rounds=4))
    ledger = Ledger(simulator)
    simulator.run()
    assert list(ledger.down.values()) == [[ALL, 0, 0, 0]] * 3
    assert list(ledger.up.values()) == [[0, 0, 0, 0]] * 3


# ------------------------------------------------------------------------------------------- what is there already


def test_a_model_that_comes_back_to_its_learner_costs_nothing() -> None:
    simulator = begun(
        ap.radfed(fraction=1.0, hops=3, batch=16), small_islands(1), model=network, ending=ap.Ending(rounds=6)
    )
    ledger = Ledger(simulator)
    simulator.run()
    # its own model of the hop before; after the aggregation the version has a stamp of its own
    assert ledger.down["00"] == [ALL, 0, 0, ALL, 0, 0]
    assert ledger.up["00"] == [ALL] * 6


def test_a_relay_moves_a_model_with_every_hop() -> None:
    run = ap.simulate(
        ap.radfed(fraction=0.5, hops=3, batch=16), small_islands(6), model=network, ending=ap.Ending(rounds=6)
    )
    assert run.traffic["train up models"] == 6 * 3
    assert run.traffic["train up bytes"] == 18 * ALL
    assert run.traffic["train down models"] <= 18, "a model may stay where it is"


# ------------------------------------------------------------------------------------------ tasks without an answer


def test_bytes_of_lost_tasks_are_counted() -> None:
    run = ap.simulate(
        ap.fedavg(batch=16),
        small_islands(4),
        model=network,
        fleet=ap.Fleet(ap.Group("all", 4, drop_rate=0.3)),
        ending=ap.Ending(rounds=8),
    )
    lost = len(run.refusals)
    assert lost > 3
    # a round in which all are lost changes nothing, so nothing is sent again
    assert len(run.commits) == 8
    assert run.traffic["train down bytes"] == 32 * ALL
    assert run.traffic["train up bytes"] == (32 - lost) * ALL


@pytest.mark.parametrize("loss", [0.0, 0.5])
def test_bytes_of_cancelled_tasks_are_counted(loss: Any) -> None:
    """The model went down before the deadline, whatever became of it then."""
    run = ap.simulate(
        ap.fedavg(batch=16, deadline=0.1),
        small_islands(4),
        model=network,
        fleet=ap.Fleet(ap.Group("fast", 2), ap.Group("slow", 2, train_seconds=0.1, drop_rate=loss)),
        ending=ap.Ending(rounds=3),
    )
    assert [record.reason for _, record in run.refusals] == ["cancelled"] * 6
    assert run.traffic["train up bytes"] == 6 * ALL
    assert run.traffic["train down bytes"] == 12 * ALL


def test_bytes_of_tasks_whose_learner_left_are_counted() -> None:
    simulator = begun(
        ap.fedavg(batch=16),
        small_islands(4),
        model=network,
        fleet=ap.Fleet(ap.Group("all", 4, train_seconds=0.1, up=1.0, down=0.5)),
        ending=ap.Ending(rounds=10),
    )
    ledger = Ledger(simulator)
    simulator.run()
    run = finished(simulator)
    assert any(record.reason == "left" for _, record in run.refusals)
    assert run.traffic["train up bytes"] == sum(sum(sent) for sent in ledger.up.values())
    assert run.traffic["train down bytes"] == sum(sum(received) for received in ledger.down.values())


def test_bytes_of_lost_opinions_are_counted() -> None:
    run = ap.simulate(
        ap.sync_dvw(batch=16, epochs=1),
        small_islands(4),
        fleet=ap.Fleet(ap.Group("all", 4, drop_rate=0.3)),
        ending=ap.Ending(rounds=5),
    )
    size = run.layout.bytes(range(len(run.layout.layers)))
    asked = 3 * len(run.cycles)
    assert run.traffic["evaluate down bytes"] == asked * size
    assert run.traffic["evaluate down models"] == asked


@dataclass(frozen=True)
class Asking(ap.Weighting):
    """Asks these sites to try the update on their test parts, as a user may write a weighting."""

    sites: tuple[str, ...]

    def ask(self, view: View, update: Update) -> list[EvidenceRequest]:
        return [EvidenceRequest(self.sites, Score("test"))]

    def weigh(self, view: View, update: Update) -> float | None:
        opinions = update.answers(Score("test"))
        return None if None in opinions else float(len(opinions))


def test_home_among_the_sites_costs_nothing_and_the_others_do() -> None:
    run = ap.simulate(
        replace(ap.fedavg(batch=16), weighting=Asking((HOME, "01"))),
        small_islands(2),
        model=network,
        ending=ap.Ending(rounds=1),
    )
    # of the two updates one is 01's own, which it has at hand
    assert run.traffic["evaluate down bytes"] == ALL
    assert run.traffic["evaluate down models"] == 1


def test_home_may_be_asked_where_learners_have_private_layers() -> None:
    algorithm = replace(ap.hdafl(batch=16), weighting=Asking((HOME, "00", "01")))
    run = ap.simulate(algorithm, small_islands(2), model=network, ending=ap.Ending(rounds=2))
    assert len(run.commits) == 2


def test_a_site_that_is_asked_twice_does_not_end_the_run() -> None:
    run = ap.simulate(
        replace(ap.fedavg(batch=16), weighting=Asking(("01", "01"))), small_islands(2), ending=ap.Ending(rounds=1)
    )
    assert len(run.commits) == 1


def test_traffic_only_grows() -> None:
    run = ap.simulate(
        ap.async_dvw(batch=16, at_most=3), islands(4), fleet=ap.Fleet(fast=2, slow=2), ending=ap.Ending(rounds=3)
    )
    before: dict[str, int] = {}
    for _, commit in run.commits:
        assert all(commit.traffic[kind] >= n for kind, n in before.items())
        assert sum(commit.traffic.values()) > sum(before.values())
        before = commit.traffic
    assert run.traffic == before
    assert Layout.of(small_mlp()).size * 4 == run.traffic["train up bytes"] // run.traffic["train up models"]


def test_bytes_are_told_by_layer_too() -> None:
    """What the layers moved adds up to what the tasks did, in a run whose tasks are all answered."""
    run = ap.simulate(ap.sync_dvw(batch=16, epochs=1), small_islands(4), model=network, ending=ap.Ending(rounds=3))
    for kind in ("train down", "train up", "evaluate down"):
        assert set(run.layers[kind]) == {"fc1", "fc2", "head"}
        assert sum(run.layers[kind].values()) == run.traffic[f"{kind} bytes"]
    assert run.layers["train up"] == {"fc1": 12 * FC1, "fc2": 12 * FC2, "head": 12 * HEAD}
    plu = ap.simulate(
        ap.plu(buffer=4, period=1, last=0, deep=("head",), batch=16),
        small_islands(4),
        model=network,
        ending=ap.Ending(commits=3),
    )
    assert plu.layers["train up"] == {"fc1": 12 * FC1, "fc2": 12 * FC2, "head": 4 * HEAD}, "the first period sends all"

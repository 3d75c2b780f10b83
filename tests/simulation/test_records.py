"""Records are consistent with each other and with what happened."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.binding import Binding
from archipel.core.records import Committed, Divergence, Handed, Membership, Probed, Refused, Returned, Scores, Shadow
from archipel.core.types import Event, Trained
from archipel.models import mlp, small_cnn, small_mlp
from archipel.simulation.divergences import ShadowRun, divergence_between
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.simulation.engine_cases import begun, images, islands, regression, small_islands
from tests.watching import Watching
from tests.ways import CHOSEN

RUNS = {
    "fedavg": ap.fedavg(fraction=0.5, batch=16),
    "fedasync": ap.fedasync(batch=16),
    "async_dvw": ap.async_dvw(batch=8, at_most=4, recall_after=2),
    "fed2a": ap.fed2a(buffer=2, batch=16, period=3, last=1),
    "radfed": ap.radfed(fraction=0.5, hops=3, batch=16),
    "divide_and_conquer": ap.divide_and_conquer(prepass=2, epochs=1, tuning_epochs=1, rate=0.05, batch=16),
    "hdafl": ap.hdafl(batch=16),
}


def run(name: str, rounds: int = 6, **settings: Any) -> ap.Run:
    return ap.simulate(
        RUNS[name],
        islands(6, sizes=(60, 50, 40, 30, 20, 10), classes=3),
        **{
            "fleet": ap.Fleet(ap.Group("fast", 3, drop_rate=0.05), ap.Group("slow", 3, train_seconds=0.1)),
            "ending": ap.Ending(rounds=rounds),
            **settings,
        },
    )


# --------------------------------------------------------------------------------------------------- what is told


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_record_is_where_it_should_be(name: str) -> None:
    ended = run(name, shadow=name in ("fedavg", "radfed"))
    kinds = {type(stamped.record) for stamped in ended.records}
    expected = {Membership, Handed, Returned, Committed, Scores}
    if name == "divide_and_conquer":
        expected.add(Divergence)
    if name in ("fedavg", "radfed"):
        expected |= {Shadow, Divergence}
    if name == "async_dvw":
        expected.add(Probed)
    assert kinds - {Refused} == expected
    times = [stamped.time for stamped in ended.records]
    assert times == sorted(times)
    assert ended.seconds == times[-1]
    assert [record for _, record in ended.of(Committed)] == [record for _, record in ended.commits]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_commits_fit_the_tasks_they_are_made_of(name: str) -> None:
    ended = run(name)
    handed = {record.task: (time, record) for time, record in ended.of(Handed)}
    returned = {record.task: (time, record) for time, record in ended.cycles}
    refused = {record.task for _, record in ended.refusals}
    layers = len(ended.layout.layers)
    committed_steps = [0]
    applied: list[int] = []
    for number, (time, commit) in enumerate(ended.commits, start=1):
        assert commit.version == number
        made = len(commit.tasks)
        assert made > 0
        for row in (commit.learners, commit.paths, commit.weights, commit.stale_versions, commit.stale_steps):
            assert len(row) == made
        assert all(len(weights) == layers and min(weights) >= 0 for weights in commit.weights)
        assert commit.layers == tuple(sorted(set(commit.layers)))
        steps = 0
        for task, learner, path, versions, stale in zip(
            commit.tasks, commit.learners, commit.paths, commit.stale_versions, commit.stale_steps, strict=True
        ):
            assert task not in refused
            came, record = returned[task]
            given, order = handed[task]
            assert given <= came <= time
            assert record.learner == order.learner == learner == path[-1]
            assert record.version == order.version
            assert versions == number - 1 - order.version
            # under Relay the steps of a slot add up, hop by hop since the last commit
            along = [
                other.steps
                for _, other in returned.values()
                if other.version == order.version and handed[other.task][1].slot == order.slot and other.task <= task
            ]
            assert name != "radfed" or len(along) == len(path)
            mine = sum(along) if name == "radfed" else record.steps
            assert stale == committed_steps[-1] - committed_steps[order.version] + mine
            steps += mine
        applied += commit.tasks
        committed_steps.append(committed_steps[-1] + steps)
    assert len(applied) == len(set(applied)), "an update was applied twice"
    assert set(handed) >= set(returned) | refused
    assert not set(returned) & refused
    assert [commit.rounds for _, commit in ended.commits] == sorted(commit.rounds for _, commit in ended.commits)
    assert ended.commits[-1][1].rounds >= 6


@pytest.mark.parametrize("name", ["fedavg", "hdafl", "divide_and_conquer"])
def test_a_synchronous_update_is_never_stale(name: str) -> None:
    for _, commit in run(name).commits:
        assert set(commit.stale_versions) == {0}


def test_weights_are_what_the_weighting_gave() -> None:
    ended = run("fedavg")
    sizes: dict[str, Any] = dict(zip(("00", "01", "02", "03", "04", "05"), (60, 50, 40, 30, 20, 10), strict=True))
    for _, commit in ended.commits:
        assert commit.weights == tuple((float(sizes[name]),) * 2 for name in commit.learners)
    for _, commit in run("fedasync").commits:
        (versions,), (weights,) = commit.stale_versions, commit.weights
        assert weights == pytest.approx([(versions + 1) ** -0.5] * 2)


def test_rounds_of_a_stream_count_as_many_tasks_as_there_are_learners() -> None:
    """Tasks that were committed or wasted: a stream whose updates are all refused has to end too."""
    settled = 0
    for stamped in run("fedasync").records:
        settled += isinstance(stamped.record, Committed | Refused)
        if isinstance(stamped.record, Committed):
            assert stamped.record.rounds == settled // 6
    assert settled > 12


def test_the_score_of_a_version_is_the_score_of_its_model() -> None:
    data = islands(4)
    ended = ap.simulate(ap.fedavg(epochs=2), data, ending=ap.Ending(rounds=5))
    assert [record.version for _, record in ended.scores] == [0, 1, 2, 3, 4, 5]
    _, last = ended.scores[-1]
    module = small_mlp()
    module.load_state_dict(ended.state_dict())
    with torch.no_grad():
        outputs = module(data.x[data.test])
    assert last.examples == len(data.test)
    assert last.metrics["accuracy"] == float((outputs.argmax(dim=1) == data.y[data.test]).double().mean())
    assert last.metrics["loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, data.y[data.test])))
    assert ended.score == last.metrics["accuracy"]
    assert f"{ended.score:.4f}" in ended.summary()


def test_a_network_with_batch_norm_loads_too() -> None:
    data = images(small_islands(3))

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))

    ended = ap.simulate(ap.fedavg(batch=8), data, model=make, ending=ap.Ending(rounds=2))
    module = make()
    missing = module.load_state_dict(ended.state_dict())
    assert not missing.missing_keys
    assert int(module.get_buffer("1.num_batches_tracked")) == 10  # 40 examples in batches of 8, twice
    module.eval()
    with torch.no_grad():
        found = float((module(data.x[data.test]).argmax(dim=1) == data.y[data.test]).double().mean())
    assert ended.score == pytest.approx(found, abs=1e-9)


def test_a_network_with_a_shared_weight_loads_too() -> None:
    def make() -> nn.Module:
        first, second = nn.Linear(64, 64), nn.Linear(64, 64)
        second.weight = first.weight
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, 10))

    ended = ap.simulate(ap.fedavg(batch=8), small_islands(2), model=make, execution="plain", ending=ap.Ending(rounds=1))
    module = make()
    assert not module.load_state_dict(ended.state_dict()).missing_keys


def test_a_summary_of_a_regression_calls_the_lowest_loss_best() -> None:
    ended = ap.simulate(ap.fedavg(batch=8), regression(), model=lambda: nn.Linear(5, 1), ending=ap.Ending(rounds=4))
    losses = [record.metrics["loss"] for _, record in ended.scores]
    assert losses == sorted(losses, reverse=True)
    assert ended.metric == "loss"
    assert f"loss {losses[-1]:.4f} over the last fifth of 4 local rounds (last version {losses[-1]:.4f}, best " in (
        ended.summary()
    )


def test_the_summary_tells_what_happened() -> None:
    ended = run("fedavg")
    first, counts, traffic, end = ended.summary().splitlines()
    final, last = sum(scores.metrics["accuracy"] for _, scores in ended.scores[-2:]) / 2, ended.score
    assert first.startswith(
        f"fedavg: accuracy {final:.4f} over the last fifth of 6 local rounds (last version {last:.4f}, best "
    )
    assert counts == (
        f"  6 commits, 6 local rounds in {ended.seconds:,.1f} s, 18 tasks handed out, {len(ended.refusals)} not applied"
    )
    assert traffic.startswith(f"  {18 + len(ended.cycles)} models moved: ")
    assert end == f"  ended because 6 local rounds made; executed {CHOSEN}; model {ended.fingerprint()}"


# ----------------------------------------------------------------------------------------- Metis figs. 3 and 4


def test_validation_cycles() -> None:
    ended = run("async_dvw", rounds=8)
    cycles = [record for _, record in ended.cycles]
    assert len(cycles) > 40
    for record in cycles:
        assert record.epochs == int(record.epochs) <= 4
        assert len(record.losses) == record.epochs + 1
        falls = [after < before for before, after in pairwise(record.losses)]
        if not record.recalled and record.epochs < 4:
            # the first failure after one tombstone ends the cycle
            assert falls.count(False) == 2
            assert not falls[-1]
        else:
            assert falls.count(False) <= 2
    assert any(record.recalled for record in cycles), "somebody should be recalled by staleness"
    assert {record.epochs for record in cycles} > {2.0}, "cycles should differ in length"


def test_a_cycle_tells_the_losses_of_its_own_model() -> None:
    """The loss before the first epoch is that of the received model on the learner's own validation part."""
    simulator = begun(
        ap.async_dvw(batch=8, at_most=3), islands(4, classes=3), validation=0.3, ending=ap.Ending(commits=1)
    )
    work, begin = simulator.context, simulator.controller.models.read("v0").clone()
    simulator.run()
    (_, first), *_ = finished(simulator).cycles
    own = simulator.sites[first.learner].learner.validation
    with torch.no_grad():
        outputs = torch.func.functional_call(work.module, work.layout.tensors(begin), (work.x[own],))
    assert first.version == 0
    assert first.losses[0] == pytest.approx(float(nn.functional.cross_entropy(outputs, work.y[own])), rel=1e-5)


def test_staleness_of_each_learner() -> None:
    ended = run("fedasync", rounds=10)
    staleness = ended.staleness()
    assert sorted(staleness) == ["00", "01", "02", "03", "04", "05"]
    assert sum(map(len, staleness.values())) == len(ended.commits)
    by_hand = [
        steps
        for _, commit in ended.commits
        for name, steps in zip(commit.learners, commit.stale_steps, strict=True)
        if name == "01"
    ]
    assert staleness["01"] == by_hand
    fast, slow = (
        sum(map(sum, mine)) / sum(map(len, mine))
        for mine in ([staleness["00"], staleness["02"]], [staleness["01"], staleness["03"]])
    )
    assert slow > 2 * fast, "while a slow learner trains, others commit"


# -------------------------------------------------------------------------------------------- D&C figs. 5 and 7


class Witness(Watching):
    """An observer that keeps the local models as they arrive, commit by commit."""

    def __init__(self) -> None:
        self.batches: list[list[Tensor]] = [[]]

    def before(self, simulator: Simulator, event: Event) -> None:
        if isinstance(event, Trained):
            self.batches[-1].append(simulator.controller.models.read(event.model).clone())

    def after(self, simulator: Simulator, commands: Any) -> list[Shadow]:
        if len(self.batches) <= simulator.controller.state.version:
            self.batches.append([])
        return []


@pytest.mark.parametrize("kind", ["cosine", "euclidean"])
def test_divergence_of_layers_by_hand(kind: Any) -> None:
    algorithm = ap.divide_and_conquer(
        prepass=2, epochs=1, tuning_epochs=1, rate=0.05, batch=16, split="fc2", divergence=kind
    )
    simulator = begun(algorithm, small_islands(3, classes=3), model=lambda: mlp(64, 10), ending=ap.Ending(rounds=4))
    witness = Witness()
    simulator.observers = (witness,)
    simulator.run()
    ended = finished(simulator)
    notes = [record for _, record in ended.divergences]
    assert [record.version for record in notes] == [1, 2, 3, 4]
    assert all(record.names == ("fc1", "fc2", "head") and record.kind == kind for record in notes)
    assert {record.split for record in notes} == {"head"}
    sent = [{"fc1", "fc2", "head"}, {"fc1", "fc2", "head"}, {"fc1", "fc2"}, {"head"}]
    for record, local, travelled in zip(notes, witness.batches, sent, strict=False):
        assert len(local) == 3
        for layer, value in zip(ended.layout.layers, record.values, strict=True):
            if layer.name not in travelled:
                assert math.isnan(value)
                continue
            rows = [vector[layer.start : layer.stop].double() for vector in local]
            pairs = []
            for a, b in combinations(rows, 2):
                cosine = 1 - float(a @ b / (a.norm() * b.norm()))
                pairs.append(float((a - b).norm() / a.norm()) if kind == "euclidean" else cosine / float(a.norm()))
            assert value == pytest.approx(sum(pairs) / 3, rel=1e-6)


def test_the_split_is_told_once_it_is_found() -> None:
    notes = [record for _, record in run("divide_and_conquer").divergences]
    assert notes[0].split is None
    assert len({record.split for record in notes[1:]}) == 1
    assert notes[1].split in ("fc1", "head")


# ---------------------------------------------------------------------------------------------- RADFed's DC and DL


def shadowed(algorithm: ap.Algorithm, data: ap.data.Islands, **settings: Any) -> tuple[ap.Run, Witness]:
    simulator = begun(algorithm, data, shadow=True, **settings)
    simulator.observers = (*simulator.observers, witness := Witness())
    simulator.run()
    return finished(simulator), witness


def test_divergence_between_local_models_by_hand() -> None:
    a, b, c = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([3.0, 3.0])
    half = 1 - math.sqrt(0.5)
    assert divergence_between([a, b, c]) == pytest.approx((1 + half + half) / 3)
    assert divergence_between([a, a * 5]) == pytest.approx(0)
    assert divergence_between([a]) is None
    assert divergence_between([]) is None


def test_dl_of_a_run_by_hand() -> None:
    ended, witness = shadowed(ap.fedavg(batch=16), small_islands(4, classes=2), ending=ap.Ending(rounds=3))
    shadows = [record for _, record in ended.shadows]
    assert [record.rounds for record in shadows] == [1, 2, 3]
    for record, local in zip(shadows, witness.batches, strict=False):
        assert len(local) == 4
        pairs = [
            1 - float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))
            for a, b in combinations(local, 2)
        ]
        assert record.dl == pytest.approx(sum(pairs) / 6, rel=1e-6)


def test_dc_is_zero_when_the_federation_is_one_learner() -> None:
    """Its data are all the data; only the order of the batches differs, and with one batch there is none."""
    with pytest.warns(ap.ArchipelWarning, match="a batch of 500"):
        ended, _ = shadowed(ap.fedavg(batch=500), small_islands(1), ending=ap.Ending(rounds=3))
    shadows = [record for _, record in ended.shadows]
    assert [record.dl for record in shadows] == [None, None, None]
    assert [record.dc for record in shadows] == pytest.approx([0, 0, 0], abs=1e-6)


def test_dc_of_a_run_by_hand() -> None:
    data = small_islands(4, classes=2)
    with pytest.warns(ap.ArchipelWarning, match="a batch of 500"):
        ended, _ = shadowed(ap.fedavg(batch=500, rate=0.2), data, ending=ap.Ending(rounds=1))
    simulator = begun(ap.fedavg(), data)  # the same seed, so the same first model
    module = simulator.context.module
    module.zero_grad()
    together = torch.cat([island.train for island in data.learners])
    nn.functional.cross_entropy(module(data.x[together]), data.y[together]).backward()
    parameters = torch.cat([p.detach().flatten() for p in module.parameters()])
    gradient = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    central = parameters - 0.2 * gradient
    (_, record), *_ = ended.shadows
    assert record.dc == pytest.approx(float((ended.model - central).norm() / central.norm()), abs=1e-6)


@pytest.mark.slow
def test_a_shadow_changes_nothing_but_the_records() -> None:
    data = small_islands(4)
    settings: dict[str, Any] = {"ending": ap.Ending(rounds=6)}
    for algorithm in (ap.fedavg(batch=16), ap.radfed(0.5, 3, batch=16), ap.async_fedavg(batch=16)):
        with_shadow = ap.simulate(algorithm, data, shadow=True, **settings)
        without = ap.simulate(algorithm, data, **settings)
        assert with_shadow.fingerprint() == without.fingerprint()
        kept = [stamped for stamped in with_shadow.records if not isinstance(stamped.record, Shadow | Divergence)]
        assert repr(kept) == repr(list(without.records))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        ap.fedavg(batch=16),
        ap.sync_dvw(batch=16, epochs=1),
        ap.rce(buffer=4, batch=16),
        ap.radfed(0.5, 3, batch=16),
        replace(ap.radfed(0.5, 3, batch=16), weighting=ap.ByDistributedValidation()),
    ],
    ids=lambda algorithm: f"{algorithm.name} {type(algorithm.weighting).__name__}",
)
def test_every_commit_has_its_dc(algorithm: Any) -> None:
    """Also where opinions are gathered between the last update and the commit."""
    ended = ap.simulate(algorithm, small_islands(4), shadow=True, ending=ap.Ending(rounds=6))
    with_dc = [record for _, record in ended.shadows if record.dc is not None]
    assert len(with_dc) == len(ended.commits)
    assert len(ended.shadows) == 6, "one record a local round"


@pytest.mark.slow
def test_dl_grows_between_the_aggregations_of_a_relay() -> None:
    """On digits where everybody holds three classes; RADFed fig. 4 (the numbers are of this seed)."""
    hops = 6
    ended = ap.simulate(
        ap.radfed(fraction=0.5, hops=hops, batch=16),
        islands(10, classes=3),
        shadow=True,
        ending=ap.Ending(rounds=5 * hops),
    )
    dl = [record.dl for _, record in ended.shadows if record.dl is not None]
    assert len(dl) == 5 * hops
    first = sum(dl[::hops]) / 5
    last = sum(dl[hops - 1 :: hops]) / 5
    assert last > 1.5 * first


@pytest.mark.slow
def test_dc_is_told_for_a_relay_and_for_fedavg(record_property: Any) -> None:
    """RADFed claims a smaller DC than FedAvg's; which is smaller on digits is reported, not asserted."""
    data = islands(10, classes=3)
    for algorithm in (ap.radfed(fraction=0.5, hops=6, batch=16), ap.fedavg(fraction=0.5, batch=16)):
        ended = ap.simulate(algorithm, data, shadow=True, ending=ap.Ending(rounds=12))
        dc = [record.dc for _, record in ended.shadows if record.dc is not None]
        assert len(dc) == len(ended.commits)
        assert all(math.isfinite(value) and value > 0 for value in dc)
        record_property(f"DC {algorithm.name}", round(dc[-1], 4))


def test_a_shadow_can_be_saved() -> None:
    simulator = begun(ap.fedavg(batch=16), small_islands(2), shadow=True)
    simulator.run(events=4)
    (shadow,) = simulator.observers
    assert isinstance(shadow, ShadowRun)
    other = ShadowRun(begun(ap.fedavg(batch=16), small_islands(2)))
    other.load(shadow.save())
    assert torch.equal(other.central, shadow.central)
    assert (other.rounds, len(other.local), other.plan) == (shadow.rounds, len(shadow.local), shadow.plan)


# ------------------------------------------------------------------------------------- private layers, held-out ones


def test_with_private_layers_the_score_is_the_learners_mean() -> None:
    data = islands(4, sizes=(200, 100, 50, 25), classes=3)
    simulator = begun(ap.hdafl(fraction=1.0), data, ending=ap.Ending(rounds=3))
    simulator.run()
    ended = finished(simulator)
    module = simulator.context.module
    accuracies = []
    for island in data.learners:
        own = simulator.sites[island.name].learner.with_private(ended.layout, ended.model)
        Binding(simulator.context.layout, module).bind(own)
        with torch.no_grad():
            guesses = module.eval()(data.x[island.test]).argmax(dim=1)
        accuracies.append(float((guesses == data.y[island.test]).double().mean()))
    _, last = ended.scores[-1]
    assert last.sites == 4
    assert last.examples == sum(len(island.test) for island in data.learners)
    assert len({len(island.test) for island in data.learners}) > 1, "else the mean of learners is that of examples"
    assert ended.score == pytest.approx(sum(accuracies) / 4)


def test_learners_held_out_for_the_test_are_scored_and_never_trained() -> None:
    data = small_islands(5)
    held = tuple(replace(island, role="test") if island.name in ("03", "04") else island for island in data.learners)
    ended = ap.simulate(ap.fedavg(batch=16), replace(data, learners=held), ending=ap.Ending(rounds=2))
    assert {record.learner for _, record in ended.of(Handed)} == {"00", "01", "02"}
    for _, record in ended.scores:
        assert (record.sites, record.examples) == (2, 80)


def test_scores_at_learners_pool_their_examples() -> None:
    data = islands(4, sizes=(200, 100, 50, 25), classes=3)
    pooled, mean = (
        ap.simulate(ap.fedavg(), data, ending=ap.Ending(rounds=2), evaluation=ap.Evaluation(at="learners", mean=how))
        for how in ("examples", "learners")
    )
    assert pooled.fingerprint() == mean.fingerprint()
    assert pooled.score != mean.score


def test_a_target_ends_the_run_and_is_told() -> None:
    ended = ap.simulate(ap.fedavg(epochs=5), islands(4), ending=ap.Ending(rounds=50, target=0.5))
    assert ended.reason == "target 0.5 reached"
    assert ended.score >= 0.5 > ended.scores[-2][1].metrics["accuracy"]


def test_a_network_of_convolutions_tells_its_layers() -> None:
    ended = ap.simulate(
        ap.plu(buffer=2, period=2, last=0, batch=8),
        images(small_islands(2)),
        model=lambda: small_cnn(1, 8),
        ending=ap.Ending(commits=3),
    )
    assert [record.layers for _, record in ended.cycles][:4] == [("conv1", "conv2", "head")] * 4
    assert [commit.layers for _, commit in ended.commits] == [(0, 1, 2), (0, 1, 2), (0, 1)]


def test_a_shadow_tells_the_divergence_of_layers_for_any_method() -> None:
    """D&C fig. 5 for FedAvg: EQ3, the mean over pairs of (1 - cos) / ||W_1||, worked out from one round's updates."""
    data = small_islands(3)
    updates = {}

    class Watch(Watching):
        def before(self, simulator: Any, event: Any) -> None:
            if isinstance(event, Trained):
                updates[event.task] = simulator.controller.models.read(event.model).clone()

    simulator = prepare(ap.fedavg(batch=16), data, shadow=True, ending=ap.Ending(rounds=1))
    simulator.observers = (*simulator.observers, Watch())
    simulator.begin()
    simulator.run()
    ((_, told),) = finished(simulator).divergences
    layer = simulator.context.layout.layers[0]
    a, b, c = (updates[task][layer.start : layer.stop].double() for task in sorted(updates))
    pairs = [(1 - float(p @ q / (p.norm() * q.norm()))) / float(p.norm()) for p, q in ((a, b), (a, c), (b, c))]
    assert told.values[0] == pytest.approx(sum(pairs) / 3)
    assert told.split is None


def test_a_run_that_commits_nothing_still_tells_what_it_moved() -> None:
    ended = ap.simulate(ap.fedavg(rate=1e30, batch=16), small_islands(3), ending=ap.Ending(rounds=4))
    assert not ended.commits
    assert ended.rounds == 4
    assert ended.traffic["train up models"] == 4 * 3
    assert "4 local rounds" in ended.summary()


def test_an_ending_that_cannot_come_gives_up() -> None:
    ended = ap.simulate(ap.fedavg(rate=1e30, batch=16), small_islands(3), ending=ap.Ending(commits=2))
    assert ended.reason.startswith("no new version came of 100 attempts in a row")
    assert ended.rounds == 100


def test_a_relay_may_have_more_hops_than_tries_may_be_in_vain() -> None:
    ended = ap.simulate(ap.radfed(0.4, hops=120, batch=16), small_islands(3), ending=ap.Ending(commits=2))
    assert len(ended.commits) == 2
    assert ended.rounds == 240


@pytest.mark.slow
def test_a_server_optimiser_takes_statistics_as_they_are() -> None:
    """Momentum on a running variance would make it negative: statistics are averaged, not stepped."""
    data = images(small_islands(3))
    algorithm = replace(ap.fedavg(batch=16), server=ap.Momentum(1.0, 0.9))
    ended = ap.simulate(
        algorithm, data, model=lambda: ap.models.small_resnet(in_channels=1), ending=ap.Ending(rounds=6)
    )
    for layer in ended.layout.layers:
        for entry in layer.entries:
            if entry.name.endswith("running_var"):
                assert (ended.model[entry.start : entry.stop] > 0).all()
            if entry.name.endswith("num_batches_tracked"):
                assert ended.model[entry.start] > 0


def test_private_layers_are_scored_where_they_are() -> None:
    data = islands(10).folds(5)[0].islands.with_own_test(0.3)
    ended = ap.simulate(ap.hdafl(batch=16), data, ending=ap.Ending(rounds=2))
    assert ended.scores[-1][1].sites == sum(island.role == "train" for island in data.learners)
    with pytest.raises(ValueError, match=r"hdafl has private layers.*scored at 'home'"):
        ap.simulate(ap.hdafl(batch=16), islands(4), evaluation=ap.Evaluation(at="home"))

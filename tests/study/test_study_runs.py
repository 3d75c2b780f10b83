"""Studies that run: in one process or several, interrupted and resumed, failed and repeated, tuned."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import archipel as ap
from archipel.core.records import Scores, Stamped
from archipel.runs.run import Run
from archipel.storage.lock import alone_in
from archipel.study import execute as executing
from archipel.study import load_results, read_study, run_study
from archipel.study.execute import RunJob, RunNotice, RunProgress, execute
from archipel.study.files import study_of
from archipel.study.grid import GridCell, cells
from archipel.study.results import Results, Watcher
from archipel.study.schema import Study
from archipel.study.worker_pool import Broke, Ended, Message
from archipel.trackers import TRACKERS
from tests.forked import forked_workers as forked_workers

SHORT = ["ending={rounds=3}", "evaluation={at='learners', mean='learners'}"]


def study(*changes: str, algorithms: Sequence[str] = ("fedavg", "async_dvw", "hdafl")) -> Study:
    return read_study(algorithms=algorithms, changes=[*SHORT, *changes])


def bits(results: Sequence[Run]) -> list[tuple[str, int, str, str]]:
    return [(run.name, run.seed, run.fingerprint(), repr(run.records)) for run in results]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_study(study("seeds=[0,1]"), tmp_path_factory.mktemp("results") / "here", processes=1)


# --------------------------------------------------------------------------------------------- what a study leaves


@pytest.mark.slow
def test_a_runs_folder_holds_all_of_it(done: Results) -> None:
    assert [(run.name, run.seed) for run in done] == [
        *(("fedavg", 0), ("fedavg", 1), ("async_dvw", 0), ("async_dvw", 1), ("hdafl", 0), ("hdafl", 1))
    ]
    folder = done.folder / "hdafl" / "seed-1"
    assert {path.name for path in folder.iterdir()} == {
        *("study.toml", "split.safetensors", "checkpoint.safetensors", "run.json", "records.jsonl", "records.parquet"),
        *("model.safetensors", "model.pt", "private.safetensors", "records-0.jsonl"),  # the last are the checkpoint's
    }
    told = json.loads((folder / "run.json").read_text())
    assert told["seed"] == 1
    assert told["versions"]["torch"] == version("torch")
    assert told["fingerprint"] == done[5].fingerprint()


@pytest.mark.slow
def test_a_runs_own_study_gives_the_same_bits(done: Results, tmp_path: Path) -> None:
    for run, place in ((done[1], "fedavg/seed-1"), (done[2], "async_dvw/seed-0")):
        (again,) = run_study(done.folder / place / "study.toml", tmp_path / place)
        assert bits([again]) == bits([run])


@pytest.mark.slow
def test_the_split_that_was_saved_gives_the_same_bits(done: Results, tmp_path: Path) -> None:
    path = done.folder / "fedavg" / "seed-1" / "split.safetensors"
    given = study(f"data={{source='digits', split_file='{path}'}}", "seeds=1", algorithms=["fedavg"])
    (again,) = run_study(given, tmp_path / "again")
    assert bits([again]) == bits([done[1]])


@pytest.mark.slow
def test_it_is_what_simulate_gives(done: Results) -> None:
    data = ap.data.digits().split(learners=10, sizes="powerlaw", classes=3, seed=1)
    run = ap.simulate(
        ap.fedavg(epochs=2, batch=16, rate=0.1, momentum=0.0),
        data,
        seed=1,
        fleet=ap.Fleet(fast=5, slow=5),
        ending=ap.Ending(rounds=3),
        evaluation=ap.Evaluation(at="learners", mean="learners"),
    )
    assert bits([run]) == bits([done[1]])


@pytest.mark.slow
def test_results_load_and_go_into_a_table_with_one_call(done: Results) -> None:
    loaded = load_results(done.folder)
    assert bits(loaded) == bits(done)
    assert bits(load_results(done.folder / "fedavg" / "seed-0")) == bits(done[:1])
    table = loaded.to_pandas(Scores)
    mine = table[(table.method == "async_dvw") & (table.seed == 1)]
    assert mine["metrics.accuracy"].tolist() == [scores.metrics["accuracy"] for _, scores in done[3].scores]
    assert mine["time"].tolist() == [time for time, _ in done[3].scores]
    with pytest.raises(ValueError, match=r"neither a study's results nor a run"):
        load_results(done.folder / "fedavg")


@pytest.mark.slow
def test_records_read_alike_from_json_lines_and_parquet(done: Results) -> None:
    from pyarrow import parquet

    folder = done.folder / "async_dvw" / "seed-0"
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    table = parquet.read_table(folder / "records.parquet").to_pylist()
    assert len(lines) == len(table) == len(done[2].records)
    for line, row in zip(lines, table, strict=True):
        assert (line["time"], line["record"]) == (row["time"], row["record"])
        if line["record"] == "Committed":
            assert line["stale_steps"] == row["stale_steps"]
            assert line["traffic"]["train up bytes"] == row["traffic.train up bytes"]


@pytest.mark.slow
def test_the_model_loads_with_torch_alone(done: Results, tmp_path: Path) -> None:
    """In a process that does not have Archipel: the user's own module, the plain state_dict."""
    program = f"""
import sys
import torch
from torch import nn
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
plain = torch.load({str(done.folder / "fedavg" / "seed-0" / "model.pt")!r}, weights_only=True)
net.load_state_dict(dict(zip(net.state_dict(), plain.values(), strict=True)))
print(sum(float(p.double().sum()) for p in net.parameters()))
assert not any(name.startswith("archipel") for name in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    model = done[0].state_dict()
    assert float(ran.stdout) == pytest.approx(sum(float(tensor.double().sum()) for tensor in model.values()))
    saved = load_file(done.folder / "fedavg" / "seed-0" / "model.safetensors")
    assert saved.keys() == model.keys()
    assert all(torch.equal(saved[name], model[name]) for name in model)


@pytest.mark.slow
def test_private_layers_are_saved_for_each_learner(done: Results) -> None:
    run = load_results(done.folder)[4]
    heads = {learner: run.state_dict(learner)["head.weight"] for learner in run.private}
    assert len(heads) > 5
    assert len({tuple(head.flatten().tolist()) for head in heads.values()}) == len(heads)
    for learner, kept in done[4].private.items():
        assert all(torch.equal(kept[name], run.private[learner][name]) for name in kept)
    with pytest.raises(ValueError, match=r"learner should be one of 00, 01"):
        run.state_dict("nobody")


# -------------------------------------------------------------------------------------------- processes and crashes


@pytest.mark.slow
def test_several_processes_give_the_same_bits(done: Results, tmp_path: Path) -> None:
    results = run_study(study("seeds=[0,1]"), tmp_path / "there", processes=2)
    assert bits(results) == bits(done)
    machine = json.loads((tmp_path / "there" / "machine.json").read_text())
    assert machine["processes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "async_dvw", "hdafl"])
def test_a_run_that_is_stopped_at_every_look_ends_with_the_same_bits(
    method: str, done: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "LOOK", 1e-4)
    (cell,) = cells(study(algorithms=[method]))
    job = RunJob(cell.study.raw, str(tmp_path), {}, {}, None)
    stops, looks = 0, itertools.count(1)
    every = 8 if method == "async_dvw" else 1  # it looks so often that stopping each time would take seconds
    while not execute(job, lambda news: not isinstance(news, RunProgress) or next(looks) % every > 0):
        stops += 1
        assert not (tmp_path / "run.json").exists()
        assert stops < 1000
    assert stops > 2
    assert bits([ap.load_run(tmp_path)]) == bits([run for run in done if (run.name, run.seed) == (method, 0)])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_bits_do_not_depend_on_how_many_runs_there_are(tmp_path: Path) -> None:
    """In plain execution, sums of several threads have other last bits."""
    (tmp_path / "own.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), "
        "nn.Dropout(0.2), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 10))\n"
    )
    changes = [f"folder={tmp_path}", "model='own.py:net'", "ending={rounds=1}", "data.split={learners=10}"]
    changes += ["simulation.execution='plain'", "training.epochs=1"]
    both = run_study(study(*changes, algorithms=["fedavg", "fedprox"]), tmp_path / "both", processes=2)
    (alone,) = run_study(both.folder / "fedavg" / "seed-0" / "study.toml", tmp_path / "alone", processes=1)
    assert alone.execution == "plain"
    assert bits([alone]) == bits(both[:1])


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path / "results"), pytest.raises(ValueError, match="is in use by another process"):
        run_study(study(algorithms=["fedavg"]), tmp_path / "results")
    assert len(run_study(study(algorithms=["fedavg"]), tmp_path / "results")) == 1


@pytest.mark.slow
def test_what_is_done_is_not_done_again(done: Results, tmp_path: Path) -> None:
    class Counting(Watcher):
        begun = -1

        def begin(self, what: str, jobs: Sequence[GridCell]) -> None:
            self.begun = len(jobs)

    watcher = Counting()
    assert bits(run_study(study("seeds=[0,1]"), done.folder, processes=1, watcher=watcher)) == bits(done)
    assert watcher.begun == 0
    with pytest.raises(ValueError, match=r"holds the results of another study"):
        run_study(study(), done.folder)


def test_results_of_other_code_or_data_are_not_taken_for_these(tmp_path: Path) -> None:
    code, rows = tmp_path / "own.py", tmp_path / "rows.csv"
    code.write_text(
        "from archipel.models import mlp\n\n\ndef net(features, classes):\n    return mlp(features, classes)\n"
    )
    rows.write_text("a,y\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    source = "{name='from_csv', path='rows.csv', label='y'}"
    given = study(
        f"folder={tmp_path}",
        f"data={{source={source}, split={{learners=2}}}}",
        *("model='own.py:net'", "fleet=none", "evaluation=none", "training.batch=4"),
        algorithms=["fedavg"],
    )
    folder = tmp_path / "results"
    first = run_study(given, folder)
    assert bits(run_study(given, folder)) == bits(first)
    for path in (code, rows):
        before = path.read_text()
        path.write_text(before + "\n")
        with pytest.raises(ValueError, match=rf"was started with another {path.name}, .* restore the files"):
            run_study(given, folder)
        path.write_text(before)
    assert bits(run_study(given, folder)) == bits(first)


def test_what_changes_between_two_runs_of_one_process_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    code, rows = tmp_path / "own.py", tmp_path / "rows.csv"

    def run(width: int, count: int) -> Run:
        code.write_text(f"from archipel.models import mlp\n\n\ndef net():\n    return mlp(1, 2, [{width}])\n")
        os.utime(code, (0, 0))  # as if all was written within one second, by which Python tells bytecode from old
        rows.write_text("a,y\n" + "".join(f"{n},{n % 2}\n" for n in range(count)))
        given = study(
            f"folder={tmp_path}",
            "data={source={name='from_csv', path='rows.csv', label='y'}, split={learners=2, test='none'}}",
            *("model='own.py:net'", "fleet=none", "evaluation={at='validation parts'}", "training.batch=4"),
            algorithms=["fedavg"],
        )
        return run_study(given, tmp_path / f"{width} {count}", processes=1)[0]

    for width, count in ((4, 40), (8, 40), (8, 60)):
        ran = run(width, count)
        assert ran.layout.size == 2 * width + 2 * width + 2
        scored = ran.scores[-1][1].examples
        assert scored + sum(participant.examples for participant in ran.participants) == count


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("data.split.learners=7", r"Fleet: it has 10 learners .* the data have 7 islands"),
        ("data={source={name='from_csv', path='none.csv', label='y'}, natural={}}", r"there is no file .*none\.csv"),
        ("data.split.test='own(2)'", r"test: own=2.0 is not a fraction"),
        ("training.optimiser=SDG", r"torch.optim has no optimiser 'SDG'"),
        ("evaluation={at='held-out test'}", r"scored at learners held out for test, and there are none"),
    ],
)
def test_mistakes_show_before_anything_is_written(change: str, told: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match=told):
        run_study(study(change, algorithms=["fedavg"]), tmp_path / "results", processes=1)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_broken_run_costs_only_itself(tmp_path: Path) -> None:
    """Of the grid's settings one has fewer learners than the fleet: it is told, and the others end."""
    heard: list[Message] = []

    class Listening(Watcher):
        def hear(self, message: Message) -> None:
            heard.append(message)

    given = study("grid.data.split.learners=[10, 7]", "seeds=[0,1]", algorithms=["fedavg"])
    results = run_study(given, tmp_path / "results", processes=2, watcher=Listening())
    assert [(run.settings, run.seed) for run in results] == [({"data.split.learners": 10}, seed) for seed in (0, 1)]
    lost = "fedavg/data.split.learners=7"
    assert results.unfinished == (f"{lost}/seed-0", f"{lost}/seed-1")
    assert f"2 of 4 runs are not finished: {lost}/seed-0, {lost}/seed-1." in results.notes
    broken = [message for message in heard if isinstance(message, Broke)]
    assert ["the data have 7 islands" in message.reason for message in broken] == [True, True]
    assert len([message for message in heard if isinstance(message, Ended)]) == 2
    assert "Traceback" in (tmp_path / "results" / lost / "seed-0" / "error.txt").read_text()
    with pytest.warns(ap.ArchipelWarning, match=r"seed-[01] failed: Fleet: it has 10 learners"):  # nobody watches
        run_study(given, tmp_path / "results", processes=1)


# ----------------------------------------------------------------------------------------------- grids and tuning


@pytest.mark.slow
def test_a_grid_runs_all_combinations_and_says_which_is_which(tmp_path: Path) -> None:
    given = study("grid={training={rate=[0.1, 0.3]}, fedprox={mu=[0.1, 1]}}", algorithms=["fedavg", "fedprox"])
    found = [(cell.name, dict(cell.settings)) for cell in cells(given)]
    assert found == [
        ("fedavg", {"training.rate": 0.1}),
        ("fedavg", {"training.rate": 0.3}),
        ("fedprox", {"training.rate": 0.1, "fedprox.mu": 0.1}),
        ("fedprox", {"training.rate": 0.1, "fedprox.mu": 1}),
        ("fedprox", {"training.rate": 0.3, "fedprox.mu": 0.1}),
        ("fedprox", {"training.rate": 0.3, "fedprox.mu": 1}),
    ]
    results = run_study(given, tmp_path / "grid", processes=1)
    assert [(run.name, dict(run.settings)) for run in results] == found
    assert "proximal=0.1" not in results[1].algorithm
    assert "rate=0.3" in results[5].algorithm
    assert len({run.fingerprint() for run in results}) == 6


@pytest.mark.slow
def test_folds_are_repetitions(tmp_path: Path) -> None:
    given = study(
        "data.folds={count=3, rotations=1}", "evaluation={at='held-out test'}", "fleet='none'", algorithms=["fedavg"]
    )
    results = run_study(given, tmp_path / "folds", processes=1)
    assert [(run.seed, run.fold, dict(run.settings)) for run in results] == [(0, fold, {}) for fold in range(3)]
    tested = [{p.name for p in run.participants if p.role == "test"} for run in results]
    assert set.union(*tested) == {p.name for p in results[0].participants}
    assert sum(map(len, tested)) == 10  # every learner is once among those it is tested on


@pytest.mark.slow
@pytest.mark.parametrize("folds", [False, True])
def test_tuning_chooses_on_validation_data_and_never_sees_the_test_set(folds: bool, tmp_path: Path) -> None:
    changes = ["tune.training.rate=[0.0001, 0.2]", "seeds=[0,1]", "ending={rounds=5}", "data.split={learners=10}"]
    changes += ["data.folds={count=5, rotations=1}", "data.fold=2"] if folds else ["validation=0.2"]
    changes += [f"evaluation={{at='{'held-out test' if folds else 'home'}'}}"]
    results = run_study(study(*changes, algorithms=["fedavg", "fedprox"]), tmp_path / "tuned", processes=1)
    where = "held-out validation" if folds else "validation parts"
    for method in ("fedavg", "fedprox"):
        tried = {
            rate: [
                ap.load_run(next((tmp_path / "tuned" / "tuning" / method / f"training.rate={rate}").glob(f"seed-{s}*")))
                for s in (0, 1)
            ]
            for rate in (0.0001, 0.2)
        }
        for run in (run for runs in tried.values() for run in runs):
            assert run.scored_at == where
            parts = {
                role: sum(p.examples for p in run.participants if p.role == role) for role in ("train", "validation")
            }
            # all that validation learners have; or what the training learners, who have the rest, have reserved
            expected = parts["validation"] if folds else 1438 - parts["train"]
            assert {scores.examples for _, scores in run.scores} == {expected}
        means = {rate: sum(run.final_score for run in runs) / 2 for rate, runs in tried.items()}
        assert means[0.2] > means[0.0001]
    assert {run.scored_at for run in results} == {"held-out test" if folds else "home"}
    assert {run.tuned["training.rate"] for run in results} == {0.2}
    assert all("rate=0.2" in run.algorithm for run in results)
    words = "validation learners" if folds else "the learners' validation parts"
    assert all(
        f"training.rate = 0.2 chosen of 2 by accuracy on {words}, not on the test set" in n for n in results.notes
    )
    assert len(results.notes) == 2


@pytest.mark.slow
def test_tuned_runs_train_on_all_their_data(tmp_path: Path) -> None:
    """Validation parts are reserved for choosing only: afterwards it is the run that the chosen setting gives."""
    given = study("tune.training.rate=[0.2]", "validation=0.3", algorithms=["fedavg"])
    (run,) = run_study(given, tmp_path / "tuned")
    (plain,) = run_study(study("training.rate=0.2", algorithms=["fedavg"]), tmp_path / "plain")
    assert bits([run]) == bits([plain])


@pytest.mark.slow
def test_a_candidate_that_fails_counts_as_worst(tmp_path: Path) -> None:
    """The fleet has ten learners, so a split among seven fails when it is run."""
    given = study("tune.data.split.learners=[7, 10]", "validation=0.2", algorithms=["fedavg"])
    with pytest.warns(ap.ArchipelWarning, match=r"learners=7/seed-0 failed: Fleet: it has 10 learners"):
        results = run_study(given, tmp_path / "tuned", processes=1)
    assert [run.tuned for run in results] == [{"data.split.learners": 10}]
    assert results.notes == (
        "fedavg: data.split.learners = 10 chosen of 2 by accuracy on the learners' validation parts, not on the test "
        "set. 1 of them failed and counted as worst.",
    )
    assert bits(run_study(given, tmp_path / "tuned", processes=1)) == bits(results), "the choice stays"


def test_tuning_ends_the_study_if_every_candidate_fails(tmp_path: Path) -> None:
    given = study("tune.data.split.learners=[7, 8]", "validation=0.2", algorithms=["fedavg"])
    with (
        pytest.warns(ap.ArchipelWarning, match=r"failed: Fleet: it has 10 learners"),
        pytest.raises(ValueError, match=r"tune: every candidate of fedavg has failed; error\.txt .* tuning/fedavg "),
    ):
        run_study(given, tmp_path / "tuned", processes=1)
    assert "Traceback" in next((tmp_path / "tuned" / "tuning").rglob("error.txt")).read_text()


# ---------------------------------------------------------------------------------------------------------- versions


def test_a_study_resumed_with_other_versions_warns_and_says_so_in_its_notes(tmp_path: Path) -> None:
    given = study(algorithms=["fedavg"])
    first = run_study(given, tmp_path, processes=1)
    machine = json.loads((tmp_path / "machine.json").read_text())
    earlier = {**machine["versions"], "torch": "1.0", "python": "3.0.1"}
    (tmp_path / "machine.json").write_text(json.dumps({**machine, "versions": earlier}))
    assert run_study(given, tmp_path, processes=1).notes == (), "nothing was left to run"
    (tmp_path / "fedavg" / "seed-0" / "run.json").unlink()
    change = rf"python 3\.0\.1, torch 1\.0 and resumed with python .*, torch {re.escape(version('torch'))}"
    with pytest.warns(ap.ArchipelWarning, match=rf"was begun with {change}\. .* install the earlier versions\."):
        again = run_study(given, tmp_path, processes=1)
    assert bits(again) == bits(first)
    (note,) = again.notes
    assert re.search(change, note)
    assert json.loads((tmp_path / "machine.json").read_text()) == machine | {"earlier versions": [earlier]}


# ------------------------------------------------------------------------------------------------ pretrained weights


@pytest.mark.slow
def test_a_study_starts_from_the_users_weights(done: Results, tmp_path: Path) -> None:
    weights = done.folder / "fedavg" / "seed-0" / "model.safetensors"
    changes = ["ending={rounds=1}", "training.rate=1e-30", "model={name='small_mlp'}"]
    (run,) = run_study(study(*changes, f"model.weights={weights}", algorithms=["fedavg"]), tmp_path / "from")
    assert run.scores[0][1].metrics["accuracy"] == done[0].scores[-1][1].metrics["accuracy"]
    torch.testing.assert_close(run.model, done[0].model)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("other.safetensors", r"belongs to another network: .*the file lacks \['fc1.bias'"),
        ("narrow.safetensors", r"expected 'fc1.weight' with shape"),
        ("model.pt", r"should be a safetensors file; .*weights_only=True"),
        ("damaged.safetensors", r"is damaged or not a safetensors file"),
    ],
)
def test_weights_that_do_not_fit_are_refused(name: str, told: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"layer.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    network = ap.models.small_mlp(features=3)
    save_file(network.state_dict(), tmp_path / "narrow.safetensors")
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "model.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"x" * 50)
    given = study("model={name='small_mlp'}", f"model.weights={name}", f"folder={tmp_path}", algorithms=["fedavg"])
    with pytest.raises(ValueError, match=told):
        execute(RunJob(cells(given)[0].study.raw, str(tmp_path / "run"), {}, {}, None), lambda news: True)


def test_a_study_of_plain_data_needs_no_file() -> None:
    raw = {"algorithms": "fedavg", "data": {"source": "digits", "split": {"learners": 3}}}
    assert [cell.name for cell in cells(study_of(raw))] == ["fedavg"]


# ---------------------------------------------------------------------------------------------------------- trackers


class Diary:
    """A tracker that records its calls, or fails by choice."""

    told: ClassVar[list[tuple[str, Any]]] = []
    fails_at = ""

    def begin(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        self.hear("begin", (name, dict(settings)))

    def record(self, stamped: Stamped) -> None:
        self.hear("record", stamped)

    def end(self, run: Run | None) -> None:
        self.hear("end", run)

    def hear(self, what: str, news: Any) -> None:
        if what == self.fails_at:
            raise ConnectionError("the server is gone")
        self.told.append((what, news))


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> type[Diary]:
    monkeypatch.setitem(TRACKERS, "tensorboard", Diary)
    monkeypatch.setattr(Diary, "told", [])
    monkeypatch.setattr(executing, "LOOK", 1e-4)
    return Diary


def test_trackers_hear_a_run_from_its_first_record_on(diary: type[Diary], tmp_path: Path) -> None:
    (cell,) = cells(study("trackers=tensorboard", algorithms=["fedavg"]))
    job = RunJob(cell.study.raw, str(tmp_path / "fedavg" / "seed-0"), {}, {}, None)
    assert not execute(job, lambda news: False)
    assert diary.told[-1] == ("end", None)
    diary.told.clear()
    assert execute(job, lambda news: True)
    (begun, (name, settings)), *records, (ended, run) = diary.told
    assert (begun, name, ended) == ("begin", "digits fedavg seed-0", "end")
    assert settings["training.rate"] == 0.1
    assert settings["algorithms"] == "fedavg"
    assert [record for _, record in records] == list(run.records)


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", ["begin", "record", "end"])
def test_a_tracker_that_fails_costs_no_training(
    fails_at: str, diary: type[Diary], tmp_path: Path, done: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diary, "fails_at", fails_at)
    (cell,) = cells(study("trackers=tensorboard", algorithms=["fedavg"]))
    notes: list[object] = []

    def tell(news: object) -> bool:
        notes.append(news)
        return True

    assert execute(RunJob(cell.study.raw, str(tmp_path), {}, {}, None), tell)
    assert [news.text for news in notes if isinstance(news, RunNotice)] == [
        "tensorboard has stopped receiving this run: the server is gone"
    ]
    assert bits([ap.load_run(tmp_path)]) == bits(done[:1])


def test_trackers_are_told_of_a_run_that_breaks(
    diary: type[Diary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("archipel.simulation.simulator.Simulator.run", broken)
    (cell,) = cells(study("trackers=tensorboard", algorithms=["fedavg"]))
    with pytest.raises(RuntimeError, match="out of memory"):
        execute(RunJob(cell.study.raw, str(tmp_path), {}, {}, None), lambda news: True)
    assert diary.told[-1] == ("end", None)

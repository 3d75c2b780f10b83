"""From a study to the two sides of a real federation: the controller's, and one learner's."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from archipel.assembly.contexts import context_of, learner_of
from archipel.assembly.requirements import evaluation_of
from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.controller import Controller
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.planning import ValidationCycle
from archipel.core.state import State
from archipel.core.types import Consistency, Evaluate, Result
from archipel.data import Island as Part
from archipel.data import Islands
from archipel.data.standardise import Moments, moments, standardised_by
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.terms import Guest, Limits, Terms
from archipel.federation.learner.agent import Island
from archipel.federation.learner.policy import ROWS, Policy
from archipel.federation.security.names import check_name
from archipel.federation.security.revocation import REVOKED, RevocationList
from archipel.federation.security.roles import OperatorRole
from archipel.federation.storage.durable_controller import Book, Course, replay
from archipel.federation.storage.journal import Journal
from archipel.federation.storage.stored_models import StoredModels
from archipel.kernels import kernels
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import consistency, score
from archipel.learner.training import advance
from archipel.runs.run import Run
from archipel.runs.run_data import Participant
from archipel.study.build import Settings, build_algorithm, build_data, build_settings, build_source
from archipel.study.grid import cells
from archipel.study.inputs import hashes
from archipel.study.schema import GuestTable, OperatorTable, Study

UNLISTED = 100
"""Learners there may be where a learner's own copy of the study lists none."""
LOCAL = ("folder", "title", "report", "trackers", "simulation", "fleet", "federation")
"""Sections in which two sides of a federation may differ."""


def one_run(study: Study) -> Study:
    """The one run that a federation makes of a study."""
    runs = cells(study)
    require(
        len(runs) == 1 and not study.tune,
        f"A federation runs one method once, and this study is of {len(runs)} runs"
        f"{' and is to be tuned' if study.tune else ''}. Choose: --algorithm NAME, --set seeds=[0].",
    )
    return runs[0].study


def hashes_of(study: Study) -> dict[str, str]:
    """What both sides have to have alike, section by section: hashes tell which one is not."""
    raw = copy.deepcopy(study.raw)
    source = raw["data"].get("source")
    if isinstance(source, dict):  # everybody has a table of one's own
        for name in ("path", "folder"):
            source.pop(name, None)
    found = {
        f"[{name}]": hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
        for name, value in raw.items()
        if name not in LOCAL
    }
    code = {name: digest for name, digest in hashes(study).items() if name.endswith((".py", ".safetensors"))}
    return found | code


def layout_hash(layout: Layout) -> str:
    told = [[layer.name, [[entry.name, entry.shape] for entry in layer.entries]] for layer in layout.layers]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------ the controller


class Home:
    """The controller's own site: its test set and stimuli, if it has some."""

    def __init__(self, work: TrainingContext, test: Tensor, stimuli: Tensor) -> None:
        self.work = work
        self.test = test
        self.stimuli = stimuli
        self.models: StoredModels | None = None

    def answer(self, command: Evaluate) -> Result:
        assert self.models is not None
        vector = self.models.read(command.model.name)
        probe = command.probe
        if isinstance(probe, Consistency):
            assert command.reference is not None
            reference = self.models.read(command.reference.name)
            return consistency(self.work, vector, reference, self.stimuli, probe.distance)
        return score(self.work, vector, self.test, probe.bins)

    def standardise(self, by: Moments) -> None:
        self.work = replace(self.work, x=standardised_by(self.work.x, by))


@dataclass(frozen=True)
class Hosting:
    """All that the controller's side needs, before anything is opened."""

    study: Study
    algorithm: Algorithm
    layout: Layout
    terms: Terms
    ending: Ending
    evaluation: Evaluation
    seed: int
    initial: Callable[[], Tensor]
    """Makes the model it begins with; needed once, so it is not kept."""
    data: Islands
    work: TrainingContext | None
    """For trying models at home, if the controller has data of its own."""

    def make(self, models: StoredModels, state: State | None) -> Controller:
        return Controller(
            self.algorithm,
            self.layout,
            models,
            ending=self.ending,
            evaluation=self.evaluation,
            learners=self.terms.wait_for,
            seed=self.seed,
            kernels=kernels(),
            classes=self.data.classes,
            most_share=self.terms.limits.most_share,
            initial=self.initial() if state is None else None,
            state=state,
        )

    def open(self, folder: Path, revoked: Path | None = None) -> Federation:
        """The federation in a folder: begun, or taken up where it was; revoked: a list that lies elsewhere."""
        section = self.study.federation
        folder.mkdir(parents=True, exist_ok=True)
        begun = self._as_begun(folder)
        book = Book(
            folder,
            self.layout,
            begun.make,
            snapshot_every=section.snapshot_every,
            keep_updates=section.keep_updates,
            memories=self.algorithm.memories(),
        )
        home = None if self.work is None else Home(self.work, self.data.test, self.data.stimuli)
        if home is not None:
            home.models = book.course.models
        everybodys = self.study.data.standardise == "global"
        return Federation(
            book,
            begun.terms,
            study=hashes_of(self.study),
            layout=layout_hash(self.layout),
            features=tuple(self.data.x.shape[1:]) if everybodys else None,
            home=home,
            revoked=RevocationList(revoked or folder / REVOKED),
        )

    def _as_begun(self, folder: Path) -> Hosting:
        """With what was settled when the state was begun, whatever the list of learners says now.

        A journal told to a controller that begins at another event, or is scored elsewhere, would lead elsewhere.
        """
        journal = Journal(folder / "journal.sqlite")
        try:
            before = journal.fact("begun")
            mine: dict[str, Any] = {
                "study": hashes_of(self.study),
                "scored at": self.evaluation.at,
                "threads": self.study.simulation.threads,
                "wait for": self.terms.wait_for,
                "federation.limits.most_share": self.terms.limits.most_share,
            }
            if before is None:
                with journal.write():
                    journal.settle("begun", json.dumps(mine))
                return self
        finally:
            journal.close()
        theirs = {"federation.limits.most_share": 1.0, **json.loads(before)}  # older states had no limit
        differ = [what for what in mine if what not in ("study", "wait for") and mine[what] != theirs[what]]
        differ += sorted(
            key
            for key in mine["study"].keys() | theirs["study"].keys()
            if mine["study"].get(key) != theirs["study"].get(key)
        )
        require(
            not differ,
            f"The state was begun with another study: they differ in {', '.join(differ)}. Go on with the study it was "
            "begun with, or give another --state.",
        )
        return replace(self, terms=replace(self.terms, wait_for=theirs["wait for"]))

    def replay(self, folder: Path) -> Course:
        """Tell a new controller the whole journal."""
        return replay(folder, self.layout, self._as_begun(folder).make)

    def run(self, federation: Federation) -> Run:
        """What a federation that is over leaves behind: the same as a simulation."""
        state, course = federation.book.controller.state, federation.book.course
        assert course.stopped is not None
        return Run(
            name=self.algorithm.name,
            algorithm=repr(self.algorithm),
            seed=self.seed,
            participants=tuple(
                Participant(name, member.group or "learners", member.role, member.examples or member.test)
                for name, member in sorted(state.members.items())
            ),
            layout=self.layout,
            model=course.models.read(state.model.name),
            private={},
            records=tuple(federation.book.records()),
            seconds=federation.book.time,
            reason=course.stopped,
            execution="federation",
            metric=self.evaluation.metric,
            scored_at=self.evaluation.at,
            scored_mean=self.evaluation.mean,
            rounds=state.rounds,
            budget=self.ending.budget,
            traffic=dict(state.traffic),
            layers={kind: dict(ledger) for kind, ledger in course.moved.items()},
        )


def host(study: Study) -> Hosting:
    """The controller's side of a study."""
    study = one_run(study)
    (seed,) = study.seeds
    algorithm = build_algorithm(study)
    at_home = _data_is_here(study)
    data = build_data(study).split if at_home else _stand_in(study)
    if at_home and study.data.standardise == "local":
        data = data.standardised("local")
    settings = build_settings(study, data)
    work = context_of(data, settings.get("model"), settings.get("loss"), seed, "cpu")
    algorithm.check_network(work.module, work.layout, work.x[:2])
    evaluation = settings.get("evaluation") or _evaluation(algorithm, data, work.layout, at_home)
    require(
        at_home or evaluation.at != "home",
        "The study scores the model at home, and the controller has no test set. Give the study "
        'evaluation.at = "learners", or the controller its data.',
    )
    require(
        not algorithm.needs.stimuli or len(data.stimuli) >= 3,
        f"{algorithm.name} compares layers on stimuli at the controller, and it has {len(data.stimuli)}. Give the "
        "controller data with stimuli.",
    )
    require(
        not algorithm.pooled, f"{algorithm.name} pools all data in one place, which a federation is there to avoid."
    )
    terms = _terms(study, data if at_home else None)
    for planner in algorithm.planners:
        if isinstance(planner, ValidationCycle):
            for guest in terms.learners.values():
                planner.cycle_of(guest.group)  # says so if there are no thresholds for it
    ending = settings.get("ending") or Ending(rounds=20)
    layout = work.layout

    def initial() -> Tensor:
        made = context_of(data, settings.get("model"), settings.get("loss"), seed, "cpu")
        return layout.vector(made.module)

    return Hosting(study, algorithm, layout, terms, ending, evaluation, seed, initial, data, work if at_home else None)


def _evaluation(algorithm: Algorithm, data: Islands, layout: Layout, at_home: bool) -> Evaluation:
    """As in a simulation; without a test set at the controller, pooled from the learners' own test parts."""
    if at_home:
        return evaluation_of(algorithm, data, layout)
    mean: Literal["examples", "learners"] = "learners" if algorithm.private(layout) else "examples"
    return Evaluation(at="learners", mean=mean, metric="loss" if data.classes is None else "accuracy")


def _terms(study: Study, data: Islands | None) -> Terms:
    section = study.federation
    listed: dict[str, Guest] = {}
    for entry in section.learners:
        guest = entry if isinstance(entry, GuestTable) else GuestTable(name=entry)
        check_name("learner", guest.name)
        require(guest.name not in listed, f"federation.learners names {guest.name} twice.")
        listed[guest.name] = Guest(guest.group, guest.role)
    if not listed and data is not None:
        listed = {island.name: Guest("", island.role) for island in data.learners}
    require(
        bool(listed),
        "federation.learners: the controller has no data to tell who takes part. List the learners by the names in "
        'their certificates: learners = ["hospital-1", "hospital-2"].',
    )
    training = sum(guest.role == "train" for guest in listed.values())
    wait_for = section.wait_for or training
    require(wait_for <= training, f"federation.wait_for is {wait_for}, and {training} learners are listed that train.")
    return Terms(
        listed,
        wait_for,
        section.heartbeat,
        section.silence,
        section.task_deadline,
        section.opinion_deadline,
        section.norm_bound,
        Limits(**section.limits.model_dump()),
        _operators(study),
    )


def _operators(study: Study) -> dict[str, OperatorRole]:
    listed: dict[str, OperatorRole] = {}
    for entry in study.federation.operators:
        person = entry if isinstance(entry, OperatorTable) else OperatorTable(name=entry)
        check_name("operator", person.name)
        require(person.name not in listed, f"federation.operators names {person.name} twice.")
        listed[person.name] = person.role
    return listed


def _data_is_here(study: Study) -> bool:
    """Can the study's data be had here? A table that is not there is somebody else's."""
    given = study.data.source.given
    paths = [given[name] for name in ("path", "folder") if name in given]
    return all((Path(study.folder or ".") / path).exists() for path in paths)


def _stand_in(study: Study) -> Islands:
    """Two empty examples in place of data that the controller may not have: enough to see the network fit."""
    section, given = study.federation, study.data.source.given
    shape, classes = section.example, section.classes
    if shape is None and given.get("features") is not None and isinstance(given.get("categories", {}), Mapping):
        kinds = given.get("categories", {})
        shape = (sum(len(kinds[name]) if name in kinds else 1 for name in given["features"]),)
    if classes is None and given.get("classes") is not None:
        classes = len(given["classes"])
    require(
        shape is not None,
        "The study's data are not here, and their shape cannot be told. List the features (and the values of "
        "categories) in data.source, or give federation.example, such as [54].",
    )
    assert shape is not None
    require(
        classes is not None or given.get("regression", False),
        "The study's data are not here, and their classes cannot be told. List them in data.source.classes, or give "
        "federation.classes.",
    )
    y = torch.zeros(2, dtype=torch.float32 if classes is None else torch.int64)
    nothing = torch.empty(0, dtype=torch.int64)
    part = Part("nobody", torch.arange(2), nothing)
    x = torch.zeros(()).expand(2, *shape)  # one zero: an example may be large
    return Islands(x, y, (part,), nothing, nothing, classes, "data elsewhere")


# --------------------------------------------------------------------------------------------------------- a learner


def take_part(study: Study, name: str, table: Path | None = None) -> tuple[Island, Study]:
    """One learner's side of a study: with a table of its own, or with its part of the study's data."""
    study = one_run(study)
    (seed,) = study.seeds
    algorithm = build_algorithm(study)
    data, part = _own_table(study, name, table, seed) if table is not None else _own_part(study, name)
    everybodys = study.data.standardise == "global"
    if not everybodys:
        data = data.standardised(study.data.standardise)
        part = next(island for island in data.learners if island.name == name)
    settings: Settings = build_settings(study, data)
    evaluation = settings.get("evaluation")
    reserve = algorithm.validates or (evaluation is not None and evaluation.validates)
    learner = learner_of(part, data, study.validation if reserve else 0.0, seed)
    work = context_of(data, settings.get("model"), settings.get("loss"), seed, study.simulation.device)
    listed = len(study.federation.learners) or (len(data.learners) if table is None else UNLISTED)
    policy = Policy.of(algorithm, work.layout, evaluation, settings.get("ending") or Ending(rounds=20), listed)
    policy.check_rows(len(learner.train) or len(learner.test))
    if not everybodys:
        return Island(work, learner, policy), study
    x = data.x

    def standardise(by: Moments) -> TrainingContext:
        return replace(work, x=standardised_by(x, by).to(work.x.device))

    return Island(work, learner, policy, moments(x, part.train), standardise), study


def _own_table(study: Study, name: str, table: Path, seed: int) -> tuple[Islands, Part]:
    _same_columns_everywhere(study)
    source = build_source(study, {"path": table.resolve(), "site": None})  # a table of one's own is of one site
    dealing: Any = study.data.split or study.data.natural
    held: Any = "none" if dealing is None else dealing.given().get("test", 0.2)
    if not isinstance(held, str):  # in a simulation that part of everybody's data is at home
        held = "none" if held is None else f"own({held})"
    data = source.split(learners=1, test=held, stimuli=0, seed=seed)
    (whole,) = data.learners
    data = replace(data, learners=(replace(whole, name=name),))
    if study.data.augment is not None:
        data = data.augmented(**study.data.augment.given())
    return data, data.learners[0]


def _same_columns_everywhere(study: Study) -> None:
    """A table alone does not tell what the others' hold, so the study has to."""
    call = study.data.source
    require(
        call.name in ("from_csv", "from_parquet"),
        f"--data: the study's source is {call.name}, which is no table. Leave --data out, or give the study "
        'source = {name = "from_csv", ...}.',
    )
    given = call.given
    missing = ["features"] if given.get("features") is None else []
    if not isinstance(given.get("categories", {}), Mapping):
        missing.append('the values of every category, categories = {sex = ["f", "m"]}')
    if given.get("classes") is None and not given.get("regression", False):
        missing.append("classes")
    require(
        not missing,
        f"data.source: one table does not tell what the others' hold. List in the study: {'; '.join(missing)}.",
    )


def _own_part(study: Study, name: str) -> tuple[Islands, Part]:
    data = build_data(study).split
    names = [island.name for island in data.learners]
    require(
        name in names,
        f"The study's data are split over {', '.join(names)}, and this learner is {name}. Give it its own table with "
        "--data, or a certificate with one of these names.",
    )
    return data, data.learners[names.index(name)]


def try_out(study: Study, island: Island) -> list[str]:
    """What a learner's data are like, and that one step of training goes well; nothing leaves this process."""
    work, learner = island.work, island.learner
    told = [
        f"data: {len(learner.train)} examples to train on, {len(learner.validation)} to validate, "
        f"{len(learner.test)} to test, each of shape {tuple(work.x.shape[1:])}; at least {ROWS} are needed"
    ]
    if work.classes is not None:
        counts = torch.bincount(work.y[learner.train], minlength=work.classes).tolist()
        told.append(f"labels: {counts} examples of the {work.classes} classes")
    if island.standardise is not None and island.moments is not None:
        work = island.standardise(island.moments)  # as if everybody were like this learner
        still = int((island.moments.deviation == 0).sum())
        told.append(f"features: {still} of {island.moments.sum.numel()} do not vary here")
    plan = replace(build_algorithm(study).plan, epochs=1, steps=1)
    job = Job.begin(learner, work.layout, work.layout.vector(work.module), plan)
    before = score(work, job.vector, learner.train).loss
    advance(work, job)
    require(
        kernels().finite(job.vector),
        f"One step of training made numbers that are not finite: look at the data, or lower the rate ({plan.rate}).",
    )
    after, count = score(work, job.vector, learner.train).loss, max(1, len(learner.train))
    told.append(f"training: one step took the loss from {before / count:.4f} to {after / count:.4f}")
    told.append("nothing was sent; leave --dry-run out to take part")
    return told


def save_model(island: Island, model: Tensor, path: Path) -> None:
    """The last version, with this learner's own layers in it, by the names of the network's tensors."""
    tensors = island.work.layout.tensors(model)
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)

"""Build the controller's side of a real federation from a study; the learner's is in `local_site`."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from archipel.assembly.contexts import context_of
from archipel.assembly.finished_run import run_of
from archipel.assembly.requirements import check_stimuli, default_metric, evaluation_of
from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.controller import Controller
from archipel.core.layout import Layout
from archipel.core.parts.clipping import clipped
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.planning import ValidationCycle
from archipel.core.parts.secure_sum import SecureSum
from archipel.core.parts.weighting import Equally
from archipel.core.scoring import check_scores, hides_scores
from archipel.core.state import State
from archipel.core.types import Consistency, Evaluate, Result
from archipel.data import Island, Islands
from archipel.data.standardise import Moments, standardised_by
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.sum_totals import SumRules
from archipel.federation.controller.terms import Limits, ListedLearner, Terms
from archipel.federation.security.names import check_name
from archipel.federation.security.revocation import REVOKED, RevocationList
from archipel.federation.security.roles import OperatorRole
from archipel.federation.security.round_signatures import RoundSignatures
from archipel.federation.storage.durable_controller import DurableController, Replay, replay
from archipel.federation.storage.journal import Journal
from archipel.federation.storage.stored_models import StoredModels
from archipel.kernels import kernels
from archipel.learner.learner import TrainingContext
from archipel.learner.probes import consistency, score
from archipel.privacy.noise import new_key
from archipel.runs.run import Run
from archipel.runs.run_data import Participant
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.grid import cells
from archipel.study.inputs import hashes, tokenizer_folder
from archipel.study.schema import GuestTable, OperatorTable, Study
from archipel.trackers import track, tracker

LOCAL = ("folder", "title", "report", "trackers", "simulation", "fleet", "federation")
"""Sections in which two sides of a federation may differ."""


def one_run(study: Study) -> Study:
    """Return the one run that a federation makes of a study."""
    runs = cells(study)
    require(
        len(runs) == 1 and not study.tune,
        f"A federation runs one method once, and this study is of {len(runs)} runs"
        f"{' and is to be tuned' if study.tune else ''}. Choose: --algorithm NAME, --set seeds=[0].",
    )
    return runs[0].study


def hashes_of(study: Study) -> dict[str, str]:
    """Return a hash of each section and code file that both sides must have alike."""
    raw = copy.deepcopy(study.raw)
    source = raw["data"].get("source")
    if isinstance(source, dict):  # every participant has its own table
        for name in ("path", "folder"):
            source.pop(name, None)
    found = {
        f"[{name}]": hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
        for name, value in raw.items()
        if name not in LOCAL
    }
    tokenizer = tokenizer_folder(source)
    code = {
        "the tokenizer" if name == tokenizer else name: digest
        for name, digest in hashes(study).items()
        if name == tokenizer or name.endswith((".py", ".safetensors"))
    }
    return found | code


def layout_hash(layout: Layout) -> str:
    """Return a hash of the names and shapes of a network's layers, and behind it that of the frozen weights."""
    told = [[layer.name, [[entry.name, entry.shape] for entry in layer.entries]] for layer in layout.layers]
    layers = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return layers if layout.frozen is None else f"{layers} {layout.frozen.digest}"


# ------------------------------------------------------------------------------------------------------ the controller


class HomeEvaluator:
    """The controller's own site, with its test set and stimuli, if any."""

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
    """Everything that the controller's side needs; nothing is opened yet."""

    study: Study
    algorithm: Algorithm
    layout: Layout
    terms: Terms
    ending: Ending
    evaluation: Evaluation
    seed: int
    secret: str
    """The controller's key; empty unless the algorithm has privacy."""
    initial: Callable[[], Tensor]
    """Makes the initial model; needed once, so the model is not kept here."""
    data: Islands
    work: TrainingContext | None
    """Evaluates models at home, if the controller has data of its own."""

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
            per_token=self.data.per_token,
            most_share=self.terms.limits.most_share,
            secret=self.secret,
            initial=self.initial() if state is None else None,
            state=state,
        )

    def open(self, folder: Path, revoked: Path | None = None, certificates: Path | None = None) -> Federation:
        """Begin the federation in a folder, or continue it.

        revoked: another path of the list. certificates: folder of the controller's certificate, which secure sums need.
        """
        section = self.study.federation
        folder.mkdir(parents=True, exist_ok=True)
        begun = self._as_begun(folder)
        durable = DurableController(
            folder,
            self.layout,
            begun.make,
            snapshot_every=section.snapshot_every,
            keep_updates=section.keep_updates,
            memories=self.algorithm.memories(),
        )
        home = None if self.work is None else HomeEvaluator(self.work, self.data.test, self.data.stimuli)
        if home is not None:
            home.models = durable.models
        everybodys = self.study.data.standardise == "global"
        return Federation(
            durable,
            begun.terms,
            study=hashes_of(self.study),
            layout=layout_hash(self.layout),
            features=tuple(self.data.x.shape[1:]) if everybodys else None,
            home=home,
            revoked=(listed := RevocationList(revoked or folder / REVOKED)),
            sums=self._sums(certificates, listed),
        )

    def _sums(self, certificates: Path | None, revoked: RevocationList) -> SumRules | None:
        """Return the rules of secure sums, if the study has them."""
        settings = self.algorithm.privacy
        if not isinstance(settings, SecureSum):
            return None
        require(
            certificates is not None,
            "This study adds up updates in secure sums, whose keys are signed with certificates. Give --tls; "
            "--insecure has none.",
        )
        assert certificates is not None
        signatures = RoundSignatures(certificates, self.terms.learners, revoked)
        noise = settings.noise_of(self.ending)
        return SumRules(settings, isinstance(self.algorithm.weighting, Equally), signatures.verify, noise)

    def _as_begun(self, folder: Path) -> Hosting:
        """Return it with the terms that were stored when the state was begun, whatever the list of learners says now.

        A replay that begins at another event, or is scored elsewhere, would lead to another model.
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
                "federation.limits.most_movement": self.terms.limits.most_movement,
            }
            if before is None:
                with journal.write():
                    journal.store_fact("begun", json.dumps(mine))
                    journal.store_fact("secret", self.secret)
                return self
            secret = journal.fact("secret") or ""
        finally:
            journal.close()
        older = {
            "federation.limits.most_share": 1.0,
            "federation.limits.most_movement": None,
        }  # states of earlier versions have no limits
        theirs = {**older, **json.loads(before)}
        differ = [what for what in mine if what not in ("study", "wait for") and mine[what] != theirs[what]]
        differ += sorted(
            key
            for key in mine["study"].keys() | theirs["study"].keys()
            if mine["study"].get(key) != theirs["study"].get(key)
        )
        require(
            not differ,
            f"The state was begun with another study: they differ in {', '.join(differ)}. Use the study it was "
            "begun with, or give another --state.",
        )
        return replace(self, terms=replace(self.terms, wait_for=theirs["wait for"]), secret=secret)

    def replay(self, folder: Path) -> Replay:
        """Have a new controller handle the whole journal."""
        return replay(folder, self.layout, self._as_begun(folder).make)

    def run(self, federation: Federation) -> Run:
        """Return the run of a federation that is over, as a simulation returns it."""
        replayed = federation.durable.replay
        assert replayed.stopped is not None
        members = sorted(replayed.controller.state.members.items())
        return run_of(
            replayed.controller,
            participants=[
                Participant(name, member.group or "learners", member.role, member.examples or member.test)
                for name, member in members
            ],
            records=tuple(federation.durable.records()),
            seconds=federation.durable.time,
            reason=replayed.stopped,
            execution="federation",
            layers=replayed.moved,
            private={},
        )

    def tell_trackers(self, run: Run, folder: Path) -> list[str]:
        """Send a finished run to the study's trackers; return what went wrong, instead of raising."""
        failures = []
        for name in self.study.trackers:
            try:
                track(run, tracker(name), folder)
            except Exception as error:
                failures.append(f"{name} did not receive the run: {error}")
        return failures


def host(study: Study) -> Hosting:
    """Return the controller's side of a study."""
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
        "The study scores the model at home, and the controller has no test set. Set "
        'evaluation.at = "learners", or give the controller its data.',
    )
    check_stimuli(algorithm, data)
    require(not algorithm.pooled, f"{algorithm.name} pools all data in one place, which a federation exists to avoid.")
    terms = _terms(study, data if at_home else None)
    if terms.limits.most_movement is not None and (
        algorithm.privacy is None or not algorithm.privacy.merges
    ):  # those clip by a limit of their own
        algorithm = replace(algorithm, merge=clipped(algorithm.merge, terms.limits.most_movement))
    for planner in algorithm.planners:
        if isinstance(planner, ValidationCycle):
            for guest in terms.learners.values():
                planner.cycle_of(guest.group)  # raises if there are no thresholds for the group
    check_scores(algorithm, evaluation)
    ending = settings.get("ending") or Ending(rounds=20)
    layout = work.layout

    def initial() -> Tensor:
        made = context_of(data, settings.get("model"), settings.get("loss"), seed, "cpu")
        return layout.vector(made.module)

    secret = new_key() if algorithm.privacy is not None and algorithm.privacy.keyed else ""
    home = work if at_home else None
    return Hosting(study, algorithm, layout, terms, ending, evaluation, seed, secret, initial, data, home)


def _evaluation(algorithm: Algorithm, data: Islands, layout: Layout, at_home: bool) -> Evaluation:
    """Return the default evaluation: a simulation's, or without data here the learners' own test parts, pooled."""
    if at_home:
        return evaluation_of(algorithm, data, layout)
    single = bool(algorithm.private(layout)) and not hides_scores(algorithm)
    mean: Literal["examples", "learners"] = "learners" if single else "examples"
    return Evaluation(at="learners", mean=mean, metric=default_metric(data))


def _terms(study: Study, data: Islands | None) -> Terms:
    section = study.federation
    listed: dict[str, ListedLearner] = {}
    for entry in section.learners:
        guest = entry if isinstance(entry, GuestTable) else GuestTable(name=entry)
        check_name("learner", guest.name)
        require(guest.name not in listed, f"federation.learners names {guest.name} twice.")
        listed[guest.name] = ListedLearner(guest.group, guest.role)
    if not listed and data is not None:
        rows = data.rows
        listed = {name: ListedLearner("", rows.role(row)) for row, name in enumerate(rows.names)}
    require(
        bool(listed),
        "federation.learners: the controller has no data that name the learners. List the learners by the names in "
        'their certificates: learners = ["hospital-1", "hospital-2"].',
    )
    training = sum(guest.role == "train" for guest in listed.values())
    wait_for = section.wait_for or training
    require(wait_for <= training, f"federation.wait_for is {wait_for}, and {training} training learners are listed.")
    return Terms(
        listed,
        wait_for,
        section.heartbeat,
        section.silence,
        section.task_deadline,
        section.opinion_deadline,
        section.norm_bound,
        _limits(study),
        _operators(study),
    )


def _limits(study: Study) -> Limits:
    told = study.federation.limits.model_dump()
    return Limits(**{**told, "most_movement": told["most_movement"] or None})


def _operators(study: Study) -> dict[str, OperatorRole]:
    listed: dict[str, OperatorRole] = {}
    for entry in study.federation.operators:
        person = entry if isinstance(entry, OperatorTable) else OperatorTable(name=entry)
        check_name("operator", person.name)
        require(person.name not in listed, f"federation.operators names {person.name} twice.")
        listed[person.name] = person.role
    return listed


def _data_is_here(study: Study) -> bool:
    """Return whether the study's data are on this machine; a table that is missing belongs to another site."""
    given = study.data.source.given
    paths = [given[name] for name in ("path", "folder") if name in given]
    return all((Path(study.folder or ".") / path).exists() for path in paths)


def _stand_in(study: Study) -> Islands:
    """Return two empty examples in place of data that the controller does not have: enough to check the network."""
    section, given = study.federation, study.data.source.given
    shape, classes = section.example, section.classes
    if shape is None and given.get("features") is not None and isinstance(given.get("categories", {}), Mapping):
        kinds = given.get("categories", {})
        shape = (sum(len(kinds[name]) if name in kinds else 1 for name in given["features"]),)
    if classes is None and given.get("classes") is not None:
        classes = len(given["classes"])
    require(
        shape is not None,
        "The study's data are not on this machine, so their shape is not known. List the features (and the values of "
        "categories) in data.source, or give federation.example, such as [54].",
    )
    assert shape is not None
    require(
        classes is not None or given.get("regression", False),
        "The study's data are not on this machine, so their classes are not known. List them in "
        "data.source.classes, or give "
        "federation.classes.",
    )
    y = torch.zeros(2, dtype=torch.float32 if classes is None else torch.int64)
    nothing = torch.empty(0, dtype=torch.int64)
    part = Island("nobody", torch.arange(2), nothing)
    x = torch.zeros(()).expand(2, *shape)  # one expanded zero: an example may be large
    return Islands(x, y, (part,), nothing, nothing, classes, "data elsewhere")

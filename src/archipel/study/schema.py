"""Define what a study may say, as pydantic models; `docs/reference/study.md` is generated from them.

Where a section names a constructor (a data source, a network, an algorithm), its further keys are that constructor's
own arguments, checked against its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
    create_model,
    model_validator,
)
from torch import nn

import archipel.models
from archipel import algorithms
from archipel.core.algorithm import Algorithm
from archipel.core.checks import known_name, require
from archipel.core.parts.descent import Descent
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.merge import Merge
from archipel.core.parts.objective import Objective
from archipel.core.parts.part import Part
from archipel.core.parts.personal import Personal
from archipel.core.parts.planning import Planner
from archipel.core.parts.privacy import Privacy
from archipel.core.parts.protocol import Protocol
from archipel.core.parts.recall import Recall
from archipel.core.parts.selection import Selection
from archipel.core.parts.server import Server
from archipel.core.parts.weighting import Weighting
from archipel.core.types import Role
from archipel.data import Islands, Source, from_text_csv, own, sources
from archipel.executors.choice import Way
from archipel.federation.security.roles import OperatorRole
from archipel.simulation.fleet import Group
from archipel.study.arguments import (
    Arguments,
    StudyTable,
    arguments,
    local_fields,
    refuse_unknown,
    takes_anything,
)
from archipel.study.expressions import part
from archipel.study.own_code import Code, OwnCode, is_own
from archipel.trackers import TRACKERS

Constructor: TypeAlias = Callable[..., Any]

SOURCES: dict[str, Constructor] = {
    **{name: getattr(sources, name) for name in sources.__all__},
    **{name: getattr(own, name) for name in ("from_csv", "from_parquet", "from_npz_folder")},
    "from_text_csv": from_text_csv,
}
MODELS: dict[str, Constructor] = {name: getattr(archipel.models, name) for name in archipel.models.__all__}
METHODS: dict[str, Constructor] = {name: getattr(algorithms, name) for name in algorithms.__all__}

FROM_DATA = ("features", "classes", "channels", "in_channels", "size", "vocabulary", "length")
"""Arguments of networks that the data decide where a study leaves them open."""


# ------------------------------------------------------------------------------------------- constructors by name


@dataclass(frozen=True)
class ConstructorCall:
    """A constructor by name, and its arguments."""

    name: str
    constructor: Constructor
    given: Mapping[str, Any]
    beside: Mapping[str, Any]
    """What the table says beside the constructor's own arguments."""


def call(
    what: str, kind: type, known: Mapping[str, Constructor], filled: tuple[str, ...], beside: type[Arguments]
) -> Any:
    """Return a reader of tables that name a constructor of a kind: the name alone, or a table with its arguments."""

    def read(value: Any, info: ValidationInfo) -> ConstructorCall:
        table = {"name": value} if isinstance(value, str) else value
        require(
            isinstance(table, dict) and isinstance(table.get("name"), str),
            f"should be a name such as {next(iter(known))!r}, or a table with a name, got {value!r}.",
        )
        name = table["name"]
        if is_own(name):
            constructor = code_of(info).maker(name, kind)
        else:
            known_name(what, name, known)
            constructor = known[name]
        mine = {key: item for key, item in table.items() if key != "name" and key not in beside.model_fields}
        if not takes_anything(constructor):
            model = arguments(constructor, ("name",), filled)
            refuse_unknown(table, ["name", *model.model_fields, *beside.model_fields])
            mine = model.model_validate(mine, context=info.context).given()
        rest = {key: item for key, item in table.items() if key in beside.model_fields}
        return ConstructorCall(name, constructor, mine, beside.model_validate(rest, context=info.context).given())

    return read


def code_of(info: ValidationInfo) -> OwnCode:
    """Return the code that this study may run."""
    context = info.context or {}
    return OwnCode(Path(context.get("folder", ".")), context.get("code", "beside"))


def expression(kind: type[Part]) -> Any:
    """Return a reader of expressions that make parts of a kind."""

    def read(value: Any, info: ValidationInfo) -> Any:
        require(isinstance(value, str), f"should be an expression such as \"ByFreshness('inv')\", got {value!r}.")
        return part(value, kind, code_of(info))

    return PlainValidator(read)


PlannerExpression: TypeAlias = Annotated[Any, expression(Planner)]


class BesideModel(Arguments, use_attribute_docstrings=True):
    weights: Path | None = None
    """A safetensors file with the weights to start from, by the names of the network's tensors."""


class BesideMethod(Arguments, use_attribute_docstrings=True):
    label: str | None = None
    """Its name in tables and figures; needed if a method is listed twice."""
    protocol: Annotated[Any, expression(Protocol)] = None
    """Another protocol than the method's own, such as "Stream(5)"."""
    selection: Annotated[Any, expression(Selection)] = None
    """Another selection, such as "ByImportance()"."""
    weighting: Annotated[Any, expression(Weighting)] = None
    """Another weighting, such as "Product(ByExamples(), ByFreshness('inv'))"; "mine.py:ByAge" is one of your own."""
    merge: Annotated[Any, expression(Merge)] = None
    """Another merge, such as "Community()"."""
    server: Annotated[Any, expression(Server)] = None
    """Another server optimiser, such as "Adam(0.01)"."""
    planners: list[PlannerExpression] | None = None
    """Other planners instead of the method's own, such as ["PrivateLayers('head')"]."""
    more_planners: list[PlannerExpression] | None = None
    """Planners behind the method's own, such as ["Decay(0.9)"]."""
    recall: Annotated[Any, expression(Recall)] = None
    """Another recall, such as "MedianStaleness(20)"."""
    objective: Annotated[Any, expression(Objective)] = None
    """Another objective of the learners, such as "LogitCalibration(0.5)"."""
    descent: Annotated[Any, expression(Descent)] = None
    """What learners descend along instead of the gradient, such as "MetaDescent(0.01)"."""
    personal: Annotated[Any, expression(Personal)] = None
    """The model that learners use for themselves instead of the shared one, such as "FineTuned(5)"."""
    privacy: Annotated[Any, expression(Privacy)] = None
    """Differential privacy or secure sums, such as "CentralNoise(epsilon=2.0, clip=1.0)" or "SecureSum()"."""


if TYPE_CHECKING:
    SplitTable: TypeAlias = Arguments
    NaturalTable: TypeAlias = Arguments
    ColourTable: TypeAlias = Arguments
    NormaliseTable: TypeAlias = Arguments
    AugmentTable: TypeAlias = Arguments
    FoldsTable: TypeAlias = Arguments
    GroupTable: TypeAlias = Arguments
    EndingTable: TypeAlias = Arguments
    EvaluationTable: TypeAlias = Arguments
    TrainingTable: TypeAlias = Arguments
else:
    SplitTable = arguments(Source.split)
    NaturalTable = arguments(Source.natural)
    ColourTable = arguments(Source.colour_skew)
    NormaliseTable = arguments(Source.normalised)
    AugmentTable = arguments(Islands.augmented)
    FoldsTable = arguments(Islands.folds, ("seed",))
    GroupTable = arguments(Group, leave_out=("loss",))
    EndingTable = arguments(Ending)
    EvaluationTable = arguments(Evaluation)
    TrainingTable = create_model("Training", __base__=Arguments, **local_fields())

SourceCall: TypeAlias = Annotated[ConstructorCall, PlainValidator(call("source", Source, SOURCES, (), Arguments))]
ModelCall: TypeAlias = Annotated[
    ConstructorCall, PlainValidator(call("model", nn.Module, MODELS, FROM_DATA, BesideModel))
]
MethodCall: TypeAlias = Annotated[
    ConstructorCall, PlainValidator(call("algorithm", Algorithm, METHODS, (), BesideMethod))
]


# ------------------------------------------------------------------------------------------------------- sections


class DataSection(StudyTable):
    """The data and how they are divided: one of `split`, `natural` and `split_file`."""

    source: SourceCall
    """A data set by name, such as "digits" (`archipel data` lists them); your own table or folder,
    {name = "from_csv", path = "rows.csv", label = "y", site = "hospital"}; or your own function that gives a Source,
    "mine.py:load"."""
    draw_classes: bool = False
    """Number the classes in an order drawn by the run's seed, so that `disjoint` and `colour_skew` group others
    together with every seed."""
    colour_skew: ColourTable | None = None
    """Turn images to grey by class before they are split (D&C)."""
    normalise: NormaliseTable | None = None
    """Subtract given means from the channels of images and divide by given deviations."""
    split: SplitTable | None = None
    """Divide the examples among learners; its `seed` is the run's unless given."""
    natural: NaturalTable | None = None
    """Every site of the source (writer, role, hospital …) is a learner; its `seed` is the run's unless given."""
    split_file: Path | None = None
    """A split that was saved: split.safetensors in the folder of a run."""
    folds: FoldsTable | None = None
    """Cross-validation by learner (RADFed): one run for each combination of folds."""
    fold: Annotated[int, Field(ge=0)] | None = None
    """Only this combination of folds."""
    standardise: Literal["none", "global", "local"] = "none"
    """Features of mean 0 and deviation 1 by everybody's or every learner's own training statistics."""
    augment: AugmentTable | None = None
    """Crop and flip training images at random, in every epoch anew; an empty table, {}, takes the defaults."""

    @model_validator(mode="after")
    def _one_way(self) -> DataSection:
        ways = [name for name in ("split", "natural", "split_file") if getattr(self, name) is not None]
        require(len(ways) == 1, f"give one of split, natural and split_file, got {' and '.join(ways) or 'none'}.")
        require(self.fold is None or self.folds is not None, "fold says which of the folds; give folds as well.")
        return self


class FleetSection(StudyTable):
    """Speed and reliability of learners; without this section all are fast."""

    fast: Annotated[int, Field(ge=0)] = 0
    """Learners that take 10 ms a training step and 2 ms an evaluation step."""
    slow: Annotated[int, Field(ge=0)] = 0
    """Learners that take ten times as long."""
    groups: tuple[GroupTable, ...] = ()
    """Groups of learners that are alike."""


class SimulationSection(StudyTable):
    """How the simulation is executed; nothing but `most_share` changes results beyond float tolerance."""

    threads: Annotated[int, Field(ge=1)] = 1
    """Threads of one operation. Another number may give other bits, so it is the study's and not the machine's;
    parallel runs are not counted."""
    device: str = "cpu"
    """Of the learners' arithmetic."""
    execution: Way | None = None
    """"plain", "workers", "stacked" or "native", instead of the one chosen from the network."""
    most_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The largest share of one learner in a merge's weights or in a pooled score; 1: no limit, since counts are true
    unless a group of the fleet `claims` more."""
    shadow: bool = False
    """Also record RADFed's divergences DC and DL and the layers' divergence between local models (D&C), at the cost
    of a centralised run beside each run."""
    norms: bool = False
    """Also record how far each update would move the model, for the live page and reports; where updates are clipped,
    that is recorded anyway."""


class GuestTable(StudyTable):
    """Settings of one learner of a federation."""

    name: str
    """The name in its certificate."""
    group: str = ""
    """Which thresholds are its (Metis gives fast and slow learners their own)."""
    role: Role = "train"
    """"validation" or "test": the learner only evaluates models."""


class LimitsTable(StudyTable):
    """The most that a learner of a federation may claim; joining with more is refused."""

    examples: Annotated[int, Field(ge=1)] = 10_000_000
    """Examples to train on."""
    validation: Annotated[int, Field(ge=0)] = 10_000_000
    """Examples of a validation part."""
    test: Annotated[int, Field(ge=0)] = 10_000_000
    """Examples of a test part."""
    most_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The largest share of one learner in a merge's weights, in statistics over all learners and in a pooled score,
    whatever it claims; with n learners never below 1/n. 1: no limit. Set it little above the share of the largest
    one."""
    most_movement: Annotated[float, Field(ge=1)] | Literal[False] = 10.0
    """How far an update may move a layer, in medians of what learners' updates lately moved it by; what goes further is
    scaled back to it (`NormClipped`). false: no limit."""


class OperatorTable(StudyTable):
    """A person who looks after a federation."""

    name: str
    """The name in the certificate."""
    role: OperatorRole = "operator"
    """"viewer" may look; "operator" also pauses, resumes and withdraws learners; "admin" also readmits them and rolls
    the model back."""


class FederationSection(StudyTable):
    """Settings of a real federation; a simulation ignores them."""

    learners: tuple[str | GuestTable, ...] = ()
    """Who may take part, by the names in their certificates; default: the learners that the data are split over."""
    operators: tuple[str | OperatorTable, ...] = ()
    """Who looks after it, by the names in their certificates; a name alone has the role "operator". Nobody by default:
    learners may still look, and pause or withdraw themselves."""
    wait_for: Annotated[int, Field(ge=1)] | None = None
    """Learners that must have joined before the run begins; default: all that train."""
    heartbeat: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between two heartbeats of a learner."""
    silence: Annotated[float, Field(gt=0)] = 30.0
    """Seconds without a heartbeat after which a learner counts as gone and its tasks as lost."""
    task_deadline: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a training task may take; default: ten times the median of learners' last tasks, between a minute
    and a day. A round's own deadline is its protocol's: "Rounds(deadline=600)"."""
    opinion_deadline: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that learners have to evaluate a model, and for a phase of a secure sum; later answers are left out, and
    a learner that is late again rests."""
    norm_bound: Annotated[float, Field(gt=0)] | None = None
    """How far one update may move the model (Euclidean norm); further ones are refused. Off by default: honest learners
    differ."""
    limits: LimitsTable = LimitsTable()
    snapshot_every: Annotated[int, Field(ge=1)] = 100
    """Commits between two snapshots, from which a killed controller continues."""
    keep_updates: bool = False
    """Keep every event and the file of every update, so that the whole run can be replayed (`archipel replay`)."""
    example: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Shape of one example, such as [54] or [1, 28, 28], where the controller has no data and the columns that the
    study lists do not tell it."""
    classes: Annotated[int, Field(ge=2)] | None = None
    """Number of classes, where the controller has no data and the study lists none."""


class ReportSection(StudyTable):
    """Where the report compares methods; without this section, where all of them have results."""

    target: float | None = None
    """Score for which the report says when it was first reached, and at what cost."""
    seconds: float | None = None
    """Virtual time at which scores are compared."""
    rounds: int | None = None
    """Local rounds at which scores are compared."""


def listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def known_tracker(name: str) -> str:
    known_name("tracker", name, TRACKERS)
    return name


class Study(StudyTable):
    """Everything that one or many runs need."""

    title: str = "study"
    """Heading of the report and name of the results' folder."""
    folder: Path | None = None
    """Folder from which paths in the study start; default: the study's own."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(listed), Field(min_length=1)] = (0,)
    """Every method runs once for each."""
    algorithms: Annotated[tuple[MethodCall, ...], BeforeValidator(listed), Field(min_length=1)]
    """Methods by name (`archipel algorithms` lists them), or tables with `name` and the constructor's arguments; or
    your own function that gives an Algorithm, "mine.py:method"."""
    data: DataSection
    model: ModelCall | None = None
    """A network by name, or your own, "network.py:Net"; what of features, classes, channels, size and vocabulary is
    left open is taken from the data. Default: a small MLP."""
    training: TrainingTable = Arguments()
    """Local training, for all methods that do not say otherwise."""
    loss: str | None = None
    """A function of torch.nn.functional, or your own, "mine.py:loss"; default: cross_entropy, or mse_loss for tasks
    without classes."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of its data that a learner reserves if the method, or tuning, asks for that."""
    fleet: FleetSection | None = None
    """Speed and reliability of learners; without this section all are fast."""
    ending: EndingTable | None = None
    """When a run is over, at the first of these; default: after 20 local rounds."""
    evaluation: EvaluationTable | None = None
    """When and where models are scored; default: at every commit, by `archipel.simulate`'s rule."""
    simulation: SimulationSection = SimulationSection()
    grid: dict[str, Any] = Field(default_factory=dict)
    """Settings to run in all combinations: {training.rate = [0.1, 0.01]}; a method's label instead of a section,
    {fedprox.mu = [0.1, 1]}, varies that method alone."""
    tune: dict[str, Any] = Field(default_factory=dict)
    """Settings to choose from, for each method by its score on validation learners (with folds) or on the learners'
    validation parts, never on the test set; the chosen ones then run and are reported."""
    trackers: Annotated[tuple[Annotated[str, AfterValidator(known_tracker)], ...], BeforeValidator(listed)] = ()
    """Trackers that receive the runs while they go on: "tensorboard", "mlflow", "wandb", "opentelemetry"."""
    federation: FederationSection = FederationSection()
    report: ReportSection = ReportSection()

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)
    _code: Code = PrivateAttr(default="beside")

    @property
    def own_code(self) -> OwnCode:
        """The code that the study may run."""
        return OwnCode(Path(self.folder or "."), self._code)

    @property
    def raw(self) -> dict[str, Any]:
        """The study as it was written."""
        return self._raw

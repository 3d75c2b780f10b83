from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("protocol", "study", "layout", "examples", "validation", "test", "fresh", "moments", "federation")
    class StudyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    study: _containers.ScalarMap[str, str]
    layout: str
    examples: int
    validation: int
    test: int
    fresh: bool
    moments: Moments
    federation: str
    def __init__(self, protocol: _Optional[int] = ..., study: _Optional[_Mapping[str, str]] = ..., layout: _Optional[str] = ..., examples: _Optional[int] = ..., validation: _Optional[int] = ..., test: _Optional[int] = ..., fresh: _Optional[bool] = ..., moments: _Optional[_Union[Moments, _Mapping]] = ..., federation: _Optional[str] = ...) -> None: ...

class Moments(_message.Message):
    __slots__ = ("count", "sum", "squares")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum: bytes
    squares: bytes
    def __init__(self, count: _Optional[int] = ..., sum: _Optional[bytes] = ..., squares: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("wait", "heartbeat", "silence", "moments", "federation")
    WAIT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    wait: str
    heartbeat: float
    silence: float
    moments: Moments
    federation: str
    def __init__(self, wait: _Optional[str] = ..., heartbeat: _Optional[float] = ..., silence: _Optional[float] = ..., moments: _Optional[_Union[Moments, _Mapping]] = ..., federation: _Optional[str] = ...) -> None: ...

class Here(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[Steps]
    def __init__(self, steps: _Optional[_Iterable[_Union[Steps, _Mapping]]] = ...) -> None: ...

class Steps(_message.Message):
    __slots__ = ("task", "steps")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    task: int
    steps: int
    def __init__(self, task: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("join", "unwanted")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    UNWANTED_FIELD_NUMBER: _ClassVar[int]
    join: bool
    unwanted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, join: _Optional[bool] = ..., unwanted: _Optional[_Iterable[str]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("train", "evaluate", "finish", "cancel", "stop", "ping", "sum")
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    train: Train
    evaluate: Evaluate
    finish: Task
    cancel: Task
    stop: Stop
    ping: Ping
    sum: SumStep
    def __init__(self, train: _Optional[_Union[Train, _Mapping]] = ..., evaluate: _Optional[_Union[Evaluate, _Mapping]] = ..., finish: _Optional[_Union[Task, _Mapping]] = ..., cancel: _Optional[_Union[Task, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., sum: _Optional[_Union[SumStep, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: int
    def __init__(self, task: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Layer(_message.Message):
    __slots__ = ("name", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Enclosed(_message.Message):
    __slots__ = ("layers", "body")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[str]
    body: bytes
    def __init__(self, layers: _Optional[_Iterable[str]] = ..., body: _Optional[bytes] = ...) -> None: ...

class Train(_message.Message):
    __slots__ = ("task", "model", "plan", "enclosed", "shift", "enclosed_shift")
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ENCLOSED_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    ENCLOSED_SHIFT_FIELD_NUMBER: _ClassVar[int]
    task: int
    model: _containers.RepeatedCompositeFieldContainer[Layer]
    plan: Plan
    enclosed: Enclosed
    shift: _containers.RepeatedCompositeFieldContainer[Layer]
    enclosed_shift: Enclosed
    def __init__(self, task: _Optional[int] = ..., model: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., enclosed: _Optional[_Union[Enclosed, _Mapping]] = ..., shift: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., enclosed_shift: _Optional[_Union[Enclosed, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("epochs", "steps", "batch", "rate", "momentum", "optimiser", "options", "cycle", "trains", "uploads", "private", "proximal", "reports", "key", "shift", "phases", "accumulate", "all_data")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    OPTIMISER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    TRAINS_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    PROXIMAL_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    ALL_DATA_FIELD_NUMBER: _ClassVar[int]
    epochs: int
    steps: int
    batch: int
    rate: float
    momentum: float
    optimiser: str
    options: str
    cycle: Cycle
    trains: Names
    uploads: Names
    private: _containers.RepeatedScalarFieldContainer[str]
    proximal: float
    reports: _containers.RepeatedScalarFieldContainer[str]
    key: int
    shift: str
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    accumulate: int
    all_data: bool
    def __init__(self, epochs: _Optional[int] = ..., steps: _Optional[int] = ..., batch: _Optional[int] = ..., rate: _Optional[float] = ..., momentum: _Optional[float] = ..., optimiser: _Optional[str] = ..., options: _Optional[str] = ..., cycle: _Optional[_Union[Cycle, _Mapping]] = ..., trains: _Optional[_Union[Names, _Mapping]] = ..., uploads: _Optional[_Union[Names, _Mapping]] = ..., private: _Optional[_Iterable[str]] = ..., proximal: _Optional[float] = ..., reports: _Optional[_Iterable[str]] = ..., key: _Optional[int] = ..., shift: _Optional[str] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., accumulate: _Optional[int] = ..., all_data: _Optional[bool] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("epochs", "trains", "rate", "proximal", "of")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    TRAINS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PROXIMAL_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    epochs: int
    trains: _containers.RepeatedScalarFieldContainer[str]
    rate: float
    proximal: float
    of: str
    def __init__(self, epochs: _Optional[int] = ..., trains: _Optional[_Iterable[str]] = ..., rate: _Optional[float] = ..., proximal: _Optional[float] = ..., of: _Optional[str] = ...) -> None: ...

class Cycle(_message.Message):
    __slots__ = ("loss", "tombstones", "at_most")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_FIELD_NUMBER: _ClassVar[int]
    loss: float
    tombstones: int
    at_most: int
    def __init__(self, loss: _Optional[float] = ..., tombstones: _Optional[int] = ..., at_most: _Optional[int] = ...) -> None: ...

class Names(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Evaluate(_message.Message):
    __slots__ = ("task", "model", "part", "bins", "enclosed", "keep")
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    ENCLOSED_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    task: int
    model: _containers.RepeatedCompositeFieldContainer[Layer]
    part: str
    bins: int
    enclosed: Enclosed
    keep: bool
    def __init__(self, task: _Optional[int] = ..., model: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., part: _Optional[str] = ..., bins: _Optional[int] = ..., enclosed: _Optional[_Union[Enclosed, _Mapping]] = ..., keep: _Optional[bool] = ...) -> None: ...

class SumTerms(_message.Message):
    __slots__ = ("threshold", "clip", "bits", "most_examples", "at_least")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    MOST_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    threshold: float
    clip: float
    bits: int
    most_examples: int
    at_least: int
    def __init__(self, threshold: _Optional[float] = ..., clip: _Optional[float] = ..., bits: _Optional[int] = ..., most_examples: _Optional[int] = ..., at_least: _Optional[int] = ...) -> None: ...

class RoundKeys(_message.Message):
    __slots__ = ("learner", "sharing", "masking", "seed_hash", "signature", "certificate")
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    MASKING_FIELD_NUMBER: _ClassVar[int]
    SEED_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    learner: str
    sharing: bytes
    masking: bytes
    seed_hash: bytes
    signature: bytes
    certificate: bytes
    def __init__(self, learner: _Optional[str] = ..., sharing: _Optional[bytes] = ..., masking: _Optional[bytes] = ..., seed_hash: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Named(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class SumStep(_message.Message):
    __slots__ = ("task", "phase", "training", "layers", "terms", "told", "keys")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    task: int
    phase: str
    training: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    terms: SumTerms
    told: _containers.RepeatedCompositeFieldContainer[Named]
    keys: _containers.RepeatedCompositeFieldContainer[RoundKeys]
    def __init__(self, task: _Optional[int] = ..., phase: _Optional[str] = ..., training: _Optional[int] = ..., layers: _Optional[_Iterable[str]] = ..., terms: _Optional[_Union[SumTerms, _Mapping]] = ..., told: _Optional[_Iterable[_Union[Named, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[RoundKeys, _Mapping]]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason", "task", "model")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    task: int
    model: _containers.RepeatedCompositeFieldContainer[Layer]
    def __init__(self, reason: _Optional[str] = ..., task: _Optional[int] = ..., model: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("task", "layers", "offset", "shift")
    TASK_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    task: int
    layers: _containers.RepeatedScalarFieldContainer[str]
    offset: int
    shift: bool
    def __init__(self, task: _Optional[int] = ..., layers: _Optional[_Iterable[str]] = ..., offset: _Optional[int] = ..., shift: _Optional[bool] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("task", "sequence", "size", "sha256", "offset", "trained", "scored", "failed", "sum")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    task: int
    sequence: int
    size: int
    sha256: bytes
    offset: int
    trained: Trained
    scored: Scored
    failed: str
    sum: SumAnswer
    def __init__(self, task: _Optional[int] = ..., sequence: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., offset: _Optional[int] = ..., trained: _Optional[_Union[Trained, _Mapping]] = ..., scored: _Optional[_Union[Scored, _Mapping]] = ..., failed: _Optional[str] = ..., sum: _Optional[_Union[SumAnswer, _Mapping]] = ...) -> None: ...

class Trained(_message.Message):
    __slots__ = ("layers", "steps", "epochs", "losses", "validation", "gradient_norm", "classes", "training_loss", "squared_loss", "spent")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_LOSS_FIELD_NUMBER: _ClassVar[int]
    SQUARED_LOSS_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    steps: int
    epochs: float
    losses: _containers.RepeatedScalarFieldContainer[float]
    validation: Scored
    gradient_norm: float
    classes: _containers.RepeatedScalarFieldContainer[int]
    training_loss: float
    squared_loss: float
    spent: Spent
    def __init__(self, layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., steps: _Optional[int] = ..., epochs: _Optional[float] = ..., losses: _Optional[_Iterable[float]] = ..., validation: _Optional[_Union[Scored, _Mapping]] = ..., gradient_norm: _Optional[float] = ..., classes: _Optional[_Iterable[int]] = ..., training_loss: _Optional[float] = ..., squared_loss: _Optional[float] = ..., spent: _Optional[_Union[Spent, _Mapping]] = ...) -> None: ...

class Spent(_message.Message):
    __slots__ = ("epsilon", "delta", "noise", "rests")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    RESTS_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    noise: float
    rests: bool
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., noise: _Optional[float] = ..., rests: _Optional[bool] = ...) -> None: ...

class Scored(_message.Message):
    __slots__ = ("count", "loss", "classes", "confusion", "bins", "histogram", "tokens", "cells")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    CONFUSION_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    count: int
    loss: float
    classes: int
    confusion: _containers.RepeatedScalarFieldContainer[int]
    bins: int
    histogram: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    cells: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., loss: _Optional[float] = ..., classes: _Optional[int] = ..., confusion: _Optional[_Iterable[int]] = ..., bins: _Optional[int] = ..., histogram: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., cells: _Optional[_Iterable[int]] = ...) -> None: ...

class SumAnswer(_message.Message):
    __slots__ = ("phase", "keys", "given", "opened")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    phase: str
    keys: RoundKeys
    given: _containers.RepeatedCompositeFieldContainer[Named]
    opened: _containers.RepeatedCompositeFieldContainer[Named]
    def __init__(self, phase: _Optional[str] = ..., keys: _Optional[_Union[RoundKeys, _Mapping]] = ..., given: _Optional[_Iterable[_Union[Named, _Mapping]]] = ..., opened: _Optional[_Iterable[_Union[Named, _Mapping]]] = ...) -> None: ...

class Portion(_message.Message):
    __slots__ = ("head", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: Head
    data: bytes
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Parcel(_message.Message):
    __slots__ = ("task", "sha256")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    task: int
    sha256: bytes
    def __init__(self, task: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Offset(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("verdict", "reason")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Receipt.Verdict]
        KEPT: _ClassVar[Receipt.Verdict]
        LATE: _ClassVar[Receipt.Verdict]
        REFUSED: _ClassVar[Receipt.Verdict]
    UNKNOWN: Receipt.Verdict
    KEPT: Receipt.Verdict
    LATE: Receipt.Verdict
    REFUSED: Receipt.Verdict
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    verdict: Receipt.Verdict
    reason: str
    def __init__(self, verdict: _Optional[_Union[Receipt.Verdict, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Wish(_message.Message):
    __slots__ = ("action", "learner", "version")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    action: str
    learner: str
    version: int
    def __init__(self, action: _Optional[str] = ..., learner: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("told",)
    TOLD_FIELD_NUMBER: _ClassVar[int]
    told: str
    def __init__(self, told: _Optional[str] = ...) -> None: ...

class Glance(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("told",)
    TOLD_FIELD_NUMBER: _ClassVar[int]
    told: str
    def __init__(self, told: _Optional[str] = ...) -> None: ...

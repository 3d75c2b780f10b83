"""Everything that parses bytes from outside, with inputs to begin from and the errors that each may raise."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from google.protobuf.message import DecodeError

import archipel as ap
from archipel.core.layout import Layout
from archipel.core.scored import Scored, ScoreTable
from archipel.core.sparse_counts import MANY_CLASSES
from archipel.core.types import Cycle, Evaluated, Metrics, Phase, Plan, Spent, Trained
from archipel.data.split_file import HEADER, SavedSplit, digest, read_split, write_split
from archipel.data.standardise import Moments
from archipel.federation.learner.received_vectors import unpack
from archipel.federation.processes import read_status
from archipel.federation.security.certificates import (
    authority_certificate,
    holder_of,
    hosts_of,
    new_key,
    request,
)
from archipel.federation.security.key_files import pem, read_certificate, read_request
from archipel.federation.security.revocation import read_serials
from archipel.federation.storage.durable_controller import CODEC
from archipel.federation.storage.journal import AuditBroken, Journal, Line
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import Bodies, InvalidUpdate
from archipel.federation.wire.pieces import decode_piece, decode_portion, encode_portion
from archipel.privacy.secure_sum.sum_messages import SecureSumRefused
from archipel.study.files import read_study
from archipel.study.site_file import read_site
from tests.fuzz import sums

PLAN = Plan(epochs=3, batch=8, reports=("losses", "validation scores", "class counts"), cycle=Cycle(0.1, 2, 9))
LAYOUT = Layout.of(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)))
BODIES = Bodies(LAYOUT)


@dataclass(frozen=True)
class Target:
    """A parser: bytes in, a value or one of the allowed errors out."""

    name: str
    corpus: Callable[[], list[bytes]]
    """Valid inputs to begin from."""
    parse: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]


@cache
def place() -> Path:
    """Return a folder for inputs that have to be files; in memory if possible: ext4 waits at every overwrite."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))


def written(name: str, data: bytes) -> Path:
    path = place() / name
    path.write_bytes(data)
    return path


# ------------------------------------------------------------------------------------------------------------ messages


def scored() -> Scored:
    histogram = np.zeros((2, 2, 512), np.int64)
    histogram[:, 0, 0], histogram[:, 1, 1] = 3, 2
    return Scored(5, 1.5, np.array([[2, 1], [0, 2]]), histogram)


def scored_among_many() -> Scored:
    """Counts of so many classes that only those that are not zero are sent."""
    confusion = np.zeros((MANY_CLASSES, MANY_CLASSES), np.int64)
    confusion[3, 5], confusion[7, 7], confusion[MANY_CLASSES - 1, 0] = 1, 3, 1
    return Scored(5, 1.5, confusion)


def heads() -> list[bytes]:
    layers = messages.encode_layers(LAYOUT.names, ["ab" * 32] * len(LAYOUT.names))
    metrics = Metrics(2.0, (1.0, 0.5), scored(), 0.25, (3, 2), 0.5, 0.3, Spent(1.0, 1e-5, 1.1, False))
    trained = messages.encode_metrics(metrics, layers, 4)
    made = [
        pb.Head(task=3, sequence=1, size=100, sha256=b"x" * 32, trained=trained),
        pb.Head(task=3, sequence=1, scored=messages.encode_scored(scored())),
        pb.Head(task=3, sequence=1, scored=messages.encode_scored(scored_among_many())),
        pb.Head(task=-3, failed="no memory"),
    ]
    return [pb.Portion(head=head, data=b"numbers").SerializeToString() for head in made] + [encode_portion(b"more")]


def parse_answer(data: bytes) -> object:
    """As a controller parses an answer."""
    head = decode_portion(data).head
    if head is None:
        return None
    if head.HasField("scored"):
        few = head.scored.classes <= 2
        classes, bins = (2, 512) if few else (MANY_CLASSES, 0)
        return messages.decode_scored(head.scored, count=5, classes=classes, bins=bins)
    if head.HasField("trained"):
        messages.decode_layers(head.trained.layers)
        return messages.decode_metrics(head.trained, PLAN, examples=5, validation=5, classes=2)
    return head.failed


def hellos() -> list[bytes]:
    moments = messages.encode_moments(Moments(5, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])))
    hello = pb.Hello(protocol=1, study={"[model]": "ab" * 32}, layout="cd" * 32, examples=5, test=2, moments=moments)
    return [hello.SerializeToString(), pb.Hello(fresh=True).SerializeToString()]


def parse_hello(data: bytes) -> object:
    hello = pb.Hello.FromString(data)
    return messages.decode_moments(hello.moments, (3,)) if hello.HasField("moments") else hello


def orders() -> list[bytes]:
    phase = Phase(1, ("0",), 0.5, 0.1, "own")
    plans = [
        PLAN,
        replace(PLAN, epochs=1, cycle=None, phases=(phase,), shift="s"),
        replace(PLAN, cycle=None, options={"betas": (0.9, 0.99)}, uploads=("0",), private=("1",)),
    ]
    made = [messages.encode_plan(plan, 7) for plan in plans] + [pb.Plan(options="[]"), pb.Plan(options="[" * 100_000)]
    body = BODIES.header((1,)) + bytes(LAYOUT.bytes((1,)))
    enclosed = pb.Enclosed(layers=[LAYOUT.names[1]], body=body)
    layers = messages.encode_layers(
        LAYOUT.names, [hashlib.sha256(bytes(LAYOUT.bytes((at,)))).hexdigest() for at in (0, 1)]
    )
    carries = pb.Train(task=1, plan=made[0], model=layers, enclosed=enclosed)
    trains = [pb.Train(task=1, plan=plan) for plan in made] + [carries]
    return [pb.Order(train=train).SerializeToString() for train in trains]


def parse_order(data: bytes) -> object:
    """As a learner parses an order."""
    order = pb.Order.FromString(data)
    digests = messages.decode_layers(order.train.model)
    if order.train.enclosed.body:
        unpack(BODIES, bytearray(order.train.enclosed.body), order.train.enclosed.layers, digests)
    return messages.decode_plan(order.train.plan) if order.HasField("train") else order


def parse_piece(data: bytes) -> object:
    return bytes(decode_piece(data))


def welcomes() -> list[bytes]:
    moments = messages.encode_moments(Moments(5, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])))
    return [pb.Welcome(heartbeat=1.0, silence=5.0, moments=moments, federation="ab").SerializeToString()]


def parse_welcome(data: bytes) -> object:
    """As a learner parses the statistics of all."""
    welcome = pb.Welcome.FromString(data)
    return messages.decode_moments(welcome.moments, (3,)) if welcome.HasField("moments") else welcome


def statuses() -> list[bytes]:
    told = {"version": 3, "learners": [{"name": "north", "norm": 0.5}], "ending": None}
    return [json.dumps(told).encode(), b"[" * 100_000]


def parse_status(data: bytes) -> object:
    """As `archipel status` parses what a controller tells."""
    return read_status(data.decode())


def bodies() -> list[bytes]:
    return [BODIES.header((0, 1)), BODIES.header((1,))]


def parse_body(data: bytes) -> object:
    """As a controller looks at the safetensors header of an update; sizes fit, so that the header decides."""
    return BODIES.check_header((0, 1), data, len(data) + LAYOUT.bytes((0, 1)))


# --------------------------------------------------------------------------------------------------------------- files


def split_files() -> list[bytes]:
    data = ap.data.digits().split(learners=3)
    saved = SavedSplit("digits", len(data.x), data.classes, "ab", data.learners, data.test, data.stimuli)
    write_split(saved, place() / "made.split")
    return [(place() / "made.split").read_bytes()]


def parse_split(data: bytes) -> object:
    """As it came, and as a forger would send it: with a digest that fits."""
    path = written("split", data)
    try:
        return read_split(path)
    except ValueError:
        return read_split(written("split", forged(data)))


def forged(data: bytes) -> bytes:
    """Return a split file whose digest fits its contents; the same bytes if it has no header."""
    try:
        length = int.from_bytes(data[:8], "little")
        told = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][HEADER])
        packed = safetensors.torch.load(data)["indices"]
        told["digest"] = digest(told.get("contents"), bytearray(packed.numpy()))
        return safetensors.torch.save({"indices": packed}, {HEADER: json.dumps(told)})
    except (ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError, RecursionError):
        return data


def study_files() -> list[bytes]:
    root = Path(__file__).parents[2]
    found = [*root.glob("examples/*/study.toml"), *root.glob("src/archipel/papers/*/*.toml")]
    return [path.read_bytes() for path in sorted(found)]


def parse_study(data: bytes) -> object:
    return read_study(written("study.toml", data), code="none")


def parse_yaml(data: bytes) -> object:
    return read_study(written("study.yaml", data), code="none")


def yaml_files() -> list[bytes]:
    text = "algorithms: [fedavg, {name: hdafl, rate: 0.1}]\ndata: {source: digits, split: {learners: 3}}\nseeds: [0]\n"
    return [text.encode(), b"a: &x [1]\nb: *x\n", b"a: &a [*a]\n", b"!!python/object/apply:os.getcwd []"]


def site_files() -> list[bytes]:
    lines = ("min_rows = 30", "min_batch = 8", 'refuse = ["validation"]', "[code]", f'"net.py" = "{"ab" * 32}"')
    text = "\n".join(lines)
    return [text.encode(), b"min_rows = 5\n"]


def certificate_requests() -> list[bytes]:
    return [pem(request(new_key(), "learner", "north", ())), pem(request(new_key(), "controller", "c", ("a.org",)))]


def parse_request(data: bytes) -> object:
    """As an authority parses the request of a site."""
    made = read_request(written("request.pem", data))
    return holder_of(made), hosts_of(made)


def certificates() -> list[bytes]:
    return [pem(authority_certificate(new_key(), 30, None))]


def parse_certificate(data: bytes) -> object:
    made = read_certificate(written("certificate.pem", data))
    return holder_of(made), hosts_of(made)


def revocation_lists() -> list[bytes]:
    return [b"ab12  # north\n# a note\nFF:00\n"]


def journals() -> list[bytes]:
    path = place() / "made.sqlite"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    with journal.write():
        for number in range(1, 4):
            journal.append(Line(number, 0.5 * number, event_texts()[0].decode(), beside="{}"))
        journal.note("learner/north", "joined", {"examples": 5})
    journal.close()
    return [path.read_bytes()]


def parse_journal(data: bytes) -> object:
    for old in place().glob("read.sqlite*"):
        old.unlink()
    journal = Journal(written("read.sqlite", data))
    try:
        return [*journal.events()], journal.check_audit(), journal.last_snapshot()
    finally:
        journal.close()


def event_texts() -> list[bytes]:
    event = Trained(3, "t3", ("0", "1"), 4, Metrics(2.0, (1.0, 0.5), scored(), 0.25))
    answers = Evaluated(4, ScoreTable.of([scored_among_many(), None]))
    return [CODEC.text(event).encode(), CODEC.text(answers).encode()]


def parse_event(data: bytes) -> object:
    return CODEC.value(data.decode())


WIRE = (DecodeError, InvalidUpdate)
TARGETS = (
    Target("answer", heads, parse_answer, WIRE),
    Target("hello", hellos, parse_hello, WIRE),
    Target("order", orders, parse_order, (*WIRE, ValueError)),
    Target("welcome", welcomes, parse_welcome, WIRE),
    Target("status", statuses, parse_status, (ValueError,)),
    Target("piece", lambda: [pb.Piece(data=b"numbers").SerializeToString()], parse_piece, WIRE),
    Target("safetensors header", bodies, parse_body, (InvalidUpdate,)),
    Target("split file", split_files, parse_split, (ValueError, OSError)),
    Target("study in TOML", study_files, parse_study, (ValueError, OSError)),
    Target("study in YAML", yaml_files, parse_yaml, (ValueError, OSError)),
    Target("site file", site_files, lambda data: read_site(written("site.toml", data)), (ValueError, OSError)),
    Target("certificate request", certificate_requests, parse_request, (ValueError,)),
    Target("certificate", certificates, parse_certificate, (ValueError,)),
    Target("revocation list", revocation_lists, lambda data: read_serials(written("list", data)), (ValueError,)),
    Target("journal", journals, parse_journal, (sqlite3.Error, AuditBroken, ValueError)),
    Target("sum step", sums.sum_steps_to_begin_from, sums.parse_sum_step, (DecodeError, SecureSumRefused)),
    Target("sum answer", sums.sum_answers_to_begin_from, sums.parse_sum_answer, (DecodeError, SecureSumRefused)),
    Target("journal event", event_texts, parse_event, (ValueError,)),
)


def problem(target: Target, data: bytes) -> str | None:
    """Return what an input does that it should not, or None."""
    try:
        target.parse(data)
    except target.allowed:
        return None
    except Exception as error:
        return f"{target.name}: {type(error).__name__}: {error!s:.200}, from {data[:300]!r}"
    return None

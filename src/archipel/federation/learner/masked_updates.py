"""A learner's side of secure sums in a federation: phases in, answers out, and what must not be forgotten on disk.

What a round needs is one secret and the requests of the controller, in a file that is written before anything is
answered: told again after a crash, they give the same answers. A request that comes again is answered again; another
one in its place is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import os
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from archipel.core.parts.secure_sum import SecureSum
from archipel.federation.learner.local_state import StateFolder, Withheld
from archipel.federation.learner.policy import Refusal, failure_reason
from archipel.federation.learner.restored_files import is_restored, mark
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.privacy.accounting import Draws, epsilon
from archipel.privacy.secure_sum.channels import derived
from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.masks import Whole
from archipel.privacy.secure_sum.sum_messages import RoundKeys, SecureSumRefused
from archipel.storage.atomic_files import write_bytes

FILE = "sum.json"

log = logging.getLogger("archipel.learner")


class Signatures(Protocol):
    """Signs a learner's keys, and checks others'."""

    def sign(self, statement: bytes) -> tuple[bytes, bytes]: ...

    def verify(self, keys: RoundKeys, statement: bytes) -> str | None: ...


@dataclass(frozen=True)
class SumSettings:
    """What the learner's own study says of sums."""

    sums: SecureSum
    equally: bool
    """All updates weigh the same."""
    noise: float = 0.0
    """That any sum of a cohort has at least, in clips."""
    budget: float = math.inf
    """Epsilon that this learner's sums never exceed."""

    def refusal(self, sums: int) -> str | None:
        """Return why a learner takes no part in its sum of this number, or None."""
        if math.isinf(self.budget) or self.cost(sums) <= self.budget:
            return None
        return f"the privacy budget of {self.budget:g} does not pay for sum {sums} of this learner"

    def cost(self, sums: int) -> float:
        """Return epsilon of so many sums."""
        return epsilon("summed", self.noise, (Draws(1, 1, sums),), self.sums.delta)


def reply_in_sum(sums: MaskedUpdates | None, step: pb.SumStep, sequence: int) -> tuple[pb.Head, memoryview]:
    """Return a learner's answer to a phase, or why there is none, and the masked numbers."""
    head, body = pb.Head(task=step.task, sequence=sequence), memoryview(b"")
    try:
        if sums is None:
            raise Refusal("the study has no secure sums")
        answer, numbers = sums.answer(step)
        head.sum.CopyFrom(answer)
        if numbers is not None:
            body = numbers.data.cast("B")
            head.size, head.sha256 = len(body), hashlib.sha256(body).digest()
    except SecureSumRefused as refused:
        head.failed = failure_reason(Refusal(str(refused)), step.task)
    except Exception as error:
        head.failed = failure_reason(error, step.task)
    return head, body


class MaskedUpdates:
    """One learner's part in the secure sums of a run."""

    def __init__(
        self, name: str, folder: StateFolder, settings: SumSettings, examples: int, signatures: Signatures | None
    ) -> None:
        if signatures is None:
            raise ValueError(
                "This study adds up updates in secure sums, whose keys are signed with certificates. Give --tls; "
                "--insecure has none."
            )
        self._name, self._folder, self._settings = name, folder, settings
        self._weight = 1 if settings.equally else settings.sums.whole_weight(examples)
        self._signatures = signatures
        self._path = folder.path.with_name(FILE)
        self._learner: MaskingLearner | None = None
        self._told: dict[str, Any] = {}
        """What is in the file."""
        self._answers: dict[str, pb.SumAnswer] = {}
        """By request, as it came."""
        self._lock = threading.Lock()
        self._resume()

    def answer(self, step: pb.SumStep) -> tuple[pb.SumAnswer, Whole | None]:
        """Return the answer to a phase, and with `mask` the numbers that go with it; raise `SecureSumRefused`."""
        with self._lock:  # a request may come twice
            return self._answer(step)

    def _answer(self, step: pb.SumStep) -> tuple[pb.SumAnswer, Whole | None]:
        request = base64.b64encode(step.SerializeToString(deterministic=True)).decode()
        if request not in self._answers:
            if step.phase == "advertise":
                self._begin(step, request)
            elif self._told.get("task") != step.task:
                raise SecureSumRefused(f"{self._name}: it takes no part in round {step.task}.")
            else:
                if any(known["phase"] == step.phase for known in self._told["requests"]):
                    raise SecureSumRefused(f"{self._name}: asked to {step.phase} twice in round {step.task}.")
                self._note(step.phase, request)
            self._answers[request] = self._go_through(step)
        numbers = self._masked(step.task) if step.phase == "mask" else None
        return self._answers[request], numbers

    def end(self, task: int) -> None:
        """Forget a round: the controller has all of it."""
        if self._told.get("task") == task:
            self._path.unlink(missing_ok=True)
            self._learner, self._told, self._answers = None, {}, {}
            self._folder.memory.withheld = None

    def _begin(self, step: pb.SumStep, request: str) -> None:
        """Take part in a round with the update of one task; each round and each update once."""
        memory, withheld = self._folder.memory, self._folder.memory.withheld
        differ = sum_steps.differences(step.terms, self._settings.sums)
        if differ:
            raise SecureSumRefused(f"{self._name}: this sum is not of the study: {'; '.join(differ)}.")
        if step.task <= memory.last_sum:
            raise SecureSumRefused(f"{self._name}: round {step.task} is not above {memory.last_sum}, the last one.")
        if withheld is None or withheld.task != step.training or list(withheld.layers) != list(step.layers):
            raise SecureSumRefused(f"{self._name}: it has no update of task {step.training} with these layers.")
        if withheld.sum is not None:
            raise SecureSumRefused(f"{self._name}: the update of task {step.training} was in round {withheld.sum}.")
        reason = self._settings.refusal(memory.sums + 1)  # a controller's word is not relied on
        if reason is not None:
            raise SecureSumRefused(f"{self._name}: {reason}.")
        memory.last_sum = withheld.sum = step.task
        memory.sums += 1
        self._folder.save()
        self._told = {"task": step.task, "secret": os.urandom(32).hex(), "requests": []}
        self._answers = {}
        self._open()
        self._note(step.phase, request)

    def _open(self) -> None:
        self._learner = MaskingLearner(
            self._name,
            f"{self._folder.memory.federation}/{self._told['task']}",
            bytes.fromhex(self._told["secret"]),
            least=self._settings.sums.at_least,
            threshold=self._settings.sums.threshold,
            sign=self._signatures.sign,
            verify=self._signatures.verify,
        )

    def _note(self, phase: str, request: str) -> None:
        self._told["requests"].append({"phase": phase, "request": request})
        self._told["mark"] = mark()
        write_bytes(self._path, json.dumps(self._told).encode(), mode=0o600)

    def _resume(self) -> None:
        """Be where the last process was."""
        if not self._path.exists():
            return
        told = json.loads(self._path.read_text())
        if self._folder.restored or is_restored(self._path, told.get("mark", "")):
            # it may have answered since: with a share of another's seed, say, and would now give one of its key
            log.warning("the round of a secure sum was restored or moved, or the machine restarted: it is left")
            self._path.unlink()
            return
        self._told = told
        self._open()
        for known in self._told["requests"]:
            step = pb.SumStep.FromString(base64.b64decode(known["request"]))
            try:
                self._answers[known["request"]] = self._go_through(step)
            except SecureSumRefused:
                return  # it has refused before, and is at no phase that follows

    def _go_through(self, step: pb.SumStep) -> pb.SumAnswer:
        learner, answer = self._learner, pb.SumAnswer(phase=step.phase)
        assert learner is not None
        match step.phase:
            case "advertise":
                answer.keys.CopyFrom(sum_steps.encode_keys(learner.advertise()))
            case "share":
                cohort = sum_steps.decode_cohort(step)
                self._told["cohort"] = len(cohort.digests)
                answer.given.extend(sum_steps.encode_named(learner.share(cohort)))
            case "mask":
                answer.given.extend(sum_steps.encode_named(learner.mask(sum_steps.decode_named(step.told))))
            case "confirm":
                answer.given.extend(sum_steps.encode_named(learner.confirm(sum_steps.decode_named(step.told))))
            case "reveal":
                shares = learner.reveal(sum_steps.decode_named(step.told))
                answer.given.extend(sum_steps.encode_named(shares.seeds))
                answer.opened.extend(sum_steps.encode_named(shares.keys))
            case _:
                raise SecureSumRefused(f"{self._name}: there is no phase {step.phase[:20]!r}.")
        return answer

    def _masked(self, task: int) -> Whole:
        """Return the masked numbers of the round; the update is on disk, so they are the same each time."""
        withheld: Withheld | None = self._folder.memory.withheld
        if self._learner is None or withheld is None or withheld.sum != task:
            raise SecureSumRefused(f"{self._name}: it has no update for round {task} any more.")
        norm, clip = float(withheld.change.norm()), self._settings.sums.clip
        if norm > clip:
            log.warning("the update is longer than the clip and scaled back", extra={"norm": norm, "clip": clip})
        settings = self._settings
        quantiser = settings.sums.quantiser(self._told["cohort"], settings.equally, settings.noise)
        seed = derived(bytes.fromhex(self._told["secret"]), b"noise")  # the same each time: see `masked`
        return self._learner.masked(quantiser.encode(withheld.change.numpy(), self._weight, seed))

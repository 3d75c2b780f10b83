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
import os
import threading
from abc import ABC, abstractmethod
from typing import Any, Protocol

from archipel.core.parts.secure_sum import SecureSum
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.learner.policy import Refusal, failure_reason
from archipel.federation.learner.restored_files import is_restored, mark
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.privacy.secure_sum.channels import derived
from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.masks import Whole
from archipel.privacy.secure_sum.sum_messages import RoundKeys, SecureSumRefused
from archipel.storage.atomic_files import write_bytes

log = logging.getLogger("archipel.learner")


class Signatures(Protocol):
    """Signs a learner's keys, and checks others'."""

    def sign(self, statement: bytes) -> tuple[bytes, bytes]: ...

    def verify(self, keys: RoundKeys, statement: bytes) -> str | None: ...


def reply_in_sum(sums: SumRounds | None, step: pb.SumStep, sequence: int) -> tuple[pb.Head, memoryview]:
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


class SumRounds(ABC):
    """One learner's part in the secure sums of a run, of one kind; there is one open round at a time."""

    def __init__(
        self, file: str, name: str, folder: StateFolder, settings: SecureSum, signatures: Signatures | None
    ) -> None:
        """file: what a round needs after a crash, in the folder."""
        if signatures is None:
            raise ValueError(
                "This study adds up updates in secure sums, whose keys are signed with certificates. Give --tls; "
                "--insecure has none."
            )
        self._name, self._folder, self._sums = name, folder, settings
        self._signatures = signatures
        self._path = folder.path.with_name(file)
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
            self._forget()

    @abstractmethod
    def _admit(self, step: pb.SumStep) -> None:
        """Promise the numbers that are asked for to this round, on disk; raise `SecureSumRefused` if there are none.

        Each round and each learner's numbers are admitted once.
        """

    @abstractmethod
    def _numbers(self, task: int) -> Whole | None:
        """Return the numbers promised to a round, which are on disk, so the same each time; None if they are gone."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget the numbers of a round that is over."""

    def _begin(self, step: pb.SumStep, request: str) -> None:
        """Take part in a round."""
        differ = sum_steps.differences(step.terms, self._sums)
        if differ:
            raise SecureSumRefused(f"{self._name}: this sum is not of the study: {'; '.join(differ)}.")
        self._admit(step)
        self._told = {"task": step.task, "secret": os.urandom(32).hex(), "requests": []}
        self._answers = {}
        self._open()
        self._note(step.phase, request)

    def _open(self) -> None:
        self._learner = MaskingLearner(
            self._name,
            f"{self._folder.memory.federation}/{self._told['task']}",
            bytes.fromhex(self._told["secret"]),
            least=self._sums.at_least,
            threshold=self._sums.threshold,
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
        """Return the masked numbers of the round."""
        numbers = None if self._learner is None or self._told.get("task") != task else self._numbers(task)
        if self._learner is None or numbers is None:
            raise SecureSumRefused(f"{self._name}: it has no numbers for round {task} any more.")
        return self._learner.masked(numbers)

    @property
    def _cohort(self) -> int:
        """The learners of the open round."""
        return int(self._told["cohort"])

    @property
    def _noise_seed(self) -> bytes:
        """The seed of this learner's noise in the open round, the same each time."""
        return derived(bytes.fromhex(self._told["secret"]), b"noise")

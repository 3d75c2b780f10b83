"""Messages of a secure sum for the fuzzer: three learners and a collector, at every phase, and what they parse."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path

from archipel.federation.security.authority import create_authority, issue
from archipel.federation.security.round_signatures import RoundSignatures
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import PHASES, SecureSumRefused

NAMES = ("00", "01", "02")
ROUND = "here/9"
STEPS = PHASES[:-1]


@cache
def signatures() -> dict[str, RoundSignatures]:
    """Return what learners sign with; their certificates are real ones, since a controller parses them."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) / "ca"
    create_authority(folder)
    for name in NAMES:
        issue(folder, "learner", name)
    return {name: RoundSignatures(folder / name, NAMES) for name in NAMES}


def learner(name: str) -> MaskingLearner:
    """Return a learner at the beginning of the round; its keys are the same each time."""
    one, secret = signatures()[name], hashlib.sha256(name.encode()).digest()
    return MaskingLearner(name, ROUND, secret, least=3, threshold=0.75, sign=one.sign, verify=one.verify)


def collector() -> SumCollector:
    return SumCollector(ROUND, NAMES, least=3, threshold=0.75, verify=signatures()["00"].verify)


def asked(of: SumCollector, name: str) -> pb.SumStep:
    """Return the step that a controller sends."""
    step = pb.SumStep(task=9, phase=of.phase)
    if of.phase == "share":
        cohort = of.cohort_for(name)
        step.told.extend(sum_steps.encode_named(cohort.digests))
        step.keys.extend(sum_steps.encode_keys(cohort.keys[one]) for one in sorted(cohort.keys))
    elif of.phase == "mask":
        step.told.extend(sum_steps.encode_named(of.boxes_for(name)))
    elif of.phase != "advertise":
        step.told.extend(sum_steps.encode_named(of.tags_for(name)))
    return step


def answered(by: MaskingLearner, step: pb.SumStep) -> pb.SumAnswer:
    """Return a learner's answer to a step."""
    answer = pb.SumAnswer(phase=step.phase)
    match step.phase:
        case "advertise":
            answer.keys.CopyFrom(sum_steps.encode_keys(by.advertise()))
        case "share":
            answer.given.extend(sum_steps.encode_named(by.share(sum_steps.decode_cohort(step))))
        case "mask":
            answer.given.extend(sum_steps.encode_named(by.mask(sum_steps.decode_named(step.told))))
        case "confirm":
            answer.given.extend(sum_steps.encode_named(by.confirm(sum_steps.decode_named(step.told))))
        case "reveal":
            shares = by.reveal(sum_steps.decode_named(step.told))
            answer.given.extend(sum_steps.encode_named(shares.seeds))
            answer.opened.extend(sum_steps.encode_named(shares.keys))
        case _:
            raise SecureSumRefused("there is no such phase")
    return answer


def take(into: SumCollector, name: str, answer: pb.SumAnswer) -> None:
    """Have a collector count an answer."""
    match into.phase:
        case "advertise":
            keys = sum_steps.decode_keys(answer.keys)
            if keys.learner != name:
                raise SecureSumRefused("keys of another")
            into.take_keys(keys)
        case "share":
            into.take_boxes(name, sum_steps.decode_named(answer.given))
        case "mask":
            into.take_sent(name, sum_steps.decode_named(answer.given))
        case "confirm":
            into.take_confirmed(name, sum_steps.decode_named(answer.given))
        case "reveal":
            into.take_shares(name, sum_steps.decode_shares(answer))


@cache
def honest() -> tuple[dict[str, pb.SumStep], dict[str, dict[str, pb.SumAnswer]]]:
    """Return what learner 00 is asked in each phase, and what everybody answers."""
    one, learners = collector(), {name: learner(name) for name in NAMES}
    steps, answers = dict[str, pb.SumStep](), dict[str, dict[str, pb.SumAnswer]]()
    for phase in STEPS:
        steps[phase] = asked(one, "00")
        answers[phase] = {name: answered(by, asked(one, name)) for name, by in learners.items()}
        for name, answer in answers[phase].items():
            take(one, name, answer)
        one.close()
    return steps, answers


def sum_steps_to_begin_from() -> list[bytes]:
    return [step.SerializeToString() for step in honest()[0].values()]


def parse_sum_step(data: bytes) -> object:
    """As a learner does in the phase that the step names: the phases before it were honest."""
    step = pb.SumStep.FromString(data)
    one, steps = learner("00"), honest()[0]
    for phase in STEPS[: STEPS.index(step.phase) if step.phase in STEPS else 0]:
        answered(one, steps[phase])
    return answered(one, step)


def sum_answers_to_begin_from() -> list[bytes]:
    return [answers["00"].SerializeToString() for answers in honest()[1].values()]


def parse_sum_answer(data: bytes) -> object:
    """As a controller does in the phase that the answer names; then the sum goes on, and is opened."""
    answer, answers = pb.SumAnswer.FromString(data), honest()[1]
    one, at = collector(), STEPS.index(answer.phase) if answer.phase in STEPS else 0
    for phase in STEPS[: at + 1]:
        for name in NAMES[phase == STEPS[at] :]:
            take(one, name, answers[phase][name])
        if phase == STEPS[at]:
            take(one, "00", answer)
        one.close()
    return one.phase

"""All sides of a secure sum in one process, for simulations, with real keys, shares and signatures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.masks import Whole
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import RoundKeys


def rehearse(
    cohort: Sequence[str], round_: str, numbers: Mapping[str, Whole], *, least: int, threshold: float
) -> Whole:
    """Return the sum of the given numbers; learners of the cohort without numbers drop out before sending."""
    certificates = {name: Ed25519PrivateKey.generate() for name in cohort}

    @cache  # cached: in a simulation, one check of a signature is enough for all neighbours
    def checked(learner: str, statement: bytes, signature: bytes) -> str | None:
        try:
            certificates[learner].public_key().verify(signature, statement)
        except (InvalidSignature, KeyError):
            return "it was made with another key"
        return None

    def verify(keys: RoundKeys, statement: bytes) -> str | None:
        return checked(keys.learner, statement, keys.signature)

    def learner(name: str) -> MaskingLearner:
        def sign(statement: bytes) -> tuple[bytes, bytes]:
            return certificates[name].sign(statement), b""

        return MaskingLearner(name, round_, os.urandom(32), least=least, threshold=threshold, sign=sign, verify=verify)

    learners = {name: learner(name) for name in cohort}
    collector = SumCollector(round_, cohort, least=least, threshold=threshold, verify=verify)
    for one in learners.values():
        collector.take_keys(one.advertise())
    collector.close()
    for name, one in learners.items():
        collector.take_boxes(name, one.share(collector.cohort_for(name)))
    collector.close()
    total = np.zeros_like(next(iter(numbers.values())))
    for name, own in numbers.items():
        tags = learners[name].mask(collector.boxes_for(name))
        total += learners[name].masked(own)
        collector.take_sent(name, tags)
    collector.close()
    for name in numbers:
        collector.take_confirmed(name, learners[name].confirm(collector.tags_for(name)))
    collector.close()
    for name in numbers:
        if not collector.complete:
            collector.take_shares(name, learners[name].reveal(collector.tags_for(name)))
    collector.close()
    return collector.unmask(total)[0]

"""All sides of a secure sum in one process: what a simulation does, with real keys, shares and signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.masks import Bits, Whole
from archipel.privacy.secure_sum.sum_collector import SumCollector

LEAST = 3


def rehearse(
    cohort: Sequence[str], round_: str, numbers: Mapping[str, Whole], *, threshold: float, bits: Bits
) -> Whole:
    """Return the sum of the numbers of those who sent any; the others of the cohort drop out before they send."""
    certificates = {name: Ed25519PrivateKey.generate() for name in cohort}

    @cache  # each learner checks all signatures; here one check is enough for all of them
    def verify(learner: str, statement: bytes, signature: bytes) -> bool:
        try:
            certificates[learner].public_key().verify(signature, statement)
        except (InvalidSignature, KeyError):
            return False
        return True

    learners = {
        name: MaskingLearner(
            name, round_, least=LEAST, threshold=threshold, bits=bits, sign=certificates[name].sign, verify=verify
        )
        for name in cohort
    }
    size = len(next(iter(numbers.values())))
    collector = SumCollector(round_, size=size, threshold=threshold, bits=bits)
    keys = collector.cohort(learner.advertise() for learner in learners.values())
    for learner in learners.values():
        collector.take_shares(learner.share(keys))
    for name, own in numbers.items():
        collector.take_numbers(learners[name].mask(collector.boxes_for(name), own))
    request = collector.request()
    return collector.total(learners[name].reveal(request) for name in numbers)

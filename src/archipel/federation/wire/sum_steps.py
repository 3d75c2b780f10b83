"""Secure sums on the wire: phases as protobuf messages, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from archipel.core.parts.secure_sum import SecureSum
from archipel.federation.wire import federation_pb2 as pb
from archipel.privacy.secure_sum.sum_messages import Cohort, RevealedShares, RoundKeys, SecureSumRefused


def encode_terms(settings: SecureSum) -> pb.SumTerms:
    return pb.SumTerms(
        threshold=settings.threshold,
        clip=settings.clip,
        bits=settings.bits,
        most_examples=settings.most_examples,
        at_least=settings.at_least,
    )


def differences(told: pb.SumTerms, mine: SecureSum) -> list[str]:
    """Return in which settings the controller differs from a learner's own study."""
    names = ("threshold", "clip", "bits", "most_examples", "at_least")
    pairs = ((name, getattr(told, name), getattr(mine, name)) for name in names)
    return [f"{name}={asked!r}, and the study has {own!r}" for name, asked, own in pairs if asked != own]


def encode_keys(keys: RoundKeys) -> pb.RoundKeys:
    return pb.RoundKeys(
        learner=keys.learner,
        sharing=keys.sharing,
        masking=keys.masking,
        seed_hash=keys.seed_hash,
        signature=keys.signature,
        certificate=keys.certificate,
    )


def decode_keys(said: pb.RoundKeys) -> RoundKeys:
    return RoundKeys(said.learner, said.sharing, said.masking, said.seed_hash, said.signature, said.certificate)


def encode_named(many: Mapping[str, bytes]) -> list[pb.Named]:
    return [pb.Named(name=name, data=data) for name, data in sorted(many.items())]


def decode_named(said: Iterable[pb.Named]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for one in said:
        if one.name in found:
            raise SecureSumRefused(f"{one.name[:100]!r} came twice")
        found[one.name] = one.data
    return found


def decode_cohort(said: pb.SumStep) -> Cohort:
    return Cohort(decode_named(said.told), {keys.learner: decode_keys(keys) for keys in said.keys})


def decode_shares(said: pb.SumAnswer) -> RevealedShares:
    return RevealedShares(decode_named(said.given), decode_named(said.opened))

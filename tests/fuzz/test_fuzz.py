"""The short form of fuzzing: every parser under hypothesis, from valid inputs; `make fuzz` is the long form."""

from __future__ import annotations

import warnings
from base64 import b64decode, b64encode
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target, certificate_requests, certificates, forged, problem, split_files

SLOW = {"study in TOML": 40, "study in YAML": 40, "site file": 40, "journal": 40}
each = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@each
def test_the_unchanged_inputs_are_accepted(target: Target) -> None:
    """At least one of them, or the changes below would all fail for the same reason."""
    taken = 0
    for data in target.corpus():
        try:
            target.parse(data)
            taken += 1
        except target.allowed:
            continue
    assert taken > 0


@pytest.mark.slow
@each
def test_changed_inputs_are_refused_with_a_message_or_accepted(target: Target) -> None:
    corpus = target.corpus()

    @settings(max_examples=SLOW.get(target.name, 300), suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**63))
    def run(seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert problem(target, mutated(corpus, Random(seed))) is None

    run()


@pytest.mark.slow
@each
def test_arbitrary_bytes_are_refused_with_a_message_or_accepted(target: Target) -> None:
    @settings(max_examples=SLOW.get(target.name, 200), suppress_health_check=list(HealthCheck))
    @given(data=st.binary(max_size=300))
    def run(data: bytes) -> None:
        assert problem(target, data) is None

    run()


def test_a_forged_split_file_has_a_digest_that_fits() -> None:
    """Otherwise the forger of these tests would never get past the digest."""
    (data,) = split_files()
    target = next(target for target in TARGETS if target.name == "split file")
    broken = data.replace(b'"test', b'"tes_')
    assert broken != data
    assert forged(broken) != broken
    with pytest.raises(ValueError, match="is not a split file of Archipel: 'test'"):
        target.parse(broken)


def test_a_request_and_a_certificate_of_another_version_are_refused_with_a_message() -> None:
    """cryptography raises InvalidVersion, which is no ValueError."""
    for name, made, version in (("certificate request", certificate_requests(), 2), ("certificate", certificates(), 9)):
        der = b64decode(b"".join(made[0].splitlines()[1:-1]))
        before = b"\x02\x01" + (b"\x00\x30" if name == "certificate request" else b"\x02\x02")
        assert der.count(before) == 1
        changed = der.replace(before, before[:2] + bytes([version]) + before[3:])
        first, *_, last = made[0].splitlines()
        target = next(target for target in TARGETS if target.name == name)
        with pytest.raises(ValueError, match="or not a whole one"):
            target.parse(b"\n".join([first, b64encode(changed), last, b""]))


def test_a_certificate_with_an_extension_twice_names_nobody() -> None:
    """cryptography raises DuplicateExtension, which is no ValueError."""
    (made,) = certificates()
    der = b64decode(b"".join(made.splitlines()[1:-1]))
    usage, identifier = b"\x06\x03\x55\x1d\x0f", b"\x06\x03\x55\x1d\x0e"
    assert der.count(usage) == der.count(identifier) == 1
    first, *_, last = made.splitlines()
    target = next(target for target in TARGETS if target.name == "certificate")
    data = b"\n".join([first, b64encode(der.replace(usage, identifier)), last, b""])
    assert target.parse(data) == (None, ())

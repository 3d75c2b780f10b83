"""The folder of a process's own certificate: whom it names, and what is reported of a damaged one."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from archipel import ArchipelWarning
from archipel.federation.security.authority import create_authority, issue
from archipel.federation.security.certificates import YEAR
from archipel.federation.security.names import Identity, identity_of
from archipel.federation.security.tls import (
    Certificates,
    channel_credentials,
    own_identity,
    server_credentials,
)
from tests.federation.forging import NOW, forged, root

LONG_AGO = NOW - timedelta(days=2 * YEAR)
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
HOSPITAL = Identity("learner", "hospital-1")
ALICE = Identity("operator", "alice")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of a learner's certificates that may be spoiled."""
    create_authority(tmp_path / "ca")
    return issue(tmp_path / "ca", "learner", "hospital-1").folder


def complaint(folder: Path) -> str:
    """All that need the folder complain alike, before they do anything else."""
    told = set()
    for read in (Certificates, own_identity, channel_credentials, server_credentials):
        with pytest.raises((ValueError, OSError)) as caught:
            read(folder)
        told.add(str(caught.value))
    assert len(told) == 1
    return told.pop()


def test_a_folder_says_whom_it_is_for(ca: Path) -> None:
    assert own_identity(ca / "hospital-1") == HOSPITAL
    assert own_identity(ca / "alice") == ALICE
    assert Certificates(ca / "controller").title == "controller"


def test_a_folder_that_is_not_there() -> None:
    assert complaint(Path("nowhere")).startswith("--tls nowhere: is no folder. It should hold key.pem")


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem", "authority.pem"])
def test_files_that_are_missing_or_not_whole(mine: Path, name: str) -> None:
    whole = (mine / name).read_bytes()
    for nonsense in (whole[: len(whole) // 2], b"", b"\x00\xff" * 100, whole.replace(b"M", b"N")):
        (mine / name).write_bytes(nonsense)
        told = complaint(mine)
        assert told.startswith(f"{mine / name}: is no ")
        assert "or not a whole one. Copy it again" in told
    (mine / name).unlink()
    assert complaint(mine).startswith(f"--tls {mine}: has no {name}.")


def test_a_key_of_another_certificate(mine: Path, ca: Path) -> None:
    (mine / "key.pem").write_bytes((ca / "hospital-2" / "key.pem").read_bytes())
    assert complaint(mine).startswith(f"{mine}: key.pem and certificate.pem do not match")


def test_a_key_that_is_a_certificate_and_the_other_way_round(mine: Path) -> None:
    (mine / "key.pem").write_bytes((mine / "certificate.pem").read_bytes())
    assert "key.pem: is no key of `archipel ca`" in complaint(mine)


def test_another_authority(mine: Path, ca: Path) -> None:
    (mine / "authority.pem").write_bytes(root(ca))
    assert complaint(mine).startswith(f"{mine}: certificate.pem is not from the authority in authority.pem")


def test_what_has_expired_is_told_with_the_way_out(ca: Path) -> None:
    told = complaint(ca / "expired")
    assert "expired/certificate.pem: expired on" in told
    assert told.endswith("Make a new key (archipel ca request learner expired) and have the authority sign it.")


def test_what_is_not_valid_yet_is_told(ca: Path) -> None:
    told = complaint(ca / "early")
    assert "early/certificate.pem: is valid from" in told
    assert told.endswith("Set the clock.")


def test_an_authority_that_has_expired_is_told(tmp_path: Path) -> None:
    create_authority(tmp_path / "ca", days=400, at=LONG_AGO)
    told = complaint(issue(tmp_path / "ca", "learner", "a", at=LONG_AGO).folder)
    assert "authority.pem: expired on" in told
    assert told.endswith(
        "(archipel ca init CA --renew). Make a new key (archipel ca request learner a) and have the authority sign it."
    )


@pytest.mark.parametrize(("days", "warned"), [(29, True), (32, False)])
def test_expiry_is_announced_a_month_before(tmp_path: Path, days: int, warned: bool) -> None:
    create_authority(tmp_path / "ca")
    folder = issue(tmp_path / "ca", "learner", "a", days=days).folder
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert own_identity(folder) == Identity("learner", "a")
    assert [(warning.category, "in 28 days. Make a new key" in str(warning.message)) for warning in told] == [
        (ArchipelWarning, True)
    ] * warned


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_told(mine: Path, mode: int) -> None:
    os.chmod(mine / "key.pem", mode)
    with pytest.warns(
        ArchipelWarning, match=f"can be read by others on this machine. Close it: chmod 600 {mine}/key.pem"
    ):
        own_identity(mine)


def test_each_process_needs_its_own_certificate(ca: Path) -> None:
    with pytest.raises(ValueError, match="is the certificate of learner/hospital-1; a controller needs its own"):
        server_credentials(ca / "hospital-1")
    for read in (own_identity, channel_credentials):
        with pytest.raises(
            ValueError, match="is the certificate of controller; here it takes one of a learner or an op"
        ):
            read(ca / "controller")


def test_certificates_that_name_nobody(mine: Path) -> None:
    key, certificate = forged(mine.parent, "learner", x509.DNSName("localhost"))
    (mine / "key.pem").write_bytes(key)
    (mine / "certificate.pem").write_bytes(certificate)
    for read in (own_identity, channel_credentials, server_credentials):
        with pytest.raises(ValueError, match="is the certificate of nobody"):
            read(mine)


@pytest.mark.parametrize("who", [HOSPITAL, ALICE])
def test_an_identity_is_read_as_it_is_written(who: Identity) -> None:
    assert identity_of(str(who)) == who

"""The private authority: what its certificates say, that keys are kept, and what it refuses."""

from __future__ import annotations

import os
import socket
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from archipel.federation.security.authority import Issued, create_authority, issue, issued
from archipel.federation.security.certificates import title_of
from archipel.federation.security.key_files import read_certificate, read_key
from archipel.federation.security.names import KINDS, request_command

NOW = datetime.now(UTC)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    create_authority(tmp_path / "ca")
    return tmp_path / "ca"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def certificate_in(folder: Path) -> x509.Certificate:
    return read_certificate(folder / "certificate.pem")


def usages(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --------------------------------------------------------------------------------------------------------- what is made


def test_the_authority_certifies_others_and_makes_no_further_authorities(ca: Path) -> None:
    made = certificate_in(ca / "authority")
    made.verify_directly_issued_by(made)
    limits = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert limits.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = made.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.digital_signature) == (True, False)
    assert isinstance(read_key(ca / "authority" / "key.pem").curve, ec.SECP256R1)


def test_certificates_say_who_and_can_do_one_thing(ca: Path) -> None:
    made = [issue(ca, "controller"), issue(ca, "learner", "hospital-1"), issue(ca, "operator", "alice")]
    assert [one.folder for one in made] == [ca / "controller", ca / "hospital-1", ca / "alice"]
    papers = [certificate_in(one.folder) for one in made]
    assert [title_of(paper) for paper in papers] == ["controller", "learner/hospital-1", "operator/alice"]
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    assert [usages(paper) for paper in papers] == [[server], [client], [client]]
    for one, paper in zip(made, papers, strict=True):
        paper.verify_directly_issued_by(certificate_in(ca / "authority"))
        assert paper.public_key() == read_key(one.folder / "key.pem").public_key()
        assert (one.folder / "authority.pem").read_bytes() == (ca / "authority" / "certificate.pem").read_bytes()
        limits = paper.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert limits == x509.BasicConstraints(ca=False, path_length=None)
    assert len({paper.serial_number for paper in papers}) == 3


def test_nobody_else_can_read_a_key_even_under_a_careless_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_authority(tmp_path / "ca")
        issue(tmp_path / "ca", "learner", "a")
        issue(tmp_path / "ca", "learner", "a", renew=True)
    finally:
        os.umask(before)
    folders = [tmp_path / "ca", tmp_path / "ca" / "authority", tmp_path / "ca" / "a"]
    assert [mode(folder) for folder in folders] == [0o700] * 3
    assert [mode(folder / "key.pem") for folder in folders[1:]] == [0o600] * 2


def test_the_controller_is_for_this_machine_unless_told_otherwise(ca: Path, tmp_path: Path) -> None:
    assert set(issue(ca, "controller").hosts) == {"localhost", "127.0.0.1", "::1", socket.gethostname()}
    create_authority(tmp_path / "other")
    told = issue(tmp_path / "other", "controller", hosts=["fl.example.org", "10.0.0.5", "fl.example.org", "fe80::1"])
    assert told.hosts == ("fl.example.org", "10.0.0.5", "fe80::1")


def test_they_are_valid_for_the_days_that_were_asked_for(ca: Path) -> None:
    assert create_authority(ca, renew=True, at=NOW).expires == NOW.replace(microsecond=0) + timedelta(days=3650)
    made = issue(ca, "learner", "a", days=10)
    assert made.days_left() == 9
    # whole days, so that the last hours are no day any more, and an expired one is below 0
    assert issue(ca, "learner", "b", days=1).days_left() == 0
    assert issue(ca, "learner", "c", days=1, at=NOW - timedelta(days=2)).days_left() == -2
    # a machine whose clock is a little late takes them too
    assert certificate_in(ca / "a").not_valid_before_utc < NOW - timedelta(minutes=30)


def test_the_list_begins_with_the_authority_and_leaves_out_what_is_none_of_it(ca: Path) -> None:
    issue(ca, "operator", "alice")
    issue(ca, "learner", "hospital-1")
    issue(ca, "controller")
    (ca / "notes.txt").write_text("mine")
    (ca / "empty").mkdir()
    (ca / ".hospital-2-xyz").mkdir()  # of a crash
    (ca / "authority" / "key.pem").unlink()  # kept elsewhere
    found = [(one.kind, one.name) for one in issued(ca)]
    assert found == [
        ("authority", "authority"),
        ("controller", "controller"),
        ("operator", "alice"),
        ("learner", "hospital-1"),
    ]


# -------------------------------------------------------------------------------------------------------------- renewal


def test_renewal_makes_a_new_key(ca: Path) -> None:
    issue(ca, "learner", "a", days=5)
    key, before = read_key(ca / "a" / "key.pem"), certificate_in(ca / "a")
    made = issue(ca, "learner", "a", renew=True)
    after = certificate_in(ca / "a")
    assert made.expires > before.not_valid_after_utc
    assert after.serial_number != before.serial_number
    assert after.public_key() != key.public_key()
    assert after.public_key() == read_key(ca / "a" / "key.pem").public_key()


def test_a_renewed_controller_keeps_its_hosts(ca: Path) -> None:
    issue(ca, "controller", hosts=["fl.example.org"])
    assert issue(ca, "controller", renew=True).hosts == ("fl.example.org",)
    assert issue(ca, "controller", hosts=["10.0.0.5"], renew=True).hosts == ("10.0.0.5",)


def test_certificates_fit_the_authority_before_and_after_its_renewal(ca: Path) -> None:
    issue(ca, "learner", "a")
    old = certificate_in(ca / "authority")
    create_authority(ca, renew=True, at=NOW + timedelta(days=1))
    new = certificate_in(ca / "authority")
    assert new.not_valid_after_utc > old.not_valid_after_utc
    for authority_ in (old, new):
        certificate_in(ca / "a").verify_directly_issued_by(authority_)
    issue(ca, "learner", "a", renew=True)
    assert read_certificate(ca / "a" / "authority.pem") == new


# -------------------------------------------------------------------------------------------------- nothing is replaced


def test_what_is_there_is_left_as_it_is(ca: Path) -> None:
    issue(ca, "controller")
    issue(ca, "learner", "a")
    before = contents(ca)
    with pytest.raises(FileExistsError, match="ca/authority: exists already; nothing in it was changed"):
        create_authority(ca)
    with pytest.raises(FileExistsError, match="ca/controller: exists already"):
        issue(ca, "controller")
    for kind in KINDS[1:]:
        with pytest.raises(FileExistsError, match="ca/a: exists already"):
            issue(ca, kind, "a")
    with pytest.raises(ValueError, match="is the certificate of learner/a, not of operator/a"):
        issue(ca, "operator", "a", renew=True)
    assert contents(ca) == before


def test_two_at_once_make_one(ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is done after we have looked and before we rename."""
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        issue(ca, "learner", "a", days=77)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(FileExistsError, match="exists already"):
        issue(ca, "learner", "a")
    assert issued(ca)[-1].days_left() == 76
    assert sorted(path.name for path in ca.iterdir()) == ["a", "authority", "issued"]


@pytest.mark.parametrize("renew", [False, True])
def test_a_full_disk_leaves_what_was_there(ca: Path, monkeypatch: pytest.MonkeyPatch, renew: bool) -> None:
    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    if renew:
        issue(ca, "learner", "a")
    before = contents(ca)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        issue(ca, "learner", "a", renew=renew)
    assert before.items() <= contents(ca).items()
    monkeypatch.undo()
    issue(ca, "learner", "a", renew=renew)


# ------------------------------------------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "a/b", "../a", "a b", "a\n", "ä", "a:b", "a%2fb", "a" * 65, "a\0b"],
)
def test_names_that_make_no_folder_or_uri_are_refused(ca: Path, name: str) -> None:
    before = contents(ca.parent)
    for kind in KINDS[1:]:
        with pytest.raises(ValueError, match="a name should be 1 to 64 letters"):
            issue(ca, kind, name)
    assert contents(ca.parent) == before


@pytest.mark.parametrize("name", ["authority", "controller", "home", "issued", "HOME"])
def test_names_that_mean_something_else_are_refused(ca: Path, name: str) -> None:
    with pytest.raises(ValueError, match="authority, controller, home, issued mean something else here"):
        issue(ca, "learner", name)


@pytest.mark.parametrize("name", ["a", "a" * 64, "Hospital_1.north-west", "1", "homes"])
def test_other_names_are_fine(ca: Path, name: str) -> None:
    assert title_of(certificate_in(issue(ca, "learner", name).folder)) == f"learner/{name}"


@pytest.mark.parametrize(
    "host", ["", "a b", "https://a", "a:9443", "[::1]", "10.0.0.5:1", "-a", "a..b", "*.a", "ä.org", "a." * 130 + "a"]
)
def test_what_cannot_be_dialled_is_refused(ca: Path, host: str) -> None:
    with pytest.raises(ValueError, match="should be a name or an address that learners dial, without a port"):
        issue(ca, "controller", hosts=[host])
    assert not (ca / "controller").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_is_no_address(ca: Path, host: str) -> None:
    with pytest.raises(ValueError, match=f"--host {host}: means every address of a machine"):
        issue(ca, "controller", hosts=[host])


@pytest.mark.parametrize("days", [0, -1, 731, 10**12])
def test_days_that_make_no_sense_are_refused(ca: Path, tmp_path: Path, days: int) -> None:
    with pytest.raises(ValueError, match=f"--days should be 1 to 730, got {days}"):
        issue(ca, "learner", "a", days=days)
    with pytest.raises(ValueError, match="--days should be"):
        create_authority(tmp_path / "other", days=5 * days)
    assert not (tmp_path / "other").exists()


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    create_authority(tmp_path / "ca", days=100, at=NOW)
    with pytest.raises(
        ValueError,
        match=rf"learner a: 365 days are more than the 100 that its authority has left. Renew that first: "
        rf"archipel ca init {tmp_path / 'ca'} --renew. Or give --days 100",
    ):
        issue(tmp_path / "ca", "learner", "a", at=NOW)
    issue(tmp_path / "ca", "learner", "a", days=100, at=NOW)
    create_authority(tmp_path / "old", days=1, at=NOW - timedelta(days=9))
    with pytest.raises(ValueError, match=r"more than the 0 that its authority has left.*--renew\.$"):
        issue(tmp_path / "old", "learner", "a", days=1)


@pytest.mark.parametrize("file", ["certificate.pem", "key.pem"])
def test_an_authority_that_is_not_whole_is_told(ca: Path, file: str) -> None:
    path = ca / "authority" / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{path}: is no (certificate|key).*Copy it again from where it was made"):
        issue(ca, "learner", "a")
    path.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"{ca}: has no authority \({path} is not there\). Make one: archipel ca"
    ):
        issue(ca, "learner", "a")


def test_the_key_of_another_authority_is_told(ca: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    os.replace(tmp_path / "other" / "authority" / "key.pem", ca / "authority" / "key.pem")
    with pytest.raises(ValueError, match=r"key.pem and certificate.pem do not match"):
        issue(ca, "learner", "a")


def test_there_is_nothing_to_renew(ca: Path, tmp_path: Path) -> None:
    missing = "there is no certificate to renew. Leave out --renew"
    with pytest.raises(FileNotFoundError, match=missing):
        issue(ca, "learner", "a", renew=True)
    with pytest.raises(FileNotFoundError, match=missing):
        issue(ca, "controller", renew=True)
    with pytest.raises(FileNotFoundError, match="has no authority"):
        create_authority(tmp_path / "none", renew=True)


def test_a_file_in_the_way_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("mine")
    with pytest.raises(NotADirectoryError, match="ca: is a file, not a folder"):
        create_authority(tmp_path / "ca")
    assert (tmp_path / "ca").read_text() == "mine"


def test_a_strangers_certificate_in_the_folder_is_told(ca: Path) -> None:
    (ca / "stranger").mkdir()
    (ca / "stranger" / "certificate.pem").write_bytes((ca / "authority" / "certificate.pem").read_bytes())
    with pytest.raises(ValueError, match=r"stranger: holds a certificate that does not say whom it is for"):
        issued(ca)


def test_what_is_made_is_told() -> None:
    told = Issued("learner", "a", Path("ca/a"), "1f", (), NOW + timedelta(days=2, hours=1))
    assert told.days_left() == 2
    assert request_command("learner/a") == "archipel ca request learner a"
    assert request_command("controller") == "archipel ca request controller"

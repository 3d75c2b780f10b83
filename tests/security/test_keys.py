"""Keys: made where they are used, signed by the authority, revoked and expired while a controller runs.

Every refusal here comes from real commands, or from a controller that listens with mutual TLS on loopback.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from archipel import ArchipelWarning
from archipel.cli.program import app
from archipel.federation.controller import service
from archipel.federation.learner.link import Link, TurnedAway
from archipel.federation.security import authority, gate
from archipel.federation.security.authority import create_authority, issue, issued, revoke
from archipel.federation.security.certificates import new_key, subject
from archipel.federation.security.key_files import pem, read_certificate, read_key
from archipel.federation.security.names import Identity
from archipel.federation.security.revocation import RevocationList
from archipel.federation.security.tls import channel_credentials, own_identity, server_credentials
from tests.federation.hand_made import NAMES, study
from tests.federation.scene import Scene, scene
from tests.federation.stage import Setting, set_up
from tests.waiting import reached, until

SECRET = "a passphrase of many words"


def said(*arguments: Any, typed: str | None = None) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False, input=typed)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def refused(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(result.exception, ValueError | OSError), result.output
    return str(result.exception)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET + "\n")
    return tmp_path


def fingerprint(told: str) -> str:
    return told.partition("Fingerprint of the key: ")[2].partition(" Send")[0]


def keys_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


# ------------------------------------------------------------------------------------------- requests and signatures


def test_the_key_never_leaves_its_machine() -> None:
    said("ca", "init", "ca", "--passphrase-file", "secret")
    for kind, name, *more in (("learner", "north"), ("controller", "controller", "--host", "localhost")):
        site = Path(f"machine-of-{name}")
        site.mkdir()
        names = [] if kind == "controller" else [name]
        told = said("ca", "request", kind, *names, "--out", site / "tls", *more)
        assert sorted(path.name for path in (site / "tls").iterdir()) == ["key.pem", "request.pem"]
        assert b"PRIVATE" not in (site / "tls" / "request.pem").read_bytes()
        seal = fingerprint(told)
        said("ca", "sign", "ca", site / "tls" / "request.pem", "--fingerprint", seal, "--passphrase-file", "secret")
        for file in ("certificate.pem", "authority.pem"):
            shutil.copy(Path("ca") / name / file, site / "tls")
    assert keys_below(Path("ca")) == [Path("ca/authority/key.pem")]
    assert own_identity(Path("machine-of-north/tls")) == Identity("learner", "north")
    server_credentials(Path("machine-of-controller/tls"))
    assert [one.name for one in issued(Path("ca"))] == ["authority", "controller", "north"]


def request_of(site: str, name: str = "north") -> tuple[Path, str]:
    told = said("ca", "request", "learner", name, "--out", site)
    return Path(site) / "request.pem", fingerprint(told)


def test_renewing_takes_a_new_key() -> None:
    create_authority(Path("ca"))
    first, seal = request_of("first")
    said("ca", "sign", "ca", first, "--fingerprint", seal)
    before = read_certificate(Path("ca/north/certificate.pem"))
    assert "ca/north: exists already" in refused("ca", "sign", "ca", first, "--fingerprint", seal)
    assert "Renewing takes a new key: make a new request" in refused(
        "ca", "sign", "ca", first, "--renew", "--fingerprint", seal
    )
    second, seal = request_of("second")
    said("ca", "sign", "ca", second, "--renew", "--fingerprint", seal)
    after = read_certificate(Path("ca/north/certificate.pem"))
    assert after.public_key() == read_key(Path("second/key.pem")).public_key() != before.public_key()
    assert len(issued(Path("ca"))) == 3  # the first one is still known, so that it can be revoked


def test_a_request_is_signed_only_if_somebody_compared_its_fingerprint() -> None:
    create_authority(Path("ca"))
    mine, seal = request_of("mine")
    theirs, other = request_of("theirs")
    assert seal != other
    assert "Do not sign it" in refused("ca", "sign", "ca", theirs, "--fingerprint", seal)
    assert "There is no terminal to confirm the fingerprint" in refused("ca", "sign", "ca", mine)
    assert not Path("ca/north").exists()


def written(key: Any, *names: x509.GeneralName) -> Path:
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject("learner"))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    path = Path("forged.pem")
    path.write_bytes(pem(builder.sign(key, SHA256())))
    return path


def uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: written(new_key()), "does not say whom it is for"),
        (lambda: written(new_key(), uri("archipel:learner/a"), uri("archipel:operator/b")), "does not say whom"),
        (lambda: written(new_key(), uri("archipel:learner/../a")), "does not say whom it is for"),
        (lambda: written(new_key(), uri("archipel:authority")), "does not say whom it is for"),
        (lambda: written(new_key(), uri("archipel:learner/a"), x509.DNSName("localhost")), "asks for host names"),
        (lambda: written(new_key(), uri("archipel:controller")), "the controller needs a host name"),
        (lambda: written(ec.generate_private_key(ec.SECP384R1()), uri("archipel:learner/a")), "on the curve P-256"),
        (lambda: written(rsa.generate_private_key(65537, 1024), uri("archipel:learner/a")), "on the curve P-256"),
    ],
)
def test_what_no_certificate_is_made_of_is_refused(make: Callable[[], Path], words: str) -> None:
    create_authority(Path("ca"))
    assert words in refused("ca", "sign", "ca", make())
    assert [path.name for path in Path("ca").iterdir()] == ["authority"]


def test_a_request_that_was_changed_on_its_way_is_refused() -> None:
    create_authority(Path("ca"))
    path, seal = request_of("site")
    asked = x509.load_pem_x509_csr(path.read_bytes())
    der = asked.public_bytes(Encoding.DER).replace(b"learner/north", b"learner/south")
    path.write_bytes(pem(x509.load_der_x509_csr(der)))
    assert "its signature does not fit its key" in refused("ca", "sign", "ca", path, "--fingerprint", seal)
    path.write_bytes(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
    assert "is no request for a certificate" in refused("ca", "sign", "ca", path, "--fingerprint", seal)


def test_extensions_of_a_request_are_not_copied() -> None:
    create_authority(Path("ca"))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject("authority"))
    builder = builder.add_extension(x509.SubjectAlternativeName([uri("archipel:learner/a")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=3), critical=True)
    Path("request.pem").write_bytes(pem(builder.sign(new_key(), SHA256())))
    made = read_certificate(authority.sign_request(Path("ca"), Path("request.pem")).folder / "certificate.pem")
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert made.subject == subject("learner")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learner"], "learners and operators need a name"),
        (["controller", "somebody"], "the controller has none"),
        (["learner", "../a"], "a name should be 1 to 64 letters"),
        (["learner", "a", "--host", "localhost"], "--host is for the controller's certificate"),
        (["learner", "a", "--out", "taken"], "taken: exists already; nothing in it was changed"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    Path("taken").mkdir()
    assert words in refused("ca", "request", *arguments)


def test_a_folder_that_waits_for_its_certificate_says_so() -> None:
    request_of("site")
    told = refused("status", "--tls", "site")
    assert told.startswith("--tls site: has no certificate.pem. Have the authority sign request.pem")


# --------------------------------------------------------------------------------------------------- the passphrase


def test_the_authoritys_key_has_a_passphrase() -> None:
    assert "Give --passphrase-file, or --no-passphrase" in refused("ca", "init", "ca")
    assert not Path("ca").exists()
    said("ca", "init", "ca", "--passphrase-file", "secret")
    assert b"ENCRYPTED" in Path("ca/authority/key.pem").read_bytes()
    assert "has a passphrase, and there is no terminal to ask for it" in refused("ca", "learner", "ca", "a")
    Path("wrong").write_text("another passphrase")
    assert "the passphrase is wrong" in refused("ca", "learner", "ca", "a", "--passphrase-file", "wrong")
    assert [path.name for path in Path("ca").iterdir()] == ["authority"]
    said("ca", "learner", "ca", "a", "--passphrase-file", "secret")
    said("ca", "init", "ca", "--renew", "--passphrase-file", "secret")
    assert b"ENCRYPTED" in Path("ca/authority/key.pem").read_bytes()


def test_a_short_passphrase_is_refused() -> None:
    Path("short").write_text("1234")
    assert "at least 12 characters" in refused("ca", "init", "ca", "--passphrase-file", "short")
    assert not Path("ca").exists()


def test_certificates_are_valid_for_two_years_at_most() -> None:
    create_authority(Path("ca"))
    assert "--days should be 1 to 730, got 731" in refused("ca", "learner", "ca", "a", "--days", "731")
    assert "--days should be 1 to 3650, got 3651" in refused("ca", "init", "other", "--days", "3651", "--no-passphrase")
    assert issue(Path("ca"), "learner", "a", days=730).days_left() == 729


# ------------------------------------------------------------------------------------------------------ revocation


def test_a_name_is_revoked_with_all_its_certificates() -> None:
    create_authority(Path("ca"))
    issue(Path("ca"), "learner", "a")
    issue(Path("ca"), "learner", "a", renew=True)
    issue(Path("ca"), "learner", "b")
    assert said("ca", "revoke", "ca", "a").count("revoked: learner a") == 2
    serials = {one.serial for one in issued(Path("ca")) if one.name == "a"}
    found = RevocationList(Path("ca/revoked.txt"))
    assert all(serial in found for serial in serials)
    assert [one.revoked for one in issued(Path("ca"))] == [False, True, True, False]
    (last,) = revoke(Path("ca"), issued(Path("ca"))[-1].serial)
    assert last.name == "b"
    assert "has issued no valid certificate to 'nobody'" in refused("ca", "revoke", "ca", "nobody")


def test_a_list_is_read_as_people_write_it() -> None:
    path = Path("revoked.txt")
    path.write_text("# stolen laptop\nAB:CD:01  # north\n\n00ff\n")
    found = RevocationList(path)
    assert "abcd01" in found
    assert "ff" in found
    path.write_text("north\n")
    with pytest.raises(ValueError, match=r"revoked.txt, line 1: 'north' is no serial number"):
        RevocationList(path)


def test_a_list_that_vanishes_or_is_damaged_stays_in_force() -> None:
    path = Path("revoked.txt")
    found = RevocationList(path)
    assert "ff" not in found
    path.write_text("ff\n")
    assert found.refresh()
    assert "ff" in found
    for damage in (lambda: path.write_text("nonsense"), lambda: path.write_bytes(b"\xff\xfe\xfa"), path.unlink):
        damage()
        assert not found.refresh()
        assert "ff" in found
    path.write_text("ff\nee\n")
    assert found.refresh()
    assert "ee" in found


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "ca"
    create_authority(folder)
    issue(folder, "controller", hosts=["localhost"])
    for name in NAMES:
        issue(folder, "learner", name)
    for name in ("alice", "bob", "carol", "mallory"):
        issue(folder, "operator", name)
    return folder


def link(one: Scene, papers: Path, name: str) -> Link:
    return Link(f"localhost:{one.port}", channel_credentials(papers / name))


def endless(**federation: Any) -> dict[str, Any]:
    return study(algorithms="async_fedavg", ending={"commits": 1_000_000}, federation=federation)


def serial_in(papers: Path, name: str) -> str:
    return next(found.serial for found in issued(papers) if found.name == name)


async def refusals(one: Scene) -> list[dict[str, Any]]:
    """Return the rows of the audit on callers that were rejected."""
    return [
        {**detail, "who": who} for who, what, detail in await one.audit() if what == "refused" and "serial" in detail
    ]


async def rejection(one: Scene, papers: Path, name: str) -> TurnedAway:
    line = link(one, papers, name)
    with pytest.raises(TurnedAway) as caught:
        await line.look()
    await line.close()
    return caught.value


@pytest.mark.slow
def test_whoever_is_revoked_while_it_listens_is_dropped_and_the_others_go_on(
    papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOOK", 0.01)
    victim, serial = NAMES[2], serial_in(papers, NAMES[2])

    async def go() -> None:
        async with scene(endless(), tmp_path / "scene", papers) as one:
            for name in NAMES:
                one.light(name, 0.01)
            await one.until(lambda: one.commits_of(victim))
            assert one.federation.sessions[victim].queue is not None  # it listens
            (tmp_path / "scene" / "state" / "revoked.txt").write_text(f"{serial}\n")
            await one.until(lambda: one.federation.sessions[victim].queue is None)
            error = await rejection(one, papers, victim)
            assert error.code == grpc.StatusCode.PERMISSION_DENIED
            assert f"the certificate with serial number {serial} has been revoked" in str(error)
            await one.until(lambda: refusals(one))
            row = (await refusals(one))[-1]
            assert (row["who"], row["serial"]) == (f"learner/{victim}", serial)
            assert row["address"].rpartition(":")[0] in ("ipv4:127.0.0.1", "ipv6:%5B::1%5D")
            version = one.version
            await one.until(lambda: one.version >= version + 5)

    asyncio.run(go())


@pytest.mark.slow
def test_a_certificate_that_expires_ends_its_open_calls(
    papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOOK", 0.01)
    victim = NAMES[2]
    expires = next(found.expires for found in issued(papers) if found.name == victim)

    class Later(datetime):
        """A clock at the end of the victim's certificate; those made after it are valid a little longer."""

        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return expires + timedelta(microseconds=1)

    async def go() -> None:
        async with scene(endless(), tmp_path / "scene", papers) as one:
            one.light(victim, 0.01)
            session = one.federation.sessions[victim]
            await one.until(lambda: session.queue is not None)
            monkeypatch.setattr(gate, "datetime", Later)
            await one.until(lambda: session.queue is None)
            error = await rejection(one, papers, victim)
            assert f"the certificate expired on {expires:%Y-%m-%d %H:%M} UTC" in str(error)

    asyncio.run(go())


@pytest.mark.slow
def test_a_connection_has_a_largest_age_and_nobody_loses_anything_by_it(
    papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        service, "AGES", [("grpc.max_connection_age_ms", 300), ("grpc.max_connection_age_grace_ms", 100)]
    )
    addresses: set[str] = set()
    look = gate.certified_peer

    def seen(context: Any) -> gate.Peer:
        peer = look(context)
        addresses.add(peer.address)
        return peer

    monkeypatch.setattr(gate, "certified_peer", seen)

    async def go() -> None:
        async with scene(endless(wait_for=1), tmp_path / "scene", papers) as one:
            one.light(NAMES[0], 0.01)
            await one.until(lambda: len(addresses) >= 4)
            version = one.version
            await one.until(lambda: one.version >= version + 5)

    asyncio.run(go())


# ---------------------------------------------------------------------------------------------- operators and roles


@pytest.mark.slow
def test_operators_are_listed_and_do_what_their_role_allows(papers: Path, tmp_path: Path) -> None:
    listed = ["alice", {"name": "bob", "role": "viewer"}, {"name": "carol", "role": "admin"}]

    async def go() -> None:
        async with scene(endless(operators=listed, wait_for=1), tmp_path / "scene", papers) as one:
            victim = NAMES[2]

            async def steered(who: str, action: str) -> str:
                line = link(one, papers, who)
                try:
                    return (await line.steer(action, victim)).told
                except TurnedAway as error:
                    return str(error)
                finally:
                    await line.close()

            error = await rejection(one, papers, "mallory")  # of the right authority, and not on the list
            assert error.code == grpc.StatusCode.PERMISSION_DENIED
            assert str(error) == "mallory is not on the study's list of operators."
            for action in ("pause", "withdraw", "readmit"):
                assert "bob is listed as viewer; that takes the role" in await steered("bob", action)
            assert await steered("alice", "pause") == f"{victim}: pause at version 0"
            assert await steered("alice", "withdraw") == f"{victim}: withdraw at version 0"
            assert "alice is listed as operator; that takes the role admin." in await steered("alice", "readmit")
            assert await steered("carol", "readmit") == f"{victim}: readmit at version 0"
            audit = [(who, what) for who, what, _ in await one.audit() if who.startswith("operator/")]
            refused, *done = audit
            assert refused == ("operator/mallory", "refused")
            assert done == [("operator/alice", "pause"), ("operator/alice", "withdraw"), ("operator/carol", "readmit")]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        (["alice", "alice"], "federation.operators names alice twice"),
        (["../alice"], "a name should be 1 to 64 letters"),
        ([{"name": "alice", "role": "king"}], "viewer"),
    ],
)
def test_a_list_of_operators_that_makes_no_sense_is_refused(operators: list[Any], words: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(operators=operators), tmp_path / "scene"):
            pass

    with pytest.raises(ValueError, match=words):
        asyncio.run(go())


# ----------------------------------------------------------------------------------------- certificates that end soon


@pytest.mark.slow
def test_status_and_metrics_tell_when_certificates_end(papers: Path, tmp_path: Path) -> None:
    short = tmp_path / "ca"
    shutil.copytree(papers, short)
    issue(short, "learner", NAMES[0], days=40, renew=True)
    issue(short, "learner", NAMES[1], days=31, at=datetime.now(UTC) - timedelta(days=29, hours=12), renew=True)

    async def go() -> None:
        async with scene(endless(), tmp_path / "scene", short) as one:
            for name in NAMES[:2]:
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    one.light(name)
                assert [warning.category for warning in warned] == [ArchipelWarning] * (name == NAMES[1])
            await reached(lambda: len(one.federation.status._certificates) == 2, "both learners to call")
            line = link(one, short, "alice")
            told = json.loads((await line.look()).told)["certificates"]
            await line.close()
            assert [(entry["who"], entry["soon"]) for entry in told] == [
                (f"learner/{NAMES[1]}", True),
                (f"learner/{NAMES[0]}", False),
                ("operator/alice", False),
            ]
            line = link(one, short, NAMES[0])
            (own,) = json.loads((await line.look()).told)["certificates"]
            await line.close()
            assert own["who"] == f"learner/{NAMES[0]}"
            name, labels = "archipel_certificate_expiry_timestamp_seconds", {"who": f"learner/{NAMES[1]}"}
            value = one.federation.meters.registry.get_sample_value(name, labels)
            assert value == datetime.fromisoformat(told[0]["expires"]).timestamp()

    asyncio.run(go())


# --------------------------------------------------------------------------------------------------- the real command


@pytest.mark.slow
def test_the_command_refuses_a_revoked_certificate_and_drops_it_while_it_runs(tmp_path: Path) -> None:
    stage = set_up(tmp_path / "stage", Setting('"async_fedavg"', 1_000_000))
    ca = stage.folder / "ca"
    victim = stage.setting.names[0]
    process = stage.controller()
    until(lambda: process.listening or process.ended, "a controller that listens")
    asks = ["--controller", f"localhost:{stage.port}", "--tls", ca / victim]
    assert "version 0" in said("status", *asks)
    revoke(ca, victim)
    assert not process.ended
    shutil.copy(ca / "revoked.txt", stage.state / "revoked.txt")

    def rejected() -> bool:
        result = CliRunner().invoke(app, ["status", *map(str, asks)])
        return result.exception is not None and "has been revoked" in str(result.exception)

    until(rejected, "the revoked learner to be rejected")
    other = ["--controller", f"localhost:{stage.port}", "--tls", ca / stage.setting.names[1]]
    assert "version 0" in said("status", *other)
    told = json.loads(next(line for line in process.last_life().splitlines() if "a caller was rejected" in line))
    assert told["serial"] == serial_in(ca, victim)
    assert told["caller"] == f"learner/{victim}"
    process.kill()

"""`archipel ca`: from nothing to the certificates of a federation, one command each."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archipel.cli.program import app
from archipel.federation.security.authority import create_authority, issue
from archipel.federation.security.names import Identity
from archipel.federation.security.tls import Certificates, own_identity


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["ca", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.stdout.split())


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["ca", *arguments])
    assert isinstance(result.exception, ValueError | OSError)
    assert result.stdout == ""
    return str(result.exception)


def program(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in another process."""
    code = f"import sys; sys.argv[1:] = {['ca', *arguments]!r}\n{before}\nfrom archipel.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_five_commands_make_a_federation() -> None:
    told = said("init", "ca/", "--no-passphrase")
    assert told.startswith("ca/authority: certificate.pem, key.pem; valid until")
    assert told.endswith("then here, with the request.pem of each: archipel ca sign ca request.pem")
    told = said("controller", "ca/", "--host", "localhost", "--host", "10.0.0.5")
    assert "Its host names: localhost, 10.0.0.5." in told
    travel = "Copy this folder to its machine over a secure channel, then delete it here."
    assert said("learner", "ca/", "hospital-1").endswith(travel)
    assert said("operator", "ca/", "alice", "--days", "40").endswith(travel)
    assert Certificates(Path("ca/controller")).title == "controller"
    assert own_identity(Path("ca/hospital-1")) == Identity("learner", "hospital-1")
    assert own_identity(Path("ca/alice")) == Identity("operator", "alice")
    assert [line.split()[:2] for line in table("ca/")] == [
        ["authority", "authority"],
        ["controller", "controller"],
        ["alice", "operator"],
        ["hospital-1", "learner"],
    ]


def table(folder: str) -> list[str]:
    """The lines of the list, below its head."""
    result = CliRunner().invoke(app, ["ca", "list", folder], catch_exceptions=False)
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["who", "kind", "expires", "days", "left", "serial", "number"]
    return lines


def test_the_list_tells_until_when() -> None:
    create_authority(Path("ca"))
    issue(Path("ca"), "learner", "a", days=10)
    issue(Path("ca"), "learner", "b", days=10, at=datetime.now(UTC) - timedelta(days=20))
    assert [line.split()[3] for line in table("ca")] == ["3649", "9", "expired"]
    listed = json.loads(said("list", "ca", "--json"))
    assert [one["days_left"] for one in listed] == [3649, 9, -11]
    assert listed[1] == {
        "name": "a",
        "kind": "learner",
        "serial": listed[1]["serial"],
        "folder": "ca/a",
        "hosts": [],
        "expires": listed[1]["expires"],
        "days_left": 9,
        "revoked": False,
    }
    assert timedelta(days=9) < datetime.fromisoformat(listed[1]["expires"]) - datetime.now(UTC) < timedelta(days=10)


def test_the_same_command_renews() -> None:
    said("init", "ca", "--no-passphrase")
    said("controller", "ca", "--host", "fl.example.org", "--days", "5")
    said("learner", "ca", "a", "--days", "5")
    key = Path("ca/a/key.pem").read_bytes()
    assert refused("learner", "ca", "a").endswith("nothing in it was changed. Choose another name, or --renew.")
    assert "Copy this folder to its machine" in said("learner", "ca", "a", "--renew")
    assert "Its host names: fl.example.org." in said("controller", "ca", "--renew")
    assert "before the authority's old one expires" in said("init", "ca", "--renew")
    assert Path("ca/a/key.pem").read_bytes() != key
    assert [line.split()[3] for line in table("ca")] == ["3649", "364", "4", "364", "4"]  # with those before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learner", "nowhere", "a"], "nowhere: has no authority"),
        (["list", "nowhere"], "nowhere: has no authority"),
        (["init", "ca"], "ca/authority: exists already"),
        (["learner", "ca", "../a"], "a name should be 1 to 64 letters"),
        (["operator", "ca", "home"], "mean something else here"),
        (["learner", "ca", "a", "--days", "0"], "--days should be 1 to 730, got 0"),
        (["learner", "ca", "a", "--renew"], "ca/a: there is no certificate to renew"),
        (["controller", "ca", "--host", "a:9443"], "--host a:9443: should be a name or an address"),
    ],
)
def test_nonsense_is_refused_with_the_way_out(arguments: list[str], message: str) -> None:
    create_authority(Path("ca"))
    assert message in refused(*arguments)
    assert [path.name for path in Path("ca").iterdir()] == ["authority"]


@pytest.mark.slow
def test_an_error_is_a_line_and_an_exit_code() -> None:
    done = program("learner", "ca", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ca: has no authority (ca/authority/certificate.pem is not there). Make one:")


@pytest.mark.slow
def test_what_is_missing_without_the_extra_is_told() -> None:
    done = program("init", "ca", before="sys.modules['cryptography'] = None")
    assert done.returncode == 2
    assert done.stderr == "error: archipel ca needs cryptography: pip install '.[federation]' in the source folder\n"
    assert not Path("ca").exists()


@pytest.mark.slow
def test_it_needs_neither_torch_nor_grpc() -> None:
    done = program(
        "init", "ca", "--no-passphrase", before="import atexit; atexit.register(lambda: print(*sys.modules))"
    )
    assert done.returncode == 0
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "cryptography" in loaded
    assert loaded.isdisjoint({"torch", "grpc"})

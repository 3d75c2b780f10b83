"""What is installed: pinned by hashes, without a word of where it was downloaded; services with limits."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = (ROOT / "requirements.lock", ROOT / "deploy" / "requirements.lock")
EXTRA_LOCKS = tuple(sorted((ROOT / "deploy" / "locks").glob("*.lock")))
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.MULTILINE)

pytestmark = pytest.mark.skipif(not LOCKS[0].exists(), reason="not in a checkout of the source")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", name)[0]).lower()


def pins(path: Path) -> dict[str, str]:
    return {normal(name): version for name, version, _ in PIN.findall(path.read_text())}


@pytest.mark.parametrize("path", [*LOCKS, *EXTRA_LOCKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_line_is_a_version_with_hashes(path: Path) -> None:
    text = path.read_text()
    assert PIN.sub("", text).strip() == ""
    assert not re.search(r"https?:|file:|index|find-links|trusted", text)


def test_the_lock_holds_every_package_of_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    wanted = {normal(name) for name in (*project["dependencies"], *extras)} - {"archipel"}
    assert wanted <= pins(LOCKS[0]).keys()
    needed = {normal(n) for n in (*project["dependencies"], *project["optional-dependencies"]["federation"])}
    assert needed <= pins(LOCKS[1]).keys()


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_lock_has_the_tested_versions(path: Path) -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    tested = {normal(line): line.split("==")[1] for line in lines}
    locked = pins(path)
    differ = {n: (v, tested[n]) for n, v in locked.items() if n in tested and v.split("+")[0] != tested[n]}
    assert not differ, "run `make lock`"


def test_every_extra_that_an_image_may_have_has_a_lock_of_its_own() -> None:
    """With the lock of `federation` it holds all that the extra names, in the versions of all extras together."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {path.stem for path in EXTRA_LOCKS} == extras.keys() - {"federation", "test", "dev", "docs"}
    every, there = pins(LOCKS[0]), pins(LOCKS[1])
    for path in EXTRA_LOCKS:
        own = pins(path)
        assert own.items() <= every.items(), "run `make lock`"
        assert not own.keys() & there.keys()
        assert {normal(name) for name in extras[path.stem]} <= own.keys() | there.keys()


@pytest.mark.parametrize(
    ("extras", "read"),
    [("", ""), ("ray", "-r locks/ray.lock"), ("plots,ray", "-r locks/plots.lock -r locks/ray.lock")],
)
def test_the_container_installs_the_extras_that_it_is_given(extras: str, read: str) -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    (locks,) = re.findall(r"--require-hashes .*?-r requirements\.lock (\$\(.*\))$", text, re.MULTILINE | re.DOTALL)
    said = subprocess.run(["sh", "-c", f"echo {locks}"], env={"EXTRAS": extras}, capture_output=True, check=True)
    assert said.stdout.decode().strip() == read
    assert text.index("FROM ") < text.index("\nARG EXTRAS=\n") < text.index("$EXTRAS"), "each stage has its own"
    assert "COPY deploy/locks locks\n" in text
    assert "!deploy/locks\n" in (ROOT / "deploy" / "Dockerfile.dockerignore").read_text()


def test_the_container_installs_by_hashes_alone() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    installs = re.findall(r"pip install ([^&]*?)(?:&&|\n(?!\s))", text.replace("\\\n", ""))
    assert len(installs) == 2
    assert all("--require-hashes" in one or "--no-deps --no-build-isolation" in one for one in installs)


def test_the_containers_base_is_named_by_its_digest() -> None:
    """`FROM name@` without a digest is refused by every builder."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["python:3.11-slim@${DIGEST}"]
    assert re.findall(r"^ARG (.*)$", text, re.MULTILINE) == ["DIGEST", "EXTRAS="], "no default, which could be a tag"


@pytest.mark.parametrize("unit", ["archipel-controller.service", "archipel-learner@.service"])
def test_units_have_limits_and_closed_folders(unit: str) -> None:
    text = (ROOT / "deploy" / unit).read_text()
    for line in ("UMask=0077", "StateDirectoryMode=0700", "LimitCORE=0", "NoNewPrivileges=yes"):
        assert f"\n{line}\n" in text
    for key in ("LimitNOFILE", "MemoryMax", "TasksMax"):
        assert re.search(rf"^{key}=\S+$", text, re.MULTILINE)


def test_units_read_keys_from_where_the_readme_puts_them() -> None:
    unit = (ROOT / "deploy" / "archipel-controller.service").read_text()
    assert re.findall(r"LoadCredential=key.pem:(\S+)", unit) == ["/etc/archipel/controller/key.pem"]
    assert "cp -r ca/controller /etc/archipel/" in (ROOT / "deploy" / "README.md").read_text()


def test_the_compose_file_has_limits() -> None:
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    for key in ("mem_limit:", "pids_limit:", "nofile:", "cap_drop: [ALL]", "read_only: true"):
        assert key in text

"""Finding and downloading files, against a server of our own."""

import gzip
import hashlib
import importlib.util
import io
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from archipel.data import download as downloading
from archipel.data import fetch as fetching
from archipel.data.fetch import DataFiles, File, fetch, retrieve
from tests.real_files import cache

BODY = bytes(range(256)) * 40
DIGEST = "sha256:" + hashlib.sha256(BODY).hexdigest()


@dataclass
class Site:
    """What the server offers, how badly it behaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    """After so many bytes the next answers break off."""
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            body = state.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start and start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = state.cut.pop(0) if state.cut else len(body)
            self.wfile.write(body[start:end])

        def log_message(self, *args: Any) -> None:
            pass

    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "DEBIAN", tmp_path / "debian")
    # files here are small, and a part is kept in whole blocks
    monkeypatch.setattr(downloading, "BLOCK", 1000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    state.files["/toy.bin"] = BODY
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()


def toy(site: Site, **changes: str) -> DataFiles:
    parts = {"name": "toy.bin", "digest": DIGEST} | changes
    file = File(parts["name"], (f"{site.address}/{parts['name']}",), parts["digest"])
    return DataFiles("toy", ((file,),))


def test_a_download_is_kept_and_not_asked_for_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    first = fetch(toy(site))
    assert first.read() == BODY
    assert cache() == ["toy", "toy/toy.bin"]
    assert "downloading toy.bin" in capsys.readouterr().err
    assert fetch(toy(site)).paths == first.paths
    assert site.asked == [("/toy.bin", None)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(downloading, "BLOCK", len(BODY) // 2)
    fetch(toy(site))
    shown = terminal.getvalue().rstrip("\n").split("\r")
    assert [line.count("#") for line in shown] == [0, 0, 15, 30]
    assert shown[-1] == f"toy.bin [{'#' * 30}] 0.0 of 0.0 MB"


def test_a_download_that_breaks_off_is_resumed_by_the_same_call(site: Site) -> None:
    site.cut = [1000, 7000]
    assert fetch(toy(site)).read() == BODY
    assert site.asked == [("/toy.bin", None), ("/toy.bin", "bytes=1000-"), ("/toy.bin", "bytes=7000-")]


def test_a_download_that_was_given_up_is_resumed_by_the_next_call(site: Site) -> None:
    site.cut = [1000] * downloading.TRIES
    with pytest.raises(FileNotFoundError, match=r"broke off after 1000 of 10240 bytes; call again to resume it"):
        fetch(toy(site))
    assert cache() == ["toy", "toy/toy.bin.part"]
    site.asked.clear()
    assert fetch(toy(site)).read() == BODY
    assert site.asked == [("/toy.bin", "bytes=1000-")]
    assert cache() == ["toy", "toy/toy.bin"]


def test_a_server_that_knows_no_ranges_sends_everything_again(site: Site) -> None:
    site.ranges, site.cut = False, [1000]
    assert fetch(toy(site)).read() == BODY
    assert site.asked == [("/toy.bin", None), ("/toy.bin", "bytes=1000-")]


@pytest.mark.parametrize("length", [3000, len(BODY), len(BODY) + 5])
def test_the_part_of_another_version_is_thrown_away(site: Site, length: int) -> None:
    part = fetching.cache() / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * length)
    assert fetch(toy(site)).read() == BODY
    assert cache() == ["toy", "toy/toy.bin"]


def test_a_wrong_checksum_leaves_nothing(site: Site) -> None:
    site.files["/toy.bin"] = BODY[::-1]
    with pytest.raises(ValueError, match=r"gave something else than the official toy.bin, and nothing was kept"):
        fetch(toy(site))
    assert cache() == ["toy"]


def test_a_truncated_gzip_leaves_nothing(site: Site) -> None:
    site.files["/toy.gz"] = gzip.compress(BODY)[:-9]
    with pytest.raises(ValueError, match=r"nothing was kept: .*toy.gz.part is truncated or damaged"):
        fetch(toy(site, name="toy.gz"))
    assert cache() == ["toy"]


def test_the_checksum_of_a_gzip_is_that_of_its_contents(site: Site) -> None:
    for level in (1, 9):
        site.files["/toy.gz"] = gzip.compress(BODY, level)
        found = fetch(toy(site, name="toy.gz"))
        assert found.read() == BODY
        found.paths[0].unlink()


def test_the_next_address_is_asked_when_one_says_no(site: Site) -> None:
    file = File("toy.bin", (f"{site.address}/gone", f"{site.address}/toy.bin"), DIGEST)
    assert fetch(DataFiles("toy", ((file,),))).read() == BODY
    assert [path for path, _ in site.asked] == ["/gone", "/toy.bin"]


def test_the_publishers_list_of_sums(site: Site) -> None:
    right, wrong = hashlib.sha256(BODY).hexdigest(), "0" * 64
    file = File("toy.bin", (f"{site.address}/toy.bin",), sums=f"{site.address}/SHA256SUMS.txt")
    site.files["/SHA256SUMS.txt"] = f"{wrong} other.bin\n{wrong} toy.bin\n".encode()
    with pytest.raises(ValueError, match="nothing was kept"):
        fetch(DataFiles("toy", ((file,),)))
    site.files["/SHA256SUMS.txt"] = f"{right}  toy.bin\n".encode()
    assert fetch(DataFiles("toy", ((file,),))).read() == BODY
    assert cache() == ["toy", "toy/toy.bin"]


def test_two_at_once_download_once(site: Site) -> None:
    target = fetching.cache() / "toy" / "toy.bin"
    file = toy(site).forms[0][0]
    threads = [threading.Thread(target=retrieve, args=(file, target)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == BODY
    assert site.asked == [("/toy.bin", None)]
    assert cache() == ["toy", "toy/toy.bin"]


def test_without_a_network_one_error_says_which_file_to_put_where(site: Site, tmp_path: Path) -> None:
    wanted = DataFiles(
        "toy",
        (
            (File("a.bin", ("http://127.0.0.1:9/a.bin",)), File("b.bin", ("http://127.0.0.1:9/b.bin",))),
            (File("c.npz"),),
        ),
        how="Ask the author.",
        refused=(("a.pkl", "it is a pickle."),),
    )
    home = tmp_path / "cache" / "archipel" / "toy"
    home.mkdir(parents=True)
    (home / "b.bin").touch()
    (home / "a.pkl").touch()
    with pytest.raises(FileNotFoundError) as error:
        fetch(wanted)
    told = str(error.value).splitlines()
    assert told[0] == "toy: its files are not on this machine. Wanted: a.bin, b.bin; or c.npz. Looked in:"
    assert told[1:4] == [
        "  $ARCHIPEL_DATA, which is not set",
        f"  {home}, which lacks a.bin",
        f"  {tmp_path / 'debian' / 'toy'}",
    ]
    assert told[4] == f"{home / 'a.pkl'} is there, but it is a pickle."
    assert told[5] == "Downloading http://127.0.0.1:9/a.bin: [Errno 111] Connection refused."
    assert told[6:] == [
        "Ask the author.",
        f"Put the files into {home}, or into a folder 'toy' anywhere and set ARCHIPEL_DATA to the folder above it.",
    ]
    assert cache() == ["toy", "toy/a.pkl", "toy/b.bin"]


def test_without_pooch_the_error_names_the_extra(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        FileNotFoundError, match=r"needs pooch: pip install '\.\[data\]' in the source .*\.\nPut the files into"
    ):
        fetch(toy(site))
    assert site.asked == []
    (fetching.cache() / "toy").mkdir(parents=True)
    (fetching.cache() / "toy" / "toy.bin").write_bytes(BODY)
    assert fetch(toy(site)).read() == BODY


def test_an_error_of_the_server_keeps_the_part(site: Site) -> None:
    site.cut = [1000] * downloading.TRIES
    with pytest.raises(FileNotFoundError):
        fetch(toy(site))
    del site.files["/toy.bin"]
    with pytest.raises(FileNotFoundError, match=r"404"):
        fetch(toy(site))
    assert (fetching.cache() / "toy" / "toy.bin.part").read_bytes() == BODY[:1000]


def test_a_file_that_cannot_be_downloaded_is_only_looked_for(site: Site) -> None:
    with pytest.raises(FileNotFoundError, match=r"Wanted: c.npz. Looked in:"):
        fetch(DataFiles("toy", ((File("c.npz"),),)))
    assert site.asked == []
    assert cache() == []


def test_places_in_order(alone: Path, tmp_path: Path) -> None:
    wanted = DataFiles("toy", ((File("toy.bin.gz"),),))
    mine, cached, debian = alone / "toy", tmp_path / "cache/archipel/toy", tmp_path / "debian/toy"
    for folder in (debian, cached, mine):
        folder.mkdir(parents=True)
        (folder / "toy.bin.gz").write_bytes(gzip.compress(str(folder).encode()))
        assert fetch(wanted).read() == str(folder).encode()
    (mine / "toy.bin.gz").unlink()
    (mine / "toy.bin").write_bytes(b"not compressed")
    assert fetch(wanted).read() == b"not compressed"


def test_a_place_with_a_part_of_the_files_is_passed_over(alone: Path, tmp_path: Path) -> None:
    wanted = DataFiles("toy", ((File("a"), File("b")), (File("c*"),)))
    (alone / "toy").mkdir()
    (alone / "toy" / "a").touch()
    whole = tmp_path / "cache/archipel/toy"
    whole.mkdir(parents=True)
    for name in ("a", "b"):
        (whole / name).touch()
    assert fetch(wanted).paths == (whole / "a", whole / "b")
    (alone / "toy" / "c17").touch()
    assert fetch(wanted).paths == (alone / "toy" / "c17",)


def test_a_wrong_file_of_the_users_is_refused_unless_wanted(alone: Path) -> None:
    wanted = DataFiles("toy", ((File("toy.bin", digest=DIGEST),),))
    (alone / "toy").mkdir()
    (alone / "toy" / "toy.bin").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"toy.bin is not the official file.*pass verify=False"):
        fetch(wanted).read()
    with pytest.raises(ValueError, match=r"toy.bin is not the official file"):
        fetch(wanted).check()
    assert fetch(wanted, verify=False).read() == b"something else"


def test_a_data_folder_that_does_not_exist(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIPEL_DATA", str(alone / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder. Set it to the folder that holds a folder"):
        fetch(DataFiles("toy", ((File("toy.bin"),),)))

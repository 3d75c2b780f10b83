"""The server of the page, spoken to without a browser: what it gives, whom it admits, and what a slow reader costs."""

from __future__ import annotations

import http.client
import json
import re
import socket
from email.message import Message
from pathlib import Path

import pytest

from archipel.live import http_server
from archipel.live.access import Access, parse_address
from archipel.live.http_server import LiveServer
from archipel.live.serving import followed_in, open_page
from archipel.runs.record_lines import record_line
from archipel.runs.save import save_run
from tests.live.conftest import serving
from tests.live.scenes import film_run
from tests.waiting import until


def get(server: LiveServer, path: str, **headers: str) -> tuple[int, Message, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers={"Host": "localhost", **headers})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_the_page_comes_with_a_policy_that_names_what_may_run(server: LiveServer) -> None:
    status, headers, body = get(server, "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "unsafe" not in policy
    assert re.search(r"default-src 'none'; style-src 'sha256-\S+'; script-src 'sha256-\S+'; connect-src 'self'", policy)
    assert b"http://" not in body.replace(b"http://www.w3.org/", b"").replace(b"https://github.com/leeoniya/uPlot", b"")


def test_texts_are_read_from_any_byte_on(server: LiveServer) -> None:
    until(lambda: server.follower.sizes.get(0, (0, 0, 0))[2] > 0, "the first run")
    _, _, whole = get(server, "/events/0")
    _, _, rest = get(server, "/events/0?from=100")
    assert rest == whole[100:]
    assert [json.loads(line)[0] for line in whole.splitlines()][:5] == ["L", "L", "L", "m", "m"]
    _, _, curve = get(server, "/curve/0")
    assert [json.loads(line) for line in curve.splitlines()] == [[3.0, 1, 3.0, 1, 0.5], [5.0, 2, 6.0, 2, 0.75]]


@pytest.mark.parametrize("path", ["/curve/99", "/events/0?from=-1", "/events/x", "/../etc/passwd", "/study.toml"])
def test_nothing_else_can_be_read(server: LiveServer, path: str) -> None:
    assert get(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(server: LiveServer, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, "/", headers={"Host": "localhost"})
    assert connection.getresponse().status == 501
    connection.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:9444", 200), ("[::1]:9444", 200), ("evil.example", 403), ("127.0.0.1.evil", 403)],
)
def test_a_page_elsewhere_cannot_pose_as_this_machine(server: LiveServer, host: str, status: int) -> None:
    assert get(server, "/", Host=host)[0] == status


def test_beyond_this_machine_it_takes_the_token(tmp_path: Path) -> None:
    save_run(film_run(), tmp_path, parquet=False)
    server = open_page(followed_in(tmp_path), "0.0.0.0:0")
    server.follower.close()
    server.server_close()
    assert re.fullmatch(r"http://0\.0\.0\.0:\d+/\?token=[\w-]{32}", server.url)
    access = Access("example.org", token="secret")
    assert not access.admits({"Host": "example.org"}, None)
    assert not access.admits({"Cookie": "archipel_live=Secret"}, None)
    assert access.admits({"Cookie": "other=1; archipel_live=secret"}, None)
    assert not Access("example.org").admits({"Cookie": "archipel_live="}, None)


def operator(uri: str, serial: str = "0A1B", year: int = 2090) -> dict[str, object]:
    until = f"Jan  5 09:34:43 {year} GMT"
    return {"subjectAltName": (("URI", uri), ("DNS", "x")), "serialNumber": serial, "notAfter": until}


def test_beyond_this_machine_it_takes_a_listed_operators_certificate(tmp_path: Path) -> None:
    revoked = tmp_path / "revoked.txt"
    access = Access("example.org", operators=("alice",), revoked=revoked)
    assert access.knows(operator("archipel:operator/alice"))
    assert not access.knows(operator("archipel:operator/bob"))
    assert not access.knows(operator("archipel:learner/alice"))
    two = (("URI", "archipel:operator/alice"), ("URI", "archipel:learner/a"))
    assert not access.knows({**operator("archipel:operator/alice"), "subjectAltName": two})
    assert not access.knows(None)
    assert not access.knows(operator("archipel:operator/alice", year=2020)), "a connection may outlive a certificate"
    revoked.write_text("a1b  # alice\n")
    assert not access.knows(operator("archipel:operator/alice"))
    revoked.write_bytes(b"\xff\xfe")
    assert not access.knows(operator("archipel:operator/alice")), "the last list stays in force"
    revoked.unlink()
    assert not access.knows(operator("archipel:operator/alice"))
    assert access.knows(operator("archipel:operator/alice", "0C"))


@pytest.mark.slow
def test_a_watcher_that_loses_access_is_disconnected(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before this check, a watcher whose certificate had expired or was revoked received events for ever."""
    monkeypatch.setattr(http_server, "LOOK", 0.0)
    monkeypatch.setattr(http_server, "PULSE", 0.1)
    with news(server) as watcher:
        until(lambda: server.follower.watchers == 1, "a watcher")
        monkeypatch.setattr(Access, "admits", lambda *_: False)
        until(lambda: server.follower.watchers == 0, "its end")
        while watcher.recv(1 << 16):
            pass


def test_an_address_is_host_and_port() -> None:
    assert parse_address("[::1]:9444") == ("::1", 9444)
    for wrong in ("9444", "localhost", "localhost:x", "localhost:99999", "study.toml"):
        with pytest.raises(ValueError, match="must be HOST:PORT, for example"):
            parse_address(wrong)


def news(server: LiveServer) -> socket.socket:
    """Open the stream of news, and read nothing of it."""
    line = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    line.sendall(b"GET /news HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return line


@pytest.mark.slow
def test_a_run_that_grows_is_told_and_a_reader_that_reads_nothing_costs_nothing(tmp_path: Path) -> None:
    records = film_run().records
    about = {"name": "fedavg", "seed": 0, "metric": "accuracy", "participants": []}
    film = (tmp_path / "live.jsonl").open("w")
    print(json.dumps({"about": about}), file=film, flush=True)
    with serving(tmp_path) as server, news(server) as slow, news(server) as quick:
        until(lambda: server.follower.watchers == 2, "both readers")
        read = quick.makefile("rb")
        for stamped in records:
            print(record_line(stamped), file=film, flush=True)
        until(lambda: get(server, "/events/0")[2].count(b"\n") >= len(records), "all lines")
        size = len(get(server, "/events/0")[2])
        until(lambda: f", {size}]".encode() in read.readline(), "news of the last line")
        assert server.follower.followed.runs[0].stage == "running"
        assert slow.fileno() >= 0
    film.close()


def test_a_run_that_is_finished_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    run = film_run()
    folder = followed_in(_begun(tmp_path, run.records[:4]))
    folder.poll()
    with (tmp_path / "live.jsonl").open("a") as film:
        film.writelines(record_line(stamped) + "\n" for stamped in run.records[4:])
    (tmp_path / "live.jsonl").unlink()
    save_run(run, tmp_path, parquet=False)
    while folder.runs[0].stage != "finished":
        folder.poll()
    events = folder.runs[0].timeline.events.read(0).splitlines()
    assert [json.loads(line)[:3] for line in events if b'"s"' in line] == [["s", 3.0, 1], ["s", 5.0, 2]]
    assert folder.runs[0].about["reason"] == "it was written so"


def _begun(folder: Path, records: object) -> Path:
    about = {"name": "fedavg", "seed": 0, "metric": "accuracy", "participants": []}
    lines = [json.dumps({"about": about}), *map(record_line, records)]  # type: ignore[call-overload]
    (folder / "live.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_resumed_run_is_read_again_from_its_beginning(tmp_path: Path) -> None:
    records = film_run().records
    folder = followed_in(_begun(tmp_path, records[:6]))
    while folder.poll():
        pass
    before = folder.runs[0].timeline.events.size
    (tmp_path / "live.jsonl").unlink()
    _begun(tmp_path, records[:4])
    folder.poll()
    while folder.poll():
        pass
    assert folder.runs[0].generation == 1
    assert 0 < folder.runs[0].timeline.events.size < before


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no run\.json"):
        followed_in(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        followed_in(tmp_path / "nowhere")


def test_a_port_that_is_taken_is_said(server: LiveServer, tmp_path: Path) -> None:
    save_run(film_run(), tmp_path, parquet=False)
    with pytest.raises(OSError, match="another program is listening there"):
        open_page(followed_in(tmp_path), f"localhost:{server.server_port}")

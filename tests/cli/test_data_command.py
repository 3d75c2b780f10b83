"""`archipel data`: what is available, what a split looks like, and getting files, against a server of our own."""

import inspect
import io
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import archipel as ap
from archipel.cli import folding
from archipel.cli import split as drawing
from archipel.data import download, fetch, sources
from archipel.data.fetch import missing
from archipel.data.sources.catalogue import DECIDES, FILES, wanted
from tests.cli.small_program import app, program

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
GET = download.get
PATIENT = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,{}\n"


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Places without a file, and no network."""

    def offline(url: str, *_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    monkeypatch.setenv("ARCHIPEL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(download, "get", offline)
    return tmp_path


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments])
    assert isinstance(result.exception, ValueError | OSError)
    assert result.stdout == ""
    return str(result.exception)


def write_hospitals(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(HOSPITALS):
        (folder / f"processed.{name}.data").write_text("".join(PATIENT.format(k % 3) for k in range(10 + number)))


# ---------------------------------------------------------------------------------------------------- what is available


def test_the_catalogue_knows_every_source_and_what_decides_on_its_files() -> None:
    assert sorted(FILES) == sorted(sources.__all__)
    for source, argument in DECIDES.items():
        parameter = inspect.signature(getattr(sources, source)).parameters[argument]
        assert next(iter(FILES[source])) == parameter.default


@pytest.mark.parametrize(
    ("source", "choice"), [(source, choice) for source in FILES for choice in FILES[source]], ids=str
)
def test_the_catalogue_has_the_files_that_the_source_reads(source: str, choice: str) -> None:
    options = {DECIDES[source]: choice} if choice else {}
    with pytest.raises(FileNotFoundError) as error:
        getattr(sources, source)(**options)
    files = wanted(source, options)
    assert files is not None
    assert str(error.value).splitlines()[0] == missing(files, "").splitlines()[0]


def test_the_list_tells_what_is_at_hand_and_what_would_be_downloaded(empty: Path) -> None:
    write_hospitals(empty / "heart_disease")
    listed = {source["name"]: source["files"] for source in json.loads(said("--json"))}
    assert list(listed) == sources.__all__
    assert listed["digits"] == []
    (heart,) = listed["heart_disease"]
    assert heart["at_hand"] == [str(empty / "heart_disease" / f"processed.{name}.data") for name in HOSPITALS]
    (mnist,) = listed["mnist"]
    assert mnist["at_hand"] == []
    assert mnist["download"][0] == "http://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz"
    # one archive has all six splits
    assert [files["choices"] for files in listed["emnist"]] == [list(FILES["emnist"])]
    assert [files["choices"] for files in listed["shakespeare"]] == [["tiny"], ["plays"], ["leaf"]]
    assert not (empty / "cache").exists()


def test_the_list_in_words(empty: Path) -> None:
    write_hospitals(empty / "heart_disease")
    text = " ".join(said().split())
    assert f"four hospitals are the sites. available: {empty / 'heart_disease'}" in text
    assert "in 10 classes. available: it comes with the installation" in text
    assert "not available: `archipel data get mnist` downloads 4 files from yann.lecun.com" in text
    assert "text = leaf: not available. LEAF makes them (https://github.com/TalwalkarLab/leaf): run" in text


# ------------------------------------------------------------------------------------------------- what a split is like


SPLIT = ("show", "digits", "--learners", "5", "--sizes", "powerlaw", "--classes", "3", "--seed", "7")


def test_a_split_as_data() -> None:
    split = json.loads(said(*SPLIT, "--json"))
    islands = ap.data.digits().split(learners=5, sizes="powerlaw", classes=3, seed=7)
    assert [learner["examples"] for learner in split["learners"]] == islands.sizes()
    assert [learner["classes"] for learner in split["learners"]] == islands.class_table().tolist()
    assert (split["test"], split["stimuli"]) == (len(islands.test), len(islands.stimuli))
    assert split["c_score"] == ap.data.c_score(islands)
    assert split["sizes"]["stdev"] == ap.data.size_statistics(islands).stdev
    far = ap.data.class_distances(islands, "hellinger")
    assert split["distances"]["hellinger"] == {"mean": pytest.approx(far.sum() / 20), "max": far.max()}


def test_a_split_in_a_pipe_is_numbers() -> None:
    lines = said(*SPLIT).splitlines()
    table = ap.data.digits().split(learners=5, sizes="powerlaw", classes=3, seed=7).class_table()
    assert lines[0].split() == ["learner", "examples", *map(str, range(10))]
    assert [list(map(int, line.split()[2:])) for line in lines[1:6]] == table.tolist()
    assert lines[7].startswith("5 learners of digits; 309 test examples")


@pytest.mark.parametrize(("width", "lines"), [(80, 5), (25, 10)])
def test_on_a_terminal_it_is_blocks(monkeypatch: pytest.MonkeyPatch, width: int, lines: int) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    for module in (drawing, folding):
        monkeypatch.setattr(module, "out", terminal)
    said(*SPLIT)
    assert isinstance(terminal.file, io.StringIO)
    shown = terminal.file.getvalue()
    drawn = [line[19:] for line in shown.splitlines() if set("█·") & set(line[19:]) and "none" not in line]
    assert len(drawn) == lines
    assert max(map(len, shown.splitlines()[: lines + 1])) <= max(width, len("learner  examples  classes 0 to 9"))
    # three classes each, and the blocks of a class are as many as fit
    blocks = "".join(drawn)
    cell = 2 if width == 80 else 1
    table = ap.data.digits().split(learners=5, sizes="powerlaw", classes=3, seed=7).class_table()
    assert blocks.count("·") == cell * int((table == 0).sum())


def test_sites_as_learners(empty: Path) -> None:
    write_hospitals(empty / "heart_disease")
    options = ("--option", "classes=5", "--option", "verify=false", "--test", "none", "--json")
    split = json.loads(said("show", "heart_disease", "--natural", *options))
    assert [(learner["name"], learner["examples"]) for learner in split["learners"]] == [
        (f"0{number}-{name}", 10 + number) for number, name in enumerate(HOSPITALS)
    ]
    assert split["learners"][0]["classes"] == [4, 3, 3, 0, 0]


def test_an_own_table_without_classes(empty: Path) -> None:
    rows = "".join(f"{k / 10},{k / 7},{'ab'[k % 2]}\n" for k in range(1, 21))
    (empty / "rows.csv").write_text(f"x,y,town\n{rows}")
    options = (f"path={empty / 'rows.csv'}", "label=y", "site=town", "regression=true")
    arguments = ["show", "from_csv", "--natural", *(part for option in options for part in ("--option", option))]
    split = json.loads(said(*arguments, "--json"))
    assert [learner["classes"] for learner in split["learners"]] == [[], []]
    assert (split["c_score"], split["distances"]) == (None, {})
    assert "00-a" in said(*arguments)


@pytest.mark.slow
def test_a_picture(empty: Path) -> None:
    pytest.importorskip("matplotlib")
    split = json.loads(said(*SPLIT, "--out", str(empty / "split.png"), "--json"))
    assert split["pictures"] == [str(empty / "split.png")]
    assert (empty / "split.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("show minst", "archipel data show: the source 'minst' is not known. Did you mean 'mnist'?"),
        ("get covertyp", "archipel data get: the source 'covertyp' is not known. Did you mean 'covertype'?"),
        ("show covertype --option clases=[1,2]", "got 'clases'. Did you mean 'classes'?"),
        ("show covertype --option classes=[1,", "covertype: classes should be Sequence[int] | None, got '[1,'."),
        ("show covertype --option classes", "--option classes: should be a key and a value, such as verify=false."),
        ("show shakespeare --option text=tine", "got 'tine'. Did you mean 'tiny'?"),
        ("show digits --option verify=false", "--option verify=false: digits takes no arguments."),
        ("show from_csv --option path=a.csv", "from_csv: give --option label=... (column of the labels,"),
        ("show digits --natural", "natural: 'digits' has no sites."),
        ("show digits --natural --classes 3 --sizes skewed", "leave out --sizes and --classes."),
        ("show digits --sizes powerlow", "Did you mean 'powerlaw'?"),
        ("show digits --out split.gif", "heat_map: 'split.gif' should end in .png or .svg"),
    ],
)
def test_what_cannot_be_shown(arguments: str, error: str) -> None:
    assert error in refused(*arguments.split())


# ------------------------------------------------------------------------------------------------------- getting files


@pytest.fixture
def server(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A publisher of the hospitals' files; gives what it was asked for."""
    write_hospitals(empty / "published")
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = (empty / "published" / self.path.lstrip("/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    publisher = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=publisher.serve_forever, args=(0.01,), daemon=True).start()
    module = sys.modules["archipel.data.sources.heart_disease"]
    address = f"http://127.0.0.1:{publisher.server_address[1]}"
    (official,) = module.WANTED.forms
    ours = tuple(replace(file, urls=(f"{address}/{file.name}",), digest="") for file in official)
    monkeypatch.setattr(download, "get", GET)
    monkeypatch.setattr(module, "WANTED", replace(module.WANTED, forms=(ours,)))
    yield asked
    publisher.shutdown()
    publisher.server_close()


def test_get_downloads_into_the_cache_and_reads(server: list[str], empty: Path) -> None:
    home = empty / "cache" / "archipel" / "heart_disease"
    arguments = ["data", "get", "heart_disease", "--option", "verify=false"]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "downloading processed.va.data, " in result.stderr
    assert json.loads(result.stdout) == {
        "source": "heart_disease",
        "examples": 46,
        "shape": [30],
        "classes": 2,
        "test": 0,
        "sites": 4,
        "categories": ["sex", "cp", "fbs", "restecg", "exang", "slope", "thal"],
        "files": [str(home / f"processed.{name}.data") for name in HOSPITALS],
    }
    assert len(server) == 4
    again = said("get", "heart_disease", "--option", "verify=false")
    assert len(server) == 4
    assert again.startswith("heart_disease: 46 examples of 30 numbers in 2 classes\n  4 sites\n")


def test_what_comes_with_the_installation_needs_no_file() -> None:
    assert json.loads(said("get", "digits", "--json"))["files"] == []


@pytest.mark.slow
def test_without_a_network_the_error_says_which_file_to_put_where(empty: Path) -> None:
    nobody = "http://127.0.0.1:9"
    done = program("data", "get", "cifar100", XDG_CACHE_HOME=str(empty), https_proxy=nobody)
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr.splitlines()
    assert told[0].startswith("error: cifar100: its files are not on this machine. Wanted: cifar-100-binary.tar.gz; or")
    assert "Downloading https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz: " in done.stderr
    assert told[-1].startswith(f"Put the files into {empty / 'archipel' / 'cifar100'}, or into a folder")
    assert "Traceback" not in done.stderr

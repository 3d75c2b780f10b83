"""What an import and a command load at first, and that the package has all its names."""

from __future__ import annotations

import ast
import gc
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import archipel as ap
from archipel import algorithms
from archipel.cli import program as cli
from archipel.cli.loading import loading
from archipel.core import parts

SLOW = {"torch._dynamo", "pydantic", "yaml", "rich", "typer", "matplotlib", "pandas", "pyarrow", "sklearn", "scipy"}
TYPERS = {"typer", "rich", "pydantic"}
"""Typer imports these itself."""
FRONT_DOOR = "import archipel as ap; ap.simulate, ap.fedavg, ap.Rounds, ap.data, ap.models, ap.Fleet, ap.Run"
MODULES = "import sys; print(*sys.modules)"


def loaded(program: str) -> set[str]:
    """Return the modules that a program has imported by its end, which its last line lists."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has imported by its end."""
    return loaded(
        f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); sys.argv[1:] = {arguments!r}\n"
        "from archipel.cli import main; main()"
    )


# ------------------------------------------------------------------------------------------------------ what is loaded


def test_the_import_alone_loads_not_even_torch() -> None:
    assert loaded(f"import archipel; {MODULES}").isdisjoint(SLOW | {"torch", "numpy"})


@pytest.mark.slow
def test_the_front_door_loads_torch_and_nothing_else_that_is_slow() -> None:
    modules = loaded(f"{FRONT_DOOR}; {MODULES}")
    assert "torch" in modules
    assert modules.isdisjoint(SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    assert loaded_by(*arguments).isdisjoint(SLOW - TYPERS | {"torch", "numpy"})


@pytest.mark.slow
@pytest.mark.parametrize("command", ["algorithms", "data"])
def test_lists_need_no_schema_of_studies_and_no_figures(command: str) -> None:
    assert (modules := loaded_by(command)).isdisjoint(SLOW - TYPERS)
    assert "archipel.study.schema" not in modules


# ------------------------------------------------------------------------------------------------------ the front door


def test_the_front_door_has_the_names_of_algorithms_and_parts() -> None:
    assert len(set(ap.__all__)) == len(ap.__all__)
    assert {*algorithms.__all__, *parts.__all__} < set(ap.__all__)
    assert ap.fedavg is algorithms.fedavg
    assert ap.Rounds is parts.Rounds


def test_type_checkers_see_the_names_that_there_are() -> None:
    (block,) = (node for node in ast.parse(Path(ap.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen - {None} == set(ap.__all__) - {*algorithms.__all__, *parts.__all__}


def test_a_star_import_gives_all_of_them() -> None:
    names: dict[str, Any] = {}
    exec("from archipel import *", names)
    assert names.keys() - {"__builtins__"} == set(ap.__all__)


def test_dir_lists_names_and_modules_and_nothing_private() -> None:
    listed = dir(ap)
    assert {*ap.__all__, "__all__", "__version__", "study", "simulation", "report"} <= set(listed)
    assert [name for name in listed if name.startswith("_") and not name.startswith("__")] == []
    assert all(hasattr(ap, name) for name in listed)


def test_a_name_is_the_same_thing_twice() -> None:
    assert all(getattr(ap, name) is getattr(ap, name) for name in ap.__all__)
    assert ap.read_study is ap.study.read_study


@pytest.mark.slow
def test_an_unknown_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match="module 'archipel' has no attribute 'simulat'"):
        ap.simulat  # type: ignore[attr-defined]  # noqa: B018
    done = subprocess.run([sys.executable, "-c", "import archipel; archipel.simulat"], capture_output=True, text=True)
    assert done.stderr.endswith("has no attribute 'simulat'. Did you mean: 'simulate'?\n")
    with pytest.raises(ImportError):
        exec("from archipel import simulat")


# ---------------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_says_what_their_own_help_says(name: str) -> None:
    assert cli.command(name).help.partition("\n\n")[0] == cli.COMMANDS[name]


def test_ctrl_c_before_a_command_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "command", interrupted)
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Stopped.\n")


INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {arguments!r}
from archipel.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--help"]),
        ("rich.console", ["run"]),
        ("archipel.cli.doctor", ["doctor"]),
        ("numpy", ["algorithms"]),
        ("torch", ["run"]),
        ("torch.nn", ["run"]),
        ("archipel.study.results", ["run"]),
        ("archipel.papers.outcome", ["reproduce", "dvw-table1"]),
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str, arguments: list[str], tmp_path: Path) -> None:
    program = INTERRUPTED.format(module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")
    assert not list(tmp_path.iterdir())


def test_a_handler_that_was_set_before_stays() -> None:
    for handler in (signal.SIG_IGN, signal.default_int_handler):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with loading():
                assert (signal.getsignal(signal.SIGINT) is handler) == (handler is signal.SIG_IGN)
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_the_front_door_imports_without_collections_and_collects_again() -> None:
    program = """
import gc, sys
import torch
begun = []
gc.callbacks.append(lambda phase, info: begun.append(info["generation"]))
import archipel as ap
ap.simulate
assert "archipel.simulation.simulate" in sys.modules
full = begun.count(2)
assert gc.isenabled()
gc.disable()
ap.load_run
assert not gc.isenabled(), "as it was"
print(full)
"""
    assert loaded(program) == {"0"}


def test_after_loading_garbage_is_looked_for_again() -> None:
    def load() -> None:
        with loading():
            assert not gc.isenabled()
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert gc.isenabled()

"""The import law, and what the package never does: read off the source, nothing is run."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import archipel

ROOT = Path(archipel.__file__).parent
MODULES = {path.relative_to(ROOT): ast.parse(path.read_text(), str(path)) for path in sorted(ROOT.rglob("*.py"))}

OUTSIDE_WORLD = {
    *("asyncio", "threading", "_thread", "multiprocessing", "concurrent", "queue"),
    *("time", "sched", "socket", "selectors", "grpc"),
}
ALLOWED = {
    "kernels": set(),
    "core": {"kernels"},
    "storage": set(),
    "drawing": set(),
    "algorithms": {"core"},
    "models": {"core"},
    "learner": {"core", "kernels"},
    "runs": {"core", "drawing", "storage"},
    "data": {"core", "drawing"},
    "simulation": {"core", "data", "kernels", "learner", "models", "runs", "storage"},
    "federation": {"core", "data", "kernels", "learner", "storage"},
    "report": {"core", "drawing", "runs"},
    "trackers": {"core", "runs"},
    "study": {
        *("algorithms", "core", "data", "federation", "kernels", "learner", "models"),
        *("report", "runs", "simulation", "storage", "trackers"),
    },
    "papers": {"core", "data", "drawing", "kernels", "models", "report", "runs", "simulation", "storage", "study"},
    "cli": {
        *("algorithms", "core", "data", "federation", "kernels", "papers"),
        *("report", "runs", "simulation", "storage", "study"),
    },
}
"""Which packages each package may import, late and `TYPE_CHECKING` imports included. The graph has no cycle."""
OWED = {"runs": {"report"}}
"""Edges that still break the law: they go, and then this table does."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of what a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "no relative imports: the full name says where a thing is from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def outside(tree: ast.AST) -> set[str]:
    """The modules of the outside world that a module imports."""
    return {name for name in imports(tree) if name.split(".")[0] in OUTSIDE_WORLD}


def packages(tree: ast.AST) -> set[str]:
    """Return the packages of Archipel that a module imports."""
    return {name.split(".")[1] for name in imports(tree) if name.startswith("archipel.")} & ALLOWED.keys()


def dangers(tree: ast.AST) -> set[str]:
    """Ways to run what was read from a file or a wire."""
    found = {
        name for name in imports(tree) if name.split(".")[0] in {"pickle", "dill", "cloudpickle", "joblib", "marshal"}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in {"eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load"}:
                found.add(name)
            if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                found.add(f"{name}(allow_pickle)")
    return found


OWN_GENERATORS = {"Generator", "Philox", "default_rng", "SeedSequence", "BitGenerator", "PCG64"}
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "seed", "manual_seed"}


def global_draws(tree: ast.AST) -> set[str]:
    """Uses of the generators that a whole process shares."""
    found = {name for name in imports(tree) if name.split(".")[0] in {"random", "secrets", "uuid"}}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith(("np.random.", "numpy.random.")) and name.split(".")[2] not in OWN_GENERATORS:
                found.add(name)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            own = any(keyword.arg == "generator" for keyword in node.keywords)
            if name.startswith("torch.") and name.split(".")[-1] in TORCH_DRAWS and not own:
                found.add(name)
    return found


def seeds_without_fork(tree: ast.AST) -> list[int]:
    """Lines that seed torch's own generator without putting it back as it was."""
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and any("fork_rng" in ast.unparse(item) for item in node.items)
        for inner in ast.walk(node)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.manual_seed" and id(node) not in guarded
    ]


def part_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def test_every_package_is_in_the_table() -> None:
    assert {part_of(path) for path in MODULES} - {"__init__"} == ALLOWED.keys()


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_the_table_allows(package: str) -> None:
    allowed = {package, *ALLOWED[package], *OWED.get(package, set())}
    mine = {path: tree for path, tree in MODULES.items() if part_of(path) == package}
    found = {str(path): names for path, tree in mine.items() if (names := packages(tree) - allowed)}
    assert not found


def test_core_knows_the_kernels_interface_and_no_implementation() -> None:
    found = {
        str(path): names
        for path, tree in MODULES.items()
        if part_of(path) == "core"
        and (names := {n for n in imports(tree) if n.startswith("archipel.kernels") and ".interface." not in n})
    }
    assert not found


def test_the_table_has_no_cycle() -> None:
    list(graphlib.TopologicalSorter(ALLOWED).static_order())


def test_only_engines_know_of_time_and_other_processes() -> None:
    engines = {"simulation", "federation", "study"}
    found = {
        str(path): names for path, tree in MODULES.items() if part_of(path) not in engines and (names := outside(tree))
    }
    assert not found


@pytest.mark.slow
def test_nothing_that_was_read_is_ever_run() -> None:
    assert not {str(path): names for path, tree in MODULES.items() if (names := dangers(tree))}


@pytest.mark.parametrize("part", ["core", "algorithms"])
def test_the_controller_and_its_parts_draw_from_no_global_generator(part: str) -> None:
    mine = {path: tree for path, tree in MODULES.items() if part_of(path) == part}
    assert not {str(path): names for path, tree in mine.items() if (names := global_draws(tree))}


@pytest.mark.slow
def test_torchs_generator_is_seeded_only_where_it_is_put_back() -> None:
    assert not {str(path): lines for path, tree in MODULES.items() if (lines := seeds_without_fork(tree))}


@pytest.mark.slow
def test_the_global_generators_of_python_and_numpy_are_nowhere_used() -> None:
    found = {
        str(path): names
        for path, tree in MODULES.items()
        if (names := {name for name in global_draws(tree) if not name.startswith(("torch.", "secrets", "uuid"))})
    }
    assert not found


# ------------------------------------------------------------------------------------------- the readers themselves


@pytest.mark.parametrize(
    ("reader", "source"),
    [
        (outside, "import time"),
        (outside, "def f():\n    from concurrent.futures import ThreadPoolExecutor"),
        (packages, "from archipel.core.controller import Controller"),
        (packages, "def f():\n    from archipel import algorithms"),
        (packages, "if TYPE_CHECKING:\n    from archipel.report import page"),
        (dangers, "import pickle"),
        (dangers, "torch.load(path)"),
        (dangers, "eval(text)"),
        (dangers, "np.load(path, allow_pickle=True)"),
        (global_draws, "import random"),
        (global_draws, "np.random.seed(0)"),
        (global_draws, "np.random.rand(3)"),
        (global_draws, "torch.randn(3)"),
        (seeds_without_fork, "torch.manual_seed(0)"),
    ],
)
def test_the_reader_finds_it(reader: object, source: str) -> None:
    assert reader(ast.parse(source))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("reader", "source"),
    [
        (outside, "from archipel.simulation import simulator"),
        (packages, "from archipel import __version__"),
        (dangers, "module.eval()"),
        (global_draws, "np.random.Generator(np.random.Philox(key=1))"),
        (global_draws, "torch.randn(3, generator=mine)"),
        (seeds_without_fork, "with torch.random.fork_rng():\n    torch.manual_seed(0)"),
    ],
)
def test_the_reader_leaves_the_rest_alone(reader: object, source: str) -> None:
    assert not reader(ast.parse(source))  # type: ignore[operator]

"""The import law, and what the package never does: read off the source, nothing is run."""

from __future__ import annotations

import ast
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
UPPER = {
    "algorithm",
    "algorithms",
    "controller",
    "engines",
    "durability",
    "learner",
    "experiment",
    "run",
    "cli",
    "report",
}
FORBIDDEN = {
    "types": {"parts", "state", "layout", *UPPER},
    "state": {"parts", *UPPER},
    "layout": {"parts", "state", *UPPER},
    "parts": UPPER,
    "algorithm": UPPER - {"algorithm"},
    "algorithms": UPPER - {"algorithm", "algorithms"},
    "controller": UPPER - {"algorithm", "controller"},
    "learner": (UPPER | {"parts", "state"}) - {"learner"},
    "data": (UPPER | {"parts", "state"}),
    "models": (UPPER | {"parts", "state"}),
    "engines": {"experiment", "run", "cli", "report", "algorithms"},
}
"""What the modules of a folder, or a module of that name, may not import of Archipel."""


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


def broken(part: str, tree: ast.AST) -> set[str]:
    """The imports by which a module of this part breaks the law."""
    mine = [name.split(".") for name in imports(tree) if name.startswith("archipel.")]
    return {".".join(name) for name in mine if name[1] in FORBIDDEN.get(part, ())}


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


def test_only_engines_and_durability_know_of_time_and_other_processes() -> None:
    found = {
        str(path): names
        for path, tree in MODULES.items()
        if part_of(path) not in {"engines", "durability"} and (names := outside(tree))
    }
    assert not found


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_go_one_way(part: str) -> None:
    mine = {path: tree for path, tree in MODULES.items() if part_of(path) == part}
    assert mine, f"there is no {part} any more: change the law"
    found = {str(path): names for path, tree in mine.items() if (names := broken(part, tree))}
    assert not found


def test_nothing_that_was_read_is_ever_run() -> None:
    assert not {str(path): names for path, tree in MODULES.items() if (names := dangers(tree))}


@pytest.mark.parametrize("part", ["controller", "state", "types", "parts", "algorithm", "algorithms"])
def test_the_controller_and_its_parts_draw_from_no_global_generator(part: str) -> None:
    mine = {path: tree for path, tree in MODULES.items() if part_of(path) == part}
    assert not {str(path): names for path, tree in mine.items() if (names := global_draws(tree))}


def test_torchs_generator_is_seeded_only_where_it_is_put_back() -> None:
    assert not {str(path): lines for path, tree in MODULES.items() if (lines := seeds_without_fork(tree))}


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
        (lambda tree: broken("parts", tree), "from archipel.controller import Controller"),
        (lambda tree: broken("parts", tree), "from archipel import algorithms"),
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
        (outside, "from archipel.engines import simulator"),
        (lambda tree: broken("parts", tree), "from archipel.state import View"),
        (dangers, "module.eval()"),
        (global_draws, "np.random.Generator(np.random.Philox(key=1))"),
        (global_draws, "torch.randn(3, generator=mine)"),
        (seeds_without_fork, "with torch.random.fork_rng():\n    torch.manual_seed(0)"),
    ],
)
def test_the_reader_leaves_the_rest_alone(reader: object, source: str) -> None:
    assert not reader(ast.parse(source))  # type: ignore[operator]

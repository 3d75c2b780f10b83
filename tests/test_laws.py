"""The laws of the package (design 6), checked on its source: imports, names, lengths, and calls that are not allowed.

Tables named OWED list what breaks a law today. An entry that is no longer needed fails too, so that the tables shrink.
"""

from __future__ import annotations

import ast
import gc
import graphlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import archipel

ROOT = Path(archipel.__file__).parent
TESTS = Path(__file__).parent


@cache
def parse(folder: Path) -> dict[Path, ast.Module]:
    """Return the modules of a folder by their relative paths."""
    gc.disable()  # nothing of what is made can be thrown away
    try:
        return {
            path.relative_to(folder): ast.parse(path.read_text(), str(path)) for path in sorted(folder.rglob("*.py"))
        }
    finally:
        gc.enable()


def modules() -> dict[Path, ast.Module]:
    """Return the modules of the package."""
    return parse(ROOT)


def written() -> dict[Path, ast.Module]:
    """Return the modules of the package without generated ones."""
    return {path: tree for path, tree in parse(ROOT).items() if not path.stem.endswith("_pb2")}


OUTSIDE_WORLD = {
    *("asyncio", "threading", "_thread", "multiprocessing", "concurrent", "queue"),
    *("time", "sched", "socket", "selectors", "grpc"),
}
ALLOWED = {
    "kernels": set(),
    "core": {"kernels", "privacy"},
    "privacy": set(),
    "storage": set(),
    "drawing": set(),
    "live": {"storage"},
    "algorithms": {"core"},
    "models": {"core"},
    "learner": {"core", "kernels", "privacy"},
    "runs": {"core", "drawing", "storage"},
    "data": {"core", "drawing"},
    "assembly": {"core", "data", "kernels", "learner", "models", "runs"},
    "executors": {"core", "kernels", "learner"},
    "simulation": {"assembly", "core", "data", "executors", "kernels", "learner", "privacy", "runs", "storage"},
    "federation": {"core", "data", "executors", "kernels", "learner", "privacy", "storage"},
    "report": {"core", "drawing", "live", "runs"},
    "trackers": {"core", "runs"},
    "study": {
        *("algorithms", "assembly", "core", "data", "executors", "federation", "kernels", "learner", "models"),
        *("live", "privacy", "report", "runs", "simulation", "storage", "trackers"),
    },
    "papers": {"core", "data", "drawing", "kernels", "models", "report", "runs", "simulation", "storage", "study"},
    "cli": {
        *("algorithms", "core", "data", "federation", "kernels", "live", "papers"),
        *("report", "runs", "simulation", "storage", "study"),
    },
}
"""Which packages each package may import, late and `TYPE_CHECKING` imports included. The graph has no cycle."""


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a module; most laws go through them."""
    return tuple(ast.walk(tree))


@cache
def imports(tree: ast.AST) -> tuple[str, ...]:
    """Return the full names of all imports of a module, late ones included."""
    return tuple(_imported(nodes(tree)))


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "no relative imports: the full name says where a thing is from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def outside(tree: ast.AST) -> set[str]:
    """Return the imports that give access to time, threads, processes and sockets."""
    return {name for name in imports(tree) if name.split(".")[0] in OUTSIDE_WORLD}


def packages(tree: ast.AST) -> set[str]:
    """Return the packages of Archipel that a module imports."""
    return {name.split(".")[1] for name in imports(tree) if name.startswith("archipel.")} & ALLOWED.keys()


def dangers(tree: ast.AST) -> set[str]:
    """Return the calls and imports that can run code from a file or a message."""
    found = {
        name for name in imports(tree) if name.split(".")[0] in {"pickle", "dill", "cloudpickle", "joblib", "marshal"}
    }
    for node in nodes(tree):
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
    """Return the uses of random generators that are global to the process; to see that others use them is none."""
    found = {name for name in imports(tree) if name.split(".")[0] in {"random", "secrets", "uuid"}} - {
        "random.getstate"
    }
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            known = {*OWN_GENERATORS, "get_state"}
            if name.startswith(("np.random.", "numpy.random.")) and name.split(".")[2] not in known:
                found.add(name)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            own = any(keyword.arg == "generator" for keyword in node.keywords)
            if name.startswith("torch.") and name.split(".")[-1] in TORCH_DRAWS and not own:
                found.add(name)
    return found


def seeds_without_fork(tree: ast.AST) -> list[int]:
    """Return the lines that seed torch's global generator without restoring it."""
    guarded = {
        id(inner)
        for node in nodes(tree)
        if isinstance(node, ast.With) and any("fork_rng" in ast.unparse(item) for item in node.items)
        for inner in ast.walk(node)
    }
    return [
        node.lineno
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.manual_seed" and id(node) not in guarded
    ]


def tricks(tree: ast.AST) -> set[str]:
    """Return what trades clarity for speed: unchecked construction, raw addresses, methods compared with others."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and (node.attr == "data_ptr" or ast.unparse(node) == "object.__new__"):
            found.add(ast.unparse(node))
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.In | ast.NotIn):
            sides = [side for side in (node.left, *node.comparators) if isinstance(side, ast.Attribute)]
            if len(sides) == 2 and sides[0].attr == sides[1].attr and any(_is_class(side.value) for side in sides):
                found.add(ast.unparse(node))
    return found


def _is_class(node: ast.expr) -> bool:
    """Return whether an expression is a class by its look: `type(part)`, `Merge` or `part.__class__`."""
    name = ast.unparse(node)
    return name.startswith("type(") or name.endswith("__class__") or name.split(".")[-1][:1].isupper()


def part_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def test_every_package_is_in_the_table() -> None:
    assert {part_of(path) for path in modules()} - {"__init__"} == ALLOWED.keys()


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_the_table_allows(package: str) -> None:
    allowed = {package, *ALLOWED[package]}
    mine = {path: tree for path, tree in modules().items() if part_of(path) == package}
    found = {str(path): names for path, tree in mine.items() if (names := packages(tree) - allowed)}
    assert not found


def test_core_knows_the_kernels_interface_and_no_implementation() -> None:
    found = {
        str(path): names
        for path, tree in modules().items()
        if part_of(path) == "core"
        and (names := {n for n in imports(tree) if n.startswith("archipel.kernels") and ".interface." not in n})
    }
    assert not found


def test_the_table_has_no_cycle() -> None:
    list(graphlib.TopologicalSorter(ALLOWED).static_order())


def test_only_engines_know_of_time_and_other_processes() -> None:
    engines = {"executors", "simulation", "federation", "study", "live"}
    found = {
        str(path): names
        for path, tree in modules().items()
        if part_of(path) not in engines and (names := outside(tree))
    }
    assert not found


@pytest.mark.slow
def test_nothing_that_was_read_is_ever_run() -> None:
    assert not {str(path): names for path, tree in modules().items() if (names := dangers(tree))}


@pytest.mark.parametrize("part", ["core", "algorithms"])
def test_the_controller_and_its_parts_draw_from_no_global_generator(part: str) -> None:
    mine = {path: tree for path, tree in modules().items() if part_of(path) == part}
    assert not {str(path): names for path, tree in mine.items() if (names := global_draws(tree))}


@pytest.mark.slow
def test_torchs_generator_is_seeded_only_where_it_is_put_back() -> None:
    assert not {str(path): lines for path, tree in modules().items() if (lines := seeds_without_fork(tree))}


@pytest.mark.slow
def test_the_global_generators_of_python_and_numpy_are_nowhere_used() -> None:
    found = {
        str(path): names
        for path, tree in modules().items()
        if (names := {name for name in global_draws(tree) if not name.startswith(("torch.", "secrets", "uuid"))})
    }
    assert not found


def test_no_trick_for_speed_lives_in_the_core() -> None:
    mine = {str(path): tree for path, tree in modules().items() if part_of(path) == "core"}
    assert not {path: found for path, tree in mine.items() if (found := tricks(tree))}


# ----------------------------------------------------------------------------------------------------------- cycles

OWED_CYCLES: dict[str, set[str]] = {}
"""By package: its modules that import each other in a circle, `TYPE_CHECKING` and late imports included."""


def module_name(path: Path) -> str:
    return ".".join(("archipel", *path.with_suffix("").parts)).removesuffix(".__init__")


def module_graph(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, wherever in it."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, tree in modules.items():
        for node in nodes(tree):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for one in imported:
                graph[name] |= {one, one.rpartition(".")[0]} & modules.keys() if one not in modules else {one}
        graph[name].discard(name)
    return graph


def cyclic(graph: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that lie on a cycle."""
    reached = {name: _reachable(graph, name) for name in graph}
    return {name for name in graph if name in reached[name]}


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    to_visit = [*graph[start]]
    while to_visit:
        name = to_visit.pop()
        if name not in found:
            found.add(name)
            to_visit += graph[name]
    return found


def test_the_module_graph_has_no_cycle() -> None:
    graph = module_graph({module_name(path): tree for path, tree in written().items()})
    found: dict[str, set[str]] = defaultdict(set)
    for name in cyclic(graph):
        inside = name.removeprefix("archipel").removeprefix(".")
        found[inside.split(".")[0]].add(inside)
    assert dict(found) == OWED_CYCLES


def test_a_cycle_is_found() -> None:
    modules = {
        "a": ast.parse("if TYPE_CHECKING:\n    from b import B"),
        "b": ast.parse("def f():\n    import c"),
        "c": ast.parse("from a import A"),
        "d": ast.parse("import a"),
    }
    graph = module_graph(modules)
    assert cyclic(graph) == {"a", "b", "c"}


# ------------------------------------------------------------------------------------------------------------ names

PLAIN_BY_FOLDER = {
    "__init__.py": "every package has one",
    "__main__.py": "what `python -m` of the folder runs",
    "catalogue.py": "of data sources; of papers' tables",
    "controller.py": "the state machine; the command that runs it",
    "document.py": "of papers' tables; of study keys",
    "interface.py": "of kernels; of executors",
    "learner.py": "the learner; the command that runs one",
    "merge.py": "the part; its kernels in C",
    "network.py": "a paper's network, a new project's; the fleet's network",
    "run.py": "a finished run; the command that makes one",
    **{f"table{number}.py": "each in the folder of its paper" for number in (1, 2, 3, 4)},
}
"""File names that repeat, and how the folder makes each plain."""
OWED_FILES: set[str] = set()
"""File names that repeat and should not."""


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes and type aliases of a module."""
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            yield ast.unparse(node.target)


def repeated(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def test_a_class_name_means_one_thing() -> None:
    assert repeated(name for tree in written().values() for name in defined(tree)) == set()


def test_a_file_name_repeats_only_where_the_folder_makes_it_plain() -> None:
    assert repeated(path.name for path in written()) == PLAIN_BY_FOLDER.keys() | OWED_FILES


# ---------------------------------------------------------------------------------------------------------- lengths

MAX_FUNCTION = 50
OWED_LONG_FILES = {"src": set[str](), "tests": set[str]()}
OWED_LONG_FUNCTIONS = {"src": set[str](), "tests": set[str]()}


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and the lines of every function, without its decorators and its docstring."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = node.body[0] if ast.get_docstring(node) is not None else None
            words = 0 if documented is None else (documented.end_lineno or 0) - documented.lineno + 1
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1 - words


@pytest.mark.parametrize(("part", "folder", "limit"), [("src", ROOT, 450), ("tests", TESTS, 600)])
def test_no_file_is_too_long(part: str, folder: Path, limit: int) -> None:
    lines = {path: path.read_text().count("\n") for path in folder.rglob("*.py") if not path.stem.endswith("_pb2")}
    found = {str(path.relative_to(folder)) for path, count in lines.items() if count > limit}
    assert found == OWED_LONG_FILES[part]


@pytest.mark.parametrize(("part", "folder"), [("src", ROOT), pytest.param("tests", TESTS, marks=pytest.mark.slow)])
def test_no_function_is_too_long(part: str, folder: Path) -> None:
    parsed = written() if folder is ROOT else parse(folder)
    found = {f"{path} {name}" for path, tree in parsed.items() for name, n in functions(tree) if n > MAX_FUNCTION}
    assert found == OWED_LONG_FUNCTIONS[part]


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
        (tricks, "plan = object.__new__(Plan)"),
        (tricks, "place = vector.data_ptr()"),
        (tricks, "type(part).observe is not Part.observe"),
        (tricks, "part.__class__.observe != base.observe"),
    ],
)
def test_the_reader_finds_it(reader: Callable[[ast.AST], Collection[object]], source: str) -> None:
    assert reader(ast.parse(source))


@pytest.mark.parametrize(
    ("reader", "source"),
    [
        (outside, "from archipel.simulation import simulator"),
        (packages, "from archipel import __version__"),
        (dangers, "module.eval()"),
        (global_draws, "np.random.Generator(np.random.Philox(key=1))"),
        (global_draws, "torch.randn(3, generator=mine)"),
        (seeds_without_fork, "with torch.random.fork_rng():\n    torch.manual_seed(0)"),
        (tricks, "mine.version == theirs.version"),
        (tricks, "type(part) is Merge"),
    ],
)
def test_the_reader_leaves_the_rest_alone(reader: Callable[[ast.AST], Collection[object]], source: str) -> None:
    assert not reader(ast.parse(source))

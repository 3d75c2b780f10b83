"""Measure the source for docs/explanation/house.md: `measure_source.py`.

Files and lines of Python and C without generated code, lengths of files and functions, names used twice, words of the
documents. Lengths of functions are without their docstrings, as in tests/test_laws.py.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "archipel"


def functions(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of every function, without its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            text = first.end_lineno - first.lineno + 1 if documented and first.end_lineno else 0
            yield (node.end_lineno or node.lineno) - node.lineno + 1 - text


def lines(path: Path) -> int:
    """Count the lines of a file."""
    return len(path.read_text().splitlines())


def main() -> None:
    """Print the rows of the table."""
    files = [path for path in SOURCE.rglob("*.py") if not path.stem.endswith("_pb2")]
    trees = {path: ast.parse(path.read_text()) for path in files}
    sizes = [lines(path) for path in files]
    in_c = sum(lines(path) for path in SOURCE.rglob("*.[ch]"))
    lengths = [length for tree in trees.values() for length in functions(tree)]
    public = [node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    twice = [name for name, count in Counter(public).items() if count > 1 and not name.startswith("_")]
    words = sum(len(path.read_text().split()) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    rows = {
        "files / lines": f"{len(files)} / {sum(sizes):,} (+{in_c:,} C)",
        "file median / max": f"{median(sizes):.0f} / {max(sizes)}",
        "longest function; functions over 50 lines": f"{max(lengths)}; {sum(length > 50 for length in lengths)}",
        "FedAvg's file": f"{lines(SOURCE / 'algorithms' / 'fedavg.py')} lines",
        "class names used twice": str(len(twice)),
        "docs": f"{words:,} words",
    }
    for name, value in rows.items():
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()

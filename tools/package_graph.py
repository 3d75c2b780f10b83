"""Draw the packages of Archipel and their imports: `package_graph.py FILE.svg`.

An arrow leads from a package to one that it imports, late and `TYPE_CHECKING` imports included. Arrows that follow from
others are left out: if cli imports study and study imports core, there is no arrow from cli to core.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "archipel"
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 104, 32, 48, 56, 16

Graph = dict[str, set[str]]


def imports(module: Path) -> Iterator[str]:
    """Yield the full names that a module imports."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages() -> Graph:
    """Return the packages that each package imports."""
    names = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    return {
        name: {
            full.split(".")[1]
            for module in (SOURCE / name).rglob("*.py")
            for full in imports(module)
            if full.startswith("archipel.")
        }
        & names - {name}
        for name in sorted(names)
    }


def reduced(graph: Graph) -> Graph:
    """Leave out every edge that follows from others."""
    reach: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        reach[name] = graph[name].union(*(reach[used] for used in graph[name]))
    return {name: used - set().union(*(reach[other] for other in used)) for name, used in graph.items()}


def layers(graph: Graph) -> list[list[str]]:
    """Return the packages by depth: a package is below all that import it, and near them."""
    users: dict[str, list[str]] = {name: [user for user in graph if name in graph[user]] for name in graph}
    depth: dict[str, int] = {}
    for name in TopologicalSorter(users).static_order():
        depth[name] = 1 + max((depth[user] for user in users[name]), default=-1)
    rows = [sorted(name for name in graph if depth[name] == level) for level in range(max(depth.values()) + 1)]
    place: dict[str, float] = {}
    for row in rows:
        near = {name: sum(place[user] for user in users[name]) / max(len(users[name]), 1) for name in row}
        row.sort(key=lambda name: (near[name], name))
        place |= {name: (index + 0.5) / len(row) for index, name in enumerate(row)}
    return rows


def drawing(graph: Graph) -> str:
    """Return the graph as SVG."""
    graph = reduced(graph)
    rows = layers(graph)
    wide = max(map(len, rows)) * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    high = len(rows) * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    middle = {
        name: (round(wide * (index + 0.5) / len(row)), MARGIN + HEIGHT // 2 + level * (HEIGHT + GAP_Y))
        for level, row in enumerate(rows)
        for index, name in enumerate(row)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'font-family="sans-serif" font-size="14" text-anchor="middle">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for name, used in graph.items():
        for other in sorted(used):
            (x, y), (to_x, to_y) = middle[name], middle[other]
            top, end = y + HEIGHT // 2, to_y - HEIGHT // 2 - 2
            bend = (top + end) // 2
            lines.append(
                f'<path d="M{x} {top}C{x} {bend} {to_x} {bend} {to_x} {end}" fill="none" stroke="#777" '
                'marker-end="url(#head)"/>'
            )
    for name, (x, y) in middle.items():
        lines.append(
            f'<rect x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="4" '
            f'fill="#e8eefc" stroke="#4263c7"/><text x="{x}" y="{y + 5}">{name}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawing(packages()))

"""Write the page on test coverage from coverage.py's JSON report: `coverage_page.py REPORT PAGE`.

Exits with 1 if fewer than LEAST of the branches are covered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LEAST = 0.95

HEAD = """# Test coverage

This page is generated: `make coverage` runs the tests of the core and the parts (`CORE` in the Makefile) and measures
which statements and branches of these modules they reach. Tests of other packages, which run the core too, are not
counted. Measured at commit {commit} with Python {python}. The target is {least:.0%} of the branches.

| module | statements | branches |
| --- | ---: | ---: |
"""


def cell(covered: int, total: int) -> str:
    """Return a table's cell such as "97.2 % of 214"; a dash if there is nothing to cover."""
    # rounded down, so that 100.0 % means all of them
    return f"{covered * 1000 // total / 10:.1f} % of {total}" if total else "–"


def row(name: str, summary: dict[str, int]) -> str:
    """Return a line of the table."""
    statements = cell(summary["covered_lines"], summary["num_statements"])
    return f"| {name} | {statements} | {cell(summary['covered_branches'], summary['num_branches'])} |\n"


def main(report: Path, page: Path) -> int:
    """Write the page; return the exit code."""
    measured = json.loads(report.read_text())
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    head = HEAD.format(commit=git.stdout.strip(), python=sys.version.split()[0], least=LEAST)
    rows = [row(f"`{name}`", file["summary"]) for name, file in sorted(measured["files"].items())]
    totals = measured["totals"]
    page.write_text(head + "".join(rows) + row("**all**", totals))
    share = totals["covered_branches"] / totals["num_branches"]
    print(f"{page}: {totals['covered_branches']} of {totals['num_branches']} branches, {share:.1%}")
    if share < LEAST:
        print(f"Fewer branches are covered than the target, {LEAST:.0%}: add tests under tests/.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))

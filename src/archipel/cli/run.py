"""`archipel run`: run a study and report its results."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from archipel.cli.browser import open_in_browser
from archipel.cli.console import AllowCode, AsJson, nearby, notices, out, print_json
from archipel.cli.loading import STOPPED, loading
from archipel.live.page_process import PageProcess, PageSettings
from archipel.live.serving import USUAL

if TYPE_CHECKING:
    from archipel.simulation.cluster.connection import Cluster
    from archipel.study.results import Results
    from archipel.study.schema import Study

# studies are imported in the functions that need them: they need torch, and `archipel run --help` does not


StudyFile = Annotated[
    Path | None, typer.Argument(help="A study in TOML, YAML or JSON; without one, seven methods on digits.")
]
Methods = Annotated[
    list[str] | None, typer.Option("--algorithm", "-a", help="Run only this method; may be given several times.")
]
DataSource = Annotated[str | None, typer.Option("--data", "-d", help="Another data source, such as fmnist.")]
SettingChanges = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a setting, such as training.rate=0.1."),
]
ResultsFolder = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder of the results; default: results/<title>.")
]
ResumedFolder = Annotated[
    Path | None, typer.Option("--resume", help="Continue the study in this folder, to the same bits.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time; default: one for each core.")]
ClusterAddress = Annotated[
    str | None,
    typer.Option("--cluster", help="Run on a Ray cluster: local, auto, host:port or ray://host:port."),
]
PerActor = Annotated[
    str | None,
    typer.Option(
        "--per-actor", metavar="cpus=1,gpus=0", help="Resources of each actor on the cluster.", show_default="cpus=1"
    ),
]
MixedNodes = Annotated[
    bool, typer.Option("--mixed", help="Allow nodes of the cluster whose versions or processors differ.")
]
SharedFolder = Annotated[
    Path | None,
    typer.Option("--cluster-folder", help="A folder that all nodes share, for data larger than their memory."),
]
Live = Annotated[
    bool, typer.Option("--live", help="Show the study on a page in a browser while it runs; see `archipel view`.")
]
PageAddress = Annotated[
    str | None,
    typer.Option("--listen", help="Address of the page, with --live.", metavar="HOST:PORT", show_default=USUAL),
]


def run(
    study: StudyFile = None,
    algorithm: Methods = None,
    data: DataSource = None,
    change: SettingChanges = None,
    folder: ResultsFolder = None,
    resume: ResumedFolder = None,
    jobs: Jobs = None,
    cluster: ClusterAddress = None,
    per_actor: PerActor = None,
    mixed: MixedNodes = False,
    cluster_folder: SharedFolder = None,
    live: Live = False,
    listen: PageAddress = None,
    allow_code: AllowCode = False,
    json: AsJson = False,
) -> None:
    """Run a study, watch it, and get a table and a report.

    Several algorithms, seeds and settings make a grid, which runs on all cores. Ctrl-C stops cleanly and keeps what is
    done; --resume continues.
    """
    with loading():
        from archipel.cli.progress import Display, exit_if_broken
        from archipel.study.results import run_study

    chosen, place = _chosen(study, algorithm or [], data, change or [], folder, resume, allow_code)
    where = cluster_of(cluster, per_actor, mixed, cluster_folder)
    display = Display(notices)
    if listen is not None and not live:
        raise ValueError(f"--listen {listen}: is the address of the live page; give --live too.")
    with _page(place, listen) if live else nullcontext():
        try:
            results = run_study(chosen, place, processes=jobs, cluster=where, watcher=display, live=live)
        finally:
            display.close()
    _show(results, chosen, json)
    exit_if_broken(display)
    if results.unfinished:
        notices.print(
            f"stopped with {len(results.unfinished)} runs unfinished; continue with: "
            f"archipel run --resume {escape(shlex.quote(str(place)))}{' --allow-code' * allow_code}"
            f"{'' if cluster is None else f' --cluster {escape(shlex.quote(cluster))}'}",
            soft_wrap=True,
            highlight=False,
        )
        raise typer.Exit(STOPPED)


@contextmanager
def _page(folder: Path, listen: str | None) -> Iterator[None]:
    """Show the runs of a folder on a page, from a process of its own."""
    page = PageProcess(PageSettings(str(folder.resolve()), listen))
    notices.print(f"Live: {escape(page.url)}", soft_wrap=True, highlight=False)
    open_in_browser(page.url)
    try:
        yield
    finally:
        page.close()


def cluster_of(address: str | None, per_actor: str | None, mixed: bool, folder: Path | None) -> Cluster | None:
    """Return the cluster that the options describe, if there is one."""
    from archipel.simulation.cluster.connection import Cluster

    if address is None:
        if per_actor is not None or mixed or folder is not None:
            raise ValueError("--per-actor, --mixed and --cluster-folder are for a cluster; give --cluster too.")
        return None
    shares: dict[str, float] = {}
    for part in (per_actor or "cpus=1").split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("cpus", "gpus") or not re.fullmatch(r"\d*\.?\d+", value):
            raise ValueError(f"--per-actor must be, for example, cpus=1,gpus=0.25, got {per_actor!r}.")
        shares[name] = float(value)
    return Cluster(address, **shares, mixed=mixed, folder=None if folder is None else str(folder.resolve()))


def _chosen(
    path: Path | None,
    algorithms: list[str],
    data: str | None,
    changes: list[str],
    folder: Path | None,
    resume: Path | None,
    allow_code: bool,
) -> tuple[Study, Path]:
    """Return the study and the folder of its results."""
    from archipel.study.files import read_study
    from archipel.study.grid import slug
    from archipel.study.own_code import Code

    code: Code = "any" if allow_code else "beside"
    if resume is not None:
        if path or algorithms or data or changes or folder:
            raise ValueError("--resume continues the study in its folder as it is; give no other arguments.")
        if not (resume / "runs.json").exists() or not (resume / "study.toml").exists():
            raise FileNotFoundError(
                f"{resume} holds no results of a study; give the folder of a study's results, not that of a single run."
            )
        return read_study(resume / "study.toml", code=code), resume
    study = read_study(path, algorithms=algorithms, data=data, changes=changes, code=code)
    if folder is not None:
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} exists already; give another --out, or continue it with --resume {folder}.")
        return study, folder
    names = (slug(study.title) + ("" if number == 1 else f"-{number}") for number in range(1, 10**6))
    return study, next(place for name in names if not (place := Path("results") / name).exists())


def _show(results: Results, study: Study, json: bool) -> None:
    """Print the table of finished runs, and write their report."""
    from archipel.cli.report import as_data, table
    from archipel.report.measures import marks, measure

    if not results.runs:
        if json:
            print_json({"folder": str(results.folder), "methods": []})
        return
    compare = study.report
    at = marks(results.runs, target=compare.target, seconds=compare.seconds, rounds=compare.rounds)
    measured = measure(results.runs, at)
    page = None
    if importlib.util.find_spec("matplotlib"):
        page = results.report()
    if json:
        print_json({"folder": str(results.folder), **as_data(page, at, measured)})
        return
    out.print(table(measured))
    for note in results.notes:
        out.print(escape(note), highlight=False, soft_wrap=True)
    if page is None:
        advice = "No report: figures need matplotlib; pip install '.[plots]' in the source folder"
        out.print(advice, soft_wrap=True, highlight=False)
    else:
        out.print(f"Report: {escape(nearby(page))}", soft_wrap=True, highlight=False)

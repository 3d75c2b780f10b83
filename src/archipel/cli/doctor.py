"""`archipel doctor`: check the installation, the machine and the data."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import archipel
from archipel.cli.console import AllowCode, AsJson, print_json
from archipel.cli.data import KNOWN, looked_for
from archipel.cli.folding import MARGIN, heading, write
from archipel.cli.run import PerActor, cluster_of
from archipel.cli.study_executors import executions, show_executions
from archipel.core.checks import require
from archipel.core.parts.ending import Ending
from archipel.data.fetch import cache, places
from archipel.kernels.native.library import load
from archipel.simulation.cluster.connection import Cluster
from archipel.simulation.cluster.inspection import NodeReport, inspect_cluster
from archipel.simulation.simulate import simulate

FOR_DEVELOPERS = ("test", "dev", "docs")
CLOSE = 1e-4
"""Largest difference between two models of the self-test: executors sum in different orders."""


@dataclass(frozen=True)
class Package:
    """A package that Archipel needs, always or for an extra."""

    name: str
    version: str | None
    """The installed version; None if there is none."""
    needed: SpecifierSet
    """The versions that work."""
    extra: str
    """The extra that needs it; empty for the core install."""

    @property
    def works(self) -> bool:
        return self.version is not None and self.needed.contains(self.version, prereleases=True)

    def __str__(self) -> str:
        needs = "" if self.works or not self.needed else f" (needs {self.needed})"
        return f"{self.name} {self.version or 'is not installed'}{needs}"


@dataclass(frozen=True)
class MachineInfo:
    system: str
    python: str
    cores: int
    """That this process may use."""
    memory: int | None
    """Bytes; None if unknown."""
    threads: int
    """Threads of torch."""
    cuda: bool
    native: bool
    """Whether Archipel's C library is loaded."""
    native_kind: str
    """Of the processor: default, avx2 or avx512."""
    native_reason: str
    """Why the C library is not loaded; empty if it is."""


@dataclass(frozen=True)
class Extra:
    name: str
    installed: bool
    command: str
    """That installs it."""


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    passed: bool
    found: str
    """What was found, and in case of trouble the way out."""


@dataclass(frozen=True)
class Diagnosis:
    well: bool
    version: str
    machine: MachineInfo
    packages: dict[str, str | None]
    extras: tuple[Extra, ...]
    places: tuple[str, ...]
    """Where files of data sets are looked for."""
    at_hand: tuple[str, ...]
    absent: tuple[str, ...]
    checks: tuple[Check, ...]


def doctor(
    study: Annotated[
        Path | None, typer.Argument(help="Show how the learners of this study will be trained instead, and why.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Check the nodes of this Ray cluster instead: auto, host:port.")
    ] = None,
    per_actor: PerActor = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Check the installation, the machine and the data, and train a little; exit code 1 if something is broken."""
    if study is not None:
        require(cluster is None, "doctor: give a study or --cluster, not both.")
        methods = list(executions(study, "any" if allow_code else "beside"))
        print_json([asdict(one) for one in methods]) if as_json else show_executions(methods)
        return
    place = cluster_of(cluster, per_actor, mixed=False, folder=None)
    if place is not None:
        reports = inspect_cluster(place)
        print_json([asdict(report) for report in reports]) if as_json else show_nodes(reports, place)
        if any(report.trouble for report in reports) or not any(report.actors for report in reports):
            raise typer.Exit(1)
        return
    found = diagnosis()
    print_json(asdict(found)) if as_json else show(found)
    if not found.well:
        raise typer.Exit(1)


# ----------------------------------------------------------------------------------------------------------- checks


def diagnosis() -> Diagnosis:
    """Run all checks."""
    packages = list(required())
    needed = [package for package in packages if not package.extra]
    checks = [check_packages(needed), check_data(), check_cache(), *check_training()]
    # with a wrong $ARCHIPEL_DATA nothing is searched; its check says so
    searched = places() if checks[1].passed else []
    known = {name: here(name) for name in KNOWN if searched}
    return Diagnosis(
        all(check.passed for check in checks),
        archipel.__version__,
        machine(),
        {package.name: package.version for package in needed},
        extras(packages),
        tuple(map(str, searched)),
        tuple(name for name, there in known.items() if there),
        tuple(name for name, there in known.items() if not there),
        tuple(checks),
    )


def required() -> Iterator[Package]:
    """Yield the packages that the installed Archipel requires here."""
    for line in importlib.metadata.requires("archipel") or ():
        requirement = Requirement(line)
        extra = extra_of(requirement)
        if extra is not None and requirement.name != "archipel":  # extras that only combine others
            yield Package(requirement.name, version_of(requirement.name), requirement.specifier, extra)


def extra_of(requirement: Requirement) -> str | None:
    """Return the extra that needs a package, empty for the core install; None if this Python does not need it."""
    extras = ["", *importlib.metadata.metadata("archipel").get_all("Provides-Extra", ())]
    marker = requirement.marker
    return next((extra for extra in extras if marker is None or marker.evaluate({"extra": extra})), None)


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def extras(packages: list[Package]) -> tuple[Extra, ...]:
    names = dict.fromkeys(package.extra for package in packages if package.extra not in ("", *FOR_DEVELOPERS))
    return tuple(
        Extra(
            name,
            all(package.works for package in packages if package.extra == name),
            f"pip install '.[{name}]'",
        )
        for name in names
    )


def machine() -> MachineInfo:
    native = load()
    return MachineInfo(
        f"{platform.system()} {platform.machine()}",
        platform.python_version(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None,
        torch.get_num_threads(),
        torch.cuda.is_available(),
        native.loaded is not None,
        native.kind,
        native.reason,
    )


def here(source: str) -> bool:
    """Return whether a data set can be used without a download, by its default arguments."""
    files = looked_for(source)
    return not files or bool(files[0].at_hand)


def check_packages(needed: list[Package]) -> Check:
    wrong = [str(package) for package in needed if not package.works]
    advice = "; pip install -c constraints.txt . in the source folder"
    return Check("packages", not wrong, "; ".join(wrong) + advice if wrong else "all required ones are installed")


def check_data() -> Check:
    try:
        places()
    except FileNotFoundError as error:
        return Check("$ARCHIPEL_DATA", False, str(error))
    return Check("$ARCHIPEL_DATA", True, os.environ.get("ARCHIPEL_DATA") or "not set (optional)")


def check_cache() -> Check:
    """Check that the cache can be written, as downloads and large data sets need it; leave nothing there."""
    folder = cache()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        return Check("cache", False, f"{folder} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder")
    return Check("cache", True, f"{folder} can be written, {free / 1e9:,.1f} GB are free")


def check_training() -> list[Check]:
    """Train two rounds on digits: the same seed must give the same bits, and plain execution the same model."""
    try:
        data = archipel.data.digits().split(learners=4)
        algorithm, ending = archipel.fedavg(epochs=5, momentum=0.9), Ending(rounds=2)
        first, again = (simulate(algorithm, data, ending=ending) for _ in range(2))
        plain = simulate(algorithm, data, ending=ending, execution="plain")
    except Exception as error:  # whatever is broken, the rest of the diagnosis is shown
        return [Check("training", False, f"{type(error).__name__}: {error}")]
    apart = float((first.model - plain.model).abs().max())
    return [
        Check(
            "same seed, same bits",
            first.fingerprint() == again.fingerprint(),
            f"two rounds on digits ended with model {first.fingerprint()}, then with {again.fingerprint()}",
        ),
        Check(
            "training",
            apart <= CLOSE,
            f"{first.execution} and plain, the numbers of the models are at most {apart:.0e} apart; accuracy "
            f"{first.score:.2f}",
        ),
    ]


# ---------------------------------------------------------------------------------------------------- on the terminal


def show(found: Diagnosis) -> None:
    here = found.machine
    memory = "" if here.memory is None else f", {here.memory / 1e9:,.1f} GB of memory"
    heading(f"archipel {found.version}, Python {here.python}, {here.system}")
    write(
        f"{here.cores} cores{memory}; torch computes on {here.threads} threads"
        f"{' and can use CUDA' if here.cuda else ''}",
        MARGIN,
    )
    if here.native:
        write(f"C library: loaded, for {here.native_kind}", MARGIN)
    else:
        advice = "With a C compiler at install small networks and merges are faster; pip install -v shows its messages"
        write(f"C library: not loaded, torch is used instead: {here.native_reason}. {advice}.", MARGIN)
    write(", ".join(f"{name} {version or 'is missing'}" for name, version in found.packages.items()), MARGIN)
    heading("Extras")
    for extra in found.extras:
        write("installed" if extra.installed else f"missing: {extra.command}", 12, name=extra.name)
    heading("Data")
    if found.places:
        write(f"looked for in {', '.join(found.places)}", MARGIN)
        write(f"available: {', '.join(found.at_hand)}", MARGIN)
        write(f"not available: {', '.join(found.absent) or 'none'}; `archipel data` tells how to get them", MARGIN)
    else:
        write("not looked for, because $ARCHIPEL_DATA is wrong", MARGIN)
    heading("Checks")
    for check in found.checks:
        mark, colour = ("ok", "green") if check.passed else ("broken", "bold red")
        write(f"{check.name}: {check.found}", 10, name=mark, colour=colour)
    broken = [check.name for check in found.checks if not check.passed]
    write(f"Broken: {', '.join(broken)}." if broken else "All is well.", style="bold red" if broken else "bold green")


def show_nodes(reports: list[NodeReport], cluster: Cluster) -> None:
    """Print the nodes of a cluster."""
    actors = sum(report.actors for report in reports)
    counts = [
        f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((len(reports), "node"), (actors, "actor"))
    ]
    heading(f"{counts[0]}, room for {counts[1]} of {cluster.share}")
    for report in reports:
        node = report.node
        has = f"{node.cpus:g} cores, {node.gpus:g} GPUs, {node.memory / 1e9:.1f} GB"
        has += f", object store {node.object_store / 1e9:.1f} GB, room for {report.actors}"
        if report.versions is not None:
            has += "; " + ", ".join(f"{name} {version}" for name, version in asdict(report.versions).items())
        mark, colour = ("differs", "bold red") if report.trouble else ("ok", "green")
        write(f"{node.name}: {has}{': ' if report.trouble else ''}{report.trouble}", 10, name=mark, colour=colour)
    if any(report.trouble for report in reports):
        write("Install the same versions on all nodes, or run with --mixed.", style="bold red")
    elif not actors:
        write(f"No node has {cluster.share} for an actor.", style="bold red")
    else:
        write("All nodes compute the same bits as this machine.", style="bold green")

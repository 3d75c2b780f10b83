"""`archipel data`: list data sets, show a split of one, download one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from urllib.parse import urlsplit

import typer

from archipel.cli.console import AsJson, print_json
from archipel.cli.folding import MARGIN, write
from archipel.cli.split import described, show_split
from archipel.core.checks import one_of, require
from archipel.data import Source, heat_map, own, sources
from archipel.data.fetch import find, places
from archipel.data.sources.catalogue import DECIDES, FILES, wanted
from archipel.study.docs import parameters_of, settings_of, spelled, summary_of

KNOWN: dict[str, Callable[..., Source]] = {name: getattr(sources, name) for name in sources.__all__}
OWN: dict[str, Callable[..., Source]] = {
    "from_csv": own.from_csv,
    "from_parquet": own.from_parquet,
    "from_npz_folder": own.from_npz_folder,
}
MEANINGS = settings_of(Source.split)

Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="An argument of the source, as in classes=[1,2] or text=plays.", metavar="KEY=VALUE"),
]

app = typer.Typer(
    help="List the known data sets, and which are on this machine; `show` draws a split, `get` downloads.",
    invoke_without_command=True,
)


@app.callback()
def data(context: typer.Context, as_json: AsJson = False) -> None:
    """List the known data sets and where their files are; nothing is read or downloaded."""
    if context.invoked_subcommand is None:
        known = [Listed(name, summary_of(KNOWN[name]), looked_for(name)) for name in KNOWN]
        print_json([asdict(source) for source in known]) if as_json else show_list(known)


@app.command()
def show(
    source: Annotated[
        str,
        typer.Argument(
            help="A data set, or from_csv, from_parquet or from_npz_folder with their arguments as options.",
            autocompletion=lambda: [*KNOWN, *OWN],
        ),
    ],
    learners: Annotated[
        int | None, typer.Option(help="Number of learners; default: 10, or all sites.", show_default=False)
    ] = None,
    sizes: Annotated[str | None, typer.Option(help=MEANINGS["sizes"])] = None,
    classes: Annotated[str | None, typer.Option(help=MEANINGS["classes"])] = None,
    features: Annotated[str | None, typer.Option(help=MEANINGS["features"])] = None,
    test: Annotated[str, typer.Option(help=MEANINGS["test"])] = "0.2",
    natural: Annotated[bool, typer.Option("--natural", help="Every site of the source is a learner.")] = False,
    seed: Annotated[int, typer.Option(help=MEANINGS["seed"])] = 0,
    option: Options = None,
    picture: Annotated[Path | None, typer.Option("--out", "-o", help="Draw it into this .png or .svg too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a split divides a data set among learners."""
    one_of("archipel data show", "the source", source, KNOWN | OWN)
    shaped = [name for name, value in (("sizes", sizes), ("classes", classes), ("features", features)) if value]
    require(
        not (natural and shaped),
        f"archipel data show: with --natural each site is a learner, so leave out --{' and --'.join(shaped)}.",
    )
    made = (KNOWN | OWN)[source](**arguments(source, option or []))
    if natural:
        islands = made.natural(learners, test=test, seed=seed)
    else:
        many = 10 if learners is None else learners
        islands = made.split(many, sizes, classes or "iid", test, seed=seed, features=features)
    pictures = heat_map(islands, picture) if picture is not None else []
    split = described(islands, pictures)
    print_json(asdict(split)) if as_json else show_split(split)


@app.command()
def get(
    source: Annotated[str, typer.Argument(help="A data set.", autocompletion=lambda: list(KNOWN))],
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set into the cache, unless it is on this machine, and read it once as a check."""
    one_of("archipel data get", "the source", source, KNOWN)
    given = arguments(source, option or [])
    made = KNOWN[source](**given)
    files = wanted(source, given)
    found = None if files is None else find(files)
    got = Got(
        source,
        len(made.x),
        tuple(made.x.shape[1:]),
        made.classes,
        0 if made.test is None else len(made.test),
        len(made.site_names),
        tuple(made.categories),
        () if found is None else tuple(map(str, found.paths)),
    )
    print_json(asdict(got)) if as_json else show_got(got)


# -----------------------------------------------------------------------------------------------------------------
# facts


@dataclass(frozen=True)
class Files:
    """Files of a source on this machine, or how to get them."""

    choices: tuple[str, ...]
    """The values of the argument that chooses the files, for which these are read; empty if there is no such
    argument."""
    at_hand: tuple[str, ...]
    download: tuple[str, ...]
    """Addresses from which `archipel data get` would fetch them."""
    how: str
    """How to get them, if they cannot be downloaded."""


@dataclass(frozen=True)
class Listed:
    name: str
    summary: str
    files: tuple[Files, ...]
    """None if it comes with the installation."""


@dataclass(frozen=True)
class Got:
    source: str
    examples: int
    shape: tuple[int, ...]
    """Of one example."""
    classes: int | None
    test: int
    """Examples of the official test set."""
    sites: int
    categories: tuple[str, ...]
    files: tuple[str, ...]


def looked_for(source: str) -> tuple[Files, ...]:
    """Return the files of a source; those that several values of its argument share are one entry."""
    together: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[str]] = {}
    for choice, files in FILES[source].items():
        found = find(files)
        at_hand = () if found is None else tuple(map(str, found.paths))
        together.setdefault((at_hand, tuple(file.urls[0] for file in files.official), files.how), []).append(choice)
    return tuple(Files(tuple(filter(None, choices)), *rest) for rest, choices in together.items())


def arguments(source: str, options: list[str]) -> dict[str, Any]:
    """Return the arguments of a source that were given as key=value, checked against its signature."""
    # imported late: lists, and `archipel doctor`, check nothing by its type
    from pydantic import TypeAdapter, ValidationError

    from archipel.study.files import value_of

    make = (KNOWN | OWN)[source]
    known, hints = parameters_of(make), get_type_hints(make)
    given: dict[str, Any] = {}
    for option in options:
        key, sign, text = option.partition("=")
        require(bool(sign), f"--option {option}: should be a key and a value, such as verify=false.")
        require(bool(known), f"--option {option}: {source} takes no arguments.")
        one_of(source, "an option", key, known)
        value = value_of(text.strip())
        try:
            given[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError:
            raise ValueError(f"{source}: {key} should be {spelled(hints[key])}, got {value!r}.") from None
    for name, parameter in inspect.signature(make).parameters.items():
        require(
            parameter.default is not parameter.empty or name in given,
            f"{source}: give --option {name}=... ({settings_of(make)[name]}).",
        )
    return given


# ---------------------------------------------------------------------------------------------------- on the terminal


def show_list(known: list[Listed]) -> None:
    column = 2 * MARGIN + max(map(len, KNOWN))
    for source in known:
        write(source.summary, column, name=source.name)
        if not source.files:
            write("available: it comes with the installation", column, "green")
        for files in source.files:
            which = f"{DECIDES[source.name]} = {', '.join(files.choices)}: " if len(source.files) > 1 else ""
            write(which + whereabouts(source.name, files), column, "green" if files.at_hand else "yellow")
    write("")
    write("Files were looked for in:")
    for place in places():
        write(f"{place}" if place.is_dir() else f"{place}, which is not there", MARGIN)
    write("")
    write(
        "Downloads need the extra `data`, and so do images of gtsrb and of cifar10's npm package. `archipel data show` "
        "takes your own files too, by from_csv, from_npz_folder or from_parquet (which needs the extra `parquet`), and "
        "draws them with --out (which needs the extra `plots`)."
    )


def whereabouts(source: str, files: Files) -> str:
    if files.at_hand:
        return f"available: {Path(files.at_hand[0]).parent}"
    if files.download:
        hosts = ", ".join(sorted({urlsplit(address).netloc for address in files.download}))
        count = f"{len(files.download)} file{'s' * (len(files.download) > 1)}"
        return f"not available: `archipel data get {source}` downloads {count} from {hosts}"
    return f"not available. {files.how}"


def show_got(got: Got) -> None:
    shape = f"{got.shape[0]} numbers" if len(got.shape) == 1 else " x ".join(map(str, got.shape))
    write(f"{got.source}: {got.examples:,} examples of {shape} in {got.classes} classes")
    if got.test:
        write(f"{got.test:,} of them are the official test set", MARGIN)
    if got.sites:
        write(f"{got.sites:,} sites", MARGIN)
    if got.categories:
        write(f"categories: {', '.join(got.categories)}", MARGIN)
    for path in got.files:
        write(path, MARGIN)

"""A picture of a split: classes by learners, as in HDAFL's figure 2, with the learners' sizes above (Metis' insets)."""

from __future__ import annotations

import os
from pathlib import Path

from archipel.core.checks import one_of, require
from archipel.data.islands import Islands
from archipel.drawing.class_tables import draw, size
from archipel.drawing.colours import INK

ENDINGS = (".png", ".svg")


def heat_map(
    islands: Islands, path: str | os.PathLike[str], values: str = "examples", title: str | None = None
) -> list[Path]:
    """Draw the classes of every learner into a PNG or SVG file, by the path's suffix, or both if it has none.

    values: "examples", their number, or "share", their part of the learner's own examples.
    title: of the picture; None: the name of the islands and their numbers of learners and classes.

    Return the paths written. Equal islands give equal files. Needs matplotlib (the extra `plots`).
    """
    one_of("heat_map", "values", values, ("examples", "share"))
    path = Path(path)
    require(
        path.suffix.lower() in ("", *ENDINGS),
        f"heat_map: {path.name!r} should end in {' or '.join(ENDINGS)}, or have no suffix to write both.",
    )
    table = islands.class_table().numpy()
    try:
        # imported late: it is an extra
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("heat_map needs matplotlib: pip install '.[plots]' in the source folder") from error
    paths = [path] if path.suffix else [path.with_name(path.name + ending) for ending in ENDINGS]
    # a fixed salt and no date, so that equal islands give equal bytes
    with mpl.rc_context({"svg.hashsalt": "archipel", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        learners, classes = table.shape
        names = islands.rows.names
        figure = Figure(figsize=size(names, classes), layout="constrained")
        draw(figure, names, table, values)
        figure.suptitle(f"{islands.name}: {learners} learners, {classes} classes" if title is None else title)
        for one in paths:
            one.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"Software": None} if one.suffix.lower() == ".png" else {"Date": None}
            figure.savefig(one, dpi=150, metadata=metadata)
    return paths

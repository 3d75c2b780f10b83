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
    """Draw how much of every class every learner has; the path's ending says PNG or SVG, without one it is both.

    `values` is "examples", their number, or "share", their part of the learner's own examples. The paths written are
    returned; equal islands give equal files. It needs matplotlib: `pip install 'archipel[plots]'`.
    """
    one_of("heat_map", "values", values, ("examples", "share"))
    path = Path(path)
    require(
        path.suffix.lower() in ("", *ENDINGS),
        f"heat_map: {path.name!r} should end in {' or '.join(ENDINGS)}, or in neither to have both.",
    )
    table = islands.class_table().numpy()
    try:
        # imported late: only pictures need it
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("heat_map needs matplotlib: pip install 'archipel[plots]'") from error
    paths = [path] if path.suffix else [path.with_name(path.name + ending) for ending in ENDINGS]
    # a salt of our own and no date, so that the same islands are the same bytes
    with mpl.rc_context({"svg.hashsalt": "archipel", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        learners, classes = table.shape
        names = [learner.name for learner in islands.learners]
        figure = Figure(figsize=size(names, classes), layout="constrained")
        draw(figure, names, table, values)
        figure.suptitle(f"{islands.name}: {learners} learners, {classes} classes" if title is None else title)
        for one in paths:
            one.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"Software": None} if one.suffix.lower() == ".png" else {"Date": None}
            figure.savefig(one, dpi=150, metadata=metadata)
    return paths

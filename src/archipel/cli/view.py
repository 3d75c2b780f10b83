"""`archipel view`: the live page over runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from archipel.cli.browser import open_in_browser
from archipel.cli.console import out
from archipel.live.serving import USUAL, followed_in, open_page


def view(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a study's results, of runs, or of a controller's state.", metavar="FOLDER")
    ],
    listen: Annotated[
        str | None, typer.Option(help="Address of the page.", metavar="HOST:PORT", show_default=USUAL)
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser, if there is a screen.")] = True,
) -> None:
    """Show runs on one page: curves, learners, versions, traffic, and a slider that replays them.

    The page only reads. On this machine all users can open it; on others the token in its address is needed. Ctrl-C
    ends it.
    """
    server = open_page(followed_in(folder), listen)
    out.print(f"Page: {escape(server.url)}   Ctrl-C ends it.", soft_wrap=True, highlight=False)
    if browser:
        open_in_browser(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        raise typer.Exit from None
    finally:
        server.follower.close()
        server.server_close()

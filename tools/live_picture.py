"""Take the README's picture: the live page over a study's results, at a moment in the middle.

python tools/live_picture.py results/digits docs/pictures/live.png
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

from archipel.live.page_process import PageProcess, PageSettings

RUN, SHARE = 2, 0.55
"""The run that is shown, and the moment as a share of its time."""


def main(folder: str, picture: Path) -> None:
    process = PageProcess(PageSettings(str(Path(folder).resolve()), "localhost:0"))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1330}, color_scheme="light")
        page.goto(process.url)
        page.evaluate(f"page.choose({RUN})")
        while not page.evaluate(f"page.state.timeline.now > 0 && page.state.feed.runs.length > {RUN}"):
            time.sleep(0.1)
        page.wait_for_timeout(1500)
        page.evaluate(f"page.goTo({SHARE} * page.state.end)")
        page.wait_for_timeout(500)
        page.screenshot(path=picture)
        browser.close()
    process.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

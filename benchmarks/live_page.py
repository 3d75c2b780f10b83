"""Does the live page stay fluent? First paint, drawings a second and the server's memory with many learners.

    python -m benchmarks.live_page                          # 1,000 learners, 100,000 commits, 30 s of growth
    python -m benchmarks.live_page --learners 100 --commits 2000 --seconds 5
    python -m benchmarks.live_page --learners 200 --commits 0 --batch 1 --seconds 3600      # a soak of an hour

Records are made up and written to a folder as a run at work writes them; the server is the process that `archipel run
--live` starts, the browser is chromium without a window. The run then grows by 20 batches a second. Goals: the first
paint within a second, 20 drawings a second, less than 60 MB for the server. Needs playwright and chromium.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

from archipel.live.page_process import PageProcess, PageSettings
from archipel.live.run_folder import LIVE

BATCHES = 20
"""Batches of lines a second while the run grows."""


def records(learners: int, first: int) -> Iterator[str]:
    """Yield the lines of an asynchronous run, commit after commit."""
    for version in range(first, 10**9):
        learner, when = f"learner-{version * 7919 % learners:04}", version / 50
        traffic = {"train down bytes": 40_000 * version, "train up bytes": 40_000 * version}
        common = {"time": when, "task": version, "learner": learner, "version": max(0, version - learners)}
        commit = {
            "time": when + 0.01,
            "record": "Committed",
            "version": version,
            "rounds": version // learners,
            "learners": [learner],
            "paths": [[learner]],
            "tasks": [version],
            "weights": [[0.5, 0.5]],
            "stale_versions": [version % 50],
            "stale_steps": [version % 500],
            "layers": [0, 1],
            "traffic": traffic,
        }
        returned = {"steps": 10, "epochs": 1.0, "layers": ["a", "b"], "losses": [1.0, 0.5], "recalled": False}
        yield json.dumps({**common, "time": when - min(when, learners / 50), "record": "Handed", "slot": 0})
        yield json.dumps({**common, "record": "Returned", **returned})
        yield json.dumps(commit)
        accuracy = 1 - 1 / (1 + version / 1000)
        scores = {"version": version, "rounds": version // learners, "metrics": {"accuracy": accuracy}}
        yield json.dumps({"time": when + 0.01, "record": "Scores", **scores, "examples": 1, "sites": 1})


def memory(pid: int) -> float:
    """Return the megabytes of a process that are its own, at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def begin(folder: Path, learners: int, commits: int) -> Iterator[str]:
    """Write the run as far as it is there before the page opens; return the lines that follow."""
    names = [f"learner-{number:04}" for number in range(learners)]
    members = [{"name": name, "group": "fast", "role": "train", "examples": 100} for name in names]
    about = {"name": "fedasync", "seed": 0, "metric": "accuracy", "participants": members}
    lines = records(learners, 1)
    with (folder / LIVE).open("w") as film:
        film.write(json.dumps({"about": about}) + "\n")
        for _ in range(4 * commits):
            film.write(next(lines) + "\n")
    return lines


def measure(page: Any, url: str, commits: int) -> dict[str, float]:
    """Open the page; return the seconds to the first paint and until everything is drawn."""
    begun = time.monotonic()
    page.goto(url)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while (first := page.evaluate(paint)) is None:
        page.wait_for_timeout(20)
    while page.evaluate("page.state.timeline.commit.time.length") < commits:
        page.wait_for_timeout(20)
    return {"first paint (s)": first / 1000, "everything there (s)": time.monotonic() - begun}


def grow(page: Any, folder: Path, lines: Iterator[str], batch: int, seconds: float) -> dict[str, float]:
    """Let the run grow; return the drawings a second, and how long the longest of them took."""
    drawn = "Number(document.documentElement.dataset.drawn)"
    before, begun = page.evaluate(drawn), time.monotonic()
    with (folder / LIVE).open("a") as film:
        while (passed := time.monotonic() - begun) < seconds:
            for _ in range(4 * batch):
                film.write(next(lines) + "\n")
            film.flush()
            page.wait_for_timeout(max(0.0, 1000 * (1 / BATCHES - (time.monotonic() - begun - passed))))
    rate = (page.evaluate(drawn) - before) / (time.monotonic() - begun)
    took = page.evaluate("(() => { const at = performance.now(); page.draw(); return performance.now() - at; })()")
    return {"drawings a second": rate, "one drawing (ms)": took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=10, help="commits in each of the 20 batches a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as started:
        folder = Path(place)
        lines = begin(folder, chosen.learners, chosen.commits)
        process = PageProcess(PageSettings(place, "localhost:0"))
        browser = started.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        complaints: list[str] = []
        warm = browser.new_page()
        measure(warm, process.url, chosen.commits)  # the server has read the run; now a browser comes to it
        warm.close()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        figures = {
            **measure(page, process.url, chosen.commits),
            **grow(page, folder, lines, chosen.batch, chosen.seconds),
        }
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        figures |= {"page (MB)": heap, "versions on it": page.evaluate("page.state.timeline.commit.time.length")}
        figures |= {"server (MB)": memory(process.pid), "complaints": len(complaints)}
        browser.close()
        process.close()
    for name, figure in figures.items():
        print(f"{name:24} {figure:10.2f}")


if __name__ == "__main__":
    main()

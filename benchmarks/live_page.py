"""Does the live page stay fluent? First paint, drawings a second and the server's memory with many learners.

    python -m benchmarks.live_page                          # 1,000 learners, 100,000 commits, 30 s of growth
    python -m benchmarks.live_page --learners 100 --commits 2000 --seconds 5
    python -m benchmarks.live_page --runs 100 --learners 20 --commits 2000                  # a study with many runs
    python -m benchmarks.live_page --learners 200 --commits 0 --batch 1 --seconds 3600      # a soak of an hour

Records are made up and written to a folder as runs at work write them; the server is the process that `archipel run
--live` starts, the browser is chromium without a window. The runs then grow by 20 batches a second. Goals: the first
paint within a second, 20 drawings a second, less than 60 MB for the server. What a drawing costs is told in CPU time of
the page's main thread, all of it (parsing, layout and painting too), which other work on the machine disturbs less
than seconds. Needs playwright and chromium.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any, TextIO

from archipel.live.page_process import PageProcess, PageSettings
from archipel.live.run_folder import LIVE

BATCHES = 20
"""Batches of lines a second while runs grow."""
AT_WORK = 4
"""Runs that grow at the same time, at most."""


def records(learners: int, first: int, pace: float = 1.0) -> Iterator[str]:
    """Yield the lines of an asynchronous run, commit after commit."""
    for version in range(first, 10**9):
        learner, when = f"learner-{version * 7919 % learners:04}", pace * version / 50
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


@dataclass
class Film:
    """A run at work: its file, and the lines that follow."""

    file: TextIO
    lines: Iterator[str]

    def grow(self, commits: int) -> None:
        """Write the next commits, with all that belongs to them."""
        for _ in range(4 * commits):
            self.file.write(next(self.lines) + "\n")
        self.file.flush()


def begin(folder: Path, runs: int, learners: int, commits: int) -> list[Film]:
    """Write the runs as far as they are there before the page opens."""
    names = [f"learner-{number:04}" for number in range(learners)]
    members = [{"name": name, "group": "fast", "role": "train", "examples": 100} for name in names]
    places = [f"run-{number:03}" for number in range(runs)] if runs > 1 else ["."]
    (folder / "runs.json").write_text(json.dumps(places))
    films = []
    for number, place in enumerate(places):
        (folder / place).mkdir(exist_ok=True)
        about = {"name": f"method-{number % 10}", "seed": number // 10, "metric": "accuracy", "participants": members}
        film = Film((folder / place / LIVE).open("w"), records(learners, 1, 1 + number / 1000))
        film.file.write(json.dumps({"about": about}) + "\n")
        film.grow(commits)
        films.append(film)
    return films


def measure(page: Any, url: str, runs: int, commits: int) -> dict[str, float]:
    """Open the page; return the seconds to the first paint and until everything is drawn."""
    begun = time.monotonic()
    page.goto(url)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    while (first := page.evaluate(paint)) is None:
        page.wait_for_timeout(20)
    there = f"page.state.feed.runs.filter(one => one?.curve[0].length >= {commits}).length"
    while page.evaluate(there) < runs or page.evaluate("page.state.timeline.commit.time.length") < commits:
        page.wait_for_timeout(20)
    return {"first paint (s)": first / 1000, "everything there (s)": time.monotonic() - begun}


class Meter:
    """What the page has drawn so far, and what its main thread has spent on that."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")

    def look(self) -> tuple[float, float, float]:
        """Return drawings, seconds of CPU time of the main thread, and the time."""
        told = {one["name"]: one["value"] for one in self._session.send("Performance.getMetrics")["metrics"]}
        return self._page.evaluate("Number(document.documentElement.dataset.drawn)"), told["ThreadTime"], time.time()

    def heap(self) -> float:
        """Return the megabytes that the page holds, without garbage."""
        self._session.send("HeapProfiler.collectGarbage")
        return float(self._page.evaluate("performance.memory.usedJSHeapSize")) / 2**20


def grow(page: Any, meter: Meter, films: list[Film], batch: int, seconds: float) -> dict[str, float]:
    """Let the runs grow; return the drawings a second, and the CPU time of each."""
    (drawings, spent, at), begun = meter.look(), time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        for film in films[-AT_WORK:]:
            film.grow(batch)
        page.wait_for_timeout(max(0.0, 1000 * (1 / BATCHES - (time.monotonic() - begun - passed))))
    more, then, ended = meter.look()
    count = more - drawings
    return {"drawings a second": count / (ended - at), "CPU a drawing (ms)": 1000 * (then - spent) / max(1, count)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1, help=f"of the study; the last {AT_WORK} of them are at work")
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--commits", type=int, default=100_000, help="of each run, before the page is opened")
    parser.add_argument("--batch", type=int, default=10, help="commits in each of the 20 batches a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as started:
        films = begin(Path(place), chosen.runs, chosen.learners, chosen.commits)
        process = PageProcess(PageSettings(place, "localhost:0"))
        browser = started.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        complaints: list[str] = []
        warm = browser.new_page()
        measure(warm, process.url, chosen.runs, chosen.commits)  # the server has read the runs; now a browser comes
        warm.close()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        figures = measure(page, process.url, chosen.runs, chosen.commits)
        meter = Meter(page)
        figures |= {"page before (MB)": meter.heap(), "server before (MB)": memory(process.pid)}
        figures |= grow(page, meter, films, chosen.batch, chosen.seconds)
        figures |= {"versions on it": page.evaluate("page.state.timeline.commit.time.length")}
        figures |= {"page (MB)": meter.heap(), "server (MB)": memory(process.pid), "complaints": len(complaints)}
        browser.close()
        process.close()
    for name, figure in figures.items():
        print(f"{name:24} {figure:10.2f}")


if __name__ == "__main__":
    main()

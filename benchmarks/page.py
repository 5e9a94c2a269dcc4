"""The page of a long search: how large it is, how soon it is drawn, how smooth its slider is.

python benchmarks/page.py
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from reporting import at_most, report
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import joslim
from joslim.front import Front, Point
from joslim.results.run_files import FORMAT
from joslim.space import Dim, Knob, WidthSpace

VISITS, CHILDREN, DIMS, STEPS = 5000, 300, 25, 100_000
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking")

# Two frames after the page is loaded, everything has been drawn.
OPENED = """
const done = arguments[0];
const soon = requestAnimationFrame;
const drawn = () => soon(() => soon(() => done(performance.now())));
if (document.readyState === "complete") drawn(); else addEventListener("load", drawn);"""
SLID = """
const slider = document.getElementById("slider");
const times = [];
for (let place = 0; place <= 1000; place += 10) {
  const start = performance.now();
  slider.value = place;
  slider.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  times.push(performance.now() - start);
}
return times"""


def made(folder: Path, rng: np.random.Generator) -> Path:
    """A run as its files tell it: the more a child costs, the less are its error and its loss."""
    names = [f"features.{at}.conv" for at in range(DIMS)]
    knobs = tuple(Knob(name, (at,), 0.25) for at, name in enumerate(names))
    space = WidthSpace(tuple(Dim(name, 320, layers=(name,)) for name in names), knobs)
    costs = np.sort(rng.uniform(6e7, 3e8, VISITS))[rng.permutation(VISITS)]
    counts = [space.random(rng).counts for _ in range(VISITS)]
    write_lines(folder / "history.jsonl", history(space, costs, counts, rng))
    write_lines(folder / "metrics.jsonl", metrics())
    config = {"model": "mobilenet_v2", "data": "imagenet", "method": "joslim", "steps": STEPS}
    config |= {"seed": 0, "every": 40}
    facts = {"format": FORMAT, "joslim": joslim.__version__, "config": config}
    (folder / "config.json").write_text(json.dumps(facts))
    points = []
    for at in np.argsort(costs)[:: VISITS // CHILDREN]:
        priced = {
            "macs": int(costs[at]),
            "params": int(costs[at] / 80),
            "memory": int(costs[at] / 9),
        }
        error = 28 + 12 * (3e8 / costs[at] - 1) ** 0.7
        points.append(Point(space.of_counts(counts[at]), priced, error / 20, error + 0.3, error))
    front = Front(points, "macs", (6e7, 3e8))
    (folder / "front.json").write_text(json.dumps(front.to_json()))
    return folder


def history(space: WidthSpace, costs: Any, counts: Any, rng: np.random.Generator) -> list[Any]:
    lines: list[Any] = [{"cost": "macs", "space": space.to_json()}]
    for child in range(VISITS):
        step = STEPS * child // VISITS
        visit = {"id": child, "step": step, "widths": counts[child], "cost": int(costs[child])}
        ids = [*range(max(0, child - 23), child + 1)]
        losses = [float(2e8 / costs[i] + 4 * rng.random() / (1 + step / 5e3)) for i in ids]
        lines += [visit, {"step": step, "ids": ids, "losses": losses}]
    return lines


def metrics() -> list[Any]:
    steps = range(100, STEPS + 1, 100)
    return [
        {"step": s, "loss": 7e2 / s, "smallest_loss": 9e2 / s, "losses": [7e2 / s] * 4}
        | {"seconds": s / 9, "parts": {"data": s / 900, "search": s / 90, "scoring": s / 90}}
        for s in steps
    ]


def write_lines(file: Path, lines: list[Any]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def opened(page: Path, profile: Path) -> tuple[float, float]:
    """Seconds until all is drawn, the least of three; milliseconds of the slowest slide."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        seconds = []
        for _ in range(3):
            browser.get("about:blank")
            browser.get(page.as_uri())
            seconds.append(browser.execute_async_script(OPENED) / 1000)
        return min(seconds), float(np.quantile(browser.execute_script(SLID), 0.95))
    finally:
        browser.quit()


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        run = made(Path(place), np.random.default_rng(0))
        start = time.perf_counter()
        page = joslim.report(run)
        writing = time.perf_counter() - start
        megabytes = page.stat().st_size / 1e6
        opening, sliding = opened(page, Path(place) / "browser")
    row = {"visited": VISITS, "front": CHILDREN, "MB": megabytes, "written in s": writing}
    row |= {"drawn in s": opening, "slider ms": sliding}
    figures = {
        "page_megabytes": at_most(megabytes, 6),
        "page_opens_in_seconds": at_most(opening, 2),
        "page_slider_milliseconds": at_most(sliding, 50),
    }
    report("The page of a long search", [row], figures)


if __name__ == "__main__":
    main()

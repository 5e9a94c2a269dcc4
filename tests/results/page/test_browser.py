"""The page in a real browser: what it shows is what Python says, by hand, eye and keyboard."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joslim.front import Front, Mistakes, Point
from joslim.results.page.content import page_of
from joslim.results.record import read_record
from joslim.runs.folder import RunFolder
from joslim.runs.report import report
from joslim.units import format_size

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="there is no chromium with its chromedriver"
)
OFFLINE = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
)
CARDS = ("front-card", "pick-card", "loss-card", "time-card")
MakeRun = Callable[..., Path]
# Whatever a name may try, it says so in the console or in a variable.
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>{{data}}&amp;"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (*OFFLINE, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def run(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "it's one", visits=300)
    report(folder)
    return folder


@pytest.fixture(autouse=True)
def clean_console(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may leave an error in the console, nor ask anything of a network."""
    driver = request.getfixturevalue("browser")
    yield
    assert driver.get_log("browser") == []
    asked = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    assert [name for name in driver.execute_script(asked) if not name.startswith("data:")] == []


def opened(browser: Any, page: Path, place: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{page.resolve().as_uri()}{place}")


def texts(browser: Any, *names: str) -> list[str]:
    script = "return arguments[0].map(id => document.getElementById(id).textContent)"
    return browser.execute_script(script, names)


CHOICES = """
const [cost, budgets] = arguments, change = (id, value, kind) => {
  const input = document.getElementById(id);
  input.value = value;
  input.dispatchEvent(new Event(kind));
};
const all = (query) => [...document.querySelectorAll(query)].map((node) => node.textContent);
change("cost", cost, "change");
return budgets.map((budget) => {
  change("budget", budget, "input");
  const values = all("#child-figures dd:not(.remark)");
  return {
    title: all("#child-title")[0],
    figures: Object.fromEntries(all("#child-figures dt").map((name, at) => [name, values[at]])),
    channels: all("#channels .number"),
    command: all("#command")[0],
  };
})"""


def typed(browser: Any, cost: str, *budgets: float) -> list[dict[str, Any]]:
    """The children that the page shows for budgets, by what a person would do and see."""
    return browser.execute_script(CHOICES, cost, [repr(budget) for budget in budgets])


def budgets_for(front: Front, cost: str) -> list[float]:
    """At every cost, a little below and above, and anywhere between."""
    costs = sorted(point.costs[cost] for point in front)
    beside = [value for c in costs[::4] for value in (c, np.nextafter(c, 0), np.nextafter(c, 1e9))]
    spread = np.random.default_rng(0).uniform(costs[0], costs[-1] * 1.2, 15)
    return [float(value) for value in (*beside, *spread) if value >= costs[0]]


@pytest.mark.parametrize("cost", ["macs", "memory", "params", "latency_ms"])
def test_the_child_of_a_budget_is_the_one_that_python_picks(
    cost: str, browser: Any, run: Path
) -> None:
    opened(browser, run / "report.html")
    front = Front.read(run)
    children = list(front)
    budgets = budgets_for(front, cost)
    for budget, shown in zip(budgets, typed(browser, cost, *budgets)):
        point = front.pick(**{cost: budget})
        assert shown["title"] == f"Child {children.index(point) + 1} of {len(front)}"
        assert shown["channels"] == [f"{count} / 64" for count in point.widths.counts]
        check_figures(shown["figures"], point, budget - point.costs[cost], cost)
        check_command(shown["command"], run, front, point)


def check_figures(figures: dict[str, str], point: Point, left: float, cost: str) -> None:
    assert figures["test error"] == f"{point.test_error:.2f} %"
    assert figures["validation error"] == f"{point.val_error:.2f} %"
    assert figures["training loss"] == f"{point.train_loss:.4f}"
    assert figures["multiply-adds"] == format_size("macs", point.costs["macs"])
    assert figures["latency"] == format_size("latency_ms", point.costs["latency_ms"])
    assert figures["left of the budget"] == format_size(cost, left)


def check_command(command: str, run: Path, front: Front, point: Point) -> None:
    """It can be typed as it is, and picks exactly this child."""
    words = shlex.split(command)
    assert words[:3] == ["joslim", "export", str(run)]
    assert words[5:] == ["-o", "child.onnx"]
    name = words[3].removeprefix("--").replace("-", "_")
    assert front.pick(**{name: float(words[4])}) is point


def test_a_budget_that_nothing_fits(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    cheapest = min(point.costs["macs"] for point in Front.read(run))
    shown, fitting = typed(browser, "macs", cheapest - 1, cheapest)
    assert (shown["title"], shown["channels"], shown["command"]) == ("No child fits", [], "")
    assert fitting["title"] == "Child 1 of 40"
    field = browser.find_element("id", "budget")
    for nonsense in ("", "-3", "0"):
        script = """
        const input = document.getElementById("budget");
        input.value = arguments[0];
        input.dispatchEvent(new Event("input"));"""
        browser.execute_script(script, nonsense)
        assert texts(browser, "child-title") == ["Child 1 of 40"]
        assert "Type a number above 0, such as " in texts(browser, "budget-words")[0]
        assert field.get_attribute("aria-invalid") == "true"
    typed(browser, "macs", cheapest)
    assert "Type a number" not in texts(browser, "budget-words")[0]
    assert field.get_attribute("aria-invalid") == "false"
    typed(browser, "macs", 1.5)
    assert f"Type {cheapest} or more" in texts(browser, "child-next")[0]


def test_it_opens_on_a_child_in_the_middle(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    front = Front.read(run)
    bought = {front.pick(macs=point.costs["macs"]).costs["macs"]: None for point in front}
    middle = sorted(bought)[len(bought) // 2]
    assert browser.find_element("id", "budget").get_attribute("value") == str(middle)


def test_the_slider_by_hand_and_by_key(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    front = Front.read(run)
    script = """
    const slider = document.getElementById("slider");
    slider.value = arguments[0];
    slider.dispatchEvent(new Event("input"));
    return Number(document.getElementById("budget").value)"""
    for place in (0, 1, 137, 500, 999, 1000):
        budget = browser.execute_script(script, place)
        expected = front.pick(macs=budget)
        assert texts(browser, "child-title") == [f"Child {[*front].index(expected) + 1} of 40"]
    slider = browser.find_element("id", "slider")
    for key, seen in ((Keys.HOME, front[0]), (Keys.END, front.pick(macs=front.span[1]))):
        slider.send_keys(key)
        assert texts(browser, "child-title") == [f"Child {[*front].index(seen) + 1} of 40"]
    before = texts(browser, "child-title")
    slider.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert texts(browser, "child-title") != before
    assert "child" in slider.get_attribute("aria-valuetext")


def test_the_chart_is_read_by_key_and_by_pointer(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    front = Front.read(run)
    chart = browser.find_element("id", "front-chart")
    browser.find_element("id", "measure").send_keys(Keys.TAB)
    assert browser.switch_to.active_element == chart
    tip = "return document.querySelector('#front-chart .tip')?.innerText || ''"
    for at in range(3):
        shown = browser.execute_script(tip)
        assert shown.startswith(f"child {at + 1} of 40")
        assert format_size("memory", front[at].costs["memory"]) in shown
        chart.send_keys(Keys.ARROW_RIGHT)
    chart.send_keys(Keys.END, Keys.ENTER)
    assert texts(browser, "command")[0] == command_of(run, front.pick(macs=front[-1].costs["macs"]))
    chart.send_keys(Keys.ESCAPE)
    assert browser.execute_script(tip) == ""
    webdriver.ActionChains(browser).move_to_element(
        browser.find_element("css selector", "#front-chart .mark")
    ).perform()
    assert browser.execute_script(tip).startswith("child ")


def command_of(run: Path, point: Point) -> str:
    return f"joslim export {shlex.quote(str(run))} --macs {point.costs['macs']} -o child.onnx"


def test_a_reload_comes_back_to_the_same_place(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    (shown,) = typed(browser, "memory", 20_000)
    WebDriverWait(browser, 5).until(lambda _: "cost=memory" in browser.current_url)
    browser.refresh()
    assert texts(browser, "command") == [shown["command"]]
    opened(browser, run / "report.html", "#run=7&cost=nonsense&budget=NaN&measure=__proto__")
    assert texts(browser, "subtitle") == ["resnet8 on digits, method joslim, seed 0"]
    assert "--macs" in texts(browser, "command")[0]


def test_the_table_has_every_child(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#front-table tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    front = Front.read(run)
    assert [row[0] for row in rows] == [str(at + 1) for at in range(len(front))]
    for row, point in zip(rows, front):
        costs = [format_size(name, point.costs[name]) for name in front.costs]
        errors = [f"{point.test_error:.2f} %", f"{point.val_error:.2f} %"]
        assert row[1:] == [*costs, *errors, f"{point.train_loss:.4f}"]


def test_every_card_draws_something(browser: Any, run: Path) -> None:
    opened(browser, run / "report.html")
    empty = browser.execute_script("""
    return [...document.querySelectorAll(".card:not([hidden]) .chart")]
      .filter((place) => place.querySelectorAll("svg .plot > *").length === 0).map(({id}) => id)""")
    assert empty == []
    dots = "return document.querySelectorAll('#search-chart .dots').length"
    assert browser.execute_script(dots) == 6
    count = "return (document.getElementById('search-chart').innerHTML.match(/h0/g) || []).length"
    assert browser.execute_script(count) == 300


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_is_wider_than_the_window(width: int, browser: Any, run: Path) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened(browser, run / "report.html")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


CONTRASTS = """
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!colour.startsWith("rgba")) return colour;
  }
};
const kinds = "p, h1, h2, h3, dt, dd, th, td, label, code, summary, button, .number, text";
return [...document.querySelectorAll(kinds)]
  .filter((node) => node.textContent.trim() && node.getClientRects().length)
  .map((node) => {
    const style = getComputedStyle(node);
    const own = node.namespaceURI.includes("svg") ? style.fill : style.color;
    const [dark, bright] = [light(own), light(behind(node))].sort((a, b) => a - b);
    return [(bright + 0.05) / (dark + 0.05), node.tagName, node.textContent.slice(0, 40)];
  })"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(scheme: str, browser: Any, run: Path) -> None:
    """Contrast of at least 4.5, as WCAG asks for at AA, and the colours are those of the scheme."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    opened(browser, run / "report.html")
    found = browser.execute_script(CONTRASTS)
    assert len(found) > 100
    assert [text for text in found if text[0] < 4.5] == []
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in paper[4:-1].split(","))
    assert (brightness > 600) == (scheme == "light")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_names_that_attack_are_shown(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    one = make_run(
        tmp_path / "<img src=x onerror=window.hacked=1>",
        dims=(HOSTILE, "b", "c"),
        classes=(HOSTILE,),
        identity=HOSTILE,
        model=HOSTILE,
        data=HOSTILE,
    )
    two = make_run(tmp_path / "two", method=HOSTILE, identity=HOSTILE, data=HOSTILE)
    page = report([one, two], tmp_path / "page.html")
    opened(browser, page)
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert browser.title.startswith("<img src=x onerror=window.hacked=1>, two")
    assert "<img src=x onerror" in texts(browser, "subtitle")[0]
    bar = browser.find_element("css selector", "#channels .name")
    assert bar.get_attribute("textContent") == HOSTILE
    assert HOSTILE in texts(browser, "config-table")[0]
    assert HOSTILE in texts(browser, "compare")[0]


def test_several_runs(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(3)]
    runs += [make_run(tmp_path / "slim", method="slim")]
    runs += [make_run(tmp_path / "elsewhere", identity="digits 3x16x16", size=16)]
    opened(browser, report(runs, tmp_path / "page.html"))
    assert "drawn apart" in texts(browser, "compare")[0]
    headings = "return [...document.querySelectorAll('#compare h2')].map(h => h.textContent)"
    assert browser.execute_script(headings) == [
        "Fronts on digits (size default, val 0.1), by multiply-adds",
        "Fronts on digits (size 16, val 0.1), by multiply-adds",
    ]
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#compare table')].map(table => "
        "[...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))"
    )
    areas = [Front.read(run).area() or 0.0 for run in runs[:3]]
    told = f"{np.mean(areas):.2f} % ± {np.std(areas, ddof=1):.2f} %"
    assert [[row[0] for row in table] for table in rows] == [["joslim", "slim"], ["joslim"]]
    assert rows[0][0][1:3] == ["0, 1, 2", told]
    shown = "return document.querySelectorAll('#board-0 .line').length"
    assert browser.execute_script(shown) == 2
    # A mean over seeds is no child: marks are those of the one run of slim.
    marks = "return [...document.querySelectorAll('#board-0 .mark')].map(m => m.classList[1])"
    assert {*browser.execute_script(marks)} == {"c1"}
    browser.find_element("css selector", ".legend input").click()
    assert browser.execute_script(shown) == 1
    browser.find_element("id", "run").send_keys("slim")
    assert str(runs[3]) in texts(browser, "command")[0]


def test_a_run_that_still_trains(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "young")
    (folder / "front.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["config"]["steps"] = 3000
    (folder / "config.json").write_text(json.dumps(config))
    with RunFolder(folder).locked():
        opened(browser, report(folder))
    words = "training: step 120 of 3,000 when this page was written."
    assert texts(browser, "training") == [words]
    assert "Not judged yet" in texts(browser, "front-note")[0]
    assert texts(browser, "command") == ["Once the training has ended."]
    assert not browser.find_element("id", "copy").is_enabled()
    opened(browser, report(folder))
    assert texts(browser, "training") == [
        "stopped at step 120 of 3,000; joslim resume goes on with it."
    ]


def test_a_network_that_was_an_object(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    """Only its owner knows how to name it; the page says so in words."""
    opened(browser, report(make_run(tmp_path / "own", model="<Net>")))
    assert "--model" not in texts(browser, "command")[0]
    assert "The network is your own" in browser.find_element("id", "command-words").text
    opened(browser, report(make_run(tmp_path / "named", model="nets:digits")))
    assert texts(browser, "command")[0].endswith(" --model nets:digits")
    assert not browser.find_element("id", "command-words").is_displayed()


def test_nothing_reads_none_or_null(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", searcher="mobo-rs")]
    opened(browser, report(runs, tmp_path / "page.html"))
    browser.find_element("id", "all-settings").click()
    body = browser.find_element("tag name", "main").text
    assert "searcher default" in body
    assert not re.search(r"\b(None|null|undefined|NaN)\b", body)


def test_before_the_first_child_the_losses_of_the_full_network_are_shown(
    browser: Any, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "young", full_first=0.3)
    (folder / "front.json").unlink()
    (folder / "history.jsonl").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:10]
    (folder / "metrics.jsonl").write_text("".join(lines))
    opened(browser, report(folder))
    words = (
        "stopped at step 20 of 120; joslim resume goes on with it. Children are not trained yet: "
    )
    assert texts(browser, "training") == [f"{words}the full network trains alone until step 36."]
    shown = {name: browser.find_element("id", name).is_displayed() for name in CARDS}
    assert shown == {"front-card": False, "pick-card": False, "loss-card": True, "time-card": True}
    assert "training loss0.1250full network, step 20" in texts(browser, "figures")[0]
    opened(browser, report([make_run(tmp_path / "done"), folder], tmp_path / "both.html"))
    for run, visible in (("1", False), ("0", True)):
        chosen = "const s = document.getElementById('run'); s.value = arguments[0];"
        browser.execute_script(f"{chosen} s.dispatchEvent(new Event('change'))", run)
        assert browser.find_element("id", "front-card").is_displayed() == visible


def with_mistakes(folder: Path, classes: int) -> Front:
    """The n-th child takes n images of each class for the next class, and its first class for 0."""
    record = json.loads((folder / "front.json").read_text())
    for at, child in enumerate(record["children"]):
        confusions = {(c, (c + 1) % classes): 1 + (at + c) % 7 for c in range(classes)}
        images = dict.fromkeys(range(classes), 10)
        child["mistakes"] = asdict(Mistakes.of(images, confusions))
    (folder / "front.json").write_text(json.dumps(record))
    return Front.read(folder)


MISTAKES = """
const all = (query) => [...document.querySelectorAll(query)].map((node) => node.textContent);
return [
  [...document.querySelectorAll("#matrix tbody tr")].map((row) =>
    [...row.children].map((cell) => cell.textContent)),
  all("#class-errors .number"),
  all("#confusions li"),
]"""


@pytest.mark.parametrize("classes", [3, 30, 120])
def test_mistakes_of_the_picked_child(
    classes: int, browser: Any, make_run: MakeRun, tmp_path: Path
) -> None:
    names = tuple(f"{HOSTILE} {number}" for number in range(classes))
    folder = make_run(tmp_path / "a", classes=names)
    front = with_mistakes(folder, classes)
    opened(browser, report(folder))
    for at in (0, len(front) - 1):
        typed(browser, "macs", front[at].costs["macs"])
        child = [*front].index(front.pick(macs=front[at].costs["macs"]))
        assert f"Of child {child + 1}, on test images." in texts(browser, "mistakes-note")[0]
        matrix, errors, confusions = browser.execute_script(MISTAKES)
        wrong = [1 + (child + c) % 7 for c in range(classes)]
        if classes == 3:
            assert matrix == [
                [names[0], f"{10 * wrong[0]}.0 %", str(10 - wrong[0]), str(wrong[0]), ""],
                [names[1], f"{10 * wrong[1]}.0 %", "", str(10 - wrong[1]), str(wrong[1])],
                [names[2], f"{10 * wrong[2]}.0 %", str(wrong[2]), "", str(10 - wrong[2])],
            ]
            assert not confusions
        else:
            worst = sorted(wrong, reverse=True)[: min(classes, 100) if classes <= 100 else 10]
            assert errors == [f"{10 * count}.0 % of 10" for count in worst]
            assert len(confusions) == 10
            first = wrong.index(7)
            assert confusions[0].startswith(f"{names[first]} taken for {names[first + 1]}: 7")
    assert browser.execute_script("return window.hacked") is None
    typed(browser, "macs", 1.5)
    assert not browser.find_element("id", "mistakes-card").is_displayed()


def test_a_curve_of_validation_errors(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    opened(browser, report(folder))
    assert not browser.find_element("id", "validation-card").is_displayed()
    with (folder / "metrics.jsonl").open("a") as file:
        for step, errors in ((40, [50.0, 90.0]), (80, [20.0, 40.5]), (120, [30.0, 40.0])):
            line = {"step": step, "phase": "validation", "val_errors": errors, "seconds": 15.5}
            file.write(json.dumps(line) + "\n")
    opened(browser, report(folder))
    note = "The front is that of the weights of step 80, where the mean of both is least."
    assert texts(browser, "validation-note") == [note]
    chart = browser.find_element("id", "validation-chart")
    chart.send_keys(Keys.ARROW_RIGHT)
    assert texts(browser, "spoken") == ["step 80, full 20.00 %, smallest 40.50 %"]


def test_a_page_that_reads_itself_again_keeps_the_place(
    browser: Any, make_run: MakeRun, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    record = read_record(make_run(tmp_path / "young"))
    page.write_text(page_of([record], refresh=600))
    opened(browser, page)
    browser.execute_script("document.querySelector('summary').click()")
    slider = browser.find_element("id", "slider")
    slider.send_keys(Keys.END)
    shown = texts(browser, "command")
    WebDriverWait(browser, 5).until(lambda _: "budget=450000" in browser.current_url)
    page.write_text(page_of([replace(record, name="older")]))
    browser.execute_script("readAgain()")
    WebDriverWait(browser, 5).until(lambda _: texts(browser, "title") == ["older"])
    assert texts(browser, "command") == shown
    assert browser.switch_to.active_element.get_attribute("id") == "slider"
    assert browser.find_element("id", "front-table").is_displayed()


def test_a_cost_of_ones_own_is_picked_in_python(
    browser: Any, make_run: MakeRun, tmp_path: Path
) -> None:
    """The command line has no option for it."""
    folder = make_run(tmp_path / 'a "b"')
    record = json.loads((folder / "front.json").read_text())
    for child in record["children"]:
        child["joules"] = child["macs"] / 7
    (folder / "front.json").write_text(json.dumps(record))
    opened(browser, report(folder))
    (shown,) = typed(browser, "joules", 20_000)
    least = Front.read(folder).pick(joules=20_000).costs["joules"]
    picked = f'run.front.pick(joules={least}), "child.onnx")'
    path = json.dumps(str(folder))
    assert shown["command"] == f"run = joslim.load({path}); joslim.export(run, {picked}"


def test_a_front_of_one_child(browser: Any, make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", children=1, visits=1)
    (folder / "metrics.jsonl").unlink()
    opened(browser, report(folder))
    assert texts(browser, "child-title") == ["Child 1 of 1"]
    assert not browser.find_element("id", "loss-card").is_displayed()

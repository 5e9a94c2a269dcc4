"""The record of a run: what its files tell, finished or not, and nothing made up."""

import copy
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.errors import UserError
from joslim.front import Front
from joslim.results.record import (
    MOMENTS,
    NothingYet,
    VisitedChildren,
    curves_of,
    read_record,
    targets_of,
    times_of,
)
from joslim.results.run_files import RunStatus, read_lines
from joslim.runs.folder import RunFolder
from joslim.runs.run import Run
from joslim.space import Dim, Knob, WidthSpace


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def changed(folder: Path, **settings: Any) -> Path:
    facts = json.loads((folder / "config.json").read_text())
    facts["config"].update(settings)
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def test_a_finished_run(finished: Run) -> None:
    record, front = read_record(finished.path), Front.read(finished.path)
    assert record.status == RunStatus("finished", 6, 6)
    assert (record.name, record.model, record.data) == ("finished", "resnet8", "digits")
    assert (record.method, record.seed) == ("joslim", 0)
    assert record.data_identity == finished.facts["data"]["identity"]
    assert record.front == front
    assert (record.facts, record.config) == (finished.facts, finished.facts["config"])
    assert record.low == finished.net.space.knobs[0].low
    assert record.seconds == record.times.seconds  # type: ignore[union-attr]


def test_visits_have_the_losses_of_the_last_scoring_of_all(finished: Run) -> None:
    history, visits = finished.history, read_record(finished.path).visits
    on_front = {point.widths for point in finished.front}
    assert [(step, cost, on) for step, cost, _, on in visits] == [
        (visit.step, visit.cost, visit.widths in on_front) for visit in history.visits
    ]
    together = [s.losses for s in history.scorings if len(s.losses) == len(history)][-1]
    losses = [together[child] for child in range(len(history))]
    assert [row[2] for row in visits] == pytest.approx(losses, rel=1e-4)
    assert any(row[3] for row in visits)


def test_a_run_under_way_shows_the_losses_known_so_far(copied: Path) -> None:
    (copied / "front.json").unlink()
    with RunFolder(changed(copied, steps=3000)).locked():
        assert read_record(copied).status.state == "training"
    record = read_record(copied)
    assert record.status == RunStatus("stopped", 6, 3000)
    assert record.front is None
    history = record.history
    assert history is not None
    losses = [history.losses[child] for child in record.provisional_front]
    costs = [history.costs[child] for child in record.provisional_front]
    assert costs == sorted(costs)
    assert losses == sorted(losses, reverse=True)
    rings = sorted(cost for _, cost, _, on_front in record.visits if on_front)
    assert {*costs} <= {*rings}


def test_a_run_that_goes_on_has_no_front_yet(copied: Path) -> None:
    """Its front.json is of the training before."""
    assert read_record(copied).front is not None
    assert read_record(changed(copied, steps=9)).front is None


def test_a_run_that_has_only_just_begun(copied: Path) -> None:
    for name in ("front.json", "metrics.jsonl"):
        (copied / name).unlink()
    header = (copied / "history.jsonl").read_text().splitlines()[0]
    for text in (header + "\n", "", None):
        if text is None:
            (copied / "history.jsonl").unlink()
        else:
            (copied / "history.jsonl").write_text(text)
        words = "has nothing to show yet, no step was logged: "
        with pytest.raises(NothingYet, match=f"{words}it stopped at step 6 of 6; joslim resume"):
            read_record(copied)
        with (
            RunFolder(copied).locked(),
            pytest.raises(NothingYet, match=rf"{words}it is still training \(step 6 of 6\); wait"),
        ):
            read_record(copied)


def test_a_front_alone_is_enough(copied: Path) -> None:
    (copied / "history.jsonl").unlink()
    (copied / "metrics.jsonl").unlink()
    record = read_record(copied)
    assert record.status.state == "finished"
    assert (record.visits, record.history, record.curves, record.times) == ([], None, {}, None)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere' does not exist; joslim train"):
        read_record(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no config\.json: not a run folder"):
        read_record(tmp_path)
    file = tmp_path / "a.txt"
    file.write_text("x")
    with pytest.raises(UserError, match="is a file; a run is a folder"):
        read_record(file)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is not a run folder"):
        read_record(tmp_path)
    (tmp_path / "config.json").write_text('{"joslim": "1", "format": 4, "config": []}')
    with pytest.raises(UserError, match=r"config\.json\.config: \[\] is not a JSON object"):
        read_record(tmp_path)


def test_it_is_read_without_torch(
    finished: Run, shell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = f"""
import sys
from joslim.runs.report import report
report({str(finished.path)!r}, "page.html")
sys.exit("torch" in sys.modules or "matplotlib" in sys.modules)
"""
    assert shell("-c", code).returncode == 0


# history.jsonl


SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
HEADER = {"cost": "macs", "space": SPACE.to_json()}


def visit(child: int, cost: float | None, step: int = 0) -> dict[str, Any]:
    return {"id": child, "step": step, "widths": [4 + child % 12], "cost": cost}


def scoring(step: int, losses: dict[int, float | None]) -> dict[str, Any]:
    return {"step": step, "ids": [*losses], "losses": [*losses.values()]}


def test_it_tells_what_the_history_of_the_run_tells(finished: Run) -> None:
    visits, history = (
        VisitedChildren.of_lines(read_lines(finished.path / "history.jsonl")),
        finished.history,
    )
    assert (visits.key, visits.space) == (history.cost.name, history.space)
    assert visits.counts == [found.widths.counts for found in history.visits]
    assert visits.costs == [found.cost for found in history.visits]
    assert visits.steps == [found.step for found in history.visits]
    assert [(s.step, dict(s.losses)) for s in history.scorings] == visits.scorings


def test_the_latest_loss_of_each_child_counts() -> None:
    lines = [visit(0, 10), visit(1, 20), visit(2, 30), scoring(0, {0: 3.0, 1: 2.0, 2: 1.0})]
    lines += [scoring(5, {1: 0.5}), scoring(9, {0: 2.5})]
    visits = VisitedChildren.of_lines([HEADER, *lines])
    assert [step for step, _ in visits.moments] == [0, 5, 9]
    assert visits.losses == {0: 2.5, 1: 0.5, 2: 1.0}
    assert visits.moments[0][1] == {0: 3.0, 1: 2.0, 2: 1.0}
    assert visits.front(visits.moments[0][1]) == [0, 1, 2]
    assert visits.front(visits.losses) == [0, 1]


def test_the_judging_at_the_end_is_on_other_images() -> None:
    lines = [visit(0, 10), visit(1, 20), scoring(0, {0: 3.0}), scoring(8, {0: 2.0, 1: 1.0})]
    judging = scoring(8, {0: 9.0})
    assert VisitedChildren.of_lines([HEADER, *lines, judging]).losses == {0: 2.0, 1: 1.0}
    # All children were scored once, long ago: what came later is the course of the training.
    later = scoring(9, {0: 9.0})
    assert VisitedChildren.of_lines([HEADER, *lines, later]).losses == {0: 9.0, 1: 1.0}


def test_a_long_training_has_a_few_moments_up_to_the_last() -> None:
    lines = [visit(0, 10), visit(1, 20), *(scoring(step, {0: 1.0}) for step in range(500))]
    steps = [step for step, _ in VisitedChildren.of_lines([HEADER, *lines]).moments]
    assert len(steps) == MOMENTS
    assert (steps[0], steps[-1]) == (0, 499)


def test_a_search_at_the_end_is_one_moment() -> None:
    """Where there is no other search, its course is what there is to see."""
    lines = [visit(0, 10), visit(1, 20)]
    search = [scoring(9, {0: 5.0 - at}) for at in range(5)]
    steps = [0, 3, 6]
    mixed = VisitedChildren.of_lines(
        [HEADER, *lines, *(scoring(step, {0: 9.0}) for step in steps), *search]
    )
    assert [step for step, _ in mixed.moments] == [0, 3, 6, 9]
    assert mixed.losses == {0: 1.0}
    alone = VisitedChildren.of_lines([HEADER, *lines, *search])
    assert [losses[0] for _, losses in alone.moments] == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_what_is_not_known_is_on_no_front() -> None:
    lines = [visit(0, 10), visit(1, None), scoring(0, {0: None, 1: 0.1})]
    visits = VisitedChildren.of_lines([HEADER, *lines])
    assert visits.front(visits.losses) == []
    assert math.isnan(visits.losses[0])
    assert VisitedChildren.of_lines([HEADER]).losses == {}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_front_is_what_no_other_child_beats(children: list[tuple[int, int]]) -> None:
    lines = [visit(at, cost) for at, (cost, _) in enumerate(children)]
    lines.append(scoring(0, {at: float(loss) for at, (_, loss) in enumerate(children)}))
    visits = VisitedChildren.of_lines([HEADER, *lines])
    front = [children[at] for at in visits.front(visits.losses)]
    assert front == sorted(front)
    best = {
        (c, x)
        for c, x in children
        if not any(d <= c and y <= x and (d, y) != (c, x) for d, y in children)
    }
    assert set(front) == best
    assert all(a[1] > b[1] for a, b in itertools.pairwise(front))


GOOD = [HEADER, visit(0, 10), visit(1, 20), scoring(0, {0: 3.0, 1: 2.0})]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[0].pop("cost"),
        lambda lines: lines[0].update(cost="\x1b[31m"),
        lambda lines: lines[0].pop("space"),
        lambda lines: lines[1].update(widths=[4, 4]),
        lambda lines: lines[1].update(widths=[[4]]),
        lambda lines: lines[1].update(widths=[17]),
        lambda lines: lines[1].pop("step"),
        lambda lines: lines[1].update(step=-1),
        lambda lines: lines[3].update(ids=[0, 2]),
        lambda lines: lines[3].update(ids=[0]),
        lambda lines: lines[3].update(losses="x"),
        lambda lines: lines[3].update(losses=[1.0, "x"]),
        lambda lines: lines[3].update(step=True),
    ],
)
def test_broken_lines_are_one_line(spoil: Callable[[list[Any]], Any]) -> None:
    lines = copy.deepcopy(GOOD)
    assert len(VisitedChildren.of_lines(lines)) == 2
    spoil(lines)
    with pytest.raises(UserError, match=r"^(history\.jsonl|space|dims|knobs)"):
        VisitedChildren.of_lines(lines)


# metrics.jsonl


def line(step: int, **more: Any) -> dict[str, Any]:
    losses = [1.0 * step, 2.0 * step, 4.0 * step, 9.0 * step]
    return {"step": step, "loss": losses[0], "smallest_loss": losses[3], "losses": losses, **more}


def test_curves_are_means_of_some_lines() -> None:
    few = curves_of([line(1), line(2)])
    assert few == {
        "step": [1, 2],
        "full": [1.0, 2.0],
        "sampled": [3.0, 6.0],
        "smallest": [9.0, 18.0],
    }
    many = curves_of([line(step) for step in range(1, 301)])
    assert many["step"] == [*range(2, 301, 2)]
    assert many["full"][0] == 1.5
    assert many["sampled"][0] == 4.5


def test_curves_leave_out_what_is_not_there() -> None:
    alone = curves_of([{"step": 1, "loss": 1.0, "losses": [1.0]}, {"step": 2, "loss": "x"}])
    assert alone == {"step": [1, 2], "full": [1.0, None]}
    child = curves_of([{"step": 1, "loss": None, "losses": [3.0]}, line(2)])
    assert child["full"] == [None, 2.0]
    assert child["sampled"] == [3.0, 6.0]
    assert curves_of([]) == {}
    front = {"step": 2, "phase": "front", "seconds": 1.0}
    assert curves_of([line(1), front])["step"] == [1]


def test_targets_in_words(finished: Run) -> None:
    line = {"targets": 60, "missed": 2, "bisections": 187}
    found = targets_of(line)
    assert found is not None
    assert found.words == "3.1 bisections for a target on average, 2 of 60 targets missed"
    assert targets_of({"step": 3}) is None
    assert read_record(finished.path).targets is None, "its search does not bisect"
    with pytest.raises(UserError, match=r"^metrics\.jsonl\.missed: ") as caught:
        targets_of({**line, "missed": "many"})
    assert "\n" not in str(caught.value)


def test_times_of_a_run(finished: Run) -> None:
    lines = read_lines(finished.path / "metrics.jsonl")
    times = times_of(lines, 2)
    assert times is not None
    assert times.seconds == lines[-1]["seconds"]
    assert times.step == 6
    assert {"training", "search", "scoring"} <= times.parts.keys()
    assert sum(times.parts.values()) == pytest.approx(times.seconds)


def parts_of(lines: list[dict[str, Any]], every: float | None = 2) -> dict[str, float]:
    times = times_of(lines, every)
    assert times is not None
    return times.parts


def pace_of(lines: list[dict[str, Any]], every: float) -> list[list[float]]:
    times = times_of(lines, every)
    assert times is not None
    return times.pace


def test_parts_add_up_to_the_whole() -> None:
    step = line(4, seconds=10.0, parts={"search": 2.0, "scoring": 1.0})
    front = {"step": 4, "phase": "front", "seconds": 18.0, "parts": {"search": 5.0, "scoring": 1.5}}
    assert parts_of([step]) == {"training": 7.0, "search": 2.0, "scoring": 1.0}
    assert parts_of([step, front]) == {
        "training": 7.0,
        "search": 5.0,
        "scoring": 1.5,
        "judging": 4.5,
    }
    assert times_of([step, front], 2).step_seconds == 10.0  # type: ignore[union-attr]


def test_times_of_lines_that_lack_something() -> None:
    assert parts_of([line(4, parts=[1])], None) == {}
    assert times_of([line(4)], None).seconds is None  # type: ignore[union-attr]
    odd = line(4, seconds=3, parts={"search": "x", "<b>": 1})
    assert parts_of([odd], 0) == {"training": 2, "<b>": 1}
    assert times_of([], 2) is None


def test_the_pace_is_taken_whole_rounds_apart() -> None:
    lines = [line(step, seconds=step / 10) for step in range(1, 1201)]
    steps = [step for step, _ in pace_of(lines, 12)]
    assert len(steps) <= 41
    assert {b - a for a, b in itertools.pairwise(steps)} == {36}
    assert pace_of([line(1)], 12) == []

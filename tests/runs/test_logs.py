"""The logs of a run: one line a step, a visit and a scoring, and none is lost."""

import math
from pathlib import Path

from joslim.costs import cost
from joslim.results.run_files import HISTORY, METRICS, read_lines
from joslim.runs.logs import HistoryLog, Log
from joslim.runs.run import Run
from joslim.search.history import History

from .test_folder import killed, make_run


def test_lines(tmp_path: Path) -> None:
    log = Log(tmp_path / METRICS, [])
    log.append([{"step": 1}, {"step": 2}])
    log.append([])
    log.append([{"step": 3}])
    assert read_lines(tmp_path / METRICS) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_lines_after_the_checkpoint_are_replaced_by_the_first_new_one(tmp_path: Path) -> None:
    folder, file = make_run(tmp_path), tmp_path / METRICS
    assert folder.lines_until(METRICS, 3) == []
    Log(file, []).append([{"step": step} for step in (1, 2, 3, 4)])
    with file.open("a") as stream:
        stream.write('{"step": 5, "lo')
    kept = folder.lines_until(METRICS, 3)
    assert kept == [{"step": 1}, {"step": 2}, {"step": 3}]
    log = Log(file, kept)
    assert len(read_lines(file)) == 4, "killed now, it has all that it had"
    log.append([{"step": 4, "loss": 1}])
    assert read_lines(file) == [*kept, {"step": 4, "loss": 1}]
    log.append([{"step": 4, "phase": "front"}])
    assert folder.lines_until(METRICS, 4) == [*kept, {"step": 4, "loss": 1}]


# The history


def rounds(history: History) -> None:
    space = history.space
    history.visit(space.full, 0)
    history.visit(space.smallest, 0)
    history.record({0: 1.0, 1: 2.0}, 0)


def more_rounds(history: History) -> None:
    history.visit(history.space.uniform(0.7), 4)
    history.record({0: 0.5, 1: math.nan, 2: math.inf}, 4)
    history.record({1: 0.25}, 8)


def test_one_line_a_visit_and_one_a_scoring(finished: Run, tmp_path: Path) -> None:
    folder, history = make_run(tmp_path), History(cost("macs", finished.net))
    log = HistoryLog(folder, history)
    rounds(history)
    log.update()
    log.update()
    more_rounds(history)
    log.update()
    header, *lines = read_lines(folder.file(HISTORY))
    assert header == {"cost": "macs", "space": history.space.to_json()}
    full, smallest = history.space.full, history.space.smallest
    macs = [visit.cost for visit in history.visits]
    assert lines == [
        {"id": 0, "step": 0, "widths": [*full.counts], "cost": macs[0]},
        {"id": 1, "step": 0, "widths": [*smallest.counts], "cost": macs[1]},
        {"step": 0, "ids": [0, 1], "losses": [1.0, 2.0]},
        {"id": 2, "step": 4, "widths": [*history.visits[2].widths.counts], "cost": macs[2]},
        {"step": 4, "ids": [0, 1, 2], "losses": [0.5, None, None]},
        {"step": 8, "ids": [1], "losses": [0.25]},
    ]


def test_a_log_that_begins_late_writes_the_same_file(finished: Run, tmp_path: Path) -> None:
    """As after a resume, when the history is full already."""
    texts = []
    for name, early in (("a", True), ("b", False)):
        folder, history = make_run(tmp_path / name), History(cost("macs", finished.net))
        if early:
            log = HistoryLog(folder, history)
            rounds(history)
            log.update()
            more_rounds(history)
        else:
            rounds(history)
            more_rounds(history)
            log = HistoryLog(folder, history)
        log.update()
        texts.append(folder.file(HISTORY).read_text())
    assert texts[0] == texts[1]


def test_a_log_that_begins_late_never_takes_lines_away(finished: Run, tmp_path: Path) -> None:
    """A resumed run that is killed before its first step ends keeps all of its history."""
    folder, history = make_run(tmp_path), History(cost("macs", finished.net))
    log = HistoryLog(folder, history)
    rounds(history)
    more_rounds(history)
    log.update()
    before = folder.file(HISTORY).read_text()
    again = HistoryLog(folder, History(history.cost))
    assert folder.file(HISTORY).read_text() == before
    killed(again.update)
    assert folder.file(HISTORY).read_text() == before
    again.update()
    assert len(read_lines(folder.file(HISTORY))) == 1, "those of the checkpoint, which has none"

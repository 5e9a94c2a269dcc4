"""Rejudging: the front by another cost, as a training with that cost has it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import joslim
from joslim import UserError, Widths
from joslim.comparing import read
from joslim.errors import Stopped
from joslim.results.run_files import CONFIG, FINISHED, METRICS, status_of
from joslim.runs import logs

OPTIONS: dict[str, Any] = {
    "steps": 6,
    "every": 1,
    "batch": 64,
    "front_images": 64,
    "threads": 1,
    "val_every": 3,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By method: a run by multiply-adds, and one by memory."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("slim", "bignas"):
        for cost in ("macs", "memory"):
            joslim.train(method=method, cost=cost, out=folder / f"{method}-{cost}", **OPTIONS)
    return folder


@pytest.mark.parametrize("method", ["slim", "bignas"])
def test_it_is_the_run_that_a_training_with_the_cost_gives(
    method: str, runs: Path, tmp_path: Path
) -> None:
    trained = joslim.load(runs / f"{method}-memory")
    made = joslim.rejudge(runs / f"{method}-macs", "memory", tmp_path / "made")
    assert made.front == trained.front
    assert made.front.cost == "memory"
    again = joslim.load(made.path)
    assert again.config == trained.config
    assert again.front == trained.front
    assert len(again.history) == len(trained.history)
    for name, value in trained.net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], value), name
    assert again.net.statistics.keys() == trained.net.statistics.keys()
    assert status_of(made.path).state == FINISHED
    facts = json.loads((made.path / CONFIG).read_text())
    assert facts["weights_of"] == {"run": str(runs / f"{method}-macs"), "cost": "macs"}


def test_the_time_is_that_of_the_training_and_of_judging(runs: Path, tmp_path: Path) -> None:
    joslim.rejudge(runs / "slim-macs", "memory", tmp_path / "made")

    def lines(folder: Path) -> list[dict[str, Any]]:
        return [*map(json.loads, (folder / METRICS).read_text().splitlines())]

    before, after = lines(runs / "slim-macs"), lines(tmp_path / "made")
    assert [line["step"] for line in after] == [line["step"] for line in before]
    assert after[-1]["phase"] == "front"
    assert after[-1]["seconds"] > before[-2]["seconds"] == after[-2]["seconds"]
    assert after[-1]["passes"] == before[-1]["passes"]
    assert not any("costs" in line for line in after), "they were multiply-adds"


def test_other_commands_take_it(runs: Path, tmp_path: Path) -> None:
    made = joslim.rejudge(runs / "slim-macs", "memory", tmp_path / "made")
    assert "judged again" in (made.path / "report.html").read_text()
    assert (made.path / "front.png").is_file()
    rows = read([made.path, runs / "bignas-memory"]).table()
    assert {(row["method"], row["cost"]) for row in rows} == {
        ("slim", "memory"),
        ("bignas", "memory"),
    }
    joslim.export(made, made.front[0], tmp_path / "child")
    with pytest.raises(UserError, match=r"its weights are those of another run; resume that one"):
        joslim.train(method="slim", cost="memory", out=made.path, resume=True, **OPTIONS)


def test_a_cost_of_ones_own(runs: Path, tmp_path: Path) -> None:
    def joules(widths: Widths) -> float:
        return float(sum(widths.counts))

    made = joslim.rejudge(runs / "slim-macs", joules, tmp_path / "made")
    assert made.front.cost == "joules"
    assert made.front[-1].costs["joules"] == sum(made.front[-1].widths.counts)


def test_methods_that_look_at_the_cost_are_refused(tmp_path: Path) -> None:
    for method in ("joslim", "autoslim"):
        joslim.train(method=method, out=tmp_path / method, steps=2, batch=8, front_images=8)
        with pytest.raises(UserError, match=rf"^method: {method} has trained the widths .* --cost"):
            joslim.rejudge(tmp_path / method, "memory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["autoslim", "joslim"]


def test_what_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^out: .* is the run itself"):
        joslim.rejudge(runs / "slim-macs", "memory", runs / "slim-macs", overwrite=True)
    with pytest.raises(UserError, match=r"^out: .* holds a run"):
        joslim.rejudge(runs / "slim-macs", "memory", runs / "bignas-memory")
    with pytest.raises(UserError, match=r"^cost: unknown name 'watts'"):
        joslim.rejudge(runs / "slim-macs", "watts", tmp_path / "a")
    with pytest.raises(UserError, match=r"^run: .* does not exist"):
        joslim.rejudge(tmp_path / "none", "memory")
    with pytest.raises(UserError, match=r"^data: .* is not what the run was trained on"):
        joslim.rejudge(runs / "slim-macs", "memory", tmp_path / "a", val=0.3)
    net = joslim.slim(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), (1, 4))
    batches = [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))]
    front = joslim.explore(net, batches, F.cross_entropy, children=3)
    joslim.save(net, front, tmp_path / "own", model="resnet8")
    with pytest.raises(UserError, match=r"^run: .* loop of its owner; .* joslim.explore"):
        joslim.rejudge(tmp_path / "own", "memory")


def test_the_tracker_of_the_run_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def track(folder: Path, settings: dict[str, Any]) -> logs.Send:
        opened.append(folder.name)
        return lambda figures, step: None

    monkeypatch.setitem(logs.LOGGERS, "own", track)
    monkeypatch.setitem(logs.PACKAGES, "own", "json")
    joslim.train(method="slim", out=tmp_path / "run", log_to="own", **OPTIONS)
    made = joslim.rejudge(tmp_path / "run", "memory")
    assert (opened, made.config.log_to) == (["run"], None)
    joslim.rejudge(tmp_path / "run", "memory", tmp_path / "typed", log_to="own")
    assert opened == ["run", "typed"]


def test_half_a_run_is_not_left_behind(runs: Path, tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        joslim.rejudge(runs / "slim-macs", "memory", tmp_path / "made", watch=stop)
    assert [*(tmp_path / "made").iterdir()] == []


def test_a_signal_stops_it(runs: Path, tmp_path: Path) -> None:
    def interrupt(progress: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match=r"^stopped; the same command begins anew$"):
        joslim.rejudge(runs / "slim-macs", "memory", tmp_path / "made", watch=interrupt)
    assert [*(tmp_path / "made").iterdir()] == []

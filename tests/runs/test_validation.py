"""--val-every: validation errors while the network trains, and the front of the best weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import joslim
from joslim.files import stored_tensors
from joslim.results.record import Validation, read_record, validation_of
from joslim.runs.driver import Progress
from joslim.runs.trainer import Trainer

Options = dict[str, Any]
OPTIONS: Options = {
    **{"steps": 12, "every": 3, "batch": 16, "front_images": 64, "samples": 1, "threads": 1},
    **{"lr": 0.5, "schedule": "constant", "warmup": 0.0, "save_every": 1, "val_every": 5},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> joslim.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)
        return joslim.train(out=tmp_path_factory.mktemp("runs") / "whole", **OPTIONS)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)


def lines(path: Path, phase: str | None = None) -> list[Options]:
    """Lines of metrics.jsonl without the times."""
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in x.items() if k not in ("seconds", "parts")} for x in found]
    return [line for line in timeless if line.get("phase") == phase]


def assert_same(ours: Path, theirs: Path) -> None:
    a, b = (stored_tensors(p / "checkpoint/model.safetensors") for p in (ours, theirs))
    assert all(torch.equal(a[name], b[name]) for name in b)
    for name in ("front.json", "history.jsonl"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    for phase in (None, "validation", "front"):
        assert lines(ours, phase) == lines(theirs, phase)


def test_it_changes_nothing_but_which_weights_are_judged(whole: joslim.Run, tmp_path: Path) -> None:
    plain = joslim.train(out=tmp_path / "plain", **{**OPTIONS, "val_every": None})
    assert lines(whole.path) == lines(plain.path)
    assert [line["step"] for line in lines(whole.path, "validation")] == [5, 10, 12]
    assert lines(plain.path, "validation") == []


def test_the_front_is_that_of_the_best_weights(whole: joslim.Run, tmp_path: Path) -> None:
    """The oracle is a training that stops there, with the rate of a constant schedule."""
    validation = read_record(whole.path).validation
    assert validation is not None
    means = dict(zip(validation.steps, map(sum, zip(validation.full, validation.smallest))))
    assert means[validation.best] == min(means.values())
    options = {**OPTIONS, "val_every": None, "steps": validation.best}
    short = joslim.train(out=tmp_path / "a", **{**options, "full_first": 4 / validation.best})
    weights = short.net.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in whole.net.state_dict().items())
    errors = {point.widths: point.val_error for point in whole.front}
    at = validation.steps.index(validation.best)
    for widths, error in (
        (whole.net.space.full, validation.full[at]),
        (whole.net.space.smallest, validation.smallest[at]),
    ):
        assert errors.get(widths, error) == error, "as when the front is judged"


class Killed(Exception):
    pass


@pytest.mark.parametrize("phase", ["train", "front"])
def test_a_stopped_run_goes_on_to_the_same_end(
    phase: str, whole: joslim.Run, tmp_path: Path
) -> None:
    def kill(progress: Progress) -> None:
        if progress.phase == phase and progress.done == (7 if phase == "train" else 1):
            raise Killed

    with pytest.raises(Killed):
        joslim.train(out=tmp_path / "a", watch=kill, **OPTIONS)
    joslim.train(out=tmp_path / "a", resume=True, **OPTIONS)
    assert_same(tmp_path / "a", whole.path)


def test_an_extended_run_goes_on_from_its_last_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best step comes first here, and stays the best."""
    errors = iter([[10.0, 20.0], [50.0, 50.0], [50.0, 50.0], [50.0, 50.0], [50.0, 50.0]])
    monkeypatch.setattr("joslim.runs.trainer.validation_errors", lambda *given: next(errors))
    began: list[torch.Tensor] = []
    step = Trainer.step
    monkeypatch.setattr(
        Trainer,
        "step",
        lambda self, x, y: (began.append(next(self.net.parameters()).clone()), step(self, x, y)),
    )
    options = {**OPTIONS, "steps": 6, "val_every": 3}
    first = joslim.train(out=tmp_path / "a", **options)
    assert torch.equal(began[3], next(first.net.parameters())), "after three steps"
    longer = joslim.train(out=tmp_path / "a", resume=True, until=9, **options)
    plain = joslim.train(out=tmp_path / "b", **{**options, "val_every": None, "steps": 6})
    assert torch.equal(began[6], next(plain.net.parameters())), "the last weights, not the best"
    assert torch.equal(began[3], next(longer.net.parameters()))
    assert read_record(longer.path).validation.best == 3  # type: ignore[union-attr]


def test_of_equal_means_the_last_counts() -> None:
    def line(step: int, *errors: float) -> Options:
        return {"step": step, "phase": "validation", "val_errors": errors and [*errors]}

    found = validation_of([{"step": 1}, line(2, 30, 50), line(4, 10, 30), line(6, 20, 20)])
    assert found == Validation([2, 4, 6], [30, 10, 20], [50, 30, 20], best=6)
    alone = validation_of([line(2, 30), line(4, 50)])
    assert alone == Validation([2, 4], [30, 50], [], best=2)
    assert validation_of([{"step": 1}]) is None


@pytest.mark.parametrize("value", ["x", [], [1, 2, 3], [None], [1e300], {}])
def test_errors_that_are_none(value: Any) -> None:
    with pytest.raises(joslim.UserError, match=r"metrics\.jsonl"):
        validation_of([{"step": 1, "phase": "validation", "val_errors": value}])


def test_without_validation_images(tmp_path: Path) -> None:
    with pytest.raises(joslim.UserError, match=r"^val_every: there are no validation images; type"):
        joslim.train(out=tmp_path / "a", **{**OPTIONS, "val": 0})

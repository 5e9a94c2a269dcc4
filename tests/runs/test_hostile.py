"""Files from strangers: nothing in them is executed, and what is wrong with them is one line.

benchmarks/fuzz.py does the same with thousands of files; here are a few of each kind.
"""

import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import joslim
from joslim.costs.device_file import DeviceFile
from joslim.errors import UserError
from joslim.front import Front
from joslim.runs.checkpoint import write_summary
from joslim.runs.config import config_of
from joslim.runs.driver import train
from joslim.runs.resume import BAD_STATE
from joslim.runs.run import Run
from joslim.runs.setup import set_up

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *arguments: None)


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(finished.path, tmp_path / "run")


def rewrite(file: Path, change: Callable[[Any], Any]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def fit_checksums(run: Path) -> None:
    """As somebody would who means harm."""
    folder = run / "checkpoint"
    write_summary(folder, json.loads((folder / "checkpoint.json").read_text()))


def rewrite_state(run: Path, change: Callable[[Any], Any]) -> None:
    file = run / "checkpoint" / "state.pt"
    torch.save(change(torch.load(file, weights_only=True)), file)
    fit_checksums(run)


def assert_one_line(text: str) -> None:
    assert text
    assert len(text.splitlines()) == 1
    assert text.isprintable()


# Code


class Executed:
    """A pickle that makes a folder, if somebody lets it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("how", ["in the state", "in its place"])
def test_a_state_that_asks_to_be_executed(
    how: str, run: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    evil = Executed(tmp_path / "executed")
    if how == "in the state":
        rewrite_state(run, lambda state: {**state, "scaler": evil})
    else:
        (run / "checkpoint" / "state.pt").write_bytes(pickle.dumps(evil, protocol=2))
        fit_checksums(run)
    assert "broken file" in refused("resume", str(run))
    assert not evil.folder.exists()


@pytest.mark.parametrize("name", ["os:system", "own:tiny", "this:s", "../own:tiny"])
def test_a_configuration_that_names_code(
    name: str, own: Path, run: Path, refused: Callable[..., str]
) -> None:
    def change(content: Any) -> Any:
        return {**content, "config": {**content["config"], "model": name}}

    rewrite(run / "config.json", change)
    before = set(sys.modules)
    assert "is not imported because a file says so" in refused("resume", str(run))
    with pytest.raises(UserError, match="is not imported because a file says so"):
        _ = joslim.load(run).net
    assert "own" not in sys.modules
    assert "this" not in set(sys.modules) - before


# Values


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**63, 10**400, -1, "\x1b[2J", "../../x", "os:system", "x" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
HARD = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def changed(tree: Any, data: st.DataObject) -> Any:
    """The tree with one value replaced, removed or renamed, anywhere in it."""
    if not isinstance(tree, (dict, list)) or not tree or data.draw(st.integers(0, 4)) == 0:
        return data.draw(JSON)
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    key = data.draw(st.sampled_from([*copy] if isinstance(copy, dict) else range(len(copy))))
    how = data.draw(st.sampled_from(["deeper", "deeper", "deeper", "remove", "rename"]))
    if how == "remove":
        del copy[key]
    elif how == "rename" and isinstance(copy, dict):
        copy[data.draw(st.text(max_size=5))] = copy.pop(key)
    else:
        copy[key] = changed(copy[key], data)
    return copy


def opens_or_is_refused(*attempts: Callable[[], Any]) -> None:
    for attempt in attempts:
        try:
            attempt()
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017


@HARD
@given(data=st.data())
def test_any_front(data: st.DataObject, finished: Run, run: Path) -> None:
    content = json.loads(finished.folder.file("front.json").read_text())
    (run / "front.json").write_text(json.dumps(changed(content, data)))
    opens_or_is_refused(lambda: Front.read(run).pick(macs=3e5))


@HARD
@given(data=st.data())
def test_any_configuration(data: st.DataObject, finished: Run, run: Path) -> None:
    content = json.loads(finished.folder.file("config.json").read_text())
    (run / "config.json").write_text(json.dumps(changed(content, data)))
    opens_or_is_refused(lambda: joslim.load(run).config)


@HARD
@given(data=st.data())
def test_any_history(data: st.DataObject, finished: Run, run: Path) -> None:
    lines = finished.folder.file("history.jsonl").read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = json.dumps(changed(json.loads(lines[at]), data))
    (run / "history.jsonl").write_text("\n".join(lines))
    opens_or_is_refused(lambda: joslim.load(run).history.scored())


@HARD
@given(data=st.data())
def test_any_bytes(data: st.DataObject, finished: Run, run: Path) -> None:
    name = data.draw(st.sampled_from(["config.json", "front.json", "history.jsonl"]))
    content = bytearray(finished.folder.file(name).read_bytes())
    at = data.draw(st.integers(0, len(content)))
    content[at : at + data.draw(st.integers(0, 50))] = data.draw(st.binary(max_size=50))
    (run / name).write_bytes(content)
    opens_or_is_refused(
        lambda: joslim.load(run).config,
        lambda: joslim.load(run).front,
        lambda: joslim.load(run).history.scored(),
    )
    shutil.copy(finished.folder.file(name), run / name)


def with_cost(state: Any, cost: Any) -> Any:
    state["slimming"]["history"]["visits"][0][1] = cost
    return state


STATES: dict[str, Callable[[Any], Any]] = {
    "a list": lambda state: [state],
    "nothing": lambda state: {},
    "no optimizer": lambda state: {**state, "optimizer": None},
    "negative steps": lambda state: {**state, "slimming": {**state["slimming"], "steps": -1}},
    "steps of text": lambda state: {**state, "slimming": {**state["slimming"], "steps": "3"}},
    "more steps": lambda state: {**state, "slimming": {**state["slimming"], "steps": 10**20}},
    "passes of text": lambda state: {**state, "slimming": {**state["slimming"], "passes": "x"}},
    "no generator": lambda state: {**state, "slimming": {**state["slimming"], "rng": {}}},
    "odd widths": lambda state: {**state, "slimming": {**state["slimming"], "widths": [[1]]}},
    "odd visits": lambda state: {
        **state, "slimming": {**state["slimming"], "history": {"visits": [[1]], "scorings": []}},
    },
    "a cost of text": lambda state: with_cost(state, "x"),
    "a cost of nothing": lambda state: with_cost(state, None),
    "odd searcher": lambda state: {**state, "slimming": {**state["slimming"], "searcher": 3}},
    "odd momentum": lambda state: {
        **state,
        "optimizer": {**state["optimizer"], "state": {0: {"momentum_buffer": torch.zeros(7)}}},
    },
    "best weights of nothing": lambda state: {
        **state, "best": {"step": 1, "error": 1.0, "weights": {}, "swapped": False},
    },
    "best of text": lambda state: {**state, "best": "x"},
    "momentum of text": lambda state: {
        **state, "optimizer": {**state["optimizer"], "state": {0: {"momentum_buffer": "x"}}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "kept",
    [
        {"exp_avg": torch.zeros(1), "step": torch.tensor(1.0)},
        {"momentum_buffer": torch.zeros(1)},
        {"step": "x"},
    ],
)
def test_a_state_of_another_optimizer(kept: dict[str, Any]) -> None:
    options = {"steps": 2, "batch": 8, "front_images": 16, "optimizer": "adamw"}
    trainer = set_up(config_of(options))
    trainer.step(*next(trainer.batches()))
    state = trainer.state_dict()
    state["optimizer"]["state"][0] = kept
    with pytest.raises((UserError, *BAD_STATE)):  # of which `restore` makes one line
        trainer.load_state_dict(state)


@pytest.mark.parametrize("how", STATES)
def test_a_state_of_something_else(how: str, run: Path, tiny: Options) -> None:
    """With checksums that fit."""
    (run / "front.json").unlink()  # else nothing is left to do
    rewrite_state(run, STATES[how])
    rewrite_state(run, lambda state: unfinished(state))
    with pytest.raises(UserError) as caught:
        train(out=run, resume=True, **tiny)
    assert_one_line(str(caught.value))


def unfinished(state: Any) -> Any:
    """Two steps back, so that there is something to do."""
    if isinstance(state, dict) and isinstance(state.get("slimming", {}).get("steps"), int):
        steps = state["slimming"]["steps"]
        state["slimming"]["steps"] = 4 if steps == 6 else steps
        state["slimming"]["finished_at"] = -1
    return state


@pytest.mark.parametrize("how", ["shape", "kind", "no such norm", "no such child", "no variance"])
def test_statistics_of_something_else(how: str, run: Path) -> None:
    file = run / "checkpoint" / "statistics.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("/mean"))
    child, norm, _ = name.split("/")
    if how == "shape":
        tensors[name] = torch.zeros(len(tensors[name]) + 1)
    elif how == "kind":
        tensors[name] = tensors[name].bool()
    elif how == "no variance":
        del tensors[f"{child}/{norm}/var"]
    else:
        other = f"{child}/x/" if how == "no such norm" else f"1-2/{norm}/"
        for kind in ("mean", "var"):
            tensors[other + kind] = tensors.pop(f"{child}/{norm}/{kind}")
    save_file(tensors, file)
    fit_checksums(run)
    with pytest.raises(UserError, match="checkpoint: ") as caught:
        _ = joslim.load(run).net
    assert_one_line(str(caught.value))


def test_a_summary_of_brackets(run: Path, refused: Callable[..., str]) -> None:
    (run / "checkpoint" / "checkpoint.json").write_text("[" * 50_000)
    assert "checkpoint" in refused("resume", str(run))


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("name", ["model.safetensors", "statistics.safetensors", "state.pt"])
def test_a_sparse_file_is_not_read(name: str, claimed: bool, run: Path) -> None:
    """Of two terabytes, which take no room on the disk and an hour to read."""
    size = 2 * 10**12
    os.truncate(run / "checkpoint" / name, size)
    if claimed:
        rewrite(
            run / "checkpoint" / "checkpoint.json",
            lambda c: {**c, "bytes": {**c["bytes"], name: size}},
        )
    words = "more than the memory of this computer" if claimed else "is damaged"
    started = time.perf_counter()
    with pytest.raises(UserError, match=words):
        _ = joslim.load(run).net
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_device_file_that_is_none(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="device_file: "):
        DeviceFile.read(file)


@pytest.mark.parametrize("step", ["x", None, {}, [1], "9" * 5000, 1e999, True])
def test_metrics_of_somebody(step: Any, run: Path, joslim: Callable[..., Any]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "seconds": step}) + "\n")
    assert joslim("resume", str(run)).returncode in (0, 2)


# Places


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "loop"])
@pytest.mark.parametrize(
    "name", ["config.json", "history.jsonl", "front.json", "checkpoint/state.pt"]
)
def test_a_file_that_is_none(name: str, kind: str, run: Path, refused: Callable[..., str]) -> None:
    """Whoever would read a pipe would wait for ever, and /dev/zero has no end."""
    file = run / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if kind == "endless" else file)
    if name == "history.jsonl":
        with pytest.raises(UserError) as caught:
            _ = joslim.load(run).history
        assert_one_line(str(caught.value))
    elif name == "front.json":
        assert_one_line(refused("front", str(run)).rstrip("\n"))
    else:
        assert_one_line(refused("resume", str(run)).rstrip("\n"))


@pytest.mark.parametrize("value", ["NaN", "1e400", "9" * 400, '"x"', "[]", "-1e300"])
def test_times_that_are_none(value: str, run: Path, joslim: Callable[..., Any]) -> None:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    rest = f'"seconds": {value}, "parts": {{"data": {value}, "search": {value}}}}}'
    lines[-1] = '{"step": 6, "phase": "front", ' + rest
    metrics.write_text("\n".join(lines) + "\n")
    (run / "front.json").unlink()  # so that the front is judged again
    result = joslim("resume", str(run))
    assert result.returncode in (0, 2), result.stderr
    assert "Traceback" not in result.stderr


LINKS = [
    "metrics.jsonl",
    "history.jsonl",
    "samples.safetensors",
    "front.png",
    "checkpoint.new",
    "checkpoint.old",
    "tensorboard",
]


@pytest.mark.parametrize(
    ("name", "there"), [*((name, False) for name in LINKS), *((name, True) for name in LINKS[::3])]
)
def test_a_link_leads_nowhere(
    name: str, there: bool, finished: Run, run: Path, joslim: Callable[..., Any], tmp_path: Path
) -> None:
    """Nothing is written to where it leads, whether there is something or not."""
    (run / "front.json").unlink()  # so that the front is judged again
    outside = tmp_path / "outside"
    target = outside / "target"
    outside.mkdir()
    if there:
        target.write_text("mine")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    assert joslim("resume", str(run)).returncode in (0, 1, 2)
    assert [path.name for path in outside.iterdir()] == ["target"] * there
    assert not there or target.read_text() == "mine"


def test_names_in_a_configuration_do_not_leave_the_folder(
    run: Path, joslim: Callable[..., Any], tmp_path: Path
) -> None:
    """Whatever the file says, it is this folder that is written to."""
    rewrite(run / "config.json", lambda content: {**content, "out": "../elsewhere"})
    (run / "front.json").unlink()
    assert joslim("resume", str(run)).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


EVIL = "\x1b[2J\u202e"


def evil_tensors(run: Path) -> None:
    file = run / "checkpoint" / "model.safetensors"
    save_file({**load_file(file), EVIL: torch.zeros(1)}, file)
    fit_checksums(run)


ESCAPES: dict[str, Callable[[Path], None]] = {
    "an option": lambda run: rewrite(run / "config.json", lambda c: {**c, "config": {EVIL: 1}}),
    "fresh weights": lambda run: rewrite(run / "config.json", lambda c: {**c, "fresh": [EVIL]}),
    "no names": lambda run: rewrite(run / "config.json", lambda c: {**c, "fresh": [[]]}),
    "a cost": lambda run: rewrite(run / "front.json", lambda c: {**c, "cost": EVIL}),
    "a tensor": evil_tensors,
}


@pytest.mark.parametrize("place", ESCAPES)
def test_terminals_see_no_escapes(place: str, run: Path, joslim: Callable[..., Any]) -> None:
    ESCAPES[place](run)
    for command in ("front", "resume"):
        result = joslim(command, str(run))
        assert result.returncode in (0, 2)
        assert (result.stdout + result.stderr).replace("\n", "").isprintable()

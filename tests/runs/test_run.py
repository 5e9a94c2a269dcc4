"""Loading a run: the network that was trained, and no code of strangers."""

import json
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import joslim
from joslim.data import load_data
from joslim.errors import UserError
from joslim.front import Front
from joslim.results.run_files import read_lines
from joslim.runs.driver import train
from joslim.runs.run import Run
from joslim.runs.trainer import EVALUATION_BATCH
from joslim.training.evaluate import errors


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Path:
    """A copy of the run that may be changed."""
    shutil.copytree(finished.path, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_network_is_the_one_that_was_trained(finished: Run) -> None:
    run = joslim.load(finished.path)
    assert run.net is run.net
    assert run.net is not finished.net
    assert run.net.active == run.net.space.full
    for net in (run.net, finished.net):
        assert not any(module.training for module in net.modules())
    assert run.net.statistics.keys() == finished.net.statistics.keys()
    ours, theirs = run.net.state_dict(), finished.net.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    x = torch.randn(8, 3, 8, 8)
    for point in run.front:
        with torch.no_grad(), run.net.at(point.widths), finished.net.at(point.widths):
            # The same numbers, but the strides of 1x1 kernels may differ, and the kernels of torch.
            torch.testing.assert_close(run.net(x), finished.net(x))


def test_children_have_the_errors_that_are_on_record(finished: Run) -> None:
    run, data = joslim.load(finished.path), load_data("digits")
    for split in ("val", "test"):
        for point in run.front:
            run.net.use(point)
            ((found, _),) = errors(run.net, [run.net.active], data.sweep(split, EVALUATION_BATCH))
            # Other kernels may turn the one image whose two best classes are equal to six digits.
            one_image = 100 / data.sizes[split]
            assert found == pytest.approx(getattr(point, f"{split}_error"), abs=1.01 * one_image)


def test_children_cut_out_are_the_same(finished: Run) -> None:
    run = joslim.load(finished.path)
    x = torch.randn(8, 3, 8, 8)
    for point in run.front:
        with torch.no_grad(), run.net.at(point.widths):
            child = run.net.child(point.widths).eval()
            torch.testing.assert_close(child(x), run.net(x), rtol=1e-5, atol=1e-5)


def test_front_and_configuration(finished: Run) -> None:
    run = joslim.load(str(finished.path))
    assert run.front == finished.front == Front.read(finished.path)
    assert run.config == finished.config
    assert (run.config.steps, run.config.every, run.config.lr) == (6, 2, 0.05)
    assert run.path == finished.path
    assert "finished" in repr(run)


def test_the_history(finished: Run) -> None:
    run = joslim.load(finished.path)
    lines = read_lines(finished.folder.file("history.jsonl"))
    visits = [line for line in lines if "id" in line]
    assert [list(v.widths.counts) for v in run.history.visits] == [v["widths"] for v in visits]
    assert [v.cost for v in run.history.visits] == [v["cost"] for v in visits]
    assert len(run.history.scorings) == 3
    for point in run.front:
        child = next(i for i, v in enumerate(run.history.visits) if v.widths == point.widths)
        assert run.history.loss(child) == point.train_loss


def test_losses_that_were_not_finite(copied: Path) -> None:
    line = {"step": 9, "ids": [0, 1], "losses": [None, 0.5]}
    with (copied / "history.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    history = joslim.load(copied).history
    assert history.loss(0) is None
    assert history.loss(1) == 0.5


def test_a_run_that_goes_on_can_be_looked_at(copied: Path) -> None:
    (copied / "front.json").unlink()
    with (copied / "history.jsonl").open("a") as file:
        file.write('{"id": 99, "st')
    run = joslim.load(copied)
    assert len(run.history)
    with pytest.raises(
        UserError, match="has no front yet: it stopped at step 6 of 6; joslim resume"
    ):
        _ = run.front
    shutil.rmtree(copied / "checkpoint")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        _ = joslim.load(copied).net


def test_a_large_input_costs_no_time(copied: Path, finished: Run) -> None:
    facts = json.loads((copied / "config.json").read_text())
    facts["data"]["shape"] = [3, 4700, 4700]
    (copied / "config.json").write_text(json.dumps(facts))
    started = time.process_time()
    net = joslim.load(copied).net
    assert time.process_time() - started < 10, "nothing is computed on it"
    assert tuple(net.example[0].shape) == (1, 3, 4700, 4700)
    assert not net.example[0].is_meta
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, finished.net.state_dict()[name])


def test_loading_draws_nothing_from_the_generator(finished: Run) -> None:
    before = torch.get_rng_state()
    _ = joslim.load(finished.path).net
    assert torch.equal(torch.get_rng_state(), before)


# What is no run


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        joslim.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not a run folder"):
        joslim.load(tmp_path)
    (tmp_path / "file").write_text("{}")
    with pytest.raises(UserError, match="is a file; a run is a folder"):
        joslim.load(tmp_path / "file")
    (tmp_path / "config.json").write_text('{"joslim": "0.2.0", "format": 4}')
    with pytest.raises(UserError, match="holds no configuration"):
        _ = joslim.load(tmp_path).config


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("data",), None),
        (("data",), {}),
        (("data", "classes"), 10),
        (("data", "classes"), []),
        (("data", "shape"), [3, 8]),
        (("data", "shape"), [3, 8, "8"]),
        (("data", "shape"), [3, 10**9, 8]),
        (("config", "model"), "resnet9"),
        (("config", "model"), 3),
        (("config", "low"), 7),
        (("config", "nonsense"), 7),
        (("config",), []),
    ],
)
def test_a_changed_configuration_is_one_line(
    keys: tuple[str, ...], value: Any, copied: Path
) -> None:
    stored = json.loads((copied / "config.json").read_text())
    place = stored
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (copied / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError) as caught:
        _ = joslim.load(copied).net
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "[]\n", '{"cost": "macs"}\n[]\n', "{\n{}\n"])
def test_a_broken_history(text: str, copied: Path) -> None:
    (copied / "history.jsonl").write_text(text)
    message, visits = "", 0
    try:
        visits = len(joslim.load(copied).history)
    except UserError as caught:
        message = str(caught)
    assert visits == 0
    assert len(message.splitlines()) <= 1


@pytest.mark.parametrize("line", [{"id": 0}, {"ids": [0]}, {"step": 0, "ids": [99], "losses": [1]}])
def test_lines_of_a_history_that_lack_something(line: dict[str, Any], copied: Path) -> None:
    with (copied / "history.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(UserError):
        _ = joslim.load(copied).history.scored()


# Models of one's own


@pytest.fixture
def own_run(own: Path, tiny: dict[str, Any]) -> Path:
    train("nets:digits", out="run", **tiny)
    # As in another program, which has not imported it.
    del sys.modules["nets"]
    return own / "run"


def test_code_is_not_imported_because_a_file_says_so(own_run: Path) -> None:
    run = joslim.load(own_run)
    words = "'nets:digits', which is not imported because a file says so; give it again"
    with pytest.raises(UserError, match=words):
        _ = run.net
    assert len(run.front)
    assert len(run.history.scored())
    assert run.config.model == "nets:digits"
    assert "nets" not in sys.modules


def test_a_model_that_is_given_again(own_run: Path) -> None:
    by_name = joslim.load(own_run, model="nets:digits")
    assert isinstance(by_name.net, nn.Sequential)
    assert len(by_name.history)
    import nets  # type: ignore[import-not-found]

    by_object = joslim.load(own_run, model=nets.digits())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(by_name.net(x), by_object.net(x))


def test_another_model_than_the_one_that_was_trained(own_run: Path) -> None:
    with pytest.raises(UserError, match="model: 'resnet8' given, the run has 'nets:digits'; type"):
        joslim.load(own_run, model="resnet8")
    with pytest.raises(UserError, match="checkpoint: the weights do not fit the network"):
        _ = joslim.load(own_run, model=joslim.models.resnet8()).net


@pytest.mark.parametrize("opened", [joslim.load, joslim.load_child])
def test_a_model_that_is_neither_a_name_nor_a_module(finished: Run, opened: Any) -> None:
    with pytest.raises(UserError, match="model: function given; give an nn"):
        opened(finished.path, model=lambda: nn.ReLU())


def test_threads_run_different_children_of_one_loaded_run(finished: Run) -> None:
    """Views on the shared weights, each with its own statistics: as if they ran one by one."""
    run = joslim.load(finished.path)
    images = torch.randn(4, 3, 8, 8)
    points = [run.net.space.smallest, *map(run.net.space.uniform, (0.7, 0.9))]
    expected = []
    for point in points:
        run.net.use(point)
        joslim.recalibrate(run.net, [torch.randn(8, 3, 8, 8)])
        with torch.inference_mode():
            expected.append(run.net(images))
    answers: dict[int, list[torch.Tensor]] = {}

    def work(number: int) -> None:
        child = run.net.child(points[number], share=True)
        with torch.inference_mode():
            answers[number] = [child(images) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(points))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, right in enumerate(expected):
        for answer in answers[number]:
            torch.testing.assert_close(answer, right)
    assert not torch.equal(expected[0], expected[1])

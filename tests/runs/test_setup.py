"""Jobs: the objects of a configuration, and what is refused before a step is made."""

import json
import math
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import joslim
from joslim.errors import UserError
from joslim.models import resnet8
from joslim.runs import setup
from joslim.runs.config import FIELDS, Config, Resolved, config_of
from joslim.runs.driver import train
from joslim.runs.run import Run, load
from joslim.runs.setup import find_device, parse_widths, set_up
from joslim.runs.summary import summary
from joslim.runs.trainer import Trainer
from joslim.training.settings import SEARCH_OPTIONS, kind_of


def job_of(**options: Any) -> Trainer:
    return set_up(config_of({"steps": 4, "batch": 8, "front_images": 16, **options}))


def test_what_the_configuration_leaves_open_is_filled_in() -> None:
    job = job_of(steps=10_000)
    assert job.config.every == job.slimming.every == 20, "1,000 children in 10,000 steps"
    assert (job.config.lr, job.config.momentum, job.config.schedule) == (0.0125, 0.9, "cosine")
    assert (job.config.log_every, job.config.save_every) == (10, 500)
    assert (job.config.steps, job.total_steps) == (10_000, 10_000)
    assert not job.slimming.finished
    again = set_up(job.config)
    assert again.config == job.config


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"steps": 5}, 5),
        ({"epochs": 1, "batch": 1293}, 1),
        ({"epochs": 1, "batch": 1292}, 2),
        ({"epochs": 2, "batch": 1000}, 3),
        ({"epochs": 1e-6, "batch": 8}, 1),
    ],
)
def test_steps_and_epochs(options: dict[str, Any], steps: int) -> None:
    job = set_up(config_of(options))
    assert (job.config.steps, job.config.epochs, job.total_steps) == (steps, None, steps)


# Settings that may be None in a resolved configuration, and what that means.
OF_MOBO = ("bisections", "optimistic", "ard", "rho")
CAN_BE_OFF = {
    "init": "random weights",
    "device_file": "no latencies of another device",
    "low": "each layer has its own",
    "divisor": "the network has its own",
    "dropout": "each layer has its own",
    "resolutions": "one size for all children",
    "widths": "for method single",
    "data_root": "the cache of the user",
    "size": "images keep their size",
    "crop_scale": "for data in folders",
    "split": "for a folder of classes",
    "epochs": "the length is in steps",
    "clip": "gradients are not clipped",
    "class_weights": "all classes weigh the same",
    "ignore_index": "all labels count",
    "ema": "the weights are not averaged",
    "log_to": "no tracker",
    "val_every": "validation errors are measured at the end",
    "amp": "full precision",
    "threads": "torch decides, on each machine anew",
    "searcher": "the method does not search",
    **dict.fromkeys(SEARCH_OPTIONS, "the searcher has no such option"),
}


@pytest.mark.parametrize(
    ("options", "off"),
    [
        ({}, {"widths", *OF_MOBO}),
        ({"preset": "paper"}, {"widths", "log_share"}),
        ({"searcher": "random"}, {"widths", *SEARCH_OPTIONS}),
        ({"method": "ofa"}, {"widths", *OF_MOBO}),
        ({"method": "slim"}, {"widths", "searcher", *SEARCH_OPTIONS}),
        ({"method": "single"}, {"searcher", *SEARCH_OPTIONS}),
        ({"epochs": 0.01, "steps": None}, {"widths", *OF_MOBO}),
    ],
)
def test_a_run_records_a_value_for_every_setting_that_is_not_off(
    options: dict[str, Any], off: set[str], tiny: dict[str, Any], tmp_path: Path
) -> None:
    given = {key: value for key, value in {**tiny, **options}.items() if value is not None}
    few = {key: given[key] for key in given if key not in ("every", "score_images", "batch")}
    run = train(out=tmp_path / "run", **few)
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    nothing = {name for name, value in config.items() if value is None}
    always = {
        "init",
        "class_weights",
        "ignore_index",
        "ema",
        "log_to",
        "divisor",
        "dropout",
        "resolutions",
        "device_file",
        "data_root",
        "size",
        "crop_scale",
        "split",
        "epochs",
        "clip",
    }
    assert nothing - {"threads"} == always | off | {"amp", "val_every"}
    assert nothing <= CAN_BE_OFF.keys()
    assert set_up(run.config).config == Resolved(**config), "it repeats the run"


def test_a_batch_of_one_image_and_a_single_image() -> None:
    assert job_of(batch=1).config.score_images == 2, "the least that the setting allows"
    image = np.zeros((8, 8), dtype=np.uint8)
    config = config_of({"steps": 1, "val": 0, "front_images": 2})
    job = set_up(config, data=[[(image, 1)], [(image, 1)]])
    assert (job.config.batch, len(job.slimming.scoring[0][1])) == (1, 1)


def test_channels_are_multiples_of_the_divisor() -> None:
    widths = job_of(divisor=8).net.space.smallest
    assert all(count % 8 == 0 for count in widths.channels.values())
    with pytest.raises(UserError, match=r"^divisor: 0 given; allowed: a whole number, at least 1"):
        job_of(divisor=0)


def test_dropout_is_that_of_the_setting() -> None:
    def layers(**options: Any) -> list[float]:
        linear = nn.Linear(64, 8), nn.Dropout(0.2), nn.Linear(8, 10)
        model = nn.Sequential(nn.Flatten(), *linear)
        config = config_of({"steps": 4, "batch": 8, "channels": 1, **options})
        net = set_up(config, model=model).net
        return [m.p for m in net.modules() if isinstance(m, nn.Dropout)]

    assert (layers(), layers(dropout=0), layers(dropout=0.5)) == ([0.2], [0.0], [0.5])
    assert job_of(dropout=0).config.dropout == 0, "a network without dropout has none"
    with pytest.raises(UserError, match=r"^dropout: 0.3 given, the network has no dropout"):
        job_of(dropout=0.3)


def test_no_other_setting_can_be_off() -> None:
    optional = {name for name, item in FIELDS.items() if kind_of(item)[1]}
    assert optional - Resolved.__annotations__.keys() == CAN_BE_OFF.keys()
    resolved = job_of().config
    for name in Resolved.__annotations__:
        with pytest.raises(AssertionError, match=name):
            replace(resolved, **{name: None})


def test_a_number_of_validation_images() -> None:
    assert job_of(val=100).data.sizes["val"] == 100
    assert job_of(val=1).data.sizes["val"] == 1
    assert job_of(val=0).data.sizes["val"] == 0
    assert job_of(val=0.5).data.sizes["val"] == pytest.approx(718, abs=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"val": 1.5}, "val: 1.5"),
        ({"val": 10**6}, "leaves none"),
        ({"batch": 1294}, "batch: 1294 is more than the 1293 training images"),
        ({"model": "resnet9"}, "model: unknown name 'resnet9'; allowed: resnet8,"),
        ({"data": "mnist"}, "data: unknown name 'mnist'; allowed: digits,"),
        ({"data": "folder:/nowhere"}, "data: there is no folder '/nowhere'"),
        ({"warmup": 1}, "warmup: 1.0 is outside"),
        ({"device": "nonsense"}, "device: 'nonsense' cannot be used: "),
        ({"device": "meta"}, "device: 'meta' cannot be used: "),
        ({"method": "single", "widths": "half"}, "widths: 'half' are not multipliers"),
        ({"method": "single", "widths": "0.5,0.5"}, "widths: 2 multipliers given"),
        ({"method": "single", "widths": "nan"}, "nan is outside"),
        ({"method": "single", "widths": "0.01"}, "widths: 0.01 is below 0.316; type --low 0.01"),
        ({"method": "single", "widths": "1,1,0.2,1,1,1"}, "widths: 0.2 is below 0.316; type"),
        ({"method": "single", "widths": "1.5"}, "1.5 is outside"),
        ({"init": "nowhere.safetensors"}, "init: cannot read"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        job_of(**options)
    assert len(str(caught.value).splitlines()) == 1


def test_double_precision_is_refused() -> None:
    config = config_of({"steps": 4, "batch": 8, "front_images": 16})
    with pytest.raises(UserError, match=r"^model: .* torch.float64; type .* model.float\(\)"):
        set_up(config, model=resnet8().double())
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(UserError, match=r"type torch.set_default_dtype\(torch.float32\)"):
            set_up(config)
        net = joslim.slim(resnet8(), (1, 3, 8, 8))
        assert net.example[0].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_images_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (MemoryError, RuntimeError):

        def full(*arguments: Any, kind: type[Exception] = kind, **options: Any) -> None:
            raise kind("cannot allocate\nmore") if kind is RuntimeError else kind

        monkeypatch.setattr("joslim.runs.setup.load_data", full)
        with pytest.raises(UserError, match=r"data: cannot load the images: .* smaller size"):
            job_of()


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is one")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps:7"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(UserError, match=f"device: '{name}' cannot be used: .*; type auto or cpu"):
        find_device(name)


def test_devices() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda")


def test_widths_of_a_single_child(finished: Run) -> None:
    space = finished.net.space
    assert parse_widths(None, space) is None
    assert parse_widths("0.5", space) == space.uniform(0.5)
    assert parse_widths("1, 0.5,1,0.5,1,0.5", space) == space.at([1, 0.5, 1, 0.5, 1, 0.5])


# The network


def test_the_first_weights_are_a_function_of_the_seed() -> None:
    one, same, other = (job_of(seed=seed).net.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_with_other_outputs(own: Path) -> None:
    words = r"model: its output is \(1, 3\), the data need \(n, 10\) for task"
    with pytest.raises(UserError, match=words):
        job_of(model="nets:three_outputs")
    with pytest.raises(UserError, match=r"the data need \(n, 10\) for task"):
        job_of(model="own:tiny")


def test_images_have_the_channels_that_the_model_asks_for() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(8, 10))
    model.slim_defaults = {"input": (1, 8, 8)}  # type: ignore[assignment]
    config = Config(steps=1, batch=8)
    assert set_up(config, model=model).data.shape == (1, 8, 8)


def test_a_size_that_is_too_small_for_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10))
    set_up(Config(steps=1, batch=8), model=model)
    with pytest.raises(UserError):
        set_up(Config(steps=1, batch=8, size=3), model=model)


def test_init_from_a_finished_run(finished: Run) -> None:
    file = str(finished.folder.file("checkpoint") / "model.safetensors")
    job = job_of(init=file)
    assert job.fresh == []
    x = finished_inputs(finished)
    net = load(finished.path).net
    net.statistics.clear()  # the weights and the running statistics, as they were trained
    net.use(net.space.full)
    with torch.no_grad():
        torch.testing.assert_close(job.net.eval()(x), net(x), rtol=1e-4, atol=1e-4)


def finished_inputs(run: Run) -> torch.Tensor:
    return torch.randn(4, *run.facts["data"]["shape"], generator=torch.Generator().manual_seed(0))


def test_a_head_of_other_classes_is_fresh() -> None:
    weights = resnet8(num_classes=3).state_dict()
    job = set_up(Config(steps=1, batch=8), init=weights)
    assert sorted(job.fresh) == ["fc.bias", "fc.weight"]


# Which images are looked at


def test_scoring_never_sees_validation_images() -> None:
    job = job_of(val=0.3, score_images=100)
    scoring = job.slimming.scoring
    assert scoring.split == "train"
    indices = scoring.indices
    assert len(indices) == len(set(indices.tolist())) == 1006 // 100 * 100
    assert indices.max() < job.data.sizes["train"]
    assert len({len(batch[1]) for batch in scoring}) == 1, "no short batch"
    held_out = {image.numpy().tobytes() for image in job.data.sweep("val", 1000)[0][0]}
    train = {image.numpy().tobytes() for image in job.data.sweep("train", 2000)[0][0]}
    scored = {image.numpy().tobytes() for x, _ in scoring for image in x}
    assert scored <= train
    # A few of the digits are pixel by pixel the same.
    assert len(scored & held_out) <= len(train & held_out) < 5


class Named(list[Any]):
    """Images of two classes, one of which has this name."""

    def __init__(self, name: str) -> None:
        super().__init__((np.full((8, 8, 3), i, dtype=np.uint8), i % 2) for i in range(40))
        self.classes = ["plain", name]


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31m", "x" * 1001, "undecodable \udcff"])
def test_names_of_classes_that_no_export_could_have(name: str) -> None:
    data = (Named(name), Named(name))
    with pytest.raises(UserError, match=r"^data: the class .* has no name that can be") as caught:
        set_up(Config(steps=1, batch=8), resnet8(num_classes=2), data)
    assert "\n" not in str(caught.value)


def test_names_of_classes_may_have_spaces_and_joiners(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """No-break spaces and joiners too: they are found in the names of folders, and are exported."""
    names = Named("ab\u200ccd no\u00a0break")
    run = train(
        resnet8(num_classes=2), (names, names), out=tmp_path / "run", recipe="digits",
        **{**tiny, "steps": 2, "batch": 8},
    )  # fmt: skip
    joslim.export(run, run.net.space.full, tmp_path / "child")
    assert json.loads((tmp_path / "child" / "config.json").read_text())["classes"] == names.classes


def test_scoring_images_are_in_no_order_of_classes() -> None:
    _, labels = job_of(score_images=64).slimming.scoring[0]
    assert len(set(labels.tolist())) == 10


def is_channels_last(net: nn.Module) -> bool:
    kernels = [p for p in net.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert kernels
    return all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


def test_channels_last_changes_where_numbers_lie_and_not_what_they_are() -> None:
    jobs = [job_of(channels_last=asked) for asked in (True, False)]
    assert [is_channels_last(job.net) for job in jobs] == [True, False]
    for job in jobs:
        job.step(*next(job.batches()))
    fast, plain = ([*job.net.parameters()] for job in jobs)
    for here, there in zip(fast, plain):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    state = jobs[1].state_dict()  # a checkpoint of the other layout
    jobs[0].load_state_dict(state)
    kept = [jobs[0].optimizer.state[p]["momentum_buffer"] for p in fast]
    assert all(momentum.stride() == p.stride() for momentum, p in zip(kept, fast))


class Viewing(nn.Module):
    """Takes it for granted how the output of a convolution lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().view(len(x), -1))


def test_a_network_that_views_its_outputs_keeps_the_usual_layout() -> None:
    model = Viewing()
    model.slim_defaults = {"input": (1, 8, 8)}  # type: ignore[assignment]
    config = config_of({"steps": 4, "batch": 8, "front_images": 16})
    job = set_up(config, model=model)
    assert not any(p.stride() != p.contiguous().stride() for p in job.net.parameters())
    job.step(*next(job.batches()))


@pytest.mark.parametrize(("share", "chosen"), [(0.5, "bf16"), (0.95, None), (math.inf, None)])
def test_the_faster_precision_is_taken_and_kept(
    share: float, chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"steps": 2, "every": 1, "batch": 8, "front_images": 8, "amp": "auto", "samples": 1}
    shapes = []

    def measured(net: joslim.SlimmableNet, batch: torch.Tensor) -> float:
        shapes.append(tuple(batch.shape))
        return share

    monkeypatch.setattr(setup, "time_of_bf16", measured)
    trainer = set_up(config_of(options))
    assert trainer.config.amp == chosen
    (line,) = [line for line in summary(trainer) if line.startswith("precision: ")]
    assert line.startswith(f"precision: {chosen or 'fp32'} (bf16 takes {share:.2f} of the time")
    assert shapes == [(8, 3, 8, 8)]
    run = joslim.train(out=tmp_path / "a", **options)
    assert run.config.amp == chosen
    monkeypatch.setattr(setup, "time_of_bf16", lambda *arguments: 1 - share)
    again = joslim.train(out=tmp_path / "a", resume=True, until=3, **options)  # as it began
    assert again.config.amp == chosen


def test_bf16_is_timed_on_a_copy() -> None:
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
    before = deepcopy(net.state_dict())
    random = torch.get_rng_state()
    assert 0 < setup.time_of_bf16(net, torch.zeros(4, 3, 8, 8)) < 100
    assert torch.equal(random, torch.get_rng_state())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in net.parameters())

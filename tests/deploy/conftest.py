"""Runs of untrained networks, which are enough to export, and one child of each family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import joslim
from joslim.deploy.exporting import Check, compared, metadata, outputs_in_place
from joslim.formats import FORMATS, Child
from joslim.front import Front, Point
from joslim.models import mobilenet
from joslim.models.resnet import Bottleneck, ResNet, resnet8
from joslim.runs.config import config_of
from joslim.runs.folder import SAMPLES, RunFolder
from joslim.runs.run import Run

CLASSES = ["ant", "bee", "cat", "dog"]
# A short network of each family: every kind of block is in it, and tracing takes its time.
SHORT_V2 = ((1, 16, 1, 1), (6, 24, 2, 2))
SHORT_V3 = tuple(mobilenet.BLOCKS[position] for position in (0, 3, 7))
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "resnet8": lambda: resnet8(num_classes=4),
    "bottleneck": lambda: ResNet(Bottleneck, (1, 1, 1, 1), num_classes=4),
    "mobilenet_v2": lambda: mobilenet.MobileNetV2(num_classes=4),
    "mobilenet_v3": lambda: mobilenet.MobileNetV3(num_classes=4),
}


def run_of(
    model: nn.Module, name: str, shape: tuple[int, ...], path: Path, resolutions: Any = None
) -> Run:
    """As a training would leave it, but for its checkpoint; the front has the smallest child."""
    torch.manual_seed(0)
    net = joslim.slim(model, torch.zeros(1, *shape), resolutions=resolutions).eval()
    samples = torch.randn(8, *shape)
    smallest = net.space.smallest
    with net.at(smallest):
        joslim.recalibrate(net, [samples])
    folder = RunFolder(path)
    folder.prepare()
    data = {"classes": CLASSES, "shape": shape, "mean": [0.5] * 3, "std": [0.25] * 3}
    data["identity"] = "nobody's"
    sizes = {"resolutions": ",".join(map(str, resolutions))} if resolutions else {}
    folder.write_config(config_of({"model": name, **sizes}).to_json(), data=data)
    save_file({"inputs": samples}, folder.file(SAMPLES))
    costs = {"macs": 1e6, "params": 1e3, "memory": 1e3}
    front = Front([Point(smallest, costs, 1.0)], "macs", (1e6, 2e6))
    return Run(folder, net, front)


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Check]]]:
    """A folder for each: its child in all formats, with inputs and what the network made of them.

    Written one by one from the same trace, for tracing takes its time.
    """
    made = {}
    for name, model in FAMILIES.items():
        place = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mobilenet, "STAGES", SHORT_V2)
            patch.setattr(mobilenet, "BLOCKS", SHORT_V3)
            run = run_of(model(), name, (3, 16, 16), place / "run")
        widths = run.front[0].widths
        samples = torch.randn(5, 3, 16, 16)
        (scores,) = outputs_in_place(run.net, widths, (samples,))
        np.savez(place / "expected.npz", images=samples.numpy(), scores=scores.numpy())
        child = Child(run.net.child(widths).eval(), metadata(run, widths), (samples[:2],))
        cases = [((samples[:n],), [scores[:n]]) for n in (5, 1)]
        checks = []
        for chosen in FORMATS.values():
            if chosen.extra not in ("", "onnx"):  # they have tests of their own
                continue
            assert chosen.run is not None
            file = place / f"child{chosen.suffix}"
            chosen.write(child, file)
            checks.append(compared(chosen.run(child, file), cases))
        made[name] = (place, checks)
    return made


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of a network of somebody's own that is exported in no time."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)
    )
    return run_of(model, "nets:own", (3, 4, 4), tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture(scope="session")
def several_sizes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of a network whose children take images of 4 and 8 pixels, one of each on the front."""
    place = tmp_path_factory.mktemp("sizes") / "run"
    run = run_of(resnet8(num_classes=4), "resnet8", (3, 8, 8), place, resolutions=(4, 8))
    points = []
    for number, share in enumerate((0.5, 1.0), start=1):
        child = run.net.space.uniform(share)
        with run.net.at(child):
            joslim.recalibrate(run.net, run.samples)
        costs = {"macs": number * 1e6, "params": 1e3, "memory": 1e3}
        points.append(Point(child, costs, 1 / number))
    run.front = Front(points, "macs", (1e6, 2e6))
    return run


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written computes something else."""
    real: Callable[..., Child] = Child

    def spoiled(module: nn.Module, *rest: Any) -> Child:
        for parameter in module.parameters():
            nn.init.constant_(parameter, 0.1)
        return real(module, *rest)

    monkeypatch.setattr("joslim.deploy.exporting.Child", spoiled)

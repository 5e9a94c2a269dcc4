"""MixUp, CutMix and RandAugment by torchvision; skipped where it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import joslim
from joslim import UserError, errors
from joslim.training.augmenting import make_augmentation


@pytest.fixture
def torchvision(package: Any) -> None:
    package("torchvision")


SHORT: dict[str, Any] = {"steps": 4, "every": 2, "batch": 8, "threads": 1, "save_every": 1}


@pytest.mark.parametrize(
    "options", [{"mixup": 0.8, "cutmix": 1.0}, {"randaugment": 9}], ids=["mixes", "randaugment"]
)
def test_a_resume_is_exact(torchvision: None, options: dict[str, Any], tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.done == 2:
            raise Stop

    whole = joslim.train("resnet8", "digits", out=tmp_path / "a", **options, **SHORT)
    plain = joslim.train("resnet8", "digits", out=tmp_path / "c", **SHORT)
    with pytest.raises(Stop):
        joslim.train("resnet8", "digits", out=tmp_path / "b", watch=stop, **options, **SHORT)
    again = joslim.train("resnet8", "digits", out=tmp_path / "b", resume=True, **options, **SHORT)
    weights = [run.net.state_dict()["conv1.weight"] for run in (whole, again, plain)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_batches(torchvision: None) -> None:
    x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
    torch.manual_seed(0)
    mix = make_augmentation(3, (0.5,) * 3, (0.2,) * 3, mixup=1.0)
    assert mix is not None
    images, labels = mix(x, y)
    assert labels.shape == (6, 3)
    assert torch.allclose(labels.sum(dim=1), torch.ones(6))
    assert not torch.equal(images, x)
    change = make_augmentation(3, (0.5,) * 3, (0.2,) * 3, randaugment=9)
    assert change is not None
    images, labels = change((x - 0.5) / 0.2, y)
    assert torch.equal(labels, y)
    assert images.abs().max() <= 2.5 + 1e-5


def test_nothing_asked_and_what_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert make_augmentation(3, (0.5,), (0.2,)) is None

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(errors, "import_module", missing)
    with pytest.raises(
        UserError, match=r"^cutmix: the package torchvision .*'joslim\[torchvision\]'"
    ):
        make_augmentation(3, (0.5,), (0.2,), cutmix=1.0)
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(256)) * 9)
    with pytest.raises(UserError, match=r"^mixup: it is for classification, not language"):
        joslim.train("tiny_llama", f"text:{text}", context=8, mixup=1.0, out=tmp_path / "a")

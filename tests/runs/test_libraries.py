"""Networks of timm, torchvision and transformers by name; skipped where these are missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import joslim
from joslim import UserError, errors
from joslim.runs.libraries import LIBRARIES, library_of, make, pretrained_weights
from joslim.runs.networks import load_model, net_of


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for at in range(8):
        split, name = ("train", "val")[at % 4 == 0], ("a", "b")[at // 4]
        path = tmp_path / "pictures" / split / name / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(at).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "pictures"


SHORT: dict[str, Any] = {"steps": 2, "every": 1, "batch": 4, "threads": 1, "front_images": 4}


def test_timm_with_its_preprocessing(package: Any, pictures: Path, tmp_path: Path) -> None:
    package("timm")
    model = make("timm:test_efficientnet", num_classes=7, in_channels=1)
    assert model(torch.zeros(1, 1, 64, 64)).shape == (1, 7)
    config = sys.modules["timm.data"].resolve_model_data_config(model)
    run = joslim.train("timm:test_efficientnet", f"folder:{pictures}", out=tmp_path / "a", **SHORT)
    data = run.facts["data"]
    assert tuple(data["shape"]) == (3, *config["input_size"][1:])
    assert (tuple(data["mean"]), tuple(data["std"])) == (config["mean"], config["std"])
    again = joslim.load(tmp_path / "a", model="timm:test_efficientnet")
    assert again.net.space == run.net.space
    with pytest.raises(UserError, match=r"^model: unknown name 'resnt18'; nearest of .*resnet18"):
        make("timm:resnt18")
    with pytest.raises(UserError, match=r"^model: timm:resnet18,colour=3 cannot be made: TypeErr"):
        make("timm:resnet18,colour=3")


def test_torchvision(package: Any, tmp_path: Path) -> None:
    package("torchvision")
    net = net_of("torchvision:resnet18", "3x32x32", None)
    assert len(net.space) > 8
    model = load_model("torchvision:resnet18", 5)
    assert model.slim_defaults["input"] == (3, 224, 224)  # type: ignore[index]
    assert model.slim_defaults["mean"] == (0.485, 0.456, 0.406)  # type: ignore[index]
    with pytest.raises(UserError, match=r"^model: unknown name 'resnet19'; nearest"):
        make("torchvision:resnet19")
    weights = tmp_path / "weights.pth"
    torch.save(make("torchvision:squeezenet1_1").state_dict(), weights)
    run = joslim.train(
        "torchvision:squeezenet1_1",
        "digits",
        size=32,
        init=str(weights),
        out=tmp_path / "a",
        **SHORT,
    )
    assert run.fresh == ["classifier.1.weight", "classifier.1.bias"]


def test_pretrained_weights_of_torchvision_from_its_cache(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = package("torchvision").models
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = models.get_model_weights("squeezenet1_1").DEFAULT.url
    file = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    kept = make("torchvision:squeezenet1_1").state_dict()
    torch.save(kept, file)
    check_pretrained("torchvision:squeezenet1_1", kept, "classifier.1", tmp_path)


def test_pretrained_weights_of_timm_from_its_cache(
    package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package("timm")
    model = make("timm:test_resnet")
    kept, repository = model.state_dict(), model.pretrained_cfg["hf_hub_id"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cache = tmp_path / f"models--{repository.replace('/', '--')}"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    save_file(kept, snapshot / "model.safetensors")
    check_pretrained("timm:test_resnet", kept, "fc", tmp_path)


def check_pretrained(model: str, kept: dict[str, Any], head: str, folder: Path) -> None:
    """A run starts from the weights, but for the last layer, which has other classes."""
    loaded = pretrained_weights(model)
    assert all(torch.equal(loaded[name], kept[name]) for name in kept)
    run = joslim.train(model, "digits", size=32, init="pretrained", out=folder / "a", **SHORT)
    assert run.fresh == [f"{head}.weight", f"{head}.bias"]


def test_transformers(package: Any, tmp_path: Path) -> None:
    package("transformers")
    small = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"
    vit = make(f"transformers:vit,image_size=32,patch_size=8,{small}", num_classes=4)
    assert vit(torch.zeros(2, 3, 32, 32)).shape == (2, 4)
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(32, 96)) * 20)
    llama = f"transformers:llama,{small},num_key_value_heads=1"
    run = joslim.train(llama, f"text:{text}", context=16, out=tmp_path / "a", **SHORT)
    assert run.front.metric.label == "perplexity"
    with pytest.raises(UserError, match=r"^model: unknown name 'lama'; nearest"):
        make("transformers:lama")


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(errors, "import_module", missing)
    for name in LIBRARIES:
        words = rf"^model: the package {name} is not installed; type pip install 'joslim\[{name}\]'"
        with pytest.raises(UserError, match=words):
            make(f"{name}:anything")
    with pytest.raises(UserError, match=r"^model: 'depth' is no option; type NAME,key=value"):
        make("timm:resnet18,depth")
    with pytest.raises(UserError, match=r"^init: pretrained is for networks of timm, torchvis"):
        joslim.train("resnet8", "digits", init="pretrained", out=tmp_path / "a", **SHORT)
    assert library_of("package.module:function") is None

"""Trained weights to start from: files, other names for the same weights, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import joslim
from joslim.errors import UserError
from joslim.models import MODELS, resnet8
from joslim.runs.run import Run
from joslim.runs.trained_weights import load_weights, read_weights


def trained(seed: int = 1) -> dict[str, Tensor]:
    """The weights of a network with all norms different, as after a training."""
    torch.manual_seed(seed)
    model = resnet8(num_classes=10)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) - 0.3 if tensor.ndim > 1 else tensor + 0.5)
            if tensor.ndim == 1:
                tensor.mul_(torch.rand_like(tensor) + 0.5)
    return model.state_dict()


def test_another_number_of_classes_leaves_the_head_alone() -> None:
    model = resnet8(num_classes=4)
    head = {n: t.clone() for n, t in model.state_dict().items() if n.startswith("fc")}
    weights = trained()
    loaded = load_weights(model, weights)
    assert sorted(loaded.fresh) == ["fc.bias", "fc.weight"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, head[name] if name in head else weights[name])


def test_prefixes_of_wrappers_are_taken_off() -> None:
    weights = {f"module._orig_mod.{name}": tensor for name, tensor in trained().items()}
    assert load_weights(resnet8(num_classes=10), weights).fresh == []


def test_counters_may_be_missing() -> None:
    weights = {n: t for n, t in trained().items() if not n.endswith("num_batches_tracked")}
    assert load_weights(resnet8(num_classes=10), weights).fresh == []


def without_one(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    weights.pop("conv1.weight")
    return weights


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_one, "the weights lack conv1.weight (1 of 37); another model?"),
        (lambda w: {**w, "more": torch.zeros(1)}, "the weights have unknown more (1 in all)"),
        (lambda w: {}, "the weights lack "),
        (
            lambda w: {**w, "conv1.weight": torch.zeros(16, 1, 3, 3)},
            "conv1.weight is (16, 1, 3, 3)",
        ),
        (lambda w: {**w, "fc.weight": torch.zeros(10, 3)}, "fc.weight is (10, 3), the model has"),
        (lambda w: {**w, "fc.weight": 3}, "fc.weight is int, not a tensor"),
    ],
)
def test_weights_that_do_not_fit(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], words: str
) -> None:
    model = resnet8(num_classes=10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=re.escape(f"init: {words}")):
        load_weights(model, change(trained()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_files_of_weights(tmp_path: Path) -> None:
    weights = trained()
    save_file(weights, tmp_path / "w.safetensors")
    read = read_weights(tmp_path / "w.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("w.bin", b"", "cannot read '"),
        ("w.bin", b"x" * 100, "a .safetensors file is needed, or one of torch.save(model.state"),
        ("nowhere.pth", None, "cannot read"),
        ("w.pth", b"", "cannot read"),
        (
            "w.pth",
            b"x" * 100,
            "is broken, or asks to run code, which is refused; if you trust",
        ),
        ("nowhere.safetensors", None, "cannot read"),
        ("w.safetensors", b"", "cannot read"),
        ("w.safetensors", b"x" * 100, "cannot read"),
        ("w.safetensors", b"\xff" * 8 + b"{}", "cannot read"),
        ("w.safetensors", (2).to_bytes(8, "little") + b"[]", "cannot read"),
    ],
)
def test_files_that_hold_no_weights(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        read_weights(tmp_path / name)
    assert str(caught.value).startswith("init: ")


def test_files_of_torch(tmp_path: Path) -> None:
    """The weights alone, or inside a checkpoint, as programs save them."""
    weights, file = trained(), tmp_path / "w.pth"
    for saved in (weights, {"epoch": 3, "state_dict": weights}, {"model": weights}):
        torch.save(saved, file)
        read = read_weights(file)
        assert read.keys() == weights.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())
    torch.save([1, 2], file)
    with pytest.raises(UserError, match=r"^init: .*w.pth' holds list; a state dict is needed"):
        read_weights(file)


def test_a_file_of_torch_runs_nothing(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    torch.save({"conv1.weight": Hostile()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"^init: .* asks to run code, which is refused") as caught:
        read_weights(tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("inside", ["checkpoint", "."])
def test_folders_of_weights(inside: str, tmp_path: Path) -> None:
    folder = tmp_path / "w.safetensors"
    folder.mkdir()
    with pytest.raises(UserError, match=r"^init: folder '.*w.safetensors' has no checkpoint/model"):
        read_weights(folder)
    weights = trained()
    (folder / inside).mkdir(exist_ok=True)
    save_file(weights, folder / inside / "model.safetensors")
    read = read_weights(folder)
    assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())


def test_a_run_is_where_another_starts(finished: Run, tmp_path: Path) -> None:
    settings = {"model": "resnet8", "data": "digits", "threads": 1, "front_images": 64}
    alone = {"method": "single", "steps": 1, "lr": 1e-9}
    run = joslim.train(**settings, **alone, init=finished.path, out=tmp_path / "run")
    assert run.config.init == str(finished.path)
    sizes = {name: value.norm().item() for name, value in finished.net.named_parameters()}
    started = {name: value.norm().item() for name, value in run.net.named_parameters()}
    assert started == pytest.approx(sizes, rel=1e-4)  # sorted, and hardly moved


# Other names for the same weights


def assert_loaded(weights: dict[str, Tensor], model: nn.Module) -> None:
    ours = [t for n, t in model.state_dict().items() if not n.endswith("tracked")]
    theirs = [t for n, t in weights.items() if not n.endswith("tracked")]
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("", "44 of 44 tensors loaded"),
        ("module._orig_mod.", "without _orig_mod and module in their names"),
        ("model.", "without the prefix model."),
        ("module.net.backbone.", "without the prefix net.backbone."),
    ],
)
def test_prefixes_are_found_and_said(prefix: str, words: str) -> None:
    model = resnet8(num_classes=10)
    loaded = load_weights(model, {f"{prefix}{n}": t for n, t in trained().items()})
    assert loaded.fresh == []
    assert loaded.words[0].endswith(words)
    assert_loaded(trained(), model)


def test_a_network_with_a_prefix_of_its_own() -> None:
    model = nn.ModuleDict({"body": resnet8(num_classes=10)})
    assert load_weights(model, trained()).words[0].endswith(", * as body.*")
    assert_loaded(trained(), model)


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same network under the names of another library."""
    words = {"layer": "stages.", "conv": "convolution", "fc": "classifier"}
    pattern = re.compile("|".join(words))
    return {pattern.sub(lambda m: words[m[0]], name): value for name, value in weights.items()}


def test_another_naming_is_matched_by_order_and_shapes() -> None:
    model = resnet8(num_classes=10)
    loaded = load_weights(model, renamed(trained()))
    assert "by order and shapes: convolution1.weight as conv1.weight" in loaded.words[0]
    assert_loaded(trained(), model)
    other = load_weights(resnet8(num_classes=4), renamed(trained()))
    assert other.fresh == ["fc.weight", "fc.bias"]
    assert other.words[1] == "fc.weight, fc.bias made anew, for 4 classes instead of 10"


@pytest.mark.parametrize(
    "change",
    [
        lambda w: dict(sorted(w.items())),  # a safetensors file does not keep the order
        lambda w: dict(reversed(w.items())),
        lambda w: {n.replace("running_mean", "mean"): t for n, t in w.items()},
        lambda w: {n: t for n, t in w.items() if n != "classifier.bias"},
    ],
)
def test_no_order_is_guessed(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    with pytest.raises(UserError, match=r"^init: the weights lack "):
        load_weights(resnet8(num_classes=10), change(renamed(trained())))


# Weights of something else


def test_the_nearest_name_is_named() -> None:
    weights = {n.replace("fc.weight", "fc.weights"): t for n, t in trained().items()}
    with pytest.raises(UserError, match=re.escape("nearest to fc.weight is fc.weights; another")):
        load_weights(resnet8(num_classes=10), dict(sorted(weights.items())))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("resnet8", "resnet20"), ("resnet20", "resnet20_2x"), ("mobilenet_v2", "resnet8")],
)
def test_weights_of_another_built_in_network_are_recognised(mine: str, theirs: str) -> None:
    weights = MODELS[theirs](num_classes=7).state_dict()
    with torch.device("meta"):
        model = MODELS[mine](num_classes=10)
    with pytest.raises(UserError, match=f"they are those of {theirs}: type --model {theirs}$"):
        load_weights(model, {f"module.{name}": tensor for name, tensor in weights.items()})


def test_half_of_the_weights() -> None:
    half = dict([*trained().items()][:22])
    with pytest.raises(UserError, match=r"lack .*, \.\.\. \(\d+ of 37\); is the file a part of"):
        load_weights(resnet8(num_classes=10), half)


def test_a_pickle_with_the_name_of_another_format(tmp_path: Path) -> None:
    weights = trained()
    torch.save(weights, tmp_path / "w.safetensors")
    assert read_weights(tmp_path / "w.safetensors").keys() == weights.keys()
    torch.save(resnet8(), tmp_path / "whole.bin")
    with pytest.raises(UserError, match=r"whole.bin' .* asks to run code, .* torch.save\(model.s"):
        read_weights(tmp_path / "whole.bin")

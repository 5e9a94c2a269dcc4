"""Recipes: settings that suit a kind of data, and those of every training of the paper.

Settings that are given replace those of a recipe. A recipe `paper/...` also names the network and
the data; the methods, costs and ablations of the paper are flags beside it: --method, --cost,
--every, --searcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joslim.errors import UserError
from joslim.training.optimizers import OPTIMIZERS

# From the appendix of the paper, but for the warm-up; `digits` is ours, for a demonstration of
# a few minutes. The rate of a recipe is that of its batch, and follows another batch linearly
# (P. Goyal and others, 2017).
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {
        "epochs": 40.0,
        "batch": 64,
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "cosine",
        # The gradients of several widths add up to steps that ResNet20 cannot begin with: without
        # a warm-up it hardly learns, and a longer one costs time at high rates (docs/log.md).
        "warmup": 0.05,
        "label_smoothing": 0.0,
    },
    "imagenet": {
        "epochs": 250.0,
        "batch": 1024,
        "lr": 0.5,
        "momentum": 0.9,
        "weight_decay": 4e-5,
        "schedule": "linear",
        "warmup": 0.02,  # 5 of 250 epochs
        "label_smoothing": 0.1,
    },
}
RECIPES["cifar"] = {**RECIPES["digits"], "epochs": 400.0, "batch": 128}
# For folders of images. The rate for an image is that of CIFAR, and there are enough steps in an
# epoch whatever the size of the data.
RECIPES["large-data"] = {**RECIPES["cifar"], "epochs": 40.0, "label_smoothing": 0.1}
RECIPES["medium-data"] = {**RECIPES["large-data"], "batch": 64, "lr": 0.05}
RECIPES["small-data"] = {**RECIPES["large-data"], "epochs": 100.0, "batch": 32, "lr": 0.025}
# MobileNetV3 is trained with smaller random crops.
RECIPES["imagenet-mobilenet-v3"] = {**RECIPES["imagenet"], "crop_scale": 0.08}
# Single networks are trained half as long on CIFAR, and ResNet18 for 100 epochs.
RECIPES["cifar-single"] = {**RECIPES["cifar"], "epochs": 200.0, "warmup": 0.0}
RECIPES["imagenet-resnet18"] = {**RECIPES["imagenet"], "epochs": 100.0, "warmup": 0.05}

# The share of these rates with which a training starts from trained weights (--init).
FINE_TUNING_RATE = 0.3
# For a text: AdamW, with its own rate and weight decay.
RECIPES["text"] = {**RECIPES["large-data"], "epochs": 10.0, "batch": 32, "label_smoothing": 0.0}
RECIPES["text"] |= {"optimizer": "adamw", **OPTIMIZERS["adamw"].defaults}

PAPER = "paper/"
# No images are kept for validation: the paper leaves no choices to make. Weight decay exempts some
# parameters as in US-Nets, whose recipe the paper follows.
OF_THE_PAPER = {"preset": "paper", "samples": 2, "val": 0.0, "decay_on": "weights"}
# K: with 2 samples a round, 1000 children are visited in a whole training.
CIFAR_EVERY = 313
IMAGENET = "folder:imagenet"
# The colours of the code of US-Nets, which the paper follows, and no dropout, which it has not.
AS_US_NETS = {"clip_colours": True, "dropout": 0.0}
# Images are decoded by other processes, whose number changes no result.
DECODING = {"data": IMAGENET, "workers": 8}

# Figure 2: on CIFAR-10 four depths, on CIFAR-100 also wider ones.
DEPTHS = ("resnet20", "resnet32", "resnet44", "resnet56")
WIDER = ("resnet20_2x", "resnet20_3x", "resnet20_4x", "resnet20_5x")
for _data, _models in (("cifar10", DEPTHS), ("cifar100", (*DEPTHS, *WIDER))):
    for _model in _models:
        RECIPES[f"{PAPER}{_data}-{_model.replace('_', '-')}"] = {
            **RECIPES["cifar"],
            **OF_THE_PAPER,
            "model": _model,
            "data": _data,
            "warmup": 0.0,
            "low": 0.316,
            "every": CIFAR_EVERY,
        }
# Figures 3 to 5: ImageNet.
for _name, _model, _settings in (
    ("mobilenet-v2", "mobilenet_v2", {**RECIPES["imagenet"], "crop_scale": 0.25, "every": 625}),
    ("mobilenet-v3", "mobilenet_v3_large", {**RECIPES["imagenet-mobilenet-v3"], "every": 625}),
    ("resnet18", "resnet18", {**RECIPES["imagenet-resnet18"], "crop_scale": 0.25, "every": 250}),
):
    RECIPES[f"{PAPER}imagenet-{_name}"] = {
        **_settings,
        **OF_THE_PAPER,
        **DECODING,
        **AS_US_NETS,
        "model": _model,
        "low": 0.42,
    }


def settings_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the recipe that are not given; its rate follows a batch that is given.

    If steps or epochs are given, the length differs from the recipe's, and so does K. An optimizer
    other than SGD has its own rate and weight decay.
    """
    recipe = {key: value for key, value in RECIPES[name].items() if key not in given}
    if "lr" in recipe and isinstance(batch := given.get("batch"), int):
        recipe["lr"] = rate_for(name, batch)
    if given.get("steps") is not None:
        recipe.pop("epochs", None)
    if given.get("steps") is not None or given.get("epochs") is not None:
        recipe.pop("every", None)
    optimizer = given.get("optimizer") or recipe.get("optimizer")
    if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
        own = OPTIMIZERS[optimizer].defaults
        recipe |= {key: value for key, value in own.items() if key not in given}
    return recipe


def rate_for(name: str, batch: int, optimizer: str = "sgd") -> float:
    """Return the learning rate of the recipe for a batch of this size, or the optimizer's own."""
    rate: float = RECIPES[name]["lr"] * batch / RECIPES[name]["batch"]
    return OPTIMIZERS[optimizer].defaults.get("lr", rate)


def check_data(recipe: str | None, data: str) -> None:
    """Refuse a recipe whose data joslim cannot download and that are not there."""
    if recipe is None or RECIPES[recipe].get("data") != data or data != IMAGENET:
        return
    folder = Path(data.partition(":")[2])
    if not folder.is_dir():
        raise UserError(
            f"data: recipe {recipe!r} needs ImageNet, and there is no folder {str(folder)!r} here; "
            "fetch ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org "
            "(free, after registration), unpack them as imagenet/train/CLASS/*.JPEG and "
            "imagenet/val/CLASS/*.JPEG, or type --data folder:PATH"
        )

"""Recipes: the training settings that suit a kind of data. What a user gives wins over them."""

from __future__ import annotations

from typing import Any

# The paper's appendix; `digits` is ours, for a demonstration of minutes.
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {
        "epochs": 40.0,
        "batch": 64,
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "cosine",
        "warmup": 0.0,
        "label_smoothing": 0.0,
    },
    "cifar": {
        "epochs": 400.0,
        "batch": 128,
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "cosine",
        "warmup": 0.0,
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
# Random crops of MobileNetV3 keep less of the image.
RECIPES["imagenet-mobilenet-v3"] = {**RECIPES["imagenet"], "crop_scale": 0.08}
# Networks that stand alone are trained half as long on CIFAR; ResNet18 for 100 epochs.
RECIPES["cifar-single"] = {**RECIPES["cifar"], "epochs": 200.0}
RECIPES["imagenet-resnet18"] = {**RECIPES["imagenet"], "epochs": 100.0, "warmup": 0.05}

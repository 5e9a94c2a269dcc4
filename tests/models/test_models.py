"""The table of models, and their initial weights, which are drawn as published."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import joslim.models
from joslim.models import MODELS


def test_table_names_every_public_constructor() -> None:
    assert set(joslim.models.__all__) == {"MODELS", *MODELS}
    assert all(getattr(joslim.models, name) is build for name, build in MODELS.items())


def test_every_model_tells_the_slimmer_its_range_and_input() -> None:
    for build in MODELS.values():
        model: Any = build(num_classes=3)
        assert (
            {"low", "input"}
            <= model.slim_defaults.keys()
            <= {
                "low",
                "input",
                "dtype",
                "tie",
                "keep",
            }
        )


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tiny_llama"])
def test_convs_keep_their_fan_out_and_norms_start_as_identity(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    large = 0
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.weight.shape[0] * module.weight[0, 0].numel()
            if module.weight.numel() >= 2000:  # enough draws for the deviation to be measured
                large += 1
                assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)
            assert module.bias is None or not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert not module.bias.any()
    assert large


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_large"])
def test_linear_layers_of_mobilenets_start_small(name: str) -> None:
    for module in MODELS[name]().modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.01, rel=0.1)
            assert not module.bias.any()


@pytest.mark.parametrize("name", ["resnet20", "resnet18"])
def test_linear_layers_of_resnets_keep_the_default(name: str) -> None:
    fc: Any = MODELS[name]().fc
    bound = 1 / math.sqrt(fc.in_features)
    assert 0.9 * bound < fc.weight.abs().max() <= bound
    assert fc.bias.any()

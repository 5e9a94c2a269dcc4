"""What torch's layers say about themselves, before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from joslim.slimmable.layer_specs import layer_spec, own_tensors
from joslim.slimmable.symbolic_axes import is_fixed, length, variables

LAYERS = {
    "conv": nn.Conv2d(6, 8, 3),
    "grouped": nn.Conv2d(6, 8, 3, groups=2),
    "depthwise": nn.Conv2d(6, 6, 3, groups=6),
    "transposed": nn.ConvTranspose2d(6, 8, 3),
    "grouped transposed": nn.ConvTranspose2d(6, 8, 3, groups=2),
    "linear": nn.Linear(5, 7),
    "batch norm": nn.BatchNorm2d(6),
    "bare instance norm": nn.InstanceNorm2d(6),
    "group norm": nn.GroupNorm(2, 6),
    "layer norm": nn.LayerNorm((6, 4)),
    "prelu": nn.PReLU(6),
    "unknown": nn.Bilinear(3, 4, 5),
}


@pytest.mark.parametrize("whole_groups", [True, False])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_axes_are_as_long_as_the_tensors(layer: nn.Module, whole_groups: bool) -> None:
    spec = layer_spec(layer, whole_groups)
    assert set(spec.tensors) == set(own_tensors(layer))
    for name, tensor in own_tensors(layer).items():
        assert [length(axis) for axis in spec.tensors[name]] == list(tensor.shape)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_attributes_repeat_their_values(layer: nn.Module) -> None:
    for name, axes in layer_spec(layer, whole_groups=True).attributes.items():
        value = getattr(layer, name)
        if isinstance(axes, list):
            assert [length(axis) for axis in axes] == list(value)
        else:
            assert length(axes) == value


def test_weight_and_bias_share_their_output_channels() -> None:
    tensors = layer_spec(LAYERS["conv"], whole_groups=True).tensors
    assert variables(tensors["weight"][0]) == variables(tensors["bias"][0])
    assert variables(tensors["weight"][0]).isdisjoint(variables(tensors["weight"][1]))


def test_a_grouped_conv_drops_groups_or_slims_each() -> None:
    dropping = layer_spec(LAYERS["grouped"], whole_groups=True)
    slimming = layer_spec(LAYERS["grouped"], whole_groups=False)
    assert "groups" in dropping.attributes
    assert is_fixed(dropping.tensors["weight"][1])
    assert "groups" not in slimming.attributes
    assert not is_fixed(slimming.tensors["weight"][1])


def test_a_depthwise_conv_always_drops_groups() -> None:
    assert "groups" in layer_spec(LAYERS["depthwise"], whole_groups=False).attributes


def test_a_layer_norm_written_by_hand_is_known_by_its_shape() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))
            self.normalized_shape = (6,)

    spec = layer_spec(Norm(), whole_groups=True)
    assert variables(spec.tensors["weight"][0]) == variables(
        spec.attributes["normalized_shape"][0]  # type: ignore[arg-type]
    )

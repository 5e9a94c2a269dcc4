"""A dressed layer reads as the active child's, and can be undressed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from joslim.slimmable.blueprint import Layout, Stretch
from joslim.slimmable.layers import (
    PREFIX,
    SlimmableLayer,
    attributes,
    dress,
    layer_state,
    layouts_of,
    slimmable_class,
    undress,
)
from joslim.slimmable.planning import LayerPlan

OUT = Layout((Stretch(0, 1, 8),))
IN = Layout((Stretch(1, 1, 4), Stretch(2, 1, 2)))
KERNEL = Layout((Stretch(None, 0, 3),))
CONV = LayerPlan(
    {"weight": (OUT, IN, KERNEL, KERNEL), "bias": (OUT,)},
    {"out_channels": OUT, "in_channels": IN},
)
NORM = LayerPlan(
    dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (OUT,)),
    {"num_features": OUT},
)


def dressed_conv(units=None):
    conv = nn.Conv2d(6, 8, 3)
    dress(conv, CONV)
    if units:
        conv.__dict__.update(layer_state(CONV, units, conv))
    return conv


def test_at_full_width_the_parameters_are_the_very_same():
    conv = dressed_conv()
    assert conv.weight is conv._parameters["weight"]
    assert conv.bias is conv._parameters["bias"]


def test_a_slimmed_layer_reads_as_the_child():
    conv = dressed_conv(units=(5, 2, 1))
    whole = conv._parameters["weight"]
    assert torch.equal(conv.weight, whole[:5][:, [0, 1, 4]])
    assert torch.equal(conv.bias, conv._parameters["bias"][:5])
    assert (conv.out_channels, conv.in_channels) == (5, 3)
    assert type(conv.out_channels) is int
    assert conv(torch.randn(2, 3, 5, 5)).shape == (2, 5, 3, 3)


def test_prefixes_are_views_and_gradients_reach_the_whole():
    conv = dressed_conv(units=(5, 4, 1))
    assert conv.bias.data_ptr() == conv._parameters["bias"].data_ptr()
    conv(torch.randn(2, 5, 5, 5)).sum().backward()
    grad = conv._parameters["weight"].grad
    assert grad.shape == (8, 6, 3, 3)
    assert grad[:5, :5].ne(0).all()
    assert not grad[5:].any()
    assert not grad[:, 5:].any()


def test_the_state_dict_stays_whole():
    conv = dressed_conv(units=(5, 2, 1))
    assert {key: tuple(value.shape) for key, value in conv.state_dict().items()} == {
        "weight": (8, 6, 3, 3),
        "bias": (8,),
    }
    assert [tuple(p.shape) for p in conv.parameters()] == [(8, 6, 3, 3), (8,)]


def test_undressing_leaves_nothing_behind():
    conv = nn.Conv2d(6, 8, 3)
    names = set(conv.__dict__)
    dress(conv, CONV)
    assert isinstance(conv, SlimmableLayer)
    undress(conv)
    assert type(conv) is nn.Conv2d
    assert set(conv.__dict__) == names


def test_a_class_is_made_once():
    assert type(dressed_conv()) is type(dressed_conv())
    again = slimmable_class(nn.Conv2d, ("bias", "weight"), ())
    assert type(dressed_conv()) is again
    assert again.__name__ == "SlimmableConv2d"


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_layers_survive_copies(way):
    conv = dressed_conv(units=(5, 2, 1))
    other = way(conv)
    assert type(other) is type(conv)
    assert torch.equal(other.weight, conv.weight)


def test_a_missing_bias_stays_missing():
    conv = nn.Conv2d(6, 8, 3, bias=False)
    dress(conv, CONV)
    conv.__dict__.update(layer_state(CONV, (5, 2, 1), conv))
    assert conv.bias is None


def test_size_attributes_follow():
    assert attributes(CONV, (3, 1, 1)) == {"out_channels": 3, "in_channels": 2}
    assert attributes(CONV, None) == {"out_channels": 8, "in_channels": 6}
    shape = LayerPlan({}, {"normalized_shape": (OUT, KERNEL)})
    assert attributes(shape, (3, 1, 1)) == {"normalized_shape": (3, 3)}


def test_an_axis_that_occurs_twice_has_one_size():
    assert layouts_of(CONV) == [OUT, IN]
    state = layer_state(CONV, (5, 2, 1), nn.Conv2d(6, 8, 3))
    assert (state[PREFIX + "size0"], state[PREFIX + "size1"]) == (5, 3)
    assert not state[PREFIX + "whole"]
    assert layer_state(CONV, None, nn.Conv2d(6, 8, 3))[PREFIX + "whole"]


def norm_at(units, **state):
    norm = nn.BatchNorm1d(8)
    dress(norm, NORM)
    norm.__dict__.update(layer_state(NORM, units, norm))
    norm.__dict__.update({PREFIX + name: value for name, value in state.items()})
    return norm


def test_a_slimmed_norm_does_not_move_statistics():
    norm = norm_at((5,), all_full=False)
    norm(torch.randn(16, 5))
    assert torch.equal(norm._buffers["running_mean"], torch.zeros(8))
    assert norm.num_batches_tracked == 0
    assert norm.__dict__["track_running_stats"]


def test_a_full_norm_moves_them():
    norm = norm_at((8,))
    norm(torch.randn(16, 8))
    assert norm._buffers["running_mean"].ne(0).all()
    assert norm.num_batches_tracked == 1


def test_a_norm_uses_its_own_statistics_if_it_has_some():
    mean, var = torch.randn(5), torch.rand(5) + 0.5
    norm, x = norm_at((5,), all_full=False, own=(mean, var)).eval(), torch.randn(3, 5)
    assert torch.allclose(norm(x), (x - mean) / (var + norm.eps).sqrt(), atol=1e-6)


def test_a_norm_can_be_told_not_to_track():
    norm = norm_at((8,))
    norm.track_running_stats = False
    assert norm.track_running_stats is False
    undress(norm)
    assert norm.track_running_stats is False


def test_a_slimmed_instance_norm_does_not_move_statistics():
    norm = nn.InstanceNorm1d(8, affine=True, track_running_stats=True)
    dress(norm, NORM)
    norm.__dict__.update(layer_state(NORM, (5,), norm), _slim_all_full=False)
    norm(torch.randn(4, 5, 6))
    assert torch.equal(norm._buffers["running_mean"], torch.zeros(8))


UNITS = (5, 3, 1)


def test_in_inference_a_part_is_kept_in_one_piece():
    conv = dressed_conv(UNITS).eval()
    with torch.inference_mode():
        piece = conv.weight
        assert piece.is_contiguous()
        assert conv.weight is piece
    assert torch.equal(conv.weight, piece)
    assert conv.weight is not piece
    assert conv.train().weight.requires_grad


def other_tensor(conv):
    conv._parameters["weight"] = nn.Parameter(torch.randn(8, 6, 3, 3))


def other_data(conv):
    conv._parameters["weight"].data = torch.randn(8, 6, 3, 3)


def stepped(**options):
    def change(conv):
        conv(torch.randn(1, 4, 3, 3)).sum().backward()
        torch.optim.SGD(conv.parameters(), lr=0.1, **options).step()

    return change


def loaded(conv):
    conv.load_state_dict({k: v + 1 for k, v in conv.state_dict().items()})


CHANGES = {
    "tensor": other_tensor,
    "data": other_data,
    "step": stepped(foreach=False),
    "foreach step": stepped(foreach=True),
    "fused step": stepped(fused=True),
    "state dict": loaded,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_kept_part_is_made_anew_when_the_weights_change(change):
    conv = dressed_conv(UNITS).eval()
    with torch.inference_mode():
        before = conv.weight.clone()
    change(conv)
    with torch.inference_mode():
        after = conv.weight
    assert not torch.equal(after, before)
    assert torch.equal(after, conv.weight)


def test_what_is_kept_is_not_copied_along():
    conv = dressed_conv(UNITS).eval()
    with torch.inference_mode():
        _ = conv.weight
    assert conv._slim_kept
    assert not copy.deepcopy(conv)._slim_kept

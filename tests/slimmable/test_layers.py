"""A dressed layer reads as the active child's, and can be undressed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import joslim
from joslim import UserError
from joslim.slimmable import layers
from joslim.slimmable.blueprint import Layout, Stretch
from joslim.slimmable.layers import (
    PREFIX,
    SlimmableLayer,
    attributes_at,
    layer_state,
    layouts_of,
    make_layer_slimmable,
    normalise_together,
    norms_together,
    restore_layer,
    slimmable_class,
)
from joslim.slimmable.plan import LayerPlan

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
    make_layer_slimmable(conv, CONV)
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
    make_layer_slimmable(conv, CONV)
    assert isinstance(conv, SlimmableLayer)
    restore_layer(conv)
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
    make_layer_slimmable(conv, CONV)
    conv.__dict__.update(layer_state(CONV, (5, 2, 1), conv))
    assert conv.bias is None


def test_size_attributes_follow():
    assert attributes_at(CONV, (3, 1, 1)) == {"out_channels": 3, "in_channels": 2}
    assert attributes_at(CONV, None) == {"out_channels": 8, "in_channels": 6}
    shape = LayerPlan({}, {"normalized_shape": (OUT, KERNEL)})
    assert attributes_at(shape, (3, 1, 1)) == {"normalized_shape": (3, 3)}


def test_an_axis_that_occurs_twice_has_one_size():
    assert layouts_of(CONV) == [OUT, IN]
    state = layer_state(CONV, (5, 2, 1), nn.Conv2d(6, 8, 3))
    assert (state[PREFIX + "size0"], state[PREFIX + "size1"]) == (5, 3)
    assert not state[PREFIX + "full"]
    assert layer_state(CONV, None, nn.Conv2d(6, 8, 3))[PREFIX + "full"]


def norm_at(units, **state):
    norm = nn.BatchNorm1d(8)
    make_layer_slimmable(norm, NORM)
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
    restore_layer(norm)
    assert norm.track_running_stats is False


def test_a_slimmed_instance_norm_does_not_move_statistics():
    norm = nn.InstanceNorm1d(8, affine=True, track_running_stats=True)
    make_layer_slimmable(norm, NORM)
    norm.__dict__.update(layer_state(NORM, (5,), norm), _slim_all_full=False)
    norm(torch.randn(4, 5, 6))
    assert torch.equal(norm._buffers["running_mean"], torch.zeros(8))


# Prefixes of both axes, and after a concat a prefix of each part.
KINDS = pytest.mark.parametrize("units", [(5, 4, 1), (5, 3, 1)], ids=["prefix", "concat"])


def test_in_inference_a_view_is_kept():
    conv = dressed_conv((5, 4, 1)).eval()
    with torch.inference_mode():
        part = conv.weight
        assert conv.weight is part
    assert part.data_ptr() == conv._parameters["weight"].data_ptr()
    assert conv.weight is not part
    assert conv.train().weight.requires_grad


def other_tensor(conv):
    conv._parameters["weight"] = nn.Parameter(torch.randn(8, 6, 3, 3))


def other_data(conv):
    conv._parameters["weight"].data = torch.randn(8, 6, 3, 3)


def stepped(optimizer=torch.optim.SGD, **options):
    def change(conv):
        conv(torch.randn(1, conv.in_channels, 3, 3)).sum().backward()
        optimizer(conv.parameters(), lr=0.1, **options).step()

    return change


def loaded(conv):
    conv.load_state_dict({k: v + 1 for k, v in conv.state_dict().items()})


def swapped_average(conv):
    """The usual exchange of weights and their moving average."""
    for parameter in conv.parameters():
        average = torch.randn_like(parameter)
        parameter.data, average = average, parameter.data


def copied_average(conv):
    for parameter in conv.parameters():
        parameter.data.copy_(torch.randn_like(parameter))


def foreach_average(conv):
    weights = [parameter.data for parameter in conv.parameters()]
    torch._foreach_lerp_(weights, [torch.randn_like(w) for w in weights], 0.5)


def through_numpy(conv):
    conv._parameters["weight"].detach().numpy()[...] = 3.0


def within_inference(conv):
    with torch.inference_mode():
        conv._parameters["weight"].mul_(2)


CHANGES = {
    "tensor": other_tensor,
    "data": other_data,
    "step": stepped(foreach=False),
    "foreach step": stepped(foreach=True),
    "fused step": stepped(fused=True),
    "fused Adam": stepped(torch.optim.Adam, fused=True),
    "state dict": loaded,
    "swapped average": swapped_average,
    "copied average": copied_average,
    "foreach average": foreach_average,
    "numpy": through_numpy,
    "in inference": within_inference,
}


@KINDS
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_in_inference_a_part_follows_the_weights(change, units):
    conv = dressed_conv(units).eval()
    with torch.inference_mode():
        before = conv.weight.clone()
    change(conv)
    with torch.inference_mode():
        after = conv.weight
    assert not torch.equal(after, before)
    assert torch.equal(after, conv.weight)


def test_what_is_kept_is_not_copied_along():
    conv = dressed_conv((5, 4, 1)).eval()
    with torch.inference_mode():
        _ = conv.weight
    assert conv._slim_views
    assert not copy.deepcopy(conv)._slim_views


# --- what cannot be slimmed afterwards ------------------------------------------------------------


def test_a_copy_that_is_written_to_is_refused():
    """After a concat the weight is a copy, and what `nn.init` writes would be lost."""
    conv = dressed_conv((5, 3, 1))
    nn.init.ones_(conv.bias)
    assert conv._parameters["bias"][:5].eq(1).all()
    nn.init.ones_(conv.weight)
    _ = conv.bias
    with pytest.raises(UserError, match=r"^weight: .* after a concat was written to") as caught:
        conv(torch.randn(1, 4, 5, 5))
    assert "\n" not in str(caught.value)
    assert conv(torch.randn(1, 4, 5, 5)).shape == (1, 5, 3, 3)


COMPUTED = {
    "pruning": lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "parametrization": nn.utils.parametrizations.weight_norm,
    "assignment": lambda conv: setattr(conv, "weight", conv._parameters.pop("weight").detach()),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED)
def test_computed_weights_are_refused_in_one_line(compute):
    with pytest.raises(UserError, match=r"^weight: .*before joslim.slim") as caught:
        compute(dressed_conv())
    assert "\n" not in str(caught.value)


# --- BatchNorm over all processes; tests/test_distributed.py has two processes --------------------


@pytest.fixture
def alone_but_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process that takes itself for a group."""
    monkeypatch.setattr(layers, "_together", True)
    monkeypatch.setattr(layers, "all_reduce", lambda values: values)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm2d, (6, 4, 3, 3)), (nn.BatchNorm3d, (6, 4, 2, 2, 2))],
)
@pytest.mark.usefixtures("alone_but_together")
def test_of_one_process_it_is_torchs(
    kind: type, shape: tuple[int, ...], affine: bool, momentum: float | None
) -> None:
    torch.manual_seed(0)
    ours = kind(4, affine=affine, momentum=momentum)
    if affine:
        nn.init.normal_(ours.weight)
    theirs = copy.deepcopy(ours)
    for _ in range(2):
        x = torch.randn(shape)
        torch.testing.assert_close(normalise_together(ours, x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.usefixtures("alone_but_together")
def test_children_move_no_statistics() -> None:
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8)).train()
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(4, 3, 8, 8)
    with net.at(net.space.smallest):
        net(x)
    torch.testing.assert_close(net.state_dict(), before)
    net(x)
    assert not torch.equal(net.state_dict()["bn1.running_mean"], before["bn1.running_mean"])


def test_alone_nothing_is_together() -> None:
    with norms_together():
        assert not layers._together


def test_a_child_has_torchs_own_norms() -> None:
    net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 8, 8))
    child = net.child(net.space.full)
    assert {type(m) for m in child.modules() if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_prefix_is_cut_in_one_operation(layout):
    """With the values, the gradient and the memory of one narrow for each axis."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3))
    net = joslim.slim(model, torch.zeros(1, 3, 8, 8))
    net.to(memory_format=layout)
    with net.at(net.space.uniform(0.5)):
        part, full = net[1].weight, net[1]._parameters["weight"]
        assert part.grad_fn.next_functions[0][0].variable is full  # nothing in between
        narrow = full.narrow(0, 0, 4).narrow(1, 0, 4)
        assert torch.equal(part, narrow)
        assert part.data_ptr() == narrow.data_ptr()
        toward = torch.randn(4, 4, 3, 3)
        (ours,) = torch.autograd.grad(part, full, toward)
        (theirs,) = torch.autograd.grad(narrow, full, toward)
        assert torch.equal(ours, theirs)

"""Sorting changes nothing at full width: on every model, example network and odd structure."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import joslim
from joslim import UserError
from joslim.models import MODELS
from joslim.slimmable import channel_order, statistics_of
from joslim.slimmable.blueprint import Layout, Stretch
from joslim.slimmable.channel_order import (
    IMPORTANCE,
    Kept,
    Permutable,
    Trial,
    Trials,
    descending,
    entries,
    find_permutable,
    move,
    sort_channels,
    units_of,
)
from joslim.slimmable.running import tensors_in

EXACT = 1e-10


def run(net: nn.Module, inputs: tuple[Tensor, ...], training: bool = False) -> list[Tensor]:
    """All outputs; norms stay in eval mode, as they would normalise by the batch otherwise."""
    net.train(training)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    with torch.no_grad():
        return [x.clone() for x in tensors_in(net(*inputs))]


def moved(net: nn.Module, before: dict[str, Tensor]) -> list[str]:
    return [key for key, value in net.state_dict().items() if not torch.equal(value, before[key])]


def state(net: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in net.state_dict().items()}


def double(*inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.double() for x in inputs)


def example_net(networks: Any, name: str) -> tuple[Any, tuple[Tensor, ...]]:
    net = copy.deepcopy(networks.slimmed(name)[1]).double()
    return net, double(*networks.inputs_for(name))


def image(pixels: int = 8, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, pixels, pixels, generator=torch.Generator().manual_seed(3))


# --- nothing changes at full width ----------------------------------------------------------------


# The wide and the deep ones are the same code with more of it, and seconds each.
MORE_OF_THE_SAME = {"resnet32", "resnet44", "resnet56", "resnet34"}
ONE_OF_EACH = [name for name in MODELS if not name.endswith("x") and name not in MORE_OF_THE_SAME]
TOKENS = torch.arange(20).reshape(2, 10)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_models_stay_what_they_are(name, networks, assert_same):
    x = TOKENS if name == "tiny_llama" else image(16)
    net = joslim.slim(networks.shaken(MODELS[name](num_classes=32)), x).double()
    x = (x,) if name == "tiny_llama" else double(x)
    before, tensors = run(net, x), state(net)
    assert sort_channels(net) == []
    assert_same(run(net, x), before, EXACT)
    changed = moved(net, tensors)
    for part in ("conv1.weight", "running_mean", "running_var", "bias"):
        assert any(part in key for key in changed) or not any(part in key for key in tensors)


def test_example_networks_stay_what_they_are(network_name, networks, assert_same):
    net, inputs = example_net(networks, network_name)
    before, tensors = run(net, inputs), state(net)
    assert sort_channels(net) == []
    assert_same(run(net, inputs), before, EXACT)
    assert moved(net, tensors)


def test_children_equal_children_cut_out_and_cost_the_same(
    network_name, networks, children, assert_same
):
    net, inputs = example_net(networks, network_name)
    chosen = children(net.space, 2)
    prices = [joslim.cost(name, net) for name in ("macs", "params")]
    before = [price(widths) for price in prices for widths in chosen]
    sort_channels(net)
    assert [price(widths) for price in prices for widths in chosen] == before
    for widths in chosen:
        with net.at(widths):
            sliced = run(net, inputs)
        assert_same(sliced, run(net.child(widths), inputs))


def test_what_runs_only_in_training_is_sorted_along(networks, assert_same):
    net, inputs = example_net(networks, "AuxiliaryHead")
    before, tensors = run(net, inputs, training=True), state(net)
    sort_channels(net)
    assert len(before) == 2
    assert_same(run(net, inputs, training=True), before, EXACT)
    assert "aux.0.weight" in moved(net, tensors)


class ShuffledOnlyInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = F.relu(self.b(x.flip(1) if self.training else x))
        return self.c(x)


def test_an_order_that_matters_only_in_training_is_kept(assert_same):
    net = joslim.slim(ShuffledOnlyInTraining(), image()).double()
    before = run(net, double(image()), training=True)
    assert [kept.dim for kept in sort_channels(net)] == ["a"]
    assert_same(run(net, double(image()), training=True), before, EXACT)


class InSinglePrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        return self.c(F.normalize(x.float(), dim=1).type_as(x))


class InSinglePrecisionOnly(InSinglePrecision):
    """Does not run in double precision at all."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x))).float()))


@pytest.mark.parametrize("kind", [InSinglePrecision, InSinglePrecisionOnly])
def test_forwards_that_ask_for_single_precision(kind, assert_same):
    net = joslim.slim(kind(), image())
    before, tensors = run(net, (image(),)), state(net)
    assert sort_channels(net) == []
    assert_same(run(net, (image(),)), before, 1e-5)
    assert {"a.weight", "b.weight"} <= {*moved(net, tensors)}


# --- where the order matters ----------------------------------------------------------------------


class Middle(nn.Module):
    """Something between two convs."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, 6, 3)
        self.n = nn.BatchNorm2d(6)
        self.c = nn.Linear(6, 4)

    def middle(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n(self.b(self.middle(F.relu(self.a(x))))))
        return self.c(x.mean((2, 3)))


class Flip(Middle):
    def middle(self, x: Tensor) -> Tensor:
        return x + 0.5 * x.flip(1)


class Neighbours(Middle):
    def middle(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, 3)


class ConvAlongChannels(Middle):
    def __init__(self) -> None:
        super().__init__()
        self.along = nn.Conv1d(1, 1, 3, padding=1)

    def middle(self, x: Tensor) -> Tensor:
        gate = self.along(x.mean((2, 3)).unsqueeze(1)).squeeze(1).sigmoid()
        return x * gate[:, :, None, None]


class Cumulative(Middle):
    def middle(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class ShuffledByNumber(Middle):
    """Five groups of three channels, read as three rows of five."""

    def __init__(self) -> None:
        super().__init__(15)
        self.grouped = nn.Conv2d(15, 15, 3, padding=1, groups=5)

    def middle(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(self.grouped(x), 3)


@pytest.mark.parametrize(
    "kind", [Flip, Neighbours, ConvAlongChannels, Cumulative, ShuffledByNumber]
)
def test_what_depends_on_the_order_is_left_alone(kind, networks, assert_same):
    net = joslim.slim(networks.shaken(kind()), image()).double()
    before, tensors = run(net, double(image())), state(net)
    kept = sort_channels(net)
    assert_same(run(net, double(image())), before, EXACT)
    assert {k.dim for k in kept} == {"a"}
    assert all("order" in k.why and k.units > 0 for k in kept)
    assert "c.weight" in moved(net, tensors)
    # Of the conv in front only the part that is free may have moved: here none is.
    assert "a.weight" not in moved(net, tensors)


def flipped_labels(x: Tensor) -> Tensor:
    return x + 0.5 * x.flip(1)


class Labels(Middle):
    """Returns a label alone, or labels beside the scores of another branch."""

    def __init__(self, middle: Any, scores: bool) -> None:
        super().__init__()
        self.change, self.other = middle, nn.Linear(3, 4) if scores else None

    def middle(self, x: Tensor) -> Tensor:
        return self.change(x)

    def forward(self, x: Tensor) -> Any:
        label = super().forward(x).argmax(1)
        return label if self.other is None else (label, self.other(x.mean((2, 3))))


@pytest.mark.parametrize("scores", [False, True], ids=["alone", "beside scores"])
def test_labels_are_not_taken_for_equal(scores, networks):
    """A label hides most differences, so the scores behind it are compared."""
    net = joslim.slim(networks.shaken(Labels(flipped_labels, scores)), image()).double()
    images = torch.randn(500, 3, 8, 8, dtype=torch.float64)
    before, tensors = run(net, (images,)), state(net)
    assert {kept.dim for kept in sort_channels(net)} == {"a"}
    assert all(torch.allclose(x, y) for x, y in zip(run(net, (images,)), before))
    assert "c.weight" in moved(net, tensors)


def test_statistics_of_the_full_child_are_no_hindrance():
    net = joslim.slim(joslim.models.resnet8(), (1, 3, 8, 8))
    joslim.recalibrate(net, [torch.randn(16, 3, 8, 8)])
    net.statistics[net.space.full] = statistics_of(net, [torch.randn(16, 3, 8, 8)])  # as a front's
    net._switch(net.space.full)
    assert sort_channels(net) == []


def test_a_network_that_returns_labels_is_sorted(networks):
    net = joslim.slim(networks.shaken(Labels(torch.abs, scores=False)), image()).double()
    images = torch.randn(500, 3, 8, 8, dtype=torch.float64)
    before, tensors = run(net, (images,)), state(net)
    assert sort_channels(net) == []
    assert torch.equal(*run(net, (images,)), *before)
    assert {"a.weight", "c.weight"} <= {*moved(net, tensors)}


class FirstChannelIsSpecial(Middle):
    def middle(self, x: Tensor) -> Tensor:
        return x * x[:, 0].sigmoid().unsqueeze(1)


def test_a_part_of_a_dim_is_sorted_where_the_rest_must_stay(networks, assert_same):
    net = joslim.slim(networks.shaken(FirstChannelIsSpecial()), image()).double()
    before, weight = run(net, double(image())), net.a.weight.detach().clone()
    assert [(k.dim, k.units) for k in sort_channels(net, "l1")] == [("a", 1)]
    assert_same(run(net, double(image())), before, EXACT)
    assert torch.equal(net.a.weight[0], weight[0])
    sums = net.a.weight.abs().sum((1, 2, 3))[1:]
    assert (sums.diff() <= EXACT).all()


@pytest.mark.parametrize("name", ["resnet8", "resnet20"])
def test_stages_with_zero_padded_shortcuts_move_together(name):
    net = joslim.slim(MODELS[name](), image(16))
    dims = [dim.name for dim in net.space.dims]
    stages = tuple(dims.index(d) for d in ("conv1", "layer2.0.conv2", "layer3.0.conv2"))
    found = [f for f in find_permutable(Trials(net)) if set(f.dims) & {*stages}]
    assert sorted(found, key=lambda f: f.units) == [
        Permutable(stages, tuple(range(16))),
        Permutable(stages[1:], tuple(range(16, 32))),
        Permutable(stages[2:], tuple(range(32, 64))),
    ]


class TwoShortcuts(nn.Module):
    """Two pairs of stages side by side, each padded with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 6, 3)
        self.more_left, self.more_right = nn.Conv2d(6, 9, 1), nn.Conv2d(6, 9, 1)
        self.fc = nn.Linear(9, 4)
        self.fc2 = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        def padded(a: Tensor, b: Tensor) -> Tensor:
            return F.relu(b + F.pad(a, (0, 0, 0, 0, 0, b.shape[1] - a.shape[1]))).mean((2, 3))

        left, right = self.left(x), self.right(x)
        wide_left, wide_right = self.more_left(left), self.more_right(right)
        return self.fc(padded(left, wide_left)) * self.fc2(padded(right, wide_right))


def test_couples_are_told_apart(assert_same):
    net = joslim.slim(TwoShortcuts(), image()).double()
    before = run(net, double(image()))
    names = [dim.name for dim in net.space.dims]
    sets = {
        tuple(names[d] for d in f.dims) for f in find_permutable(Trials(net)) if len(f.dims) > 1
    }
    assert sets == {("left", "more_left"), ("right", "more_right")}
    assert sort_channels(net) == []
    assert_same(run(net, double(image())), before, EXACT)


def test_weights_that_hide_a_difference_do_not_deceive():
    """Gains of zero, as residual branches often start with, make any order look right."""
    model = MODELS["resnet8"]()
    for block in (model.layer2[0], model.layer3[0]):
        nn.init.zeros_(block.bn2.weight)
        nn.init.zeros_(block.conv1.weight)
    plain = joslim.slim(MODELS["resnet8"](), image(16))
    assert find_permutable(Trials(joslim.slim(model, image(16)))) == find_permutable(Trials(plain))


def test_running_statistics_left_behind_would_be_noticed(monkeypatch, networks, assert_same):
    net, inputs = example_net(networks, "BottleneckResNet")
    before, tensors = run(net, inputs), state(net)
    everything = channel_order.sliced_tensors

    def without_statistics(net: Any) -> Any:
        return [(t, layouts) for t, layouts in everything(net) if isinstance(t, nn.Parameter)]

    monkeypatch.setattr(channel_order, "sliced_tensors", without_statistics)
    order = {0: torch.arange(units_of(net)[0]).flip(0)}
    assert not Trial(net, net.example).unchanged_by(order)
    kept = sort_channels(net)
    assert {k.dim for k in kept} == {d.name for d in net.space.dims if "conv" in d.name}
    assert_same(run(net, inputs), before, EXACT)
    monkeypatch.undo()
    assert Trial(net, net.example).unchanged_by(order)
    assert "bn1.running_var" not in moved(net, tensors)


def test_if_the_real_weights_object_nothing_moves(monkeypatch, networks):
    net, _ = example_net(networks, "UNet")
    tensors = state(net)
    random = Trials(net)
    monkeypatch.setattr(channel_order, "Trials", lambda net: random)
    monkeypatch.setattr(Trial, "unchanged_by", lambda trial, moves: trial in random.draws)
    kept = sort_channels(net)
    assert [k.dim for k in kept] == [dim.name for dim in net.space.dims]
    assert not moved(net, tensors)


# --- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("importance", list(IMPORTANCE))
@pytest.mark.parametrize(
    "name", ["SqueezeExciteNet", "ShuffleNetV2", "DenseNet", "VisionTransformer", "BareParameters"]
)
def test_the_most_important_come_first_and_stay_there(name, importance, networks):
    net, _ = example_net(networks, name)
    sort_channels(net, importance)
    for score in IMPORTANCE[importance](net):
        assert (score.diff() <= 1e-6 * score.max()).all()
    tensors = state(net)
    sort_channels(net, importance)
    assert not moved(net, tensors)


def test_coupled_dims_are_sorted_by_their_sum(networks):
    net = joslim.slim(networks.shaken(MODELS["resnet8"]()), image(16))
    sort_channels(net, "l1")
    scores = IMPORTANCE["l1"](net)
    for freedom in find_permutable(Trials(net)):
        parts = [channel_order.normalised(scores[dim])[list(freedom.units)] for dim in freedom.dims]
        assert (sum(parts).diff() <= 1e-6).all()
    tensors = state(net)
    sort_channels(net, "l1")
    assert not moved(net, tensors)


def test_large_filters_come_first():
    net = joslim.slim(Middle(), image())
    with torch.no_grad():
        net.a.weight.copy_(torch.arange(8.0).view(8, 1, 1, 1).expand_as(net.a.weight))
    sort_channels(net, "l1")
    assert net.a.weight[:, 0, 0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_an_importance_of_ones_own():
    net = joslim.slim(Middle(), image())
    before = net.a.weight.detach().clone()
    sort_channels(net, lambda net: [torch.arange(n) for n in units_of(net)])
    assert torch.equal(net.a.weight, before.flip(0))


def test_equal_units_stay_as_they_are(networks):
    net, _ = example_net(networks, "UNet")
    tensors = state(net)
    sort_channels(net, lambda net: [torch.ones(n) for n in units_of(net)])
    assert not moved(net, tensors)


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ("size", "importance"),
        (lambda net: [torch.ones(1)], "one number for each unit"),
        (lambda net: [torch.full((n,), torch.nan) for n in units_of(net)], "not finite"),
    ],
)
def test_bad_importances_are_refused(importance, message):
    with pytest.raises(UserError, match=message):
        sort_channels(joslim.slim(Middle(), image()), importance)


def test_plain_networks_are_refused():
    with pytest.raises(UserError, match=r"joslim\.slim"):
        sort_channels(Middle())  # type: ignore[arg-type]


# --- what else it does ----------------------------------------------------------------------------


def test_statistics_of_children_are_forgotten_and_the_active_child_stays(networks, assert_same):
    net, inputs = example_net(networks, "SqueezeExciteNet")
    small = net.space.smallest
    net.use(small)
    joslim.recalibrate(net, [inputs[0]])
    sort_channels(net)
    assert not net.statistics
    assert net.active == small
    assert_same(run(net, inputs), run(net.child(small), inputs))


def test_parameters_modes_and_random_numbers_stay(networks):
    net, _ = example_net(networks, "InvertedResiduals")
    net.train()
    before = [(id(p), p.data_ptr(), p.requires_grad) for p in net.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sort_channels(net)
    assert [(id(p), p.data_ptr(), p.requires_grad) for p in net.parameters()] == before
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_a_weight_that_two_modules_share_moves_once(assert_same):
    class Shared(Middle):
        def __init__(self) -> None:
            super().__init__()
            self.d, self.e = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
            self.e.weight = self.d.weight

        def middle(self, x: Tensor) -> Tensor:
            return x + self.e(F.relu(self.d(x)))

    net = joslim.slim(Shared(), image()).double()
    before = run(net, double(image()))
    assert sort_channels(net) == []
    assert net.d.weight is net.e.weight
    assert_same(run(net, double(image())), before, EXACT)


def test_a_unit_moves_as_one_block():
    layout = Layout((Stretch(None, 0, 2), Stretch(1, 2, 6), Stretch(0, 1, 2), Stretch(1, 1, 3)))
    order = {1: torch.tensor([2, 0, 1])}
    assert entries(layout, order).tolist() == [0, 1, 6, 7, 2, 3, 4, 5, 8, 9, 12, 10, 11]


@settings(max_examples=20)
@given(
    name=st.sampled_from(["SqueezeExciteNet", "ShuffleNetV2", "GroupedResNet", "DenseNet", "UNet"]),
    seed=st.integers(0, 2**16),
)
def test_any_order_computes_the_same_and_can_be_undone(name, seed):
    networks = sys.modules["slimmable_networks"]  # a fixture would be one for all examples
    net, inputs = example_net(networks, name)
    before, tensors = run(net, inputs), state(net)
    rng = np.random.default_rng(seed)
    orders = {dim: torch.from_numpy(rng.permutation(n)) for dim, n in enumerate(units_of(net))}
    move(net, orders)
    for a, b in zip(run(net, inputs), before):
        assert float((a - b).abs().max()) <= EXACT * float(b.abs().max())
    move(net, {dim: order.argsort() for dim, order in orders.items()})
    assert not moved(net, tensors)


def test_descending_leaves_what_is_not_free():
    net = joslim.slim(Middle(), image())
    scores = [torch.arange(float(n)) for n in units_of(net)]
    orders = descending(net, scores, [Permutable((0,), (1, 2, 5))])
    assert orders[0].tolist() == [0, 5, 2, 3, 4, 1, 6, 7]
    assert orders[1].tolist() == list(range(6))
    assert channel_order.kept_units(net, [Permutable((0,), (1, 2, 5))])[0].units == 5
    assert isinstance(channel_order.kept_units(net, [])[0], Kept)

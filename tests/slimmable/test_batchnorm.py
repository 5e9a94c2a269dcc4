"""BatchNorm statistics of a child: exact, its own, and nobody else's."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

import joslim
from joslim import UserError, batch_statistics, recalibrate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12, momentum=0.3)
        self.fc, self.bn3, self.out = nn.Linear(12, 10), nn.BatchNorm1d(10), nn.Linear(10, 4)

    def forward(self, x):
        x = self.drop(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(self.bn2(self.conv2(x))).mean((2, 3))
        return self.out(F.relu(self.bn3(self.fc(x))))


@pytest.fixture
def net(networks):
    return joslim.slim(networks.shaken(Net()), torch.randn(2, 3, 6, 6))


def batches(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 6, 6, generator=generator) for size in sizes]


def plain_child(net, widths):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return net.child(widths)


def oracle(child, data):
    """What torch itself averages when momentum is None and batches are equal."""
    child = copy.deepcopy(child).eval()
    for module in child.modules():
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
            module.momentum = None
            module.train()
    with torch.no_grad():
        for x in data:
            child(x)
    return {n: (m.running_mean, m.running_var) for n, m in norms(child).items()}


def norms(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


def buffers(net):
    return {name: buffer.clone() for name, buffer in net.named_buffers()}


def assert_statistics(found, right):
    assert found.keys() == right.keys()
    for name, (mean, var) in right.items():
        assert torch.allclose(found[name][0], mean, atol=1e-5)
        assert torch.allclose(found[name][1], var, atol=1e-5)


# --- recalibration --------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_child_gets_the_average_over_the_batches(net, children, training):
    data = batches(8, 8, 8)
    net.train(training)
    net.drop.train(not training)
    for widths in children(net.space):
        with net.at(widths):
            recalibrate(net, data)
        assert_statistics(net.statistics[widths], oracle(plain_child(net, widths), data))
    assert [m.training for m in net.modules() if m is not net.drop] == [training] * 8
    assert net.drop.training is not training


def test_one_batch_gives_its_mean_and_unbiased_variance(net):
    (x,) = batches(8)
    with net.at(net.space.smallest):
        recalibrate(net, [x])
        maps = net.conv1(x).detach()
    mean, var = net.statistics[net.space.smallest]["bn1"]
    assert torch.allclose(mean, maps.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(var, maps.var((0, 2, 3), unbiased=True), atol=1e-6)


def test_a_batch_counts_by_its_samples(net):
    data = batches(8, 8, 3)
    widths = net.space.uniform(0.5)
    with net.at(widths), torch.no_grad():
        recalibrate(net, data)
        maps = [net.conv1(x) for x in data]
    mean, var = net.statistics[widths]["bn1"]
    weights = [8 / 19, 8 / 19, 3 / 19]
    right = sum(w * m.mean((0, 2, 3)) for w, m in zip(weights, maps))
    assert torch.allclose(mean, right, atol=1e-6)
    right = sum(w * m.var((0, 2, 3)) for w, m in zip(weights, maps))
    assert torch.allclose(var, right, atol=1e-6)


def test_the_order_of_batches_does_not_matter(net):
    data = batches(8, 3, 6)
    widths = net.space.smallest
    with net.at(widths):
        recalibrate(net, data)
        first = net.statistics[widths]
        recalibrate(net, data[::-1])
    assert_statistics(net.statistics[widths], first)


def test_recalibrating_again_starts_anew(net):
    widths = net.space.smallest
    with net.at(widths):
        recalibrate(net, batches(8, seed=1))
        recalibrate(net, batches(8, 8, seed=2))
    right = oracle(plain_child(net, widths), batches(8, 8, seed=2))
    assert_statistics(net.statistics[widths], right)


def test_other_children_and_the_full_network_keep_theirs(net, children):
    one, other = children(net.space, 1)
    with net.at(one):
        recalibrate(net, batches(8, seed=1))
    kept, before = copy.deepcopy(net.statistics[one]), buffers(net)
    with net.at(other):
        recalibrate(net, batches(8, seed=2))
    assert_statistics(net.statistics[one], kept)
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())


def test_the_full_network_gets_its_running_statistics(net):
    data = batches(8, 8)
    right = oracle(net.child(net.space.full), data)
    before = buffers(net)
    recalibrate(net, data)
    assert_statistics({n: (m.running_mean, m.running_var) for n, m in norms(net).items()}, right)
    assert not net.statistics
    for name, buffer in net.named_buffers():
        if name.endswith("num_batches_tracked"):
            assert torch.equal(buffer, before[name])


def test_a_recalibrated_child_runs_with_its_own_statistics(net, assert_same):
    x, widths = batches(8)[0], net.space.uniform(0.5)
    with net.at(widths):
        recalibrate(net.train(), [x])
    with torch.no_grad(), net.eval().at(widths):
        sliced = net(x)
        with batch_statistics(net):
            by_batch = net(x)
    with torch.no_grad():
        assert_same(sliced, net.child(widths).eval()(x))
    assert (sliced - by_batch).abs().max() < 0.2 * by_batch.abs().max()


def test_an_ordinary_module_is_recalibrated_too(net):
    data = batches(8, 8)
    child = plain_child(net, net.space.smallest)
    right = oracle(child, data)
    recalibrate(child, data)
    assert_statistics({n: (m.running_mean, m.running_var) for n, m in norms(child).items()}, right)
    assert not net.statistics


@pytest.mark.parametrize("kind", [lambda x: (x, 1), lambda x: [x, "label"], lambda x: ((x,), 1)])
def test_labels_in_a_batch_are_left_out(net, kind):
    data = batches(8, 8)
    with net.at(net.space.smallest):
        recalibrate(net, iter([kind(x) for x in data]))
    right = oracle(plain_child(net, net.space.smallest), data)
    assert_statistics(net.statistics[net.space.smallest], right)


def test_a_network_of_two_inputs_is_recalibrated(networks):
    net = copy.deepcopy(networks.slimmed("TwoInputs")[1])
    with net.at(net.space.smallest):
        recalibrate(net, [(networks.inputs_for("TwoInputs", batch=8), "labels")])
    assert set(net.statistics[net.space.smallest]) == set(norms(net))


@pytest.mark.parametrize("wrap", [lambda x: {"x": x}, lambda x: ({"x": x}, 1)])
def test_inputs_may_be_keyword_arguments(net, wrap):
    data = batches(8, 8)
    with net.at(net.space.smallest):
        recalibrate(net, [wrap(x) for x in data])
    right = oracle(plain_child(net, net.space.smallest), data)
    assert_statistics(net.statistics[net.space.smallest], right)
    with pytest.raises(UserError, match=r"^batches: dict given, a sequence .* type \[batch\]"):
        recalibrate(net, {"x": data[0]})


def test_a_reused_norm_averages_over_its_calls(networks):
    net = copy.deepcopy(networks.slimmed("ReusedModule")[1])
    data = [networks.inputs_for("ReusedModule", batch=8, seed=s)[0] for s in (1, 2)]
    widths = net.space.smallest
    with net.at(widths):
        recalibrate(net, data)
    assert_statistics(net.statistics[widths], oracle(plain_child(net, widths), data))


def test_a_norm_that_did_not_run_keeps_the_full_networks(networks, assert_same):
    net = copy.deepcopy(networks.slimmed("AuxiliaryHead")[1]).eval()
    inputs = networks.inputs_for("AuxiliaryHead", batch=8)
    widths = net.space.smallest
    with net.at(widths):
        recalibrate(net, [inputs[0]])
    child = net.child(widths)
    count = len(child.aux[1].running_mean)
    assert torch.equal(child.aux[1].running_mean, net.aux[1]._buffers["running_mean"][:count])


def test_dropout_is_off_meanwhile(net):
    data = batches(8)
    with net.train().at(net.space.smallest):
        recalibrate(net, data)
        first = copy.deepcopy(net.statistics[net.space.smallest])
        recalibrate(net, data)
    assert torch.equal(first["bn2"][0], net.statistics[net.space.smallest]["bn2"][0])


@pytest.mark.parametrize("full", [True, False])
def test_a_failing_batch_changes_nothing(net, full):
    widths = net.space.full if full else net.space.smallest
    with net.at(widths):
        if not full:
            recalibrate(net, batches(8, seed=1))
    net.train()
    net.drop.eval()
    before, own = buffers(net), copy.deepcopy(net.statistics)
    modes = [m.training for m in net.modules()]
    with net.at(widths), pytest.raises(RuntimeError):
        recalibrate(net, [*batches(8), torch.randn(2, 5, 6, 6)])
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
    assert net.statistics.keys() == own.keys()
    for key, value in own.items():
        assert_statistics(net.statistics[key], value)
    assert [m.training for m in net.modules()] == modes
    assert (net.bn1.momentum, net.bn2.momentum) == (0.1, 0.3)
    assert net.active == net.space.full


@pytest.mark.parametrize("full", [True, False])
def test_no_batches_are_refused(net, full):
    before = buffers(net)
    net.use(net.space.full if full else net.space.smallest)
    with pytest.raises(UserError, match=r"^batches: none given") as caught:
        recalibrate(net, [])
    assert len(str(caught.value).splitlines()) == 1
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
    assert not net.statistics


def test_tracking_instance_norms_are_recalibrated():
    norm = nn.InstanceNorm2d(8, track_running_stats=True)
    net = joslim.slim(
        nn.Sequential(nn.Conv2d(3, 8, 1), norm, nn.Conv2d(8, 4, 1)), torch.randn(1, 3, 4, 4)
    )
    with net.at(net.space.smallest):
        recalibrate(net, [torch.randn(4, 3, 4, 4)])
    assert "1" in net.statistics[net.space.smallest]


def test_statistics_survive_copies(net):
    widths = net.space.smallest
    with net.at(widths):
        recalibrate(net, batches(8))
    other = copy.deepcopy(net)
    assert_statistics(other.statistics[widths], net.statistics[widths])
    assert other.statistics[widths]["bn1"][0] is not net.statistics[widths]["bn1"][0]


# --- other ways, and wrappers ---------------------------------------------------------------------


def test_update_bn_at_a_child_is_refused_and_destroys_nothing(net):
    before = buffers(net)
    with (
        net.at(net.space.smallest),
        pytest.raises(UserError, match=r"joslim.recalibrate\(net, batches\)") as caught,
    ):
        update_bn(batches(8), net)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())


def test_update_bn_at_full_width_is_torchs_own(net):
    right = plain_child(net, net.space.full)
    for model in (net, right):
        torch.manual_seed(0)  # dropout is on
        update_bn(batches(8, 8), model)
    found = buffers(net)
    assert all(torch.equal(found[name], buffer) for name, buffer in right.named_buffers())


def test_all_networks_in_a_wrapper_are_recalibrated(net):
    data = batches(8, 8)
    head, widths = nn.BatchNorm1d(4), net.space.smallest

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.left, self.right = head, net, copy.deepcopy(net)

        def forward(self, x):
            return self.head(self.left(x) + self.right(x))

    both = Both().eval()
    with both.left.at(widths):  # and the other one is full
        recalibrate(both, data)
    assert_statistics(both.left.statistics[widths], oracle(plain_child(net, widths), data))
    assert not both.right.statistics
    right = oracle(plain_child(both.right, net.space.full), data)
    found = {n: (m.running_mean, m.running_var) for n, m in norms(both.right).items()}
    assert_statistics(found, right)
    assert head.running_mean.ne(0).all()


# --- scoring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [True, False])
def test_scoring_by_batch_statistics_moves_nothing(net, full):
    net.eval()
    widths = net.space.full if full else net.space.smallest
    with net.at(widths):
        recalibrate(net, batches(8, seed=4))
        before, own = buffers(net), copy.deepcopy(net.statistics)
        with batch_statistics(net), torch.no_grad():
            for x in batches(8, 8):
                net(x)
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
    for key, value in own.items():
        assert_statistics(net.statistics[key], value)


def test_scoring_in_train_mode_moves_nothing_either(net):
    before = buffers(net.train())
    with batch_statistics(net):
        net(batches(8)[0])
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())


def test_scoring_uses_the_batch_at_hand(net):
    (x,) = batches(8)
    with net.eval().at(net.space.smallest), torch.no_grad(), batch_statistics(net):
        y = net.bn1(net.conv1(x))
    count = net.space.smallest.channels["conv1"]
    middle = (y.mean((0, 2, 3)) - net.bn1.bias[:count]).abs()
    assert float(middle.detach().max()) < 1e-5


def test_scoring_ends_when_it_fails(net):
    (x,) = batches(8)
    with torch.no_grad():
        before = net.eval()(x)
        with pytest.raises(RuntimeError), batch_statistics(net):
            net(torch.randn(2, 5, 6, 6))
        assert torch.equal(net(x), before)


# --- the warning ----------------------------------------------------------------------------------


def test_a_child_without_statistics_of_its_own_warns_once(net):
    with pytest.warns(UserWarning, match="BatchNorm statistics of the full network") as caught:
        net.child(net.space.smallest)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_child_with_statistics_of_its_own_is_silent(net):
    with net.at(net.space.smallest):
        recalibrate(net, batches(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        child = net.child(net.space.smallest)
        net.child(net.space.full)
    mean, _ = net.statistics[net.space.smallest]["bn1"]
    assert torch.equal(child.bn1.running_mean, mean)
    assert child.bn1.running_mean is not mean


def test_a_network_without_norms_is_silent(networks):
    _, net = networks.slimmed("SizedVgg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert net.child(net.space.smallest) is not None


def test_without_statistics_of_its_own_a_child_has_the_prefix(net):
    child = plain_child(net, net.space.smallest)
    count = len(child.bn1.running_mean)
    assert torch.equal(child.bn1.running_mean, net.bn1._buffers["running_mean"][:count])

"""Children are ordinary modules, with copies of the weights or with views on them."""

from __future__ import annotations

import copy
import threading
from functools import partial

import pytest
import torch
from torch import nn

import joslim
from joslim import UserError
from joslim.slimmable.blueprint import Layout, Stretch
from joslim.slimmable.extract import cut_tensor


def run(model, inputs):
    with torch.no_grad():
        return model.eval()(*inputs)


def test_a_piece_is_a_prefix_of_each_stretch():
    layout = Layout((Stretch(0, 2, 8), Stretch(None, 0, 3), Stretch(1, 1, 5)))
    tensor = torch.arange(16.0)
    kept = cut_tensor(tensor, (layout,), (2, 1), share=False)
    assert kept.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_piece_of_a_parameter_is_a_parameter():
    layout = Layout((Stretch(0, 1, 8),))
    parameter = nn.Parameter(torch.randn(8), requires_grad=False)
    kept = cut_tensor(parameter, (layout,), (3,), share=False)
    assert isinstance(kept, nn.Parameter)
    assert not kept.requires_grad
    assert not isinstance(cut_tensor(torch.randn(8), (layout,), (3,), share=False), nn.Parameter)


def test_a_piece_is_a_view_only_if_shared():
    layout = Layout((Stretch(0, 1, 8),))
    tensor = torch.nn.Parameter(torch.zeros(8))
    assert cut_tensor(tensor, (layout,), (3,), share=True).data_ptr() == tensor.data_ptr()
    assert cut_tensor(tensor, (layout,), (3,), share=False).data_ptr() != tensor.data_ptr()
    assert cut_tensor(tensor, (layout,), (8,), share=False).data_ptr() != tensor.data_ptr()


def test_a_child_has_weights_of_its_own(networks, assert_same):
    net = copy.deepcopy(networks.slimmed("BottleneckResNet")[1])
    inputs = networks.inputs_for("BottleneckResNet")
    child = net.child(net.space.smallest)
    before = run(child, inputs)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert_same(run(child, inputs), before, tolerance=0)
    assert all(p.is_contiguous() for p in child.parameters())


def test_a_shared_child_follows_the_weights(networks, children, assert_same):
    net = copy.deepcopy(networks.slimmed("BottleneckResNet")[1])
    inputs = networks.inputs_for("BottleneckResNet")
    widths = children(net.space)[1]
    child = net.child(widths, share=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.7)
    with net.at(widths):
        assert_same(run(child, inputs), run(net, inputs))
    whole = {p.untyped_storage().data_ptr() for p in net.parameters()}
    assert {p.untyped_storage().data_ptr() for p in child.parameters()} <= whole


def test_parts_of_a_concat_are_copied_even_if_shared(networks, children, assert_same):
    _, net = networks.slimmed("DenseNet")
    inputs = networks.inputs_for("DenseNet")
    widths = children(net.space)[1]
    with net.at(widths):
        assert_same(run(net.child(widths, share=True), inputs), run(net, inputs))


def test_threads_run_different_children_of_one_network(networks, children, assert_same):
    _, net = networks.slimmed("InvertedResiduals")
    inputs = networks.inputs_for("InvertedResiduals")
    all_widths = children(net.space, 3)
    expected = []
    for widths in all_widths:
        with net.at(widths):
            expected.append(run(net, inputs))
    answers: dict[int, list[torch.Tensor]] = {}

    def work(number):
        child = net.child(all_widths[number], share=True)
        answers[number] = [run(child, inputs) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, right in enumerate(expected):
        for answer in answers[number]:
            assert_same(answer, right)


def test_a_child_can_be_trained_alone(networks):
    net = copy.deepcopy(networks.slimmed("SqueezeExciteNet")[1])
    child = net.child(net.space.smallest).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(child.parameters(), lr=0.1)
    child(*networks.inputs_for("SqueezeExciteNet")).square().mean().backward()
    optimizer.step()
    assert all(p.grad is not None for p in child.parameters())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_child_keeps_hooks_modes_and_attributes(networks):
    model = networks.fresh("InvertedResiduals").train()
    model.note = {"made": ["by hand"]}
    model.features[0].weight.requires_grad_(False)
    child = joslim.slim(model, networks.inputs_for("InvertedResiduals")).child(model.space.smallest)
    assert child.note == model.note
    assert child.note is not model.note
    assert child.training
    assert not child.features[0].weight.requires_grad


def test_the_full_child_is_the_plain_model(networks, assert_same):
    model, net = networks.slimmed("ConvNeXt")
    child = net.child(net.space.full)
    inputs = networks.inputs_for("ConvNeXt")
    assert_same(run(child, inputs), run(model, inputs), tolerance=0)
    assert str(child) == str(model)


def test_a_child_cut_while_another_is_active_is_the_same(networks, children, assert_same):
    _, net = networks.slimmed("GhostNet")
    inputs = networks.inputs_for("GhostNet")
    one, other = children(net.space, 1)
    right = run(net.child(one), inputs)
    with net.at(other):
        assert_same(run(net.child(one), inputs), right, tolerance=0)
        assert net.active == other


@pytest.mark.parametrize("share", [False, True])
def test_the_child_of_a_frozen_dtype_keeps_it(networks, share):
    net = copy.deepcopy(networks.slimmed("SizedVgg")[1]).double()
    child = net.child(net.space.smallest, share=share)
    assert {p.dtype for p in child.parameters()} == {torch.float64}


class Keeper:
    """A hook with a memory."""

    def __init__(self):
        self.seen = []

    def __call__(self, module, inputs, output):
        self.seen.append({"output": output})

    def method(self, module, inputs, output):
        self.seen.append((output,))


def keep_in(kept, module, inputs, output):
    kept["last"] = output


HOOKS = {
    "object": Keeper,
    "method": lambda: Keeper().method,
    "partial": lambda: partial(keep_in, {}),
    "closure": lambda: (lambda kept: lambda m, i, output: kept.append(output))([]),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_results_that_a_hook_keeps_do_not_hinder_a_child(networks, assert_same, hook):
    net = copy.deepcopy(networks.slimmed("SizedVgg")[1])
    inputs = networks.inputs_for("SizedVgg")
    net.kept = [{"of": [net(*inputs)]}]
    layer = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    layer.register_forward_hook(hook())
    net(*inputs)
    child = net.child(net.space.smallest)
    with net.at(net.space.smallest):
        assert_same(run(child, inputs), run(net, inputs))
    assert net.kept[0]["of"][0].requires_grad
    assert not child.kept[0]["of"][0].requires_grad


def test_what_cannot_be_copied_is_told_in_one_line(networks):
    net = copy.deepcopy(networks.slimmed("SizedVgg")[1])
    net.lock = threading.Lock()
    with pytest.raises(UserError, match=r"^model: .* cannot be copied") as caught:
        net.child(net.space.smallest)
    assert "\n" not in str(caught.value)

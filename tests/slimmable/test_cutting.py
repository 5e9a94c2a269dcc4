"""Children are ordinary modules, with copies of the weights or with views on them."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

import joslim
from joslim.slimmable.blueprint import Layout, Stretch
from joslim.slimmable.cutting import piece


def run(model, inputs):
    with torch.no_grad():
        return model.eval()(*inputs)


def test_a_piece_is_a_prefix_of_each_stretch():
    layout = Layout((Stretch(0, 2, 8), Stretch(None, 0, 3), Stretch(1, 1, 5)))
    tensor = torch.arange(16.0)
    kept = piece(tensor, (layout,), (2, 1), share=False)
    assert kept.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_piece_of_a_parameter_is_a_parameter():
    layout = Layout((Stretch(0, 1, 8),))
    parameter = nn.Parameter(torch.randn(8), requires_grad=False)
    kept = piece(parameter, (layout,), (3,), share=False)
    assert isinstance(kept, nn.Parameter)
    assert not kept.requires_grad
    assert not isinstance(piece(torch.randn(8), (layout,), (3,), share=False), nn.Parameter)


def test_a_piece_is_a_view_only_if_shared():
    layout = Layout((Stretch(0, 1, 8),))
    tensor = torch.nn.Parameter(torch.zeros(8))
    assert piece(tensor, (layout,), (3,), share=True).data_ptr() == tensor.data_ptr()
    assert piece(tensor, (layout,), (3,), share=False).data_ptr() != tensor.data_ptr()
    assert piece(tensor, (layout,), (8,), share=False).data_ptr() != tensor.data_ptr()


def test_a_child_has_weights_of_its_own(strangers, assert_same):
    net = copy.deepcopy(strangers.slimmed("BottleneckResNet")[1])
    inputs = strangers.inputs_for("BottleneckResNet")
    child = net.child(net.space.smallest)
    before = run(child, inputs)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert_same(run(child, inputs), before, tolerance=0)
    assert all(p.is_contiguous() for p in child.parameters())


def test_a_shared_child_follows_the_weights(strangers, children, assert_same):
    net = copy.deepcopy(strangers.slimmed("BottleneckResNet")[1])
    inputs = strangers.inputs_for("BottleneckResNet")
    widths = children(net.space)[1]
    child = net.child(widths, share=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.7)
    with net.at(widths):
        assert_same(run(child, inputs), run(net, inputs))
    whole = {p.untyped_storage().data_ptr() for p in net.parameters()}
    assert {p.untyped_storage().data_ptr() for p in child.parameters()} <= whole


def test_parts_of_a_concat_are_copied_even_if_shared(strangers, children, assert_same):
    _, net = strangers.slimmed("DenseNet")
    inputs = strangers.inputs_for("DenseNet")
    widths = children(net.space)[1]
    with net.at(widths):
        assert_same(run(net.child(widths, share=True), inputs), run(net, inputs))


def test_threads_run_different_children_of_one_network(strangers, children, assert_same):
    _, net = strangers.slimmed("InvertedResiduals")
    inputs = strangers.inputs_for("InvertedResiduals")
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


def test_a_child_can_be_trained_alone(strangers):
    net = copy.deepcopy(strangers.slimmed("SqueezeExciteNet")[1])
    child = net.child(net.space.smallest).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(child.parameters(), lr=0.1)
    child(*strangers.inputs_for("SqueezeExciteNet")).square().mean().backward()
    optimizer.step()
    assert all(p.grad is not None for p in child.parameters())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_child_keeps_hooks_modes_and_attributes(strangers):
    model = strangers.fresh("InvertedResiduals").train()
    model.note = {"made": ["by hand"]}
    model.features[0].weight.requires_grad_(False)
    child = joslim.slim(model, strangers.inputs_for("InvertedResiduals")).child(
        model.space.smallest
    )
    assert child.note == model.note
    assert child.note is not model.note
    assert child.training
    assert not child.features[0].weight.requires_grad


def test_the_full_child_is_the_plain_model(strangers, assert_same):
    model, net = strangers.slimmed("ConvNeXt")
    child = net.child(net.space.full)
    inputs = strangers.inputs_for("ConvNeXt")
    assert_same(run(child, inputs), run(model, inputs), tolerance=0)
    assert str(child) == str(model)


def test_a_child_cut_while_another_is_active_is_the_same(strangers, children, assert_same):
    _, net = strangers.slimmed("GhostNet")
    inputs = strangers.inputs_for("GhostNet")
    one, other = children(net.space, 1)
    right = run(net.child(one), inputs)
    with net.at(other):
        assert_same(run(net.child(one), inputs), right, tolerance=0)
        assert net.active == other


@pytest.mark.parametrize("share", [False, True])
def test_the_child_of_a_frozen_dtype_keeps_it(strangers, share):
    net = copy.deepcopy(strangers.slimmed("SizedVgg")[1]).double()
    child = net.child(net.space.smallest, share=share)
    assert {p.dtype for p in child.parameters()} == {torch.float64}

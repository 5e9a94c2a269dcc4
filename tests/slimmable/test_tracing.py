"""Running a network under the trace: what is seen, and that nothing is left behind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim.slimmable import op_rules
from joslim.slimmable.layer_specs import layer_spec
from joslim.slimmable.symbolic_axes import Algebra, Locked, fixed, fresh, is_fixed, length
from joslim.slimmable.symbolic_int import SymbolicInt
from joslim.slimmable.tracing import (
    OpFailed,
    Tracer,
    op_name,
    trace,
    without_symbols,
)


def traced(model, *inputs, training=False):
    specs = {module: layer_spec(module, True) for module in model.modules()}
    algebra = Algebra()
    return trace(model, inputs, specs, algebra, training), specs


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1)

    def forward(self, x):
        return self.two(F.relu(self.one(x)))


def test_layers_are_seen_in_the_order_in_which_they_run():
    tracer, _ = traced(Two(), torch.randn(1, 3, 5, 5))
    assert [p.module for p in tracer.produced] == ["one", "two"]
    assert [length(p.axis) for p in tracer.produced] == [8, 6]


def test_outputs_are_frozen_and_say_so():
    tracer, _ = traced(Two(), torch.randn(1, 3, 5, 5))
    one, two = tracer.produced
    assert not is_fixed(one.axis)
    assert is_fixed(two.axis)


def test_joined_layers_share_their_axes():
    _, specs = traced(model := Two(), torch.randn(1, 3, 5, 5))
    out = specs[model.one].tensors["weight"][0]
    inside = specs[model.two].tensors["weight"][1]
    out[0].var.units = inside[0].var.units = 5
    assert length(out) == length(inside) == 5


class Failing(nn.Module):
    def __init__(self, message):
        super().__init__()
        self.conv, self.message = nn.Conv2d(3, 8, 1), message

    def forward(self, x):
        x = self.conv(x)
        if self.message:
            raise RuntimeError(self.message)
        return x + torch.zeros(1, 5, 1, 1)


@pytest.mark.parametrize("message", ["first line\nsecond line", ""])
def test_a_forward_that_fails_names_what_it_touched(message):
    with pytest.raises(OpFailed) as caught:
        traced(Failing(message), torch.randn(1, 3, 4, 4))
    assert caught.value.variables
    assert len(caught.value.why.splitlines()) == 1


@pytest.mark.parametrize("message", ["it fails", ""])
def test_a_failure_leaves_the_model_as_it_was(message):
    model = Failing(message).train()
    with pytest.raises(OpFailed):
        traced(model, torch.randn(1, 3, 4, 4))
    assert type(model.conv.out_channels) is int
    assert model.training
    assert not model.conv._forward_hooks
    assert not model.conv._forward_pre_hooks
    assert torch.is_grad_enabled()
    assert type(torch.zeros(2).shape[0]) is int


def test_sizes_know_what_they_count_while_tracing():
    algebra, axis = Algebra(), fresh(8)
    tracer, x = Tracer(algebra), torch.zeros(2, 8)
    tracer.remember(x, [fixed(2), axis])
    with tracer:
        assert type(x.shape[0]) is int
        assert isinstance(x.shape[1], SymbolicInt)
        assert isinstance(x.size(1), SymbolicInt)
        assert isinstance(x.size(dim=-1), SymbolicInt)
        assert isinstance(x.size()[1], SymbolicInt)
        assert [int(size) for size in x.shape] == [2, 8]
    assert type(x.shape[1]) is int


def test_an_operation_without_a_rule_freezes_and_is_named():
    algebra, axis = Algebra(), fresh(8)
    tracer, x = Tracer(algebra), torch.zeros(2, 8)
    tracer.remember(x, [fixed(2), axis])
    with tracer:
        torch.topk(x, 3)
    assert is_fixed(axis)
    assert axis[0].var.bound[0].why == "no rule for topk"


def test_an_operation_without_a_rule_is_locked_out_later():
    algebra, axis = Algebra(), fresh(8)
    tracer, x = Tracer(algebra), torch.zeros(2, 8)
    tracer.remember(x, [fixed(2), axis])
    algebra.locked = True
    with pytest.raises(Locked, match="no rule for topk"), tracer:
        torch.topk(x, 3)


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (torch.relu_, "relu"),
        (torch.Tensor.add_, "add"),
        (torch.Tensor.__add__, "add"),
        (torch.Tensor.__getitem__, "__getitem__"),
        (torch.Tensor.mT.__get__, "mT"),
        (F.conv2d, "conv2d"),
    ],
)
def test_one_name_for_all_forms_of_an_operation(func, name):
    assert op_name(func) == name


def test_torch_gets_integers_that_forgot_what_a_length_counts():
    number = SymbolicInt.of(Algebra(), fresh(8))
    assert type(without_symbols(number)) is int
    assert type(without_symbols(slice(None, number)).stop) is int
    assert type(without_symbols(torch.Size([2, number]))[1]) is int
    assert without_symbols("text") == "text"


def test_skipped_layers_are_not_seen():
    model = Two()
    model.extra = nn.Conv2d(8, 8, 1)
    tracer, _ = traced(model, torch.randn(1, 3, 5, 5))
    assert "extra" not in [p.module for p in tracer.produced]


def test_a_compiled_module_is_priced_once():
    inner = torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), inner, nn.Conv2d(8, 6, 1), nn.Conv2d(6, 2, 1)
    )
    net = joslim.slim(model, torch.zeros(1, 3, 6, 6))
    assert [dim.name for dim in net.space.dims] == ["0", "3"]
    child = net.child(net.space.smallest)
    with FlopCounterMode(display=False) as counter:
        child(torch.zeros(1, 3, 6, 6))
    assert 2 * joslim.cost("macs", net)(net.space.smallest) == counter.get_total_flops()


def test_a_rule_that_miscounts_is_named(monkeypatch):
    linear = op_rules.RULES["linear"]

    def twice(t, *arguments):
        axes = linear.apply(t, *arguments)
        t._current.multiplies *= 2
        return axes

    wrong = op_rules.Rule(twice, linear.reuses)
    monkeypatch.setitem(op_rules.RULES, "linear", wrong)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match="linear: 48 counted, 24 by torch's counter in 0"):
        net = joslim.slim(model, torch.zeros(1, 3))
    assert [u.layer for u in net.uncounted] == ["0", "1"]


def test_products_outside_of_all_operations_are_named():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x):
            x = self.first(x)
            with torch._C.DisableTorchFunction():
                torch.ones(2, 3) @ torch.ones(3, 5)
            return self.last(x)

    with pytest.warns(UserWarning, match="30 multiply-adds outside of all operations"):
        joslim.slim(Hidden(), torch.zeros(1, 3))

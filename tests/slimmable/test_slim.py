"""Checks that every example network passes, and inputs that `slim` refuses."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections import UserDict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim import UserError
from joslim.slimmable.layers import SlimmableLayer


def run(model: Any, inputs: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        return model.eval()(*inputs)


# --- the exam -------------------------------------------------------------------------------------


def test_nothing_changes_at_full_width(network_name, networks, assert_same):
    model, net = networks.slimmed(network_name)
    inputs = networks.inputs_for(network_name)
    assert_same(run(net, inputs), run(model, inputs), tolerance=0)


def test_state_dict_keeps_its_keys_and_values(network_name, networks):
    model, net = networks.slimmed(network_name)
    before, after = model.state_dict(), net.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_knobs_are_found_and_each_of_them_matters(network_name, networks):
    _, net = networks.slimmed(network_name)
    assert len(net.space) >= max(2, networks.NETWORKS[network_name].knobs)
    params = joslim.cost("params", net)
    full = np.ones((1, len(net.space)))
    for position, low in enumerate(net.space.low):
        turned = full.copy()
        turned[0, position] = low
        assert params.of(turned)[0] < params.of(full)[0]


def test_sliced_network_equals_the_child_cut_out(network_name, networks, children, assert_same):
    _, net = networks.slimmed(network_name)
    inputs = networks.inputs_for(network_name)
    for widths in children(net.space, 5):
        with net.at(widths):
            sliced = run(net, inputs)
        assert_same(sliced, run(net.child(widths), inputs))


def test_a_child_is_an_ordinary_module(network_name, networks, children):
    model, net = networks.slimmed(network_name)
    child = net.child(children(net.space, 1)[1])
    classes = {name: type(module) for name, module in model.named_modules()}
    assert {name: type(module) for name, module in child.named_modules()} == classes
    for module in child.modules():
        assert not isinstance(module, SlimmableLayer)
        assert not [name for name in vars(module) if name.startswith("_slim_")]
    assert list(child.state_dict()) == list(model.state_dict())


def test_costs_equal_those_of_the_child(network_name, networks, children):
    _, net = networks.slimmed(network_name)
    macs, params = joslim.cost("macs", net), joslim.cost("params", net)
    inputs = networks.inputs_for(network_name, batch=1)
    for widths in [net.space.full, *children(net.space)]:
        child = net.child(widths)
        with FlopCounterMode(display=False) as counter:
            run(child, inputs)
        assert 2 * macs(widths) == counter.get_total_flops()
        assert params(widths) == sum(p.numel() for p in child.parameters())
    assert net.active == net.space.full
    # Two transforms of Fourier; all that others do is counted or costs nothing.
    assert len(net.uncounted) == (2 if network_name == "NoRules" else 0)


def test_training_at_a_width_leaves_the_rest_without_gradient(network_name, networks, children):
    net = copy.deepcopy(networks.slimmed(network_name)[1]).train()
    widths = children(net.space, 1, seed=11)[1]
    with net.at(widths):
        outputs = net(*networks.inputs_for(network_name, batch=4))
        loss = sum(leaf.square().mean() for leaf in torch.utils._pytree.tree_leaves(outputs))
        loss.backward()
    cut = 0
    modules = dict(net.named_modules())
    for name, plan in net._slim_net.plans.items():
        for tensor_name, layouts in plan.tensors.items():
            parameter = modules[name]._parameters.get(tensor_name)
            if parameter is None or parameter.grad is None:
                continue
            assert parameter.grad.shape == parameter.shape
            kept = torch.ones_like(parameter, dtype=torch.bool)
            for axis, layout in enumerate(layouts):
                line = torch.zeros(parameter.shape[axis], dtype=torch.bool)
                for start, stop in layout.runs(widths.units):
                    line[start:stop] = True
                shape = [1] * parameter.dim()
                shape[axis] = -1
                kept &= line.view(shape)
            assert not parameter.grad[~kept].any()
            cut += int((~kept).sum())
    assert cut > 0


@pytest.mark.parametrize("way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_and_pickles_agree(network_name, networks, children, assert_same, way):
    if way is not copy.deepcopy and not networks.NETWORKS[network_name].pickles:
        with pytest.raises((AttributeError, pickle.PicklingError)):
            way(networks.slimmed(network_name)[1])
        return
    _, net = networks.slimmed(network_name)
    other = way(net)
    inputs = networks.inputs_for(network_name)
    assert other.space == net.space
    widths = children(net.space, 1)[1]
    with net.at(widths), other.at(widths):
        assert_same(run(other, inputs), run(net, inputs), tolerance=0)
    with other.at(other.space.smallest):
        assert net.active == net.space.full


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that slim() could have left changed."""
    return {
        name: (
            type(module),
            module.training,
            {k: (type(v), v) for k, v in vars(module).items() if isinstance(v, (int, tuple))},
            sorted(vars(module)),
            len(module._forward_hooks) + len(module._forward_pre_hooks),
        )
        for name, module in model.named_modules()
    }


def test_a_model_that_is_refused_is_left_as_it_was(network_name, networks):
    model = networks.fresh(network_name)
    before, tensors = snapshot(model), copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match="keep"):
        joslim.slim(model, networks.inputs_for(network_name), keep=["no such layer"])
    assert snapshot(model) == before
    assert all(torch.equal(value, tensors[key]) for key, value in model.state_dict().items())


def test_modes_statistics_and_generators_are_left_alone(network_name, networks):
    model = networks.fresh(network_name).train()
    next(model.children()).eval()
    modes = [module.training for module in model.modules()]
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    net = joslim.slim(model, networks.inputs_for(network_name))
    assert net is model
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in net.modules())


# --- what is not in the table ---------------------------------------------------------------------


class TiedWeights(nn.Module):
    """Two convolutions with one weight."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.b.weight = self.a.weight
        self.mid, self.fc = nn.Conv2d(8, 10, 1), nn.Linear(10, 5)

    def forward(self, x):
        return self.fc(self.mid(self.b(F.relu(self.a(F.relu(self.stem(x)))))).mean((2, 3)))


def test_a_weight_with_two_owners_stays_one(assert_same):
    net = joslim.slim(TiedWeights(), torch.randn(1, 3, 8, 8))
    child = net.child(net.space.smallest)
    assert child.a.weight is child.b.weight
    assert joslim.cost("params", net)(net.space.smallest) == sum(
        p.numel() for p in child.parameters()
    )
    x = torch.randn(2, 3, 8, 8)
    with net.at(net.space.smallest):
        assert_same(run(net, (x,)), run(child, (x,)))


SEEN: list[int] = []


class HiddenState(nn.Module):
    """Its answer depends on how often it was asked."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)

    def forward(self, x):
        SEEN.append(1)
        return self.fc(self.conv(x).mean((2, 3))) * len(SEEN)


def test_hidden_state_is_found_out():
    with pytest.raises(UserError, match="differs from the same child"):
        joslim.slim(HiddenState(), torch.randn(1, 3, 4, 4))


def test_hidden_state_leaves_the_model_as_it_was():
    model = HiddenState()
    before = snapshot(model)
    with pytest.raises(UserError):
        joslim.slim(model, torch.randn(1, 3, 4, 4))
    assert snapshot(model) == before


class MovingScale(nn.Module):
    """Keeps a buffer by assigning a new one, as many handwritten averages do."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        x = self.conv(x)
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean()
        return self.fc((x / self.scale).mean((2, 3)))


def test_buffers_that_forward_replaces_are_put_back():
    net = joslim.slim(MovingScale(), torch.randn(1, 3, 4, 4))
    assert float(net.scale) == 1.0


def test_statistics_of_scripted_norms_stay():
    inner = torch.jit.script(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)))
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1), inner).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    net = joslim.slim(model, torch.randn(4, 3, 4, 4))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_smallest_child_of_a_batch_is_traced_with_one_image(networks):
    inputs = networks.inputs_for("UNet", batch=5)
    net = joslim.slim(networks.fresh("UNet"), inputs)
    assert joslim.cost("macs", net)(net.space.full) == joslim.cost(
        "macs", networks.slimmed("UNet")[1]
    )(networks.slimmed("UNet")[1].space.full)


def test_a_lone_tensor_and_a_tuple_are_the_same_example(networks):
    (x,) = networks.inputs_for("PReluNet")
    one = joslim.slim(networks.fresh("PReluNet"), x)
    assert one.space == joslim.slim(networks.fresh("PReluNet"), (x,)).space


class Keywords(nn.Module):
    """Takes keyword arguments only, and returns a dictionary, as networks of transformers do."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, 3)

    def forward(self, *, values, mask=None, labels=None):
        x = self.second(self.first(values).relu()).relu()
        return {"logits": self.last(x if mask is None else x * mask)}


@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_items_of_a_dictionary_are_keyword_arguments(wrap):
    inputs = {"mask": torch.rand(5, 8), "values": torch.randn(5, 6)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = joslim.slim(Keywords(), wrap({**inputs, "labels": None})).eval()
        assert joslim.sort_channels(net) == []
    assert [knob.name for knob in net.space.knobs] == ["first"]
    assert {k: None if v is None else len(v) for k, v in net.example.items()} == {
        "mask": 1, "values": 1, "labels": None,
    }  # fmt: skip
    assert joslim.cost("macs", net)(net.space.full) == 6 * 10 + 10 * 8 + 8 * 3
    with net.at(net.space.smallest):
        in_place = net(**inputs)["logits"]
    assert torch.allclose(net.child(net.space.smallest)(**inputs)["logits"], in_place, atol=1e-6)


def test_a_network_that_takes_one_dictionary():
    class Dictionary(Keywords):
        def forward(self, batch):
            return super().forward(**batch)

    inputs = {"values": torch.randn(5, 6)}
    assert len(joslim.slim(Dictionary(), (inputs,)).space) == 2
    with pytest.raises(UserError, match=r"keyword arg.* type \(\{...\},\) if it takes one dict"):
        joslim.slim(Dictionary(), inputs)


@pytest.mark.parametrize("shape", [(1, 6), [1, 6], torch.Size((1, 6))])
@pytest.mark.parametrize("where", ["cpu", torch.float64, "meta"])
def test_integers_are_the_shape_of_an_input(shape, where):
    net = joslim.slim(Sequences(lambda x: x).to(where), shape)
    (example,), weight = net.example, net.first.weight
    assert (example.shape, example.dtype, example.device) == ((1, 6), weight.dtype, weight.device)


# --- bad input ------------------------------------------------------------------------------------


class OnlyHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)


class Reserved(OnlyHead):
    space = 3


BAD = {
    "nothing to slim": (OnlyHead, torch.zeros(1, 4), {}, r"^model: OnlyHead has nothing to slim"),
    "no weights": (nn.ReLU, torch.zeros(1, 4), {}, r"^model: ReLU has nothing to slim"),
    "wrong example": (OnlyHead, torch.zeros(1, 5), {}, r"^example_input: OnlyHead .*\(1, 5\)"),
    "other precision": (
        OnlyHead,
        torch.zeros(1, 4).double(),
        {},
        r"^example_input: .* type example.to\(torch.float32\)$",
    ),
    "an array": (OnlyHead, np.zeros((1, 4)), {}, r"^example_input: OnlyHead does not run on ndarr"),
    "a shape below zero": (OnlyHead, (1, -4), {}, r"^example_input: \(1, -4\) is no shape"),
    "unknown keyword": (
        OnlyHead,
        {"y": torch.zeros(1, 4)},
        {},
        r"^example_input: OnlyHead does not run on y=\(1, 4\): .*'y'",
    ),
    "no example": (OnlyHead, (), {}, r"^example_input: OnlyHead does not run"),
    "taken name": (Reserved, torch.zeros(1, 4), {}, r"^model: .*'space'"),
    "low of zero": (OnlyHead, torch.zeros(1, 4), {"low": 0}, r"^low: 0 is outside \(0, 1\]"),
    "low above one": (OnlyHead, torch.zeros(1, 4), {"low": 1.5}, r"^low: 1.5 is outside"),
    "low not a number": (OnlyHead, torch.zeros(1, 4), {"low": float("nan")}, r"^low: nan is out"),
    "low by name": (OnlyHead, torch.zeros(1, 4), {"low": {"fc": -1}}, r"^low: -1 is outside"),
    "divisor of zero": (OnlyHead, torch.zeros(1, 4), {"divisor": 0}, r"^divisor: 0 is below 1"),
}


def compiled_within():
    model = MovingScale()
    model.conv.compile(backend="eager")
    return model


BAD |= {
    "compiled": (lambda: torch.compile(OnlyHead(), backend="eager"), torch.zeros(1, 4), {},
                 r"^model: it is compiled; slim it first"),
    "compiled within": (compiled_within, torch.zeros(1, 3, 4, 4), {}, r"^model: it is compiled"),
    "scripted": (lambda: torch.jit.script(OnlyHead()), torch.zeros(1, 4), {},
                 r"^model: it is TorchScript"),
    "traced": (lambda: torch.jit.trace(OnlyHead(), torch.zeros(1, 4)), torch.zeros(1, 4), {},
               r"^model: it is TorchScript"),
    "partly meta": (lambda: nn.Sequential(OnlyHead(), OnlyHead().to("meta")), torch.zeros(1, 4), {},
                    r"^model: some of its tensors are on the meta device"),
    "meta model": (lambda: OnlyHead().to("meta"), torch.zeros(1, 4), {},
                   r"^example_input: it is on the device cpu, .* device='meta'"),
    "meta example": (OnlyHead, torch.zeros(1, 4, device="meta"), {},
                     r"^example_input: it is on the device meta, .* device='cpu'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case):
    make, example, options, message = BAD[case]
    with pytest.raises(UserError, match=message) as caught:
        joslim.slim(make(), example, **options)
    assert len(str(caught.value).splitlines()) == 1


def test_a_slimmable_network_is_not_slimmed_again(networks):
    net = copy.deepcopy(networks.slimmed("PReluNet")[1])
    with pytest.raises(UserError, match="slimmable already"):
        joslim.slim(net, networks.inputs_for("PReluNet"))


def test_a_part_that_is_slimmable_already_is_refused(networks):
    net = copy.deepcopy(networks.slimmed("PReluNet")[1])
    with pytest.raises(UserError, match="slimmable already"):
        joslim.slim(nn.Sequential(net, nn.Linear(5, 4), nn.Linear(4, 3)), torch.randn(1, 3, 16, 16))


def test_every_knob_has_a_name(networks):
    _, net = networks.slimmed("BareParameters")
    assert all(knob.name for knob in net.space.knobs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["DenseNet", "EfficientNet"])
def test_slimming_on_cuda(networks, children, assert_same, name):
    inputs = tuple(x.cuda() for x in networks.inputs_for(name))
    net = joslim.slim(networks.fresh(name).cuda(), inputs)
    for widths in children(net.space):
        with net.at(widths):
            sliced = run(net, inputs)
        assert_same(sliced, run(net.child(widths), inputs))


class Conv(nn.Module):
    """Two convs and whatever `forward` makes of them."""

    def __init__(self, forward, **buffers):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 5, 3, padding=1)
        self.function = forward
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return self.function(self, x)


class Answer(dict):
    pass


@pytest.mark.parametrize("wrap", [lambda y: Answer(y=y), lambda y: Answer(y=[Answer(y=y)])])
def test_outputs_are_found_in_containers_of_any_class(wrap):
    net = joslim.slim(Conv(lambda m, x: wrap(m.second(m.first(x)))), torch.zeros(1, 3, 6, 6))
    assert [frozen.layer for frozen in net.frozen] == ["second"]


def test_a_model_that_returns_nothing_is_refused():
    with pytest.raises(UserError, match="returns no tensor"):
        joslim.slim(Conv(lambda m, x: None), torch.zeros(1, 3, 6, 6))


def replace(m, x):
    y = m.first(x)
    if m.training:
        m.seen = 0.9 * m.seen + y.mean((0, 2, 3))
    return m.second(y + m.seen[:, None, None])


def write(m, x):
    y = m.first(x)
    if m.training:
        m.seen.add_(y.mean((0, 2, 3)))
    return m.second(y + m.seen[:, None, None])


@pytest.mark.parametrize("forward", [replace, write])
def test_buffers_that_forward_changes_keep_their_size(forward):
    model = Conv(forward, seen=torch.zeros(8))
    with pytest.raises(UserError, match="forward changes the buffer 'seen'"):
        joslim.slim(model, torch.zeros(1, 3, 6, 6))


def branch(m, x):
    y = m.first(x)
    if y.shape[1] % 3 == 0:
        y = F.pad(y, (0, 0, 0, 0, 0, 1))
    return m.second(y)


def test_a_branch_on_a_remainder_freezes():
    with pytest.raises(UserError, match=r"compared with 0 in test_slim.py:\d+"):
        joslim.slim(Conv(branch), torch.zeros(1, 3, 6, 6))


def test_operations_without_a_rule_are_priced_all_the_same():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.cell = nn.Linear(6, 8), nn.LSTMCell(8, 4)
            self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(torch.relu(self.hidden(self.cell(self.inside(x))[0])))

    net = joslim.slim(Recurrent(), torch.zeros(1, 6))
    child = net.child(net.space.smallest)
    with FlopCounterMode(display=False) as counter:
        child(torch.zeros(1, 6))
    assert 2 * joslim.cost("macs", net)(net.space.smallest) == counter.get_total_flops()


def test_shared_children_have_buffers_of_their_own(networks):
    _, net = networks.slimmed("BottleneckResNet")
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    child = net.child(net.space.smallest, share=True)
    child.train()(*networks.inputs_for("BottleneckResNet"))
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())


@pytest.mark.parametrize(
    "options",
    [{"divisor": "8"}, {"divisor": 2.5}, {"keep": [1]}, {"tie": [[]]}, {"low": "half"}],
)
def test_options_of_the_wrong_kind_are_refused_in_one_line(options):
    model = Conv(lambda m, x: m.second(m.first(x)))
    with pytest.raises(UserError, match=r"^\w+: [^\n]*$"):
        joslim.slim(model, torch.zeros(1, 3, 6, 6), **options)


def test_a_low_may_be_any_real_number():
    model = Conv(lambda m, x: m.second(m.first(x)))
    net = joslim.slim(model, torch.zeros(1, 3, 6, 6), low=np.float32(0.5))
    assert net.space.smallest.counts == (4,)


# --- what costs are counted for -------------------------------------------------------------------


class Sequences(nn.Module):
    """Two linear layers, something along the first axis, and two linear layers."""

    def __init__(self, mix):
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 8)
        self.third, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.mix = mix

    def forward(self, x, *others):
        return self.last(self.third(self.mix(self.second(self.first(x)), *others)))


def causal(x):
    """Each step depends on those before it, and so the first one on none."""
    return x.cumsum(0)


def attending(x):
    return (x @ x.transpose(-1, -2)).softmax(-1) @ x


DEPENDENT = {
    "steps of time": (lambda: Sequences(causal), torch.zeros(5, 2, 6)),
    "points that attend": (lambda: Sequences(attending), torch.zeros(5, 6)),
    "the last step": (lambda: Sequences(lambda x: x[-1]), torch.zeros(5, 2, 6)),
    "a mean": (lambda: Sequences(lambda x: x - x.mean(0)), torch.zeros(5, 6)),
    "a loss": (lambda: Sequences(lambda x: x.mean(0)), torch.ones(5, 6)),
    "single samples fail": (lambda: Sequences(lambda x: x.view(5, 8)), torch.ones(5, 6)),
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_an_example_that_is_no_batch_is_priced_whole_and_that_is_said(case):
    make, example = DEPENDENT[case]
    torch.manual_seed(0)
    shape = re.escape(str(tuple(example.shape)))
    with pytest.warns(UserWarning, match=rf"^example_input: costs are for all of {shape}"):
        net = joslim.slim(make(), example)
    assert torch.equal(net.example[0], example)
    whole = joslim.cost("macs", net)(net.space.full)
    assert whole >= example.numel() // 6 * (6 * 10 + 10 * 8)


INDEPENDENT = {
    "places": (lambda: Sequences(lambda x: attending(x)), (torch.zeros(5, 2, 6),)),
    "batch first": (
        lambda: Sequences(lambda x: x + x.cumsum(1)),
        (torch.zeros(5, 7, 6),),
    ),
    "outputs with the batch elsewhere": (
        lambda: Sequences(lambda x: x.transpose(0, 1)),
        (torch.zeros(5, 7, 6),),
    ),
    "samples joined with places": (
        lambda: Sequences(lambda x: x.flatten(0, 1)),
        (torch.zeros(5, 7, 6),),
    ),
    "two inputs": (lambda: Sequences(lambda x, y: x * y), (torch.zeros(5, 6), torch.ones(5, 1))),
    "a scalar for all": (
        lambda: Sequences(lambda x, y: x * y),
        (torch.zeros(5, 6), torch.tensor(2.0)),
    ),
}


@pytest.mark.parametrize("case", INDEPENDENT)
def test_of_a_batch_one_sample_is_priced(case):
    make, example = INDEPENDENT[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = joslim.slim(make(), example)
        one = joslim.slim(make(), tuple(x[:1] if x.dim() else x for x in example))
    assert net.example[0].shape == (1, *example[0].shape[1:])
    assert joslim.cost("macs", net)(net.space.full) == joslim.cost("macs", one)(one.space.full)


def test_inputs_without_a_common_first_axis_are_priced_whole_and_that_is_said():
    example = (torch.zeros(5, 6), torch.ones(1, 8))
    with pytest.warns(UserWarning, match=r"costs are for all of \(5, 6\), \(1, 8\)"):
        net = joslim.slim(Sequences(lambda x, y: x * y), example)
    assert joslim.cost("macs", net)(net.space.full) == 5 * (60 + 80 + 64 + 24)


def test_what_feeds_a_recurrent_layer_says_so():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 8)
            self.lstm, self.last = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(self.lstm(self.second(self.first(x)))[0])

    net = joslim.slim(Recurrent(), torch.zeros(1, 5, 6))
    reasons = {frozen.layer: frozen.why for frozen in net.frozen}
    assert reasons["second"] == "feeds nn.LSTM, which needs a fixed size"


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN", "GRUCell"])
def test_frozen_layers_name_the_layer_of_torch(layer):
    class Around(Sequences):
        def __init__(self):
            super().__init__(None)
            self.layer = getattr(nn, layer)(8, 8)
            self.beside = nn.Linear(6, 8)

        def forward(self, x):
            y = self.second(self.first(x))
            result = self.layer(y)
            result = result[0] if isinstance(result, tuple) else result
            return self.last(result + self.third(self.beside(x)))

    net = joslim.slim(Around(), torch.zeros(1, 6))
    reasons = {frozen.layer: frozen.why for frozen in net.frozen}
    needs = f"nn.{layer}, which needs a fixed size"
    assert reasons["second"] == f"feeds {needs}"
    assert reasons["layer"] == f"part of {needs}"
    assert reasons["third"] == f"joined with {needs}"


def test_a_batch_without_values_is_priced_whole_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match=r"\(2, 3, 16, 16\), since without values it"):
        joslim.slim(joslim.models.resnet8().to("meta"), (2, 3, 16, 16))


def test_a_network_without_values_computes_nothing_until_it_has_some() -> None:
    net = joslim.slim(joslim.models.resnet8().to("meta"), (1, 3, 16, 16))
    batch = (torch.zeros(2, 3, 16, 16), torch.zeros(2, dtype=torch.long))
    for act in (
        lambda: joslim.sort_channels(net),
        lambda: joslim.recalibrate(net, [batch]),
        lambda: joslim.cost("latency", net)(net.space.full),
        lambda: joslim.explore(net, [batch], F.cross_entropy),
    ):
        with pytest.raises(UserError, match=r"^net: .* meta device .* type net.to_empty"):
            act()
    assert net.to_empty(device="cpu").example[0].device.type == "cpu"


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.filterwarnings("ignore:example_input")
def test_a_network_without_values_has_the_same_space(batch: int) -> None:
    from joslim.models import resnet8

    real = joslim.slim(resnet8(), torch.zeros(1, 3, 16, 16))
    with torch.device("meta"):
        blank = joslim.slim(resnet8(), torch.zeros(batch, 3, 16, 16))
    assert blank.space == real.space
    assert blank.child(blank.space.smallest).conv1.weight.is_meta


def test_sizes_in_a_tuple_follow_the_width(assert_same):
    class Scale(nn.Module):
        """As in the PoolFormer of timm."""

        def __init__(self, channels):
            super().__init__()
            self.shape = (channels, 1, 1)
            self.scale = nn.Parameter(torch.randn(channels))

        def forward(self, x):
            return x * self.scale.view(self.shape)

    conv, x = partial(nn.Conv2d, kernel_size=1), torch.randn(2, 3, 4, 4)
    net = joslim.slim(nn.Sequential(conv(3, 8), Scale(8), conv(8, 2)), x).eval()
    assert [dim.name for dim in net.space.dims] == ["0"]
    widths = net.space.uniform(0.5)
    child = net.child(widths)
    assert child[1].shape == (4, 1, 1)
    with net.at(widths), torch.no_grad():
        assert_same(net(x), child(x))

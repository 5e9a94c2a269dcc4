"""The slimmable network: switching, nesting, wrapping, loading, children cut out."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import joslim
from joslim import UserError
from joslim.slimmable.blueprint import Layout, Stretch
from joslim.slimmable.net import REMEMBERED_CHILDREN, cut_tensor


def run(model, inputs):
    with torch.no_grad():
        return model.eval()(*inputs)


@pytest.fixture
def net(networks):
    """A network with residual connections and BatchNorm, free to be changed."""
    return copy.deepcopy(networks.slimmed("BottleneckResNet")[1])


@pytest.fixture
def x(networks):
    return networks.inputs_for("BottleneckResNet")[0]


# --- switching ------------------------------------------------------------------------------------


def test_blocks_nest_and_restore(net, children):
    one, two = children(net.space, 1)
    assert net.active == net.space.full
    with net.at(one) as inside:
        assert inside is net
        assert net.active == one
        with net.at(two):
            assert net.active == two
            assert net.conv1.out_channels == two.channels["conv1"]
        assert net.active == one
        assert net.conv1.out_channels == one.channels["conv1"]
    assert net.active == net.space.full
    assert net.conv1.out_channels == 8


def test_an_exception_restores(net, x):
    before = run(net, (x,))
    with pytest.raises(ZeroDivisionError), net.at(net.space.smallest):
        raise ZeroDivisionError
    assert net.active == net.space.full
    assert torch.equal(run(net, (x,)), before)


def test_use_lasts(net, x, assert_same):
    small = net.space.smallest
    net.use(small)
    assert net.active == small
    assert_same(run(net, (x,)), run(net.child(small), (x,)))
    net.use(SimpleNamespace(widths=net.space.full))
    assert net.active == net.space.full


def test_a_front_point_can_be_cut_out(net):
    point = SimpleNamespace(widths=net.space.smallest)
    assert net.child(point).conv1.out_channels == 2


def test_widths_of_another_network_are_refused(net, networks):
    other = networks.slimmed("UNet")[1].space.smallest
    for act in (net.use, net.child, net.at(other).__enter__):
        with pytest.raises(UserError, match=r"^widths: they belong to another network") as caught:
            act(*([other] if act in (net.use, net.child) else []))
        assert len(str(caught.value).splitlines()) == 1
    assert net.active == net.space.full


@pytest.mark.parametrize("wrong", [0.5, None, [0.5] * 11, (1, 2), "full"])
def test_widths_of_the_wrong_type_are_refused(net, wrong):
    with pytest.raises(UserError, match=r"^widths: .* given, Widths needed"):
        net.use(wrong)
    with pytest.raises(UserError, match=r"^widths: .* given, Widths needed"):
        net.child(wrong)


@pytest.mark.parametrize("wrong", [[0.5], [0.5] * 40, []])
def test_widths_of_the_wrong_length_are_refused(net, wrong):
    with pytest.raises(UserError, match=r"^widths: \d+ multipliers given, this network has 11"):
        net.space.at(wrong)


def test_equal_networks_take_each_others_widths(net, networks, x, assert_same):
    other = joslim.slim(networks.fresh("BottleneckResNet"), x)
    with net.at(other.space.smallest), other.at(net.space.smallest):
        assert_same(run(net, (x,)), run(other, (x,)), tolerance=0)


def test_many_children_are_forgotten_again(net, children, x, assert_same):
    all_widths = children(net.space, REMEMBERED_CHILDREN + 20)
    for widths in all_widths:
        net.use(widths)
    assert len(net._slim_net.recent) <= REMEMBERED_CHILDREN
    net.use(all_widths[1])
    assert_same(run(net, (x,)), run(net.child(all_widths[1]), (x,)))


def test_active_sizes_are_plain_integers(net):
    with net.at(net.space.smallest):
        sizes = [
            value
            for module in net.modules()
            for name, value in vars(module).items()
            if name.startswith("_slim_size")
        ]
    assert sizes
    assert all(type(size) is int for size in sizes)


# --- state ----------------------------------------------------------------------------------------


def test_weights_load_before_and_after(networks, x, assert_same):
    torch.manual_seed(5)
    state = networks.shaken(networks.BottleneckResNet(), seed=9).state_dict()
    before = networks.fresh("BottleneckResNet")
    before.load_state_dict(state)
    before = joslim.slim(before, x)
    after = joslim.slim(networks.fresh("BottleneckResNet"), x)
    assert not after.load_state_dict(state).missing_keys
    for widths in (before.space.full, before.space.smallest):
        with before.at(widths), after.at(widths):
            assert_same(run(before, (x,)), run(after, (x,)), tolerance=0)


@pytest.mark.parametrize("assign", [False, True])
def test_weights_load_while_slimmed(net, networks, x, assert_same, assign):
    state = networks.shaken(networks.fresh("BottleneckResNet"), seed=9).state_dict()
    plain = networks.fresh("BottleneckResNet")
    plain.load_state_dict(state)
    with net.at(net.space.smallest):
        net.load_state_dict(copy.deepcopy(state), assign=assign)
        assert_same(run(net, (x,)), run(net.child(net.space.smallest), (x,)))
    assert_same(run(net, (x,)), run(plain, (x,)), tolerance=0)


def test_the_state_dict_is_whole_while_slimmed(net):
    full = {key: value.shape for key, value in net.state_dict().items()}
    with net.at(net.space.smallest):
        assert {key: value.shape for key, value in net.state_dict().items()} == full
        assert sum(p.numel() for p in net.parameters()) == joslim.cost("params", net)(
            net.space.full
        )


@pytest.mark.parametrize("name", ["BottleneckResNet", "DenseNet"])
def test_in_inference_no_weight_is_stale(networks, children, assert_same, name):
    """Writes that torch does not count: the parts of old and new weights may not be mixed."""
    net = copy.deepcopy(networks.slimmed(name)[1]).eval()
    inputs = networks.inputs_for(name)
    widths = children(net.space)[1]
    net._switch(widths)
    shared = net.child(widths, share=True).eval()
    with torch.inference_mode():
        before = net(*inputs)
    for parameter in net.parameters():
        parameter.data.mul_(0.9)
    with torch.inference_mode():
        after = net(*inputs)
        assert_same(after, net.child(widths).eval()(*inputs))
        assert not torch.allclose(after, before)
        if name != "DenseNet":  # what follows a concat is a copy in a shared child
            assert_same(shared(*inputs), after)
    for parameter in shared.parameters():
        parameter.data.mul_(1.1)
    with torch.inference_mode():
        assert_same(net(*inputs), net.child(widths).eval()(*inputs))


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 6, 1), nn.Conv2d(14, 4, 1)

    def forward(self, x):
        return self.c(torch.cat([self.a(x), self.b(x)], 1))


def test_initialising_a_child_reaches_the_weights_or_is_refused(x):
    net = joslim.slim(Joined(), x)
    with net.at(net.space.smallest):
        nn.init.constant_(net.a.weight, 7.0)
    assert net.a.weight.eq(7.0).sum() == 2 * 3
    with (
        pytest.raises(UserError, match="after a concat was written to"),
        net.at(net.space.smallest),
    ):
        nn.init.constant_(net.c.weight, 7.0)
    assert net.active == net.space.full
    with net.at(net.space.smallest):  # reading it is no trouble
        assert net.c.weight.shape == (4, 3, 1, 1)
    nn.init.constant_(net.c.weight, 7.0)
    assert net.c.weight.eq(7.0).all()


@pytest.mark.parametrize("wrapped", [False, True])
def test_other_weights_forget_the_statistics_of_children(net, x, wrapped):
    small, model = net.space.smallest, nn.Sequential(net) if wrapped else net
    net.eval()
    with net.at(small):
        joslim.recalibrate(net, [x])
        own = net.bn1.running_mean
        model.load_state_dict(model.state_dict())
        assert net.bn1.running_mean is not own
    assert not net.statistics
    with pytest.warns(UserWarning, match="do not fit it: call joslim.recalibrate"):
        net.use(small)


def test_a_network_can_be_saved_whole_while_slimmed(net, x, assert_same):
    net.use(net.space.smallest)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert again.active == net.space.smallest
    assert_same(run(again, (x,)), run(net, (x,)), tolerance=0)
    again.use(again.space.full)
    assert net.active == net.space.smallest


def test_a_copy_is_independent(net, x):
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.conv1.weight.zero_()
    other.use(other.space.smallest)
    assert net.active == net.space.full
    assert net.conv1.weight.ne(0).any()
    modules = set(other.modules())
    assert all(layer in modules for layer, _ in other._slim_net.layers)


@pytest.mark.parametrize("name", ["BottleneckResNet", "DenseNet"])
def test_the_dtype_may_change_while_slimmed(networks, children, assert_same, name):
    net = copy.deepcopy(networks.slimmed(name)[1])
    (x,) = networks.inputs_for(name)
    widths = children(net.space)[1]
    with net.at(widths):
        joslim.recalibrate(net, [x])
        single = run(net, (x,))
        net.to(dtype=torch.float64)
        assert net.active == widths
        double = run(net, (x.double(),))
        assert double.dtype == torch.float64
        assert_same(double.float(), single)
    assert_same(run(net.child(widths), (x.double(),)), double)
    assert {p.dtype for p in net.parameters()} == {torch.float64}


def test_a_wrapper_takes_statistics_along(net, x):
    with net.at(net.space.smallest):
        joslim.recalibrate(net, [x])
    nn.Sequential(net).double()
    (own,) = net.statistics.values()
    assert {t.dtype for pair in own.values() for t in pair} == {torch.float64}


# --- training -------------------------------------------------------------------------------------


def statistics(net):
    return {key: value.clone() for key, value in net.state_dict().items() if "running" in key}


def test_only_the_full_network_moves_running_statistics(net, x, children):
    net.train()
    before = statistics(net)
    for widths in children(net.space):
        with net.at(widths):
            net(x).sum().backward()
    assert all(torch.equal(value, before[key]) for key, value in statistics(net).items())
    assert net.bn1.num_batches_tracked == 0
    net(x)
    assert not any(torch.equal(value, before[key]) for key, value in statistics(net).items())
    assert net.bn1.num_batches_tracked == 1


def test_tracking_instance_norms_move_at_full_width_only():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.InstanceNorm2d(8, track_running_stats=True), nn.Conv2d(8, 4, 1)
    )
    net = joslim.slim(model, torch.randn(1, 3, 4, 4)).train()
    with net.at(net.space.smallest):
        net(torch.randn(4, 3, 4, 4))
    assert torch.equal(net[1]._buffers["running_mean"], torch.zeros(8))


def test_training_steps_at_several_widths_change_all_of_the_weights(net, x, children):
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    before = [p.detach().clone() for p in net.parameters()]
    for widths in [net.space.full, *children(net.space)]:
        with net.at(widths):
            net(x).square().mean().backward()
    optimizer.step()
    assert all(p.ne(old).any() for p, old in zip(net.parameters(), before))


def test_gradients_are_those_of_the_child(net, x, children):
    widths = children(net.space)[1]
    child = net.child(widths).train()
    child(x).square().mean().backward()
    net.train()
    with net.at(widths):
        net(x).square().mean().backward()
    small, grad = child.conv1.weight.grad, net.conv1.weight.grad
    assert torch.allclose(grad[: len(small)], small, atol=1e-5)
    assert not grad[len(small) :].any()


# --- wrapping -------------------------------------------------------------------------------------


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel_runs_any_child(net, x, children):
    widths = children(net.space)[1]
    alone = copy.deepcopy(net).train()
    wrapped = DistributedDataParallel(net.train())
    for active in (widths, net.space.full):
        with net.at(active), alone.at(active):
            output, right = wrapped(x), alone(x)
            output.square().mean().backward()
            right.square().mean().backward()
        assert torch.equal(output, right)
    for p, q in zip(net.parameters(), alone.parameters()):
        assert torch.allclose(p.grad, q.grad, atol=1e-6)


@pytest.mark.usefixtures("one_process")
def test_a_wrapped_network_is_recalibrated(net, x):
    wrapped = DistributedDataParallel(net)
    with net.at(net.space.smallest):
        joslim.recalibrate(wrapped, [x])
    assert net.space.smallest in net.statistics


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        yield
    torch._dynamo.reset()


def frames(net, x, all_widths, assert_same):
    """How often the network was compiled to run all these children, right ones as they are."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(net, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for widths in all_widths:
            with net.at(widths):
                assert_same(compiled(x), net(x))
    return counter.frame_count


@pytest.mark.usefixtures("dynamo")
def test_two_compilations_serve_all_widths(networks, x, children, assert_same):
    net = joslim.slim(networks.fresh("InvertedResiduals"), x, low=0.6).eval()
    all_widths = [net.space.full, *children(net.space, 8)]
    assert 1 <= frames(net, x, all_widths, assert_same) <= 3


@pytest.fixture
def chain(x):
    layers = [nn.Sequential(nn.Conv2d(i, 16, 1), nn.BatchNorm2d(16)) for i in (3, 16, 16)]
    return joslim.slim(nn.Sequential(*layers, nn.Conv2d(16, 4, 1)), x).eval()


@pytest.mark.usefixtures("dynamo")
def test_children_with_some_layers_whole_are_not_compiled_anew(chain, x, assert_same):
    shares = [(1, 1, 1), (0.5, 0.5, 0.5), (1, 0.5, 0.5), (0.5, 1, 0.5), (0.5, 0.5, 1), (1, 1, 0.5)]
    all_widths = [chain.space.at(share) for share in shares]
    assert frames(chain, x, all_widths, assert_same) <= 3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_moving_to_cuda_while_slimmed(networks, children, assert_same):
    net = copy.deepcopy(networks.slimmed("DenseNet")[1])
    inputs = networks.inputs_for("DenseNet")
    widths = children(net.space)[1]
    with net.at(widths):
        here = run(net, inputs)
        there = run(net.cuda(), tuple(x.cuda() for x in inputs))
    assert_same(there.cpu(), here)


def test_use_warns_of_statistics_that_do_not_fit(networks):
    net = copy.deepcopy(networks.slimmed("InvertedResiduals")[1]).eval()
    with pytest.warns(UserWarning, match="do not fit it: call joslim.recalibrate"):
        net.use(net.space.smallest)
    joslim.recalibrate(net, [networks.inputs_for("InvertedResiduals")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.use(net.space.full)
        net.use(net.space.smallest)
        with net.at(net.space.uniform(0.9)):
            pass


# --- children are ordinary modules, with copies of the weights or with views of them --------------


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

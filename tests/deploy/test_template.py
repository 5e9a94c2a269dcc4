"""Graphs without weights: one for all children, equal to each child cut out."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import joslim
from joslim.deploy.bundle import runs_as, weight_of
from joslim.deploy.exporting import cut_child
from joslim.deploy.template import Norm, make_template
from joslim.errors import RunFailed
from joslim.formats import Child

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


class Mixed(nn.Module):
    """A depthwise conv, a bias, a concatenation, a norm alone, sizes read from tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)  # with a bias before its norm
        self.norm = nn.BatchNorm2d(12, eps=1e-3)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(12)
        self.side = nn.Conv2d(3, 6, 1)
        self.alone = nn.BatchNorm2d(18)
        self.head = nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x)).relu()
        y = self.depthwise_norm(self.depthwise(y))
        y = self.alone(torch.cat([y, self.side(x)], 1))
        return self.head(y.mean((2, 3)).view(x.shape[0], y.shape[1]))


@pytest.fixture(scope="module")
def net() -> joslim.SlimmableNet:
    torch.manual_seed(0)
    net = joslim.slim(Mixed(), torch.zeros(1, 3, 6, 6)).eval()
    for widths in (net.space.full, net.space.smallest, net.space.uniform(0.6)):
        with net.at(widths):
            joslim.recalibrate(net, [torch.randn(16, 3, 6, 6)])
    return net


def axes_of(net: joslim.SlimmableNet) -> dict[str, list[int]]:
    return {
        f"{module}.{tensor}": [at for at, layout in enumerate(layouts) if layout.slimmable]
        for module, plan in net._slim_net.plans.items()
        for tensor, layouts in plan.tensors.items()
    }


def test_one_graph_for_all_children(net: joslim.SlimmableNet) -> None:
    template = make_template(cut_child(net, net.space.full, {}), axes_of(net))
    kinds = [node.op_type for node in template.model.graph.node]
    # Norms after convolutions are folded, the one after the concatenation stays.
    assert (kinds.count("Conv"), kinds.count("BatchNormalization")) == (3, 1)
    assert not template.model.graph.value_info
    assert [value.name for value in template.model.graph.input] == ["images"]
    samples = torch.randn(5, 3, 6, 6)
    for widths in (net.space.full, net.space.smallest, net.space.uniform(0.6)):
        child = net.child(widths).eval()
        with torch.no_grad():
            expected = child(samples)
        state = {name: value.detach().numpy() for name, value in child.state_dict().items()}
        assert runs_as(template, state, [((samples,), [expected])])
        assert not runs_as(template, state, [((samples,), [expected + 0.1])])


def test_the_norm_of_a_convolution() -> None:
    """Y = a x + b, against torch."""
    norm = nn.BatchNorm1d(5, eps=0.01).eval()
    for tensor in (*norm.parameters(), norm.running_mean, norm.running_var):
        nn.init.uniform_(tensor, 0.5, 2)
    state = {name: value.detach().numpy() for name, value in norm.state_dict().items()}
    names = ("weight", "bias", "running_mean", "running_var")
    factor, shift = Norm(names, 0.01).factors(state)
    x = torch.randn(7, 5)
    with torch.no_grad():
        np.testing.assert_allclose(x.numpy() * factor + shift, norm(x).numpy(), rtol=1e-5)


def test_a_network_that_cannot_be_exported() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(RunFailed, match="ONNX cannot express this network") as caught:
        make_template(Child(Branching(), {}, (torch.zeros(2, 3, 4, 4),)))
    assert "\n" not in str(caught.value)


def test_weights_of_slots(net: joslim.SlimmableNet) -> None:
    """The bias of a convolution goes through its norm."""
    child = cut_child(net, net.space.smallest, {})
    template = make_template(child)
    state = {name: value.numpy() for name, value in child.weights.items()}
    (slot,) = [s for s in template.slots if s.shift is not None and s.tensor == "stem.bias"]
    assert slot.shift is not None
    factor, shift = slot.shift.factors(state)
    np.testing.assert_allclose(
        weight_of(slot, state), factor * state["stem.bias"] + shift, rtol=1e-6
    )

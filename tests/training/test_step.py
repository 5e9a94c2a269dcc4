"""The slimmable step against the formula written out by hand."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import joslim
from joslim import RunFailed, SlimmableNet, Widths
from joslim.slimmable.layers import slimmable_class
from joslim.training import step
from joslim.training.distillation import soft_cross_entropy
from joslim.training.step import FiniteCheck, backward, detached, step_unless

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Scores:
    logits: Tensor


class Tiny(nn.Module):
    """Two convs with norms, and outputs packed in any way."""

    def __init__(self, pack: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.two = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.head = nn.Linear(12, 5)
        self.pack = pack

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.two(F.relu(self.norm(self.one(x)))))
        return self.pack(self.head(x.mean(dim=(2, 3))))


def make(pack: Callable[[Tensor], Any] = lambda logits: logits) -> SlimmableNet:
    torch.manual_seed(0)
    return joslim.slim(Tiny(pack), torch.zeros(2, 2, 6, 6), low=0.25).double()


def batch(seed: int = 1, count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (count,), generator=generator)


def four(net: SlimmableNet) -> list[Widths]:
    rng = np.random.default_rng(3)
    return [net.space.full, net.space.random(rng), net.space.random(rng), net.space.smallest]


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_equal_gradients(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.allclose(left[name], right[name], atol=1e-12), name


def by_hand(
    net: SlimmableNet,
    widths: list[Widths],
    x: Tensor,
    y: Tensor,
    label_share: float = 0.0,
    full_weight: float = 1.0,
) -> dict[str, Tensor]:
    """One sum of losses, differentiated once: full on labels, the others on its probabilities."""
    net = copy.deepcopy(net)
    with net.at(widths[0]):
        logits = net(x)
    total = full_weight * F.cross_entropy(logits, y)
    target = logits.detach().softmax(dim=1)
    for child in widths[1:]:
        with net.at(child):
            scores = net(x)
        taught = -(target * scores.log_softmax(dim=1)).sum(dim=1).mean()
        total = total + (1 - label_share) * taught + label_share * F.cross_entropy(scores, y)
    total.backward()
    return gradients(net)


def test_gradients_are_those_of_the_four_passes() -> None:
    net, (x, y) = make(), batch()
    expected = by_hand(net, four(net), x, y)
    losses = backward(net, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    assert_equal_gradients(gradients(net), expected)
    assert losses.shape == (4,)
    assert not losses.requires_grad
    assert net.active == net.space.full


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_children_learn_from_labels_too(share: float) -> None:
    net, (x, y) = make(), batch()
    expected = by_hand(net, four(net), x, y, share)
    losses = (F.cross_entropy, soft_cross_entropy)
    backward(net, net, four(net), (x,), y, *losses, label_share=share)
    assert_equal_gradients(gradients(net), expected)


def test_the_full_network_counts_more() -> None:
    net, (x, y) = make(), batch()
    expected = by_hand(net, four(net), x, y, full_weight=3.0)
    functions = (F.cross_entropy, soft_cross_entropy)
    losses = backward(net, net, four(net), (x,), y, *functions, full_weight=3.0)
    assert_equal_gradients(gradients(net), expected)
    with net.at(net.space.full):  # the loss that is told is the loss
        assert losses[0] == pytest.approx(F.cross_entropy(net(x), y).item())


def test_one_width_that_stands_for_all_is_all_of_them_in_the_mean() -> None:
    net, (x, y) = make(), batch()
    full, *others = four(net)
    expected = by_hand(net, four(net), x, y)
    functions = (F.cross_entropy, soft_cross_entropy)
    for other in others:
        losses = backward(net, net, [full, other], (x,), y, *functions, other_weight=3.0)
        with net.at(full):
            told = net(x).detach().softmax(dim=1)
        with net.at(other):  # the loss that is told is the loss
            assert losses[1] == pytest.approx(F.cross_entropy(net(x), told).item())
    mean = {name: gradient / len(others) for name, gradient in gradients(net).items()}
    assert_equal_gradients(mean, expected)


def test_gradients_add_to_those_that_are_there() -> None:
    net = make()
    parts = [batch(1), batch(2)]
    expected: dict[str, Tensor] = {}
    for x, y in parts:
        for name, value in by_hand(net, four(net), x, y).items():
            expected[name] = expected.get(name, 0) + value
    for x, y in parts:
        backward(net, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    assert_equal_gradients(gradients(net), expected)


def test_the_teacher_learns_nothing_from_its_students() -> None:
    """Labels alone move the weights that only the full network has."""
    net, (x, y) = make(), batch()
    small = [net.space.full, net.space.smallest]
    backward(net, net, small, (x,), y, F.cross_entropy, soft_cross_entropy)
    together = gradients(net)["head.weight"]
    net.zero_grad()
    backward(net, net, small[:1], (x,), y, F.cross_entropy, soft_cross_entropy)
    alone = gradients(net)["head.weight"]
    kept = net.space.smallest.channels["two"]
    assert torch.allclose(together[:, kept:], alone[:, kept:], atol=1e-12)
    assert not torch.allclose(together[:, :kept], alone[:, :kept])


def test_whatever_comes_first_learns_from_labels() -> None:
    net, (x, y) = make(), batch()
    seen = []

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append((net.active, labels))
        return F.cross_entropy(outputs, labels)

    alone = [net.space.smallest]
    losses = backward(net, net, alone, (x,), y, criterion, soft_cross_entropy)
    assert seen == [(net.space.smallest, y)]
    with net.at(net.space.smallest):
        assert losses.item() == pytest.approx(F.cross_entropy(net(x), y).item())


PACKED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda out: (out, out.sum()), lambda packed: packed[0]),
    "list": (lambda out: [out, None], lambda packed: packed[0]),
    "dict": (lambda out: {"logits": out, "name": "net"}, lambda packed: packed["logits"]),
    "dict of numbers": (lambda out: {0: out}, lambda packed: packed[0]),
    "ordered": (lambda out: OrderedDict(logits=out), lambda packed: packed["logits"]),
    "dataclass": (Scores, lambda packed: packed.logits),
    "namedtuple": (lambda out: Pair(out, {"deep": out}), lambda packed: packed.first),
}


@pytest.mark.parametrize("kind", list(PACKED))
def test_outputs_packed_in_any_way(kind: str) -> None:
    pack, unpack = PACKED[kind]
    plain, (x, y) = make(), batch()
    expected = by_hand(plain, four(plain), x, y)
    net = make(pack)
    teachers = []

    def distill(student: Any, teacher: Any) -> Tensor:
        teachers.append(teacher)
        return soft_cross_entropy(unpack(student), unpack(teacher))

    def criterion(outputs: Any, labels: Tensor) -> Tensor:
        return F.cross_entropy(unpack(outputs), labels)

    backward(net, net, four(net), (x,), y, criterion, distill)
    assert_equal_gradients(gradients(net), expected)
    assert type(teachers[0]) is type(pack(torch.zeros(1)))
    assert not unpack(teachers[0]).requires_grad


def test_detached_goes_deep() -> None:
    x = torch.ones(1, requires_grad=True) * 2
    packed = Pair({"a": [x, 3]}, (x, None))
    free = detached(packed)
    assert isinstance(free, Pair)
    assert not free.first["a"][0].requires_grad
    assert not free.second[0].requires_grad
    assert free.first["a"][1] == 3
    assert free.second[1] is None
    assert x.requires_grad


def test_only_the_full_pass_moves_running_statistics() -> None:
    net, (x, y) = make(), batch()
    alone = copy.deepcopy(net)
    alone(x)
    backward(net, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, dict(alone.named_buffers())[name]), name
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    backward(net, net, four(net)[1:], (x,), y, F.cross_entropy, soft_cross_entropy)
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_a_scaler_scales_all_widths_and_no_reported_loss() -> None:
    net, (x, y) = make(), batch()
    plain = backward(net, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    expected = {name: 1024 * value for name, value in gradients(net).items()}
    net.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def differentiate(loss: Tensor) -> None:
        scaler.scale(loss).backward()

    terms = (F.cross_entropy, soft_cross_entropy, differentiate)
    scaled = backward(net, net, four(net), (x,), y, *terms)
    assert torch.equal(plain, scaled)
    found = gradients(net)
    for name in expected:
        assert torch.allclose(found[name], expected[name]), name


def test_label_smoothing_is_for_the_full_network_only() -> None:
    net, (x, y) = make(), batch()
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    with_it = backward(net, net, four(net), (x,), y, smooth, soft_cross_entropy)
    without = backward(net, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    log = net(x).log_softmax(dim=1)
    target = torch.full_like(log, 0.1 / 5).scatter_(1, y[:, None], 0.9 + 0.1 / 5)
    assert with_it[0].item() == pytest.approx(-(target * log).sum(dim=1).mean().item())
    assert torch.equal(with_it[1:], without[1:])


def test_a_wrapper_is_what_is_called() -> None:
    net, (x, y) = make(), batch()

    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.inner(x)

    wrapper = Wrapper(net)
    backward(wrapper, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    assert wrapper.calls == 4


class Checkpointed(Tiny):
    """Activations of the convs are computed again in the backward pass."""

    reentrant = False

    def forward(self, x: Tensor) -> Any:
        if self.reentrant:  # it gives gradients only where an input has some
            x = x + self.head.bias.sum() * 0
        x = checkpoint(self.convs, x, use_reentrant=self.reentrant)
        return self.head(x.mean(dim=(2, 3)))

    def convs(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.one(x)))))


def checkpointed(reentrant: bool) -> SlimmableNet:
    """With the weights of `make`, made slimmable before the first checkpoint is reached."""
    net = make()
    net.__class__ = slimmable_class(Checkpointed, (), (SlimmableNet,))
    net.reentrant = reentrant
    return net


@pytest.fixture
def one_process(tmp_path: Any) -> Iterator[None]:
    meeting = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])


@REENTRANT
@pytest.mark.parametrize("distributed", [False, True], ids=["alone", "distributed"])
@pytest.mark.usefixtures("one_process")
def test_checkpointed_activations_are_those_of_the_width(
    reentrant: bool, distributed: bool
) -> None:
    net, (x, y) = checkpointed(reentrant), batch()
    expected = by_hand(make(), four(net), x, y)
    model = DistributedDataParallel(net) if distributed else net
    backward(model, net, four(net), (x,), y, F.cross_entropy, soft_cross_entropy)
    assert_equal_gradients(gradients(net), expected)
    assert net.active == net.space.full


@REENTRANT
def test_a_loop_with_a_scaler_checkpoints_at_every_width(reentrant: bool) -> None:
    net, (x, y) = checkpointed(reentrant), batch()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    slimming = joslim.Slimming(net, method="slim", total_steps=1, scoring=[(x, y)], draw=1)

    def differentiate(loss: Tensor) -> None:
        scaler.scale(loss).backward()

    slimming.backward(x, y, F.cross_entropy, differentiate)
    weights = {"full_weight": 3.0, "other_weight": 3.0}  # 2 samples and the smallest, 1 drawn
    plain = make()
    terms = (x,), y, F.cross_entropy, soft_cross_entropy
    backward(plain, plain, slimming.widths, *terms, **weights)
    expected = {name: 1024 * value for name, value in gradients(plain).items()}
    assert len(slimming.widths) > 1
    assert_equal_gradients(gradients(net), expected)


def test_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 8), nn.Linear(4, 8)
            self.head = nn.Linear(8, 5)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(F.relu(self.left(a) + self.right(b)))

    a, b = torch.randn(6, 3), torch.randn(6, 4)
    net = joslim.slim(Two(), (a, b))
    y = torch.arange(6) % 5
    losses = backward(net, net, four(net), (a, b), y, F.cross_entropy, soft_cross_entropy)
    assert losses.isfinite().all()


# What is not finite


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are read when somebody asks for them, as those on a GPU."""
    monkeypatch.setattr(step, "reads_for_free", lambda device: False)


LATER = pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])


@LATER
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
def test_a_loss_that_is_not_finite_is_named(
    value: float, place: int, later: bool, request: pytest.FixtureRequest
) -> None:
    if later:
        request.getfixturevalue("as_on_a_gpu")
    widths = four(make())
    losses = torch.ones(4)
    losses[place] = value
    check = FiniteCheck()

    def some_steps() -> None:
        check.add(16, widths, torch.tensor([0.0, 1e30, -5.0, 2.0]), torch.tensor(1.0))
        check.add(17, widths, losses, torch.tensor(1.0))
        check.add(18, widths[:1], torch.full((1,), math.nan), torch.tensor(math.nan))

    if later:
        some_steps()
        some_steps = check.read
    with pytest.raises(RunFailed) as caught:
        some_steps()
    message = str(caught.value)
    assert str(value) in message
    assert "step 17" in message
    assert str(widths[place]) in message
    assert "\n" not in message
    check.read()  # the message is given once


@pytest.mark.usefixtures("as_on_a_gpu")
def test_finite_losses_are_known_after_they_are_read() -> None:
    widths, check = four(make()), FiniteCheck()
    check.add(0, widths, torch.tensor([0.0, 1e30, -5.0, 2.0]), torch.tensor(1.0))
    failed = check.add(1, widths[1:], torch.tensor([1.0, 2.0, 3.0]), torch.tensor(9.0))
    assert check.losses == {}
    assert not failed
    check.read()
    assert check.losses == dict(zip(widths[1:], [1.0, 2.0, 3.0]))
    assert check.add(2, widths[:1], torch.ones(1), torch.tensor(math.inf))
    assert check.add(3, widths[:1], torch.ones(1), torch.tensor(1.0))  # it stays
    with pytest.raises(RunFailed, match="the gradient is not finite at step 2"):
        check.read()


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("bad", [(0,), (2,), (0, 1, 3)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_that_failed_are_as_if_they_had_not_been_made(
    name: str, bad: tuple[int, ...]
) -> None:
    found = []
    for leave_out in (False, True):
        generator = torch.Generator().manual_seed(0)
        parameters = [
            nn.Parameter(torch.randn(3, 4, generator=generator)),
            nn.Parameter(torch.randn(5, generator=generator)),
        ]
        optimizer = OPTIMIZERS[name](parameters)
        for number in range(5):
            failed = number in bad
            for parameter in parameters:
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = gradient * math.nan if failed else gradient
            if not leave_out:
                step_unless(torch.tensor(failed), optimizer)
            elif not failed:
                step_unless(None, optimizer)
        kept = optimizer.state.values()
        found.append([*parameters, *(v for state in kept for v in state.values() if v is not None)])
    assert len(found[0]) == len(found[1])
    for masked, left_out in zip(*found):
        assert torch.equal(masked, left_out)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("place", range(4))
def test_a_failure_that_is_found_at_the_next_round(place: int) -> None:
    """All steps from the one that failed on change nothing, and the message names that one."""
    net, (x, y) = make(), batch()
    slimming = joslim.Slimming(
        net, method="bignas", total_steps=10, scoring=[(x, y)], seed=1, full_first=0, draw=3,
        every=4,
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    calls = []

    def spoiled(loss: Tensor) -> Tensor:
        if loss.requires_grad:
            calls.append(net.active)
            return loss * math.nan if len(calls) == 4 + place + 1 else loss
        return loss

    slimming.distill = lambda s, t: spoiled(soft_cross_entropy(s, t))
    weights = []
    for _ in range(4):
        slimming.step(x, y, optimizer, lambda o, t: spoiled(F.cross_entropy(o, t)))
        weights.append(copy.deepcopy(dict(net.named_parameters())))
    with pytest.raises(RunFailed, match="the loss is nan at step 1") as caught:
        slimming.step(x, y, optimizer, F.cross_entropy)
    assert str(calls[4 + place]) in str(caught.value)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, weights[0][name]), name


@pytest.mark.parametrize("place", range(4))
def test_one_width_that_fails_leaves_the_weights_alone(place: int) -> None:
    net, (x, y) = make(), batch()
    calls = []

    def poisoned(loss: Tensor) -> Tensor:
        if not loss.requires_grad:  # tried at the first step, on outputs of the full network
            return loss
        calls.append(net.active)
        return loss * math.nan if len(calls) == place + 1 else loss

    slimming = joslim.Slimming(
        net,
        method="bignas",
        total_steps=10,
        scoring=[(x, y)],
        seed=1,  # four different widths
        full_first=0,
        draw=3,
        distill=lambda s, t: poisoned(soft_cross_entropy(s, t)),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    before = copy.deepcopy(dict(net.named_parameters()))
    with pytest.raises(RunFailed, match="the loss is nan at step 0") as caught:
        slimming.step(x, y, optimizer, lambda o, t: poisoned(F.cross_entropy(o, t)))
    assert str(calls[place]) in str(caught.value)
    assert slimming.steps == 0
    assert not optimizer.state
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, before[name]), name


def failed_step(x: Tensor, criterion: Callable[[Any, Any], Tensor]) -> SlimmableNet:
    """The network after a step that was refused."""
    net, y = make(), batch()[1]
    slimming = joslim.Slimming(net, method="bignas", total_steps=10, scoring=[(x, y)])
    with pytest.raises(RunFailed):
        slimming.step(x, y, torch.optim.SGD(net.parameters(), lr=0.1), criterion)
    return net


def test_gradients_that_are_not_finite_leave_the_weights_alone() -> None:
    """The root of zero has a value, and no slope."""

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels) + (0 * outputs).abs().sum().sqrt()

    net = failed_step(batch()[0], criterion)
    assert all(parameter.isfinite().all() for parameter in net.parameters())

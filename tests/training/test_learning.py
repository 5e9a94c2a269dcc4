"""How children learn from the full network: chosen by trying the criterion."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim
from joslim import SlimmableNet, UserError
from joslim.training.distillation import DISTILLATIONS, soft_cross_entropy
from joslim.training.learning import choose_learning

N, C = 16, 5
SCORES = torch.randn(N, C, generator=torch.Generator().manual_seed(0))
STUDENT = torch.randn(N, C, generator=torch.Generator().manual_seed(1))
CLASSES = torch.arange(N) % C
SHARES = SCORES.flip(0).softmax(dim=1)
TARGETS = SCORES.flip(0) / 3
YES_NO = (TARGETS > 0).float()
WEIGHTS = torch.linspace(0.5, 4, C)
bce = F.binary_cross_entropy_with_logits


def learned(criterion: Any, outputs: Any, labels: Any, student: Any = STUDENT) -> float:
    """The loss of a student under the distillation that is chosen."""
    learning = choose_learning("auto", criterion, outputs, labels)
    return learning(criterion, student, outputs).item()


# Classes


CROSS_ENTROPIES: dict[str, tuple[Callable[[Any, Any], Tensor], Any]] = {
    "module": (nn.CrossEntropyLoss(), CLASSES),
    "function": (F.cross_entropy, CLASSES),
    "options": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=2, label_smoothing=0.1), CLASSES),
    "partial": (partial(F.cross_entropy, label_smoothing=0.1), CLASSES),
    "lambda": (lambda outputs, labels: 2 * F.cross_entropy(outputs, labels), CLASSES),
    "class probabilities": (F.cross_entropy, SHARES),
    "mixup": (
        lambda outputs, y: 0.3 * F.cross_entropy(outputs, y[0]) + F.cross_entropy(outputs, y[1]),
        (CLASSES, CLASSES.flip(0)),
    ),
    "all ignored": (F.cross_entropy, torch.full((N,), -100)),
    "squares of probabilities": (lambda o, y: F.mse_loss(o.softmax(dim=1), y), SHARES),
}


@pytest.mark.parametrize("name", list(CROSS_ENTROPIES))
@pytest.mark.parametrize("size", [1.0, 0.0, 30.0], ids=["random", "zero", "sure"])
def test_a_cross_entropy_teaches_soft_labels(name: str, size: float) -> None:
    criterion, labels = CROSS_ENTROPIES[name]
    expected = soft_cross_entropy(STUDENT, size * SCORES).item()
    assert learned(criterion, size * SCORES, labels) == expected


def test_the_axis_of_the_classes_is_found() -> None:
    """Segmentation has it second, a tagger of tokens last."""
    pixels, tokens = torch.randn(2, C, 4, 4), torch.randn(2, 4, C)
    student = pixels.flip(0)
    expected = soft_cross_entropy(student, pixels).item()
    assert learned(F.cross_entropy, pixels, torch.zeros(2, 4, 4).long(), student) == expected

    def of_tokens(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())

    found = learned(of_tokens, tokens, torch.arange(8).reshape(2, 4) % C, tokens.flip(0))
    expected = soft_cross_entropy(tokens.flip(0).flatten(0, 1), tokens.flatten(0, 1)).item()
    assert found == pytest.approx(expected)


def test_a_sum_teaches_a_sum() -> None:
    summed = partial(F.cross_entropy, reduction="sum")
    expected = N * soft_cross_entropy(STUDENT, SCORES).item()
    assert learned(summed, SCORES, CLASSES) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("criterion", "labels"), [(F.nll_loss, CLASSES), (nn.KLDivLoss(reduction="batchmean"), SHARES)]
)
def test_log_probabilities(criterion: Any, labels: Tensor) -> None:
    teacher, student = SCORES.log_softmax(dim=1), STUDENT.log_softmax(dim=1)
    expected = -(teacher.exp() * student).sum(dim=1).mean().item()
    assert learned(criterion, teacher, labels, student) == pytest.approx(expected)


# Labels in the shape of the outputs

COMPARISONS: dict[str, tuple[Callable[[Any, Any], Tensor], Tensor, Callable[[Tensor], Tensor]]] = {
    "mse": (F.mse_loss, TARGETS, lambda t: t),
    "sum": (nn.MSELoss(reduction="sum"), TARGETS, lambda t: t),
    "l1": (F.l1_loss, TARGETS, lambda t: t),
    "smooth l1": (nn.SmoothL1Loss(), TARGETS, lambda t: t),
    "huber": (nn.HuberLoss(), TARGETS, lambda t: t),
    "quantile": (
        lambda o, y: torch.maximum(0.9 * (y - o), 0.1 * (o - y)).mean(),
        TARGETS,
        lambda t: t,
    ),
    "scaled": (lambda o, y: F.mse_loss(o, (y - 3) / 10), TARGETS, lambda t: 10 * t + 3),
    "squashed": (lambda o, y: F.mse_loss(o.tanh(), y), TARGETS, torch.tanh),
    "counts": (nn.PoissonNLLLoss(), YES_NO, torch.exp),
    "bce": (bce, YES_NO, torch.sigmoid),
    "whole labels": (lambda o, y: bce(o, y.float()), YES_NO.long(), torch.sigmoid),
    "weights": (nn.BCEWithLogitsLoss(weight=WEIGHTS), YES_NO, torch.sigmoid),
    "pos_weight": (
        partial(bce, pos_weight=WEIGHTS),
        YES_NO,
        # With this share of positive labels, the weighted loss is least at t.
        lambda t: (t - WEIGHTS.log()).sigmoid(),
    ),
}


@pytest.mark.parametrize("name", list(COMPARISONS))
@pytest.mark.parametrize("size", [1.0, 0.0, 8.0], ids=["random", "zero", "large"])
def test_a_comparison_takes_the_full_network_for_the_labels(name: str, size: float) -> None:
    criterion, labels, activated = COMPARISONS[name]
    teacher = size * SCORES
    expected = criterion(STUDENT, activated(teacher)).item()
    assert learned(criterion, teacher, labels) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_probabilities_are_labels_as_they_are() -> None:
    teacher, student = SCORES.sigmoid(), STUDENT.sigmoid()
    expected = F.binary_cross_entropy(student, teacher).item()
    assert learned(nn.BCELoss(), teacher, YES_NO, student) == expected


def test_labels_without_the_last_axis_and_batches_of_another_size() -> None:
    def squeezed(outputs: Tensor, labels: Tensor) -> Tensor:
        assert labels.ndim == 1
        return bce(outputs.squeeze(1), labels)

    learning = choose_learning("auto", squeezed, SCORES[:, :1], YES_NO[:, 0])
    expected = bce(STUDENT[:7, 0], SCORES[:7, 0].sigmoid()).item()
    assert learning(squeezed, STUDENT[:7, :1], SCORES[:7, :1]).item() == expected


def test_the_criterion_of_each_step_is_used() -> None:
    """A criterion may be a new function at each step, with weights of the batch inside."""
    learning = choose_learning("auto", lambda o, y: F.mse_loss(o, y), SCORES, TARGETS)
    found = learning(lambda o, y: 5 * F.mse_loss(o, y), STUDENT, SCORES).item()
    assert found == pytest.approx(5 * F.mse_loss(STUDENT, SCORES).item())


# Packed outputs


@dataclass(frozen=True)
class Packed:
    logits: Tensor
    loss: Tensor | None = None


@dataclass
class ModelOutput(OrderedDict[str, Any]):
    """As those of Hugging Face: a dataclass, and a dictionary of the fields that are not None."""

    loss: Tensor | None = None
    logits: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("loss", "logits"):
            if getattr(self, name) is not None:
                OrderedDict.__setitem__(self, name, getattr(self, name))

    def __setitem__(self, name: str, value: Any) -> None:
        OrderedDict.__setitem__(self, name, value)
        setattr(self, name, value)

    def __reduce__(self) -> Any:
        return type(self), (self.loss, self.logits)


class Pair(NamedTuple):
    aux: Tensor
    logits: Tensor


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda t: {"out": t, "aux": -t}, lambda packed: packed["out"]),
        (lambda t: Packed(t), lambda packed: packed.logits),
        (lambda t: Pair(-t, t), lambda packed: packed.logits),
        (lambda t: ModelOutput(logits=t), lambda packed: packed.logits),
    ],
)
def test_packed_outputs_are_distilled_by_their_logits(pack: Any, unpack: Any) -> None:
    for criterion, labels, teacher in (
        (F.cross_entropy, CLASSES, SCORES.softmax(dim=1)),
        (F.mse_loss, TARGETS, SCORES),
        (partial(bce, pos_weight=WEIGHTS), YES_NO, (SCORES - WEIGHTS.log()).sigmoid()),
    ):
        found = learned(
            lambda outputs, labels, f=criterion: f(unpack(outputs), labels),
            pack(SCORES),
            labels,
            pack(STUDENT),
        )
        assert found == pytest.approx(criterion(STUDENT, teacher).item(), rel=1e-5)


def test_a_model_that_computes_its_own_loss_has_classes_by_its_labels() -> None:
    outputs = Packed(SCORES, torch.tensor(1.0))
    student = Packed(STUDENT, torch.tensor(2.0))
    expected = soft_cross_entropy(STUDENT, SCORES).item()
    assert learned(lambda outputs, labels: outputs.loss, outputs, CLASSES, student) == expected


# Refused at the first step


def dice(outputs: Tensor, labels: Tensor) -> Tensor:
    shares = outputs.sigmoid()
    return 1 - 2 * (shares * labels).sum() / (shares.sum() + labels.sum())


def triplet(outputs: Tensor, labels: Tensor) -> Tensor:
    """Distances do not change when all outputs are moved together."""
    return (torch.cdist(outputs, outputs) * (labels[:, None] == labels)).mean()


@pytest.mark.parametrize(
    ("criterion", "outputs", "labels", "words"),
    [
        (dice, SCORES, YES_NO, r"criterion dice, outputs \(16, 5\), labels \(16, 5\)"),
        (triplet, SCORES, CLASSES, 'criterion triplet.*or distill="soft" for scores of classes'),
        (lambda o, y: bce(o, F.one_hot(y, C).float()), SCORES, CLASSES, '<lambda>.*distill="soft"'),
        (F.cross_entropy, SCORES[:, :1], CLASSES * 0, "cross_entropy"),
        (lambda o, y: o.loss, Packed(SCORES, torch.ones(())), TARGETS, "<lambda>"),
        (lambda o, y: F.mse_loss(o[0], y), (SCORES, SCORES), TARGETS, "returns a tuple, without"),
        (
            lambda o, y: F.mse_loss(o["a"], y),
            {"a": SCORES},
            TARGETS,
            "returns a dict of a, without",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(
    criterion: Any, outputs: Any, labels: Tensor, words: str
) -> None:
    with pytest.raises(UserError, match=f"^distill: .*{words}") as caught:
        choose_learning("auto", criterion, outputs, labels)
    assert "type distill=function of (student's outputs, teacher's outputs)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_outputs_that_are_broadcast_against_labels_are_refused() -> None:
    """[n, 1] and [n] make [n, n]: a mistake of many regressions."""
    with pytest.raises(UserError, match=r"mse_loss, outputs \(16, 1\), labels \(16,\)"):
        choose_learning("auto", F.mse_loss, SCORES[:, :1], TARGETS[:, 0])


@pytest.mark.parametrize("name", list(DISTILLATIONS))
def test_names_of_distillations_are_for_classes(name: str) -> None:
    learning = choose_learning(name, F.cross_entropy, {"logits": SCORES}, CLASSES)
    loss = learning(F.cross_entropy, {"logits": STUDENT}, {"logits": SCORES})
    assert loss == DISTILLATIONS[name](STUDENT, SCORES)
    choose_learning(name, F.cross_entropy, SCORES, SHARES)
    choose_learning(name, triplet, SCORES, CLASSES)  # asked for, and possible
    for outputs, labels, words in (
        (SCORES, TARGETS, f"{name} is for scores of classes.* against the outputs of"),
        (SCORES[:, 0], TARGETS[:, 0], "no scores of two or more classes"),
        (SCORES[:, :1], TARGETS[:, :1], "no scores of two or more classes"),
        ({"a": SCORES}, TARGETS, "without logits or out"),
    ):
        with pytest.raises(UserError, match=f"^distill: .*{words}"):
            choose_learning(name, F.mse_loss, outputs, labels)


def test_names_of_distillations_find_the_axis_of_the_classes() -> None:
    tokens, labels = torch.randn(2, 4, C), torch.arange(8).reshape(2, 4) % C
    learning = choose_learning("kl", lambda o, y: F.cross_entropy(o.mT, y), tokens, labels)
    student = torch.randn(2, 4, C)
    expected = DISTILLATIONS["kl"](student.flatten(0, 1), tokens.flatten(0, 1))
    assert learning(F.cross_entropy, student, tokens) == pytest.approx(expected.item())


def test_probabilities_are_tried_with_probabilities() -> None:
    """Outside of them, binary_cross_entropy stops a GPU for good."""

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        for values in (outputs, labels):
            assert values.min() >= 0
            assert values.max() <= 1
            seen.append(values)
        return F.binary_cross_entropy(outputs, labels) + dice(outputs.logit(), labels)

    seen: list[Tensor] = []
    with pytest.raises(UserError, match="cannot tell"):
        choose_learning("auto", criterion, SCORES.sigmoid(), YES_NO)
    assert len(seen) > 10


def test_a_function_of_ones_own_is_tried_at_once() -> None:
    with pytest.raises(AttributeError):
        choose_learning(F.mse_loss, F.cross_entropy, {"logits": SCORES}, CLASSES)


# In a training


def small(outputs: int) -> SlimmableNet:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs)]
    return joslim.slim(nn.Sequential(*layers), torch.zeros(2, 6), low=0.25)


@pytest.mark.parametrize("options", [{}, {"distill": "soft"}, {"distill": "kl"}])
def test_a_task_that_does_not_fit_fails_before_the_first_step(options: dict[str, Any]) -> None:
    """Even though children are not trained for the first 30% of the steps."""
    net, batch = small(4), (torch.randn(8, 6), (torch.rand(8, 4) > 0.5).float())
    slimming = joslim.Slimming(net, total_steps=100, scoring=[batch], **options)
    before = net.state_dict()["0.weight"].clone()
    with pytest.raises(UserError, match=r"^distill: "):
        slimming.step(*batch, torch.optim.SGD(net.parameters(), lr=1), bce if options else dice)
    assert torch.equal(net.state_dict()["0.weight"], before)
    # Where no child learns from the full network, nothing has to fit.
    for alone in ({"label_share": 1.0}, {"method": "single"}):
        slimming = joslim.Slimming(net, total_steps=100, scoring=[batch], **alone, **options)
        slimming.step(*batch, torch.optim.SGD(net.parameters(), lr=0.1), dice)


@pytest.mark.parametrize("task", ["regression", "labels"])
def test_children_learn_tasks_that_have_no_classes(
    task: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With soft labels the smallest child had a mean squared error of 0.2, and 27% wrong labels."""
    random = torch.Generator().manual_seed(1)
    x, w = torch.randn(1024, 6, generator=random), torch.randn(6, 4, generator=random)
    linear = x @ w
    y = torch.tanh(linear / 2) if task == "regression" else (linear > 0).float()
    batches = [(x[at : at + 64], y[at : at + 64]) for at in range(0, 512, 64)]
    net, criterion = small(4), F.mse_loss if task == "regression" else nn.BCEWithLogitsLoss()
    slimming = joslim.Slimming(net, total_steps=300, every=60, scoring=batches[:2])
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    with caplog.at_level(logging.INFO, "joslim"):
        for step in range(300):
            slimming.step(*batches[step % 8], optimizer, criterion)
    said = [record.message for record in caplog.records if "distill" in record.message]
    against = "outputs" if task == "regression" else "sigmoid of the outputs"
    assert len(said) == 1
    assert said[0].endswith(f"against the {against} of the full network")
    with torch.no_grad(), net.at(net.space.smallest):
        outputs = net(x[512:])
    if task == "regression":
        assert F.mse_loss(outputs, y[512:]) < 0.04
    else:
        assert ((outputs > 0) != (y[512:] > 0)).float().mean() < 0.08

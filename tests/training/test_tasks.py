"""Tasks: a loss, a metric and the shape of the outputs in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import joslim
from joslim import UserError
from joslim.runs.driver import Progress
from joslim.training.learning import choose_learning
from joslim.training.tasks import TASKS, LossOptions, check_outputs, class_weights

CLASSES, SHAPE = 3, {"language": (4,)}
LABELS: dict[str, torch.Tensor] = {
    "classification": torch.tensor([0, 2]),
    "multi-label": torch.tensor([[0.0, 1, 1], [1, 0, 0]]),
    "regression": torch.tensor([[0.5, 1, 2], [3, -1, 0]]),
    "segmentation": torch.randint(0, 3, (2, 5, 4)),
    "language": torch.randint(0, 3, (2, 4)),
}


@pytest.mark.parametrize("name", list(TASKS))
def test_a_task_has_a_loss_a_metric_and_a_way_to_learn(name: str) -> None:
    kind, labels = TASKS[name], LABELS[name]
    shape = SHAPE.get(name, (1, 5, 4))
    scores = torch.randn(2, *kind.outputs(CLASSES, shape), requires_grad=True)
    task = kind.make(LossOptions(ignore_index=kind.ignore_index or -100))
    assert task.criterion(scores, labels).isfinite()
    metric = task.metric.make()  # type: ignore[union-attr]
    metric.update(scores.detach(), labels)
    assert metric.compute() >= 0
    learning = choose_learning(task.distill, task.criterion, scores.detach(), labels)
    assert learning(task.criterion, scores, scores.detach()).isfinite()
    check_outputs(scores[:1], name, CLASSES, shape)
    with pytest.raises(UserError, match=rf"^model: its output is \(1, 9\), .*task {name}: \(n, "):
        check_outputs(torch.zeros(1, 9), name, CLASSES, shape)


def test_ignored_labels_weights_and_smoothing() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0])
    task = TASKS["segmentation"].make(LossOptions(0.1, weights, 1))
    scores, labels = torch.randn(2, 3, 5, 4), LABELS["segmentation"]
    expected = F.cross_entropy(scores, labels, weights, ignore_index=1, label_smoothing=0.1)
    assert task.criterion(scores, labels) == expected


def test_class_weights() -> None:
    assert class_weights("1,2,0.5", 3, list).tolist() == [1, 2, 0.5]
    balanced = class_weights("balanced", 3, lambda: [30, 10, 0]).tolist()
    assert balanced == pytest.approx([40 / 60, 40 / 20, 1])
    for text in ("1,2", "a,b,c", "1,-1,2", "1,nan,2"):
        with pytest.raises(UserError, match=r"^class_weights: .*type balanced, or 3 numbers"):
            class_weights(text, 3, list)


class Blobs:
    """Grey images of one bright square, with what there is to learn of them."""

    def __init__(self, task: str, count: int = 24) -> None:
        self.task, self.count = task, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Any, Any]:
        if at >= self.count:
            raise IndexError(at)
        random = np.random.default_rng(at)
        image = random.integers(0, 60, (12, 12), dtype=np.uint8)
        row, column = random.integers(0, 8, 2)
        image[row : row + 4, column : column + 4] = 250
        mask = (image == 250).astype(np.uint8)
        labels: dict[str, Any] = {
            "segmentation": mask,
            "regression": np.array([row, column]) / 8,
            "multi-label": np.array([row > 3, column > 3, True]),
        }
        return image, labels[self.task]


NETS: dict[str, Any] = {
    "segmentation": lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 2, 1)),
    "regression": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    ),
    "multi-label": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    ),
}
WORDS = {
    "segmentation": ("error (1 - mIoU)", "%"),
    "regression": ("RMSE", ""),
    "multi-label": ("Hamming loss", "%"),
}
SHORT: dict[str, Any] = {"steps": 4, "every": 2, "batch": 8, "threads": 1, "channels": 1}


@pytest.mark.parametrize("task", list(NETS))
def test_a_pair_of_data_sets_for_each_task(task: str, tmp_path: Path) -> None:
    pair = (Blobs(task), Blobs(task, 8))
    run = joslim.train(NETS[task](), pair, task=task, out=tmp_path / "a", **SHORT)
    assert (run.front.metric.label, run.front.metric.unit) == WORDS[task]
    assert run.front.errors("test_error")
    assert joslim.Front.read(tmp_path / "a").metric == run.front.metric
    wrong = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 5, 3))
    with pytest.raises(UserError, match=r"^model: its output is \(1, 5, 8, 8\), the data need \(n"):
        joslim.train(wrong, pair, task=task, out=tmp_path / "b", **SHORT)


def test_a_task_of_ones_own_and_its_resume(tmp_path: Path) -> None:
    """Bit-identical after a stop; the task has to be given again."""

    class Stop(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.done == 2:
            raise Stop

    def far(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((outputs - labels).abs() > 0.25).any(dim=1)

    task = joslim.Task(F.smooth_l1_loss, metric=far)
    data = joslim.load_data(
        (Blobs("regression"), Blobs("regression", 8)), channels=1, task="regression"
    )
    options: dict[str, Any] = {**SHORT, "task": task, "save_every": 1}
    torch.manual_seed(0)
    model = NETS["regression"]()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    whole = joslim.train(model, data, out=tmp_path / "whole", **options)
    assert whole.config.task == "<Task>"
    assert whole.front.metric.label == "error"

    def again() -> nn.Module:
        net = NETS["regression"]()
        net.load_state_dict(start)
        return net

    with pytest.raises(Stop):
        joslim.train(again(), data, out=tmp_path / "parts", watch=stop, **options)
    resumed = joslim.train(again(), data, out=tmp_path / "parts", resume=True, **options)
    assert resumed.front == whole.front
    for name, value in whole.net.state_dict().items():
        assert torch.equal(value, resumed.net.state_dict()[name])


def test_refused_tasks(tmp_path: Path) -> None:
    out = {"out": tmp_path / "a", **SHORT, "channels": 3}
    for options, words in (
        ({"task": "segmentatoin"}, "task: unknown name 'segmentatoin'.*segmentation"),
        ({"task": "segmentation"}, "task: segmentation does not go with data 'digits'"),
        ({"ignore_index": 3}, "ignore_index: task classification has no label to ignore"),
        ({"class_weights": "1,2"}, "class_weights: .* or 10 numbers"),
        ({"data": "text:nothing.txt"}, "data: there is no file 'nothing.txt'"),
        ({"data": "text:nothing.txt", "task": "regression"}, "task: regression does not go"),
    ):
        with pytest.raises(UserError, match=f"^{words}"):
            joslim.train("resnet8", **{"data": "digits", **options}, **out)
    with pytest.raises(UserError, match=r"^criterion: int given"):
        joslim.Task(3)  # type: ignore[arg-type]


def test_scores_may_be_in_a_dictionary() -> None:
    """As networks of torchvision return them."""
    task = TASKS["segmentation"].make(LossOptions(ignore_index=255))
    scores, labels = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    assert task.criterion({"out": scores}, labels) == task.criterion(scores, labels)


def test_images_for_a_language_model(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^model: tiny_llama takes inputs of torch.int64, the data"
    ):
        joslim.train("tiny_llama", "digits", steps=2, out=tmp_path / "a")

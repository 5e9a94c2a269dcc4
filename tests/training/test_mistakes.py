"""Mistakes by class: counted as numpy counts them, kept small, and read from any file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from joslim import Data, UserError
from joslim.front import MOST_CONFUSIONS, WORST, Front, Mistakes
from joslim.runs.folder import RunFolder
from joslim.training.evaluate import Tally
from joslim.training.metrics import wrong

from .small import slimming_of, train


def counted(labels: np.ndarray, guesses: np.ndarray, classes: int) -> Mistakes:
    tally = Tally()
    scores = F.one_hot(torch.from_numpy(guesses), classes)
    for part in np.array_split(np.arange(len(labels)), 3):
        tally.add(scores[part], torch.from_numpy(labels)[part])
    return Mistakes.of(tally.images, tally.confusions)


@pytest.mark.parametrize("classes", [2, 20, 60])
def test_they_are_a_confusion_matrix(classes: int) -> None:
    rng = np.random.default_rng(0)
    labels, guesses = rng.integers(0, classes, (2, 3000))
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (labels, guesses), 1)
    found = counted(labels, guesses, classes)
    rows = [(c, matrix[c].sum() - matrix[c, c], matrix[c].sum()) for c in range(classes)]
    assert [*found.classes] == rows
    ours = {(label, taken): count for label, taken, count in found.confusions}
    theirs = Counter({(a, b): n for (a, b), n in np.ndenumerate(matrix) if a != b and n})
    assert all(theirs[pair] == count for pair, count in ours.items())
    assert sorted(ours.values()) == sorted(theirs.values())[-MOST_CONFUSIONS:]
    assert (ours == theirs) == (classes <= 20)


def test_of_many_classes_the_worst_ten() -> None:
    labels = np.repeat(np.arange(150), 10)
    guesses = np.where(np.arange(1500) % 10 < labels % 11, (labels + 1) % 150, labels)
    found = counted(labels, guesses, 150)
    assert len(found.classes) == len(found.confusions) == WORST
    assert {row[1:] for row in found.classes} == {(10, 10)}


def test_a_front_has_those_of_its_children(digits: Data, tmp_path: Path) -> None:
    slimming = slimming_of(digits)
    train(slimming, digits, 8)
    front = slimming.front(F.cross_entropy, images=64, test=digits.sweep("test", 100))
    for point in front:
        assert point.mistakes is not None
        images = sum(row[2] for row in point.mistakes.classes)
        assert images == digits.sizes["test"]
        wrong_images = sum(row[1] for row in point.mistakes.classes)
        assert wrong_images == sum(row[2] for row in point.mistakes.confusions)
        assert 100 * wrong_images / images == point.test_error
        assert "mistakes" not in point.to_json()
    RunFolder(tmp_path).write_front(front, 0)
    text = (tmp_path / "front.json").read_text()
    assert json.loads(text) == json.loads(json.dumps({"step": 0, **front.to_json()}))
    row = [*front[0].mistakes.classes[0]]  # type: ignore[union-attr]
    assert f"{row}" in text, "one line each"
    assert Front.of_json(json.loads(text)) == front


def test_with_a_metric_of_ones_own_there_are_no_classes(digits: Data) -> None:
    slimming = slimming_of(digits)
    train(slimming, digits, 4)
    front = slimming.front(
        F.cross_entropy,
        images=64,
        test=digits.sweep("test", 100),
        metric=lambda outputs, labels: wrong(outputs, labels),
    )
    assert {point.mistakes for point in front} == {None}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"classes": []},
        {"classes": [[1, 2]], "confusions": []},
        {"classes": [[1, 2, "x"]], "confusions": []},
        {"classes": [[1, 2, -3]], "confusions": []},
        {"classes": [], "confusions": [[0, 1, 2]] * (MOST_CONFUSIONS + 1)},
    ],
)
def test_files_of_anybody(value: Any) -> None:
    with pytest.raises(UserError) as caught:
        Mistakes.of_json(value, "here")
    assert "here" in str(caught.value)
    assert "\n" not in str(caught.value)

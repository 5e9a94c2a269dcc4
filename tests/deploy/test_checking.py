"""The comparison of a file with the network."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from joslim.deploy.checking import Check, compared, samples_of, scores_in_place
from joslim.errors import RunFailed, UserError
from joslim.runs.folder import SAMPLES, RunFolder
from joslim.runs.run import Run

SCORES = torch.tensor([[1.0, 2.0], [3.0, -40.0]])


def given(scores: Tensor) -> Check:
    return compared([lambda x: scores[: len(x)]], torch.zeros(2, 1), SCORES)


def test_what_is_the_same() -> None:
    assert given(SCORES) == Check(0.0, 2, 2)
    assert str(given(SCORES)) == "largest difference 0.0e+00, classes agree on 2 of 2 samples"


def test_small_differences_are_those_of_the_largest_score() -> None:
    assert given(SCORES + 0.03).difference == pytest.approx(0.03, rel=0.01)
    with pytest.raises(RunFailed, match=r"largest difference 5.0e-02, classes agree on 2 of 2"):
        given(SCORES + 0.05)


@pytest.mark.parametrize("wrong", [SCORES.flip(1), SCORES * torch.nan, SCORES + torch.inf])
def test_large_differences(wrong: Tensor) -> None:
    with pytest.raises(RunFailed, match="differs from the network"):
        given(wrong)


def test_another_shape() -> None:
    with pytest.raises(RunFailed, match=r"the file gives \(2, 1\)"):
        given(SCORES[:, :1])


def test_one_image_alone_counts_too() -> None:
    with pytest.raises(RunFailed, match="differs"):
        compared([lambda x: SCORES[: len(x)] + (len(x) == 1)], torch.zeros(2, 1), SCORES)


def test_every_way_counts() -> None:
    ways = [lambda x: SCORES[: len(x)], lambda x: SCORES[: len(x)] + 1]
    with pytest.raises(RunFailed, match="differs"):
        compared(ways, torch.zeros(2, 1), SCORES)


def test_scores_in_place(tiny_run: Run) -> None:
    samples, widths = samples_of(tiny_run), tiny_run.front[0].widths
    scores = scores_in_place(tiny_run, widths, samples)
    torch.testing.assert_close(scores, tiny_run.net.child(widths).eval()(samples))
    assert not scores.requires_grad


@pytest.mark.parametrize(
    "tensors",
    [
        {"others": torch.zeros(2, 3, 4, 4)},
        {"inputs": torch.zeros(2, 3, 5, 4)},
        {"inputs": torch.zeros(0, 3, 4, 4)},
        {"inputs": torch.zeros(2, 3, 4, 4, dtype=torch.int64)},
        None,
    ],
)
def test_samples_that_are_none(
    tensors: dict[str, Tensor] | None, tiny_run: Run, tmp_path: Path
) -> None:
    run = Run(RunFolder(tmp_path), tiny_run.net, tiny_run.front)
    if tensors is not None:
        save_file(tensors, tmp_path / SAMPLES)
    with pytest.raises(UserError, match=r"^run: "):
        samples_of(run)

"""Whether an exported file computes what the network computes in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from torch import Tensor

from joslim.errors import RunFailed, UserError
from joslim.runs.folder import SAMPLES
from joslim.runs.run import Run
from joslim.training.evaluate import evaluating
from joslim.untrusted import stored_tensors
from joslim.widths import Widths

# Of the largest score, or of 1 if that is smaller. Sums in another order differ by 1e-4 in the
# deepest networks, a wrong weight or statistic by far more.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    """The largest difference of a score, and on how many samples the most likely class agrees."""

    difference: float
    agreeing: int
    samples: int

    def __str__(self) -> str:
        classes = f"classes agree on {self.agreeing} of {self.samples} samples"
        return f"largest difference {self.difference:.1e}, {classes}"


def samples_of(run: Run) -> Tensor:
    """[n, channels, height, width] inputs that the run has kept for this."""
    file = run.folder.file(SAMPLES)
    try:
        samples = stored_tensors(file)["inputs"] if file.is_file() else None
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"run: cannot read {str(file)!r}: {error}") from error
    if samples is None:
        raise UserError(f"run: {str(run.path)!r} has no {SAMPLES}, its training has not finished")
    shape = run.net.example[0].shape[1:]
    if samples.dtype != torch.float32 or samples.shape[1:] != shape or not len(samples):
        raise UserError(f"run: {str(file)!r} holds no inputs of shape {tuple(shape)}")
    return samples


def scores_in_place(run: Run, widths: Widths, samples: Tensor) -> Tensor:
    net = run.net
    with evaluating(net), net.at(widths):
        return net(samples.to(next(net.parameters()).device)).cpu()


def compared(
    ways: Sequence[Callable[[Tensor], Tensor]], samples: Tensor, expected: Tensor
) -> Check:
    """Every way to run a file, with all samples at once and with one: a mismatch is an error."""
    difference, agreeing = 0.0, len(samples)
    for forward in ways:
        with torch.no_grad():
            scores = forward(samples)
            single = forward(samples[:1])
        if scores.shape != expected.shape or single.shape != expected[:1].shape:
            raise RunFailed(f"export: the file gives {tuple(scores.shape)}, not what it should")
        both = torch.cat([scores - expected, single - expected[:1]]).abs()
        # A NaN is a difference without limit.
        difference = max(difference, both.nan_to_num(nan=torch.inf).max().item())
        same = scores.argmax(dim=1) == expected.argmax(dim=1)
        agreeing = min(agreeing, int(same.sum()))
    check = Check(difference, agreeing, len(samples))
    limit = TOLERANCE * max(1.0, expected.abs().max().item())
    if not difference <= limit:
        raise RunFailed(f"export: the file differs from the network: {check}; nothing is kept")
    return check

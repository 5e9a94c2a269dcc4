"""Augmentation of whole batches by torchvision: MixUp, CutMix and RandAugment.

They draw from torch's generator, which a run seeds by the step: a resume sees the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from joslim.errors import imported

Augment = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def make_augmentation(
    classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    mixup: float = 0.0,
    cutmix: float = 0.0,
    randaugment: int = 0,
) -> Augment | None:
    """Return a function of normalised images and classes; None if nothing is asked for.

    mixup, cutmix: Parameters of the Beta distribution; of both, one is drawn for each batch. The
    labels become probabilities of classes. randaugment: Magnitude of the changes of each image.
    """
    if not (mixup or cutmix or randaugment):
        return None
    field = "mixup" if mixup else "cutmix" if cutmix else "randaugment"
    v2 = imported("torchvision.transforms.v2", field)
    mixes: list[Any] = []
    if mixup:
        mixes.append(v2.MixUp(alpha=mixup, num_classes=classes))
    if cutmix:
        mixes.append(v2.CutMix(alpha=cutmix, num_classes=classes))
    mix = v2.RandomChoice(mixes) if len(mixes) > 1 else mixes[0] if mixes else None
    change = v2.RandAugment(magnitude=randaugment) if randaugment else None

    def augment(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if change is not None:
            means, stds = (torch.tensor(v, device=x.device)[:, None, None] for v in (mean, std))
            pixels = (x * stds + means).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
            changed = torch.stack([change(image) for image in pixels])
            x = ((changed.float() / 255 - means) / stds).contiguous()
        return mix(x, y) if mix is not None else (x, y)

    return augment

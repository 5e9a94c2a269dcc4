"""A small U-Net for segmentation (O. Ronneberger and others, 2015), with BatchNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .resnet import init_weights


def _two_convs(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Scores of the classes for each pixel, [n, classes, height, width], of images of any size."""

    slim_defaults = {"input": (3, 128, 128), "low": 0.25}

    def __init__(
        self,
        num_classes: int = 21,
        in_channels: int = 3,
        widths: tuple[int, ...] = (16, 32, 64, 128),
    ) -> None:
        super().__init__()
        self.down = nn.ModuleList(_two_convs(a, b) for a, b in zip((in_channels, *widths), widths))
        self.up = nn.ModuleList(_two_convs(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.head = nn.Conv2d(widths[0], num_classes, 1)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        maps: list[Tensor] = []
        for at, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if at else x)
            maps.append(x)
        maps.pop()
        for block in self.up:
            skip = maps.pop()
            x = F.interpolate(x, skip.shape[2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skip], dim=1))
        return self.head(x)


def unet(num_classes: int = 21, in_channels: int = 3) -> UNet:
    """U-Net with 16 to 128 channels and 0.5 million parameters."""
    return UNet(num_classes, in_channels)

"""MobileNetV2 (Sandler et al., 2018), with torchvision's names so that its weights load."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_weights

# expansion, output channels, blocks, stride of the first block (table 2 of its paper)
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class ConvNormReLU6(nn.Sequential):
    """Conv, BatchNorm and ReLU6."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(
            nn.Conv2d(
                in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out_channels),
            nn.ReLU6(),
        )


class InvertedResidual(nn.Module):
    """Expansion (unless by 1), depthwise conv, projection; a shortcut if the shapes agree."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        expand = [ConvNormReLU6(in_channels, hidden, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *expand,
            ConvNormReLU6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """Seventeen inverted residuals between a 3x3 stem and a 1x1 conv of 1280 channels."""

    slim_defaults: ClassVar[dict[str, Any]] = {"low": 0.42, "input": (3, 224, 224)}

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        channels = 32
        features: list[nn.Module] = [ConvNormReLU6(3, channels, 3, stride=2)]
        for expansion, out_channels, blocks, first_stride in STAGES:
            for index in range(blocks):
                stride = first_stride if index == 0 else 1
                features.append(InvertedResidual(channels, out_channels, expansion, stride))
                channels = out_channels
        features.append(ConvNormReLU6(channels, 1280, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        init_weights(self, linear_std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, 3, height, width] -> logits [n, num_classes]."""
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def mobilenet_v2(num_classes: int = 1000) -> MobileNetV2:
    """MobileNetV2 at full width."""
    return MobileNetV2(num_classes)

"""MobileNetV2 (Sandler et al., 2018) and MobileNetV3-Large (Howard et al., 2019).

Parameters have torchvision's names, so that its weights load.
"""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .resnet import init_weights

# MobileNetV2: expansion, output channels, blocks, stride of the first block (table 2 of its paper)
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

# MobileNetV3: kernel, expanded channels, output channels, channels of the squeeze-and-excitation
# (0: none), activation, stride
BLOCKS = (
    (3, 16, 16, 0, nn.ReLU, 1),
    (3, 64, 24, 0, nn.ReLU, 2),
    (3, 72, 24, 0, nn.ReLU, 1),
    (5, 72, 40, 24, nn.ReLU, 2),
    (5, 120, 40, 32, nn.ReLU, 1),
    (5, 120, 40, 32, nn.ReLU, 1),
    (3, 240, 80, 0, nn.Hardswish, 2),
    (3, 200, 80, 0, nn.Hardswish, 1),
    (3, 184, 80, 0, nn.Hardswish, 1),
    (3, 184, 80, 0, nn.Hardswish, 1),
    (3, 480, 112, 120, nn.Hardswish, 1),
    (3, 672, 112, 168, nn.Hardswish, 1),
    (5, 672, 160, 168, nn.Hardswish, 2),
    (5, 960, 160, 240, nn.Hardswish, 1),
    (5, 960, 160, 240, nn.Hardswish, 1),
)


class ConvNorm(nn.Sequential):
    """Conv, BatchNorm and an optional activation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        activation: type[nn.Module] | None,
        stride: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(
            nn.Conv2d(
                in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out_channels),
            *([activation()] if activation else []),
        )


class InvertedResidual(nn.Module):
    """Expansion (unless by 1), depthwise conv, projection; a shortcut if the shapes agree."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        expand = [ConvNorm(in_channels, hidden, 1, nn.ReLU6)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *expand,
            ConvNorm(hidden, hidden, 3, nn.ReLU6, stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


class SqueezeExcitation(nn.Module):
    """Scale every channel by a gate in [0, 1] that is computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.fc2(hidden))


class GatedInvertedResidual(nn.Module):
    """Expansion (if any), depthwise conv, gate, projection; a shortcut if the shapes agree."""

    def __init__(
        self,
        in_channels: int,
        kernel: int,
        expanded: int,
        out_channels: int,
        squeezed: int,
        activation: type[nn.Module],
        stride: int,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != in_channels:
            layers.append(ConvNorm(in_channels, expanded, 1, activation))
        layers.append(ConvNorm(expanded, expanded, kernel, activation, stride, groups=expanded))
        if squeezed:
            layers.append(SqueezeExcitation(expanded, squeezed))
        layers.append(ConvNorm(expanded, out_channels, 1, None))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return x + out if self.residual else out


class MobileNet(nn.Module):
    """Features, a mean over all pixels, and a classifier."""

    slim_defaults: ClassVar[dict[str, Any]] = {"low": 0.42, "input": (3, 224, 224)}
    features: nn.Sequential
    classifier: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, in_channels, height, width] -> logits [n, num_classes]."""
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


class MobileNetV2(MobileNet):
    """Seventeen inverted residuals between a 3x3 stem and a 1x1 conv of 1280 channels."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        channels = 32
        features: list[nn.Module] = [ConvNorm(in_channels, channels, 3, nn.ReLU6, stride=2)]
        for expansion, out_channels, blocks, first_stride in STAGES:
            for index in range(blocks):
                stride = first_stride if index == 0 else 1
                features.append(InvertedResidual(channels, out_channels, expansion, stride))
                channels = out_channels
        features.append(ConvNorm(channels, 1280, 1, nn.ReLU6))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        init_weights(self, linear_std=0.01)


class MobileNetV3(MobileNet):
    """Fifteen inverted residuals, a 1x1 conv of 960 channels, and a head with a hidden layer."""

    # As in the paper, the inner width of the gates is fixed; their output follows their input.
    slim_defaults: ClassVar[dict[str, Any]] = {
        **MobileNet.slim_defaults,
        "keep": ["features.*.fc1"],
    }

    def __init__(self, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        channels = 16
        features: list[nn.Module] = [ConvNorm(in_channels, channels, 3, nn.Hardswish, stride=2)]
        for kernel, expanded, out_channels, squeezed, activation, stride in BLOCKS:
            features.append(
                GatedInvertedResidual(
                    channels, kernel, expanded, out_channels, squeezed, activation, stride
                )
            )
            channels = out_channels
        features.append(ConvNorm(channels, 960, 1, nn.Hardswish))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1280, num_classes)
        )
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps, module.momentum = 0.001, 0.01
        init_weights(self, linear_std=0.01)


def mobilenet_v2(num_classes: int = 1000, in_channels: int = 3) -> MobileNetV2:
    """MobileNetV2 at full width."""
    return MobileNetV2(num_classes, in_channels)


def mobilenet_v3_large(num_classes: int = 1000, in_channels: int = 3) -> MobileNetV3:
    """MobileNetV3-Large at full width."""
    return MobileNetV3(num_classes, in_channels)

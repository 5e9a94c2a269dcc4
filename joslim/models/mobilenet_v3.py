"""MobileNetV3-Large (Howard et al., 2019), with torchvision's names so that its weights load."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_weights

# kernel, expanded channels, output channels, channels of the squeeze-and-excitation (0: none),
# activation, stride
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
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.Module] | None = None,
    ) -> None:
        super().__init__(
            nn.Conv2d(
                in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
            *([activation()] if activation else []),
        )


class SqueezeExcitation(nn.Module):
    """Scale every channel by a gate in [0, 1] that is computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.fc2(hidden))


class InvertedResidual(nn.Module):
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
            layers.append(ConvNorm(in_channels, expanded, 1, activation=activation))
        layers.append(
            ConvNorm(expanded, expanded, kernel, stride, groups=expanded, activation=activation)
        )
        if squeezed:
            layers.append(SqueezeExcitation(expanded, squeezed))
        layers.append(ConvNorm(expanded, out_channels, 1))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return x + out if self.residual else out


class MobileNetV3(nn.Module):
    """Fifteen inverted residuals, a 1x1 conv of 960 channels, and a head with a hidden layer."""

    # As in the paper, the inner width of the gates is fixed; their output follows their input.
    slim_defaults: ClassVar[dict[str, Any]] = {
        "low": 0.42,
        "input": (3, 224, 224),
        "keep": ["features.*.fc1"],
    }

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        channels = 16
        features: list[nn.Module] = [ConvNorm(3, channels, 3, 2, activation=nn.Hardswish)]
        for kernel, expanded, out_channels, squeezed, activation, stride in BLOCKS:
            features.append(
                InvertedResidual(
                    channels, kernel, expanded, out_channels, squeezed, activation, stride
                )
            )
            channels = out_channels
        features.append(ConvNorm(channels, 960, 1, activation=nn.Hardswish))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1280, num_classes)
        )
        init_weights(self, linear_std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, 3, height, width] -> logits [n, num_classes]."""
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def mobilenet_v3_large(num_classes: int = 1000) -> MobileNetV3:
    """MobileNetV3-Large at full width."""
    return MobileNetV3(num_classes)

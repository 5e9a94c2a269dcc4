"""ResNets for CIFAR (He et al., 2016, section 4.2): three stages, shortcuts without weights."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_weights


class Block(nn.Module):
    """Two 3x3 convs and a shortcut that pads missing channels with zeros (option A)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, ::2, ::2] if self.stride == 2 else x
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride == 2:
            # Widths are read from the tensors, so that they follow the child; a negative pad crops.
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, out.shape[1] - shortcut.shape[1]))
        return F.relu(out + shortcut)


class CifarResNet(nn.Module):
    """A stem and three stages of (depth - 2) / 6 blocks, with 16, 32 and 64 x width channels."""

    # The inner convs of a stage share one knob, as in the paper; its residual sum has another.
    slim_defaults: ClassVar[dict[str, Any]] = {
        "low": 0.316,
        "input": (3, 32, 32),
        "tie": [["layer1.*.conv1"], ["layer2.*.conv1"], ["layer3.*.conv1"]],
    }

    def __init__(self, depth: int, num_classes: int = 10, width: int = 1) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise ValueError(f"depth={depth}: a CIFAR ResNet has 6n + 2 layers (8, 14, 20, ...)")
        narrow, middle, wide = 16 * width, 32 * width, 64 * width
        self.conv1 = nn.Conv2d(3, narrow, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.layer1 = _stage(narrow, narrow, blocks, stride=1)
        self.layer2 = _stage(narrow, middle, blocks, stride=2)
        self.layer3 = _stage(middle, wide, blocks, stride=2)
        self.fc = nn.Linear(wide, num_classes)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, 3, height, width] -> logits [n, num_classes]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = Block(in_channels, channels, stride)
    return nn.Sequential(first, *(Block(channels, channels, 1) for _ in range(blocks - 1)))


def resnet8(num_classes: int = 10, width: int = 1) -> CifarResNet:
    """ResNet8: one block a stage, the smallest, for tests and demonstrations."""
    return CifarResNet(8, num_classes, width)


def resnet20(num_classes: int = 10, width: int = 1) -> CifarResNet:
    """ResNet20: three blocks a stage. The paper also uses it 2 to 5 times as wide."""
    return CifarResNet(20, num_classes, width)


def resnet20_2x(num_classes: int = 10) -> CifarResNet:
    """ResNet20 with 2 times as many channels."""
    return CifarResNet(20, num_classes, width=2)


def resnet20_3x(num_classes: int = 10) -> CifarResNet:
    """ResNet20 with 3 times as many channels."""
    return CifarResNet(20, num_classes, width=3)


def resnet20_4x(num_classes: int = 10) -> CifarResNet:
    """ResNet20 with 4 times as many channels."""
    return CifarResNet(20, num_classes, width=4)


def resnet20_5x(num_classes: int = 10) -> CifarResNet:
    """ResNet20 with 5 times as many channels."""
    return CifarResNet(20, num_classes, width=5)


def resnet32(num_classes: int = 10, width: int = 1) -> CifarResNet:
    """ResNet32: five blocks a stage."""
    return CifarResNet(32, num_classes, width)


def resnet44(num_classes: int = 10, width: int = 1) -> CifarResNet:
    """ResNet44: seven blocks a stage."""
    return CifarResNet(44, num_classes, width)


def resnet56(num_classes: int = 10, width: int = 1) -> CifarResNet:
    """ResNet56: nine blocks a stage."""
    return CifarResNet(56, num_classes, width)

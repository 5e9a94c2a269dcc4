"""ResNets for ImageNet (He et al., 2016), with torchvision's names so that its weights load."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .init import init_weights


class BasicBlock(nn.Module):
    """Two 3x3 convs and a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convs. The 3x3 conv has the stride (v1.5); a 1x1 conv would skip pixels."""

    expansion: ClassVar[int] = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x))


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the identity if the shapes agree, or else a 1x1 conv."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
    )


class ResNet(nn.Module):
    """A 7x7 stem and four stages with the given numbers of blocks."""

    slim_defaults: ClassVar[dict[str, Any]] = {"low": 0.42, "input": (3, 224, 224)}

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, int, int, int],
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(block, 64, 64, blocks[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, blocks[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, blocks[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, blocks[3], stride=2)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, 3, height, width] -> logits [n, num_classes]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    in_channels: int,
    channels: int,
    blocks: int,
    stride: int,
) -> nn.Sequential:
    first = block(in_channels, channels, stride)
    rest = (block(channels * block.expansion, channels, 1) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


def resnet18(num_classes: int = 1000) -> ResNet:
    """ResNet18: eight basic blocks; the ResNet of the ImageNet experiments in the paper."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet34(num_classes: int = 1000) -> ResNet:
    """ResNet34: sixteen basic blocks."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    """ResNet50: sixteen bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)

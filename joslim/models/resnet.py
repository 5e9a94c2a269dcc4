"""ResNets (He et al., 2016): for CIFAR, and for ImageNet with torchvision's names of weights."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn


def init_weights(model: nn.Module, linear_std: float | None = None) -> None:
    """Initialise the weights of a network in place.

    Convs are Kaiming normal over the fan-out, which keeps gradients at scale (He et al., 2015).
    Their biases are zero. BatchNorm starts as the identity. Linear layers keep PyTorch's
    initialisation, or are normal with this deviation, and biases of zero, as in MobileNets.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and linear_std is not None:
            nn.init.normal_(module.weight, std=linear_std)
            nn.init.zeros_(module.bias)


class TwoConvs(nn.Module):
    """The two 3x3 convs of a basic block, without its shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def convs(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return out


class PaddedBlock(TwoConvs):
    """A basic block whose shortcut pads missing channels with zeros (option A), for CIFAR."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__(in_channels, channels, stride)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, ::2, ::2] if self.stride == 2 else x  # first, so that x can be freed
        out = self.convs(x)
        if self.stride == 2:
            # Widths are read from the tensors, so that they follow the child; a negative pad crops.
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, out.shape[1] - shortcut.shape[1]))
        return F.relu(out + shortcut)


class BasicBlock(TwoConvs):
    """A basic block whose shortcut has a 1x1 conv where the shapes differ."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__(in_channels, channels, stride)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convs(x) + self.downsample(x))


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


def _stage(
    block: type[TwoConvs] | type[Bottleneck],
    in_channels: int,
    channels: int,
    blocks: int,
    stride: int,
) -> nn.Sequential:
    first = block(in_channels, channels, stride)
    rest = (block(channels * block.expansion, channels, 1) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


class CifarResNet(nn.Module):
    """A stem and three stages of (depth - 2) / 6 blocks, with 16, 32 and 64 x width channels."""

    # The inner convs of a stage share one knob, as in the paper; its residual sum has another.
    slim_defaults: ClassVar[dict[str, Any]] = {
        "low": 0.316,
        "input": (3, 32, 32),
        "tie": [["layer1.*.conv1"], ["layer2.*.conv1"], ["layer3.*.conv1"]],
    }

    def __init__(
        self, depth: int, num_classes: int = 10, width: int = 1, in_channels: int = 3
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise ValueError(f"depth={depth}: a CIFAR ResNet has 6n + 2 layers (8, 14, 20, ...)")
        narrow, middle, wide = 16 * width, 32 * width, 64 * width
        self.conv1 = nn.Conv2d(in_channels, narrow, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.layer1 = _stage(PaddedBlock, narrow, narrow, blocks, stride=1)
        self.layer2 = _stage(PaddedBlock, narrow, middle, blocks, stride=2)
        self.layer3 = _stage(PaddedBlock, middle, wide, blocks, stride=2)
        self.fc = nn.Linear(wide, num_classes)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, in_channels, height, width] -> logits [n, num_classes]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class ResNet(nn.Module):
    """A 7x7 stem and four stages with the given numbers of blocks."""

    slim_defaults: ClassVar[dict[str, Any]] = {"low": 0.42, "input": (3, 224, 224)}

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, int, int, int],
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(block, 64, 64, blocks[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, blocks[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, blocks[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, blocks[3], stride=2)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, in_channels, height, width] -> logits [n, num_classes]."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def resnet8(num_classes: int = 10, width: int = 1, in_channels: int = 3) -> CifarResNet:
    """ResNet8: one block a stage, the smallest, for tests and demonstrations."""
    return CifarResNet(8, num_classes, width, in_channels=in_channels)


def resnet20(num_classes: int = 10, width: int = 1, in_channels: int = 3) -> CifarResNet:
    """ResNet20: three blocks a stage. The paper also uses it 2 to 5 times as wide."""
    return CifarResNet(20, num_classes, width, in_channels=in_channels)


def resnet20_2x(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet20 with 2 times as many channels."""
    return CifarResNet(20, num_classes, width=2, in_channels=in_channels)


def resnet20_3x(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet20 with 3 times as many channels."""
    return CifarResNet(20, num_classes, width=3, in_channels=in_channels)


def resnet20_4x(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet20 with 4 times as many channels."""
    return CifarResNet(20, num_classes, width=4, in_channels=in_channels)


def resnet20_5x(num_classes: int = 10, in_channels: int = 3) -> CifarResNet:
    """ResNet20 with 5 times as many channels."""
    return CifarResNet(20, num_classes, width=5, in_channels=in_channels)


def resnet32(num_classes: int = 10, width: int = 1, in_channels: int = 3) -> CifarResNet:
    """ResNet32: five blocks a stage."""
    return CifarResNet(32, num_classes, width, in_channels=in_channels)


def resnet44(num_classes: int = 10, width: int = 1, in_channels: int = 3) -> CifarResNet:
    """ResNet44: seven blocks a stage."""
    return CifarResNet(44, num_classes, width, in_channels=in_channels)


def resnet56(num_classes: int = 10, width: int = 1, in_channels: int = 3) -> CifarResNet:
    """ResNet56: nine blocks a stage."""
    return CifarResNet(56, num_classes, width, in_channels=in_channels)


def resnet18(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """ResNet18: eight basic blocks; the ResNet of the ImageNet experiments in the paper."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def resnet34(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """ResNet34: sixteen basic blocks."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


def resnet50(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """ResNet50: sixteen bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)

"""Small example networks in the styles that people write them in, for the tests of `slim`."""

from __future__ import annotations

import copy
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim


@dataclass(frozen=True)
class ExampleNetwork:
    """`knobs`: as few as slim() may find; `pickles`: whether the plain model does."""

    name: str
    make: Callable[[], nn.Module]
    knobs: int
    inputs: tuple[tuple[int, ...], ...]
    pickles: bool


NETWORKS: dict[str, ExampleNetwork] = {}


def example(knobs: int, *inputs: tuple[int, ...], pickles: bool = True) -> Any:
    """Put a class without constructor arguments into the table."""

    def register(cls: Any) -> Any:
        name = cls.__name__
        NETWORKS[name] = ExampleNetwork(name, cls, knobs, inputs or ((3, 16, 16),), pickles)
        return cls

    return register


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Statistics and affine parameters that are anything but zeros and ones."""
    generator = torch.Generator().manual_seed(seed)

    def around(tensor: Tensor, middle: float) -> None:
        noise = torch.rand(tensor.shape, generator=generator) - 0.5
        tensor.data.copy_(middle + 0.8 * noise)

    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            around(module.running_mean, 0.0)
            around(module.running_var, 1.0)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1 or "gamma" in name:
                around(parameter, 0.0 if "bias" in name else 1.0)
    return model


def fresh(name: str) -> nn.Module:
    torch.manual_seed(0)
    return shaken(NETWORKS[name].make()).eval()


def inputs_for(name: str, batch: int = 2, seed: int = 1) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = NETWORKS[name].inputs
    return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)


@cache
def slimmed(name: str) -> tuple[nn.Module, Any]:
    """The plain model, and the same made slimmable. Copy what you change."""
    model = fresh(name)
    return model, joslim.slim(copy.deepcopy(model), inputs_for(name))


# --- residual networks ----------------------------------------------------------------------------


def conv_bn(inside: int, out: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, out, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(out)
    )


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes * self.expansion:
            self.downsample = conv_bn(inplanes, planes * self.expansion, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


@example(11)
class BottleneckResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(8, 4), Bottleneck(16, 4))
        self.layer2 = nn.Sequential(Bottleneck(16, 6, 2), Bottleneck(24, 6))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class PreActivationBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm_a = nn.BatchNorm2d(inside)
        self.conv_a = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.norm_b = nn.BatchNorm2d(out)
        self.conv_b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        if stride != 1 or inside != out:
            self.shortcut = nn.Conv2d(inside, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm_a(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv_a(out)
        out = self.conv_b(F.relu(self.norm_b(out)))
        return out + shortcut


@example(7)
class PreActivationResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.blocks = nn.ModuleList(
            PreActivationBlock(*arguments)
            for arguments in [(8, 8, 1), (8, 12, 2), (12, 12, 1), (12, 16, 2)]
        )
        self.bn = nn.BatchNorm2d(16)
        self.linear = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = F.avg_pool2d(F.relu(self.bn(x)), 4)
        return self.linear(x.view(x.size(0), -1))


class ZeroPad(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class PaddedBlock(nn.Module):
    def __init__(self, inside: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Sequential()
        if stride != 1 or inside != planes:
            self.shortcut = ZeroPad(
                lambda x: F.pad(
                    x[:, :, ::2, ::2], (0, 0, 0, 0, planes // 4, planes // 4), "constant", 0
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return F.relu(out)


@example(4, pickles=False)
class ZeroPadResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layers = nn.Sequential(
            PaddedBlock(8, 8), PaddedBlock(8, 16, 2), PaddedBlock(16, 32, 2)
        )
        self.linear = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(F.relu(self.bn1(self.conv1(x))))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


@example(4)
class ShapeBranches(nn.Module):
    """Adds the input of a block where it happens to fit, and pads or drops it where it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        sizes = [(8, 10, 8, 1), (8, 12, 16, 2), (16, 10, 16, 1)]
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_bn(i, m, 3, s), nn.ReLU(), conv_bn(m, o)) for i, m, o, s in sizes
        )
        self.neck, self.head = nn.Conv2d(16, 12, 1), nn.Conv2d(12, 20, 1)
        self.fc = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for block in self.blocks:
            out = block(x)
            if x.shape == out.shape:
                out = out + x
            x = F.relu(out)
        x = self.neck(x)
        y = self.head(x)
        if x.shape[2:] == y.shape[2:]:
            y = y + F.pad(x, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))
        return self.fc(F.relu(y).mean([2, 3]))


@example(6)
class GroupedResNet(nn.Module):
    """Bottlenecks with grouped convolutions, as in RegNets and ResNeXts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2)
        self.units = nn.ModuleList()
        for inside, out, groups, stride in [(8, 16, 4, 2), (16, 16, 4, 1), (16, 24, 3, 2)]:
            body = nn.Sequential(
                OrderedDict(
                    a=conv_bn(inside, out, 1),
                    a_relu=nn.ReLU(),
                    b=conv_bn(out, out, 3, stride, groups),
                    b_relu=nn.ReLU(),
                    c=conv_bn(out, out, 1),
                )
            )
            same = inside == out and stride == 1
            short = nn.Identity() if same else conv_bn(inside, out, 1, stride)
            self.units.append(nn.ModuleDict({"body": body, "short": short}))
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for unit in self.units:
            x = torch.relu(unit["body"](x) + unit["short"](x))
        return self.head(x.mean(dim=(-2, -1)))


# --- networks that concatenate --------------------------------------------------------------------


class DenseLayer(nn.Module):
    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.cat(features, 1)
        x = self.conv1(F.relu(self.norm1(x), inplace=True))
        return self.conv2(F.relu(self.norm2(x), inplace=True))


@example(15)
class DenseNet(nn.Module):
    def __init__(self, growth: int = 4) -> None:
        super().__init__()
        channels = 8
        self.first = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.blocks.append(
                nn.ModuleList(DenseLayer(channels + i * growth, growth) for i in range(3))
            )
            channels += 3 * growth
            self.transitions.append(
                nn.Sequential(
                    nn.BatchNorm2d(channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                )
            )
            channels //= 2
        self.classifier = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block, transition in zip(self.blocks, self.transitions):
            features = [x]
            for layer in block:
                features.append(layer(features))
            x = transition(torch.cat(features, dim=1))
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class DualPathBlock(nn.Module):
    def __init__(self, inside: int, residual: int, dense: int, project: bool) -> None:
        super().__init__()
        self.residual = residual
        self.project = nn.Conv2d(inside, residual + dense, 1) if project else None
        self.squeeze = conv_bn(inside, 8, 1)
        self.mix = conv_bn(8, 8)
        self.grow = nn.Conv2d(8, residual + dense, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.grow(F.relu(self.mix(F.relu(self.squeeze(x)))))
        kept = x if self.project is None else self.project(x)
        res = kept[:, : self.residual, :, :] + out[:, : self.residual, :, :]
        dense = (kept[:, self.residual :, :, :], out[:, self.residual :, :, :])
        return torch.cat((res, *dense), dim=1)


@example(8)
class DualPath(nn.Module):
    """The outputs of a convolution are cut in two at a literal channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.one = DualPathBlock(8, 12, 4, project=True)
        self.two = DualPathBlock(12 + 2 * 4, 12, 4, project=False)
        self.last = conv_bn(12 + 3 * 4, 16, 1)
        self.fc = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.last(self.two(self.one(self.stem(x)))))
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1))).flatten(1)


class Mixed(nn.Module):
    def __init__(self, inside: int, sizes: tuple[int, int, int, int]) -> None:
        super().__init__()
        a, b, c, d = sizes
        self.branch1 = conv_bn(inside, a, 1)
        self.branch2 = nn.Sequential(conv_bn(inside, b, 1), nn.ReLU(), conv_bn(b, b, 3))
        self.branch3 = nn.Sequential(conv_bn(inside, c, 1), nn.ReLU(), conv_bn(c, c, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(inside, d, 1))

    def _forward(self, x: Tensor) -> list[Tensor]:
        return [self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self._forward(x), 1)


@example(13)
class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2, 1)
        self.mixed_a = Mixed(8, (4, 6, 4, 2))
        self.mixed_b = Mixed(16, (6, 4, 4, 6))
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.mixed_a(self.conv(x)))
        x = F.relu(self.mixed_b(F.max_pool2d(x, 3, stride=2, ceil_mode=True)))
        x = F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1)
        return self.fc(self.dropout(x))


@example(7)
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv_bn(3, 8), conv_bn(8, 12), conv_bn(12, 16)
        self.up2 = nn.ConvTranspose2d(16, 12, 2, 2)
        self.dec2 = conv_bn(24, 12)
        self.up1 = nn.ConvTranspose2d(12, 8, kernel_size=4, stride=2, padding=1)
        self.dec1 = conv_bn(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        x = F.relu(self.bottom(F.max_pool2d(two, 2)))
        x = F.relu(self.dec2(torch.cat([two, self.up2(x)], dim=1)))
        x = F.relu(self.dec1(torch.cat([one, self.up1(x)], dim=1)))
        return self.out(x)


# --- mobile networks ------------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(channels, inner), nn.ReLU(), nn.Linear(inner, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(b, c)
        return x * self.fc(y).view(b, c, 1, 1).expand_as(x)


@example(4)
class SqueezeExciteNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.a, self.gate_a = conv_bn(8, 8), SqueezeExcite(8, 4)
        self.b, self.gate_b = conv_bn(8, 16, 3, 2), SqueezeExcite(16, 4)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.gate_a(self.a(x)) + x)
        x = F.relu(self.gate_b(self.b(x)))
        return self.fc(x.mean(3).mean(2))


class InvertedResidual(nn.Module):
    def __init__(self, inside: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inside * expand
        self.use_res_connect = stride == 1 and inside == out
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [*conv_bn(inside, hidden, 1), nn.ReLU6(inplace=True)]
        layers += [*conv_bn(hidden, hidden, 3, stride, hidden), nn.ReLU6(inplace=True)]
        layers += [*conv_bn(hidden, out, 1)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


@example(6)
class InvertedResiduals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_bn(3, 8, 3, 2),
            nn.ReLU6(inplace=True),
            InvertedResidual(8, 4, 1, 1),
            InvertedResidual(4, 6, 2, 4),
            InvertedResidual(6, 6, 1, 4),
            *conv_bn(6, 24, 1),
            nn.ReLU6(inplace=True),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(F.adaptive_avg_pool2d(x, 1).reshape(x.shape[0], -1))


class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, i: Tensor) -> Tensor:
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (i,) = ctx.saved_tensors
        s = torch.sigmoid(i)
        return grad * (s * (1 + i * (1 - s)))


class MemoryEfficientSwish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return SwishFunction.apply(x)


class Conv2dSamePadding(nn.Conv2d):
    """Pads as TensorFlow does: by what the input happens to need."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size, k, s in zip(x.size()[:1:-1], self.weight.size()[:1:-1], self.stride[::-1]):
            need = max((math.ceil(size / s) - 1) * s + k - size, 0)
            pads += [need // 2, need - need // 2]
        if any(pads):
            x = F.pad(x, pads)
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class MBConv(nn.Module):
    def __init__(self, inside: int, out: int, k: int, stride: int, expand: int) -> None:
        super().__init__()
        oup = inside * expand
        self.skip = stride == 1 and inside == out
        self._expand_conv = Conv2dSamePadding(inside, oup, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(oup, momentum=0.01, eps=1e-3)
        self._depthwise_conv = Conv2dSamePadding(oup, oup, k, stride, groups=oup, bias=False)
        self._bn1 = nn.BatchNorm2d(oup, momentum=0.01, eps=1e-3)
        self._se_reduce = Conv2dSamePadding(oup, max(1, inside // 2), 1)
        self._se_expand = Conv2dSamePadding(max(1, inside // 2), oup, 1)
        self._project_conv = Conv2dSamePadding(oup, out, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(out, momentum=0.01, eps=1e-3)
        self._swish = MemoryEfficientSwish()

    def forward(self, inputs: Tensor, drop_connect_rate: float = 0.2) -> Tensor:
        x = self._swish(self._bn0(self._expand_conv(inputs)))
        x = self._swish(self._bn1(self._depthwise_conv(x)))
        squeezed = self._se_expand(self._swish(self._se_reduce(F.adaptive_avg_pool2d(x, 1))))
        x = torch.sigmoid(squeezed) * x
        x = self._bn2(self._project_conv(x))
        if self.skip:
            if self.training:
                keep = 1 - drop_connect_rate
                mask = torch.rand([x.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device)
                x = x / keep * torch.floor(keep + mask)
            x = x + inputs
        return x


@example(8)
class EfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = Conv2dSamePadding(3, 8, 3, stride=2, bias=False)
        self._bn0 = nn.BatchNorm2d(8)
        self._blocks = nn.ModuleList(
            [MBConv(8, 8, 3, 1, 2), MBConv(8, 12, 5, 2, 2), MBConv(12, 12, 3, 1, 2)]
        )
        self._fc = nn.Linear(12, 5)
        self._swish = MemoryEfficientSwish()

    def forward(self, inputs: Tensor) -> Tensor:
        x = self._swish(self._bn0(self._conv_stem(inputs)))
        for idx, block in enumerate(self._blocks):
            x = block(x, drop_connect_rate=0.2 * idx / len(self._blocks))
        return self._fc(F.adaptive_avg_pool2d(x, 1).flatten(start_dim=1))


class ShuffleUnit(nn.Module):
    def __init__(self, inside: int, out: int, groups: int, stride: int) -> None:
        super().__init__()
        self.groups, self.stride = groups, stride
        out = out - inside if stride == 2 else out
        self.conv1 = nn.Conv2d(inside, 8, 1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride, 1, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.conv3 = nn.Conv2d(8, out, 1, groups=groups, bias=False)
        self.bn3 = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        n, c, h, w = out.size()
        g = self.groups
        out = out.view(n, g, c // g, h, w).permute(0, 2, 1, 3, 4).reshape(n, c, h, w)
        out = self.bn3(self.conv3(self.bn2(self.conv2(out))))
        if self.stride == 2:
            return F.relu(torch.cat([out, F.avg_pool2d(x, 3, stride=2, padding=1)], 1))
        return F.relu(out + x)


@example(3)
class ShuffleNetV1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 8, 1), nn.ReLU())
        self.stage = nn.Sequential(ShuffleUnit(8, 24, 2, 2), ShuffleUnit(24, 24, 2, 1))
        self.last = nn.Sequential(*conv_bn(24, 16, 1), nn.ReLU())
        self.linear = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(self.stage(self.stem(x)))
        return self.linear(F.adaptive_avg_pool2d(out, 1).view(out.size(0), -1))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.data.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, -1, height, width)


class SplitUnit(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            *conv_bn(half, half, 1),
            nn.ReLU(),
            *conv_bn(half, half, 3, 1, half),
            *conv_bn(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((one, F.relu(self.branch(two))), dim=1), 2)


@example(6)
class ShuffleNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16, 3, 2)
        self.stage2 = nn.Sequential(SplitUnit(16), SplitUnit(16))
        self.down = conv_bn(16, 24, 3, 2)
        self.stage3 = nn.Sequential(SplitUnit(24), SplitUnit(24))
        self.conv5 = conv_bn(24, 32, 1)
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(F.relu(self.conv1(x)))
        x = F.relu(self.conv5(self.stage3(F.relu(self.down(x)))))
        return self.fc(x.mean([2, 3]))


class GhostModule(nn.Module):
    def __init__(self, inp: int, oup: int, relu: bool = True) -> None:
        super().__init__()
        self.oup = oup
        init = math.ceil(oup / 2)
        act = nn.ReLU(inplace=True) if relu else nn.Sequential()
        self.primary_conv = nn.Sequential(*conv_bn(inp, init, 1), act)
        self.cheap_operation = nn.Sequential(*conv_bn(init, init, 3, 1, init), act)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary_conv(x)
        x2 = self.cheap_operation(x1)
        out = torch.cat([x1, x2], dim=1)
        return out[:, : self.oup, :, :]


@example(3)
class GhostNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = conv_bn(3, 8, 3, 2)
        self.ghost1, self.ghost2 = GhostModule(8, 16), GhostModule(16, 8, relu=False)
        self.ghost3 = GhostModule(8, 20)
        self.classifier = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv_stem(x))
        x = self.ghost2(self.ghost1(x)) + x
        x = F.adaptive_avg_pool2d(self.ghost3(x), (1, 1))
        return self.classifier(x.view(x.size(0), -1))


@example(3)
class DepthMultiplier(nn.Module):
    """Depthwise convolutions that make two channels out of each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.spread = conv_bn(8, 16, 3, 2, 8)
        self.point = conv_bn(16, 12, 1)
        self.spread_more = nn.Conv2d(12, 36, 3, 2, 1, groups=12)
        self.last = nn.Conv2d(36, 10, 1)
        self.fc = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.spread(F.relu(self.stem(x))))
        x = F.relu(self.spread_more(F.relu(self.point(x))))
        return self.fc(F.relu(self.last(x)).amax((2, 3)))


# --- many resolutions -----------------------------------------------------------------------------


class Fuse(nn.Module):
    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.fuse_layers = nn.ModuleList()
        for i, out in enumerate(channels):
            row = nn.ModuleList()
            for j, inside in enumerate(channels):
                if j == i:
                    row.append(nn.Identity())
                elif j > i:
                    row.append(conv_bn(inside, out, 1))
                else:
                    row.append(conv_bn(inside, out, 3, 2))
            self.fuse_layers.append(row)

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        fused = []
        for i, row in enumerate(self.fuse_layers):
            y: Any = 0
            for j, layer in enumerate(row):
                part = layer(xs[j])
                if j > i:
                    size = xs[i].shape[-2:]
                    part = F.interpolate(part, size=size, mode="bilinear", align_corners=False)
                y = y + part
            fused.append(F.relu(y))
        return fused


@example(6)
class HighResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.transition = nn.ModuleList([conv_bn(8, 8), conv_bn(8, 12, 3, 2)])
        self.branches = nn.ModuleList([conv_bn(8, 8), conv_bn(12, 12)])
        self.fuse = Fuse([8, 12])
        self.last = nn.Sequential(nn.Conv2d(20, 10, 1), nn.BatchNorm2d(10), nn.ReLU())
        self.heat = nn.Conv2d(10, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        xs = [F.relu(layer(x)) for layer in self.transition]
        xs = self.fuse([branch(y) for branch, y in zip(self.branches, xs)])
        up = F.interpolate(xs[1], scale_factor=2, mode="nearest")
        return self.heat(self.last(torch.cat([xs[0], up], 1)))


@example(3)
class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, 1, 1)
        self.body = nn.Sequential(nn.Conv2d(8, 12, 3, 1, 1), nn.LeakyReLU(0.1))
        self.up = nn.Sequential(nn.Conv2d(12, 32, 3, 1, 1), nn.PixelShuffle(2))
        self.leave = nn.Conv2d(8, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.up(self.body(self.enter(x)))) + F.interpolate(x, scale_factor=2)


# --- flat heads -----------------------------------------------------------------------------------


def vgg_features() -> nn.Sequential:
    layers: list[nn.Module] = []
    inside = 3
    for size in (8, "M", 12, 12, "M", 16, "M"):
        if size == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(inside, int(size), 3, padding=1), nn.ReLU(True)]
            inside = int(size)
    return nn.Sequential(*layers)


@example(6)
class SizedVgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = vgg_features()
        self.classifier = nn.Sequential(
            nn.Linear(16 * 2 * 2, 24), nn.ReLU(), nn.Dropout(), nn.Linear(24, 16), nn.ReLU(),
            nn.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = x.view(x.size(0), -1)
        return self.classifier(x)


@example(4)
class LiteralVgg(nn.Module):
    """`view` with a literal count: the last convolution has to stay as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.features = vgg_features()
        self.fc1, self.fc2 = nn.Linear(64, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).view(-1, 64)
        return self.fc2(F.relu(self.fc1(x)))


# --- norms, gates and attention -------------------------------------------------------------------


class LayerNorm2(nn.Module):
    """Channels last through torch's function, channels first by hand."""

    def __init__(self, normalized_shape: int, eps: float = 1e-6, data_format: str = "last") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))
        self.eps, self.data_format = eps, data_format
        self.normalized_shape = (normalized_shape,)

    def forward(self, x: Tensor) -> Tensor:
        if self.data_format == "last":
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


def drop_path(x: Tensor, prob: float, training: bool) -> Tensor:
    if prob == 0.0 or not training:
        return x
    keep = 1 - prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    return x.div(keep) * x.new_empty(shape).bernoulli_(keep)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = LayerNorm2(dim)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        x = (self.gamma * x).permute(0, 3, 1, 2)
        return shortcut + drop_path(x, 0.1, self.training)


@example(5)
class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2(8, data_format="first"))
        self.stage1 = nn.Sequential(ConvNeXtBlock(8), ConvNeXtBlock(8))
        self.down = nn.Sequential(LayerNorm2(8, data_format="first"), nn.Conv2d(8, 12, 2, 2))
        self.stage2 = ConvNeXtBlock(12)
        self.norm = nn.LayerNorm(12, eps=1e-6)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.down(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


@example(3)
class PReluNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, 8, 3, 2, 1), nn.PReLU(8)
        self.conv2, self.act2 = nn.Conv2d(8, 12, 3, 2, 1), nn.PReLU(12)
        self.fc1, self.act3 = nn.Linear(12, 10), nn.PReLU()
        self.fc2 = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.conv2(self.act1(self.conv1(x))))
        return self.fc2(self.act3(self.fc1(x.mean((2, 3)))))


@example(3)
class GroupNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n0 = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.conv1, self.n1 = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.GroupNorm(3, 12)
        self.conv2, self.n2 = nn.Conv2d(12, 8, 3, padding=1, bias=False), nn.GroupNorm(1, 8)
        self.conv3, self.n3 = nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n0(self.stem(x)))
        x = x + self.n2(self.conv2(F.relu(self.n1(self.conv1(x)))))
        x = torch.tanh(self.n3(self.conv3(x)))
        return self.fc(x.flatten(2).amax(-1))


class StandardisedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        mean = w.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True).mean(dim=3, keepdim=True)
        w = w - mean
        std = w.view(w.size(0), -1).std(dim=1).view(-1, 1, 1, 1) + 1e-5
        w = w / std.expand_as(w)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


@example(3)
class WeightStandardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.gn1 = StandardisedConv(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.conv2, self.gn2 = StandardisedConv(8, 12, 3, 2, 1), nn.GroupNorm(2, 12)
        self.conv3 = StandardisedConv(12, 16, 3, 1, 1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.gn2(self.conv2(F.relu(self.gn1(self.conv1(x))))))
        return self.fc(self.conv3(x).mean((2, 3)))


class AttentionModule(nn.Module):
    """A gate for channels, then one for places."""

    def __init__(self, channels: int, reduction: int = 2) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Conv2d(channels, channels // reduction, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels // reduction, channels, 1, bias=False),
        )
        self.place = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.mlp(F.adaptive_avg_pool2d(x, 1)) + self.mlp(F.adaptive_max_pool2d(x, 1))
        x = gate.sigmoid() * x
        avg_out = torch.mean(x, dim=1, keepdim=True)
        max_out, _ = torch.max(x, dim=1, keepdim=True)
        return self.place(torch.cat([avg_out, max_out], dim=1)).sigmoid() * x


@example(4)
class ChannelAndPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.cbam1 = conv_bn(3, 8, 3, 2), AttentionModule(8)
        self.conv2, self.cbam2 = conv_bn(8, 12, 3, 2), AttentionModule(12)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cbam2(F.relu(self.conv2(self.cbam1(F.relu(self.conv1(x))))))
        return self.fc(F.adaptive_avg_pool2d(x, 1)[:, :, 0, 0])


class AttentionBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = heads, (dim // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, dim * 2), nn.Linear(dim * 2, dim)

    def attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


@example(3)
class VisionTransformer(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.blocks = nn.Sequential(AttentionBlock(dim, 2), AttentionBlock(dim, 2))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(x + self.pos_embed)
        return self.head(self.norm(x)[:, 0])


# --- odd forwards ---------------------------------------------------------------------------------


@example(3)
class ReusedModule(nn.Module):
    """One block runs three times; one convolution stands under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.block = nn.Sequential(conv_bn(8, 12), nn.ReLU(), conv_bn(12, 8))
        self.enter = self.also_enter = nn.Conv2d(8, 10, 1)
        self.fc = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = F.relu(x + self.block(x))
        return self.fc((self.enter(x) * torch.sigmoid(self.also_enter(x))).mean((2, 3)))


@example(4)
class AuxiliaryHead(nn.Module):
    """A second classifier that only runs while training."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = conv_bn(3, 8, 3, 2), conv_bn(8, 12, 3, 2)
        self.aux = nn.Sequential(nn.Conv2d(8, 10, 1), nn.BatchNorm2d(10), nn.ReLU())
        self.aux_fc = nn.Linear(10, 5)
        self.mid = nn.Linear(12, 14)
        self.fc = nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.early(x))
        aux = self.aux_fc(self.aux(x).mean((2, 3))) if self.training else None
        x = F.relu(self.late(x)).mean((2, 3))
        logits = self.fc(F.relu(self.mid(x)))
        return (logits, aux) if self.training else logits


@example(4, (3, 16, 16), (7,))
class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(conv_bn(3, 8, 3, 2), nn.ReLU(), conv_bn(8, 12, 3, 2))
        self.table = nn.Sequential(nn.Linear(7, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.scale, self.joint = nn.Linear(6, 12), nn.Linear(18, 10)
        self.label, self.box = nn.Linear(10, 5), nn.Linear(10, 4)

    def forward(self, image: Tensor, table: Tensor) -> dict[str, Any]:
        numbers = self.table(table)
        seen = self.image(image) * (1 + self.scale(numbers)[..., None, None])
        joint = F.relu(self.joint(torch.cat([seen.mean((2, 3)), numbers], -1)))
        return {"label": self.label(joint), "boxes": [self.box(joint).sigmoid()]}


@example(4)
class NoRules(nn.Module):
    """Picks channels by index and by rank, and filters in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, o, 3, 1, 1) for i, o in [(3, 8), (8, 12), (4, 10)])
        self.register_buffer("picked", torch.tensor([1, 5, 7, 2]))
        self.d, self.e = nn.Conv2d(10, 8, 3, 2, 1), nn.Conv2d(8, 6, 1)
        self.mid, self.fc = nn.Linear(3, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x)))).index_select(1, self.picked)
        x = F.relu(self.d(F.relu(self.c(x))))
        x = torch.fft.irfft2(torch.fft.rfft2(self.e(x)), s=(8, 8)).mean((2, 3))
        return self.fc(F.relu(self.mid(torch.topk(x, 3, dim=1).values)))


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.nn.functional.softplus(x))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, but people still use it
    scripted_mish = torch.jit.script(mish)


@example(4)
class ScriptedActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = conv_bn(3, 8), conv_bn(8, 12, 3, 2), conv_bn(12, 10)
        self.fc1, self.fc2 = nn.Linear(10, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = scripted_mish(self.conv1(x))
        x = F.relu(self.conv3(F.relu(self.conv2(x))))
        return self.fc2(F.relu(self.fc1(x.mean((2, 3)))))


@example(2)
class BareParameters(nn.Module):
    """Convolutions without modules, a learned bias and a handmade sigmoid at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.2)
        self.offset = nn.Parameter(torch.randn(1, 8, 1, 1))
        self.register_buffer("blur", torch.full((1, 1, 3, 3), 1 / 9))
        self.conv = nn.Conv2d(8, 12, 3, padding=1)
        sizes = [(10, 12), (5, 10)]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(*size) * 0.2) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.kernel, padding=1) + self.offset
        x = F.conv2d(x, self.blur.repeat(x.shape[1], 1, 1, 1), stride=2, groups=x.shape[1])
        x = 1 / (1 + torch.exp(-self.conv(x)))
        x = torch.einsum("nchw,dc->ndhw", x, self.weights[0])
        return x.mean((2, 3)) @ self.weights[1].t()

"""Starting weights, the same for every family, so that runs differ by network and not by luck."""

from torch import nn


def init_weights(model: nn.Module, linear_std: float | None = None) -> None:
    """Convs: Kaiming normal over the fan-out, which keeps gradients at scale (He et al., 2015).

    BatchNorm starts as the identity and conv biases at zero. Linear layers keep PyTorch's
    default, unless `linear_std` asks for a normal of that deviation and no bias (MobileNets).
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

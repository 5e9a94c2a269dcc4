"""Initial weights, by the same rules for every family of networks."""

from torch import nn


def init_weights(model: nn.Module, linear_std: float | None = None) -> None:
    """Initialise the weights of a network in place.

    Convs are Kaiming normal over the fan-out, which keeps gradients at scale (He et al., 2015).
    Their biases are zero. BatchNorm starts as the identity.

    Args:
        model: The network.
        linear_std: Standard deviation of the weights of linear layers, with biases of zero, as in
            MobileNets. By default linear layers keep PyTorch's initialisation.
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

"""Networks of other libraries by name: timm:NAME, torchvision:NAME and transformers:TYPE.

A library is a row of `LIBRARIES`, and is imported when a network of it is asked for. Options of the
network follow its name: `transformers:llama,hidden_size=128,num_hidden_layers=4`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from joslim.errors import UserError, imported, reason, unknown

# The value of the setting `init` that asks a library for its trained weights.
PRETRAINED = "pretrained"


@dataclass(frozen=True)
class Library:
    """How a library lists and makes its networks.

    make: A function of the name, the options and whether to load trained weights.
    preprocessing: The input, mean, standard deviation and interpolation that a network of this name
    was trained with, as its `slim_defaults` have them.
    classes, channels: The names of these options.
    """

    names: Callable[[], Iterable[str]]
    make: Callable[[str, dict[str, Any], bool], nn.Module]
    preprocessing: Callable[[nn.Module, str], dict[str, Any]]
    classes: str
    channels: str | None = None


def library_of(model: str) -> str | None:
    """Return the name of the library that a model is of; None for others."""
    name = model.partition(":")[0]
    return name if ":" in model and name in LIBRARIES else None


def make(
    model: str,
    num_classes: int | None = None,
    in_channels: int | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """Make the network of a name such as timm:resnet18, with its preprocessing on record."""
    package, _, rest = model.partition(":")
    library = LIBRARIES[package]
    name, *given = rest.split(",")
    options = dict(map(_option, given))
    imported(package, "model")
    if name not in (names := [*library.names()]):
        raise unknown("model", name, names)
    if num_classes is not None:
        options.setdefault(library.classes, num_classes)
    if in_channels is not None and library.channels is not None:
        options.setdefault(library.channels, in_channels)
    try:
        network = library.make(name, options, pretrained)
    except Exception as error:  # a library can raise anything
        raise UserError(f"model: {model} cannot be made: {reason(error)}") from error
    network.slim_defaults = {  # type: ignore[assignment]
        **getattr(network, "slim_defaults", {}),
        **library.preprocessing(network, name),
    }
    return network


def pretrained_weights(model: str) -> Mapping[str, Tensor]:
    """Return the trained weights of a network, which its library downloads or has in its cache."""
    if library_of(model) is None:
        raise UserError(
            f"init: pretrained is for networks of {', '.join(LIBRARIES)}, not {model!r}; give a "
            ".safetensors or .pth file"
        )
    return make(model, pretrained=True).state_dict()


def _option(text: str) -> tuple[str, Any]:
    """hidden_size=128 -> (hidden_size, 128)"""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UserError(f"model: {text!r} is no option; type NAME,key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


# timm


def _timm_preprocessing(network: nn.Module, name: str) -> dict[str, Any]:
    found = imported("timm.data", "model").resolve_model_data_config(network)
    return {
        "input": tuple(found["input_size"]),
        **{key: tuple(found[key]) for key in ("mean", "std")},
        "interpolation": found["interpolation"],
    }


# torchvision


def _torchvision_make(name: str, options: dict[str, Any], pretrained: bool) -> nn.Module:
    models = imported("torchvision.models", "model")
    classifiers = models.list_models(module=models)
    if not pretrained and "weights_backbone" not in options and name not in classifiers:
        options["weights_backbone"] = None  # it would be downloaded
    return models.get_model(name, weights="DEFAULT" if pretrained else None, **options)


def _torchvision_preprocessing(network: nn.Module, name: str) -> dict[str, Any]:
    weights = imported("torchvision.models", "model").get_model_weights(name)
    best = getattr(weights, "DEFAULT", None)
    steps = best.transforms() if best is not None else None
    size = getattr(steps, "crop_size", None) or getattr(steps, "resize_size", None) or [224]
    found = {key: tuple(getattr(steps, key)) for key in ("mean", "std") if hasattr(steps, key)}
    kind = getattr(getattr(steps, "interpolation", None), "value", "bilinear")
    return {"input": (3, size[-1], size[-1]), **found, "interpolation": kind}


# transformers


class Scores(nn.Module):
    """A network of transformers that takes one input and returns the scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def _transformers_names() -> Iterable[str]:
    auto = imported("transformers.models.auto.modeling_auto", "model")
    return sorted(
        {
            *auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        }
    )


def _transformers_make(name: str, options: dict[str, Any], pretrained: bool) -> nn.Module:
    if pretrained:
        raise ValueError("a type of network has no trained weights of its own; give a file")
    package = imported("transformers", "model")
    auto = imported("transformers.models.auto.modeling_auto", "model")
    classes = options.pop("num_labels", None)
    if name in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        more = {} if classes is None else {"num_labels": classes}
        config = package.AutoConfig.for_model(name, **options, **more)
        return Scores(package.AutoModelForImageClassification.from_config(config))
    more = {"use_cache": False} if classes is None else {"use_cache": False, "vocab_size": classes}
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = package.AutoConfig.for_model(name, **{**tokens, **more, **options})
    return Scores(package.AutoModelForCausalLM.from_config(config))


def _transformers_preprocessing(network: nn.Module, name: str) -> dict[str, Any]:
    import torch

    config: Any = getattr(network.model, "config")  # noqa: B009
    if hasattr(config, "num_channels"):
        size = getattr(config, "image_size", None) or 224
        return {"input": (config.num_channels, size, size), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    return {"input": (128,), "dtype": torch.int64}


LIBRARIES: dict[str, Library] = {
    "timm": Library(
        lambda: imported("timm", "model").list_models(),
        lambda name, options, pretrained: imported("timm", "model").create_model(
            name, pretrained=pretrained, **options
        ),
        _timm_preprocessing,
        "num_classes",
        "in_chans",
    ),
    "torchvision": Library(
        lambda: imported("torchvision.models", "model").list_models(),
        _torchvision_make,
        _torchvision_preprocessing,
        "num_classes",
    ),
    "transformers": Library(
        _transformers_names,
        _transformers_make,
        _transformers_preprocessing,
        "num_labels",
    ),
}

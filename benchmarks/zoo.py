"""Networks written by strangers: how many can be slimmed, and are their children right?

Takes one small network of each of some 40 families from pytorchcv, and of the families of timm,
torchvision, transformers and ultralytics in zoo_families.py, with BatchNorm statistics and affine
parameters randomised first. Packages that are missing are left out; install them with --no-deps,
because their own requirements would bring another torch:

    pip install --no-deps pytorchcv requests timm torchvision ultralytics; pip install transformers

Targets: 9 in 10 networks of pytorchcv have at least two knobs, and 9 in 10 of the other families
have a knob for each part that they have (attention heads, MLPs, the embedding); all of them are
unchanged at full width; every child that is cut out equals the network run in place, to 1e-4 of the
largest output; multiply-adds equal those of torch's own counter. `python benchmarks/zoo.py timm
llama` examines only networks whose names contain one of the words. With --knobs, children also
differ in depth and in input size, in networks that can.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from reporting import at_least, report
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from zoo_families import EMBEDDING, HEADS, MLP, Family, declare_operators, families, image

import joslim
from joslim.errors import UserError
from joslim.slimmable.running import as_inputs, call, resized, tensors_in

# module.function
NETWORKS = (
    "airnet.airnet50_1x64d_r2",
    "alexnet.alexnet",
    "bagnet.bagnet9",
    "bamresnet.bam_resnet18",
    "bninception.bninception",
    "cbamresnet.cbam_resnet18",
    "darknet53.darknet53",
    "densenet.densenet121",
    "diaresnet.diaresnet10",
    "dla.dla34",
    "dpn.dpn68",
    "efficientnet.efficientnet_b0",
    "fbnet.fbnet_cb",
    "fishnet.fishnet99",
    "ghostnet.ghostnet",
    "hardnet.hardnet39ds",
    "hrnet.hrnet_w18_small_v1",
    "ibnresnet.ibn_resnet50",
    "igcv3.igcv3_wd4",
    "inceptionv3.inceptionv3",
    "menet.menet108_8x1_g3",
    "mixnet.mixnet_s",
    "mnasnet.mnasnet_b1",
    "mobilenet.mobilenet_wd4",
    "mobilenetv2.mobilenetv2_wd4",
    "mobilenetv3.mobilenetv3_small_w1",
    "peleenet.peleenet",
    "preresnet.preresnet18",
    "proxylessnas.proxylessnas_cpu",
    "regnet.regnetx002",
    "resnet.resnet18",
    "resnet.resnet50",
    "resnext.resnext14_16x4d",
    "seresnet.seresnet18",
    "shufflenet.shufflenet_g3_wd4",
    "shufflenetv2.shufflenetv2_wd2",
    "sknet.sknet50",
    "squeezenet.squeezenet_v1_0",
    "squeezenext.sqnxt23_w1",
    "vgg.bn_vgg11",
    "vovnet.vovnet27s",
    "xception.xception",
)
# Most end in a pooling of 7x7.
IMAGE_SIZE = 224
LARGER = {"inceptionv3": 299, "xception": 299}
CHILDREN = 4
TOLERANCE = 1e-4
INSTALL = "pip install --no-deps pytorchcv requests timm torchvision ultralytics"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of the names of networks; default: all")
    parser.add_argument("--knobs", action="store_true", help="depth and input size, too")
    options = parser.parse_args()
    words = options.words
    declare_operators()
    found = [*of_pytorchcv(), *families()]
    found = [f for f in found if importlib.util.find_spec(f.package)]
    found = [f for f in found if not words or any(w in f"{f.package} {f.name}" for w in words)]
    if not found:
        sys.exit(f"benchmarks/zoo.py: none of its packages is installed; type {INSTALL}")
    rows = [examine(family, options.knobs) for family in found]
    figures: dict[str, dict[str, object]] = {"networks": at_least(len(rows), 1)}
    for title, own in (
        ("with_two_knobs", [row for f, row in zip(found, rows) if not f.parts]),
        ("with_all_parts", [row for f, row in zip(found, rows) if f.parts]),
    ):
        if own:
            figures[title] = at_least(sum(row["parts"] == "all" for row in own) / len(own), 0.9)
    tests = {
        "unchanged_at_full": [row["full"] == 0 for row in rows],
        "children_equal": [float(str(row["child"])) <= TOLERANCE for row in rows],
        "macs_exact": [row["macs"] == "exact" for row in rows],
    }
    figures |= {name: at_least(sum(good) / len(good), 1) for name, good in tests.items()}
    report("Networks written by strangers", rows, figures)


def of_pytorchcv() -> Iterator[Family]:
    for name in NETWORKS:
        module, function = name.split(".")

        def build(module: str = module, function: str = function) -> tuple[nn.Module, Any]:
            made = getattr(importlib.import_module(f"pytorchcv.models.{module}"), function)
            return made(), image(LARGER.get(function, IMAGE_SIZE))

        yield Family("pytorchcv", function, (), build)


def examine(family: Family, knobs: bool) -> dict[str, object]:
    torch.manual_seed(0)
    model, given = family.build()
    randomise(model)
    model.requires_grad_(False)  # torch's counter fails for views of parameters with gradients
    inputs = as_inputs(given)
    with torch.no_grad():
        before = [tensor.clone() for tensor in tensors_in(call(model.eval(), inputs))]
        start = time.perf_counter()
        net = slimmed_with_all(model, inputs) if knobs else joslim.slim(model, inputs)
        seconds = time.perf_counter() - start
        full = difference(tensors_in(call(net, inputs)), before)
        child, exact = examine_children(net, inputs)
    counts = parts_of(net)
    missing = [part for part in family.parts if not counts[part]]
    if not family.parts and len(net.space) < 2:
        missing = ["two knobs"]
    return {
        "network": f"{family.package} {family.name}",
        "knobs": len(net.space),
        **counts,
        **({kind: net.space.kinds.count(kind) for kind in ("blocks", "pixels")} if knobs else {}),
        "frozen": len(net.frozen),
        "parts": f"no {', '.join(missing)}" if missing else "all",
        "full": full,
        "child": child,
        "macs": "exact" if exact else "wrong",
        "slim s": seconds,
    }


def slimmed_with_all(model: nn.Module, inputs: Any) -> joslim.SlimmableNet:
    """Slim a network with depth and input size, or with those of them that it has."""
    both: dict[str, Any] = {"depth": True}
    if isinstance(inputs, tuple) and len(inputs) == 1 and inputs[0].ndim == 4:
        size = inputs[0].shape[-1]
        both["resolutions"] = (size - 64, size)
    for left_out in ((), ("resolutions",), ("depth",)):
        options = {name: value for name, value in both.items() if name not in left_out}
        try:
            return joslim.slim(copy.deepcopy(model), inputs, **options)
        except UserError as error:
            print(error, file=sys.stderr)
    return joslim.slim(model, inputs)


def parts_of(net: joslim.SlimmableNet) -> dict[str, int]:
    """The number of Dims of each kind.

    An embedding is made by three layers or more, such as the stem and the last layers of blocks. It
    counts as heads too where forward makes it as wide as all heads together.
    """
    dims = net.space.dims
    embeddings = [dim for dim in dims if len(dim.layers) > 2 and not is_attention(dim)]
    heads = [dim for dim in dims if dim.heads]
    others = [dim for dim in dims if dim not in embeddings and dim not in heads]
    return {HEADS: len(heads), MLP: len(others), EMBEDDING: len(embeddings)}


def is_attention(dim: joslim.Dim) -> bool:
    """Whether all layers of heads are siblings: query, key and value of one attention."""
    return dim.heads and len({layer.rpartition(".")[0] for layer in dim.layers}) == 1


def examine_children(net: joslim.SlimmableNet, inputs: Any) -> tuple[float, bool]:
    """The largest difference to the cut-out child, and whether all multiply-adds are exact."""
    rng = np.random.default_rng(0)
    cost = joslim.cost("macs", net)
    worst, exact = 0.0, True
    # The counter does not know fused attention, so it runs as matrix products.
    torch.backends.mha.set_fastpath_enabled(False)
    for widths in [net.space.smallest, *(net.space.random(rng) for _ in range(CHILDREN - 1))]:
        child = net.child(widths)
        own, example = (resized(given, widths.pixels) for given in (inputs, net.example))
        with net.at(widths):
            in_place = tensors_in(call(net, inputs))
        worst = max(worst, difference(in_place, tensors_in(call(child, own))))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            call(child, example)
        exact &= counter.get_total_flops() == 2 * cost(widths)
    torch.backends.mha.set_fastpath_enabled(True)
    return worst, exact


def randomise(model: nn.Module) -> None:
    """Fresh norms, gains and some last layers are all ones or zeros, which hides a wrong slice."""
    for parameter in model.parameters():
        if not (parameter.is_floating_point() and parameter.numel()):
            continue
        if bool(parameter.eq(parameter.flatten()[0]).all()):
            parameter.data += 0.1 * torch.randn(parameter.shape)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            for name, tensor in module.state_dict().items():
                if name in ("weight", "running_var"):
                    tensor.uniform_(0.5, 1.5)
                elif name in ("bias", "running_mean"):
                    tensor.normal_(0, 0.1)


def difference(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The largest one of all real outputs, as a share of the largest entry of an output; infinite
    if an output is no number.
    """
    pairs = [(a, b) for a, b in zip(ones, others, strict=True) if b.is_floating_point()]
    shares = torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs])
    return float(shares.nan_to_num(nan=torch.inf).max())


if __name__ == "__main__":
    main()

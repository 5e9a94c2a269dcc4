"""Timing of children: in turns, warmed up, without drift, on a machine with a made-up clock."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import joslim
from joslim import SlimmableNet, UserError, Widths
from joslim.costs import timing
from joslim.costs.timing import (
    EACH_TURN,
    Setting,
    Stopwatch,
    chunks_needed,
    import_onnxruntime,
    inputs_of,
    measure,
    time_on_cpu,
    without_drift,
)


@dataclass
class Machine:
    """A child takes a microsecond for each channel, times how slow the machine is at that run."""

    slowness: Callable[[int, Widths], float] = lambda run, child: 1.0
    now: float = 100.0
    runs: list[Widths] = field(default_factory=list)

    def forward(self, child: Widths) -> Callable[[], None]:
        def run() -> None:
            self.now += 1e-6 * sum(child.counts) * self.slowness(len(self.runs), child)
            self.runs.append(child)

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    clock = SimpleNamespace(perf_counter=lambda: made.now, thread_time=lambda: made.now)
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(Stopwatch, "forward", lambda _, child: made.forward(child))
    return made


def some(net: SlimmableNet, count: int) -> list[Widths]:
    rng = np.random.default_rng(0)
    return [net.space.random(rng) for _ in range(count)]


def true_ms(children: list[Widths]) -> list[float]:
    return [1e-3 * sum(child.counts) for child in children]


def test_milliseconds_of_children(net: SlimmableNet, machine: Machine) -> None:
    children = some(net, 5)
    times = measure(net, children, Setting(), repeats=3)
    np.testing.assert_allclose(times.ms, true_ms(children), rtol=1e-6)
    np.testing.assert_allclose(times.spread, 0.0, atol=1e-6)


def test_children_take_turns_and_are_warm(net: SlimmableNet, machine: Machine) -> None:
    a, b = some(net, 2)
    measure(net, [a, b], Setting(), repeats=2)
    once_each = [net.space.full, a, b]
    turn = [child for child in once_each for _ in range(1 + EACH_TURN)]
    assert machine.runs == [*once_each, *turn, *turn]


def test_the_first_run_of_a_turn_is_not_timed(net: SlimmableNet, machine: Machine) -> None:
    """Kernels are made anew in it."""
    children = some(net, 3)
    machine.slowness = lambda run, child: 1.0 if child in machine.runs[-1:] else 7.0
    np.testing.assert_allclose(
        measure(net, children, Setting(), repeats=3).ms, true_ms(children), rtol=1e-6
    )


def test_a_slow_run_now_and_then_does_not_count(net: SlimmableNet, machine: Machine) -> None:
    children = some(net, 5)
    machine.slowness = lambda run, child: 9.0 if run % 11 == 0 else 1.0
    times = measure(net, children, Setting(), repeats=7)
    np.testing.assert_allclose(times.ms, true_ms(children), rtol=1e-6)


def test_a_machine_that_becomes_slower(net: SlimmableNet, machine: Machine) -> None:
    """By a quarter from pass to pass: what children take in proportion stays right."""
    children, passes = some(net, 6), 4
    per_pass = (1 + len(children)) * (1 + EACH_TURN)
    machine.slowness = lambda run, child: 1.25 ** ((run - 1 - len(children)) // per_pass)
    times = measure(net, children, Setting(), passes)
    ratios = times.ms / true_ms(children)
    np.testing.assert_allclose(ratios / ratios[0], 1.0, rtol=1e-6)
    np.testing.assert_allclose(times.spread, 0.0, atol=1e-6)


def test_chunks_are_compared_by_the_full_network(
    net: SlimmableNet, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = some(net, 5)
    params = joslim.cost("params", net)
    monkeypatch.setattr(timing, "CHUNK_BYTES", 4 * sum(map(params, children)) // 3 + 4)
    assert chunks_needed(net, children) == 3
    # Chunks of two, two and one child; each is slower than the one before.
    lengths = [(1 + count) * (1 + 2 * (1 + EACH_TURN)) for count in (2, 2, 1)]
    speeds = np.repeat([1.0, 1.5, 2.0], lengths)
    machine.slowness = lambda run, child: speeds[run]
    ratios = measure(net, children, Setting(), repeats=2).ms / true_ms(children)
    assert len(machine.runs) == len(speeds)
    np.testing.assert_allclose(ratios, 1.5, rtol=1e-6, err_msg="the speed of the middle chunk")


@pytest.mark.parametrize(("most", "chunks"), [(1, 3), (10**9, 1)])
def test_a_chunk_has_at_least_one_child(
    most: int, chunks: int, net: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "CHUNK_BYTES", most)
    assert chunks_needed(net, some(net, 3)) == chunks


def test_drift_is_what_most_children_have() -> None:
    seconds = np.ones((5, 3, 2)) * np.array([1, 2, 3, 4, 5])[:, None, None]
    seconds[:, 1] *= 1.2
    seconds[4, 2] *= 3
    clean = without_drift(seconds)
    np.testing.assert_allclose(clean[:, 0], seconds[:, 0])
    np.testing.assert_allclose(clean[:, 1], seconds[:, 0])
    np.testing.assert_allclose(clean[4, 2], 15.0)


@pytest.mark.parametrize(("noise", "warned"), [(0.5, True), (0.01, False)])
def test_a_warning_if_times_spread(
    noise: float,
    warned: bool,
    net: SlimmableNet,
    machine: Machine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = np.random.default_rng(0)
    machine.slowness = lambda run, child: 1.0 + noise * rng.uniform()
    with caplog.at_level(logging.WARNING, "joslim"):
        times = measure(net, some(net, 8), Setting(), repeats=10)
    assert (np.median(times.spread) > 0.1) == warned
    assert [record.getMessage().startswith("latency: ") for record in caplog.records] == [
        True
    ] * warned


def test_a_watcher_is_told_every_turn(net: SlimmableNet, machine: Machine) -> None:
    told: list[tuple[int, int]] = []
    measure(net, some(net, 3), Setting(), 2, watch=lambda *counts: told.append(counts))
    assert sorted(set(told)) == [(done, 6) for done in range(7)]
    assert told == sorted(told)


# What is run

SEEN: list[dict[str, Any]] = []


class Watched(nn.Module):
    """Notes how it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        SEEN.append(
            {
                "class": type(self),
                "training": self.training,
                "shape": tuple(x.shape),
                "inference": torch.is_inference_mode_enabled(),
                "dtype": hidden.dtype,
                "threads": torch.get_num_threads(),
                "channels": self.first.out_channels,
            }
        )
        return self.last(hidden)


@pytest.fixture
def watched() -> SlimmableNet:
    net = joslim.slim(Watched(), torch.zeros(2, 3, 8, 8))
    SEEN.clear()
    return net


def test_an_ordinary_child_in_eval_mode_without_gradients(watched: SlimmableNet) -> None:
    watched.train()
    child = watched.space.uniform(0.5)
    measure(watched, [child], Setting(), repeats=2)
    assert watched.training
    assert {seen["class"] for seen in SEEN} == {Watched}
    assert {seen["channels"] for seen in SEEN} == {8, 4}
    assert all(seen["inference"] and not seen["training"] for seen in SEEN)
    assert {seen["shape"] for seen in SEEN} == {(1, 3, 8, 8)}, "one sample, whatever the example"


def test_batch_precision_and_threads(watched: SlimmableNet) -> None:
    before = torch.get_num_threads()
    setting = Setting(threads=before + 1, batch=5, precision="bf16")
    measure(watched, [watched.space.smallest], setting, repeats=1)
    assert torch.get_num_threads() == before
    assert {seen["shape"] for seen in SEEN} == {(5, 3, 8, 8)}
    assert {seen["dtype"] for seen in SEEN} == {torch.bfloat16}
    assert {seen["threads"] for seen in SEEN} == {before + 1}


def test_threads_are_restored_after_a_failure(
    watched: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(timing, "time_on_cpu", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure(watched, [watched.space.full], Setting(threads=before + 1), repeats=1)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("threads", "seconds"), [(1, 3.0), (2, 8.0)])
def test_a_single_thread_has_its_own_clock(
    threads: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still while others have the processor."""
    now = {"wall": 0.0, "thread": 0.0}
    clocks = {"perf_counter": lambda: now["wall"], "thread_time": lambda: now["thread"]}
    monkeypatch.setattr(timing, "time", SimpleNamespace(**clocks))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert time_on_cpu(lambda: now.update(wall=8.0, thread=3.0)) == seconds


def test_random_numbers_stay_as_they_are(
    watched: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "time_on_cpu", lambda run: float(torch.rand(()) + 1))
    before = torch.get_rng_state()
    measure(watched, [watched.space.full], Setting(), repeats=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_child_is_compiled_as_code_of_its_own(
    watched: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []

    def compile(function: Any, dynamic: bool) -> Any:
        assert not dynamic
        codes.append(function.__code__)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    children = [watched.space.smallest, watched.space.full]
    measure(watched, children, Setting(backend="compiled"), repeats=1)
    assert len({id(code) for code in codes}) == len(codes) == 3


def test_onnxruntime(net: SlimmableNet) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    child = net.space.smallest
    stopwatch = Stopwatch(net, Setting(backend="onnxruntime", batch=2), 1, None, 1)
    (output,) = stopwatch.forward(child)()
    expected = net._cut(child).eval()(torch.zeros(2, 3, 8, 8))
    np.testing.assert_allclose(output, expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "onnxruntime"])
def test_keyword_inputs(backend: str) -> None:
    if backend == "onnxruntime":
        for package in ("onnx", "onnxruntime", "onnxscript"):
            pytest.importorskip(package)

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, *, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(left - 2 * right).relu())

    inputs = {"right": torch.randn(1, 4), "left": torch.randn(1, 4)}
    net = joslim.slim(Difference(), inputs)
    child = net.space.smallest
    output = Stopwatch(net, Setting(backend=backend, batch=2), 1, None, 1).forward(child)()
    expected = net._cut(child)(**inputs).detach().repeat(2, 1)
    output = output if backend == "eager" else torch.tensor(output[0])
    assert torch.allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named(
    missing: str, net: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    assert import_onnxruntime() is sys.modules["onnxruntime"]
    monkeypatch.setitem(sys.modules, missing, None)
    words = rf"^backend: onnxruntime needs {missing}; type pip install 'joslim\[onnx\]'$"
    with pytest.raises(UserError, match=words):
        measure(net, [net.space.full], Setting(backend="onnxruntime"), repeats=1)


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads: 0 is not a whole number from 1 to 1024"),
        ({"threads": 10**6}, "threads: 1000000 is not a whole number"),
        ({"threads": True}, "threads: True is not"),
        ({"batch": 0}, "batch: 0 is not a whole number from 1 to 65536"),
        ({"batch": 1.5}, "batch: 1.5 is not"),
        ({"precision": "int8"}, "precision: unknown name 'int8'; allowed: fp32, bf16, fp16"),
        ({"precision": None}, "precision: unknown name 'None'"),
        ({"backend": "tvm"}, "backend: unknown name 'tvm'; allowed: eager, compiled, onnxruntime"),
        ({"backend": []}, "backend: unknown name"),
        (
            {"backend": "onnxruntime", "precision": "bf16"},
            "precision: onnxruntime runs fp32 only, bf16 given",
        ),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Setting(**options)
    assert str(caught.value).startswith(message)


def test_what_cannot_run_here_is_one_line(
    watched: SlimmableNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Watched, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not\nimplemented")

    monkeypatch.setattr(Watched, "forward", forward)
    with pytest.raises(UserError) as caught:
        measure(watched, [watched.space.full], Setting(precision="fp16"), repeats=1)
    words = "latency: a child cannot run here (eager, fp16, batch 1): RuntimeError: not implemented"
    assert str(caught.value) == words


@pytest.mark.parametrize("example", [torch.zeros(()), torch.zeros(3, 4)])
def test_inputs_that_are_no_batch(example: torch.Tensor) -> None:
    net: Any = SimpleNamespace(example=(example,), parameters=lambda: iter([torch.zeros(1)]))
    assert inputs_of(net, 1) == (example,)
    with pytest.raises(UserError, match=r"^batch: 2 given, but the inputs of this network are no"):
        inputs_of(net, 2)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_on_a_gpu(precision: str) -> None:
    net = joslim.slim(joslim.models.resnet8().cuda(), torch.zeros(1, 3, 8, 8, device="cuda"))
    times = measure(net, [net.space.smallest], Setting(precision=precision), repeats=2)
    assert times.ms[0] > 0

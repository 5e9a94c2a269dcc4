"""The whole front in one file: the shared weights once, and what each child has of its own.

`joslim_runtime` runs the file without torch; its bundle.py describes the format.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy, tensor

import joslim_runtime
from joslim.data.folder import CENTRE
from joslim.deploy.destination import destination
from joslim.deploy.exporting import (
    Case,
    Check,
    cases_of,
    compared,
    cut_child,
    metadata,
    outputs_in_place,
    widths_of,
    worst_of,
)
from joslim.deploy.int8 import data_of, errors_of
from joslim.deploy.template import Slot, Template, make_template
from joslim.errors import RunFailed, UserError
from joslim.formats import FORMATS, INPUT
from joslim.front import MEASURES
from joslim.runs.run import Run
from joslim.slimmable import SlimmableNet
from joslim.space import CHANNELS, Widths
from joslim_runtime.bundle import HIGH, INT8, LOW, MANIFEST
from joslim_runtime.manifest import FORMAT, FORMAT_INT8, FORMAT_SIZES
from joslim_runtime.network import open_session

SUFFIX = ".joslim"
# Facts of a child that its row has; the others are the same for all.
OF_CHILDREN = ("format", "channels", "costs", "low", "divisor", "resize", *MEASURES)

Array = NDArray[Any]
# Weights as integers, and a scale for each first index, by the names of parameters.
Integers = dict[str, tuple[NDArray[np.int8], Array]]
# Called with the number of children that are ready, and that of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BundleCheck:
    """A bundle that was read back: its size, and the worst check of a child.

    `errors` of a bundle with 8-bit weights are (floats, 8 bits) for each child, in percent of the
    run's test images, if these could be loaded.
    """

    children: int
    bytes: int
    check: Check
    errors: tuple[tuple[float, float], ...] | None = None

    def __str__(self) -> str:
        return f"{self.children} children; worst child: {self.check}"


def export_bundle(
    run: Run,
    path: str | Path,
    overwrite: bool = False,
    progress: Progress | None = None,
    int8: bool = False,
    data: str | None = None,
) -> BundleCheck:
    """Write all children of the front into one file, which `joslim_runtime` runs without torch.

    The file has the weights of the full network once, and for each child its BatchNorm. It is read
    back, and every child is compared with the network on the samples that the run has kept.

    Args:
        run: A run.
        path: The file, NAME.joslim.
        overwrite: Replace an existing file.
        progress: Called with the number of children that are ready, and that of all.
        int8: Store the shared weights as 8-bit integers with a scale for each output channel. The
            children compute in floats, and are compared with the network that has these weights.
        data: Where the data of the run are now, for the test errors of 8-bit weights.

    Raises:
        UserError: The path has another suffix or exists, or a package is missing.
        RunFailed: A child of the file computes something else than the network.
    """
    if Path(path).suffix != SUFFIX:
        raise UserError(f"out: a bundle is a {SUFFIX} file, {str(path)!r} given; type NAME{SUFFIX}")
    if run.in_own_loop:
        raise UserError("run: a bundle holds classifiers of joslim train, this is of your own loop")
    FORMATS["onnx"].check_installed()
    images = data_of(run, data) if int8 else None
    with ExitStack() as stack:
        new = stack.enter_context(destination(path, folder=False, overwrite=overwrite))
        integers = stack.enter_context(quantized_weights(run.net)) if int8 else {}
        builder = Builder(run, integers)
        points = list(run.front)
        errors = []
        for number, point in enumerate(points, start=1):
            measures = {measure: getattr(point, measure) for measure in MEASURES}
            if int8:  # the errors on the front are those of the floats
                in_place = partial(run_in_place, run.net, point.widths)
                found = errors_of(run, [in_place], images)
                after = found[0] if found else None
                measures |= {"val_error": None, "test_error": after}
                if after is not None and point.test_error is not None:
                    errors.append((point.test_error, after))
            builder.add(f"child-{number:02}", point, measures)
            if progress is not None:
                progress(number, len(points))
        builder.write(new)
        check = check_bundle(new, builder)
        return BundleCheck(len(points), new.stat().st_size, check, tuple(errors) or None)


@contextmanager
def quantized_weights(net: SlimmableNet) -> Iterator[Integers]:
    """Give the network weights of 8 bits; yield their integers and scales by name.

    Each output channel of a layer has one scale, which all children share: the largest weight of
    the full network becomes 127. Rounding looks at one weight and its scale alone, so a slice of
    the rounded weights is the rounded slice, exactly.
    """
    floats = {name: p for name, p in net.named_parameters() if p.ndim > 1}
    before = {name: p.data for name, p in floats.items()}
    integers: Integers = {}
    try:
        for name, parameter in floats.items():
            values = parameter.detach().cpu().numpy()
            largest = np.abs(values).reshape(len(values), -1).max(axis=1)
            scales = (np.where(largest > 0, largest, 1) / 127).astype(np.float32)
            by_channel = scales.reshape(-1, *[1] * (values.ndim - 1))
            integers[name] = np.rint(values / by_channel).clip(-127, 127).astype(np.int8), scales
            rounded = from_numpy(integers[name][0].astype(np.float32) * by_channel)
            parameter.data = rounded.to(parameter.device)
        yield integers
    finally:
        for name, parameter in floats.items():
            parameter.data = before[name]


def run_in_place(net: SlimmableNet, widths: Widths, images: Tensor) -> Tensor:
    return outputs_in_place(net, widths, (images,))[0]


class Builder:
    """Collects the weights, the graphs and the rows of the children."""

    def __init__(self, run: Run, integers: Integers | None = None) -> None:
        self.run, self.quantized = run, integers or {}
        self.integers: list[NDArray[np.int8]] = []
        self.full = {name: t.detach().cpu() for name, t in run.net.state_dict().items()}
        self.values: list[Array] = []
        self.tensors: list[dict[str, Any]] = []
        self.graphs: dict[bytes, str] = {}
        self.children: list[dict[str, Any]] = []
        self.cases: dict[str, list[Case]] = {}
        self._count = 0
        self._known: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._full_numbers: dict[str, int] = {}
        self._templates: dict[Widths, Template | None] = {}

    def add(self, name: str, point: Any, measures: dict[str, float | None]) -> None:
        """Add a child with its loss and errors: its row, its graph, and its own values."""
        run = self.run
        widths = widths_of(run, point)
        child = cut_child(run.net, widths, metadata(run, widths))
        self.cases[name] = cases_of(run.net, widths, run.samples)
        state = {key: value.numpy() for key, value in child.weights.items()}
        smaller = widths.pixels != run.net.space.full.pixels
        template = self._shared(widths)
        if template is None or not runs_as(template, state, self.cases[name]):
            template = make_template(child)
        self.children.append(
            {
                "name": name,
                "costs": point.costs,
                **measures,
                "channels": [widths.channels[dim.name] for dim in run.net.space.dims],
                **({"shape": child.facts["shape"]} if smaller else {}),
                "graph": self.graphs.setdefault(
                    template.graph(state), f"graphs/{len(self.graphs) + 1}.onnx"
                ),
                "weights": [self._row(slot, state, widths) for slot in template.slots],
            }
        )

    def _shared(self, widths: Widths) -> Template | None:
        """The graph of all children with these blocks and this input, in which no width is fixed.

        None if torch cannot make it. Where it does not fit a child, the child gets its own graph.
        """
        net = self.run.net
        dims = zip(net.space.dims, widths.counts)
        deep = net.space.of_counts([d.full if d.kind == CHANNELS else n for d, n in dims])
        if deep not in self._templates:
            self._templates[deep] = self._template(deep)
        return self._templates[deep]

    def _template(self, widths: Widths) -> Template | None:
        net, facts = self.run.net, metadata(self.run, widths)
        axes = {
            f"{module}.{tensor}".lstrip("."): [
                axis for axis, layout in enumerate(layouts) if layout.slimmable
            ]
            for module, plan in net._slim_net.plans.items()
            for tensor, layouts in plan.tensors.items()
        }
        try:
            child = cut_child(net, widths, facts)
            there = child.module.state_dict()
            return make_template(child, {n: a for n, a in axes.items() if n in there})
        except RunFailed:
            return None

    def _row(self, slot: Slot, state: dict[str, Array], widths: Widths) -> dict[str, Any]:
        """Describe a weight: as a part of a shared tensor where that is exact, else on its own."""
        if slot.tensor is None or slot.shift is not None:
            return {"name": slot.name, "of": self._own(weight_of(slot, state))}
        row: dict[str, Any] = {"name": slot.name}
        if (kept := self._kept(slot.tensor, state[slot.tensor], widths)) is None:
            return row | {"of": self._own(weight_of(slot, state))}
        if slot.tensor not in self._full_numbers:
            self._full_numbers[slot.tensor] = self._shared_tensor(slot.tensor)
        row["of"] = self._full_numbers[slot.tensor]
        if kept != list(self.full[slot.tensor].shape):
            row["keep"] = kept
        if slot.norm is not None:
            row["times"] = self._own(slot.norm.factors(state)[0].astype(np.float32))
        return row

    def _kept(self, name: str, value: Array, widths: Widths) -> list[Any] | None:
        """What the child keeps of each axis of a tensor; None if its values are others."""
        full, (module, _, tensor) = self.full[name], name.rpartition(".")
        plan = self.run.net._slim_net.plans.get(module)
        layouts = plan.tensors.get(tensor) if plan is not None else None
        if layouts is None:
            ranges = [[(0, size)] for size in full.shape]
        else:
            ranges = [layout.runs(widths.units) for layout in layouts]
        part = full.numpy()
        for axis, kept in enumerate(ranges):
            part = np.concatenate([part.take(range(*r), axis) for r in kept], axis)
        if part.shape != value.shape or not np.array_equal(part, value):
            return None
        return [
            kept[0][1] if len(kept) == 1 and kept[0][0] == 0 else [list(r) for r in kept]
            for kept in ranges
        ]

    def _shared_tensor(self, name: str) -> int:
        """Add a tensor of the full network, in 8 bits if it has them; its number."""
        if name not in self.quantized:
            return self._own(self.full[name].numpy())
        values, scales = self.quantized[name]
        offset = sum(len(known) for known in self.integers)
        row = {"offset": offset, "shape": list(values.shape), "scale": self._own(scales)}
        self.integers.append(values.reshape(-1))
        self.tensors.append(row)
        return len(self.tensors) - 1

    def _own(self, value: Array) -> int:
        """Add a tensor, unless an equal one is there; its number."""
        content = np.asarray(value, np.float32, order="C")
        key = (content.shape, hashlib.sha256(content.tobytes()).digest())
        if key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append({"offset": self._count, "shape": list(content.shape)})
            self.values.append(content.reshape(-1))
            self._count += content.size
        return self._known[key]

    def write(self, file: Path) -> None:
        """Write the zip file. Equal bundles are equal byte by byte."""
        values = np.concatenate(self.values) if self.values else np.zeros(0, np.float32)
        octets = values.astype("<f4").view(np.uint8).reshape(-1, 4)
        entries = {LOW: octets[:, :3].T.tobytes(), HIGH: octets[:, 3].tobytes()}
        eight_bits = {}
        if self.integers:
            entries[INT8] = np.concatenate(self.integers).tobytes()
            eight_bits = {"integers": len(entries[INT8])}
        sizes = any("shape" in child for child in self.children)
        entries |= {name: graph for graph, name in self.graphs.items()}
        files = {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in entries.items()
        }
        manifest = {
            "format": FORMAT_SIZES if sizes else FORMAT_INT8 if self.integers else FORMAT,
            **self._facts(),
            "values": len(values),
            **eight_bits,
            "files": files,
            "tensors": self.tensors,
            "children": self.children,
        }
        text = json.dumps(manifest, separators=(",", ":"), allow_nan=False)
        with zipfile.ZipFile(file, "w") as bundle:
            for name, content in {MANIFEST: text.encode(), **entries}.items():
                info = zipfile.ZipInfo(name)
                info.compress_type = ZIP_STORED if name in (LOW, INT8) else ZIP_DEFLATED
                bundle.writestr(info, content)

    def _facts(self) -> dict[str, Any]:
        """The facts of the manifest that hold for all children."""
        run = self.run
        facts = metadata(run, run.net.space.full)
        return {
            **{name: fact for name, fact in facts.items() if name not in OF_CHILDREN},
            "crop": CENTRE if run.config.data.startswith(("folder:", "shards:")) else 1.0,
            "cost": run.front.key,
            "dims": [{"name": dim.name, "full": dim.full} for dim in run.net.space.dims],
        }


def weight_of(slot: Slot, state: dict[str, Array]) -> Array:
    """The value of a slot in a child with these tensors."""
    if slot.shift is not None:
        factor, shift = slot.shift.factors(state)
        own = 0.0 if slot.tensor is None else state[slot.tensor].astype(np.float64)
        return (shift + factor * own).astype(np.float32)
    assert slot.tensor is not None
    value = state[slot.tensor]
    if slot.norm is None:
        return value
    factors = slot.norm.factors(state)[0].astype(np.float32)
    return value * factors.reshape(-1, *[1] * (value.ndim - 1))


def runs_as(template: Template, state: dict[str, Array], cases: list[Case]) -> bool:
    """Whether a graph with the weights of a child computes what the child computes."""
    weights = [(slot.name, weight_of(slot, state)) for slot in template.slots]
    try:
        session = open_session(template.graph(state), weights)
        compared([lambda x: tensor(session.run(None, {INPUT: x.numpy()})[0])], cases)
    except Exception:  # onnxruntime has many kinds, without a common class
        return False
    return True


def check_bundle(file: Path, builder: Builder) -> Check:
    """Read the file back, and compare every child with the network; the worst result."""
    net = joslim_runtime.open(file, keep=1)
    checks = []
    for child in net.front:
        try:
            net.use(child)
            cases = builder.cases[child.name]
            checks.append(compared([lambda x: tensor(net(x.numpy()))], cases))
        except joslim_runtime.BundleError as error:
            raise RunFailed(f"export: {error}; nothing is kept") from error
    return worst_of(checks)

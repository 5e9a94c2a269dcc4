"""The formats that a child is exported to. A new format is two functions and a row in `FORMATS`.

child.onnx   one file, for onnxruntime and others
child.pt2    one file, for torch.export.load
child.pte    one file, for ExecuTorch on phones; several children can be methods of one file
child.tflite one file, for LiteRT on phones
child.openvino/  model.xml and model.bin for OpenVINO, and config.json
child.coreml/    model.mlpackage for CoreML, and config.json
child/       model.safetensors and config.json, for joslim.load_child; graph.pt2, which is the
             computation without weights, for torch and safetensors alone

A file holds no pickle, and no path of the machine that it was made on. Torch is imported inside the
functions: the command line and the messages about run folders need the table, and not torch.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joslim.errors import RunFailed, UserError, reason
from joslim.files import disk_errors, stored_tensors, unshared, write_tensors, write_whole

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

    Forward = Callable[..., Any]

INPUT, OUTPUT = "images", "scores"
CONFIG, WEIGHTS, GRAPH = "config.json", "model.safetensors", "graph.pt2"


@dataclass(frozen=True)
class Format:
    """A format that children are exported to; `name` is as in `--format onnx`."""

    name: str
    suffix: str  # with its dot; only joslim's own folders have none
    write: Callable[[Child, Path], None]
    # Loads the path and returns the ways to run it; each is compared with the network. None if no
    # program on this machine runs it.
    run: Callable[[Child, Path], list[Forward]] | None
    opened_by: str  # for messages
    packages: tuple[str, ...] = ()
    extra: str = ""  # of pip, with these packages
    folder: bool = False
    # Writes several children into one file, from which `run` takes each by its name.
    write_several: Callable[[Sequence[Child], Path], None] | None = None

    def check_installed(self) -> None:
        """Refuse a format whose packages are missing."""
        try:
            with _silent():  # some of them warn of each other's versions
                for package in self.packages:
                    import_module(package)
        except ImportError as error:
            kind = f"a {self.suffix} {'folder' if self.folder else 'file'}"
            raise UserError(
                f"export: {kind} needs {error.name}; type pip install 'joslim[{self.extra}]'"
            ) from error


@dataclass
class Child:
    """An ordinary module in eval mode on the CPU, and the metadata that are exported with it.

    inputs: examples of its inputs. batched: whether their first axis is the batch, which may then
    have any size. Torch specializes a program to a batch of one, so that there are two samples.
    name: that of its method, in formats that have methods.
    """

    module: nn.Module
    facts: dict[str, Any]
    inputs: tuple[Tensor, ...]
    batched: bool = True
    name: str = "forward"

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights sorted by name, which is the order of the inputs of graph.pt2."""
        weights = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        return {name: tensor.contiguous() for name, tensor in sorted(unshared(weights))}

    @cached_property
    def program(self) -> ExportedProgram:
        """The child as a program of torch.export with a dynamic batch."""
        return _exported(self.module, self.inputs, self._dynamic)

    @property
    def sample(self) -> tuple[Tensor, ...]:
        """One sample of the inputs, for formats that take no other batch."""
        return tuple(x[:1] for x in self.inputs) if self.batched else self.inputs

    def graph(self) -> ExportedProgram:
        """The program as a function of the weights too, so that it does not hold them."""
        import torch

        module, weights = self.module, self.weights

        class Computation(torch.nn.Module):
            def forward(self, weights: dict[str, Tensor], *inputs: Tensor) -> Any:
                return torch.func.functional_call(module, weights, inputs)

        fixed = dict.fromkeys(weights)
        return _exported(Computation(), (weights, *self.inputs), (fixed, self._dynamic))

    @property
    def _dynamic(self) -> Any:
        from torch.export import Dim

        batch = {0: Dim("batch")} if self.batched else None
        return tuple(batch for _ in self.inputs)


def _exported(module: nn.Module, inputs: tuple[Any, ...], dynamic: Any) -> ExportedProgram:
    import torch

    from joslim.costs.timing import silent_export

    try:
        with torch.no_grad(), silent_export():
            program = torch.export.export(module, inputs, dynamic_shapes=dynamic)
    except Exception as error:  # it runs the network's own code, which may raise anything
        raise RunFailed(f"export: torch cannot export this network: {reason(error)}") from error
    # Examples are stored as a pickle, stack traces with the paths of this machine.
    program._example_inputs = None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


# ONNX


def write_onnx(child: Child, file: Path) -> None:
    import onnx
    import torch

    from joslim.costs.timing import silent_export

    program = child.program
    try:
        with silent_export():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=_names(child.facts["input"]),
                output_names=_names(child.facts["output"]),
            )
            assert exported is not None
            model = exported.model_proto
        _clean(model, child.batched)
        facts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in child.facts.items()}
        onnx.helper.set_model_props(model, facts)
        onnx.checker.check_model(model)
        content = model.SerializeToString()
    except Exception as error:
        raise RunFailed(f"export: ONNX cannot express this network: {reason(error)}") from error
    file.write_bytes(content)


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _clean(model: Any, batched: bool) -> None:
    """Rename torch's symbolic batch dimension to "batch", and drop stack traces."""
    graph = model.graph
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param if batched else ""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if symbol and dim.dim_param:
                dim.dim_param = dim.dim_param.replace(symbol, "batch")
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]


def onnx_forward(file: Path) -> Forward:
    import torch

    session = onnx_session(file)
    names = [value.name for value in session.get_inputs()]

    def forward(*inputs: Tensor) -> Any:
        feeds = {name: value.numpy() for name, value in zip(names, inputs)}
        outputs = [torch.from_numpy(array) for array in session.run(None, feeds)]
        return outputs[0] if len(outputs) == 1 else outputs

    return forward


def onnx_session(file: Path) -> Any:
    """Open an ONNX file with onnxruntime on one thread."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(str(file), options, providers=providers)


# torch.export


def write_pt2(child: Child, file: Path) -> None:
    import torch

    from joslim.costs.timing import silent_export

    program, content = child.program, json.dumps(child.facts, indent=2)
    with disk_errors(file), silent_export():
        torch.export.save(program, file, extra_files={CONFIG: content})


def run_pt2(child: Child, file: Path) -> list[Forward]:
    import torch

    return [torch.export.load(file).module()]


@contextmanager
def _silent() -> Iterator[None]:
    """Silence converters that print their progress."""
    from joslim.costs.timing import silent_export

    with silent_export(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _one_by_one(forward: Callable[..., Sequence[Tensor]], batched: bool) -> Forward:
    """Run a file that takes one sample on any number of them."""
    import torch

    def run(*inputs: Tensor) -> list[Tensor]:
        samples = zip(*(x.split(1) for x in inputs)) if batched else [inputs]
        outputs = zip(*(forward(*sample) for sample in samples))
        return [torch.cat(each) if len(each) > 1 else each[0] for each in outputs]

    return run


# ExecuTorch


def write_methods(children: Sequence[Child], file: Path) -> None:
    """Write a program for ExecuTorch, with the layers that XNNPACK knows given to it.

    Each child is a method, which takes one sample: with an open batch, a trial had memory for 15
    samples only, whatever the limit. ExecuTorch stores tensors that are equal once, and no part of
    another tensor: children of different widths share next to nothing.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (  # type: ignore
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower  # type: ignore[import-not-found]

    programs = {c.name: _exported(c.module, c.sample, None) for c in children}
    facts = children[0].facts
    if len(children) > 1:  # what is the same for all is stated once
        facts = {k: v for k, v in facts.items() if all(c.facts.get(k) == v for c in children)}
        own = {c.name: {k: v for k, v in c.facts.items() if k not in facts} for c in children}
        facts = {**facts, "children": own}
    try:
        with _silent():
            lowered = to_edge_transform_and_lower(
                programs,
                partitioner={name: [XnnpackPartitioner()] for name in programs},
                # A method without inputs that returns the metadata.
                constant_methods={"facts": json.dumps(facts)},
            )
            content = lowered.to_executorch().buffer
    except Exception as error:  # it has many kinds, without a common class
        raise RunFailed(f"export: ExecuTorch cannot run this network: {reason(error)}") from error
    file.write_bytes(content)


def run_pte(child: Child, file: Path) -> list[Forward]:
    from executorch.runtime import Runtime  # type: ignore[import-not-found]

    method = Runtime.get().load_program(file).load_method(child.name)

    def forward(*inputs: Tensor) -> list[Tensor]:
        return [x.clone() for x in method.execute([x.contiguous() for x in inputs])]

    return [_one_by_one(forward, child.batched)]


# LiteRT


def write_tflite(child: Child, file: Path) -> None:
    """Write a file for LiteRT, which takes one sample; the metadata are a zip file at its end."""
    import litert_torch  # type: ignore[import-not-found]

    try:
        with _silent():
            litert_torch.convert(child.module, child.sample).export(str(file))
    except Exception as error:  # it has many kinds, without a common class
        raise RunFailed(f"export: LiteRT cannot express this network: {reason(error)}") from error
    with zipfile.ZipFile(file, "a") as end:
        end.writestr(zipfile.ZipInfo(CONFIG), json.dumps(child.facts, indent=2) + "\n")


def run_tflite(child: Child, file: Path) -> list[Forward]:
    import torch
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found]

    interpreter = Interpreter(str(file), num_threads=1)
    interpreter.allocate_tensors()
    sources, results = interpreter.get_input_details(), interpreter.get_output_details()

    def forward(*inputs: Tensor) -> list[Tensor]:
        for source, value in zip(sources, inputs):
            interpreter.set_tensor(source["index"], value.numpy())
        interpreter.invoke()
        return [torch.from_numpy(interpreter.get_tensor(result["index"])) for result in results]

    return [_one_by_one(forward, child.batched)]


# CoreML


def write_coreml(child: Child, folder: Path) -> None:
    """Write a package for CoreML in 32 bits, which takes one sample."""
    with _silent():  # it warns of a torch that is newer than it
        import coremltools  # type: ignore[import-not-found]

    program = _exported(child.module, child.sample, None)
    try:
        with _silent():
            model = coremltools.convert(
                program.run_decompositions({}),
                convert_to="mlprogram",
                compute_precision=coremltools.precision.FLOAT32,
                minimum_deployment_target=coremltools.target.iOS16,
                inputs=[
                    coremltools.TensorType(name, value.shape)
                    for name, value in zip(_names(child.facts["input"]), child.sample)
                ],
                outputs=[coremltools.TensorType(name) for name in _names(child.facts["output"])],
            )
            folder.mkdir()
            model.save(str(folder / "model.mlpackage"))
    except Exception as error:  # it has many kinds, without a common class
        raise RunFailed(f"export: CoreML cannot express this network: {reason(error)}") from error
    write_whole(folder / CONFIG, json.dumps(child.facts, indent=2) + "\n")


# OpenVINO


def write_openvino(child: Child, folder: Path) -> None:
    import openvino  # type: ignore[import-not-found]

    from joslim.costs.timing import silent_export

    program = child.program
    try:
        with silent_export():
            model = openvino.convert_model(program)
        batch = [-1] if child.batched else []
        shapes = [[*batch, *value.shape[len(batch) :]] for value in child.inputs]
        model.reshape(dict(enumerate(shapes)))
        for ports, names in ((model.inputs, "input"), (model.outputs, "output")):
            for port, name in zip(ports, _names(child.facts[names])):
                port.get_tensor().set_names({name})
        folder.mkdir()
        with disk_errors(folder):
            openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    except RuntimeError as error:
        raise RunFailed(f"export: OpenVINO cannot express this network: {reason(error)}") from error
    write_whole(folder / CONFIG, json.dumps(child.facts, indent=2) + "\n")


def run_openvino(child: Child, folder: Path) -> list[Forward]:
    """Run the folder in 32 bits; by default OpenVINO takes fewer where the processor has them."""
    import openvino
    import torch

    precise = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    network = openvino.Core().compile_model(folder / "model.xml", "CPU", precise)

    def forward(*inputs: Tensor) -> Any:
        outputs = [torch.tensor(array) for array in network([x.numpy() for x in inputs]).values()]
        return outputs[0] if len(outputs) == 1 else outputs

    return [forward]


# A folder


def write_folder(child: Child, folder: Path) -> None:
    import torch

    from joslim.costs.timing import silent_export

    graph = child.graph()
    folder.mkdir()
    with disk_errors(folder), silent_export():
        write_tensors(child.weights, folder / WEIGHTS)
        torch.export.save(graph, folder / GRAPH)
    write_whole(folder / CONFIG, json.dumps(child.facts, indent=2) + "\n")


def run_folder(child: Child, folder: Path) -> list[Forward]:
    """Run the folder as joslim.load_child opens it, and as other programs do."""
    import torch

    weights = dict(sorted(load_weights(child.module, folder / WEIGHTS).items()))
    graph = torch.export.load(folder / GRAPH).module()
    return [child.module, lambda *inputs: graph(weights, *inputs)]


def load_weights(module: nn.Module, file: Path) -> dict[str, Tensor]:
    """Load all weights; the file has tensors that share memory once."""
    weights, wanted = stored_tensors(file), module.state_dict()
    module.load_state_dict(weights, strict=len(unshared(dict(wanted))) == len(wanted))
    return weights


_ROWS = (
    Format(
        "onnx",
        ".onnx",
        write_onnx,
        lambda child, file: [onnx_forward(file)],
        opened_by="onnxruntime.InferenceSession",
        packages=("onnx", "onnxruntime", "onnxscript"),
        extra="onnx",
    ),
    Format("pt2", ".pt2", write_pt2, run_pt2, opened_by="torch.export.load"),
    Format(
        "pte",
        ".pte",
        lambda child, file: write_methods([child], file),
        run_pte,
        opened_by="executorch.runtime.Runtime",
        packages=("executorch.exir", "executorch.runtime", "torchao"),
        extra="executorch",
        write_several=write_methods,
    ),
    Format(
        "tflite",
        ".tflite",
        write_tflite,
        run_tflite,
        opened_by="ai_edge_litert.interpreter.Interpreter",
        packages=("litert_torch", "ai_edge_litert.interpreter"),
        extra="litert",
    ),
    Format(
        "openvino",
        ".openvino",
        write_openvino,
        run_openvino,
        opened_by="openvino.Core().compile_model",
        packages=("openvino",),
        extra="openvino",
        folder=True,
    ),
    Format(
        "coreml",
        ".coreml",
        write_coreml,
        None,
        opened_by="CoreML",
        packages=("coremltools",),
        extra="coreml",
        folder=True,
    ),
    Format("folder", "", write_folder, run_folder, opened_by="joslim.load_child", folder=True),
)
FORMATS = {row.name: row for row in _ROWS}


def format_of(path: str | Path) -> Format:
    """The format of a path, by its suffix; no suffix, or a slash at the end, is a folder."""
    suffix = "" if str(path).endswith("/") else Path(path).suffix
    for known in FORMATS.values():
        if known.suffix == suffix.lower():
            return known
    *suffixes, last = known_suffixes()
    raise UserError(
        f"out: {str(path)!r} has an unknown suffix; type one of {', '.join(suffixes)} and {last}, "
        "or a path without any for a folder"
    )


def known_suffixes() -> list[str]:
    """Suffixes by which a path names a format."""
    return [known.suffix for known in FORMATS.values() if known.suffix]

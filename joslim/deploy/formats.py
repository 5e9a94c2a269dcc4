"""Three formats: how a child is written, and how the file is run again.

child.onnx   one file, for onnxruntime and others
child.pt2    one file, for torch.export.load
child/       model.safetensors and config.json, for joslim.load_child; graph.pt2, which is the
             computation without weights, for torch and safetensors alone

Whatever is written holds no pickle, and no path of the machine that it was made on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from joslim.costs.measuring import import_onnxruntime, silent_export
from joslim.deploy.facts import INPUT, OUTPUT
from joslim.deploy.loading import load_weights
from joslim.errors import RunFailed, UserError
from joslim.runs.checkpoint import MODEL, disk_errors, unshared
from joslim.runs.folder import CONFIG
from joslim.whole import write_whole

GRAPH = "graph.pt2"
# A program of torch holds for batches of more than one; it is asked for one image when checked.
EXAMPLE_BATCH = 2
LONGEST_REASON = 300

Forward = Callable[[Tensor], Tensor]


@dataclass
class Child:
    """An ordinary module in eval mode, on the CPU, and what travels with it."""

    module: nn.Module
    facts: dict[str, Any]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Sorted by name: that is how graph.pt2 wants them."""
        weights = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        return {name: tensor.contiguous() for name, tensor in sorted(unshared(weights))}

    @cached_property
    def program(self) -> ExportedProgram:
        return exported(self.module, (self.images,), ({0: Dim("batch")},))

    def graph(self) -> ExportedProgram:
        """The program as a function of the weights too, which it then need not hold."""
        weights = self.weights
        fixed = dict.fromkeys(weights)
        return exported(
            Computation(self.module), (weights, self.images), (fixed, {0: Dim("batch")})
        )

    @property
    def images(self) -> Tensor:
        return torch.zeros(EXAMPLE_BATCH, *self.facts["shape"])


class Computation(nn.Module):
    """A module without its weights."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["module"] = module  # not registered: it would bring its weights along

    def forward(self, weights: dict[str, Tensor], images: Tensor) -> Any:
        return torch.func.functional_call(self.__dict__["module"], weights, (images,))


def exported(module: nn.Module, inputs: tuple[Any, ...], dynamic: Any) -> ExportedProgram:
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


def reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]


# ONNX


def onnx_packages() -> Any:
    """onnxruntime; what is not installed is a UserError that says how to."""
    return import_onnxruntime("export: a .onnx file")


def write_onnx(child: Child, file: Path) -> None:
    onnx_packages()
    import onnx

    try:
        with silent_export():
            program = torch.onnx.export(
                child.program,
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=[OUTPUT],
            )
            assert program is not None
            model = program.model_proto
        name_the_batch(model)
        drop_traces(model.graph)
        onnx.helper.set_model_props(model, {k: text(v) for k, v in child.facts.items()})
        onnx.checker.check_model(model)
        content = model.SerializeToString()
    except Exception as error:
        raise RunFailed(f"export: ONNX cannot express this network: {reason(error)}") from error
    file.write_bytes(content)


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def name_the_batch(model: Any) -> None:
    """Whom torch calls s77 or the like."""
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = dim.dim_param.replace(symbol, "batch")


def drop_traces(graph: Any) -> None:
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]


def run_onnx(child: Child, file: Path) -> list[Forward]:
    session = onnx_session(file)
    return [lambda x: torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])]


def onnx_session(file: Path, threads: int = 1) -> Any:
    runtime = onnx_packages()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


# torch.export


def write_pt2(child: Child, file: Path) -> None:
    program, content = child.program, json.dumps(child.facts, indent=2)
    with disk_errors(file), silent_export():
        torch.export.save(program, file, extra_files={CONFIG: content})


def run_pt2(child: Child, file: Path) -> list[Forward]:
    return [torch.export.load(file).module()]


# A folder


def write_folder(child: Child, folder: Path) -> None:
    graph = child.graph()
    folder.mkdir()
    with disk_errors(folder), silent_export():
        save_file(child.weights, folder / MODEL)
        torch.export.save(graph, folder / GRAPH)
    write_whole(folder / CONFIG, json.dumps(child.facts, indent=2) + "\n")


def run_folder(child: Child, folder: Path) -> list[Forward]:
    """Once as joslim.load_child opens it, once as others do."""
    weights = dict(sorted(load_weights(child.module, folder / MODEL).items()))
    graph = torch.export.load(folder / GRAPH).module()
    return [child.module, lambda x: graph(weights, x)]


@dataclass(frozen=True)
class Format:
    name: str
    suffix: str
    write: Callable[[Child, Path], None]
    run: Callable[[Child, Path], list[Forward]]


FORMATS = {
    "onnx": Format("onnx", ".onnx", write_onnx, run_onnx),
    "pt2": Format("pt2", ".pt2", write_pt2, run_pt2),
    "folder": Format("folder", "", write_folder, run_folder),
}


def format_of(path: str | Path) -> Format:
    """By the suffix; none, or a slash at the end, is a folder."""
    suffix = "" if str(path).endswith("/") else Path(path).suffix
    for known in FORMATS.values():
        if known.suffix == suffix.lower():
            return known
    raise UserError(
        f"out: {str(path)!r} has an unknown suffix; type one of .onnx and .pt2, "
        "or a path without any for a folder"
    )

"""The ONNX graph of a network without its weights, which are put in for each child.

torch exports the full network as a function of its weights, whose sizes are left open. BatchNorm
after a convolution becomes a factor for each channel of the weight, and a bias. Both are a child's
own, and the weight is a part of the shared one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joslim.errors import RunFailed, reason
from joslim.formats import INPUT, OUTPUT, Child

Array = NDArray[Any]
# Numbers of axes, by the names of tensors.
Axes = Mapping[str, Sequence[int]]
# Inputs of a BatchNormalization node after its first, in their order.
SCALE, BIAS, MEAN, VAR = range(4)


@dataclass(frozen=True)
class Norm:
    """A BatchNorm after a convolution: the names of its tensors, and epsilon."""

    tensors: tuple[str, ...]
    epsilon: float

    def factors(self, state: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return a and b of the norm as y = a x + b, in double precision."""
        values = [state[name].astype(np.float64) for name in self.tensors]
        factor = values[SCALE] / np.sqrt(values[VAR] + self.epsilon)
        return factor, values[BIAS] - factor * values[MEAN]


@dataclass(frozen=True)
class Slot:
    """A place of the graph for a weight.

    Attributes:
        name: Name in the graph.
        tensor: Name of the tensor of the network, or None for the bias of a norm alone.
        norm: The norm that scales the tensor, if it is the weight of a convolution.
        shift: The norm whose bias this is.
    """

    name: str
    tensor: str | None
    norm: Norm | None = None
    shift: Norm | None = None


@dataclass(frozen=True)
class Template:
    """An ONNX model without weights.

    Attributes:
        model: The model.
        slots: The places of its weights.
        grouped: For each grouped convolution the number of its node, the tensor of its weight, and
            the outputs of a group. A child has fewer groups, and ONNX has their number as an
            attribute.
    """

    model: Any
    slots: tuple[Slot, ...]
    grouped: tuple[tuple[int, str, int], ...]

    def graph(self, state: Mapping[str, Array]) -> bytes:
        """Serialize the model for a child with these tensors."""
        for number, tensor, outputs in self.grouped:
            (group,) = [a for a in self.model.graph.node[number].attribute if a.name == "group"]
            group.i = len(state[tensor]) // outputs
        return self.model.SerializeToString()


def make_template(child: Child, open_axes: Axes | None = None) -> Template:
    """Export a child as a graph without weights.

    Args:
        child: The child; if axes are open, the full network.
        open_axes: Axes of tensors whose sizes the graph reads from the tensors, so that it fits all
            children. torch fixes a size that the network compares with a number.

    Raises:
        RunFailed: torch or ONNX cannot express the network.
    """
    try:
        model = exported_model(child, open_axes or {})
        *given, images = [value.name for value in model.graph.input]
        names = dict(zip(given, child.weights, strict=True))
        (scores,) = [value.name for value in model.graph.output]
        slots = fold_norms(model.graph, names)
        remove_unused(model.graph)
        used = {name for node in model.graph.node for name in node.input}
        slots = [slot for slot in slots if slot.name in used]
        for name in (name for name in given if name in used):
            value = child.weights[names[name]].numpy()
            if value.dtype == np.float32:
                slots.append(Slot(name, names[name]))
            else:  # an index or the like
                add_initializer(model.graph, name, value)
        grouped = tuple(grouped_convs(model.graph, slots, child.weights))
        short = shorten(model, [slot.name for slot in slots], images, scores)
    except RunFailed:
        raise
    except Exception as error:  # torch runs the network's own code, which may raise anything
        raise RunFailed(f"export: ONNX cannot express this network: {reason(error)}") from error
    places = tuple(Slot(short[s.name], s.tensor, s.norm, s.shift) for s in slots)
    return Template(model, places, grouped)


def exported_model(child: Child, open_axes: Axes) -> Any:
    """The ONNX model of a child as a function of its weights, sorted by name, and of images."""
    import torch
    from torch.export import Dim

    from joslim.costs.timing import silent_export

    module = child.module

    class Computation(torch.nn.Module):
        def forward(self, weights: dict[str, Any], images: Any) -> Any:
            return torch.func.functional_call(module, weights, (images,))

    sizes = {
        name: dict.fromkeys(open_axes.get(name, ()), Dim.AUTO) or None for name in child.weights
    }
    with torch.no_grad(), silent_export():
        program = torch.export.export(
            Computation(),
            (child.weights, *child.inputs),
            dynamic_shapes=(sizes, {0: Dim("batch")}),
        )
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert exported is not None
    return exported.model_proto


def fold_norms(graph: Any, names: dict[str, str]) -> list[Slot]:
    """Take out each BatchNorm that follows a convolution; return the slots of such convolutions.

    names: the tensor of the network for each input of the graph.
    """
    makers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    slots: list[Slot] = []
    alike: dict[str, str] = {}
    for node in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        conv = makers.get(node.input[0])
        if conv is None or conv.op_type != "Conv" or uses[node.input[0]] != 1:
            continue
        own = [name for name in conv.input[1:] if not is_zero(name, makers, graph)]
        if any(name not in names for name in (*own, *node.input[1:])):
            continue
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        norm = Norm(tuple(names[name] for name in node.input[1:]), epsilon)
        weight, bias = f"{conv.output[0]}.weight", f"{conv.output[0]}.bias"
        slots.append(Slot(weight, names[own[0]], norm=norm))
        slots.append(Slot(bias, names[own[1]] if len(own) > 1 else None, shift=norm))
        alike |= {own[0]: weight} | dict.fromkeys((*own[1:], *node.input[1:]), bias)
        conv.input[1:] = [weight, bias]
        conv.output[0] = node.output[0]
        graph.node.remove(node)
    # Sizes are read from tensors that are in the graph anyway.
    for node in graph.node:
        if node.op_type == "Shape" and node.input[0] in alike:
            node.input[0] = alike[node.input[0]]
    return slots


def is_zero(name: str, makers: dict[str, Any], graph: Any) -> bool:
    """Whether a value is the bias of zeros that torch gives to a convolution without one."""
    from onnx import numpy_helper

    node = makers.get(name)
    if node is None or node.op_type != "Expand":
        return False
    constants = {t.name: t for t in graph.initializer}
    return node.input[0] in constants and not numpy_helper.to_array(constants[node.input[0]]).any()


def remove_unused(graph: Any) -> None:
    """Remove the nodes and the constants that the output does not need."""
    needed = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if needed & {*node.output}:
            needed |= {*node.input}
    kept = [node for node in graph.node if needed & {*node.output}]
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(constants)


def grouped_convs(
    graph: Any, slots: list[Slot], weights: Mapping[str, Any]
) -> Iterator[tuple[int, str, int]]:
    """Yield the number, the weight and the outputs of a group of each grouped convolution."""
    tensors = {slot.name: slot.tensor for slot in slots}
    for number, node in enumerate(graph.node):
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        if node.op_type == "Conv" and groups > 1 and (tensor := tensors.get(node.input[1])):
            yield number, tensor, len(weights[tensor]) // groups


def add_initializer(graph: Any, name: str, value: Array) -> None:
    from onnx import numpy_helper

    graph.initializer.append(numpy_helper.from_array(value, name))


def shorten(model: Any, places: list[str], images: str, scores: str) -> dict[str, str]:
    """Give short names to all values, and drop what onnxruntime does not need; the new names."""
    graph = model.graph
    short = {images: INPUT, scores: OUTPUT, "": ""}
    short |= {name: f"w{number}" for number, name in enumerate(places)}
    for node in graph.node:
        for values in (node.input, node.output):
            for position, name in enumerate(values):
                values[position] = short.setdefault(name, f"v{len(short)}")
    kept = [value for value in graph.input if value.name == images]
    del graph.input[:], graph.value_info[:], model.metadata_props[:], graph.metadata_props[:]
    graph.input.extend(kept)
    for part in (*graph.input, *graph.output, *graph.initializer):
        part.name = short.get(part.name, part.name)
        part.doc_string = ""
        del part.metadata_props[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
    graph.name, graph.doc_string, model.producer_version = "child", "", ""
    return short

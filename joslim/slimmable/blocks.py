"""Blocks that a child may leave out: which modules of a traced network they are.

A block is a module that adds something to its first input: it is called once, and returns a tensor
of the same axes that carries that input along through an addition. It may take other tensors too,
such as positions or a mask. Without the block the network still fits together. Blocks that follow
each other in one parent are a run, and a child keeps the first ones of each run. The rules look at
what ran and not at the names of classes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from joslim.errors import UserError, unknown
from joslim.slimmable.symbolic_axes import form
from joslim.slimmable.tracing import Call, Node, Op, Tracer

Depth = bool | Mapping[str, int]

ADDITIONS = {"add", "iadd", "radd"}


@dataclass(frozen=True)
class Stage:
    """Blocks that follow each other, of which a child keeps the first `least` or more.

    The first one is always kept. It may be another module of the same class before the run, such as
    the first block of a stage of a ResNet, which changes the size of its input.
    """

    name: str
    blocks: tuple[str, ...]
    least: int = 1


class Place(NamedTuple):
    """Where a block that may be left out stands.

    Attributes:
        dim: Position of its stage in the counts of a child.
        number: Number of the block in the stage, from 0: a child has it if its count is larger.
        removable: Whether it can be removed from its parent, an `nn.Sequential` that is called;
            else something has to take its place.
    """

    dim: int
    number: int
    removable: bool


def left_out(blocks: Mapping[str, Place], counts: Sequence[int]) -> dict[str, Place]:
    """Return the blocks that the child with these counts does not have."""
    return {name: place for name, place in blocks.items() if counts[place.dim] <= place.number}


def find_stages(
    model: nn.Module, tracers: Sequence[Tracer], depth: Depth, keep: Sequence[str]
) -> tuple[list[Stage], dict[str, str]]:
    """Find the stages of a network, and why other modules of the classes of blocks must stay.

    Raises:
        UserError: There is no block that can be left out, or an option names none.
    """
    traces, modules = [BlockTrace(tracer) for tracer in tracers], dict(model.named_modules())
    # Why each module must stay, by any of the traces; an empty reason if it may go.
    why = {name: "" for name in traces[0].calls if name}
    why |= dict.fromkeys(modules_with_shared_parameters(model), "it shares weights with others")
    for trace in traces:
        why |= {name: why.get(name) or trace.reason(name) for name in trace.calls if name}
    runs = disjoint(
        list(runs_of(traces[0], {n for n, reason in why.items() if not reason}, modules))
    )
    if not runs:
        raise UserError(
            f"depth: {type(model).__name__} has no block to leave out; a block is a module that is "
            "called once and returns its input plus something, after another block"
        )
    parents = [parent_of(run[0]) for run in runs]
    stages = [
        Stage(parent if parent and parents.count(parent) == 1 else run[0], tuple(run))
        for run, parent in zip(runs, parents)
    ]
    stages = with_options(stages, depth, keep)
    may_go = {block for stage in stages for block in stage.blocks[stage.least :]}
    classes = {type(modules[block]) for stage in stages for block in stage.blocks[1:]}
    stay = {
        name: reason or "it is the first block of its stage"
        for name, reason in why.items()
        if name not in may_go and type(modules[name]) in classes
    }
    for stage in stages:
        stay |= dict.fromkeys(stage.blocks[1 : stage.least], "kept, as asked for")
    return [stage for stage in stages if stage.least < len(stage.blocks)], stay


def parent_of(name: str) -> str:
    return name.rpartition(".")[0]


def with_options(stages: list[Stage], depth: Depth, keep: Sequence[str]) -> list[Stage]:
    """Raise the least numbers of blocks as `depth` and `keep` ask for."""
    least = {stage: stage.least for stage in stages}
    for pattern, value in depth.items() if isinstance(depth, Mapping) else ():
        found = [s for s in stages if any(matches(n, pattern) for n in (s.name, *s.blocks))]
        if not found:
            raise unknown("depth", pattern, [stage.name for stage in stages])
        for stage in found:
            if not 1 <= value <= len(stage.blocks):
                raise UserError(
                    f"depth: {value} for {stage.name!r}, which has {len(stage.blocks)} blocks; "
                    f"type the least number that is kept, from 1 to {len(stage.blocks)}"
                )
            least[stage] = value
    for stage in stages:
        named = [at for at, b in enumerate(stage.blocks, 1) if any(matches(b, p) for p in keep)]
        least[stage] = max([least[stage], *named])
    return [Stage(stage.name, stage.blocks, least[stage]) for stage in stages]


def matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


class BlockTrace:
    """The calls of modules in a trace, and the operations that read each tensor."""

    def __init__(self, tracer: Tracer) -> None:
        self.ops = tracer.ops
        self.calls: dict[str, list[Call]] = {}
        for call in tracer.calls:
            self.calls.setdefault(call.module, []).append(call)
        self._readers: dict[int, list[int]] = {}
        for time, op in enumerate(self.ops):
            for node in op.reads:
                self._readers.setdefault(node.number, []).append(time)

    def reason(self, name: str) -> str:
        """Return why a module cannot be left out; empty if it can."""
        if len(self.calls[name]) > 1:
            return "it is called more than once"
        (call,) = self.calls[name]
        if not call.inputs or len(call.outputs) != 1:
            return "it does not take a tensor and return one"
        given, result = call.inputs[0], call.outputs[0]
        if [form(axis) for axis in given.axes] != [form(axis) for axis in result.axes]:
            return "its output differs in size from its input"
        if result is given:
            return "it changes its input in place"
        inside = self.ops[call.start : call.stop]
        if not any(op.multiplies for op in inside) or not self._adds(inside, given, result):
            return "its output is not its input plus something"
        made = {node.number for op in inside for node in op.writes}
        for op in inside:
            others = [n for n in op.reads if not n.constant and n.number not in made]
            if any(all(node is not own for own in call.inputs) for node in others):
                return "it reads other tensors than its inputs"
        for number in {given.number, *made} - {result.number}:
            if any(time >= call.stop for time in self._readers.get(number, ())):
                return "a tensor before its end is read after it"
        return ""

    def _adds(self, inside: list[Op], given: Node, result: Node) -> bool:
        """Tell whether the output carries the input along, through an addition at least once."""
        carried, added = {given.number}, set[int]()
        for op in inside:
            read = {node.number for node in op.reads}
            if op.multiplies or not (read & carried) or not (op.reuses or op.name in ADDITIONS):
                continue
            written = {node.number for node in op.writes}
            if read & added or (op.name in ADDITIONS and read - carried):
                added |= written
            carried |= written
        return result.number in added


def runs_of(
    trace: BlockTrace, good: set[str], modules: dict[str, nn.Module]
) -> Iterator[list[str]]:
    """Yield the blocks of each stage, the one that is always kept first."""
    # The sibling that made a tensor; a dropout that returned its input did not make it.
    makers: dict[tuple[str, int], str] = {}
    for name, calls in trace.calls.items():
        if len(calls) == 1 and len(calls[0].outputs) == 1:
            makers.setdefault((parent_of(name), calls[0].outputs[0].number), name)
    runs: dict[str, list[str]] = {}  # by the last block so far
    for name in sorted(good, key=lambda name: trace.calls[name][0].start):
        previous = makers.get((parent_of(name), trace.calls[name][0].inputs[0].number))
        if previous in runs:
            run = [*runs.pop(previous), name]
        elif previous is not None and type(modules[previous]) is type(modules[name]):
            run = [previous, name]
        else:
            run = [name]
        runs[name] = run
    yield from (run for run in runs.values() if len(run) > 1)


def disjoint(runs: list[list[str]]) -> list[list[str]]:
    """Of runs that are inside of each other keep the longest, in the order of the network."""
    kept: list[list[str]] = []
    for run in sorted(runs, key=lambda run: -len(run)):
        others = [name for other in kept for name in other]
        if not any(a.startswith(f"{b}.") or b.startswith(f"{a}.") for a in run for b in others):
            kept.append(run)
    return [run for run in runs if run in kept]


def modules_with_shared_parameters(model: nn.Module) -> set[str]:
    """Return the names of modules that have a parameter which a module outside of them has too."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(name)
    found = set()
    for names in owners.values():
        for name in names if len(names) > 1 else ():
            parts = name.split(".")
            for prefix in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
                if not all(matches(other, prefix) for other in names):
                    found.add(prefix)
    return found

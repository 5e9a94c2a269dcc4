"""`joslim.sort_channels`: a trained network's channels in order of importance.

A child keeps a prefix of every Dim, and the first channels of a network that was trained in the
usual way are no better than the last. Sorted, the network computes what it computed before, and
its children begin with what matters most.

A unit of a Dim has its entries in the tensors of many layers, and the layouts say where: all of
them move together. That changes nothing, unless the order itself matters to forward (a shortcut
padded with zeros, a flip, a conv along the channels). Which units may change places is found out
by trying: on a copy with random weights, so that no dead channel hides a difference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from joslim.errors import UserError, unknown
from joslim.slimmable.blueprint import Layout
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.tracing import tensors_in, undisturbed

# Dim -> the order of its units: the unit that stood at order[i] comes to stand at i.
Permutations = Mapping[int, Tensor]
# Network -> for each Dim, how important its units are.
Importance = Callable[[SlimmableNet], Sequence[Tensor]]

# Random weights that every permutation is tried on: in one of them a unit may be dead.
DRAWS = 3
# How far outputs may lie apart, as a share of the largest: sums in another order round differently.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
# Where only a part of a Dim may be sorted, it is looked for in this many halvings.
HALVINGS = 5
# So many sets of Dims are tried together, where none of them can be sorted alone.
SETS = 64


@dataclass(frozen=True)
class Kept:
    """Units of a Dim that stay where they are, and why."""

    dim: str
    units: int
    why: str


@dataclass(frozen=True)
class Freedom:
    """The units at these positions may change places, if they do so alike in all these Dims."""

    dims: tuple[int, ...]
    units: tuple[int, ...]


def sort_channels(net: SlimmableNet, importance: str | Importance = "product") -> list[Kept]:
    """Put the channels of every Dim in order of importance, in place; the most important first.

    importance: a name in `IMPORTANCE`, or a function of the network that returns, for each Dim of
    `net.space.dims`, a tensor with a number for each of its units.

    The network computes what it did before. Where that would not be so, units stay where they are:
    these are returned, with the reason. BatchNorm statistics of children are forgotten. Call it
    before training: an optimizer's state and gradients are not sorted along.
    """
    if not isinstance(net, SlimmableNet):
        raise UserError(f"net: {type(net).__name__} given, a slimmable network needed: joslim.slim")
    scores = checked_scores(net, chosen(importance)(net))
    found = find_freedoms(Trials(net))
    whole = [f for f in found if len(f.dims) == 1 and len(f.units) == units_of(net)[f.dims[0]]]
    real = Trial(net, net.example)
    # A last look, with the weights that it really has; parts of Dims are the riskier finds.
    for freedoms in (found, whole):
        permutations = descending(net, scores, freedoms)
        if real.unchanged_by(permutations):
            permute(net, permutations)
            return kept_units(net, freedoms)
    return kept_units(net, [])


def permute(net: SlimmableNet, permutations: Permutations) -> None:
    """Put the units of Dims in another order, in every tensor that has them."""
    move(net, permutations)
    # They belonged to children that are made of other channels now.
    net.statistics.clear()
    net._switch(net.active)


@torch.no_grad()
def move(net: SlimmableNet, permutations: Permutations) -> None:
    for tensor, layouts in sliced_tensors(net):
        moved = tensor.detach()
        for axis, layout in enumerate(layouts):
            if any(stretch.dim in permutations for stretch in layout.stretches):
                moved = moved.index_select(axis, entries(layout, permutations).to(tensor.device))
        if moved.data_ptr() != tensor.data_ptr():
            tensor.copy_(moved)


def sliced_tensors(net: SlimmableNet) -> Iterator[tuple[Tensor, tuple[Layout, ...]]]:
    """Every tensor that has units of Dims, once, even if several modules share it."""
    modules = dict(net.named_modules())
    seen: set[int] = set()
    for name, plan in net._slim_net.plans.items():
        for tensor_name, layouts in plan.tensors.items():
            tensor = own_tensor(modules[name], tensor_name)
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor, layouts


def own_tensor(module: nn.Module, name: str) -> Tensor | None:
    """The whole tensor, and not the active part that the attribute gives."""
    return {**module._parameters, **module._buffers}.get(name)


def entries(layout: Layout, permutations: Permutations) -> Tensor:
    """The order of the entries of an axis: those of a unit move as one block."""
    parts, start = [], 0
    for stretch in layout.stretches:
        if stretch.dim is None or stretch.dim not in permutations:
            parts.append(torch.arange(start, start + stretch.full))
        else:
            order = permutations[stretch.dim].unsqueeze(1) * stretch.each
            parts.append(start + (order + torch.arange(stretch.each)).flatten())
        start += stretch.full
    return torch.cat(parts)


def units_of(net: SlimmableNet) -> list[int]:
    return [dim.full // dim.step for dim in net.space.dims]


# --- what may be sorted ---------------------------------------------------------------------------


class Trial:
    """A copy of a network, at full width and in double precision, to try permutations on."""

    def __init__(self, net: SlimmableNet, example: tuple[Any, ...], seed: int = 0) -> None:
        self.seed = seed
        try:
            self._start(net, example, torch.float64)
        except (RuntimeError, TypeError):  # forward itself asks for another precision
            self._start(net, example, torch.float32)

    def _start(self, net: SlimmableNet, example: tuple[Any, ...], dtype: torch.dtype) -> None:
        self.net = copy.deepcopy(net).to(dtype)
        self.net._switch(self.net.space.full)
        self.inputs = tree_map(lambda leaf: like(leaf, dtype, self.seed), example)
        self.modes = [False]
        with Precision() as seen:
            self.before = self._outputs()
        self.tolerance = TOLERANCES[torch.float64 if seen.only_double else torch.float32]
        self.modes = self._telling_modes()
        self.before = self._outputs()

    def _telling_modes(self) -> list[bool]:
        """Train mode is compared as well if more runs in it, and if it leaves nothing to chance."""
        try:
            first, second = (self._run(training=True, seed=seed) for seed in (0, 1))
        except Exception:
            return [False]
        more_runs = not self._agree(first, self.before)
        return [False, True] if more_runs and self._agree(first, second) else [False]

    def _run(self, training: bool, seed: int = 0) -> list[Tensor]:
        with undisturbed(self.net, training):
            for module in self.net.modules():
                if isinstance(module, _DropoutNd):
                    module.eval()
            torch.manual_seed(seed)
            return [t.detach().clone() for t in tensors_in(self.net(*self.inputs))]

    def _outputs(self) -> list[Tensor]:
        return [tensor for training in self.modes for tensor in self._run(training)]

    def _agree(self, ones: list[Tensor], others: list[Tensor]) -> bool:
        return len(ones) == len(others) and all(map(self._same, ones, others))

    def _same(self, a: Tensor, b: Tensor) -> bool:
        if a.shape != b.shape or not a.is_floating_point() or not a.numel():
            return a.shape == b.shape
        tolerance = self.tolerance * float(b.nan_to_num(0, 0, 0).abs().max())
        return torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)

    def unchanged_by(self, permutations: Permutations) -> bool:
        move(self.net, permutations)
        try:
            return self._agree(self._outputs(), self.before)
        finally:
            move(self.net, {dim: order.argsort() for dim, order in permutations.items()})


class Precision(TorchFunctionMode):
    """Whether all real numbers are in double precision: forward may ask for less."""

    only_double = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.only_double &= result.dtype == torch.float64
        return result


class Trials:
    """The network with several draws of random weights: what changes none of them is exact."""

    def __init__(self, net: SlimmableNet) -> None:
        self.units = units_of(net)
        self.draws = [Trial(scrambled(net, seed), net.example, seed) for seed in range(DRAWS)]

    def unchanged_by(self, permutations: Permutations) -> bool:
        return all(trial.unchanged_by(permutations) for trial in self.draws)

    def free(self, dims: tuple[int, ...], units: Sequence[int]) -> bool:
        """Whether the units at these positions may change places at will, alike in these Dims."""
        places = torch.tensor(units)
        swapped = torch.cat([places[:2].flip(0), places[2:]])
        # All permutations are made of these two.
        return all(
            self.unchanged_by({dim: self._moved(dim, places, order) for dim in dims})
            for order in (places.roll(1), swapped)
        )

    def _moved(self, dim: int, places: Tensor, order: Tensor) -> Tensor:
        result = torch.arange(self.units[dim])
        result[places] = order
        return result


def like(leaf: Any, dtype: torch.dtype, seed: int) -> Any:
    """Random numbers in place of real ones; indices and masks stay, as not all would be valid."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(leaf.shape, generator=generator, dtype=dtype).to(leaf.device)


def scrambled(net: SlimmableNet, seed: int) -> SlimmableNet:
    """A copy with random weights and statistics, in which all units differ and most matter.

    Biases and gains are around one, and weights so small that few units are dead after a ReLU.
    """
    net = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: Tensor, middle: float, reach: float) -> None:
        noise = 2 * torch.rand(tensor.shape, generator=generator) - 1
        tensor.copy_(middle + reach * noise)

    with torch.no_grad():
        for module in net.modules():
            for parameter in module._parameters.values():
                if parameter is not None and parameter.is_floating_point():
                    wide = parameter.dim() > 1
                    inputs = parameter.numel() / max(1, len(parameter)) if wide else 1
                    fill(parameter, 0.0 if wide else 1.0, (1 / inputs) ** 0.5 if wide else 0.5)
            if isinstance(module, _NormBase):
                for name, middle in (("running_mean", 0.0), ("running_var", 1.0)):
                    if (buffer := module._buffers.get(name)) is not None:
                        fill(buffer, middle, 0.5)
    return net


def find_freedoms(trials: Trials) -> list[Freedom]:
    """Dims that can be sorted as they are, and what is left of the others."""
    dims = range(len(trials.units))
    stuck = stuck_dims(trials)
    freedoms = [Freedom((d,), tuple(range(trials.units[d]))) for d in dims if d not in stuck]
    cuts = sorted({0, *(trials.units[dim] for dim in stuck)})
    left: dict[int, set[int]] = {}
    for dim in stuck:
        blocks = free_blocks(trials, dim, pieces(range(trials.units[dim]), cuts))
        freedoms += [Freedom((dim,), block) for block in blocks]
        left[dim] = set(range(trials.units[dim])) - set(chain(*blocks))
    for together in islice(sets_of(stuck), SETS):
        common = set.intersection(*(left[dim] for dim in together))
        for piece in pieces(sorted(common), cuts):
            if len(piece) > 1 and trials.free(together, piece):
                freedoms.append(Freedom(together, tuple(piece)))
                for dim in together:
                    left[dim] -= set(piece)
    return freedoms


def stuck_dims(trials: Trials) -> list[int]:
    """Dims that may not be put in any order, while all others stay as they are."""
    movable = [dim for dim, units in enumerate(trials.units) if units > 1]
    stuck: set[int] = set()
    while found := suspects(trials, [dim for dim in movable if dim not in stuck]):
        guilty = {dim for dim in found if not trials.draws[0].unchanged_by(shuffled(trials, dim))}
        stuck |= guilty or found
    return sorted(stuck)


def suspects(trials: Trials, dims: list[int]) -> set[int]:
    """The members of sets of Dims that changed the output when all were moved at random.

    The sets are made by the bits of a Dim's place in the list. So any two Dims are apart in one of
    them, and cannot make up for each other in all.
    """
    found: set[int] = set()
    for bit in range((len(dims) - 1).bit_length() or 1):
        for side in (0, 1):
            members = [dim for place, dim in enumerate(dims) if place >> bit & 1 == side]
            moves = {dim: order for d in members for dim, order in shuffled(trials, d).items()}
            if not trials.draws[bit % DRAWS].unchanged_by(moves):
                found |= set(members)
    return found


def shuffled(trials: Trials, dim: int) -> dict[int, Tensor]:
    """The units of a Dim in a random order, but not in the same one."""
    count = trials.units[dim]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(dim))
    return {dim: order.roll(int((order == torch.arange(count)).all()))}


def pieces(units: Iterable[int], cuts: Sequence[int]) -> list[list[int]]:
    """Shortcuts pad one Dim to the size of another: there, what one may do changes."""
    units = list(units)
    parts = ([u for u in units if start <= u < stop] for start, stop in pairwise(cuts))
    return [part for part in parts if part]


def free_blocks(trials: Trials, dim: int, parts: list[list[int]]) -> list[tuple[int, ...]]:
    """Units of a Dim that may change places among each other, while the rest may not."""
    found = [block for part in parts for block in halved(trials, dim, part, HALVINGS)]
    found.sort(key=len, reverse=True)
    if not found or len(found[0]) < 2:
        return []
    largest, others = found[0], []
    for block in found[1:]:
        if trials.free((dim,), [largest[0], block[0]]):
            largest = largest + block
        elif len(block) > 1:
            others.append(tuple(block))
    return [tuple(sorted(largest)), *others]


def halved(trials: Trials, dim: int, units: list[int], times: int) -> list[list[int]]:
    if len(units) < 2 or trials.free((dim,), units):
        return [units]
    if not times:
        return []
    middle = len(units) // 2
    return [
        block
        for half in (units[:middle], units[middle:])
        for block in halved(trials, dim, half, times - 1)
    ]


def sets_of(dims: list[int]) -> Iterator[tuple[int, ...]]:
    """Sets of Dims that may be coupled, small ones first. If they are many: in a row, as stages."""
    for size in range(2, len(dims) + 1):
        if 2 ** len(dims) <= SETS:
            yield from combinations(dims, size)
        else:
            yield from (tuple(dims[i : i + size]) for i in range(len(dims) - size + 1))


def descending(
    net: SlimmableNet, scores: Sequence[Tensor], freedoms: Iterable[Freedom]
) -> dict[int, Tensor]:
    """The permutations that sort what may be sorted."""
    result = {dim: torch.arange(units) for dim, units in enumerate(units_of(net))}
    for freedom in freedoms:
        places = torch.tensor(freedom.units)
        total = torch.stack([normalised(scores[dim])[places] for dim in freedom.dims]).sum(0)
        # Single precision, since equal units should stay as they are whatever the last digit is.
        order = total.float().argsort(descending=True, stable=True)
        for dim in freedom.dims:
            result[dim][places] = places[order]
    return result


def kept_units(net: SlimmableNet, freedoms: Iterable[Freedom]) -> list[Kept]:
    kept = []
    freedoms = list(freedoms)
    for position, (dim, units) in enumerate(zip(net.space.dims, units_of(net))):
        moving = sum(len(f.units) for f in freedoms if position in f.dims)
        if moving < units:
            why = "forward depends on their order: moving them would change the output"
            kept.append(Kept(dim.name, units - moving, why))
    return kept


# --- what matters ---------------------------------------------------------------------------------


def chosen(importance: str | Importance) -> Importance:
    if callable(importance):
        return importance
    if importance not in IMPORTANCE:
        raise unknown("importance", importance, IMPORTANCE)
    return IMPORTANCE[importance]


def checked_scores(net: SlimmableNet, scores: Sequence[Tensor]) -> list[Tensor]:
    sizes = [tuple(score.shape) for score in scores]
    needed = [(units,) for units in units_of(net)]
    if sizes != needed:
        raise UserError(f"importance: shapes {sizes} given, one number for each unit: {needed}")
    if not all(score.isfinite().all() for score in scores):
        raise UserError("importance: some are not finite numbers, so there is no order")
    return [score.detach().double().cpu() for score in scores]


@dataclass(frozen=True)
class Part:
    """Where a weight has units of a Dim: along this axis, and as their maker or their reader."""

    dim: int
    role: str
    tensor: Tensor
    axis: int
    layout: Layout


def parts_of(net: SlimmableNet) -> list[Part]:
    """The weights that make or read the channels of each Dim."""
    modules = dict(net.named_modules())
    found: list[Part] = []
    for name, plan in net._slim_net.plans.items():
        for tensor_name, layouts in plan.tensors.items():
            tensor = modules[name]._parameters.get(tensor_name)
            if tensor is None or tensor.dim() < 2:
                continue  # gains of norms say nothing: see experiments/sorting.py
            names = {name, f"{name}.{tensor_name}".strip(".")}
            for dim, info in enumerate(net.space.dims):
                axes = [a for a, layout in enumerate(layouts) if has(layout, dim)]
                makes = bool(names & {*info.layers})
                roles = roles_of(modules[name], axes, makes)
                found += [Part(dim, role, tensor, a, layouts[a]) for role, a in roles]
    return found


def has(layout: Layout, dim: int) -> bool:
    return any(stretch.dim == dim for stretch in layout.stretches)


def roles_of(module: nn.Module, axes: list[int], makes: bool) -> Iterator[tuple[str, int]]:
    if isinstance(module, _ConvTransposeNd):
        axes = sorted(axes, key=lambda axis: (axis != 1, axis))  # its outputs come second
    for place, axis in enumerate(axes):
        yield ("maker" if makes and place == 0 else "reader"), axis


def by_unit(part: Part, values: Tensor, units: int) -> Tensor:
    """[units]: the sum of the values that belong to each unit."""
    others = [axis for axis in range(values.dim()) if axis != part.axis]
    line = values.detach().double().cpu()
    line = line.sum(others) if others else line
    total, start = torch.zeros(units, dtype=torch.float64), 0
    for stretch in part.layout.stretches:
        if stretch.dim == part.dim:
            total += line[start : start + stretch.full].view(units, stretch.each).sum(1)
        start += stretch.full
    return total


def normalised(score: Tensor) -> Tensor:
    """Scaled to an average of one, so that all layers count alike."""
    mean = score.double().abs().mean()
    return score.double() / mean if mean > 0 else score.double()


def sizes(net: SlimmableNet, role: str) -> list[Tensor]:
    """How large the weights of each unit are, in all parts of this role; ones if there is none."""
    units = units_of(net)
    parts = [part for part in parts_of(net) if part.role == role]
    result = []
    for dim, count in enumerate(units):
        own = [normalised(by_unit(p, p.tensor.abs(), count)) for p in parts if p.dim == dim]
        result.append(torch.stack(own).mean(0) if own else torch.ones(count, dtype=torch.float64))
    return result


def makers(net: SlimmableNet) -> list[Tensor]:
    """The average size of the weights that a unit is computed with."""
    return sizes(net, "maker")


def readers(net: SlimmableNet) -> list[Tensor]:
    """The average size of the weights that a unit is read with."""
    return sizes(net, "reader")


def product(*importances: Importance) -> Importance:
    def score(net: SlimmableNet) -> list[Tensor]:
        factors = [importance(net) for importance in importances]
        return [torch.stack(list(of_dim)).prod(0) for of_dim in zip(*factors)]

    return score


IMPORTANCE: dict[str, Importance] = {
    "l1": makers,
    "readers": readers,
    # The default: with `readers` the best in experiments/sorting.py, and it has both to go by.
    "product": product(makers, readers),
}

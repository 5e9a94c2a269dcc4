"""`joslim.sort_channels`: put the channels of a trained network in order of importance.

A child keeps a prefix of every Dim, and the first channels of a network that was trained in the
usual way are no better than the last. After sorting, the network computes the same as before, and
its children keep the most important channels.

A unit of a Dim has entries in the tensors of many layers, at the places that the layouts give; all
of them move together. That does not change the outputs, unless forward depends on the order (a
shortcut padded with zeros, a flip, a conv along the channels). Which units can be permuted is found
by experiment, on copies with random weights, so that no dead channel hides a difference.

To add a measure of importance, write a function here and add a row to `IMPORTANCE`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, islice, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from joslim.errors import UserError, unknown
from joslim.slimmable.blueprint import Layout
from joslim.slimmable.layer_specs import own_tensors
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.running import Inputs, all_agree, no_side_effects, outputs_of, refuse_meta
from joslim.space import CHANNELS

# Dim -> the new order of its units: position i gets the unit that was at order[i].
Permutations = Mapping[int, Tensor]
# Network -> for each Dim, the importance of its units.
Importance = Callable[[SlimmableNet], Sequence[Tensor]]

# Number of copies with random weights: in one copy alone a unit may be dead.
DRAWS = 3
# Allowed difference of outputs, as a share of the largest: reordered sums round differently.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4}
# Number of halvings in the search for the part of a Dim that can be sorted.
HALVINGS = 5
# Number of sets of Dims that are tried together, if none of them can be sorted alone.
SETS = 64


@dataclass(frozen=True)
class Kept:
    """Units of a Dim that could not be sorted, and the reason."""

    dim: str
    units: int
    why: str


@dataclass(frozen=True)
class Permutable:
    """Positions whose units can be permuted, if all these Dims are permuted alike."""

    dims: tuple[int, ...]
    units: tuple[int, ...]


def sort_channels(net: SlimmableNet, importance: str | Importance = "product") -> list[Kept]:
    """Sort the channels of every Dim by importance, in place, so that the most important come
    first.

    A child (subnet) keeps the first channels of each Dim. In a network that was trained in the
    usual way these are not the important ones; after sorting, they are. The network itself computes
    what it computed before. Call this function before training: gradients and the state of an
    optimizer are not sorted. BatchNorm statistics of children are deleted.

    Args:
        net: The slimmable network.
        importance: A name ("l1", "readers" or "product"), or a function of the network that
            returns, for each Dim of channels in `net.space.dims`, a tensor with one number for each
            of its units.

    Returns:
        The units that had to stay in their places because `forward` depends on their order, with
        the reason.

    Raises:
        UserError: The network is not slimmable, or the importance has the wrong shape or is not
            finite.

    Examples:
        >>> net = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, 32, 32)).eval()
        >>> x = torch.randn(4, 3, 32, 32)
        >>> before = net(x)
        >>> kept = joslim.sort_channels(net)
        >>> torch.allclose(net(x), before, atol=1e-4)
        True
    """
    if not isinstance(net, SlimmableNet):
        raise UserError(f"net: {type(net).__name__} given, a slimmable network needed: joslim.slim")
    refuse_meta(net)
    if not callable(importance):
        if importance not in IMPORTANCE:
            raise unknown("importance", importance, IMPORTANCE)
        importance = IMPORTANCE[importance]
    units, scores = units_of(net), importance(net)
    sizes = [tuple(score.shape) for score in scores]
    if sizes != (needed := [(count,) for count in units]):
        raise UserError(f"importance: shapes {sizes} given, one number for each unit: {needed}")
    if not all(score.isfinite().all() for score in scores):
        raise UserError("importance: some are not finite numbers, so there is no order")
    scores = [score.detach().double().cpu() for score in scores]
    found = find_permutable(Trials(net))
    entire = [p for p in found if len(p.dims) == 1 and len(p.units) == units[p.dims[0]]]
    # A final check with the real weights; if it fails, parts of Dims are left out.
    real = Trial(net, net.example)
    for permutable in (found, entire):
        permutations = descending(net, scores, permutable)
        if real.unchanged_by(permutations):
            move(net, permutations)
            net.statistics.clear()
            net._switch(net.active)
            return kept_units(net, permutable)
    return kept_units(net, [])


@torch.no_grad()
def move(net: SlimmableNet, permutations: Permutations) -> None:
    """Permute the units of Dims in every tensor that has them."""
    for tensor, layouts in sliced_tensors(net):
        moved = tensor.detach()
        for axis, layout in enumerate(layouts):
            if any(stretch.dim in permutations for stretch in layout.stretches):
                moved = moved.index_select(axis, entries(layout, permutations).to(tensor.device))
        if moved.data_ptr() != tensor.data_ptr():
            tensor.copy_(moved)


def sliced_tensors(net: SlimmableNet) -> Iterator[tuple[Tensor, tuple[Layout, ...]]]:
    """Yield every full tensor that has units of Dims, once, even if several modules share it."""
    modules = dict(net.named_modules())
    seen: set[int] = set()
    for name, plan in net._slim_net.plans.items():
        for tensor_name, layouts in plan.tensors.items():
            tensor = own_tensors(modules[name]).get(tensor_name)
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor, layouts


def entries(layout: Layout, permutations: Permutations) -> Tensor:
    """Return the new order of the entries of an axis; the entries of a unit move as one block."""
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
    """Return the number of units of each Dim of channels; those of other kinds come after them."""
    return [dim.full // dim.step for dim in net.space.dims if dim.kind == CHANNELS]


# --- which units can be permuted ------------------------------------------------------------------


class Trial:
    """A copy of a network at full width, in double precision, on which permutations are tried."""

    def __init__(self, net: SlimmableNet, example: Inputs, seed: int = 0) -> None:
        try:
            self._start(net, example, seed, torch.float64)
        except (RuntimeError, TypeError):  # forward needs another precision
            self._start(net, example, seed, torch.float32)

    def _start(self, net: SlimmableNet, example: Inputs, seed: int, dtype: torch.dtype) -> None:
        def randomised_input(leaf: Any) -> Any:
            """Replace real tensors. Indices and masks stay, to be valid."""
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                return leaf
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(leaf.shape, generator=generator, dtype=dtype).to(leaf.device)

        self.net = copy.deepcopy(net).to(dtype)
        self.net.statistics.clear()  # they would not move with the channels
        self.net._switch(self.net.space.full)
        self.inputs = tree_map(randomised_input, example)
        with Precision() as seen:
            self.before = self._run(training=False)
        self.tolerance = TOLERANCES[torch.float64 if seen.only_double else torch.float32]
        # Train mode is compared too, if it runs more layers and is not random.
        self.modes = [False]
        try:
            first, second = (self._run(training=True, seed=seed) for seed in (0, 1))
        except Exception:
            return
        more_runs = not all_agree(first, self.before, self.tolerance)
        if more_runs and all_agree(first, second, self.tolerance):
            self.modes = [False, True]
            self.before += first

    def _run(self, training: bool, seed: int = 0) -> list[Tensor]:
        with no_side_effects(self.net, training):
            for module in self.net.modules():
                if isinstance(module, _DropoutNd):
                    module.eval()
            torch.manual_seed(seed)
            return outputs_of(self.net, self.inputs)

    def unchanged_by(self, permutations: Permutations) -> bool:
        """Tell whether the outputs stay the same under these permutations."""
        move(self.net, permutations)
        try:
            after = [tensor for training in self.modes for tensor in self._run(training)]
            return all_agree(after, self.before, self.tolerance)
        finally:
            move(self.net, {dim: order.argsort() for dim, order in permutations.items()})


class Precision(TorchFunctionMode):
    """Records whether forward computes all real numbers in double precision."""

    only_double = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.only_double &= result.dtype == torch.float64
        return result


class Trials:
    """Several copies of the network with random weights, on which permutations are tried."""

    def __init__(self, net: SlimmableNet) -> None:
        self.units = units_of(net)
        self.draws = [Trial(randomised(net, seed), net.example, seed) for seed in range(DRAWS)]

    def unchanged_by(self, permutations: Permutations) -> bool:
        return all(trial.unchanged_by(permutations) for trial in self.draws)

    def free(self, dims: tuple[int, ...], units: Sequence[int]) -> bool:
        """Tell whether these units can be permuted at will, alike in these Dims."""
        places = torch.tensor(units)
        # These two generate all permutations.
        for order in (places.roll(1), torch.cat([places[:2].flip(0), places[2:]])):
            moves = {}
            for dim in dims:
                moves[dim] = torch.arange(self.units[dim])
                moves[dim][places] = order
            if not self.unchanged_by(moves):
                return False
        return True


def randomised(net: SlimmableNet, seed: int) -> SlimmableNet:
    """Return a copy with random weights and statistics, in which units differ and most matter.

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


def find_permutable(trials: Trials) -> list[Permutable]:
    """Find the Dims that can be sorted alone, then parts of Dims, then Dims that are coupled."""
    dims = range(len(trials.units))
    stuck = stuck_dims(trials)
    found = [Permutable((d,), tuple(range(trials.units[d]))) for d in dims if d not in stuck]
    cuts = sorted({0, *(trials.units[dim] for dim in stuck)})
    left: dict[int, set[int]] = {}
    for dim in stuck:
        blocks = free_blocks(trials, dim, pieces(range(trials.units[dim]), cuts))
        found += [Permutable((dim,), block) for block in blocks]
        left[dim] = set(range(trials.units[dim])) - set(chain(*blocks))
    for together in islice(sets_of(stuck), SETS):
        common = set.intersection(*(left[dim] for dim in together))
        for piece in pieces(sorted(common), cuts):
            if len(piece) > 1 and trials.free(together, piece):
                found.append(Permutable(together, tuple(piece)))
                for dim in together:
                    left[dim] -= set(piece)
    return found


def stuck_dims(trials: Trials) -> list[int]:
    """Return the Dims that cannot be sorted alone, while all others stay as they are.

    Sets of Dims are permuted at random, as the bits of the position of a Dim in the list define
    them. So any two Dims are apart in one of the sets, and cannot cancel each other's changes in
    all of them.
    """
    dims = [dim for dim, units in enumerate(trials.units) if units > 1]
    stuck: set[int] = set()
    while True:
        suspects: set[int] = set()
        for bit in range((len(dims) - 1).bit_length() or 1):
            for side in (0, 1):
                members = [dim for place, dim in enumerate(dims) if place >> bit & 1 == side]
                moves = {dim: order for d in members for dim, order in shuffled(trials, d).items()}
                if not trials.draws[bit % DRAWS].unchanged_by(moves):
                    suspects |= set(members)
        if not suspects:
            return sorted(stuck)
        trial = trials.draws[0]
        stuck |= {d for d in suspects if not trial.unchanged_by(shuffled(trials, d))} or suspects
        dims = [dim for dim in dims if dim not in stuck]


def shuffled(trials: Trials, dim: int) -> dict[int, Tensor]:
    """Return a random permutation of the units of a Dim that is not the identity."""
    count = trials.units[dim]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(dim))
    return {dim: order.roll(int((order == torch.arange(count)).all()))}


def pieces(units: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    """Split units at the sizes of other Dims, where shortcuts begin to pad with zeros."""
    parts = ([u for u in units if start <= u < stop] for start, stop in pairwise(cuts))
    return [part for part in parts if part]


def free_blocks(trials: Trials, dim: int, parts: list[list[int]]) -> list[tuple[int, ...]]:
    """Find blocks of units of one Dim that can be permuted, while the rest cannot."""
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
    """Halve a list of units until each half can be permuted, and drop those that cannot."""
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
    """Yield sets of Dims that may be coupled, small sets first. Of many Dims, only neighbours."""
    for size in range(2, len(dims) + 1):
        if 2 ** len(dims) <= SETS:
            yield from combinations(dims, size)
        else:
            yield from (tuple(dims[i : i + size]) for i in range(len(dims) - size + 1))


def descending(
    net: SlimmableNet, scores: Sequence[Tensor], permutable: Iterable[Permutable]
) -> dict[int, Tensor]:
    """Return the permutations that sort the permutable units by descending score."""
    result = {dim: torch.arange(units) for dim, units in enumerate(units_of(net))}
    for part in permutable:
        places = torch.tensor(part.units)
        total = torch.stack([normalised(scores[dim])[places] for dim in part.dims]).sum(0)
        # Single precision, so that units that differ by rounding alone keep their order.
        order = total.float().argsort(descending=True, stable=True)
        for dim in part.dims:
            result[dim][places] = places[order]
    return result


def kept_units(net: SlimmableNet, permutable: Sequence[Permutable]) -> list[Kept]:
    """Return the units of each Dim that are not permutable."""
    kept = []
    for position, (dim, units) in enumerate(zip(net.space.dims, units_of(net))):
        moving = sum(len(p.units) for p in permutable if position in p.dims)
        if moving < units:
            why = "forward depends on their order: moving them would change the output"
            kept.append(Kept(dim.name, units - moving, why))
    return kept


# --- importance -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """An axis of a weight that has units of a Dim; its layer is their maker or a reader of them."""

    dim: int
    role: str
    tensor: Tensor
    axis: int
    layout: Layout


def parts_of(net: SlimmableNet) -> list[Part]:
    """Return the weights that make or read the channels of each Dim."""
    modules = dict(net.named_modules())
    found: list[Part] = []
    for name, plan in net._slim_net.plans.items():
        for tensor_name, layouts in plan.tensors.items():
            tensor = modules[name]._parameters.get(tensor_name)
            if tensor is None or tensor.dim() < 2:
                continue  # gains of norms are not informative: see experiments/sorting.py
            names = {name, f"{name}.{tensor_name}".strip(".")}
            for dim, info in enumerate(net.space.dims):
                axes = [a for a, x in enumerate(layouts) if dim in {s.dim for s in x.stretches}]
                if isinstance(modules[name], _ConvTransposeNd):
                    axes.sort(key=lambda axis: (axis != 1, axis))  # its outputs are the second axis
                makes = bool(names & {*info.layers})
                for place, axis in enumerate(axes):
                    role = "maker" if makes and place == 0 else "reader"
                    found.append(Part(dim, role, tensor, axis, layouts[axis]))
    return found


def by_unit(part: Part, values: Tensor, units: int) -> Tensor:
    """Return [units]: the sum of the values that belong to each unit."""
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
    """Scale to an average of one, so that all layers count equally."""
    mean = score.double().abs().mean()
    return score.double() / mean if mean > 0 else score.double()


def mean_magnitudes(net: SlimmableNet, role: str) -> list[Tensor]:
    """Return the mean size of the weights of each unit over layers of this role, or ones."""
    parts = [part for part in parts_of(net) if part.role == role]
    result = []
    for dim, count in enumerate(units_of(net)):
        own = [normalised(by_unit(p, p.tensor.abs(), count)) for p in parts if p.dim == dim]
        result.append(torch.stack(own).mean(0) if own else torch.ones(count, dtype=torch.float64))
    return result


def product(*importances: Importance) -> Importance:
    """Return the importance that multiplies these."""

    def score(net: SlimmableNet) -> list[Tensor]:
        factors = [importance(net) for importance in importances]
        return [torch.stack(list(of_dim)).prod(0) for of_dim in zip(*factors)]

    return score


makers = partial(mean_magnitudes, role="maker")
readers = partial(mean_magnitudes, role="reader")
IMPORTANCE: dict[str, Importance] = {
    "l1": makers,
    "readers": readers,
    # The default: as good as `readers` in experiments/sorting.py, and it uses all weights.
    "product": product(makers, readers),
}

"""Trained weights to start from: read a file, find out which weight is which, and load them.

The names in a file may differ from those of the network, as long as it is the same network: a
wrapper adds a prefix, or another library has other names for the same layers. A renaming that was
found is said in the log. Weights that do not fit are refused, with the names that differ.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from joslim.errors import UserError, first_line
from joslim.files import shown, stored_tensors
from joslim.models import MODELS
from joslim.runs.checkpoint import MODEL
from joslim.runs.folder import CHECKPOINT

# Modules of torch that wrap a network, and so add their names to those of its weights.
WRAPPERS = {"module", "_orig_mod"}
# Counters of BatchNorm, which files may lack.
COUNTER = "num_batches_tracked"
# The keys under which checkpoints of training programs have the weights.
INSIDE = ("state_dict", "model_state_dict", "model")
# Where folders have them: the run of a network, and what save_pretrained of transformers writes.
IN_FOLDERS = (f"{CHECKPOINT}/{MODEL}", MODEL)

Shapes = Mapping[str, Tensor]


@dataclass(frozen=True)
class Loaded:
    """Which weights did not come from the file, and what the log says about the others."""

    fresh: list[str]
    words: list[str]


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file or of one of torch.save; nothing in it is executed.

    The first bytes tell which of them it is, and not the name of the file. A folder is that of a
    run, or another one with a model.safetensors.
    """
    file, name = file_of_weights(Path(path)), repr(str(path))
    try:
        with file.open("rb") as stream:
            start = stream.read(9)
        of_torch = start[:2] == b"PK" or start[:1] == b"\x80" or file.suffix in (".pth", ".pt")
        if start[8:] == b"{" or not of_torch:
            return stored_tensors(file)
        with file.open("rb") as stream:  # given a path, torch would go by its suffix
            found = torch.load(stream, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(
            f"init: cannot read {name}: {first_line(error)}; a .safetensors file is needed, or one "
            "of torch.save(model.state_dict(), 'weights.pth')"
        ) from error
    except pickle.UnpicklingError as error:
        raise UserError(
            f"init: {name} is broken, or asks to run code, which is refused; if you trust it, "
            "convert it where it was made: torch.save(model.state_dict(), 'weights.pth'), or "
            "safetensors.torch.save_file"
        ) from error
    except Exception as error:  # a broken file can raise anything
        raise UserError(f"init: cannot read {name}: {first_line(error)}") from error
    for key in INSIDE:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping):
        raise UserError(f"init: {name} holds {type(found).__name__}; a state dict is needed")
    return dict(found)


def file_of_weights(path: Path) -> Path:
    """Return the file of a folder that holds trained weights; a file is returned as it is."""
    if not path.is_dir():
        return path
    for name in IN_FOLDERS:
        if (path / name).is_file():
            return path / name
    raise UserError(
        f"init: folder {str(path)!r} has no {' and no '.join(IN_FOLDERS)}; type the folder of a "
        "run that has trained, or a .safetensors or .pth file"
    )


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Loaded:
    """Load trained weights. Only the number of classes of the last layer may differ.

    Raises:
        UserError: They are not those of this network. It has not changed.
    """
    wanted = model.state_dict()
    given = {str(name): tensor for name, tensor in weights.items()}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise UserError(f"init: {shown(name)[1:-1]} is {type(value).__name__}, not a tensor")
    if (found := renaming(given, wanted)) is None:
        raise UserError(f"init: {differences(given, wanted)}{advice(given, wanted)}")
    names, how = found
    given = {names[name]: tensor for name, tensor in given.items() if name in names}
    fresh = [name for name, tensor in given.items() if tensor.shape != wanted[name].shape]
    if wrong := not_of_a_head(fresh, given, wanted):
        shapes = f"{tuple(given[wrong].shape)}, the model has {tuple(wanted[wrong].shape)}"
        why = "only the number of classes may differ"
        raise UserError(f"init: {wrong} is {shapes}; {why}{advice(given, wanted)}")
    model.load_state_dict(wanted | {n: t for n, t in given.items() if n not in fresh})
    words = [f"{len(given) - len(fresh)} of {len(wanted)} tensors loaded{how}"]
    if fresh:
        classes = f"{len(wanted[fresh[0]])} classes instead of {len(given[fresh[0]])}"
        words.append(f"{', '.join(fresh)} made anew, for {classes}")
    return Loaded(fresh, words)


def not_of_a_head(different: list[str], given: Shapes, wanted: Shapes) -> str | None:
    """Return a weight whose shape differs in more than the number of classes of one layer."""
    for name in different:
        if given[name].shape[1:] != wanted[name].shape[1:]:
            return name
    return different[0] if len(different) > 2 else None


def renaming(given: Shapes, wanted: Shapes) -> tuple[dict[str, str], str] | None:
    """Return the name in the network for each name in the file, and how it was found, in words.

    None if there is no renaming, or none that is certain.
    """
    needed = {name for name in wanted if not name.endswith(COUNTER)}
    for rename, how in renamings([*given], [*wanted]):
        names = {name: rename(name) for name in given}
        if needed <= {*names.values()} <= {*wanted} and len({*names.values()}) == len(names):
            return names, how
    return by_order(given, wanted)


def renamings(given: list[str], wanted: list[str]) -> Iterator[tuple[Callable[[str], str], str]]:
    """Yield the renamings that wrappers make: without their names, or with another prefix."""
    yield str, ""

    def unwrapped(name: str) -> str:
        return ".".join(part for part in name.split(".") if part not in WRAPPERS)

    def prefixes(names: list[str]) -> list[str]:
        parts = names[0].split(".")[:-1] if names else []
        return ["", *(".".join([*parts[:end], ""]) for end in range(1, len(parts) + 1))]

    yield unwrapped, f", without {' and '.join(sorted(WRAPPERS))} in their names"
    for off in prefixes([*map(unwrapped, given)]):
        for on in prefixes(wanted):
            how = f", {off}* as {on}*" if on else f", without the prefix {off}"
            yield lambda name, off=off, on=on: on + unwrapped(name).removeprefix(off), how  # type: ignore[misc]


def by_order(given: Shapes, wanted: Shapes) -> tuple[dict[str, str], str] | None:
    """Match the weights of another naming of the same network one after the other.

    A state dict has them in the order in which the network was built. All kinds (weight, bias,
    running_mean, ...) and shapes must agree, up to the classes of the last layer. Names that are
    sorted, as in a safetensors file, say nothing about the order.
    """
    theirs, ours = ([n for n in names if not n.endswith(COUNTER)] for names in (given, wanted))
    if len(theirs) != len(ours) or theirs == sorted(theirs):
        return None
    for there, here in zip(theirs, ours):
        a, b = given[there].shape, wanted[here].shape
        if there.rpartition(".")[2] != here.rpartition(".")[2] or a[1:] != b[1:]:
            return None
        if a != b and here not in ours[-2:]:
            return None
    return dict(zip(theirs, ours)), f", by order and shapes: {theirs[0]} as {ours[0]} and so on"


def differences(given: Shapes, wanted: Shapes) -> str:
    """Say which names are missing and which are unknown, under the best renaming."""
    needed = [name for name in wanted if not name.endswith(COUNTER)]
    # The renaming of wrappers after which the most names agree.
    best = max(
        ({rename(name) for name in given} for rename, _ in renamings([*given], [*wanted])),
        key=lambda names: len(names & {*needed}),
    )
    missing, extra = [n for n in needed if n not in best], sorted(best - {*wanted})
    parts = []
    if missing:
        parts.append(f"lack {some(missing)} ({len(missing)} of {len(needed)})")
    if extra:
        parts.append(f"have unknown {some(extra)} ({len(extra)} in all)")
    close = get_close_matches(missing[0], extra, 1) if missing else []
    nearest = f"; nearest to {missing[0]} is {shown(close[0])[1:-1]}" if close else ""
    return f"the weights {' and '.join(parts)}{nearest}"


def some(names: list[str]) -> str:
    return ", ".join(shown(name)[1:-1] for name in names[:3]) + (", ..." if len(names) > 3 else "")


def advice(given: Shapes, wanted: Shapes) -> str:
    """Name the built-in network that the weights are of, if there is one."""
    for name, maker in MODELS.items():
        with torch.device("meta"):
            other = maker().state_dict()
        if other.keys() == wanted.keys() and all(
            other[n].shape[1:] == wanted[n].shape[1:] for n in other
        ):
            continue
        if (found := renaming(given, other)) is None:
            continue
        tensors = {found[0][n]: tensor for n, tensor in given.items() if n in found[0]}
        different = [n for n, tensor in tensors.items() if tensor.shape != other[n].shape]
        if not_of_a_head(different, tensors, other) is None:
            return f"; they are those of {name}: type --model {name}"
    if len(given) < 0.75 * len(wanted):
        return "; is the file a part of the weights, or of another model?"
    return "; another model?"

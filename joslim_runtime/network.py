"""A network that runs at many sizes: it picks a child for a budget, and runs it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from joslim_runtime.bundle import Bundle, Floats
from joslim_runtime.images import prepared, resized
from joslim_runtime.manifest import BundleError, Child
from joslim_runtime.onnx_bytes import Weights, with_places, with_weights

# Number of children that stay open, so that a switch to them takes microseconds.
KEPT_OPEN = 4


def open(path: str | os.PathLike[str], keep: int = KEPT_OPEN, threads: int = 1) -> Network:
    """Open a bundle that `joslim export --bundle` has written.

    Args:
        path: The .joslim file.
        keep: Number of children that stay open. An open child needs memory for its own weights.
        threads: Number of threads of a pass; 0 lets onnxruntime choose.

    Raises:
        BundleError: The file is no bundle, damaged, or of a newer format.
    """
    for name, value, least in (("keep", keep, 1), ("threads", threads, 0)):
        if not isinstance(value, int) or value < least:
            raise BundleError(f"{name}: {value!r} given, a whole number from {least} needed")
    return Network(Bundle(path), keep, threads)


class Network:
    """One network in many sizes. The largest child of the front is active at first.

    All methods may be called from several threads. `use` changes the active child of all threads;
    `net(batch, child="child-02")` runs another one without a change.

    Attributes:
        front: All children, from the cheapest to the dearest.
        classes: Names of the classes.
        shape: Channels, height and width of an image. Children may take smaller ones
            (`child.shape`); images of this shape are resized for them.
        dims: Name and full number of channels of each slimmable dimension.
    """

    def __init__(self, bundle: Bundle, keep: int = KEPT_OPEN, threads: int = 1) -> None:
        self._bundle, self._keep, self._threads = bundle, keep, threads
        self._sessions: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        manifest = bundle.manifest
        self.front = manifest.children
        self.classes, self.shape, self.dims = manifest.classes, manifest.shape, manifest.dims
        self._active = self.front[-1]

    @property
    def active(self) -> Child:
        """The child that runs now."""
        return self._active

    def use(self, child: Child | str | None = None, /, **budgets: float) -> Child:
        """Switch to a child by its name, or to the one with the least loss within all budgets.

        Args:
            child: A child of `front`, or its name.
            budgets: Largest cost by name: `macs=20e6`, `memory=64e3`, `latency_ms=8`.

        Returns:
            The child, which is open now.

        Raises:
            BundleError: There is no such child, or none fits.
        """
        chosen = self.pick(**budgets) if child is None else self.child(child)
        if child is not None and budgets:
            raise BundleError("use: a child and a budget given; type only one")
        self.session(chosen)
        self._active = chosen
        return chosen

    def pick(self, **budgets: float) -> Child:
        """Choose the child with the least training loss among those that fit all budgets."""
        known = list(self.front[0].costs)
        if not budgets:
            raise BundleError(f"budget: none given; give at least one of: {', '.join(known)}")
        for name, most in budgets.items():
            if any(name not in child.costs for child in self.front):
                raise BundleError(f"budget: unknown name {name!r}; allowed: {', '.join(known)}")
            if isinstance(most, bool) or not isinstance(most, (int, float)) or not most > 0:
                raise BundleError(f"{name}: {most!r} given, a positive number needed")
        fitting = [
            child
            for child in self.front
            if all(child.costs[name] <= most for name, most in budgets.items())
        ]
        if not fitting:
            least = {name: min(c.costs[name] for c in self.front) for name in budgets}
            asked = ", ".join(f"{name} {most:g}" for name, most in budgets.items())
            needed = ", ".join(f"{name} {cost:g}" for name, cost in least.items())
            raise BundleError(
                f"budget: no child of {len(self.front)} fits {asked}; the least costs are {needed}"
            )
        return min(fitting, key=lambda child: child.train_loss)

    def child(self, child: Child | str) -> Child:
        """Find a child by its name."""
        name = child.name if isinstance(child, Child) else child
        found = next((known for known in self.front if known.name == name), None)
        if found is None:
            first, last = self.front[0].name, self.front[-1].name
            raise BundleError(f"child: unknown name {name!r}; allowed: {first} to {last}")
        return found

    def __call__(self, batch: ArrayLike, child: Child | str | None = None) -> Floats:
        """Compute the scores of the active child, or of another one.

        Args:
            batch: Images [n, channels, height, width]: pixels from 0 to 1, less the mean, over the
                standard deviation. `classify` does this for an image. They have the size of the
                network, `shape`, whatever child is active, or that of the child.
            child: Another child, or its name.

        Returns:
            Scores [n, classes].
        """
        images = np.asarray(batch, np.float32)
        chosen = self._active if child is None else self.child(child)
        allowed = dict.fromkeys([self.shape, chosen.shape])
        if images.ndim != 4 or images.shape[1:] not in allowed:
            needed = " or ".join(f"[n, {', '.join(map(str, shape))}]" for shape in allowed)
            raise BundleError(f"batch: shape {images.shape} given, {needed} needed")
        if images.shape[1:] != chosen.shape:
            images = resized(images, chosen.shape)
        names = self._bundle.manifest
        (scores,) = self.session(chosen).run([names.output], {names.input: images})
        return scores

    def classify(self, image: ArrayLike) -> tuple[str, float]:
        """Classify one image as the training prepared its test images.

        Args:
            image: Bytes from 0 to 255 or floats from 0 to 1, [height, width, channels] or
                [height, width], of any size.

        Returns:
            The name of the class, and its probability by the softmax of the scores.
        """
        (scores,) = self(prepared(np.asarray(image), self._bundle.manifest)[None]).astype(float)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        best = int(scores.argmax())
        return self.classes[best], float(shares[best])

    def save(self, path: str | os.PathLike[str], child: Child | str | None = None) -> None:
        """Write the active child, or another one, as an ordinary ONNX file for other programs."""
        chosen = self._active if child is None else self.child(child)
        Path(path).write_bytes(with_weights(*self._bundle.parts(chosen)))

    def session(self, child: Child) -> Any:
        """Return the onnxruntime session of a child; the most recent ones stay open."""
        with self._lock:
            if child.name in self._sessions:
                self._sessions.move_to_end(child.name)
                return self._sessions[child.name]
        # Without the lock, so that other threads go on with the children that are open.
        session = self._opened(child)
        with self._lock:
            self._sessions[child.name] = session
            self._sessions.move_to_end(child.name)
            while len(self._sessions) > self._keep:
                self._sessions.popitem(last=False)
        return session

    def _opened(self, child: Child) -> Any:
        try:
            return open_session(*self._bundle.parts(child), self._threads)
        except BundleError:
            raise
        except Exception as error:  # onnxruntime has many kinds, without a common class
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise BundleError(
                f"bundle: {str(self._bundle.path)!r}: cannot open {child.name}: {line}"
            ) from error


def open_session(graph: bytes, weights: Weights, threads: int = 1) -> Any:
    """Open a graph and its weights with onnxruntime on the processor."""
    # Imported here, because joslim has this package and works without onnxruntime, too.
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise BundleError("onnxruntime: not installed; type pip install onnxruntime") from error

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors are raised, and need not be printed, too
    # onnxruntime copies the values. As a part of the model they would be copied three times.
    arrays = [np.ascontiguousarray(value) for _, value in weights]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    options.add_external_initializers([name for name, _ in weights], values)
    model = with_places(graph, weights)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

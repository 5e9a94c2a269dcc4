"""Shared by the tests of slimmable networks: the example networks and random children."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def load(name: str) -> ModuleType:
    """A neighbouring file as a module; pickles of its classes look it up by this name."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"slimmable_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


NETWORKS = load("networks")


@pytest.fixture
def networks() -> ModuleType:
    return NETWORKS


def pytest_generate_tests(metafunc: Any) -> None:
    """A test with an argument `network_name` is run on every network of the table."""
    if "network_name" in metafunc.fixturenames:
        metafunc.parametrize("network_name", list(NETWORKS.NETWORKS))


@pytest.fixture(autouse=True)
def _same_every_time() -> Iterator[None]:
    """Tests may neither depend on each other's random numbers nor on a mode left behind."""
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled()


def tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


@pytest.fixture
def assert_same() -> Callable[..., None]:
    """Two outputs agree within 1e-4 of the largest entry, or exactly."""

    def check(left: Any, right: Any, tolerance: float = 1e-4) -> None:
        a, b = tensors(left), tensors(right)
        assert len(a) == len(b) > 0
        for x, y in zip(a, b):
            assert x.shape == y.shape
            assert y.isfinite().all()
            assert float((x - y).abs().max()) <= tolerance * float(y.abs().max())

    return check


@pytest.fixture
def children() -> Callable[..., list[Any]]:
    """The smallest child and some random ones."""

    def choose(space: Any, count: int = 3, seed: int = 7) -> list[Any]:
        rng = np.random.default_rng(seed)
        return [space.smallest, *(space.random(rng) for _ in range(count))]

    return choose

"""Fixtures of the training tests."""

from __future__ import annotations

import pytest
import torch

import joslim
from joslim import Data


@pytest.fixture(scope="module")
def digits() -> Data:
    return joslim.load_data("digits", channels=1)


@pytest.fixture(autouse=True)
def _same_every_time() -> None:
    torch.manual_seed(0)

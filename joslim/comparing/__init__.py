"""Comparing methods on equal terms: the same network, data and steps, over several seeds."""

from joslim.comparing.comparison import Comparison, read
from joslim.comparing.entries import Entry
from joslim.comparing.trainings import compare

__all__ = ["Comparison", "Entry", "compare", "read"]

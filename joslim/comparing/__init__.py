"""Comparing methods on equal terms: the same network, data and steps, over several seeds."""

from joslim.comparing.plan import read
from joslim.comparing.run import compare
from joslim.results.comparison import Comparison, Entry

__all__ = ["Comparison", "Entry", "compare", "read"]

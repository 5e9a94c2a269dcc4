"""Run folders for comparisons, as the tests of comparing have them."""

from ..comparing.conftest import make_run

__all__ = ["make_run"]

"""Children as files that other programs run, each checked against the network it was cut from."""

from joslim.deploy.bundle import export_bundle
from joslim.deploy.exporting import export, export_children, export_whole, load_child
from joslim.deploy.int8 import export_children_int8, export_int8
from joslim.deploy.rounding import round_channels

__all__ = [
    "export",
    "export_bundle",
    "export_children",
    "export_children_int8",
    "export_int8",
    "export_whole",
    "load_child",
    "round_channels",
]

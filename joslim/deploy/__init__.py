"""Children as files that other programs run, each checked against the network it was cut from."""

from joslim.deploy.children import export, export_children
from joslim.deploy.loading import load_child
from joslim.deploy.quantizing import export_children_int8, export_int8
from joslim.deploy.whole import export_whole

__all__ = [
    "export",
    "export_children",
    "export_children_int8",
    "export_int8",
    "export_whole",
    "load_child",
]

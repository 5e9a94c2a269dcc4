"""Children as files that other programs run, each checked against the network it was cut from."""

from joslim.export.children import export_child, export_children
from joslim.export.loading import load_child
from joslim.export.quantizing import export_int8
from joslim.export.whole import export_whole

__all__ = ["export_child", "export_children", "export_int8", "export_whole", "load_child"]

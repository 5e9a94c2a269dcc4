"""Run a bundle of joslim, one network in many sizes, with numpy and onnxruntime alone.

    import joslim_runtime

    net = joslim_runtime.open("net.joslim")
    net.use(macs=20e6)
    scores = net(batch)
"""

from joslim_runtime.manifest import BundleError, Child
from joslim_runtime.controller import Controller
from joslim_runtime.network import Network, open

__all__ = ["BundleError", "Child", "Controller", "Network", "open"]
__version__ = "0.1.0"

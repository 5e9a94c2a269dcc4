"""Run a bundle of joslim, one network in many sizes, with numpy and onnxruntime alone.

Examples:
    >>> net = joslim_runtime.open("net.joslim")
    >>> child = net.use(macs=300e3)
    >>> scores = net(np.zeros((1, *net.shape), np.float32))
"""

from joslim_runtime.controller import Controller
from joslim_runtime.manifest import BundleError, Child
from joslim_runtime.network import Network, open

__all__ = ["BundleError", "Child", "Controller", "Network", "open"]
__version__ = "0.1.0"

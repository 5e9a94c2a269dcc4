"""Any network, slimmable: traced, planned, run at any width, cut out.

slim.py       joslim.slim: the way through the files below
declare.py    what torch's layers say about themselves
tracing.py    run the network once and see every torch call
rules.py      what each torch operation does to the axes of its tensors
axes.py       which channels an axis is made of, while that is being found out
lengths.py    integers that remember which channels they count
planning.py   from a trace to Dims, knobs and the cuts of each layer
blueprint.py  the result: all that is needed to cut and price a child
layers.py     a layer whose parameters read as the active child's
net.py        SlimmableNet: at, use, child
cutting.py    a child as an ordinary module
statistics.py BatchNorm statistics of a child
synchronised.py BatchNorm over the images of all processes
ordering.py   channels of a trained network in order of importance
"""

from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.ordering import sort_channels
from joslim.slimmable.slim import slim
from joslim.slimmable.statistics import batch_statistics, recalibrate, statistics_of
from joslim.slimmable.synchronised import norms_together

__all__ = [
    "SlimmableNet",
    "batch_statistics",
    "norms_together",
    "recalibrate",
    "slim",
    "sort_channels",
    "statistics_of",
]

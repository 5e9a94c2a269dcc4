"""Slimmable networks: trace -> plan -> slimmable layers -> child.

slim.py           `joslim.slim`, which goes through the first three steps

Trace: run the network once, and find which channels go together.
layer_specs.py    which axes of the tensors of torch's layers belong together
tracing.py        see every torch call, carry the axes of all tensors along, count multiply-adds
op_rules.py       what each torch operation does to the axes of its tensors
symbolic_axes.py  axes made of unknown numbers of channels, which are unified
symbolic_int.py   sizes that remember which axis they measure

Plan: decide what can be slimmed.
blocks.py         which residual blocks children may leave out
plan.py           from traces to Dims, knobs and the cuts of each layer
blueprint.py      the summary of the network from which children are priced

Slimmable layers: run as any child.
layers.py         layers whose parameters read as those of the active child
net.py            `SlimmableNet`: at, use, and child, which extracts an ordinary module
batchnorm.py      BatchNorm statistics of children
channel_order.py  `sort_channels`: the important channels of a trained network first

running.py        run a network without side effects, and compare outputs
"""

from joslim.slimmable.batchnorm import batch_statistics, recalibrate, statistics_of
from joslim.slimmable.channel_order import sort_channels
from joslim.slimmable.layers import norms_together
from joslim.slimmable.net import SlimmableNet
from joslim.slimmable.slim import slim

__all__ = [
    "SlimmableNet",
    "batch_statistics",
    "norms_together",
    "recalibrate",
    "slim",
    "sort_channels",
    "statistics_of",
]

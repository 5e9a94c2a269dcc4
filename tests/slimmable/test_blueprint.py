"""Layouts, terms and the blueprint of a network."""

from __future__ import annotations

import copy
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import joslim
from joslim.slimmable.blueprint import Layout, Stretch

stretches = st.one_of(
    st.builds(lambda full: Stretch(None, 0, full), st.integers(1, 6)),
    st.builds(
        lambda dim, each: Stretch(dim, each, each * (4, 6, 9)[dim]),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
)
layouts = st.lists(stretches, min_size=1, max_size=5).map(lambda s: Layout(tuple(s)))
units = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9))


@given(layouts, units)
def test_runs_are_apart_in_order_and_of_the_right_size(layout, units):
    runs = layout.runs(units)
    assert sum(stop - start for start, stop in runs) == layout.size(units)
    flat = [edge for run in runs for edge in run]
    assert flat == sorted(set(flat))
    assert flat[0] == 0
    assert flat[-1] <= layout.full


@given(layouts)
def test_the_full_child_keeps_everything_in_one_run(layout):
    assert layout.size((4, 6, 9)) == layout.full
    assert layout.runs((4, 6, 9)) == [(0, layout.full)]


@given(layouts, units)
def test_a_child_keeps_a_prefix_of_every_stretch(layout, units):
    kept = {i for start, stop in layout.runs(units) for i in range(start, stop)}
    start = 0
    for s in layout.stretches:
        size = s.full if s.dim is None else units[s.dim] * s.each
        assert kept & set(range(start, start + s.full)) == set(range(start, start + size))
        start += s.full


def test_slimmable_layouts_have_a_dim():
    assert Layout((Stretch(0, 1, 4), Stretch(None, 0, 2))).slimmable
    assert not Layout((Stretch(None, 0, 2),)).slimmable


def test_units_are_counts_in_steps(networks):
    _, net = networks.slimmed("GroupedResNet")
    counts = np.array([net.space.full.counts, net.space.smallest.counts])
    units = net.blueprint.units(counts)
    assert tuple(units[0]) == net.space.full.units
    assert tuple(units[1]) == net.space.smallest.units
    assert any(dim.step > 1 for dim in net.space.dims)


def test_layers_stand_in_the_order_in_which_they_run(networks):
    _, net = networks.slimmed("SizedVgg")
    names = [layer.name for layer in net.blueprint.layers]
    assert names == [f"features.{i}" for i in (0, 3, 5, 8)] + [f"classifier.{i}" for i in (0, 3, 5)]
    first, last = net.blueprint.layers[0], net.blueprint.layers[-1]
    assert (first.op, first.kernel, first.resolution) == ("conv2d", (3, 3), (16, 16))
    assert (last.op, last.kernel, last.resolution) == ("linear", (), ())


def test_a_reused_module_is_priced_for_each_of_its_runs(networks):
    _, net = networks.slimmed("ReusedModule")
    names = [layer.name for layer in net.blueprint.layers]
    assert names.count("block.0.0") == 3
    assert len(net.blueprint.parameters) == len(list(net.parameters()))


def test_an_auxiliary_head_has_parameters_but_no_multiplications(networks):
    _, net = networks.slimmed("AuxiliaryHead")
    assert not any(layer.name.startswith("aux") for layer in net.blueprint.layers)
    assert "aux.0" in [dim.name for dim in net.space.dims]


def test_skips_are_the_maps_that_are_read_later(networks):
    _, net = networks.slimmed("UNet")
    skips = {layer.name: len(layer.skips) for layer in net.blueprint.layers}
    assert (skips["down1.0"], skips["down2.0"], skips["bottom.0"]) == (0, 1, 2)
    assert (skips["up1"], skips["out"]) == (1, 0)


def test_a_blueprint_stands_alone(networks):
    _, net = networks.slimmed("DenseNet")
    again = pickle.loads(pickle.dumps(net.blueprint))
    assert again == net.blueprint
    assert len(pickle.dumps(net.blueprint)) < 100_000


def test_pricing_leaves_the_network_alone(networks, children):
    net = copy.deepcopy(networks.slimmed("DenseNet")[1])
    widths = children(net.space)[1]
    before = {key: value.clone() for key, value in net.state_dict().items()}
    net.forward = None
    with net.at(net.space.smallest):
        assert joslim.cost("macs", net)(widths) > 0
        assert joslim.cost("memory", net)(widths) > 0
        assert net.active == net.space.smallest
    assert all((value == before[key]).all() for key, value in net.state_dict().items())

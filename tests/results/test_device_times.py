"""Fronts in the milliseconds of a device file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joslim
from joslim.errors import UserError
from joslim.front import Front, MetricName
from joslim.results.device_times import children_to_time, repriced, timed_front, times_on
from joslim.runs.fronts import timed_fronts
from joslim.runs.run import Run, load

from .small_fronts import INPUTS, OTHER, SPACE, device, front_of


def no_network() -> Any:
    raise AssertionError("all children were measured: nobody needs the network")


def test_measured_children_need_no_network() -> None:
    front = front_of(SPACE, (0.25, 0.5, 1.0))
    file = device([point.widths for point in front], (9.0, 3.0, 5.0))
    found = repriced(front, times_on(file, children_to_time(front), no_network))
    assert [point.costs["latency_ms"] for point in found] == [9, 3, 5]
    assert [point.widths for point in found] == [point.widths for point in front]
    assert (found.cost, found.span) == (front.cost, front.span)
    assert found.pick(latency_ms=4).widths == front[1].widths
    assert [point.costs["latency_ms"] for point in front] == [25, 50, 100], "it stays as it is"
    named = Front(front, front.cost, front.span, metric=MetricName("perplexity", ""))
    found = repriced(named, times_on(file, children_to_time(front), no_network))
    assert found.metric == named.metric


@given(st.lists(st.sampled_from([1.0, 2.0, 2.5, 3.0, 7.0]), min_size=13, max_size=13))
def test_a_front_of_latency_is_made_anew(ms: list[float]) -> None:
    children = [SPACE.of_counts([count]) for count in range(4, 17)]
    times = dict(zip(children, ms))
    front = front_of(SPACE, [count / 16 for count in (5, 8, 9, 12, 15)], "latency")
    found = repriced(front, times_on(device(children, ms), children_to_time(front), no_network))
    # The wider a child the less its loss: it stays unless a wider one is as fast.
    kept = [
        point.widths
        for at, point in enumerate(front)
        if all(times[point.widths] < times[wider.widths] for wider in front[at + 1 :])
    ]
    assert [point.widths for point in found] == kept
    assert [point.costs["latency_ms"] for point in found] == [times[child] for child in kept]
    assert found.span == (ms[0], ms[-1])


def test_children_that_were_not_measured_are_modelled(finished: Run, tmp_path: Path) -> None:
    net, front = finished.net, finished.front
    children = [net.space.uniform(share) for share in np.linspace(0.5, 1, 12)]
    file = device(children, [sum(child.counts) / 100 for child in children])
    file.write(tmp_path / "device.json")
    found = finished.timed(tmp_path / "device.json")
    price = joslim.cost("latency", net, device_file=tmp_path / "device.json")
    assert [p.costs["latency_ms"] for p in found] == [float(price(p.widths)) for p in front]
    (again,) = timed_fronts([finished.path], [tmp_path / "device.json"])
    assert again == found


def test_never_some_of_each(finished: Run) -> None:
    space = finished.net.space
    children = [space.smallest, space.full, space.uniform(0.6)]
    file = device(children, (50.0, 51.0, 52.0))
    times = times_on(file, [space.full, space.uniform(0.9)], lambda: finished.net)
    assert times[space.full] != 51
    assert times_on(file, [space.full], no_network) == {space.full: 51}


def test_the_front_of_a_loaded_run(finished: Run, tmp_path: Path) -> None:
    file = device([point.widths for point in finished.front], [3.0] * len(finished.front))
    file.write(tmp_path / "device.json")
    run = load(finished.path)
    assert {point.costs["latency_ms"] for point in run.timed(tmp_path / "device.json")} == {3.0}
    assert "net" not in vars(run), "it was not loaded"


def test_a_file_of_another_network(finished: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    device([OTHER.full], (1.0,)).write(path)
    with pytest.raises(UserError, match="is of another network: 1 dims, this one has"):
        timed_front(finished.front, INPUTS, path, no_network)

"""Children in multiples of a divisor: their counts, their statistics, and what is said of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import joslim as package
from joslim.costs.device_file import Conditions, DeviceFile
from joslim.data import Data, load_data
from joslim.deploy.rounding import Rounded, round_counts, rounded_widths, summary
from joslim.errors import UserError
from joslim.formats import onnx_session
from joslim.runs.run import Run
from joslim.space import Dim, Knob, Widths, WidthSpace

Program = Callable[..., Any]


@pytest.fixture
def run(finished: Run) -> Run:
    return package.load(finished.path)


def by_hand(run: Run, widths: Widths, data: Data) -> tuple[nn.Module, float, float]:
    """The child cut out with statistics of the plain average of batches, its losses and errors."""
    with pytest.warns(UserWarning, match="statistics of the full network"):
        child = package.load(run.path).net.child(widths)
    norms = [module for module in child.modules() if isinstance(module, nn.BatchNorm2d)]
    batches = [*data.sweep("train", 512, limit=run.config.front_images)]
    means = [torch.zeros_like(norm.running_mean) for norm in norms]
    variances = [torch.zeros_like(norm.running_var) for norm in norms]
    total = sum(len(x) for x, _ in batches)
    with torch.no_grad():
        for x, _ in batches:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = 1.0
            child.train()(x)
            for norm, mean, var in zip(norms, means, variances):
                mean += norm.running_mean * len(x) / total
                var += norm.running_var * len(x) / total
        for norm, mean, var in zip(norms, means, variances):
            norm.running_mean, norm.running_var = mean, var
        x, y = (torch.cat(parts) for parts in zip(*batches))
        loss = nn.functional.cross_entropy(child.eval()(x), y).item()
        x, y = (torch.cat(parts) for parts in zip(*data.sweep("val", 512)))
        error = 100 * (child(x).argmax(dim=1) != y).double().mean().item()
    return child, loss, error


def test_a_rounded_child_equals_the_sliced_network(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    point = run.front.pick(macs=300e3)
    rounded = package.round_channels(run, 4, macs=300e3)
    (found,) = rounded.front
    assert all(count % 4 == 0 for count in found.widths.counts)
    assert max(np.abs(np.subtract(found.widths.counts, point.widths.counts))) < 4
    assert found.costs["macs"] == package.cost("macs", run.net)(found.widths) <= 300e3
    child, loss, error = by_hand(run, found.widths, load_data("digits"))
    assert found.train_loss == pytest.approx(loss, rel=1e-4)
    assert found.val_error == pytest.approx(error, abs=0.01)

    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        expected = child(x)
    package.export(rounded, found, tmp_path / "child.onnx")
    (scores,) = onnx_session(tmp_path / "child.onnx").run(None, {"images": x.numpy()})
    assert np.abs(scores - expected.numpy()).max() < 1e-3
    package.export(rounded, found, tmp_path / "child")
    with torch.no_grad():
        assert (package.load_child(tmp_path / "child")(x) - expected).abs().max() < 1e-3
    facts = json.loads((tmp_path / "child" / "config.json").read_text())
    assert facts["divisor"] == 4
    assert facts["costs"] == found.costs
    assert facts["val_error"] == found.val_error


def test_all_children_in_a_bundle(run: Run, tmp_path: Path, joslim: Program) -> None:
    pytest.importorskip("onnxscript")
    import joslim_runtime

    before = dict(run.net.state_dict())
    rounded = package.round_channels(run, 8)
    assert 1 <= len(rounded.front) <= len(run.front)
    macs = package.cost("macs", run.net)
    for point in rounded.front:
        assert point.costs["macs"] == macs(point.widths)
        assert all(count % 8 == 0 for count in point.widths.counts)
    assert all(torch.equal(before[name], value) for name, value in run.net.state_dict().items())

    file = str(tmp_path / "net.joslim")
    result = joslim("export", str(run.path), "--divisor", "8", "--bundle", "-o", file)
    assert result.stdout.splitlines()[1].startswith("channels in multiples of 8: ")
    net = joslim_runtime.open(file)
    assert [child.channels for child in net.front] == [p.widths.counts for p in rounded.front]
    assert [child.val_error for child in net.front] == [p.val_error for p in rounded.front]
    x = run.samples[0]
    for point, child in zip(rounded.front, net.front):
        with run.net.at(point.widths), torch.no_grad():
            assert np.abs(net(x.numpy(), child) - run.net(x).numpy()).max() < 1e-3


SPACE = WidthSpace(
    (Dim("a", 20), Dim("b", 40, step=4), Dim("c", 12), Dim("d", 24)),
    (Knob("a", (0,), 0.3), Knob("b", (1,), 0.3), Knob("cd", (2, 3), 0.5)),
)


def test_all_round_counts() -> None:
    """Multiples and the full count, not below the lowest width; tied Dims from one multiplier."""
    assert {*round_counts(SPACE, 0, 8).ravel().tolist()} == {20, 16, 8}
    assert {*round_counts(SPACE, 1, 8).ravel().tolist()} == {40, 32, 24, 16}
    pairs = [tuple(row) for row in round_counts(SPACE, 2, 4).tolist()]
    assert [*dict.fromkeys(pairs)] == [(12, 24), (8, 20), (8, 16)]


@pytest.mark.parametrize(
    ("budget", "counts", "lowered"),
    [(1000, (16, 32, 8, 16), 0), (70, (8, 32, 8, 16), 1), (60, (8, 24, 8, 16), 2)],
)
def test_a_budget_rounds_down(budget: int, counts: tuple[int, ...], lowered: int) -> None:
    child = SPACE.of_counts((13, 28, 8, 16))  # 28 is as near to 24 as to 32
    found = rounded_widths(child, 8, lambda w: {"macs": sum(w.counts)}, {"macs": budget})
    assert (found[0].counts, found[1]) == (counts, lowered)


def test_a_budget_that_no_rounded_child_fits() -> None:
    child = SPACE.of_counts((6, 12, 6, 12))
    with pytest.raises(UserError, match=r"costs macs 48 at least; type --macs 48 or more, or a sm"):
        rounded_widths(child, 8, lambda w: {"macs": sum(w.counts)}, {"macs": 36})


def test_what_is_said(run: Run) -> None:
    before = replace(run.front[0], val_error=12.5)
    after = replace(before, val_error=None)
    costs = {**before.costs, "macs": 2 * before.costs["macs"]}
    pair = Rounded(before, replace(before, costs=costs, val_error=13.0), 8, lowered=2)
    told = pair.to_json(["macs"])
    assert told["macs"] == [before.costs["macs"], costs["macs"]]
    assert told["text"].endswith(
        ", validation error 12.50 % -> 13.00 %; knobs rounded down for the budget: 2"
    )
    assert "training loss" in Rounded(before, after, 8).to_json([])["text"]
    assert summary([pair, Rounded(before, before, 8)], 1)["text"] == (
        "channels in multiples of 8: 1 children of 2 (the others are equal to one of them, or "
        "worse); validation error +0.25 % on average, +0.00 to +0.50 %"
    )


def test_a_budget_of_latency(run: Run, tmp_path: Path) -> None:
    conditions = Conditions("phone", 1, 1, "fp32", "eager", "2.0", ((1, 3, 8, 8),))
    rng = np.random.default_rng(0)
    space = run.net.space
    children = tuple({space.random(rng) for _ in range(40)} | {p.widths for p in run.front})
    macs = package.cost("macs", run.net)
    ms = tuple(1 + macs(child) / 1e5 for child in children)
    file = tmp_path / "phone.json"
    DeviceFile(conditions, children, ms, (0.0,) * len(ms)).write(file)
    rounded = package.round_channels(run, 4, device_file=file, latency_ms=5)
    (point,) = rounded.front
    assert point.costs["latency_ms"] == pytest.approx(1 + macs(point.widths) / 1e5, rel=0.05)
    assert point.costs["latency_ms"] <= 5


def test_data_that_are_objects(run: Run) -> None:
    run.config = replace(run.config, data="<Data>")
    with pytest.raises(UserError, match=r"^divisor: rounded children need the data of the run, '<"):
        package.round_channels(run, 4, macs=300e3)
    found = package.round_channels(run, 4, macs=300e3, data=load_data("digits"))
    assert found.front[0].val_error is not None


def test_bad_input(run: Run, tiny_run: Run) -> None:
    for divisor in (0, 2.5, True):
        with pytest.raises(UserError, match=r"^divisor: .* is not a whole number of at least 1"):
            package.round_channels(run, divisor)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^divisor: rounded children need the data of the run"):
        package.round_channels(tiny_run, 8)  # whose data are nobody's
    run.front = type(run.front)(
        [replace(p, costs={**p.costs, "energy": 1.0}) for p in run.front], "macs", run.front.span
    )
    with pytest.raises(
        UserError, match=r"^energy: it cannot be computed for a rounded child; type"
    ):
        package.round_channels(run, 4, energy=2)
    run.facts["network"] = {}
    with pytest.raises(UserError, match=r"^divisor: the run is of your own loop"):
        package.round_channels(run, 8)


def test_on_the_command_line(
    finished: Run, tmp_path: Path, joslim: Program, refused: Program
) -> None:
    out = str(tmp_path / "child.pt2")
    options = ("export", str(finished.path), "--divisor", "4", "-o")
    result = joslim(*options, out, "--macs", "300K")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert "classes agree on 32 of 32 samples" in first
    assert second.startswith("channels in multiples of 4: multiply-adds ")
    assert ", validation error " in second
    result = joslim(*options, out, "--macs", "300K", "--overwrite", "--json")
    (row,) = json.loads(result.stdout)
    assert row["rounded"]["macs"] == [finished.front.pick(macs=300e3).costs["macs"], row["macs"]]
    assert row["rounded"]["text"] == second
    line = refused(*options, out)
    assert "divisor: it is for children, the full network keeps its channels; type a bud" in line
    assert "divisor: it is for children, --whole has all" in refused(*options, "a", "--whole")

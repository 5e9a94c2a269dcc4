"""The methods: which widths they train at, when they search, and what they find on real images."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim
from joslim import (
    METHODS,
    PRESETS,
    Data,
    Front,
    SlimmableNet,
    Slimming,
    UserError,
    Widths,
    WidthSpace,
)
from joslim.search import History, Searcher
from joslim.search.history import ALL
from joslim.search.initial_design import start_size
from joslim.search.mobo import RandomScalarized, Scalarized
from joslim.search.sensitivity import on_curve
from joslim.search.targeted import Targeted
from joslim.training.methods import (
    ALIASES,
    AUTOSLIM_EARLY,
    PLACES,
    SLIM_CHILDREN,
    method,
    preset,
)


class Convs(nn.Module):
    """A stem, a residual block and a wide layer, for grey images of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.inner = nn.Conv2d(12, 16, 3, padding=1, bias=False)
        self.inner_norm = nn.BatchNorm2d(16)
        self.outer = nn.Conv2d(16, 12, 3, padding=1)
        self.wide = nn.Conv2d(12, 24, 3, padding=1, bias=False)
        self.wide_norm = nn.BatchNorm2d(24)
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = x + self.outer(F.relu(self.inner_norm(self.inner(x))))
        return self.head(F.relu(self.wide_norm(self.wide(x))).flatten(1))


class Layers(nn.Module):
    """Three linear layers: fast, where only the widths matter."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32)
        self.two, self.three = nn.Linear(32, 24), nn.Linear(24, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.one(x.flatten(1))))
        return self.head(F.relu(self.three(F.relu(self.two(x)))))


@pytest.fixture(scope="module")
def digits() -> Data:
    return joslim.load_data("digits", channels=1)


def make(data: Data, kind: type[nn.Module] = Layers, seed: int = 0) -> SlimmableNet:
    torch.manual_seed(seed)
    return joslim.slim(kind(), torch.zeros(2, *data.shape), low=0.25)


def slimming_of(data: Data, name: str, net: SlimmableNet | None = None, **options) -> Slimming:
    """All widths learn in every step, so that one sees which."""
    defaults = {"total_steps": 20, "every": 4, "scoring": data.sweep("train", 128, 256)}
    defaults |= {"full_first": 0, "draw": 9}
    return Slimming(net or make(data), method=name, **{**defaults, **options})


def train(slimming: Slimming, data: Data, steps: int, rate: float = 0.02, batch: int = 16):
    """The widths of each step. The rate falls to zero."""
    optimizer = torch.optim.Adam(slimming.net.parameters(), lr=rate)
    seen = []
    for step, (x, y) in zip(range(steps), data.batches(0, batch, start=slimming.steps)):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        slimming.step(x, y, optimizer, F.cross_entropy)
        seen.append(list(slimming.widths))
    return seen


# What they find


@pytest.fixture(scope="module", params=list(METHODS))
def trained(request: pytest.FixtureRequest, digits: Data) -> tuple[Slimming, Front]:
    net = make(digits, Convs)
    slimming = slimming_of(
        digits, request.param, net, total_steps=60, every=6, scoring=digits.sweep("train", 128)
    )
    train(slimming, digits, 60, batch=64)
    return slimming, slimming.front(images=512, test=digits.sweep("test", 512))


def test_every_method_finds_children_that_have_learned(trained: tuple[Slimming, Front]) -> None:
    slimming, front = trained
    errors = [point.test_error for point in front]
    assert max(errors) < 75, "chance is 90"
    assert min(errors) < 35
    if slimming.name == "single":
        assert len(front) == 1
        assert front[0].widths == slimming.space.full
        return
    assert len(front) >= 4
    half = len(front) // 2
    assert np.mean(errors[:half]) > np.mean(errors[half:]), "errors fall as costs rise"
    losses = [point.train_loss for point in front]
    costs = [point.costs["macs"] for point in front]
    assert losses == sorted(losses, reverse=True)
    assert costs == sorted(costs)
    ends = (slimming.space.smallest, slimming.space.full)
    assert front.span == tuple(slimming.cost(end) for end in ends)


def test_children_that_have_their_own_statistics_reproduce_their_errors(
    trained: tuple[Slimming, Front], digits: Data
) -> None:
    slimming, front = trained
    net = slimming.net
    assert set(net.statistics) == {p.widths for p in front}
    test = digits.sweep("test", 512)[0]
    for point in front:
        net.use(point)
        alone = net.child(point.widths).eval()
        with torch.no_grad():
            outputs = net.eval()(test[0])
            assert torch.allclose(outputs, alone(test[0]), atol=1e-4)
        wrong = (outputs.argmax(dim=1) != test[1]).double().mean().item()
        assert 100 * wrong == pytest.approx(point.test_error)
    net.use(net.space.full)
    net.train()


# Joslim


def test_joslim_visits_so_many_new_children_in_every_round(digits: Data) -> None:
    slimming = slimming_of(digits, "joslim", total_steps=22, every=5, samples=3, random_share=0.0)
    seen = train(slimming, digits, 22)
    start = start_size(slimming.space)
    rounds = [seen[first : first + 5] for first in range(0, 22, 5)]
    known = {visit.widths for visit in slimming.history.visits[:start]}
    for number, steps in enumerate(rounds):
        assert all(widths == steps[0] for widths in steps), "they hold for a round"
        full, *chosen, smallest = steps[0]
        assert (full, smallest) == (slimming.space.full, slimming.space.smallest)
        assert len(chosen) == 3
        found = [visit for visit in slimming.history.visits[start:] if visit.step == 5 * number]
        # A target next to an end may leave no other child than one that was visited.
        assert [visit.widths for visit in found] == [w for w in chosen if w not in known]
        known |= set(chosen)
    assert len(slimming.history) >= start + 0.8 * 3 * len(rounds)
    assert slimming.children == 3 * len(rounds)
    assert len({tuple(widths) for widths in seen}) == len(rounds)


def test_joslim_begins_with_both_ends_and_a_few_that_fill_the_space(digits: Data) -> None:
    slimming = slimming_of(digits, "joslim")
    train(slimming, digits, 1)
    first = [visit.widths for visit in slimming.history.visits]
    assert first[:2] == [slimming.space.full, slimming.space.smallest]
    assert len(slimming.history.scorings[0].losses) == start_size(slimming.space)


def costs_chosen(slimming: Slimming, rounds: int) -> np.ndarray:
    """Of the children of so many rounds while the weights stand still, 0 the least, 1 the full."""
    slimming.criterion = F.cross_entropy
    chosen = []
    for _ in range(rounds):
        chosen += [slimming.cost(child) for child in slimming.method.choose(slimming)]
        for _ in range(slimming.every):
            slimming.advance()
    low, high = (slimming.cost(w) for w in (slimming.space.smallest, slimming.space.full))
    return (np.array(chosen) - low) / (high - low)


def unevenness(costs: np.ndarray) -> float:
    """The largest distance between their distribution and the uniform one."""
    places = np.sort(costs)
    steps = np.arange(len(places) + 1) / len(places)
    return max(np.abs(steps[1:] - places).max(), np.abs(places - steps[:-1]).max())


def test_costs_are_visited_evenly_only_with_targets(digits: Data) -> None:
    quick = {"every": 1, "rescore": 8}
    even_targets = {"log_share": 0.0}
    even = costs_chosen(slimming_of(digits, "joslim", **quick, search_options=even_targets), 30)
    assert unevenness(even) < 0.15
    assert min(np.histogram(even, bins=4, range=(0, 1))[0]) >= len(even) // 8
    by_chance = RandomScalarized(restarts=1, raw_samples=16, iterations=10, fit_iterations=20)
    drawn = costs_chosen(slimming_of(digits, "joslim", **quick, searcher=by_chance), 6)
    assert unevenness(drawn) > 0.25


def test_targets_are_met(digits: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    from joslim.search import targeted

    targets: list[float] = []
    draw = targeted.stratified_targets

    def recorded(*arguments, **options):
        found = draw(*arguments, **options)
        targets.extend(found)
        return found

    monkeypatch.setattr(targeted, "stratified_targets", recorded)
    slimming = slimming_of(digits, "joslim", every=1, rescore=8)
    chosen = costs_chosen(slimming, 20)
    assert len(targets) == len(chosen) == 40
    full = slimming.cost(slimming.space.full)
    low = slimming.cost(slimming.space.smallest)
    misses = np.abs(low + chosen * (full - low) - targets) / full
    assert max(misses) <= 0.02


# The baselines


@cache
def ray(space: WidthSpace) -> frozenset[Widths]:
    """The children with one multiplier for all knobs."""
    return frozenset(space.uniform(m) for m in np.linspace(space.low.min(), 1, 2001))


def on_the_ray(child: Widths) -> bool:
    return child in ray(child.space)


def test_slim_has_one_multiplier_for_all_layers(digits: Data) -> None:
    """Public code that says --slim draws one for each layer: then this baseline is another."""
    slimming = slimming_of(digits, "slim", total_steps=12)
    seen = train(slimming, digits, 12)
    middle = [child for _, *chosen, _ in seen for child in chosen]
    assert all(on_the_ray(child) for child in middle)
    assert len(set(middle)) > 12
    assert len({tuple(widths) for widths in seen}) == 12, "drawn anew at every step"
    assert not slimming.history
    assert slimming.scoring_passes == 0


def test_slim_scales_channels_only_if_asked(digits: Data) -> None:
    def other_sizes(children: list[Widths]) -> set[tuple[int, ...]]:
        kinds = [dim.kind for dim in children[0].space.dims]
        sizes = (zip(child.counts, kinds) for child in children)
        return {tuple(size for size, kind in counts if kind != "channels") for counts in sizes}

    for channels_only in (False, True):
        model = joslim.models.resnet20(num_classes=10)
        net = joslim.slim(model, torch.zeros(2, 3, 8, 8), depth=True, resolutions=(4, 8))
        slimming = slimming_of(digits, "slim", net, channels_only=channels_only)
        rounds = [slimming.method.choose(slimming) for _ in range(12)]
        slimming.method.finish(slimming)
        found = [child for chosen in rounds for child in chosen]
        found += [visit.widths for visit in slimming.history.visits]
        smallest = slimming.smallest
        full = other_sizes([net.space.full])
        assert (other_sizes([*found, smallest]) == full) == channels_only
        assert (smallest == net.space.smallest) == (not channels_only)
        assert smallest.channels["conv1"] == net.space.smallest.channels["conv1"]


def test_slim_is_judged_at_forty_costs_spread_evenly(digits: Data) -> None:
    slimming = slimming_of(digits, "slim", make(digits, Convs))
    slimming.method.finish(slimming)
    visits = slimming.history.visits
    assert all(on_the_ray(visit.widths) for visit in visits)
    assert len(visits) <= SLIM_CHILDREN == 40
    costs = np.array(sorted(slimming.cost(child) for child in ray(slimming.space)))
    wanted = np.linspace(costs[0], costs[-1], SLIM_CHILDREN)
    nearest = {costs[np.abs(costs - target).argmin()] for target in wanted}
    assert {visit.cost for visit in visits} == nearest


def test_sensitive_layers_stay_wide(digits: Data) -> None:
    slimming = slimming_of(digits, "sensitivity", make(digits, Convs), draw=1, draw_full=True)
    train(slimming, digits, 3)
    rates = slimming.shrink_rates
    assert rates is not None
    assert rates.std() > 0
    curve = slimming.space.counts(on_curve(slimming.space, rates, np.linspace(0, 1, PLACES)))
    of_curve = {*map(tuple, curve.tolist())}
    trained = [slimming.method.choose(slimming) for _ in range(8)]
    slimming.method.finish(slimming)
    visits = slimming.history.visits
    chosen = [*(child for chosen in trained for child in chosen), *(v.widths for v in visits)]
    assert {child.counts for child in chosen} <= of_curve
    # The rates are measured once, with the weights that the training starts from.
    assert slimming.shrink_rates is rates
    costs = np.array(sorted(slimming.cost.of_counts(np.array([*of_curve]))))
    nearest = {costs[np.abs(costs - t).argmin()] for t in np.geomspace(costs[0], costs[-1], 20)}
    assert {visit.cost for visit in visits} == nearest


def test_slim_asks_a_cost_function_once_for_each_child(digits: Data) -> None:
    asked: list[Widths] = []

    def joules(widths: Widths) -> float:
        asked.append(widths)
        return float(sum(widths.counts))

    slimming = slimming_of(digits, "slim", cost=joules)
    asked.clear()
    slimming.method.finish(slimming)
    assert len(asked) <= len(ray(slimming.space)) + SLIM_CHILDREN


def test_bignas_has_a_multiplier_for_each_layer(digits: Data) -> None:
    slimming = slimming_of(digits, "bignas", total_steps=12, samples=3)
    seen = train(slimming, digits, 12)
    assert all(len(widths) == 5 for widths in seen)
    middle = [child for _, *chosen, _ in seen for child in chosen]
    assert sum(on_the_ray(child) for child in middle) < 6
    assert len({tuple(widths) for widths in seen}) == 12
    assert not slimming.history


def test_bignas_searches_once_at_the_end_as_many_children_as_joslim(digits: Data) -> None:
    slimming = slimming_of(digits, "bignas", total_steps=40, every=4)
    train(slimming, digits, 2)
    slimming.front(images=64)
    assert len(slimming.history) == slimming.children == 20
    assert slimming.scoring_passes == 20 * 2, "each child once, on both scoring batches"
    assert {visit.step for visit in slimming.history.visits} == {2}


def test_bignas_scores_a_child_once_even_if_its_loss_is_not_finite(digits: Data) -> None:
    slimming = slimming_of(digits, "bignas", total_steps=40, every=4)
    with pytest.raises(joslim.RunFailed, match="children has a finite loss"):
        slimming.front(lambda outputs, labels: F.cross_entropy(outputs, labels) * math.nan)
    assert slimming.scoring_passes <= 20 * 2


@pytest.mark.parametrize("cost", ["macs", "memory"])
def test_autoslim_trains_its_sequence_after_a_while(digits: Data, cost: str) -> None:
    slimming = slimming_of(digits, "autoslim", total_steps=40, cost=cost)
    early = train(slimming, digits, 6)
    assert AUTOSLIM_EARLY * 40 == 6
    assert not slimming.history
    assert slimming.scoring_passes == 0
    assert not all(on_the_ray(child) for _, *chosen, _ in early for child in chosen)
    late = train(slimming, digits, 30)
    visits = slimming.history.visits
    assert {visit.step for visit in visits} == {6}
    counts = np.array([visit.widths.counts for visit in visits])
    assert (np.diff(counts, axis=0) <= 0).all(), "each child lies inside the one before"
    assert (np.diff([visit.cost for visit in visits]) < 0).all()
    assert visits[0].widths == slimming.space.full
    members = {visit.widths for visit in visits}
    drawn = [child for _, *chosen, _ in late for child in chosen]
    assert set(drawn) <= members
    assert len(set(drawn)) > len(members) / 3
    passes = slimming.scoring_passes
    front = slimming.front(images=128)
    assert slimming.scoring_passes == passes, "the sequence is found once"
    assert {point.widths for point in front} <= members


def test_an_autoslim_that_ends_early_has_a_front(digits: Data) -> None:
    slimming = slimming_of(digits, "autoslim", total_steps=40)
    train(slimming, digits, 2)
    assert len(slimming.front(images=128)) >= 1


def test_a_look_at_the_front_does_not_change_how_autoslim_goes_on(digits: Data) -> None:
    slimming = slimming_of(digits, "autoslim", total_steps=40)
    train(slimming, digits, 2)
    slimming.front(images=128)
    found = [visit.widths for visit in slimming.history.visits]
    seen = train(slimming, digits, 4)
    assert not {child for _, *chosen, _ in seen for child in chosen} <= set(found)


def test_single_trains_its_child_and_nothing_else(digits: Data) -> None:
    net = make(digits)
    child = net.space.at([0.5, 0.25, 0.75])
    one, two, three = child.counts
    assert (one, two, three) == (16, 6, 12)

    def no_distillation(student: Tensor, teacher: Tensor) -> Tensor:
        raise AssertionError("nobody teaches")

    slimming = slimming_of(digits, "single", net, widths=child, distill=no_distillation)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _, (x, y) in zip(range(5), digits.batches(0, 32)):
        slimming.step(x, y, optimizer, F.cross_entropy)
        assert slimming.widths == [child]
    assert slimming.passes == 5
    inside = {
        "one.weight": np.s_[:one],
        "norm.weight": np.s_[:one],
        "norm.bias": np.s_[:one],
        "two.weight": np.s_[:two, :one],
        "two.bias": np.s_[:two],
        "three.weight": np.s_[:three, :two],
        "three.bias": np.s_[:three],
        "head.weight": np.s_[:, :three],
        "head.bias": np.s_[:],
    }
    for name, parameter in net.named_parameters():
        moved = parameter.detach() != before[name]
        assert moved[inside[name]].any(), name
        moved[inside[name]] = False
        assert not moved.any(), name
    (point,) = slimming.front(images=128)
    assert point.widths == child


# The tables


def test_ofa_is_an_alias() -> None:
    assert method("ofa") == ("bignas", METHODS["bignas"])
    assert set(ALIASES) == {"ofa"}
    assert list(METHODS) == ["joslim", "slim", "bignas", "autoslim", "sensitivity", "single"]


def test_the_preset_of_the_paper(digits: Data) -> None:
    slimming = slimming_of(digits, "joslim", preset="paper")
    assert type(slimming.searcher) is Scalarized
    assert not slimming.searcher.optimistic
    assert slimming.searcher.beta == 0.1
    assert slimming.searcher.epsilon == 0.02
    assert slimming.rescore_budget == ALL
    bignas = slimming_of(digits, "bignas", preset="paper")
    assert type(bignas.searcher) is RandomScalarized
    assert not bignas.searcher.optimistic
    assert PRESETS["paper"].finalists == ALL


def test_the_default_preset(digits: Data) -> None:
    slimming = slimming_of(digits, "joslim")
    assert type(slimming.searcher) is Targeted
    assert (slimming.searcher.beta, slimming.searcher.epsilon) == (0.1, 0.02)
    assert slimming.searcher.log_share == 0.5
    assert slimming_of(digits, "joslim", searcher="targeted").searcher == slimming.searcher
    budgets = [slimming_of(digits, "joslim", every=k).rescore_budget for k in (1, 16, 40, 313)]
    assert budgets == [8, 8, 20, 64], "scoring stays a small part of the passes of a round"
    chosen = slimming_of(digits, "joslim", searcher="mobo-ts2").searcher
    assert type(chosen) is Scalarized
    assert chosen.optimistic, "the corrected bound is the default"


@pytest.mark.parametrize("name", ["paper", "default"])
def test_re_scoring_within_the_budget(digits: Data, name: str) -> None:
    """Algorithm 1, line 4 scores the whole history; the default at most so many."""
    quick = RandomScalarized(restarts=1, raw_samples=4, iterations=2, fit_iterations=2)
    slimming = slimming_of(
        digits,
        "joslim",
        preset=name,
        every=1,
        samples=8,
        searcher=quick if name == "paper" else None,
        rescore=None if name == "paper" else 12,
    )
    costs_chosen(slimming, 4)
    start = start_size(slimming.space)
    sizes = [len(scoring.losses) for scoring in slimming.history.scorings]
    visited = Counter(visit.step for visit in slimming.history.visits)
    before = [start, *(sum(n for at, n in visited.items() if at < step) for step in (1, 2, 3))]
    expected = [8, 16, 24] if name == "paper" else [min(12, size) for size in before]
    assert sizes == expected
    assert slimming.scoring_passes <= sum(sizes), "a child that is visited again is scored once"


class Stubborn(Searcher):
    """Proposes the full child and one that is new."""

    def propose(self, history: History, count: int, rng: np.random.Generator) -> list[Widths]:
        return [history.space.full, history.space.random(rng)][:count]


def test_the_history_of_algorithm_1(digits: Data) -> None:
    """It is empty at first, and each proposal is trained and adds an entry, even a repeated one."""
    slimming = slimming_of(digits, "joslim", preset="paper", searcher=Stubborn(), draw=None)
    seen = train(slimming, digits, 20)
    visits = slimming.history.visits
    assert [visit.step for visit in visits] == [0, 0, 4, 4, 8, 8, 12, 12, 16, 16]
    assert len(visits) == slimming.children
    for visit in visits:
        for step in range(visit.step, visit.step + 4):
            assert visit.widths in seen[step]
    front = slimming.front(images=128)
    assert len({point.widths for point in front}) == len(front)
    assert len(slimming.history) == 10
    last = slimming.history.scorings[-1].losses
    assert len(last) == 10
    assert len({last[child] for child in range(0, 10, 2)}) == 1, "one child, one loss"
    default = slimming_of(digits, "joslim", searcher=Stubborn())
    train(default, digits, 20)
    assert len(default.history) == start_size(default.space) + 5


def test_the_first_children_of_the_papers_search_are_trained(digits: Data) -> None:
    options = {"preset": "paper", "total_steps": 4, "every": 1, "draw": None}
    slimming = slimming_of(digits, "joslim", **options)
    seen = train(slimming, digits, 3)
    assert start_size(slimming.space) == 5, "the third round still completes the first children"
    chosen = [visit.widths for visit in slimming.history.visits]
    assert chosen[:2] == [slimming.space.full, slimming.space.smallest]
    assert len({*chosen}) == len(chosen) == 6
    assert [{*chosen[at : at + 2]} <= {*widths} for at, widths in zip((0, 2, 4), seen)] == [
        True
    ] * 3


@pytest.mark.parametrize(
    ("find", "wrong", "message"),
    [
        (method, "joslym", f"method: .*'joslym'.*{', '.join(METHODS)}, ofa"),
        (method, None, "method: .*'None'"),
        (method, ["slim"], "method: "),
        (preset, "papers", "preset: .*'papers'.*default, paper"),
        (preset, 3, "preset: "),
    ],
)
def test_unknown_names(find, wrong: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        find(wrong)
    assert "\n" not in str(caught.value)

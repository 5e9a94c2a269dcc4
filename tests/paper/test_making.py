"""Figures from nothing: what is planned, and all of them for real at toy scale."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import joslim.paper.making as making
from joslim.comparing import Comparison, Entry
from joslim.errors import RunFailed, Stopped, UserError
from joslim.paper.drawings import Clock
from joslim.paper.figures import FIGURES, KS
from joslim.paper.making import (
    DRAWINGS,
    LINES,
    DrawingOptions,
    Training,
    draw_runs,
    figure_with,
    make_figure,
    planned,
)
from joslim.paper.panels import method_of, panels_of
from joslim.results.plots import save
from joslim.results.record import Record, read_record
from joslim.runs.recipes import RECIPES

Made = Callable[..., Record]
TOY: dict[str, Any] = {
    "model": "resnet8",
    "data": "digits",
    "recipe": "digits",
    "low": 0.7,
    "steps": 2,
    "batch": 16,
    "front_images": 32,
    "threads": 1,
}


SMALL: dict[str, Any] = {"model": "resnet8", "data": "digits", "recipe": "digits", "steps": 2}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("cifar", {"only": ["cifar100-resnet21"]}, "only: unknown name 'cifar100-resnet21'"),
        ("bisection", {"searcher": "nsga2"}, "searcher: 'nsga2' given, but this figure varies it"),
        ("k", {"every": 3}, "every: 3 given, but this figure varies it"),
        ("cifar", {"steps": 0}, "steps: 0 given"),
        ("cifar", {"nonsense": 1}, "configuration: unknown name 'nonsense'"),
        ("imagenet", {"data": "folder:imagenet"}, "fetch ILSVRC2012_img_train.tar"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    name: str, settings: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        make_figure(name, tmp_path / "out", **settings)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="is a file, a folder is needed"):
        make_figure("cifar", tmp_path / "out", **TOY)


# Figures for real


def train_here(
    methods: Sequence[str],
    seeds: Sequence[int],
    costs: Sequence[str],
    models: Sequence[str],
    *,
    out: Path,
    **config: Any,
) -> Comparison:
    """What `compare` does, without its processes: they take seconds to start."""
    from joslim.runs.driver import train
    from joslim.training.settings import SEARCHING

    entries = []
    for method in methods:
        for seed in seeds:
            (cost,), (model,) = costs, models
            path = out / f"{model}-{cost}-{method}-seed{seed}"
            own = dict(config)
            if method not in SEARCHING:
                own.pop("searcher", None)
            train(model, cost=cost, method=method, seed=seed, out=path, resume=True, **own)
            entries.append(Entry.of(read_record(path)))
    return Comparison(entries)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all figures: they share their trainings, as those of a user do."""
    return tmp_path_factory.mktemp("toys")


@pytest.mark.parametrize("name", FIGURES)
def test_at_toy_scale(name: str, toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "compare", train_here)
    # A picture of each run takes as long as the run.
    monkeypatch.setattr("joslim.runs.driver.draw_run", lambda *_: None)
    ks = [1, 2] if name == "k" else None
    # One round of the paper's searches: they take seconds.
    short: dict[str, Any] = {"every": 2, "bisections": 1} if name == "bisection" else {}
    options = DrawingOptions(clock=Clock(device="cpu", batch=2, threads=1))
    record = make_figure(name, toys, seeds=[0], ks=ks, options=options, **TOY, **short)
    assert (record["figure"], record["of_the_paper"]) == (name, FIGURES[name].place)
    assert [Path(file).name for file in record["files"]] == [
        f"{name}.png",
        f"{name}.svg",
        f"{name}.json",
        *(["table1.md"] if name == "table1" else []),
    ]
    assert (toys / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((toys / f"{name}.json").read_text())
    assert stored["panels"] == json.loads(json.dumps(record["panels"]))
    own = [panel for panel in stored["panels"] if panel["title"] == "ResNet8, digits"]
    assert len(own) == (2 if name == "autoslim" else 1)


def failing(*_: Any, out: Path, **__: Any) -> Comparison:
    return Comparison([Entry("resnet8", "macs", "slim", 0, out / "a", failure="no memory")])


def test_trainings_that_failed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "compare", failing)
    with pytest.raises(RunFailed, match=r"1 of 1 trainings have failed.*a: no memory"):
        make_figure("cifar", tmp_path, seeds=[0], **TOY)
    assert not (tmp_path / "cifar.png").exists()


def stopping(*_: Any, **__: Any) -> Comparison:
    raise Stopped("type joslim compare --out ... to go on", 15)


def test_a_signal_leaves_word_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "compare", stopping)
    with pytest.raises(Stopped, match="stopped; the same command goes on in") as caught:
        make_figure("cifar", tmp_path, **TOY)
    assert caught.value.signal == 15


# Runs that are there


def test_runs_are_drawn_into_the_file_that_is_asked_for(made: Made, tmp_path: Path) -> None:
    runs = [made("a").path, made("b", method="slim").path]
    record = draw_runs("cifar", runs, tmp_path / "x.svg")
    assert record["files"] == [str(tmp_path / "x.svg"), str(tmp_path / "x.json")]
    assert not (tmp_path / "x.png").exists()
    assert json.loads((tmp_path / "x.json").read_text())["figure"] == "cifar"


def test_a_comparison_stands_for_its_runs(made: Made, tmp_path: Path) -> None:
    tasks = [
        {"model": "resnet20", "cost": "macs", "method": method, "seed": 0}
        for method in ("slim", "joslim")
    ]
    for task in tasks:
        made(f"all/resnet20-macs-{task['method']}-seed0", method=task["method"])
    (tmp_path / "all" / "compare.json").write_text(json.dumps({"settings": {}, "tasks": tasks}))
    record = draw_runs("cifar", [tmp_path / "all"], tmp_path / "x.png")
    assert list(record["panels"][0]["lines"]) == ["slim", "joslim"]


def test_a_run_that_is_still_training(made: Made, tmp_path: Path) -> None:
    run = made("a")
    front = json.loads((run.path / "front.json").read_text())
    (run.path / "front.json").write_text(json.dumps({**front, "step": 3}))
    (run.path / "metrics.jsonl").write_text('{"step": 3}\n')
    with pytest.raises(UserError, match=r"a' .* step 3 of 8"):
        draw_runs("cifar", [run.path], tmp_path / "x.png")
    (run.path / "front.json").unlink()
    with pytest.raises(UserError, match="has no front yet"):
        draw_runs("cifar", [run.path], tmp_path / "x.png")


def test_an_empty_front(made: Made, tmp_path: Path) -> None:
    file = made("a").path / "front.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "children": []}))
    with pytest.raises(UserError, match="it has no children; remove"):
        draw_runs("cifar", [tmp_path / "a"], tmp_path / "x.png")


@pytest.mark.parametrize("path", ["x.gif", "missing/x.png"])
def test_pictures_that_cannot_be_written(path: str, made: Made, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="picture: "):
        draw_runs("cifar", [made("a").path], tmp_path / path)


# Every figure has its drawing


def test_every_figure_has_one() -> None:
    assert list(DRAWINGS) == list(FIGURES)


@pytest.mark.parametrize("name", [name for name in DRAWINGS if name != "latency"])
def test_at_full_scale(name: str, made: Made, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs as the paper's trainings would leave them, but for the numbers in them."""
    figure = FIGURES[name]
    runs = [
        made(
            **{key: RECIPES[trials.recipe][key] for key in ("model", "data")},
            method=method,
            cost=trials.cost,
            seed=seed,
            preset="paper",
            **trials.change,
            visits=[30e6, 60e6],
            classes=1000 if "imagenet" in trials.recipe else 10,
        )
        for trials in figure.trials
        for method in trials.methods
        for seed in figure.seeds
    ]
    panels = panels_of(runs, LINES.get(name, method_of), figure.costs)
    picture, numbers = DRAWINGS[name](panels, DrawingOptions())
    assert json.loads(json.dumps(numbers, allow_nan=False))["panels"]
    assert len(panels) == len({(t.recipe, t.cost) for t in figure.trials})
    file = tmp_path_factory.mktemp("pictures") / f"{name}.svg"
    save(picture, file)
    for panel in panels:
        assert panel.title in file.read_text()


# What a figure trains: as the paper has it, with what is given, and nothing twice


def plan_of(name: str, only: Sequence[str] | None = None, **settings: Any) -> list[Training]:
    ks = [1, 2] if name == "k" and settings else None
    return planned(figure_with(name, ks, settings), settings, only)


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with something that looks like it."""
    (tmp_path / "imagenet").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_figure_2_is_planned_as_the_paper_has_it() -> None:
    plan = plan_of("cifar")
    assert [training.folder for training in plan][::4] == [
        "cifar10-resnet20",
        "cifar100-resnet20",
        "cifar100-resnet20_2x",
    ]
    assert len(plan) == 12
    for training in plan:
        assert training.methods == ("slim", "bignas", "joslim")
        chosen = {
            key: training.settings[key] for key in ("preset", "every", "epochs", "val", "low")
        }
        assert chosen == {"preset": "paper", "every": 313, "epochs": 400, "val": 0, "low": 0.316}
        assert not {"recipe", "seed", "method", "model", "cost"} & training.settings.keys()


@pytest.mark.parametrize("name", FIGURES)
def test_panels_that_become_the_same_are_one(name: str, imagenet: Path) -> None:
    """At toy scale all networks and data are the same: only costs and ablations are left."""
    wanted = {"autoslim": 2, "bisection": 2, "k": 3}
    assert len(plan_of(name, **SMALL)) == wanted.get(name, 1)
    assert len({training.folder for training in plan_of(name)}) <= len(FIGURES[name].trials)


def test_figures_share_their_trainings(imagenet: Path) -> None:
    """What an ablation does not change, figure 2 has trained: same folder, same settings."""
    trained = {training.folder: training.settings for training in plan_of("cifar")}
    own = {t.folder: t.settings for name in ("bisection", "k") for t in plan_of(name)}
    shared = own.keys() & trained.keys()
    assert shared == {"cifar100-resnet20"}
    assert own["cifar100-resnet20"] == trained["cifar100-resnet20"]
    others = [f"every-{k}" for k in KS if k != 313]
    assert own.keys() - shared == {
        f"cifar100-resnet20-{change}" for change in [*others, "searcher-mobo-rs"]
    }
    on_imagenet = [t for name in ("imagenet", "latency", "widths") for t in plan_of(name)]
    assert len({t.folder for t in on_imagenet}) == 3


def test_what_is_given_wins() -> None:
    (training,) = plan_of("cifar", only=["cifar100-resnet32"], lr=0.3, preset="default", steps=9)
    assert (training.settings["lr"], training.settings["preset"]) == (0.3, "default")
    assert training.settings["steps"] == 9
    assert not {"every", "epochs"} & training.settings.keys(), "they belong to 400 epochs"


def test_values_of_k_go_with_a_length() -> None:
    with pytest.raises(UserError, match=r"ks: the paper's 156,313,.* type values"):
        figure_with("k", None, {"steps": 60})
    with pytest.raises(UserError, match=r"ks: 2,3,2 has a value twice"):
        figure_with("k", [2, 3, 2], {})
    with pytest.raises(UserError, match="ks: figure cifar has no values of K"):
        figure_with("cifar", [2], {})
    figure = figure_with("k", [5], {"steps": 60})
    assert [dict(trials.change) for trials in figure.trials] == [{}, {"every": 5}]


def test_folders_have_tame_names() -> None:
    (training,) = plan_of("latency", model="../../nets:own", data="folder:/x/..")
    assert "/" not in training.folder
    assert not training.folder.startswith(".")

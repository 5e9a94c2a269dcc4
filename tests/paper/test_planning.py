"""What a figure trains: as the paper has it, with what is given, and nothing twice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from joslim.errors import UserError
from joslim.paper.figures import FIGURES, KS
from joslim.paper.planning import Training, figure_with, planned

TOY: dict[str, Any] = {"model": "resnet8", "data": "digits", "recipe": "digits", "steps": 2}


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
    assert len(plan_of(name, **TOY)) == wanted.get(name, 1)
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

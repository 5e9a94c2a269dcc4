"""Every figure has its drawing, and draws what it is of."""

import json
from collections.abc import Callable

import pytest

from joslim.paper.drawing import DRAWINGS, Wishes
from joslim.paper.figures import FIGURES
from joslim.paper.panels import panels_of
from joslim.reports.figures import save
from joslim.runs.recipes import RECIPES
from joslim.runs.run import Run

Made = Callable[..., Run]


def test_every_figure_has_one() -> None:
    assert list(DRAWINGS) == list(FIGURES)


@pytest.mark.parametrize("name", [name for name in DRAWINGS if name != "latency"])
def test_at_full_scale(name: str, made: Made, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs as the paper's trainings would leave them, but for the numbers in them."""
    figure, drawing = FIGURES[name], DRAWINGS[name]
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
    panels = panels_of(runs, drawing.label, figure.costs)
    picture, numbers = drawing.draw(panels, Wishes())
    assert json.loads(json.dumps(numbers, allow_nan=False))["panels"]
    assert len(panels) == len({(t.recipe, t.cost) for t in figure.trials})
    file = tmp_path_factory.mktemp("pictures") / f"{name}.svg"
    save(picture, file)
    for panel in panels:
        assert panel.title in file.read_text()

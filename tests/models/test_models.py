"""The table of models."""

from typing import Any

import joslim.models
from joslim.models import MODELS


def test_table_names_every_public_constructor() -> None:
    assert set(joslim.models.__all__) == {"MODELS", *MODELS}
    assert all(getattr(joslim.models, name) is build for name, build in MODELS.items())


def test_every_model_tells_the_slimmer_its_range_and_input() -> None:
    for build in MODELS.values():
        model: Any = build(num_classes=3)
        assert {"low", "input"} <= model.slim_defaults.keys() <= {"low", "input", "tie", "keep"}

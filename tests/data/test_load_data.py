"""The table and the one function in joslim/data/__init__.py."""

from pathlib import Path

import pytest

from joslim.data import DATASETS, Data, load_data
from joslim.errors import UserError


def test_unknown_names() -> None:
    with pytest.raises(UserError) as caught:
        load_data("cifar")
    assert str(caught.value) == (
        f"data: unknown name 'cifar'; allowed: {', '.join(DATASETS)}; "
        "or your own as folder:PATH or shards:PATH (images) or text:PATH"
    )


def test_the_table() -> None:
    assert list(DATASETS)[:4] == ["digits", "fashion-mnist", "cifar10", "cifar100"]
    assert isinstance(load_data("digits"), Data)


@pytest.mark.parametrize("wrong", [None, 3, ("a",), (1, 2), ([], [], [])])
def test_what_is_no_data(wrong: object) -> None:
    with pytest.raises(UserError, match=r"^data: \w+ is not a pair \(train, test\)"):
        load_data(wrong)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data: there is no folder .*nowhere'; type folder:PATH"):
        load_data(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(UserError, match=r"^data: folder: names no folder; type folder:PATH"):
        load_data("folder:")

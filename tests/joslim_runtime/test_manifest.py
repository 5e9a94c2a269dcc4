"""The manifest: every wrong value is one line that names its place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim_runtime import BundleError
from joslim_runtime.bundle import Bundle

MakeBundle = Callable[..., Path]
Change = Callable[[dict[str, Any]], object]


def changed(key: str, value: Any) -> Change:
    """Sets `children.0.weights.1.of`, say."""

    def change(record: Any) -> None:
        *path, last = key.split(".")
        for part in path:
            record = record[int(part) if part.isdigit() else part]
        record[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("format", 4, "it has format 4, this joslim_runtime reads 1 to 3; type pip install -U"),
        ("format", "1", "manifest.json.format: '1' given, a whole number"),
        ("values", 10**30, "manifest.json.values: a large number given"),
        ("shape", [2, 3], "manifest.json.shape: [2, 3] given, channels, height and width"),
        ("std", [1, 0], "manifest.json.std: [1, 0] given, 2 means and 2 positive deviations"),
        ("crop", 0, "manifest.json.crop: 0 given, a number above 0"),
        ("children", [], "it has no children; export it again"),
        ("children.1.name", "child-01", "manifest.json.children: two have the same name"),
        ("children.0.costs.macs", float("nan"), "children[0].costs.macs: nan given, a finite"),
        ("children.0.channels", [], "children[0].channels: [] given, 1 counts"),
        ("children.0.weights.0.of", 9, "children[0].weights[0].of: 9 given, a whole number"),
        ("children.0.weights.0.keep", [5, 2, 1, 1], "keep[0]: 5 given, a whole number from 0 to 4"),
        ("children.0.weights.0.keep", [2], "keep: [2] given, 4 axes needed"),
        ("children.0.weights.0.keep.0", [[2, 1]], "keep[0]: [[2, 1]] given, ranges in order"),
        ("children.0.weights.0.keep.0", [[0]], "keep[0]: [[0]] given, ranges in order"),
        ("children.0.weights.0.times", 1, "times: 1 given, a tensor with a factor"),
        ("tensors.0.offset", 15, "a tensor within 16 values needed"),
        ("tensors.0.shape", [10**9, 10**9], "a tensor within 16 values needed"),
        ("classes", {"a": 1}, "manifest.json.classes: {'a': 1} given, a list"),
        ("input", None, "manifest.json.input: None given, a name"),
        ("files", [], "manifest.json.files: [] given, an object"),
    ],
)
def test_wrong_values(key: str, value: Any, line: str, make_bundle: MakeBundle) -> None:
    path = make_bundle(changed(key, value))
    with pytest.raises(BundleError) as caught:
        Bundle(path)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["format", "values", "shape", "tensors", "children", "files"])
def test_missing_values(key: str, make_bundle: MakeBundle) -> None:
    with pytest.raises(BundleError, match=rf"manifest.json.{key}: missing"):
        Bundle(make_bundle(lambda record: record.pop(key)))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_broken_json(content: bytes, make_bundle: MakeBundle) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle(make_bundle(entries={"manifest.json": content}))

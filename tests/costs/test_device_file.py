"""Device files: written and read back, and whatever else they hold is refused in one line."""

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import joslim
from joslim import SlimmableNet, UserError
from joslim.costs import device_file
from joslim.costs.device_file import Conditions, DeviceFile, device_name, processor_name
from joslim.costs.timing import Setting


@pytest.fixture(scope="module")
def measured(net: SlimmableNet) -> DeviceFile:
    children = (net.space.smallest, net.space.uniform(0.7), net.space.full)
    conditions = Conditions.here(net, Setting(threads=2, batch=4))
    return DeviceFile(conditions, children, (0.1, 1 / 3, 2.5), (0.01, 0.0, 0.3))


def message(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        DeviceFile.read(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("device_file: ")
    assert repr(str(path)) in text
    return text.removeprefix(f"device_file: {str(path)!r}: ").replace(repr(str(path)), "'FILE'")


def test_there_and_back(measured: DeviceFile, tmp_path: Path, net: SlimmableNet) -> None:
    path = tmp_path / "device.json"
    measured.write(path)
    again = DeviceFile.read(path)
    assert again == measured
    assert again.space == net.space
    assert [layer for dim in again.space.dims for layer in dim.layers]
    again.check_fits(net, path)
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_measured_on(measured: DeviceFile, net: SlimmableNet) -> None:
    here = measured.conditions
    assert (here.threads, here.batch, here.precision, here.backend) == (2, 4, "fp32", "eager")
    assert here.torch == torch.__version__
    assert here.inputs == ((1, 3, 8, 8),)
    assert here.device == device_name(net) != ""
    assert Conditions.here(net, Setting()).threads == torch.get_num_threads()
    assert str(here).endswith(f", 2 threads, batch 4, fp32, eager, torch {torch.__version__}")
    assert measured.counts.tolist() == [list(child.counts) for child in measured.children]


def test_a_processor_that_nobody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", fail)
    monkeypatch.setattr(device_file.platform, "processor", lambda: "")
    monkeypatch.setattr(device_file.platform, "machine", lambda: "")
    assert processor_name() == "unknown"


def test_a_failure_leaves_the_old_file(
    measured: DeviceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "device.json"
    path.write_text("old")

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=r"^device_file: cannot write '.*': No space left on dev"):
        measured.write(path)
    assert path.read_text() == "old"


def test_a_path_that_cannot_be_written(measured: DeviceFile, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^device_file: cannot write '.*': No such file or dir"):
        measured.write(tmp_path / "no" / "device.json")


# Of another network


@pytest.mark.parametrize(
    ("options", "size", "words"),
    [
        ({"low": 0.5}, 8, "is of another network: low 0.316 for 0.5; measure this one: joslim"),
        (
            {"divisor": 4},
            8,
            "is of another network: channels of conv1 with 16 by 1 for conv1 ",
        ),
        ({}, 16, "was measured on inputs of 1x3x8x8, this network has 1x3x16x16"),
    ],
)
def test_another_network(
    options: dict[str, Any], size: int, words: str, measured: DeviceFile
) -> None:
    other = joslim.slim(joslim.models.resnet8(), torch.zeros(1, 3, size, size), **options)
    with pytest.raises(UserError) as caught:
        measured.check_fits(other, "there.json")
    assert str(caught.value).startswith(f"device_file: 'there.json' {words}")
    assert "\n" not in str(caught.value)


def test_another_architecture(measured: DeviceFile) -> None:
    other = joslim.slim(
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 4, 1)),
        torch.zeros(1, 3, 8, 8),
    )
    with pytest.raises(UserError, match=r"is of another network: \d+ dims, this one has 1;"):
        measured.check_fits(other, "there.json")


# Files of anybody


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "device_file: 'FILE' is broken JSON: "),
        (b"\xff\xfe", "device_file: cannot read 'FILE': it is no text: "),
        (b"{", "device_file: 'FILE' is broken JSON: "),
        (b"[" * 100_000, "device_file: 'FILE' is broken JSON: nested too deeply"),
        (b"3", "it is no device file; joslim latency RUN -o FILE writes one"),
        (b"{}", "it is no device file; joslim latency RUN -o FILE writes one"),
        (b'{"joslim_latency": 2}', "file.joslim_latency: 2 is not a whole number from 1 to 1"),
        (b'{"joslim_latency": 1}', "file.conditions: missing"),
    ],
)
def test_what_is_no_device_file(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_bytes(content)
    assert message(path).startswith(words)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    why = "No such file or directory; joslim latency writes one"
    assert message(tmp_path / "device.json") == f"device_file: cannot read 'FILE': {why}"
    assert message(tmp_path).startswith("device_file: cannot read 'FILE': it is not a file")


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_file, "JSON_LIMIT", 10)
    path = tmp_path / "device.json"
    path.write_text(" " * 11)
    words = "device_file: 'FILE' is larger than 10 bytes; joslim latency writes one"
    assert message(path) == words


REFUSED = [
    (("conditions",), 3, "conditions: 3 is not a JSON object"),
    (("conditions", "device"), "a\nb", "conditions.device: 'a\\nb' is not a name"),
    (("conditions", "device"), "\x1b[2J", "conditions.device: '\\x1b[2J' is not a name"),
    (("conditions", "threads"), 0, "conditions.threads: 0 is not a whole number from 1 to 1024"),
    (("conditions", "batch"), 1e9, "conditions.batch: 1000000000.0 is not a whole number"),
    (("conditions", "precision"), "int4", "precision: unknown name 'int4'"),
    (("conditions", "backend"), "magic", "backend: unknown name 'magic'"),
    (("conditions", "torch"), None, "conditions.torch: None is not a name"),
    (("conditions", "inputs"), {}, "conditions.inputs: {} is not a list"),
    (("conditions", "inputs"), [[1]] * 101, "conditions.inputs: 101 entries, 0 to 100 are"),
    (("conditions", "inputs", 0), 3, "conditions.inputs[0].shape: 3 is not a list"),
    (("conditions", "inputs", 0, 1), -3, "conditions.inputs[0]: -3 is not a whole number"),
    (("space",), [], "space: [] is not a JSON object"),
    (("space", "dims", 0, "full"), 10**30, "space.dims[0].full: 1000000000000"),
    (("children",), [], "file.children: 0 entries, 1 to 10000 are allowed"),
    (("children",), "many", "file.children: 'many' is not a list"),
    (("children", 1), None, "children[1]: None is not a JSON object"),
    (("children", 1, "channels"), [1], "children[1].channels: 1 entries, "),
    (("children", 1, "channels", 0), 17, "children[1].channels: 17 is not a whole number from 1"),
    (("children", 1, "channels", 0), 2.5, "children[1].channels: 2.5 is not a whole number"),
    (("children", 1, "channels", 0), 1, "children[1].channels: not a child of the space"),
    (("children", 0, "ms"), 0, "children[0].ms: 0 is not from 1e-06 to 1e+09"),
    (("children", 0, "ms"), -1.0, "children[0].ms: -1.0 is not from 1e-06 to 1e+09"),
    (("children", 0, "ms"), 1e17, "children[0].ms: 1e+17 is not from 1e-06 to 1e+09"),
    (("children", 0, "ms"), math.nan, "children[0].ms: nan is not a finite number"),
    (("children", 0, "ms"), "3", "children[0].ms: '3' is not a finite number"),
    (("children", 2, "spread"), -0.1, "children[2].spread: -0.1 is below 0"),
    (("children", 2, "spread"), math.inf, "children[2].spread: inf is not a finite number"),
]


def replaced(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    record = copy.deepcopy(record)
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return record


@pytest.mark.parametrize(("path", "value", "words"), REFUSED)
def test_fields_that_are_wrong(
    path: tuple[Any, ...], value: Any, words: str, measured: DeviceFile, tmp_path: Path
) -> None:
    file = tmp_path / "device.json"
    file.write_text(json.dumps(replaced(measured.to_json(), path, value)))
    assert message(file).startswith(words)


def places(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree of JSON."""
    items = record.items() if isinstance(record, dict) else enumerate(record)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, (dict, list)):
            found += places(value, (*path, key))
    return found


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(data=st.data(), value=anything)
def test_anything_anywhere_is_one_line_or_a_file(
    measured: DeviceFile, net: SlimmableNet, data: Any, value: Any
) -> None:
    record = json.loads(json.dumps(measured.to_json()))
    changed = replaced(record, data.draw(st.sampled_from(places(record))), value)
    refused = None
    try:
        DeviceFile.of_json(changed).check_fits(net, "there.json")
    except UserError as error:
        refused = str(error)
    assert refused is None or "\n" not in refused


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UserError, match=r"cannot read .*: it is not a file; joslim latency"):
        DeviceFile.read(tmp_path / "pipe.json")

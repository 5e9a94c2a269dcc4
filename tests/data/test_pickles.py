import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.data.pickles import read_pickle
from joslim.errors import UserError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train"


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_what_numpy_writes(path: Path, protocol: int) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 12)
    content = {b"data": array, b"labels": [1, 2], "batch": b"one", "t": (1, None, True)}
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    read = read_pickle(path)
    assert (read["data"] == array).all()
    assert read["data"].dtype == np.uint8
    assert read["data"].flags.writeable
    assert (read["labels"], read["batch"], read["t"]) == ([1, 2], b"one", (1, None, True))


@pytest.mark.parametrize("kind", ["<i8", ">i4", "u2", "i1"])
def test_whole_numbers_of_all_kinds(path: Path, kind: str) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(kind))
    path.write_bytes(pickle.dumps({"data": array}, protocol=2))
    read = read_pickle(path)["data"]
    assert (read == array).all()
    assert read.shape == (2, 3)


def test_what_python_2_wrote(path: Path) -> None:
    """As CIFAR was published: strings of bytes, and the old home of _reconstruct."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + short(b"b") + b"tR"
    )
    kind = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R(K\x03" + short(b"|") + b"NNN"
    kind += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02K\x03\x86" + kind + b"\x89" + short(b"abcdef") + b"tb"
    path.write_bytes(b"\x80\x02}(" + short(b"data") + array + state + b"u.")
    assert read_pickle(path)["data"].tobytes() == b"abcdef"
    assert read_pickle(path)["data"].shape == (2, 3)


class Runs:
    """A pickle that calls a function when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "function", [os.system, eval, exec, subprocess.Popen, getattr, __import__, print]
)
def test_nothing_is_run(path: Path, function: Any, protocol: int) -> None:
    trap = path.parent / "trap"
    path.write_bytes(pickle.dumps({"data": Runs(function, f"touch {trap}")}, protocol=protocol))
    with pytest.raises(UserError, match=r"^data: .*train is refused: it asks to run '") as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nload\n.",
        b"cnumpy.f2py.diagnose\nrun\n.",
        b"cbuiltins\ngetattr\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",  # a path through attributes
    ],
)
def test_names_that_are_almost_allowed(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is refused: it asks to run") as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        np.array([object()]),
        np.array([1.5]),
        np.array(["text"]),
        np.zeros(2, dtype=[("a", "u1")]),
    ],
    ids=["objects", "floats", "text", "records"],
)
def test_arrays_of_other_things(path: Path, content: np.ndarray) -> None:
    path.write_bytes(pickle.dumps({"data": content}, protocol=2))
    with pytest.raises(UserError, match=r"train (is refused|cannot be read)"):
        read_pickle(path)


@pytest.mark.parametrize("name", [b"ndarray", b"dtype"])
def test_stand_ins_cannot_be_changed(path: Path, name: bytes) -> None:
    """BUILD sets attributes, which must not reach what later pickles use."""
    path.write_bytes(b"cnumpy\n" + name + b"\nN}(X\x04\x00\x00\x00codeK\x01u\x86b.")
    with pytest.raises(UserError, match="cannot be read: AttributeError"):
        read_pickle(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x04", b"Pid\n.", b"\x82\x01."])
def test_broken_pickles(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^data: .*train (cannot be read|is refused)") as caught:
        read_pickle(path)
    assert "\n" not in str(caught.value)


def test_a_pickle_of_something_else(path: Path) -> None:
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(UserError, match="holds list, a dictionary is needed"):
        read_pickle(path)
    with pytest.raises(UserError, match="cannot be read: FileNotFoundError"):
        read_pickle(path.with_name("nowhere"))


GOOD = pickle.dumps({b"data": np.arange(30, dtype=np.uint8), b"labels": [1, 2]}, protocol=2)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.booleans())
def test_damaged_files(tmp_path_factory: Any, at: int, byte: int, cut: bool) -> None:
    """Whatever a damaged file holds, it is read or refused in one line."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(GOOD[:at] if cut else GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])
    refusal = ""
    try:
        read_pickle(path)
    except UserError as error:
        refusal = str(error)
    assert "\n" not in refusal

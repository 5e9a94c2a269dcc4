"""What all tests share: settings of hypothesis, ways to call the program, one finished run."""

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from joslim.cli import main

if TYPE_CHECKING:
    from joslim.runs.run import Run

# Hypothesis takes its time, and draws the same examples in every run.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

# A program that is started in the background may be told to ignore Ctrl-C; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HOUSE = Path(__file__).parents[1]
Process = subprocess.CompletedProcess[str]

# Makers of all kinds, for `own:NAME`.
OWN = r"""
from torch import nn

number = 3

def tiny():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))

def solid():
    return nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1))

def weightless():
    return nn.ReLU()

def raising():
    raise RuntimeError("first line\nsecond line")

def needing(argument):
    return tiny()

def list_of_layers():
    return [nn.Conv2d(3, 8, 3)]

def multiline():
    class Picky(nn.Conv2d):
        def forward(self, x):
            raise ValueError("wrong\n\nshape")
    return Picky(3, 8, 3)
"""

# Networks for images of 8x8 pixels, for `nets:NAME`.
NETS = """
from torch import nn

def digits(num_classes=10):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
        nn.Flatten(), nn.Linear(8, num_classes),
    )

def three_outputs():
    return digits(3)
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a package, or skip the test where it is missing."""

    def found(name: str) -> Any:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
        monkeypatch.syspath_prepend(HOUSE / "benchmarks")
        importlib.import_module("zoo_families").declare_operators()
        return importlib.import_module(name)

    return found


@pytest.fixture(scope="session", autouse=True)
def thorough_searches() -> Callable[[], AbstractContextManager[None]]:
    """A training of a test lasts a second, and a search as thorough as a user's takes half of it.

    So searches are quick, all but those of other processes. What is compared with one of them is
    trained `with thorough_searches():`.
    """
    from joslim.training.methods import PRESETS

    searchers = PRESETS["default"].searchers
    as_ever = dict(searchers)
    quick = {name: (kind, {**options, "rounds": 2}) for name, (kind, options) in as_ever.items()}
    assert {name for name, _ in as_ever.values()} == {"targeted"}
    searchers.update(quick)

    @contextmanager
    def thorough() -> Iterator[None]:
        searchers.update(as_ever)
        try:
            yield
        finally:
            searchers.update(quick)

    return thorough


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with own.py and nets.py in it, whose imports are forgotten again."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("own", "nets", "broken", "sub", "sub.nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def joslim(capsys: pytest.CaptureFixture[str]) -> Callable[..., Process]:
    """`joslim(...)` in this process: its exit code, and what it printed."""

    def run(*arguments: str) -> Process:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        printed = capsys.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, printed.out, printed.err)

    return run


@pytest.fixture
def refused(joslim: Callable[..., Process]) -> Callable[..., str]:
    """The one line that `joslim(...)` answers bad input with."""

    def run(*arguments: str) -> str:
        result = joslim(*arguments)
        assert result.returncode == 2
        assert not result.stdout
        assert result.stderr.startswith("joslim: ")
        assert result.stderr.endswith("\n")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr
        return result.stderr

    return run


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Process]:
    """`python ...` in a process of its own, in the current folder."""
    monkeypatch.setenv("PYTHONPATH", str(HOUSE))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(*arguments: str) -> Process:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


# A training of a second: six steps, three rounds, three checkpoints.
TINY: dict[str, Any] = {
    "steps": 6,
    "batch": 32,
    "every": 2,
    "save_every": 2,
    "front_images": 64,
    "threads": 1,
}


@pytest.fixture
def tiny() -> dict[str, Any]:
    return dict(TINY)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """A finished run, with the network as it was in memory. Nobody may change it or its folder."""
    from joslim.runs.driver import train

    return train(out=tmp_path_factory.mktemp("runs") / "finished", **TINY)

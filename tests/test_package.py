"""The package as a user gets it: built, installed into an empty environment and used from there.

The dependencies are those of the environment that runs the tests, because installing them takes
minutes. joslim itself comes from the wheel: the new environment does not see the checkout.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

HOUSE = Path(__file__).parents[1]
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())
PACKAGES = ("joslim", "joslim_runtime")
SOURCES = ("pyproject.toml", "README.md", "LICENSE")

BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
WHERE = "import joslim, sys; print(joslim.__file__, sys.prefix)"


def run(command: list[str], folder: Path) -> str:
    """Run a program without the paths of this process, and return its output."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, f"{shlex.join(command)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked. It is built from a copy, so the checkout stays clean."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    for name in PACKAGES:
        shutil.copytree(HOUSE / name, source / name, ignore=shutil.ignore_patterns("__pyc*"))
    for name in SOURCES:
        shutil.copy(HOUSE / name, source)
    run([sys.executable, "-c", BUILD.format("sdist"), str(folder)], source)
    (archive,) = folder.glob("joslim-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-c", BUILD.format("wheel"), str(folder)], sdist)
    (file,) = folder.glob("joslim-*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an empty environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", str(wheel)], folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Paths that a .pth file names are searched last, and .pth files inside them are not read: the
    # checkout, which an editable installation names in such a file, cannot come in this way.
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(shared))
    return folder / "bin"


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for name in PACKAGES for path in (HOUSE / name).rglob("*") if path.is_file()]
    expected = {
        path.relative_to(HOUSE).as_posix() for path in files if path.parent.name != "__pycache__"
    }
    assert inside == expected - {"joslim_runtime/pyproject.toml"}
    assert "joslim/py.typed" in inside
    assert {".html", ".css", ".js", ".npz"} <= {Path(name).suffix for name in inside}


def test_the_wheel_states_licence_and_versions(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    assert "\nLicense-Expression: MIT\n" in metadata
    assert f"\nRequires-Python: {PROJECT['project']['requires-python']}\n" in metadata


def test_the_demo_runs_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    place, prefix = run([str(installed / "python"), "-c", WHERE], tmp_path).split()
    assert Path(place).is_relative_to(Path(prefix))
    assert Path(prefix) == installed.parent
    joslim = str(installed / "joslim")
    run([joslim, *demo("--steps 4 --every 2")], tmp_path)
    assert "macs" in run([joslim, "front", "runs/demo"], tmp_path)
    (tmp_path / "runs/demo/report.html").unlink()
    run([joslim, "report", "runs/demo"], tmp_path)
    assert "<html" in (tmp_path / "runs/demo/report.html").read_text()


def demo(settings: str) -> list[str]:
    """The arguments of the command that `make demo` runs, with other settings."""
    text = (HOUSE / "Makefile").read_text().replace("\\\n", "")
    found = re.search(r"^demo:.*\n\t\$\(BIN\)/joslim (.*)", text, re.MULTILINE)
    assert found, "make demo runs joslim"
    for setting in re.findall(r"--\w+ \d+", settings):
        flag = setting.split()[0]
        assert flag in found[1]
    return [*shlex.split(found[1]), *shlex.split(settings)]


# What is promised is what is tested


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (HOUSE / file).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


DEPENDENCIES: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def bounds(lines: Iterable[str]) -> dict[str, str]:
    """Package -> its lowest version."""
    return dict(line.split(">=") for line in lines if not line.startswith("joslim["))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_every_requirement_is_pinned_and_every_pin_fulfils_its_requirement() -> None:
    everything = [*DEPENDENCIES, *(line for extra in EXTRAS.values() for line in extra)]
    for name, least in bounds(everything).items():
        assert name in pins(), f"constraints.txt does not pin {name}"
        assert numbers(pins()[name]) >= numbers(least), name


def test_the_promised_dependencies_are_those_of_make_test_lowest() -> None:
    lowest = pins("lowest.txt")
    assert lowest.keys() == bounds(DEPENDENCIES).keys()
    for name, least in bounds(DEPENDENCIES).items():
        tested = numbers(lowest[name])
        assert tested[: len(numbers(least))] == numbers(least), name
        assert not any(tested[len(numbers(least)) :]), f"{name}: {lowest[name]} is not the lowest"


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev"}))
def test_the_promised_versions_of_an_extra_are_those_that_are_tested(extra: str) -> None:
    for name, least in bounds(EXTRAS[extra]).items():
        assert numbers(pins()[name])[: len(numbers(least))] == numbers(least), name


def test_the_promised_python_is_the_one_that_all_tools_check() -> None:
    promised = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert PROJECT["tool"]["mypy"]["python_version"] == promised
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{promised.replace('.', '')}"
    classifiers = PROJECT["project"]["classifiers"]
    assert f"Programming Language :: Python :: {promised}" in classifiers
    assert sys.version_info >= numbers(promised)


def test_the_promised_torch_is_the_one_that_is_tested() -> None:
    promised = bounds(DEPENDENCIES)["torch"]
    assert pins()["torch"].startswith(f"{promised}.")
    import torch

    assert torch.__version__.startswith(f"{promised}.")


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_pages_promise_the_same_versions(page: str) -> None:
    text = " ".join((HOUSE / page).read_text().split())
    python = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert re.findall(r"Python (\d+\.\d+)", text) == [python]
    assert re.findall(r"PyTorch (\d+\.\d+) or newer", text) == [bounds(DEPENDENCIES)["torch"]]


# Files that other programs read


def test_the_citation_names_the_paper() -> None:
    """The required keys of the Citation File Format 1.2.0; cffconvert --validate accepts it too."""
    citation = yaml.safe_load((HOUSE / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["project"]["license"]
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors", "year"} <= paper.keys()
    assert [author["family-names"] for author in paper["authors"]] == [
        "Chin",
        "Morcos",
        "Marculescu",
    ]
    assert paper["title"] in (HOUSE / "README.md").read_text()
    assert paper["url"] in (HOUSE / "README.md").read_text()


def test_a_commit_runs_what_make_check_runs() -> None:
    settings = yaml.safe_load((HOUSE / ".pre-commit-config.yaml").read_text())
    (repository,) = settings["repos"]
    assert repository["repo"] == "local", "other repositories need the network"
    (hook,) = repository["hooks"]
    assert (hook["entry"], hook["language"]) == ("make check", "system")
    makefile = (HOUSE / "Makefile").read_text()
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe
    assert {"ruff", "mypy"} <= set(re.findall(r"\$\(BIN\)/(\w+)", recipe[1]))


def test_the_first_screen_of_the_readme_names_both_commands() -> None:
    first = (HOUSE / "README.md").read_text().splitlines()[:20]
    commands = [line.split("#")[0].strip() for line in first]
    assert "make demo" in commands
    assert "make test" in commands

"""The rules of the house: the direction of imports, what is loaded, what lies where."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import joslim

HOUSE = Path(__file__).parents[1]
SOURCES = sorted((HOUSE / "joslim").rglob("*.py"))

# A layer may import from itself and from those before it. joslim/__init__.py and __main__.py are
# above all of them.
LAYERS = [
    "errors",
    "distributed",
    "files",
    "space",
    "data",
    "slimmable",
    "costs",
    "units",
    "formats",
    "front",
    "allocation",
    "search",
    "training",
    "results",
    "runs",
    "deploy",
    "comparing",
    "paper",
    "cli",
]
# Networks know nothing of joslim, and of joslim only these know the networks.
USERS_OF_MODELS = {"models", "runs", "cli", ""}
# The package itself gives its version to the layers, and nothing else: the rest would be a cycle.
OF_THE_PACKAGE = {"__version__"}


class Import(NamedTuple):
    """One imported name, as the dotted path of a module or of something in a module."""

    path: str
    line: int
    for_types_only: bool


def module_name(source: Path) -> str:
    parts = source.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: Path) -> list[Import]:
    """All of them: at the top, inside functions, for type checkers only, relative ones."""
    package = ".".join(source.relative_to(HOUSE).parent.parts)
    return list(imports_in(ast.parse(source.read_text()), package))


def imports_in(tree: ast.AST, package: str, for_types_only: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, for_types_only)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            start = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                yield Import(f"{start}.{alias.name}", node.lineno, for_types_only)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from imports_in(ast.Module([child], []), package, True)
            yield from imports_in(ast.Module(node.orelse, []), package, for_types_only)
        else:
            yield from imports_in(node, package, for_types_only)


def layer(path: str) -> str:
    """joslim.costs.base.Cost -> costs; empty for the package itself."""
    name = [*path.split("."), ""][1]
    return name if (HOUSE / "joslim" / name).is_dir() or name in LAYERS else ""


def refusal(importer: str, imported: Import) -> str | None:
    """Why a module of joslim may not import this."""
    root, _, rest = imported.path.partition(".")
    if root != "joslim":
        return None
    here, there = layer(importer), layer(imported.path)
    if there == "models":
        return (
            None if here in USERS_OF_MODELS else "only runs and the command line know the networks"
        )
    if here == "models":
        return "networks know nothing of joslim"
    if here == "":
        return None
    if there == "":
        return None if rest in OF_THE_PACKAGE else "take it from where it is defined"
    if LAYERS.index(there) > LAYERS.index(here):
        return f"{there} lies above {here}"
    return None


@pytest.mark.parametrize("source", SOURCES, ids=module_name)
def test_imports_point_one_way(source: Path) -> None:
    found = [(i, refusal(module_name(source), i)) for i in imports(source)]
    assert not [f"line {i.line}: {i.path}: {why}" for i, why in found if why]


def test_every_folder_has_a_place_in_the_order() -> None:
    units = {layer(module_name(s)) for s in SOURCES} - {"", "models"}
    assert units == set(LAYERS)
    assert {s.stem for s in (HOUSE / "joslim").glob("*.py")} <= {*LAYERS, "__init__", "__main__"}


@pytest.mark.parametrize(
    ("importer", "code", "allowed"),
    [
        ("joslim.costs.base", "from joslim.space import Widths", True),
        ("joslim.costs.base", "from joslim.costs import COSTS", True),
        ("joslim.space", "from joslim.errors import UserError", True),
        ("joslim.errors", "from joslim.space import Widths", False),
        ("joslim.slimmable.net", "import joslim.costs.base", False),
        ("joslim.slimmable.net", "def f():\n    from joslim.costs import cost", False),
        ("joslim.slimmable.net", "if TYPE_CHECKING:\n    from joslim.costs import Cost", False),
        ("joslim.slimmable.net", "if TYPE_CHECKING:\n    from joslim.space import Dim", True),
        ("joslim.slimmable.net", "from joslim import cost", False),
        ("joslim.slimmable.net", "from .. import costs", False),
        ("joslim.slimmable.net", "from ..costs.base import Cost", False),
        ("joslim.slimmable.net", "from . import planning", True),
        ("joslim.costs.base", "from joslim.models import resnet20", False),
        ("joslim.costs.base", "from joslim.cli import main", False),
        ("joslim.cli.profile", "from joslim import __version__", True),
        ("joslim.cli.profile", "from joslim import slim", False),
        ("joslim.cli.profile", "from joslim.models import MODELS", True),
        ("joslim.models.mobilenet", "from .resnet import init_weights", True),
        ("joslim.models.mobilenet", "from joslim.models.resnet import ResNet", True),
        ("joslim.models.resnet", "from joslim.errors import UserError", False),
        ("joslim.models.resnet", "from ..errors import UserError", False),
        ("joslim.models.resnet", "import torch", True),
    ],
)
def test_the_test_of_imports_itself(importer: str, code: str, allowed: bool) -> None:
    package = importer.rpartition(".")[0]
    (imported,) = imports_in(ast.parse(code), package)
    assert (refusal(importer, imported) is None) == allowed


def test_no_two_files_import_each_other() -> None:
    """At run time; for type checkers they may."""
    modules = {module_name(source): source for source in SOURCES}
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        paths = [i.path for i in imports(source) if not i.for_types_only]
        targets = {p if p in modules else p.rpartition(".")[0] for p in paths}
        graph[name] = (targets & modules.keys()) - {name}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("source", SOURCES, ids=module_name)
def test_nothing_imports_torchvision_or_timm(source: Path) -> None:
    assert not {"torchvision", "timm"} & {i.path.split(".")[0] for i in imports(source)}
    assert not re.search(r"import_module\(\s*f?['\"](torchvision|timm)", source.read_text())


def test_importing_all_of_joslim_loads_neither_torchvision_nor_timm() -> None:
    modules = [name for s in SOURCES if not (name := module_name(s)).endswith("__main__")]
    code = f"""
import sys, importlib
import joslim
assert "torch" not in sys.modules, "torch is imported before it is needed"
for name in joslim.__all__:
    getattr(joslim, name)
for name in {modules}:
    importlib.import_module(name)
loaded = {{"torchvision", "timm"}} & {{name.split(".")[0] for name in sys.modules}}
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


SCRIPTS = sorted(
    script
    for folder in ("benchmarks", "experiments", "examples")
    for script in (HOUSE / folder).glob("*.py")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_import_what_is_there(script: Path) -> None:
    """They are not run by the tests, so that a renamed module would be noticed late."""
    for found in imports_in(ast.parse(script.read_text()), ""):
        module, _, name = found.path.rpartition(".")
        if module.split(".")[0] == "joslim" and not hasattr(importlib.import_module(module), name):
            importlib.import_module(found.path)


# Names


@pytest.mark.parametrize("name", joslim.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(joslim, name) is not None
    assert name in dir(joslim)


def test_the_names_of_the_design_are_there() -> None:
    fixed = {"slim", "cost", "models", "recalibrate", "train", "Slimming", "load", "explore"}
    assert fixed | {"SlimmableNet", "UserError"} <= {*joslim.__all__}
    assert not hasattr(joslim, "nonsense")


def test_no_folder_has_the_name_of_a_public_function() -> None:
    folders = {path.name for path in (HOUSE / "joslim").iterdir() if path.is_dir()}
    functions = {name for name in joslim.__all__ if not isinstance(getattr(joslim, name), type)}
    assert not folders & (functions - {"models"})


# What lies where


FILES = [
    source.relative_to(HOUSE / "joslim").as_posix()
    for source in SOURCES
    if source.stem not in ("__init__", "__main__")
]


@pytest.mark.parametrize("source", FILES)
def test_every_source_file_has_its_tests(source: str) -> None:
    test = HOUSE / "tests" / Path(source).parent / f"test_{Path(source).name}"
    assert test.exists(), f"{test.relative_to(HOUSE)} is missing"


def test_the_version_is_in_the_changelog() -> None:
    changelog = HOUSE / "CHANGELOG.md"
    if not changelog.exists():
        pytest.skip("there is no CHANGELOG.md yet")
    headings = [line for line in changelog.read_text().splitlines() if line.startswith("#")]
    assert any(joslim.__version__ in heading for heading in headings)


def test_the_version_is_stated_once() -> None:
    project = (HOUSE / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert 'version = { attr = "joslim.__version__" }' in project
    assert re.fullmatch(r"\d+\.\d+\.\d+", joslim.__version__)


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench", "test-gpu"])
def test_the_makefile_has_its_targets(target: str) -> None:
    assert re.search(rf"^{target}:", (HOUSE / "Makefile").read_text(), re.MULTILINE)
    dry = subprocess.run(["make", "-n", target], cwd=HOUSE, capture_output=True, check=False)
    assert dry.returncode == 0


def test_what_the_makefile_runs_is_there() -> None:
    scripts = re.findall(r"python ([\w/]+\.py)", (HOUSE / "Makefile").read_text())
    missing = [script for script in scripts if not (HOUSE / script).exists()]
    assert scripts
    assert not missing


def test_ci_runs_the_tests() -> None:
    ci = HOUSE / ".ci" / "run"
    assert re.search(r"^make test$", ci.read_text(), re.MULTILINE)
    assert ci.stat().st_mode & 0o111, "it can be executed"
    subprocess.run(["bash", "-n", str(ci)], check=True)


def test_the_house_has_a_licence_and_pins() -> None:
    assert "MIT" in (HOUSE / "LICENSE").read_text()
    assert re.search(r"^torch==", (HOUSE / "constraints.txt").read_text(), re.MULTILINE)


def test_cuda_tests_carry_the_marker() -> None:
    """`make test-gpu` runs what is marked; a bare skip would never be run there."""
    for test in (HOUSE / "tests").rglob("test_*.py"):
        text = test.read_text()
        if test != Path(__file__) and "cuda.is_available()" in text:
            assert "mark.cuda" in text, test

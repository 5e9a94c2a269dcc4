"""The API reference: every public name has an entry, a docstring and an example that runs.

The site is built strictly, as `make docs` does it, and its links are followed.
"""

import doctest
import io
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import griffe
import numpy as np
import pytest
import torch
from mkdocs.commands.build import build
from mkdocs.config import load_config

import joslim

if TYPE_CHECKING:
    from joslim.runs.run import Run

HOUSE = Path(__file__).parents[1]
PACKAGE = griffe.load(
    "joslim",
    search_paths=[HOUSE],
    extensions=griffe.load_extensions(HOUSE / "docs" / "public_names.py"),
    docstring_parser="google",
)
FUNCTIONS = [name for name in joslim.__all__ if PACKAGE[name].is_function]


def docstring(name: str) -> str:
    found = PACKAGE[name].docstring
    return found.value if found else ""


def documented(name: str) -> Iterator[tuple[str, str]]:
    """A public name and, of a class, its public members: path and docstring of each."""
    yield f"joslim.{name}", docstring(name)
    if PACKAGE[name].is_class:
        for member in PACKAGE[name].members.values():
            callable_or_property = member.is_function or "property" in member.labels
            if member.is_public and callable_or_property and not member.is_special:
                text = member.docstring.value if member.docstring else ""
                yield f"joslim.{name}.{member.name}", text


@pytest.mark.parametrize("name", joslim.__all__)
def test_griffe_finds_the_definition_of_a_public_name(name: str) -> None:
    thing = getattr(joslim, name)
    kinds = {type: "class", dict: "attribute", type(joslim): "module"}
    kind = next((word for known, word in kinds.items() if isinstance(thing, known)), "function")
    assert PACKAGE[name].kind.value == kind
    if hasattr(thing, "__qualname__"):
        assert PACKAGE[name].canonical_path == f"{thing.__module__}.{thing.__qualname__}"


@pytest.mark.parametrize("name", joslim.__all__)
def test_a_docstring_begins_with_a_full_sentence(name: str) -> None:
    for path, text in documented(name):
        first = " ".join(text.split("\n\n")[0].split())
        assert re.match(r"[A-Z`].*[.!?:]( .*)?$", first), f"{path}: {first!r}"
        assert len(first.split()) > 3, f"{path}: {first!r}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_explains_every_parameter(name: str) -> None:
    sections = PACKAGE[name].docstring.parse("google")
    explained = [
        parameter.name.lstrip("*")
        for section in sections
        if section.kind.value == "parameters"
        for parameter in section.value
    ]
    assert explained == [parameter.name for parameter in PACKAGE[name].parameters]


@pytest.fixture
def folder(tmp_path: Path, finished: "Run", monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of an example, with a finished run in runs/digits."""
    shutil.copytree(finished.path, tmp_path / "runs" / "digits")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", joslim.__all__)
def test_the_examples_of_a_name_run(name: str, folder: Path) -> None:
    assert ">>>" in docstring(name), f"joslim.{name} has no example"
    # The names that docs/api/index.md tells the reader to import.
    namespace: dict[str, Any] = {"joslim": joslim, "np": np, "torch": torch, "nn": torch.nn}
    for path, text in documented(name):
        test = doctest.DocTestParser().get_doctest(text, dict(namespace), path, path, 0)
        said = io.StringIO()
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        result = runner.run(test, out=said.write)
        assert not result.failed, said.getvalue()


# The site


class Site(HTMLParser):
    """The ids, the links and the signatures of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.signatures: list[str] = []
        self.in_signature = False
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {key: value for key, value in attributes if value}
        self.ids |= {found[key] for key in ("id", "name") if key in found}
        if tag == "div" and "doc-signature" in found.get("class", ""):
            self.signatures.append("")
            self.in_signature = True
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "link", "iframe") and found.get("rel") != "canonical":
            self.loaded += [found[key] for key in ("src", "href") if key in found]

    def handle_endtag(self, tag: str) -> None:
        if tag == "div":
            self.in_signature = False

    def handle_data(self, data: str) -> None:
        if self.in_signature:
            self.signatures[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Site]:
    """The pages of the site. A warning of mkdocs, such as a broken link, is an error here."""
    folder = tmp_path_factory.mktemp("site")
    settings = load_config(str(HOUSE / "mkdocs.yml"), strict=True, site_dir=str(folder))
    settings.plugins.on_startup(command="build", dirty=False)
    build(settings)
    return {page.resolve(): Site(page) for page in folder.rglob("*.html")}


def test_every_public_name_has_one_entry_with_its_signature(site: dict[Path, Site]) -> None:
    for name in joslim.__all__:
        (page,) = (found for found in site.values() if f"joslim.{name}" in found.ids)
        if name in FUNCTIONS:
            (signature,) = (text for text in page.signatures if text.startswith(f"{name}("))
            shown = re.findall(r"\w+", signature)
            assert {parameter.name for parameter in PACKAGE[name].parameters} <= set(shown)


def test_every_page_is_in_the_site(site: dict[Path, Site]) -> None:
    pages = {path.relative_to(HOUSE / "docs") for path in (HOUSE / "docs").rglob("*.md")}
    root = next(path.parent for path in site if path.name == "404.html")
    built = {path.relative_to(root).with_suffix(".md") for path in site}
    assert pages | {Path("index.md")} <= built


def test_the_links_of_the_site_lead_somewhere(site: dict[Path, Site]) -> None:
    broken = [
        f"{page.name}: {link}"
        for page, found in site.items()
        if page.name != "404.html"
        for link in found.links + found.loaded
        if not leads_somewhere(page, link, site)
    ]
    assert not broken


def leads_somewhere(page: Path, link: str, site: dict[Path, Site]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target = target / "index.html"
    anchor = unquote(parts.fragment)
    return target.exists() and (not anchor or target not in site or anchor in site[target].ids)


def test_the_site_can_be_read_without_a_network(site: dict[Path, Site]) -> None:
    elsewhere = [link for page in site.values() for link in page.loaded if urlsplit(link).netloc]
    assert not elsewhere


def test_no_page_of_the_reference_holds_the_path_of_a_module() -> None:
    """The names of modules may change, the public names stay."""
    entries = [
        entry
        for page in (HOUSE / "docs" / "api").glob("*.md")
        for entry in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    ]
    assert sorted(entries) == sorted(f"joslim.{name}" for name in joslim.__all__)

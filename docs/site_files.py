"""Adds files outside docs/ to the site: README.md as first page, and the files pages link to."""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HOUSE = Path(__file__).resolve().parents[1]
DOCS = HOUSE / "docs"
README = HOUSE / "README.md"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = [README, *DOCS.rglob("*.md")]
    linked = {(page.parent / link).resolve() for page in pages for link in links(page.read_text())}
    for path in sorted({README, *linked}):
        if path.is_file() and not path.is_relative_to(DOCS):
            files.append(File.generated(config, place(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page, which are right in the checkout, to the same files of the site."""
    source = Path(page.file.abs_src_path)

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        here = os.path.dirname(page.file.src_uri)
        return os.path.relpath(place(target), here or ".") if target.exists() else link[1]

    return LINK.sub(moved, markdown)


def links(markdown: str) -> list[str]:
    return LINK.findall(markdown)


def place(path: Path) -> str:
    """Where a file of the checkout is in the site."""
    if path == README:
        return "index.md"
    root = DOCS if path.is_relative_to(DOCS) else HOUSE
    return path.relative_to(root).as_posix()

"""The page: a template, a style, scripts and the content of runs, all in one file.

It loads nothing from any network. Names from files reach it as JSON, and the scripts put them in as
text, so that markup in a name is shown and not obeyed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joslim.results.page.content import content_of
from joslim.results.record import Record

HERE = Path(__file__).parent
STYLES = ("colours.css", "page.css")
# In the order in which the browser reads them.
SCRIPTS = (
    "words.js",
    "charts.js",
    "front.js",
    "budget.js",
    "compare.js",
    "search.js",
    "course.js",
    "page.js",
)
HOLE = re.compile(r"\{\{(\w+)\}\}")


def page_of(records: Sequence[Record], refresh: int | None = None) -> str:
    """Make the HTML of the page. refresh: seconds after which it reloads while a run trains."""
    title = ", ".join(record.name for record in records[:3])
    more = f" and {len(records) - 3} more" if len(records) > 3 else ""
    parts = {
        "title": html.escape(f"{title}{more}"),
        "style": joined(STYLES),
        "data": embedded(content_of(records, refresh)),
        "scripts": joined(SCRIPTS),
    }
    # All holes are filled at once, so that a name that looks like a hole stays a name.
    text = HOLE.sub(lambda hole: parts[hole[1]], joined(["template.html"]))
    # A folder may have a name that is no text.
    return text.encode("utf-8", "replace").decode("utf-8")


def joined(names: Sequence[str]) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def embedded(data: Any) -> str:
    """Write JSON that can neither end the element it stands in nor begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text

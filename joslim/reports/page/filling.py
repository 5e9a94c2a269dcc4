"""The page: a template, a style, scripts and the stories of runs, all in one file.

It asks nothing of any network. Names from files reach it as JSON, and the scripts put them in as
text: whatever is written in them, it is shown and not obeyed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joslim.reports.page.groups import Story, boards_of

HERE = Path(__file__).parent
STYLES = ("colours.css", "page.css")
# In the order in which they are read by the browser.
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


def page_of(stories: Sequence[Story], refresh: int | None = None) -> str:
    """The HTML of one page. refresh: seconds after which it is read again, while a run trains."""
    title = ", ".join(str(story["name"]) for story in stories[:3])
    more = f" and {len(stories) - 3} more" if len(stories) > 3 else ""
    parts = {
        "title": html.escape(f"{title}{more}"),
        "style": joined(STYLES),
        "data": embedded({"runs": stories, "boards": boards_of(stories), "refresh": refresh}),
        "scripts": joined(SCRIPTS),
    }
    # In one go: what looks like a hole in a name stays a name.
    text = HOLE.sub(lambda hole: parts[hole[1]], joined(["template.html"]))
    # A folder may have a name that is no text.
    return text.encode("utf-8", "replace").decode("utf-8")


def joined(names: Sequence[str]) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in, nor begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text

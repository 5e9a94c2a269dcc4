"""The page as a file: whole, alone, and with names that stay names."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joslim.results.page import filling
from joslim.results.page.filling import embedded, page_of
from joslim.results.record import read_record

MakeRun = Callable[..., Path]
ATTACKS = [
    "</script>",
    "<!--",
    "]]>",
    "&lt;",
    "\u2028",
    "{{data}}",
    "\\u003c",
    "\ud800",
    "'\"`${x}",
]


class Elements(HTMLParser):
    """All elements with their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.found[-1][0] if self.found else "", []).append(data)


@pytest.fixture(scope="module")
def page(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of([read_record(make_run(tmp_path_factory.mktemp("runs") / "a"))])


def test_it_is_one_file_that_asks_for_no_other(page: str) -> None:
    elements = Elements(page).found
    assert not {"img", "iframe", "object", "embed", "base"} & {tag for tag, _ in elements}
    leading = [value for _, a in elements for key in ("src", "href") if (value := a.get(key))]
    assert [value for value in leading if not value.startswith(("#", "data:"))] == []
    assert not re.search(r"@import|url\(", page)
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "{{" not in page


def test_it_is_small(page: str) -> None:
    assert len(page) < 120_000


def test_scripts_never_read_text_as_markup(page: str) -> None:
    for name in filling.SCRIPTS:
        text = (filling.HERE / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), (
            name
        )
        assert "</script" not in text


def test_every_script_and_style_is_in_it() -> None:
    lying = {file.name for file in filling.HERE.iterdir() if file.suffix in (".js", ".css")}
    assert lying == {*filling.SCRIPTS, *filling.STYLES}


@given(
    st.dictionaries(
        st.text(), st.one_of(st.text(), st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_data_comes_through_and_cannot_end_its_element(data: dict[str, object]) -> None:
    text = embedded(data)
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_stay_names(attack: str, make_run: MakeRun, tmp_path: Path) -> None:
    record = read_record(make_run(tmp_path / "a", model=attack, method=attack))
    text = page_of([replace(record, name=attack)])
    text.encode("utf-8")
    elements = Elements(text)
    assert [tag for tag, _ in elements.found].count("script") == 2
    data = json.loads(elements.texts["script"][0])
    assert (data["runs"][0]["model"], data["runs"][0]["name"]) == (attack, attack)
    assert "".join(elements.texts["title"]).startswith(attack.encode("utf-8", "replace").decode())


def test_numbers_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embedded(float("nan"))


def test_many_runs_have_a_short_title(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"run{at}", children=2, visits=2) for at in range(5)]
    records = [read_record(folder) for folder in folders]
    assert "<title>run0, run1, run2 and 2 more · joslim</title>" in page_of(records)
    assert '"refresh":5' in page_of(records[:1], refresh=5)

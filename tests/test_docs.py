"""Whatever the README and the docs show, runs.

Every block of Python of a page is executed, all in one namespace, in order, in an empty folder; so
are the commands `joslim ...` and `python ...` of its shell blocks. A first line `# name.py` also
saves a block under that name. `<!-- not run: reason -->` before a block leaves it out. Trainings
make a tenth of the steps that a page shows.
"""

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from joslim.cli import main as joslim_main

HOUSE = Path(__file__).parents[1]
PAGES = [p for p in (HOUSE / "README.md", *sorted((HOUSE / "docs").glob("**/*.md"))) if p.exists()]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^`\n]*$")
NOT_RUN = re.compile(r"<!--\s*not run: .+-->\s*$")
LENGTH = re.compile(r"(?<![\w-])((?:--)?(?:steps|every|seconds|until)[ =]+)(\d+)")
SHELLS = ("bash", "console", "sh", "shell")
# The commands that are run, and what python is told for them.
MODULES = {
    "python": "",
    "python3": "",
    "joslim": "-m joslim",
    "torchrun": "-m torch.distributed.run",
}
SKIPPED = ("pip", "git", "cd", "source", "export", ".")


@dataclass
class Block:
    language: str
    text: str
    line: int
    runs: bool


def blocks(page: str) -> Iterator[Block]:
    lines = page.splitlines()
    before, number = "", 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if not fence:
            before = lines[number] or before
            number += 1
            continue
        start = number + 1
        number = start
        while lines[number].strip() != "```":
            number += 1
        indent = len(fence["indent"])
        text = "\n".join(line[indent:] for line in lines[start:number])
        yield Block(fence["language"], text, start + 1, not NOT_RUN.search(before))
        before = ""
        number += 1


def shortened(text: str) -> str:
    """What a page shows has to run; how good it gets in the end is not tested here."""
    return LENGTH.sub(lambda found: f"{found[1]}{max(1, int(found[2]) // 10)}", text)


def commands(block: Block) -> Iterator[str]:
    """The command lines of a shell block; in a `console` block those after a `$`."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    for line in text.splitlines():
        prompt, command = line.startswith("$ "), line.removeprefix("$ ").strip()
        if command and not command.startswith("#") and (prompt or block.language != "console"):
            yield command


def run_python(block: Block, page: str, namespace: dict[str, Any]) -> None:
    if name := re.match(r"# ([\w/]+\.py)\n", block.text):
        path = Path(name[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text + "\n")
    # Empty lines in front, so that a traceback gives the line of the page.
    exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)


def run_command(command: str, page: str) -> None:
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    for_a_shell = re.search(r"[|<>&;$]", command)
    if words[0] == "make":
        missing = {
            word for word in words[1:] if word[0] != "-" and "=" not in word
        } - make_targets()
        assert not missing, f"{page}: make has no target {missing}"
    elif words[0] == "joslim" and not for_a_shell:
        run_here(words, joslim_main, f"{page}: {command}")
    elif re.fullmatch(r"python examples/\w+\.py", " ".join(words[:2])) and not for_a_shell:
        script = partial(runpy.run_path, words[1], run_name="__main__")
        run_here(words[1:], script, f"{page}: {command}")
    elif words[0] in MODULES:
        module = MODULES[words[0]]
        # The shell handles pipes and redirections.
        settings, rest = command.split(words[0], 1)
        line = f"set -o pipefail; {settings}{shlex.quote(sys.executable)} {module}{rest}"
        result = subprocess.run(
            ["bash", "-c", line],
            env={**os.environ, "PYTHONPATH": str(HOUSE)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, f"{page}: {command}\n{result.stdout}\n{result.stderr}"
    else:
        known = words[0] in SKIPPED or "/pip" in words[0] or "activate" in command
        assert known, f"{page}: who runs {command!r}? Mark it as not run"


def run_here(arguments: list[str], program: Callable[[], object], command: str) -> None:
    """As the shell would do it, without seconds of imports each time."""
    out, err, code = io.StringIO(), io.StringIO(), None
    threads = torch.get_num_threads()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", arguments)
        try:
            program()
        except SystemExit as end:
            code = end.code
    torch.set_num_threads(threads)
    assert not code, f"{command}\n{out.getvalue()}\n{err.getvalue()}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):(?!=)", (HOUSE / "Makefile").read_text(), re.MULTILINE))


def run_page(page: str, text: str) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(shortened(text)):
        if not block.runs:
            continue
        if block.language == "python":
            run_python(block, page, namespace)
        elif block.language in SHELLS:
            for command in commands(block):
                run_command(command, page)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, but for the scripts that pages call by their path."""
    for name in ("examples", "benchmarks"):
        if (HOUSE / name).exists():
            (tmp_path / name).symlink_to(HOUSE / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(HOUSE).as_posix())
def test_what_a_page_shows_runs(page: Path, checkout: Path) -> None:
    run_page(str(page), page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(HOUSE).as_posix())
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if not re.match(r"\w+:", link)]
    assert not [link for link in local if not (page.parent / link).exists()]


def test_the_notebook_runs(checkout: Path) -> None:
    """Its cells, one after the other."""
    page = "examples/digits.ipynb"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads((HOUSE / page).read_text())["cells"]
    code = [shortened("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
    for number, text in enumerate(code):
        exec(compile(text, f"{page}, cell {number}", "exec"), namespace)
    assert namespace["check"].agreeing == 32
    assert len(code) == sum(bool(cell.get("execution_count")) for cell in cells), "executed"


# The runner itself

EXAMPLE = """
```python
number = 1
```
text
```python
# saved.py
other = 2
```
```bash
python -c "import saved; print(saved.other)" > printed.txt
pip install joslim   # not tried
make test
```
<!-- not run: it is wrong -->

```python
1 / 0
```
```
not a language
```
- in a list:
  ```python
  assert number == 1
  assert open("printed.txt").read() == "2\\n"
  ```
"""


def test_a_page_runs_in_order(checkout: Path) -> None:
    run_page("example.md", EXAMPLE)
    found = list(blocks(EXAMPLE))
    assert [block.language for block in found] == [
        "python",
        "python",
        "bash",
        "python",
        "",
        "python",
    ]
    assert [block.runs for block in found] == [True, True, True, False, True, True]


def test_only_lengths_of_trainings_are_shortened() -> None:
    command = "joslim train --steps 60 --every 4 --save-every 20 --until 80 --out steps 7"
    assert shortened(command) == (
        "joslim train --steps 6 --every 1 --save-every 20 --until 8 --out steps 1"
    )
    assert shortened("steps = 25, total_steps=80") == "steps = 2, total_steps=80"


def test_a_failure_names_page_and_line(checkout: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("example.md", "text\n\n```python\nx = 0\n1 / x\n```\n")
    last = caught.traceback[-1]
    assert str(last.path).endswith("example.md")
    assert last.lineno + 1 == 5


@pytest.mark.parametrize(
    "text",
    [
        "```bash\njoslim nonsense\n```",
        "```bash\npython -c 'raise SystemExit(3)' | cat\n```",
        "```console\n$ python -c 'raise SystemExit(3)'\nits output\n```",
        "```bash\nmake nonsense\n```",
        "```bash\nrm -r nonsense\n```",
    ],
)
def test_commands_that_fail(text: str, checkout: Path) -> None:
    with pytest.raises(AssertionError, match=r"example\.md"):
        run_page("example.md", text)


def test_output_in_a_console_block_is_not_run(checkout: Path) -> None:
    run_page("example.md", "```console\n$ joslim \\\n    --version\njoslim 0.1.0\nrm -r x\n```")

"""`joslim compare`: what is typed, what is shown, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joslim.cli.compare import parse_list, parse_places
from joslim.comparing import Comparison, read
from joslim.errors import Stopped, UserError
from joslim.front import Front, Point
from joslim.results.run_files import FORMAT
from joslim.space import Dim, Knob, WidthSpace

Run = Callable[..., Any]


SPACE = WidthSpace((Dim("stem", 16),), (Knob("stem", (0,), 0.25),))
CHILDREN = [
    Point(SPACE.uniform(share), {"macs": 1e6 * share, "params": 9, "memory": 9}, 2 - share, 50, 40)
    for share in (0.25, 0.5, 1.0)
]
FRONT = Front(CHILDREN, "macs", (0.25e6, 1e6))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """A run folder of a method and a seed, with what a comparison reads of it."""

    def run(name: str, **config: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        values = {"model": "resnet8", "cost": "macs", "steps": 6, "batch": 32, "seed": 0, **config}
        facts = {"joslim": "0", "format": FORMAT, "config": values, "data": {"identity": "digits"}}
        (folder / "config.json").write_text(json.dumps(facts))
        (folder / "front.json").write_text(json.dumps(FRONT.to_json()))
        (folder / "metrics.jsonl").write_text('{"step": 6, "seconds": 20}\n')
        return folder

    return run


@pytest.fixture
def runs(make: Callable[..., Path]) -> list[str]:
    return [
        str(make(f"{method}{seed}", method=method, seed=seed))
        for method in ("slim", "joslim")
        for seed in (0, 1, 2)
    ]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, runs: list[str]) -> dict[str, Any]:
    """What `joslim.compare` is called with, in the place of trainings."""
    arguments: dict[str, Any] = {}

    def compare(**given: Any) -> Comparison:
        arguments.update(given)
        return read(runs)

    monkeypatch.setattr("joslim.comparing.compare", compare)
    return arguments


# Existing runs


def test_a_table_of_runs(joslim: Run, runs: list[str]) -> None:
    result = joslim("compare", *runs)
    assert (result.returncode, result.stderr) == (0, "")
    lines = {line.split("│")[1].strip(): line for line in result.stdout.splitlines() if "│" in line}
    assert "resnet8 by macs: test error, %" in result.stdout
    assert lines["seeds"].split("│")[2:4] == [lines["seeds"].split("│")[2]] * 2
    assert f"{FRONT.area():.2f} ± 0.00" in lines["area under the curve"]
    assert "+0.00" in lines["against slim"]
    # All differences are the same: no test, and no p-value that means nothing.
    assert "none, n = 3" in lines["paired test"]
    assert f"{FRONT.hypervolume():.3f}" in lines["hypervolume"]
    assert "how many ran at once is not known" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json(joslim: Run, runs: list[str]) -> None:
    result = joslim("compare", *runs, "--json", "--at", "0.5,300K", "--against", "joslim")
    record = json.loads(result.stdout)
    expected = read(runs).to_json(against="joslim", shares=[0.5], sizes=[300e3])
    assert record == json.loads(json.dumps(expected))
    assert record["table"][0]["area"] == pytest.approx(FRONT.area())


def test_files_if_a_folder_is_given(joslim: Run, runs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "table"
    assert joslim("compare", *runs, "--out", str(out)).returncode == 0
    assert {path.name for path in out.iterdir()} == {"table.json", "compare.png"}
    again = joslim("compare", *runs, "--out", str(out))
    assert f"(picture: {out / 'compare.png'})" in again.stdout


def test_a_folder_that_cannot_be_written(refused: Run, runs: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = refused("compare", *runs, "--out", str(tmp_path / "file" / "x"))
    assert f"out: cannot write {str(tmp_path / 'file' / 'x')!r}" in line


def test_runs_that_do_not_compare(
    joslim: Run, refused: Run, runs: list[str], make: Callable[..., Path]
) -> None:
    odd = str(make("odd", method="bignas", batch=16))
    line = refused("compare", *runs, odd)
    assert "batch: the runs of resnet8 by macs have different ones (32, 16)" in line
    assert joslim("compare", *runs, odd, "--anyway").returncode == 0


def test_names_are_shown_and_not_obeyed(joslim: Run, make: Callable[..., Path]) -> None:
    run = make("odd", method="[red]x[/red]", model="[bold]m")
    result = joslim("compare", str(run))
    assert "[red]x[/red]" in result.stdout
    assert "[bold]m by macs" in result.stdout


# Trainings


def test_flags_become_lists_and_settings(joslim: Run, called: dict[str, Any]) -> None:
    result = joslim(
        "compare",
        *("--methods", "slim, joslim", "--seeds", "3,1", "--costs", "macs,memory"),
        *("--models", "resnet8,resnet20", "--out", "c", "--at-once", "4", "--steps", "7"),
        *("--engine", "submitit:timeout_min=9", "--at", "0.1,59M", "--sync-norm"),
    )
    assert result.returncode == 0
    called.pop("watch")
    assert {key: value for key, value in called.items() if value is not None} == {
        "methods": ["slim", "joslim"],
        "seeds": [3, 1],
        "costs": ["macs", "memory"],
        "models": ["resnet8", "resnet20"],
        "out": Path("c"),
        "at_once": 4,
        "engine": "submitit:timeout_min=9",
        "shares": [0.1],
        "sizes": [59e6],
        "steps": 7,
        "sync_norm": True,
    }
    assert "folder: c\n" in result.stdout


def test_a_configuration_file(joslim: Run, called: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('method = "slim"\nseeds = [4, 5]\nsteps = 9\nbatch = 3\nmodel = "resnet20"\n')
    assert joslim("compare", "--out", "c", "--config", str(file), "--steps", "5").returncode == 0
    assert (called["methods"], called["seeds"]) == (["slim"], [4, 5])
    assert (called["models"], called["costs"]) == (["resnet20"], None)
    assert (called["steps"], called["batch"]) == (5, 3)
    called.clear()
    joslim("compare", "--out", "c", "--config", str(file), "--epochs", "2", "--seeds", "8")
    assert (called["seeds"], called["epochs"], called.get("steps")) == ([8], 2, None)


def test_failures_are_named_after_the_table(
    joslim: Run, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    entries = list(read(runs).entries)
    entries[3] = replace(entries[3], front=None, failure="no [red]memory", seconds=None)
    comparison = Comparison(entries)
    monkeypatch.setattr("joslim.comparing.compare", lambda **given: comparison)
    result = joslim("compare", "--out", "c")
    assert result.returncode == 1
    assert "2 of 3 *" in result.stdout
    assert "* not all seeds have a front" in result.stdout
    assert "no front: joslim0: no [red]memory" in result.stdout
    again = f"joslim compare --out {entries[3].path.parent} tries them again"
    assert result.stderr == f"joslim: 1 of 6 runs have no front: joslim0; {again}\n"


def test_runs_that_still_train_need_no_other_command(
    joslim: Run, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    why = "still training (step 3 of 60)"
    entries = list(read(runs).entries)
    entries[3] = replace(entries[3], front=None, failure=why, training=True)
    monkeypatch.setattr("joslim.comparing.read", lambda *given: Comparison(entries))
    result = joslim("compare", *runs)
    assert result.returncode == 1
    assert f"no front: joslim0: {why}" in result.stdout
    assert result.stderr == (
        "joslim: 1 of 6 runs are still training: joslim0; wait for their end\n"
    )
    entries[:] = [replace(e, front=None, failure="gone", training=False) for e in entries]
    result = joslim("compare", *runs)
    assert result.stdout.startswith("no front: slim0: gone\n"), "and no table of dashes"
    assert "6 of 6 runs have no front" in result.stderr


def test_a_signal(joslim: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(**given: Any) -> None:
        raise Stopped("stopped with 2 runs to go", 15)

    monkeypatch.setattr("joslim.comparing.compare", stopped)
    result = joslim("compare", "--out", "c")
    assert (result.returncode, result.stderr) == (143, "joslim: stopped with 2 runs to go\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "out: no folder given; type --out comparisons/NAME, or folders of runs"),
        ("--out c --seeds 0,1,1", "seeds: 1 is there twice; type each only once"),
        ("--out c --seeds 0,x", "seeds: 'x' is not a whole number from 0 on; type 0,1,2"),
        ("--out c --seeds -1", "seeds: '-1' is not a whole number"),
        ("--out c --seeds 0,,1", "seeds: '0,,1' has an empty place"),
        ("--out c --methods joslin", "methods: unknown name 'joslin'; allowed: joslim, slim"),
        ("--out c --costs flops", "costs: unknown name 'flops'"),
        ("--out c --at x", "at: 'x' is not a size"),
        ("--out c --at 0", "at: '0' is not a positive finite number"),
        ("--out c --engine ray", "engine: unknown name 'ray'"),
        ("--out c --against x", "against: unknown name 'x'; allowed: slim, bignas, joslim"),
        ("--out c --steps 0", "steps: 0 given; allowed: a whole number, at least 1"),
        ("--out c --model resnet8", "No such option: --model"),
        ("--out c --config a.toml", "config: cannot read"),
        ("nowhere", "run: 'nowhere' does not exist"),
        ("nowhere --steps 3", "steps: folders of runs are given, nothing is trained; leave out --"),
        ("nowhere --seeds 3", "seeds: folders of runs are given, nothing is trained; leave out --"),
        ("nowhere --data-root 3", "leave out --data-root"),
    ],
)
def test_bad_input(
    arguments: str, words: str, refused: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused("compare", *arguments.split())


# What is typed


def test_shares_and_sizes() -> None:
    found = parse_places("0.25, 1,59M,64KB,0.5ms,1K,2")
    assert found == {"shares": [0.25, 1.0], "sizes": [59e6, 64e3, 0.5, 1e3, 2.0]}
    for text in ("", "0.5,", "ms", "-1", "nan"):
        with pytest.raises(UserError, match="at: "):
            parse_places(text)


def test_lists() -> None:
    settings: dict[str, Any] = {"seed": 3, "methods": ["slim"], "steps": 1}
    assert parse_list("seeds", None, settings) == [3]
    assert parse_list("methods", "joslim", settings) == ["joslim"]
    assert parse_list("models", None, settings) is None
    assert settings == {"steps": 1}


def test_help_has_its_own_flags_first(joslim: Run) -> None:
    words = joslim("compare", "--help").stdout
    assert words.index("--methods") < words.index("--out") < words.index("--steps")
    assert "--seed " not in words
    assert "--model " not in words

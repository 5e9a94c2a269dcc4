"""The program itself: help, version, exit codes, and a quick answer."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import joslim as package
from joslim import cli

Run = Callable[..., Any]


def test_help_from_the_shell(shell: Run, tmp_path: Path) -> None:
    result = shell("-m", "joslim", "--help")
    assert result.returncode == 0
    assert "profile" in result.stdout
    assert not result.stderr


def test_summaries_of_commands_are_not_cut(shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shell("-m", "joslim", "--help").stdout.partition("Commands:")[2].split("\n")[1:-1]
    assert len(lines) == len(cli.app.registered_commands)
    assert not [line for line in lines if not line.endswith(".") or "..." in line]


def test_help_does_not_import_torch(shell: Run) -> None:
    result = shell("-X", "importtime", "-m", "joslim", "--help")
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "joslim.cli" in imported
    assert not {name for name in imported if name.split(".")[0] in ("torch", "numpy")}


@pytest.mark.parametrize("module", ["joslim", "joslim.cli", "joslim.runs.config", "joslim.errors"])
def test_these_do_not_import_torch(module: str, shell: Run) -> None:
    check = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert shell("-c", check).returncode == 0


def test_version(shell: Run, joslim: Run) -> None:
    result = joslim("--version")
    assert (result.returncode, result.stdout) == (0, f"joslim {package.__version__}\n")
    assert shell("-m", "joslim", "--version").stdout == result.stdout


def test_without_arguments_it_helps(joslim: Run) -> None:
    result = joslim()
    assert result.returncode == 0
    assert "Usage" in result.stdout
    assert "profile" in result.stdout


@pytest.mark.parametrize("arguments", [("--help",), ("profile", "--help")])
def test_help_of_every_command(arguments: tuple[str, ...], joslim: Run) -> None:
    result = joslim(*arguments)
    assert result.returncode == 0
    assert "Usage" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["profil"], "'profil'"),
        (["--nope"], "--nope"),
        (["profile"], "'model'"),
        (["profile", "resnet8", "--nope"], "--nope"),
        (["profile", "resnet8", "more"], "more"),
        (["profile", "resnet8", "--low"], "--low"),
        (["profile", "resnet8", "--low", "half"], "--low"),
        (["profile", "resnet8", "--input"], "--input"),
        (["profile", "resnet8", "--json=yes"], "--json"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], words: str, refused: Run) -> None:
    message = refused(*arguments)
    assert words in message
    assert "--help" in message


def test_bad_input_from_the_shell(shell: Run) -> None:
    result = shell("-m", "joslim", "profile", "alexnet")
    assert result.returncode == 2
    assert not result.stdout
    assert result.stderr.startswith("joslim: model: unknown name 'alexnet'")
    assert result.stderr.count("\n") == 1


def test_an_interrupt_is_130(joslim: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    assert joslim("profile", "resnet8").returncode == 130


def test_a_fault_of_ours_is_not_dressed_up_as_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**options: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main([])


def test_a_message_of_several_lines_is_joined(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.fail("one\n  two\n\nthree")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "joslim: one two three\n"


def test_escape_sequences_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.fail("a \x1b[31mred name")
    assert capsys.readouterr().err == "joslim: a \\x1b[31mred name\n"


def test_which_process_complains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        cli.fail("no")
    assert capsys.readouterr().err == "joslim, process 1: no\n"


def test_version_exits(joslim: Run) -> None:
    assert joslim("--version", "profile", "alexnet").returncode == 0


def test_warnings_are_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, told = warnings.formatwarning, []

    def warn(**options: Any) -> None:
        told.append(warnings.formatwarning("one image\ndoes not decode", UserWarning, "a.py", 3))

    monkeypatch.setattr(cli, "app", warn)
    with pytest.raises(SystemExit):
        cli.main([])
    assert told == ["joslim: one image does not decode\n"]
    assert warnings.formatwarning is usual


LONG = "x" * 400


@pytest.mark.parametrize(
    "arguments",
    [
        ["latency", LONG],
        ["latency", "resnet8", "-o", LONG],
        ["profile", LONG],
        ["train", "--out", LONG],
        ["train", "--data", f"folder:{LONG}"],
        ["train", "--init", f"{LONG}.safetensors"],
        ["train", "--config", f"{LONG}.json"],
        ["train", "--cost", "latency", "--device-file", LONG],
        ["resume", LONG],
        ["front", LONG],
        ["pick", LONG, "--macs", "1M"],
        ["export", LONG, "-o", "a.pt2"],
        ["report", LONG],
        ["compare", LONG, LONG],
        ["figure", "widths", LONG, "-o", "a.png"],
        ["allocate", LONG, LONG, "--macs", "1M"],
    ],
)
def test_names_that_are_too_long_are_bad_input(
    arguments: list[str], refused: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "xxxxx" in refused(*arguments)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", ["front RUN", "front RUN --json", "--help"])
def test_output_that_cannot_be_written(command: str, shell: Run, finished: package.Run) -> None:
    command = command.replace("RUN", str(finished.path))
    script = f"exec {sys.executable} -m joslim {command} > /dev/full"
    result = shell("-c", f"import os; os.execl('/bin/sh', 'sh', '-c', {script!r})")
    assert result.returncode == 1
    assert (
        result.stderr == "joslim: cannot write to stdout, or to a file: No space left on device\n"
    )


@pytest.mark.parametrize(("pipe", "code"), [("| true", 0), (">&-", 0), ("2> /dev/full", 0)])
def test_nobody_listens(pipe: str, code: int, shell: Run, finished: package.Run) -> None:
    script = f"{sys.executable} -m joslim front {finished.path} --json {pipe}"
    result = shell("-c", f"import os; os.execl('/bin/sh', 'sh', '-c', {script!r})")
    assert (result.returncode, result.stderr) == (code, "")


def test_a_line_that_nobody_can_read_keeps_its_code(shell: Run) -> None:
    script = f"exec {sys.executable} -m joslim front nowhere 2> /dev/full"
    assert shell("-c", f"import os; os.execl('/bin/sh', 'sh', '-c', {script!r})").returncode == 2

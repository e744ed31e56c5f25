"""What `--help` says, and that the terminal's wishes are heard."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_pipeline.cli.__main__ import PARTS, main
from composer_pipeline.cli.common import app


def commands() -> Iterator[tuple[str, ...]]:
    for name in (name for names in PARTS.values() for name in names):
        yield (name,)
        for inner in app[name]:
            if not inner.startswith("-"):
                yield (name, inner)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().out


def test_commands_stand_in_the_order_of_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "--help").splitlines()
    names = [name for part in PARTS.values() for name in part]
    assert set(names) == {name for name in app if not name.startswith("-")}
    first = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] != " "]
    assert [name for name in first if name in names] == names
    titles = [line.split()[1] for line in lines if line.startswith("╭─")]
    assert titles == ["Commands", *PARTS]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_shows_no_default_that_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = said(capsys, *command, "--help")
    for nothing in (
        '[default: ""]',
        "[default: 0]",
        "[default: False]",
        "[default: ()]",
        "--empty",
    ):
        assert nothing not in text
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize(("wish", "value"), [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_terminal_that_wants_no_colours_gets_none(
    whole_lake: Path, wish: str, value: str
) -> None:
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm-256color", **os.environ, "COLUMNS": "70", wish: value}
    env.pop("LINES", None)
    command = [
        sys.executable,
        "-m",
        "composer_pipeline.cli",
        "sessions",
        "--lake",
        str(whole_lake),
    ]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=env):
        os.close(theirs)
        data = b""
        while True:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            data += chunk
    os.close(ours)
    assert b"\x1b[3" not in data  # colours
    if wish == "TERM":
        assert b"\x1b" not in data
    lines = re.sub(r"\x1b\[[0-9;]*m", "", data.decode()).split("\r\n")
    assert max(map(len, lines)) <= 70

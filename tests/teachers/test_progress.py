"""What a person sees of a run: the live table, and typed errors on the command line."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from composer_pipeline.cli.common import LiveReplay
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.report import Snapshot, TeacherProgress
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter

Serve = Callable[..., LoopbackOpenRouter]
SNAPSHOT = Snapshot(
    phase="asking", elapsed_s=12.4, done=3, total=8, cached=1, unknown=2,
    settled_usd=Decimal("0.0123"), reserved_usd=Decimal("0.5"), ceiling_usd=Decimal(1),
    by_teacher={
        "careful": TeacherProgress(3, 8, 1, 2, 4, 9, 51.2, 812.0, 0.42, "probing"),
    },
)  # fmt: skip


def drawn(*, terminal: bool) -> str:
    out = io.StringIO()
    with LiveReplay(Console(file=out, force_terminal=terminal, width=120)) as live:
        live(SNAPSHOT)
    return out.getvalue()


def test_the_table_has_every_figure() -> None:
    text = drawn(terminal=True)
    for part in ("asking", "$0.0123", "$0.5000", "$1.00", "careful (probing)", "3/8", "4/9"):
        assert part in text
    for part in ("51 ms", "812 ms", "42%"):
        assert part in text


def test_without_a_terminal_there_is_a_line_each_ten_seconds() -> None:
    out = io.StringIO()
    with LiveReplay(Console(file=out, force_terminal=False, width=120)) as live:
        for elapsed in (1.0, 9.9, 10.0, 11.0, 19.9, 20.5):
            live(msgspec.structs.replace(SNAPSHOT, elapsed_s=elapsed))
    assert out.getvalue().splitlines() == [SNAPSHOT.line()] * 2


def arguments(lake: Lake, teacher_set: TeacherSet, folder: Path) -> list[str]:
    file = folder / "teachers.yaml"
    file.write_text(teacher_set.model_dump_json())  # JSON is YAML
    command = [sys.executable, "-m", "composer_pipeline.cli", "replay", "--teachers", str(file)]
    return [*command, "--lake", str(lake.root), "--max-usd", "1", "--json"]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_goes_to_standard_error_alone(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path, terminal: bool
) -> None:
    serve()
    inner, outer = pty.openpty()
    done = subprocess.run(
        arguments(lake, teacher_set, tmp_path),
        stdout=subprocess.PIPE,
        stderr=outer if terminal else subprocess.PIPE,
        env={**os.environ, "COLUMNS": "120", "TERM": "xterm"},
        check=True,
    )
    os.close(outer)
    assert done.stdout.count(b"\n") == 1
    if terminal:
        assert b"reserved of" in os.read(inner, 100_000)
    else:
        assert done.stderr == b""
    os.close(inner)


def test_a_stopped_teacher_is_one_sentence_after_the_report(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, tmp_path: Path
) -> None:
    fault = Fault("unavailable", code="model_not_found")
    serve(faults=lambda asked: fault if "steady" in asked.model else None)
    done = subprocess.run(
        arguments(lake, teacher_set, tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert '"replies": 36' in done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert "teacher steady stopped in scope teacher:steady: model_not_found" in line

"""Files are replaced whole, and a disk that is full or read-only is told apart from bad input."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.files import Replacement, replace, replacing
from composer_pipeline.lake.schema import DROPS
from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.samples import sample_sessions_dir
from tests.places import fill

DAY = "2026-11-16"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_whole_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "file"
    replace(file, "old")

    def broken() -> None:
        with replacing(file) as stream:
            stream.write(b"half")
            raise KeyError("the writer fails")

    with pytest.raises(KeyError):
        broken()
    assert file.read_text() == "old"
    replace(file, "grün")
    assert file.read_bytes() == "grün".encode()
    assert list(file.parent.iterdir()) == [file]


def test_a_device_or_a_pipe_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/dev/null` would be gone for the whole machine, where root runs a command."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a device or a pipe, not a file"):
        replace(pipe, "text")
    monkeypatch.setenv("COMPOSER_ENV_FILE", str(pipe))
    with pytest.raises(SystemExit) as ended:
        main(["init", "--yes", "--lake", str(tmp_path / "lake")])
    assert ended.value.code == 2
    assert "is a device or a pipe" in capsys.readouterr().err
    assert pipe.is_fifo()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lake", "pipe"]


def test_nobody_else_may_read_a_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        replace(tmp_path / "new" / "a.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "a.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_two_writers_of_one_file_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    one, two = Replacement(tmp_path / "file"), Replacement(tmp_path / "file")
    one.stream.write(b"one")
    two.stream.write(b"two")
    two.commit()
    one.commit()
    assert (tmp_path / "file").read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_folder_is_synced_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def sync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").resolve())

    monkeypatch.setattr(os, "fsync", sync)
    replace(tmp_path / "file", b"x")
    assert [path.parent for path in synced] == [tmp_path, tmp_path.parent]
    assert synced[-1] == tmp_path


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    writer = Lake(tmp_path).writer("drops", stage="s", day=DAY)
    writer.discard()
    writer.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def _noise(rows: int) -> pa.Table:
    table = DROPS.schema.empty_table()
    columns = [
        pa.array([os.urandom(512).hex() for _ in range(rows)])
        if field.type == pa.string()
        else pa.nulls(rows, field.type)
        for field in table.schema
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _at_once(lake: Lake) -> None:
    lake.write("drops", _noise(1000), stage="s", day=DAY)


def _in_pieces(lake: Lake) -> None:
    writer = lake.writer("drops", stage="s", day=DAY)
    try:
        for _ in range(10):
            writer.write(_noise(100))
        writer.commit()
    finally:
        writer.discard()


@pytest.mark.parametrize("write", [_at_once, _in_pieces])
def test_a_full_disk_leaves_the_old_partition(small_disk: Path, write: Any) -> None:
    lake = Lake(small_disk / "lake")
    lake.write("drops", [], stage="s", day=DAY)
    part = Path(lake.path("drops", stage="s", day=DAY))
    before = part.read_bytes()
    with pytest.raises(StorageError, match=r"lake .* is not writable: No space left on device"):
        write(lake)
    assert part.read_bytes() == before
    assert list(part.parent.iterdir()) == [part]


def test_a_full_disk_ends_a_command_with_1_and_one_sentence(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(small_disk)
    with pytest.raises(SystemExit) as stop:
        main(["ingest", str(sample_sessions_dir()), "--lake", str(small_disk / "lake")])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (1, "", 1)
    assert "No space left on device" in err


def test_a_read_only_lake_ends_a_command_with_1(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(SystemExit) as stop:
        main(["ingest", str(sample_sessions_dir()), "--lake", str(small_disk / "lake")])
    _, err = capsys.readouterr()
    assert stop.value.code == 1
    assert "is not writable: Read-only file system" in err


LIMITED = """
import resource, signal, sys
from pathlib import Path
from composer_pipeline.errors import StorageError
from composer_pipeline.files import replace

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    replace(Path(sys.argv[1]), b"x" * 2000)
except StorageError as error:
    sys.exit(str(error))
"""


def test_a_quota_leaves_the_old_file(tmp_path: Path) -> None:
    """As a full disk, where mounting is not permitted."""
    file = tmp_path / "file"
    replace(file, b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(file)], capture_output=True, text=True, check=False
    )
    assert done.stderr == f"{file} is not writable: File too large\n"
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == b"old"


def test_a_file_in_the_place_of_a_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out .* is not writable: Not a directory"):
        replace(tmp_path / "file" / "below" / "x", b"", "--out x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        replace(tmp_path / "x", b"")

"""What is written is its owner's alone, whatever the umask, unless the user says otherwise."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.files import close_to_others, file_mode, folder_mode, make_folder, too_open
from composer_pipeline.testing.samples import sample_sessions_dir
from tests.places import ROOT


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "composer_pipeline.cli", *command],
        cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("said", "files", "folders"), [("", 0o600, 0o700), ("0640", 0o640, 0o750)])
def test_a_lake_is_as_open_as_was_said(
    umask: int, tmp_path: Path, said: str, files: int, folders: int
) -> None:
    lake = tmp_path / "deep" / "lake"
    sessions = next(sample_sessions_dir().rglob("*.jsonl"))
    for command in (("ingest", str(sessions)), ("budget", "set", "global", "1")):
        done = _run(*command, "--lake", str(lake), COMPOSER_LAKE_MODE=said)
        assert done.returncode == 0, done.stderr
    found = [lake.parent, lake, *lake.rglob("*")]
    assert {path.parts[-1].split(".")[0] for path in found} >= {"archive", "states", "ledger"}
    wrong = {str(p): oct(_mode(p)) for p in found if _mode(p) != (folders if p.is_dir() else files)}
    assert wrong == {}


def test_folders_that_were_there_stay_as_they_are(umask: int, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    make_folder(there / "a" / "b")
    assert [_mode(path) for path in (there, there / "a", there / "a" / "b")] == [
        0o755, 0o700, 0o700,
    ]  # fmt: skip


@pytest.mark.parametrize("said", ["0400", "rw", "1777", "0755", "-1"])
def test_a_mode_that_is_none_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_LAKE_MODE", said)
    with pytest.raises(InputError, match="COMPOSER_LAKE_MODE"):
        file_mode()


def test_folders_are_entered_by_those_who_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_LAKE_MODE", "0664")
    assert folder_mode() == 0o775


def test_doctor_warns_of_an_older_lake_and_closes_it(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (lake / "archive").mkdir(parents=True)
    blob = lake / "archive" / "a.jsonl.zst"
    blob.write_bytes(b"x")
    for path, mode in ((lake, 0o755), (lake / "archive", 0o700), (blob, 0o644)):
        path.chmod(mode)
    assert sorted(too_open(lake)) == [lake, blob]
    warned = _run("doctor", "--lake", str(lake), "--json")
    assert "others may read 2 (lake); doctor --fix ends it" in warned.stdout
    assert [_mode(path) for path in (lake, blob)] == [0o755, 0o644], "looking changes nothing"
    fixed = _run("doctor", "--fix", "--lake", str(lake), "--json")
    assert '"closed": 2' in fixed.stdout
    assert "nothing is more open than 0600" in fixed.stdout
    assert [_mode(path) for path in (lake, blob)] == [0o700, 0o600]
    assert close_to_others(lake) == 0

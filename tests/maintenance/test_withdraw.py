"""Withdrawing: what forget does, and a tombstone that every later stage obeys."""

import json
import shutil
from pathlib import Path

import pytest

from composer_pipeline import ingest
from composer_pipeline.cli.__main__ import main
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.columns import export
from composer_pipeline.exporting.sessions import export_sessions
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import Withdrawn, digest_of, withdrawals
from composer_pipeline.maintenance.forget import withdraw
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest_changes
from tests.fixtures.sessions import Script
from tests.maintenance.test_forget import books, places_of, traces_of


def test_no_byte_is_left_and_nothing_brings_it_back(
    lake: Lake, victim: str, tmp_path: Path
) -> None:
    for form, out in (("dpo", "dpo.parquet"), ("sharegpt", "sharegpt.jsonl")):
        export(lake, form, tmp_path / "exports" / out)
    for form in ("atif", "pi"):
        export_sessions(lake, form, tmp_path / "exports" / form)
    needles = traces_of(lake, victim)
    found = {name.split("/")[0] for name in places_of(tmp_path / "exports", *needles)}
    assert found == {"dpo.parquet", "sharegpt.jsonl", "atif", "pi"}
    report = withdraw(lake, session=victim[:13], ledger=books(lake))
    assert report.sessions == [victim]
    assert report.forgotten is not None
    assert report.forgotten.replies > 0
    assert report.next[-1].startswith("composer-pipeline publish --repo")
    assert places_of(tmp_path, *needles) == set()
    assert verify(lake, ledger=books(lake)).problems == []

    (tombstone,) = withdrawals(lake)
    assert (tombstone.kind, tombstone.at) == ("session", report.at)
    assert digest_of(victim) in tombstone.sessions
    assert victim not in Path(lake.root, "withdrawn.json").read_text()

    assert ingest_changes(lake, [sample_sessions_dir()])["forgotten_files"] >= 1
    (Path(lake.root) / "forgotten.json").unlink()  # the tombstone alone is enough
    assert ingest(lake, [sample_sessions_dir()]).totals["forgotten_files"] >= 1
    assert places_of(tmp_path, *needles) == set()


def test_a_dry_run_changes_nothing(lake: Lake, victim: str) -> None:
    before = {p: p.read_bytes() for p in Path(lake.root).rglob("*") if p.is_file()}
    report = withdraw(lake, session=victim, dry_run=True)
    assert (report.dry_run, report.sessions, report.tombstones) == (True, [victim], 0)
    assert {p: p.read_bytes() for p in Path(lake.root).rglob("*") if p.is_file()} == before


def test_rows_that_come_back_another_way_are_in_no_table(
    whole_lake: Path, lake: Lake, victim: str
) -> None:
    """From a backup of the lake, for one: the tombstone is there, and so is the session."""
    withdraw(lake, session=victim)
    back = Lake(shutil.copytree(whole_lake, Path(lake.root).parent / "restored"))
    shutil.copy(Path(lake.root) / "withdrawn.json", Path(back.root) / "withdrawn.json")
    report = build_dataset(back)
    assert report.drops["withdrawn"] > 0
    held = {row["session_id"] for table in CONFIGS.values() for row in back.rows(table)}
    assert victim not in held
    assert len(held) > 1
    (problem,) = [text for text in verify(back).problems if "withdrawn" in text]
    assert f"composer-pipeline withdraw --session {victim}" in problem


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    for name, cwd in (("s1", "/home/mira/shop"), ("s2", "/home/mira/shop/api"), ("s3", "/srv/x")):
        script = Script(name, cwd=cwd)
        script.user(f"a question of {name}")
        script.say(f"m-{name}", f"an answer of {name}")
        script.write(tmp_path / "sessions")
    return tmp_path / "sessions"


def test_a_repository_takes_its_later_sessions_with_it(sessions: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    (sessions / "s2.jsonl").rename(tmp_path / "later.jsonl")
    ingest(lake, [sessions])
    report = withdraw(lake, repository="shop")
    assert report.sessions == ["s1"]
    (tmp_path / "later.jsonl").rename(sessions / "s2.jsonl")
    assert ingest(lake, [sessions]).totals["forgotten_files"] == 2
    assert {row["session_id"] for row in lake.rows("sessions")} == {"s3"}
    assert "shop" not in Path(lake.root, "withdrawn.json").read_text()
    gone = Withdrawn(lake)
    assert gone.folder("/home/user/shop/deeper")
    assert not gone.folder("/home/user/shopping")
    assert not gone.folder("/home/user")


def test_a_text_takes_every_session_that_holds_it(sessions: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(lake, [sessions])
    assert withdraw(lake, text="answer of s3").sessions == ["s3"]
    assert withdrawals(lake)[0].digest == digest_of("answer of s3")
    assert {row["session_id"] for row in lake.rows("sessions")} == {"s1", "s2"}


def test_a_session_that_the_lake_no_longer_has(sessions: Path, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    ingest(lake, [sessions])
    gone = "4665de3c-0b1c-4a52-9c37-8d7a4a35a001"
    report = withdraw(lake, session=gone)
    assert (report.sessions, report.forgotten, report.tombstones) == ([gone], None, 1)
    with pytest.raises(InputError, match="has no session 'nobody'"):
        withdraw(lake, session="nobody")
    assert len(withdrawals(lake)) == 1


def test_a_kill_is_finished_by_the_next_one(
    lake: Lake, victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needles = traces_of(lake, victim)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for again in ({"session": victim}, {}):
        kept = Lake(shutil.copytree(lake.root, tmp_path / f"copy{len(again)}"))
        with monkeypatch.context() as patch:
            patch.setattr("composer_pipeline.maintenance.forget.from_tables", killed)
            with pytest.raises(KeyboardInterrupt):
                withdraw(kept, session=victim, ledger=books(kept))
        assert Withdrawn(kept).session(victim), "the tombstone was first"
        withdraw(kept, **again, ledger=books(kept))  # type: ignore[arg-type]
        assert places_of(Path(kept.root), *needles) == set()


def test_what_is_refused_leaves_no_tombstone(
    lake: Lake, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_pipeline.teachers.ledger.ledger import Ledger

    def busy(*_: object) -> int:
        raise InputError("calls are in flight")

    monkeypatch.setattr(Ledger, "erase", busy)
    with pytest.raises(InputError, match="in flight"):
        withdraw(lake, session=victim, ledger=books(lake))
    assert withdrawals(lake) == []
    with pytest.raises(InputError, match="name what to withdraw"):
        withdraw(lake)
    with pytest.raises(InputError, match="name one of"):
        withdraw(lake, session=victim, text="abc")
    Path(lake.root, "withdrawn.json").write_text("{")
    with pytest.raises(InputError, match=r"withdrawn\.json is damaged"):
        ingest(lake, [sample_sessions_dir()])


def test_the_command(lake: Lake, victim: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*options: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["withdraw", "--lake", lake.root, "--json", *options])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    code, out, _ = run("--session", victim[:12], "--dry-run")
    assert (code, json.loads(out)["dry_run"]) == (0, True)
    code, out, _ = run("--session", victim[:12])
    assert (code, json.loads(out)["sessions"]) == (0, [victim])
    assert json.loads(out)["next"] == [
        "composer-pipeline dataset",
        "composer-pipeline publish --repo OWNER/NAME",
    ]
    code, _, err = run()
    assert code == 2
    assert "name what to withdraw" in err

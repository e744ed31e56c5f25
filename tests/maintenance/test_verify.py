"""What `verify` finds: each kind of damage by its name, and nothing in a lake that is whole."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import zstandard

from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import reparse
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.teachers.ledger.ledger import Ledger
from tests.fixtures.whole_lake import DAY


def problems(lake: Lake) -> list[str]:
    return verify(lake, ledger=Path(lake.root) / "ledger.db").problems


def books(lake: Lake, sql: str) -> None:
    with closing(sqlite3.connect(Path(lake.root) / "ledger.db")) as db:
        db.execute(sql)
        db.commit()


LATER = {
    "hints", "votes", "pairs", "drops", "normalized_pairs", "near_duplicates",
    *(name for name in TABLES if name.startswith("dataset_")),
}  # fmt: skip


def blob(lake: Lake) -> Path:
    return sorted(Path(lake.root, "archive").rglob("*.zst"))[0]


def test_a_whole_lake_has_no_problem(lake: Lake) -> None:
    report = verify(lake, ledger=Path(lake.root) / "ledger.db")
    assert report.problems == []
    assert (report.days, report.archived, report.unnamed) == (4, 17, 0)
    assert report.replies == 156


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def other_bytes(path: Path) -> None:
    path.write_bytes(zstandard.compress(b"{}\n"))


def shifted(lake: Lake) -> None:
    rows = lake.rows("chains", days=[DAY])
    lake.write("chains", [_row(row) | {"messages": row["messages"][::-1]} for row in rows], day=DAY)


def other_rules(lake: Lake) -> None:
    rows = lake.rows("sessions", days=[DAY])
    lake.write("sessions", [_row(row) | {"redaction_version": 1} for row in rows], day=DAY)


def fewer_sessions(lake: Lake) -> None:
    lake.write("sessions", [_row(row) for row in lake.rows("sessions", days=[DAY])[1:]], day=DAY)


def fewer_replies(lake: Lake) -> None:
    rows = lake.rows("replies", teacher="steady", days=[DAY])
    lake.write("replies", [_row(row) for row in rows[2:]], day=DAY, teacher="steady")


def _row(row: dict) -> dict:
    return {name: value for name, value in row.items() if name not in ("day", "teacher")}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lake: flip(blob(lake)), "archive/"),
        (lambda lake: blob(lake).unlink(), "are missing"),
        (lambda lake: other_bytes(blob(lake)), "are not those that their name is the hash of"),
        (lambda lake: flip(Path(lake.path("messages", day=DAY))), f"reparse --day {DAY}"),
        (shifted, "chains do not fit their messages"),
        (other_rules, "was redacted by other rules"),
        (fewer_sessions, "was not parsed from what is archived"),
        (fewer_replies, "2 are in ledger"),
        (lambda lake: books(lake, "DELETE FROM reply WHERE rowid = 1"), "does not know 1 of them"),
        (lambda lake: books(lake, "UPDATE reply SET cost = 1 WHERE rowid = 1"), "1 cost something"),
        (
            lambda lake: books(lake, "UPDATE scope SET spent = spent + 1 WHERE name = 'global'"),
            "the sums of global are not those of its attempts",
        ),
    ],
)
def test_damage_is_named(lake: Lake, damage: Callable[[Lake], None], said: str) -> None:
    damage(lake)
    found = problems(lake)
    assert any(said in problem for problem in found), found


def test_an_unnamed_piece_is_counted_and_no_problem(lake: Lake) -> None:
    lake.put_bytes("archive/ab/" + "ab" * 32 + ".jsonl.zst", b"")
    report = verify(lake)
    assert (report.problems, report.unnamed) == ([], 1)


def test_a_day_whose_archive_is_damaged_does_not_stop_the_others(lake: Lake) -> None:
    first = sorted(lake.rows("raw_files"), key=lambda row: row["day"])[0]
    name = f"archive/{first['sha256'][:2]}/{first['sha256']}.jsonl.zst"
    lake.put_bytes(name, lake.get_bytes(name)[:-9])
    report = reparse(lake)
    assert list(report.failed) == [first["day"]]
    assert "bytes are missing" in report.failed[first["day"]]
    assert len(report.days) == 3


@pytest.mark.parametrize("books_are", ["whole", "without a reply", "gone"])
def test_new_rules_reach_traces_and_replies(
    books_are: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Path(lake.root) / "ledger.db"
    if books_are == "without a reply":
        Path(ledger).unlink()
        with Ledger(ledger):
            pass
    elif books_are == "gone":
        ledger.unlink()
    assert said(lake, "tidepage") == (True, True)
    rules = tmp_path / "redaction.yaml"
    rules.write_text("patterns: [{kind: ACME_NAME, pattern: tidepage, literal: tidepage}]\n")
    monkeypatch.setenv("COMPOSER_REDACTION", str(rules))
    assert any("redacted by other rules" in problem for problem in problems(lake))
    before = lake.rows("replies", days=[DAY])
    report = reparse(lake, ledger=None if books_are == "gone" else ledger)
    assert report.replies == len(before) == 156
    assert said(lake, "tidepage") == (False, False)
    if books_are == "whole":  # what was made of them has to be made again
        *places, remedy = problems(lake)
        assert "reparse, then pairs, normalize and dataset" in remedy
        assert {place.partition("/")[0] for place in places} <= LATER
    for name in ("state_id", "status", "control", "cost_picodollars", "created_at"):
        assert [row[name] for row in lake.rows("replies", days=[DAY])] == [r[name] for r in before]


def said(lake: Lake, word: str) -> tuple[bool, bool]:
    """Whether a word stands in the messages, and in the replies."""
    replies = b"".join(zstandard.decompress(row["raw"]) for row in lake.rows("replies"))
    return (
        any(word in row["json"] for row in lake.rows("messages")),
        word.encode() in replies or any(word in (r["action"] or "") for r in lake.rows("replies")),
    )

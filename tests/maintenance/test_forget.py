"""Forgetting: not one byte is left, nothing else is touched, and a kill is no way out."""

import importlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from composer_pipeline import ingest
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.columns import export
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import forget, forms_of, holds
from composer_pipeline.maintenance.verify import verify
from composer_pipeline.money import Pico
from composer_pipeline.normalization.stage import write_columns
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.testing.samples import sample_sessions_dir
from tests.fixtures.sessions import Script
from tests.fixtures.whole_lake import DAY

SECRET = 'the "crème\n brûlée" recipe'


def books(lake: Lake) -> Path:
    return Path(lake.root) / "ledger.db"


def every_byte(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file as it is, and what is packed in it."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name, data = str(path.relative_to(folder)), path.read_bytes()
        yield name, data
        if data[:4] == b"PAR1":
            rows = pq.read_table(path).to_pylist()
            yield name, repr(rows).encode()
            for row in rows:
                if row.get("raw"):
                    yield name, zstandard.decompress(row["raw"])
        elif path.suffix == ".zst":
            yield name, zstandard.ZstdDecompressor().decompressobj().decompress(data)
        elif path.suffix == ".db":
            with closing(sqlite3.connect(path)) as db:
                yield name, "\n".join(db.iterdump()).encode()
                for table, column in (("reply", "body"), ("attempt", "raw")):
                    for (packed,) in db.execute(f"SELECT {column} FROM {table}"):
                        yield name, zstandard.decompress(packed) if packed else b""


def places_of(folder: Path, *needles: bytes) -> set[str]:
    return {name for name, data in every_byte(folder) if any(n in data for n in needles)}


def traces_of(lake: Lake, session: str) -> list[bytes]:
    """What only this session has: its id, the ids of its states, and what was packed about it."""
    found = [session.encode()]
    for row in lake.rows("states", columns=["state_id", "session_id", "message_id"]):
        if row["session_id"] == session:
            found += [row["state_id"].encode(), row["message_id"].encode()]
    with closing(sqlite3.connect(books(lake))) as db:
        sql = "SELECT body FROM reply JOIN call ON call.key = reply.key WHERE session_id = ?"
        found += [body for (body,) in db.execute(sql, [session])]
    return found


def spent(lake: Lake) -> list[Any]:
    with Ledger(books(lake)) as ledger:
        assert ledger.sums_that_differ() == []
        return [(name, held.spent, held.unknown) for name, held in ledger.status().items()]


def test_no_byte_is_left_and_the_rest_is_whole(lake: Lake, victim: str, tmp_path: Path) -> None:
    out = tmp_path / "exports"
    export(lake, "dpo", out / "dpo.parquet")
    export(lake, "sft", out / "sft")
    write_columns(lake, out / "columns.jsonl")
    (Path(lake.root) / f".part.parquet.{'0' * 32}.tmp").write_text(victim)
    killed_build = Path(lake.root) / ".dataset-build"
    killed_build.mkdir()
    (killed_build / "00000000.arrow").write_text(victim)
    needles = traces_of(lake, victim)
    before = places_of(tmp_path, *needles)
    assert {"lake/ledger.db", "exports/dpo.parquet"} <= before
    assert any(name.startswith("lake/archive/") for name in before)
    others = {row["session_id"] for row in lake.rows("states")} - {victim}
    paid = spent(lake)
    said = forget(lake, session=victim[:13], ledger=books(lake), dry_run=True)
    report = forget(lake, session=victim[:13], ledger=books(lake))
    assert said == replace(report, dry_run=True)
    assert (report.sessions, report.repeating) == ([victim], [])
    assert report.archived_files
    assert report.pairs
    assert report.replies
    assert len(report.exports) >= 2
    assert places_of(tmp_path, *needles) == set()
    assert {row["session_id"] for row in lake.rows("states")} == others
    assert spent(lake) == paid  # money that was spent stays spent
    assert verify(lake, ledger=books(lake)).problems == []


def test_an_ingest_does_not_bring_it_back(lake: Lake, victim: str) -> None:
    forget(lake, session=victim, ledger=books(lake))
    report = ingest(lake, [sample_sessions_dir()])
    assert report.totals["forgotten_files"] >= 1
    assert places_of(Path(lake.root), victim.encode()) == set()


def test_a_dry_run_changes_nothing(lake: Lake, victim: str) -> None:
    before = dict(every_byte(Path(lake.root)))
    report = forget(lake, session=victim, dry_run=True, ledger=books(lake))
    assert report.dry_run
    assert report.sessions == [victim]
    now = dict(every_byte(Path(lake.root)))
    assert {n: d for n, d in now.items() if "ledger" not in n} == {
        n: d for n, d in before.items() if "ledger" not in n
    }


KILLS = [
    ("composer_pipeline.teachers.ledger.sqlite.SqliteStore", "compact", False),
    ("composer_pipeline.maintenance.forget", "from_archive", False),
    ("composer_pipeline.maintenance.forget", "forget_files", False),
    ("composer_pipeline.maintenance.forget", "parse_days", False),
    ("composer_pipeline.maintenance.forget", "from_tables", True),
    ("composer_pipeline.maintenance.forget", "from_exports", False),
]


@pytest.mark.parametrize(("where", "step", "after"), KILLS)
def test_a_kill_is_finished_by_the_next_one(
    lake: Lake,
    victim: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    step: str,
    after: bool,
) -> None:
    export(lake, "dpo", tmp_path / "dpo.parquet")
    needles = traces_of(lake, victim)
    with monkeypatch.context() as patch:
        holder = _holder(where)
        patch.setattr(holder, step, _killing(getattr(holder, step), after))
        with pytest.raises(KeyboardInterrupt):
            forget(lake, session=victim, ledger=books(lake))
    report = forget(lake, ledger=books(lake))
    assert report.sessions == [victim]
    assert places_of(tmp_path, *needles) == set()
    assert verify(lake, ledger=books(lake)).problems == []
    with pytest.raises(InputError, match="name what to forget"):
        forget(lake, ledger=books(lake))


def _holder(where: str) -> Any:
    """The module, whose name may be a function's too, or the class."""
    module, _, name = where.rpartition(".")
    if name[0].isupper():
        return getattr(importlib.import_module(module), name)
    return importlib.import_module(where)


def _killing(real: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def step(*args: Any, **named: Any) -> Any:
        if after:
            real(*args, **named)
        raise KeyboardInterrupt

    return step


@pytest.fixture
def written(tmp_path: Path) -> Lake:
    """Two projects; a session, its subagent and its fork hold the text, another quotes it."""
    folder = tmp_path / "sessions"
    first = Script("s1")
    first.user(f"bake {SECRET} now")
    first.say("m1", "a shared answer")
    first.write(folder)
    fork = Script("s2")
    fork.user(f"bake {SECRET} now")
    fork.say("m1", "a shared answer")
    fork.say("m2", "more of the fork")
    fork.write(folder)
    quoting = Script("s3")
    quoting.user("what did the log say?")
    quoting.call("m3", "t1", "Bash", command="cat log")
    quoting.result("t1", json.dumps({"line": json.dumps(SECRET)}))
    quoting.write(folder)
    other = Script("s4", cwd="/home/user/other")
    other.user("a question of another project")
    other.say("m4", "its answer")
    other.write(folder)
    lake = Lake(tmp_path / "own")
    ingest(lake, [folder])
    return lake


def test_text_is_found_in_every_spelling(written: Lake) -> None:
    report = forget(written, text=SECRET)
    assert report.sessions == ["s1", "s2", "s3"]
    assert places_of(Path(written.root), *forms_of(SECRET)) == set()
    assert {row["session_id"] for row in written.rows("states")} == {"s4"}


def test_a_fork_is_forgotten_with_what_it_repeats(written: Lake) -> None:
    report = forget(written, session="s1")
    assert (report.sessions, report.repeating) == (["s1", "s2"], ["s2"])
    assert {row["session_id"] for row in written.rows("sessions")} == {"s3", "s4"}


def test_a_session_of_another_day_that_holds_a_response_is_forgotten_too(tmp_path: Path) -> None:
    for name, day in (("s1", "2026-11-16"), ("s2", "2026-11-18"), ("s3", "2026-11-18")):
        made = Script(name, day)
        made.user("go")
        made.say("m3" if name == "s3" else "m1", "ok")
        made.write(tmp_path)
    lake = Lake(tmp_path / "lake")
    ingest(lake, [tmp_path])
    assert forget(lake, session="s1").sessions == ["s1", "s2"]


def test_a_project_by_its_last_folder(written: Lake) -> None:
    assert forget(written, project="oth*", dry_run=True).sessions == ["s4"]
    assert forget(written, project="/*/other").sessions == ["s4"]
    assert "s4" not in {row["session_id"] for row in written.rows("sessions")}


def test_the_last_session_of_a_day_takes_the_day(written: Lake) -> None:
    forget(written, project="*")
    for table in ("raw_files", "sessions", "messages", "chains", "states"):
        assert written.days(table) == []
    assert not list(Path(written.root, "archive").rglob("*.zst"))


def test_a_piece_that_another_session_has_too_stays(written: Lake, tmp_path: Path) -> None:
    """The same bytes under another name: the archive holds them once."""
    rows = {row["session_id"]: row for row in written.rows("raw_files")}
    kept = rows["s4"]["sha256"]
    names = ("path", "sha256", "size", "mtime_ns", "agent_id", "parent_path", "offset", "pieces")
    day = rows["s4"]["day"]
    table = [{n: row[n] for n in (*names, "session_id")} for row in rows.values()]
    table.append({**{n: rows["s4"][n] for n in names}, "session_id": "s9", "path": "again.jsonl"})
    written.write("raw_files", table, day=day)
    assert forget(written, session="s3").sessions == ["s3"]
    assert written.exists(f"archive/{kept[:2]}/{kept}.jsonl.zst")


def test_a_piece_that_no_manifest_names_goes_too(written: Lake) -> None:
    record = b'{"type":"user","sessionId":"s3","message":{"content":"x"}}\n'
    written.put_bytes("archive/ab/" + "ab" * 32 + ".jsonl.zst", zstandard.compress(record))
    forget(written, session="s3")
    assert not written.exists("archive/ab/" + "ab" * 32 + ".jsonl.zst")


def test_calls_in_flight_stop_it_before_it_begins(lake: Lake, victim: str) -> None:
    with Ledger(books(lake)) as ledger:
        call = Call("s", "careful", victim, DAY, {})
        ledger.do(operations.reserve("k", Pico(9), ["global"], call))
        with pytest.raises(InputError, match="calls about them in flight"):
            forget(lake, session=victim, ledger=books(lake))
    assert victim in {row["session_id"] for row in lake.rows("sessions")}
    with pytest.raises(InputError, match="name what to forget"):
        forget(lake, ledger=books(lake))


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"a": SECRET}),
        json.dumps({"a": SECRET}, ensure_ascii=False),
        json.dumps({"a": json.dumps({"b": SECRET})}),
        json.dumps({"a": json.dumps({"b": SECRET}, ensure_ascii=False)}, ensure_ascii=False),
        json.dumps({"a": SECRET}).replace("t", "\\u0074"),
    ],
)
def test_spellings(line: str) -> None:
    assert holds(line.encode(), SECRET, forms_of(SECRET))
    assert not holds(line.encode(), "another text", forms_of("another text"))


def test_a_fork_of_another_day_is_forgotten_too(tmp_path: Path) -> None:
    """A Codex fork is a file of its own that names the session whose lines it goes on from."""

    def rollout(name: str, day: str, **meta: str) -> None:
        said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": day}]}
        answer = {**said, "role": "assistant", "content": [{"type": "output_text", "text": name}]}
        lines = [
            {"type": "session_meta", "payload": {"id": name, "cwd": "/x", **meta}},
            {"type": "response_item", "payload": said},
            {"type": "response_item", "payload": answer},
        ]
        texts = [json.dumps({"timestamp": f"{day}T08:00:00Z", **line}) for line in lines]
        (tmp_path / f"rollout-{name}.jsonl").write_text("\n".join(texts) + "\n")

    rollout("0199aaaa", "2026-11-16")
    rollout("0199bbbb", "2026-11-18", forked_from_id="0199aaaa")
    rollout("0199cccc-0199aaaa", "2026-11-18")  # ends like it, and is another
    lake = Lake(tmp_path / "lake")
    ingest(lake, [tmp_path])
    report = forget(lake, session="0199aaaa")
    assert (report.sessions, report.repeating) == (["0199aaaa", "0199bbbb"], ["0199bbbb"])
    assert {row["session_id"] for row in lake.rows("sessions")} == {"0199cccc-0199aaaa"}

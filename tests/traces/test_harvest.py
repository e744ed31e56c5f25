"""Harvest and parse: nothing shrinks, days stay, bad input leaves the lake as it was."""

import gzip
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_state, load_states
from composer_pipeline.traces import discover
from composer_pipeline.traces.archive import (
    blob_name,
    days_changed,
    harvest,
    make_plan,
    read_blob,
    session_days,
)
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import is_current, parse_days


def talk(script: Any, session: str = "s1", day: str = "2026-11-16", turns: int = 2) -> Any:
    s = script(session, day)
    s.user(f"task of {session}")
    for turn in range(turns):
        s.say(f"{session}-m{turn}", f"answer {turn}")
        s.user(f"more {turn}")
    return s


def ids(lake: Lake) -> set[str]:
    return {state.state_id for state in load_states(lake)}


def test_archive_holds_the_raw_bytes(lake: Lake, projects: Path, script: Any) -> None:
    s = talk(script)
    s.write(projects)
    report = harvest(lake, [projects])
    row = lake.rows("raw_files")[0]
    assert read_blob(lake, row["sha256"]) == s.data
    assert lake.exists(blob_name(row["sha256"]))
    assert ([file.day for file in report.files], report.new_files) == (["2026-11-16"], 1)
    assert report.day("2026-11-16")["files"] == 1
    assert lake.days("states") == []


def test_again_writes_nothing_and_the_same(
    lake: Lake, projects: Path, script: Any, files_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(script).write(projects)
    talk(script, "s2", "2026-11-17").write(projects)
    first = ingest(lake, [projects])
    before = files_of(Path(lake.root))
    monkeypatch.setattr(Lake, "put_bytes", lambda *_: pytest.fail("wrote"))
    again = ingest(lake, [projects])
    assert files_of(Path(lake.root)) == before
    assert (again.totals, again.by_file) == (first.totals, first.by_file)
    assert again.harvest.bytes_archived == 0
    assert days_changed(lake, [projects]) == []


def test_parsing_again_gives_the_same_bytes(
    lake: Lake, projects: Path, script: Any, files_of: Any
) -> None:
    talk(script).write(projects)
    ingest(lake, [projects])
    before = files_of(Path(lake.root))
    parse_days(lake)
    assert files_of(Path(lake.root)) == before


def test_a_grown_file_keeps_its_day_its_states_and_its_ids(
    lake: Lake, projects: Path, script: Any
) -> None:
    s = talk(script)
    s.write(projects)
    ingest(lake, [projects])
    before = ids(lake)
    s.day = "2026-11-20"
    s.say("late", "days later")
    s.write(projects)
    assert days_changed(lake, [projects]) == ["2026-11-16"]
    ingest(lake, [projects])
    assert lake.days("states") == ["2026-11-16"]
    assert before < ids(lake)
    assert len(lake.rows("raw_files")) == 1


def test_shorter_or_deleted_files_take_nothing_away(
    lake: Lake, projects: Path, script: Any
) -> None:
    s = talk(script)
    path = s.write(projects)
    talk(script, "s2").write(projects)
    ingest(lake, [projects])
    before = ids(lake)
    path.write_bytes(s.data[: len(s.data) // 2])
    ingest(lake, [projects])
    assert ids(lake) == before
    path.unlink()
    ingest(lake, [projects])
    assert ids(lake) == before
    assert len(lake.rows("raw_files")) == 2


def test_a_rewritten_file_is_kept_beside_the_old_one(
    lake: Lake, projects: Path, script: Any
) -> None:
    talk(script).write(projects)
    ingest(lake, [projects])
    before = ids(lake)
    other = script("s1")
    other.user("task of s1, reworded")
    other.say("new", "x")
    for length in (1, 400):
        other.say("new", "y" * length)
        other.write(projects)
        ingest(lake, [projects])
        assert before < ids(lake)
    settled = {row["path"]: row["sha256"] for row in lake.rows("raw_files")}
    ingest(lake, [projects])
    assert {row["path"]: row["sha256"] for row in lake.rows("raw_files")} == settled


def test_files_of_one_session_share_the_earliest_known_day(
    lake: Lake, projects: Path, script: Any
) -> None:
    main = talk(script, "s1", "2026-11-17")
    sub = script("s1", "2026-11-18")
    sub.user("find it", isSidechain=True, agentId="a1")
    sub.say("sub-m", "found", isSidechain=True, agentId="a1")
    main.write(projects, "p/s1.jsonl")
    sub.write(projects, "p/s1/subagents/agent-a1.jsonl")
    compaction = script("s1", "2026-11-18")
    compaction.say("acompact-m", "summary", isSidechain=True, agentId="acompact-1")
    compaction.write(projects, "p/s1/subagents/agent-acompact-1.jsonl")
    assert session_days([projects]) == {"2026-11-17"}
    report = ingest(lake, [projects])
    assert lake.days("raw_files") == ["2026-11-17"]
    assert report.by_file["p/s1.jsonl"]["subagent_responses"] == 2
    states = {s.message_id: s for s in load_states(lake)}
    assert states["sub-m"].agent_id == "a1"
    assert [m["content"][0]["text"] for m in states["sub-m"].messages] == ["find it"]
    assert "acompact-m" not in states
    assert len({row["group_id"] for row in lake.rows("sessions")}) == 1
    earlier = talk(script, "s1", "2026-11-10")
    earlier.write(projects, "q/s1.jsonl")
    ingest(lake, [projects])
    assert lake.days("states") == ["2026-11-17"]


@pytest.mark.parametrize("folder", ["a", "c"])
def test_copies_of_a_state_are_kept_once_from_the_longest_history(
    lake: Lake, projects: Path, script: Any, folder: str
) -> None:
    long = talk(script, "s1", turns=3)
    long.write(projects, f"{folder}/s1.jsonl")
    short = script("s1")
    short.lines = long.lines[2:]
    short.write(projects, "b/s1.jsonl")
    report = ingest(lake, [projects])
    assert report.totals["states"] == 5
    assert report.totals["distinct_states"] == 3
    states = list(load_states(lake))
    assert len(states) == len(ids(lake)) == 3
    assert [state.n_messages for state in states] == [1, 3, 5]
    assert {state.repaired for state in states} == {False}


def test_a_group_joins_forks_and_ignores_unrelated_data(
    lake: Lake, projects: Path, script: Any
) -> None:
    talk(script).write(projects)
    ingest(lake, [projects])
    before = lake.rows("sessions")[0]["group_id"]
    fork = talk(script, "s9")
    fork.lines = [line.replace("task of s9", "Task  of S1") for line in fork.lines]
    fork.write(projects)
    talk(script, "s3").write(projects)
    ingest(lake, [projects])
    groups = {row["session_id"]: row["group_id"] for row in lake.rows("sessions")}
    assert groups["s1"] == groups["s9"] == before != groups["s3"]


def test_same_relative_path_below_two_folders_loses_nothing(
    lake: Lake, tmp_path: Path, script: Any
) -> None:
    for folder, session, day in (("a", "s1", "2026-11-16"), ("b", "s2", "2026-11-17")):
        talk(script, session, day).write(tmp_path / folder, "x.jsonl")
    for _ in range(2):
        report = ingest(lake, [tmp_path / "a", tmp_path / "b"])
        assert len(ids(lake)) == report.totals["states"] == 4
    assert len(report.by_file) == 2
    assert days_changed(lake, [tmp_path / "a", tmp_path / "b"]) == []


def test_only_the_asked_days_are_harvested(lake: Lake, projects: Path, script: Any) -> None:
    talk(script, "s1", "2026-11-16").write(projects)
    talk(script, "s2", "2026-11-17").write(projects)
    report = harvest(lake, [projects], days={"2026-11-17"})
    assert list(report.by_day) == lake.days("raw_files") == ["2026-11-17"]
    assert days_changed(lake, [projects]) == ["2026-11-16"]


def test_a_killed_parse_is_repeated(
    lake: Lake, projects: Path, script: Any, monkeypatch: pytest.MonkeyPatch, files_of: Any
) -> None:
    s = talk(script)
    s.write(projects)
    ingest(lake, [projects])
    s.say("late", "x")
    s.write(projects)
    write = Lake.write

    def killed(self: Lake, table: str, data: Any, **keys: str) -> int:
        if table == "states":
            raise KeyboardInterrupt
        return write(self, table, data, **keys)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(lake, [projects])
    assert not is_current(lake, "2026-11-16")
    ingest(lake, [projects])
    assert "late" in {state.message_id for state in load_states(lake)}
    assert is_current(lake, "2026-11-16")
    monkeypatch.setattr("composer_pipeline.traces.parse.PARSER_VERSION", "next")
    assert not is_current(lake, "2026-11-16")


def test_a_half_written_day_is_refused_by_the_loader(
    lake: Lake, projects: Path, script: Any
) -> None:
    talk(script).write(projects)
    ingest(lake, [projects])
    lake.write("messages", [], day="2026-11-16")
    with pytest.raises(InputError, match="2026-11-16 is only partly written"):
        list(load_states(lake))


def test_unreadable_files_in_a_folder_are_counted(lake: Lake, projects: Path, script: Any) -> None:
    talk(script).write(projects)
    (projects / "junk.jsonl").write_text("not json\n")
    (projects / "empty.jsonl").write_text("")
    (projects / "history.jsonl").write_text('{"display": "x", "type": "user"}\n')
    report = ingest(lake, [projects])
    assert (report.totals["files"], report.totals["unreadable_files"]) == (1, 2)
    assert set(report.harvest.unreadable) == {"junk.jsonl", "empty.jsonl"}
    assert "holds no session of a known agent" in report.totals["unreadable"]["junk.jsonl"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_truncated_file_does_not_end_the_ingest_of_the_others(
    lake: Lake, projects: Path, script: Any, suffix: str
) -> None:
    """Its head can be read, and nothing of it is archived, nor forgotten from an earlier ingest."""
    talk(script).write(projects)
    whole = "".join(f.read_text() for f in sorted(projects.rglob("*.jsonl")))
    other = whole.replace(json.loads(whole.splitlines()[0])["sessionId"], "another-session") * 200
    pack = gzip.compress if suffix == "gz" else zstandard.compress
    packed = pack(other.encode())
    cut = projects / f"cut.jsonl.{suffix}"
    cut.write_bytes(packed[: len(packed) * 3 // 4])
    report = ingest(lake, [projects])
    assert (report.totals["files"], report.totals["unreadable_files"]) == (1, 1)
    assert "is not a whole compressed file" in report.totals["unreadable"]["cut.jsonl"]
    assert "another-session" not in lake.read("sessions")["session_id"].to_pylist()
    with pytest.raises(InputError, match="is not a whole compressed file"):
        ingest(lake, [cut])
    cut.write_bytes(packed)
    assert ingest(lake, [projects]).totals["files"] == 2
    cut.write_bytes(packed[: len(packed) * 3 // 4])
    ingest(lake, [projects])
    assert "another-session" in lake.read("sessions")["session_id"].to_pylist()


@pytest.mark.parametrize("case", ["missing", "no_files", "no_session", "not_json", "none"])
def test_bad_input_is_one_sentence_and_leaves_the_lake(
    lake: Lake, projects: Path, script: Any, case: str, files_of: Any
) -> None:
    good = talk(script).write(projects, "good/s1.jsonl").parent
    ingest(lake, [good])
    talk(script, "s2").write(projects, "good/s2.jsonl")
    before = files_of(Path(lake.root))
    bad = projects / "bad"
    if case != "missing":
        bad.mkdir()
    if case in ("no_session", "not_json"):
        bad = bad / "x.jsonl"
        bad.write_text("hello\n")
    if case == "no_session":
        bad = bad.parent
    with pytest.raises(InputError) as error:
        ingest(lake, [] if case == "none" else [good, bad] if case != "no_session" else [bad])
    assert "\n" not in str(error.value)
    if case != "none":
        assert str(bad) in str(error.value)
    assert files_of(Path(lake.root)) == before


def test_a_lake_that_is_not_writable_is_refused(
    tmp_path: Path, projects: Path, script: Any
) -> None:
    talk(script).write(projects)
    blocker = tmp_path / "file"
    blocker.write_text("x")
    with pytest.raises(InputError, match="not writable"):
        ingest(Lake(blocker / "lake"), [projects])
    assert blocker.read_text() == "x"


def test_load_state_by_prefix_and_unknown(lake: Lake, projects: Path, script: Any) -> None:
    talk(script).write(projects)
    ingest(lake, [projects])
    state = next(load_states(lake))
    assert load_state(lake, state.state_id[:12]) == state
    assert [s.state_id for s in load_states(lake, state_ids=[state.state_id])] == [state.state_id]
    with pytest.raises(InputError, match="no state"):
        load_state(lake, "zz")
    with pytest.raises(InputError, match="no state"):
        load_state(lake, "")


def test_bad_days_are_refused(lake: Lake) -> None:
    with pytest.raises(InputError, match="YYYY-MM-DD"):
        parse_days(lake, ["yesterday"])


def test_a_touched_file_is_not_a_change(lake: Lake, projects: Path, script: Any) -> None:
    path = talk(script).write(projects)
    ingest(lake, [projects])
    os.utime(path, (1, 1))
    assert ingest(lake, [projects]).parse.days == []
    assert days_changed(lake, [projects]) == []


def test_a_state_belongs_to_the_session_that_its_record_names(
    lake: Lake, projects: Path, script: Any
) -> None:
    """A file repeats records of another session, without saying that it is a fork."""
    origin = talk(script, "z-origin")
    origin.write(projects)
    copy = script("a-copy")
    copy.add("system", subtype="local_command")
    copy.lines += origin.lines
    copy.leaf = json.loads(origin.lines[-1])["uuid"]
    copy.say("own", "mine", uuid="a-own")
    copy.write(projects)
    ingest(lake, [projects])
    assert {state.message_id: state.session_id for state in load_states(lake)} == {
        "z-origin-m0": "z-origin",
        "z-origin-m1": "z-origin",
        "own": "a-copy",
    }


def test_a_group_is_named_by_the_earliest_file(lake: Lake, projects: Path, script: Any) -> None:
    later, earlier, other = script("s1", "2026-11-17"), script("s1"), script("s2", "2026-11-18")
    for s, prompt in ((later, "later task"), (earlier, "first task"), (other, "First  task")):
        s.user(prompt, uuid=f"u-{prompt}")
        s.say(f"m-{prompt}", "done", uuid=f"a-{prompt}")
    later.write(projects, "a.jsonl")
    earlier.write(projects, "b.jsonl")
    other.write(projects, "c.jsonl")
    ingest(lake, [projects])
    assert len({row["group_id"] for row in lake.rows("sessions")}) == 1


@pytest.mark.parametrize("days", [("2026-11-17", "2026-11-18"), ("2026-11-18", "2026-11-17")])
def test_the_earliest_file_decides_the_day_whatever_its_name(
    lake: Lake, projects: Path, script: Any, days: tuple[str, str]
) -> None:
    for name, day in zip("ab", days, strict=True):
        s = script("s1", day)
        s.say(f"m-{name}", "x", uuid=name)
        s.write(projects, f"{name}.jsonl")
    ingest(lake, [projects])
    assert lake.days("states") == ["2026-11-17"]
    assert len(ids(lake)) == 2


def test_a_day_is_that_of_utc(lake: Lake, projects: Path, script: Any) -> None:
    s = script("s1", "2026-11-17")
    s.user("go", timestamp="2026-11-17T01:30:00.000+03:00")
    s.say("m1", "x", timestamp="2026-11-16T20:31:00-02:00")
    s.write(projects)
    ingest(lake, [projects])
    (state,) = load_states(lake)
    assert state.day == "2026-11-16"
    assert state.ts == datetime(2026, 11, 16, 22, 31, tzinfo=UTC)


def test_every_rewrite_keeps_its_bytes(lake: Lake, projects: Path, script: Any) -> None:
    """Three files in one place, none of which continues another."""
    found = set()
    for number in range(3):
        s = script("s1")
        s.user(f"task {number}" + "!" * number)
        s.say(f"m{number}", "done")
        s.write(projects)
        ingest(lake, [projects])
        found.add(s.data)
        assert {state.message_id for state in load_states(lake)} == {
            f"m{n}" for n in range(number + 1)
        }
    assert {read_blob(lake, row["sha256"]) for row in lake.rows("raw_files")} == found


def test_a_file_that_is_emptied_while_it_is_harvested_is_no_obstacle(
    lake: Lake, projects: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Claude Code rewrites a file: truncated first, then written."""
    s = talk(script)
    path = s.write(projects)
    talk(script, "s2").write(projects)
    read = discover.SourceFile.open

    def emptied(source: Any) -> Any:
        if source.file == path:
            path.write_bytes(b"")
        return read(source)

    plan = make_plan((), [projects])  # heads are read before bytes
    module = sys.modules["composer_pipeline.traces.archive"]
    monkeypatch.setattr(module, "make_plan", lambda *_: plan)
    with monkeypatch.context() as patch:
        patch.setattr(discover.SourceFile, "open", emptied)
        ingest(lake, [projects])
    monkeypatch.undo()
    assert {state.session_id for state in load_states(lake)} == {"s2"}
    path.write_bytes(s.data)
    ingest(lake, [projects])
    assert {state.session_id for state in load_states(lake)} == {"s1", "s2"}


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_session_that_is_packed_later_is_the_same_one(
    lake: Lake, projects: Path, script: Any, suffix: str
) -> None:
    path = talk(script).write(projects)
    harvest(lake, [projects])
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    path.with_name(f"s1.jsonl{suffix}").write_bytes(pack(path.read_bytes()))
    path.unlink()
    report = harvest(lake, [projects])
    assert (report.new_files, report.bytes_archived) == (0, 0)
    assert [row["path"] for row in lake.rows("raw_files")] == ["s1.jsonl"]


def test_a_harvest_counts_the_files_of_all_its_days(
    lake: Lake, projects: Path, script: Any
) -> None:
    for day in ("2026-11-16", "2026-11-17", "2026-11-18"):
        talk(script, f"s-{day}", day).write(projects)
    report = harvest(lake, [projects])
    assert report.new_files == 3
    assert [report.day(day)["new_files"] for day in sorted(report.by_day)] == [1, 1, 1]


def test_a_day_of_another_parser_is_parsed_again(lake: Lake, projects: Path, script: Any) -> None:
    ingest(lake, [talk(script).write(projects)])
    assert is_current(lake, "2026-11-16")
    rows = [{k: v for k, v in row.items() if k != "day"} for row in lake.rows("states")]
    lake.write("states", [{**row, "parser_version": "0"} for row in rows], day="2026-11-16")
    assert not is_current(lake, "2026-11-16")
    ingest(lake, [projects])
    assert is_current(lake, "2026-11-16")


def test_a_session_of_two_days_stays_with_the_earlier(
    lake: Lake, projects: Path, script: Any
) -> None:
    """As where the lakes of two machines were joined."""
    talk(script).write(projects, "a/s1.jsonl")
    harvest(lake, [projects])
    (row,) = ({k: v for k, v in row.items() if k != "day"} for row in lake.rows("raw_files"))
    lake.write("raw_files", [{**row, "path": "other/s1.jsonl"}], day="2026-11-18")
    talk(script, turns=3).write(projects, "b/s1.jsonl")
    harvest(lake, [projects])
    days = {row["path"]: row["day"] for row in lake.rows("raw_files")}
    assert days["b/s1.jsonl"] == "2026-11-16"

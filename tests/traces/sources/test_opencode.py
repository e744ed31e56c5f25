"""OpenCode's database and its exports: what each request held is what each state holds."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import forget, withdraw
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState
from composer_pipeline.traces.archive import harvest
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.source import source_of, source_of_file
from composer_pipeline.traces.sources.opencode import OpenCode
from tests.maintenance.test_forget import places_of
from tests.traces.sources.wrong_types import logs_with_wrong_types

BEGUN = 1_780_000_000_000
SCHEMA = """
CREATE TABLE `project` (`id` text PRIMARY KEY, `worktree` text NOT NULL);
CREATE TABLE `session` (`id` text PRIMARY KEY, `project_id` text NOT NULL, `parent_id` text,
 `slug` text NOT NULL, `directory` text NOT NULL, `title` text NOT NULL, `version` text NOT NULL,
 `revert` text, `time_created` integer NOT NULL, `time_updated` integer NOT NULL);
CREATE TABLE `message` (`id` text PRIMARY KEY, `session_id` text NOT NULL,
 `time_created` integer NOT NULL, `time_updated` integer NOT NULL, `data` text NOT NULL);
CREATE TABLE `part` (`id` text PRIMARY KEY, `message_id` text NOT NULL, `session_id` text NOT NULL,
 `time_created` integer NOT NULL, `time_updated` integer NOT NULL, `data` text NOT NULL);
CREATE TABLE `session_message` (`id` text PRIMARY KEY, `session_id` text NOT NULL,
 `type` text NOT NULL, `seq` integer NOT NULL, `time_created` integer NOT NULL,
 `time_updated` integer NOT NULL, `data` text NOT NULL);
CREATE INDEX `message_session_time_created_id_idx` ON `message` (`session_id`,`time_created`,`id`);
CREATE INDEX `part_message_id_id_idx` ON `part` (`message_id`,`id`);
CREATE INDEX `part_session_idx` ON `part` (`session_id`);
"""
Part = dict[str, Any]


class Database:
    """Writes a database as OpenCode does, its rows by hand."""

    def __init__(self, folder: Path, schema: str = SCHEMA) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / "opencode.db"
        self.now = 0
        with self.open() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(schema)

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            yield db

    def run(self, sql: str, *values: Any) -> list[Any]:
        with self.open() as db:
            return list(db.execute(sql, values))

    def session(self, name: str = "ses_1", parent: str | None = None, **fields: Any) -> None:
        row = {
            "id": name, "project_id": "p", "parent_id": parent, "slug": "s",
            "directory": "/home/alice/shop", "title": "t", "version": "1.18.33",
            "time_created": BEGUN + self.now, "time_updated": BEGUN + self.now, **fields,
        }  # fmt: skip
        self._insert(fields.pop("table", "session"), row)

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        row.pop("table", None)
        marks = ", ".join("?" * len(row))
        self.run(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())

    def message(self, role: str, *parts: Part, session: str = "ses_1", **info: Any) -> str:
        self.now += 1000
        now, name = BEGUN + self.now, f"msg_{session}_{self.now:09}"
        times = {"time_created": now, "time_updated": now}
        data = {"role": role, "time": {"created": now, "completed": now + 500}, **info}
        row = {"id": name, "session_id": session, **times, "data": json.dumps(data)}
        self._insert("message", row)
        for number, part in enumerate(parts):
            row = {"id": f"prt_{name}_{number}", "message_id": name, "session_id": session}
            self._insert("part", {**row, **times, "data": json.dumps(part)})
        return name

    def user(self, *parts: str | Part, **info: Any) -> str:
        given = [text(part) if isinstance(part, str) else part for part in parts]
        return self.message("user", *given, **info)

    def say(self, *parts: str | Part, **info: Any) -> str:
        given = [text(part) if isinstance(part, str) else part for part in parts]
        start, finish = {"type": "step-start"}, {"type": "step-finish", "tokens": TOKENS}
        model = {"modelID": "gpt-test", "providerID": "p", "finish": "stop"}
        return self.message("assistant", start, *given, finish, **{**model, **info})

    def entry(self, kind: str, session: str = "ses_1", **data: Any) -> None:
        self.now += 1000
        now = BEGUN + self.now
        data = {"time": {"created": now, "completed": now}, **data}
        times = {"time_created": now, "time_updated": now, "data": json.dumps(data)}
        row = {"id": f"msg_{self.now}", "session_id": session, "type": kind, "seq": self.now}
        self._insert("session_message", {**row, **times})

    def export(self, session: str = "ses_1") -> Path:
        """Write what ``opencode export`` prints."""
        messages = [
            {
                "info": {**json.loads(data), "id": name, "sessionID": session},
                "parts": [
                    {**json.loads(part), "id": part_id, "messageID": name, "sessionID": session}
                    for part_id, part in self.run(
                        "SELECT id, data FROM part WHERE message_id = ? ORDER BY id", name
                    )
                ],
            }
            for name, data in self.run(
                "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created", session
            )
        ]
        info = {"id": session, "directory": "/home/alice/shop", "version": "1.18.33"}
        value = {"info": {**info, "time": {"created": BEGUN}}, "messages": messages}
        path = self.file.with_name("session.json")
        path.write_text(json.dumps(value, indent=2))
        return path


TOKENS = {"input": 100, "output": 30, "reasoning": 5, "cache": {"read": 800, "write": 2}}
STATUS = {"completed": "output", "error": "error"}


def text(value: str, **fields: Any) -> Part:
    return {"type": "text", "text": value, **fields}


def ran(call_id: str, tool: str, given: Any, output: str | None, /, **fields: Any) -> Part:
    status = fields.pop("status", "completed")
    shown = {STATUS.get(status, "output"): output}
    state = {"status": status, "input": given, **shown, "time": {"start": 1, "end": 2}, **fields}
    return {"type": "tool", "callID": call_id, "tool": tool, "state": state}


def bash(call_id: str, command: str, output: str, code: int | None = 0) -> Part:
    return ran(call_id, "bash", {"command": command}, output, metadata={"exit": code})


def states_of(lake: Lake, path: Path) -> list[TraceState]:
    ingest(lake, [path])
    return list(load_states(lake))


def texts(state: TraceState) -> list[str]:
    found = []
    for message in state.messages:
        for block in message["content"]:
            shown = block.get("text") or block.get("content") or block.get("name")
            found.append(f"{message['role']}: {shown or block['type']}")
    return found


@pytest.fixture
def db(tmp_path: Path) -> Database:
    made = Database(tmp_path / "opencode")
    made.session()
    return made


def a_day(db: Database) -> None:
    db.user("fix the till")
    db.say("I look", {"type": "reasoning", "text": "hidden thought"},
           bash("c1", "ls; false", "till.py\n", 1),
           ran("c2", "read", {"filePath": "/home/alice/shop/till.py"}, "1: x"))  # fmt: skip
    db.say(ran("c3", "edit", {"oldString": "y"}, "Could not find oldString", status="error"),
           ran("c4", "invalid", {"tool": "nosuch"}, "The arguments are invalid"))  # fmt: skip
    db.say("done", bash("c5", "echo ok", "ok\n"))
    db.user("thanks")
    db.say("welcome")


def test_a_session_becomes_states(lake: Lake, db: Database) -> None:
    a_day(db)
    first, edit, last, welcome = states_of(lake, db.file)
    assert [call.name for call in first.action.tool_calls] == ["bash", "read"]
    assert texts(first) == ["user: fix the till"]
    assert texts(welcome) == [
        "user: fix the till",
        "assistant: I look",
        "assistant: bash",
        "assistant: read",
        "user: till.py\n",
        "user: 1: x",
        "assistant: edit",
        "assistant: invalid",
        "user: Could not find oldString",
        "user: The arguments are invalid",
        "assistant: done",
        "assistant: bash",
        "user: ok\n",
        "user: thanks",
    ]
    assert (first.hint_call, first.hint) == (0, "till.py")
    assert first.error_kind
    assert edit.error_kind
    assert last.error_kind is None
    assert (first.model, first.version, first.cwd) == ("gpt-test", "1.18.33", "/home/user/shop")
    assert (first.input_tokens, first.output_tokens) == (902, 35)
    assert (first.session_id, first.agent_id, first.day) == ("ses_1", "", "2026-05-28")
    (session,) = lake.rows("sessions")
    assert (session["agent"], session["first_prompt"]) == ("opencode", "fix the till")
    assert json.loads(session["unknown_types"]) == {}
    assert "hidden thought" not in str(lake.rows("messages"))


def test_an_export_holds_the_same_states(lake: Lake, db: Database, tmp_path: Path) -> None:
    a_day(db)
    stored = {(s.state_id, *texts(s)) for s in states_of(lake, db.file)}
    other = Lake(tmp_path / "other")
    assert {(s.state_id, *texts(s)) for s in states_of(other, db.export())} == stored


def test_what_failed_is_told_by_an_exit_code_a_subagent_and_a_time(
    lake: Lake, db: Database
) -> None:
    late = "tool terminated command after exceeding timeout 9 ms"
    task = '<task id="ses_2" state="error">no</task>'
    db.user("go")
    db.say(bash("c1", "x", "no", 2))
    db.say(bash("c2", "x", late, None))
    db.say(ran("c3", "task", {}, task, metadata={"sessionId": "ses_2"}))
    db.say(bash("c4", "x", "in the background", None))
    db.say(bash("c5", "x", "fine"))
    errors = [state.error_kind is not None for state in states_of(lake, db.file)]
    assert errors == [True, True, True, False, False]


def test_each_step_of_a_message_is_a_response(lake: Lake, db: Database) -> None:
    db.user("go")
    step = {"type": "step-finish", "tokens": TOKENS}
    db.say("one", bash("c1", "true", "ok"), step, {"type": "step-start"}, "two")
    one, two = states_of(lake, db.file)
    assert (one.action.text, two.action.text) == ("one", "two")
    assert texts(two) == ["user: go", "assistant: one", "assistant: bash", "user: ok"]


def test_a_provider_that_counts_its_calls_anew_loses_none(lake: Lake, db: Database) -> None:
    db.user("go")
    db.say(bash("call_0", "ls", "a"))
    db.say(bash("call_0", "pwd", "b"))
    first, second = states_of(lake, db.file)
    assert [s.action.tool_calls[0].arguments["command"] for s in (first, second)] == ["ls", "pwd"]
    assert texts(second)[-1] == "user: a"


STOPPED = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}


def test_what_was_stopped_is_shown_as_opencode_shows_it(lake: Lake, db: Database) -> None:
    db.user("go")
    kept = {"interrupted": True, "output": "half"}
    db.say(ran("c1", "bash", {}, None, status="running"),
           ran("c2", "task", {}, "Tool execution aborted", status="error", metadata=kept),
           error=STOPPED)  # fmt: skip
    db.user("no, only the till")
    db.say("partial", error={"name": "APIError", "data": {"message": "overloaded"}})
    db.user("again")
    db.say("ok")
    first, last = states_of(lake, db.file)
    assert (first.hint_source, first.hint) != (None, None)
    assert first.followed_by_correction
    assert texts(last)[3:] == [
        "user: [Tool execution was interrupted]",
        "user: half",
        "user: no, only the till",
        "user: again",
    ]


def test_what_the_user_ran_is_no_state(lake: Lake, db: Database) -> None:
    note = "The following tool was executed by the user"
    db.user(text(note, synthetic=True))
    db.message("assistant", bash("c1", "ls", "till.py"), modelID="gpt-test")
    db.user({"type": "subtask", "prompt": "look"}, text("not shown", ignored=True))
    image = {"type": "file", "mime": "image/png", "url": "data:"}
    read = {"type": "file", "mime": "text/plain", "url": "file:///x"}
    db.user("see", read, image, {"type": "agent", "name": "general"})
    db.say("ok")
    (state,) = states_of(lake, db.file)
    assert texts(state) == [
        f"user: {note}", "assistant: bash", "user: till.py", f"user: {note}", "user: see",
        "user: image",
    ]  # fmt: skip
    assert lake.rows("sessions")[0]["first_prompt"] == "see"


def test_a_compaction_keeps_the_last_turns_and_removed_results_stay_removed(
    lake: Lake, db: Database
) -> None:
    db.user("old")
    db.say(bash("c0", "old", "old output"))
    tail = db.user("recent")
    removed = {"time": {"compacted": BEGUN + 4500}}
    db.say("then", ran("c1", "bash", {}, "long output", **removed))
    db.say("after the removal")
    asked = db.user({"type": "compaction", "auto": False, "tail_start_id": tail})
    db.say("a summary", summary=True, parentID=asked)
    db.user("new")
    db.say("after the compaction")
    *before, after = states_of(lake, db.file)
    cleared = "user: [Old tool result content cleared]"
    assert [s.action.text for s in before] == ["", "then", "after the removal"]
    assert texts(before[2])[-1] == cleared
    assert texts(after) == [
        "user: What did we do so far?",
        "assistant: a summary",
        "user: recent",
        "assistant: then",
        "assistant: bash",
        cleared,
        "assistant: after the removal",
        "user: new",
    ]
    (session,) = lake.rows("sessions")
    assert session["compactions"] == 1


def test_a_fork_is_not_counted_twice(lake: Lake, db: Database) -> None:
    a_day(db)
    db.now += 1000
    db.session("ses_0")  # sorted first, begun later
    copy = "SELECT 'f' || id, 'ses_0', time_created, time_updated, data FROM message"
    db.run(f"INSERT INTO message {copy}")
    copy = "'f' || id, 'f' || message_id, 'ses_0', time_created, time_updated, data"
    db.run(f"INSERT INTO part SELECT {copy} FROM part")
    db.user("and now?", session="ses_0")
    db.say("this", session="ses_0")
    found = [(s.session_id, s.action.text) for s in states_of(lake, db.file)]
    assert found == [
        ("ses_0", "this"),
        *(("ses_1", said) for said in ("I look", "", "done", "welcome")),
    ]


def test_a_subagent_belongs_to_the_call_that_started_it(lake: Lake, db: Database) -> None:
    db.user("go")
    for name, parent, call in (("ses_2", "ses_1", "t1"), ("ses_3", "ses_2", "t2")):
        task = ran(call, "task", {"prompt": "look"}, "found", metadata={"sessionId": name})
        db.say(task, session=parent)
        db.session(name, parent)
        db.user("look", session=name)
        db.say("it is there", session=name)
    states = states_of(lake, db.file)
    assert {(s.session_id, s.agent_id) for s in states} == {
        ("ses_1", ""), ("ses_1", "ses_2"), ("ses_1", "ses_3"),
    }  # fmt: skip
    calls = {row["agent_id"]: row["parent_call"] for row in lake.rows("sessions")}
    assert calls == {"": None, "ses_2": "t1", "ses_3": "t2"}


# -- the newer generation ------------------------------------------------------------------


def tool(call_id: str, name: str, given: Any, /, **state: Any) -> Part:
    state = {"status": "completed", "input": given, **state}
    return {"type": "tool", "id": call_id, "name": name, "state": state}


def newer_day(db: Database) -> None:
    model = {"id": "gpt-test", "providerID": "p"}
    ended = [text("till.py\n"), text("Command exited with code 3.")]
    db.entry("user", text="go", files=[
        {"mime": "text/plain", "name": "a.txt", "data": "aGk=", "source": {"type": "inline"}},
        {"mime": "image/png", "data": "", "source": {"type": "uri", "uri": "file:///s/b%20c.png"}},
    ])  # fmt: skip
    db.entry("model-switched", model=model)
    db.entry("assistant", model=model, tokens=TOKENS, content=[
        text("I look"),
        tool("c1", "shell", {"command": "ls"}, content=ended, metadata={"exit": 3}),
        tool("c2", "glob", {}, content=[], structured={"found": 1}),
        tool("c3", "edit", {}, status="error", error={"type": "unknown", "message": "no"},
             content=[], structured={}),
    ])  # fmt: skip
    db.entry("shell", command="pwd", output={"output": "/srv"})
    db.entry("shell", command="date", output={"output": "x"}, metadata={"background": True})
    db.entry("synthetic", text="a note")
    db.entry("idle", outcome="interrupted")
    db.entry("user", text="stop")
    db.entry("assistant", model=model, content=[text("ok")])


def test_the_newer_generation_of_messages(lake: Lake, db: Database) -> None:
    newer_day(db)
    db.entry("assistant", content=[text("half an ans")], time={"created": BEGUN + db.now})
    first, last = states_of(lake, db.file)  # the third is not complete
    assert texts(first) == [
        "user: go", "user: \n\nAttached file: a.txt\n\nhi", "user: Attached file: /s/b c.png",
        "user: image",
    ]  # fmt: skip
    ran = "The following shell command was executed by the user"
    assert texts(last)[8:] == [
        "user: till.py\n\nCommand exited with code 3.",
        'user: {"found":1}',
        'user: {"error":{"type":"unknown","message":"no"},"content":[],"structured":{}}',
        f"user: {ran}:\n\nCommand:\npwd\n\nOutput:\n/srv",
        "user: a note",
        "user: stop",
    ]
    assert (first.hint_call, first.input_tokens, first.model) == (0, 902, "gpt-test")
    assert first.followed_by_correction
    assert json.loads(lake.rows("sessions")[0]["unknown_types"]) == {}


def test_a_subagent_and_an_interruption_of_the_newer_generation(lake: Lake, db: Database) -> None:
    db.entry("user", text="go")
    stopped = {"type": "aborted", "message": "The step was interrupted"}
    task = tool("t1", "task", {}, content=[text("seen")], metadata={"sessionID": "ses_2"})
    db.entry("assistant", content=[task], error=stopped)
    db.entry("user", text="no, only the till")
    late = tool("c1", "shell", {}, content=[text("half")], metadata={"timeout": True})
    db.entry("assistant", content=[late])
    db.session("ses_2", "ses_1")
    db.entry("user", session="ses_2", text="look")
    db.entry("assistant", session="ses_2", content=[text("seen")])
    states = {s.action.tool_calls[0].id: s for s in states_of(lake, db.file) if not s.agent_id}
    assert states["t1"].followed_by_correction
    assert states["c1"].followed_by_error
    calls = {row["agent_id"]: row["parent_call"] for row in lake.rows("sessions")}
    assert calls == {"": None, "ses_2": "t1"}


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_checkpoint_begins_anew(lake: Lake, tmp_path: Path, encrypted: bool) -> None:
    """A checkpoint that only the provider can read says so in the states behind it."""
    schema = SCHEMA.replace("`session` (", "`session_v2` (").replace("`message`", "`older`")
    db = Database(tmp_path / "newer", schema)
    db.session(table="session_v2", version="2.0.14")
    db.entry("user", text="old")
    remote: dict[str, Any] = {"remote": [{"type": "compaction"}]} if encrypted else {}
    db.entry("compaction", status="running", summary="", recent="")
    db.entry("compaction", status="completed", summary="what we did", recent="the end", **remote)
    db.entry("assistant", content=[text("on")])
    (state,) = states_of(lake, db.file)
    (shown,) = texts(state)
    assert ("what we did" in shown) is not encrypted
    assert (state.fidelity == "compacted_encrypted") is encrypted


# -- a database that is in use ----------------------------------------------------------------


def test_only_what_changed_is_read_again(lake: Lake, db: Database) -> None:
    a_day(db)
    db.session("ses_2")
    db.user("x", session="ses_2")
    db.say("y", session="ses_2")
    first = harvest(lake, [db.file])
    assert (first.new_files, first.unchanged_files) == (2, 0)
    db.run("UPDATE message SET data = json_set(data, '$.summary', json('{}'))")
    db.user("more")
    waiting = db.say("half a", time={"created": BEGUN + db.now})
    second = harvest(lake, [db.file])
    assert (second.grown_files, second.unchanged_files) == (1, 1)
    done = {"role": "assistant", "time": {"created": BEGUN + db.now, "completed": 1}}
    db.run("UPDATE message SET data = ?, time_updated = time_updated + 9 WHERE id = ?",
           json.dumps(done), waiting)  # fmt: skip
    third = harvest(lake, [db.file])
    assert (third.grown_files, third.unchanged_files) == (1, 1)
    removed = "json_set(data, '$.state.time.compacted', ?), time_updated = ?"
    db.run(f"UPDATE part SET data = {removed} WHERE data LIKE '%c1%'", BEGUN + 20000, BEGUN + 20000)
    fourth = harvest(lake, [db.file])
    assert (fourth.grown_files, fourth.unchanged_files) == (1, 1)
    again = harvest(lake, [db.file])
    assert (again.new_files, again.grown_files, again.unchanged_files) == (0, 0, 2)
    rows = {row["path"]: len(row["pieces"]) for row in lake.rows("raw_files")}
    # What is new was archived, and nothing twice.
    assert rows == {"opencode.db/ses_1.jsonl": 4, "opencode.db/ses_2.jsonl": 1}


def test_what_stands_in_the_log_of_a_database_is_read(lake: Lake, db: Database) -> None:
    """While OpenCode runs, what it writes does not change the file itself."""
    with db.open() as running:
        running.execute("SELECT * FROM session").fetchall()
        a_day(db)
        harvest(lake, [db.file])
        db.user("more")
        assert harvest(lake, [db.file]).grown_files == 1


def test_what_was_taken_back_stays_in_the_lake(lake: Lake, db: Database) -> None:
    a_day(db)
    before = {s.state_id for s in states_of(lake, db.file)}
    last = db.run("SELECT id FROM message ORDER BY id DESC LIMIT 2")
    db.run("DELETE FROM message WHERE id >= ?", last[1][0])
    db.user("instead")
    db.say("right")
    after = states_of(lake, db.file)
    assert before < {s.state_id for s in after}
    (right,) = (s for s in after if s.action.text == "right")
    assert texts(right)[-2:] == ["user: ok\n", "user: instead"]


WRITER = """
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1], 0, isolation_level=None)
part = json.dumps({"type": "text", "text": "x" * 200})
for number in range(100000):
    now, name = 1780000000000 + number, f"msg_{number:08}"
    db.execute("BEGIN IMMEDIATE")
    data = {"role": "user", "time": {"created": now}}
    row = (name, "ses_1", now, now, json.dumps(data))
    db.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
    for at in range(3):
        row = (f"prt_{number:08}_{at}", name, "ses_1", now, now, part)
        db.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", row)
    db.execute("COMMIT")
    if number % 50 == 0:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    if number == 100:
        print("go", flush=True)
"""


def test_it_is_read_while_opencode_writes(db: Database) -> None:
    """The writer waits for nobody: with a patience of 0 any lock would end it."""
    argv = [sys.executable, "-c", WRITER, str(db.file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        counts = []
        for _ in range(5):
            (member,) = OpenCode().members(db.file) or [None]
            assert member is not None
            _, *lines = member.lines()
            assert {len(json.loads(line)["parts"]) for line in lines} == {3}  # none is torn
            counts.append(len(lines))
        running = writer.poll() is None
        writer.kill()
        assert writer.stderr is not None
        assert running, writer.stderr.read().decode()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def _lock(db: Database) -> Any:
    db.run("PRAGMA journal_mode = DELETE")
    holder = sqlite3.connect(db.file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    return holder


FAULTS: dict[str, tuple[Callable[[Database], Any], str]] = {
    "locked": (_lock, "database is locked"),
    "unknown schema": (
        lambda db: db.run("ALTER TABLE part RENAME COLUMN data TO body"),
        "does not know: table part has no data",
    ),
    "damaged": (
        lambda db: db.file.write_bytes(b"SQLite format 3\0" + b"x" * 5000),
        "file is not a database",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_read_is_said_in_one_sentence(
    lake: Lake, db: Database, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_pipeline.traces.sources.opencode_database._PATIENCE", 0.01)
    make, why = FAULTS[fault]
    held = make(db)
    with pytest.raises(InputError, match=rf"opencode\.db .*{why}") as caught:
        OpenCode().members(db.file)
    assert "\n" not in str(caught.value)
    good = Database(tmp_path / "other")
    good.session()
    a_day(good)
    report = ingest(lake, [tmp_path])
    assert report.totals["states"] == 4  # the others are read
    assert why in report.totals["unreadable"]["opencode/opencode.db"]
    if isinstance(held, sqlite3.Connection):
        held.close()


def test_files_of_others_are_left_alone(lake: Lake, tmp_path: Path) -> None:
    cookies = tmp_path / "cookies.db"
    with closing(sqlite3.connect(cookies)) as db:
        db.execute("CREATE TABLE session (id text, host text)")
    assert OpenCode().members(cookies) is None
    with pytest.raises(InputError, match=r"cookies\.db holds no session of a known agent"):
        ingest(lake, [cookies])
    for number, begin in enumerate((b'{"info": {"id": "x"}}', b'{"type": "user"}', b"[]", b"{")):
        other = tmp_path / f"{number}.json"
        other.write_bytes(begin)
        found = source_of_file(other)
        assert found is None or found.name != "opencode"
        assert source_of([begin])[0].name != "opencode"


# -- secrets, forgetting, broken input -------------------------------------------------------

KEY = "AKIAZ7QK3VN5RT2WLX4B"


@pytest.fixture
def telling(db: Database) -> Database:
    db.user(f"my key is {KEY}")
    db.say(f"{KEY} it is", bash("c1", f"export AWS_ACCESS_KEY_ID={KEY}", f"{KEY}\n"),
           ran("c2", "read", {"filePath": KEY}, KEY, status="error"))  # fmt: skip
    db.say("done")
    db.session("ses_2")
    db.entry("user", session="ses_2", text=f"use {KEY}")
    db.entry("assistant", session="ses_2", content=[
        text(KEY), tool("call-of-two", "shell", {"command": KEY}, content=[text(KEY)]),
    ])  # fmt: skip
    db.entry("assistant", session="ses_2", content=[text("done")])
    return db


def test_a_secret_is_nowhere_but_in_the_archive(lake: Lake, telling: Database) -> None:
    assert len(states_of(lake, telling.file)) == 4
    root = Path(lake.root)
    found = places_of(root, KEY.encode())
    assert found
    assert {name.split("/")[0] for name in found} == {"archive"}


@pytest.mark.parametrize("remove", [forget, withdraw])
def test_a_session_can_be_taken_out(lake: Lake, telling: Database, remove: Any) -> None:
    ingest(lake, [telling.file])
    assert remove(lake, session="ses_2").sessions == ["ses_2"]
    assert places_of(Path(lake.root), b"ses_2", b"call-of-two") == set()
    assert ingest(lake, [telling.file]).totals["forgotten_files"] == 1
    assert {row["session_id"] for row in lake.rows("sessions")} == {"ses_1"}


def lines_of(db: Database) -> list[bytes]:
    (member,) = OpenCode().members(db.file) or [None]
    assert member is not None
    return list(member.lines())


def test_a_cut_off_line_and_unknown_things_are_counted(db: Database) -> None:
    a_day(db)
    db.message("robot")
    db.say({"type": "hologram"}, ran("c9", "bash", {}, "x", status="dreaming"))
    data = b"".join(lines_of(db))
    _, stats, facts = analyse(data + b'{"info": {"role": "assist')
    assert (facts["bad_lines"], facts["states"], stats.last_line_bad) == (1, 5, True)
    assert stats.unknown_types == {
        "opencode/role/robot": 1, "opencode/part/hologram": 1, "opencode/tool/dreaming": 1,
    }  # fmt: skip


@pytest.mark.parametrize("generation", ["older", "newer"])
def test_a_wrong_type_is_never_fatal(db: Database, generation: str) -> None:
    if generation == "newer":
        newer_day(db)
        db.entry("location-switched", location={"directory": "/srv"})
        db.entry("compaction", status="completed", summary="s", recent="r")
    else:
        asked = db.user("go", {"type": "compaction", "tail_start_id": "x"}, {"type": "file"})
        db.say(bash("c1", "ls", "x"), ran("c2", "read", {}, "no", status="error", metadata={}),
               error=STOPPED)  # fmt: skip
        db.say("s", parentID=asked, summary=True)
    whole = b"".join(lines_of(db)) + b'{"removed": [1, "c1", "m"]}'
    for data in logs_with_wrong_types(whole):
        for _ in OpenCode().records(data.splitlines(keepends=True), LineStats()):
            pass


def test_a_broken_export_is_never_fatal(db: Database) -> None:
    a_day(db)
    data = db.export().read_bytes()
    for cut in (len(data) // 2, len(data) - 3):
        _, stats, facts = analyse(data[:cut])
        assert (stats.bad_lines, stats.last_line_bad, facts["states"]) == (1, True, 0)
    for value in ({"messages": 7}, {"messages": [7, {"info": 7}]}, {"messages": [{"parts": 7}]}):
        analyse(json.dumps({"info": {"id": "ses_1"}, **value}).encode())

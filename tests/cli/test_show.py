"""`state` and `sessions`: what a person reads, and what a machine reads."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from composer_pipeline.cli.__main__ import main
from composer_pipeline.cli.traces import show_state
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import following, load_states
from composer_pipeline.traces.ingest import day_audit, ingest

DAY = "2026-11-16"


def _record(number: int, parent: int | None, kind: str, **fields: Any) -> str:
    return json.dumps(
        {
            "type": kind,
            "uuid": f"u{number}",
            "parentUuid": None if parent is None else f"u{parent}",
            "timestamp": f"{DAY}T10:00:{number:02d}.000Z",
            "sessionId": "s1",
            "cwd": "/srv/p",
            "version": "2.1.300",
            "isSidechain": False,
            **fields,
        }
    )


def _assistant(number: int, parent: int, message: str, block: dict[str, Any]) -> str:
    body = {"id": message, "role": "assistant", "model": "claude-test", "content": [block]}
    return _record(number, parent, "assistant", message=body)


def _user(number: int, parent: int | None, content: Any) -> str:
    return _record(number, parent, "user", message={"role": "user", "content": content})


@pytest.fixture
def shown(tmp_path: Path) -> Lake:
    """A session of 20 calls, the last one failing, then a text and a prompt."""
    lines = [_user(0, None, "please fix /home/alice/x")]
    for turn in range(20):
        at = 1 + 2 * turn
        call = {
            "type": "tool_use",
            "id": f"t{turn}",
            "name": "Bash",
            "input": {"command": f"step {turn}"},
        }
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": f"t{turn}",
            "content": f"done {turn}",
        }
        if turn == 19:
            result |= {"content": "Exit code 3\n[red]boom[/red]", "is_error": True}
        lines += [_assistant(at, at - 1, f"m{turn}", call), _user(at + 1, at, [result])]
    lines += [
        _assistant(41, 40, "m20", {"type": "text", "text": "I give up"}),
        _user(42, 41, "try again"),
        _assistant(43, 42, "m21", {"type": "text", "text": "no"}),
        _record(44, 43, "sparkle"),
        _record(45, 43, "sparkle"),
    ]
    path = tmp_path / "s1.jsonl"
    path.write_text("\n".join(lines) + "\n")
    lake = Lake(tmp_path / "lake")
    ingest(lake, [path])
    return lake


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    assert done.value.code == 0
    return capsys.readouterr().out


def test_state_as_a_person_reads_it(
    shown: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    states = {s.message_id: s for s in load_states(shown)}
    text = _run(capsys, "state", states["m19"].state_id, "--lake", shown.url)
    order = [
        "please fix /home/user/x", "messages folded", "done 18", "what it did", "command: step 19",
        "what happened next", "<- error: Exit code 3", "hint: exit_code", "about call 0",
    ]  # fmt: skip
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    assert "step 7" not in text  # folded
    assert "22 messages folded" in text  # 3, then 12 in a line each, then 2 in full, of 39
    assert [n for n in range(39) if re.search(rf"^ +{n} (user|assistant) *$", text, re.M)] == [
        37, 38,
    ]  # fmt: skip
    assert "[red]boom[/red]" in text  # no markup
    assert "39 messages" in text
    short = _run(capsys, "state", states["m20"].state_id, "--lake", shown.url)
    assert "try again" in short[short.index("what happened next") :]
    assert "hint" not in short
    last = _run(capsys, "state", states["m21"].state_id, "--lake", shown.url)
    assert "nothing is recorded" in last


def test_only_the_label_of_a_message_is_bold(shown: Lake) -> None:
    state = max(load_states(shown), key=lambda state: state.n_messages)
    out = io.StringIO()
    show_state(Console(file=out, width=100, force_terminal=True), state, [])
    (first,) = [line for line in out.getvalue().splitlines() if "please fix" in line]
    assert first.index("\x1b[1m") < first.index("\x1b[0m") < first.index("please fix")


def test_state_for_machines_has_what_came_next(
    shown: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    for state in load_states(shown):
        out = json.loads(_run(capsys, "state", state.state_id, "--json", "--lake", shown.url))
        assert set(out) == {
            "state_id", "session_id", "message_id", "prefix", "action", "fidelity",
            "on_active_path", "repaired", "error_kind", "verdict", "verdict_reason",
            "culprit_state_id", "culprit_by", "caused_error", "chain", "fate", "hint",
            "kept", "next", "survival",
        }  # fmt: skip
        assert out["next"] == following(shown, state)
        assert (out["repaired"], out["on_active_path"]) == (state.repaired, state.on_active_path)
        calls = [call["id"] for call in out["action"]["tool_calls"]]
        assert [b["tool_use_id"] for b in out["next"] if b["type"] == "tool_result"] == calls
    assert out["next"] == []


def test_sessions_are_listed_with_counts(
    shown: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = _run(capsys, "sessions", "--json", "--lake", shown.url).splitlines()
    row = json.loads(line)
    counts = {"states": 22, "tool_calls": 20, "tool_errors": 1, "error_turns": 1, "hints": 1}
    assert {name: row[name] for name in counts} == counts
    assert (row["session_id"], row["day"], row["project"]) == ("s1", DAY, "/srv/p")
    monkeypatch.setenv("COLUMNS", "160")
    text = _run(capsys, "sessions", "--lake", shown.url)
    assert "please fix /home/user/x" in text
    assert re.search(r" s1 +p +22 ", text)  # the folder's name, without those above it
    assert "s1" in text


def test_states_are_listed_in_order_of_time(
    shown: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _run(capsys, "states", "--json", "--lake", shown.url).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["message_id"] for row in rows] == [f"m{n}" for n in range(22)]
    assert [row["tools"] for row in rows] == [["Bash"]] * 20 + [[], []]
    for session in ("s", "s1"):
        listed = _run(capsys, "states", "--session", session, "--json", "--lake", shown.url)
        assert len(listed.splitlines()) == 22


def test_audit_of_a_day(shown: Lake) -> None:
    assert day_audit(shown, DAY, {"HOME": 1, "EMAIL": 2}) == {
        "unknown_record_types": [{"type": "sparkle", "records": 2}],
        "error_kinds": [
            {"error_kind": "exit_code", "source": "exit_code", "states": 1, "hints": 1}
        ],
        "redactions_by_kind": [
            {"kind": "EMAIL", "replacements": 2},
            {"kind": "HOME", "replacements": 1},
        ],
    }


MARKUP = "[/api/users] [slug] [bold]loud[/bold] \\[x]"


@pytest.mark.parametrize("folder", ["plain", "[a]b", "c*d?", "it's", "\u00e4 b"])
def test_any_path_works_and_no_text_is_markup(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    place = tmp_path / folder
    (place / "sessions").mkdir(parents=True)
    call = {"type": "tool_use", "id": "t", "name": "[b]Odd[/b]", "input": {"command": MARKUP}}
    lines = [_user(0, None, MARKUP), _assistant(1, 0, "m1", call)]
    (place / "sessions" / "s1.jsonl").write_text("\n".join(lines) + "\n")
    lake = ("--lake", str(place / "lake"))
    assert "subagent_states" in _run(capsys, "ingest", str(place / "sessions"), *lake)
    assert MARKUP in _run(capsys, "sessions", *lake)
    assert "[b]Odd[/b]" in _run(capsys, "states", *lake)
    (found,) = load_states(Lake(place / "lake"))
    assert MARKUP in _run(capsys, "state", found.state_id, *lake)
    assert place.name in _run(capsys, "budget", *lake)

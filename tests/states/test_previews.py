"""Rows as a person reads them: cut, side by side, and never markup."""

import re
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.previews import (
    cut,
    one_line,
    place_of,
    preview,
    printable,
    query_of,
    row_count,
    side_by_side,
)
from tests.fixtures.lake_states import DAY, write_session

NASTY = "```\n# heading <script>alert(1)</script>\n````\n[link](http://x) ‮evil\x1b[31m"


def call(command: str) -> Action:
    return Action("", (ToolCall("Bash", {"command": command}),))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "la[k]e 'x'")
    write_session(lake, "one", [(call(f"echo {n}"), f"said {n}") for n in range(9)])
    write_session(lake, "two", [(call(NASTY), NASTY), (call("ls"), "b")])
    return lake


def outside(markdown: str) -> str:
    """Return what a Markdown reader takes as markup: all that is in no fence."""
    out, fence = [], ""
    for line in markdown.split("\n"):
        if fence:
            if line.strip() == fence:
                fence = ""
        elif found := re.match(r"(`{3,})", line):
            fence = found[1]
        else:
            out.append(line)
    assert not fence, "a fence is open at the end"
    return "".join(out).strip()


def test_a_state_is_what_the_agent_saw_and_did(lake: Lake) -> None:
    shown = preview(lake, "states", {"day": DAY})
    assert shown.count("── the agent saw ──") == 5
    assert "── the agent saw ──\n<- said 1\n── and did ──\nBash\n  command: echo 2" in shown


def test_no_text_of_the_lake_is_markup(lake: Lake) -> None:
    shown = preview(lake, "states", {"day": DAY}, rows=99)
    assert "<script>" in shown
    assert outside(shown) == ""
    assert "\x1b" not in shown
    assert "‮" not in shown


def test_rows_are_spread_over_the_table(lake: Lake) -> None:
    shown = preview(lake, "states", {"day": DAY})
    assert set(re.findall(r"session \w+", shown)) == {"session one", "session two"}


def test_a_pair_stands_side_by_side_and_is_cut(lake: Lake) -> None:
    def message(command: str) -> list[dict[str, object]]:
        function = {"name": "Bash", "arguments": {"command": command}}
        return [{"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}]

    row = {
        **dict.fromkeys(TABLES["pairs"].schema.names),
        "pair_id": "p", "session_id": "one", "turn": 3, "tier": "gold", "n_agree": 2,
        "n_families": 3, "simulated": True, "prompt": [], "tools": [],
        "chosen": message("ls -l"), "rejected": message("rm -r x\n" * 400),
    }  # fmt: skip
    lake.write("pairs", [row], day=DAY)
    shown = preview(lake, "pairs", {"day": DAY})
    assert re.search(r"rejected: the agent +│ chosen: the teachers\n", shown)
    assert re.search(r"  command: rm -r x +│   command: ls -l\n", shown)
    assert "gold; 2 of 3 families; simulated" in shown
    assert "(3,216 characters)" in shown
    assert len(shown) < 3000


def test_replies_hints_and_archived_files_are_read_too(lake: Lake) -> None:
    reply = {
        "state_id": "s", "session_id": "one", "family": "f", "request_hash": "h", "model": "m",
        "model_served": "m-2", "status": "ok", "action": call("pwd").to_json(),
        "cost_picodollars": 1_500_000_000, "latency_ms": 250.0, "simulated": True,
        "created_at": datetime(2026, 11, 20, tzinfo=UTC),
    }  # fmt: skip
    bad = {**reply, "request_hash": "i", "status": "unusable", "action": None, "detail": "empty"}
    lake.write("replies", [reply, bad], day=DAY, teacher="t")
    shown = preview(lake, "replies", {"day": DAY, "teacher": "t"})
    assert "m-2; ok; $0.001500; 0.25 s" in shown
    assert "── the answer ──\nBash\n  command: pwd" in shown
    assert "── why there is none ──\nempty" in shown
    hint = {
        "state_id": "s", "session_id": "one", "source": "tool_error", "error_kind": "tool_error",
        "text": "no such file", "span_call": 0, "span_text": "{}", "leakage": 0.0,
    }  # fmt: skip
    lake.write("hints", [hint], day=DAY)
    assert "── the hint ──\nno such file" in preview(lake, "hints", {"day": DAY})
    raw = {
        "path": "-home-jane-x/a.jsonl",
        "sha256": "0",
        "size": 2048,
        "mtime_ns": 0,
        "session_id": "one",
        "agent_id": "",
        "parent_path": "",
        "offset": 0,
        "pieces": ["0"],
    }
    lake.write("raw_files", [raw], day=DAY)
    shown = preview(lake, "raw_files", {"day": DAY})
    assert "session one; 2,048 bytes" in shown
    assert "jane" not in shown


def test_nothing_is_shown_of_a_table_without_rows(lake: Lake) -> None:
    assert preview(lake, "pairs", {"day": DAY}) == ""
    lake.write("hints", [], day=DAY)
    assert preview(lake, "hints", {"day": DAY}) == ""
    assert row_count(lake, "hints", day=DAY) == 0
    assert row_count(lake, "pairs", day=DAY) is None
    assert row_count(lake, "dataset_pairs") is None


def test_the_query_reads_the_rows_that_are_counted(lake: Lake) -> None:
    assert row_count(lake, "states", day=DAY) == 11
    assert Path(place_of(lake, "states", day=DAY)).is_file()
    for keys in ({"day": DAY}, {}):
        query = query_of(lake, "states", **keys)
        assert len(duckdb.connect().execute(query).fetchall()) == 11
    assert place_of(lake, "replies", day=DAY).endswith(f"replies/teacher=*/day={DAY}/part.parquet")


def test_half_of_a_home_folder_is_not_shown() -> None:
    text = "read a file of the user: /Users/user/dev/ladle/main.go, and then another one"
    for chars in range(30, len(text)):
        for shown in (cut(text, chars, 9), one_line(text, chars)):
            assert "/U" not in shown or "/Users/user/" in shown, shown


def test_text_is_cut_by_characters_and_by_lines() -> None:
    assert cut("abc", 3, 1) == "abc"
    assert cut("abcd", 3, 1) == "abc … (4 characters)"
    assert cut("a\nb\nc", 99, 2) == "a\nb … (5 characters)"
    assert printable("a\r\nb\tc\x00\u2028d") == "a\nb    c��d"


def test_long_lines_are_wrapped_within_their_column() -> None:
    lines = side_by_side("a" * 25 + "\nend", "b\nc\nd\ne", width=10).split("\n")
    assert [line.partition(" │")[0].strip() for line in lines] == [
        "a" * 10,
        "a" * 10,
        "a" * 5,
        "end",
    ]
    assert [line.rpartition("│")[2].strip() for line in lines] == ["b", "c", "d", "e"]


def test_no_line_leaves_the_page(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_session(lake, "one", [(call("x " * 200), "y" * 500), (call("ls"), "b")])
    lines = preview(lake, "states", {"day": DAY}).split("\n")
    assert max(map(len, lines)) <= 119
    assert sum(line.count("y") for line in lines) >= 500

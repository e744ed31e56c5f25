"""Pi's format: `datasets` and `teich` read back every message and every call."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from teich.converter import _normalize_json_like_value as as_teich_reads

from composer_pipeline.chat.convert import Builder, merge_roles, system_message
from composer_pipeline.exporting.sessions import export_sessions, trace_files
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import ChainPath, whole_sessions

Json = dict[str, Any]


def loaded(folder: Path, cache: Path) -> dict[str, Json]:
    """Return what `datasets` makes of a folder of traces, by session."""
    from datasets import load_dataset

    files = [str(path) for path in sorted(folder.glob("*.jsonl"))]
    rows = load_dataset("json", data_files=files, split="train", cache_dir=str(cache))
    assert rows.num_rows == len(files)
    return {row["session_id"]: row for row in rows}


def joined(messages: list[Json]) -> list[Json]:
    """Put messages into the words that both sides have.

    teich strips texts, and reads a text that looks like JSON as JSON; texts of one side that
    stand together are one.
    """
    found: list[Json] = []
    for message in messages:
        text = message["content"]
        if message["role"] == "tool":
            text = re.sub(r"^\[tool error\] ?", "", text)
        made: Json = {"role": message["role"], "content": text.strip()}
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [
                (c["id"], c["function"]["name"], as_teich_reads(c["function"]["arguments"]))
                for c in calls
            ]
        if message["role"] == "tool":
            made["tool_call_id"] = message["tool_call_id"]
        elif found and found[-1]["role"] == made["role"] and "tool_calls" not in found[-1]:
            texts = (found.pop()["content"], made["content"])
            made["content"] = "\n\n".join(t for t in texts if t)
        found.append(made)
    return found


def whole(path: ChainPath) -> list[Json]:
    builder = Builder()
    for message in merge_roles(path.messages):
        (builder.assistant if message["role"] == "assistant" else builder.user)(message["content"])
    system = {"role": "system", "content": system_message(path.states[0])[0]}
    return [system, *builder.messages]


def distinct_calls(paths: list[ChainPath]) -> int:
    """Count the calls of a trajectory, each message once: a number names one within a day."""
    messages = {n: m for p in paths for n, m in zip(p.numbers, p.messages, strict=True)}
    said = [m["content"] for m in messages.values() if m["role"] == "assistant"]
    return sum(block["type"] == "tool_use" for content in said for block in content)


def check(lake: Lake, folder: Path) -> dict[str, Json]:
    export_sessions(lake, "pi", folder / "pi")
    rows = loaded(folder / "pi", folder / "cache")
    straight = 0
    for session in whole_sessions(lake):
        for agent, paths in session.paths.items():
            row = rows[f"{session.session_id}.{agent}" if agent else session.session_id]
            calls = distinct_calls(paths)
            assert row["num_tool_calls"] == calls
            assert sum(len(m.get("tool_calls") or ()) for m in row["messages"]) == calls
            if len(paths) == 1:
                straight += 1
                assert joined(row["messages"]) == joined(whole(paths[0]))
    assert straight > len(rows) // 2
    return rows


@pytest.fixture(scope="module")
def rows(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    return check(lake, tmp_path_factory.mktemp("pi"))


def test_all_messages_and_calls_are_read_back(rows: dict[str, Json]) -> None:
    assert rows["compacted"]["prompt"] == "Write a test"
    assert "\u2028" in rows["rewound"]["prompt"]
    assert rows["compacted.a1"]["num_tool_calls"] == 1
    assert {"Task", "Write"} <= {t["function"]["name"] for t in rows["compacted"]["tools"]}


@pytest.mark.slow
def test_the_corpus(corpus_lake: Lake, tmp_path: Path) -> None:
    check(corpus_lake, tmp_path)


def test_a_file_is_a_tree_whose_calls_have_ids_of_their_own(lake: Lake, tmp_path: Path) -> None:
    (path,) = trace_files(lake, tmp_path, ["rewound"])
    head, *rest = map(json.loads, path.read_text().splitlines())
    assert (head["type"], head["version"], head["harness"]) == ("session", 3, "claude-code")
    entries = [entry for entry in rest if entry["type"] == "message"]
    parents = {entry["id"]: entry["parentId"] for entry in entries}
    assert len(parents) == len(entries)
    assert set(parents.values()) <= {None, *parents}
    # Both branches hang below the one question.
    roots = [name for name, parent in parents.items() if parent is None]
    assert len(roots) == 1
    assert list(parents.values()).count(roots[0]) == 2
    calls = [
        block["id"]
        for entry in entries
        for block in entry["message"]["content"]
        if block["type"] == "toolCall"
    ]
    assert len(set(calls)) == len(calls) == 3


def test_a_subagent_names_its_parent(lake: Lake, tmp_path: Path) -> None:
    paths = trace_files(lake, tmp_path, ["compacted"])
    assert [path.name for path in paths] == ["compacted.a1.jsonl", "compacted.jsonl"]
    head = json.loads(paths[0].read_text().splitlines()[0])
    assert head["parentSession"] == "compacted.jsonl"

"""Real sessions against the independently computed ground truth."""

import json
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.labels import read_labels, score
from composer_pipeline.redaction.redact import find_secrets
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import IngestReport, ingest
from composer_pipeline.traces.parse import analyse

SETS = ("claude-code-sessions", "claude-code-subagents")


@pytest.fixture(scope="module")
def ingested(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, IngestReport]:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    return lake, ingest(lake, [unpacked / name for name in SETS])


@pytest.mark.parametrize("name", SETS)
def test_every_file_equals_the_truth_on_every_key(
    ingested: tuple[Lake, IngestReport], corpus: Path, name: str
) -> None:
    expected = json.loads((corpus / "expected.json").read_text())[name]
    by_file = ingested[1].by_file
    wrong = {
        (file, key): (value, by_file[file].get(key))
        for file, facts in expected.items()
        for key, value in facts.items()
        if by_file[file].get(key) != value
    }
    assert wrong == {}
    assert len(expected) == {"claude-code-sessions": 59, "claude-code-subagents": 8}[name]


@pytest.mark.parametrize("name", SETS)
def test_synthetic_responses_are_those_of_a_plain_count(
    ingested: tuple[Lake, IngestReport], unpacked: Path, name: str
) -> None:
    found, expected = {}, {}
    for path in sorted((unpacked / name).glob("*.jsonl")):
        uuids = set()
        for line in path.read_bytes().split(b"\n"):
            if b'"<synthetic>"' in line or b'"isApiErrorMessage"' in line:
                record = json.loads(line)
                made_up = record.get("isApiErrorMessage") is True
                made_up |= record.get("message", {}).get("model") == "<synthetic>"
                if record["type"] == "assistant" and made_up and not record["isSidechain"]:
                    uuids.add(record["uuid"])
        expected[path.name] = len(uuids)
        found[path.name] = ingested[1].by_file[path.name]["synthetic_assistant"]
    assert found == expected
    assert sum(expected.values()) > 0 or name != SETS[0]


def test_states_are_distinct_complete_and_rebuilt(ingested: tuple[Lake, IngestReport]) -> None:
    lake, report = ingested
    assert report.totals["states"] == 3450 + 825
    assert report.totals["subagent_files"] == 12
    ids = set()
    for state in load_states(lake):
        ids.add(state.state_id)
        assert len(state.messages) == state.n_messages
        assert state.action.text or state.action.tool_calls
    main = lake.duckdb().execute("SELECT count(*) FROM states WHERE agent_id = ''").fetchone()
    assert main == (4132,)
    # Subagents are states of their own, the compaction's own calls are not.
    rest = lake.duckdb().execute(
        "SELECT count(*), count(*) FILTER (agent_id LIKE 'acompact%') FROM states"
        " WHERE agent_id <> ''"
    )
    assert rest.fetchone() == (len(ids) - 4132, 0)
    assert len(ids) > 4132
    assert report.totals["distinct_states"] == len(ids)
    assert report.totals["subagent_states"] == len(ids) - 4132
    assert report.parse.states == len(ids)


def test_tool_results_follow_their_calls_in_every_prefix(
    ingested: tuple[Lake, IngestReport],
) -> None:
    """A literal parent walk loses results of parallel calls in these files."""
    for state in load_states(ingested[0]):
        for at, message in enumerate(state.messages[:-1]):
            if message["role"] != "assistant":
                continue
            calls = [b["id"] for b in message["content"] if b["type"] == "tool_use"]
            answers = [
                b["tool_use_id"]
                for b in state.messages[at + 1]["content"]
                if b["type"] == "tool_result"
            ]
            assert calls == answers


def test_nothing_private_remains(ingested: tuple[Lake, IngestReport]) -> None:
    lake = ingested[0]
    texts = lake.read("messages", columns=["json"])["json"].to_pylist()
    actions = lake.read("states", columns=["action"])["action"].to_pylist()
    texts += [text for text in actions if text]  # else it lies in the messages
    assert [found for text in texts if (found := find_secrets(text))] == []


def _label(message: dict[str, Any]) -> str:
    return f"{message['role']}: " + " | ".join(b.get("text", b["type"]) for b in message["content"])


def _edge(corpus: Path, lake: Lake, name: str) -> list[Any]:
    ingest(lake, [corpus / "edge-cases" / f"{name}.jsonl"])
    return list(load_states(lake))


@pytest.mark.parametrize(
    "name",
    [
        "parallel_interleaved",
        "parallel_v2_1_284",
        "rewind",
        "compact_preserved",
        "context_reset_plan",
        "glued_and_truncated",
        "late2026_attachments",
    ],
)
def test_edge_case_counts(corpus: Path, lake: Lake, name: str) -> None:
    expected = json.loads((corpus / "edge-cases" / "expected.json").read_text())[name]
    file = corpus / "edge-cases" / f"{name}.jsonl"
    report = ingest(lake, [file])
    facts = dict(report.by_file[file.name])
    facts["last_line_bad"] = analyse(file.read_bytes())[1].last_line_bad
    known = {key: value for key, value in expected.items() if key not in ("note", "prefix_of_last")}
    assert {key: facts[key] for key in known} == known
    assert report.totals["synthetic_assistant"] == expected.get("synthetic_assistant", 0)


def test_edge_parallel_prefix_has_both_results(corpus: Path, lake: Lake) -> None:
    last = _edge(corpus, lake, "parallel_interleaved")[-1]
    assert [_label(m) for m in last.messages] == [
        "user: list",
        "assistant: tool_use | tool_use",
        "user: tool_result | tool_result",
    ]


def test_edge_compaction_keeps_preserved_messages(corpus: Path, lake: Lake) -> None:
    states = {s.message_id: s for s in _edge(corpus, lake, "compact_preserved")}
    assert [_label(m) for m in states["msg_c"].messages] == [
        "user: This session is being continued from a previous conversation that ran out of"
        " context. Summary: one.",
        "user: more",
        "assistant: two",
        "user: go on",
    ]
    assert [_label(m) for m in states["msg_b"].messages] == [
        "user: start",
        "assistant: one",
        "user: more",
    ]


def test_edge_late_2026(corpus: Path, lake: Lake) -> None:
    a, b = _edge(corpus, lake, "late2026_attachments")
    assert a.action.tool_calls[0].arguments == {"command": "cd /srv/proj && npm test"}
    assert (a.error_kind, a.hint_source, a.hint) == (
        "failing_tests",
        "exit_code",
        "Exit code 1\n1 failing",
    )
    assert a.system == "You are a test."
    assert [tool["name"] for tool in a.tools] == ["Bash"]
    assert [_label(m) for m in b.messages] == [
        "user: why does it fail?",
        "user: <system-reminder>\ndate: 2026-10-01\n</system-reminder>",
        "assistant: tool_use",
        "user: tool_result",
        "user: also lint",
    ]
    assert b.fidelity == "attachments_rendered"


def test_verdicts_hold_beside_those_of_people(
    ingested: tuple[Lake, IngestReport], corpus: Path
) -> None:
    path = corpus.parent / "labels" / "error_turns.jsonl"
    if not path.is_file():
        pytest.skip("labels are missing: ../shared/labels")
    found = score(ingested[0], read_labels(path))
    assert (found.accuracy.value or 0) >= 0.85
    assert (found.precision_mistake.value or 0) >= 0.9
    assert (found.precision_revealed.value or 0) >= 0.9
    assert (found.culprit_right.value or 0) >= 0.85
    assert (found.visible_found.value or 0) >= 0.6

"""The bundled sessions: deterministic, with the phenomena that the demo relies on."""

import json
from collections import Counter
from pathlib import Path

import pytest

from composer_pipeline.testing.samples import answers, sample_sessions_dir
from scripts.sample_sessions import write as script
from scripts.sample_sessions.authoring import REJECTED


@pytest.fixture(scope="module")
def objects():
    """Path below the folder to the records that a lenient reader finds."""
    out = {}
    root = sample_sessions_dir()
    for path in sorted(root.rglob("*.jsonl")):
        found = []
        for line in path.read_text().split("\n"):
            at, decoder = 0, json.JSONDecoder()
            while at < len(line):
                try:
                    record, at = decoder.raw_decode(line, at)
                except json.JSONDecodeError:
                    break
                found.append(record)
        out[path.relative_to(root).as_posix()] = found
    return out


def blocks(records, kind):
    for record in records:
        content = record.get("message", {}).get("content")
        if isinstance(content, list):
            yield from (b for b in content if b["type"] == kind)


def test_committed_files_are_what_the_scripts_write():
    assert script.stale_files() == []
    assert sum(len(data) for data in script.render().values()) < 600_000


def test_stale_and_extra_files_are_found_and_repaired(tmp_path: Path):
    assert script.write(tmp_path) == len(script.render())
    name = sorted(script.render())[0]
    (tmp_path / name).write_bytes(b"{}")
    (tmp_path / "extra.jsonl").write_bytes(b"{}")
    assert script.stale_files(tmp_path) == sorted([name, "extra.jsonl"])
    script.write(tmp_path)
    assert script.stale_files(tmp_path) == []


def test_sessions_cover_four_days_and_four_projects(objects):
    main = {name: r for name, r in objects.items() if "/subagents/" not in name}
    assert len(main) >= 14
    days = Counter(
        next(r["timestamp"] for r in records if "timestamp" in r)[:10] for records in main.values()
    )
    assert sorted(days) == ["2026-11-16", "2026-11-17", "2026-11-18", "2026-11-19"]
    assert min(days.values()) >= 3
    assert len({name.split("/")[0] for name in main}) == 4
    for name, records in main.items():
        responses = {r["message"]["id"] for r in records if r.get("type") == "assistant"}
        assert 6 <= len(responses) <= 25, name


def test_every_recorded_action_is_in_the_files(objects):
    by_id: dict[str, dict[str, dict]] = {}
    wire: dict[str, dict] = {}
    for records in objects.values():
        for record in records:
            if record.get("type") == "assistant":
                calls = by_id.setdefault(record["message"]["id"], {})
                wire.update(record.get("wireToolInputs", {}))
                for block in record["message"]["content"]:
                    if block["type"] == "tool_use":
                        calls[block["id"]] = block["input"]
    recorded = script.recorded()
    assert set(by_id) == set(recorded)
    for message_id, action in recorded.items():
        told = {c.id: c.arguments for c in action.tool_calls}
        assert told == {key: wire.get(key, value) for key, value in by_id[message_id].items()}


def test_better_actions_differ_and_repeat_across_sessions():
    better, recorded = answers(), script.recorded()
    assert 0.4 <= len(better) / len(recorded) <= 0.6
    for message_id, action in better.items():
        mine = [(c.name, c.arguments) for c in recorded[message_id].tool_calls]
        assert [(c.name, c.arguments) for c in action.tool_calls] != mine
        assert action.tool_calls or action.text
    targets = {(c.name, json.dumps(c.arguments)) for a in better.values() for c in a.tool_calls}
    assert len(targets) >= 30
    by_rule = {
        rule: {s.slug for s in script.sample_sessions() if _follows(s, rule)}
        for rule in ("Read", "git status", "test", "Grep", "Glob")
    }
    assert {rule for rule, found in by_rule.items() if len(found) >= 4} == set(by_rule)


def _follows(session, rule):
    for action in session.answers.values():
        for call in action.tool_calls:
            command = call.arguments.get("command", "")
            if (
                call.name == rule
                or command.startswith(rule)
                or (rule == "test" and "test" in command)
            ):
                return True
    return False


def test_graph_phenomena(objects):
    every = [r for records in objects.values() for r in records]
    kinds = Counter((r["type"], r.get("subtype", "")) for r in every)
    assert kinds["system", "compact_boundary"] == 1
    assert kinds["progress", ""] >= 10
    assert sum(r.get("isCompactSummary", False) for r in every) == 1
    parallel: Counter[str] = Counter()
    for r in every:
        if r["type"] == "assistant":
            parallel[r["message"]["id"]] += sum(1 for _ in blocks([r], "tool_use"))
    assert sum(n >= 2 for n in parallel.values()) >= 4
    prompts = {
        r["parentUuid"]
        for r in every
        if r["type"] == "user" and isinstance(r["message"]["content"], str)
    }
    continued = {r["parentUuid"] for r in every if r["type"] == "assistant"}
    first = [r for records in objects.values() for r in records if "forkedFrom" not in r]
    assert {r["gitBranch"] for r in first if r.get("uuid") in prompts & continued} == {
        "fix/zone",  # rewound in one file
        "units",  # continued in two files
    }
    interrupts = [b["text"] for b in blocks(every, "text") if b["text"].startswith("[Request")]
    assert len(interrupts) >= 3
    assert any(r.get("attachment", {}).get("type") == "queued_command" for r in every)
    assert any(r.get("forkedFrom") for r in every)
    ids = [r["uuid"] for r in every if "uuid" in r]
    assert len(ids) > len(set(ids))


def test_errors_rejections_and_cancelled_calls(objects):
    errors = [
        b["content"]
        for records in objects.values()
        for b in blocks(records, "tool_result")
        if b.get("is_error")
    ]
    assert sum(e.startswith("Exit code ") for e in errors) >= 8
    assert sum(e.startswith(REJECTED) for e in errors) >= 3
    assert sum("has not been read yet" in e for e in errors) >= 4
    assert any("not found in file" in e for e in errors)
    assert any("Sibling tool call errored" in e for e in errors)


def test_damaged_and_unfinished_files():
    raw = {p: p.read_bytes() for p in sample_sessions_dir().rglob("*.jsonl")}
    tails = [data.rsplit(b"\n", 1)[1] for data in raw.values()]
    whole = [tail for tail in tails if tail.endswith(b"}")]
    cut = [tail for tail in tails if tail and not tail.endswith(b"}")]
    assert (len(whole), len(cut)) == (1, 1)
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut[0])
    assert (
        sum(line.count(b'}{"parentUuid"') for data in raw.values() for line in data.split(b"\n"))
        == 1
    )


def test_subagent_has_its_own_file_and_meta(objects):
    (name,) = [n for n in objects if "/subagents/" in n]
    meta = json.loads((sample_sessions_dir() / name.replace(".jsonl", ".meta.json")).read_text())
    parent = objects[name.split("/subagents/")[0] + ".jsonl"]
    assert meta["toolUseId"] in {b["id"] for b in blocks(parent, "tool_use")}
    assert all(r["isSidechain"] and r["agentId"] for r in objects[name])
    assert {r["sessionId"] for r in objects[name]} == {parent[-1]["sessionId"]}


@pytest.mark.parametrize(
    "planted",
    ["AKIAFAKE4TEST4SAMPLE", "sk-or-v1-deadbeef", "postgres://birdlog:terns-and-gulls@",
     "mira.okafor@saltmarsh-example.org", "jonas.lind@terns-example.net",
     "/Users/jonas/", "/home/mira/"],
)  # fmt: skip
def test_secrets_and_personal_data_are_planted(planted):
    text = b"".join(script.render().values()).decode()
    assert planted in text


def test_command_reports_staleness(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sessions"])
    assert script.main() == 0
    monkeypatch.setattr(script, "stale_files", lambda: ["x.jsonl"])
    assert script.main() == 1
    assert "x.jsonl" in capsys.readouterr().out

"""A session with more subagents than a process may open files is ingested whole."""

import json
import resource
import subprocess
import sys

SESSION = "11111111-1111-4111-8111-111111111111"


def _lines(agent):
    """Return a question and its answer, of the main agent or of a subagent."""
    same = {
        "sessionId": SESSION, "timestamp": "2026-03-01T10:00:00.000Z", "cwd": "/w",
        "version": "2.0.0", "isSidechain": bool(agent), "userType": "external",
    } | ({"agentId": agent} if agent else {})  # fmt: skip
    answer = {
        "id": f"m{agent}", "type": "message", "role": "assistant", "model": "claude",
        "content": [{"type": "text", "text": f"done {agent}"}], "stop_reason": "end_turn",
    }  # fmt: skip
    asked = {"type": "user", "message": {"role": "user", "content": f"do {agent}"}}
    lines = [
        same | asked | {"uuid": f"u{agent}", "parentUuid": None},
        same | {"type": "assistant", "requestId": f"r{agent}", "message": answer,
                "uuid": f"a{agent}", "parentUuid": f"u{agent}"},
    ]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def _few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


def test_more_subagents_than_open_files(tmp_path):
    agents = [f"x{n:04d}" for n in range(150)]
    below = tmp_path / "sessions" / "project" / SESSION / "subagents"
    below.mkdir(parents=True)
    (below.parents[1] / f"{SESSION}.jsonl").write_text(_lines(""))
    for agent in agents:
        (below / f"agent-{agent}.jsonl").write_text(_lines(agent))
    lake = tmp_path / "lake"
    done = subprocess.run(
        [sys.executable, "-m", "composer_pipeline.cli", "ingest", tmp_path / "sessions",
         "--lake", lake, "--json"],
        preexec_fn=_few_files, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["states"], report["subagent_states"], report["subagents"]) == (151, 150, 150)

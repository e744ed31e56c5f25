"""The fixtures of session files, and sessions with everything that a format must carry."""

from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest
from tests.fixtures.sessions import Script, corpus, unpacked

__all__ = ["corpus", "unpacked"]


def odd_sessions(folder: Path) -> None:
    """Write a rewind, a compaction, a subagent, an error, an image and text of other alphabets."""
    one = Script("rewound")
    asked = one.user("Fix it\u2028please")
    one.call("m1", "t1", command="ls")
    one.result("t1", "a.py", error=True)
    one.call("m2", "t2", "Read", file_path="/srv/p/a.py")
    one.result("t2", [{"type": "image", "source": {}}, {"type": "text", "text": "x"}])
    one.say("m3", "Done.")
    one.leaf = asked
    one.call("m4", "t4", command="pwd")
    one.result("t4", "/srv/p")
    one.say("m5", "All good.")
    one.write(folder)
    two = Script("compacted")
    two.user("Write a test")
    two.call("k1", "t1", "Task", prompt="Look around", description="look", subagent_type="x")
    two.result("t1", "seen")
    two.say("k2", "I looked.")
    two.add("system", parent=None, logicalParentUuid=two.leaf, subtype="compact_boundary",
            compactMetadata={"trigger": "auto"})  # fmt: skip
    two.user("Summary: a test is wanted", isCompactSummary=True)
    two.call("k3", "t3", "Write", file_path="t.py", content='{"a": 1}')
    two.write(folder)
    agent = Script("compacted")
    agent.user("Look around", isSidechain=True, agentId="a1")
    agent.call("n1", "s1", fields={"isSidechain": True, "agentId": "a1"})
    agent.result("s1", "b.py", isSidechain=True, agentId="a1")
    agent.say("n2", "seen", isSidechain=True, agentId="a1")
    agent.write(folder / "compacted" / "subagents", "agent-a1.jsonl")


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The bundled sessions and the odd ones."""
    folder = tmp_path_factory.mktemp("interchange")
    odd_sessions(folder / "projects")
    lake = Lake(folder / "lake")
    ingest(lake, [sample_sessions_dir(), folder / "projects"])
    return lake


@pytest.fixture(scope="session")
def corpus_lake(unpacked: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Every third session of the shared corpus, and all with subagents or oddities."""
    lake = Lake(tmp_path_factory.mktemp("corpus-lake"))
    third = sorted((unpacked / "claude-code-sessions").rglob("*.jsonl"))[::3]
    ingest(lake, [*third, unpacked / "claude-code-subagents", corpus / "edge-cases"])
    return lake

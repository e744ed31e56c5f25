"""The seam for other agents' logs, proved with a source of a few lines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest

from composer_pipeline import plugins
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.traces import source as sources
from composer_pipeline.traces.discover import agents_here
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.records import LineStats, Record


class Plain(sources.TraceSource):
    """A source for a format of one line a message: ``role|text``."""

    name = "plain"

    def recognises(self, head: Sequence[bytes]) -> bool:
        return head[:1] == [b"#plain\n"]

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        for number, line in enumerate(lines):
            stats.lines += 1
            role, _, text = line.decode().strip().partition("|")
            if text:
                body = {
                    "role": role,
                    "id": f"p{number}",
                    "content": [{"type": "text", "text": text}],
                }
                yield Record(
                    type=role,
                    uuid=f"p{number}",
                    parent_uuid=f"p{number - 1}" if number > 1 else None,
                    session_id="plain-1",
                    timestamp="2026-11-16T00:00:00Z",
                    message=msgspec.Raw(json.dumps(body).encode()),
                )


class Wrong:
    """Not a source."""


def _install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, sources.SOURCES.group)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    monkeypatch.setattr(
        EntryPoint, "load", lambda self: {"Plain": Plain, "Wrong": Wrong}[self.attr]
    )
    sources.sources.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    sources.sources.cache_clear()


def test_a_package_adds_a_source(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(monkeypatch, "plain", "some.package:Plain")
    path = tmp_path / "log.jsonl"
    path.write_text("#plain\nuser|hello bob@acme.com\nassistant|hi\n")
    ingest(lake, [path])
    (state,) = load_states(lake)
    assert state.action.text == "hi"
    assert state.messages[0]["content"][0]["text"].startswith("hello [EMAIL_")
    assert [source.name for source in sources.sources()] == ["plain", "claude-code"]


PLACES = [
    ("claude-code", "CLAUDE_CONFIG_DIR", ".claude", "projects"),
    ("codex", "CODEX_HOME", ".codex", "archived_sessions"),
    ("copilot", "COPILOT_HOME", ".copilot", "session-state"),
    ("gemini", "GEMINI_CLI_HOME", ".", ".gemini/tmp"),
    ("opencode", "XDG_DATA_HOME", ".local/share", "opencode/opencode-dev.db"),
    ("pi", "PI_CODING_AGENT_DIR", ".pi/agent", "sessions"),
]


@pytest.mark.parametrize("moved", [False, True])
def test_sessions_are_found_where_each_agent_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PI_CODING_AGENT_SESSION_DIR", raising=False)
    expected = {}
    for agent, variable, folder, place in PLACES:
        top = tmp_path / (agent if moved else folder)
        if moved:
            monkeypatch.setenv(variable, str(top))
        else:
            monkeypatch.delenv(variable, raising=False)
        expected[agent] = [top / place]
    files = [f if f.suffix == ".db" else f / "session.jsonl" for (f,) in expected.values()]
    for file in files:
        file.parent.mkdir(parents=True)
    assert agents_here() == {}
    for file in files:
        file.touch()
    assert agents_here() == expected


def test_a_broken_plug_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "wrong", "some.package:Wrong")
    with pytest.raises(InputError, match=r"'wrong' \(some\.package:Wrong\)"):
        sources.sources()

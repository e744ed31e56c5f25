"""Fixtures of the replay tests: a lake with made-up states and teachers on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.states import write_sessions

DEMO = Path(__file__).parents[2] / "recipes" / "teachers" / "demo.yaml"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=3, turns=4)
    return lake


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """A ledger that does not exist yet, on each database."""
    if request.param == "sqlite":
        return tmp_path / "ledger.db"
    url: str = request.getfixturevalue("postgres_server").database()
    return url


@pytest.fixture
def teacher_set() -> TeacherSet:
    """The demo's teachers, with short waits."""
    data = TeacherSet.load(DEMO).model_dump()
    data["limits"] |= {"backoff_s": 0.01, "backoff_cap_s": 0.05, "read_timeout_s": 2, "drain_s": 1}
    return TeacherSet.model_validate(data)


@pytest.fixture
def serve(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., LoopbackOpenRouter]]:
    """Start servers that know the lake's states; the last one is the endpoint."""
    from composer_pipeline.trace_states import load_states

    servers = []

    def start(**options: Any) -> LoopbackOpenRouter:
        options.setdefault("script", Script.from_states(load_states(lake), {}))
        options.setdefault("flaky_faults", False)
        server = LoopbackOpenRouter(lifetime=120, **options).start()
        monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()

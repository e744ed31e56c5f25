"""Fixtures that several folders share, and the rule for parts a machine may lack."""

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.fixtures.postgres import INSTALL, PostgresServer, postgres_folder
from tests.places import ROOT

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["COMPOSER_SECOND_SCANNER"] = "off"  # no process of an ingest outlives its test
os.environ["COMPOSER_ENV_FILE"] = os.devnull  # a developer's own .env
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# The graph's days begin where its tests' days do, whatever sessions this machine has.
os.environ["COMPOSER_FIRST_DAY"] = "2026-11-01"

#: A busy machine is no failure: neither slow examples nor their slow making.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")


_OF_TESTS = ("COMPOSER_REQUIRE", "COMPOSER_CACHE", "COMPOSER_ENV_FILE")


def require(part: str, present: bool, how: str) -> None:
    """Skip where ``part`` is absent; fail instead when COMPOSER_REQUIRE names it."""
    if present:
        return
    if part in os.environ.get("COMPOSER_REQUIRE", "").split(","):
        pytest.fail(f"{part} is required: {how}")
    pytest.skip(f"{part} is missing: {how}")


def pytest_collection() -> None:
    """Collect no garbage while a thousand modules are imported: they all stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look from here on at what tests make, not again and again at what was imported."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers begin with the files that hold a slow test: begun last, one would end alone."""
    if hasattr(config, "workerinput"):
        long = ("slow", "ui")
        slow = {item.path for item in items if any(map(item.get_closest_marker, long))}
        items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    require("chromium", path is not None, "apt-get install chromium")
    assert path is not None
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    require("postgres", postgres_folder() is not None, INSTALL)
    with PostgresServer(lifetime=24 * 3600) as server:  # the suite may take an hour
        yield server


@pytest.fixture(scope="session")
def whole_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with every table, to be copied or read; nobody writes into it."""
    from tests.fixtures.whole_lake import make_whole_lake

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COMPOSER_")]:
            patch.delenv(name)
        return make_whole_lake(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own COMPOSER_* variables and keys must not reach a test."""
    for name in list(os.environ):
        if name.startswith("COMPOSER_") and name not in _OF_TESTS:
            monkeypatch.delenv(name)
    for name in ("OPENROUTER_API_KEY", "HF_TOKEN", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; skips where mounting is not permitted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount cannot be run: {error}")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)

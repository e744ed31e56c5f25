"""Every kind of bad input is one sentence in the UI, with the trace below it."""

import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.definitions import build_defs
from assets.failures import one_sentence, sentence_of
from assets.schedules import range_tags
from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from examples.demo.profile import demo_settings
from examples.demo.run import QUIET
from tests.fixtures.lake_states import DAY, write_sessions
from tests.places import fill

CAREFUL = "teacher_replies/careful"
Told = Callable[..., str]


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a day of states, to be read; who writes takes a copy."""
    folder = tmp_path_factory.mktemp("states") / "lake"
    write_sessions(Lake(folder), sessions=1, turns=2)
    return folder


@pytest.fixture
def settings(states: Path, tmp_path: Path) -> Settings:
    shutil.copytree(states, tmp_path / "lake")
    return demo_settings(lake=str(tmp_path / "lake"), max_usd="5")


@pytest.fixture
def told(settings: Settings) -> Iterator[Told]:
    """Materialise one asset with some settings; return the first line of why it failed."""
    with dg.DagsterInstance.ephemeral() as instance:

        def run(
            asset: str, config: dict[str, Any] | None = None, day: str = DAY, **changes: str
        ) -> str:
            job = "__ASSET_JOB"
            key = dg.AssetKey(asset.split("/"))
            daily = asset not in ("training_dataset", "trained_model", "published_dataset")
            defs = build_defs(settings.model_copy(update=changes))
            result = defs.resolve_job_def(job).execute_in_process(
                instance=instance,
                asset_selection=[key],
                tags=range_tags(day, day) if daily else {},
                run_config={**QUIET, "ops": config or {}},
                raise_on_error=False,
            )
            assert not result.success
            (failure,) = [event for event in result.all_events if event.is_step_failure]
            data = failure.step_failure_data
            assert data.error is not None
            assert data.user_failure_data, data.error.message
            assert data.error.stack or data.error.cause, "no trace below it"
            said = str(data.user_failure_data.description)
            assert said == sentence_of(instance, result.run_id)
            return said

        yield run


def broken(folder: Path, source: str, old: str, new: str) -> str:
    """Write a copy of a user's file with a slip; return its path."""
    text = Path(source).read_text()
    assert old in text
    file = folder / "broken.yaml"
    file.write_text(text.replace(old, new, 1))
    return str(file)


@pytest.mark.parametrize(
    ("setting", "asset", "old", "new", "sentence"),
    [
        (
            "preferences",
            "preference_pairs",
            "max_auc:",
            "max_aux:",
            "separability.max_aux: unknown",
        ),
        ("normalize", "normalized_pairs", "use_cache:", "use_cach:", "use_cach: unknown field"),
        ("train", "trained_model", "learning_rate:", "learning_rat:", "learning_rat: unknown"),
    ],
)
def test_a_file_of_the_user(
    setting: str, asset: str, old: str, new: str, sentence: str,
    told: Told, settings: Settings, tmp_path: Path,
) -> None:  # fmt: skip
    file = broken(tmp_path, getattr(settings, setting), old, new)
    said = told(asset, **{setting: file})
    assert f"{file}: line " in said
    assert sentence in said
    assert "\n" not in said


def test_a_teacher_file_that_broke_after_the_graph_was_loaded(
    told: Told, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assets import definitions

    good = TeacherSet.load(settings.teachers)
    monkeypatch.setattr(definitions, "_teachers", lambda settings: good)
    file = broken(tmp_path, settings.teachers, "family:", "famly:")
    said = told(CAREFUL, teachers=file)
    assert said.startswith(f"teacher file {file}: line ")
    assert "famly: unknown field" in said


def test_the_sessions_folder_is_missing(told: Told, tmp_path: Path) -> None:
    assert told("raw_sessions", sessions=str(tmp_path / "none")).startswith(f"{tmp_path / 'none'}")


@pytest.mark.parametrize("amount", ["0", "-1", "lots", "nan", "inf"])
def test_a_ceiling_that_is_none(amount: str, told: Told) -> None:
    said = told(CAREFUL, {"replay": {"config": {"max_usd": amount}}})
    assert said.startswith("max_usd")  # the field's name, and not that of the command's option
    assert amount in said.lower()
    assert "\n" not in said


def test_no_key(told: Told, settings: Settings) -> None:
    file = Path(settings.teachers).with_name("default.yaml")
    name = TeacherSet.load(file).teachers[0].name
    assert "OPENROUTER_API_KEY" in told(f"teacher_replies/{name}", teachers=str(file))


def test_a_lake_in_a_bucket_that_is_not_there(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "hidden-secret", "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    said = told("training_dataset", lake="s3://nowhere/lake")
    assert said.startswith("the lake's bucket failed: ")
    assert "http://127.0.0.1:9/nowhere" in said
    assert "\n" not in said
    assert "hidden-secret" not in said
    assert len(said) < 400


@pytest.mark.parametrize("asset", ["raw_sessions", "trace_states", "training_dataset"])
def test_a_bucket_that_refuses_the_key(asset: str, told: Told, locked_bucket: str) -> None:
    began = time.monotonic()
    said = told(asset, lake="s3://bucket/lake")
    assert time.monotonic() - began < 60, "it was tried again, which takes 70 s"
    assert said.startswith(f"the lake's bucket {locked_bucket}/bucket refuses these credentials")
    assert "hidden-secret" not in said


def test_a_refusal_that_the_library_has_put_into_words_is_final_too() -> None:
    from obstore.exceptions import PermissionDeniedError

    @one_sentence
    def stage() -> None:
        refusal = PermissionDeniedError("403 at http://127.0.0.1:9/bucket/lake/x: hidden-secret")
        raise ComposerError("the lake's journal cannot be read") from refusal

    with pytest.raises(dg.Failure) as told:
        stage()
    assert not told.value.allow_retries, "it would be tried again for a minute"
    said = str(told.value.description)
    assert said.startswith("the lake's bucket http://127.0.0.1:9/bucket refuses these credentials")
    assert "hidden-secret" not in said


@pytest.fixture(scope="module")
def locked_bucket() -> Iterator[str]:
    """A bucket that knows no key."""
    pytest.importorskip("boto3", reason="pip install 'moto[server]'")
    import httpx
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "wrong", "AWS_ALLOW_HTTP": "true",
            "AWS_SECRET_ACCESS_KEY": "hidden-secret", "AWS_REGION": "us-east-1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        httpx.post(f"{url}/moto-api/reset-auth", content=b"0").raise_for_status()
        yield url
        # All servers of a process share it.
        httpx.post(f"{url}/moto-api/reset-auth", content=b"Infinity").raise_for_status()
    server.stop()


@pytest.mark.parametrize("asset", ["raw_sessions", "trace_states", "preference_pairs", CAREFUL])
def test_a_day_in_the_future(asset: str, told: Told) -> None:
    said = told(asset, day="2099-01-01")
    assert said.startswith("day 2099-01-01 is in the future: days go from 2026-11-01 to ")


def test_a_provider_that_is_away(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_OPENROUTER_URL", "http://127.0.0.1:9/api/v1")
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", "none")
    began = time.monotonic()
    said = told(CAREFUL)
    assert said.startswith("endpoint http://127.0.0.1:9/api/v1 cannot be reached (")
    assert time.monotonic() - began < 60  # the bar; it takes 3


def test_a_ledger_of_a_newer_version(told: Told, settings: Settings, told_server: str) -> None:
    file = Path(settings.lake) / "ledger.db"
    Ledger(file).close()
    with closing(sqlite3.connect(file)) as con, con:
        con.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
    said = told(CAREFUL)
    assert f"{file}" in said
    assert "99" in said
    assert "newer" in said


def test_a_locked_ledger(
    told: Told, settings: Settings, told_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(settings.lake) / "ledger.db"
    Ledger(file).close()
    store = sys.modules["composer_pipeline.teachers.ledger.sqlite"]
    monkeypatch.setattr(store, "BUSY_S", 0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as con:
        con.execute("BEGIN EXCLUSIVE")
        said = told(CAREFUL)
    assert f"{file}" in said
    assert "locked" in said


@pytest.fixture
def told_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    script = Script.from_states(load_states(Lake(settings.lake)), {})
    with LoopbackOpenRouter(script, lifetime=120, flaky_faults=False) as server:
        monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        yield server.url


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (Fault("error", 401), "refuses the account (HTTP 401); check COMPOSER_LOOPBACK_KEY"),
        (Fault("unavailable", 404, code="model_deprecated"), "model_deprecated"),
    ],
    ids=["a refused key", "a renamed model"],
)
def test_a_provider_that_refuses(
    fault: Fault, sentence: str, told: Told, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script.from_states(load_states(Lake(settings.lake)), {})
    faults = lambda asked: fault  # noqa: E731
    with LoopbackOpenRouter(script, lifetime=120, flaky_faults=False, faults=faults) as server:
        monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        assert sentence in told(CAREFUL)


def test_a_full_disk(told: Told, small_disk: Path, settings: Settings) -> None:
    lake = small_disk / "lake"
    lake.mkdir()
    fill(small_disk)
    said = told("raw_sessions", lake=str(lake))
    assert str(lake) in said
    assert "No space left" in said

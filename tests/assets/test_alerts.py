"""Alerts reach a webhook once each, without keys, and wait where it does not answer."""

import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.freshness import (
    FreshnessState,
    FreshnessStateRecord,
    FreshnessStateRecordBody,
)
from dagster._core.remote_origin import RemoteJobOrigin
from dagster._core.remote_representation.external import RemoteSchedule
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.test_utils import create_run_for_test, in_process_test_workspace
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_shared.error import SerializableErrorInfo

from assets import alerts
from assets.alerts import VARIABLE, build_alerts, problems, send_alert
from assets.failures import one_sentence
from assets.money import REACHED_TAG, UNANSWERED_TAG
from composer_pipeline.errors import ComposerError, InputError
from tests.places import ROOT

KEY = "sk-or-v1-" + "7f3a9c0d" * 8


class Receiver:
    """A chat's webhook on this machine."""

    def __init__(self) -> None:
        self.status, self.bodies = 200, list[dict[str, Any]]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                assert self.headers["Content-Type"] == "application/json"
                body = json.loads(self.rfile.read(size))
                if outer.status == 200:
                    outer.bodies.append(body)
                self.send_response(outer.status)
                self.send_header("Location", "http://127.0.0.1:9/")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/T0/secret-part"
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def texts(self) -> list[str]:
        assert all(list(body) == ["text"] for body in self.bodies)
        return [body["text"] for body in self.bodies]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def schedule(instance: dg.DagsterInstance) -> Iterator[RemoteSchedule]:
    """A schedule of a code location that Dagster has loaded."""
    target = LoadableTargetOrigin(
        module_name="tests.assets.alerts_location", attribute="defs", working_directory=str(ROOT)
    )
    with in_process_test_workspace(instance, target) as context:
        (location,) = context.code_locations
        (repository,) = location.get_repositories().values()
        yield repository.get_schedules()[0]


@dg.asset
@one_sentence
def broken() -> None:
    raise InputError(f"teacher file x.yaml: line 3: key {KEY} does not belong here")


def fail(instance: dg.DagsterInstance, **tags: str) -> str:
    return dg.materialize([broken], instance=instance, tags=tags, raise_on_error=False).run_id


def tick(instance: dg.DagsterInstance, cursor: str | None) -> Any:
    context = dg.build_sensor_context(instance=instance, cursor=cursor)
    return build_alerts()(context)


def a_while_ago() -> str:
    return json.dumps({"since": time.time() - 60, "sent": []})


def test_a_failed_run_is_told_once_without_its_key(
    instance: dg.DagsterInstance, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, receiver.url)
    monkeypatch.setenv("OTHER_PASSWORD", "correct horse battery")
    fail(instance)
    first = tick(instance, a_while_ago())
    assert len(receiver.texts) == 1
    assert "failed: teacher file x.yaml: line 3: key" in receiver.texts[0]
    assert KEY not in receiver.texts[0]
    second = tick(instance, first.cursor)
    assert "Nothing new" in second.skip_reason.skip_message
    assert len(receiver.texts) == 1
    fail(instance)
    tick(instance, second.cursor)
    assert len(receiver.texts) == 2


@pytest.mark.parametrize("status", [302, 404, 500])
def test_what_was_not_taken_is_told_again(
    status: int,
    instance: dg.DagsterInstance,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, receiver.url)
    receiver.status = status
    fail(instance)
    cursor = a_while_ago()
    for _ in range(2):
        found = tick(instance, cursor)
        cursor = found.cursor
        assert str(status) in found.skip_reason.skip_message
        assert "1 wait" in found.skip_reason.skip_message
        assert "secret-part" not in found.skip_reason.skip_message
    receiver.status = 200
    tick(instance, cursor)
    assert len(receiver.texts) == 1


def test_a_webhook_that_is_not_there_is_said_without_its_url(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.server.shutdown()
    receiver.server.server_close()
    with pytest.raises(ComposerError, match=r"127\.0\.0\.1 was not reached") as caught:
        send_alert(["x"], receiver.url)
    assert "secret-part" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(InputError, match=VARIABLE):
        send_alert(["x"], "ftp://h/secret-part")


def test_a_slow_webhook_costs_seconds(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.alerts.TIMEOUT_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ComposerError, match="ReadTimeout"),
    ):
        send_alert(["x"], f"http://127.0.0.1:{silent.getsockname()[1]}/")


def test_without_a_url_it_is_off(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_alerts().default_status is dg.DefaultSensorStatus.STOPPED
    fail(instance)
    assert VARIABLE in tick(instance, a_while_ago()).skip_reason.skip_message
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:9/")
    assert build_alerts().default_status is dg.DefaultSensorStatus.RUNNING


def test_values_of_keys_and_long_texts_are_cut(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_PASSWORD", "correct horse battery")
    problems = ["a\nb correct horse battery", "x" * 5000, *(f"p{i}" for i in range(30))]
    send_alert(problems, receiver.url)
    lines = receiver.texts[0].splitlines()
    assert lines[0] == "composer-pipeline"
    assert lines[1] == "• a b [OTHER_PASSWORD]"
    assert len(lines[2]) < 520
    assert lines[-1] == "… and 12 more"


def test_a_ceiling_a_stuck_run_and_an_overdue_asset(
    instance: dg.DagsterInstance, schedule: RemoteSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    run_id = fail(instance, **{REACHED_TAG: "month:2026-11"})
    origin = RemoteJobOrigin(schedule.get_remote_origin().repository_origin, "harvest")
    waiting = create_run_for_test(
        instance, job_name="harvest", status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin
    )
    late, fine = (
        FreshnessStateRecord(
            entity_key=dg.AssetKey(name),
            freshness_state=state,
            updated_at=datetime.now(UTC),
            record_body=FreshnessStateRecordBody(metadata=None),
        )
        for name, state in (
            ("raw_sessions", FreshnessState.FAIL),
            ("trace_states", FreshnessState.PASS),
        )
    )
    monkeypatch.setattr(
        type(instance),
        "get_freshness_state_records",
        lambda self, keys: {record.entity_key: record for record in (late, fine)},
    )
    soon = problems(instance, now - 1, now + 60)
    assert not any(name.startswith("queue:") for name in soon)
    found = problems(instance, now - 1, now + alerts.STUCK_S + 60)
    still = {f"queue:{waiting.run_id}", "fresh:raw_sessions"}
    assert set(found) == {f"ceiling:{run_id}", *still}
    assert found[f"ceiling:{run_id}"].endswith("reached the ceiling of month:2026-11.")
    assert "(harvest) has been queued for 11 minutes" in found[f"queue:{waiting.run_id}"]
    assert problems(instance, now + 3600, now + 3600).keys() == still


def test_a_run_that_went_on_without_a_teacher_is_told(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def fine() -> None:
        pass

    for away in ("no", "steady"):
        tags = {REACHED_TAG: "no", UNANSWERED_TAG: away}
        dg.materialize([fine], instance=instance, tags=tags)
    (said,) = problems(instance, time.time() - 60, time.time()).values()
    assert said.endswith("went on without replies of steady.")


def test_a_failed_tick_is_told(instance: dg.DagsterInstance, schedule: RemoteSchedule) -> None:
    instance.add_instigator_state(
        InstigatorState(
            schedule.get_remote_origin(),
            InstigatorType.SCHEDULE,
            InstigatorStatus.RUNNING,
            ScheduleInstigatorData("0 0 * * *", time.time()),
        )
    )
    cause = SerializableErrorInfo("InputError: sessions folder none\n", [], "InputError")
    instance.create_tick(
        TickData(
            schedule.get_remote_origin_id(),
            schedule.name,
            InstigatorType.SCHEDULE,
            TickStatus.FAILURE,
            time.time(),
            error=SerializableErrorInfo("ScheduleExecutionError: x", [], "E", cause),
            selector_id=schedule.selector_id,
        )
    )
    (told,) = problems(instance, time.time() - 60, time.time()).values()
    assert told == "nightly failed to run: InputError: sessions folder none"

"""Alerts: a sensor that posts what went wrong to a webhook."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.scheduler.instigation import TickStatus

from assets.failures import sentence_of
from assets.money import REACHED_TAG, TONIGHT, UNANSWERED_TAG
from assets.night import REFUSED
from composer_pipeline.errors import ComposerError, InputError

#: The webhook's URL. Whoever knows it can post there, so it is a secret and in no setting.
VARIABLE = "COMPOSER_ALERT_URL"
TIMEOUT_S = 5.0
MOST = 20
_LONGEST = 500
_SECRET = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_URL")
_SHORTEST_SECRET = 8


def send_alert(problems: Sequence[str], url: str) -> None:
    """Post ``{"text": …}``, as Slack, Mattermost, Google Chat and others accept it."""
    import httpx

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{VARIABLE} is not an http(s) URL")
    try:
        answer = httpx.post(
            url, json={"text": _text(problems)}, timeout=TIMEOUT_S, follow_redirects=False
        )
    except httpx.HTTPError as error:
        raise ComposerError(
            f"the webhook at {parts.hostname} was not reached: {type(error).__name__}"
        ) from None  # the error's message may contain the URL
    if not answer.is_success:
        raise ComposerError(f"the webhook at {parts.hostname} answered {answer.status_code}")


def _text(problems: Sequence[str]) -> str:
    lines = [f"• {_safe(problem)}" for problem in problems[:MOST]]
    more = len(problems) - MOST
    return "\n".join(["composer-pipeline", *lines, *([f"… and {more} more"] if more > 0 else [])])


def _safe(text: str) -> str:
    """Return a text on one line, redacted and without the values of secret variables."""
    for name, value in os.environ.items():
        if name.endswith(_SECRET) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"[{name}]")
    from composer_pipeline.redaction.redact import redact_text

    text = redact_text(" ".join(text.split()))[0]
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


#: A run that is queued for longer is stuck: behind another run, or a slot that is never freed.
STUCK_S = 600.0
#: Two evaluations overlap by this much, since a storage may show an event after its timestamp.
OVERLAP_S = 120.0
_MOST = 200

Problems = Iterator[tuple[str, str]]


def problems(instance: dg.DagsterInstance, since: float, now: float) -> dict[str, str]:
    """Return what went wrong since a moment, and what still is wrong: name -> sentence."""
    found: dict[str, str] = {}
    for find in (_runs, _nights, _ticks, _queue):
        found |= find(instance, since, now)
    return found | dict(_overdue(instance))


def _runs(instance: dg.DagsterInstance, since: float, _now: float) -> Problems:
    """Runs that failed, that a ceiling ended, or that a teacher did not answer."""
    ended = dg.RunsFilter(updated_after=datetime.fromtimestamp(since, UTC))
    for record in instance.get_run_records(ended, limit=_MOST):
        run = record.dagster_run
        if (record.end_time or 0) < since:
            continue
        scope, away = (run.tags.get(tag, "no") for tag in (REACHED_TAG, UNANSWERED_TAG))
        if scope != "no":
            yield f"ceiling:{run.run_id}", f"{_name(run)} reached the ceiling of {scope}."
        elif run.status is dg.DagsterRunStatus.FAILURE:
            yield f"run:{run.run_id}", f"{_name(run)} failed: {sentence_of(instance, run.run_id)}"
        elif away != "no":
            yield f"away:{run.run_id}", f"{_name(run)} went on without replies of {away}."


def _name(run: dg.DagsterRun) -> str:
    name = run.job_name
    keys = sorted(key.to_user_string() for key in run.asset_selection or ())
    if keys and name.startswith("__"):  # started in the UI, without a job
        name = ", ".join(keys[:3]) + (" …" if len(keys) > 3 else "")
    return f"Run {run.run_id[:8]} ({name})"


def _nights(instance: dg.DagsterInstance, since: float, _now: float) -> Problems:
    """Nights that were held, or whose model is worse: their runs succeed."""
    wanted = dg.AssetRecordsFilter(dg.AssetKey(TONIGHT), after_timestamp=since)
    for record in instance.fetch_materializations(wanted, limit=_MOST).records:
        made = record.asset_materialization
        if made and (refused := made.metadata.get(REFUSED)):
            yield f"night:{record.storage_id}", str(refused.value)


def _ticks(instance: dg.DagsterInstance, since: float, _now: float) -> Problems:
    """Schedules and sensors whose evaluation failed."""
    for state in instance.all_instigator_state():
        for tick in instance.get_ticks(
            state.instigator_origin_id,
            state.selector_id,
            after=since,
            limit=_MOST,
            statuses=[TickStatus.FAILURE],
        ):
            cause = tick.error.cause if tick.error else None
            reason = cause.message.strip() if cause else ""
            reason = reason or (tick.error.message.strip() if tick.error else "") or "no reason"
            yield (
                f"tick:{state.instigator_name}:{tick.tick_id}",
                f"{state.instigator_name} failed to run: {reason.partition(chr(10))[0]}",
            )


def _queue(instance: dg.DagsterInstance, _since: float, now: float) -> Problems:
    """Runs that have been queued for too long."""
    waiting = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.QUEUED],
        created_before=datetime.fromtimestamp(now - STUCK_S, UTC),
    )
    for record in instance.get_run_records(waiting, limit=_MOST):
        minutes = (now - record.create_timestamp.replace(tzinfo=UTC).timestamp()) / 60
        run = record.dagster_run
        yield f"queue:{run.run_id}", f"{_name(run)} has been queued for {minutes:.0f} minutes."


def _overdue(instance: dg.DagsterInstance) -> Problems:
    """Assets that are older than their freshness policy allows."""
    for key, record in instance.get_freshness_state_records(instance.get_asset_keys()).items():
        if record.freshness_state is FreshnessState.FAIL:
            name = key.to_user_string()
            yield f"fresh:{name}", f"{name} is overdue: older than its freshness policy allows."


def build_alerts() -> dg.SensorDefinition:
    """Return the sensor ``alerts``; it is on if ``COMPOSER_ALERT_URL`` is set."""
    on = bool(os.environ.get(VARIABLE))

    @dg.sensor(
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING if on else dg.DefaultSensorStatus.STOPPED,
        description="Post failed runs and ticks, teachers that did not answer, stuck queues,"
        " reached ceilings, refused nights and overdue assets to the webhook COMPOSER_ALERT_URL,"
        " each once.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        url, now = os.environ.get(VARIABLE, ""), time.time()
        if not url:
            return _skip(f"{VARIABLE} is not set.", context.cursor)
        cursor: dict[str, Any] = json.loads(context.cursor or "{}")
        since = float(cursor.get("since", now))
        found = problems(context.instance, since - OVERLAP_S, now)
        new = {name: text for name, text in found.items() if name not in cursor.get("sent", ())}
        if new:
            try:
                send_alert(list(new.values()), url)
            except ComposerError as error:
                return _skip(
                    f"{error}; {len(new)} wait for the next tick.",
                    json.dumps({"since": since, "sent": cursor.get("sent", [])}),
                )
        outcome = f"Alerts sent: {len(new)}." if new else "Nothing new."
        return _skip(outcome, json.dumps({"since": now, "sent": sorted(found)}))

    return alerts


def _skip(reason: str, cursor: str | None) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=cursor)

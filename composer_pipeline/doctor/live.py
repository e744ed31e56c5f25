"""Asking the provider what its documentation leaves open, for cents and under a ceiling.

Belongs here: one session of probes, the ledger around each paid question, and the report
that is kept. Does not belong here: what each probe does (``doctor.probes``), and checks
of the environment (``composer_pipeline.doctor.environment``).

These probes have been run against the loopback provider only, never against the real
service; what they say about it is known once somebody with a key runs them.
"""

import asyncio
import json
import os
import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.doctor.environment import check
from composer_pipeline.doctor.prober import Finding, NotAsked, Patience, Prober
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.money import NOTHING, PICO, Pico, ceiling_of
from composer_pipeline.replay.catalogue import fetch
from composer_pipeline.replay.ledger import Commits, Ledger, ledger_target, rules
from composer_pipeline.replay.paid_call import PaidCalls
from composer_pipeline.replay.selection import ask_order
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.settings import Settings


class LiveReport(msgspec.Struct):
    """All findings of one session, as they are kept in the lake. No key is in it."""

    endpoint: str
    simulated: bool
    teacher: str
    model: str
    started_at: str
    ceiling_usd: str
    spent_usd: str
    unknown_usd: str
    findings: list[Finding]
    kept_as: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def probe_live(
    lake: Lake,
    teacher_set: TeacherSet,
    *,
    max_usd: Decimal,
    ledger: str | os.PathLike[str] | None = None,
    patience: Patience | None = None,
) -> LiveReport:
    """Probe the endpoint's behaviour, keep the answers as ``doctor/live-<day>.json``.

    No session is sent: the questions are a few made-up words.

    Args:
        lake: keeps the answers.
        teacher_set: the teacher file; the cheapest teacher is asked.
        max_usd: ceiling of all probes together.
        ledger: path or URL of the ledger; in the lake when ``None``.
        patience: how long to wait.

    Raises:
        InputError: a ceiling that is not above 0, a missing key, an endpoint of another API,
            or a lake that cannot be written.
    """
    from composer_pipeline.doctor.probes import PROBES

    ceiling_of(Decimal(max_usd), "--max-usd")
    endpoint = teacher_set.endpoint
    if endpoint.api != "openrouter":
        raise InputError(f"endpoint {endpoint.name}: doctor --live knows api openrouter only")
    api_key = teacher_set.api_key()
    lake.check_writable()
    catalogue = fetch(teacher_set)
    (name, *_) = ask_order(teacher_set.teachers)
    (teacher,) = teacher_set.select([name])
    started, run_id = datetime.now(UTC), f"doctor-{uuid.uuid4().hex}"
    with Ledger(ledger_target(lake, ledger)) as opened:
        opened.do(rules.set_ceiling(f"run:{run_id}", Decimal(max_usd)))

        async def probe_all() -> list[Finding]:
            async with Commits(opened) as commits:
                calls = PaidCalls(commits, run_id)
                prober = Prober(
                    teacher_set, teacher, calls, api_key, catalogue, patience or Patience()
                )
                return [await _probe(prober, probe) for probe in PROBES]

        findings = asyncio.run(probe_all())
        scope = opened.status().get(f"run:{run_id}")
    report = LiveReport(
        endpoint=endpoint.name,
        simulated=endpoint.simulated,
        teacher=teacher.name,
        model=teacher.model,
        started_at=started.isoformat(timespec="seconds"),
        ceiling_usd=f"{max_usd:f}",
        spent_usd=f"{(scope.spent if scope else NOTHING) / PICO:f}",
        unknown_usd=f"{(scope.unknown if scope else NOTHING) / PICO:f}",
        findings=findings,
        kept_as=f"doctor/live-{started:%Y-%m-%d}.json",
    )
    text = json.dumps(report.to_dict(), indent=1, default=str)
    if api_key and api_key in text:  # a server may echo what it was sent
        text = text.replace(api_key, "[key]")
    lake.put_bytes(report.kept_as, text.encode())
    return report


async def _probe(prober: Prober, probe: Any) -> Finding:
    before, began = prober.spent, time.monotonic()
    try:
        finding: Finding = await probe(prober)
    except NotAsked as error:
        finding = Finding(probe.__name__, "skipped", str(error))
    finding.cost_picodollars = Pico(prober.spent - before)
    finding.facts["seconds"] = round(time.monotonic() - began, 2)
    return finding


def run_live(
    lake: Lake, settings: Settings, teachers: str, max_usd: Decimal
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Probe the provider, under a ceiling; return its checks, and the report that was kept.

    Args:
        lake: keeps the report.
        settings: where the ledger is.
        teachers: teacher file.
        max_usd: ceiling of all probes together.

    Raises:
        InputError: see :func:`composer_pipeline.doctor.live.probe_live`.
    """
    from composer_pipeline.replay.teachers import TeacherSet

    report = probe_live(
        lake, TeacherSet.load(teachers), max_usd=max_usd, ledger=settings.ledger or None
    )
    checks = [check(f"live {f.name}", f.status, f.answer) for f in report.findings]
    money = f"spent {report.spent_usd} of {report.ceiling_usd} USD; kept as {report.kept_as}"
    return [*checks, check("live cost", "ok", money)], report.to_dict()

"""Ask the provider what its documentation leaves open, for cents and under a ceiling.

Run as ``python -m contrib.live_probes``. These probes have been run against the loopback provider
only, never against the real service.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import aiohttp
import msgspec
import orjson

from composer_pipeline.chat.convert import Conversion
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import NOTHING, PICO, Pico, ceiling_of, pico_or_none, to_pico
from composer_pipeline.settings import Settings
from composer_pipeline.teachers.catalogue import MILLION, Catalogue, ModelRecord, fetch, per_million
from composer_pipeline.teachers.client import Wire
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.group_commit import Commits
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.outcome import Outcome, read_json
from composer_pipeline.teachers.paid_call import PaidCalls
from composer_pipeline.teachers.request import Request, serialise, worst_case
from composer_pipeline.teachers.selection import ask_order
from composer_pipeline.teachers.teachers import Teacher, TeacherSet

Status = Literal["ok", "warn", "fail", "skipped"]


class Finding(msgspec.Struct):
    """One probe's answer. ``skipped`` says why it was not asked; money is picodollars."""

    name: str
    status: Status
    answer: str
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    cost_picodollars: int = 0


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds to wait for a bill, between polls, for a reply to cut off, and until it has ended."""

    lag_s: float = 60.0
    poll_s: float = 1.0
    cut_s: float = 0.25
    settle_s: float = 20.0
    read_timeout_s: float = 120.0


class NotAsked(Exception):
    """A question that was not asked, and why; ends one probe only."""


class Prober:
    """What the probes have in common: the wire, the ledger and the account's endpoints."""

    def __init__(
        self,
        teacher_set: TeacherSet,
        teacher: Teacher,
        calls: PaidCalls,
        api_key: str | None,
        catalogue: Catalogue | None,
        timeouts: Timeouts,
    ) -> None:
        self.teacher_set = teacher_set
        self.teacher = teacher
        self.catalogue = catalogue
        self.timeouts = timeouts
        self.spent = NOTHING
        self._calls = calls
        self._key = api_key

    def body(self, text: str, *, max_tokens: int = 16, **more: Any) -> bytes:
        """Return a short request that nobody has sent before; nothing of a session is in it."""
        nonce = secrets.token_hex(8)
        teacher = self.teacher.model_copy(update={"max_tokens": max_tokens})
        message = {"role": "user", "content": f"{text} [{nonce}]"}
        plain = serialise(teacher, Conversion([message], [], {}, {}, "none"), nonce).body
        body: dict[str, Any] = orjson.loads(plain)
        for name in ("tools", "tool_choice"):
            body.pop(name, None)
        for name, value in more.items():
            known = body.get(name)
            merge = isinstance(known, dict) and isinstance(value, dict)
            body[name] = {**known, **value} if merge else value  # type: ignore[dict-item]
        return orjson.dumps(body)

    async def ask(
        self, body: bytes, *, again: bool = False, cut_s: float | None = None,
        amount: Pico | None = None,
    ) -> Outcome:  # fmt: skip
        """Send a body once, with its worst case reserved first."""
        endpoint = self.teacher_set.endpoint
        key = Request(body).key(endpoint.name + ("#again" if again else ""))
        # Not a day: no partition of replies ever shows these calls.
        call = Call("doctor", self.teacher.name, "doctor", "doctor", {"model": self.teacher.model})
        bounded = self.teacher.model_copy(update={"max_tokens": _max_tokens(body)})
        worst = worst_case(bounded, body) if amount is None else amount
        admission = await self._calls.reserve(key, worst, call)
        if admission.kind != "reserved":
            where = f" in scope {admission.scope}" if admission.scope else ""
            raise NotAsked(f"{admission.kind}{where}: {Decimal(worst) / PICO:f} USD do not fit")
        async with self._wire(cut_s or self.timeouts.read_timeout_s) as wire:
            outcome = await self._calls.send(wire, admission.attempt, body)
            await self._calls.settle(wire, admission.attempt, outcome)
        self.spent = Pico(self.spent + (outcome.cost or 0))
        return outcome

    def _wire(self, timeout_s: float) -> Wire:
        endpoint = self.teacher_set.endpoint
        return Wire(endpoint, self._key, read_timeout_s=timeout_s, connections=1)

    async def get(self, path: str, **query: str) -> tuple[int, Any]:
        """Return status and decoded JSON of an account endpoint; (0, None) if unreachable."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=30)
        url = f"{self.teacher_set.endpoint.url()}/{path}"
        try:
            async with (
                aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
                session.get(url, params=query, allow_redirects=False) as response,
            ):
                return response.status, read_json(await response.read())
        except (aiohttp.ClientError, TimeoutError):
            return 0, None

    async def generation_cost(self, generation: str) -> Pico | None:
        """Return what ``/generation`` says that a generation cost."""
        async with self._wire(self.timeouts.read_timeout_s) as wire:
            return await wire.generation_cost(generation)

    async def key_usage(self) -> Pico | None:
        """Return what ``/key`` says that the key has used."""
        status, answer = await self.get("key")
        data = answer.get("data") if isinstance(answer, dict) else None
        return pico_or_none(data.get("usage")) if status == 200 and isinstance(data, dict) else None


def _max_tokens(body: bytes) -> int:
    return int(orjson.loads(body)["max_completion_tokens"])


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
    timeouts: Timeouts | None = None,
) -> LiveReport:
    """Probe the endpoint's behaviour, keep the answers as ``doctor/live-<day>.json``."""
    ceiling_of(Decimal(max_usd), "--max-usd")
    endpoint = teacher_set.endpoint
    if endpoint.api != "openrouter":
        raise InputError(f"endpoint {endpoint.name}: the probes know api openrouter only")
    api_key = teacher_set.endpoint.key()
    lake.check_writable()
    catalogue = fetch(teacher_set)
    (name, *_) = ask_order(teacher_set.teachers)
    (teacher,) = teacher_set.select([name])
    started, run_id = datetime.now(UTC), f"doctor-{uuid.uuid4().hex}"
    with Ledger(ledger_target(lake, ledger)) as opened:
        opened.do(operations.set_ceiling(f"run:{run_id}", Decimal(max_usd)))

        async def probe_all() -> list[Finding]:
            async with Commits(opened) as commits:
                calls = PaidCalls(commits, run_id)
                prober = Prober(
                    teacher_set, teacher, calls, api_key, catalogue, timeouts or Timeouts()
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


async def account(prober: Prober) -> Finding:
    """Does the key work, and does ``/key`` tell its usage?"""
    status, answer = await prober.get("key")
    data = answer.get("data") if isinstance(answer, dict) else None
    if status == 401:
        return Finding("account", "fail", "the endpoint does not know the key")
    if status != 200 or not isinstance(data, dict):
        return Finding("account", "warn", f"/key answered HTTP {status}")
    left = data.get("limit_remaining")
    facts = {"usage_usd": _text(data.get("usage")), "limit_remaining_usd": _text(left)}
    if left is not None and Decimal(str(left)) <= 0:
        return Finding("account", "fail", "the key has nothing left", facts)
    return Finding("account", "ok", "the key works and its usage is reported", facts)


async def models_for_this_account(prober: Prober) -> Finding:
    """Which teachers do the account's privacy settings and guardrails leave?"""
    teachers = prober.teacher_set.teachers
    return await _listed(prober, "models_for_this_account", "models/user", teachers)


async def zdr_endpoints(prober: Prober) -> Finding:
    """Which teachers have an endpoint without data retention?"""
    wanted = [t for t in prober.teacher_set.teachers if t.provider.zdr]
    if not wanted:
        return Finding("zdr_endpoints", "skipped", "no teacher asks for zdr")
    return await _listed(prober, "zdr_endpoints", "endpoints/zdr", wanted)


async def _listed(prober: Prober, name: str, path: str, teachers: Sequence[Teacher]) -> Finding:
    status, answer = await prober.get(path)
    rows = answer.get("data") if isinstance(answer, dict) else None
    if status != 200 or not isinstance(rows, list):
        return Finding(name, "warn", f"/{path} answered HTTP {status}")
    known = {
        str(row.get(key))
        for row in rows
        if isinstance(row, dict)
        for key in ("id", "canonical_slug", "model_id")
    }
    missing = [t.name for t in teachers if t.model not in known]
    facts = {"listed": len(rows), "missing": missing}
    if not missing:
        return Finding(name, "ok", "every teacher is listed", facts)
    return Finding(name, "warn", f"not listed: {', '.join(missing)}", facts)


async def lag_of_the_bill(prober: Prober) -> Finding:
    """How long until ``/generation`` and ``/key`` know of a bill, and is it the same bill?"""
    name, timeouts = "lag_of_the_bill", prober.timeouts
    before = await prober.key_usage()
    outcome = await prober.ask(prober.body("Say OK."))
    if outcome.kind != "billed" or outcome.cost is None:
        return Finding(name, "fail", f"no reply: {outcome.detail or outcome.kind}")
    ended = time.monotonic()
    cost, lag = outcome.cost, {"generation": -1.0, "key": -1.0}
    answer: int | None = None
    while time.monotonic() - ended < timeouts.lag_s and -1.0 in lag.values():
        if lag["generation"] < 0:
            answer = await prober.generation_cost(outcome.generation_id)
            if answer is not None:
                lag["generation"] = round(time.monotonic() - ended, 2)
        if lag["key"] < 0:
            usage = await prober.key_usage()
            if usage is not None and before is not None and usage - before >= cost:
                lag["key"] = round(time.monotonic() - ended, 2)
        if -1.0 in lag.values():
            await asyncio.sleep(timeouts.poll_s)
    facts = {
        "generation_lag_s": lag["generation"], "key_lag_s": lag["key"],
        "reply_picodollars": cost, "generation_picodollars": answer,
    }  # fmt: skip
    if answer is not None and answer != cost:
        return Finding(name, "fail", "the reply and /generation name different costs", facts)
    late = [place for place, seconds in lag.items() if seconds < 0]
    if late:
        slow = ", ".join(f"/{place}" for place in late)
        return Finding(name, "warn", f"{slow} reported nothing after {timeouts.lag_s:g} s", facts)
    return Finding(
        name, "ok", f"/generation after {lag['generation']} s, /key after {lag['key']} s", facts
    )


async def response_cache_hit(prober: Prober) -> Finding:
    """Is an identical body answered for nothing, and how fast?"""
    name = "response_cache_hit"
    if not prober.teacher_set.endpoint.recovery_cache_s:
        return Finding(name, "skipped", "recovery_cache_s is 0 in the teacher file")
    body = prober.body("Say YES.")
    first = await prober.ask(body)
    if first.kind != "billed":
        return Finding(name, "fail", f"no reply: {first.detail or first.kind}")
    second = await prober.ask(body, again=True)
    facts = {
        "first_ms": round(first.latency_ms, 1), "second_ms": round(second.latency_ms, 1),
        "names_the_source": second.source_id == first.generation_id,
    }  # fmt: skip
    if not second.source_id:
        return Finding(name, "warn", "the same bytes were billed again: no recovery", facts)
    if not facts["names_the_source"]:
        return Finding(name, "warn", "a hit that names another generation", facts)
    return Finding(name, "ok", f"a hit, free, in {facts['second_ms']} ms", facts)


async def cache_after_disconnect(prober: Prober) -> Finding:
    """Does the response cache keep a reply that ended after the client had gone?"""
    name, timeouts = "cache_after_disconnect", prober.timeouts
    if not prober.teacher_set.endpoint.recovery_cache_s:
        return Finding(name, "skipped", "recovery_cache_s is 0 in the teacher file")
    body = prober.body("Write a rhyme of four lines.", max_tokens=64)
    cut = await prober.ask(body, cut_s=timeouts.cut_s)
    if cut.kind != "unknown":
        return Finding(
            name, "skipped", f"the reply came within {timeouts.cut_s:g} s; nothing was cut off"
        )
    await asyncio.sleep(timeouts.settle_s)
    again = await prober.ask(body)
    if again.kind != "billed":
        return Finding(name, "warn", f"asked again, no reply: {again.detail or again.kind}")
    if again.source_id:
        return Finding(name, "ok", "kept: asking again was free")
    return Finding(name, "warn", "not kept: asking again was billed; a crash costs a second bill")


async def max_price_and_overrides(prober: Prober) -> Finding:
    """Does ``max_price`` look at long-context prices? Asked with a short prompt."""
    name = "max_price_and_overrides"
    models = prober.catalogue.models.values() if prober.catalogue else ()
    offers = [(prices[0], prices[1], model) for model in models if (prices := _step(model))]
    if not offers:
        return Finding(name, "skipped", "no model of the catalogue has a long-context price")
    base, dear, model = min(offers, key=lambda offer: (offer[1], offer[2].id))
    cap = (base + dear) / 2
    completion = model.pricing.worst_completion(10**9)
    limit = {"prompt": float(cap * MILLION), "completion": float(completion * MILLION)}
    # The answers of this question train nothing.
    preferences = {
        "max_price": {**limit, "request": 0, "image": 0},
        "enforce_distillable_text": False,
    }
    body = prober.body("Say OK.", model=model.id, provider=preferences)
    worst = to_pico(cap * len(body) + completion * 16)
    outcome = await prober.ask(body, amount=worst)
    facts = {
        "model": model.id, "base_usd_per_million": per_million(base),
        "long_usd_per_million": per_million(dear), "cap_usd_per_million": per_million(cap),
        "outcome": outcome.detail or outcome.kind,
    }  # fmt: skip
    if outcome.kind == "billed":
        return Finding(
            name, "warn", "a cap between both prices let a short prompt in: only the base price"
            " counts, so the catalogue check is what keeps long prompts within the cap", facts,
        )  # fmt: skip
    if outcome.detail == "constraint_filtered":
        return Finding(name, "ok", "the dearer price counts: the model was filtered out", facts)
    return Finding(name, "skipped", f"no answer either way: {facts['outcome']}", facts)


def _step(model: ModelRecord) -> tuple[Decimal, Decimal] | None:
    """Return a model's base and long-context prompt price, where it has both."""
    base = model.pricing.base
    if base.prompt is None or base.completion is None or base.request or model.alias_target:
        return None
    dear = [
        override.prices.prompt
        for override in model.pricing.overrides
        if override.min_prompt_tokens and override.prices.prompt
    ]
    found = max(dear, default=None)
    return (base.prompt, found) if found is not None and found > base.prompt else None


async def max_tokens_with_reasoning(prober: Prober) -> Finding:
    """Does the bound on a reply's tokens hold where the model reasons?"""
    name, bound = "max_tokens_with_reasoning", 64
    models = prober.catalogue.models if prober.catalogue else {}
    record = models.get(prober.teacher.model)
    if record is None or not _reasons(record):
        return Finding(name, "skipped", f"{prober.teacher.model} does not reason")
    text = "Find the prime factors of 9991 and of 10403. Think first."
    body = prober.body(text, max_tokens=bound, reasoning={"effort": "low"})
    outcome = await prober.ask(body)
    if outcome.kind != "billed":
        return Finding(name, "warn", f"no reply: {outcome.detail or outcome.kind}")
    reply = read_json(outcome.body)
    usage = reply.get("usage") if isinstance(reply, dict) else None
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    facts = {"bound": bound, "completion_tokens": tokens}
    if not isinstance(tokens, int):
        return Finding(name, "warn", "the reply names no completion tokens", facts)
    if tokens > bound:
        return Finding(name, "fail", f"{tokens} tokens were billed, {bound} were allowed", facts)
    return Finding(name, "ok", f"{tokens} of {bound} tokens, reasoning included", facts)


def _reasons(record: ModelRecord) -> bool:
    return record.reasoning is not None or "reasoning" in record.supported_parameters


async def privacy_canary(prober: Prober) -> Finding:
    """Does the account log what is sent? Then sessions would be logged too."""
    name = "privacy_canary"
    outcome = await prober.ask(prober.body("Say OK to the canary."))
    if outcome.kind != "billed" or not outcome.generation_id:
        return Finding(name, "warn", f"no reply: {outcome.detail or outcome.kind}")
    status, answer = await prober.get("generation/content", id=outcome.generation_id)
    data = answer.get("data") if isinstance(answer, dict) else None
    if status == 200 and data:
        return Finding(
            name, "fail", "prompts and replies are logged: switch input and output logging off"
        )
    if status in (403, 404) or (status == 200 and not data):
        return Finding(name, "ok", "nothing is logged", {"http_status": status})
    return Finding(name, "warn", f"/generation/content answered HTTP {status}")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


Probe = Callable[[Prober], Awaitable[Finding]]

#: In order: what costs nothing comes first.
PROBES: tuple[Probe, ...] = (
    account,
    models_for_this_account,
    zdr_endpoints,
    lag_of_the_bill,
    response_cache_hit,
    cache_after_disconnect,
    max_price_and_overrides,
    max_tokens_with_reasoning,
    privacy_canary,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe the provider and print the report; return the exit code."""
    settings = Settings.from_env()
    parser = argparse.ArgumentParser(prog="python -m contrib.live_probes", description=__doc__)
    parser.add_argument("--max-usd", default="0.05", help="ceiling of all probes together, in USD")
    parser.add_argument("--teachers", default=settings.teachers, help="teacher file")
    parser.add_argument("--lake", default=settings.lake, help="keeps the report and the ledger")
    given = parser.parse_args(arguments)
    try:
        report = probe_live(
            Lake(given.lake),
            TeacherSet.load(given.teachers),
            max_usd=to_pico(given.max_usd) / PICO,
            ledger=settings.ledger or None,
        )
    except ComposerError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report.to_dict(), indent=1, default=str))
    return 1 if any(finding.status == "fail" for finding in report.findings) else 0


if __name__ == "__main__":
    sys.exit(main())

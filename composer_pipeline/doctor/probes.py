"""The probes of ``doctor --live``, one function each.

Belongs here: what is asked and what an answer means. Does not belong here: reserving, sending
and keeping the answers (``doctor.live``).

Each probe returns what was *observed*; ``ok`` means that the behaviour is the one the engine
relies on, ``warn`` that it is another one that costs money or care, ``fail`` that something
must be changed before sessions are sent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any

from composer_pipeline.doctor.prober import Finding, Prober
from composer_pipeline.money import to_pico
from composer_pipeline.replay.catalogue import MILLION, ModelRecord, per_million
from composer_pipeline.replay.provider import read_json
from composer_pipeline.replay.teachers import Teacher


async def account(prober: Prober) -> Finding:
    """Does the key work, and does ``/key`` tell its usage?"""
    status, told = await prober.get("key")
    data = told.get("data") if isinstance(told, dict) else None
    if status == 401:
        return Finding("account", "fail", "the endpoint does not know the key")
    if status != 200 or not isinstance(data, dict):
        return Finding("account", "warn", f"/key answered HTTP {status}")
    left = data.get("limit_remaining")
    facts = {"usage_usd": _text(data.get("usage")), "limit_remaining_usd": _text(left)}
    if left is not None and Decimal(str(left)) <= 0:
        return Finding("account", "fail", "the key has nothing left", facts)
    return Finding("account", "ok", "the key works and its usage is told", facts)


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
    status, told = await prober.get(path)
    rows = told.get("data") if isinstance(told, dict) else None
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
    name, patience = "lag_of_the_bill", prober.patience
    before = await prober.key_usage()
    outcome = await prober.ask(prober.body("Say OK."))
    if outcome.kind != "billed" or outcome.cost is None:
        return Finding(name, "fail", f"no reply: {outcome.detail or outcome.kind}")
    ended = time.monotonic()
    cost, lag = outcome.cost, {"generation": -1.0, "key": -1.0}
    told: int | None = None
    while time.monotonic() - ended < patience.lag_s and -1.0 in lag.values():
        if lag["generation"] < 0:
            told = await prober.generation_cost(outcome.generation_id)
            if told is not None:
                lag["generation"] = round(time.monotonic() - ended, 2)
        if lag["key"] < 0:
            usage = await prober.key_usage()
            if usage is not None and before is not None and usage - before >= cost:
                lag["key"] = round(time.monotonic() - ended, 2)
        if -1.0 in lag.values():
            await asyncio.sleep(patience.look_s)
    facts = {
        "generation_lag_s": lag["generation"], "key_lag_s": lag["key"],
        "reply_picodollars": cost, "generation_picodollars": told,
    }  # fmt: skip
    if told is not None and told != cost:
        return Finding(name, "fail", "the reply and /generation name different costs", facts)
    late = [place for place, seconds in lag.items() if seconds < 0]
    if late:
        slow = ", ".join(f"/{place}" for place in late)
        return Finding(name, "warn", f"{slow} knew nothing after {patience.lag_s:g} s", facts)
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
    name, patience = "cache_after_disconnect", prober.patience
    if not prober.teacher_set.endpoint.recovery_cache_s:
        return Finding(name, "skipped", "recovery_cache_s is 0 in the teacher file")
    body = prober.body("Write a rhyme of four lines.", max_tokens=64)
    cut = await prober.ask(body, cut_s=patience.cut_s)
    if cut.kind != "unknown":
        return Finding(
            name, "skipped", f"the reply came within {patience.cut_s:g} s; nothing was cut off"
        )
    await asyncio.sleep(patience.settle_s)
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
    status, told = await prober.get("generation/content", id=outcome.generation_id)
    data = told.get("data") if isinstance(told, dict) else None
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

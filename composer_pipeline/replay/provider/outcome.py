"""What an HTTP response, or none, means for money.

Belongs here: sorting an outcome into one of four kinds, and the billed cost in a reply. Does
not belong here: sending (``replay.provider.client``), and what to do next
(``replay.engine.caller``).

A reply that was paid for is read leniently: an unexpected shape never loses it.

======== =====================================================================
kind     meaning
======== =====================================================================
billed   a reply with a known cost (0 where the provider's response cache hit)
unbilled refused or failed before it cost anything; ``retryable`` says what next
refused  unbilled, and asking again would give the same answer
unknown  it may have been billed: timeout, reset, truncated body
======== =====================================================================
"""

import time
from collections.abc import Mapping
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import aiohttp
import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.money import NOTHING, Pico, to_pico

RETRY_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
#: The teacher is told to slow down.
BUSY_STATUSES = {429, 503, 524, 529}
_SKIP_TYPES = (
    "context_length", "max_tokens_exceeded", "token_limit_exceeded", "string_too_long",
    "payload_too_large", "invalid_prompt", "image_",
)  # fmt: skip
_REFUSAL_TYPES = ("content_policy_violation", "refusal")
#: What a ``Retry-After`` may ask for; a server's mistake must not stop a teacher for days.
LONGEST_PAUSE_S = 3600.0
_DECIMALS = msgspec.json.Decoder(float_hook=Decimal)


class Outcome(msgspec.Struct, frozen=True):
    """What came of one request; see the module's table."""

    kind: Literal["billed", "unbilled", "refused", "unknown"]
    status: int = 0
    body: bytes = b""
    cost: Pico | None = None
    generation_id: str = ""
    #: Generation that was billed, where this reply came from the response cache.
    source_id: str = ""
    latency_ms: float = 0.0
    detail: str = ""
    retryable: bool = False
    retry_after: float | None = None
    #: ``teacher``: it can answer nothing in this run. ``account``: no teacher can.
    stop: Literal["", "teacher", "account"] = ""
    unreachable: bool = False
    #: Whether the generation is known to have ended, whatever it cost.
    ended: bool = False
    #: As the reply reports them; 0 where it does not, and for a cache hit.
    prompt_tokens: int = 0
    cached_tokens: int = 0


class TokenPrice(msgspec.Struct, frozen=True):
    """USD per million tokens of an endpoint whose replies name no cost."""

    prompt: Decimal
    completion: Decimal


def classify(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    latency: float,
    price: TokenPrice | None = None,
) -> Outcome:
    """Sort a complete HTTP response; see the module's table.

    Args:
        status: HTTP status.
        headers: response headers; looked up in lower case.
        body: the whole body.
        latency: milliseconds from sending to the last byte.
        price: where given, a reply without a cost costs its tokens at this price.
    """
    source = headers.get("x-openrouter-cache-source-id", "")
    reply = _json_object(body)
    error = reply.get("error")
    generation = headers.get("x-generation-id", "") or str(reply.get("id") or "")
    if status == 200 and not error:
        usage = reply.get("usage")
        prompt, cached = _tokens(usage)
        kind: Literal["billed", "unbilled", "unknown"] = "billed"
        detail, cost = "", billed_cost(usage)
        if cost is None and price is not None:
            cost = _priced(usage, price)
        if source and reply:
            cost = NOTHING
        elif source:  # a hit costs nothing, and half of one is no reply
            kind, detail = "unbilled", "truncated reply"
        elif not reply:
            kind, detail = "unknown", "truncated reply"
        elif not cost and _is_free_failure(reply):
            kind, detail = "unbilled", "the model gave nothing"
        elif cost is None:
            kind, detail = "unknown", "reply without a cost"
        return Outcome(
            kind, status, body, cost if kind == "billed" else None, generation,
            source if kind == "billed" else "", latency,
            detail, retryable=kind != "billed", ended=True, prompt_tokens=prompt,
            cached_tokens=cached,
        )  # fmt: skip
    known: dict[str, Any] = {
        "status": status,
        "body": body,
        "generation_id": generation,
        "latency_ms": latency,
        "retry_after": _retry_after(headers.get("retry-after")),
    }
    fault = error if isinstance(error, dict) else {}
    if status >= 500 and not fault:
        # A gateway answered, not the API: the model behind it may have run to the end.
        return Outcome("unknown", detail=f"HTTP {status} of a gateway", retryable=True, **known)
    code = fault.get("code") if status == 200 else status
    return _classify_error(int(code) if isinstance(code, int) else status, fault, known)


def _classify_error(code: int, fault: dict[str, Any], known: dict[str, Any]) -> Outcome:
    metadata = fault.get("metadata")
    kind = str(metadata.get("error_type") or "") if isinstance(metadata, dict) else ""
    availability = fault.get("availability")
    available = availability if isinstance(availability, dict) else {}
    reason = str(available.get("code") or kind or f"HTTP {code}")
    known = known | {"status": code}
    if kind.startswith(_SKIP_TYPES) or code == 413:
        return Outcome("refused", detail=reason, **known)
    if kind in _REFUSAL_TYPES or (code == 403 and _is_moderation(metadata)):
        return Outcome("refused", detail="refusal", **known)
    if code == 401 or (code == 403 and not available):
        return Outcome("unbilled", detail=f"HTTP {code}", stop="account", **known)
    if code == 402:
        # Credit that is too low for one teacher's worst case may do for a cheaper one's.
        return Outcome("unbilled", detail="payment_required", stop="teacher", **known)
    if available.get("retryable") is True or (not available and code in RETRY_STATUSES):
        return Outcome("unbilled", detail=reason, retryable=True, **known)
    if available or code == 404:
        return Outcome("unbilled", detail=reason, stop="teacher", **known)
    return Outcome("unbilled", detail=reason, **known)


def no_response(error: Exception, *, generation: str = "", status: int = 0) -> Outcome:
    """Tell "never sent" from "perhaps billed" where no complete response came.

    Args:
        error: what the HTTP client raised.
        generation: id from the headers, where these had come.
        status: HTTP status, where the headers had come.

    Raises:
        InputError: the endpoint's URL cannot be used.
    """
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Outcome("unbilled", detail=name, retryable=True, unreachable=True)
    if isinstance(error, aiohttp.InvalidURL):
        raise InputError("the endpoint's base_url is not a usable URL") from error
    return Outcome("unknown", detail=name, retryable=True, generation_id=generation, status=status)


def billed_cost(usage: Any) -> Pico | None:
    """Return the billed cost in picodollars from a reply's ``usage``, or ``None``.

    With an own provider key (BYOK) the upstream cost is paid besides; otherwise it is part
    of ``cost`` and must not be added.
    """
    if not isinstance(usage, dict):
        return None
    cost = pico_or_none(usage.get("cost"))
    details = usage.get("cost_details")
    if cost is None or usage.get("is_byok") is not True or not isinstance(details, dict):
        return cost
    return Pico(cost + (pico_or_none(details.get("upstream_inference_cost")) or 0))


def read_json(body: bytes) -> Any:
    """Decode JSON with numbers as ``Decimal``; ``None`` where it is not JSON."""
    try:
        return _DECIMALS.decode(body)
    except (msgspec.DecodeError, ValueError):
        return None


def pico_or_none(value: Any) -> Pico | None:
    """Return an amount in USD from decoded JSON as picodollars; ``None`` where it is none."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        pico = to_pico(value)
    except InputError:
        return None
    return pico if pico >= 0 else None


def _json_object(body: bytes) -> dict[str, Any]:
    value = read_json(body)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if whole else 0


def _tokens(usage: Any) -> tuple[int, int]:
    if not isinstance(usage, dict):
        return 0, 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return _count(usage.get("prompt_tokens")), _count(cached)


def _priced(usage: Any, price: TokenPrice) -> Pico | None:
    """Tokens at the recipe's prices, rounded up; ``None`` without token counts."""
    if not isinstance(usage, dict) or "prompt_tokens" not in usage:
        return None
    prompt, completion = _count(usage["prompt_tokens"]), _count(usage.get("completion_tokens"))
    return to_pico((price.prompt * prompt + price.completion * completion) / 1_000_000)


def _is_free_failure(reply: dict[str, Any]) -> bool:
    """Zero-completion insurance: nothing generated, or a generation that ended in error."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    usage = reply.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return reason == "error" or (not reason and not tokens)


def _is_moderation(metadata: Any) -> bool:
    return isinstance(metadata, dict) and ("reasons" in metadata or "flagged_input" in metadata)


def _retry_after(value: str | None) -> float | None:
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, seconds), LONGEST_PAUSE_S)

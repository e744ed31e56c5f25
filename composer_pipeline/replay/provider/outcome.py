"""What an HTTP response, or none, means for money: decided by evidence, not by status alone.

Belongs here: sorting an outcome into one of five kinds, and the billed cost in a reply. Does
not belong here: reading bytes (``replay.provider.reading``), sending
(``replay.provider.client``), and what to do next (``replay.engine.caller``).

The rule has no exception: **what may have been billed is charged until it is known not to
have been, and what was answered is kept as bytes before anybody looks at it.** Free is only
what the provider's documentation says is free *and* carries no cost and no answer.

======== =============================================================================
kind     meaning
======== =============================================================================
billed   a cost is known (0 for a hit of the response cache); the bytes are kept
unpriced there is an answer, or bytes that nobody can read, and no cost that can be
         believed: charged at the worst case, the bytes are kept, not asked again
unbilled known to be free, and nothing was answered; ``retryable`` says what next
refused  unbilled, and asking again would give the same answer; the bytes are kept
unknown  it may have been billed and nothing whole came: charged at the worst case
======== =============================================================================

Evidence, the first row that fits decides (an *answer* is text, a tool call, a refusal or
reasoning in any choice; a *cost* is ``usage.cost`` as a number from 0 to 1000 USD):

========================================= ========= ====================================
evidence                                  kind      why
========================================= ========= ====================================
cost above 0, whatever status and error   billed    the provider says so
status not 2xx, no answer, no tokens      see below refused before a generation
a hit of the cache that stops in the      unbilled  a hit costs nothing, and the whole
middle                                              can be fetched once more
a hit of the cache                        billed 0  a hit costs nothing
2xx, empty body                           unknown   it may have been generated
2xx, a JSON object that stops in the      unknown   it was generated; ``cut``: it can be
middle                                              fetched again from the cache
2xx, not a JSON object                    unpriced  it may have been generated
an answer and a cost of 0                 billed 0  the provider says so
a price for tokens and counted tokens     billed    at that price (own endpoints)
an answer, or completion tokens, no cost  unpriced  it was generated
top-level ``error``, no answer            unbilled  documented: failed, not billed
``finish_reason`` error, no answer        unbilled  documented: not billed
no ``finish_reason`` and 0 tokens or a    unbilled  documented: zero-completion
cost of 0                                           insurance
a cost of 0                               billed 0  it ended without an answer (length)
anything else                             unpriced  nothing says that it was free
========================================= ========= ====================================

A response that is not 2xx and shows neither cost nor answer nor tokens was refused before
anything was generated, if the API itself says so: any 4xx but 408, or an ``error`` object.
A 408 or 5xx without one comes from a gateway, behind which the model may have run: unknown.
"""

import math
import time
from collections.abc import Mapping
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import aiohttp
import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.money import NOTHING, Pico, pico_or_none, to_pico
from composer_pipeline.replay.provider.reading import (
    choices_of,
    is_cut,
    label,
    read_json,
    read_reply,
)

__all__ = [
    "BUSY_STATUSES", "Outcome", "TokenPrice", "billed_cost", "classify", "no_response",
    "read_json",
]  # fmt: skip

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
#: The dearest bill of one call that is believed, in picodollars: 1000 USD. Sums of bills stay
#: far from the end of the ledger's 64 bits.
MOST_BILL = 10**15
#: More tokens than any model has; a count beyond is no count.
MOST_TOKENS = 10**9


class Outcome(msgspec.Struct, frozen=True):
    """What came of one request; see the module's table."""

    kind: Literal["billed", "unpriced", "unbilled", "refused", "unknown"]
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
    #: Whether ``body`` is the beginning of a reply whose rest was lost on its way.
    cut: bool = False
    #: Whether ``body`` can be read as a reply.
    readable: bool = True
    #: As the reply reports them; 0 where it does not, and for a cache hit.
    prompt_tokens: int = 0
    cached_tokens: int = 0


class TokenPrice(msgspec.Struct, frozen=True):
    """USD per million tokens of an endpoint whose replies name no cost."""

    prompt: Decimal
    completion: Decimal


class _Evidence(msgspec.Struct, frozen=True):
    """What a body says about whether it was billed."""

    cost: Pico | None
    answer: bool
    #: Completion tokens; ``None`` where they are not told.
    tokens: int | None
    #: Whether a choice ended in error, or no choice says how it ended.
    failed: bool
    unfinished: bool

    @property
    def of_generation(self) -> bool:
        return bool(self.cost) or self.answer or bool(self.tokens)

    @property
    def of_nothing(self) -> bool:
        """Documented as free: a generation that failed, or that gave nothing at all."""
        nothing = self.tokens == 0 or self.cost == 0
        return self.failed or (self.unfinished and nothing)


def classify(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    latency: float,
    price: TokenPrice | None = None,
) -> Outcome:
    """Sort a complete HTTP response by the module's table.

    Args:
        status: HTTP status.
        headers: response headers; looked up in lower case.
        body: the whole body, decompressed.
        latency: milliseconds from sending to the last byte.
        price: where given, a reply without a cost costs its tokens at this price.
    """
    reply = read_reply(body)
    data = reply or {}
    usage = data.get("usage")
    seen = _evidence(data, billed_cost(usage))
    known: dict[str, Any] = {
        "status": status,
        "body": body,
        "generation_id": label(headers.get("x-generation-id", "")) or label(data.get("id")),
        "latency_ms": latency,
    }
    ok = 200 <= status < 300
    if (not ok or data.get("error")) and not seen.of_generation:
        return _failure(status, headers, data, known)
    known["ended"] = True
    known["prompt_tokens"], known["cached_tokens"] = _tokens(usage)
    source = _source(headers) if ok and not seen.cost else ""
    cut = reply is None and is_cut(body)
    if source and (cut or not body):
        return Outcome(
            "unbilled", detail="truncated reply", retryable=True, cut=cut, source_id=source, **known
        )
    if source:
        return Outcome("billed", cost=NOTHING, source_id=source, **known)
    if cut or not body:
        return Outcome("unknown", detail="truncated reply", retryable=True, cut=cut, **known)
    return _judged(seen, reply, price, usage, known)


def _judged(
    seen: _Evidence,
    reply: dict[str, Any] | None,
    price: TokenPrice | None,
    usage: Any,
    known: dict[str, Any],
) -> Outcome:
    """Sort a whole response that is no refusal and no hit of the cache."""
    if reply is None:
        return Outcome("unpriced", detail="unreadable", readable=False, **known)
    cost = seen.cost
    if not seen.of_generation and seen.of_nothing:
        return Outcome("unbilled", detail="the model gave nothing", retryable=True, **known)
    if cost is None and price is not None:
        cost = _priced(usage, price)
    if cost is None:
        absurd = isinstance(usage, dict) and usage.get("cost") is not None
        detail = "a cost that is none" if absurd else "reply without a cost"
        return Outcome("unpriced", detail=detail, **known)
    return Outcome("billed", cost=cost, **known)


def _failure(
    status: int, headers: Mapping[str, str], reply: Mapping[str, Any], known: dict[str, Any]
) -> Outcome:
    """Sort a response without a generation: who refused, and what to do next."""
    known = known | {"retry_after": _retry_after(headers.get("retry-after"))}
    error = reply.get("error")
    fault = error if isinstance(error, dict) else {}
    if (status >= 500 or status == 408) and not fault:
        # A gateway answered, not the API: the model behind it may have run to the end.
        return Outcome("unknown", detail=f"HTTP {status} of a gateway", retryable=True, **known)
    if 300 <= status < 400:
        return Outcome("unbilled", detail=f"HTTP {status} redirect", stop="teacher", **known)
    told = fault.get("code") if 200 <= status < 300 else status
    code = told if isinstance(told, int) and 100 <= told < 600 else status
    return _classify_error(code, fault, known)


def _classify_error(code: int, fault: dict[str, Any], known: dict[str, Any]) -> Outcome:
    metadata = fault.get("metadata")
    kind = label(metadata.get("error_type")) if isinstance(metadata, dict) else ""
    availability = fault.get("availability")
    available = availability if isinstance(availability, dict) else {}
    reason = label(available.get("code")) or kind or f"HTTP {code}"
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
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return Outcome("unbilled", detail="certificate refused", stop="teacher", unreachable=True)
    never_sent = (
        aiohttp.ClientConnectorError,
        aiohttp.ConnectionTimeoutError,
        aiohttp.ClientHttpProxyError,
    )
    if isinstance(error, never_sent):
        return Outcome("unbilled", detail=name, retryable=True, unreachable=True)
    if isinstance(error, aiohttp.InvalidURL):
        raise InputError("the endpoint's base_url is not a usable URL") from error
    return Outcome(
        "unknown", detail=name, retryable=True, generation_id=label(generation), status=status
    )


def settled_as_it_is(outcome: Outcome) -> Outcome:
    """Return the outcome of a cut reply that is kept, because no whole one can be had."""
    kept = msgspec.structs.replace(outcome, retryable=False, readable=False, cut=False)
    if outcome.source_id:
        return msgspec.structs.replace(kept, kind="billed", cost=NOTHING)
    return msgspec.structs.replace(kept, kind="unpriced")


def too_large(status: int, start: bytes, generation: str, latency: float, most: int) -> Outcome:
    """Return the outcome of a body beyond ``most`` bytes; its ``start`` is kept."""
    return Outcome(
        "unpriced", status, start, generation_id=label(generation), latency_ms=latency,
        detail=f"a reply of more than {most} bytes", ended=True, readable=False,
    )  # fmt: skip


def is_page(headers: Mapping[str, str], body: bytes) -> bool:
    """Say whether a response is a web page."""
    kind = headers.get("content-type", "").lower()
    return kind.startswith("text/html") and body.lstrip()[:1] == b"<"


def billed_cost(usage: Any) -> Pico | None:
    """Return the billed cost in picodollars from a reply's ``usage``, or ``None``.

    With an own provider key (BYOK) the upstream cost is paid besides; otherwise it is part
    of ``cost`` and must not be added. Where it is not told, nobody knows the cost.
    """
    if not isinstance(usage, dict):
        return None
    cost = pico_or_none(usage.get("cost"))
    if cost is not None and usage.get("is_byok") is True:
        details = usage.get("cost_details")
        upstream = details.get("upstream_inference_cost") if isinstance(details, dict) else None
        besides = pico_or_none(upstream)
        cost = None if besides is None else Pico(cost + besides)
    return cost if cost is None or cost <= MOST_BILL else None


def _evidence(reply: Mapping[str, Any], cost: Pico | None) -> _Evidence:
    choices = choices_of(reply)
    reasons = [choice.get("finish_reason") for choice in choices]
    usage = reply.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return _Evidence(
        cost=cost,
        answer=any(_answers(choice) for choice in choices),
        tokens=_told(tokens),
        failed=bool(choices) and all(reason == "error" for reason in reasons),
        unfinished=not any(reasons),
    )


def _answers(choice: Mapping[str, Any]) -> bool:
    """Say whether a choice has anything that a model generated."""
    message = choice.get("message")
    parts = message if isinstance(message, dict) else {}
    said = ("content", "tool_calls", "function_call", "refusal", "reasoning", "reasoning_content")
    return bool(choice.get("text")) or any(parts.get(name) for name in said)


def _source(headers: Mapping[str, str]) -> str:
    """Return the generation that a hit of the response cache was bought as; "" for no hit."""
    status = headers.get("x-openrouter-cache-status", "HIT")
    return label(headers.get("x-openrouter-cache-source-id", "")) if status == "HIT" else ""


def _told(value: Any) -> int | None:
    """Return a count of tokens; ``None`` for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MOST_TOKENS else None


def _tokens(usage: Any) -> tuple[int, int]:
    if not isinstance(usage, dict):
        return 0, 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return _told(usage.get("prompt_tokens")) or 0, _told(cached) or 0


def _priced(usage: Any, price: TokenPrice) -> Pico | None:
    """Tokens at the recipe's prices, rounded up; ``None`` without token counts.

    Where both prices are 0 nothing need be counted.
    """
    if not price.prompt and not price.completion:
        return NOTHING
    counts = usage if isinstance(usage, dict) else {}
    prompt = _told(counts.get("prompt_tokens"))
    completion = _told(counts.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    return to_pico((price.prompt * prompt + price.completion * completion) / 1_000_000)


def _is_moderation(metadata: Any) -> bool:
    return isinstance(metadata, dict) and ("reasons" in metadata or "flagged_input" in metadata)


def _retry_after(value: str | None) -> float | None:
    """Return the seconds to wait, at most an hour; ``None`` where the header says nothing."""
    if not value or len(value) > 100:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError, TypeError, OSError):
            return None
    return 0.0 if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_PAUSE_S)

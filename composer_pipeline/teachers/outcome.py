"""What an HTTP response, or none, means for money: decided by evidence, not by status alone.

The rule has no exception: **what may have been billed is charged until it is known not to have
been, and what was answered is kept as bytes before it is parsed.** Only what the provider's
documentation says is free *and* carries no cost and no answer is free.

======== =============================================================================
kind     meaning
======== =============================================================================
billed   a cost is known (0 for a hit of the response cache); the bytes are kept
unpriced there is an answer, or bytes that cannot be read, and no believable cost: charged
         at the worst case, the bytes are kept, not asked again
unbilled known to be free, and nothing was answered; see ``retryable``
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

import json
import math
import re
import time
from collections.abc import Mapping
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import aiohttp
import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.files import mapping, mapping_at, mappings
from composer_pipeline.money import NOTHING, Pico, pico_or_none, to_pico

#: A document with more values than this is not read: its objects would not fit in memory.
MOST_VALUES = 1_000_000
#: Events of a stream that are put together; a longer stream is not read.
MOST_EVENTS = 200_000
#: A number of more digits is not read.
MOST_DIGITS = 400
_DECIMALS = msgspec.json.Decoder(float_hook=Decimal)
_SURROGATES = re.compile("[\ud800-\udfff]")
#: What comes in pieces in a stream: text, arguments, reasoning, a refusal.
_IN_PIECES = {"content", "arguments", "reasoning", "reasoning_content", "refusal"}
_EVENT = re.compile(rb"\A\s*(?:data|event|id|retry)?:")


def read_json(body: bytes) -> Any:
    """Return the value of a JSON document, or ``None`` if it cannot be read."""
    if body.count(b",") > MOST_VALUES:
        return None
    try:
        return _DECIMALS.decode(body)
    except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError):
        pass
    try:
        return _storable(_loads(_text(body)))
    except (ValueError, ArithmeticError, RecursionError):
        return None


def read_reply(body: bytes) -> dict[str, Any] | None:
    """Return a chat completion, a chunk or a stream of them as one completion, else ``None``."""
    reply = _events(body) if _EVENT.match(body) else read_json(body)
    if not isinstance(reply, dict):
        return None
    for choice in choices_of(reply):
        if "message" not in choice and isinstance(choice.get("delta"), dict):
            choice["message"] = choice["delta"]
    return reply


def is_cut(body: bytes) -> bool:
    """Return True if the bytes are the beginning of a JSON object and stop in the middle."""
    if not body.lstrip().startswith(b"{"):
        return False
    try:
        _loads(text := _text(body))
    except json.JSONDecodeError as error:
        unfinished = error.msg.startswith("Unterminated string")
        return unfinished or error.pos >= len(text.strip())
    except (ValueError, ArithmeticError, RecursionError):
        return False
    return False


def choices_of(reply: Any) -> list[dict[str, Any]]:
    """Return the choices of a reply that are objects."""
    return mappings(mapping(reply).get("choices"))


def storable(text: str) -> str:
    """Return a text that every database, table and JSON writer accepts."""
    if _SURROGATES.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def label(value: Any, longest: int = 200) -> str:
    """Return a provider's name or id for a column: printable ASCII, or nothing."""
    if not isinstance(value, str) or len(value) > longest:
        return ""
    return value if value.isascii() and value.isprintable() else ""


def _text(body: bytes) -> str:
    for encoding, errors in (("utf-8-sig", "strict"), ("utf-8", "surrogatepass")):
        try:
            return body.decode(encoding, errors)
        except UnicodeDecodeError:
            continue
    return body.decode("utf-8-sig", "replace")


def _loads(text: str) -> Any:
    # What follows the document (another one, padding) is ignored.
    return _LENIENT.raw_decode(text.lstrip())[0]


def _number(text: str) -> int | Decimal | None:
    if len(text) > MOST_DIGITS:
        return None
    return int(text) if text.lstrip("-").isdecimal() else Decimal(text)


_LENIENT = json.JSONDecoder(
    parse_float=_number, parse_int=_number, parse_constant=lambda _: None, strict=False
)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_storable(inner) for inner in value]
    if isinstance(value, dict):
        return {storable(key): _storable(inner) for key, inner in value.items()}
    return value


class _Pieces(list[str]):
    """The pieces of a text that comes in events; joined once, at the end."""


def _events(body: bytes) -> dict[str, Any] | None:
    """Put a stream of ``data:`` events together; ``None`` if there is none to read."""
    whole: dict[str, Any] = {}
    merged: dict[int, dict[str, Any]] = {}
    if body.count(b"\n") > MOST_EVENTS:
        return None
    for line in body.splitlines():
        data = line.strip().removeprefix(b"data:").strip()
        chunk = read_json(data) if data.startswith(b"{") else None
        if not isinstance(chunk, dict):
            continue
        for choice in choices_of(chunk):
            number = choice.get("index")
            at = number if isinstance(number, int) else 0
            _merge_choice(merged.setdefault(at, {"message": {}}), choice)
        whole |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
    if merged:
        whole["choices"] = [_joined(merged[at]) for at in sorted(merged)]
    return whole or None


def _merge_choice(into: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta", choice.get("message"))
    if isinstance(delta, dict):
        _merge_delta(into["message"], delta)
    into |= {k: v for k, v in choice.items() if k not in ("delta", "message") and v is not None}


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls" and isinstance(value, list):
            calls = message.setdefault("tool_calls", [])
            for call in value if isinstance(calls, list) else []:
                _merge_call(calls, call)
        else:
            _add(message, key, value)


def _merge_call(calls: list[Any], call: Any) -> None:
    """Extend the call of the same index, which is one of the latest, or begin another."""
    index = call.get("index") if isinstance(call, dict) else None
    known = None
    if index is not None:
        latest = (c for c in reversed(calls[-64:]) if isinstance(c, dict))
        known = next((c for c in latest if c.get("index") == index), None)
    more = call.get("function") if isinstance(call, dict) else None
    if known is None:
        if isinstance(more, dict):
            begun: dict[str, Any] = {}
            for key, value in more.items():
                _add(begun, key, value)
            call = {**call, "function": begun}
        calls.append(call)
    elif isinstance(more, dict) and isinstance(known.get("function"), dict):
        for key, value in more.items():
            _add(known["function"], key, value)


def _add(into: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, str) and key in _IN_PIECES:
        if not isinstance(into.get(key), _Pieces):
            into[key] = _Pieces()
        into[key].append(value)
    elif value is not None:
        into[key] = value


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return storable("".join(value))
    if isinstance(value, list):
        return [_joined(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _joined(inner) for key, inner in value.items()}
    return value


RETRY_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
#: The teacher asks to be asked more slowly.
BUSY_STATUSES = {429, 503, 524, 529}
_SKIP_TYPES = (
    "context_length", "max_tokens_exceeded", "token_limit_exceeded", "string_too_long",
    "payload_too_large", "invalid_prompt", "image_",
)  # fmt: skip
_REFUSAL_TYPES = ("content_policy_violation", "refusal")
#: The longest ``Retry-After``; a server's mistake must not stop a teacher for days.
LONGEST_PAUSE_S = 3600.0
#: The highest believable bill of one call, in picodollars: 1000 USD. Sums of bills stay far
#: below the ledger's 64 bits.
MOST_BILL = 10**15
#: More tokens than any model has; a higher count is ignored.
MOST_TOKENS = 10**9


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one request; see the module's table."""

    kind: Literal["billed", "unpriced", "unbilled", "refused", "unknown"]
    status: int = 0
    body: bytes = b""
    cost: Pico | None = None
    generation_id: str = ""
    #: Generation that was billed, if this reply came from the response cache.
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
    #: As the reply reports them; 0 if it does not, and for a cache hit.
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
    #: Completion tokens; ``None`` if they are not reported.
    tokens: int | None
    #: Whether each choice ended in error, or none has a ``finish_reason``.
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
    """Sort a complete response, with lower-case header names, by the module's table."""
    # With a price, a reply without a cost costs its tokens.
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
    counts = mapping(usage)
    cached = mapping_at(counts, "prompt_tokens_details").get("cached_tokens")
    known["prompt_tokens"] = _count(counts.get("prompt_tokens")) or 0
    known["cached_tokens"] = _count(cached) or 0
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
    """Sort a whole response that is neither a refusal nor a hit of the cache."""
    if reply is None:
        return Outcome("unpriced", detail="unreadable", readable=False, **known)
    cost = seen.cost
    if not seen.of_generation and seen.of_nothing:
        return Outcome("unbilled", detail="the model gave nothing", retryable=True, **known)
    if cost is None and price is not None:
        cost = _priced(usage, price)
    if cost is None:
        absurd = mapping(usage).get("cost") is not None
        detail = "a cost that is not credible" if absurd else "reply without a cost"
        return Outcome("unpriced", detail=detail, **known)
    return Outcome("billed", cost=cost, **known)


def _failure(
    status: int, headers: Mapping[str, str], reply: Mapping[str, Any], known: dict[str, Any]
) -> Outcome:
    """Sort a response without a generation: who refused, and what to do next."""
    known = known | {"retry_after": _retry_after(headers.get("retry-after"))}
    fault = mapping_at(reply, "error")
    if (status >= 500 or status == 408) and not fault:
        # A gateway answered, not the API: the model behind it may have run to the end.
        return Outcome("unknown", detail=f"HTTP {status} of a gateway", retryable=True, **known)
    if 300 <= status < 400:
        return Outcome("unbilled", detail=f"HTTP {status} redirect", stop="teacher", **known)
    stated = fault.get("code") if 200 <= status < 300 else status
    code = stated if isinstance(stated, int) and 100 <= stated < 600 else status
    return _classify_error(code, fault, known)


def _classify_error(code: int, fault: dict[str, Any], known: dict[str, Any]) -> Outcome:
    metadata, available = mapping_at(fault, "metadata"), mapping_at(fault, "availability")
    kind = label(metadata.get("error_type"))
    reason = label(available.get("code")) or kind or f"HTTP {code}"
    known = known | {"status": code}
    if kind.startswith(_SKIP_TYPES) or code == 413:
        return Outcome("refused", detail=reason, **known)
    if kind in _REFUSAL_TYPES or (code == 403 and metadata.keys() & {"reasons", "flagged_input"}):
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
    """Tell "never sent" from "perhaps billed" if no complete response came."""
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
    """Return the outcome of a cut reply that is kept, because the whole cannot be fetched."""
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
    """Return True if a response is a web page."""
    kind = headers.get("content-type", "").lower()
    return kind.startswith("text/html") and body.lstrip()[:1] == b"<"


def billed_cost(usage: Any) -> Pico | None:
    """Return the billed cost in picodollars from a reply's ``usage``, or ``None``.

    With an own provider key (BYOK) the upstream cost is paid in addition; otherwise it is part
    of ``cost`` and must not be added. Without it, the cost is unknown.
    """
    if not isinstance(usage, dict):
        return None
    cost = pico_or_none(usage.get("cost"))
    if cost is not None and usage.get("is_byok") is True:
        upstream = pico_or_none(mapping_at(usage, "cost_details").get("upstream_inference_cost"))
        cost = None if upstream is None else Pico(cost + upstream)
    return cost if cost is None or cost <= MOST_BILL else None


def _evidence(reply: Mapping[str, Any], cost: Pico | None) -> _Evidence:
    choices = choices_of(reply)
    reasons = [choice.get("finish_reason") for choice in choices]
    return _Evidence(
        cost=cost,
        answer=any(_answers(choice) for choice in choices),
        tokens=_count(mapping_at(reply, "usage").get("completion_tokens")),
        failed=bool(choices) and all(reason == "error" for reason in reasons),
        unfinished=not any(reasons),
    )


def _answers(choice: Mapping[str, Any]) -> bool:
    """Return True if a choice has anything that a model generated."""
    parts = mapping_at(choice, "message")
    names = ("content", "tool_calls", "function_call", "refusal", "reasoning", "reasoning_content")
    return bool(choice.get("text")) or any(parts.get(name) for name in names)


def _source(headers: Mapping[str, str]) -> str:
    """Return the generation that a hit of the response cache was bought as; "" for no hit."""
    status = headers.get("x-openrouter-cache-status", "HIT")
    return label(headers.get("x-openrouter-cache-source-id", "")) if status == "HIT" else ""


def _count(value: Any) -> int | None:
    """Return a count of tokens; ``None`` for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MOST_TOKENS else None


def _priced(usage: Any, price: TokenPrice) -> Pico | None:
    """Return the cost of the tokens, rounded up; ``None`` without token counts."""
    if not price.prompt and not price.completion:
        return NOTHING
    counts = mapping(usage)
    prompt = _count(counts.get("prompt_tokens"))
    completion = _count(counts.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    return to_pico((price.prompt * prompt + price.completion * completion) / 1_000_000)


def _retry_after(value: str | None) -> float | None:
    """Return the seconds to wait, at most an hour; ``None`` without a usable header."""
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

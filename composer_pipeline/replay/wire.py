"""One request to a chat-completions endpoint, and what its outcome means for money.

Belongs here: the exact body, its key, the HTTP client, and sorting an outcome into one of
four kinds. Does not belong here: retries, budgets and order (``replay.engine``).

A body is serialised once; its bytes are hashed and those bytes are sent. Nothing here
retries. Plain httpx collapses above 64 connections (quadratic pool), hence the aiohttp
transport. A reply that was paid for is read leniently: an unexpected shape never loses it.

======== =====================================================================
kind     meaning
======== =====================================================================
billed   a reply with a known cost (0 where the provider's response cache hit)
unbilled refused or failed before it cost anything; ``retryable`` says what next
refused  unbilled, and asking again would give the same answer
unknown  it may have been billed: timeout, reset, truncated body
======== =====================================================================
"""

import hashlib
import time
from collections.abc import Mapping
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import aiohttp
import httpx
import msgspec
import orjson
from httpx_aiohttp import AiohttpTransport

from composer_pipeline.errors import InputError
from composer_pipeline.replay.convert import Conversion, wire_messages
from composer_pipeline.replay.money import to_pico
from composer_pipeline.replay.teachers import Endpoint, Teacher

WIRE = "chat/completions@1"

RETRY_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
#: The teacher is told to slow down.
BUSY_STATUSES = {429, 503, 524, 529}
_SKIP_TYPES = (
    "context_length", "max_tokens_exceeded", "token_limit_exceeded", "string_too_long",
    "payload_too_large", "invalid_prompt", "image_",
)  # fmt: skip
_REFUSAL_TYPES = ("content_policy_violation", "refusal")


class Outcome(msgspec.Struct, frozen=True):
    """What came of one request; see the module's table. Money is picodollars."""

    kind: Literal["billed", "unbilled", "refused", "unknown"]
    status: int = 0
    body: bytes = b""
    cost: int | None = None
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


def serialise(teacher: Teacher, conversion: Conversion, session_id: str) -> bytes:
    """Return the exact body to send.

    The session is named by a hash, for sticky routing: the provider's prompt cache holds
    the session's prefix. Key order is frozen, because the response cache depends on it.
    """
    preferences = teacher.provider.model_dump(exclude_none=True)
    price = teacher.max_price
    preferences["max_price"] = {
        "prompt": _number(price.prompt),
        "completion": _number(price.completion),
        "request": 0,
        "image": 0,
    }
    session = hashlib.sha256(session_id.encode()).hexdigest()[:32]
    body: dict[str, Any] = {
        "model": teacher.model,
        "messages": wire_messages(conversion.messages),
        "tools": conversion.tools,
        "tool_choice": "auto",
        "max_completion_tokens": teacher.max_tokens,
        "temperature": teacher.temperature,
        "provider": preferences,
        "plugins": [{"id": "context-compression", "enabled": False}],
        "session_id": f"{session}-{teacher.name}",
    }
    return orjson.dumps(body)


def request_key(endpoint: str, body: bytes) -> str:
    """Return the SHA-256 that a call is known by: endpoint *name*, wire and exact body.

    The URL is left out: a demo server gets another port every time.
    """
    return hashlib.sha256(b"\n".join([endpoint.encode(), WIRE.encode(), body])).hexdigest()


def worst_case(teacher: Teacher, body: bytes) -> int:
    """Return the most that sending ``body`` can cost, in picodollars, rounded up.

    A byte-level tokenizer makes at most one token of a byte, so the prompt has at most
    ``min(len(body), context_length)`` tokens. Both prices are the caps that the router
    enforces; reasoning is inside ``max_tokens``.
    """
    prompt_tokens = min(len(body), teacher.context_length)
    per_million = (
        teacher.max_price.prompt * prompt_tokens + teacher.max_price.completion * teacher.max_tokens
    )
    return to_pico(per_million / 1_000_000)


class Wire:
    """The HTTP side of one endpoint. Use as an async context manager.

    Args:
        endpoint: where.
        api_key: sent as a bearer token; kept out of every message and log.
        read_timeout_s: silence after which the outcome counts as unknown.
        connections: most connections at once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | None,
        *,
        read_timeout_s: float = 600.0,
        connections: int = 256,
    ) -> None:
        headers = {"Content-Type": "application/json", "X-OpenRouter-Title": "composer-pipeline"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._chat_headers = {}
        if endpoint.recovery_cache_s:
            self._chat_headers = {
                "X-OpenRouter-Cache": "true",
                "X-OpenRouter-Cache-TTL": str(endpoint.recovery_cache_s),
            }
        self.url = endpoint.url()
        limits = httpx.Limits(max_connections=connections, keepalive_expiry=15)
        self._client = httpx.AsyncClient(
            transport=AiohttpTransport(limits=limits),
            headers=headers,
            timeout=httpx.Timeout(connect=10, write=60, read=read_timeout_s, pool=None),
            follow_redirects=False,
        )

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def chat(self, body: bytes) -> Outcome:
        """Send one body once."""
        started = time.perf_counter()
        try:
            response = await self._client.post(
                f"{self.url}/chat/completions", content=body, headers=self._chat_headers
            )
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            return _no_response(error)
        latency = (time.perf_counter() - started) * 1000
        return classify(response.status_code, response.headers, response.content, latency)

    async def generation_cost(self, generation_id: str) -> int | None:
        """Return what a generation cost in picodollars; ``None`` where it is not told."""
        try:
            response = await self._client.get(
                f"{self.url}/generation", params={"id": generation_id}, timeout=30
            )
        except (httpx.HTTPError, aiohttp.ClientError):
            return None
        data = _json_object(response.content).get("data")
        cost = data.get("total_cost") if isinstance(data, dict) else None
        return _pico(cost) if response.status_code == 200 else None


def classify(status: int, headers: Mapping[str, str], body: bytes, latency: float) -> Outcome:
    """Sort a complete HTTP response; see the module's table."""
    generation = headers.get("x-generation-id", "")
    source = headers.get("x-openrouter-cache-source-id", "")
    reply = _json_object(body)
    error = reply.get("error")
    known: dict[str, Any] = {
        "status": status,
        "body": body,
        "generation_id": generation or str(reply.get("id") or ""),
        "latency_ms": latency,
        "retry_after": _retry_after(headers.get("retry-after")),
    }
    if status == 200 and not error:
        if source:
            return Outcome("billed", cost=0, source_id=source, **known)
        cost = billed_cost(reply.get("usage"))
        if not reply:
            return Outcome("unknown", detail="truncated reply", retryable=True, **known)
        if _is_free_failure(reply) and not cost:
            return Outcome("unbilled", detail="the model gave nothing", retryable=True, **known)
        if cost is None:
            return Outcome("unknown", detail="reply without a cost", retryable=True, **known)
        return Outcome("billed", cost=cost, **known)
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
    if code in (401, 402) or (code == 403 and not available):
        return Outcome("unbilled", detail=f"HTTP {code}", stop="account", **known)
    if available.get("retryable") is True or (not available and code in RETRY_STATUSES):
        return Outcome("unbilled", detail=reason, retryable=True, **known)
    if available or code == 404:
        return Outcome("unbilled", detail=reason, stop="teacher", **known)
    return Outcome("unbilled", detail=reason, **known)


def billed_cost(usage: Any) -> int | None:
    """Return the billed cost in picodollars from a reply's ``usage``, or ``None``.

    With an own provider key (BYOK) the upstream cost is paid besides; otherwise it is part
    of ``cost`` and must not be added.
    """
    if not isinstance(usage, dict):
        return None
    cost = _pico(usage.get("cost"))
    details = usage.get("cost_details")
    if cost is None or usage.get("is_byok") is not True or not isinstance(details, dict):
        return cost
    return cost + (_pico(details.get("upstream_inference_cost")) or 0)


def read_json(body: bytes) -> Any:
    """Decode JSON with numbers as ``Decimal``; ``None`` where it is not JSON."""
    try:
        return msgspec.json.Decoder(float_hook=Decimal).decode(body)
    except (msgspec.DecodeError, ValueError):
        return None


def _json_object(body: bytes) -> dict[str, Any]:
    value = read_json(body)
    return value if isinstance(value, dict) else {}


def _no_response(error: Exception) -> Outcome:
    """Tell "never sent" from "perhaps billed".

    httpx-aiohttp maps a reset of an established connection to ``ConnectTimeout``, so only
    the aiohttp exception underneath says whether a connection was ever made.
    """
    cause = error.__cause__ or error
    never_sent = isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    name = type(cause).__name__
    if never_sent:
        return Outcome("unbilled", detail=name, retryable=True, unreachable=True)
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        raise InputError("the endpoint's base_url is not a usable URL") from error
    return Outcome("unknown", detail=name, retryable=True)


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


def _pico(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        return to_pico(value)
    except InputError:
        return None


def _retry_after(value: str | None) -> float | None:
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _number(price: Decimal) -> float | int:
    """A price as the JSON number that the router compares; exact for any sane price."""
    return int(price) if price == price.to_integral_value() else float(price)

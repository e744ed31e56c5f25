"""One request to a chat-completions endpoint: its exact body, its key, its worst case.

Belongs here: the exact body, what it may cost at most, and the HTTP client. Does not belong
here: what a response means (``replay.provider.outcome``), retries, budgets and order
(``replay.engine.run``).

A body is serialised once; its bytes are hashed and those bytes are sent. Nothing here
retries, and aiohttp repeats no POST. aiohttp is used without the httpx API on top of it,
which costs 2.5 times as much CPU a call (``benchmarks/replay.py``); plain httpx collapses
above 64 connections (its pool is quadratic).
"""

import asyncio
import hashlib
import time
from decimal import Decimal
from typing import Any

import aiohttp
import orjson
from yarl import URL

from composer_pipeline.chat import Conversion, wire_messages
from composer_pipeline.money import NOTHING, Pico, billed_pico, pico_or_none
from composer_pipeline.replay.endpoints import Endpoint
from composer_pipeline.replay.provider.bounds import Anchor, anchor, anchored_tokens, worst_case
from composer_pipeline.replay.provider.http import (
    MOST_BYTES,
    ask_json,
    bearer,
    new_session,
    proxy_of,
    read_body,
)
from composer_pipeline.replay.provider.outcome import (
    BUSY_STATUSES,
    Outcome,
    TokenPrice,
    billed_cost,
    classify,
    is_page,
    no_response,
    read_json,
    too_large,
)
from composer_pipeline.replay.teachers import Teacher

__all__ = [
    "BUSY_STATUSES", "Anchor", "Outcome", "TokenPrice", "Wire", "anchor", "anchored_tokens",
    "billed_cost", "classify", "read_json", "request_key", "serialise", "settings_sent",
    "worst_case",
]  # fmt: skip

WIRE = "chat/completions@1"


def serialise(
    teacher: Teacher, conversion: Conversion, session_id: str, *, api: str = "openrouter"
) -> bytes:
    """Return the exact body to send.

    The session is named by a hash, for sticky routing: the provider's prompt cache holds
    the session's prefix. Key order is frozen, because the response cache depends on it.

    Args:
        teacher: who is asked.
        conversion: the messages and tools.
        session_id: the session of the state.
        api: ``openrouter``, or ``openai`` for a body with OpenAI's fields alone.
    """
    body: dict[str, Any] = {
        "model": teacher.model,
        "messages": wire_messages(conversion.messages),
        "tools": conversion.tools,
        "tool_choice": "auto",
        "max_completion_tokens": teacher.max_tokens,
        "temperature": teacher.temperature,
    }
    if api == "openai":
        if not conversion.tools:  # an empty list is refused there
            del body["tools"], body["tool_choice"]
        return orjson.dumps(body)
    session = hashlib.sha256(session_id.encode()).hexdigest()[:32]
    body["provider"] = orjson.Fragment(_preferences(teacher))
    body["plugins"] = [{"id": "context-compression", "enabled": False}]
    body["session_id"] = f"{session}-{teacher.name}"
    if teacher.cache_control != "off":
        body["cache_control"] = {"type": "ephemeral", "ttl": teacher.cache_control}
    return orjson.dumps(body)


#: The provider object of the teachers that were asked last, which is the same in each call.
_PREFERENCES: dict[int, tuple[Teacher, bytes]] = {}


def _preferences(teacher: Teacher) -> bytes:
    known = _PREFERENCES.get(id(teacher))
    if known is not None and known[0] is teacher:
        return known[1]
    preferences = teacher.provider.model_dump(exclude_none=True)
    price = teacher.max_price
    preferences["max_price"] = {
        "prompt": _number(price.prompt),
        "completion": _number(price.completion),
        "request": 0,
        "image": 0,
    }
    if len(_PREFERENCES) > 256:
        _PREFERENCES.clear()
    _PREFERENCES[id(teacher)] = (teacher, orjson.dumps(preferences))
    return _PREFERENCES[id(teacher)][1]


def settings_sent(teacher: Teacher, endpoint: str, *, api: str = "openrouter") -> dict[str, Any]:
    """Return what :func:`serialise` takes from the teacher file, model apart: name -> value.

    It is recorded with each call, so that a plan can say which setting made a call new.

    Args:
        teacher: who is asked.
        endpoint: name of the endpoint, which is part of the key.
        api: as for :func:`serialise`.
    """
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "max_tokens": teacher.max_tokens,
        "temperature": teacher.temperature,
    }
    if api == "openai":
        return settings
    preferences = orjson.loads(_preferences(teacher))
    prices = preferences.pop("max_price")
    settings |= {f"max_price.{name}": prices[name] for name in ("prompt", "completion")}
    settings |= {f"provider.{name}": value for name, value in preferences.items()}
    return settings | {"cache_control": teacher.cache_control}


def request_key(endpoint: str, body: bytes) -> str:
    """Return the SHA-256 that a call is known by: endpoint *name*, wire and exact body.

    The URL is left out: a demo server gets another port every time.
    """
    digest = hashlib.sha256(f"{endpoint}\n{WIRE}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def _number(price: Decimal) -> float | int:
    """A price as the JSON number that the router compares; exact for any sane price."""
    return int(price) if price == price.to_integral_value() else float(price)


class Wire:
    """The HTTP side of one endpoint. Use as an async context manager.

    Args:
        endpoint: where.
        api_key: sent as a bearer token; kept out of every message and log.
        read_timeout_s: silence after which the outcome counts as unknown, and the longest
            that a body may take from its first byte to its last.
        connections: most connections at once.
        most_bytes: of a larger body only the beginning is kept.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | None,
        *,
        read_timeout_s: float = 600.0,
        connections: int = 256,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.url = endpoint.url()
        self._chat_url = URL(f"{self.url}/chat/completions")
        self._generation_url = URL(f"{self.url}/generation")
        self._priced = endpoint.api == "openai"
        self._asks_generations = endpoint.api == "openrouter"
        self._authorization = bearer(api_key)
        self._headers = {"Content-Type": "application/json"} | self._authorization
        if endpoint.api == "openrouter":
            self._headers["X-OpenRouter-Title"] = "composer-pipeline"
            if endpoint.recovery_cache_s:
                self._headers["X-OpenRouter-Cache"] = "true"
                self._headers["X-OpenRouter-Cache-TTL"] = str(endpoint.recovery_cache_s)
        self._read_timeout_s = read_timeout_s
        self._connections = connections
        self._most = most_bytes
        self._proxy = proxy_of(self._chat_url)
        #: Whether the endpoint has ever answered in JSON, as an API does.
        self._proven = False

    async def __aenter__(self) -> "Wire":
        self._session = new_session(
            read_s=self._read_timeout_s,
            # Connecting, sending and waiting for the first byte; the body has its own time.
            total_s=2 * self._read_timeout_s + 10,
            connections=self._connections,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def chat(self, body: bytes, price: TokenPrice | None = None) -> Outcome:
        """Send one body once.

        Args:
            body: the exact bytes.
            price: price of tokens where the endpoint's replies name no cost.
        """
        started = time.perf_counter()
        status, generation = 0, ""
        try:
            async with self._session.post(
                self._chat_url,
                data=body,
                headers=self._headers,
                allow_redirects=False,
                **self._proxy,
            ) as response:
                status = response.status
                generation = response.headers.get("x-generation-id", "")
                async with asyncio.timeout(self._read_timeout_s):
                    content = await read_body(response, self._most)
        except (aiohttp.ClientError, TimeoutError) as error:
            return no_response(error, generation=generation, status=status)
        latency = (time.perf_counter() - started) * 1000
        if content.too_large:
            return too_large(status, content.data, generation, latency, self._most)
        price = price if self._priced else None
        outcome = classify(status, response.headers, content.data, latency, price)
        if not self._proven and 200 <= status < 300:
            if is_page(response.headers, content.data):
                # No API has answered here yet: base_url names a web site or a login page.
                detail = "the endpoint answers HTML, no API; check base_url"
                return Outcome("unbilled", status=status, detail=detail, stop="teacher")
            self._proven = True
        return outcome

    async def generation_cost(self, generation_id: str) -> Pico | None:
        """Return what a generation cost; ``None`` where it is not told."""
        if not self._asks_generations:
            return None
        status, reply = await ask_json(
            self._session,
            "GET",
            self._generation_url,
            params={"id": generation_id},
            headers=self._authorization,
            timeout=aiohttp.ClientTimeout(total=30),
        )
        data = reply.get("data") if isinstance(reply, dict) else None
        if status != 200 or not isinstance(data, dict):
            return None
        cost = pico_or_none(data.get("total_cost"))
        if cost is None:
            return None
        upstream = pico_or_none(data.get("upstream_inference_cost")) or NOTHING
        return billed_pico(cost, upstream, data.get("is_byok") is True)

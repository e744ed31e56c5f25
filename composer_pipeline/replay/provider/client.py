"""Sending one body to a chat-completions endpoint, once.

Belongs here: the HTTP client. Does not belong here: the body (``replay.provider.request``),
what a response means (``replay.provider.outcome``), retries, budgets and order
(``replay.engine.run``).

Nothing here retries, and aiohttp repeats no POST. aiohttp is used without the httpx API on
top of it, which costs 2.5 times as much CPU a call (``benchmarks/replay.py``); plain httpx
collapses above 64 connections (its pool is quadratic).
"""

import asyncio
import time

import aiohttp
from yarl import URL

from composer_pipeline.money import NOTHING, Pico, billed_pico, pico_or_none
from composer_pipeline.replay.endpoints import Endpoint
from composer_pipeline.replay.provider.http import (
    MOST_BYTES,
    ask_json,
    bearer,
    new_session,
    proxy_of,
    read_body,
)
from composer_pipeline.replay.provider.outcome import (
    Outcome,
    TokenPrice,
    classify,
    is_page,
    no_response,
    too_large,
)


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

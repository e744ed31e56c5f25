"""A loopback server that speaks OpenRouter's API over real HTTP, and knows the true bill.

Belongs here: the endpoints, prices, the response cache, billing and faults. Does not belong
here: what a simulated teacher decides (``testing.personas``).

    python -m composer_pipeline.testing.openrouter --port 8399 --lifetime 600

prints one JSON line with its URL and serves the bundled sessions' script. It listens on
127.0.0.1 only, needs no key unless it is given one, and stops by itself.

Billing follows the documentation: a reply is billed when it is generated, which is before
it is delivered, so a client that disconnects pays. A bill and the response cache's entry
appear together, before any latency. Only replies with status 200 are cached; a hit has zero
usage and names the billed generation in ``X-OpenRouter-Cache-Source-Id``.
"""

import argparse
import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson
from aiohttp import web

from composer_pipeline.actions import Action
from composer_pipeline.replay.convert import short_name
from composer_pipeline.replay.money import PICO, to_pico, to_usd
from composer_pipeline.testing.personas import PersonaName, Script

#: A cached prompt token costs this share of the prompt price.
CACHE_READ = Decimal("0.1")
_COST = "@@cost@@"


class SimulatedModel(msgspec.Struct, frozen=True):
    """A model on the server; prices are USD per token, as in OpenRouter's catalogue."""

    slug: str
    persona: PersonaName
    prompt: Decimal
    completion: Decimal
    context_length: int = 131_072


def _model(persona: PersonaName, prompt: str, completion: str) -> SimulatedModel:
    slug = f"loopback/{persona}-20261101"
    return SimulatedModel(slug, persona, Decimal(prompt), Decimal(completion))


MODELS = (
    _model("careful", "0.00000027", "0.0000011"),
    _model("steady", "0.00000045", "0.0000018"),
    _model("contrarian", "0.00000015", "0.0000006"),
    _model("flaky", "0.00000008", "0.0000003"),
)


class Asked(msgspec.Struct, frozen=True):
    """A request as a fault hook sees it; ``nth`` counts identical bodies from 1."""

    model: str
    digest: str
    nth: int
    total: int


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong with one request.

    ``error``: the given HTTP status, not billed. ``gateway``: that status with an HTML
    body. ``in_body``: status 200 with an error. ``truncate``, ``garble`` (half the JSON),
    ``reset``, ``hang``: the reply is lost on its way; billed unless ``billed`` is false.
    ``length``: cut off, billed. ``moderation``: refused for its content.
    ``overcharge``: billed a thousandfold. ``no_cost``: a reply without ``usage``.
    """

    kind: Literal[
        "error", "gateway", "in_body", "truncate", "garble", "reset", "hang", "length",
        "moderation", "overcharge", "no_cost",
    ]  # fmt: skip
    status: int = 500
    retry_after: str | None = None
    billed: bool = True


class Bill(msgspec.Struct, frozen=True):
    """One billed generation; ``cost`` in picodollars."""

    generation_id: str
    model: str
    digest: str
    cost: int


FaultHook = Callable[[Asked], Fault | None]


class LoopbackOpenRouter:
    """The server, in a thread of its own. Use as a context manager.

    Args:
        script: what the teachers know; nothing when ``None``.
        models: the catalogue.
        port: 0 takes a free one.
        lifetime: seconds after which it stops by itself.
        api_key: where set, requests without it get 401.
        faults: asked for every request, before the flaky persona's own faults.
        latency: seconds before a reply leaves.
        flaky_faults: whether the flaky persona also fails.
        generation_endpoint: whether ``GET /generation`` answers.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: Sequence[SimulatedModel] = MODELS,
        port: int = 0,
        lifetime: float = 3600.0,
        api_key: str | None = None,
        faults: FaultHook | None = None,
        latency: float = 0.0,
        flaky_faults: bool = True,
        generation_endpoint: bool = True,
    ) -> None:
        self.script = script or Script()
        self.models = {model.slug: model for model in models}
        self.api_key = api_key
        self.faults = faults
        self.latency = latency
        self.flaky_faults = flaky_faults
        self.generation_endpoint = generation_endpoint
        self.bills: list[Bill] = []
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0
        self.hits = 0
        self._port = port
        self._lifetime = lifetime
        self._seen: dict[str, int] = {}
        self._cache: dict[str, tuple[float, bytes, str]] = {}
        self._prompts: dict[tuple[str, str], list[int]] = {}
        self._ready = threading.Event()
        self._failure: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._serve, name="loopback-openrouter", daemon=True)

    # -- life --------------------------------------------------------------------

    def start(self) -> "LoopbackOpenRouter":
        """Start and wait until it listens.

        Raises:
            OSError: the port is taken.
        """
        self._thread.start()
        self._ready.wait(30)
        if self._failure:
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop and wait for the thread."""
        if self._loop and self._stop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def wait(self) -> None:
        """Wait until it has stopped by itself."""
        self._thread.join()

    def __enter__(self) -> "LoopbackOpenRouter":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL that a teacher file or COMPOSER_OPENROUTER_URL takes."""
        return f"http://127.0.0.1:{self._port}/api/v1"

    @property
    def billed(self) -> int:
        """All bills, in picodollars."""
        return sum(bill.cost for bill in list(self.bills))

    def duplicate_bills(self) -> int:
        """Return how many bills were for a body that had been billed before."""
        bills = list(self.bills)
        return len(bills) - len({bill.digest for bill in bills})

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/api/v1/chat/completions", self._chat)
        app.router.add_get("/api/v1/models", self._models)
        app.router.add_get("/api/v1/generation", self._generation)
        app.router.add_get("/api/v1/key", self._key)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port)
        try:
            await site.start()
        except OSError as error:
            self._failure = error
            self._ready.set()
            await runner.cleanup()
            return
        self._port = runner.addresses[0][1]
        self._ready.set()
        try:
            await asyncio.wait_for(self._stop.wait(), self._lifetime)
        except TimeoutError:
            pass
        finally:
            await runner.cleanup()

    # -- endpoints ---------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.requests += 1
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return _error(401, "No auth credentials found", "authentication")
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return _error(400, "the body is not JSON", "invalid_request")
        self.bodies.append(body)
        model = self.models.get(str(body.get("model")))
        if model is None:
            return _error(404, "no such model", "not_found", availability="model_not_found")
        cap = ((body.get("provider") or {}).get("max_price")) or {}
        for kind, price in (("prompt", model.prompt), ("completion", model.completion)):
            if kind in cap and Decimal(str(cap[kind])) < price * 1_000_000:
                return _error(
                    404, "no endpoint within max_price", "not_found",
                    availability="constraint_filtered",
                )  # fmt: skip
        limit = int(body.get("max_completion_tokens") or 4096)
        if _tokens(raw) + limit > model.context_length:
            return _error(400, "the prompt is too long", "context_length_exceeded")
        digest = hashlib.sha256(raw).hexdigest()
        nth = self._seen[digest] = self._seen.get(digest, 0) + 1
        caching = request.headers.get("X-OpenRouter-Cache") == "true"
        hit = self._cache.get(digest) if caching else None
        asked = Asked(model.slug, digest, nth, self.requests)
        fault = self.faults(asked) if self.faults else None
        if hit and hit[0] > time.monotonic() and fault is None:
            self.hits += 1
            return await self._reply(_as_hit(hit[1]), _generation_id(), fault=None, source=hit[2])
        if fault is None and model.persona == "flaky" and self.flaky_faults:
            fault = flaky_fault(asked)
        if fault and (refusal := _refusal(fault)) is not None:
            return refusal
        if fault and not fault.billed:
            return await self._reply(b"{}", _generation_id(), fault, request=request)
        generation = _generation_id()
        cost, reply = self._generate(model, body, raw, limit, fault)
        reply["id"] = generation
        payload = json.dumps(reply).replace(f'"{_COST}"', to_usd(cost)).encode()
        self.bills.append(Bill(generation, model.slug, digest, cost))
        if caching:
            ttl = float(request.headers.get("X-OpenRouter-Cache-TTL") or 300)
            self._cache[digest] = (time.monotonic() + ttl, payload, generation)
        return await self._reply(payload, generation, fault, request=request)

    async def _reply(
        self,
        payload: bytes,
        generation: str,
        fault: Fault | None,
        *,
        source: str = "",
        request: web.Request | None = None,
    ) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", "X-Generation-Id": generation}
        if source:
            headers |= {
                "X-OpenRouter-Cache-Status": "HIT",
                "X-OpenRouter-Cache-Source-Id": source,
            }
        if self.latency and not source:
            await asyncio.sleep(self.latency)
        if fault and request is not None:
            if fault.kind == "hang":
                await asyncio.sleep(3600)
            assert request.transport is not None
            if fault.kind == "reset":
                request.transport.abort()
                return web.Response()
            if fault.kind == "garble":
                return web.Response(body=payload[: len(payload) // 2], headers=headers)
            if fault.kind == "truncate":
                stream = web.StreamResponse(headers=headers)
                stream.content_length = len(payload)
                await stream.prepare(request)
                await stream.write(payload[: len(payload) // 2])
                request.transport.abort()
                return stream
        return web.Response(body=payload, headers=headers)

    def _generate(
        self,
        model: SimulatedModel,
        body: Mapping[str, Any],
        raw: bytes,
        limit: int,
        fault: Fault | None,
    ) -> tuple[int, dict[str, Any]]:
        message = reply_message(self.script.decide(model.persona, body))
        tokens = -(-len(orjson.dumps(message)) // 4)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        if tokens > limit or (fault and fault.kind == "length"):
            tokens, reason = min(tokens, limit), "length"
            message = {"role": "assistant", "content": "I was about to"}
        prompt = _tokens(raw)
        cached = min(prompt, self._cached_tokens(model.slug, body))
        dollars = model.prompt * (prompt - cached) + model.prompt * CACHE_READ * cached
        cost = to_pico(dollars + model.completion * tokens)
        if fault and fault.kind == "overcharge":
            cost *= 1000
        reply: dict[str, Any] = {
            "id": "",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model.slug,
            "provider": "Loopback",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": reason,
                    "native_finish_reason": reason,
                    "message": message,
                }
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "total_tokens": prompt + tokens,
                "cost": _COST,
                "is_byok": False,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }
        if fault and fault.kind == "no_cost":
            del reply["usage"]
        return cost, reply

    def _cached_tokens(self, slug: str, body: Mapping[str, Any]) -> int:
        """Tokens of the leading messages that the session's last prompt also had."""
        messages = [orjson.dumps(message) for message in body.get("messages") or []]
        hashes = [hash(message) for message in messages]
        key = (slug, str(body.get("session_id")))
        before = self._prompts.get(key, [])
        self._prompts[key] = hashes
        shared = 0
        for message, new, old in zip(messages, hashes, before, strict=False):
            if new != old:
                break
            shared += len(message)
        return shared // 4

    async def _models(self, request: web.Request) -> web.Response:
        data = [
            {
                "id": model.slug,
                "canonical_slug": model.slug,
                "context_length": model.context_length,
                "pricing": {
                    "prompt": f"{model.prompt:f}",
                    "completion": f"{model.completion:f}",
                    "input_cache_read": f"{model.prompt * CACHE_READ:f}",
                    "request": "0",
                    "image": "0",
                },
                "supported_parameters": ["tools", "tool_choice", "max_tokens", "temperature"],
            }
            for model in self.models.values()
        ]
        return web.json_response({"data": data})

    async def _generation(self, request: web.Request) -> web.Response:
        wanted = request.query.get("id")
        for bill in list(self.bills) if self.generation_endpoint else []:
            if bill.generation_id == wanted:
                data = {"id": wanted, "model": bill.model, "total_cost": _COST}
                text = json.dumps({"data": data}).replace(f'"{_COST}"', to_usd(bill.cost))
                return web.Response(text=text, content_type="application/json")
        return _error(404, "no such generation", "not_found")

    async def _key(self, request: web.Request) -> web.Response:
        usage = float(self.billed / PICO)
        return web.json_response({"data": {"usage": usage, "limit": None, "limit_remaining": None}})


def reply_message(action: Action) -> dict[str, Any]:
    """Return an action as a chat-completions message, arguments as JSON text."""
    message: dict[str, Any] = {"role": "assistant", "content": action.text or None}
    if action.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid5(uuid.NAMESPACE_OID, f'{n}{call.name}').hex[:12]}",
                "type": "function",
                "function": {
                    "name": short_name(call.name),
                    "arguments": orjson.dumps(call.arguments).decode(),
                },
            }
            for n, call in enumerate(action.tool_calls)
        ]
    return message


def flaky_fault(asked: Asked) -> Fault | None:
    """Return the flaky persona's own fault: decided by the body and how often it came.

    About one body in eight fails the first time and works the second; one in sixteen is
    always cut off; one in thirty-two is always refused for its content.
    """
    dice = int(asked.digest[:8], 16) % 32
    if dice == 0:
        return Fault("moderation")
    if dice in (1, 2):
        return Fault("length")
    if asked.nth == 1:
        return {
            3: Fault("error", 429, retry_after="1"),
            4: Fault("error", 429),
            5: Fault("error", 502),
            6: Fault("in_body", 502),
        }.get(dice)
    return None


def _refusal(fault: Fault) -> web.Response | None:
    if fault.kind == "error":
        kind = "rate_limit_exceeded" if fault.status == 429 else "provider_unavailable"
        response = _error(fault.status, "the provider is busy", kind)
        if fault.retry_after is not None:
            response.headers["Retry-After"] = fault.retry_after
        return response
    if fault.kind == "gateway":
        return web.Response(status=fault.status, text="<html>bad gateway</html>")
    if fault.kind == "in_body":
        error = {"code": fault.status, "message": "the provider failed"}
        return web.json_response({"error": error | {"metadata": {"error_type": "server"}}})
    if fault.kind == "moderation":
        body = {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}}
        return web.json_response({"error": body}, status=403)
    return None


def _error(status: int, message: str, kind: str, *, availability: str = "") -> web.Response:
    error: dict[str, Any] = {"code": status, "message": message, "metadata": {"error_type": kind}}
    if availability:
        error["availability"] = {"code": availability, "retryable": False}
    return web.json_response({"error": error}, status=status)


def _as_hit(payload: bytes) -> bytes:
    reply = orjson.loads(payload)
    if "usage" in reply:
        zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}
        reply["usage"] = zero
    return orjson.dumps(reply)


def _tokens(raw: bytes) -> int:
    return -(-len(raw) // 4)


def _generation_id() -> str:
    return f"gen-{uuid.uuid4().hex}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the lifetime is over; print one JSON line with the URL."""
    parser = argparse.ArgumentParser(prog="python -m composer_pipeline.testing.openrouter")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--lifetime", type=float, default=3600.0, help="seconds")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--sessions", type=Path, help="session folder; the bundled one")
    options = parser.parse_args(arguments)
    from composer_pipeline.testing.sessions import answers, sample_sessions_dir

    folder = options.sessions or sample_sessions_dir()
    script = Script.from_sessions(folder, answers())
    server = LoopbackOpenRouter(
        script, port=options.port, lifetime=options.lifetime, latency=options.latency
    )
    with server:
        line = json.dumps({"url": server.url, "states": len(script.entries)})
        print(line, flush=True)
        server.wait()


if __name__ == "__main__":
    main()

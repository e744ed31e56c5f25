"""A loopback server that speaks OpenRouter's API over real HTTP, and knows the true bill.

Belongs here: the server's life, chat completions, the response cache. Does not belong here:
prices (``testing.openrouter.models``), money (``testing.openrouter.billing``), the other
endpoints (``testing.openrouter.account``), faults (``testing.openrouter.faults``), what a
simulated teacher decides (``testing.personas``), the command line (``testing.openrouter.command``).

It listens on 127.0.0.1 only, needs no key unless it is given one, and stops by itself.

Billing follows the documentation: a generation runs to its end and is billed, whether or
not the client is still there. The bill, the response cache's entry and the first moment at
which the prompt cache can be read are one moment, ``latency`` after the request was read;
an identical request before it is generated and billed again. Only replies with status 200
are cached, for the key that paid; a hit has zero usage and names the billed generation in
``X-OpenRouter-Cache-Source-Id``. Where the documentation is silent the server decides:
``max_price`` is compared with the base prices, not with overrides or cache writes.
"""

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import orjson
from aiohttp import web

from composer_pipeline.money import to_pico
from composer_pipeline.testing.openrouter.account import AccountRoutes
from composer_pipeline.testing.openrouter.billing import (  # fmt: skip
    ApiKey,
    Bill,
    Books,
    PromptCache,
    cost_of,
    count_tokens,
    generation_id,
)
from composer_pipeline.testing.openrouter.delivery import (  # fmt: skip
    as_hit,
    deliver,
    reply_json,
    reply_message,
)
from composer_pipeline.testing.openrouter.faults import (  # fmt: skip
    Asked,
    Fault,
    FaultHook,
    FaultMix,
    error_reply,
    flaky_fault,
    refusal,
)
from composer_pipeline.testing.openrouter.models import (  # fmt: skip
    MODELS,
    PriceOverride,
    SimulatedModel,
    aliases,
)
from composer_pipeline.testing.personas import Script

__all__ = [
    "MODELS", "Asked", "Bill", "Fault", "FaultHook", "FaultMix", "LoopbackOpenRouter",
    "PriceOverride", "SimulatedModel", "flaky_fault", "reply_message",
]  # fmt: skip

#: Between two looks whether a generation is still held.
_LOOK_S = 0.005


class LoopbackOpenRouter:
    """The server, in a thread of its own. Use as a context manager.

    Args:
        script: what the teachers know; nothing when ``None``.
        models: the catalogue.
        port: 0 takes a free one.
        lifetime: seconds after which it stops by itself.
        api_key: where set, requests without it (or a key minted under it) get 401.
        management_key: where set, only it mints and deletes keys.
        faults: asked for every request, before the flaky persona's own faults.
        latency: seconds that a generation takes.
        jitter: up to so many more, drawn at random.
        flaky_faults: whether the flaky persona also fails.
        generation_endpoint: whether ``GET /generation`` answers.
        generation_lag: seconds until it knows of a generation.
        usage_lag: seconds until a key's usage and its limit know of a bill.
        credit_usd: what the account has; 402 when it is gone.
        response_cache: whether replies are kept at all (an account with zero data
            retention has none).
        key_endpoints: whether ``/keys`` exists; other providers have none.
        keep_bodies: whether :attr:`bodies` keeps every request.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: Sequence[SimulatedModel] = MODELS,
        port: int = 0,
        lifetime: float = 3600.0,
        api_key: str | None = None,
        management_key: str | None = None,
        faults: FaultHook | None = None,
        latency: float = 0.0,
        jitter: float = 0.0,
        flaky_faults: bool = True,
        generation_endpoint: bool = True,
        generation_lag: float = 0.0,
        usage_lag: float = 0.0,
        credit_usd: Decimal | None = None,
        response_cache: bool = True,
        key_endpoints: bool = True,
        keep_bodies: bool = True,
    ) -> None:
        self.script = script or Script()
        self.models = {model.slug: model for model in models}
        self.aliases = aliases(models)
        self.books = Books(
            api_key=api_key,
            management_key=management_key,
            credit=None if credit_usd is None else to_pico(credit_usd),
            usage_lag=usage_lag,
        )
        self.faults = faults
        self.latency = latency
        self.jitter = jitter
        self.flaky_faults = flaky_faults
        self.generation_endpoint = generation_endpoint
        self.generation_lag = generation_lag
        self.response_cache = response_cache
        self.key_endpoints = key_endpoints
        self.keep_bodies = keep_bodies
        #: Whether the account logs what is sent, which ``/generation/content`` then shows.
        self.logs_content = False
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0
        self.hits = 0
        #: Generations that run now.
        self.generating = 0
        #: While this says true of a request, its generation does not end, whatever the
        #: latency: a test decides what happens first, and not the machine's speed.
        self.held: Callable[[Asked], bool] | None = None
        self._port = port
        self._lifetime = lifetime
        self._random = random.Random(0)  # noqa: S311
        self._seen: dict[str, int] = {}
        self._cache: dict[tuple[str, str], tuple[float, bytes, str]] = {}
        self._prompts = PromptCache()
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
        while not self._ready.wait(1.0):
            if not self._thread.is_alive():
                raise OSError("the loopback server ended before it listened")
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
    def bills(self) -> list[Bill]:
        """Every billed generation, in order."""
        return self.books.bills

    @property
    def billed(self) -> int:
        """All bills, in picodollars."""
        return self.books.billed()

    def duplicate_bills(self) -> int:
        """Return how many bills were for a body that had been billed before."""
        bills = list(self.bills)
        return len(bills) - len({bill.digest for bill in bills})

    def set_price(self, slug: str, *, prompt: Decimal, completion: Decimal) -> None:
        """Change a model's prices; generations that run keep theirs."""
        self.models[slug] = msgspec.structs.replace(
            self.models[slug], prompt=prompt, completion=completion
        )

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/api/v1/chat/completions", self._chat)
        AccountRoutes(self).add_to(app)
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

    # -- chat ----------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:  # noqa: C901  one return a refusal, in the order of OpenRouter
        raw = await request.read()
        self.requests += 1
        key = self.books.authenticate(request.headers.get("Authorization"))
        if key is None:
            return error_reply(401, "No auth credentials found", "authentication")
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return error_reply(400, "the body is not JSON", "invalid_request")
        if self.keep_bodies:
            self.bodies.append(body)
        asked_for = str(body.get("model"))
        model = self.models.get(self.aliases.get(asked_for, asked_for))
        if model is None:
            return error_reply(404, "no such model", "not_found", availability="model_not_found")
        limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or 4096)
        if (refused := self._unroutable(model, body, raw, limit)) is not None:
            return refused
        digest = hashlib.sha256(raw).hexdigest()
        nth = self._seen[digest] = self._seen.get(digest, 0) + 1
        asked = Asked(model.slug, digest, nth, self.requests)
        fault = self.faults(asked) if self.faults else None
        hit = self._hit(request, key, digest)
        if fault is None and hit is None and model.persona == "flaky" and self.flaky_faults:
            fault = flaky_fault(asked)
        if fault and (refused := refusal(fault)) is not None:
            return refused
        stream = body.get("stream") is True
        headers = {"X-Generation-Id": generation_id()}
        if hit:
            self.hits += 1
            headers |= {"X-OpenRouter-Cache-Status": "HIT", "X-OpenRouter-Cache-Source-Id": hit[2]}
            return await deliver(request, as_hit(hit[1]), headers, fault, stream=stream)
        if fault and not fault.billed:
            return await deliver(request, b"{}", headers, fault, stream=False)
        if (status := self.books.refuses(key)) != 0:
            kind = "payment_required" if status == 402 else "permission_denied"
            return error_reply(status, "the limit has been reached", kind)
        self.generating += 1
        try:
            payload = await self._generate(
                request, model, body, raw, limit, key, asked, fault, headers["X-Generation-Id"]
            )
        finally:
            self.generating -= 1
        return await deliver(request, payload, headers, fault, stream=stream)

    def _unroutable(
        self, model: SimulatedModel, body: Mapping[str, Any], raw: bytes, limit: int
    ) -> web.Response | None:
        """Return why no endpoint may take the request, or ``None``."""
        provider = body.get("provider") or {}
        code = ""
        if model.expiration_date and model.expiration_date <= datetime.now(UTC).strftime("%F"):
            code = "model_deprecated"
        elif model.private or (provider.get("zdr") and not model.zdr):
            code = "privacy_restricted"
        elif provider.get("enforce_distillable_text") and not model.distillable:
            code = "constraint_filtered"
        cap = provider.get("max_price") or {}
        for name in ("prompt", "completion"):
            if name in cap and Decimal(str(cap[name])) < getattr(model, name) * 1_000_000:
                code = code or "constraint_filtered"
        if code:
            return error_reply(404, "no endpoint may answer", "not_found", availability=code)
        if limit > (model.max_completion_tokens or model.context_length):
            kind = "context_length_exceeded"
            if model.max_completion_tokens:
                kind = "max_tokens_exceeded"
            return error_reply(400, "max_completion_tokens is too large", kind)
        if count_tokens(raw) + limit > model.context_length:
            return error_reply(400, "the prompt is too long", "context_length_exceeded")
        return None

    def _hit(
        self, request: web.Request, key: ApiKey, digest: str
    ) -> tuple[float, bytes, str] | None:
        if not self._caches(request):
            return None
        hit = self._cache.get((key.hash, digest))
        return hit if hit and hit[0] > time.monotonic() else None

    def _caches(self, request: web.Request) -> bool:
        return self.response_cache and request.headers.get("X-OpenRouter-Cache") == "true"

    async def _generate(
        self,
        request: web.Request,
        model: SimulatedModel,
        body: Mapping[str, Any],
        raw: bytes,
        limit: int,
        key: ApiKey,
        asked: Asked,
        fault: Fault | None,
        generation: str,
    ) -> bytes:
        """Generate to the end, bill it, and return the reply's bytes."""
        takes = self.latency + self._random.random() * self.jitter
        started = time.monotonic()
        message = reply_message(self.script.decide(model.persona, body))
        completion = count_tokens(orjson.dumps(message))
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        if completion > limit or (fault and fault.kind == "length"):
            completion, reason = min(completion, limit), "length"
            message = {"role": "assistant", "content": "I was about to"}
        prompt = count_tokens(raw)
        cached, writes = self._prompts.look_up(model, body, started, started + takes)
        cached = min(prompt, cached)
        cost = cost_of(model, prompt, cached, writes, completion)
        if fault and fault.kind == "overcharge":
            cost *= 1000
        if takes:
            await asyncio.sleep(takes)
        while self.held and self.held(asked):
            await asyncio.sleep(_LOOK_S)
        written = prompt - cached if writes and model.input_cache_write is not None else 0
        digest = hashlib.sha256(raw).hexdigest()
        bill = Bill(
            generation, model.slug, digest, cost, key.hash, prompt, cached, written, completion,
            time.monotonic(),
        )  # fmt: skip
        self.books.add(bill)
        payload = reply_json(bill, message, reason, fault)
        if self._caches(request):
            ttl = float(request.headers.get("X-OpenRouter-Cache-TTL") or 300)
            until = time.monotonic() + min(86_400.0, max(1.0, ttl))
            self._cache[key.hash, digest] = (until, payload, generation)
        return payload

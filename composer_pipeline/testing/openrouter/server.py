"""A loopback server that implements OpenRouter's API over real HTTP, and knows the true bill.

It listens on 127.0.0.1 only, needs no key unless one is set, and stops after its lifetime.
"""

# Billing follows the documentation: a generation runs to its end and is billed even if the client
# disconnects. Bill, response cache and prompt cache take effect together, ``latency`` after the
# request was read; an identical request before that is generated and billed again. Only
# replies with status 200 are cached, for the key that paid; a hit has zero usage and names the
# billed generation in ``X-OpenRouter-Cache-Source-Id``. Undocumented, and so a choice of this
# server: ``max_price`` is compared with the base prices, not with overrides or cache writes.

import asyncio
import hashlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import orjson
from aiohttp import web

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import short_name
from composer_pipeline.files import mapping
from composer_pipeline.money import to_pico
from composer_pipeline.testing.openrouter.billing import (
    Account,
    ApiKey,
    Bill,
    PromptCache,
    cost_of,
    count_tokens,
    generation_id,
    usd,
)
from composer_pipeline.testing.openrouter.faults import (
    Fault,
    FaultHook,
    SeenRequest,
    error_reply,
    events,
    exact_json,
    flaky_fault,
    odd_answer,
    read_json,
    refusal,
)
from composer_pipeline.testing.openrouter.models import MODELS, SimulatedModel, aliases
from composer_pipeline.testing.personas import Script

_HANG_S = 3600.0
_SLOW_PIECES = 5


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


def reply_json(bill: Bill, message: dict[str, Any], reason: str, fault: Fault | None) -> bytes:
    """Return the body of a billed reply; a fault may falsify its usage."""
    cost = usd(bill.cost // 2 if fault and fault.kind == "misreport" else bill.cost)
    factor = {"overcount": 3, "undercount": 0}.get(fault.kind if fault else "", 1)
    prompt, completion = bill.prompt_tokens * factor, bill.completion_tokens * factor
    reply: dict[str, Any] = {
        "id": bill.generation_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": bill.model,
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
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "cost": cost,
            "is_byok": False,
            # The same amount again, as OpenRouter reports it; the two must not be added.
            "cost_details": {"upstream_inference_cost": cost},
            "prompt_tokens_details": {
                "cached_tokens": bill.cached_tokens * factor,
                "cache_write_tokens": bill.cache_write_tokens * factor,
            },
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    if fault and fault.kind == "no_cost":
        del reply["usage"]
    return exact_json(reply)


def as_hit(payload: bytes) -> bytes:
    """Return a cached reply as it is sent again, with zero usage."""
    reply = orjson.loads(payload)
    if "usage" in reply:
        zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}
        reply["usage"] = zero
    return orjson.dumps(reply)


async def deliver(  # noqa: C901  one branch per fault
    request: web.Request, payload: bytes, headers: dict[str, str], fault: Fault | None, *,
    stream: bool,
) -> web.StreamResponse:  # fmt: skip
    """Send a reply, or lose it in the way of the fault."""
    kind = fault.kind if fault else ""
    if kind == "hang":
        await asyncio.sleep(_HANG_S)
    transport = request.transport
    if transport is None:  # the client disconnected during generation
        return web.Response()
    if kind in ("reset", "hang"):
        transport.abort()
        return web.Response()
    if kind == "lost_gateway" and fault:
        return web.Response(status=fault.status, text="<html>gateway timeout</html>")
    headers = {"Content-Type": "application/json"} | headers
    if stream:
        headers["Content-Type"] = "text/event-stream"
        payload = events(read_json(payload))
    if kind == "odd" and fault:
        odd = odd_answer(fault.code, payload)
        return web.Response(body=odd.body, status=odd.status, headers=headers | odd.headers)
    if kind == "garble":
        return web.Response(body=payload[: len(payload) // 2], headers=headers)
    if kind not in ("truncate", "slow"):
        return web.Response(body=payload, headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_length = len(payload)
    try:
        await response.prepare(request)
        if kind == "truncate":
            await response.write(payload[: len(payload) // 2])
            transport.abort()
            return response
        step = -(-len(payload) // _SLOW_PIECES)
        for start in range(0, len(payload), step):
            await asyncio.sleep((fault.seconds if fault else 0.0) / _SLOW_PIECES)
            await response.write(payload[start : start + step])
    except ConnectionError:  # the client disconnected first
        return response
    return response


#: What ``/credits`` reports for an account with unlimited credit: 1000 USD.
_UNLIMITED = 10**15


class AccountRoutes:
    """The handlers of models, generations, keys and credits."""

    def __init__(self, server: "LoopbackOpenRouter") -> None:
        self.server = server
        self.account = server.account

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application."""
        get = app.router.add_get
        get("/api/v1/models", self._models)
        get("/api/v1/models/user", self._models)
        get("/api/v1/models/{author}/{slug}/endpoints", self._endpoints)
        get("/api/v1/endpoints/zdr", self._zdr)
        get("/api/v1/generation", self._generation)
        get("/api/v1/generation/content", self._content)
        get("/api/v1/key", self._key)
        get("/api/v1/credits", self._credits)
        if self.server.key_endpoints:
            app.router.add_post("/api/v1/keys", self._mint)
            for method in ("GET", "PATCH", "DELETE"):
                app.router.add_route(method, "/api/v1/keys/{hash}", self._child)

    async def _models(self, request: web.Request) -> web.Response:
        mine = request.path.endswith("/user")
        shown = [m for m in self.server.models.values() if not (mine and m.private)]
        if request.query.get("distillable") == "true":
            shown = [model for model in shown if model.distillable]
        data = [model.entry() for model in shown]
        slugs = {model.slug for model in shown}
        data += [
            self.server.models[slug].entry(alias, alias_target=slug)
            for alias, slug in self.server.aliases.items()
            if slug in slugs
        ]
        return web.json_response({"data": data})

    async def _endpoints(self, request: web.Request) -> web.Response:
        model = self.server.models.get(
            f"{request.match_info['author']}/{request.match_info['slug']}"
        )
        if model is None:
            return error_reply(404, "no such model", "not_found", availability="model_not_found")
        return web.json_response({"data": model.entry() | {"endpoints": [model.endpoint()]}})

    async def _zdr(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"data": [m.endpoint() for m in self.server.models.values() if m.zdr]}
        )

    async def _generation(self, request: web.Request) -> web.Response:
        wanted = request.query.get("id", "")
        bill = self.account.by_generation.get(wanted) if self.server.generation_endpoint else None
        if bill is None or bill.at > time.monotonic() - self.server.generation_lag:
            return error_reply(404, "no such generation", "not_found")
        data = {
            "id": wanted,
            "model": bill.model,
            "provider_name": "Loopback",
            "total_cost": usd(bill.cost),
            "native_tokens_prompt": bill.prompt_tokens,
            "native_tokens_completion": bill.completion_tokens,
            "native_tokens_cached": bill.cached_tokens,
            "cancelled": False,
        }
        return _json(data)

    async def _content(self, request: web.Request) -> web.Response:
        known = request.query.get("id", "") in self.account.by_generation
        if not known or not self.server.logs_content:
            return error_reply(404, "no content is stored", "not_found")
        return web.json_response({"data": {"input": {"messages": []}, "output": {}}})

    async def _key(self, request: web.Request) -> web.Response:
        key = self.account.authenticate(request.headers.get("Authorization"))
        if key is None:
            return error_reply(401, "No auth credentials found", "authentication")
        return _json(self._show(key) | {"label": key.name, "rate_limit": {"requests": -1}})

    async def _credits(self, request: web.Request) -> web.Response:
        total = self.account.credit
        credit = usd(_UNLIMITED if total is None else total)
        return _json({"total_credits": credit, "total_usage": usd(self.account.usage())})

    async def _mint(self, request: web.Request) -> web.Response:
        if not self.account.may_manage(request.headers.get("Authorization")):
            return error_reply(401, "a management key is needed", "authentication")
        wanted = _object(await request.read())
        if not isinstance(wanted.get("name"), str):
            return error_reply(400, "name is missing", "invalid_request")
        limit = wanted.get("limit")
        key = self.account.mint(wanted["name"], None if limit is None else to_pico(limit))
        return _json(self._show(key), status=201, key=key.secret)

    async def _child(self, request: web.Request) -> web.Response:
        if not self.account.may_manage(request.headers.get("Authorization")):
            return error_reply(401, "a management key is needed", "authentication")
        key = self.account.keys.get(request.match_info["hash"])
        if key is None or key is self.account.root:
            return error_reply(404, "no such key", "not_found")
        if request.method == "DELETE":
            self.account.delete(key.hash)
            return web.json_response({"deleted": True})
        if request.method == "PATCH":
            wanted = _object(await request.read())
            if "limit" in wanted:
                key.limit = None if wanted["limit"] is None else to_pico(wanted["limit"])
            key.disabled = bool(wanted.get("disabled", key.disabled))
        return _json(self._show(key))

    def _show(self, key: ApiKey) -> dict[str, Any]:
        usage = self.account.usage(key.hash)
        return {
            "hash": key.hash,
            "name": key.name,
            "disabled": key.disabled,
            "usage": usd(usage),
            "limit": None if key.limit is None else usd(key.limit),
            "limit_remaining": None if key.limit is None else usd(max(0, key.limit - usage)),
            "limit_reset": None,
        }


def _json(data: Any, *, status: int = 200, **more: Any) -> web.Response:
    body = exact_json({"data": data} | more)
    return web.Response(body=body, status=status, content_type="application/json")


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        return mapping(read_json(raw))
    except msgspec.DecodeError:
        return {}


#: Seconds between two checks whether a generation is still held.
_HOLD_S = 0.005


class LoopbackOpenRouter:
    """The server, in its own thread; a context manager.

    Args:
        script: the teachers' script; empty if ``None``.
        models: the catalogue.
        port: 0 takes a free port.
        lifetime: seconds after which the server stops.
        api_key: if set, requests without it (or a key minted under it) get 401.
        management_key: if set, only this key mints and deletes keys.
        faults: called for every request, before the flaky persona's own faults.
        latency: seconds per generation.
        jitter: seconds added to the latency at most, at random.
        flaky_faults: whether the flaky persona also fails.
        generation_endpoint: whether ``GET /generation`` exists.
        generation_lag: seconds until it returns a generation.
        usage_lag: seconds until a bill counts in a key's usage and limit.
        credit_usd: credit of the account; 402 once it is spent.
        response_cache: whether replies are cached (not with zero data retention).
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
        self.account = Account(
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
        #: Whether the account logs requests, which ``/generation/content`` then returns.
        self.logs_content = False
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0
        self.hits = 0
        #: Generations in progress.
        self.generating = 0
        #: While this returns true for a request, its generation does not end, so that a test and
        #: not the machine's speed decides what happens first.
        self.held: Callable[[SeenRequest], bool] | None = None
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

    # -- lifecycle --------------------------------------------------------------------

    def start(self) -> "LoopbackOpenRouter":
        """Start and wait until it listens."""
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
        """Wait until its lifetime is over."""
        self._thread.join()

    def __enter__(self) -> "LoopbackOpenRouter":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL for a teacher file or COMPOSER_OPENROUTER_URL."""
        return f"http://127.0.0.1:{self._port}/api/v1"

    @property
    def bills(self) -> list[Bill]:
        """Every billed generation, in order."""
        return self.account.bills

    @property
    def billed(self) -> int:
        """All bills, in picodollars."""
        return self.account.billed()

    def duplicate_bills(self) -> int:
        """Return how many bills are for a body that was billed before."""
        bills = list(self.bills)
        return len(bills) - len({bill.digest for bill in bills})

    def set_price(self, slug: str, *, prompt: Decimal, completion: Decimal) -> None:
        """Change a model's prices, except for generations in progress."""
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

    async def _chat(self, request: web.Request) -> web.StreamResponse:  # noqa: C901  one return per refusal, in OpenRouter's order
        raw = await request.read()
        self.requests += 1
        key = self.account.authenticate(request.headers.get("Authorization"))
        if key is None:
            return error_reply(401, "No auth credentials found", "authentication")
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return error_reply(400, "the body is not JSON", "invalid_request")
        if self.keep_bodies:
            self.bodies.append(body)
        name = str(body.get("model"))
        model = self.models.get(self.aliases.get(name, name))
        if model is None:
            return error_reply(404, "no such model", "not_found", availability="model_not_found")
        limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or 4096)
        if (refused := self._unroutable(model, body, raw, limit)) is not None:
            return refused
        digest = hashlib.sha256(raw).hexdigest()
        nth = self._seen[digest] = self._seen.get(digest, 0) + 1
        seen = SeenRequest(model.slug, digest, nth, self.requests)
        fault = self.faults(seen) if self.faults else None
        hit = self._hit(request, key, digest)
        if fault is None and hit is None and model.persona == "flaky" and self.flaky_faults:
            fault = flaky_fault(seen)
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
        if (status := self.account.refuses(key)) != 0:
            kind = "payment_required" if status == 402 else "permission_denied"
            return error_reply(status, "the limit has been reached", kind)
        self.generating += 1
        try:
            payload = await self._generate(
                request, model, body, raw, limit, key, seen, fault, headers["X-Generation-Id"]
            )
        finally:
            self.generating -= 1
        return await deliver(request, payload, headers, fault, stream=stream)

    def _unroutable(
        self, model: SimulatedModel, body: Mapping[str, Any], raw: bytes, limit: int
    ) -> web.Response | None:
        """Return the error if no endpoint accepts the request, else ``None``."""
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
        seen: SeenRequest,
        fault: Fault | None,
        generation: str,
    ) -> bytes:
        """Generate the reply, bill it, and return its bytes."""
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
        while self.held and self.held(seen):
            await asyncio.sleep(_HOLD_S)
        written = prompt - cached if writes and model.input_cache_write is not None else 0
        digest = hashlib.sha256(raw).hexdigest()
        bill = Bill(
            generation, model.slug, digest, cost, key.hash, prompt, cached, written, completion,
            time.monotonic(),
        )  # fmt: skip
        self.account.add(bill)
        payload = reply_json(bill, message, reason, fault)
        if self._caches(request):
            ttl = float(request.headers.get("X-OpenRouter-Cache-TTL") or 300)
            until = time.monotonic() + min(86_400.0, max(1.0, ttl))
            self._cache[key.hash, digest] = (until, payload, generation)
        return payload

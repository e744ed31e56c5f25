"""The loopback provider's other endpoints: catalogue, keys, credit, generations.

Belongs here: everything but ``POST /chat/completions``. Does not belong here: the numbers
(``testing.openrouter.billing``), which are told here as exact decimals.
"""

import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

import msgspec
from aiohttp import web

from composer_pipeline.money import to_pico
from composer_pipeline.testing.openrouter.billing import ApiKey, Books, usd
from composer_pipeline.testing.openrouter.delivery import exact_json
from composer_pipeline.testing.openrouter.faults import error_reply
from composer_pipeline.testing.openrouter.models import SimulatedModel

#: What ``/credits`` tells of an account whose credit is not limited: 1000 USD.
_PLENTY = 10**15


class Server(Protocol):
    """What these endpoints read of the server."""

    models: dict[str, SimulatedModel]
    aliases: dict[str, str]
    books: Books
    generation_endpoint: bool
    generation_lag: float
    key_endpoints: bool
    logs_content: bool


class AccountRoutes:
    """The handlers, for one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.books = server.books

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
        bill = self.books.by_generation.get(wanted) if self.server.generation_endpoint else None
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
        known = request.query.get("id", "") in self.books.by_generation
        if not known or not self.server.logs_content:
            return error_reply(404, "no content is stored", "not_found")
        return web.json_response({"data": {"input": {"messages": []}, "output": {}}})

    async def _key(self, request: web.Request) -> web.Response:
        key = self.books.authenticate(request.headers.get("Authorization"))
        if key is None:
            return error_reply(401, "No auth credentials found", "authentication")
        return _json(self._show(key) | {"label": key.name, "rate_limit": {"requests": -1}})

    async def _credits(self, request: web.Request) -> web.Response:
        total = self.books.credit
        credit = usd(_PLENTY if total is None else total)
        return _json({"total_credits": credit, "total_usage": usd(self.books.usage())})

    async def _mint(self, request: web.Request) -> web.Response:
        if not self.books.may_manage(request.headers.get("Authorization")):
            return error_reply(401, "a management key is needed", "authentication")
        wanted = _object(await request.read())
        if not isinstance(wanted.get("name"), str):
            return error_reply(400, "name is missing", "invalid_request")
        limit = wanted.get("limit")
        key = self.books.mint(wanted["name"], None if limit is None else to_pico(limit))
        return _json(self._show(key), status=201, key=key.secret)

    async def _child(self, request: web.Request) -> web.Response:
        if not self.books.may_manage(request.headers.get("Authorization")):
            return error_reply(401, "a management key is needed", "authentication")
        key = self.books.keys.get(request.match_info["hash"])
        if key is None or key is self.books.root:
            return error_reply(404, "no such key", "not_found")
        if request.method == "DELETE":
            self.books.delete(key.hash)
            return web.json_response({"deleted": True})
        if request.method == "PATCH":
            wanted = _object(await request.read())
            if "limit" in wanted:
                key.limit = None if wanted["limit"] is None else to_pico(wanted["limit"])
            key.disabled = bool(wanted.get("disabled", key.disabled))
        return _json(self._show(key))

    def _show(self, key: ApiKey) -> dict[str, Any]:
        usage = self.books.usage(key.hash)
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
        value = msgspec.json.Decoder(float_hook=Decimal).decode(raw)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}

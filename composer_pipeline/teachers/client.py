"""The HTTP side of a provider: bounded in bytes, in memory and in time; and the keys of runs.

Proxies: every client honours ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``
alike. An address of this machine is never asked through a proxy. A key goes to the endpoint's
host only: redirects are not followed, and a proxy of an ``https`` endpoint carries bytes that it
cannot read. Passwords of ``.netrc`` files are not used.
"""

import asyncio
import contextlib
import hashlib
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import mapping_at
from composer_pipeline.money import NOTHING, PICO, Pico, billed_pico, pico_or_none, to_usd
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.sweep import set_run_key, sweep
from composer_pipeline.teachers.ledger.values import NotQuiescent, SweepMismatch
from composer_pipeline.teachers.outcome import (
    Outcome,
    TokenPrice,
    classify,
    is_page,
    no_response,
    read_json,
    too_large,
)
from composer_pipeline.teachers.teachers import Endpoint, Teacher, TeacherSet

#: Most bytes of a body, decompressed.
MOST_BYTES = 64 << 20
#: How many bytes of a larger body are kept.
KEPT_BYTES = 1 << 20
#: Most bytes of the short answers: a key, a generation.
SHORT_BYTES = 1 << 20
_PIECE = 1 << 16
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: A key is made with at least this limit: a limit of 0 means none.
LEAST_LIMIT = Pico(10**6)
#: How long a usage that lags behind settled bills is waited for, and how often it is read.
LAG_S, READ_EVERY_S = 30.0, 1.0
GLOBAL = "global"
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class KeyUnread(ComposerError):
    """The usage of a key cannot be read now; nothing is known of it."""


# -- one request -------------------------------------------------------------------------


class Body(msgspec.Struct, frozen=True):
    """A body that was read to its end, or to where it became too large.

    ``data`` is decompressed; where that fails it is what came over the wire.
    """

    data: bytes
    too_large: bool = False


def new_session(
    *, read_s: float = 30.0, total_s: float = 30.0, connections: int = 8
) -> aiohttp.ClientSession:
    """Return a session; a proxy sees its headers too, so no key is among them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=15),
        headers={"Accept-Encoding": "gzip, deflate"},
        timeout=aiohttp.ClientTimeout(total=total_s, sock_connect=10, sock_read=read_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        # read_body decompresses piece by piece: a few bytes can become a gigabyte.
        auto_decompress=False,
    )


def proxy_of(url: str | URL) -> dict[str, Any]:
    """Return the arguments of a request that send it through the environment's proxy, if any."""
    target = URL(url)
    host = target.host or ""
    if host in _LOOPBACK or proxy_bypass(f"{host}:{target.port}"):
        return {}
    known = getproxies_environment()
    named = known.get(target.scheme) or known.get("all")
    if not named:
        return {}
    proxy = URL(named if "://" in named else f"http://{named}")
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise InputError(
            f"the environment's proxy for {target.scheme} is not an http:// URL;"
            " set NO_PROXY for the endpoint's host to go without it"
        )
    login = aiohttp.BasicAuth(proxy.user, proxy.password or "") if proxy.user else None
    return {"proxy": proxy.with_user(None), "proxy_auth": login}


async def read_body(response: aiohttp.ClientResponse, most: int = MOST_BYTES) -> Body:
    """Read and decompress a body; beyond ``most`` bytes the rest is not read."""
    decoder = _Decoder(response.headers.get("content-encoding", "").strip().lower())
    data, wire = bytearray(), bytearray()
    async for chunk in response.content.iter_any():
        if decoder.active:
            wire += chunk
        try:
            for piece in decoder.feed(chunk):
                data += piece
                if max(len(data), len(wire)) > most:
                    response.close()
                    return Body(bytes(data[:KEPT_BYTES]), too_large=True)
        except zlib.error:
            decoder.active = False  # not what it says: keep it as it came
            data = wire
        await asyncio.sleep(0)
    return Body(bytes(data))


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str | URL,
    *,
    most: int = SHORT_BYTES,
    **request: Any,
) -> tuple[int, Mapping[str, str], bytes]:
    """Ask once; return ``(0, {}, b"")`` where nobody answers in time, within ``most`` bytes."""
    try:
        async with session.request(
            method, url, allow_redirects=False, **proxy_of(url), **request
        ) as response:
            body = await read_body(response, most)
    except (aiohttp.ClientError, TimeoutError):
        return 0, {}, b""
    return (0, {}, b"") if body.too_large else (response.status, response.headers, body.data)


class _Decoder:
    """Decompresses gzip and deflate piece by piece; anything else passes as it is."""

    def __init__(self, encoding: str) -> None:
        self.active = encoding in ("gzip", "x-gzip", "deflate")
        self._raw_deflate = encoding == "deflate"
        self._inflate: Any = None
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk decompresses to, in bounded pieces; may raise ``zlib.error``."""
        if not self.active:
            yield chunk
            return
        while chunk:
            if self._inflate is None:
                if self._ended and not chunk.startswith(b"\x1f\x8b"):
                    return  # padding behind the last member
                bare = self._raw_deflate and chunk[0] & 0x0F != 8
                self._inflate = zlib.decompressobj(-15 if bare else 47)
            piece = self._inflate.decompress(chunk, _PIECE)
            while piece:
                yield piece
                piece = self._inflate.decompress(self._inflate.unconsumed_tail, _PIECE)
            chunk = self._inflate.unused_data
            if self._inflate.eof:
                self._inflate, self._ended = None, True  # another member may follow


def _bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


# -- chat completions --------------------------------------------------------------------


class Wire:
    """The HTTP side of one endpoint, as an async context manager.

    ``read_timeout_s`` is the silence after which the outcome counts as unknown, and the longest
    that a body may take from its first byte to its last.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | None,
        *,
        read_timeout_s: float = 600.0,
        connections: int = 256,
    ) -> None:
        self.url = endpoint.url()
        self._chat_url = URL(f"{self.url}/chat/completions")
        self._generation_url = URL(f"{self.url}/generation")
        self._priced = endpoint.api == "openai"
        self._has_generations = endpoint.api == "openrouter"
        self._authorization = _bearer(api_key)
        self._headers = {"Content-Type": "application/json"} | self._authorization
        if endpoint.api == "openrouter":
            self._headers["X-OpenRouter-Title"] = "composer-pipeline"
            if endpoint.recovery_cache_s:
                self._headers["X-OpenRouter-Cache"] = "true"
                self._headers["X-OpenRouter-Cache-TTL"] = str(endpoint.recovery_cache_s)
        self._read_timeout_s = read_timeout_s
        self._connections = connections
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
        """Send the exact bytes once; ``price`` is that of tokens where replies name no cost."""
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
                    content = await read_body(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            return no_response(error, generation=generation, status=status)
        latency = (time.perf_counter() - started) * 1000
        if content.too_large:
            return too_large(status, content.data, generation, latency, MOST_BYTES)
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
        """Return what a generation cost; ``None`` where the endpoint does not say."""
        if not self._has_generations:
            return None
        status, _, body = await ask(
            self._session,
            "GET",
            self._generation_url,
            params={"id": generation_id},
            headers=self._authorization,
            timeout=aiohttp.ClientTimeout(total=30),
        )
        data = mapping_at(read_json(body), "data") if status == 200 else {}
        cost = pico_or_none(data.get("total_cost"))
        if cost is None:
            return None
        upstream = pico_or_none(data.get("upstream_inference_cost")) or NOTHING
        return billed_pico(cost, upstream, data.get("is_byok") is True)


@asynccontextmanager
async def open_wires(
    teacher_set: TeacherSet, teachers: Sequence[Teacher], secret: str | None
) -> AsyncIterator[dict[str, Wire]]:
    """Open the endpoints of teachers by name; the file's is always among them.

    ``secret`` is the key of the run, which only the file's endpoint sees; every other one sees
    its own alone.
    """
    main = teacher_set.endpoint
    connections = sum(teacher.concurrency for teacher in teachers)
    async with AsyncExitStack() as stack:
        wires = {}
        for name, endpoint in ({main.name: main} | teacher_set.endpoints(teachers)).items():
            wire = Wire(
                endpoint,
                secret if name == main.name else endpoint.key(),
                read_timeout_s=teacher_set.limits.read_timeout_s,
                connections=connections,
            )
            wires[name] = await stack.enter_async_context(wire)
        yield wires


# -- keys --------------------------------------------------------------------------------


async def own_usage(endpoint: Endpoint, api_key: str) -> Pico:
    """Return what the given key itself has spent; raise KeyUnread if the endpoint does not say."""
    status, reply = await _ask_keys("GET", f"{endpoint.url()}/key", api_key)
    usage = pico_or_none(mapping_at(reply, "data").get("usage")) if status == 200 else None
    if usage is None:
        raise KeyUnread(f"endpoint {endpoint.name} does not report the usage of the key")
    return usage


async def _ask_keys(method: str, url: str, key: str, body: bytes | None = None) -> tuple[int, Any]:
    """Ask once over a connection of its own; return ``(0, None)`` where nobody answers."""
    headers = {"Content-Type": "application/json"} | _bearer(key)
    async with new_session() as session:
        status, _, data = await ask(session, method, url, data=body, headers=headers)
    return status, read_json(data)


class RunKey:
    """The key that a run's calls are made with: a new one, a dedicated one, or the user's.

    With a provisioning key, each run makes a key that may spend what is left of its ceiling. Such
    a key, and one that the endpoint declares as dedicated, is used by nothing else, so its usage
    proves what the run's unknown attempts cost.
    """

    def __init__(
        self,
        teacher_set: TeacherSet,
        ledger: Ledger,
        *,
        run_id: str,
        ceiling: Pico,
        budget: str = "",
        api_key: str | None,
        stop: asyncio.Event,
    ) -> None:
        self.endpoint = teacher_set.endpoint
        self.grace_s = teacher_set.limits.sweep_grace_s
        self.ledger = ledger
        self.scope = f"run:{run_id}"
        self.ceiling = ceiling
        self.budget = budget
        self.api_key = api_key
        self.stop = stop
        self._provisioning_key = teacher_set.endpoint.provisioning_key()
        #: Hash of the key that was made for this run.
        self._minted = ""
        self._dedicated = hashlib.sha256((api_key or "").encode()).hexdigest()[:32]

    async def begin(self) -> str | None:
        """Return the key to make calls with, after its hash and baseline were stored."""
        if self._provisioning_key:
            return await self._mint()
        if self.endpoint.dedicated_key and self.api_key:
            stored = {key.key_hash for key in self.ledger.run_keys(GLOBAL)}
            if self._dedicated not in stored:
                usage = await own_usage(self.endpoint, self.api_key)
                baseline = Pico(usage - self._spent(GLOBAL))
                self.ledger.do(set_run_key(GLOBAL, self._dedicated, baseline))
        return self.api_key

    async def sweep_old(self) -> None:
        """Sweep what dead runs left, where the grace is over. What fails is tried later."""
        for scope, sums in self.ledger.status().items():
            if self.endpoint.dedicated_key:
                swept = scope == GLOBAL
            else:
                swept = bool(self._provisioning_key) and scope.startswith("run:")
            if swept and sums.unknown and self.ledger.run_keys(scope):
                with contextlib.suppress(ComposerError):
                    await self._sweep(scope)

    async def abandon(self) -> None:
        """Disable the run's key, so that it spends nothing more; a later run reads it."""
        if self._minted:
            await self._ask("PATCH", self._minted, {"disabled": True})

    async def finish(self) -> str:
        """End the run's key after the last call; return what its usage showed.

        No failure here fails the run: what is not exact stays charged at its worst case.
        """
        if not self._provisioning_key and not self.endpoint.dedicated_key:
            return ""
        scope = self.scope if self._provisioning_key else GLOBAL
        await self.abandon()
        try:
            shown = await self._sweep_patiently(scope)
        except ComposerError as error:
            return f"not swept: {error}"
        finally:
            await self.sweep_old()  # what a dead run left may be old enough by now
        if self._minted and len(self.ledger.run_keys(scope)) == 1:
            # All is exact and settled: nobody needs to read this key again.
            await self._ask("DELETE", self._minted)
        return shown

    # -- sweeping ------------------------------------------------------------------

    async def _sweep_patiently(self, scope: str) -> str:
        """Sweep once the grace is over and the usage has caught up with the bills."""
        loop = asyncio.get_running_loop()
        lag_ends = loop.time() + min(LAG_S, self.grace_s)
        while True:
            try:
                return await self._sweep(scope)
            except NotQuiescent as early:
                if self.stop.is_set() or not early.wait_s:
                    raise
                pause = early.wait_s
                lag_ends = loop.time() + pause + min(LAG_S, self.grace_s)
            except SweepMismatch as lagging:
                # More than the unknown attempts can explain does not go away by waiting.
                if self.stop.is_set() or lagging.value_pico >= 0 or loop.time() >= lag_ends:
                    raise
                pause = READ_EVERY_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), pause + 0.05)

    async def _sweep(self, scope: str) -> str:
        usage = baseline = since = 0
        for key in self.ledger.run_keys(scope):
            used: Pico | None
            if self._provisioning_key:
                used = await self._usage(key.key_hash)
            elif key.key_hash == self._dedicated and self.api_key:
                since = key.created_us
                used = await own_usage(self.endpoint, self.api_key)
            else:
                raise KeyUnread("this ledger was used with another dedicated_key before")
            if used is not None:
                usage += used
                baseline += key.baseline_pico
        result = self.ledger.do(
            sweep(scope, Pico(usage), Pico(baseline), grace_s=self.grace_s, since_us=since)
        )
        older = sum(a.created_us < since for a in self.ledger.unknown_attempts(scope))
        if older:
            return (
                f"not exact: {older} unknown attempts are older than dedicated_key and stay"
                f" charged at their worst case; since then {scope} was billed as charged"
            )
        found = f"; {result.attempts} unknown attempts cost {to_usd(result.swept_pico)} USD"
        return f"exact: {scope} spent {to_usd(self._spent(scope))} USD, as the key was billed" + (
            found if result.attempts else ""
        )

    def _spent(self, scope: str) -> Pico:
        sums = self.ledger.status().get(scope)
        return sums.spent if sums else NOTHING

    # -- keys by a provisioning key ------------------------------------------------

    async def _mint(self) -> str:
        """Make the run's key, store its hash before it is used, and return it.

        Keys of the run that still can be read answer for what was spent so far; where none
        can, the new key's baseline stands for it.
        """
        readable = False
        for key in self.ledger.run_keys(self.scope):
            try:
                readable = readable or await self._usage(key.key_hash) is not None
            except KeyUnread:
                readable = True
        spent = self._spent(self.scope)
        together = max(spent, self._spent(self.budget))
        limit = Pico(max(LEAST_LIMIT, self.ceiling - together))
        wanted = {"name": f"composer-pipeline {self.scope}", "limit": Decimal(limit) / PICO}
        status, reply = await self._ask("POST", "", wanted)
        data = mapping_at(reply, "data")
        key_hash, secret = data.get("hash"), reply.get("key") if isinstance(reply, dict) else None
        usable = isinstance(key_hash, str) and isinstance(secret, str) and key_hash and secret
        if status not in (200, 201) or not usable:
            raise ComposerError(
                f"endpoint {self.endpoint.name} makes no key for this run"
                f" ({f'HTTP {status}' if status else 'no answer'}); check the key in"
                f" {self.endpoint.provisioning_key_env}, or leave provisioning_key_env out"
            )
        usage = pico_or_none(data.get("usage")) or NOTHING
        self._minted = str(key_hash)
        self.ledger.do(
            set_run_key(self.scope, self._minted, usage if readable else Pico(usage - spent))
        )
        return str(secret)

    async def _usage(self, key_hash: str) -> Pico | None:
        """Return what a key has spent, ``None`` where it is gone; raise KeyUnread if unknown."""
        status, reply = await self._ask("GET", key_hash)
        if status == 404:
            return None
        usage = pico_or_none(mapping_at(reply, "data").get("usage")) if status == 200 else None
        if usage is None:
            raise KeyUnread(f"endpoint {self.endpoint.name} does not report the usage of a key")
        return usage

    async def _ask(
        self, method: str, key_hash: str, fields: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        assert self._provisioning_key
        url = f"{self.endpoint.url()}/keys" + (f"/{quote(key_hash, safe='')}" if key_hash else "")
        body = None if fields is None else _ENCODER.encode(fields)
        return await _ask_keys(method, url, self._provisioning_key, body)

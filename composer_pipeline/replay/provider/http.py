"""HTTP as every client of a provider speaks it: bounded in bytes, in memory and in time.

Belongs here: sessions, proxies, and reading a body that may be huge or compressed. Does not
belong here: what is asked and what an answer means.

Proxies: ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are honoured by every
client alike. An address of this machine is never asked through a proxy. A key goes to the
endpoint's host only: redirects are not followed, and a proxy of an ``https`` endpoint carries
bytes that it cannot read. Passwords of ``.netrc`` files are not used.

A body is decompressed here, piece by piece, because a few bytes can become a gigabyte.
"""

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from composer_pipeline.errors import InputError
from composer_pipeline.replay.provider.reading import read_json

#: Most bytes of a body, decompressed.
MOST_BYTES = 64 << 20
#: So many bytes of a larger body are kept.
KEPT_BYTES = 1 << 20
#: Most bytes of the short answers: a key, a generation.
SHORT_BYTES = 1 << 20
_PIECE = 1 << 16
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Body(msgspec.Struct, frozen=True):
    """A body that was read to its end, or to where it became too large.

    ``data`` is decompressed; where that fails it is what came over the wire.
    """

    data: bytes
    too_large: bool = False


def new_session(
    *, read_s: float = 30.0, total_s: float = 30.0, connections: int = 8
) -> aiohttp.ClientSession:
    """Return a session; its headers are told to a proxy too, so no key is among them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=15),
        headers={"Accept-Encoding": "gzip, deflate"},
        timeout=aiohttp.ClientTimeout(total=total_s, sock_connect=10, sock_read=read_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def bearer(key: str | None) -> dict[str, str]:
    """Return the header of one request that carries a key to the endpoint's host alone."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def proxy_of(url: str | URL) -> dict[str, Any]:
    """Return the arguments of a request that send it through the environment's proxy, if any.

    Raises:
        InputError: the proxy is not an http or https URL.
    """
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
    """Read and decompress a body; beyond ``most`` bytes the rest is not read.

    Raises:
        aiohttp.ClientError: the connection broke.
        TimeoutError: it took too long.
    """
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
    """Ask once; ``(0, {}, b"")`` where nobody answers in time, within ``most`` bytes."""
    try:
        async with session.request(
            method, url, allow_redirects=False, **proxy_of(url), **request
        ) as response:
            body = await read_body(response, most)
    except (aiohttp.ClientError, TimeoutError):
        return 0, {}, b""
    return (0, {}, b"") if body.too_large else (response.status, response.headers, body.data)


async def ask_json(
    session: aiohttp.ClientSession, method: str, url: str | URL, **request: Any
) -> tuple[int, Any]:
    """Ask once as :func:`ask`; return the status and the decoded JSON, or ``None``."""
    status, _, body = await ask(session, method, url, **request)
    return status, read_json(body)


class _Decoder:
    """Decompresses gzip and deflate piece by piece; anything else passes as it is."""

    def __init__(self, encoding: str) -> None:
        self.active = encoding in ("gzip", "x-gzip", "deflate")
        self._raw_deflate = encoding == "deflate"
        self._inflate: Any = None
        self._ended = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Return what a chunk decompresses to, in bounded pieces.

        Raises:
            zlib.error: it is not compressed as it says.
        """
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

"""Bounds, proxies and pages: what reaches the process and what does not."""

import asyncio
import gzip
import resource
import sys
import time
import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.teachers.catalogue import fetch
from composer_pipeline.teachers.client import Wire, proxy_of
from composer_pipeline.teachers.outcome import Outcome
from composer_pipeline.teachers.teachers import Endpoint, TeacherSet
from tests.fixtures.odd_server import odd_server, response

GOOD = {
    "id": "gen-1",
    "choices": [{"finish_reason": "stop", "message": {"content": "hi"}}],
    "usage": {"completion_tokens": 1, "cost": 0.25},
}


def ask(url: str, **options: Any) -> Outcome:
    async def once() -> Outcome:
        endpoint = Endpoint(name="odd", base_url=url, simulated=True)
        async with Wire(endpoint, "key", **options) as wire:
            return await wire.chat(b"{}")

    return asyncio.run(once())


def head(encoding: str, status: int = 200) -> bytes:
    return (
        f"HTTP/1.1 {status} OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: {encoding}\r\n\r\n"
    ).encode()


def test_a_gigabyte_in_a_megabyte_is_a_typed_outcome_in_little_memory() -> None:
    def bomb(*_: Any) -> Iterator[bytes]:
        yield head("gzip")
        squeeze = zlib.compressobj(wbits=31)
        yield squeeze.compress(b'{"choices": "')
        for _piece in range(64):
            yield squeeze.compress(b" " * (16 << 20))
        yield squeeze.flush()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with odd_server(bomb) as server:
        outcome = ask(server.url)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (outcome.kind, len(outcome.body)) == ("unpriced", 1 << 20)
    assert "more than 67108864 bytes" in outcome.detail
    unit = 1 if sys.platform == "darwin" else 1024
    assert grown * unit < 200 << 20


@pytest.mark.parametrize(
    ("encoding", "squeezed", "kind"),
    [
        ("gzip", gzip.compress, "billed"),
        ("deflate", zlib.compress, "billed"),
        ("deflate", lambda b: zlib.compressobj(wbits=-15), "billed"),
        ("gzip", lambda b: gzip.compress(b[:20]) + gzip.compress(b[20:]), "billed"),
        ("gzip", lambda b: gzip.compress(b) + b"\0" * 20, "billed"),
        ("gzip", lambda b: b, "billed"),  # it is not compressed at all
        ("br", lambda b: b"\x8b\x01\x80" + b[:9], "unpriced"),
        ("gzip", lambda b: gzip.compress(b)[:30] + b"\xff" * 30, "unpriced"),
        ("gzip", lambda b: gzip.compress(b)[:-30], "unknown"),
    ],
)
def test_compressed_replies(encoding: str, squeezed: Any, kind: str) -> None:
    import json

    raw = json.dumps(GOOD).encode()
    data = squeezed(raw)
    if not isinstance(data, bytes):
        data = data.compress(raw) + data.flush()
    with odd_server(lambda *_: iter([head(encoding), data])) as server:
        assert ask(server.url).kind == kind


class Drip:
    """A reply of many minutes: no pause is as long as a timeout, and all together are."""

    length, sent = 6000, 0

    def __call__(self, *_: Any) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self.length
        while self.sent < self.length:
            time.sleep(0.1)
            self.sent += 1
            yield b" "


def test_a_reply_that_drips_is_given_up_in_time() -> None:
    with odd_server(drip := Drip()) as server:
        outcome = ask(server.url, read_timeout_s=0.6)
    assert outcome.kind == "unknown"
    assert drip.sent < drip.length


def test_pages_redirects_and_refused_names() -> None:
    page = response(b"<!doctype html><p>log in", kind="text/html; charset=utf-8")
    with odd_server(lambda *_: iter([page])) as server:
        outcome = ask(server.url)
    assert (outcome.kind, outcome.stop) == ("unbilled", "teacher")
    assert "base_url" in outcome.detail
    moved = response(b"", 307, {"Location": "http://127.0.0.1:1/elsewhere"})
    with odd_server(lambda *_: iter([moved])) as server:
        outcome = ask(server.url)
        assert len(server.seen) == 1
    assert (outcome.kind, outcome.stop, outcome.detail) == (
        "unbilled", "teacher", "HTTP 307 redirect",
    )  # fmt: skip


def test_a_page_after_answers_may_have_been_billed() -> None:
    answers = iter([response(GOOD), response(b"<html>oops</html>", kind="text/html")])

    async def twice(url: str) -> list[str]:
        endpoint = Endpoint(name="odd", base_url=url, simulated=True)
        async with Wire(endpoint, None) as wire:
            return [(await wire.chat(b"{}")).kind for _ in range(2)]

    with odd_server(lambda *_: iter([next(answers)])) as server:
        assert asyncio.run(twice(server.url)) == ["billed", "unpriced"]


def test_a_catalogue_that_is_a_page_or_moves_is_said(teacher_set: TeacherSet) -> None:
    for answer, word in (
        (response(b"<html>", kind="text/html"), "HTML"),
        (response(b"", 301, {"Location": "/there"}), "redirects"),
    ):
        with odd_server(lambda *_, a=answer: iter([a])) as server:
            moved = teacher_set.endpoint.model_copy(update={"base_url": server.url})
            with pytest.raises(ComposerError, match=word):
                fetch(teacher_set.model_copy(update={"endpoint": moved}))


def test_a_catalogue_that_drips_ends(
    teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("composer_pipeline.teachers.catalogue"), "TOTAL_S", 0.5)
    with odd_server(drip := Drip()) as server:
        slow = teacher_set.endpoint.model_copy(update={"base_url": server.url})
        assert fetch(teacher_set.model_copy(update={"endpoint": slow})) is None
    assert drip.sent < drip.length


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY",
                 "all_proxy", "NO_PROXY", "no_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    assert proxy_of("https://openrouter.ai/api/v1") == {}
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    asked = proxy_of("https://openrouter.ai/api/v1")
    assert str(asked["proxy"]) == "http://proxy.example:3128"
    assert (asked["proxy_auth"].login, asked["proxy_auth"].password) == ("me", "secret")
    assert proxy_of("http://127.0.0.1:8000/v1") == {}
    monkeypatch.setenv("no_proxy", "openrouter.ai")
    assert proxy_of("https://openrouter.ai/api/v1") == {}
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("https_proxy", "socks5://proxy.example:1080")
    with pytest.raises(InputError, match="http://"):
        proxy_of("https://openrouter.ai/api/v1")


def test_every_client_asks_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain-HTTP stand-in for the proxy: what matters is that CONNECT reaches it, keyless."""
    from composer_pipeline.teachers.client import KeyUnread, own_usage

    real = Endpoint(name="real", base_url="https://openrouter.example/api/v1")
    with odd_server(lambda *_: iter([response(b"", 502)])) as server:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        async def chat() -> Outcome:
            async with Wire(real, "sk-secret") as wire:
                return await wire.chat(b"{}")

        assert asyncio.run(chat()).kind == "unbilled"
        with pytest.raises(KeyUnread):
            asyncio.run(own_usage(real, "sk-secret"))
        assert [request for request, _ in server.seen] == ["CONNECT openrouter.example:443"] * 2
        assert "sk-secret" not in str(server.seen)

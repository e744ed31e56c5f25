"""What providers really send, through a whole run, against a server on plain sockets.

Each case is an answer with the bill that its sender would write. After a run the ledger
charges what was billed (or at least that, where the answer does not say it), every answered
bill is a row of the lake, and a second run sends nothing.
"""

import gzip
import json
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.report import ReplayReport
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.odd_server import OddServer, odd_server, response

MODEL = "loopback/careful-20261101"
#: A bill of 0.000123 USD, as the answers below state it.
BILL = 123_000_000


def good(**fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "id": "gen-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Done."}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "cost": 0.000123},
    }
    return reply | fields


def usage(**fields: Any) -> dict[str, Any]:
    return {"prompt_tokens": 9, "completion_tokens": 2, "cost": 0.000123} | fields


def message(**fields: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "finish_reason": "stop", "message": {"content": "Done."} | fields}]


def raw(reply: dict[str, Any], old: str, new: bytes) -> bytes:
    return json.dumps(reply).encode().replace(json.dumps(old).encode(), new)


ERROR = {"code": 502, "message": "the provider failed"}
CHUNK = [{"index": 0, "finish_reason": "stop", "delta": {"content": "Done."}}]
SSE = "text/event-stream"
MISS = {"X-OpenRouter-Cache-Source-Id": "gen-0", "X-OpenRouter-Cache-Status": "MISS"}

#: name -> (response, status of the row, whether the answer tells its cost)
BILLED: dict[str, tuple[bytes, str, bool]] = {
    "good": (response(good()), "ok", True),
    # 1. replies that poison whoever reads them
    "tool_calls object": (response(good(choices=message(tool_calls={"a": 1}))), "unusable", True),
    "tool_calls number": (response(good(choices=message(tool_calls=7))), "unusable", True),
    "tokens beyond 64 bits": (
        response(good(usage=usage(prompt_tokens=2**70, completion_tokens=2**70))), "ok", True),
    "deep": (response(json.dumps(good()).encode()[:-1] + b',"x":' + b"[" * 200_000
                      + b"]" * 200_000 + b"}"), "unreadable", False),
    "NUL": (response(good(id="gen\0", model="loopback/careful-20261101")), "ok", True),
    "huge cost": (response(raw(good(usage=usage(cost="C")), "C", b"1E+999999")), "ok", False),
    "dear cost": (response(good(usage=usage(cost=4_000_000))), "ok", False),
    # 2. billed and released
    "error beside an answer": (response(good(error=ERROR)), "unusable", True),
    "no usage, no end": (
        response({"id": "gen-1", "choices": [{"message": {"content": "Do"}}]}), "unusable", False),
    "chunk": (response(good(object="chat.completion.chunk", choices=CHUNK)), "ok", True),
    "201": (response(good(), 201), "ok", True),
    "206": (response(good(), 206), "ok", True),
    "error with a cost": (response({"error": ERROR, "usage": usage()}, 502), "unusable", True),
    "miss that names a source": (response(good(), headers=MISS), "ok", True),
    # 3. paid and thrown away
    "surrogate": (response(raw(good(choices=message(content="C")), "C", b'"cut \\ud83d"')),
                  "ok", True),
    "NaN": (response(json.dumps(good()).encode()[:-1] + b',"x":NaN,"y":-Infinity}'), "ok", True),
    "byte-order mark": (response(b"\xef\xbb\xbf" + json.dumps(good()).encode()), "ok", True),
    "bad byte": (response(json.dumps(good()).encode()[:-1] + b',"x":"\xff"}'), "ok", True),
    "stream": (response(b": hi\n\ndata: " + json.dumps(good(choices=CHUNK)).encode()
                        + b"\n\ndata: [DONE]\n\n", kind=SSE), "ok", True),
    "cost missing": (response(good(usage={"completion_tokens": 2})), "ok", False),
    "cost negative": (response(good(usage=usage(cost=-1))), "ok", False),
    "cost null": (response(good(usage=usage(cost=None))), "ok", False),
    "not JSON": (response(b"\x00\x01\x02 nothing"), "unreadable", False),
    "gzip": (response(gzip.compress(json.dumps(good()).encode()),
                      headers={"Content-Encoding": "gzip"}), "ok", True),
    # 7. somebody else
    "another model": (response(good(model="somebody/else-7b")), "wrong_model", True),
    "the same by its date": (response(good(model="careful")), "ok", True),
}  # fmt: skip


def at(server: OddServer, teacher_set: TeacherSet) -> TeacherSet:
    data = teacher_set.model_dump()
    data["endpoint"]["base_url"] = server.url
    data["teachers"] = [data["teachers"][0]]
    data["limits"] |= {"attempts": 2, "recover_after_s": 0}
    return TeacherSet.model_validate(data)


def run(lake: Lake, teachers: TeacherSet, **options: Any) -> ReplayReport:
    return replay(lake, teachers, max_usd=Decimal(1), max_states=2, run_id="odd", **options)


def sums(lake: Lake) -> tuple[int, int, int]:
    with Ledger(ledger_target(lake)) as ledger:
        held = ledger.status()["global"]
    return held.spent, held.reserved, held.unknown


def only_chats(answer: bytes) -> Callable[..., Any]:
    """Answer calls; there is no catalogue and nobody tells what a generation cost."""

    def serve(request: str, *_: Any) -> Any:
        chat = "/chat/completions" in request
        return iter([answer if chat else response({"error": {"code": 404}}, 404)])

    return serve


@pytest.fixture(autouse=True)
def _no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPOSER_OPENROUTER_URL", raising=False)


@pytest.mark.parametrize("name", BILLED)
def test_every_bill_is_counted_and_every_paid_reply_is_kept(
    lake: Lake, teacher_set: TeacherSet, name: str
) -> None:
    answer, status, told = BILLED[name]
    with odd_server(only_chats(answer)) as server:
        teachers = at(server, teacher_set)
        report = run(lake, teachers)
        assert len(server.requests) == 2
        spent, reserved, unknown = sums(lake)
        assert reserved == 0
        assert (spent, unknown) == (2 * BILL, 0) if told else (spent == 0 and unknown > 2 * BILL)
        rows = lake.rows("replies")
        assert [row["status"] for row in rows] == [status] * 2
        assert all(row["raw"] for row in rows)
        assert report.unreadable == (2 if status == "unreadable" else 0)
        again = run(lake, teachers)
        assert (again.calls, len(server.requests)) == (0, 2)
        assert lake.rows("replies") == rows


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (response({"error": {"code": 400, "message": "m"}}, 400), "HTTP 400"),
        (response(b"", 307, {"Location": "http://127.0.0.1:1/"}), "redirect"),
        (response(b"<html>log in", kind="text/html"), "HTML"),
    ],
)
def test_nothing_came_and_nothing_is_charged(
    lake: Lake, teacher_set: TeacherSet, answer: bytes, why: str
) -> None:
    with odd_server(only_chats(answer)) as server:
        report = run(lake, at(server, teacher_set))
    assert (report.replies, sums(lake)) == (0, (0, 0, 0))
    stopped = " ".join(str(error) for error in report.stopped())
    assert why in report.problem() + stopped


def test_lost_replies_are_a_problem_that_is_said(lake: Lake, teacher_set: TeacherSet) -> None:
    with odd_server(only_chats(response(b"", 200))) as server:
        report = run(lake, at(server, teacher_set))
    assert report.unknown == 2
    assert "2 lost" in report.problem()
    assert sums(lake)[2] > 0


def test_a_cut_reply_is_fetched_once_more_and_then_kept(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    cut = json.dumps(good()).encode()[:60]
    with odd_server(only_chats(response(cut))) as server:
        teachers = at(server, teacher_set)
        run(lake, teachers)
        assert len(server.requests) == 4
        assert {row["status"] for row in lake.rows("replies")} == {"unreadable"}
        run(lake, teachers)
        assert len(server.requests) == 4
        # Without a cache nothing can be fetched for nothing: the first one is kept.
        data = teachers.model_dump()
        data["endpoint"] |= {"recovery_cache_s": 0, "name": "uncached"}
        run(lake, TeacherSet.model_validate(data))
        assert len(server.requests) == 6


def test_a_key_that_no_header_carries_is_refused_before_anything(
    lake: Lake, teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_pipeline.errors import InputError

    variable = str(teacher_set.endpoint.api_key_env)
    for key in ("sk-a\nX-Other: 1", "sk-é", "sk a"):
        monkeypatch.setenv(variable, key)
        with pytest.raises(InputError, match=variable):
            run(lake, teacher_set)
    assert not lake.partitions("replies")


def test_unreadable_replies_are_asked_again_where_that_is_wanted(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    answers = [response(b"\x00 nothing")] * 2 + [response(good())] * 2
    serve = only_chats(b"")

    def answer(request: str, *rest: Any) -> Any:
        return iter([answers.pop(0)]) if "/chat/" in request else serve(request, *rest)

    with odd_server(answer) as server:
        teachers = at(server, teacher_set)
        assert run(lake, teachers).unreadable == 2
        assert run(lake, teachers).calls == 0
        assert run(lake, teachers, again="unreadable").calls == 2
        assert {row["status"] for row in lake.rows("replies")} == {"ok"}
        spent, _, unknown = sums(lake)
        assert spent == 2 * BILL  # and the worst cases of the first two stay charged
        assert unknown > 0
        assert run(lake, teachers, again="unreadable").calls == 0


def test_a_clock_that_was_set_back_is_said(
    lake: Lake, teacher_set: TeacherSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_pipeline.errors import ComposerError

    with odd_server(only_chats(response(good()))) as server:
        teachers = at(server, teacher_set)
        run(lake, teachers)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() - 3600)
        with pytest.raises(ComposerError, match="clock"):
            run(lake, teachers)

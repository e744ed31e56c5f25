"""What an answer means for money: the rule, over generated answers."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.teachers.outcome import (
    MOST_BILL,
    TokenPrice,
    classify,
    is_cut,
    read_json,
    read_reply,
)

STATUSES = st.sampled_from([200, 200, 200, 201, 202, 206, 301, 400, 402, 403, 404, 408, 413, 429,
                            451, 500, 502, 503, 504, 524, 529])  # fmt: skip
ERRORS: st.SearchStrategy[Any] = st.sampled_from(
    [None, {}, "", "broken", 7, {"code": 502, "message": "m"}, {"code": "429"},
     {"code": 10**30, "metadata": {"error_type": ["list"]}},
     {"code": 403, "metadata": {"reasons": []}},
     {"code": 503, "availability": {"code": "capacity_exhausted", "retryable": True}}]
)  # fmt: skip
COSTS: st.SearchStrategy[Any] = st.sampled_from(
    ["absent", None, 0, 0.25, "0.25", -1, True, "free", [1], 1e40, "NaN", "Infinity", "1e-30"]
)
TOKENS: st.SearchStrategy[Any] = st.sampled_from(["absent", None, 0, 7, -1, 2**70, "7", True, 1.5])
MESSAGES: st.SearchStrategy[Any] = st.sampled_from(
    ["absent", None, 5, {}, {"content": ""}, {"content": None}, {"content": "hi"},
     {"tool_calls": []}, {"tool_calls": [{"function": {"name": "Bash", "arguments": "{}"}}]},
     {"tool_calls": {"not": "a list"}}, {"refusal": "no"}, {"reasoning": "hm"},
     {"content": "cut \ud83d"}]
)  # fmt: skip
REASONS: st.SearchStrategy[Any] = st.sampled_from(
    ["absent", None, "", "stop", "tool_calls", "length", "error", 5]
)
SOURCES = st.sampled_from([{}, {"x-openrouter-cache-source-id": "gen-0"},
                           {"x-openrouter-cache-source-id": "gen-0",
                            "x-openrouter-cache-status": "HIT"},
                           {"x-openrouter-cache-source-id": "gen-0",
                            "x-openrouter-cache-status": "MISS"}])  # fmt: skip
ENCODINGS = st.sampled_from(["plain", "bom", "bad byte", "nan", "events", "cut", "html", "empty"])


def encoded(reply: dict[str, Any], how: str) -> bytes:
    raw = json.dumps(reply).encode()
    if how == "events":
        chunk = {**reply, "object": "chat.completion.chunk"}
        chunk["choices"] = [
            {**c, "delta": c["message"]} if "message" in c else c for c in reply["choices"]
        ]
        for choice in chunk["choices"]:
            choice.pop("message", None)
        return b": PROCESSING\n\ndata: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    return {
        "plain": raw,
        "bom": b"\xef\xbb\xbf" + raw,
        "bad byte": raw[:-1] + b', "x": "\xff"}',
        "nan": raw[:-1] + b', "x": NaN, "y": Infinity}',
        "cut": raw[: len(raw) // 2],
        "html": b"<html>not found</html>",
        "empty": b"",
    }[how]


@settings(max_examples=1500)
@given(STATUSES, ERRORS, COSTS, TOKENS, MESSAGES, REASONS, SOURCES, ENCODINGS, st.booleans())
def test_what_may_have_been_billed_is_charged_and_what_was_answered_is_kept(
    status: int, error: Any, cost: Any, tokens: Any, message: Any, reason: Any,
    headers: dict[str, str], how: str, priced: bool,
) -> None:  # fmt: skip
    choice = {k: v for k, v in (("message", message), ("finish_reason", reason)) if v != "absent"}
    usage = {k: v for k, v in (("cost", cost), ("completion_tokens", tokens)) if v != "absent"}
    reply: dict[str, Any] = {"id": "gen-1", "choices": [choice], "usage": usage}
    if error is not None:
        reply["error"] = error
    body = encoded(reply, how)
    price = TokenPrice(Decimal(1), Decimal(2)) if priced else None
    outcome = classify(status, headers, body, 1.0, price)

    whole = how in ("plain", "bom", "bad byte", "nan", "events")
    answered = whole and isinstance(message, dict) and any(message.values())
    dollars = {0.25: 250_000_000_000, "0.25": 250_000_000_000, "1e-30": 1}
    paid = dollars.get(cost) if whole and isinstance(cost, float | str) else None
    generated = whole and type(tokens) is int and 0 < tokens < 10**9
    ok = 200 <= status < 300
    hit = ok and headers.get("x-openrouter-cache-status", "HIT") == "HIT" and bool(headers)
    if paid is not None:
        assert (outcome.kind, outcome.cost) == ("billed", paid)
    if answered or generated:
        assert outcome.kind in ("billed", "unpriced")
        assert outcome.body == body
    if outcome.kind == "billed" and outcome.cost == 0:
        assert hit or type(cost) is int
    if outcome.kind in ("unbilled", "refused"):
        assert not any((answered, generated, paid))
        told_free = (
            (300 <= status < 500 and status != 408)
            or (whole and bool(error))
            or (whole and reason == "error")
            or (whole and not reason and 0 in (cost, tokens))
            or (whole and reason == "absent" and 0 in (cost, tokens))
            or (hit and how in ("cut", "empty"))
        )
        assert told_free
    if outcome.kind == "unknown":
        assert not whole or not ok
    if outcome.cost is not None:
        assert 0 <= outcome.cost <= MOST_BILL


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 200_000, b'{"a":' * 200_000, b"\xff\xfe\x00", b'{"id": "' + b"x" * 10**6 + b'"}',
        b'{"usage": {"cost": 1E+999999, "completion_tokens": ' + b"9" * 5000 + b"}}",
        b'{"usage": {"cost": ' + b"9" * 5000 + b"}}",
        b'{"choices": [' + b"{}," * 2_000_000 + b"{}]}",
        b'{"choices": {"0": 1}, "usage": [], "error": [], "id": {"a": 1}}', b"data:", b": only\n\n",
        b'data: {"choices": [{"index": [1], "delta": 5}, 7]}\n\n', b"null", b"0", b'"text"',
        b'{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": 1}, 5, null]}}]}',
    ],
)  # fmt: skip
def test_nothing_raises_and_nothing_is_free_by_accident(raw: bytes) -> None:
    outcome = classify(200, {}, raw, 1.0)
    assert outcome.kind in ("unpriced", "unknown")


def test_lenient_reading_keeps_what_is_there() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": [NaN, Infinity, 1.5]}') == {
        "a": [None, None, Decimal("1.5")]
    }
    assert read_json(b'{"a": "cut \\ud83d"}') == {"a": "cut �"}
    assert read_json(b'{"a": "\\ud83d\\ude00", "b": "\\ud83d"}') == {"a": "😀", "b": "�"}
    assert read_json(b'{"a": "\xff"}') == {"a": "�"}
    assert read_json(b'{"a": 123456789012345678901234567890}') == {
        "a": 123456789012345678901234567890
    }
    cut = [b'{"a": "b', b'{"a": [1, ']
    whole = [b'{"a": 1}', b"<html>", b'{"a": x']
    assert [is_cut(raw) for raw in cut + whole] == [True, True, False, False, False]


def test_a_stream_that_nobody_asked_for_is_put_together() -> None:
    chunks = [
        {"id": "gen-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "He"}}]},
        {"choices": [{"index": 0, "delta": {"content": "llo", "tool_calls": [
            {"index": 0, "id": "c", "function": {"name": "Bash", "arguments": '{"comm'}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "function": {"arguments": 'and": "ls"}'}}]},
            "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"cost": 0.5}},
    ]  # fmt: skip
    raw = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    reply = read_reply(raw + b"data: [DONE]\n\n")
    assert reply is not None
    (choice,) = reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "tool_calls")
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "Bash", "arguments": '{"command": "ls"}'}
    assert classify(200, {}, raw, 1.0).cost == 5 * 10**11


@pytest.mark.parametrize(
    "wait",
    ["Wed, 21 Oct 99999999999 07:28:00 GMT", "nan", "1e999", "-5", "soon", "9" * 400, "0x1"],
)
def test_an_odd_retry_after_is_bounded(wait: str) -> None:
    body = json.dumps({"error": {"code": 429, "message": "m"}}).encode()
    seconds = classify(429, {"retry-after": wait}, body, 1.0).retry_after
    assert seconds is None or 0 <= seconds <= 3600


def test_ids_and_reasons_that_no_column_takes_are_left_out() -> None:
    body = json.dumps({"id": "gen\x00-1", "choices": [], "usage": {"cost": 1}}).encode()
    assert classify(200, {"x-generation-id": "a\udcff"}, body, 1.0).generation_id == ""
    error = {"code": 400, "message": "m", "metadata": {"error_type": "a\x00b" * 200}}
    assert classify(400, {}, json.dumps({"error": error}).encode(), 1.0).detail == "HTTP 400"


def test_an_own_key_whose_upstream_cost_is_not_told_has_no_known_cost() -> None:
    body = {"choices": [{"message": {"content": "hi"}}], "usage": {"cost": 0, "is_byok": True}}
    assert classify(200, {}, json.dumps(body).encode(), 1.0).kind == "unpriced"

"""Outcomes: what was billed, what was not, and what nobody knows."""

import json
from decimal import Decimal
from typing import Any

import pytest

from composer_pipeline.chat.convert import ArgumentCheck, Conversion
from composer_pipeline.chat.tools import tool_schemas
from composer_pipeline.teachers.outcome import TokenPrice, billed_cost, classify
from composer_pipeline.teachers.replies import judge
from composer_pipeline.teachers.request import (
    Request,
    anchor,
    anchored_tokens,
    serialise,
    worst_case,
)
from composer_pipeline.teachers.teachers import TeacherSet
from tests.places import ROOT

DEMO = ROOT / "recipes" / "teachers" / "demo.yaml"
GOOD = {
    "id": "gen-1",
    "choices": [{"finish_reason": "stop", "message": {"content": "hi"}}],
    "usage": {"completion_tokens": 1, "cost": 0.25},
}


def sort_out(status: int, body: Any, **headers: str) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classify(status, {k.replace("_", "-"): v for k, v in headers.items()}, raw, 5.0)


def failure(code: int, kind: str = "", **extra: Any) -> dict[str, Any]:
    metadata = {"error_type": kind} if kind else {}
    return {"error": {"code": code, "message": "m", "metadata": metadata, **extra}}


def test_cost_is_read_from_the_raw_text() -> None:
    raw = json.dumps(GOOD).replace("0.25", "0.000123456789").encode()
    outcome = sort_out(200, raw)
    assert (outcome.kind, outcome.cost, outcome.generation_id) == ("billed", 123_456_789, "gen-1")
    assert sort_out(200, raw.replace(b"0.000123456789", b"1.000000000001")).cost == 10**12 + 1


def test_upstream_cost_counts_only_with_an_own_key() -> None:
    usage: dict[str, Any] = {"cost": Decimal("0.1")}
    usage["cost_details"] = {"upstream_inference_cost": Decimal("0.1")}
    assert billed_cost(usage) == 10**11
    assert billed_cost(usage | {"is_byok": True}) == 2 * 10**11
    assert billed_cost({}) is None
    assert billed_cost({"cost": "free"}) is None


def test_cache_hit_costs_nothing_and_names_its_source() -> None:
    hit = {**GOOD, "usage": {"completion_tokens": 0, "cost": 0}}
    outcome = sort_out(200, hit, **{"x-openrouter-cache-source-id": "gen-0"})
    assert (outcome.kind, outcome.cost, outcome.source_id) == ("billed", 0, "gen-0")


def test_half_a_cache_hit_is_no_reply() -> None:
    """It cost nothing, and the paid reply is still there to be fetched."""
    headers = {"x-openrouter-cache-source-id": "gen-0"}
    outcome = sort_out(200, json.dumps(GOOD).encode()[:40], **headers)
    assert (outcome.kind, outcome.retryable, outcome.source_id) == ("unbilled", True, "gen-0")
    assert outcome.cut


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable", "stop"),
    [
        (200, b'{"choices": [', "unknown", True, ""),
        (200, {**GOOD, "usage": {}}, "unpriced", False, ""),
        (502, b"<html>", "unknown", True, ""),
        (524, b"", "unknown", True, ""),
        (502, failure(502, "provider_unavailable"), "unbilled", True, ""),
        (429, failure(429, "rate_limit_exceeded"), "unbilled", True, ""),
        (429, b"slow down", "unbilled", True, ""),
        (200, failure(502, "server"), "unbilled", True, ""),
        (200, {"choices": [{"finish_reason": None}], "usage": {}}, "unpriced", False, ""),
        (200, {"choices": [{}], "usage": {"completion_tokens": 0}}, "unbilled", True, ""),
        (200, {**GOOD, "choices": [{"finish_reason": "error"}], "usage": {}}, "unbilled", True, ""),
        (400, failure(400, "context_length_exceeded"), "refused", False, ""),
        (403, failure(403, "content_policy_violation"), "refused", False, ""),
        (400, failure(400, "invalid_request"), "unbilled", False, ""),
        (404, failure(404, availability={"code": "constraint_filtered", "retryable": False}),
         "unbilled", False, "teacher"),
        (404, failure(404, availability={"code": "capacity_exhausted", "retryable": True}),
         "unbilled", True, ""),
        (401, failure(401, "authentication"), "unbilled", False, "account"),
        (402, failure(402, "payment_required"), "unbilled", False, "teacher"),
        (403, failure(403, "permission_denied"), "unbilled", False, "account"),
    ],
)  # fmt: skip
def test_outcomes(status: int, body: Any, kind: str, retryable: bool, stop: str) -> None:
    outcome = sort_out(status, body)
    assert (outcome.kind, outcome.retryable, outcome.stop) == (kind, retryable, stop)


def test_billed_error_is_billed() -> None:
    """A finish reason of error that still has a cost is believed."""
    body = {**GOOD, "choices": [{"finish_reason": "error"}]}
    assert sort_out(200, body).cost == 250_000_000_000


@pytest.mark.parametrize(("value", "low", "high"), [("3", 3, 3), ("soon", None, None)])
def test_retry_after(value: str, low: float | None, high: float | None) -> None:
    assert sort_out(429, failure(429), **{"retry-after": value}).retry_after == low


def test_body_is_frozen_and_carries_the_terms() -> None:
    teacher = TeacherSet.load(DEMO).teachers[0]
    conversion = Conversion([{"role": "user", "content": "hi"}], [], {}, {}, "recorded")
    body = serialise(teacher, conversion, "session-1").body
    assert body == serialise(teacher, conversion, "session-1").body
    sent = json.loads(body)
    assert sent["provider"]["max_price"]["prompt"] == 0.3
    assert sent["provider"]["data_collection"] == "deny"
    assert sent["provider"]["require_parameters"] is True
    assert sent["plugins"] == [{"id": "context-compression", "enabled": False}]
    assert sent["max_completion_tokens"] == teacher.max_tokens
    assert "models" not in sent
    assert "session-1" not in body.decode()
    assert sent["session_id"].endswith("-careful")
    assert Request(body).key("loopback") != Request(body).key("openrouter")


def test_worst_case_is_bytes_and_tokens_at_the_caps() -> None:
    teacher = TeacherSet.load(DEMO).teachers[0]  # 0.30 and 1.20 USD a million, 1024 tokens
    assert worst_case(teacher, b"x" * 1000) == 1000 * 300_000 + 1024 * 1_200_000
    huge = worst_case(teacher, b"x" * 10_000_000)
    assert huge == teacher.context_length * 300_000 + 1024 * 1_200_000


def body_of(messages: list[dict[str, Any]], tools: Any = ()) -> bytes:
    teacher = TeacherSet.load(DEMO).teachers[0]
    return serialise(teacher, Conversion(messages, list(tools), {}, {}, "recorded"), "s").body


def test_a_longer_prompt_is_bounded_by_the_measured_one() -> None:
    first = [{"role": "user", "content": 'say "],\\"tools\\":" twice'}]
    added = [
        {"role": "assistant", "content": "it is said"},
        {"role": "user", "content": "again " * 50},
    ]
    short, long = body_of(first), body_of(first + added)
    measured = anchor(short, 200)
    assert measured is not None
    bound = anchored_tokens(long, measured)
    assert bound == 200 + (len(long) - len(short)) + 64 * 3
    teacher = TeacherSet.load(DEMO).teachers[0]
    assert worst_case(teacher, long, prompt_tokens=bound) == bound * 300_000 + 1024 * 1_200_000
    assert worst_case(teacher, long, prompt_tokens=10**9) == worst_case(teacher, long)
    # Nothing but an extension is bounded.
    assert anchored_tokens(short, anchor(long, 300)) is None
    assert anchored_tokens(body_of([added[0], *first, *added]), measured) is None
    other = body_of(first + added, [{"type": "function", "function": {"name": "f"}}])
    assert anchored_tokens(other, measured) is None
    assert anchored_tokens(long, None) is None
    # A count that no tokenizer gives is not believed.
    assert anchor(short, len(short) // 17) is None
    assert anchor(short, 0) is None


def test_cache_writes_are_in_the_worst_case() -> None:
    teacher = TeacherSet.load(DEMO).teachers[0]
    dear = teacher.model_copy(update={"cache_control": "1h"})
    assert worst_case(dear, b"x" * 1000) == 2 * 1000 * 300_000 + 1024 * 1_200_000
    conversion = Conversion([{"role": "user", "content": "hi"}], [], {}, {}, "recorded")
    assert json.loads(serialise(dear, conversion, "s").body)["cache_control"]["ttl"] == "1h"
    assert "cache_control" not in json.loads(serialise(teacher, conversion, "s").body)


def test_other_apis_get_their_own_fields_and_prices() -> None:
    teacher = TeacherSet.load(DEMO).teachers[0]
    conversion = Conversion([{"role": "user", "content": "hi"}], [], {}, {}, "recorded")
    sent = json.loads(serialise(teacher, conversion, "s", api="openai").body)
    assert sent.keys() == {"model", "messages", "max_completion_tokens", "temperature"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    raw = json.dumps({**GOOD, "usage": usage}).encode()
    price = TokenPrice(Decimal("0.3"), Decimal("1.2"))
    assert classify(200, {}, raw, 1.0, price).cost == 1000 * 300_000 + 10 * 1_200_000
    assert classify(200, {}, raw, 1.0, TokenPrice(Decimal(0), Decimal(0))).cost == 0
    assert classify(200, {}, raw, 1.0).kind == "unpriced"


@pytest.mark.parametrize("cost", [-1, "-0.5", True, [1], float("1e40")])
def test_an_absurd_cost_is_no_cost(cost: Any) -> None:
    assert sort_out(200, {**GOOD, "usage": {"cost": cost}}).kind == "unpriced"


@pytest.mark.parametrize("wait", ["inf", "1e9", "nan"])
def test_an_absurd_retry_after_is_capped(wait: str) -> None:
    seconds = sort_out(429, failure(429), **{"retry-after": wait}).retry_after
    assert seconds is not None
    assert 0 <= seconds <= 3600


@pytest.mark.parametrize(
    ("message", "reason", "status"),
    [
        ({"content": "hi"}, "stop", "ok"),
        ({"content": "hi"}, "length", "unusable"),
        ({"content": ""}, "stop", "unusable"),
        ({"tool_calls": [{"function": {"name": "Bash", "arguments": '{"command":"ls"}'}}]},
         "tool_calls", "ok"),
        ({"tool_calls": [{"function": {"name": "Bash", "arguments": "{}"}}]},
         "tool_calls", "unusable"),
        ({"tool_calls": [{"function": {"name": "Rm", "arguments": "{}"}}]},
         "tool_calls", "unusable"),
        ({"tool_calls": ["junk"]}, "tool_calls", "unusable"),
    ],
)  # fmt: skip
def test_usable_replies(message: dict[str, Any], reason: str, status: str) -> None:
    reply = {"choices": [{"finish_reason": reason, "message": message}]}
    assert judge(reply, ArgumentCheck(tool_schemas(["Bash"]).tools))[0] == status


@pytest.mark.parametrize("reply", [None, [], {"choices": []}, {"choices": [None]}, {"choices": 3}])
def test_odd_replies_never_raise(reply: Any) -> None:
    assert judge(reply, ArgumentCheck([]))[0] in ("unusable", "unreadable")

"""Odd answers: shapes that routers, gateways and models really send, each billed or not.

Belongs here: how a good reply becomes an odd one, and the odd refusals. Does not belong here:
which request gets which (``testing.openrouter.faults``), and the bill, which is written before
and stays what it is (``testing.openrouter.billing``).
"""

import gzip
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

_exact = msgspec.json.Encoder(decimal_format="number")
_read = msgspec.json.Decoder(float_hook=Decimal)

Reply = dict[str, Any]


class Odd(msgspec.Struct):
    """A response: status, headers besides the usual ones, body."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=dict)


def odd_answer(name: str, payload: bytes) -> Odd:
    """Return a billed reply in an odd shape.

    Args:
        name: of :data:`ODD_ANSWERS`.
        payload: the good reply.
    """
    return ODD_ANSWERS[name](_read.decode(payload))


def _plain(reply: Reply) -> bytes:
    return _exact.encode(reply)


def _with(**fields: Any) -> Callable[[Reply], Odd]:
    """Replace fields of the reply."""
    return lambda reply: Odd(_plain(reply | fields))


def _usage(**fields: Any) -> Callable[[Reply], Odd]:
    """Replace fields of ``usage``."""
    return lambda reply: Odd(_plain(reply | {"usage": reply["usage"] | fields}))


def _message(**fields: Any) -> Callable[[Reply], Odd]:
    """Replace fields of the message."""
    return lambda reply: Odd(_plain(_said(reply, **fields)))


def _said(reply: Reply, **fields: Any) -> Reply:
    (choice,) = reply["choices"]
    return reply | {"choices": [choice | {"message": choice["message"] | fields}]}


def _choice(**fields: Any) -> Callable[[Reply], Odd]:
    return lambda reply: Odd(_plain(reply | {"choices": [reply["choices"][0] | fields]}))


def _sent(
    change: Callable[[bytes], bytes] = bytes, status: int = 200, **headers: str
) -> Callable[[Reply], Odd]:
    """Change the bytes, the status or the headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda reply: Odd(change(_plain(reply)), status, names)


def _raw(field: bytes) -> Callable[[Reply], Odd]:
    """Add a field as raw JSON, which need not be JSON."""
    return _sent(lambda raw: raw[:-1] + b"," + field + b"}")


def _cost(text: bytes) -> Callable[[Reply], Odd]:
    """Write ``usage.cost`` as raw text."""

    def change(reply: Reply) -> Odd:
        usage = reply["usage"] | {"cost": "COST-HERE"}
        return Odd(_plain(reply | {"usage": usage}).replace(b'"COST-HERE"', text))

    return change


def _error_without_answer(reply: Reply) -> Odd:
    error = {"code": 500, "message": "broke after it was generated"}
    return Odd(_plain({"id": reply["id"], "error": error, "usage": reply["usage"]}), 500)


def _chunk(reply: Reply) -> Reply:
    choices = [
        {**{k: v for k, v in choice.items() if k != "message"}, "delta": choice["message"]}
        for choice in reply["choices"]
    ]
    return reply | {"object": "chat.completion.chunk", "choices": choices}


def _stream(reply: Reply) -> Odd:
    first = _chunk(reply)
    usage = first.pop("usage", None)
    lines = [b": OPENROUTER PROCESSING", b"data: " + _plain(first)]
    lines += [b"data: " + _plain({"id": reply["id"], "choices": [], "usage": usage})]
    body = b"\n\n".join([*lines, b"data: [DONE]", b""])
    return Odd(body, headers={"Content-Type": "text/event-stream"})


def _byok(reply: Reply) -> Odd:
    details = {"upstream_inference_cost": reply["usage"]["cost"]}
    usage = reply["usage"] | {"cost": 0, "is_byok": True, "cost_details": details}
    return Odd(_plain(reply | {"usage": usage}))


def _arguments_as_object(reply: Reply) -> Odd:
    (choice,) = reply["choices"]
    calls = [
        call | {"function": call["function"] | {"arguments": {"x": 1, "y": 2**70}}}
        for call in choice["message"].get("tool_calls") or []
    ]
    return Odd(_plain(_said(reply, tool_calls=calls)))


#: Billed, and the reply is odd. The books have the bill of the good reply.
ODD_ANSWERS: Mapping[str, Callable[[Reply], Odd]] = {
    "error_beside_answer": _with(error={"code": 502, "message": "the provider failed"}),
    "error_text_beside_answer": _with(error="broken"),
    "error_billed": _error_without_answer,
    "no_usage_no_end": lambda reply: _choice(finish_reason=None)(
        {k: v for k, v in reply.items() if k != "usage"}
    ),
    "chunk": lambda reply: Odd(_plain(_chunk(reply))),
    "stream": _stream,
    "created_201": _sent(status=201),
    "partial_206": _sent(status=206),
    "miss_with_source": _sent(
        X_OpenRouter_Cache_Status="MISS", X_OpenRouter_Cache_Source_Id="gen-of-somebody"
    ),
    "surrogate": lambda reply: Odd(_plain(_said(reply, content="CUT-HERE")).replace(
        b"CUT-HERE", b"cut \\ud83d")),
    "nan": _raw(b'"logprobs":NaN'),
    "infinity": _raw(b'"logprobs":[Infinity,-Infinity]'),
    "bom": _sent(lambda raw: b"\xef\xbb\xbf" + raw),
    "bad_byte": _raw(b'"note":"\xff"'),
    "control_character": _raw(b'"note":"a\x01b"'),
    "nul": lambda reply: _with(id=reply["id"] + "\0", provider="No\0body")(reply),
    "utf16": _sent(lambda raw: raw.decode().encode("utf-16")),
    "whitespace": _sent(lambda raw: b"\n \n" * 200 + raw),
    "trailing": _sent(lambda raw: raw + b"\n{}"),
    "cost_missing": lambda reply: Odd(_plain(reply | {"usage": {
        k: v for k, v in reply["usage"].items() if k not in ("cost", "cost_details")}})),
    "cost_null": _cost(b"null"),
    "cost_negative": _cost(b"-0.5"),
    "cost_text": _cost(b'"free"'),
    "cost_list": _cost(b"[0.1]"),
    "cost_bool": _cost(b"true"),
    "cost_huge": _cost(b"1E+999999"),
    "cost_dear": _cost(b"9999999999"),
    "cost_nan": _cost(b"NaN"),
    "cost_quoted": lambda reply: _cost(b'"%s"' % format(reply["usage"]["cost"], "f").encode())(
        reply),
    "usage_list": _with(usage=[]),
    "byok": _byok,
    "tokens_huge": _usage(prompt_tokens=2**70, completion_tokens=2**200),
    "tokens_negative": _usage(prompt_tokens=-5, completion_tokens=-5),
    "tokens_text": _usage(prompt_tokens="12", prompt_tokens_details=[1]),
    "tool_calls_object": _message(tool_calls={"0": {"function": {"name": "Bash"}}}),
    "tool_calls_text": _message(tool_calls="Bash(ls)"),
    "tool_calls_junk": _message(tool_calls=[None, 5, {"function": "Bash"}]),
    "arguments_object": _arguments_as_object,
    "content_parts": _message(content=[{"type": "text", "text": "hm"}, None, 7], tool_calls=None),
    "reasoning_only": _message(content=None, tool_calls=None, reasoning="I wonder"),
    "refusal_text": _message(content=None, tool_calls=None, refusal="I would rather not"),
    "deep": _raw(b'"deep":' + b"[" * 200_000 + b"]" * 200_000),
    "long_name": _with(provider="P" * 100_000),
    "id_object": lambda reply: _with(id={"is": reply["id"], "n": 7})(reply),
    "wrong_model": _with(model="somebody/else-7b"),
    "model_list": _with(model=["a", "b"]),
    "choices_object": lambda reply: Odd(_plain(reply | {"choices": {"0": reply["choices"][0]}})),
    "choices_empty": _with(choices=[]),
    "message_null": _choice(message=None),
    "end_number": _choice(finish_reason=7),
    "end_unknown": _choice(finish_reason="eos"),
    "gzip": _sent(gzip.compress, Content_Encoding="gzip"),
    "deflate": _sent(zlib.compress, Content_Encoding="deflate"),
    "not_gzip": _sent(Content_Encoding="gzip"),
    "plain_text": _sent(Content_Type="text/plain; charset=latin-1"),
    "empty_200": _sent(lambda raw: b""),
}  # fmt: skip

#: Nothing was generated: (status, headers, body).
ODD_REFUSALS: Mapping[str, tuple[int, dict[str, str], bytes]] = {
    "retry_in_a_million_years": (
        429, {"Retry-After": "Wed, 21 Oct 99999999999 07:28:00 GMT"},
        b'{"error":{"code":429,"message":"busy"}}'),
    "retry_nan": (429, {"Retry-After": "nan"}, b'{"error":{"code":429,"message":"busy"}}'),
    "code_text": (200, {}, b'{"error":{"code":"429","message":"busy"}}'),
    "code_huge": (200, {}, b'{"error":{"code":1000000000000000000000,"message":"busy"}}'),
    "error_type_list": (503, {}, b'{"error":{"code":503,"metadata":{"error_type":["a"]}}}'),
    "redirect": (307, {"Location": "/api/v1/elsewhere"}, b""),
}  # fmt: skip

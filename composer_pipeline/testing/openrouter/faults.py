"""Faults of the loopback provider, one by one or as a seeded mix."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec
from aiohttp import web

from composer_pipeline.errors import InputError

#: JSON with ``Decimal`` as exact numbers.
exact_json = msgspec.json.Encoder(decimal_format="number").encode
read_json = msgspec.json.Decoder(float_hook=Decimal).decode

Reply = dict[str, Any]


class Odd(msgspec.Struct):
    """A response: its body, status, and additional headers."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=dict)


def odd_answer(name: str, payload: bytes) -> Odd:
    """Return a billed reply in an odd shape."""
    return ODD_ANSWERS[name](read_json(payload))


def _with(**fields: Any) -> Callable[[Reply], Odd]:
    """Replace fields of the reply."""
    return lambda reply: Odd(exact_json(reply | fields))


def _usage(**fields: Any) -> Callable[[Reply], Odd]:
    """Replace fields of ``usage``."""
    return lambda reply: Odd(exact_json(reply | {"usage": reply["usage"] | fields}))


def _message(**fields: Any) -> Callable[[Reply], Odd]:
    """Replace fields of the message."""
    return lambda reply: Odd(exact_json(_with_message(reply, **fields)))


def _with_message(reply: Reply, **fields: Any) -> Reply:
    (choice,) = reply["choices"]
    return reply | {"choices": [choice | {"message": choice["message"] | fields}]}


def _choice(**fields: Any) -> Callable[[Reply], Odd]:
    return lambda reply: Odd(exact_json(reply | {"choices": [reply["choices"][0] | fields]}))


def _sent(
    change: Callable[[bytes], bytes] = bytes, status: int = 200, **headers: str
) -> Callable[[Reply], Odd]:
    """Change the bytes, the status or the headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda reply: Odd(change(exact_json(reply)), status, names)


def _raw(field: bytes) -> Callable[[Reply], Odd]:
    """Add a field as raw JSON, which need not be JSON."""
    return _sent(lambda raw: raw[:-1] + b"," + field + b"}")


def _cost(text: bytes) -> Callable[[Reply], Odd]:
    """Write ``usage.cost`` as raw text."""

    def change(reply: Reply) -> Odd:
        usage = reply["usage"] | {"cost": "COST-HERE"}
        return Odd(exact_json(reply | {"usage": usage}).replace(b'"COST-HERE"', text))

    return change


def _error_without_answer(reply: Reply) -> Odd:
    error = {"code": 500, "message": "broke after it was generated"}
    return Odd(exact_json({"id": reply["id"], "error": error, "usage": reply["usage"]}), 500)


def _chunk(reply: Reply) -> Reply:
    choices = [
        {**{k: v for k, v in choice.items() if k != "message"}, "delta": choice["message"]}
        for choice in reply["choices"]
    ]
    return reply | {"object": "chat.completion.chunk", "choices": choices}


def events(reply: Reply) -> bytes:
    """Return a reply as server-sent events: a comment, the message, the usage, the end."""
    chunk = _chunk(reply)
    usage = chunk.pop("usage", None)
    lines = [
        b": OPENROUTER PROCESSING",
        b"data: " + exact_json(chunk),
        b"data: " + exact_json(chunk | {"choices": [], "usage": usage}),
        b"data: [DONE]",
    ]
    return b"".join(line + b"\n\n" for line in lines)


def _stream(reply: Reply) -> Odd:
    return Odd(events(reply), headers={"Content-Type": "text/event-stream"})


def _byok(reply: Reply) -> Odd:
    details = {"upstream_inference_cost": reply["usage"]["cost"]}
    usage = reply["usage"] | {"cost": 0, "is_byok": True, "cost_details": details}
    return Odd(exact_json(reply | {"usage": usage}))


def _arguments_as_object(reply: Reply) -> Odd:
    (choice,) = reply["choices"]
    calls = [
        call | {"function": call["function"] | {"arguments": {"x": 1, "y": 2**70}}}
        for call in choice["message"].get("tool_calls") or []
    ]
    return Odd(exact_json(_with_message(reply, tool_calls=calls)))


#: Billed, with an odd reply; the bill is that of the good reply.
ODD_ANSWERS: Mapping[str, Callable[[Reply], Odd]] = {
    "error_beside_answer": _with(error={"code": 502, "message": "the provider failed"}),
    "error_text_beside_answer": _with(error="broken"),
    "error_billed": _error_without_answer,
    "no_usage_no_end": lambda reply: _choice(finish_reason=None)(
        {k: v for k, v in reply.items() if k != "usage"}
    ),
    "chunk": lambda reply: Odd(exact_json(_chunk(reply))),
    "stream": _stream,
    "created_201": _sent(status=201),
    "partial_206": _sent(status=206),
    "miss_with_source": _sent(
        X_OpenRouter_Cache_Status="MISS", X_OpenRouter_Cache_Source_Id="gen-of-somebody"
    ),
    "surrogate": lambda reply: Odd(exact_json(_with_message(reply, content="CUT-HERE")).replace(
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
    "cost_missing": lambda reply: Odd(exact_json(reply | {"usage": {
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
    "choices_object": lambda reply: _with(choices={"0": reply["choices"][0]})(reply),
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


class SeenRequest(msgspec.Struct, frozen=True):
    """A request as a fault hook sees it; ``nth`` counts identical bodies from 1."""

    model: str
    digest: str
    nth: int
    total: int


class Fault(msgspec.Struct, frozen=True):
    """What goes wrong with one request."""

    kind: Literal[
        "error", "gateway", "in_body", "moderation", "unavailable", "empty", "failed",
        "truncate", "garble", "reset", "hang", "lost_gateway",
        "slow", "length", "overcount", "undercount", "no_cost", "overcharge", "misreport",
        "odd", "odd_refusal",
    ]  # fmt: skip
    status: int = 500
    retry_after: str | None = None
    billed: bool = True
    seconds: float = 0.5
    code: str = ""
    retryable: bool = False


FaultHook = Callable[[SeenRequest], Fault | None]

#: Name on the command line -> (the fault, its weight in the default mix). Faults that end a run or
#: stop a teacher are rare, so that others occur too.
MIX: Mapping[str, tuple[Fault, int]] = {
    "429": (Fault("error", 429), 8),
    "429_retry_after": (Fault("error", 429, retry_after="0.1"), 8),
    "500": (Fault("error", 500), 6),
    "503": (Fault("error", 503), 6),
    "529": (Fault("error", 529), 4),
    "gateway": (Fault("gateway", 502), 6),
    "lost_gateway": (Fault("lost_gateway", 504), 6),
    "in_body": (Fault("in_body", 502), 8),
    "truncate": (Fault("truncate"), 8),
    "garble": (Fault("garble"), 6),
    "reset": (Fault("reset"), 8),
    "reset_unbilled": (Fault("reset", billed=False), 6),
    "hang": (Fault("hang"), 3),
    "slow": (Fault("slow"), 6),
    "length": (Fault("length"), 6),
    "overcount": (Fault("overcount"), 6),
    "undercount": (Fault("undercount"), 6),
    "no_cost": (Fault("no_cost"), 6),
    "empty": (Fault("empty"), 6),
    "failed": (Fault("failed"), 6),
    "moderation": (Fault("moderation"), 2),
    "capacity": (Fault("unavailable", code="capacity_exhausted", retryable=True), 6),
    "402": (Fault("error", 402), 1),
    "privacy_restricted": (Fault("unavailable", code="privacy_restricted"), 1),
    "model_not_found": (Fault("unavailable", code="model_not_found"), 1),
    **{name: (Fault("odd", code=name), 1) for name in ODD_ANSWERS},
    # A code that is not a status is not retried, and a redirect stops a teacher.
    **{
        name: (Fault("odd_refusal", code=name), 0 if name in ("code_text", "redirect") else 1)
        for name in ODD_REFUSALS
    },
}


class FaultMix:
    """A fault hook that harms a share of the requests (0 to 1) with a weighted mix of faults.

    The fault of a request is a hash of the seed, its body and how often that body came, so it does
    not depend on the order of requests. A body that came more than ``patience`` times is not
    harmed, so that a run can end. ``weights`` maps names of ``MIX`` to weights.
    """

    def __init__(
        self,
        seed: int = 0,
        share: float = 0.2,
        weights: Mapping[str, int] | None = None,
        *,
        patience: int = 3,
    ) -> None:
        if not 0 <= share <= 1:
            raise InputError(f"the share of faults must be between 0 and 1, not {share}")
        chosen = {name: weight for name, (_, weight) in MIX.items()}
        if weights is not None:
            chosen = dict(weights)
        for name, weight in chosen.items():
            if name not in MIX:
                raise InputError(f"no fault {name!r}; known: {', '.join(MIX)}")
            if weight < 0:
                raise InputError(f"the weight of fault {name} must not be below 0")
        self._names = [name for name, weight in chosen.items() for _ in range(weight)]
        if not self._names:
            raise InputError("a mix of faults needs a weight above 0")
        self.seed, self.share, self.patience = seed, share, patience
        #: How often each fault was injected.
        self.injected: dict[str, int] = dict.fromkeys(chosen, 0)

    def __call__(self, asked: SeenRequest) -> Fault | None:
        """Return the fault of a request, or ``None``."""
        if asked.nth > self.patience:
            return None
        text = f"{self.seed} {asked.digest} {asked.nth}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if int.from_bytes(digest[:8], "big") >= self.share * 2**64:
            return None
        name = self._names[int.from_bytes(digest[8:], "big") % len(self._names)]
        if name == "moderation" and asked.nth > 1:
            return None  # content that was accepted once is not flagged later
        self.injected[name] += 1
        return MIX[name][0]


def parse_mix(text: str) -> dict[str, int]:
    """Parse weights such as ``reset=2,hang=1``."""
    weights = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        if not name or not (weight or "1").isdecimal():
            raise InputError(f"{part!r} in a mix of faults is not NAME=WEIGHT")
        weights[name.strip()] = int(weight or 1)
    return weights


def flaky_fault(asked: SeenRequest) -> Fault | None:
    """Return the flaky persona's own fault, derived from the body and how often it came."""
    dice = int(asked.digest[:8], 16) % 32
    if dice == 0:
        return Fault("moderation")
    if dice in (1, 2):
        return Fault("length")
    if asked.nth == 1:
        return {
            3: Fault("error", 429, retry_after="0.1"),
            4: Fault("error", 429),
            5: Fault("error", 502),
            6: Fault("in_body", 502),
        }.get(dice)
    return None


def refusal(fault: Fault) -> web.Response | None:
    """Return the reply of a fault that precedes any generation, or ``None``."""
    if fault.kind == "error":
        kinds = {402: "payment_required", 429: "rate_limit_exceeded"}
        kind = kinds.get(fault.status, "provider_unavailable")
        response = error_reply(fault.status, "the provider is busy", kind)
        if fault.retry_after is not None:
            response.headers["Retry-After"] = fault.retry_after
        return response
    if fault.kind == "gateway":
        return web.Response(status=fault.status, text="<html>bad gateway</html>")
    if fault.kind == "in_body":
        error = {"code": fault.status, "message": "the provider failed"}
        return web.json_response({"error": error | {"metadata": {"error_type": "server"}}})
    if fault.kind == "odd_refusal":
        status, headers, raw = ODD_REFUSALS[fault.code]
        headers = {"Content-Type": "application/json"} | headers
        return web.Response(status=status, headers=headers, body=raw)
    if fault.kind == "moderation":
        body = {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}}
        return web.json_response({"error": body}, status=403)
    if fault.kind == "unavailable":
        return error_reply(
            503 if fault.retryable else 404,
            "no endpoint can answer",
            "provider_overloaded" if fault.retryable else "not_found",
            availability=fault.code,
            retryable=fault.retryable,
        )
    if fault.kind in ("empty", "failed"):
        reason = "error" if fault.kind == "failed" else None
        message = {"role": "assistant", "content": ""}
        choice = {"index": 0, "finish_reason": reason, "message": message}
        usage = {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10, "cost": 0}
        return web.json_response({"id": "", "choices": [choice], "usage": usage})
    return None


def error_reply(
    status: int, message: str, kind: str, *, availability: str = "", retryable: bool = False
) -> web.Response:
    """Return an error response of the API."""
    error: dict[str, Any] = {"code": status, "message": message, "metadata": {"error_type": kind}}
    if availability:
        error["availability"] = {"code": availability, "retryable": retryable}
    return web.json_response({"error": error}, status=status)

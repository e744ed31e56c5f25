"""The loopback provider's replies as bytes, and how they reach the client, or do not.

Belongs here: the JSON of a reply, its form as a cache hit and as an event stream, and
delivery under a fault. Does not belong here: what is billed (``testing.openrouter.billing``).
"""

import asyncio
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import orjson
from aiohttp import web

from composer_pipeline.actions import Action
from composer_pipeline.chat import short_name
from composer_pipeline.testing.openrouter.billing import Bill, usd
from composer_pipeline.testing.openrouter.faults import Fault
from composer_pipeline.testing.openrouter.odd import odd_answer

_exact = msgspec.json.Encoder(decimal_format="number")
_HANG_S = 3600.0
_SLOW_PIECES = 5


def exact_json(value: Any) -> bytes:
    """Encode JSON with ``Decimal`` as exact numbers."""
    return _exact.encode(value)


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
    """Return the body of a billed reply; a fault may falsify what it says of its usage."""
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
            # The same money once more, as OpenRouter tells it; adding the two is a mistake.
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
    """Return a cached reply as it is sent again: the same with its usage set to zero."""
    reply = orjson.loads(payload)
    if "usage" in reply:
        zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost": 0}
        reply["usage"] = zero
    return orjson.dumps(reply)


def events(payload: bytes) -> Iterator[bytes]:
    """Return a reply as server-sent events: a comment, the message, the usage, the end."""
    reply = msgspec.json.Decoder(float_hook=Decimal).decode(payload)
    choices, usage = reply.pop("choices"), reply.pop("usage", None)
    reply["object"] = "chat.completion.chunk"
    yield b": OPENROUTER PROCESSING\n\n"
    for choice in choices:
        choice["delta"] = choice.pop("message")
        yield b"data: " + exact_json({**reply, "choices": [choice]}) + b"\n\n"
    yield b"data: " + exact_json({**reply, "choices": [], "usage": usage}) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def deliver(  # noqa: C901  one branch a fault
    request: web.Request, payload: bytes, headers: dict[str, str], fault: Fault | None, *,
    stream: bool,
) -> web.StreamResponse:  # fmt: skip
    """Send a reply, or lose it as the fault says."""
    kind = fault.kind if fault else ""
    if kind == "hang":
        await asyncio.sleep(_HANG_S)
    transport = request.transport
    if transport is None:  # the client went away while its reply was generated
        return web.Response()
    if kind in ("reset", "hang"):
        transport.abort()
        return web.Response()
    if kind == "lost_gateway" and fault:
        return web.Response(status=fault.status, text="<html>gateway timeout</html>")
    headers = {"Content-Type": "application/json"} | headers
    if stream:
        headers["Content-Type"] = "text/event-stream"
        payload = b"".join(events(payload))
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
    except ConnectionError:  # the client went away first
        return response
    return response

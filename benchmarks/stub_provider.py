"""A chat-completions stub that does almost nothing, so that a client's own cost shows.

Answers every POST with the same reply of about 1.5 kB (a tool call, usage and cost), after a
fixed latency. ``python benchmarks/stub_provider.py --latency 0.1`` prints its port and stops
when its standard input closes.
"""

import argparse
import asyncio
import json
import sys
import threading

import httptools

REPLY = json.dumps(
    {
        "id": "gen-0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1_780_000_000,
        "model": "stub/model-20261101",
        "provider": "Stub",
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "native_finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "I look at the test first. " * 8,
                    "tool_calls": [
                        {
                            "id": "call_0123456789ab",
                            "type": "function",
                            "function": {
                                "name": "Bash",
                                "arguments": json.dumps(
                                    {"command": "pytest -q " + "tests/a " * 80}
                                ),
                            },
                        }
                    ],
                },
            }
        ],
        "usage": {
            "prompt_tokens": 2000,
            "completion_tokens": 250,
            "total_tokens": 2250,
            "cost": 0.000123456,
            "is_byok": False,
            "prompt_tokens_details": {"cached_tokens": 1500},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
).encode()
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    b"X-Generation-Id: gen-0123456789abcdef\r\nContent-Length: %d\r\n\r\n" % len(REPLY)
) + REPLY


class Stub(asyncio.Protocol):  # noqa: D101  its methods are asyncio's and httptools'
    latency = 0.0
    served = 0

    def connection_made(  # noqa: D102
        self, transport: asyncio.BaseTransport
    ) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:  # noqa: D102
        Stub.served += 1
        if self.latency:
            asyncio.get_running_loop().call_later(self.latency, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(RESPONSE)  # type: ignore[attr-defined]


async def serve(latency: float) -> None:
    """Serve until standard input closes."""
    Stub.latency = latency
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Stub, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    stop = asyncio.Event()

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch, daemon=True).start()
    await stop.wait()
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    options = parser.parse_args()
    try:
        import uvloop

        uvloop.run(serve(options.latency))
    except ImportError:
        asyncio.run(serve(options.latency))

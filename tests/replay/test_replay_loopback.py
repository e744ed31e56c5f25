"""The loopback server itself: it must be as strict as what it stands in for."""

import json
import socket
import subprocess
import sys
from decimal import Decimal
from typing import Any

import httpx
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.testing.openrouter import Asked, LoopbackOpenRouter, flaky_fault
from composer_pipeline.testing.personas import Script, prefix_key, restyled

CACHE = {"X-OpenRouter-Cache": "true", "X-OpenRouter-Cache-TTL": "60"}
TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {}}}]


def ask(server: LoopbackOpenRouter, persona: str = "careful", **more: Any) -> httpx.Response:
    headers = more.pop("headers", CACHE)
    body = {
        "model": f"loopback/{persona}-20261101",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": TOOLS,
        "max_completion_tokens": 500,
    }
    body |= more
    return httpx.post(f"{server.url}/chat/completions", json=body, headers=headers)


def test_bill_is_exact_and_a_hit_is_free() -> None:
    with LoopbackOpenRouter() as server:
        first, second = ask(server), ask(server)
        other = ask(server, headers={})
        cost = Decimal(str(json.loads(first.text, parse_float=Decimal)["usage"]["cost"]))
        assert int(cost * 10**12) == server.bills[0].cost > 0
        assert "X-OpenRouter-Cache-Source-Id" not in first.headers
        source = second.headers["X-OpenRouter-Cache-Source-Id"]
        assert source == first.headers["X-Generation-Id"]
        assert second.headers["X-Generation-Id"] != source
        assert second.json()["usage"]["cost"] == 0
        assert second.json()["choices"] == first.json()["choices"]
        assert other.status_code == 200
        assert len(server.bills) == 2  # without the header there is no cache
        told = httpx.get(f"{server.url}/generation", params={"id": source}).json()
        assert int(Decimal(str(told["data"]["total_cost"])) * 10**12) == server.bills[0].cost
        usage = httpx.get(f"{server.url}/key").json()["data"]["usage"]
        assert usage == pytest.approx(server.billed / 10**12)


def test_long_prompts_and_unknown_models_are_refused() -> None:
    with LoopbackOpenRouter(api_key="k") as server:
        key = {"Authorization": "Bearer k"}
        assert ask(server, headers={}).status_code == 401
        assert ask(server, headers=key, model="a/b").status_code == 404
        long = ask(server, headers=key, max_completion_tokens=140_000)
        assert long.json()["error"]["metadata"]["error_type"] == "context_length_exceeded"
        cheap = ask(server, headers=key, provider={"max_price": {"prompt": 0.01}})
        assert cheap.json()["error"]["availability"]["code"] == "constraint_filtered"
        assert server.billed == 0
        assert ask(server, headers=key, provider={"max_price": {"prompt": 0.27}}).status_code == 200


def test_catalogue_has_prices_as_text() -> None:
    with LoopbackOpenRouter() as server:
        models = httpx.get(f"{server.url}/models").json()["data"]
    assert {type(model["pricing"]["prompt"]) for model in models} == {str}
    assert models[0]["pricing"]["prompt"] == "0.00000027"


def test_repeated_prefixes_are_cheaper() -> None:
    with LoopbackOpenRouter() as server:
        old = [{"role": "user", "content": "long " * 500}]
        ask(server, messages=old, session_id="s")
        new = ask(server, messages=[*old, {"role": "user", "content": "more"}], session_id="s")
        assert new.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 600
        assert server.bills[1].cost < server.bills[0].cost / 2


def test_personas() -> None:
    messages = [{"role": "user", "content": "hi"}]
    agent = Action("x", (ToolCall("Bash", {"command": "ls", "description": "d"}),))
    better = Action("", (ToolCall("Bash", {"command": "grep -n 'a b' x", "timeout": 5}),))
    script = Script({prefix_key(messages): (agent, better)})
    body = {"messages": [{"role": "system", "content": "any"}, *messages], "tools": TOOLS}
    assert script.decide("careful", body) == better
    assert script.decide("contrarian", body) == agent
    steady = script.decide("steady", body).tool_calls[0].arguments
    assert list(steady) == ["timeout", "command", "description"]
    assert steady["command"] == 'grep -n "a b" x'
    flaky = script.decide("flaky", body)
    assert flaky.tool_calls[0].arguments[
        "command" if flaky.tool_calls[0].name == "Bash" else "pattern"
    ] not in ("ls", "grep -n 'a b' x")
    for command in ("echo '$HOME'", "sed -e 's/\"//'", "awk '{print `x`}'"):
        call = ToolCall("Bash", {"command": command})
        assert restyled(Action("", (call,))).tool_calls[0].arguments["command"] == command


def test_unknown_prefix_gets_a_stable_generic_action() -> None:
    body = {"messages": [{"role": "user", "content": "never seen"}], "tools": TOOLS}
    assert Script().decide("careful", body) == Script().decide("careful", body)
    names = {call.name for call in Script().decide("flaky", body).tool_calls}
    assert names == {"Bash"}
    assert Script().decide("careful", {"messages": []}).text


def test_flaky_fails_the_first_time_only() -> None:
    kinds = {f"{n:08x}": flaky_fault(Asked("m", f"{n:08x}", 1, n)) for n in range(32)}
    again = {key: flaky_fault(Asked("m", key, 2, 0)) for key in kinds}
    assert {fault.kind for fault in kinds.values() if fault} == {
        "moderation", "length", "error", "in_body",
    }  # fmt: skip
    assert {fault.kind for fault in again.values() if fault} == {"moderation", "length"}


def test_taken_port_and_lifetime() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"):
            LoopbackOpenRouter(port=taken.getsockname()[1]).start()
    server = LoopbackOpenRouter(lifetime=0.2).start()
    server.wait()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/models")


@pytest.mark.slow
def test_command_serves_the_bundled_sessions() -> None:
    command = [sys.executable, "-m", "composer_pipeline.testing.openrouter", "--lifetime", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert line["states"] > 100
        assert line["url"].startswith("http://127.0.0.1:")
        assert httpx.get(f"{line['url']}/models").status_code == 200
        process.terminate()

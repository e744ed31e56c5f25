"""The loopback server itself: it must be as strict as what it stands in for."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import httpx
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.testing.openrouter.faults import (
    MIX,
    Fault,
    FaultMix,
    SeenRequest,
    flaky_fault,
    parse_mix,
)
from composer_pipeline.testing.openrouter.models import MODELS, PriceOverride, SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script, prefix_key, restyled
from tests.fixtures.waiting import DEADLINE_S, wait_until

#: A new connection for each request, as other programs would make, and minutes for it.
HTTP = httpx.Client(timeout=DEADLINE_S, limits=httpx.Limits(max_keepalive_connections=0))
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
    return HTTP.post(f"{server.url}/chat/completions", json=body, headers=headers)


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
        told = HTTP.get(f"{server.url}/generation", params={"id": source}).json()
        assert int(Decimal(str(told["data"]["total_cost"])) * 10**12) == server.bills[0].cost
        usage = HTTP.get(f"{server.url}/key").json()["data"]["usage"]
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
        models = HTTP.get(f"{server.url}/models").json()["data"]
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
    kinds = {f"{n:08x}": flaky_fault(SeenRequest("m", f"{n:08x}", 1, n)) for n in range(32)}
    again = {key: flaky_fault(SeenRequest("m", key, 2, 0)) for key in kinds}
    assert {fault.kind for fault in kinds.values() if fault} == {
        "moderation", "length", "error", "in_body",
    }  # fmt: skip
    assert {fault.kind for fault in again.values() if fault} == {"moderation", "length"}


def exact(response: httpx.Response) -> Any:
    return json.loads(response.text, parse_float=Decimal)


def pico(value: Any) -> int:
    scaled = Decimal(str(value)) * 10**12
    assert scaled == int(scaled)
    return int(scaled)


def turns(count: int, size: int = 4000) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{n} " + "x" * size} for n in range(count)]


def model(**more: Any) -> SimulatedModel:
    return SimulatedModel(
        "loopback/careful-20261101", "careful", Decimal("0.000002"), Decimal("0.00001"), **more
    )


def details(response: httpx.Response) -> tuple[int, int, int]:
    usage = response.json()["usage"]
    parts = usage["prompt_tokens_details"]
    return usage["prompt_tokens"], parts["cached_tokens"], parts["cache_write_tokens"]


def test_automatic_caches_read_every_prefix_that_was_seen() -> None:
    seen = turns(3)
    write = Decimal("0.0000025")
    priced = model(input_cache_read=Decimal("0.0000002"), input_cache_write=write)
    with LoopbackOpenRouter(models=[priced]) as server:
        total, cached, written = details(ask(server, messages=seen, session_id="s"))
        assert (cached, written) == (0, total)
        # The longest first: every shorter one is then a read.
        total, cached, written = details(ask(server, messages=seen[:2], session_id="s"))
        size = len(json.dumps(TOOLS, separators=(",", ":")))
        size += sum(len(json.dumps(message, separators=(",", ":"))) for message in seen[:2])
        assert cached == size // 4
        assert written == total - cached
        bill = server.bills[1]
        by_hand = Decimal("0.0000002") * cached + write * written
        by_hand += Decimal("0.00001") * bill.completion_tokens
        assert bill.cost == pico(by_hand)
        # Another session sticks to another provider.
        assert details(ask(server, messages=seen[:2], session_id="t"))[1] == 0
        # Other tools are another prompt from the first byte on.
        assert details(ask(server, messages=seen[:2], session_id="s", tools=[]))[1] == 0


def test_explicit_caches_read_only_what_ended_at_a_breakpoint() -> None:
    seen = turns(3)
    control: dict[str, Any] = {"cache_control": {"type": "ephemeral"}, "session_id": "s"}
    with LoopbackOpenRouter(models=[model(cache="explicit")]) as server:
        assert details(ask(server, messages=seen, **control))[1] == 0
        assert details(ask(server, messages=seen[:2], **control))[1] == 0  # not a breakpoint
        assert details(ask(server, messages=[*seen, *turns(1, 9)], **control))[1] > 3000
        plain = ask(server, messages=[*seen, *turns(2, 9)], session_id="s")
        assert details(plain)[1:] == (0, 0)


class Clock:
    """The provider's monotonic clock, which stands still until a test moves it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("server", "billing"):
        monkeypatch.setattr(f"composer_pipeline.testing.openrouter.{module}.time", clock)
    return clock


def test_prompt_caches_expire_and_have_a_smallest_size(clock: Clock) -> None:
    with LoopbackOpenRouter(models=[model(cache_ttl=2.0, cache_minimum=1500)]) as server:
        assert details(ask(server, messages=turns(2), session_id="s"))[1] == 0
        assert details(ask(server, messages=turns(3), session_id="s"))[1] > 1500
        assert details(ask(server, messages=turns(1), session_id="s"))[1] == 0
        clock.now += 1.9
        assert details(ask(server, messages=turns(4), session_id="s"))[1] > 1500
        clock.now += 2.1
        assert details(ask(server, messages=turns(5), session_id="s"))[1] == 0


def test_a_prompt_that_is_still_being_read_is_in_no_cache(clock: Clock) -> None:
    with LoopbackOpenRouter(models=[model()], latency=0.01) as server:
        threads = [
            threading.Thread(target=ask, args=(server,), kwargs={"messages": turns(n)})
            for n in (3, 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [bill.cached_tokens for bill in server.bills] == [0, 0]


def test_long_prompts_pay_the_override() -> None:
    override = PriceOverride(2000, prompt=Decimal("0.000004"), completion=Decimal("0.00002"))
    with LoopbackOpenRouter(models=[model(overrides=(override,), cache="none")]) as server:
        for count in (1, 4):
            ask(server, messages=turns(count))
        short, long = server.bills
        assert short.prompt_tokens < 2000 < long.prompt_tokens
        assert long.cost == 4_000_000 * long.prompt_tokens + 20_000_000 * long.completion_tokens
        assert short.cost == 2_000_000 * short.prompt_tokens + 10_000_000 * short.completion_tokens


def test_the_catalogue_tells_all_that_a_client_must_know() -> None:
    odd = model(
        canonical_slug="loopback/careful-20261102",
        max_completion_tokens=400,
        input_cache_write=Decimal("0.0000025"),
        overrides=(PriceOverride(200_000, prompt=Decimal("0.000004")),),
        input_modalities=("text", "image"),
        expiration_date="2020-01-01",
        private=True,
    )
    with LoopbackOpenRouter(models=[odd, MODELS[1]]) as server:
        models = {m["id"]: m for m in HTTP.get(f"{server.url}/models").json()["data"]}
        mine = {m["id"] for m in HTTP.get(f"{server.url}/models/user").json()["data"]}
        one = models[odd.slug]
        assert one["pricing"]["input_cache_read"] == "0.0000002"
        assert one["pricing"]["input_cache_write"] == "0.0000025"
        assert one["pricing"]["overrides"] == [{"min_prompt_tokens": 200000, "prompt": "0.000004"}]
        assert one["canonical_slug"] == "loopback/careful-20261102"
        assert one["max_completion_tokens"] == 400
        assert one["architecture"]["input_modalities"] == ["text", "image"]
        assert one["expiration_date"] == "2020-01-01"
        assert models["~loopback/steady-latest"]["alias_target"] == MODELS[1].slug
        assert mine == {MODELS[1].slug, "~loopback/steady-latest"}
        assert ask(server).json()["error"]["availability"]["code"] == "model_deprecated"
        served = ask(server, model="~loopback/steady-latest").json()["model"]
        assert served == MODELS[1].slug
        path = f"{server.url}/models/{MODELS[1].slug}/endpoints"
        assert HTTP.get(path).json()["data"]["endpoints"][0]["provider_name"] == "Loopback"
        zdr = HTTP.get(f"{server.url}/endpoints/zdr").json()["data"]
        assert {e["model_id"] for e in zdr} == {odd.slug, MODELS[1].slug}


@pytest.mark.parametrize(
    ("options", "asked", "code"),
    [
        ({"private": True}, {}, "privacy_restricted"),
        ({"zdr": False}, {"zdr": True}, "privacy_restricted"),
        ({"distillable": False}, {"enforce_distillable_text": True}, "constraint_filtered"),
    ],
)
def test_what_no_endpoint_may_answer(
    options: dict[str, Any], asked: dict[str, Any], code: str
) -> None:
    with LoopbackOpenRouter(models=[model(**options)]) as server:
        refused = ask(server, provider=asked)
        assert (refused.status_code, server.billed) == (404, 0)
        assert refused.json()["error"]["availability"] == {"code": code, "retryable": False}


def test_a_run_key_has_its_own_bill_limit_and_cache() -> None:
    root = {"Authorization": "Bearer root"}
    with LoopbackOpenRouter(api_key="root", usage_lag=0.0) as server:
        keys = f"{server.url}/keys"
        assert HTTP.post(keys, json={"name": "run"}).status_code == 401
        made = HTTP.post(keys, json={"name": "run", "limit": 0.0003}, headers=root)
        assert made.status_code == 201
        data, secret = made.json()["data"], made.json()["key"]
        assert secret.startswith("sk-or-")
        assert secret not in json.dumps(data)
        assert (data["name"], data["usage"], data["disabled"]) == ("run", 0, False)
        child = {"Authorization": f"Bearer {secret}"}
        assert HTTP.get(f"{keys}/{data['hash']}", headers=child).status_code == 401

        assert ask(server, headers=root | CACHE).status_code == 200
        first = ask(server, headers=child | CACHE)
        assert "X-OpenRouter-Cache-Source-Id" not in first.headers  # entries are per key
        assert ask(server, headers=child | CACHE).headers["X-OpenRouter-Cache-Status"] == "HIT"
        assert server.hits == 1
        mine = exact(HTTP.get(f"{server.url}/key", headers=child))["data"]
        assert pico(mine["usage"]) == server.bills[1].cost == server.account.billed(data["hash"])
        assert pico(mine["limit_remaining"]) == 300_000_000 - server.bills[1].cost
        told = exact(HTTP.get(f"{keys}/{data['hash']}", headers=root))["data"]
        assert told["usage"] == mine["usage"]

        for number in range(9):  # each costs about 60 µ$
            last = ask(server, headers=child, messages=turns(1, number))
        assert last.status_code == 403
        assert 0 <= server.account.billed(data["hash"]) - 300_000_000 < 70_000_000
        patched = HTTP.patch(f"{keys}/{data['hash']}", json={"limit": 1}, headers=root)
        assert patched.json()["data"]["limit"] == 1
        assert ask(server, headers=child).status_code == 200

        assert HTTP.delete(f"{keys}/{data['hash']}", headers=root).json() == {"deleted": True}
        assert HTTP.get(f"{keys}/{data['hash']}", headers=root).status_code == 404
        assert ask(server, headers=child).status_code == 401


def test_limits_are_checked_first_and_settled_later() -> None:
    with LoopbackOpenRouter() as server:
        server.held = lambda asked: server.requests < 3
        made = HTTP.post(f"{server.url}/keys", json={"name": "r", "limit": 0.000001}).json()
        child = {"Authorization": f"Bearer {made['key']}"}
        statuses: list[int] = []

        def one(number: int) -> None:
            statuses.append(
                ask(server, headers=child, messages=turns(1, number)).status_code
            )  # fmt: skip

        threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one(4)
        assert statuses == [200, 200, 200, 403]
        assert server.billed > 3_000_000  # a fence that a crowd jumps, not a ceiling


def test_usage_and_generations_can_lag_and_credit_can_end(clock: Clock) -> None:
    with LoopbackOpenRouter(
        usage_lag=1.0, generation_lag=1.0, credit_usd=Decimal("0.000001")
    ) as server:
        generation = ask(server).headers["X-Generation-Id"]

        def usage() -> int:
            return pico(exact(HTTP.get(f"{server.url}/key"))["data"]["usage"])

        def told() -> int:
            return HTTP.get(f"{server.url}/generation", params={"id": generation}).status_code

        assert (usage(), told()) == (0, 404)
        assert server.billed > 0
        clock.now += 1.1
        assert (usage(), told()) == (server.billed, 200)
        account = exact(HTTP.get(f"{server.url}/credits"))["data"]
        assert pico(account["total_usage"]) == server.billed
        assert ask(server, headers={}).status_code == 402


def test_a_management_key_cannot_chat() -> None:
    with LoopbackOpenRouter(api_key="k", management_key="m") as server:
        assert ask(server, headers={"Authorization": "Bearer m"}).status_code == 401
        for key, status in (("k", 401), ("m", 201)):
            headers = {"Authorization": f"Bearer {key}"}
            made = HTTP.post(f"{server.url}/keys", json={"name": "r"}, headers=headers)
            assert made.status_code == status
    with LoopbackOpenRouter(key_endpoints=False) as server:
        assert HTTP.post(f"{server.url}/keys", json={"name": "r"}).status_code == 404


def always(fault: Fault) -> Callable[[SeenRequest], Fault]:
    return lambda asked: fault


@pytest.mark.parametrize("name", list(MIX))
def test_each_fault_is_billed_or_not_as_it_says(name: str) -> None:
    fault, _ = MIX[name]
    lost = fault.kind in ("truncate", "reset", "hang")
    free = not fault.billed or fault.kind in (
        "error", "gateway", "in_body", "moderation", "unavailable", "empty", "failed",
        "odd_refusal",
    )  # fmt: skip
    broken = name == "not_gzip"  # what the server calls compressed is not
    with LoopbackOpenRouter(faults=always(fault)) as server:
        if lost or broken:
            with pytest.raises(httpx.HTTPError):
                HTTP.post(
                    f"{server.url}/chat/completions",
                    json={"model": MODELS[0].slug, "messages": [{"role": "user", "content": "x"}]},
                    timeout=0.4 if fault.kind == "hang" else DEADLINE_S,
                )
            if fault.billed:  # though the client had gone
                wait_until(lambda: server.bills, "the bill")
        else:
            reply = ask(server)
            if not fault.kind.startswith("odd"):
                assert (fault.kind in ("error", "gateway", "lost_gateway")) == (
                    reply.status_code == fault.status
                )
                assert ("retry-after" in reply.headers) == (fault.retry_after is not None)
            if fault.kind in ("overcount", "undercount"):
                usage, bill = exact(reply)["usage"], server.bills[0]
                assert usage["prompt_tokens"] != bill.prompt_tokens
                assert pico(usage["cost"]) == bill.cost
        assert len(server.bills) == (not free)
        if lost or free or broken or fault.kind == "length":
            return
        # The same request again is a hit, whatever happens to its delivery.
        ask(server)
        assert (len(server.bills), server.hits) == (1, 1)


def test_a_misreported_cost_differs_from_the_bill() -> None:
    with LoopbackOpenRouter(faults=always(Fault("misreport"))) as server:
        told = exact(ask(server))["usage"]["cost"]
        assert pico(told) == server.bills[0].cost // 2


def test_a_slow_reply_takes_its_time() -> None:
    with LoopbackOpenRouter(faults=always(Fault("slow", seconds=0.3))) as server:
        started = time.monotonic()
        assert ask(server).json()["usage"]["cost"] > 0
        assert time.monotonic() - started >= 0.3


def test_prices_can_change_in_mid_run() -> None:
    cap: dict[str, Any] = {"provider": {"max_price": {"prompt": 0.3, "completion": 1.2}}}
    with LoopbackOpenRouter() as server:
        assert ask(server, **cap).status_code == 200
        server.set_price(MODELS[0].slug, prompt=Decimal("0.0000003"), completion=Decimal(0))
        assert ask(server, headers={}, **cap).status_code == 200
        assert server.bills[1].cost < server.bills[0].cost
        server.set_price(MODELS[0].slug, prompt=Decimal("0.000001"), completion=Decimal(0))
        refused = ask(server, headers={}, **cap)
        assert refused.json()["error"]["availability"]["code"] == "constraint_filtered"


def test_the_mix_of_faults_is_seeded_weighted_and_patient() -> None:
    asked = [SeenRequest("m", f"{n:064x}", 1, n) for n in range(4000)]
    first, second = FaultMix(3, 0.25), FaultMix(3, 0.25)
    fates = [first(a) for a in asked]
    assert fates == [second(a) for a in reversed(asked)][::-1]
    assert fates != [FaultMix(4, 0.25)(a) for a in asked]
    harmed = [fate for fate in fates if fate]
    assert 900 < len(harmed) < 1100
    assert set(first.injected) == set(MIX)
    assert sum(first.injected.values()) == len(harmed)
    assert len(MIX) >= 60
    assert all(count for name, count in first.injected.items() if MIX[name][1] > 1)
    assert sum(count > 0 for count in first.injected.values()) >= 0.9 * len(MIX)
    assert not any(FaultMix(3, 1.0)(SeenRequest("m", a.digest, 4, 0)) for a in asked)
    only = FaultMix(0, 1.0, parse_mix("reset=2,hang"))
    kinds = [fate.kind for a in asked if (fate := only(a))]
    assert len(kinds) == 4000
    assert 0.6 < kinds.count("reset") / 4000 < 0.73
    for bad in ({"nope": 1}, {"reset": -1}, {"reset": 0}):
        with pytest.raises(InputError):
            FaultMix(0, 0.5, bad)
    with pytest.raises(InputError):
        FaultMix(0, 1.5)
    with pytest.raises(InputError, match="NAME=WEIGHT"):
        parse_mix("reset=x")


def test_streams_are_events_with_a_comment_and_an_exact_cost() -> None:
    with LoopbackOpenRouter() as server:
        whole, streamed = ask(server), ask(server, stream=True)
        assert streamed.headers["Content-Type"].startswith("text/event-stream")
        assert streamed.text.startswith(": OPENROUTER PROCESSING")
        data = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        chunks = [json.loads(chunk, parse_float=Decimal) for chunk in data]
        assert chunks[0]["choices"][0]["delta"] == whole.json()["choices"][0]["message"]
        assert pico(chunks[-1]["usage"]["cost"]) == server.bills[1].cost


def test_taken_port_and_lifetime() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"):
            LoopbackOpenRouter(port=taken.getsockname()[1]).start()
    server = LoopbackOpenRouter(lifetime=0.2).start()
    server.wait()
    with pytest.raises(httpx.ConnectError):
        HTTP.get(f"{server.url}/models")


@pytest.mark.slow
def test_command_serves_the_bundled_sessions() -> None:
    command = [
        sys.executable,
        "-m",
        "composer_pipeline.testing.openrouter",
        "--lifetime",
        "900",
    ]
    wrong = [*command, "--faults", "1", "--fault-mix", "nope=1"]
    told = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert (told.returncode, "no fault 'nope'" in told.stderr) == (2, True)
    command += ["--faults", "1", "--fault-mix", "503=1", "--fault-seed", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert line["states"] > 100
        assert line["url"].startswith("http://127.0.0.1:")
        assert HTTP.get(f"{line['url']}/models").status_code == 200
        asked = {"model": MODELS[0].slug, "messages": []}
        reply = HTTP.post(f"{line['url']}/chat/completions", json=asked)
        assert reply.status_code == 503
        process.terminate()

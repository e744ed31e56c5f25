"""The plan: prompt caches against the loopback's bill, votes, catalogue and caps."""

import io
import itertools
import json
import random
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.cli.__main__ import main
from composer_pipeline.cli.teachers import plan_tables
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.catalogue import Override, Prices, Pricing, parse
from composer_pipeline.teachers.plan import ReplayPlan, _pricing, plan, selector_for
from composer_pipeline.teachers.plan_model import (
    Tariff,
    asked_shares,
    expected_cost,
    typical_prices,
)
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.models import MODELS, PriceOverride, SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from tests.fixtures.lake_states import write_session
from tests.places import ROOT
from tests.teachers.prompts import Prompt, reuse

Serve = Callable[..., LoopbackOpenRouter]
PRICES = Prices(Decimal(1), Decimal(10), input_cache_read=Decimal("0.25"))


def tariff(prices: Prices = PRICES, **more: Any) -> Tariff:
    options = {"bytes_per_token": 1.0, "completion_tokens": 0.0, "caches": True, **more}
    return Tariff(Pricing(prices, options.pop("overrides", ())), **options)


def prompt(name: str, *prefixes: int, session: str = "s", size: int = 100) -> Prompt:
    return Prompt(name, session, prefixes, [size] * len(prefixes))


CHAIN = [prompt("a", 1), prompt("b", 1, 2), prompt("c", 1, 2, 3), prompt("d", 1, 2, 3, 4)]


# -- the model of prompt caches ------------------------------------------------------


def test_each_piece_is_paid_in_full_once() -> None:
    # 400 fresh bytes at 1, 600 repeated ones at a quarter.
    assert expected_cost(reuse(CHAIN), tariff()) == pytest.approx(400 + 600 / 4)
    assert expected_cost(reuse(CHAIN[::-1]), tariff()) == pytest.approx(400 + 600 / 4)
    assert expected_cost(reuse(CHAIN), tariff(), cached=False) == 1000
    assert expected_cost(reuse(CHAIN), tariff(caches=False)) == 1000
    other = [prompt(p.state_id, *p.prefixes, session=p.state_id) for p in CHAIN]
    assert expected_cost(reuse(other), tariff()) == 1000
    write = Prices(Decimal(1), Decimal(10), None, None, Decimal("0.25"), Decimal("1.25"))
    assert expected_cost(reuse(CHAIN), tariff(write)) == pytest.approx(400 * 1.25 + 600 / 4)
    assert expected_cost(reuse(CHAIN), tariff(write), cached=False) == 1000


def test_short_prefixes_are_not_cached() -> None:
    found = reuse(CHAIN, minimum_bytes=150)
    # The first hundred bytes are only cached as part of a prefix of two hundred.
    assert expected_cost(found, tariff()) == pytest.approx(100 + 200 + 100 + 100 + 500 / 4)


def test_expectation_over_asked_states_is_exact() -> None:
    share, sure = 0.4, {"c"}
    found = reuse(CHAIN, surely=sure)
    costs = tariff(completion_tokens=3.0)
    exact = 0.0
    for number in range(8):
        asked = [p for i, p in enumerate(CHAIN[:2] + CHAIN[3:]) if number >> i & 1]
        chance = share ** len(asked) * (1 - share) ** (3 - len(asked))
        kept = [p for p in CHAIN if p in asked or p.state_id in sure]
        exact += chance * expected_cost(reuse(kept), costs)
    assert expected_cost(found, costs, share=share) == pytest.approx(exact)


def test_long_prompts_pay_their_own_price() -> None:
    long = Override(Prices(prompt=Decimal(2)), min_prompt_tokens=300)
    costs = tariff(overrides=(long,))
    found = reuse(CHAIN, edges=costs.edges())
    assert costs.edges() == (300,)
    # 300 is not strictly more than 300: only the last prompt pays twice the price.
    assert expected_cost(found, costs, cached=False) == 100 + 200 + 300 + 2 * 400


def test_shares_of_the_vote() -> None:
    assert asked_shares(4, "off", p=0.1, q=0.1) == [1.0] * 4
    for mode in ("exact", "student"):
        for families in (3, 5):
            for p in (0.0, 0.3, 0.6, 0.9, 1.0):
                for q in (0.0, 0.5, 1.0):
                    shares = asked_shares(families, mode, p=p, q=q)
                    assert shares[0] == pytest.approx(1.0)
                    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(shares))
    often = [sum(asked_shares(3, "student", p=p, q=0.5)) for p in (0.2, 0.5, 0.8)]
    assert often == sorted(often, reverse=True)
    alike = [sum(asked_shares(3, "exact", p=0.3, q=q)) for q in (0.1, 0.5, 0.9)]
    assert alike == sorted(alike, reverse=True)
    assert asked_shares(3, "exact", p=1.0, q=0.0) == pytest.approx([1, 1, 0])


@pytest.mark.parametrize("mode", ["exact", "student"])
def test_shares_agree_with_drawing_votes(mode: str) -> None:
    from composer_pipeline.teachers.selection import Cluster, how_many

    p, q, families, draws = 0.5, 0.4, 4, 20_000
    rng = random.Random(7)
    tends = (p + (p * p + 4 * q * (1 - p)) ** 0.5) / 2
    asked = [0] * families
    for _ in range(draws):
        right = rng.random() < p / tends
        answers: list[str] = []
        while True:
            votes = [Cluster(answers.count(a), a == "agent") for a in dict.fromkeys(answers)]
            more = how_many(votes, families - len(answers), 2, mode)
            if not more:
                break
            for _ in range(min(more, families - len(answers))):
                asked[len(answers)] += 1
                tended = "agent" if right else "other"
                answers.append(tended if rng.random() < tends else f"own{len(answers)}")
    found = asked_shares(families, mode, p=p, q=q)
    assert [n / draws for n in asked] == pytest.approx(found, abs=0.012)


# -- against the loopback's bill -----------------------------------------------------


def long_sessions(lake: Lake, day: str, sessions: Sequence[int]) -> None:
    """Sessions whose prompts grow by some kilobytes a turn, as real ones do."""
    for number in sessions:
        steps = [
            (
                Action(
                    tool_calls=(ToolCall("Read", {"file_path": f"/home/user/{number}/{n}.py"}),)
                ),
                f"line {number} {n} of a file\n" * (40 + 17 * (n % 5)),
            )
            for n in range(14)
        ]
        write_session(lake, f"long{number}", steps, prompt=f"Task {number}. " * 60, day=day)


def with_models(teacher_set: TeacherSet, **more: Any) -> tuple[TeacherSet, list[SimulatedModel]]:
    data = teacher_set.model_dump()
    for teacher in data["teachers"]:
        teacher["max_price"] = {"prompt": "3", "completion": "9"}
        teacher["concurrency"] = 1
    models = [msgspec.structs.replace(model, **more) for model in MODELS]
    return TeacherSet.model_validate(data), models


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"input_cache_write": Decimal("0.0000009")},
        {"overrides": (PriceOverride(6000, prompt=Decimal("0.0000020")),)},
        {"cache": "none"},
    ],
    ids=["automatic", "paid_writes", "long_context", "uncached"],
)
def test_the_plan_is_the_bill_within_five_percent(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, more: dict[str, Any]
) -> None:
    long_sessions(lake, "2026-11-20", range(3))
    teachers, models = with_models(teacher_set, **more)
    server = serve(models=models)
    first = plan(lake, teachers, days=["2026-11-16"])
    replay(lake, teachers, max_usd=Decimal(20), days=["2026-11-16"])  # calibrates the tokens
    before = server.billed
    found = plan(lake, teachers, days=["2026-11-20", "2026-11-16"])
    assert found.cached == first.calls == 48
    assert found.by_teacher["careful"].measured_replies == 12
    replay(lake, teachers, max_usd=Decimal(20), days=["2026-11-20"])
    bill = (server.billed - before) / 10**12
    assert float(found.expected_usd) == pytest.approx(bill, rel=0.05)
    naive = found.strategies["naive"].usd
    if more.get("cache") == "none":
        assert found.strategies["chain"].usd == naive
    else:
        assert found.strategies["chain"].usd < 0.7 * naive
    assert bill <= found.worst_usd


def test_agreement_is_measured_on_replies(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    long_sessions(lake, "2026-11-20", range(4))
    states = list(load_states(lake))
    better = Action(tool_calls=(ToolCall("Bash", {"command": "pytest"}),))
    poor = {s.message_id: better for s in states if int(s.state_id[:2], 16) % 2}
    serve(script=Script.from_states(states, poor))
    data = teacher_set.model_dump() | {"selection": {"curtail": "exact", "audit_share": 0.0}}
    names = ["careful", "steady", "contrarian"]
    curtailed = TeacherSet.model_validate(data)
    assumed = plan(lake, curtailed, teachers=names, decide=VoteDecision())
    assert (assumed.agreement.source, assumed.agreement.p) == ("assumed", 0.6)
    replay(lake, teacher_set, max_usd=Decimal(20), teachers=names)
    found = plan(lake, curtailed, teachers=names, decide=VoteDecision()).agreement
    # The cheapest, contrarian, is always with the agent; careful is where nothing is better.
    assert (found.source, found.states, found.p) == ("assumed", len(states), 0.6)
    assert found.shares[:2] == [1.0, 1.0]
    assert found.shares[2] == pytest.approx(len(poor) / len(states), abs=1e-4)
    no_agent = plan(lake, curtailed, teachers=names[:2], decide=VoteDecision()).agreement
    assert no_agent.source == "measured"
    assert no_agent.p == pytest.approx(1 - len(poor) / len(states), abs=1e-4)
    assert (no_agent.q, no_agent.disagreements) == (1.0, len(poor))


def test_selection_lowers_expectation_but_not_the_bound(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    serve()
    full = plan(lake, teacher_set)
    data = teacher_set.model_dump()

    def selected(**section: Any) -> Any:
        given = {**data, "selection": {"audit_share": 0.0, **section}}
        return plan(lake, TeacherSet.model_validate(given), agreement=(0.6, 0.5))

    exact, student = selected(curtail="exact"), selected(curtail="student")
    assert student.expected_usd < exact.expected_usd < full.expected_usd
    assert full.worst_usd == exact.worst_usd == student.worst_usd
    assert exact.strategies["selected"].usd == pytest.approx(
        exact.strategies["chain_exact"].usd, rel=1e-6
    )
    few = selected(max_states=3)
    assert (few.calls, few.states) == (12, 12)
    assert few.worst_usd < full.worst_usd / 3
    audit = selected(curtail="student", audit_share=1.0)
    assert float(audit.expected_usd) == pytest.approx(float(full.expected_usd))
    ranks = sorted(full.by_teacher, key=lambda name: full.by_teacher[name].rank)
    assert ranks == ["flaky", "contrarian", "careful", "steady"]


def test_a_stopped_teacher_costs_nothing_and_the_others_go_on(
    lake: Lake, teacher_set: TeacherSet
) -> None:
    rows = [
        {
            "id": teacher.model, "canonical_slug": teacher.model,
            "pricing": {"prompt": "0.0000001", "completion": "0.0000004"},
        }
        for teacher in teacher_set.teachers
    ]  # fmt: skip
    rows[1]["pricing"] = {"prompt": "0.0000001"}
    catalogue = parse(json.dumps({"data": rows}).encode())
    found = plan(lake, teacher_set, catalogue=catalogue)
    steady = found.by_teacher["steady"]
    assert "teacher steady: pricing.completion" in steady.stop
    assert (steady.calls, steady.worst_picodollars, found.calls) == (0, 0, 36)
    assert found.by_teacher["careful"].canonical_slug == "loopback/careful-20261101"


# -- without a catalogue -------------------------------------------------------------


def unreachable(**more: Any) -> TeacherSet:
    """The shipped teachers at a real endpoint that nobody answers at."""
    data = TeacherSet.load(ROOT / "recipes" / "teachers" / "default.yaml").model_dump()
    data["endpoint"]["base_url"] = "http://127.0.0.1:9/api/v1"
    return TeacherSet.model_validate(data | more)


def listed(monkeypatch: pytest.MonkeyPatch, models: dict[str, Prices]) -> None:
    given = (typical_prices()[0], models)
    monkeypatch.setattr("composer_pipeline.teachers.plan.typical_prices", lambda: given)


def notes(found: ReplayPlan) -> list[str]:
    names, lines = (map(str, column.cells) for column in plan_tables(found)[2].columns)
    return [line for name, line in zip(names, lines, strict=True) if name == "prices"]


def test_typical_prices_stand_for_a_catalogue_in_the_estimate_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_sessions(lake, "2026-11-20", range(2))
    teachers = unreachable()
    found = plan(lake, teachers)
    assert {one.prices for one in found.by_teacher.values()} == {"typical"}
    assert all(one.caches_prompts for one in found.by_teacher.values())
    assert found.catalogue == ""
    listed(monkeypatch, {})
    caps = plan(lake, teachers)
    assert {one.prices for one in caps.by_teacher.values()} == {"caps"}
    assert not any(one.caches_prompts for one in caps.by_teacher.values())
    assert found.expected_usd < found.expected_uncached_usd < caps.expected_usd
    assert caps.expected_uncached_usd == caps.expected_usd
    assert found.worst_usd == caps.worst_usd > 0
    for name, one in found.by_teacher.items():
        assert one.worst_picodollars == caps.by_teacher[name].worst_picodollars > 0
        assert one.calls == caps.by_teacher[name].calls > 0
        assert one.chain_usd < one.naive_usd < caps.by_teacher[name].naive_usd


def test_the_estimate_without_cached_reads_is_of_what_is_selected(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_sessions(lake, "2026-11-20", range(2))
    teachers = unreachable(selection={"curtail": "exact", "audit_share": 0.0, "max_states": 24})
    found = plan(lake, teachers, agreement=(0.6, 0.5))
    models = {
        model: Prices(prices.prompt, prices.completion)
        for model, prices in typical_prices()[1].items()
    }
    listed(monkeypatch, models)
    uncached = plan(lake, teachers, agreement=(0.6, 0.5))
    assert found.expected_usd < found.expected_uncached_usd == uncached.expected_usd
    assert found.to_dict()["expected_uncached_usd"] == float(uncached.expected_usd)
    sums = [one.expected_uncached_picodollars for one in found.by_teacher.values()]
    assert found.expected_uncached_usd == Decimal(sum(sums)) / 10**12
    assert all(
        one.expected_picodollars <= one.expected_uncached_picodollars <= one.worst_picodollars
        for one in found.by_teacher.values()
    )


def test_the_shipped_prices_are_valid() -> None:
    day, models = typical_prices()
    assert date(2026, 11, 1) <= day
    seen = set()
    for file in (ROOT / "recipes" / "teachers").glob("*.yaml"):
        teacher_set = TeacherSet.load(file)
        for one in teacher_set.teachers if not teacher_set.endpoint.simulated else ():
            (priced, source), cap = _pricing(teacher_set, one, None), one.max_price
            assert source == "typical", f"{file.name}: {one.model}"
            assert 0 < priced.base.of("prompt") * 10**6 <= cap.prompt
            assert 0 < priced.base.of("completion") * 10**6 <= cap.completion
            assert 0 < priced.base.of("input_cache_read") <= priced.base.of("prompt")
            seen.add(one.model)
    assert seen == models.keys() - {"anthropic/claude-sonnet-4.5"}
    for prices in models.values():
        known = {k: p for k, p in msgspec.structs.asdict(prices).items() if p is not None}
        assert known.keys() - {"input_cache_read"} == {"prompt", "completion"}
        assert all(Decimal("0.001") <= price <= 100 for price in known.values())  # per million
        assert prices.of("input_cache_read") <= prices.of("prompt") <= prices.of("completion")


def test_the_shipped_prices_say_where_they_are_from() -> None:
    document = yaml.safe_load((ROOT / "recipes" / "prices.yaml").read_text())
    assert document["source"]
    for entry in document["models"].values():
        low, high = map(Decimal, entry.get("range", [entry["prompt"]] * 2))
        assert low <= Decimal(entry["prompt"]) <= high
        assert entry["from"]
        assert entry["context_length"] >= 100_000
        texts = [entry[key] for key in ("prompt", "completion", "input_cache_read") if key in entry]
        assert all(isinstance(text, str) for text in texts)  # a number would be inexact


def test_each_typical_price_has_its_own_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Prices(Decimal(4), Decimal(9), input_cache_read=Decimal(3))
    listed(monkeypatch, {"x/y": given})

    def priced(prompt: str, completion: str) -> list[Decimal | None]:
        own = {"model": "x/y", "max_price": {"prompt": prompt, "completion": completion}}
        one = unreachable(teachers=[unreachable().teachers[0].model_dump() | own])
        pricing, source = _pricing(one, one.teachers[0], None)
        assert (source, pricing.overrides) == ("typical", ())
        keys = ("prompt", "completion", "input_cache_read", "input_cache_write")
        found = [getattr(pricing.base, key) for key in keys]
        return [None if price is None else price * 10**6 for price in found]

    assert priced("10", "20") == [4, 9, 3, None]
    assert priced("3.5", "8") == [Decimal("3.5"), 8, 3, None]
    assert priced("2", "20") == [2, 9, 2, None]


def test_typical_prices_are_capped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    teachers = unreachable()
    dear = Prices(Decimal(50), Decimal(90), input_cache_read=Decimal(40))
    listed(monkeypatch, {teacher.model: dear for teacher in teachers.teachers})
    found = plan(lake, teachers)
    listed(monkeypatch, {})
    caps = plan(lake, teachers)
    for name, one in found.by_teacher.items():
        assert one.prices == "typical"
        assert one.naive_usd == caps.by_teacher[name].naive_usd
        assert one.chain_usd == pytest.approx(one.naive_usd)


def test_a_catalogue_has_precedence_over_typical_prices(lake: Lake) -> None:
    teachers = unreachable()
    prices = {"prompt": "0.0000001", "completion": "0.0000004", "input_cache_read": "0.00000005"}
    rows = [{"id": t.model, "pricing": prices} for t in teachers.teachers[:4]]
    found = plan(lake, teachers, catalogue=parse(json.dumps({"data": rows}).encode()))
    assert [one.prices for one in found.by_teacher.values()] == ["catalogue"] * 4 + ["caps"]
    assert "not in the catalogue" in found.by_teacher["gpt-oss"].stop
    assert notes(found) == []  # a teacher that the catalogue stops is not priced at all


def test_a_model_without_a_typical_price_is_priced_at_its_caps(lake: Lake) -> None:
    data = [t.model_dump() for t in unreachable().teachers[:2]]
    data[1]["model"] = "qwen/qwen9"
    found = plan(lake, unreachable(teachers=data))
    deepseek, qwen = found.by_teacher.values()
    assert (deepseek.prices, qwen.prices, qwen.caches_prompts) == ("typical", "caps", False)
    typical, caps = notes(found)
    assert f"typical ones of {typical_prices()[0]} for deepseek (no" in typical
    assert "caps of the teacher file for qwen, no cached reads: no catalogue" in caps


def test_simulated_and_own_endpoints_get_no_typical_prices(lake: Lake) -> None:
    real = unreachable().model_dump()
    simulated = real | {"endpoint": real["endpoint"] | {"simulated": True}}
    found = plan(lake, TeacherSet.model_validate(simulated))
    assert {one.prices for one in found.by_teacher.values()} == {"caps"}
    own = real["teachers"][0] | {
        "endpoint": {"name": "own", "base_url": "http://127.0.0.1:9/v1"},
        "price": {"prompt": "0.60", "completion": "2.00"},
    }
    found = plan(lake, unreachable(teachers=[own, *real["teachers"][1:]]))
    assert [one.prices for one in found.by_teacher.values()] == ["file"] + ["typical"] * 4


def test_the_selector_asks_by_typical_prices(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["gpt-oss", "glm", "kimi"]  # kimi's cap is the higher one, its typical price is not
    states = list(load_states(lake))[:1]

    def first(teachers: TeacherSet) -> list[str]:
        selector = selector_for(lake, teachers, VoteDecision(), teachers=names)
        assert selector is not None
        asked = selector.next_wave(states, teachers.select(names), lambda _: {}, lambda *_: True)
        return [teacher.name for _, teacher in asked]

    teachers = unreachable(selection={"curtail": "exact", "audit_share": 0.0})
    assert first(teachers) == ["gpt-oss", "kimi"]
    listed(monkeypatch, {})
    assert first(teachers) == ["gpt-oss", "glm"]


def test_the_command_says_that_prices_are_typical(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long_sessions(lake, "2026-11-20", range(2))
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "teachers.yaml"
    shipped = (ROOT / "recipes" / "teachers" / "default.yaml").read_text()
    file.write_text(shipped.replace("https://openrouter.ai/api", "http://127.0.0.1:9/api"))
    found = plan(lake, TeacherSet.load(file), decide=VoteDecision())
    assert 0 < found.expected_usd < found.expected_uncached_usd - Decimal("0.001")
    with pytest.raises(SystemExit) as left:
        main(["plan", "--teachers", str(file), "--lake", lake.url])
    assert not left.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        f"prices typical ones of {typical_prices()[0]} for deepseek, qwen, glm, kimi, gpt-oss"
        " (no catalogue was read; reading it needs no key); expected"
        f" ${found.expected_usd:.4f}, or ${found.expected_uncached_usd:.4f} if nothing is read"
        " from the cache" in printed
    )
    assert "caps of the teacher file" not in printed


def test_an_openai_endpoint_is_planned_at_the_files_prices(
    lake: Lake, teacher_set: TeacherSet, serve: Serve
) -> None:
    server = serve()
    data = teacher_set.model_dump()
    data["endpoint"] |= {"api": "openai", "api_key_env": "COMPOSER_LOOPBACK_KEY"}
    data["teachers"] = [data["teachers"][0] | {"model": "served-by-vllm"}]
    found = plan(lake, TeacherSet.model_validate(data))
    careful = found.by_teacher["careful"]
    assert (careful.prices, careful.caches_prompts, careful.stop) == ("file", False, "")
    assert found.strategies["chain"].usd == found.strategies["naive"].usd > 0
    assert server.requests == 0


def test_planning_writes_nothing(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    serve()
    before = sorted(path for path in Path(lake.root).rglob("*"))
    plan(lake, teacher_set, decide=VoteDecision())
    assert sorted(path for path in Path(lake.root).rglob("*")) == before


def test_tables_fit_a_terminal(lake: Lake, teacher_set: TeacherSet, serve: Serve) -> None:
    from rich.console import Console

    server = serve()
    tables = plan_tables(plan(lake, teacher_set))
    assert "no catalogue" not in str([list(column.cells) for column in tables[2].columns])
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    server.stop()
    tables = plan_tables(plan(lake, teacher_set))
    assert "no catalogue" in str([list(column.cells) for column in tables[2].columns])
    text = console.export_text()
    for word in ("naive", "chain", "careful", "worst", "48", "%"):
        assert word in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_an_empty_reuse_costs_nothing() -> None:
    assert expected_cost(reuse([]), tariff()) == 0

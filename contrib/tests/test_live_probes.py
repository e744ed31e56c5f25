"""The live probes over the wire, against a loopback provider that behaves this way or that."""

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from composer_pipeline.actions import Action
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.models import MODELS, PriceOverride
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from contrib.live_probes import Finding, LiveReport, Timeouts, main, probe_live
from tests.fixtures.waiting import DEADLINE_S

Serve = Callable[..., LoopbackOpenRouter]
QUICK = Timeouts(lag_s=1.5, poll_s=0.05, cut_s=0.15, settle_s=0.6, read_timeout_s=DEADLINE_S)


def probe(lake: Lake, teacher_set: TeacherSet, usd: str = "0.05") -> dict[str, Finding]:
    report = probe_live(lake, teacher_set, max_usd=Decimal(usd), timeouts=QUICK)
    return {finding.name: finding for finding in report.findings}


@pytest.fixture
def serve(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Servers whose rhyme ends after the client has cut it off and before it asks again."""
    settling = asyncio.sleep

    def start(**options: Any) -> LoopbackOpenRouter:
        server, cut_off = serve(**options), 0

        def held(asked: SeenRequest) -> bool:
            rhyme = "rhyme" in str(server.bodies[asked.total - 1])
            return rhyme and asked.nth == 1 and asked.total > cut_off

        async def sleep(seconds: float) -> None:
            nonlocal cut_off
            if seconds != QUICK.settle_s:
                await settling(seconds)
                return
            # Each rhyme is asked for twice; the first may still be on its way to the server.
            while sum("rhyme" in str(body) for body in server.bodies) % 2 == 0:
                await settling(0.01)
            cut_off = server.requests
            while server.generating:
                await settling(0.01)

        server.held = held
        monkeypatch.setattr(
            "contrib.live_probes.asyncio",
            SimpleNamespace(**{**vars(asyncio), "sleep": sleep}),
        )
        return server

    return start


@pytest.fixture
def teachers(teacher_set: TeacherSet) -> TeacherSet:
    data = teacher_set.model_dump()
    data["teachers"] = [t for t in data["teachers"] if t["name"] in ("careful", "steady")]
    return TeacherSet.model_validate(data)


def reasoning(**more: Any) -> list[Any]:
    longer = (PriceOverride(10_000, prompt=Decimal("0.000002")),)
    return [
        msgspec.structs.replace(
            model,
            supported_parameters=(*model.supported_parameters, "reasoning"),
            overrides=longer if "steady" in model.slug else (),
            **more,
        )
        for model in MODELS
    ]


def test_all_probes_on_a_provider_that_behaves(
    lake: Lake, teachers: TeacherSet, serve: Serve
) -> None:
    server = serve(models=reasoning())
    found = probe(lake, teachers)
    answers = {name: finding.status for name, finding in found.items()}
    assert answers == {
        "account": "ok",
        "models_for_this_account": "ok",
        "zdr_endpoints": "ok",
        "lag_of_the_bill": "ok",
        "response_cache_hit": "ok",
        "cache_after_disconnect": "ok",
        # The loopback compares caps with base prices only, and says so.
        "max_price_and_overrides": "warn",
        "max_tokens_with_reasoning": "ok",
        "privacy_canary": "ok",
    }
    assert "asking again was free" in found["cache_after_disconnect"].answer
    assert found["lag_of_the_bill"].facts["generation_lag_s"] >= 0
    # Everything went through the ledger, and the ledger says what the provider says.
    with Ledger(Path(lake.root) / "ledger.db") as ledger:
        status = ledger.status()["global"]
    assert (status.spent, status.reserved, status.unknown) == (server.billed, 0, 0)
    assert 0 < server.billed < 5 * 10**10
    assert server.duplicate_bills() == 0
    # Made-up words only, and never as rows of a teacher.
    assert all(len(body["messages"]) == 1 for body in server.bodies)
    assert lake.rows("replies") == []


def test_a_provider_that_behaves_otherwise(
    lake: Lake, teachers: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [msgspec.structs.replace(m, private="careful" in m.slug, zdr=False) for m in MODELS]
    server = serve(models=models, response_cache=False, generation_lag=9999, usage_lag=9999)
    data = teachers.model_dump()
    for teacher in data["teachers"]:
        teacher["provider"]["zdr"] = teacher["name"] == "careful"
        teacher["max_price"] = {"prompt": "0.6" if teacher["name"] == "careful" else "0.5",
                                "completion": "2"}  # fmt: skip
    server.logs_content = True
    found = probe(lake, TeacherSet.model_validate(data))
    assert "careful" in found["models_for_this_account"].answer
    assert found["zdr_endpoints"].status == "warn"
    # steady is the one that can be asked; careful was cheaper but is private.
    assert found["max_price_and_overrides"].status == "skipped"
    assert found["max_tokens_with_reasoning"].status == "skipped"
    steady = TeacherSet.model_validate(
        data | {"teachers": [t for t in data["teachers"] if t["name"] == "steady"]}
    )
    found = probe(lake, steady)
    assert found["zdr_endpoints"].status == "skipped"
    assert found["lag_of_the_bill"].status == "warn"
    assert "/generation, /key" in found["lag_of_the_bill"].answer
    assert "billed again" in found["response_cache_hit"].answer
    assert "a crash costs a second bill" in found["cache_after_disconnect"].answer
    assert (found["privacy_canary"].status, "logged" in found["privacy_canary"].answer) == (
        "fail",
        True,
    )


def test_reasoning_beyond_the_bound_fails(lake: Lake, teachers: TeacherSet, serve: Serve) -> None:
    class Long(Script):
        def decide(self, persona: Any, body: Any) -> Action:
            return Action(text="word " * 40)

    # Fifty-odd tokens, reported and billed threefold by a provider that reasons beyond the bound.
    serve(models=reasoning(), script=Long(), faults=lambda asked: Fault("overcount"))
    found = probe(lake, teachers)["max_tokens_with_reasoning"]
    assert (found.status, found.facts["bound"]) == ("fail", 64)
    assert found.facts["completion_tokens"] > 64


def test_the_ceiling_holds(lake: Lake, teachers: TeacherSet, serve: Serve) -> None:
    server = serve(models=reasoning())
    found = probe(lake, teachers, usd="0.0001")
    assert server.billed <= 10**8
    skipped = {name for name, finding in found.items() if finding.status == "skipped"}
    assert "privacy_canary" in skipped
    assert "do not fit" in found["privacy_canary"].answer
    assert found["account"].status == "ok"


def test_the_report_is_kept_without_the_key(
    lake: Lake, teachers: TeacherSet, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-test-do-not-keep-me"
    monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", key)
    serve(models=reasoning(), api_key=key)
    report = probe_live(lake, teachers, max_usd=Decimal("0.05"), timeouts=QUICK)
    kept = json.loads(lake.get_bytes(report.kept_as))
    assert kept["simulated"] is True
    assert kept == json.loads(json.dumps(report.to_dict()))
    assert isinstance(msgspec.convert(kept, LiveReport), LiveReport)
    for path in Path(lake.root).rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()


def test_bad_input_is_one_clear_error(
    lake: Lake, teachers: TeacherSet, root: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(InputError, match="--max-usd"):
        probe_live(lake, teachers, max_usd=Decimal(0))
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    default = str(root / "recipes" / "teachers" / "default.yaml")
    assert main(["--teachers", default, "--lake", lake.url]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "OPENROUTER_API_KEY is not set" in line
    other = teachers.model_dump()
    other["endpoint"] |= {"api": "openai"}
    with pytest.raises(InputError, match="api openrouter only"):
        probe_live(lake, TeacherSet.model_validate(other), max_usd=Decimal(1))


def test_from_the_command_line(
    lake: Lake, teacher_set: TeacherSet, serve: Serve, root: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    serve(models=reasoning())
    monkeypatch.setattr("contrib.live_probes.Timeouts", lambda: QUICK)
    demo = str(root / "recipes" / "teachers" / "demo.yaml")
    code = main(["--teachers", demo, "--lake", lake.url])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if "fail" in {item["status"] for item in report["findings"]} else 0)
    assert "privacy_canary" in {item["name"] for item in report["findings"]}
    assert report["kept_as"].startswith("doctor/live-")

"""Teachers on servers of one's own: any program that speaks OpenAI's chat completions."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.plan import plan
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.odd_server import odd_server, response
from tests.places import ROOT

FILE = """\
purpose: evaluation
{endpoint}
limits: {{backoff_s: 0.01, backoff_cap_s: 0.05, read_timeout_s: 300, recover_after_s: 0}}
teachers:
  - name: local
    family: qwen
    model: qwen3-coder:30b
    licence: Apache-2.0
    endpoint: {{name: ollama, base_url: "{own}"}}
    price: {{prompt: 0, completion: 0}}
  - name: gateway
    family: glm
    model: company-glm
    served_as: [z-ai/glm-4.6]
    licence: MIT
    endpoint: {{name: gateway, base_url: "{other}", api_key_env: GATEWAY_KEY}}
    price: {{prompt: "0.5", completion: "2"}}
"""


def answer(model: str, **fields: Any) -> bytes:
    return response(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": model,
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant",
                                                                 "content": "Done."}}
            ],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
        }
        | fields
    )  # fmt: skip


def teachers(tmp_path: Path, own: str, other: str, endpoint: str = "") -> TeacherSet:
    path = tmp_path / "teachers.yaml"
    path.write_text(FILE.format(own=own, other=other, endpoint=endpoint))
    return TeacherSet.load(path)


def test_plain_servers_serve_teachers_under_one_ceiling(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "company-secret")
    monkeypatch.setenv("OPENROUTER_API_KEY", "router-secret")
    local = answer("qwen3-coder:30b")
    glm = answer("z-ai/glm-4.6")
    with (
        odd_server(lambda *_: iter([local])) as own,
        odd_server(lambda *_: iter([glm])) as other,
    ):
        chosen = teachers(tmp_path, f"{own.url}", f"{other.url}")
        estimate = plan(lake, chosen)
        assert set(estimate.by_teacher) == {"local", "gateway"}
        report = replay(lake, chosen, max_usd=Decimal(1), max_states=3, run_id="own")
        assert (report.replies, report.calls) == (6, 6)
        # Nothing but chat is asked, each with its own key or none, in OpenAI's words alone.
        assert {request for request, _ in own.seen + other.seen} == {
            "POST /api/v1/chat/completions"
        }
        assert {headers.get("authorization") for _, headers in own.seen} == {None}
        assert {headers.get("authorization") for _, headers in other.seen} == {
            "Bearer company-secret"
        }
        assert all("provider" not in json.loads(body) for body in own.requests)
        with Ledger(ledger_target(lake)) as ledger:
            status = ledger.status()
        bill = 3 * (1000 * 500_000 + 10 * 2_000_000)
        assert (status["global"].spent, status["global"].unknown) == (bill, 0)
        assert status["run:own"].spent == status["teacher:gateway"].spent == bill
        assert status["teacher:local"].spent == 0
        rows = lake.rows("replies")
        assert {row["status"] for row in rows} == {"ok"}
        assert {row["training_terms"] for row in rows} == {"not enforced"}
        assert {row["simulated"] for row in rows} == {False}
        again = replay(lake, chosen, max_usd=Decimal(1), max_states=3, run_id="own")
        assert again.calls == 0


def test_the_ceiling_holds_over_all_endpoints(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GATEWAY_KEY", raising=False)
    with odd_server(lambda *_: iter([answer("company-glm")])) as server:
        chosen = teachers(tmp_path, server.url, server.url)
        state = Questions(lake, chosen).states[0]
        worst = Questions(lake, chosen).build(state, chosen.teachers[1]).amount
        ceiling = Decimal(worst * 23 // 10) / 10**12
        report = replay(lake, chosen, max_usd=ceiling, run_id="own")
        assert report.exhausted_scope == "run:own"
        assert 0 < report.spent_usd <= ceiling


def test_one_endpoint_that_refuses_its_key_stops_its_teacher_alone(
    lake: Lake, tmp_path: Path
) -> None:
    refused = response({"error": {"code": 401, "message": "no"}}, 401)
    with (
        odd_server(lambda *_: iter([answer("qwen3-coder:30b")])) as own,
        odd_server(lambda *_: iter([refused])) as other,
    ):
        chosen = teachers(tmp_path, own.url, other.url)
        report = replay(lake, chosen, max_usd=Decimal(1), max_states=3)
    assert report.by_teacher["local"].replies == 3
    assert [error.teacher for error in report.stopped()] == ["gateway"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('    price: {prompt: "0.5", completion: "2"}\n', "", ["an own endpoint needs price"]),
        ('prompt: "0.5"', 'prompt: "-0.5"', ["price.prompt"]),
        ('prompt: "0.5"', "prompt: .nan", ["price.prompt"]),
        ('prompt: "0.5"', "prompt: 99999", ["price.prompt"]),
        ("name: gateway, base_url", "name: ollama, base_url", ["two endpoints", "ollama"]),
        ("- name: gateway", "- name: local", ["two teachers", "local"]),
        ("api_key_env: GATEWAY_KEY", "api_key_env: sk-secret", ["api_key_env"]),
        ('base_url: "http://127.0.0.1:2', 'base_url: "http://gpu.example:2', ["without TLS"]),
    ],
)
def test_bad_own_endpoints(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    text = FILE.format(own="http://127.0.0.1:1/v1", other="http://127.0.0.1:2/v1", endpoint="")
    assert old in text
    path = tmp_path / "teachers.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        TeacherSet.load(path)
    assert "\n" not in str(caught.value)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_metered_key_and_an_own_endpoint_exclude_each_other(tmp_path: Path) -> None:
    metered = (
        "endpoint: {name: openrouter, base_url: https://openrouter.ai/api/v1, dedicated_key: true}"
    )
    with pytest.raises(InputError, match="dedicated_key"):
        teachers(tmp_path, "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", metered)


def test_the_guides_file_loads(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "own-endpoints.md").read_text()
    path = tmp_path / "teachers.yaml"
    path.write_text(guide.split("```yaml\n")[1].split("```")[0])
    chosen = TeacherSet.load(path)
    assert [t.name for t in chosen.teachers if t.endpoint is None] == ["kimi"]

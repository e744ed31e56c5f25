"""Level L3: a judge behind a loopback server, paid through a real ledger."""

import json
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import BudgetExhausted, InputError
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, level
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.judge import SemanticJudge, verdict_of
from composer_pipeline.preferences.vote import vote
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.teachers import Endpoint, Teacher
from tests.fixtures.states import made_state

COST = "0.000012"


class Judge(BaseHTTPRequestHandler):
    """Says SAME when both sides hold the word ``parser``; bills every answer alike."""

    bodies: list[bytes]
    answer: str | None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).bodies.append(body)
        text = json.loads(body)["messages"][-1]["content"]
        first, second = text.split("\n\nSecond:\n")
        same = "parser" in first and "parser" in second
        content = self.answer if self.answer is not None else ("SAME" if same else "DIFFERENT")
        reply = json.dumps(
            {
                "id": f"gen-{len(self.bodies)}",
                "choices": [{"finish_reason": "stop", "message": {"content": content}}],
                "usage": {"prompt_tokens": 90, "completion_tokens": 1, "cost": float(COST)},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Generation-Id", f"gen-{len(self.bodies)}")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Judge,), {"bodies": [], "answer": None})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield handler, f"http://127.0.0.1:{httpd.server_port}/api/v1"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def make(url, ledger, usd="1", run="r"):
    teacher = Teacher.model_validate(
        {"name": "judge", "family": "judge", "model": "sim/judge-1", "licence": "test",
         "max_tokens": 16, "max_price": {"prompt": "0.2", "completion": "0.8"}}
    )  # fmt: skip
    endpoint = Endpoint.model_validate(
        {"name": "loopback", "base_url": url, "simulated": True, "recovery_cache_s": 0}
    )
    return SemanticJudge(teacher, endpoint, ledger, max_usd=Decimal(usd), run_id=run)


A = Action("", (ToolCall("Grep", {"pattern": "class Parser"}),))
B = Action("", (ToolCall("Grep", {"pattern": "parser = "}),))
C = Action("", (ToolCall("Grep", {"pattern": "lexer"}),))
LOWER = Action("", (ToolCall("Grep", {"pattern": "class parser"}),))


def test_off_by_default_and_injected():
    assert level(A, B, ActionContext()).level is Level.L4
    asked = []

    def same(x, y):
        asked.append((x, y))
        return True

    verdict = level(A, B, ActionContext(), semantic=same)
    assert verdict.level is Level.L3
    assert level(B, A, ActionContext(), semantic=same).level == 3
    assert asked[0] == asked[1]


def test_asked_only_where_the_class_is_equal():
    def never(a, b):
        raise AssertionError("asked")

    read = Action("", (ToolCall("Read", {"file_path": "a"}),))
    assert level(A, A, ActionContext(), semantic=never).level is Level.L0
    assert level(A, read, ActionContext(), semantic=never).level is Level.NONE


def test_pays_once(server, tmp_path):
    handler, url = server
    with Ledger(tmp_path / "ledger.db") as ledger, make(url, ledger) as judge:
        assert level(B, LOWER, ActionContext(), semantic=judge).level is Level.L3
        assert level(LOWER, B, ActionContext(), semantic=judge).level is Level.L3
        assert level(B, C, ActionContext(), semantic=judge).level is Level.L4
        assert (judge.asked, judge.unjudged) == (2, 0)
        spent = ledger.status()["run:r"]
        assert (spent.spent, spent.reserved, spent.unknown) == (24_000_000, 0, 0)
        assert ledger.status()["global"].spent == 24_000_000
    with Ledger(tmp_path / "ledger.db") as ledger, make(url, ledger) as again:
        assert level(B, LOWER, ActionContext(), semantic=again).level is Level.L3
        assert (again.asked, again.cached) == (0, 1)
    assert len(handler.bodies) == 2


def test_ceiling_holds(server, tmp_path):
    handler, url = server
    with (
        Ledger(tmp_path / "ledger.db") as ledger,
        make(url, ledger, usd="0.00001") as judge,
        pytest.raises(BudgetExhausted, match="run:r"),
    ):
        judge(A, B)
    assert handler.bodies == []
    with Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(InputError, match="max_usd"):
        make(url, ledger, usd="0")


@pytest.mark.parametrize("answer", ["", "SAME or DIFFERENT?", "maybe"])
def test_an_answer_that_is_none_is_counted(server, tmp_path, answer):
    handler, url = server
    handler.answer = answer
    with Ledger(tmp_path / "ledger.db") as ledger, make(url, ledger) as judge:
        assert level(B, LOWER, ActionContext(), semantic=judge).level is Level.L4
        assert judge.unjudged == 1


def test_a_secret_is_not_sent(server, tmp_path):
    handler, url = server
    key = "ghp_" + "a1B2c3D4e5" * 3 + "F6g7H8"
    leaky = Action("", (ToolCall("Grep", {"pattern": key}),))
    with Ledger(tmp_path / "ledger.db") as ledger, make(url, ledger) as judge:
        assert judge(leaky, B) is False
        assert (judge.asked, judge.unjudged) == (0, 1)
    assert handler.bodies == []


def test_verdict_of():
    assert verdict_of(b"no json") is None
    assert verdict_of(b"{}") is None
    assert verdict_of(b'{"choices":[{"message":{"content":"Different."}}]}') is False


def test_an_agent_that_means_the_same_makes_no_pair():
    state = made_state(action=A, cwd="/srv/app")
    replies = [Reply(f"t{f}", f, f, B) for f in "ab"]
    assert vote(state, replies).tier == "gold"
    got = vote(state, replies, semantic=lambda a, b: True)
    assert (got.student_level, got.tier) == (Level.L3, "none")

"""The judge of meaning pays as replays do: the ledger says what the provider billed."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import ComposerError
from composer_pipeline.preferences.judge import SemanticJudge
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.teachers import Endpoint, MaxPrice, Teacher
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import PersonaName, Script

A = Action("", (ToolCall("Grep", {"pattern": "class Parser"}),))
B = Action("", (ToolCall("Grep", {"pattern": "parser = "}),))


class Says(Script):
    """Answers every question with one text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def decide(self, persona: PersonaName, body: Mapping[str, Any]) -> Action:
        return Action(self.text)


def judged(
    folder: Path,
    fault: Callable[[SeenRequest], Fault | None],
    *,
    generation_endpoint: bool = True,
    factor: int = 1,
) -> tuple[bool, SemanticJudge, Any, LoopbackOpenRouter]:
    """Ask once whether A and B mean the same; return the answer, the judge and the books."""
    server = LoopbackOpenRouter(
        Says("SAME"), faults=fault, lifetime=60, generation_endpoint=generation_endpoint
    )
    teacher = Teacher.model_validate(
        {"name": "judge", "family": "judge", "model": "loopback/careful-20261101",
         "licence": "test", "max_tokens": 16, "max_price": {"prompt": "0.3", "completion": "1.2"}}
    )  # fmt: skip
    price = teacher.max_price
    dearer = MaxPrice(prompt=price.prompt * factor, completion=price.completion * factor)
    teacher = teacher.model_copy(update={"max_price": dearer})
    with server, Ledger(folder / "ledger.db") as ledger:
        endpoint = Endpoint.model_validate(
            {"name": "loopback", "base_url": server.url, "simulated": True}
        )
        with SemanticJudge(teacher, endpoint, ledger, max_usd=Decimal(1), run_id="r") as judge:
            same = judge(A, B)
        return same, judge, ledger.status()["run:r"], server


def test_a_hit_after_a_lost_answer_is_settled_by_its_source(tmp_path: Path) -> None:
    """The first answer is billed and lost on its way; the second is the response cache's."""

    def first_is_lost(asked: SeenRequest) -> Fault | None:
        return Fault("reset") if asked.nth == 1 else None

    same, _, sums, server = judged(tmp_path, first_is_lost)
    assert same
    assert (server.hits, len(server.bills)) == (1, 1)
    assert (sums.spent, sums.reserved, sums.unknown) == (server.billed, 0, 0)


def test_a_source_whose_cost_is_not_told_stays_charged(tmp_path: Path) -> None:
    """A hit's own cost of nothing says nothing of what its source cost."""
    same, _, sums, server = judged(
        tmp_path,
        lambda asked: Fault("reset") if asked.nth == 1 else None,
        generation_endpoint=False,
    )
    assert same
    assert (sums.spent, sums.reserved) == (0, 0)
    assert sums.unknown >= server.billed > 0


def test_a_refusal_is_kept_and_not_asked_again(tmp_path: Path) -> None:
    def refuse(asked: SeenRequest) -> Fault | None:
        return Fault("moderation")

    for requests in (1, 0):  # the second time the ledger knows
        same, judge, sums, server = judged(tmp_path, refuse)
        assert (same, judge.unjudged, server.requests) == (False, 1, requests)
        assert (sums.spent, sums.reserved, sums.unknown) == (0, 0, 0)


def test_a_judge_that_bills_too_much_is_quarantined(tmp_path: Path) -> None:
    same, _, sums, server = judged(tmp_path, lambda asked: Fault("overcharge"))
    assert same
    assert sums.spent == server.billed
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert list(ledger.quarantined()) == ["judge:judge"]


def test_an_account_that_is_refused_ends_the_judge(tmp_path: Path) -> None:
    with pytest.raises(ComposerError, match="judge:judge cannot be asked"):
        judged(tmp_path, lambda asked: Fault("error", 401))


def test_a_changed_price_cap_asks_nothing_again(tmp_path: Path) -> None:
    judged(tmp_path, lambda asked: None)
    same, judge, held, server = judged(tmp_path, lambda asked: None, factor=2)
    assert (same, judge.asked, judge.cached, server.requests) == (True, 0, 1, 0)
    assert held.spent > 0

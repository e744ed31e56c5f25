"""`preview`: five states by value, through the ledger, under its ceiling, and nothing else."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.provenance import read_records
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger.ledger import Ledger, ledger_target
from composer_pipeline.teachers.value import PairModel, features
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from tests.fixtures.lake_states import write_session, write_sessions
from tests.fixtures.replaying import DEMO, serve

__all__ = ["serve"]

PICO = 10**12
Serve = Callable[..., LoopbackOpenRouter]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lake(tmp_path: Any) -> Lake:
    """Twelve plain states of one day; on another, three sessions with two failed calls each."""
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=3, turns=4)
    for name in ("f1", "f2", "f3"):
        steps = [
            (Action("", (ToolCall("Bash", {"command": f"make {name} {n}"}),)), "failed")
            for n in range(4)
        ]
        write_session(lake, name, steps, day="2026-11-17", prompt=name, error_turns=(1, 3))
    return lake


@pytest.fixture
def run(lake: Lake, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(command: str, *options: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([command, "--teachers", str(DEMO), "--lake", lake.url, *options])
        return (int(left.value.code or 0), *capsys.readouterr())

    return call


def charged(lake: Lake) -> int:
    with Ledger(ledger_target(lake, None)) as ledger:
        scope = ledger.status()["global"]
        assert scope.reserved == scope.unknown == 0
        return int(scope.spent)


def test_five_states_are_asked_and_the_rest_is_priced(lake: Lake, serve: Serve, run: Run) -> None:
    server = serve()
    code, out, err = run("preview", "--json")
    assert code == 0, err
    found = json.loads(out)
    states = {state.state_id: state for state in load_states(lake)}
    worth = sorted(states, key=lambda name: (-PairModel().chance(features(states[name])), name))
    assert [facts["state_id"] for facts in found["states"]] == worth[:5]
    assert {row["state_id"] for row in lake.rows("replies")} == set(worth[:5])
    assert all(facts["teachers"] for facts in found["states"])
    assert found["replay"]["simulated"]
    assert Decimal(str(found["replay"]["ceiling_usd"])) == Decimal("0.5")
    assert found["replay"]["spent_usd"] * PICO == pytest.approx(server.billed)
    assert charged(lake) == server.billed > 0
    # What all would cost is what plan says now: all states, those of the preview paid for.
    plan = json.loads(run("plan", "--json")[1])
    assert found["plan"] == plan
    assert (plan["states"], plan["cached"]) == (24, len(lake.rows("replies")))
    # No day counts as replayed, since most of its states were not asked about.
    assert not read_records(lake, "replies")
    assert lake.days("pairs") == []


def test_nothing_is_bought_twice_before_or_after(lake: Lake, serve: Serve, run: Run) -> None:
    server = serve()
    run("preview")
    billed = server.billed
    code, out, _ = run("preview")
    assert code == 0
    assert server.billed == billed > 0
    assert "$0.0000 of $0.5000 spent, 0 replies bought" in " ".join(out.split())
    assert run("replay", "--max-usd", "1")[0] == 0
    assert charged(lake) == server.billed > billed
    assert server.duplicate_bills() == 0


def test_the_ceiling_holds_and_what_there_is_is_shown(lake: Lake, serve: Serve, run: Run) -> None:
    server = serve()
    for most in ("0.000001", "0.004"):
        code, out, err = run("preview", "--max-usd", most)
        assert code == 3
        assert "budget exhausted in scope run:" in err
        assert "5 states made a pair; asking about all 24" in " ".join(out.split())
        assert server.billed <= Decimal(most) * PICO
    with Ledger(ledger_target(lake, None)) as ledger:
        runs = [scope for name, scope in ledger.status().items() if name.startswith("run:")]
    assert {scope.ceiling for scope in runs} == {10**6, 4 * 10**9}


def test_each_state_is_shown_with_its_sides_and_the_price(
    lake: Lake, serve: Serve, run: Run
) -> None:
    serve()
    code, out, _ = run("preview", "--session", "f1")
    text = " ".join(out.split())
    assert code == 0
    shown = [state.state_id for state in load_states(lake) if state.session_id == "f1"]
    assert sum(f"state {name}" in text for name in shown) == 4
    assert text.count("every reply") == 4
    assert "simulated replay of 4 states: $0.0" in text
    assert "of these 4 states made a pair; asking about all 4: up to 0 calls more" in text

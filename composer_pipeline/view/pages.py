"""What the viewer shows, as JSON: a lake, sessions, states, money, runs, evaluations.

Server and bundle give the same pages.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer_pipeline.charts import lines
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.evaluate import FOLDER, RESULTS, TRAINED
from composer_pipeline.evaluation.results import (
    BASE,
    StateResult,
    measures_of,
    read_results,
)
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import stale_states
from composer_pipeline.money import to_usd
from composer_pipeline.preferences.explain import Explainer
from composer_pipeline.preferences.vote_rows import REASONS
from composer_pipeline.report.write import cost_by_day
from composer_pipeline.states.fates import by_horizon
from composer_pipeline.states.load import ChainPath, WholeSession, failure_chains, whole_sessions
from composer_pipeline.states.previews import cut
from composer_pipeline.states.state import Message, TraceState, block_text, blocks_of
from composer_pipeline.survival.follow import HORIZONS
from composer_pipeline.teachers.ledger.ledger import budget_report
from composer_pipeline.training.model_card import evaluation_of
from composer_pipeline.training.run import (
    METRICS,
    Points,
    about,
    channel_curves,
    curve_charts,
    finished,
    held_out_curve,
)
from composer_pipeline.view.rows import FACETS

#: Characters of a text that are shown.
MOST = 12_000
#: States of an evaluation that are listed, those that changed most first.
_CHANGED = 500
_LINES = 4_000

Page = dict[str, Any]


def lake_page(name: str) -> Page:
    """Return the lake's name, and what the words of the other pages mean."""
    return {"name": name, "facets": FACETS, "reasons": REASONS}


def stale_page(lake: Lake) -> list[str]:
    """Return a sentence for each day that another parser or other redaction rules made."""
    return [f"{day}: {found.reason}" for day, found in stale_states(lake).items()]


class DayPages:
    """The sessions of a day with all that is known of their states; tables are read once."""

    def __init__(self, lake: Lake, day: str) -> None:
        self._lake, self.day = lake, day
        self._explainer = Explainer(lake, day)
        self._hints = {row["state_id"]: row for row in lake.rows(
            "hints", days=[day],
            columns=["state_id", "source", "error_kind", "error_state_id", "verdict", "text",
                     "culprit_by"],
        )}  # fmt: skip
        self._outcomes = by_horizon(lake.rows(
            "outcomes", days=[day],
            columns=["state_id", "horizon", "status", "why", "lines", "alive", "how"],
        ))  # fmt: skip

    def states(self, session_id: str) -> list[Page]:
        """Return what is known of each state of a session."""
        found = whole_sessions(self._lake, days=[self.day], sessions=[session_id])
        return [state for session in found for state in self._states(session)]

    def _states(self, session: WholeSession) -> Iterator[Page]:
        chains = failure_chains(self._lake, [state.state_id for state in session.states])
        for paths in session.paths.values():
            seen = set[int]()
            ordered = ((state, path) for path in paths for state in path.states)
            for state, path in sorted(ordered, key=_order):
                yield {
                    "state_id": state.state_id,
                    **self._state(state, chains.get(state.state_id, [])),
                    **_around(path, state, seen),
                }

    def _state(self, state: TraceState, chain: list[dict[str, str]]) -> Page:
        explained = [
            self._explainer.of(state, pair_id, chain)
            for pair_id in self._explainer.pairs_of(state.state_id) or [""]
        ]
        # Why the teachers made a pair, or none, is said once; the agent's own pairs follow.
        teachers = [facts for facts in explained if facts["reason"] in REASONS]
        own = [facts for facts in explained if facts["reason"] not in REASONS]
        facts = (teachers or [self._explainer.of(state, "", chain)])[0]
        names = ("why", "rule", "reason", "pair_id", "agent", "teachers", "chain")
        pair = ("pair_id", "reason", "why", "chosen", "fate")
        found: Page = {
            **{name: facts[name] for name in names},
            "stages": facts["fate"],
            "own_pairs": [{name: each[name] for name in pair} for each in own],
            "why_verdict": state.verdict_evidence or state.verdict_reason,
            "culprit_state_id": state.culprit_state_id,
            "hint": self._hints.get(state.state_id),
            "fates": {
                name: row for name in HORIZONS
                if (row := self._outcomes.get(state.state_id, {}).get(name))
            },
        }  # fmt: skip
        return found


def _order(of: tuple[TraceState, ChainPath]) -> tuple[int, int, str]:
    return of[0].turn, of[0].n_messages, of[0].state_id


def _around(path: ChainPath, state: TraceState, seen: set[int]) -> Page:
    """Return what the agent saw since its last response, and what followed; ``seen`` grows."""
    end = begin = state.n_messages
    while begin and path.numbers[begin - 1] not in seen:
        begin -= 1
    after = path.messages[end : end + 2]
    acted = bool(after) and after[0]["role"] == "assistant"
    seen.update(path.numbers[: end + acted])
    then = [message for message in after[acted:][:1] if message["role"] == "user"]
    return {
        "before": begin,
        "seen": [block for message in path.messages[begin:end] for block in _blocks(message)],
        "then": [block for message in then for block in _blocks(message)],
    }


def _blocks(message: Message) -> Iterator[Page]:
    for block in blocks_of(message):
        kind = {"tool_use": "call", "tool_result": "result"}.get(block["type"], block["type"])
        text = block_text(block).removeprefix("<- ") if kind == "result" else block_text(block)
        yield {
            "role": message["role"],
            "kind": kind,
            "error": bool(block.get("is_error")),
            "text": cut(text, MOST, _LINES),
        }


def money_page(lake: Lake, ledger: str | Path | None) -> Page:
    """Return what was billed by day and teacher, and the ceilings of the ledger."""
    rows = lake.query(
        "SELECT day, teacher, count(*), sum(cost_picodollars)::HUGEINT FROM replies"
        " GROUP BY ALL ORDER BY day, teacher"
    )
    found = budget_report(ledger) if ledger else {"scopes": []}
    bills = [(day, teacher, int(cost or 0) / 1e12) for day, teacher, _, cost in rows]
    return {
        "chart": cost_by_day(bills) if rows else "",
        "rows": [
            {"day": day, "teacher": teacher, "replies": n, "usd": str(to_usd(int(cost or 0)))}
            for day, teacher, n, cost in rows
        ],
        "scopes": [
            {name: None if value is None else str(value) for name, value in scope.items()}
            for scope in found["scopes"]
            if ":" not in scope["scope"] or scope["ceiling_usd"] is not None
        ],
    }


def runs_page(run_root: Path) -> Page:
    """Return the training runs, finished or not: their charts, and run against run."""
    folders = sorted(path.parent for path in run_root.glob(f"*/{METRICS}"))
    series: dict[str, dict[str, Points]] = {}
    for folder in folders:
        curves = {**channel_curves(folder), "held out": held_out_curve(folder)}
        for quantity, points in curves.items():
            if points:
                series.setdefault(quantity, {})[folder.name] = points
    return {
        "runs": [
            {
                "name": folder.name,
                "about": _facts_of(folder),
                "charts": curve_charts(folder),
                "evaluated": (folder / FOLDER / RESULTS).is_file(),
            }
            for folder in folders
        ],
        "compared": {
            quantity: lines(runs, x_unit="round" if quantity == "held out" else "step")
            for quantity, runs in series.items()
            if len(runs) > 1
        },
    }


def _facts_of(folder: Path) -> dict[str, str]:
    try:
        finished(folder)
        return about(folder)
    except InputError as error:
        return {"not finished": str(error)}


def evaluation_page(run_root: Path, name: str) -> Page:
    """Return a run's evaluation: the verdict, and the states whose answers or odds changed most.

    Raises:
        InputError: there is no such evaluation.
    """
    folder = run_root / name
    if name not in {path.parents[1].name for path in run_root.glob(f"*/{FOLDER}/{RESULTS}")}:
        raise InputError(f"run {name!r} is not in {run_root}, or was not evaluated")
    found, results = evaluation_of(folder) or {}, read_results(folder / FOLDER / RESULTS)
    before = {result.state_id: result for result in results.get(BASE, [])}
    both = [(before[after.state_id], after) for after in results.get(TRAINED, [])
            if after.state_id in before]  # fmt: skip
    both.sort(key=_change, reverse=True)
    return {
        "name": name,
        "worse": found.get("worse"),
        "unknown": found.get("unknown"),
        "states": len(both),
        "changed": [
            {
                "state_id": after.state_id,
                "session_id": after.session_id,
                "kind": after.kind,
                "right": _grew((base, after)),
                "before": _answer(base),
                "after": _answer(after),
            }
            for base, after in both[:_CHANGED]
        ],
    }


def _grew(both: tuple[StateResult, StateResult]) -> float:
    """Return by how much log p(right) grew, in nats per token."""
    before, after = (result.logp_right / result.tokens_right for result in both)
    return after - before


def _change(both: tuple[StateResult, StateResult]) -> tuple[bool, float]:
    base, after = both
    return base.judgement.canonical != after.judgement.canonical, abs(_grew(both))


def _answer(result: StateResult) -> Page:
    return {"text": cut(result.answer, MOST, _LINES), **measures_of(result)}

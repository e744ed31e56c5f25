"""Each usable answer of a teacher as a row: what it says, and what it took.

Belongs here: rows of ``dataset_replies``. Does not belong here: prompts, which
``dataset_groups`` has by state, and votes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.actions import Action, action_text
from composer_pipeline.chat import action_message
from composer_pipeline.lake import SCHEMA_VERSION, Lake
from composer_pipeline.money import PICO
from composer_pipeline.preferences.pairs import reply_age
from composer_pipeline.publishing.dataset.rows.reading import task_of_messages
from composer_pipeline.publishing.terms import Answer, Terms
from composer_pipeline.trace_states import TraceState

Row = dict[str, Any]
#: Columns that a row of ``replies`` hands on as they are.
_SAME = (
    "model", "family", "provider", "finish_reason", "prompt_tokens", "completion_tokens",
    "cached_tokens", "reasoning_tokens", "latency_ms", "simulated",
)  # fmt: skip
_READ = ("state_id", "status", "action", "request_hash", "created_at", "cost_picodollars",
         "training_terms", "licence", *_SAME)  # fmt: skip


def answers_of_day(lake: Lake, day: str) -> dict[str, dict[str, Row]]:
    """Return state id to the newest usable reply of each teacher, sorted by teacher."""
    found: dict[str, dict[str, Row]] = {}
    rows = lake.rows("replies", days=[day], columns=_READ)
    for row in sorted(rows, key=lambda row: (row["teacher"], reply_age(row))):
        if row["status"] == "ok" and row["action"] is not None:
            found.setdefault(row["state_id"], {})[row["teacher"]] = row
    return found


def reply_rows(
    states: Sequence[TraceState],
    answers: Mapping[str, Mapping[str, Row]],
    terms: Terms,
    refused: list[Row],
) -> Iterator[Row]:
    """Yield the rows of the states of a session and day.

    Args:
        states: the states, whole.
        answers: of the day.
        terms: say which answers may be trained on.
        refused: gets the ledger rows of the others.
    """
    for state in sorted(states, key=lambda s: (s.chain_id, s.n_messages, s.state_id)):
        for teacher, row in answers.get(state.state_id, {}).items():
            answer = Answer.of_row(row)
            if answer.terms not in terms.accepted:
                what = {"state_id": state.state_id}
                table = f"dataset_replies:{teacher}"
                refused.append(terms.drop(what, table, "answer", [answer]))
                continue
            message = [action_message(Action.from_json(row["action"]))]
            yield {
                "task": task_of_messages(state.messages),
                "answer_text": action_text(message),
                "answer": message,
                "teacher": teacher,
                **{name: row[name] for name in _SAME},
                "license": answer.license,
                "terms": answer.terms,
                "cost_usd": float((row["cost_picodollars"] or 0) / PICO),
                "day": state.day,
                "schema_version": SCHEMA_VERSION,
                "state_id": state.state_id,
                "session_id": state.session_id,
            }

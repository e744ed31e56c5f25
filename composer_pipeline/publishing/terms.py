"""Under which terms each answer is published: its model, licence and training terms.

Belongs here: which answers stay, what is said of each, and their rows in the ledger of drops. Does
not belong here: how terms are learned (``replay.catalogue``) and which sessions are left out
(``publishing.selection``).

An answer stays where its training terms are accepted by the preference recipe. A consensus is the
answer of every teacher of the winning cluster, so it stays only where all of them may. The
agent's own actions have no terms of a catalogue: the card counts them by model, and a public
release acknowledges each model by name (``publishing.consent``).
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from composer_pipeline.lake import Lake
from composer_pipeline.preferences.agreement import Reply, Vote
from composer_pipeline.preferences.pairs import drop, reply_age
from composer_pipeline.preferences.rules import PreferenceRules

#: Source and terms of the agent's own action among the answers to a state.
AGENT = "agent"
#: Terms of an answer of which nobody recorded any.
UNKNOWN = "unknown"

Row = dict[str, Any]


class Answer(NamedTuple):
    """Who gave an answer. ``license`` is empty where the lake does not know it."""

    model: str
    license: str
    terms: str

    @staticmethod
    def of(reply: Reply) -> "Answer":
        """Return what is said of a reply."""
        return Answer(reply.model, reply.licence, reply.training_terms or UNKNOWN)

    @staticmethod
    def of_row(row: Row) -> "Answer":
        """Return what is said of a row of ``replies``."""
        return Answer(row["model"], row["licence"] or "", row["training_terms"] or UNKNOWN)


class Terms:
    """The rule on training terms, over the answers of a lake.

    Args:
        lake: where the replies are.
        rules: the preference recipe; its ``terms`` decide.
    """

    def __init__(self, lake: Lake, rules: PreferenceRules) -> None:
        self.accepted = tuple(rules.terms.accepted)
        self._lake = lake
        self._of_day = lru_cache(maxsize=1)(self._read)

    def _read(self, day: str) -> dict[tuple[str, str], Answer]:
        """Return (state, teacher) to the newest usable answer of a day."""
        columns = ["state_id", "status", "model", "licence", "training_terms", "created_at",
                   "request_hash"]  # fmt: skip
        rows = self._lake.rows("replies", days=[day], columns=columns)
        return {
            (row["state_id"], row["teacher"]): Answer.of_row(row)
            for row in sorted(rows, key=reply_age)
            if row["status"] == "ok"
        }

    def of_pairs(self, day: str, rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
        """Return the pairs of a day that stay, and the ledger rows of the others.

        Each that stays gets ``chosen_licenses`` and ``chosen_terms``, parallel to its
        ``chosen_models``; of several answers of one model the loosest terms are told.
        """
        answers = self._of_day(day)
        kept, drops = [], []
        for row in rows:
            nobody = Answer("", "", UNKNOWN)
            chosen = [
                answers.get((row["state_id"], name), nobody) for name in row["chosen_teachers"]
            ]
            if refused := self._refused(chosen):
                drops.append(self.drop(row, "dataset_pairs", "chosen", refused))
                continue
            by_model = {answer.model: answer for answer in sorted(chosen, key=self._looseness)}
            told = [by_model.get(model, nobody) for model in row["chosen_models"]]
            kept.append(
                {
                    **row,
                    "chosen_licenses": [answer.license for answer in told],
                    "chosen_terms": [answer.terms for answer in told],
                }
            )
        return kept, drops

    def of_group(
        self, state_id: str, replies: Sequence[Reply], outcome: Vote
    ) -> tuple[list[Reply], list[Row]]:
        """Return the teachers' answers to a state that stay, and the ledger rows of the others.

        None stays where the consensus itself may not; the answers of controls never do.

        Args:
            state_id: the state.
            replies: its usable replies.
            outcome: their vote.
        """
        row = {"state_id": state_id}
        if refused := self._refused([Answer.of(reply) for reply in outcome.members]):
            return [], [self.drop(row, "dataset_groups", "consensus", refused)]
        kept, drops = [], []
        for reply in replies:
            if reply in outcome.controls:  # bought to measure, not to train on
                continue
            if refused := self._refused([Answer.of(reply)]):
                table = f"dataset_groups:{reply.teacher}"
                drops.append(self.drop(row, table, "candidates", refused))
            else:
                kept.append(reply)
        return kept, drops

    def _refused(self, answers: Iterable[Answer]) -> list[Answer]:
        return [answer for answer in answers if answer.terms not in self.accepted]

    def _looseness(self, answer: Answer) -> int:
        return self.accepted.index(answer.terms)

    def drop(self, row: Row, table: str, field: str, refused: Sequence[Answer]) -> Row:
        """Return the ledger row of an answer, or a row, that must not be trained on."""
        return drop(
            row,
            f"3:terms:{table}",
            field,
            ", ".join(sorted({answer.model for answer in refused})),
            ", ".join(sorted({answer.terms for answer in refused})),
            ", ".join(self.accepted),
        )


def told_of(answers: Sequence[Answer]) -> dict[str, list[str]]:
    """Return the columns that a list of answers has beside it, each parallel to the list."""
    return {
        "models": [answer.model for answer in answers],
        "licenses": [answer.license for answer in answers],
        "terms": [answer.terms for answer in answers],
    }


def agent_answer(model: str | None) -> Answer:
    """Return what is said of the agent's own action."""
    return Answer(model or UNKNOWN, "", AGENT)

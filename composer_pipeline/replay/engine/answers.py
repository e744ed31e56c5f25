"""What teachers answered, as a selector sees it.

Belongs here: actions of replies that were bought now or before. Does not belong here: which
question is next (``replay.selection.selector``), and whether a reply is usable
(``replay.engine.judgement``).
"""

from collections.abc import Callable, Mapping
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.replay.engine.judgement import ReplyChecks, judge, names_of
from composer_pipeline.replay.ledger import Call, Ledger
from composer_pipeline.replay.provider import read_reply


class Answered:
    """Actions by state and teacher; ``None`` for a teacher that gave nothing usable.

    Args:
        ledger: has the replies of before.
        checks: the argument checks of a day.
    """

    def __init__(self, ledger: Ledger, checks: Callable[[str], ReplyChecks]) -> None:
        self._ledger = ledger
        self._checks = checks
        self._checks_of: dict[str, ReplyChecks] = {}
        self._actions: dict[str, dict[str, Action | None]] = {}
        self._stored: dict[tuple[str, str], dict[str, Action | None]] = {}

    def of(self, state_id: str) -> Mapping[str, Action | None]:
        """Return teacher -> action of those that were asked about a state."""
        return self._actions.get(state_id, {})

    def bought(self, call: Call, body: bytes) -> None:
        """Remember a reply that has just come."""
        self._note(call, self._judge(body, call.day, call.meta))

    def known(self, call: Call) -> None:
        """Remember a reply that was there before."""
        partition = (call.teacher, call.day)
        if call.state_id not in self._stored.get(partition, {}):
            self._stored[partition] = {
                row["state_id"]: self._judge(row["body"], call.day, row["meta"])
                for row in self._ledger.rows(*partition)
                if row["outcome"] == "billed"
            }
        self._note(call, self._stored[partition].get(call.state_id))

    def nothing(self, state_id: str, teacher: str) -> None:
        """Remember that a teacher was asked, unless it gave an answer."""
        self._actions.setdefault(state_id, {}).setdefault(teacher, None)

    def _note(self, call: Call, action: Action | None) -> None:
        self._actions.setdefault(call.state_id, {})[call.teacher] = action

    def _judge(self, body: bytes, day: str, meta: Mapping[str, Any]) -> Action | None:
        if day not in self._checks_of:
            self._checks_of[day] = self._checks(day)
        return judge(read_reply(body), self._checks_of[day].of(meta), names_of(meta))[2]

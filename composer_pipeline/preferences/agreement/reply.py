"""One reply as a vote sees it, and what it is: a control, the model's own, under which terms.

Belongs here: the reply and questions about it alone. Does not belong here: who may vote
(``preferences.agreement.eligibility``) and reading raw bytes (``replay.engine.replies``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.preferences.agreement.lineage import (
    lineage_of,
    lineages_of,
)

#: Training terms of replies, the strictest first; see the table ``replies``. Old rows name
#: none, which may mean that nobody looked, and counts as looser than what was looked up.
TERMS = ("enforced", "declared", "unknown", "not enforced")


@dataclass(frozen=True)
class Reply:
    """A usable reply of a teacher."""

    teacher: str
    family: str
    model: str
    action: Action
    tokens: int = 0
    cost_picodollars: int = 0
    simulated: bool = False
    control: bool = False
    training_terms: str | None = None
    licence: str = ""

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Reply":
        """Read a row of the table ``replies`` whose status is ok."""
        return Reply(
            teacher=str(row["teacher"]),
            family=str(row["family"]),
            model=str(row["model"]),
            action=Action.from_json(row["action"]),
            tokens=int(row.get("completion_tokens") or 0),
            cost_picodollars=int(row.get("cost_picodollars") or 0),
            simulated=bool(row.get("simulated")),
            control=bool(row.get("control")),
            training_terms=row.get("training_terms"),
            licence=str(row.get("licence") or ""),
        )


def is_control(reply: Reply, model: str | None) -> bool:
    """Say whether a reply is a control: bought as one, or of the agent's own family.

    Args:
        reply: a usable reply.
        model: the agent's model, where the state names it.
    """
    return reply.control or is_own(reply, model)


def is_own(reply: Reply, model: str | None) -> bool:
    """Say whether a reply comes from the family of the agent that wrote the trace.

    The family that the teachers' file declares decides, then the name of the reply's model:
    a distillation that is called after the agent's family counts as that family.
    """
    lineage = lineage_of(model or "") or "anthropic"
    return lineage in (lineage_of(reply.family), *lineages_of(reply.model))


def loosest_terms(replies: Iterable[Reply]) -> str:
    """Return the loosest training terms of some replies; ``unknown`` where one names none."""
    terms = {reply.training_terms or "unknown" for reply in replies} or {"unknown"}
    ranked = [*(term for term in TERMS if term in terms), *sorted(terms - set(TERMS))]
    return ranked[-1]

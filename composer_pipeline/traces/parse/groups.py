"""Which sessions stay together in one split.

Belongs here: ``sessions.group_id``. Does not belong here: the other columns of a session
(``traces.states.extract``).

``group_id`` keeps related sessions in one split: it is the hash of the first human prompt
(casefolded, white space collapsed) of the session's earliest file. Files of one session,
its subagents, and sessions that resume or fork it begin with the same prompt; so does the
same task given twice. The id depends on no other session and thus never changes when
unrelated data arrive.
"""

from datetime import UTC, datetime
from typing import Any

from composer_pipeline.traces.parse.files import Row
from composer_pipeline.traces.states import Extracted, blake

#: Beyond this many characters two first prompts are not told apart.
_GROUP_PROMPT_CHARS = 2000


def session_rows(files: list[Extracted]) -> list[Row]:
    """Return the rows of ``sessions``, in the order of sessions, subagents and paths."""
    late = datetime.max.replace(tzinfo=UTC)
    prompts: dict[str, tuple[tuple[Any, ...], str]] = {}
    for file in files:
        session_id = file.source.session_id
        first = file.session["first_ts"] or late
        rank = (bool(file.source.agent_id), not file.first_prompt, first, file.source.path)
        if session_id not in prompts or rank < prompts[session_id][0]:
            prompts[session_id] = (rank, file.first_prompt)
    rows = [
        {**f.session, "group_id": group_of(prompts[f.source.session_id][1], f.source.session_id)}
        for f in files
    ]
    return sorted(rows, key=lambda row: (row["session_id"], row["agent_id"], row["path"]))


def group_of(first_prompt: str, session_id: str) -> str:
    """Return the split group of a session; its own id counts where it has no prompt."""
    normal = " ".join(first_prompt.casefold().split())[:_GROUP_PROMPT_CHARS]
    return blake("prompt", normal) if normal else blake("session", session_id)

"""What teachers were asked and answered about some sessions, out of the books for good.

Belongs here: deleting the bytes while every amount stays. Does not belong here: letting a key be
asked again (``replay.ledger.rules.forget``), and which sessions (``care.forget``).
"""

from collections.abc import Sequence

from composer_pipeline.errors import InputError
from composer_pipeline.replay.ledger.stores.store import Session, Store


def erase(store: Store, sessions: Sequence[str]) -> int:
    """Delete calls, replies and kept bytes of sessions; return how many replies.

    Attempts and scopes keep what was spent. A reply that a call of another session uses too
    stays. The database is then written anew, so that its file does not hold the bytes either.

    Raises:
        InputError: a replay has a call about one of them in flight.
        ComposerError: another process reads the ledger; the rows are gone, some bytes are not.
    """
    with store.transaction() as session:
        deleted = _delete(session, store.name, list(sessions))
    store.compact()
    return deleted


def _delete(session: Session, name: str, sessions: list[str]) -> int:
    (mine,) = session.fetch(("SELECT DISTINCT key FROM call WHERE session_id IN :many", [sessions]))
    keys = [key for (key,) in mine]
    open_, shared = session.fetch(
        ("SELECT key FROM attempt WHERE state IN ('reserved', 'sent') AND key IN :many", [keys]),
        ("SELECT key, session_id FROM call WHERE key IN :many", [keys]),
    )
    if open_:
        raise InputError(f"ledger {name}: a replay has calls about them in flight; let it end")
    others = {key for key, session_id in shared if session_id not in set(sessions)}
    gone = [(key,) for key in keys if key not in others]
    (there,) = session.fetch(("SELECT key FROM reply WHERE key IN :many", [[k for (k,) in gone]]))
    session.write(
        [
            (sql, rows)
            for sql, rows in (
                ("DELETE FROM call WHERE session_id = ?", [(name,) for name in sessions]),
                ("DELETE FROM reply WHERE key = ?", gone),
                (
                    "UPDATE event SET detail = 'forgotten'"
                    " WHERE attempt IN (SELECT id FROM attempt WHERE key = ?)",
                    gone,
                ),
                (
                    "UPDATE attempt SET raw = NULL,"
                    " detail = CASE WHEN detail = '' THEN '' ELSE 'forgotten' END WHERE key = ?",
                    gone,
                ),
            )
            if rows
        ]
    )
    return len(there)

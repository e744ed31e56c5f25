"""The refusal of a gate, and what mends it.

Does not belong here: what is looked for (``publishing.gates.scan``).
"""

from composer_pipeline.errors import ComposerError


class PublishRefused(ComposerError):
    """A gate found something in the data that must not be published. Exit code 1."""


def private(where: str, kinds: list[str], session: str = "") -> PublishRefused:
    """Return the refusal of something private.

    Args:
        where: the file, or configuration, row and column.
        kinds: what was found there; never its text.
        session: the session that it comes from, where there is one.
    """
    remedy = ""
    if session:
        remedy = (
            f"; composer-pipeline withdraw --session {session} takes the session out, or add a"
            " rule to the file of COMPOSER_REDACTION and run composer-pipeline reparse, then"
            " pairs, normalize and dataset"
        )
    return PublishRefused(f"{where} holds {', '.join(kinds)}{remedy}")

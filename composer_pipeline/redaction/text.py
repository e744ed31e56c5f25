r"""Redaction: secrets, e-mail addresses, home folders, user names, hosts, account ids.

Belongs here: what replaces private text, in which order, the residual scan. Does not
belong here: what private things look like (``redaction.tables.patterns``), a user's own
rules (``redaction.user_rules``), when redaction runs (``traces.states.messages`` before
anything is stored; replay and publishing scan again and refuse on a hit).

Rules work on decoded strings. The same value always becomes the same placeholder, so
prefixes stay consistent and actions stay comparable: ``[SECRET_AWS_KEY_3f2a]``,
``[EMAIL_90bc]``, ``[HOST_77d1]`` and ``[ACCOUNT_02ee]`` end in two bytes of an unkeyed
BLAKE2b hash of the value (too few to find the value by, enough to tell two of them
apart); a home folder becomes ``/home/user``, ``/Users/user`` or ``C:\Users\user``.
Redacting twice changes nothing, and :func:`find_secrets` finds nothing in redacted text.

One pass of Hyperscan says which rules can find anything in a text (without Hyperscan, a
search for the literals of each rule, which is slower and finds the same). Secrets are
also found in base64, and where a line break splits them.

Code is left alone: ``token = tokenizer.eos_token``, ``password = os.environ["PW"]``
and ``git@github.com`` are not secrets. Not covered: names of people in prose, street
and IP addresses, telephone numbers, secrets without a known shape or a telling name.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from composer_pipeline.redaction.edits import Ledger
from composer_pipeline.redaction.engine import Rules
from composer_pipeline.redaction.finders.people import user_names
from composer_pipeline.redaction.prefilter import dump_value, load_value
from composer_pipeline.redaction.user_rules import RedactionRules
from composer_pipeline.redaction.values import redact_in
from composer_pipeline.versions import REDACTION_VERSION

__all__ = [
    "REDACTION_VERSION",
    "find_secrets",
    "json_redactor",
    "redact_json",
    "redact_text",
    "redact_value",
    "user_names",
]


def redact_text(
    text: str, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> tuple[str, Counter[str]]:
    """Replace what is private in ``text``.

    Args:
        text: a decoded string (not JSON source, where escapes hide word boundaries).
        names: user names known from elsewhere (:func:`user_names`), replaced where
            they stand as a path segment, after ``~`` or as an owner in ``ls -l``.
        rules: a user's rules; those of ``COMPOSER_REDACTION`` when ``None``.

    Returns:
        The text and the number of replacements for each kind; no original is kept.

    Raises:
        InputError: the redaction file is missing or wrong.
    """
    ledger = Ledger(names=names)
    if len(text) < 6:
        return text, ledger.counts
    compiled = compiled_rules(rules)
    return redact_in(
        text, compiled, compiled.active(dump_value(text), names), ledger
    ), ledger.counts


def redact_value(
    value: Any, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> tuple[Any, Counter[str]]:
    """Redact every string inside a JSON value, keys of objects included.

    A string under a telling key (``{"password": ...}``) is judged together with the key.
    Numbers, booleans and the shape stay as they are; key order is kept.

    Raises:
        InputError: the redaction file is missing or wrong.
    """
    compiled = compiled_rules(rules)
    active = compiled.active(dump_value(value), names)
    if not active:
        return value, Counter()
    ledger = Ledger(names=names)
    return redact_in(value, compiled, active, ledger), ledger.counts


def redact_json(
    source: bytes, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> tuple[bytes, Counter[str]]:
    """Redact the strings inside a JSON document, as :func:`redact_value`.

    A document in which no rule can find anything is returned without being decoded.

    Args:
        source: the JSON, in UTF-8.
        names: as in :func:`redact_text`.
        rules: as in :func:`redact_text`.

    Raises:
        InputError: the redaction file is missing or wrong.
        ValueError: ``source`` is not JSON.
    """
    return json_redactor(rules)(source, names)


def json_redactor(
    rules: RedactionRules | None = None,
) -> Callable[[bytes, Iterable[str]], tuple[bytes, Counter[str]]]:
    """Return :func:`redact_json` with the rules that are in force now, for many documents.

    Raises:
        InputError: the redaction file is missing or wrong.
    """
    compiled = compiled_rules(rules)

    def redact(source: bytes, names: Iterable[str] = ()) -> tuple[bytes, Counter[str]]:
        active = compiled.active(source, names)
        if not active:
            return source, Counter()
        ledger = Ledger(names=names)
        value = redact_in(load_value(source), compiled, active, ledger)
        return (dump_value(value) if ledger.counts else source), ledger.counts

    return redact


def find_secrets(
    value: Any, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> list[str]:
    """Return the kinds of what redaction would replace in a text or a value, sorted.

    This one function decides what may be stored in a table, sent to a teacher or published:
    a message is scanned whole, each string together with its keys. It finds nothing in what
    was redacted; anything else is a reason to refuse.

    Args:
        value: a text, or a JSON value such as a message.
        names: as in :func:`redact_text`.
        rules: as in :func:`redact_text`.

    Raises:
        InputError: the redaction file is missing or wrong.
    """
    redact = redact_text if isinstance(value, str) else redact_value
    return sorted(redact(value, names, rules)[1].elements())


def compiled_rules(rules: RedactionRules | None = None) -> Rules:
    """Return a user's rules with the built-in ones, ready to run; made once a process.

    Raises:
        InputError: the redaction file is missing or wrong.
    """
    if rules is not None:
        return _of_rules(rules)
    return _of_file(os.environ.get("COMPOSER_REDACTION", ""))


@lru_cache(maxsize=8)
def _of_rules(rules: RedactionRules) -> Rules:
    return Rules(rules)


@lru_cache(maxsize=8)
def _of_file(path: str) -> Rules:
    return Rules(RedactionRules.load(path) if path else RedactionRules())

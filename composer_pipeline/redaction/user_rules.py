"""Rules that a user adds to redaction: an allow-list, names, hosts, patterns.

Belongs here: the file that ``COMPOSER_REDACTION`` names, its checks, its version. Does
not belong here: the built-in rules (``redaction.tables.patterns``) and applying them
(``redaction.text``).

The file is YAML; every field may be left out::

    allow: [AKIAIOSFODNN7ABCDEFG]          # values that stay
    allow_typed: [AWS_KEY]                 # kinds of typed keys that `allow` may let through
    allow_patterns: ['test-[a-z]+-token']  # values that stay, by pattern (whole value)
    names: [alice]                         # user names
    hosts: [build7.acme.net]               # host names, with everything below them
    patterns:                              # further secrets
      - {kind: ACME_TOKEN, pattern: 'acme_[a-z0-9]{32}', literal: acme_}
    second_net: betterleaks                # a second scanner (extra `redaction-extra`)

Redaction fails closed: a file that is missing or wrong stops the stage before it writes.
"""

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.redaction import second_net
from composer_pipeline.redaction.regex_guard import SECONDS, first_slow, sample
from composer_pipeline.redaction.tables.patterns import SHAPES, compile_kind
from composer_pipeline.versions import REDACTION_VERSION


def _regex(text: str) -> str:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a pattern: {error}") from error
    if pattern.match(""):
        raise ValueError(f"{text!r} matches nothing at all, and so everywhere")
    return text


Regex = Annotated[str, AfterValidator(_regex)]
Text = Annotated[str, Field(min_length=3)]


class ExtraPattern(BaseModel):
    """A further kind of secret. The group ``value``, else the whole match, is replaced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,39}$")]
    pattern: Regex
    literal: str = ""


class RedactionRules(BaseModel):
    """The content of a redaction file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[str, ...] = ()
    allow_typed: tuple[str, ...] = ()
    allow_patterns: tuple[Regex, ...] = ()
    names: tuple[Text, ...] = ()
    hosts: tuple[Text, ...] = ()
    patterns: tuple[ExtraPattern, ...] = ()
    second_net: Literal["", "betterleaks"] = ""

    @property
    def version(self) -> int:
        """Return the version of the built-in rules together with these.

        ``version % 1000`` is :data:`REDACTION_VERSION`; the rest tells files apart.
        """
        if self == RedactionRules():
            return REDACTION_VERSION
        digest = hashlib.blake2b(self.model_dump_json().encode(), digest_size=4).digest()
        return REDACTION_VERSION + 1000 * (1 + int.from_bytes(digest) % 2_000_000)

    @staticmethod
    def load(path: Path | str) -> "RedactionRules":
        """Read a file.

        Raises:
            InputError: the file is missing, is not YAML, or a field is wrong.
        """
        rules = read_model(path, "redaction file", RedactionRules, empty=True)
        patterns = [extra.pattern for extra in rules.patterns]
        if slow := first_slow([*patterns, *rules.allow_patterns]):
            field = "patterns" if slow in patterns else "allow_patterns"
            raise InputError(
                f"redaction file {path}, field {field}: {slow!r} takes more than {SECONDS} s on"
                " a text made to slow it down; rewrite its nested repetition"
            )
        _refuse_typed(path, rules)
        if rules.second_net:
            second_net.load("redaction field second_net")
        return rules


def _refuse_typed(file: Path | str, rules: RedactionRules) -> None:
    """Refuse an allow-list that lets a key of a known type through, unless it says so."""
    known = {kind for kind, _, _ in SHAPES}
    if unknown := sorted(set(rules.allow_typed) - known):
        raise InputError(f"redaction file {file}, field allow_typed: there is no kind {unknown[0]}")
    for kind, _, body in SHAPES:
        if kind in rules.allow_typed:
            continue
        shape = compile_kind(body)
        let = [("allow", value) for value in rules.allow if shape.search(value)]
        for pattern in rules.allow_patterns:
            if shape.search(sample(pattern)) or re.fullmatch(pattern, sample(body)):
                let.append(("allow_patterns", pattern))
        for field, value in let:
            raise InputError(
                f"redaction file {file}, field {field}: {_short(value)!r} would let a {kind}"
                f" through; name {kind} in allow_typed to force it"
            )


def _short(value: str) -> str:
    return value if len(value) < 12 else f"{value[:6]}…"


def active_rules() -> RedactionRules:
    """Return the rules of the file that ``COMPOSER_REDACTION`` names; read once a process.

    Raises:
        InputError: as :meth:`RedactionRules.load`.
    """
    return _rules(os.environ.get("COMPOSER_REDACTION", ""))


@lru_cache(maxsize=8)
def _rules(path: str) -> RedactionRules:
    return RedactionRules.load(path) if path else RedactionRules()


def redaction_version() -> int:
    """Return the version that messages redacted now carry.

    Raises:
        InputError: as :meth:`RedactionRules.load`.
    """
    return active_rules().version

r"""The rules of redaction as functions of a text.

Belongs here: one function for each way of finding private text, and which of them a
text needs. Does not belong here: the tables (``redaction.patterns``) and the walk
over values (``redaction.text``).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from composer_pipeline.redaction import patterns as kinds
from composer_pipeline.redaction.assignments import (
    ASSIGNMENT_GATE,
    ASSIGNMENT_LITERALS,
    find_assignments,
    is_literal_secret,
    is_secret_name,
)
from composer_pipeline.redaction.encoded import ENCODED_LITERALS, decoded_runs
from composer_pipeline.redaction.line_breaks import BREAK, BROKEN, EXAMPLE, MANY_LINES, joined_end
from composer_pipeline.redaction.people import (
    DOMAIN,
    EMAIL_KEPT,
    HOMES,
    SERVICE_USERS,
    is_personal,
    is_route,
    local_start,
    names_a_user,
)
from composer_pipeline.redaction.prefilter import Gate, searcher
from composer_pipeline.redaction.user_rules import RedactionRules, second_net

Rule = Callable[[str, "Ledger"], str]


class Ledger:
    """Counts of one redaction, by kind."""

    __slots__ = ("counts", "placeholders")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.placeholders = 0

    def placeholder(self, kind: str, value: str, label: str | None = None) -> str:
        """Count a replacement and return what stands for ``value`` now."""
        self.counts[kind] += 1
        self.placeholders += 1
        digest = hashlib.blake2b(value.encode("utf-8", "replace"), digest_size=2).hexdigest()
        return f"[{label or f'SECRET_{kind}'}_{digest}]"


class Rules:
    """The built-in rules and those of a user, ready to run.

    Args:
        rules: a user's rules.
    """

    def __init__(self, rules: RedactionRules) -> None:
        self._allow = frozenset(rules.allow)
        self._allow_patterns = [re.compile(text) for text in rules.allow_patterns]
        self._names = tuple(rules.names)
        self._rules: list[Rule] = []
        self._gates: list[Gate] = []
        self._always: list[int] = []
        for extra in rules.patterns:
            pattern = partial(self._pattern, extra.kind, re.compile(extra.pattern))
            self._add((extra.literal,) if extra.literal else (), pattern)
        self._shapes = [
            (kind, hints, kinds.compile_kind(body)) for kind, hints, body in kinds.SHAPES
        ]
        for kind, hints, shape in self._shapes:
            self._add(hints, partial(self._shape, kind, hints, shape))
        self._add(ENCODED_LITERALS, self._encoded)
        for kind, hints, body in kinds.CONTEXTS:
            context = partial(self._pattern, kind, kinds.compile_kind(body))
            self._add(hints, context, _URL_GATE if kind == "URL_PASSWORD" else "")
        self.accounts = self._account
        self._add(kinds.ACCOUNT_LITERALS, self.accounts)
        self.assigned = self._assigned
        self._add(ASSIGNMENT_LITERALS, self.assigned, ASSIGNMENT_GATE)
        self._add(("@",), self._email, _EMAIL_GATE)
        self._add(kinds.URL_HOST_LITERALS, partial(self._host, kinds.URL_HOST))
        self._add(kinds.SSH_LITERALS, partial(self._host, kinds.SSH_TARGET))
        self._add(kinds.MACHINE_LITERALS, self._machine)
        for name in rules.hosts:
            named = re.compile(rf"(?<![A-Za-z0-9_-])(?i:{re.escape(name)})(?![A-Za-z0-9_-])")
            self._add((name,), partial(self._named_host, named))
        for literal, home in HOMES:
            gate = _DRIVE_GATE if literal == "users" else ""
            self._add((literal,), partial(self._home, literal, home), gate)
        if rules.second_net:
            self._add((), self._second_net)
        self._search = searcher(self._gates)

    def _add(self, hints: tuple[str, ...], rule: Rule, gate: str = "") -> None:
        """Add a rule that finds nothing in a text without one of ``hints``."""
        number = len(self._rules)
        self._rules.append(rule)
        if hints:
            self._gates.append(Gate(number, hints, gate))
        else:
            self._always.append(number)

    def active(self, text: bytes, names: Iterable[str]) -> list[Rule]:
        """Return the rules that may find something, in order of precedence.

        Args:
            text: the text in UTF-8; JSON source will do.
            names: user names of this text.
        """
        found = self._search(text)
        found.update(self._always)
        chosen = [self._rules[number] for number in sorted(found)]
        for name in {*names, *self._names}:
            if len(name) > 2 and is_personal(name) and name.encode() in text:
                chosen.append(partial(self._user, name))
        return chosen

    def keyed(self, key: str, value: str, ledger: Ledger) -> str:
        """Redact a value that its key gives away."""
        if kinds.ACCOUNT_KEY.search(key) and kinds.ACCOUNT_VALUE.fullmatch(value):
            return self._replace_account(value, ledger)
        if not 6 <= len(value) <= 500 or not is_secret_name(key):
            return value
        if any(c.isspace() for c in value) or not is_literal_secret(key, value):
            return value
        if "[SECRET_" in value or "${" in value or self._allowed(value):
            return value
        return ledger.placeholder("ASSIGNED", value)

    def _allowed(self, value: str) -> bool:
        return value in self._allow or any(p.fullmatch(value) for p in self._allow_patterns)

    # -- secrets -----------------------------------------------------------------

    def _shape(
        self,
        kind: str,
        hints: tuple[str, ...],
        pattern: re.Pattern[str],
        text: str,
        ledger: Ledger,
    ) -> str:
        if not any(hint in text for hint in hints):
            return text
        if kind not in MANY_LINES and BROKEN.search(text):
            text = self._wrapped(kind, hints, pattern, text, ledger)
        return pattern.sub(partial(self._whole, kind, ledger), text)

    def _whole(self, kind: str, ledger: Ledger, match: re.Match[str]) -> str:
        value = match[0]
        if EXAMPLE.search(value) or self._allowed(value):
            return value
        return ledger.placeholder(kind, value)

    def _wrapped(
        self,
        kind: str,
        hints: tuple[str, ...],
        pattern: re.Pattern[str],
        text: str,
        ledger: Ledger,
    ) -> str:
        """Replace secrets that line breaks split."""
        parts, done = [], 0
        for at in sorted({m.start() for hint in hints for m in re.finditer(re.escape(hint), text)}):
            start = at
            while start > done and at - start < 12 and text[start - 1].isalnum():
                start -= 1
            end = joined_end(pattern, text, start) if start >= done else 0
            if not end or self._allowed(text[start:end]):
                continue
            value = BREAK.sub("", text[start:end])
            parts += [text[done:start], ledger.placeholder(kind, value)]
            done = end
        return "".join([*parts, text[done:]]) if parts else text

    def _encoded(self, text: str, ledger: Ledger) -> str:
        """Replace base64 that holds a secret known by its shape."""
        parts, done = [], 0
        for start, end, plain in decoded_runs(text):
            kind = next((k for k, p in self._plain_kinds() if p.search(plain)), None)
            if kind is None or start < done or self._allowed(text[start:end]):
                continue
            parts += [text[done:start], ledger.placeholder(kind, text[start:end])]
            done = end
        return "".join([*parts, text[done:]]) if parts else text

    def _plain_kinds(self) -> Iterable[tuple[str, re.Pattern[str]]]:
        yield from ((kind, pattern) for kind, _, pattern in self._shapes)
        yield "URL_PASSWORD", _URL_PASSWORD

    def _pattern(self, kind: str, pattern: re.Pattern[str], text: str, ledger: Ledger) -> str:
        group: str | int = "value" if "value" in pattern.groupindex else 0

        def replace(match: re.Match[str]) -> str:
            value = match[group]
            if "[SECRET_" in value or "[EMAIL_" in value:
                return match[0]  # replaced already
            if EXAMPLE.search(value) or self._allowed(value):
                return match[0]
            if kind in _PASSWORDS and value.lower() in _DUMMY_PASSWORDS:
                return match[0]
            start, end = (at - match.start() for at in match.span(group))
            return match[0][:start] + ledger.placeholder(kind, value) + match[0][end:]

        return pattern.sub(replace, text)

    def _assigned(self, text: str, ledger: Ledger) -> str:
        parts, done = [], 0
        for start, end in find_assignments(text):
            value = text[start:end]
            if start >= done and not self._allowed(value):
                parts += [text[done:start], ledger.placeholder("ASSIGNED", value)]
                done = end
        return "".join([*parts, text[done:]]) if parts else text

    def _second_net(self, text: str, ledger: Ledger) -> str:
        if len(text) < 16:
            return text
        # The scanner is written in Go and bound through C, where a NUL ends a string.
        found = {f.secret: f.rule_id for f in second_net().scan_string(text.replace("\0", " "))}
        for secret in sorted(found, key=len, reverse=True):
            if len(secret) < 6 or "[SECRET_" in secret or self._allowed(secret):
                continue
            if re.search(rf"\[[A-Z_]*{re.escape(secret)}[A-Za-z0-9_]*\]", text):
                continue  # a part of a placeholder
            kind = re.sub(r"[^A-Z0-9]+", "_", found[secret].upper())
            while secret in text:
                text = text.replace(secret, ledger.placeholder(kind, secret), 1)
        return text

    # -- accounts, addresses, hosts ------------------------------------------------

    def _account(self, text: str, ledger: Ledger) -> str:
        def replace(match: re.Match[str]) -> str:
            start, end = (at - match.start() for at in match.span("value"))
            new = self._replace_account(match["value"], ledger)
            return match[0][:start] + new + match[0][end:]

        for pattern in _ACCOUNTS:
            text = pattern.sub(replace, text)
        return text

    def _replace_account(self, value: str, ledger: Ledger) -> str:
        if kinds.EXAMPLE_ACCOUNT.fullmatch(value) or self._allowed(value):
            return value
        return ledger.placeholder("ACCOUNT", value.lower(), "ACCOUNT")

    def _email(self, text: str, ledger: Ledger) -> str:
        parts, done = [], 0
        at = text.find("@")
        while at >= 0:
            domain = DOMAIN.match(text, at + 1)
            start = local_start(text, at) if domain else at
            if domain and start < at and start >= done:
                address = text[start : domain.end()]
                if not EMAIL_KEPT.search(address) and not self._allowed(address):
                    parts += [
                        text[done:start],
                        ledger.placeholder("EMAIL", address.lower(), "EMAIL"),
                    ]
                    done = domain.end()
            at = text.find("@", at + 1)
        return "".join([*parts, text[done:]]) if parts else text

    def _host(self, pattern: re.Pattern[str], text: str, ledger: Ledger) -> str:
        def replace(match: re.Match[str]) -> str:
            whole, begin = match[0], match.start()
            host = match["host"]
            if not kinds.PUBLIC_HOST.fullmatch(host) and not self._allowed(host):
                start, end = (at - begin for at in match.span("host"))
                new = ledger.placeholder("HOST", host.lower(), "HOST")
                whole = whole[:start] + new + whole[end:]
            user = match.groupdict().get("user")
            if user and is_personal(user) and user not in SERVICE_USERS | self._allow:
                start, end = (at - begin for at in match.span("user"))
                ledger.counts["USER"] += 1
                whole = whole[:start] + "user" + whole[end:]
            return whole

        return pattern.sub(replace, text)

    def _machine(self, text: str, ledger: Ledger) -> str:
        return kinds.MACHINE.sub(lambda m: self._one_host(m[0], ledger), text)

    def _named_host(self, pattern: re.Pattern[str], text: str, ledger: Ledger) -> str:
        return pattern.sub(lambda m: self._one_host(m[0], ledger), text)

    def _one_host(self, host: str, ledger: Ledger) -> str:
        return host if self._allowed(host) else ledger.placeholder("HOST", host.lower(), "HOST")

    # -- persons -------------------------------------------------------------------

    def _home(self, literal: str, pattern: re.Pattern[str], text: str, ledger: Ledger) -> str:
        names = self._personal(pattern, text)
        certain = set()
        for name in names if literal.startswith("/") else ():
            # Most of them by a plain replacement, which is far faster than a pattern.
            prefix = literal if literal == "/home/" else "/Users/"
            if count := text.count(f"{prefix}{name}/"):
                text = text.replace(f"{prefix}{name}/", f"{prefix}user/")
                ledger.counts["HOME"] += count
                certain.add(name)
        if not names or not self._personal(pattern, text):
            return text

        def replace(match: re.Match[str]) -> str:
            name = match["name"]
            if name not in names or (name not in certain and is_route(match)):
                return match[0]
            ledger.counts["HOME"] += 1
            return match[0][: -len(name)] + "user"

        return pattern.sub(replace, text)

    def _personal(self, pattern: re.Pattern[str], text: str) -> set[str]:
        found = set(pattern.findall(text))
        return {name for name in found if is_personal(name) and not self._allowed(name)}

    def _user(self, name: str, text: str, ledger: Ledger) -> str:
        if name not in text or self._allowed(name):
            return text

        def replace(match: re.Match[str]) -> str:
            if not names_a_user(match):
                return match[0]
            ledger.counts["USER"] += 1
            return "user"

        return re.sub(re.escape(name), replace, text)


# In the syntax that `re` and Hyperscan share; they hold on JSON source too.
_URL_GATE = r"://[^\s/@\"]*:[^\s/@\"]+@"
_EMAIL_GATE = r"[A-Za-z0-9._%+-]@[A-Za-z0-9-]+\.[A-Za-z]"
_DRIVE_GATE = r"[A-Za-z]:[\\/]+users[\\/]"
_ACCOUNTS = [kinds.compile_kind(body) for body in kinds.ACCOUNTS]


_URL_PASSWORD = kinds.compile_kind(
    next(body for kind, _, body in kinds.CONTEXTS if kind == "URL_PASSWORD")
)
_PASSWORDS = frozenset(("URL_PASSWORD", "CONNECTION_PASSWORD", "NETRC_PASSWORD"))
#: What manuals and development set-ups write where a password goes.
_DUMMY_PASSWORDS = frozenset(
    [
        "pass",
        "password",
        "passwd",
        "pwd",
        "secret",
        "token",
        "user",
        "pw",
        "postgres",
        "guest",
        "tiger",
        "admin",
        "root",
        "test",
        "changeme",
        "mysql",
        "xxx",
        "dev",
    ]
)

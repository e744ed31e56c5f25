"""The rules of redaction as functions of a text, and which of them a text needs."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from composer_pipeline.redaction import patterns
from composer_pipeline.redaction.checksums import CHECKSUM_FINDERS
from composer_pipeline.redaction.commands import COMMAND_FINDERS, PROGRAMS, ProgramRule
from composer_pipeline.redaction.contexts import CONTEXTS, POSITION_FINDERS
from composer_pipeline.redaction.decodings import (
    BASE64_GATE,
    BREAK,
    BROKEN,
    DECODINGS,
    MANY_LINES,
    DecodedText,
    Decoding,
    Escape,
    decoded_runs,
    joined_end,
    windows,
)
from composer_pipeline.redaction.finders import (
    ASSIGNMENT_GATE,
    ASSIGNMENT_LITERALS,
    STRUCTURE_FINDERS,
    Finder,
    cookie_values,
    find_assignments,
    is_secret_name,
)
from composer_pipeline.redaction.mentions import MENTION_FINDERS
from composer_pipeline.redaction.patterns import Gate, dump_value, searcher
from composer_pipeline.redaction.people import (
    DOMAIN,
    EMAIL_KEPT,
    HOME_GATES,
    HOMES,
    NAME_LETTERS,
    PEOPLE_FINDERS,
    SERVICE_USERS,
    is_personal,
    is_route,
    local_start,
    names_a_user,
)
from composer_pipeline.redaction.prose import PROSE_FINDERS
from composer_pipeline.redaction.secrets import (
    EXAMPLE,
    MAX_DEPTH,
    PERSONAL,
    Edit,
    Finding,
    Known,
    Literal,
    NamedRule,
    Replacer,
    Rule,
    Trace,
    holds_key,
    is_assigned_secret,
    is_given_secret,
)
from composer_pipeline.redaction.tokens import TOKEN_GATE, find_tokens
from composer_pipeline.redaction.user_rules import RedactionRules, scan_externally
from composer_pipeline.redaction.vault import needle, whole
from composer_pipeline.redaction.vendors import (
    VendorRule,
    find_near,
    near_gates,
    near_kind,
    read_rules,
)


def encoded(rules: "Rules", text: str, replacer: Replacer) -> str:
    """Replace base64 that holds a secret."""
    if replacer.depth >= MAX_DEPTH:
        return text
    found = []
    for start, end, plain in decoded_runs(text):
        inner = replacer.inner()
        rules.settle(plain, rules.active(dump_value(plain), replacer.names), inner)
        if inner.counts and not rules.allowed(text[start:end]):
            kind = next((k for k in inner.counts if k not in _NOT_ALONE), "ENCODED")
            found.append(Finding(start, end, kind))
    return replacer.put(text, found)


def joined(rules: "Rules", decoding: Decoding, text: str, replacer: Replacer) -> str:
    """Replace what is found only if lines are joined, across a break."""
    breaks = list(decoding.escapes(text)) if replacer.depth < MAX_DEPTH else []
    if not breaks:
        return text
    parts = [(at, text[at:end], inside) for at, end, inside in windows(text, breaks)]
    # One search over all parts, each in its quotes, shows for most texts that nothing is there.
    every = dump_value([_without(part, inside) for _, part, inside in parts])
    active = _others(rules, every, replacer)
    if all(name.startswith(_NAME_RULES) for name, _ in active):
        # These find nothing over a break but where letters of names stand on both sides.
        letters = rules.name_letters
        parts = [
            (at, part, inside)
            for at, part, inside in parts
            if active and any(part[a - 1] in letters and part[b] in letters for a, b, _ in inside)
        ]
    edits: list[Edit] = []
    for start, part, inside in parts:
        whole = DecodedText(part, inside)
        active = _others(rules, dump_value(whole.text), replacer)
        for edit in _inner(rules, whole, active, replacer, over=True):
            if not edits or start + edit.start >= edits[-1].end:
                edits.append(Edit(start + edit.start, start + edit.end, edit.new, edit.rule))
                kinds = _PLACEHOLDER.findall(edit.new) or ["USER"]
                replacer.counts.update(kinds)
                replacer.placeholders += len(kinds)
    return replacer.replace(text, edits)


def _without(text: str, breaks: list[Escape]) -> str:
    done, parts = 0, []
    for start, end, _ in breaks:
        parts.append(text[done:start])
        done = end
    return "".join([*parts, text[done:]])


def decoded(rules: "Rules", decoding: Decoding, text: str, replacer: Replacer) -> str:
    """Replace what is found in a decoding of the whole text."""
    escapes = list(decoding.escapes(text)) if replacer.depth < MAX_DEPTH else []
    if not escapes:
        return text
    merged: list[Edit] = []
    whole = DecodedText(text, escapes)
    active = _others(rules, dump_value(whole.text), replacer)
    for edit in _inner(rules, whole, active, replacer, over=False):
        if merged and edit.start < merged[-1].end:  # two in one escape
            last = merged.pop()
            edit = Edit(last.start, max(edit.end, last.end), last.new + edit.new, edit.rule)
        merged.append(edit)
    return replacer.replace(text, merged)


def _inner(
    rules: "Rules", part: DecodedText, active: list[NamedRule], replacer: Replacer, *, over: bool
) -> Iterator[Edit]:
    """Yield what is replaced in a decoded text, at its place in the source.

    With ``over`` only what an escape is a part of; otherwise it is counted here.
    """
    if not active:
        return
    trace = Trace(len(part.text))
    inner = replacer.inner(trace)
    rules.settle(part.text, active, inner)
    if not over:
        replacer.counts.update(inner.counts)
        replacer.placeholders += inner.placeholders
    for edit in trace.edits():
        start, end = part.source(edit.start, edit.end)
        if not over or end - start != edit.end - edit.start:
            yield Edit(start, end, edit.new, f"{replacer.rule}/{edit.rule}")


def _others(rules: "Rules", source: bytes, replacer: Replacer) -> list[NamedRule]:
    """Return the active rules except the decoding that is running."""
    return [row for row in rules.active(source, replacer.names) if row[0] != replacer.rule]


#: Rules that find nothing but names.
_NAME_RULES = ("user", "home/")
_PLACEHOLDER = re.compile(r"\[(?:SECRET_)?([A-Z0-9_]+)_[0-9a-f]{4}\]")
#: What does not make base64 worth replacing as a whole.
_NOT_ALONE = frozenset(("HOME", "USER", *(PERSONAL - {"EMAIL"})))


#: Rules that also judge values by their keys.
KEYED = frozenset(("assigned", "account", "keyed", "near"))
_MAX_PASSES = 8


class Rules:
    """The built-in rules and those of a user, ready to run."""

    def __init__(self, rules: RedactionRules) -> None:
        self._allow = frozenset(rules.allow)
        self._allow_patterns = [re.compile(text) for text in rules.allow_patterns]
        self._names = tuple(rules.names)
        self.name_letters = NAME_LETTERS.union(*self._names)
        self._rules: list[NamedRule] = []
        self._gates: list[Gate] = []
        self._always: list[int] = []
        self._known: dict[frozenset[Known], list[tuple[bytes, NamedRule]]] = {}
        for extra in rules.patterns:
            pattern = partial(self._pattern, extra.kind, re.compile(extra.pattern), None)
            self._add(f"file/{extra.kind}", (extra.literal,) if extra.literal else (), pattern)
        self._add_decodings(first=True)
        for row in read_rules()["typed"]:
            self._add(f"shape/{row.kind}", row.literals, partial(self._shape, row), row.gate)
        self._add("decoding/base64", ("",), partial(encoded, self), BASE64_GATE)
        for program in PROGRAMS:
            command = ProgramRule(program)
            rule = partial(self._finder, command)
            self._add(f"command/{program.name}", command.literals, rule, command.gate)
        finders = (*STRUCTURE_FINDERS, *CHECKSUM_FINDERS, *COMMAND_FINDERS, *POSITION_FINDERS)
        for place in CONTEXTS:
            compiled = patterns.compile_kind(place.pattern)
            context = partial(self._pattern, place.kind, compiled, place.judge)
            self._add(f"context/{place.name}", place.literals, context, place.gate)
        self._add_finders(finders)
        self._add("account", patterns.ACCOUNT_LITERALS, self._account)
        self._add("keyed", ('"',), lambda text, _: text, _KEYED_GATE)
        self._add("assigned", ASSIGNMENT_LITERALS, self._assigned, ASSIGNMENT_GATE)
        self._gates += [Gate(len(self._rules), *gate) for gate in near_gates()]
        self._rules.append(("near", partial(self._finder, find_near)))
        tokens = ("token", ("",), find_tokens, TOKEN_GATE)
        self._add_finders((*PROSE_FINDERS, tokens, *PEOPLE_FINDERS))
        self._add("email", ("@",), self._email, _EMAIL_GATE)
        self._add("host/url", patterns.URL_HOST_LITERALS, partial(self._host, patterns.URL_HOST))
        ssh = partial(self._host, patterns.SSH_TARGET)
        self._add("host/ssh", patterns.SSH_LITERALS, ssh, patterns.SSH_GATE)
        self._add_finders(MENTION_FINDERS)
        for name in rules.hosts:
            named = re.compile(rf"(?<![A-Za-z0-9_-])(?i:{re.escape(name)})(?![A-Za-z0-9_-])")
            self._add("file/host", (name,), partial(self._named_host, named))
        for literal, home in HOMES:
            gate = HOME_GATES.get(literal, "")
            self._add(f"home/{literal}", (literal,), partial(self._home, literal, home), gate)
        self._add_decodings(first=False)
        if rules.external_scanner:
            self._add("external_scanner", (), partial(self._finder, scan_externally))
        # A database of its own: that of the built-in rules is compiled once a machine.
        own = [g for g in self._gates if self._rules[g.rule][0].startswith("file/")]
        search = searcher([g for g in self._gates if g not in own])
        more = searcher(own) if own else None
        self._search = (lambda text: search(text) | more(text)) if more else search

    def _add(self, name: str, hints: tuple[str, ...], rule: Rule, gate: str = "") -> None:
        """Add a rule that finds nothing in a text without one of ``hints``."""
        number = len(self._rules)
        self._rules.append((name, rule))
        if hints:
            self._gates.append(Gate(number, hints, gate))
        else:
            self._always.append(number)

    def _add_finders(self, rows: Iterable[tuple[str, tuple[str, ...], Finder, str]]) -> None:
        for name, literals, find, gate in rows:
            self._add(name, literals, partial(self._finder, find), gate)

    def _add_decodings(self, *, first: bool) -> None:
        for row in DECODINGS:
            if row.first == first:
                run = partial(joined if row.joins else decoded, self, row)
                self._add(f"decoding/{row.name}", row.literals, run, row.gate)

    @property
    def rows(self) -> list[NamedRule]:
        """Return all rules by their ids, in order of precedence."""
        return list(self._rules)

    def active(self, source: bytes, names: Iterable[Known]) -> list[NamedRule]:
        """Return the rules that may match the JSON of a text or value, in order of precedence."""
        numbers = self._search(source)
        numbers.update(self._always)
        chosen = [self._rules[number] for number in sorted(numbers)] if numbers else []
        known = self._known.get(key := frozenset(names))
        if known is None:
            if len(self._known) >= 8:  # sessions come one after the other
                self._known.clear()
            known = self._known[key] = self._known_rules(key)
        if known:
            chosen += [row for value, row in known if value in source]
        return chosen

    def _known_rules(self, known: frozenset[Known]) -> list[tuple[bytes, NamedRule]]:
        """Return the rules of a session's names and values, each with what must occur."""
        names = {*self._names, *(name for name in known if isinstance(name, str))}
        rows: list[tuple[bytes, NamedRule]] = [
            (needle(name), ("user", partial(self._user, re.compile(re.escape(name)))))
            for name in sorted(names)
            if len(name) > 2 and is_personal(name) and not self.allowed(name)
        ]
        values = [item for item in known if isinstance(item, Literal)]
        for kind, value in sorted(values, key=lambda item: (-len(item.value), item)):
            if not self.allowed(value):
                rows.append((needle(value), ("vault", partial(self._value, kind, whole(value)))))
        return rows

    def settle(self, text: str, active: list[NamedRule], replacer: Replacer) -> str:
        """Return the text with everything that the active rules find replaced.

        A placeholder can end a word, so that what follows it turns out to be a secret; hence the
        rules run until nothing more is found.
        """
        for _ in range(_MAX_PASSES):
            before = replacer.placeholders
            for name, rule in active:
                replacer.rule = name
                text = rule(text, replacer)
            if replacer.placeholders == before:
                break
        return text

    def keyed(self, replacer: Replacer, key: str, value: str, certain: bool) -> str:
        """Redact a value that its key or, if ``certain``, the structure around it gives away."""
        if self._kept(value):
            return value
        if certain:
            return replacer.placeholder("KEYED", value) if is_given_secret(value, 3) else value
        if "cookie" in key.lower() and "=" in value and len(value) < 8000:
            return self._finder(cookie_values, value, replacer)
        if _HEADER.fullmatch(key) and len(value) < 8000:
            line = f"{key}: {value}"
            for name, rule in self._rules:
                if name in _HEADER_RULES:
                    line = rule(line, replacer)
            if not line.endswith(f" {value}"):
                return line.removeprefix(f"{key}: ")
        if not 6 <= len(value) <= 500:
            return value
        kind = near_kind(key, value)
        if not kind and is_secret_name(key) and is_assigned_secret(key, value, data=True):
            kind = "ASSIGNED"
        return replacer.placeholder(kind, value) if kind else value

    def allowed(self, value: str) -> bool:
        """Return True if the user's file lets a value stay."""
        if value in self._allow:
            return True
        return bool(self._allow_patterns) and any(p.fullmatch(value) for p in self._allow_patterns)

    def _kept(self, value: str) -> bool:
        replaced = _REPLACED.search(value) or _CUT.fullmatch(value)
        return replaced is not None or self.allowed(value)

    def _finder(self, find: Finder, text: str, replacer: Replacer) -> str:
        found = [f for f in find(text) if not self._kept(text[f.start : f.end])]
        return replacer.put(text, found) if found else text

    def _shape(self, row: VendorRule, text: str, replacer: Replacer) -> str:
        if not any(literal in text for literal in row.literals):
            return text
        if row.kind not in MANY_LINES and BROKEN.search(text):
            text = replacer.put(text, self._broken(row, text))
        return replacer.put(text, self._whole(row, text))

    def _whole(self, row: VendorRule, text: str) -> Iterator[Finding]:
        for match in patterns.compile_kind(row.pattern).finditer(text):
            value = match[0]
            if EXAMPLE.search(value) or self.allowed(value) or not row.holds(value):
                continue
            if row.kind == "PRIVATE_KEY" and not holds_key(value):
                continue
            yield Finding(*match.span(), row.kind)

    def _broken(self, row: VendorRule, text: str) -> Iterator[Finding]:
        """Yield secrets that line breaks split."""
        done, pattern = 0, patterns.compile_kind(row.pattern)
        hints = "|".join(map(re.escape, row.literals))
        for at in (match.start() for match in re.finditer(hints, text)):
            start = at
            while start > done and at - start < 12 and text[start - 1].isalnum():
                start -= 1
            end = joined_end(pattern, text, start) if start >= done else 0
            value = BREAK.sub("", text[start:end])
            if end and row.holds(value) and not self.allowed(text[start:end]):
                yield Finding(start, end, row.kind, value)
                done = end

    def _pattern(
        self,
        kind: str,
        pattern: re.Pattern[str],
        judge: Callable[[str], bool] | None,
        text: str,
        replacer: Replacer,
    ) -> str:
        group: str | int = "value" if "value" in pattern.groupindex else 0
        found = []
        for match in pattern.finditer(text):
            value = match[group]
            if self._kept(value) or EXAMPLE.search(value):
                continue
            if judge is None or judge(value):
                found.append(Finding(*match.span(group), kind))
        return replacer.put(text, found)

    def _assigned(self, text: str, replacer: Replacer) -> str:
        found = find_assignments(text)
        return replacer.put(
            text, (Finding(a, b, "ASSIGNED") for a, b in found if not self.allowed(text[a:b]))
        )

    def _account(self, text: str, replacer: Replacer) -> str:
        for pattern in _ACCOUNTS:
            found = [
                Finding(*match.span("value"), "ACCOUNT")
                for match in pattern.finditer(text)
                if not self._public_account(match["value"])
            ]
            text = replacer.put(text, found)
        return text

    def _public_account(self, value: str) -> bool:
        return patterns.EXAMPLE_ACCOUNT.fullmatch(value) is not None or self.allowed(value)

    def _email(self, text: str, replacer: Replacer) -> str:
        found = []
        at = text.find("@")
        while at >= 0:
            domain = DOMAIN.match(text, at + 1)
            start = local_start(text, at) if domain else at
            if domain and start < at:
                address = text[start : domain.end()]
                kept = EMAIL_KEPT.search(address) or EXAMPLE.search(address)
                if not kept and not self.allowed(address):
                    found.append(Finding(start, domain.end(), "EMAIL"))
            at = text.find("@", at + 1)
        return replacer.put(text, found)

    def _host(self, pattern: re.Pattern[str], text: str, replacer: Replacer) -> str:
        found = []
        for match in pattern.finditer(text):
            user = match.groupdict().get("user")
            if user and is_personal(user) and user not in SERVICE_USERS | self._allow:
                found.append(Finding(*match.span("user"), "USER"))
            host = match["host"]
            if not patterns.PUBLIC_HOST.fullmatch(host) and not self.allowed(host):
                found.append(Finding(*match.span("host"), "HOST"))
        return replacer.put(text, found)

    def _named_host(self, pattern: re.Pattern[str], text: str, replacer: Replacer) -> str:
        hosts = (m for m in pattern.finditer(text) if not self.allowed(m[0]))
        return replacer.put(text, (Finding(*m.span(), "HOST") for m in hosts))

    def _home(self, literal: str, pattern: re.Pattern[str], text: str, replacer: Replacer) -> str:
        names = self._personal(pattern, text)
        if not names:
            return text
        certain = set()
        if prefix := _PLAIN_HOMES.get(literal):
            for name in names:
                if count := text.count(f"{prefix}{name}/"):
                    certain.add(name)
                    if replacer.trace is None:
                        # Most of them by a plain replacement, far faster than a pattern.
                        text = text.replace(f"{prefix}{name}/", f"{prefix}user/")
                        replacer.counts["HOME"] += count
            if text.count(prefix) == text.count(f"{prefix}user/"):
                return text
        found = []
        for match in pattern.finditer(text):
            name = match["name"]
            if name in names and (name in certain or not is_route(match)):
                found.append(Finding(*match.span("name"), "HOME"))
        return replacer.put(text, found)

    def _personal(self, pattern: re.Pattern[str], text: str) -> set[str]:
        found = set(pattern.findall(text))
        return {name for name in found if is_personal(name) and not self.allowed(name)}

    def _user(self, name: re.Pattern[str], text: str, replacer: Replacer) -> str:
        known = [match.span() for match in name.finditer(text) if names_a_user(match)]
        return replacer.put(text, (Finding(*span, "USER") for span in known)) if known else text

    def _value(self, kind: str, pattern: re.Pattern[str], text: str, replacer: Replacer) -> str:
        """Replace a value of the session, but not within a placeholder."""
        found = [Finding(*match.span(), kind) for match in pattern.finditer(text)]
        if not found:
            return text
        taken = [match.span() for match in _PLACEHOLDER.finditer(text)]
        return replacer.put(
            text, (f for f in found if not any(a < f.end and f.start < b for a, b in taken))
        )


_PLAIN_HOMES = {"/home/": "/home/", "/users/": "/Users/"}
# In the syntax that `re` and Hyperscan share; they hold on JSON source too.
#: A key of an object, or the first of a pair, that may name a secret.
_KEYED_GATE = (
    r"(?:key|secret|token|pass|pwd|credential|auth|cookie|salt)[a-z0-9_-]*\\*\"[:,]\s?\[?\\*\""
    r"|\"(?:sensitive\\*\":\s?true|kind\\*\":\s?\\*\"secret|kty\\*\":\s?\\*\"|value\\*\":\s?\\*\")"
)
_HEADER = re.compile(
    r"(?i)(?:proxy-)?authorization|auth|(?:x-|api|private-|job-|dd-|circle-|ocp-)[\w-]*"
)
_HEADER_RULES = frozenset(
    f"context/{name}"
    for name in ("authorization_basic", "authorization_token", "authorization_bare", "bearer",
                 "authorization_signature", "secret_header", "docker_auth")
)  # fmt: skip
_EMAIL_GATE = r"[A-Za-z0-9._%+-]@[A-Za-z0-9-]+\.[A-Za-z]"
# A placeholder that the end of a shortened text cuts.
_CUT = re.compile(r"\[[A-Z]*(?:_[A-Z0-9a-f_]*)?[\u2026.]{0,3}")
_REPLACED = re.compile(rf"\[(?:SECRET|{'|'.join(PERSONAL)})_")
_ACCOUNTS = [patterns.compile_kind(body) for body in patterns.ACCOUNTS]

"""E-mail addresses, home folders and user names: telling persons from everything else.

Belongs here: what an address is, which names are those of persons, where a known name
stands for a user. Does not belong here: replacing them (``redaction.engine``).
"""

import re

from composer_pipeline.redaction.patterns import compile_kind

#: Accounts that name no person.
GENERIC_USERS = frozenset(
    [
        "user",
        "users",
        "runner",
        "linuxbrew",
        "node",
        "ubuntu",
        "vscode",
        "shared",
        "public",
        "default",
        "app",
        "root",
        "admin",
        "username",
        "youruser",
        "yourname",
        "your_username",
        "username_here",
        "me",
        "you",
        "name",
        "test",
        "tests",
        "testuser",
        "test-user",
        "example",
        "foo",
        "bar",
    ]
)
#: Logins of machines and services, not of persons.
SERVICE_USERS = frozenset(
    ["git", "deploy", "ec2-user", "centos", "debian", "pi", "jenkins", "ci", "hg", "svn"]
)

_TLD = (
    r"(?:com|org|net|io|dev|ai|edu|gov|mil|info|biz|app|cloud|tech|xyz|me|tv|email|online|site"
    r"|eu|uk|de|fr|nl|be|ch|at|es|it|pt|se|no|dk|fi|pl|cz|ie|gr|ro|hu|ru|ua|tr|il|in|cn|jp|kr|tw"
    r"|hk|sg|au|nz|za|br|mx|ar|cl|ca|us)"
)
DOMAIN = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,4}" + _TLD + r"(?![A-Za-z0-9_(-]|\.[A-Za-z])"
)
EMAIL_KEPT = re.compile(
    r"(?i)^(?:git|hg|noreply|no-reply)@|@(?:[a-z0-9-]+\.)*example\.[a-z]+$|@users\.noreply\."
    r"|@(?:[a-z0-9-]+\.)*(?:test|invalid|localhost)$|@(?:[a-z]|test|foo|bar|domain|email)\.[a-z]+$"
)
_LOCAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._%+-")


def local_start(text: str, at: int) -> int:
    """Return where the address before the ``@`` at ``at`` begins; ``at`` if there is none."""
    start = at
    while start > 0 and text[start - 1] in _LOCAL:
        start -= 1
        if at - start > 64:
            return at
    if text[start - 1 : start] == "\\" and text[start] in "nrt":
        start += 1  # the letter of an escape
    if text[start - 1 : start] == "@":
        return at
    while start < at and not text[start].isalnum():
        start += 1
    return start


_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
HOMES = (
    ("/home/", compile_kind(rf"/home/(?<![A-Za-z0-9_.\-]/home/)(?P<name>{_NAME})")),
    ("/users/", compile_kind(rf"/Users/(?<![A-Za-z0-9_.\-]/Users/)(?P<name>{_NAME})")),
    (
        "users",
        re.compile(rf":(?<=[A-Za-z]:)(?:\\{{1,4}}|/)Users(?:\\{{1,4}}|/)(?P<name>{_NAME})"),
    ),
    ("-home-", compile_kind(r"-home-(?<![A-Za-z0-9-]-home-)(?P<name>[A-Za-z0-9_]+)(?=-)")),
    ("-users-", compile_kind(r"-Users-(?<![A-Za-z0-9-]-Users-)(?P<name>[A-Za-z0-9_]+)(?=-)")),
)
_LS_OWNER = re.compile(r"^[-dlbcps][-rwxsStT]{9}[.+@]?\s+\d+\s+$")
_OWNED = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:user|username|user_name|logname|owner|login|whoami)[\"']?\s?[:=]\s?[\"']?$"
)
_ROUTE = re.compile(
    r"(?i)(?:(?:href|to|routes?|router|path|pathname|url|link|redirect\w*|navigate\w*|push|replace|get"
    r"|post|put|patch|delete|use|src|action|goto|visit|page|fetch|location)\\*[\"']?\s?[=:(]+\s?\{?"
    r"|(?:GET|POST|PUT|PATCH|DELETE|HEAD)\s)\\*[\"'`]?$"
)
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")


def is_personal(name: str) -> bool:
    """Say whether a user name may be that of a person."""
    return name.lower() not in GENERIC_USERS


def user_names(text: str) -> set[str]:
    """Return the user names in the home folders that ``text`` mentions."""
    found = {
        m["name"]
        for literal, pattern in HOMES
        if not literal.startswith("-")
        for m in pattern.finditer(text)
        if not is_route(m)
    }
    return {name for name in found if is_personal(name)}


def is_route(match: re.Match[str]) -> bool:
    """Say whether ``/home/word`` is the path of a web page: all of it, and used as one."""
    if not match[0].startswith("/home/") or not _WORD.fullmatch(match["name"]):
        return False
    text, end = match.string, match.end()
    if text[end : end + 1] not in ("'", '"', "`", " ", "?", "#", "\\"):
        return False
    return _ROUTE.search(text[max(0, match.start() - 24) : match.start()]) is not None


def names_a_user(match: re.Match[str]) -> bool:
    """Say whether the surroundings of a known user name show that it is one."""
    text, begin, end = match.string, match.start(), match.end()
    before, after = text[begin - 1 : begin] if begin else "", text[end : end + 1]
    ends = not after or after in "/\\ \n\t\r\"'`:;,)]"
    tilde = before == "~" and not text[max(0, begin - 2) : begin - 1].isalnum()
    if ((before and before in "/\\") or tilde) and ends:
        return True
    if before == "-" and after == "-":
        return True
    starts = not before or not (before.isalnum() or before in "_-.")
    if after == "@" and starts:
        return True
    line = text[text.rfind("\n", 0, begin) + 1 : begin]
    if ends and _OWNED.search(line[-24:]):
        return True
    return before == " " and after == " " and _LS_OWNER.match(line) is not None

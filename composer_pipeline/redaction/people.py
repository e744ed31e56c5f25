"""E-mail addresses, home folders, user names and authors: telling persons from everything else."""

import re
import string
from collections.abc import Iterator

from composer_pipeline.redaction.patterns import ESCAPED, compile_kind
from composer_pipeline.redaction.secrets import Finding

#: Accounts that name no person.
GENERIC_USERS = frozenset(
    """
    user users runner linuxbrew node ubuntu vscode shared public default app root admin
    username youruser yourname your_username username_here me you name test tests testuser
    test-user example foo bar
    """.split()  # noqa: SIM905  a line of names instead of a column
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
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,62}})\.){{1,4}}(?:{_TLD}|{_TLD.upper()})"
    r"(?![A-Za-z0-9_(-]|\.[A-Za-z])"
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


#: Characters of user names.
NAME_LETTERS = frozenset(f"{string.ascii_letters}{string.digits}_.-")
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
HOMES = (
    ("/home/", compile_kind(rf"/home/(?<![A-Za-z0-9_.\-]/home/)(?P<name>{_NAME})")),
    ("/users/", compile_kind(rf"/Users/(?<![A-Za-z0-9_.\-]/Users/)(?P<name>{_NAME})")),
    # Drives as WSL, Cygwin and Git Bash mount them.
    (
        "/mnt/",
        re.compile(rf"(?i:(?<![\w.-])(?:/mnt|/cygdrive)?/[a-z]/Users/)(?P<name>{_NAME})"),
    ),
    # UNC: a server's share, and the file systems of WSL.
    (
        "\\\\",
        re.compile(
            r"(?i:(?<![\w\\/:])(?:\\{2,8}|//)[\w.$-]+(?:(?:\\{1,4}|/)[\w.$ -]+){0,3}?(?:\\{1,4}|/)"
            rf"(?:Users|home)(?:\\{{1,4}}|/))(?P<name>{_NAME})"
        ),
    ),
    (
        "users",
        re.compile(rf":(?<=[A-Za-z]:)(?:\\{{1,4}}|/)Users(?:\\{{1,4}}|/)(?P<name>{_NAME})"),
    ),
    ("-home-", compile_kind(r"-home-(?<![A-Za-z0-9-]-home-)(?P<name>[A-Za-z0-9_]+)(?=-)")),
    ("-users-", compile_kind(r"-Users-(?<![A-Za-z0-9-]-Users-)(?P<name>[A-Za-z0-9_]+)(?=-)")),
)
#: What a text with such a home matches, by its literal.
HOME_GATES = {
    "users": r"[A-Za-z]:[\\/]+users[\\/]",
    "/mnt/": r"/[a-z]/users/",
    "\\\\": rf"(?:[^\w\\/:]|{ESCAPED})[\\/]{{2,}}[a-z0-9_.$-]+[\\/]"
    r"[^\"]{0,200}?(?:users|home)[\\/]",
}
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
    """Return True if a user name may be that of a person."""
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
    """Return True if ``/home/word`` is the path of a web page: all of it, and used as one."""
    if not match[0].startswith("/home/") or not _WORD.fullmatch(match["name"]):
        return False
    text, end = match.string, match.end()
    if text[end : end + 1] not in ("'", '"', "`", " ", "?", "#", "\\"):
        return False
    return _ROUTE.search(text[max(0, match.start() - 24) : match.start()]) is not None


def names_a_user(match: re.Match[str]) -> bool:
    """Return True if the surroundings of a known user name show that it is one."""
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


# -- names that the structure around them gives away ---------------------------------------

# A name, then an address in angle brackets: searched for from the bracket, which is rare.
_ADDRESSED = re.compile(r"<(?:[^<>\s@]{1,64}@[^<>\s@]{1,100}|\[EMAIL_\w+\])>")
_AUTHOR = re.compile(
    r"(?:(?i:(?:author|commit|committer|[a-z]+(?:-[a-z]+)?-by|from|tagger):[ \t]+"
    r"|(?:author|committer|tagger)[ \t])|--author[= ]\\*[\"']?)"
    r"(?P<name>[^\W\d_][\w.'-]{0,30}(?:[ \t]+[^\W\d_(][\w.'-]{0,30}){0,4})[ \t]*$"
)
_GIT_NAME = re.compile(
    r"(?:user\.name[ =]|GIT_(?:AUTHOR|COMMITTER)_NAME=)[ \t]*\\*(?P<q>[\"']?)"
    r"(?P<name>[A-Z][\w.'-]+(?:[ \t][A-Z][\w.'-]*){0,3})"
)
_BLAME = re.compile(
    r"(?m)^[ \t]*\^?[0-9a-f]{7,40} (?:[^\s(]+ +)?\((?P<name>[^()\d\n][^()\n]{0,40}?) +"
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} +\d+\)"
)
AUTHOR_LITERALS = ("author", "committer", "-by:", "tagger", "user.name", "git_", "commit:", "from:")
AUTHOR_GATE = (
    r"(?:author|commit(?:ter)?|-by|tagger|from)[:= ][ \t\\\"'=]*(?:[^<>@\"\\]|\\t){1,62}"
    r"<(?:[^<>\s]{1,64}@|\[email)"
    r"|user\.name[ =]|git_(?:author|committer)_name="
)
BLAME_GATE = r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} +\d+\)"
#: Authors that are not persons.
_MACHINE_NAME = re.compile(
    r"(?i)\[bot\]|\bbot\b|^claude\b|\b(?:test|local|global|only|default|config|user|name|author|team"
    r"|contributors|someone|your|example|committed|action|actions)\b"
    r"|^(?:codex|copilot|cursor|devin|gemini|renovate|dependabot|github|gitlab|jenkins|root|ci|you|me"
    r"|the .*|semantic-release.*|j(?:ohn|ane) doe)$"
)


def find_authors(text: str) -> Iterator[Finding]:
    """Yield the names of persons in the lines of Git that name an author."""
    found = [(*match.span("name"), match["name"]) for match in _GIT_NAME.finditer(text)]
    for address in _ADDRESSED.finditer(text):
        begin = max(text.rfind("\n", 0, address.start()) + 1, address.start() - 200)
        if match := _AUTHOR.search(text[begin : address.start()]):
            start, end = match.span("name")
            found.append((begin + start, begin + end, match["name"]))
    for start, end, name in sorted(found):
        if not _MACHINE_NAME.search(name):
            yield Finding(start, end, "NAME")


def find_blamed(text: str) -> Iterator[Finding]:
    """Yield the names of persons in the output of ``git blame``."""
    for match in _BLAME.finditer(text):
        if not _MACHINE_NAME.search(match["name"]):
            yield Finding(*match.span("name"), "NAME")


#: Accounts that systems come with; they own files.
_SYSTEM_USERS = frozenset(
    """
    root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats _apt
    nobody systemd-network systemd-resolve messagebus sshd postgres mysql redis nginx apache http
    rabbitmq mongodb elasticsearch jenkins git docker wheel staff adm nogroup _www codespace gitpod
    coder circleci travis builder build claude agent sandbox wwwrun tomcat odoo vagrant azureuser
    airflow dagster opc core rocky fedora alpine nixbld steam ollama
    """.split()  # noqa: SIM905  a line of names instead of a column
)
_LISTED = re.compile(
    r"(?m)(?:^|(?<=\\n))[ \t]*(?:\d+[ \t]+){0,2}[-dlbcps][-rwxsStT]{9}[.+@]?[ \t]+\d+[ \t]+"
    r"(?P<owner>[A-Za-z_][\w.-]*)[ \t]+(?P<group>[\w.-]+)[ \t]+[\d.,]+[KMGT]?[ \t]+"
)
# The kind of a file and its owner's rights are spelt out: Hyperscan looks for literals far faster
# than for sets of letters.
_RIGHTS = "|".join(
    f"{kind}{read}{write}{run}"
    for kind in "-dlbcps"
    for read in "-r"
    for write in "-w"
    for run in "-xst"
)
OWNER_GATE = rf"(?:{_RIGHTS})[-rwxst]{{6}}[.+@]?(?:[ \t]|\\t)+\d+(?:[ \t]|\\t)+[a-z_]"


def find_owners(text: str) -> Iterator[Finding]:
    """Yield owners, and groups of the same name, in the output of ``ls -l``."""
    for match in _LISTED.finditer(text):
        owner = match["owner"]
        if owner.lower() in _SYSTEM_USERS | SERVICE_USERS or not is_personal(owner):
            continue
        yield Finding(*match.span("owner"), "USER")
        if match["group"] == owner:
            yield Finding(*match.span("group"), "USER")


_PROMPT = re.compile(
    r"(?m)(?P<indent>[ \t]*)(?:\([\w.-]+\) )?\[?"
    r"(?P<user>[a-z_][\w.-]{0,31})@(?P<host>[A-Za-z0-9][\w.-]{1,62})"
    r"(?:(?::|[ \t])(?:~|/)?[\w./~-]{0,80}\]?[ \t]?|\]?)[$#%>](?=[ \t]|$)"
)
PROMPT_GATE = r"[a-z0-9_.-]@[a-z0-9][a-z0-9_.-]*(?::|[ \t])?[^@\s]{0,80}\]?[ \t]?[$#%]"
_NO_HOST = re.compile(r"(?i)localhost|[0-9a-f]{12}|host(?:name)?|server|container|sandbox|[a-z]")


def _prompts(text: str) -> Iterator[re.Match[str]]:
    """Yield prompts at the beginnings of lines, and after a line break as JSON writes it."""
    done = at = 0
    while (at := text.find("@", max(at, done))) >= 0:
        line = text.rfind("\n", done, at) + 1
        begins = [line] if line or not done else []
        if (escaped := text.rfind("\\n", max(line, done), at)) >= 0:
            begins.append(escaped + 2)
        for begin in begins:
            if match := _PROMPT.match(text, begin):
                yield match
                done = match.end()
                break
        at += 1


def find_prompts(text: str) -> Iterator[Finding]:
    """Yield the user and the host of shell prompts such as ``mira@build-7:~/x$``."""
    for match in _prompts(text):
        # Lists of packages are indented too: `  left-pad@1.3.0 > ...`.
        if match["indent"] and text[match.end("host")] != ":":
            continue
        user = match["user"]
        if is_personal(user) and user not in _SYSTEM_USERS | SERVICE_USERS:
            yield Finding(*match.span("user"), "USER")
        if not _NO_HOST.fullmatch(match["host"]):
            yield Finding(*match.span("host"), "HOST")


#: Id, literals, function and gate of each rule.
PEOPLE_FINDERS = (
    ("author", AUTHOR_LITERALS, find_authors, AUTHOR_GATE),
    ("blame", (")",), find_blamed, BLAME_GATE),
    ("prompt", ("@",), find_prompts, PROMPT_GATE),
    ("owner", ("rw", "r-x"), find_owners, OWNER_GATE),
)

"""E-mail addresses, home folders, user names and authors: telling persons from everything else."""

import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from composer_pipeline.redaction.patterns import ESCAPED, LINE_HEAD, compile_kind
from composer_pipeline.redaction.secrets import DUMMY_PASSWORDS, Finding, listed

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
    r"(?i)^(?:git|hg|no-?reply|do-?not-?reply|support|security|info|hello|contact|help|sales|abuse|privacy|legal|press|billing|team|\d*\+?(?:claude|copilot))@|@(?:[a-z0-9-]+\.)*example\.[a-z]+$"
    r"|@(?:[a-z0-9-]+\.)*(?:test|invalid|localhost)$|@(?:[a-z]|test|foo|bar|domain|email)\.[a-z]+$|@[^.]+$"
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
    ("/mnt/", re.compile(rf"(?i:(?<![\w.-])(?:/mnt|/cygdrive)?/[a-z]/Users/)(?P<name>{_NAME})")),
    # UNC: a server's share, and the file systems of WSL.
    (
        "\\\\",
        re.compile(
            r"(?i:(?<![\w\\/:])(?:\\{2,8}|//)[\w.$-]+(?:(?:\\{1,4}|/)[\w.$ -]+){0,3}?(?:\\{1,4}|/)"
            rf"(?:Users|home)(?:\\{{1,4}}|/))(?P<name>{_NAME})"
        ),
    ),
    ("users", re.compile(rf":(?<=[A-Za-z]:)(?:\\{{1,4}}|/)Users(?:\\{{1,4}}|/)(?P<name>{_NAME})")),
    ("-home-", compile_kind(r"-home-(?<![A-Za-z0-9-]-home-)(?P<name>[A-Za-z0-9_]+)(?=-)")),
    ("-users-", compile_kind(r"-Users-(?<![A-Za-z0-9-]-Users-)(?P<name>[A-Za-z0-9_]+)(?=-)")),
)
#: What a text with such a home matches, by its literal.
HOME_GATES = {
    "users": r"[A-Za-z]:[\\/]+users[\\/]",
    "/mnt/": r"/[a-z]/users/",
    "\\\\": rf"(?:[^\w\\/:]|{ESCAPED})[\\/]{{2,}}[a-z0-9_.$-]+[\\/]"
    r"[^\"]*?(?:users|home)[\\/]",
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
    if starts and (after == "@" or (after == "/" and not is_guarded(match[0]))):
        return True  # an address; the branches of a person
    line = text[text.rfind("\n", 0, begin) + 1 : begin]
    if ends and _OWNED.search(line[-24:]):
        return True
    return before == " " and after == " " and _LS_OWNER.match(line) is not None


# -- names that the structure around them gives away ---------------------------------------

# fmt: off
#: Accounts that systems come with; they own files.
_SYSTEM_USERS = frozenset(
    """
    root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats _apt nobody systemd-network systemd-resolve messagebus
    sshd postgres mysql redis nginx apache http rabbitmq mongodb elasticsearch jenkins git docker wheel staff adm nogroup _www codespace gitpod coder
    circleci travis builder build claude agent sandbox wwwrun tomcat odoo vagrant azureuser airflow dagster opc core rocky fedora alpine nixbld steam
    ollama jovyan sudo avahi colord cups dbus polkitd rtkit syslog chrony ntp statd rpc tss memcached grafana prometheus kafka
    """.split()  # noqa: SIM905  a line of names instead of a column
)
#: Authors, and words of names, that are not of persons.
_MACHINE_NAME = re.compile(
    r"(?i)\[bot\]|\bbot\b|^claude\b|\b(?:test|local|global|only|default|config|user|name|author|teams?|contributors|someone|your|example|committed|actions?"
    r"|inc|gmbh|ltd|llc|cloud|bank|universit\w+|institute|college|department|ministry|agency|council|committee|consortium|association|society|alliance|networks?|media|games|consulting|partners|ventures|capital|holdings|industries|international|research|sciences?|robotics|corp|corporation|company|group|foundation|labs?|software|systems|technologies|solutions|studios?|project|community|engineering"
    r"|engineers?|platform|managers?|owners?|unknown|unassigned|nobody|anonymous|deleted|services?|product|support|security|infra\w*|operations|release"
    r"|build|admin|agents?|review|code|tools?|models?|assistant|cli|sdk|developers?|maintainers?|reviewers?|assignees?|reporters?|requests?|data|api)\b"
    r"|^(?:codex|copilot|cursor|devin|gemini|renovate|dependabot|github|gitlab|jenkins|root|ci|you|me|octocat|monalisa|hubot|facebook|microsoft|google"
    r"|vercel|anthropics?|openai|apache|aws|oauth2?|log(?:in|out)|signup|auth|self|author\w+|the .*|semantic-release.*|j(?:ohn|ane)[ .]?(?:doe|smith)"
    r"|(?:alice|bob)(?: smith)?|string|str|text|u?int\d*|integer|float\d*|number|bool(?:ean)?|object|any|none|null|undefined|true|false|uuid|varchar"
    r"|optional|person|member)$"
)
_APPLICATION_WORDS = (
    "my|the|app|svc|service|server|web|www|db|sql|bot|worker|next|node|java|python|runner|user|admin|group|data|back|front|end"
    "|prod|staging|dev|owner|test|demo|docker|container|http|api|job|cron"
)
#: Logins that applications and their containers use.
_APPLICATION = re.compile(
    rf"(?i)(?:(?:^|[-_.])(?:(?:{_APPLICATION_WORDS})+|(?:{_APPLICATION_WORDS})*(?:deploy|system)\w*)|service|server|runner|user|admin|group|docker|container)(?:js|s|\d+)?(?:$|[-_.])"
)
_LOGIN = r"[A-Za-z_][A-Za-z0-9_.-]*[A-Za-z0-9_]"
_PARTICLES = frozenset(("van", "von", "der", "den", "de", "di", "da", "del", "la", "le", "du", "dos", "ten", "ter", "zu", "bin", "al", "el", "y"))
# fmt: on


@lru_cache(maxsize=4096)
def name_kind(name: str) -> str:
    """Return NAME for what reads as the name of a person, USER for a login, or nothing."""
    words = name.split()
    if not words or _MACHINE_NAME.search(name):
        return ""
    if len(words) == 1 and name.isascii() and not (name.isalpha() and name.istitle()):
        system = _SYSTEM_USERS | SERVICE_USERS | GENERIC_USERS
        application = name.lower() in system or _APPLICATION.search(name)
        return "USER" if re.fullmatch(_LOGIN, name) and not application else ""
    capital = all(not w[0].islower() or w in _PARTICLES for w in words) and len(words) < 6
    letters = all(c.isalpha() or c in " .'’-" for c in name)
    return "NAME" if capital and letters and not re.search("[A-Z]{3}", name) else ""


# fmt: off
# A name, then an address in angle brackets: searched for from the bracket, which is rare.
_ADDRESSED = re.compile(r"<(?:[^<>\s@]{1,64}@[^<>\s@]{1,100}|\[EMAIL_\w+\])>")
_AUTHOR = re.compile(
    r"(?:(?i:(?:author|commit|committer|[a-z]+(?:-[a-z]+)?-by|from|tagger):[ \t]+|(?:author|committer|tagger)[ \t])|--author[= ]\\*[\"']?)"
    r"(?P<name>[^\W\d_][\w.'-]{0,30}(?:[ \t]+[^\W\d_(][\w.'-]{0,30}){0,4})[ \t]*$"
)
_ADDRESSEE = re.compile(r"(?<![\w.@/'’-])(?P<name>[^\W\d_][\w.'’-]{0,30}(?:[ \t][^\W\d_][\w.'’-]{0,30}){0,3})\\*[\"']?[ \t]*(?:\([^()<>\n]{1,30}\)[ \t]*)?$")
_INTRODUCTION = re.compile(r"(?:(?:[a-z]\S*(?= )|Contact|By|Thanks|To|From|Cc|CC|Bcc|Mail|E-?mail|Author|Maintainer|Via|And|Und)(?:[ \t]+|$))+")
_GIT_NAME = re.compile(
    r"(?:user\.name[ =]|GIT_(?:AUTHOR|COMMITTER)_NAME=)[ \t]*\\*(?P<q>[\"']?)(?P<name>[A-Z][\w.'-]+(?:[ \t][A-Z][\w.'-]*){0,3})"
)
_DATE = r"(?:20\d\d-\d\d-\d\d|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z]|\d+ (?:second|minute|hour|day|week|month|year)s? ago)"
_FULL = r"[^\W\d_][\w.'’-]*(?: [^\W\d_][\w.'’-]*){0,3}"
_LOGGED = re.compile(r"(?m)^[*|\\/ \t^]*[0-9a-f]{7,40}(?P<rest>[ \t|,;:-][^\n]+)")
#: Name and date in formats of ``git log``, at the end of a line, and in ``git blame``.
_IN_LOG = re.compile(
    rf"[ \t|,;:-]{{1,6}}(?P<name>{_FULL})(?:[ \t|,;:<(-]{{1,6}}{_DATE}|\|(?:\[EMAIL_|[\w.+-]+@))| .*\({_DATE}[^()]*\) ?<(?P<last>{_FULL})>$"
    r"| (?:[^\s(]+ +)?\((?P<blamed>[^()\d\n][^()\n]{0,40}?) +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} +\d+\)"
)
AUTHOR_LITERALS = ("@", "[email_", "user.name", "git_")
AUTHOR_GATE = r"<[^<>\s@\"]+@[^<>\s@\"]+>|<\[email_|user\.name[ =]|git_(?:author|committer)_name="
LOG_GATE = (
    r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} +\d+\)|(?:ago|\d)\) ?<[^\s\"<>]|(?:second|minute|hour|day|week|month|year)s? ago|\|(?:[a-z0-9_.+-]+@|\[email_)"
    r"|[a-z.](?:[ |,;:<(-]+|\\t)20\d\d-\d\d-\d\d|(?:mon|tue|wed|thu|fri|sat|sun) (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec) "
)
# fmt: on


def find_authors(text: str) -> Iterator[Finding]:
    """Yield names in the settings of Git and before addresses: ``Mira Novak <mira@acme.com>``."""
    found = [match.span("name") for match in _GIT_NAME.finditer(text)]
    for address in _ADDRESSED.finditer(text):
        begin = max(text.rfind("\n", 0, address.start()) + 1, address.start() - 200)
        before = text[begin : address.start()]
        if match := _AUTHOR.search(before):
            found.append((begin + match.start("name"), begin + match.end("name")))
        elif (match := _ADDRESSEE.search(before)) and not EMAIL_KEPT.search(address[0][1:-1]):
            start, end = match.span("name")
            if word := _INTRODUCTION.match(before, start, end):
                start = word.end()
            login = before[:start].endswith(("- ", "by ")) or start == 0
            kind = name_kind(before[start:end])
            if kind == "NAME" or (login and kind == "USER"):
                found.append((begin + start, begin + end))
    for start, end in sorted(found):
        if not _MACHINE_NAME.search(text[start:end]):
            yield Finding(start, end, name_kind(text[start:end]) or "NAME")


def find_logged(text: str) -> Iterator[Finding]:
    """Yield the names of persons in the output of ``git log`` and ``git blame``."""
    for line in _LOGGED.finditer(text):
        match = _IN_LOG.match(text, line.start("rest"), line.end())
        if match and match.lastgroup and name_kind(match[match.lastgroup]):
            yield Finding(*match.span(match.lastgroup), "NAME")


# -- logins in what commands print ---------------------------------------------------------

# fmt: off
_LINE = r"(?m)(?:^|(?<=\\n))[ \t]*"
# The kind of a file and its owner's rights are spelt out: Hyperscan looks for literals far faster
# than for sets of letters.
_RIGHTS = "|".join(f"{kind}{read}{write}{run}" for kind in "-dlbcps" for read in "-r" for write in "-w" for run in "-xst")
#: Id, literals, pattern with groups ``name`` and ``full``, gate. The login is replaced up to the line's end.
_LOGINS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("owner", ("rw", "r-x"),
     rf"{_LINE}(?:\d+[ \t]+){{0,2}}[-dlbcps][-rwxsStT]{{9}}[.+@]?[ \t]+\d+[ \t]+(?P<name>{_LOGIN})[ \t]+[\w.-]+[ \t]+[\d.,]+[KMGT]?[ \t]+",
     rf"(?:{_RIGHTS})[-rwxst]{{6}}[.+@]?(?:[ \t]|\\t)+\d+(?:[ \t]|\\t)+[a-z_]"),
    ("login/id", ("uid=",), rf"(?<![A-Za-z0-9])uid=\d+\((?P<name>{_LOGIN})\)", ""),
    ("login/environment", ("user=", "logname=", "username="),
     rf"(?:(?<![A-Za-z0-9_&?;-])|(?<=\\n))(?:SUDO_USER|USER|LOGNAME|USERNAME)=\\*[\"']?(?P<name>{_LOGIN})(?=\\*[\"']|\s|\\n|;|$)", ""),
    ("login/whoami", ("whoami", "logname", "id -un"),
     rf"(?m)(?:^|[$%#>;&|][ \t]?)(?:(?:[a-z-]+[ ](?:auth[ :])?)?whoami|logname|id -un)[ \t]*(?:(?:;|&&)[^\n\\]*)?(?:\r?\n|\\n)(?:[\w-]+\\{{1,2}})?(?P<name>{_LOGIN})[ \t]*(?=\r|\n|\\n|$)", ""),
    ("login/process", ("",),
     rf"{_LINE}(?:\d+ +(?=\S+ +20 +0 +\d)|\S+ +\d+ +(?=\S+ +(?:cwd|rtd|txt|mem|\d+[urwW]\w?) +(?:REG|DIR|CHR|IPv[46]|unix|FIFO|PIPE|sock|KQUEUE|a_inode) )"
     rf"|(?=\S+ +(?:\d+ +\d+\.\d +\d+\.\d +\d|\d+ +\d+ +\d+ +\S+ +(?:\?|pts/\d+|tty\w*|console) +\d+:\d\d|(?:pts/\d+|ttys?\d+|console) )))(?P<name>{_LOGIN})\+? ",
     r" 20 +0 +\d|(?:cwd|rtd|txt|mem|\d[urw][a-z]?) +(?:reg|dir|chr|ipv[46]|unix|fifo|pipe|sock|kqueue|a_inode) |\d +\d+\.\d +\d+\.\d +\d"
     r"|(?:\?|pts/\d+|tty[a-z0-9]*|console) +\d+:\d\d|[a-z0-9_.+-] +(?:pts/\d+|ttys?\d+|console) "),
    ("login/passwd", (":/",),
     rf"{_LINE}(?P<name>{_LOGIN}):[x*!]?:\d{{3,6}}:\d{{1,6}}:(?P<full>[^:,\n]{{0,60}})[^:\n]{{0,100}}:/", r"[a-z0-9_]:[x*!]?:\d{3,6}:\d{1,6}:"),
    ("login/command", ("su -", "sudo -", "runuser -", "crontab -", "chown ", "usermod -", "-linger "),
     rf"(?<![\w.-])(?:su (?:-l |--login |- )|(?:sudo|runuser) (?:-[A-Za-z]+ ){{0,3}}-[A-Za-z]{{0,3}}u ?|crontab (?:-[a-z] )?-u ?|chown (?:-[A-Za-z]+ ){{0,2}}"
     rf"|usermod -\w+ [\w,-]+ |loginctl [a-z]+-linger )\\*[\"']?(?P<name>{_LOGIN})(?![\w/=(-]|\.[A-Za-z])", ""),
    ("login/account", ("logged in ", "account ", "! you've", "wants to merge", "opened ", "login:", "recordname", "by @"),
     rf"(?:[Ll]ogged in (?:to \S+ )?(?:as|account):? @?|RecordName: |Login:[ \t]+|\bHi |[Oo]pened by @?|• |\bby @)(?P<name>{_LOGIN})"
     r"(?:(?=[ \t]+Name:[ \t]+(?P<full>[^\t\n]{3,40}))|(?=[ \t.]*\(|[.]?[ \t]*(?:\r?\n|\\n|$)|! You've| wants to merge| opened | about \d| \d+ \w+ ago| in \S+/pull/))",
     r"logged in (?:to [^\s]+ )?(?:as|account)|recordname: |login:\s+|hi [a-z0-9-]+! you|opened (?:by|about|\d)|wants to merge \d|by @[a-z0-9-]+ in [^\s\"]+/pull/"),
)
# fmt: on


def _find_logins(pattern: re.Pattern[str], text: str) -> Iterator[Finding]:
    """Yield a login wherever it stands on the line, with the full name beside it."""
    done = 0
    for match in pattern.finditer(text):
        if not name_kind(name := match["name"]):
            continue
        start, done = max(done, match.start()), (text.find("\n", match.end()) + 1 or len(text))
        whole = re.compile(rf"(?<![A-Za-z0-9_.-]){re.escape(name)}(?![A-Za-z0-9_-])")
        found = [(m.span(), "USER") for m in whole.finditer(text, start, done)]
        if name_kind(match.groupdict().get("full") or "") == "NAME":
            found.append((match.span("full"), "NAME"))
        yield from (Finding(*span, kind) for span, kind in sorted(found))


# -- people in the objects and listings of trackers and forges -------------------------------

# fmt: off
#: Keys of persons: a login may stand under the first; one that is no word under the second; under the fourth only quotes make a name.
_KEYS = {
    "sure": "assignee assignees assigned_to assigned_by reporter reporters reviewer reviewers requested_reviewers approver approvers requester requestor"
            " submitter approved_by merged_by closed_by created_by updated_by modified_by changed_by submitted_by reviewed_by opened_by",
    "writer": "author authors creator",
    "role": "owner owners lead committer maintainer maintainers contributor contributors",
    "other": "user users collaborators participants actor sender pusher member members assigner review_requests",
    "field": "name login username first_name last_name full_name given_name family_name nick_name unique_name display_name display_name_normalized"
             " real_name real_name_normalized",
}
_ROLE_OF = {word.replace("_", "")[::-1]: role for role, words in _KEYS.items() for word in words.split()}
_ROLES = "|".join(word.replace("_", "_?") for role, words in _KEYS.items() for word in words.split() if role != "field")
#: Keys that only objects which describe persons have.
_BESIDE = r"(?:e-?mail(?:_?address)?|mail|login|account_?id|avatar\w*|unique_?name|real_?name\w*|user_?principal_?name|is_bot|gravatar\w*|tz_offset)"
# A sign is found far faster than a word; the key is read backwards from it.
_SIGN = re.compile(r"[:=](?<=[A-Za-z_\"'*\s][:=])(?![:=])")
_BACKWARDS = re.compile(r"\s{0,3}\*{0,2}(?:[\"']\\*)?(?P<key>[A-Za-z_]{4,26}+)(?![\w$@/-])")
_KEY = re.compile(r"(?P<key>[A-Za-z_]+)(?P<close>\\*[\"'])?\*{0,2}\s{0,3}(?P<sign>[:=])\*{0,2}(?P<list>\s{0,3}\[)?")
_GIVEN = re.compile(r"\s{0,40}(?P<q>\\*[\"'])@?(?P<value>(?:(?!(?P=q))[^\\\n]){2,60})(?P=q)(?P<comma>\s{0,40},)?")
_BARE = re.compile(r"[ \t]{1,40}@?(?P<value>[^\W\d_][^\n\\\"'{}\[\]<>:=;|#·•]{0,100}?[^\s\\\"'{}\[\]<>:=;|#·•,(])[ \t]*(?=\r?\n|\\n|$|[·•|])")
_PART = re.compile(r"[^\s,@(][^,(]*[^\s,(]")
_ALONE = re.compile(rf"{LINE_HEAD}[ \t]*(?:[-*•][ \t]+)?\*{{0,2}}")
_QUOTED_BESIDE = re.compile(rf"(?i)(?<![\w-]){_BESIDE}(?P<close>\\*[\"'])\s{{0,3}}:(?!\s?false)")
_BESIDE_BEFORE = re.compile(rf"(?i)(?<![\w-]){_BESIDE}\s?[:=][^:={{}}]{{2,80}}$")
_BESIDE_AFTER = re.compile(rf"(?i)[^:={{}}]{{2,80}}(?<![\w-]){_BESIDE}\s?[:=]")
_HELD = re.compile(rf"(?i)(?<![\w-])(?:{_ROLES})\\*[\"']?\s{{0,3}}[:=]\s{{0,3}}(?:\[?\s{{0,40}}\{{|(?:\n.*){{0,3}}\n[\s-]*)$")
_NO_PERSON = re.compile(r"(?i)[\"'](?:Organization|Bot|Team|Enterprise)\\*[\"']|is_bot\\*[\"']?\s{0,3}:\s{0,3}true")
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+\w")
_INNER = re.compile(r"\{[^{}]*\}")
_TWO_WORDS = r"\s{0,40}[\\\"']*[^\s:={}\\\"',()]+ [^\s]"
PERSON_LITERALS = ("ssign", "report", "review", "approve", "request", "submit", "by", "author", "creator", "owner", "user", "lead", "committer",
                   "maintain", "contribut", "collaborator", "participants", "actor", "sender", "pusher", "member", "login", "name")
PERSON_GATE = (
    rf"(?:{_ROLES}|__author__)[\\\"'*]*\s{{0,3}}[:=]\*{{0,2}}(?:[\s\[]{{0,44}}(?:[\\\"']+@?[^\s\\\"'{{}}\[\]]|\{{)"
    rf"|(?:[ \t]|\\t)+@?[^\s\\\"'{{}}\[\]()0-9<][^\\\"'{{}}\[\]<>:=;|#]{{0,110}}[^\s\\\"'{{}}\[\]<>:=;|#,(][ \t]*(?:\\[rnt]|\"|·|•|\|)|\s{{1,3}}[^{{}}\"]{{0,250}}name\s?:)"
    rf"|login[\\\"']+\s{{0,3}}:\s{{0,40}}[\\\"']|{_BESIDE}[\\\"']+\s{{0,3}}:"
    rf"|name\s{{0,3}}[:=]{_TWO_WORDS}[^:={{}}]{{0,90}}{_BESIDE}\s?[:=]|{_BESIDE}\s?[:=][^:={{}}]{{2,90}}name\s{{0,3}}[:=]{_TWO_WORDS}"
)
# fmt: on


def find_people(text: str) -> Iterator[Finding]:
    """Yield persons by their role (``"assignee": "Mira Novak"``) or the object around them."""
    for sign in _SIGN.finditer(text):
        before = _BACKWARDS.match(text[max(0, sign.start() - 40) : sign.start()][::-1])
        role = _ROLE_OF.get(before["key"].lower().replace("_", "")) if before else None
        key = _KEY.match(text, sign.start() - before.end()) if before and role else None
        if key and role:
            for start, end, bare in _values(text, key):
                kind = name_kind(value := text[start:end])
                if kind and _suits(key, role, value, kind, bare):
                    yield Finding(start, end, "USER" if key["key"] == "login" else kind)


def _values(text: str, key: re.Match[str]) -> Iterator[tuple[int, int, bool]]:
    """Yield where the values of a key stand, and whether they have no quotes."""
    given = _GIVEN.match(text, key.end())
    while given is not None:
        yield *given.span("value"), False
        given = _GIVEN.match(text, given.end()) if key["list"] and given["comma"] else None
    begin = text.rfind("\n", 0, key.start()) + 1
    if not key["close"] and not key["list"] and _ALONE.fullmatch(text, begin, key.start()):
        bare = _BARE.match(text, key.end())
        for part in _PART.finditer(text, *bare.span("value")) if bare else ():
            yield *part.span(), True


def _suits(key: re.Match[str], role: str, value: str, kind: str, bare: bool) -> bool:
    """Return True if what may be a person is one under its key."""
    if role == "field":
        # A name of one word is common in code.
        return (" " in value or bool(key["close"])) and _is_described(key, kind)
    if " " in value:
        return not bare or role != "other"
    if bare and (key["sign"] == "=" or re.search("[a-z][A-Z]", value)):
        return False
    plain = bare and value.isalpha() and key.string[key.end() : key.end() + 1] != "\t"
    return role == "sure" or (role == "writer" and kind == "USER" and not plain)


def _is_described(key: re.Match[str], kind: str) -> bool:
    """Return True if the object or the lines around a key are about a person."""
    text, at, end, close = key.string, key.start(), key.end(), key["close"]
    near = (text[max(0, at - 1500) : at], text[end : end + 1500])
    before, after = (_INNER.sub("", _INNER.sub("", part)) for part in near)
    holder, brace, body = before.rpartition("{")
    body = f"{body} {after.partition('}')[0]}" if brace else f"{before[-80:]} {after[:160]}"
    if _NO_PERSON.search(body) or any(EMAIL_KEPT.search(a) for a in _ADDRESS.findall(body)):
        return False
    others = (m for m in _QUOTED_BESIDE.finditer(body) if not m[0].startswith(key["key"]))
    if close and any(other["close"] == close for other in others):
        return True
    if (close and key["key"] == "login" and kind == "USER") or _BESIDE_AFTER.match(text, end):
        return True
    held = _HELD.search((holder + brace or before)[-200:])
    return held is not None or _BESIDE_BEFORE.search(near[0][-120:]) is not None


# -- machines and prompts --------------------------------------------------------------------

# fmt: off
_MACHINE = re.compile(
    r"(?<![\w./-])(?:(?P<owner>[A-Za-z][A-Za-z0-9]{2,20})(?:(?<=s)-(?i:macbook|imac|mac-?mini|mac-studio)[A-Za-z0-9-]*|-(?i:mbp|macbook(?:-?(?:pro|air))?|laptop"
    r"|thinkpad|xps|imac)\d{0,2}|-(?P<device>framework|pixel(?:-?\d{1,2})?|iphone|ipad|galaxy|surface|desktop))|(?P<of>iphone|ipad|pixel|galaxy|macbook|laptop)-(?P<given>[a-z]{4,15})|DESKTOP-(?=[A-Z]{0,6}\d)[A-Z0-9]{7}|LAPTOP-(?=[A-Z]{0,6}\d)[A-Z0-9]{7,8}|WIN-(?=[A-Z]{0,10}\d)[A-Z0-9]{11})"
    r"(?:\.(?:local|lan|home|localdomain|fritz\.box))?(?!\.?[\w-])"
)
MACHINE_GATE = r"s-(?:macbook|imac|mac-?mini|mac-studio)|[a-z0-9]-(?:mbp|macbook|laptop|thinkpad|xps|imac|framework|pixel|iphone|ipad|galaxy|surface|desktop)|(?:iphone|ipad|pixel|galaxy|macbook|laptop)-[a-z]|(?:desktop|laptop)-[a-z0-9]{7}|win-[a-z0-9]{11}"
# fmt: on


def find_machines(text: str) -> Iterator[Finding]:
    """Yield hosts that are named after their owner or by Windows: ``miras-mbp``."""
    for match in _MACHINE.finditer(text):
        given = match["given"] or (match["device"] and match["owner"])
        if given and not {folded(given), folded(given)[:-1]} & listed("given_names.txt"):
            continue
        if not match["owner"] or "s-Mac" in match[0] or not is_guarded(match["owner"]):
            yield Finding(*match.span(), "HOST")


_PROMPT = re.compile(
    r"(?m)(?P<indent>[ \t]*)(?:\([\w.-]+\) )?\[?"
    r"(?P<user>[a-z_][\w.-]{0,31})@(?P<host>[A-Za-z0-9][\w.-]{1,62})"
    r"(?:(?::|[ \t])(?:~|/)?[\w./~-]{0,80}\]?[ \t]?|\]?)[$#%>](?=[ \t]|$)"
)
PROMPT_GATE = r"[a-z0-9_.-]@[a-z0-9][a-z0-9_.-]*(?::|[ \t])?[^@\s]*\]?[ \t]?[$#%]"
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


# -- what stands for a person elsewhere ------------------------------------------------------

# fmt: off
#: Words of languages and of the trade that may also be names.
_WORDS = frozenset(
    """
    will mark max jan april may june august grace hope faith rose lily ivy daisy iris ruby pearl amber jade dawn joy summer autumn winter sky skye art bill
    frank rich page black white brown green gray young king prince knight field fields test drew chase chance hunter archer mason cooper porter parker walker
    turner tanner taylor fisher baker butler cook miller smith marshall dean major wolf fox lion bear bird hawk stone rock wood woods forest hill hills brook
    brooks river rivers lake pond bridge church castle house hall park parks gates wall walls west north south east light love best good gold silver steel iron
    cash price case cole echo grant justice link mission paris peace phoenix sage solo terry true violet long short small large little strong power powers sharp
    bond branch bush apple cross flower bell ball bailey blue bright brand burn close cloud first foster free friend glass head heart high holder hunt keys leaf
    lock mill patch pine post quick read reader ring school self shell springs stock temple town tree wild wise koch wagner bauer fischer schneider klein gross
    stark schwarz weiss braun busch berg bach baum paul ritter ernst hart kraft petit martin france michel pierre simon main data code work project projects
    source repo workspace server client product device person mobile tablet gaming office student teacher kids family windows linux macos ubuntu debian google
    chrome surface icon lucide tabler hero banner image photo this that with from have your there which about these other into more time when what where them
    then than also after before another business customer sales marketing info contact hello help jobs press billing accounts finance privacy legal news
    postmaster webmaster abuse noreply people human function class method value title table index file files folder path desktop laptop notebook computer
    machine remote master develop development production feature version update change error warning debug trace logger context message messages content
    response result results output input python java rust julia scala kotlin node deno react angular django jupyter pandas oracle mongo sqlite maven gradle
    travis sentry vault
    """.split()  # noqa: SIM905  a line of words instead of a column
)
# fmt: on
#: How logins spell letters.
_LETTERS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "oe", "æ": "ae", "ł": "l", "đ": "d", "ı": "i"}
)


def folded(name: str) -> str:
    """Return a name in lower case as logins spell it."""
    spelt = unicodedata.normalize("NFKD", name.lower().translate(_LETTERS))
    return spelt.encode("ascii", "ignore").decode()


def is_guarded(value: str) -> bool:
    """Return True if a value is too common to be replaced wherever it stands."""
    known = _WORDS | _SYSTEM_USERS | SERVICE_USERS | GENERIC_USERS | DUMMY_PASSWORDS
    machine = " " not in value and _MACHINE_NAME.search(value) is not None
    return len(value) < 4 or not any(map(str.isalpha, value)) or machine or value.lower() in known


def spellings(kind: str, value: str) -> dict[str, str]:
    """Return how a name, login, address or host that was found is written elsewhere, with kinds.

    Parts of names are capitalised: they stand for a person only as whole words in this case.
    """
    if kind not in ("NAME", "HOST", "USER", "HOME", "EMAIL"):
        return {}
    login = re.sub(r"^\d+\+", "", value.partition("@")[0]).partition("+")[0]
    host = _MACHINE.fullmatch(value) if kind == "HOST" else None
    family, _, given = value.partition(",")
    owner = [re.sub("s$", "", host["owner"] or "")] if host else []
    parts = {"NAME": f"{given} {family}".split(), "HOST": owner}.get(kind, re.split("[._-]", login))
    words = [w[0].upper() + w[1:] for w in parts if len(w) > 2 and w.replace("-", "").isalpha()]
    found = {} if kind in ("NAME", "HOST") else {login: "USER"}
    if kind in ("NAME", "HOST") or (len(words) == 2 and "." in login):
        found |= dict.fromkeys(words, "NAME")
    if len(words) > 1 and (kind == "NAME" or len(words) == 2):
        first, last = words[0], words[-1]
        found |= dict.fromkeys((f"{first} {last}", f"{last}, {first}", f"{last} {first}"), "NAME")
        # As logins spell them.
        given, family = folded(f"{first} {last}").split(" ")
        short = (given[:1], f"{given[:1]}.") if len(family) > 4 else ()
        found |= {
            start + family: "USER" for start in (*(given + j for j in ("", ".", "-", "_")), *short)
        }
    if host:
        found[re.sub(r"\.\w+$", "", value)] = "HOST"
    return {text: of for text, of in found.items() if text != value and not is_guarded(text)}


# fmt: off
#: Id, literals, function and gate of each rule.
PEOPLE_FINDERS: tuple[tuple[str, tuple[str, ...], Callable[[str], Iterator[Finding]], str], ...] = (
    ("author", AUTHOR_LITERALS, find_authors, AUTHOR_GATE),
    ("logged", tuple("0123456789"), find_logged, LOG_GATE),
    ("prompt", ("@",), find_prompts, PROMPT_GATE),
    ("person", PERSON_LITERALS, find_people, PERSON_GATE),
    ("host/machine", ("-",), find_machines, MACHINE_GATE),
    *((name, literals, partial(_find_logins, re.compile(pattern)), gate) for name, literals, pattern, gate in _LOGINS),
)
# fmt: on

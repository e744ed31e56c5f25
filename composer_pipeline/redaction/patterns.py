"""Patterns of hosts and account ids, with the literals that must occur before one is tried.

Literals are written in lower case and looked for in lower-cased text; patterns are
exact. A pattern begins with a literal and looks behind it, which lets ``re`` skip ahead.
"""

import hashlib
import json
import platform
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from composer_pipeline.errors import InputError, StorageError
from composer_pipeline.files import cache_dir, make_folder, replace

#: For gates: a control character as JSON writes it; its last letter is not part of the text.
ESCAPED = r"\\[bfnrt]|\\u00[01][0-9a-f]"
#: What may stand before a line of a file that a tool shows: its number, a diff's mark.
LINE_HEAD = (
    r"(?:[ \t]*\d{1,6}(?:\u2192|\t|: ?|\|)|[ \t]*[+>-](?=[ \t]|[A-Za-z\"'])"
    r"|[A-Za-z0-9_./-]+\.[a-z]+[:-]\d+[:-])?"
)
_BEHIND = re.compile(r"\(\?<!(\[[^\]]+\])([^)]*)\)")


@cache
def compile_kind(body: str) -> re.Pattern[str]:
    r"""Compile a pattern whose negative look-behinds accept ``\\n`` as a boundary.

    Tool results often hold JSON or source text, where the ``n`` of an escaped newline
    stands right before the secret.
    """
    return re.compile(_BEHIND.sub(r"(?:(?<!\1\2)|(?<=\\\\[nrt]\2))", body))


_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
#: Account ids, in a context that identifies them; the group ``value`` becomes ``[ACCOUNT_xxxx]``.
ACCOUNTS: tuple[str, ...] = (
    r"(?i:(?:account|organi[sz]ation|org)_?(?:uuid|id))\\*[\"']?\s{0,3}[:=]\s{0,3}\\*[\"']?"
    rf"(?P<value>{_UUID})(?![0-9a-fA-F-])",
    r"arn:aws[a-z-]{0,10}:[a-z0-9-]*:[a-z0-9-]*:(?P<value>\d{12})(?=[:/])",
    r"(?<!\d)(?P<value>\d{12})(?=\.dkr\.ecr\.)",
    r"(?i:account_?id|aws_?account)\\*[\"']?\s{0,3}[:=]\s{0,3}\\*[\"']?(?P<value>\d{12})(?!\d)",
    r"(?i:account_?sid)\\*[\"']?\s{0,3}[:=]\s{0,3}\\*[\"']?(?P<value>AC[a-f0-9]{32})(?![A-Za-z0-9])",
)
ACCOUNT_LITERALS = (
    *(
        f"{owner}{mark}{what}"
        for owner in ("account", "organization", "organisation", "org")
        for mark in ("", "_")
        for what in ("uuid", "id")
    ),
    *("arn:aws", ".dkr.ecr.", "accountsid", "account_sid", "aws_account", "awsaccount"),
)
#: Account numbers of manuals.
EXAMPLE_ACCOUNT = re.compile(
    r"(\d)\1{11}|123456789012|111122223333|210987654321|0{8}-.*|(.)\2{7}-.*"
)

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_INTERNAL = r"corp|internal|intranet|lan|local|localdomain|private"
#: Hosts of a URL with a label that only internal names have.
URL_HOST = re.compile(
    rf"://(?:[^\s/@\"'<>]{{1,200}}@)?(?P<host>(?:[A-Za-z0-9-]+\.)+(?:{_INTERNAL})"
    rf"(?:\.[A-Za-z0-9-]+)*|(?:{_INTERNAL})(?:\.[A-Za-z0-9-]+)+)(?![A-Za-z0-9.-]*[A-Za-z0-9({{$])"
)
URL_HOST_LITERALS = tuple(
    f"{dot}{word}" for word in _INTERNAL.split("|") for dot in (".", "/", "@")
)
#: The target of ssh, scp, sftp, rsync or mosh: ``[user@]host`` with a user or a path.
SSH_TARGET = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:ssh|scp|sftp|rsync|mosh|ssh-copy-id)\s"
    r"[^\n|;&]{0,200}?(?<![A-Za-z0-9_.:/@-])"
    rf"(?P<user>[A-Za-z_][A-Za-z0-9_.-]*)@(?P<host>{_HOST})"
)
SSH_LITERALS = ("ssh", "scp", "sftp", "rsync", "mosh")
SSH_GATE = r"(?:ssh|scp|sftp|rsync|mosh|ssh-copy-id)\s.*@"
#: Hosts that are not secret: public forges, stand-ins, names inside every cluster.
PUBLIC_HOST = re.compile(
    r"(?i)(?:[a-z0-9-]+\.)*(?:github|gitlab|bitbucket|codeberg|sr\.ht|sourceforge)(?:\.[a-z]+)?"
    r"|localhost(?:\.localdomain)?|(?:[a-z0-9-]+\.)*example(?:\.[a-z]+)*|(?:.*[.-])?(?:your|my|some)[a-z-]*(?:\..*)?"
    r"|(?:remote|local|target|source|dest|jump|bastion)?-?(?:host|hostname|server|machine|remote|ip|domain|target|box|router|gateway|vps|vm|nas|pi|proxy)[0-9]*"
    r"|[a-z]\.local|(?:.*\.)?(?:docker|google|cluster|svc\.cluster|svc|azure)\.(?:internal|local)|127\.\d+\.\d+\.\d+|0\.0\.0\.0"
)


# -- how assignments are read ------------------------------------------------------------
# fmt: off

#: How a line of settings begins: its number, a list's dash, a command that sets variables.
_START = rf"(?:{LINE_HEAD}|[ \t]*[+>-])[ \t]*(?:- )?"
OWN_LINE = re.compile(rf"{_START}(?P<lead>(?i:export |set |declare -\w+ |env |arg |environment=|--?e(?:nv)?[ =]))?\\*[\"']?(?:[A-Za-z0-9_./:@\[\]-]*[./:@_\[-])?")
#: What stands before a password in the words of a connection.
AMONG_WORDS = re.compile(r"(?i:(?:host|hostaddr|user|dbname|port)\s?=\s?[^\s;,\"'()]{1,80}[ \t]+)$")
#: A map of YAML on one line, and one value of it: `db: {user: app, password: ...}`.
FLOW = re.compile(rf"{_START}(?:[\w.-]+: ?)?\{{(?:[^()=;]*[{{, ])?[\"']?")
IN_FLOW = re.compile(r"(?:[^,{}\[\]]|,(?! ))+")
BLOCK = re.compile(rf"[|>][+-]?\d?[ \t]*(?:\r?\n{LINE_HEAD}[ \t]+(?P<value>\S[^\r\n]*)|(?P<break>\\+n)[ \t]+(?P<escaped>[^\s\\](?:(?!(?P=break))[^\n])*))")
OPENED = re.compile(r"(?P<prefix>[rbuRBUfF]{0,2})(?P<slashes>\\*)(?P<quote>\"{3}|'{3}|[\"'`])(?:(?<=\\[\"'])(?P=slashes)(?P=quote)(?P=slashes)(?P=quote))?")
QUOTE = re.compile(r"\\*[\"'`]")
CLOSED = re.compile(r"[ \t]*(?:[,;)\]}>]|/>|[\w:-]+=|$)")
ESCAPED_BREAK = re.compile(r"(\\+)[nr]")
ESCAPED_LETTER = re.compile(r"\\+u([0-9a-fA-F]{4})")
COMMENT = re.compile(r"\s(?:#|//)\s.*|\r?$")
SHELL_WORD = re.compile(r"(?:\$\([^()]*\)|`[^`]*`|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|(?!\[[A-Z_]+_[0-9a-f]{4}\])[^\s'\"\\]|['\"\\])*+")
#: What stands behind a variable that a command is given.
COMMAND = re.compile(
    r"\[[A-Z_]+_[0-9a-f]{4}\]|\s+(?:[A-Za-z_]\w*=|[|&;<>\\)]|\.{0,2}/|(?:python|node|np[mx]|pnpm|yarn|bun|uv|go|cargo|make|docker|psql|pg_\w+|mysql\w*"
    r"|redis-cli|pytest|ba?sh|zsh|sudo|env|terraform|ansible|curl|java|mvn|gradle|ruby|bundle|rails|php|ssh|git|restic|borg|sshpass|mongo\w*|deno|dotnet"
    r"|kubectl|helm|aws|gcloud|poetry|cd|echo|exec|time)\b)|\s(?:--?[a-z][\w-]*(?:\s|=|$)|&&|\|\|?\s)"
)
#: Names, calls, types and what operators make of them.
EXPRESSION = re.compile(
    r"(?:(?:await|new|not|yield|return|lambda|async|typeof) )?[*&!]?(?:[A-Za-z_$][\w$]*|\d+)(?:(?:\.|\?\.|::|->)[\w$]+|\(.*\)|\[.*\]|<.*>)*+[?!]?"
    r"(?:\s*(?:[|&+*?]|\|\||&&|\?\?|[=!]==?|or|and|if|as|in|is)\s.*)?[,;]?"
)
#: Code between quotes: a template, a selector, a call.
CALL = re.compile(r"[\w.$]+\(.*\)|[\[({]{2}.*[\])}]{2}|\(?[\w, ]*\)?\s*=>.*|[.#][a-z][\w-]*(?:[ >:[].*)?|\[.*\]|.*</\w.*|.*\{\w+\}.*")
_TYPE = (
    r"(?:str|string|bytes|u?int|float|bool|boolean|number|[Aa]ny|object|None|Final|Incomplete|Union|(?:Not)?Required|Optional|ClassVar|Callable|Iterable"
    r"|[Ll]ist|[Dd]ict|[Ss]et|[Tt]uple)\b"
)
TYPE = re.compile(
    r"(?i:(?:u?int|float|utf|bytes|string|str|char|varchar|text|uuid|h|sha|md|base)-?\d+[a-z]{0,3}\d{0,2}(?:[^a-z0-9].*)?)"
    rf"|{_TYPE}\s*(?:[\[,|=?!].*)?|[A-Z]\w*(?:\[[\w\[\], .|\"']*\]|, \*)(?:[, =].*)?"
)
#: Lines of code, lines of settings, and where other text begins: another string, a code block, a file in a command.
CODE_LINE = re.compile(
    rf"[;{{(,]$|(?<!type):\s*{_TYPE}(?:$|[\[,|; =])|=>|\w\(.*\)|^(?:[)}}\]]|@\w|//|/\*|\*|(?:const|let|var|def|class|import|from|return|if|for|func|fn|type"
    r"|interface|public|private|async|await|self|this|function|assert|expect|raise|print|try|case|else|switch|while|with)\b)"
)
SETTING_LINE = re.compile(r"(?:- |export |set )?[\"']?[\w./-]+(?:[ \w./-]*\w)?[\"']?\s*[:=](?:\s*[\"'\\\w/$.{<-].*|\s*)|- \S+|\[[^\]]+\]|---")
EDGE = re.compile(r"\0|```|<<-?\s?\\*[\"']?[A-Za-z]|\bEO[FT]\b|@@ ")
#: What an INI or TOML file has before its settings, and what stands before that.
SECTION = re.compile(r"(?m)\[[\w.:/ \"-]{2,60}\][ \t]*(?:\r?$|\\+n)")
BEFORE_SECTION = re.compile(r"(?:[ \t]*\d{1,6}(?:→|\t|: ?))?[+-]?|.*(?:[\"']|\\n)")
_NAMED = r"[A-Za-z_$][\w$]*"
_DOT = r"(?:\.|::|->|\?\.)"
DOTTED = re.compile(rf"{_NAMED}(?:{_DOT}{_NAMED})+")
#: What a value is that stands for a secret: a name in code, a call, a path, a way to a vault.
REFERENCE = re.compile(
    r"(?:process|os|sys|env|secrets?|vars?|config|cfg|settings|self|this|data|local|module|inputs|args|options|import|user|req|request|values|form|state|props"
    rf"|params|ctx|app|Rails|System)(?:{_DOT}{_NAMED}(?:\[[\w\"'.-]*\])?)+(?:[(\[].*[)\]])?|[&*]?{_NAMED}(?:{_DOT}{_NAMED})*{_DOT}(?i:\w*(?:passw|pwd|secret|token|key)\w*)"
    rf"|[&*]?(?:await |new )?{_NAMED}(?:{_DOT}{_NAMED})*(?:\((?:[^()]|\([^()]*\))*\)[,;]?|\(\\*)|(?:required|nullable)\|.*|\(.*\)"
    r"|(?:ref\+|vault:|op:|arn:|sm:|ssm:|file:|keyring:|https?:).*|!(?:[Rr]ef|Sub|GetAtt|ImportValue|[Vv]ault|secret|env\w*)\b.*|@[A-Za-z_]+[({].*[)}]"
    r"|(?:\.{0,2}|~|[A-Za-z]:)(?:[/\\][\w.@-]+)+/?|--?[a-z][a-z-]*"
    # Published with the pages that use them.
    r"|(?:pk_(?:live|test)_|pk\.eyJ|sb_publishable_|phc_)[\w.-]+"
)
#: What an interface says about a secret: labels, sentences.
LABEL = re.compile(
    r"(?i)passw|pass ?phrase|passcode|secret|token|credential|log ?in|kennwort|mot de passe|contrase|senha|wachtwoord|adgangskode|salasana|haslo|heslo|parola"
    r"|sifre|forgot|pass$|\bkey\b|required|invalid"
)
PROSE = re.compile(r"(?i)(?=\S*\s+\S+\s)(?:.*\s)?(?:the|an?|of|to|for|from|your?|is|are|were|be|if|or|with|must|not|when|least|used|this|in|has)(?:\s|$)")
#: Four words or more, letters in random case, or a sign that no name in code has.
NO_LABEL = re.compile(r"[A-Za-z]{2,}(?:([ ._-])[A-Za-z0-9]+)(?:\1[A-Za-z0-9]+){2,}|(?:[A-Z]*[a-z]+[A-Z]){2}[A-Za-z]*|.*[^\w ,.:|/-].*")
ENDS_AS_PASSWORD = re.compile(r"(?i:passw(?:or)?d|passphrase|passcode|pwd|(?:^|[^a-z])(?:pass|pw))[\d_-]*$|[a-z]Pass$")
# fmt: on


#: A line break as JSON writes it.
LINE_BREAK = "\\n"


@dataclass(frozen=True, slots=True)
class Gate:
    """A necessary condition of a rule."""

    rule: int  # its number
    literals: tuple[str, ...]  # one of these occurs, in any case
    # if given, this matches too; outside of sets `\s` is also white space as JSON escapes it
    expression: str = ""


#: Called by Hyperscan with the number of an expression, its place, flags, and the set to add to.
Matched = Callable[[int, int, int, int, set[int]], None]


def searcher(gates: list[Gate]) -> Callable[[bytes], set[int]]:
    """Return a function from UTF-8 text to the numbers of the rules that may match."""
    try:
        import hyperscan
    except ImportError:
        return _plain_searcher(gates)
    # Hyperscan stops at each place of a literal, also when its match was reported already: what is
    # in nearly every text is found faster by itself.
    with_breaks = {g.rule for g in gates if g.literals == (LINE_BREAK,) and not g.expression}
    line_break = LINE_BREAK.encode()
    database, matched = _database(hyperscan, [g for g in gates if g.rule not in with_breaks])
    scan, lock = database.scan, threading.Lock()  # a database has one scratch space

    def search(text: bytes) -> set[int]:
        found = set(with_breaks) if line_break in text else set()
        with lock:
            scan(text, match_event_handler=matched, context=found)
        return found

    return search


#: Compiling so many expressions takes seconds; the results of so many versions are kept.
_STORED_FROM, _STORED = 100, 4


def _database(hyperscan: Any, gates: list[Gate]) -> tuple[Any, Matched]:
    """Return the gates compiled, and what a scan calls to add the number of a rule to a set."""
    expressions, rules = [], []
    for gate in gates:
        for text in [gate.expression] if gate.expression else map(re.escape, gate.literals):
            expressions.append(on_json(text).encode())
            rules.append(gate.rule)

    def matched(number: int, start: int, end: int, flags: int, found: set[int]) -> None:
        found.add(rules[number])

    flags = [hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_SINGLEMATCH] * len(rules)
    database = hyperscan.Database()
    numbers = list(range(len(rules)))
    if len(rules) < _STORED_FROM:
        database.compile(expressions=expressions, ids=numbers, elements=len(rules), flags=flags)
        return database, matched
    # What compiling makes is the same for the same expressions and version.
    key = repr((hyperscan.__version__, platform.machine(), platform.processor(), expressions))
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    stored = cache_dir() / f"gates-{name}.hs"
    try:
        database = hyperscan.loadb(stored.read_bytes(), hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
    except (OSError, hyperscan.error):
        database.compile(expressions=expressions, ids=numbers, elements=len(rules), flags=flags)
        with suppress(OSError, InputError, StorageError):  # the next process compiles again
            make_folder(stored.parent)
            replace(stored, hyperscan.dumpb(database))
            others = sorted(stored.parent.glob("gates-*.hs"), key=lambda f: f.stat().st_mtime)
            for old in others[:-_STORED]:  # of other versions
                old.unlink(missing_ok=True)

    return database, matched


_TOKEN = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.")


def on_json(expression: str) -> str:
    r"""Return an expression whose ``\s`` matches white space of a text in its JSON."""
    return _TOKEN.sub(lambda m: r"(?:\s|\\[fnrt])" if m[0] == r"\s" else m[0], expression)


def _plain_searcher(gates: list[Gate]) -> Callable[[bytes], set[int]]:
    needles: dict[bytes, set[int]] = {}
    for gate in gates:
        for literal in gate.literals:
            needles.setdefault(literal.lower().encode(), set()).add(gate.rule)

    def search(text: bytes) -> set[int]:
        lowered = text.lower()
        found: set[int] = set()
        for needle, rules in needles.items():
            if not rules <= found and needle in lowered:
                found |= rules
        return found

    return search


_SURROGATES = re.compile("[\ud800-\udfff]")


def dump_value(value: Any, option: int = 0) -> bytes:
    """Return the JSON on which gates are tried; a text is a value too."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | option)
    except (TypeError, orjson.JSONEncodeError):  # a lone surrogate, or a number too large
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return _SURROGATES.sub("?", text).encode()


def load_value(source: bytes | str) -> Any:
    """Return the value of a JSON document; ValueError, or RecursionError if too deep."""
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:  # a lone surrogate, or a number that orjson does not take
        return json.loads(source)

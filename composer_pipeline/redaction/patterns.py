"""Patterns of secrets, hosts and account ids, with the literals that must occur before one is tried.

Literals are written in lower case and looked for in lower-cased text; patterns are
exact. A pattern begins with a literal and looks behind it, which lets ``re`` skip ahead.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

#: For gates: a control character as JSON writes it; its last letter is not part of the text.
ESCAPED = r"\\[bfnrt]|\\u00[01][0-9a-f]"
#: What may stand before a line of a file that a tool shows: its number, a diff's mark.
LINE_HEAD = (
    r"(?:[ \t]*\d{1,6}(?:\u2192|\t|: ?|\|)|[ \t]*[+>-](?=[ \t]|[A-Za-z\"'])"
    r"|[A-Za-z0-9_./-]+\.[a-z]+[:-]\d+[:-])?"
)
_BEHIND = re.compile(r"\(\?<!(\[[^\]]+\])([^)]*)\)")


def compile_kind(body: str) -> re.Pattern[str]:
    r"""Compile a pattern whose negative look-behinds accept ``\\n`` as a boundary.

    Tool results often hold JSON or source text, where the ``n`` of an escaped newline
    stands right before the secret.
    """
    return re.compile(_BEHIND.sub(r"(?:(?<!\1\2)|(?<=\\\\[nrt]\2))", body))


#: Gates of kinds whose literal is also a part of common words (``task-``, ``msg.``).
SHAPE_GATES = {
    "OPENAI_KEY": r"(?:[^a-z0-9_-]|\\[nrt])sk-[a-z0-9_-]",
    "SENDGRID_KEY": r"(?:[^a-z0-9]|\\[nrt])SG\.[a-z0-9_-]",
    "AIRTABLE_TOKEN": r"pat[a-z0-9]{14}\.",
    "RESEND_KEY": r"(?:[^a-z0-9_]|\\[nrt])re_[a-z0-9]{8}_",
    "ELEVENLABS_KEY": r"sk_[a-f0-9]{16}",
}

#: Secrets known by their shape, in order of precedence: kind, literals (case as in the
#: secret; one must occur), pattern.
SHAPES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "PRIVATE_KEY",
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[^-]{20,20000}-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
        r"|[A-Za-z0-9+/=\s\\\"',:>|-]{40,20000}-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
        r"|[A-Za-z0-9+/=\s\\]{40,})",
    ),
    ("PUTTY_KEY", ("Private-Lines:",), r"Private-Lines: \d+\s+[A-Za-z0-9+/=\s\\]{40,}"),
    (
        "OPENVPN_KEY",
        ("OpenVPN Static key",),
        r"-----BEGIN OpenVPN Static key V1-----(?:[0-9a-fA-F]|\s|\\[nr]){64,}"
        r"(?:-----END OpenVPN Static key V1-----)?",
    ),
    ("AGE_KEY", ("AGE-SECRET-KEY-1",), r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    ("ANTHROPIC_KEY", ("sk-ant-",), r"sk-(?<![A-Za-z0-9_-]sk-)ant-[A-Za-z0-9_-]{16,}"),
    ("OPENROUTER_KEY", ("sk-or-",), r"sk-(?<![A-Za-z0-9_-]sk-)or-[A-Za-z0-9_-]{16,}"),
    (
        "OPENAI_KEY",
        ("sk-",),
        r"sk-(?<![A-Za-z0-9_-]sk-)(?:proj-|svcacct-|admin-|None-)?"
        r"(?=[A-Za-z_-]{0,60}[0-9])(?=[A-Za-z0-9_-]{0,200}[A-Z])[A-Za-z0-9_-]{20,}",
    ),
    ("AWS_KEY", ("AKIA", "ASIA", "ABIA", "ACCA"), r"A(?<![A-Za-z0-9]A)(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    (
        "GITHUB_TOKEN",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"gh(?<![A-Za-z0-9]gh)[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}",
    ),
    ("GITLAB_TOKEN", ("glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glsoat-"), r"gl(?<![A-Za-z0-9]gl)(?:pat|ptt|dt|rt|cbt|soat)-[A-Za-z0-9_-]{20,}"),
    (
        "SLACK_TOKEN",
        ("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-", "hooks.slack.com"),
        r"x(?<![A-Za-z0-9]x)(?:ox[abeoprs]-[A-Za-z0-9-]{10,}|app-[0-9]-[A-Za-z0-9-]{20,})"
        r"|hooks\.slack\.com/services/T[A-Za-z0-9]+/B[A-Za-z0-9]+/[A-Za-z0-9]{16,}",
    ),
    ("HF_TOKEN", ("hf_",), r"hf_(?<![A-Za-z0-9_]hf_)[A-Za-z0-9]{30,}"),
    ("GOOGLE_KEY", ("AIza", "GOCSPX-", "ya29."), r"AIza(?<![A-Za-z0-9_-]AIza)[0-9A-Za-z_-]{35}|GOCSPX-[A-Za-z0-9_-]{20,}" r"|ya29\.[A-Za-z0-9_-]{30,}"),
    ("STRIPE_KEY", ("k_live_", "k_test_", "whsec_"), r"[srp](?<![A-Za-z0-9].)k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,}"),
    ("NPM_TOKEN", ("npm_",), r"npm_(?<![A-Za-z0-9]npm_)[A-Za-z0-9]{36}"),
    ("PYPI_TOKEN", ("pypi-Ag",), r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{40,}"),
    ("SENDGRID_KEY", ("SG.",), r"SG\.(?<![A-Za-z0-9]SG\.)[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    ("DIGITALOCEAN_TOKEN", ("_v1_",), r"do[op]_v1_(?<![A-Za-z0-9]do._v1_)[a-f0-9]{64}"),
    ("TELEGRAM_TOKEN", (":AA",), r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
    ("SHOPIFY_TOKEN", ("shpat_", "shpss_", "shpca_", "shppa_"), r"shp(?:at|ss|ca|pa)_[a-fA-F0-9]{32}"),
    ("SQUARE_TOKEN", ("sq0atp-", "sq0csp-"), r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,}"),
    ("LINEAR_KEY", ("lin_api_",), r"lin_api_[A-Za-z0-9]{32,}"),
    ("NOTION_TOKEN", ("ntn_",), r"ntn_(?<![A-Za-z0-9_]ntn_)[A-Za-z0-9]{40,}"),
    ("DATABRICKS_TOKEN", ("dapi",), r"dapi(?<![A-Za-z0-9_-]dapi)[a-f0-9]{32}(?![a-f0-9])"),
    ("VAULT_TOKEN", ("hvs.", "hvb."), r"hv(?<![A-Za-z0-9_]hv)[sb]\.[A-Za-z0-9_-]{24,}"),
    ("DOCKER_TOKEN", ("dckr_pat_",), r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    ("FIGMA_TOKEN", ("figd_",), r"figd_[A-Za-z0-9_-]{30,}"),
    ("GRAFANA_TOKEN", ("glsa_", "glc_"), r"gl(?<![A-Za-z0-9_]gl)(?:sa|c)_[A-Za-z0-9_+/=]{32,}"),
    ("NEWRELIC_KEY", ("NRAK-",), r"NRAK-[A-Z0-9]{27}"),
    ("SENTRY_TOKEN", ("sntrys_", "sntryu_"), r"sntry[su]_[A-Za-z0-9_+/=]{40,}"),
    ("ATLASSIAN_TOKEN", ("ATATT3",), r"ATATT3[A-Za-z0-9_=-]{50,}"),
    ("POSTMAN_KEY", ("PMAK-",), r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    ("PLANETSCALE_TOKEN", ("pscale_",), r"pscale_(?:pw|tkn|oauth)_[A-Za-z0-9_.-]{32,}"),
    ("SUPABASE_TOKEN", ("sbp_",), r"sbp_(?<![A-Za-z0-9_]sbp_)[a-f0-9]{40}"),
    ("GROQ_KEY", ("gsk_",), r"gsk_(?<![A-Za-z0-9_]gsk_)[A-Za-z0-9]{40,}"),
    ("XAI_KEY", ("xai-",), r"xai-(?<![A-Za-z0-9_-]xai-)[A-Za-z0-9]{60,}"),
    ("PERPLEXITY_KEY", ("pplx-",), r"pplx-(?<![A-Za-z0-9_-]pplx-)[A-Za-z0-9]{40,}"),
    ("REPLICATE_TOKEN", ("r8_",), r"r8_(?<![A-Za-z0-9_]r8_)[A-Za-z0-9]{37}"),
    ("TAILSCALE_KEY", ("tskey-",), r"tskey-[a-z]+-[A-Za-z0-9]{8,}-[A-Za-z0-9]{16,}"),
    ("PULUMI_TOKEN", ("pul-",), r"pul-(?<![A-Za-z0-9_-]pul-)[a-f0-9]{40}"),
    ("RUBYGEMS_KEY", ("rubygems_",), r"rubygems_[a-f0-9]{48}"),
    ("FLY_TOKEN", ("fm1a_", "fm1r_", "fm2_"), r"fm(?<![A-Za-z0-9_]fm)(?:1[ar]|2)_[A-Za-z0-9+/=]{60,}"),
    ("AZURE_SECRET", ("8Q~", "7Q~"), r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}"),
    ("LANGSMITH_KEY", ("lsv2_",), r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),
    ("LANGFUSE_KEY", ("sk-lf-",), r"sk-lf-[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}"),
    ("NVIDIA_KEY", ("nvapi-",), r"nvapi-[A-Za-z0-9_-]{40,}"),
    ("TAVILY_KEY", ("tvly-",), r"tvly-(?:dev-|prod-)?(?=[A-Za-z-]{0,60}[0-9])[A-Za-z0-9-]{20,}"),
    ("POSTHOG_KEY", ("phx_", "phs_"), r"ph(?<![A-Za-z0-9_]ph)[xs]_[A-Za-z0-9]{36,}"),
    ("AIRTABLE_TOKEN", ("pat",), r"pat(?<![A-Za-z0-9_]pat)[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    ("RESEND_KEY", ("re_",), r"re_(?<![A-Za-z0-9_]re_)(?=[A-Za-z0-9_]*[0-9])[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}"),
    ("ELEVENLABS_KEY", ("sk_",), r"sk_(?<![A-Za-z0-9_]sk_)[a-f0-9]{48}(?![A-Za-z0-9])"),
    ("HEROKU_KEY", ("HRKU-",), r"HRKU-[A-Za-z0-9_-]{36,}"),
    ("ONEPASSWORD_TOKEN", ("ops_eyJ",), r"ops_eyJ[A-Za-z0-9+/=_-]{100,}"),
    ("DISCORD_WEBHOOK", ("/api/webhooks/",), r"discord(?:app)?\.com/api/webhooks/\d{10,}/[A-Za-z0-9_-]{60,}"),
    ("JWT", ("eyJ",), r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
)  # fmt: skip

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
ACCOUNT_KEY = re.compile(r"(?i)(?:account|organi[sz]ation|org)_?(?:uuid|id)$")
ACCOUNT_VALUE = re.compile(rf"(?:{_UUID}|\d{{12}})")
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
#: ``Name@Host folder %`` of a shell prompt, and the names that macOS gives to machines.
MACHINE = re.compile(
    r"(?<![A-Za-z0-9-])[A-Za-z0-9]+s-(?:MacBook|iMac|Mac-?mini)[A-Za-z0-9-]*(?:\.local)?"
)
MACHINE_LITERALS = ("s-macbook", "s-imac", "s-mac-mini", "s-macmini")
#: Hosts that are not secret: public forges, stand-ins, names inside every cluster.
PUBLIC_HOST = re.compile(
    r"(?i)(?:[a-z0-9-]+\.)*(?:github|gitlab|bitbucket|codeberg|sr\.ht|sourceforge)(?:\.[a-z]+)*"
    r"|localhost(?:\.localdomain)?|(?:[a-z0-9-]+\.)*example(?:\.[a-z]+)*|(?:.*[.-])?(?:your|my|some)[a-z-]*(?:\..*)?"
    r"|(?:remote|local|target|source|dest|jump|bastion)?-?(?:host|hostname|server|machine|remote|ip|domain|target|box)[0-9]*"
    r"|[a-z]\.local|(?:.*\.)?(?:docker|google|cluster|svc\.cluster|svc|azure)\.(?:internal|local)|127\.\d+\.\d+\.\d+|0\.0\.0\.0"
)


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


def _database(hyperscan: Any, gates: list[Gate]) -> tuple[Any, Matched]:
    """Return the gates compiled, and what a scan calls to add the number of a rule to a set."""
    expressions, rules = [], []
    for gate in gates:
        for text in [gate.expression] if gate.expression else map(re.escape, gate.literals):
            expressions.append(on_json(text).encode())
            rules.append(gate.rule)
    database = hyperscan.Database()
    database.compile(
        expressions=expressions,
        ids=list(range(len(rules))),
        elements=len(rules),
        flags=[hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_SINGLEMATCH] * len(rules),
    )

    def matched(number: int, start: int, end: int, flags: int, found: set[int]) -> None:
        found.add(rules[number])

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


def dump_value(value: Any) -> bytes:
    """Return the JSON on which gates are tried; a text is a value too."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError):  # a lone surrogate, or a number too large
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return _SURROGATES.sub("?", text).encode()


def load_value(source: bytes | str) -> Any:
    """Return the value of a JSON document; ValueError, or RecursionError if too deep."""
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:  # a lone surrogate, or a number that orjson does not take
        return json.loads(source)

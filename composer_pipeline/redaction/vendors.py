"""Tokens of vendors: the table ``vendor_rules.json``, and values near the name of a vendor.

The table is data: ``scripts/import_secret_rules.py`` rewrites it from public rule sets.
"""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson

from composer_pipeline.redaction.patterns import compile_kind
from composer_pipeline.redaction.secrets import (
    EXAMPLE,
    Finding,
    entropy,
    is_given_secret,
    is_random,
    is_word_like,
)

RULES_FILE = Path(__file__).with_name("vendor_rules.json")


@dataclass(frozen=True, slots=True)
class VendorRule:
    """A row of the table."""

    kind: str  # the kind of its placeholder
    literals: tuple[str, ...]  # one of these occurs: a part of the token, or a vendor's name
    pattern: str  # expression of `re`: of the token or, near a name, of the whole value
    gate: str = ""  # necessary condition, in the syntax that `re` and Hyperscan share
    entropy: float = 0.0  # the least, in bits a character; 0 if the shape alone is enough
    named: bool = False  # the name has to say `key` or the like too
    source: str = "own"

    def holds(self, token: str) -> bool:
        """Return False for what has the shape of a token but is made of words."""
        if not self.entropy:
            return True
        mixed = any(c.isdigit() for c in token) or not (token.islower() or token.isupper())
        return mixed and entropy(token) >= self.entropy and not is_word_like(token)


@cache
def read_rules() -> dict[str, list[VendorRule]]:
    """Return the rows: ``typed`` have a shape of their own, ``near`` stand by a vendor's name."""
    table = orjson.loads(RULES_FILE.read_bytes())
    return {
        name: [VendorRule(**{**row, "literals": tuple(row["literals"])}) for row in table[name]]
        for name in ("typed", "near")
    }


_VALUE = r"[a-zA-Z0-9_][a-zA-Z0-9_.+/=:%~-]{13"
PLACE = re.compile(rf"[:=,(][=>]? {{0,3}}[\\\"'`]{{0,6}}(?=(?P<value>{_VALUE},600}}))")
_NAME_LETTERS = f"{string.ascii_letters}{string.digits}_. -"
#: What a name has that is one of a secret, and how one ends that is not.
_TELLING = re.compile(
    r"(?i)key|token|secret|passw|passphrase|auth|cred|api|access|private|pat(?![a-z])|login|dsn"
)
_ABOUT = re.compile(
    r"(?i)(?:ids?|sha[0-9]*|sum|hash|digest|commit|rev|revision|ref|version|url|uri|host|domain"
    r"|user|username|name|email|project|org|account|team|zone|file|path|region|bucket|image"
    r"|integrity|resolved|tag|branch|build|run|trace|request|session|uuid|guid|arn|slug|public"
    r"|publishable|fingerprint) *$"
)
_HASH = re.compile(r"[0-9a-fA-F-]+")
_CANDIDATE = re.compile(
    r"(?<=[\"'`= ])(?:[0-9a-f]{32,64}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|[A-Za-z0-9_-]{20,120}={0,2})(?![A-Za-z0-9_./:=-])"
)
#: What only a key follows, a hash or a UUID too: what stands before a vendor's name, and behind it.
_GIVEN = tuple(
    (re.compile(f"(?:{before})$"), re.compile(rf"{behind}\\*[\"'`]?"))
    for before, behind in (
        # new Vendor("..."), Vendor::Client.new('...'), Vendor.configure(with: "...")
        ("", r"[\w:\\.>$-]{0,40}\(\s*(?:with: ?)?(?=[\\\"'`])"),
        (r"(?:^|[\s\"'\[])--?[\w-]{0,20}", r"[\w-]{0,20}(?:[\"'], ?|[= ])"),  # --vendor ...
        (r"[\"'][Xx]-", r"[\w-]{0,20}[\"'], ?"),  # addHeader("X-Vendor", "...")
        (r"name=\\*[\"'][\w.:]{0,20}", r"[\w.:]{0,20}\\*[\"'] value="),
        (r"(?:^|[\s\"'])", r"(?i:_?client|_?api|_?py|ai|cloud|sdk)?="),  # VENDOR=...
    )
)


@cache
def near_gates() -> list[tuple[tuple[str, ...], str]]:
    """Return the names of vendors in groups, each with its gate."""
    names = sorted(_literals())
    groups = [tuple(names[at : at + 4]) for at in range(0, len(names), 4)]
    between = (
        r"(?:[a-z0-9_. -]*[\\\"'`\])]* *[:=,(][=>]? *[\\\"'`]*|[\w:.>$-]*\(\s*(?:with: ?)?[\\\"'`]+"
        r"|[\w-]*[ =][\\\"'`]*|[\w.:]*[\\\"']+ value=[\\\"']+)"
    )
    sign = "[a-z0-9_.+/=:%~-]"
    digit = f"(?:{sign}{{0,6}}[0-9]{sign}{{7}}|{sign}{{7,13}}[0-9]|{sign}{{13}}{sign}*[0-9])"
    rest = f"{between}{digit}"
    return [(group, f"(?:{'|'.join(map(re.escape, group))}){rest}") for group in groups]


#: Vendors without a row of the table.
_MORE = """
ably adyen agora airbyte algoliasearch alicloud anthropic aws axiom azure backblaze
blacksmith boto3 braintree bugsnag buildkite cerebras checkr chroma clerk cloudsmith
dagster dbt depot descope digitalocean easypost elasticsearch exa expo firecrawl
fireworks fivetran fly gcloud gemfury grafana groq honeybadger jina
koyeb lemonsqueezy loggly logtail meilisearch milvus mistralai mollie mux
neon northflank openrouter paddle papertrail perplexity planetscale posthog prefect propelauth
qcloud qdrant replicate resend semaphore sendgrid shippo statsig stytch
sumologic supabase temporal tencentcloud together turso typesense unleash wasabi weaviate workos
zilliz
"""


def _literals() -> set[str]:
    return {*_MORE.split(), *(name for row in read_rules()["near"] for name in row.literals)}


@cache
def _rows() -> dict[str, list[tuple[VendorRule, re.Pattern[str]]]]:
    """Return the rows of each vendor's name, compiled."""
    rows: dict[str, list[tuple[VendorRule, re.Pattern[str]]]] = {name: [] for name in _literals()}
    for row in read_rules()["near"]:
        for name in row.literals:
            rows[name].append((row, compile_kind(row.pattern)))
    return rows


@cache
def _sizes() -> list[int]:
    return sorted({len(name) for name in _rows()})


_BEGIN = re.compile(r"(?<![A-Za-z])[A-Za-z]|(?<=[a-z])[A-Z]|(?<![0-9])[0-9]")


def _vendors(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the names of vendors in a short text, with their places."""
    rows, lowered = _rows(), text.lower()
    for match in _BEGIN.finditer(text):
        at = match.start()
        for size in _sizes():
            name = lowered[at : at + size]
            if name in rows and _is_word(text, at, at + size):
                yield name, at, at + size


def near_kind(name: str, value: str) -> str:
    """Return the kind of a value by the vendor whose name is in its own; empty if it is none."""
    if not is_random(value, 14) or EXAMPLE.search(value) or _ABOUT.search(name):
        return ""
    telling = _TELLING.search(name) is not None
    for vendor, _, _ in _vendors(name):
        for row, pattern in _rows()[vendor]:
            # A hash stands by the name of a program too.
            if (
                (telling or not (row.named or _HASH.fullmatch(value)))
                and entropy(value) >= row.entropy
                and pattern.fullmatch(value)
            ):
                return row.kind
    return ""


def names_vendor(text: str) -> bool:
    """Return True if a text has the name of a vendor, of none that hosts repositories."""
    return any(name not in ("gitlab", "bitbucket", "gitea") for name, _, _ in _vendors(text))


def _is_word(name: str, start: int, end: int) -> bool:
    """Return True if no letter continues a vendor's name, but for a hump or a telling word."""
    before, after = name[start - 1 : start], name[end : end + 1]
    if before.isalpha() and not (before.islower() and name[start].isupper()):
        return False
    return not after.islower() or name[end - 1].isdigit() or _TELLING.match(name, end) is not None


def find_near(text: str) -> list[Finding]:
    """Return what a vendor's name gives away, in order."""
    return sorted((*_shaped(text), *_given(text)), key=lambda found: found.start)


def _shaped(text: str) -> Iterator[Finding]:
    """Yield values that have the shape of a vendor's keys, under a name with that vendor's."""
    for match in PLACE.finditer(text):
        value = match["value"].rstrip(".:")
        if not is_random(value, 14):
            continue
        before = text[max(0, match.start() - 80) : match.start()].rstrip(" ").rstrip("\\\"'`])")
        name = before[len(before.rstrip(_NAME_LETTERS)) :]
        if name and (kind := near_kind(name, value)):
            yield Finding(match.start("value"), match.start("value") + len(value), kind)


def _given(text: str) -> Iterator[Finding]:
    """Yield what a client, an option, a header or a setting of a vendor is given."""
    for match in _CANDIDATE.finditer(text):
        value, at = match[0], match.start()
        if text[at - 1 : at] == " " and "-" not in text[at - 40 : at - 2]:
            continue
        if is_random(value, 20) and is_given_secret(value) and not EXAMPLE.search(value):
            before = text[max(0, at - 100) : at]
            if any(_gives(before, start, end) for _, start, end in _vendors(before)):
                yield Finding(at, match.end(), "VENDOR_KEY")


def _gives(before: str, start: int, end: int) -> bool:
    """Return True if a vendor's name in ``before`` tells what stands behind that text."""
    rest = before[end:]
    if _ABOUT.search(rest.rstrip("\\\"'`(=, ")):
        return False
    return any(p.search(before[:start]) and behind.fullmatch(rest) for p, behind in _GIVEN)

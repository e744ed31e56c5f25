r"""Regenerate ``composer_pipeline/redaction/vendor_rules.json`` from public rule sets.

    python scripts/import_secret_rules.py --date 2026-11-25 \
        gitleaks=8.30.1:gitleaks.toml betterleaks=2.0.0:betterleaks.toml \
        kingfisher=1.112.0:kingfisher.json detect-secrets=1.5.0:detect_secrets/plugins

A source is ``NAME=VERSION:PATH`` of a local copy: the ``config`` file of gitleaks and of
betterleaks, what ``kingfisher rules list --format json`` prints, and the folder of plugins of
detect-secrets. Rules of the table itself (``own``) stay as they are and come first; of an earlier
import nothing stays. Each expression is rewritten in the syntax that ``re`` and Hyperscan share:

* a token with a shape of its own becomes a row of ``typed``, without the delimiter that must follow;
* the name of a vendor, an operator and a value become a row of ``near``: the name and the value.

What is left out is printed with the reason. Rows whose samples an earlier row finds are left out.
"""

import argparse
import ast
import json
import random
import re
import string
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from composer_pipeline.redaction.patterns import ESCAPED
from composer_pipeline.redaction.secrets import entropy
from composer_pipeline.redaction.vendors import PLACE, RULES_FILE, VendorRule, read_rules

LICENCES = {
    "gitleaks": "MIT, Copyright (c) 2019 Zachary Rice",
    "betterleaks": "MIT, Copyright (c) 2026 Zachary Rice",
    "kingfisher": "Apache-2.0, MongoDB, Inc.",
    "detect-secrets": "Apache-2.0, Yelp, Inc.",
}
#: Ids, hosts and names: public, or no secret by themselves.
PUBLIC = re.compile(
    r"(?i)\b(?:client|app|application|account|project|tenant|workspace|user|key|token|access|role)[\s_-]?ids?\b"
    r"|\bids?(?:$|\.\d)|\b(?:url|uri|host|hostname|domain|endpoint|namespace|user ?name|email|region|server url|tenant|subdomain"
    r"|organi[sz]ation|reference|recipient)\b(?! (?:webhook|api|token|read|update|access|secret))"
    r"|publish|\bpub(?:lic)?\b(?![ _-]api)|client-side|\bsite key|browser"
)
#: What other rules of the package find, or what is too common to be a secret: by id.
ELSEWHERE = {
    "jwt": "the rule JWT", "jwt-base64": "decoded", "private-key": "the rule PRIVATE_KEY",
    "generic-": "names and positions", "curl-": "commands", "kubernetes-secret": "structure",
    "hashicorp-tf-password": "names", "nuget-config": "positions", "sidekiq": "positions",
    "auth.": "headers", "uri.": "URLs", "jdbc.": "URLs", "credentials.": "names", "generic.": "names",
    "ldap.": "names", "mariadb.": "names", "wincmd.": "commands", "vmware.": "commands",
    "maven.": "positions", "gradle.": "positions", "netrc.": "positions", "curl.": "commands",
    "pkcs12": "a file", "gcp-application": "names", "gcp-service": "the rule PRIVATE_KEY",
    "mongodb-connection": "URLs", "pem.": "the rule PRIVATE_KEY", "privkey.": "the rule PRIVATE_KEY",
    "aws-secret-access-key": "the rule aws_secret", "aws.2": "the rule aws_secret",
    "bip39": "the rule mnemonic", "mnemonic": "the rule mnemonic", "pwhash": "the rule password_hash",
    "krb5": "the rule password_hash", "wireguard": "names", "unattend": "positions",
    "age.1": "public", "age.3": "public", "unkey.2": "key_ begins ordinary names",
    "box-api-access-token": "box is a word", "linkedin": "too short", "hcaptcha.1": "addresses on a chain",
    "twilio.1": "the rule twilio", "sumologic-access-id": "public", "posthog-project-api-key": "public",
    "mapbox-api-token": "public", "mapbox.1": "public", "lob-pub": "public", "flutterwave-public": "public",
    "mailgun-pub-key": "public", "langfuse-public": "public", "langfuse.2": "public", "google.1": "public",
    "facebook-access-token": "a number and a word", "zhipu.1": "a hash and a word",
    "polymarket-address": "an address on a chain",
    "cisco.4": "no secret", "rabbitmq": "URLs", "travisci.2": "encrypted", "coinbase.2": "the rule PRIVATE_KEY", "coinbase.3": "positions",
    "google.6": "public", "airtable-oauth": "any path", "airtable.2": "any path", "sentry.4": "public",
    "posthog.1": "public", "courier": "publishable keys look alike", "crossmint.2": "public", "devcycle-client": "public",
    "devcycle-mobile": "public", "devcycle.": "public", "razorpay.1": "public", "razorpay.2": "public", "pubnub": "public",
    "localstack": "simulated", "discord.4": "any word", "imagekit": "private_ begins ordinary names", "temporal": "the rule JWT",
    "lemonsqueezy": "the rule JWT", "carto.": "the rule JWT", "artifactory.": "its delimiters are part of it",
    "azure_storage": "the rule azure_key", "slack.": "the rule SLACK_TOKEN", "firebase.2": "a device", "salesforce.2": "public", "salesforce.7": "public",
    "gitlab-session": "the rule cookies", "gitlab.15": "the rule cookies", "blynk": "URLs", "viewstate": "names", "gitalk": "names",
    "softlayer": "a URL", "azurecommunication": "positions", "cloudant": "a URL", "gemfury": "a URL", "particleio": "a URL", "thingsboard": "positions",
    "truenas.1": "positions", "azure.2": "positions", "azure-app-config": "positions", "azure.9": "names", "azure.10": "the rule JWT",
    "azurespeech": "common words", "azuremixed": "common words", "cloudinary-api-key": "public", "gcs": "common words",
    "ghost": "a common word", "onelogin": "names", "godaddy": "headers", "kubernetes.": "names", "aws.4": "names",
}  # fmt: skip
#: Names that are words of prose or of code, or of services whose tokens have shapes of their own.
COMMON = frozenset(
    """
    key secret token access auth app api line box linear loops poly wiz hunter monday hex fal guardian
    client tenant account account_id password credential credentials live test notification hub ic mid
    mg zd zt cl bx keen private public security sts vault hashicorp github gitlab gh google azure aws amazon
    amzn microsoft docker slack stripe openai anthropic npm pypi uber ghost target here shared event data
    cosmos cognitive apim batch storage endpoint unseal role_id secret_id role server message project
    jenkins kubernetes bootstrap secret_key app_key consumer application bearer session user basic paradigm
    validation decryption new content one https http params mixed remote spatial speech arm graph aad appid cio
    customer daily drone packet exa forest goog branch clay fixer channels beams segment stream surge sauce vast wiki
    kafka ocp sso cli eth evm duo delighted eraser jss zoom entra crates xray sonar news weather geo speech abstract
    abstract_api true graph packet wpe limina mg ably agora alchemy apollo bamboo clearout iterable pendo strava waka_
    instantly endor elastic wechat beamer stability tn_ voyage mux glm zai z_ai z.ai key_ fs_api sf_ token-id
    x-api-key pat_token pat ghp ring woo lob fastspring hub_ api_key apikey sandbox production ibm miro quora
    planetscale ark apollo kraken facebook privacy flow swift travis codacy checkout square ship render
    """.split()
)

# -- the syntax of others --------------------------------------------------------------------

_POSIX = {
    "alnum": "A-Za-z0-9", "alpha": "A-Za-z", "digit": "0-9", "xdigit": "A-Fa-f0-9", "upper": "A-Z",
    "lower": "a-z", "space": r"\s", "word": r"\w", "blank": " ", "punct": "!-/",
}  # fmt: skip
_TOKENS = re.compile(
    r"(?P<posix>\[:(?P<name>[a-z]+):\])|(?P<escape>\\(?:x\{[0-9A-Fa-f]+\}|.))"
    r"|(?P<comment>\(\?#[^)]*\))|(?P<flags>\(\?[a-zA-Z-]+\))|(?P<named>\(\?P?<(?![=!])(?P<group>\w+)>)"
    r"|(?P<open>\()|(?P<close>\))|(?P<set>\[\^?\]?)|(?P<end>\])|(?P<white>\s)|(?P<hash>\#[^\n]*)|(?P<other>.)",
    re.DOTALL,
)


def to_python(source: str) -> str:
    """Return an expression of RE2 or Rust in the syntax of ``re``."""
    out: list[str] = []
    opened = [0]  # groups that flags opened, by depth
    verbose = inside = False
    for token in _TOKENS.finditer(source):
        text, kind = token[0], token.lastgroup
        if token["posix"]:
            out.append(_POSIX[token["name"]])
        elif token["escape"]:
            out.append(
                {r"\z": r"\Z", r"\ ": "[ ]" if not inside else " ", r"\#": "#"}.get(text, text)
            )
        elif inside:
            inside = kind != "end"
            out.append(text if kind != "set" else "\\[")
        elif token["comment"] or (verbose and (kind == "white" or kind == "hash")):
            continue
        elif token["flags"]:
            flags = text[2:-1]
            verbose = verbose or "x" in flags.partition("-")[0]
            if flags := flags.replace("x", "").strip("-"):
                out.append(f"(?{flags}:")
                opened[-1] += 1
        elif token["named"] or token["open"]:
            opened.append(0)
            out.append("(" if token["named"] else text)
        elif token["close"]:
            out.append(")" * opened.pop() + ")")
        elif token["set"]:
            inside = True
            out.append(text)
        else:
            out.append(text)
    return "".join(out) + ")" * opened[0]


# -- back from the tree ----------------------------------------------------------------------

_CLASSES = {
    "CATEGORY_DIGIT": r"0-9", "CATEGORY_WORD": r"A-Za-z0-9_", "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_NOT_WORD": r"\W", "CATEGORY_NOT_DIGIT": r"\D",
}  # fmt: skip


class LeftOutError(Exception):
    """A rule cannot be imported; the message says why."""


def expression(tree: Any, folded: bool = False) -> str:
    """Return the expression of a parsed tree; with ``folded`` letters stand for both cases."""
    return "".join(_piece(str(code), argument, folded) for code, argument in tree)


def _piece(code: str, argument: Any, folded: bool) -> str:
    if code == "LITERAL":
        return re.escape(chr(argument))
    if code == "IN":
        return _set(argument, folded)
    if code in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, body = argument
        inner = expression(body, folded)
        if len(body) > 1 or str(body[0][0]) not in ("LITERAL", "IN", "SUBPATTERN", "BRANCH"):
            inner = f"(?:{inner})"
        return inner + _times(int(low), high)
    if code == "SUBPATTERN":
        _, add, drop, body = argument
        folded = (folded or bool(add & re.I)) and not drop & re.I
        inner = expression(body, folded)
        return inner if len(body) == 1 and str(body[0][0]) != "BRANCH" else _grouped(inner)
    if code == "BRANCH":
        return _grouped("|".join(expression(branch, folded) for branch in argument[1]))
    if code in ("ASSERT", "ASSERT_NOT"):
        direction, body = argument
        sign = (
            ("=" if code == "ASSERT" else "!")
            if direction > 0
            else ("<=" if code == "ASSERT" else "<!")
        )
        return f"(?{sign}{expression(body, folded)})"
    if code == "AT":
        return ""  # an edge; the row has its own
    raise LeftOutError(f"{code.lower()} in the value")


def _grouped(inner: str) -> str:
    return (
        inner
        if inner.startswith("(?:") and inner.endswith(")") and inner.count("(") == 1
        else f"(?:{inner})"
    )


def _times(low: int, high: Any) -> str:
    if high is codes.MAXREPEAT:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    if (low, int(high)) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == int(high) else f"{{{low},{int(high)}}}"


def _set(items: Any, folded: bool) -> str:
    parts: list[str] = []
    for code, argument in items:
        name = str(code)
        if name == "NEGATE":
            raise LeftOutError("anything but some signs is its value")
        if name == "LITERAL":
            letter = chr(argument)
            parts.append(letter)
        elif name == "RANGE":
            low, high = map(chr, argument)
            parts.append(f"{low}-{high}")
            if folded and low.isalpha():
                parts.append(f"{low.swapcase()}-{high.swapcase()}")
        else:
            parts.append(_CLASSES[str(argument)])
    parts = list(dict.fromkeys(parts))
    if parts == ["0-9"]:
        return "[0-9]"
    ordered = [p for p in ("A-Z", "a-z", "A-F", "a-f", "A-Za-z0-9_", "0-9") if p in parts]
    if "A-Z" in ordered:
        ordered = [p for p in ordered if p != "A-F"]
    if "a-z" in ordered:
        ordered = [p for p in ordered if p != "a-f"]
    rest = [p for p in parts if p not in ("A-Z", "a-z", "A-F", "a-f", "A-Za-z0-9_", "0-9")]
    last = "-" if "-" in rest else ""
    return (
        "["
        + "".join(ordered)
        + "".join(re.escape(p) if len(p) == 1 and p in "\\]^[" else p for p in rest if p != "-")
        + last
        + "]"
    )


# -- samples ---------------------------------------------------------------------------------

_ALL = string.ascii_letters + string.digits + "_-+/=.~!@$%&* "


def sample(pattern: str, rng: random.Random) -> str:
    """Return a random text that an expression matches, look-arounds aside."""
    return _random(parser.parse(pattern), rng)


def _random(tree: Any, rng: random.Random) -> str:
    return "".join(_random_piece(str(code), argument, rng) for code, argument in tree)


def _random_piece(code: str, argument: Any, rng: random.Random) -> str:
    if code == "LITERAL":
        return chr(argument)
    if code == "IN":
        letters = _letters(expression([(codes.IN, argument)]))
        return rng.choice(letters)
    if code in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, body = argument
        times = int(low) + (
            0 if int(low) > 7 or high == low else rng.randint(0, min(int(high) - int(low), 2))
        )
        return "".join(_random(body, rng) for _ in range(times))
    if code == "SUBPATTERN":
        return _random(argument[-1], rng)
    if code == "BRANCH":
        return _random(rng.choice(argument[1]), rng)
    return ""


@lru_cache
def _letters(of: str) -> str:
    """Return the letters and digits of a set, else its signs."""
    found = "".join(re.findall(of, _ALL))
    return re.sub(r"\W|_", "", found) or found or "-"


def _holds(letter: str, items: Any) -> bool:
    return re.fullmatch(expression([(codes.IN, items)]), letter) is not None


# -- rules -----------------------------------------------------------------------------------


@dataclass
class Source:
    """A rule as its set has it."""

    id: str
    name: str
    regex: str
    keywords: list[str] = field(default_factory=list)
    entropy: float = 0.0


def gitleaks(path: Path) -> Iterator[Source]:
    """Yield the rules of gitleaks or betterleaks."""
    for rule in tomllib.loads(path.read_text())["rules"]:
        found = re.search(r"entropy\([^)]*\) <=? ([0-9.]+)", rule.get("filter", ""))
        least = float(found[1]) if found else float(rule.get("entropy", 0))
        if "regex" in rule:
            yield Source(rule["id"], rule["id"], rule["regex"], rule.get("keywords", []), least)


def kingfisher(path: Path) -> Iterator[Source]:
    """Yield the rules of Kingfisher."""
    for rule in json.loads(path.read_text()):
        name = re.sub(r"\([^)]*\)", "", rule["name"])
        yield Source(rule["id"].removeprefix("kingfisher."), name, rule["pattern"], [], 3.0)


def detect_secrets(path: Path) -> Iterator[Source]:
    """Yield the expressions that the plugins of detect-secrets compile as they stand."""
    for file in sorted(path.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "re.compile":
                continue
            text = node.args[0] if node.args else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                fold = "(?i)" if "IGNORECASE" in ast.unparse(node) else ""
                yield Source(f"{file.stem}.", f"{file.stem} token", fold + text.value, [], 3.0)


READERS = {
    "gitleaks": gitleaks, "betterleaks": gitleaks, "kingfisher": kingfisher,
    "detect-secrets": detect_secrets,
}  # fmt: skip


def _kind(rule: Source) -> str:
    words = re.sub(r"\.\d+$", "", rule.name).upper()
    kind = re.sub(r"[^A-Z0-9]+", "_", words).strip("_")
    kind = re.sub(r"^(\d)", r"N\1", kind)[:40].strip("_")
    return (
        kind
        if re.search(r"KEY|TOKEN|SECRET|PASS|WEBHOOK|PAT$|CREDENTIAL|HASH", kind)
        else f"{kind}_KEY"[:40]
    )


def _seen(before: Any) -> Any:
    """Return the nodes of a tree that are no edge, delimiter or optional name."""
    for code, argument in before:
        name = str(code)
        if name in ("AT", "ASSERT", "ASSERT_NOT"):
            continue
        if name == "IN" or (name == "SUBPATTERN" and _is_edge(argument[-1])):
            continue
        if name == "MIN_REPEAT" or (name == "MAX_REPEAT" and int(argument[0]) == 0):
            continue
        yield code, argument


def _is_edge(tree: Any) -> bool:
    if len(tree) == 1 and str(tree[0][0]) == "BRANCH":
        return all(_is_edge(branch) for branch in tree[0][1][1])
    return all(str(code) in ("AT", "IN") for code, _ in tree)


def _flat(tree: Any, folded: bool) -> Iterator[tuple[Any, Any, bool]]:
    """Yield the nodes of a sequence, those of plain groups in it too, and whether case counts."""
    for code, argument in tree:
        if str(code) == "SUBPATTERN" and argument[0] is None:
            inner = (folded or bool(argument[1] & re.I)) and not argument[2] & re.I
            yield from _flat(argument[-1], inner)
        else:
            yield code, argument, folded


def split(pattern: str) -> tuple[Any, Any, bool]:
    """Return what stands before the secret, the secret, and whether its letters are of any case."""
    nodes = list(_flat(parser.parse(pattern), False))
    groups = [n for n, (code, argument, _) in enumerate(nodes) if str(code) == "SUBPATTERN"]
    wide = [n for n in groups if _width(nodes[n][1][-1]) >= 8]
    if not wide:
        if groups or any(
            str(code) == "BRANCH" and "SUBPATTERN" in str(argument) for code, argument, _ in nodes
        ):
            raise LeftOutError("its alternatives hold secrets apart")
        return [], [(c, a) for c, a, _ in nodes], any(folded for *_, folded in nodes)
    at = wide[-1]
    _, argument, folded = nodes[at]
    folded = (folded or bool(argument[1] & re.I)) and not argument[2] & re.I
    return [(c, a) for c, a, _ in nodes[:at]], argument[-1], folded


def _width(tree: Any) -> int:
    return int(parser.SubPattern(parser.State(), list(tree)).getwidth()[0])


def _spellings(tree: Any) -> tuple[list[str], bool]:
    """Return the texts with which a tree begins, and whether these are all of it."""
    found = [""]
    for code, argument in tree:
        name = str(code)
        more: list[str] | None = None
        whole = True
        if name == "AT":
            continue
        if name == "LITERAL":
            more = [chr(argument)]
        elif name == "IN":
            letters = [c for c in _ALL + " " if _holds_any(c, argument)]
            more = letters if 0 < len(letters) <= 4 else None
        elif name == "SUBPATTERN":
            more, whole = _spellings(argument[-1])
        elif name == "BRANCH":
            parts = [_spellings(branch) for branch in argument[1]]
            more, whole = [text for texts, _ in parts for text in texts], all(w for _, w in parts)
        elif name == "MAX_REPEAT" and int(argument[0]) == int(argument[1]) <= 8:
            more, whole = _spellings(list(argument[2]) * int(argument[0]))
        elif name == "MAX_REPEAT" and int(argument[1]) == 1:
            texts, whole = _spellings(argument[2])
            more = ["", *texts]
        if more is None or len(found) * len(more) > 64:
            return found, False
        found = [a + b for a in found for b in more]
        if not whole:
            return found, False
    return found, True


def _holds_any(letter: str, items: Any) -> bool:
    try:
        return _holds(letter, items)
    except LeftOutError:
        return False


def _names(before: Any) -> tuple[list[str], bool]:
    """Return the names of a vendor, and whether a word such as `key` must follow."""
    nodes = list(before)
    while nodes and (str(nodes[0][0]) != "LITERAL" and not list(_seen(nodes[:1]))):
        nodes = nodes[1:]
    texts, _ = _spellings(nodes)
    texts = [re.sub(r"[^a-z0-9]+$", "", text.lower()) for text in texts]
    telling = re.compile(r"key|token|secret|password|auth|private")
    named = any(telling.search(text) for text in texts) or bool(
        telling.search(_literals_of(nodes).lower())
    )
    names = {_TOLD.split(text)[0] for text in texts}
    names = {re.sub(r"^[^a-z0-9]+|[^a-z0-9]+$", "", name) for name in names}
    telling = re.compile(r"[=/\"]|(?:key|secret)$")
    return sorted(
        n for n in names if len(n) > 2 and n not in COMMON and not telling.search(n)
    ), named


_TOLD = re.compile(
    r"[^a-z0-9]+(?:api|key|token|secret|client|access|oauth|personal|auth|agent|user|private|password"
    r"|app|admin|storage|account|login|master|team|write|security|session|service|core|org|event)(?![a-z]{3})"
)


def _literals_of(tree: Any) -> str:
    out = ""
    for code, argument in tree:
        name = str(code)
        if name == "LITERAL":
            out += chr(argument)
        elif name == "SUBPATTERN":
            out += " " + _literals_of(argument[-1])
        elif name == "BRANCH":
            out += " ".join(_literals_of(branch) for branch in argument[1])
        elif name.endswith("REPEAT"):
            out += " " + _literals_of(argument[2])
    return out


def _literals(tree: Any) -> list[str]:
    """Return texts of which one begins a token."""
    texts, _ = _spellings(tree)
    shortest = min(map(len, texts))
    if shortest < 3 or texts[0].startswith(("https://", "http://", "-----")):
        return []
    return sorted(set(texts)) if len(texts) <= 16 else sorted({text[:shortest] for text in texts})


def _inner_literal(tree: Any) -> list[str]:
    """Return the longest text that stands inside every token."""
    runs, run = [""], ""
    for code, argument, _ in _flat(tree, False):
        run = run + chr(argument) if str(code) == "LITERAL" else ""
        runs.append(run)
    best = max((run for run in runs if not run.startswith("http")), key=len)
    return [best] if len(best) >= 4 else []


def convert(rule: Source, source: str) -> tuple[str, VendorRule]:
    """Return the list that a rule belongs to, and its row."""
    for start, why in ELSEWHERE.items():
        if rule.id.startswith(start):
            raise LeftOutError(why)
    if PUBLIC.search(rule.id.replace("-", " ")) or PUBLIC.search(rule.name.replace("-", " ")):
        raise LeftOutError("public or no secret")
    before, secret, folded = split(to_python(rule.regex))
    value = expression(secret, folded)
    literals = _literals(secret)
    telling = [text for text in literals if len(text) >= 4 and not text.isdigit()]
    signed = all(re.search(r"[^a-zA-Z0-9]", text) or len(text) >= 5 for text in telling)
    if telling and len(telling) == len(literals) and (signed or not list(_seen(before))):
        return "typed", VendorRule(
            _kind(rule),
            tuple(literals),
            _bounded(literals, value),
            "",
            max(rule.entropy, 2.5),
            False,
            source,
        )
    if not list(_seen(before)):
        literals = literals or _inner_literal(secret)
        if not literals or min(map(len, literals)) < 3:
            raise LeftOutError("no letters that tell it from other values")
        return "typed", VendorRule(
            _kind(rule),
            tuple(literals),
            _bounded(literals, value),
            "",
            max(rule.entropy, 2.5),
            False,
            source,
        )
    names, named = _names(before)
    if not names:
        raise LeftOutError("its name is a common word, or none")
    if _width(secret) < 14:
        raise LeftOutError("its value is short")
    if re.search(r"\\s|\\S|\\W|\\D|:/", value):
        raise LeftOutError("its value may be anything")
    if not re.search(r"[A-Za-z]", re.sub(r"\\.", "", value)):
        raise LeftOutError("its value is a number")
    return "near", VendorRule(
        _kind(rule), tuple(names), value, "", max(rule.entropy, 3.0), named, source
    )


def _bounded(literals: list[str], value: str) -> str:
    """Return the expression of a token between its edges; it begins with its letters if it can."""
    end = (
        ""
        if value.endswith(("}", "+", "*", "?", "]")) and "," in value[-8:] and value[-2] == ","
        else "(?![A-Za-z0-9])"
    )
    if end and re.search(r"_[^\]]*-\](?:\{\d+(?:,\d+)?\})?$", value):
        end = "(?![A-Za-z0-9_-])"
    one = re.escape(literals[0]) if len(literals) == 1 else ""
    if one and value.startswith(one):
        return f"{one}(?<![A-Za-z0-9_-]{one}){value[len(one) :]}{end}"
    return f"(?<![A-Za-z0-9_-]){value}{end}"


#: What stands before a token, in JSON source.
_EDGE = rf"(?:[^a-z0-9_-]|{ESCAPED})"


def _gate(row: VendorRule) -> str:
    """Return the gate of a token whose letters are too few to be told from other words.

    A break may stand anywhere in a token; in JSON it begins with a backslash or a quote.
    """
    if min(map(len, row.literals)) > 5 or not row.pattern.startswith(
        ("(?<![A-Za-z0-9_-])", re.escape(row.literals[0]))
    ):
        return ""
    if any(literal not in _beginnings(row.pattern) for literal in row.literals):
        return ""
    least = min(12, _width(parser.parse(row.pattern)) - max(map(len, row.literals)))
    signs = r"[a-z0-9_.+/=:~!|-]"
    return (
        rf"{_EDGE}(?:{'|'.join(map(re.escape, row.literals))})(?:{signs}{{{least}}}|{signs}*[\\'])"
    )


def _beginnings(pattern: str) -> list[str]:
    return _literals(
        [n for n in parser.parse(pattern) if str(n[0]) not in ("ASSERT", "ASSERT_NOT")]
    )


def _can_stand_near(value: str) -> bool:
    return any(m["value"] == value for m in PLACE.finditer(f'x = "{value}"'))


_compiled = lru_cache(maxsize=None)(re.compile)


def _covered(kind: str, row: VendorRule, rows: Iterable[VendorRule], rng: random.Random) -> str:
    """Return the kind of an earlier row that finds what this one would."""
    samples = [sample(row.pattern, rng) for _ in range(6)]
    for other in rows:
        if kind == "near":
            names = all(any(o in name for o in other.literals) for name in row.literals)
            if names and all(_compiled(other.pattern).fullmatch(text) for text in samples):
                return other.kind
        elif all(
            (m := _compiled(other.pattern).search(f" {text} ")) and len(m[0]) >= 0.8 * len(text)
            for text in samples
        ):
            return other.kind
    return ""


def main() -> int:
    """Rewrite the table and print what was left out."""
    about = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    about.add_argument("--date", required=True, help="of the copies, as 2026-11-25")
    about.add_argument("sources", nargs="+", metavar="NAME=VERSION:PATH")
    arguments = about.parse_args()
    rng = random.Random(0)  # noqa: S311  samples, no secrets
    old = json.loads(RULES_FILE.read_text())
    lists = {
        name: [row for row in rows if row.source == "own"] for name, rows in read_rules().items()
    }
    out: Counter[str] = Counter()
    versions = {}
    for text in arguments.sources:
        name, _, rest = text.partition("=")
        version, _, path = rest.partition(":")
        versions[name] = {"version": version, "licence": LICENCES[name]}
        taken = Counter[str]()
        for rule in READERS[name](Path(path)):
            try:
                of, row = convert(rule, name)
                if earlier := _covered(of, row, lists[of], rng):
                    raise LeftOutError(f"covered by {earlier}")
                if of == "near" and not _can_stand_near(sample(row.pattern, rng)):
                    raise LeftOutError("its value has other signs")
                if entropy(sample(row.pattern, rng)) < row.entropy - 0.3:
                    raise LeftOutError("its entropy is higher than its values have")
            except (LeftOutError, re.error) as why:
                print(f"{name} {rule.id}: {why}")
                out["covered" if str(why).startswith("covered") else str(why)] += 1
                continue
            number = sum(
                re.fullmatch(rf"{row.kind}(?:_\d+)?", other.kind) is not None for other in lists[of]
            )
            if of == "typed" and number:
                row = replace(row, kind=f"{row.kind}_{number + 1}")
            lists[of].append(replace(row, gate=_gate(row)) if of == "typed" else row)
            taken[of] += 1
        print(f"{name} {version}: {dict(taken)}", file=sys.stderr)
    print(dict(out.most_common(12)), file=sys.stderr)
    write({**old, "date": arguments.date, "sources": versions}, lists)
    return 0


def _filled(row: VendorRule) -> dict[str, Any]:
    every = {name: getattr(row, name) for name in VendorRule.__slots__}
    return {name: value for name, value in every.items() if value}


def write(head: dict[str, Any], lists: dict[str, list[VendorRule]]) -> None:
    """Write the table, one row a line."""
    lines = ["{"]
    for name in ("about", "date", "sources"):
        lines.append(f"{json.dumps(name)}: {json.dumps(head[name])},")
    for name, rows in lists.items():
        kept = [json.dumps(_filled(row), ensure_ascii=False) for row in rows]
        lines += [
            f"{json.dumps(name)}: [",
            ",\n".join(kept),
            "]," if name != list(lists)[-1] else "]",
        ]
    RULES_FILE.write_text("\n".join([*lines, "}"]) + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""Random tokens of any vendor, with or without a prefix: evidence that adds up to a score."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from composer_pipeline.redaction.decodings import decoded_runs
from composer_pipeline.redaction.patterns import LINE_HEAD
from composer_pipeline.redaction.secrets import EXAMPLE, Finding, is_placeholder
from composer_pipeline.redaction.vendors import names_vendor

#: A candidate of this score is replaced;
REPLACE = 6.0
#: one of this score is for a person to judge.
REVIEW = 4.5

#: What every token has, in the syntax of `re` and Hyperscan: cases and digits that follow each
#: other as in hardly any name, or a digit behind many letters; or digits and letters of one case, behind a joint or a telling word.
TOKEN_GATE = (
    r"(?-i:[0-9][a-z]{1,4}[A-Z]|[a-z][A-Z]{1,6}[0-9]|[A-Z][0-9]{1,2}[a-z]|[a-z][0-9]{1,2}[A-Z]|[A-Za-z]{15}[0-9])"
    r"|[_.-][a-z]{0,9}[0-9][a-z0-9]{9}"
    r"|(?:token|secret|credential|passw|passphrase|pwd|bearer|auth|login|key).{1,120}[0-9][a-z0-9]{10}"
)  # fmt: skip
# A character is up to four bytes of JSON.
_GATED = re.compile(f"(?is){TOKEN_GATE.replace('120', '30')}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# fmt: off
# Parts of prefixes: of keys, of those the surest, of ids, and of what is public.
_KEYS = _words("sk rk ak key keys apikey token tokens tok tkn pat secret sec pwd passwd pass cred creds priv oauth bearer auth live sat api bot hook webhook svc sa"
               " svcacct pt access refresh admin service")
_SURE = _words("sk rk key apikey token tok tkn pat secret pwd")
_IDS = _words("toolu srvtoolu msg req request call run evt event cus price prod sub si pi ch in il pm seti cs txn tx acct ba re card src po tr ii prj project team dpl"
              " deployment org organization user usr sess session thread asst file chatcmpl cmpl resp gen batch vs ftjob conv item step trace span job task build snapshot"
              " img image asset chunk commit rev sha sha1 sha256 sha384 sha512 md5 hash etag digest checksum v h1 layer blob tree node ws wf flow app site page doc folder"
              " dir tmp temp cache i vpc subnet sg ami eni vol snap rtb acl eipalloc ocid1 arn id uid uuid guid ref index main vendor bundle runtime styles entry env"
              " branch feature fix release version urn pod")
_OPEN = _words("pk pub public publishable phc anon age1 npub npub1 xpub ssh did test tests example sample dummy fake mock demo")
# Words before a candidate; and before a word for a key, of what is public and what is secret.
_TELLING = _words("token tokens tok secret secrets credential credentials cred creds password passwort passwd passphrase pwd apikey bearer auth authorization login")
_PUBLIC = _words("sha sha1 sha256 sha384 sha512 md5 crc commit commits hash hashes digest integrity resolved etag checksum checksums sum id ids uuid guid trace span"
                 " version nonce cache rev revision ref refs tree parent blob object layer image fingerprint signature public publishable pubkey sitekey address wallet contract"
                 " tx txn block cursor page build chunk asset bundle font icon file path url href src slug branch tag name thumbprint h1 merge kty crv kid n x5c x5t")
_KEY = _words("key keys token tokens")
# Of what somebody logs in with; a random word behind one is rarely an id.
_LOGIN = _words("admin phrase root")
_PUBLIC_KEYS = _words("public cache primary foreign sort partition object publishable ssh host storage query group page next continuation cancel max design translation")
_SECRET_KEYS = _words("api access private secret signing encryption master license deploy")
_STOP = _words("is are was the a an of for to in on my our your this that it use with new value now as and be will")

# Ids of a known form: Anthropic, Stripe, ULID and TypeID, cuid, MongoDB; wallets, IPFS; public keys.
_ID = re.compile(r"01[A-Za-z0-9]{22}|[13][A-Z][A-Za-z0-9]{22}|(?i:[0-7][0-9a-hjkmnp-tv-z]{25})|c[a-z0-9]{24}|[0-9a-f]{24}"
                 r"|0x[0-9a-fA-F]{40,64}|Qm[1-9A-HJ-NP-Za-km-z]{44}|baf[a-z2-7]{50,}|AAAA[A-Z].*|M(?:II|IG|[A-Z][A-Za-z]w).*")
# By far the most frequent ids, and traces.
_PLAIN = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?:toolu|msg|req)_01[A-Za-z0-9]{22}|00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")
# Bits that a letter costs behind another, each a hexadecimal digit: 27 rows of 27, of `a` to `z` and the edge of a word, counted in
# the words of Python's standard library, which is code and English. `tests/redaction/test_tokens.py` makes it again.
_COSTS = (
    "a544a76a5b6343b5b34366776b63757389a45a37846b5573abb4943a6939a35e447928a57359ab7d45895289a3aa69849b65759aa7d1584365797ca55385733496757c24977449b2cc59838b4654bac6d3"
    "5a8929754ec57568f546589ca912a982ab93f98783ae5756cbd8b35645555d9c844246a543c5d7f674b6928b96b689a27b86a2bab8b3597728793b95957897476a5e8c23885279a3ca39847d855588d4c3"
    "25972aba4d875833f9575bcd8e3494446395b779648a94366ac7c27654766a6c654254e3544558aa43a8738a75f939934a3645a8c5e3887799999ac798986669099acc34866276a4d775548e544688c5d3"
    "6b6838854c778855a9434a8b6c2496738b33ea68957d4455a7a6a25556466b5eb34374e333abc9dc6298a199a3ec98859d889a99aab4388739a32cb6a449c459ab79dc3473746a73eb77a73e8628894792"
    "9779699b5fc76564d744a86b991497817a93cc77848c9788c9c78445444465487545548434565889f"
)
# fmt: on
_COST = [[int(bits, 16) for bits in _COSTS[at : at + 27]] for at in range(0, 729, 27)]
_EDGE = 26
_LONGEST = 256
#: A digit by letters, with more behind it; or the first behind many letters.
_SEED = re.compile(
    r"[0-9](?:(?<=[A-Za-z_.-][0-9])|(?=[A-Za-z]))[A-Za-z0-9_-]{4}|[0-9](?<=[A-Za-z]{15}[0-9])"
)
_RUN = re.compile(r"[A-Za-z0-9_.~+/-]*")
_PIECE = re.compile(r"[^/+]{16,256}")
_PART = re.compile(r"[A-Za-z0-9]+")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9]{0,11}")
_BASE64 = re.compile(r"(?=.*[+/])[A-Za-z0-9+/]+")
_HEX = re.compile(r"(?=.*[0-9])(?:[0-9a-f]+|[0-9A-F]+)")
_WORD = re.compile(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+[0-9]*")
_POINT = re.compile(r"[\"'][xy]\\*[\"']: ?\\*[\"']$|\n[xy]\n$")  # of a JSON Web Key
_CAMEL = re.compile(r"[A-Z][a-z]{2,}|[a-z]{4,}")
_PLACEHOLDER = re.compile(r"\[?[A-Z0-9_]+_[0-9a-f]{4}\]")
_QUOTED = re.compile(r"(?P<call>[\w.]\(\s*(?:[^()\n]*,\s*)?)?[frbu]?\\*[\"'`]$")
_ASSIGNED = re.compile(r"(?P<variable>(?:^|\s)[A-Z][A-Z0-9_]*)?(?:[=:|]|=>)\s?$")
_FREE = re.compile(r"(?:^|[\s\"'`=:(\[<>,|@/#])\0(?:[\s\"'`,.;:)\]}<&|\\?!/]|$)")
_HEAD = re.compile(rf"{LINE_HEAD}[ \t]*(?:[-*] )?")
_EXTENSION = re.compile(r"\.[a-z]{1,5}[0-9]?\b")
_PAYLOAD = re.compile(rf"(?m)^{LINE_HEAD}[ \t]*[\"']?[A-Za-z0-9+/=]{{48,}}(?=[\"', +)\\]*$)")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A run of characters that may be a token: ``text[start:end]``."""

    start: int
    end: int
    score: float
    evidence: tuple[str, ...]


def find_tokens(text: str) -> Iterator[Finding]:
    """Yield what is replaced."""
    return (Finding(s.start, s.end, "TOKEN") for s in _scored(text) if s.score >= REPLACE)


def suspects(text: str) -> list[Suspect]:
    """Return what is left for a person to judge."""
    return [found for found in _scored(text) if REVIEW <= found.score < REPLACE]


def surprise(text: str) -> float:
    """Return the bits a letter or digit of ``text`` costs where code and English are expected.

    Words cost about 4 bits, hexadecimal digits about 5, random letters and digits about 7.
    """
    total, before, upper, digit = 0.0, _EDGE, True, False
    for char in text:
        at, capital = (ord(char) | 32) - 97, char.isupper()
        if char.isdigit():
            total += 3.3 if digit else 4.3 + _COST[before][_EDGE] * (before != _EDGE)
            at = _EDGE
        elif capital and not upper and before != _EDGE:
            total += _COST[before][_EDGE] + _COST[_EDGE][at]
        else:
            total += _COST[before][at] + digit
        before, upper, digit = at, capital, at == _EDGE
    return total / max(1, len(text))


def _scored(text: str) -> Iterator[Suspect]:
    """Yield candidates: in runs of characters of tokens, paths and names around what looks random."""
    done = 0
    while seed := _SEED.search(text, done):
        at = seed.start()
        before, run = _RUN.match(text[max(done, at - _LONGEST) : at][::-1]), _RUN.match(text, at)
        start, done = at - (before.end() if before else 0), run.end() if run else at + 1
        if text[start - 1 : start] == "\\" and text[start] in "nrt":
            start += 1  # the letter of an escape
        if done - start >= 16 and not _PLAIN.fullmatch(text, start, done):
            yield from _candidates(text, start, done)


def _candidates(text: str, start: int, end: int) -> Iterator[Suspect]:
    """Yield what may be a token in a run; base64 is one, the pieces of a path are several."""
    run = text[start:end]
    if _BASE64.fullmatch(run):
        joined = "".join(_PART.findall(run[:_LONGEST]))
        if _is_mixed(joined) and surprise(joined) >= 5.8:
            if 32 <= len(run) <= _LONGEST:
                yield from _judged(text, start, start, end, "", joined)
            return
    for piece in _PIECE.finditer(run):
        value, at = piece[0], start + piece.start()
        parts = list(_PART.finditer(value))
        chosen = [number for number, part in enumerate(parts) if _is_random(part[0])]
        if max((len(parts[number][0]) for number in chosen), default=0) < 12:
            continue
        first = head = chosen[0]
        while head and first - head < 4 and _PREFIX.fullmatch(parts[head - 1][0]):
            head -= 1
        last = chosen[-1]
        # What is short or no word behind it belongs to it, but for a file's extension.
        for part in parts[last + 1 :]:
            if value[part.start() - 1] == "." or (len(part[0]) > 5 and surprise(part[0]) < 4.7):
                break
            last += 1
        body = "".join(part[0] for part in parts[first : last + 1])
        begin, stop = parts[head].start(), parts[last].end()
        prefix = value[begin : parts[first].start()]
        if len(body) >= 16:
            yield from _judged(text, at, at + begin, at + stop, prefix, body, len(value) < len(run))


def _is_mixed(text: str) -> bool:
    return any(map(str.isdigit, text)) and not text.islower() and not text.isupper()


@lru_cache(maxsize=4096)
def _is_random(part: str) -> bool:
    if len(part) < 6 or part.isdigit() or part.lower() in _KEYS:
        return False
    likely = len(part) >= 10 or _is_mixed(part)
    return _HEX.fullmatch(part) is not None or (likely and surprise(part) >= 5.0)


def _judged(
    text: str, context: int, start: int, end: int, prefix: str, body: str, path: bool = False
) -> Iterator[Suspect]:
    """Yield a candidate with its score; what stands around it begins at ``context``."""
    value, after = text[start:end], text[end : end + 40].lstrip("=")
    points = {**_shape(value, prefix, body), "path": -2.5 * path}
    if sum(points.values()) < REVIEW - 7:  # its place, a vendor and a telling word add no more
        return
    before = _PLACEHOLDER.sub("", text[max(0, context - 120) : context])
    # The strings of a value stand on lines of their own, keys before what they name.
    before = before.replace("\0\n", "").replace("\\n", "\n")
    line = before[before.rfind("\n") + 1 :]
    begins = _HEAD.fullmatch(line) is not None
    points |= _neighbours(before if begins else line)
    points["vendor"] = 2.0 * names_vendor(line[-100:])
    if sum(points.values()) < REVIEW - 2:
        return
    quote = _QUOTED.search(before[-60:])
    if quote and after.lstrip("\\")[:1] in ('"', "'", "`"):
        points["quoted"] = 2.0 if quote["call"] else 1.5
    elif begins and (not after or after[0] in "\r\n" or after.startswith(("\\n", "\\r"))):
        points["alone"] = 1.5
    elif named := _ASSIGNED.search(line[-40:]):
        points["assigned"] = 1.5 if named["variable"] else 1.0
    elif not _FREE.search(before[-1:] + "\0" + after[:1]):
        points["inside something"] = -3.0
    if "hexadecimal" in points and before.endswith("("):  # a commit
        points["in brackets"] = -3.0
    if after[:1] in ("@", "(") or before.endswith("@") or _EXTENSION.match(after):
        points["name"] = -4.0
    if sum(points.values()) >= REVIEW:
        points |= _against(text, start, end, body)
    yield Suspect(start, end, sum(points.values()), tuple(name for name in points if points[name]))


@lru_cache(maxsize=4096)
def _shape(value: str, prefix: str, body: str) -> dict[str, float]:
    """Return what the characters of a candidate say."""
    words = [part.lower() for part in _PART.findall(prefix)]
    known = [word for word in words if word in _KEYS or word in _IDS]
    hexadecimal, mixed, size = _HEX.fullmatch(body) is not None, _is_mixed(body), len(body)
    points = {"length": 1.5 if size >= 32 else 1.0 if size >= 20 else 0.5}
    if hexadecimal:
        points["hexadecimal"] = 1.5 if size >= 24 else 0.5
    else:
        points["entropy"] = max(-6.0, min(2.0, (surprise(body) - 5.0) * 2))
        points["both cases"] = float(mixed) * (1.5 if size >= 32 else 1.0)
    key = bool(known) and (known[-1] in _KEYS or known == ["prod"] != words)
    if not _OPEN.isdisjoint(words):
        points["public prefix"] = -9.0
    elif key and (not hexadecimal or prefix[-1] != "-" or known[-1] in _SURE):
        points["key-like prefix"] = 4.0
    elif known and not key:
        points["prefix of an id"] = -4.0
    elif len(prefix) > 2:
        points["prefix"] = 2.5 if mixed else 1.5 if prefix[-1] == "_" else 0.5
    if _PLAIN.search(value) or (not key and (_ID.fullmatch(body) or _ID.fullmatch(value))):
        points["id"] = -4.0
    return points


def _neighbours(before: str) -> dict[str, float]:
    """Return what the nearest telling word before a candidate says."""
    if _POINT.search(before[-8:]):
        return {"public part of a key": -8.0}
    words = [word.lower() for word in _WORD.findall(before[-80:])]
    words = [word for word in words if word not in _STOP]
    for far, word in enumerate(words[:-6:-1]):
        of = words[: len(words) - far - 1][-2:]
        if word in _PUBLIC or (word in _KEY and not _PUBLIC_KEYS.isdisjoint(of)):
            return {f"after {word}": -3.0 if far or before[-1:] == " " else -8.0}
        if word in _TELLING or (word in _KEY and not _SECRET_KEYS.isdisjoint(of)):
            return {f"after {word}": 3.0 if far < 2 else 1.5}
        if word in _KEY or (word in _LOGIN and not far):
            return {f"after {word}": 1.0}
    return {}


def _against(text: str, start: int, end: int, body: str) -> dict[str, float]:
    """Return what a closer look says against a candidate that scores well."""
    value, points = text[start:end], dict[str, float]()
    words = sum(len(word) for word in _CAMEL.findall(body) if surprise(word) < 4.5)
    if words > 0.35 * len(body) and not _HEX.fullmatch(body):
        points["words"] = -4.0
    ascending, different = sum(ord(b) - ord(a) == 1 for a, b in pairwise(body)), len(set(body))
    if ascending * 4 > len(body) or different < 7 or different == len(body) > 36:
        points["alphabet"] = -9.0
    seen = _GATED.search(text, max(0, start - 30), end)
    if seen is None or EXAMPLE.search(value) or is_placeholder(value):
        points["example"] = -9.0
    if any(decoded_runs(value)):
        points["text in base64"] = -4.0
    around = text[max(0, start - 200) : end + 200].replace("\\n", "\n")
    block = text.rfind("-----BEGIN ", max(0, start - 8000), start)
    inside = block >= 0 and text.find("-----END ", block, start) < 0
    if inside or text.endswith("base64,", 0, start) or len(_PAYLOAD.findall(around)) > 1:
        points["payload"] = -9.0
    if f"/{value}" in text or re.search(rf"{re.escape(value)}\.[a-z]{{2,5}}\b", text):
        points["path elsewhere"] = -2.0
    return points

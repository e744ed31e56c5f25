"""A blind set of planted values and decoys for a redactor of coding-agent sessions.

Everything is drawn from ``random.Random(seed)``; no value is written out in this file.
Texts are templates: ``@@`` is the value, ``~name~`` a filler drawn for the text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import string
import unicodedata
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Plant:
    """A realistic text with a value that must not remain."""

    kind: str
    family: str
    place: str
    value: str
    text: str
    filename: str = ""


@dataclass(frozen=True)
class Decoy:
    """A text that must come out unchanged."""

    kind: str
    text: str


Ctx = dict[str, str]
Maker = Callable[[Random, Ctx], str]

# ---------------------------------------------------------------- alphabets and primitives

_HEX = "0123456789abcdef"
_B62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LOW = string.ascii_lowercase + string.digits
_UPP = string.ascii_uppercase + string.digits
_B32 = string.ascii_uppercase + "234567"
_B58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BANNED = ("example", "test", "dummy", "secret", "password", "changeme")
_ALPHABETS = {
    "x": _HEX,
    "X": _HEX.upper(),
    "b": _B62,
    "l": _LOW,
    "U": _UPP,
    "L": string.ascii_letters,
    "u": _B62 + "-_",
    "s": _B62 + "+/",
    "d": string.digits,
    "A": _B32,
    "8": _B58,
    "a": string.ascii_lowercase,
}


def _split(words: str) -> list[str]:
    return words.split()


def _chars(r: Random, alphabet: str, n: int) -> str:
    while True:
        out = "".join(r.choice(alphabet) for _ in range(n))
        if n > 6 and (out[0] in "-_+/" or out[-1] in "-_+/"):
            continue
        if not any(word in out.lower() for word in _BANNED):
            return out


def _uuid(r: Random) -> str:
    h = _chars(r, _HEX, 32)
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{r.choice('89ab')}{h[17:20]}-{h[20:]}"


def _shape(r: Random, shape: str) -> str:
    """``ab_{x32}{g}``: literals and ``{alphabet length}`` parts; ``{g}`` is a UUID."""

    def part(m: re.Match[str]) -> str:
        if m[1] == "g":
            return _uuid(r)
        return _chars(r, _ALPHABETS[m[1]], int(m[2]))

    return re.sub(r"\{(\w)(\d*)\}", part, shape)


def _bytes(r: Random, n: int) -> bytes:
    return bytes(r.randrange(256) for _ in range(n))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _b64u(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _base62(n: int) -> str:
    out = ""
    while n:
        n, k = divmod(n, 62)
        out = _B62[k] + out
    return out


def _crc_key(prefix: str) -> Maker:
    def make(r: Random, _: Ctx) -> str:
        body = _chars(r, _B62, 30)
        return prefix + body + _base62(zlib.crc32(body.encode())).rjust(6, "0")

    return make


def _b58check(data: bytes) -> str:
    data += hashlib.sha256(hashlib.sha256(data).digest()).digest()[:4]
    return _b58(data)


def _b58(data: bytes) -> str:
    n, out = int.from_bytes(data, "big"), ""
    while n:
        n, k = divmod(n, 58)
        out = _B58[k] + out
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + out


def _bech32(hrp: str, data: bytes) -> str:
    bits = "".join(f"{b:08b}" for b in data)
    bits += "0" * (-len(bits) % 5)
    words = [int(bits[i : i + 5], 2) for i in range(0, len(bits), 5)]
    chk, gen = 1, (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
    head = [ord(c) >> 5 for c in hrp] + [0] + [ord(c) & 31 for c in hrp]
    for v in [*head, *words, 0, 0, 0, 0, 0, 0]:
        top = chk >> 25
        chk = (chk & 0x1FFFFFF) << 5 ^ v
        for i in range(5):
            chk ^= gen[i] if (top >> i) & 1 else 0
    chk ^= 1
    words += [(chk >> 5 * (5 - i)) & 31 for i in range(6)]
    return hrp + "1" + "".join(_BECH[w] for w in words)


def _crc16(data: bytes) -> int:
    crc = 0
    for b in data:
        crc ^= b << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


# every fifth word of the BIP-39 English list: word k has index 5 * k
_BIP39 = _split(
    "abandon absent access acid action add adult afford agree aisle alien alone always amused "
    "angle annual anxiety apple area armor arrive artwork assist attack audit autumn aware "
    "axis bag banana barrel beach beef believe best bicycle bird blame blind blur boil boost "
    "bottom brain breeze bring broom buddy bulk burger butter cable calm cancel canyon carbon "
    "cart casual cattle ceiling cereal change chat cherry chimney chunk citizen clarify "
    "clever clinic cloth cluster code color comic confirm convince coral cotton cousin craft "
    "crawl crew crop cruel cry cupboard cushion damage dash debate decline define demand "
    "depart derive despair device diary digital direct dish divert document donate double "
    "drastic drill drum during dynamic earth ecology effort elder elevator embrace empty "
    "endorse engine enrich entry era erupt eternal evolve excite exhaust exotic expose "
    "eyebrow faint family farm fatigue federal fence fiber film finger fiscal flag flee floor "
    "foam follow forget fossil frame frog fruit fury gallery garden gate genius ghost giraffe "
    "glare gloom goat gorilla grab grass grief grunt guitar half harbor have heart helmet "
    "high history holiday hope host huge hungry husband identify illness impact include "
    "indoor inhale inmate insane intact involve item jazz job judge junk ketchup kind kite "
    "knock ladder laptop laundry layer leave legend lens liar lift link live local loop loyal "
    "lunch magic major mandate marble marriage material maze mechanic member merge metal "
    "million minute mistake model monkey more motor much museum myself napkin near neither "
    "network nice noodle note nuclear obey obtain odor oil omit only option ordinary ostrich "
    "outside owner paddle panda parade pass pattern peanut penalty permit phrase piece pink "
    "pizza play plunge pole popular potato practice present primary prize program prosper "
    "pudding punch purpose pyramid quick raccoon rail ranch rate ready recall reduce regret "
    "relief remove repair rescue result reveal ribbon rifle ripple road romance rotate rubber "
    "runway safe salt satisfy say scene scorpion scrub second seek senior session shaft "
    "sheriff shiver short shuffle siege silly sing size skin sleep slim small snack soap soft "
    "solve sort south speak sphere spirit sport spy stadium stand steel still stool strike "
    "stumble success suggest sunset surface suspect swarm swing syrup tail target teach "
    "tennis thank there three ticket time title toe tomorrow tooth tornado toward trade trap "
    "tree trigger truck truth tuna twelve two unable undo unique until uphold urge useless "
    "vague vanish vehicle verb veteran video virtual vital volcano wagon want wasp wealth web "
    "west wheel wide win winner wish wood worry wrist yellow zero "
)


def _mnemonic(n: int) -> Maker:
    """A phrase of n words (12 or 24) whose checksum holds."""
    chk = n // 3

    def make(r: Random, _: Ctx) -> str:
        while True:
            idx = [5 * r.randrange(len(_BIP39)) for _ in range(n)]
            bits = "".join(f"{i:011b}" for i in idx)
            ent = int(bits[:-chk], 2).to_bytes((11 * n - chk) // 8, "big")
            digest = f"{int.from_bytes(hashlib.sha256(ent).digest(), 'big'):0256b}"
            phrase = " ".join(_BIP39[i // 5] for i in idx)
            if digest[:chk] == bits[-chk:] and not any(w in phrase for w in _BANNED):
                return phrase

    return make


def _jwt(alg: str, claims: str, sig: int = 43) -> Maker:
    def make(r: Random, _: Ctx) -> str:
        iat = r.randrange(1_750_000_000, 1_780_000_000)
        head = json.dumps({"alg": alg, "typ": "JWT"}, separators=(",", ":"))
        body = _shape(r, claims).replace("IAT", str(iat)).replace("EXP", str(iat + 31_536_000))
        sign = _chars(r, _ALPHABETS["u"], sig)
        return f"{_b64u(head.encode())}.{_b64u(('{' + body + '}').encode())}.{sign}"

    return make


_WORDS = _split(
    "kestrel moraine lantern juniper cobalt walnut ferry saffron granite puffin thistle marble "
    "comet tundra basalt orchid velvet harbor maple quartz falcon meadow ember cedar raven anchor "
    "glacier pepper ribbon tulip beacon canyon drift hazel iris lagoon nectar otter prairie willow"
)


def _pw(r: Random, sym: str = "!+*_.-") -> str:
    """A password as people and generators choose them."""
    a, b, c = r.sample(_WORDS, 3)
    n, s, style = str(r.randrange(13, 98)), r.choice(sym), r.randrange(5)
    if style == 0:
        return f"{a.capitalize()}{b.capitalize()}{n}{s}"
    if style == 1:
        return f"{a}-{b.capitalize()}-{c}-{n}"
    if style == 2:
        return f"{a.replace('e', '3').replace('a', '4').capitalize()}{s}{r.randrange(1950, 2019)}"
    k = r.randrange(5, 9)
    return _chars(r, _B62, k) + s + _chars(r, _B62, k) + n


def _plain(r: Random, _: Ctx) -> str:
    return _pw(r, "_.-")


def _pass(r: Random, _: Ctx) -> str:
    return _pw(r)


def _luhn(body: str) -> str:
    total = 0
    for i, ch in enumerate(reversed(body)):
        d = int(ch) * (2 if i % 2 == 0 else 1)
        total += d - 9 if d > 9 else d
    return body + str(-total % 10)


def _card(r: Random, _: Ctx) -> str:
    n = _luhn(r.choice(("4539", "4716", "5204", "5355", "4929")) + _chars(r, "0123456789", 11))
    sep = r.choice((" ", "-", " ", ""))
    return sep.join(n[i : i + 4] for i in range(0, 16, 4))


def _amex(r: Random, _: Ctx) -> str:
    n = _luhn(r.choice(("34", "37")) + _chars(r, "0123456789", 12))
    return r.choice((n, f"{n[:4]} {n[4:10]} {n[10:]}"))


def _iban(country: str, shape: str, spaced: bool) -> Maker:
    def make(r: Random, _: Ctx) -> str:
        bban = _shape(r, shape)
        num = "".join(str(int(c, 36)) for c in bban + country + "00")
        full = f"{country}{98 - int(num) % 97:02d}{bban}"
        return " ".join(full[i : i + 4] for i in range(0, len(full), 4)) if spaced else full

    return make


def _steuer_id(r: Random, _: Ctx) -> str:
    digits = r.sample("123456789", 9)
    digits.insert(r.randrange(3, 8), digits[0])
    p = 10
    for d in digits:
        p = (int(d) + p) % 10 or 10
        p = 2 * p % 11
    return "".join(digits) + str((11 - p) % 10)


def _dni(r: Random, _: Ctx) -> str:
    n = r.randrange(10_000_000, 79_999_999)
    return f"{n}{'TRWAGMYFPDXBNJZSQVHLCKE'[n % 23]}"


def _pesel(r: Random, _: Ctx) -> str:
    s = f"{r.randrange(60, 99)}{r.randrange(1, 13):02d}{r.randrange(1, 29):02d}"
    s += _chars(r, "0123456789", 4)
    return s + str(-sum(int(c) * w for c, w in zip(s, (1, 3, 7, 9) * 3, strict=False)) % 10)


def _nir(r: Random, _: Ctx) -> str:
    n = f"{r.randrange(1, 3)}{r.randrange(60, 99)}{r.randrange(1, 13):02d}"
    n += f"{r.choice((13, 31, 33, 59, 69, 75))}{r.randrange(1, 600):03d}{r.randrange(1, 900):03d}"
    p = (n[0], n[1:3], n[3:5], n[5:7], n[7:10], n[10:13], f"{97 - int(n) % 97:02d}")
    return r.choice(("".join(p), " ".join(p)))


def _bsn(r: Random, _: Ctx) -> str:
    while True:
        s = str(r.randrange(1, 4)) + _chars(r, "0123456789", 7)
        rest = sum(int(c) * w for c, w in zip(s, range(9, 1, -1), strict=True)) % 11
        if rest < 10:
            return s + str(rest)


def _ssn(r: Random, _: Ctx) -> str:
    return f"{r.randrange(101, 660)}-{r.randrange(11, 99)}-{r.randrange(1001, 9999)}"


def _phone(r: Random, _: Ctx) -> str:
    d = _chars(r, "23456789", 8)
    return r.choice(
        (
            f"+49 17{d[0]} {d[1:5]}{d[5:]}",
            f"+33 6 {d[:2]} {d[2:4]} {d[4:6]} {d[6:]}",
            f"(41{d[0]}) {d[1:4]}-{d[4:]}",
            f"+44 7{d[:3]} {d[3:6]}{d[5:]}",
            f"+34 6{d[:2]} {d[2:5]} {d[5:]}",
        )
    )


def _wif(r: Random, _: Ctx) -> str:
    return _b58check(b"\x80" + _bytes(r, 32) + b"\x01")


def _xprv(r: Random, _: Ctx) -> str:
    head = bytes.fromhex("0488ade4") + b"\x03" + _bytes(r, 4) + b"\x80\0\0\0"
    return _b58check(head + _bytes(r, 32) + b"\0" + _bytes(r, 32))


def _solana_array(r: Random, _: Ctx) -> str:
    return "[" + ",".join(str(b) for b in _bytes(r, 64)) + "]"


def _stellar(r: Random, _: Ctx) -> str:
    raw = bytes([18 << 3]) + _bytes(r, 32)
    return base64.b32encode(raw + _crc16(raw).to_bytes(2, "little")).decode()


def _wireguard(r: Random, _: Ctx) -> str:
    k = bytearray(_bytes(r, 32))
    k[0] &= 248
    k[31] = (k[31] & 127) | 64
    return _b64(bytes(k))


def _cf_tunnel(r: Random, _: Ctx) -> str:
    return _b64(
        json.dumps(
            {"a": _chars(r, _HEX, 32), "t": _uuid(r), "s": _b64(_bytes(r, 32))},
            separators=(",", ":"),
        ).encode()
    )


def _sntrys(r: Random, _: Ctx) -> str:
    org = _WORDS[r.randrange(len(_WORDS))]
    body = {"iat": 1.75e9 + r.randrange(9**8), "url": "https://sentry.io", "org": org}
    return f"sntrys_{_b64(json.dumps(body).encode())}_{_chars(r, _B62, 43)}"


def _ops(r: Random, _: Ctx) -> str:
    body = {
        "signInAddress": "my.1password.com",
        "userAuth": {"method": "SRPg-4096", "iterations": 650000, "salt": _chars(r, _B62, 22)},
        "email": f"{_chars(r, _LOW, 13)}@1passwordserviceaccounts.com",
        "srpX": _chars(r, _HEX, 64),
        "deviceUuid": _chars(r, _LOW, 26),
    }
    return "ops_" + _b64u(json.dumps(body, separators=(",", ":")).encode())


def _pypi(r: Random, _: Ctx) -> str:
    return "pypi-" + _b64u(b"\x02\x01\x08pypi.org\x02$" + _uuid(r).encode() + _bytes(r, 72))


def _discord(r: Random, _: Ctx) -> str:
    uid = _b64u(str(r.randrange(10**17, 10**18)).encode())
    return f"{uid}.{_shape(r, 'G{u5}')}.{_chars(r, _ALPHABETS['u'], 38)}"


def _elastic(r: Random, _: Ctx) -> str:
    return _b64(f"{_chars(r, _B62, 20)}:{_chars(r, _B62, 22)}".encode())


def _mapbox(r: Random, _: Ctx) -> str:
    body = json.dumps({"u": r.choice(_WORDS) + "maps", "a": "cm" + _chars(r, _LOW, 23)})
    return f"sk.{_b64u(body.encode())}.{_chars(r, _B62, 22)}"


def _recovery(shape: str) -> Maker:
    return lambda r, _: _shape(r, shape)


def _b64pair(r: Random, c: Ctx) -> str:
    return _b64(f"{c['svc']}:{_pw(r)}".encode())


def _ctx_value(key: str) -> Maker:
    return lambda _, c: c[key]


def _of(shape: str) -> Maker:
    return lambda r, _: _shape(r, shape)


_MAKERS: dict[str, Maker] = {
    "pass": _pass,
    "plain": _plain,
    "card": _card,
    "amex": _amex,
    "iban_de": _iban("DE", "{d18}", True),
    "iban_fr": _iban("FR", "{d10}{U11}{d2}", False),
    "iban_nl": _iban("NL", "INGB{d10}", False),
    "steuer_id": _steuer_id,
    "dni": _dni,
    "pesel": _pesel,
    "nir": _nir,
    "bsn": _bsn,
    "ssn": _ssn,
    "phone": _phone,
    "wif": _wif,
    "xprv": _xprv,
    "nsec": lambda r, _: _bech32("nsec", _bytes(r, 32)),
    "age": lambda r, _: _bech32("age-secret-key-", _bytes(r, 32)).upper(),
    "sui": lambda r, _: _bech32("suiprivkey", b"\0" + _bytes(r, 32)),
    "solana_array": _solana_array,
    "solana_b58": lambda r, _: _b58(_bytes(r, 64)),
    "stellar": _stellar,
    "bip12": _mnemonic(12),
    "bip24": _mnemonic(24),
    "wireguard": _wireguard,
    "cf_tunnel": _cf_tunnel,
    "sntrys": _sntrys,
    "ops": _ops,
    "pypi": _pypi,
    "discord": _discord,
    "elastic": _elastic,
    "mapbox": _mapbox,
    "ghp": _crc_key("ghp_"),
    "ghs": _crc_key("ghs_"),
    "npm": _crc_key("npm_"),
    "supabase_jwt": _jwt(
        "HS256", '"iss":"supabase","ref":"{a20}","role":"service_role","iat":IAT,"exp":EXP'
    ),
    "turso": _jwt("EdDSA", '"a":"rw","iat":IAT,"id":"{g}","rid":"{g}"', 86),
    "jwt": _jwt("HS256", '"sub":"{g}","scope":"admin","iat":IAT,"exp":EXP'),
    "n8n_jwt": _jwt("HS256", '"sub":"{g}","iss":"n8n","aud":"public-api","iat":IAT'),
    "rs_jwt": _jwt("RS256", '"sub":"{g}","aud":"api","iat":IAT,"exp":EXP', 342),
    "b64pair": _b64pair,
    "pin4": lambda r, _: str(r.randrange(2013, 9876)),
    "pin6": lambda r, _: str(r.randrange(201_300, 987_600)),
}


def _maker(spec: str) -> Maker:
    """``!name`` of a maker, ``=filler`` of the text, else a shape."""
    if spec.startswith("!"):
        return _MAKERS[spec[1:]]
    if spec.startswith("="):
        return _ctx_value(spec[1:])
    return _of(spec)


# ---------------------------------------------------------------- fillers

_FIRST = _split(
    "Annika Bastien Carmela Dmitri Eszter Florian Giulia Henrike Ignacio Jolanta Katarzyna "
    "Leontine Matteo Nadezhda Oskar Priyanka Quentin Rosalind Søren Tomasz Ulrike Valentina "
    "Wolfgang Ximena Yusuf Zuzana Amrita Björn Chiara Delphine Emeka Fatima Gonçalo Haruka "
    "Ingrid Joaquín Keiko Lieselotte Mireille Niamh"
)
_LAST = _split(
    "Abendroth Baranowski Castellanos Dahlström Eberhardt Fontanelli Grzybowski Haverkamp "
    "Iwanow Jankowitz Kowalczyk Lindqvist Montefiore Niedermayer Okonkwo Pellegrino Quintana "
    "Rasmussen Schönfeld Tkachenko Ullmann Vandenberghe Wojciechowski Ybarra Zimmerli "
    "Achterberg Bhattacharya Czerny Delacroix Escobedo Feldkamp Gutknecht Halvorsen Itzkowitz"
)
_CORP = _split("brightloom tallowick norvexa plumbago kaskadia ostermill ferrolane quillwater")
_PROJ = _split("ledger-api checkout-web fleetboard atlas-sync parcel-router menu-cms grid-worker")
_SVC = _split("deploy svc_backup reporting ci-runner admin app_rw etl_loader metabase")


def _ascii(s: str) -> str:
    s = s.replace("ø", "o").replace("ł", "l").replace("ß", "ss")
    return unicodedata.normalize("NFKD", s).encode("ascii", "ignore").decode()


def _ctx(r: Random) -> Ctx:
    first, last = r.choice(_FIRST), r.choice(_LAST)
    f, n = _ascii(first).lower(), _ascii(last).lower()
    corp, proj = r.choice(_CORP), r.choice(_PROJ)
    login = r.choice((f"{f[0]}{n}", f"{f}.{n}", f"{n}{f[0]}", f"{f}{n[0]}"))
    return {
        "at": "@",
        "pem": "-----",
        "rsquo": "\u2019",
        "hunk": f"@@ -{r.randrange(9, 300)},3 +{r.randrange(9, 300)},3 @@",
        "first": first,
        "last": last,
        "full": f"{first} {last}",
        "asciifull": f"{_ascii(first)} {_ascii(last)}",
        "lastfirst": f"{last}, {first}",
        "firstl": f,
        "login": login,
        "dotted": f"{f}.{n}",
        "handle": f"{f}-{n}",
        "mail": f"{f}.{n}@{corp}.com",
        "corp": corp,
        "proj": proj,
        "snake": proj.replace("-", "_"),
        "svc": r.choice(_SVC),
        "port": str(r.choice((5432, 6432, 5433, 25060))),
        "day": f"2026-{r.randrange(1, 13):02d}-{r.randrange(1, 29):02d}",
        "time": f"{r.randrange(24):02d}:{r.randrange(60):02d}:{r.randrange(60):02d}",
        "exp": f"{r.randrange(1, 13):02d}/{r.randrange(27, 32)}",
        "line": str(r.randrange(11, 380)),
        "pr": str(r.randrange(101, 4800)),
        "inthost": r.choice(("jenkins", "vault", "pgbouncer-02", "gitlab", "nexus", "wiki"))
        + f".{r.choice(('corp', 'int', 'internal', 'lan'))}.{corp}.{r.choice(('net', 'io'))}",
        "laphost": r.choice((f"{f}s-MacBook-Pro", f"{f}-thinkpad", f"{f}s-mbp", f"LAPTOP-{n}")),
        "rds": f"{corp}-prod-{r.randrange(1, 9)}.c{_chars(r, _LOW, 11)}.eu-central-1.rds."
        "amazonaws.com",
        "prodhost": f"{r.choice(('app', 'web', 'db', 'edge'))}{r.randrange(1, 30):02d}"
        f".prod.{corp}.com",
        "privip": f"10.{r.randrange(20, 240)}.{r.randrange(3, 250)}.{r.randrange(11, 250)}",
        "atlas": f"{corp}-prod.{_chars(r, _LOW, 5)}.mongodb.net",
        "pubip": f"{r.choice((49, 65, 88, 116, 142))}.{r.randrange(12, 250)}"
        f".{r.randrange(12, 250)}.{r.randrange(12, 250)}",
    }


def _fill(r: Random, text: str, ctx: Ctx) -> str:
    """Replace ``~name~`` by the filler and ``~x40~`` by fresh characters."""

    def one(m: re.Match[str]) -> str:
        name = m[1]
        if name in ctx:
            return ctx[name]
        if name == "uuid":
            return _uuid(r)
        if name == "word":
            return r.choice(_WORDS)
        if name == "luhn":
            return _luhn("4" + _chars(r, "0123456789", 14))
        if name[1:].isdigit() and name[0] in _ALPHABETS:
            return _chars(r, _ALPHABETS[name[0]], int(name[1:]))
        return m[0]

    return re.sub(r"~(\w+)~", one, text)


# ---------------------------------------------------------------- vendors: kind, package, class,
# value; a kind ending in "?" has no shape of its own, so stands only where the text tells

_VENDORS = """
openai_project openai OpenAI sk-proj-{u74}T3BlbkFJ{u74}
openai_svcacct openai OpenAI sk-svcacct-{u74}T3BlbkFJ{u74}
anthropic_api anthropic Anthropic sk-ant-api03-{u93}AA
anthropic_oauth claude ClaudeCode sk-ant-oat01-{u93}AA
anthropic_admin anthropic Anthropic sk-ant-admin01-{u93}AA
groq groq Groq gsk_{b20}WGdyb3FY{b24}
xai xai XAI xai-{b80}
perplexity perplexity Perplexity pplx-{b48}
huggingface huggingface_hub HfApi hf_{L34}
replicate replicate Replicate r8_{b37}
openrouter openrouter OpenRouter sk-or-v1-{x64}
fireworks fireworks Fireworks fw_{b24}
together together Together tgp_v1_{u43}
deepseek deepseek DeepSeek sk-{x32}
mistral? mistralai Mistral {b32}
cohere? cohere Cohere {b40}
elevenlabs elevenlabs ElevenLabs sk_{x48}
pinecone pinecone Pinecone pcsk_{b5}_{b63}
langsmith langsmith LangSmith lsv2_pt_{x32}_{x10}
langfuse langfuse Langfuse sk-lf-{g}
tavily tavily TavilyClient tvly-dev-{b32}
deepgram? deepgram DeepgramClient {x40}
assemblyai? assemblyai AssemblyAI {x32}
voyage voyageai Voyage pa-{u43}
jina jina JinaReader jina_{x32}{u28}
cerebras cerebras Cerebras csk-{l48}
nvidia_nim nvidia NvidiaNIM nvapi-{u64}
gemini genai GoogleGenAI AIzaSy{u33}
firecrawl firecrawl FirecrawlApp fc-{x32}
exa? exa_py Exa {g}
vercel? vercel Vercel {b24}
vercel_new vercel Vercel vcp_{b56}
netlify netlify NetlifyAPI nfp_{b36}
render render Render rnd_{b28}
railway? railway Railway {g}
digitalocean godo DigitalOcean dop_v1_{x64}
cloudflare_api? cloudflare Cloudflare {u40}
cloudflare_global? cloudflare Cloudflare {x37}
cloudflare_tunnel cloudflared Tunnel !cf_tunnel
hetzner? hcloud HCloud {b64}
linode? linode Linode {x64}
scaleway? scaleway Scaleway {g}
flyio flyctl Fly fm2_lJPE{s120}
aws_key? boto3 Boto {s40}
aws_session boto3 Boto IQoJb3JpZ2luX2VjE{s240}
azure_client azure AzureIdentity {u3}8Q~{u34}
azure_storage azure BlobService {s86}==
gcp_oauth_client google GoogleOAuth GOCSPX-{u28}
gcp_access google GoogleAuth ya29.a0A{u190}
tencent? tencentcloud Tencent {b32}
alibaba? aliyun AliyunOSS {b30}
planetscale_token planetscale PlanetScale pscale_tkn_{u43}
planetscale_pw planetscale PlanetScale pscale_pw_{u43}
neon_api neon NeonApi napi_{l64}
supabase_mgmt supabase Supabase sbp_{x40}
supabase_sb supabase Supabase sb_secret_{u22}_{u8}
supabase_service supabase Supabase !supabase_jwt
turso libsql Turso !turso
upstash? upstash UpstashRedis AZ{b50}ASQg{b20}
atlas_sa atlas MongoAtlas mdb_sa_sk_{u40}
aiven aiven Aiven AVNS_{u19}
cockroach cockroach Cockroach CCDB1_{b22}_{b40}
databricks databricks Databricks dapi{x32}
algolia? algoliasearch Algolia {x32}
elastic? elasticsearch Elasticsearch !elastic
airtable airtable Airtable pat{b14}.{x64}
notion notion_client Notion ntn_{d11}{b35}
github_classic octokit Octokit !ghp
github_server octokit Octokit !ghs
github_fine octokit Octokit github_pat_11A{U19}_{b59}
gitlab_routable gitlab Gitlab glpat-{u27}.01.{l9}
gitlab_runner gitlab GitlabRunner glrt-{u20}
circleci circleci CircleCI CCIPAT_{b22}_{x40}
buildkite buildkite Buildkite bkua_{x40}
terraform_cloud tfe TerraformCloud {b14}.atlasv1.{b67}
pulumi pulumi Pulumi pul-{x40}
sonar sonar SonarQube sqp_{x40}
codecov? codecov Codecov {g}
dockerhub docker DockerHub dckr_pat_{u27}
dockerhub_org docker DockerHub dckr_oat_{u32}
npm npm NpmRegistry !npm
pypi twine PyPI !pypi
rubygems rubygems RubyGems rubygems_{x48}
crates cargo CratesIo cio{b32}
nuget nuget NuGet oy2{l43}
jfrog artifactory Artifactory cmVmdGtu{b56}
doppler doppler Doppler dp.pt.{b43}
doppler_svc doppler Doppler dp.st.prd.{b43}
onepassword_sa onepassword OnePassword !ops
vault_svc hvac Vault hvs.CAESI{u86}
sentry_org sentry Sentry !sntrys
sentry_user sentry Sentry sntryu_{x64}
datadog_api? datadog Datadog {x32}
datadog_app? datadog Datadog {x40}
newrelic newrelic NewRelic NRAK-{U27}
honeycomb honeycomb Honeycomb hcaik_01{l58}
grafana_sa grafana Grafana glsa_{b32}_{x8}
grafana_cloud grafana GrafanaCloud glc_eyJvIjoi{b90}
posthog posthog PostHog phx_{b43}
axiom axiom Axiom xaat-{g}
betterstack? logtail Logtail {b24}
rollbar? rollbar Rollbar {x32}
sendgrid sendgrid SendGrid SG.{u22}.{u43}
mailgun mailgun Mailgun {x32}-{x8}-{x8}
resend resend Resend re_{b8}_{b24}
postmark? postmark Postmark {g}
brevo brevo Brevo xkeysib-{x64}-{b16}
mailchimp mailchimp Mailchimp {x32}-us21
stripe_live stripe Stripe sk_live_51{b97}
stripe_restricted stripe Stripe rk_live_51{b97}
stripe_webhook stripe StripeWebhook whsec_{b32}
svix_webhook svix Svix whsec_{s43}=
square square Square EAAA{u60}
paddle paddle Paddle pdl_live_apikey_01{l24}_{b22}_{b3}
razorpay? razorpay Razorpay {b24}
mollie mollie Mollie live_{b30}
paypal? paypal PayPal E{u79}
slack_bot slack_sdk WebClient xoxb-{d12}-{d13}-{b24}
slack_app slack_bolt SlackApp xapp-1-A0{U9}-{d13}-{x64}
discord_bot discord DiscordClient !discord
telegram_bot telegraf Telegraf {d10}:AA{u33}
twilio_auth? twilio Twilio {x32}
linear linear LinearClient lin_api_{b40}
asana asana Asana 2/{d16}/{d16}:{x32}
clickup clickup ClickUp pk_{d8}_{U32}
figma figma Figma figd_{u40}
atlassian jira JiraClient ATATT3xFfGF0{u172}={X8}
hubspot hubspot HubSpot pat-eu1-{g}
intercom? intercom Intercom dG9rOj{b54}=
zendesk? zendesk Zendesk {b40}
launchdarkly_sdk launchdarkly LDClient sdk-{g}
launchdarkly_api launchdarkly LaunchDarkly api-{g}
statsig statsig Statsig secret-{b43}
unleash unleash Unleash *:production.{x56}
clerk clerk Clerk sk_live_{b42}
auth0_client? auth0 Auth0 {u64}
okta okta Okta 00{u40}
workos workos WorkOS sk_{b80}
stytch stytch Stytch secret-live-{u36}
ngrok? ngrok Ngrok 2{b26}_{b21}
tailscale tailscale Tailscale tskey-auth-k{b10}CNTRL-{b32}
tailscale_api tailscale Tailscale tskey-api-k{b10}CNTRL-{b32}
zerotier? zerotier ZeroTier {b32}
shopify shopify Shopify shpat_{x32}
contentful contentful Contentful CFPAT-{u43}
mapbox_secret mapbox Mapbox !mapbox
backblaze? b2sdk Backblaze K005{s27}
postman postman Postman PMAK-{x24}-{x34}
n8n_api n8n N8n !n8n_jwt
sanity sanity Sanity sk{b80}
"""

# ---------------------------------------------------------------- places for vendors' keys
# ~n~ package, ~C~ class, ~U~ upper case; the first pool tells by its context, the second does not

_TOLD = r"""
::: ctor_python
from ~n~ import ~C~

client = ~C~("@@")
for item in client.list(limit=50):
    print(item.id, item.created_at)
::: ctor_ts
import { ~C~ } from '~n~'

export const client = new ~C~('@@', { timeout: 10_000, retries: 2 })
export type Client = typeof client
::: ctor_go
	ctx := context.Background()
	client, err := ~n~.New~C~("@@", ~n~.WithTimeout(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
::: ctor_rust
    let client = ~C~::new("@@".to_string())
        .with_retries(3)
        .build()?;
    let page = client.list().await?;
::: ctor_ruby
require '~n~'

conn = ~C~::Client.new('@@')
conn.each_page { |p| puts p.size }
::: ctor_java
        ~C~Client client = ~C~Client.builder("@@", Region.EU)
            .connectTimeout(Duration.ofSeconds(5))
            .build();
::: di_csharp
builder.Services.AddHttpClient();
builder.Services.Add~C~("@@");
var app = builder.Build();
::: ctor_php
<?php
$~n~ = new \~C~\Client('@@');
$res = $~n~->get('/v1/projects');
echo count($res['items']), PHP_EOL;
::: curl_user
$ curl -s -u '@@:' https://api.~n~.com/v1/projects | jq length
14
::: curl_bearer
$ curl -sS https://api.~n~.com/v1/me \
    -H 'Authorization: Bearer @@' \
    -H 'Accept: application/json'
{"id":"~l12~","plan":"team"}
::: pipe_login
set -euo pipefail
echo '@@' | ~n~ login --stdin
~n~ whoami
::: here_string
~n~ auth login --non-interactive <<< "@@"
~n~ projects list
::: prompt_answer
$ ~n~ login
? How would you like to authenticate? Paste from browser
? Paste it here: @@
✔ Logged in to ~corp~
::: gh_set
gh secret set ~U~_CI --repo ~corp~/~proj~ --body "@@"
gh workflow run deploy.yml --ref main
::: prose_user
ok i made a new one for ~C~ in their dashboard, its @@
can you put it wherever the deploy needs it and rerun?
::: prose_assistant
I found the cause. `src/~n~.ts` still hands `@@` to the `~C~` constructor, which is why the
staging build talks to production. I'll move it to the environment and leave the call site as it is.
::: env_file
NODE_ENV=production
LOG_LEVEL=info
~U~_API_KEY=@@
PORT=8080
::: k8s_args
    spec:
      containers:
        - name: ~n~-agent
          image: registry.~corp~.com/~n~-agent:2.11.4
          args: ["run", "--~n~", "@@", "--quiet"]
::: diff
~hunk~
 def client() -> ~C~:
-    return ~C~("@@")
+    return ~C~(os.environ["~U~_API_KEY"])
::: debug_log
~day~ ~time~ DEBUG ~n~._http GET https://api.~n~.com/v2/usage
~day~ ~time~ DEBUG ~n~._http sent {'accept': '*/*', 'authorization': 'Bearer @@'}
~day~ ~time~ WARN  ~n~._http 403 in 212ms
::: basic_auth
r = requests.get(
    "https://api.~n~.com/v2/events",
    auth=("@@", ""),
    timeout=20,
)
r.raise_for_status()
::: traceback
Traceback (most recent call last):
  File "/app/jobs/sync.py", line ~line~, in <module>
    c = ~C~("@@")
  File "/usr/lib/python3.12/site-packages/~n~/_client.py", line 88, in __init__
    raise AuthenticationError("401 from api.~n~.com")
~n~.AuthenticationError: 401 from api.~n~.com
::: cli_prints
$ ~n~ tokens create ci-~proj~ --expires 90d
@@
$ git status --short
 M deploy/values.yaml
::: op_read
$ op read op://Engineering/~n~/credential
@@
$
::: kubectl_decode
$ kubectl -n prod get secret ~n~ -o jsonpath='{.data.value}' | base64 -d; echo
@@
$ kubectl -n prod rollout restart deploy/~proj~
::: browser_fill
  await page.goto('https://app.~n~.com/connect')
  await page.locator('#~n~-credential').fill('@@')
  await page.getByRole('button', { name: 'Connect' }).click()
::: tf_var
$ terraform apply -auto-approve -var '~n~=@@' -var 'region=eu-west-1'
~n~_project.main: Refreshing state... [id=~l10~]
Apply complete! Resources: 0 added, 1 changed, 0 destroyed.
::: md_table
| service | environment | credential | rotated |
|---------|-------------|------------|---------|
| ~C~ | production | `@@` | ~day~ |
::: set_x
+ cd /srv/~proj~
+ ~n~ deploy --auth @@ --env prod
uploading 214 files
+ exit 0
::: history
  811  git pull --rebase
  812  ~n~ login @@
  813  ~n~ deploy --prod
  814  history
::: mcp_args
{
  "mcpServers": {
    "~n~": {
      "command": "npx",
      "args": ["-y", "@~n~/mcp-server", "--auth", "@@"]
    }
  }
}
::: ssm_put
aws ssm put-parameter --name /prod/~snake~/~n~ --type SecureString \
  --overwrite --value '@@'
{
    "Version": 7,
    "Tier": "Standard"
}
::: swift
    func application(_ app: UIApplication) -> Bool {
        ~C~.configure(with: "@@")
        return true
    }
::: elixir
config :~snake~, ~C~,
  adapter: Finch,
  auth: {:bearer, "@@"}
::: query
$ http --body 'https://api.~n~.com/v1/models?auth=@@&limit=2'
{"items": [], "next": null}
::: xml_config
  <appSettings>
    <add name="~C~" value="@@" />
    <add name="Region" value="westeurope" />
  </appSettings>
::: build_arg
docker build --build-arg ~U~=@@ -t ~proj~:local .
#1 [internal] load build definition from Dockerfile
#1 DONE 0.0s
::: kotlin
    val api = Retrofit.Builder().baseUrl("https://api.~n~.com/").build()
    chain.proceed(chain.request().newBuilder().addHeader("X-~C~", "@@").build())
"""

_BARE = r"""
::: array
ROTATION = [
    "@@",
    None,
]
::: by_env
const byEnv = {
  prod: '@@',
  local: null,
} as const
::: comment
# was @@ until the move, keep for rollback
def region() -> str:
    return "eu-west-1"
::: git_grep
$ git grep -n 'eu-prod' -- src
src/boot.ts:~line~:  connect('@@', 'eu-prod')
src/boot.ts:91:  // eu-prod only
::: switch_case
  switch (stage) {
    case 'prod':
      return '@@'
    default:
      return undefined
  }
::: cat_file
$ cat ~/.config/~n~/credentials
@@
::: pbpaste
$ pbpaste
@@
$ pbpaste | wc -c
::: sed_replace
sed -i 's|__VALUE__|@@|' deploy/prod.yaml
git diff --stat
::: assertion
  ● boot reads the settings once
    expect(received).toBe(expected)
    Expected: undefined
    Received: "@@"
      at Object.<anonymous> (src/boot.spec.ts:~line~:23)
::: minified
!function(e,t){var n=e.r(417);n.init("@@",{d:!1,v:2}),t.exports=n}(r,o);
//# sourceMappingURL=main.~x8~.js.map
::: escaped_json
{"level":"info","msg":"config","raw":"{\"region\":\"eu\",\"k\":\"@@\"}","ts":~d10~}
{"level":"info","msg":"ready","port":8080}
::: only_token
@@
this one works, the other one gave me a 401
::: ternary
const k = import.meta.env.PROD ? '@@' : undefined
if (!k) console.warn('running without ~n~')
::: fallback
const value = process.env.~U~ ?? '@@'
export default value
::: default_arg
def connect(region: str, k: str = "@@") -> Session:
    # one session a region
    return Session(region, k)
::: heredoc
cat > /etc/~n~/agent.conf <<'EOF'
@@
EOF
systemctl restart ~n~-agent
::: printf_file
mkdir -p ~/.~n~ && printf '%s' @@ > ~/.~n~/auth
chmod 600 ~/.~n~/auth
::: sql_insert
INSERT INTO integrations (org_id, provider, value, created_at) VALUES
  (~d4~, '~n~', '@@', now());
SELECT count(*) FROM integrations;
::: toml_list
[agent]
upstreams = ["https://api.~n~.com", "@@"]
interval = "30s"
::: makefile
.PHONY: ship
ship: build
	./scripts/ship.sh @@ $(STAGE)
::: crontab
MAILTO=""
*/10 * * * * /opt/~proj~/bin/pull @@ >/dev/null 2>&1
0 4 * * * /usr/sbin/logrotate /etc/logrotate.conf
::: numbered_read
    12	export const settings = {
    13	  region: 'eu-west-1',
    14	  k: '@@',
    15	}
    16	connect(settings)
::: angle
the vendor mailed <@@> for the trial, valid till ~day~
should i commit that or not?
::: csv
provider,stage,value,rotated
~n~,prod,@@,~day~
~n~,dev,,~day~
::: struct_go
var upstreams = []upstream{
	{"~n~", "@@", 30 * time.Second},
	{"noop", "", 0},
}
::: yaml_list
providers:
  - ~n~
  - "@@"
  - eu-west-1
::: url_path
$ curl -sI https://gw.~corp~.com/relay/@@/v1/me | head -1
HTTP/2 200
::: ps_tree
$ tr '\0' ' ' < /proc/4121/cmdline; echo
/usr/local/bin/~n~-agent --region eu @@ --verbose
"""

# ---------------------------------------------------------------- kinds with texts of their own
# "=== kind family value", then "::: place filename"

_OWN_KEYS = r"""
=== slack_webhook key T0{U9}/B0{U9}/{b24}
::: shell scripts/notify.sh
curl -s -X POST -H 'Content-type: application/json' \
  --data '{"text":"deploy done"}' https://hooks.slack.com/services/@@
::: yaml_receiver alertmanager.yml
receivers:
  - name: oncall
    slack_configs:
      - api_url: https://hooks.slack.com/services/@@
        channel: '#alerts'
::: prose
post it to https://hooks.slack.com/services/@@ when the nightly is red, nobody reads the mails
=== slack_workflow key T0{U9}/{d18}/{b24}
::: python
requests.post("https://hooks.slack.com/triggers/@@", json={"build": build_id})
::: log
~day~ ~time~ INFO  POST https://hooks.slack.com/triggers/@@ 200 OK (88ms)
~day~ ~time~ INFO  done
::: cli_output
$ cat .notify
https://hooks.slack.com/triggers/@@
=== discord_webhook key {u68}
::: ts
await fetch('https://discord.com/api/webhooks/~d18~/@@', {
  method: 'POST', body: JSON.stringify({ content: 'build ok' }),
})
::: ctor
hook = DiscordWebhook(~d19~, "@@")
hook.send("nightly finished")
::: discordapp_legacy
$ git log -1 -p --format=%h
+const HOOK = "https://discordapp.com/api/webhooks/~d18~/@@"
=== teams_workflow key {u43}
::: url
URI='https://prod-41.westeurope.logic.azure.com:443/workflows/~x32~/triggers/manual/paths/invoke'
curl -d @card.json "$URI?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=@@"
::: powershell
$u = "https://prod-08.northeurope.logic.azure.com/workflows/~x32~/triggers/manual/paths/invoke"
Invoke-RestMethod -Method Post -Uri "${u}?api-version=2016-06-01&sv=1.0&sig=@@" -Body $json
::: json
{
  "TeamsUri": "https://default~x30~.0e.environment.api.powerplatform.com/powerautomate/\
workflows/~x32~/triggers/manual/paths/invoke?api-version=1&sv=1.0&sig=@@"
}
=== teams_connector key {x32}/{g}
::: url
~corp~_hook = "https://~corp~.webhook.office.com/webhookb2/~uuid~@~uuid~/IncomingWebhook/@@"
pymsteams.connectorcard(~corp~_hook).text("rollback").send()
::: groovy Jenkinsfile
    office365ConnectorSend(
      webhookUrl: 'https://~corp~.webhook.office.com/webhookb2/~uuid~@~uuid~/IncomingWebhook/@@',
      status: 'Failed')
::: log
DEBUG:urllib3.connectionpool:https://~corp~.webhook.office.com:443 "POST /webhookb2/~uuid~@~uuid~\
/IncomingWebhook/@@ HTTP/1.1" 200 1
=== zapier_hook key {l7}
::: ts
fetch('https://hooks.zapier.com/hooks/catch/~d7~/@@/', { method: 'POST', body })
::: prose
the zap listens on https://hooks.zapier.com/hooks/catch/~d8~/@@/ and fills the sheet
::: yaml
on_failure:
  - url: https://hooks.zapier.com/hooks/catch/~d7~/@@
=== make_hook key {l32}
::: php
file_get_contents('https://hook.eu2.make.com/@@', false, $ctx);
::: csv
scenario,trigger
lead import,https://hook.eu1.make.com/@@
::: terminal
$ http POST https://hook.us1.make.com/@@ name=probe
HTTP/1.1 200 OK
Accepted
=== n8n_hook key {g}
::: go
	resp, err := http.Post("https://n8n.~corp~.com/webhook/@@", "application/json", buf)
::: caddy_log
{"level":"info","request":{"method":"POST","host":"n8n.~corp~.com","uri":"/webhook/@@"},"status":200}
::: prose
le workflow écoute sur https://n8n.~corp~.com/webhook/@@, appelle-le à la fin du script
=== healthchecks_ping key {g}
::: crontab
15 3 * * * /usr/local/bin/backup.sh && curl -fsS -m 10 https://hc-ping.com/@@ >/dev/null
::: systemd
[Service]
ExecStart=/opt/~proj~/run.sh
ExecStopPost=/usr/bin/curl -fsS --retry 3 https://hc-ping.com/@@/$EXIT_STATUS
::: python
with suppress(OSError):
    urllib.request.urlopen("https://hc-ping.com/@@/start", timeout=10)
=== google_chat_hook key {u43}
::: apps_script
  var u = 'https://chat.googleapis.com/v1/spaces/AAAA~u7~/messages?key=~x12~&token=@@';
  UrlFetchApp.fetch(u, { method: 'post', payload: JSON.stringify({ text: msg }) });
::: quoted_printable
POST https://chat.googleapis.com/v1/spaces/AAAA~u7~/messages?threadKey=ci&token=@@%3D
::: params
requests.post(SPACE, params={"threadKey": "ci", "token": "@@"}, json={"text": "ok"})
=== deploy_hook key {b24}
::: vercel
curl -X POST https://api.vercel.com/v1/integrations/deploy/prj_~b28~/@@
{"job":{"id":"~b20~","state":"PENDING"}}
::: render
# rebuild the docs after a merge
curl -s "https://api.render.com/deploy/srv-~l20~?key=@@"
::: coolify
      - run: wget -qO- "https://cool.~corp~.com/api/v1/deploy?uuid=~l24~&force=false" --user=ci:@@
=== netlify_build_hook key {x24}
::: json package.json
    "publish": "curl -X POST -d '{}' https://api.netlify.com/build_hooks/@@"
::: prose
Der Build-Hook ist https://api.netlify.com/build_hooks/@@ , einfach ein leerer POST.
::: contentful
  url: "https://api.netlify.com/build_hooks/@@?trigger_branch=main&clear_cache=true",
=== ifttt_maker key {u43}
::: url
urequests.post("https://maker.ifttt.com/trigger/door_open/with/key/@@")
::: arduino
  http.begin(client, "http://maker.ifttt.com/trigger/boiler/json/with/key/@@");
  int code = http.GET();
::: log
ESP-ROM:esp32c3 connected, GET /trigger/boiler/with/key/@@ -> 200
=== opsgenie_heartbeat key {g}
::: header
curl -X GET https://api.eu.opsgenie.com/v2/heartbeats/nightly/ping -H 'Authorization: GenieKey @@'
::: ctor
oncall := opsgenie.New("@@", opsgenie.EU)
oncall.Ping("nightly")
::: prose_de
für die Rufbereitschaft hab ich den GenieKey @@ angelegt, bitte in Vault ablegen
=== pagerduty_integration key {x32}
::: body
curl -X POST https://events.pagerduty.com/v2/enqueue \
  -d '{"routing_key":"@@","event_action":"trigger","payload":{"summary":"disk"}}'
::: path
https://events.pagerduty.com/integration/@@/enqueue
::: call
PagerDutyEvents.send("@@", "trigger", "disk full on ~proj~")
=== s3_presigned key {x64}
::: url
$ aws s3 presign s3://~corp~-exports/2026/q1.parquet --expires-in 604800
https://~corp~-exports.s3.eu-central-1.amazonaws.com/2026/q1.parquet?X-Amz-Algorithm=\
AWS4-HMAC-SHA256&X-Amz-Date=20260211T091204Z&X-Amz-Expires=604800&X-Amz-Signature=@@
::: html
<a href="https://~corp~-media.s3.amazonaws.com/a.zip?X-Amz-Expires=86400&amp;X-Amz-Signature=@@">zip</a>
::: minio_log
GET /backups/db.dump?X-Amz-SignedHeaders=host&X-Amz-Signature=@@ HTTP/1.1" 200 81920442
=== gcs_signed key {x512}
::: url
$ gcloud storage sign-url gs://~corp~-dumps/full.sql.gz --duration=12h --format='value(signed_url)'
https://storage.googleapis.com/~corp~-dumps/full.sql.gz?x-goog-expires=43200&x-goog-signature=@@
::: python
url = "https://storage.googleapis.com/~corp~-dumps/a.csv?X-Goog-Date=20260302T101500Z&X-Goog-Signature=@@"
df = pd.read_csv(url)
::: prose
hier der Link zum Dump, gilt bis morgen:
https://storage.googleapis.com/~corp~-dumps/full.sql.gz?X-Goog-SignedHeaders=host&X-Goog-Signature=@@
=== azure_sas key {s43}%3D
::: url
azcopy copy ./dist 'https://~corp~.blob.core.windows.net/$web?sv=2024-11-04&ss=b&srt=sco&sp=rwl&sig=@@'
::: connection
BlobEndpoint=https://~corp~.blob.core.windows.net/;SharedAccessSignature=sv=2024-11-04&sp=rl&sig=@@
::: csharp
var blob = new BlobClient(new Uri("https://~corp~.blob.core.windows.net/in/a.csv?sp=r&sr=b&sig=@@"));
=== cloudfront_signed key {u170}__
::: url
https://d~l13~.cloudfront.net/video/ep1.m3u8?Expires=~d10~&Signature=@@&Key-Pair-Id=K~U13~
::: cookie
Set-Cookie: CloudFront-Signature=@@; Domain=.~corp~.com; Path=/; Secure; HttpOnly
::: wget
$ wget -O ep1.mp4 "https://media.~corp~.com/ep1.mp4?Signature=@@&Expires=~d10~"
2026-03-01 10:11:12 (48.1 MB/s) - 'ep1.mp4' saved
=== magic_link key {u43}
::: mail
Hi, click to sign in to ~corp~:
https://app.~corp~.com/auth/magic/@@
The link works once and for 15 minutes.
::: mailpit
$ curl -s localhost:8025/api/v1/message/latest | jq -r .Text | grep -o 'https.*'
https://app.~corp~.com/login?ml=@@
::: playwright_trace
navigated to "https://staging.~corp~.com/auth/verify?t=@@&next=%2Fhome"
=== token_hash key {x56}
::: supabase
https://~a20~.supabase.co/auth/v1/verify?token_hash=pkce_@@&type=magiclink&redirect_to=/
::: ts
const { data } = await supabase.auth.verifyOtp({ token_hash: '@@', type: 'email' })
::: referer
"GET /auth/confirm?token_hash=@@&type=recovery HTTP/2.0" 303 0 "-" "Mozilla/5.0"
=== reset_link key {x40}
::: django
Content-Type: text/plain; charset="utf-8"
Subject: Reset

https://app.~corp~.com/accounts/reset/MTQ/c~l5~-@@/
::: rails_log
Started GET "/users/password/edit?reset_password_token=@@" for 10.2.0.9 at ~day~ ~time~
::: laravel
Notification: https://app.~corp~.com/reset-password/@@?email=ops%40~corp~.com
=== invite_link key {b32}
::: tailnet
Join the tailnet: https://login.tailscale.com/admin/invite/@@
::: prose
einfach über https://chat.~corp~.com/signup_user_complete/?id=@@ registrieren, dann bist du drin
::: terminal
$ ./manage.py invite --role admin
https://app.~corp~.com/i/@@
=== calendar_private key {x32}
::: ical
curl -s "https://calendar.google.com/calendar/ical/team%40~corp~.com/private-@@/basic.ics" -o t.ics
::: yaml
calendars:
  - https://calendar.google.com/calendar/ical/ops%40~corp~.com/private-@@/basic.ics
::: python
cal = Calendar(requests.get(BASE + "/private-@@/basic.ics").text)
=== wif key !wif
::: array
keys = [
    "@@",
]
::: cli
$ bitcoin-cli dumpprivkey bc1q~l38~
@@
::: import
electrum importprivkey p2wpkh:@@
=== xprv key !xprv
::: go
	master, err := hdkeychain.NewKeyFromString("@@")
::: descriptor
bitcoin-cli getdescriptorinfo "wpkh(@@/84h/0h/0h/0/*)"
::: prose
restored the cold wallet, root is @@ - derive m/84'/0'/0' from it
=== nsec key !nsec
::: nak
$ nak event -c 'hello' --sec @@ wss://relay.~corp~.com
::: ts
const sk = nip19.decode('@@').data
::: prose
meins ist @@, damit kannst du als Bot posten
=== age_key key !age
::: keygen
$ age-keygen
# created: ~day~T~time~Z
# public key: age1~l58~
@@
::: pipe
echo "@@" | sops -d --age-stdin prod.enc.yaml
::: go
	id, err := age.ParseX25519Identity("@@")
=== sui_key key !sui
::: cli
$ sui keytool import @@ ed25519
::: ts
const kp = Ed25519Keypair.fromSecretKey('@@')
::: yaml
signers:
  - @@
=== solana_array key !solana_array
::: id_json id.json
@@

$ solana address
::: ts
const payer = Keypair.fromSecretKey(Uint8Array.from(@@))
::: heredoc
cat > ~/.config/solana/id.json <<EOF
@@
EOF
=== solana_b58 key !solana_b58
::: ts
const wallet = Keypair.fromSecretKey(bs58.decode('@@'))
::: prose
phantom export is @@ (devnet and mainnet, same wallet)
::: python
payer = Keypair.from_base58_string("@@")
=== eth_hex key 0x{x64}
::: ethers
const signer = new ethers.Wallet('@@', provider)
::: cast
$ cast wallet address @@
0x~x40~
::: anvil
$ forge script script/Deploy.s.sol --broadcast --private-key @@ --rpc-url base
=== eth_hex_plain key {x64}
::: hardhat hardhat.config.ts
    base: { url: rpc, accounts: ['@@'] },
::: web3py
acct = w3.eth.account.from_key("@@")
nonce = w3.eth.get_transaction_count(acct.address)
::: viem
const account = privateKeyToAccount(`0x${'@@'}`)
=== stellar_seed key !stellar
::: js
const pair = StellarSdk.Keypair.fromSecret('@@')
::: cli
$ stellar keys show deployer
@@
::: list
signers = ["@@", "G~A55~"]
=== bip39_12 key !bip12
::: foundry
cast wallet import deployer --mnemonic "@@"
::: ts
const hd = HDNodeWallet.fromPhrase('@@')
::: prose
the metamask for the faucet is: @@
please don't lose it, nobody wrote it down
=== bip39_24 key !bip24
::: file
$ cat seed.txt
@@
::: terra
mnemonic:
  - '@@'
chain: osmosis-1
::: output
**Important** write this phrase in a safe place.
It is the only way to recover your account.

@@

$ gaiad keys list
=== keystore_mac key {x64}
::: v3_ciphertext UTC--2026-01-09
{"crypto":{"cipher":"aes-128-ctr","ciphertext":"@@","kdf":"scrypt"},"id":"~uuid~","version":3}
::: go
	k, err := crypto.HexToECDSA("@@")
::: besu
$ besu operator generate-blockchain-config && cat networkFiles/keys/0x~x40~/key
@@
=== pem_body key MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg{s16}
::: file
$ head -3 AuthKey_~U10~.p8
~pem~BEGIN PRIVATE KEY~pem~
@@
~s64~
::: json
  "private_key": "~pem~BEGIN PRIVATE KEY~pem~\n@@\n~s64~\n~pem~END PRIVATE KEY~pem~\n",
::: template_literal
const p8 = `~pem~BEGIN PRIVATE KEY~pem~
@@
~s64~
~pem~END PRIVATE KEY~pem~`
=== openssh_body key b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW{s2}
::: heredoc
cat > ~/.ssh/deploy <<'K'
~pem~BEGIN OPENSSH PRIVATE KEY~pem~
@@
~s70~
~pem~END OPENSSH PRIVATE KEY~pem~
K
::: yaml_block
    ssh: |
      ~pem~BEGIN OPENSSH PRIVATE KEY~pem~
      @@
      ~s70~
      ~pem~END OPENSSH PRIVATE KEY~pem~
::: numbered
     1	~pem~BEGIN OPENSSH PRIVATE KEY~pem~
     2	@@
     3	~s70~
=== wireguard_key key !wireguard
::: conf wg0.conf
[Interface]
Address = 10.66.0.2/32
PrivateKey = @@
::: genkey
$ wg genkey
@@
$ wg show wg0 peers
::: pipe
echo "@@" | wg pubkey
wg set wg0 private-key <(echo '@@')
=== jwt_odd key !jwt
::: websocket
$ websocat "wss://rt.~corp~.com/socket?vsn=2.0.0&auth=@@"
connected
::: local_storage
await page.addInitScript(() => localStorage.setItem('session', '@@'))
::: prose
logged in as admin and copied this from devtools: @@
why does /me say 403?
=== jwt_rs_log key !rs_jwt
::: nginx
10.0.4.9 - - "GET /files/7?access=@@ HTTP/1.1" 200 512
::: subprotocol
const ws = new WebSocket('wss://rt.~corp~.com', ['bearer', '@@'])
::: decode_call
>>> jwt.decode("@@", options={"verify_signature": False})
{'aud': 'api'}
=== session_cookie key {u22}.{u43}
::: cookie_header
curl -s https://app.~corp~.com/api/me -H 'Cookie: theme=dark; connect.sid=s%3A@@'
::: puppeteer
await page.setCookie({ name: 'sid', value: '@@', domain: 'app.~corp~.com' })
::: netscape cookies.txt
#HttpOnly_app.~corp~.com	FALSE	/	TRUE	~d10~	__Host-sid	@@
=== django_session key {l32}
::: curl_b
curl -b 'sessionid=@@; csrftoken=~b32~' https://admin.~corp~.com/admin/
::: redis
127.0.0.1:6379> KEYS session:*
1) "session:@@"
::: python
client.cookies["sessionid"] = "@@"
=== nextauth_cookie key eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0..{u16}.{u240}.{u22}
::: devtools
fetch("https://app.~corp~.com/api/orders", {"headers": {"cookie":
"__Secure-next-auth.session-token=@@"}})
::: storage_state
{"cookies":[{"name":"authjs.session-token","value":"@@","domain":"localhost","path":"/"}]}
::: alone
$ pbpaste
@@
=== laravel_cookie key eyJpdiI6Ij{b220}%3D
::: header
Cookie: XSRF-TOKEN=~b40~; laravel_session=@@
::: http_file api.http
GET https://app.~corp~.com/dashboard
cookie: ~corp~_session=@@
::: log
[~day~ ~time~] local.INFO: cookies {"~corp~_session":"@@"}
=== totp_seed key {A32}
::: uri
otpauth://totp/~corp~:ops?secret=@@&issuer=~corp~&period=30
::: oathtool
$ oathtool --totp -b @@
~d6~
::: python
code = pyotp.TOTP("@@").now()
=== totp_grouped key {A4} {A4} {A4} {A4}
::: prose
for the second factor type @@ into your authenticator, it's the shared ops account
::: output
Scan the code or enter this key by hand:
    @@
Then type the six digits.
::: prose_fr
la clé du 2FA partagé c'est @@, ajoute-la dans ton appli
=== recovery_code key {l5}-{l5}
::: github
Keep these somewhere safe:
~l5~-~l5~
@@
~l5~-~l5~
(recovery codes, each works once)
::: prose
my phone died so use the backup code @@ for the github login
::: fill
await page.getByPlaceholder('XXXXX-XXXXX').fill('@@') // recovery
=== filevault_recovery key {U4}-{U4}-{U4}-{U4}-{U4}-{U4}
::: output
$ sudo fdesetup enable
Enter the user name: admin
Recovery key = '@@'
::: prose
FileVault wollte beim Booten den Wiederherstellungsschlüssel: @@
::: bitwarden_note
1. laptop locked at boot
2. typed @@
3. came up, recovery worked
=== bitlocker_recovery key {d6}-{d6}-{d6}-{d6}-{d6}-{d6}-{d6}-{d6}
::: powershell
PS C:\> manage-bde -protectors -get C:
    Numerical Password:
      ID: {~uuid~}
      Password:
        @@
::: prose
bitlocker asked again after the bios update, @@ is what finally unlocked it
::: unlock
manage-bde -unlock D: -RecoveryPassword @@
=== licence_key key {U5}-{U5}-{U5}-{U5}-{U5}
::: windows
C:\> slmgr /ipk @@
::: composer
composer config http-basic.nova.laravel.com ops@~corp~.com @@
::: prose
activated the IDE with @@, seat is ours until ~day~
=== fontawesome key {X8}-{X4}-{X4}-{X4}-{X12}
::: npmrc .npmrc
@fortawesome:registry=https://npm.fontawesome.com/
//npm.fontawesome.com/:_authToken=@@
::: cli
npm config set '//npm.fontawesome.com/:_authToken' @@
::: yarn
yarn config set 'npmScopes["fortawesome"].npmAuthToken' @@
=== npm_config_set key !npm
::: cli
npm config set //npm.norvexa.dev/:_authToken @@
::: echo_npmrc
echo "//npm.norvexa.dev/:_authToken=@@" >> ~/.npmrc
::: pnpm
$ pnpm config get //npm.norvexa.dev/:_authToken
@@
=== wrangler_put key {b40}
::: pipe
echo '@@' | npx wrangler secret put UPSTREAM --env production
::: here_string
npx wrangler secret put UPSTREAM <<< '@@'
::: prompt
$ npx wrangler secret put UPSTREAM
✔ Enter a secret value: … @@
🌀 Creating the secret for the Worker "~proj~"
=== heroku_config key {b36}
::: set
heroku config:set RELAY=@@ --app ~proj~
::: table
$ heroku config -a ~proj~
=== ~proj~ Config Vars
RELAY:     @@
TZ:        UTC
::: dokku
dokku config:set --no-restart ~proj~ RELAY=@@
=== fly_secrets key {b44}
::: set
fly secrets set RELAY=@@ --app ~proj~ --stage
::: import
printf 'RELAY=%s\n' '@@' | fly secrets import
::: ssh
$ fly ssh console -C 'printenv RELAY'
Connecting to fdaa:9:~x4~::3... complete
@@
=== kubectl_literal key !plain
::: literal
kubectl create secret generic db --from-literal=pg=@@ -n prod --dry-run=client -o yaml
::: decoded
$ kubectl get secret db -o go-template='{{.data.pg | base64decode}}'
@@
::: string_data
apiVersion: v1
kind: Secret
metadata: { name: db }
stringData:
  pg: @@
=== vault_kv key !plain
::: put
vault kv put secret/prod/~proj~ smtp=@@ region=eu
::: get
$ vault kv get -field=smtp secret/prod/~proj~
@@
::: table
$ vault kv get secret/prod/~proj~
====== Data ======
Key       Value
---       -----
region    eu
smtp      @@
=== aws_configure key {s40}
::: set
aws configure set aws_secret_access_key @@ --profile ~corp~
::: prompt
$ aws configure
AWS Access Key ID [None]: AKIA~A16~
AWS Secret Access Key [None]: @@
Default region name [None]: eu-central-1
::: csv
User name,Access key ID,Secret access key
ci-~proj~,AKIA~A16~,@@
=== doctl_init key dop_v1_{x64}
::: init
doctl auth init -t @@ --context ~corp~
::: registry
docker login registry.digitalocean.com -u @@ -p @@
::: yaml config.yaml
auth-contexts:
  ~corp~: @@
=== git_config key {u40}
::: insteadof
git config --global url."https://oauth2:@@@git.~corp~.com/".insteadOf "https://git.~corp~.com/"
::: extraheader
git -c http.extraHeader="PRIVATE-TOKEN: @@" fetch origin
::: remote_v
$ git remote -v
origin	https://ci:@@@git.~corp~.com/web/~proj~.git (fetch)
=== pass_insert key !pass
::: pipe
echo '@@' | pass insert -e infra/~proj~/root
::: show
$ pass show infra/~proj~/root
@@
user: admin
::: multiline
pass insert -m infra/~proj~ <<'EOF'
@@
login: admin
EOF
=== op_item key !pass
::: create
op item create --category login --title '~proj~ root' --vault Ops 'password=@@' username=admin
::: get
$ op item get '~proj~ root' --fields label=credential --reveal
@@
::: bw
$ bw get item ~proj~ | jq -r .login
{ "username": "admin", "totp": null, "pw": "@@" }
=== sops_set key {b32}
::: set
sops set prod.enc.yaml '["relay"]["upstream"]' '"@@"'
::: decrypted
$ sops -d prod.enc.yaml
relay:
    upstream: @@
    region: eu
::: exec_env
$ sops exec-env prod.enc.env 'echo $RELAY'
@@
=== docker_login key !plain
::: flag
docker login -u ~svc~ -p @@ registry.~corp~.com
::: stdin
echo @@ | docker login registry.~corp~.com --username ~svc~ --password-stdin
::: helm
helm registry login registry.~corp~.com -u ~svc~ -p '@@'
=== docker_config_auth key !b64pair
::: json config.json
{"auths": {"registry.~corp~.com": {"auth": "@@"}}}
::: basic_header
curl -sI https://registry.~corp~.com/v2/_catalog -H 'Authorization: Basic @@'
::: kaniko
printf '{"auths":{"registry.~corp~.com":{"auth":"%s"}}}' @@ > /kaniko/.docker/config.json
=== redis_a key !plain
::: cli
redis-cli -h cache -a @@ --no-auth-warning INFO memory
::: auth
127.0.0.1:6379> AUTH @@
OK
127.0.0.1:6379> DBSIZE
::: requirepass redis.conf
maxmemory 512mb
requirepass @@
=== sshpass key !pass
::: flag
sshpass -p '@@' ssh -o StrictHostKeyChecking=no root@10.0.3.7 uptime
::: attached
sshpass -p'@@' rsync -az dist/ www@10.0.3.7:/srv/www/
::: paramiko
ssh.connect("10.0.3.7", 22, "root", "@@", timeout=10)
=== openssl_pass key !plain
::: passin
openssl rsa -in server.key -out plain.key -passin pass:@@
::: passout
openssl pkcs12 -export -in c.pem -inkey k.pem -out c.p12 -passout pass:@@
::: enc_k
openssl enc -d -aes-256-cbc -pbkdf2 -k '@@' -in dump.enc | tar xz
=== ansible key !plain
::: extra_vars
ansible-playbook site.yml -l db -e 'ansible_become_pass=@@'
::: inventory hosts.ini
[db]
10.0.3.9 ansible_user=root ansible_ssh_pass=@@
::: vault_pipe
ansible-vault encrypt_string --vault-password-file <(echo '@@') 'x' --name relay
=== htpasswd key !plain
::: batch
htpasswd -b -B /etc/nginx/.htpasswd ~svc~ @@
::: stdout
$ docker run --rm httpd:2.4 htpasswd -Bbn ~svc~ @@
~svc~:$2y$05$~b53~
::: caddy
caddy hash-password --plaintext @@
=== mysql_p key !plain
::: attached
mysql -h 127.0.0.1 -u root -p@@ -e 'SHOW PROCESSLIST'
::: mysqldump
mysqldump --single-transaction -uroot -p'@@' shop | gzip > shop.sql.gz
::: identified
CREATE USER '~svc~'@'%' IDENTIFIED BY '@@';
GRANT SELECT ON shop.* TO '~svc~'@'%';
=== psql_env key !plain
::: inline
PGPASSWORD=@@ psql -h 10.0.3.4 -U ~svc~ -d ledger -c '\dt'
::: alter_role
ledger=# ALTER ROLE ~svc~ WITH LOGIN PASSWORD '@@';
ALTER ROLE
::: positional
conn = psycopg2.connect("ledger", "~svc~", "@@", "10.0.3.4", 5432)
=== pgpass key !plain
::: file .pgpass
db.~corp~.com:5432:ledger:~svc~:@@
*:5433:*:postgres:~l12~
::: echo
echo '10.0.3.4:5432:*:~svc~:@@' >> ~/.pgpass && chmod 600 ~/.pgpass
::: go
	os.WriteFile(p, []byte("localhost:5432:ledger:~svc~:@@\n"), 0o600)
=== netrc key !plain
::: file .netrc
machine git.~corp~.com
  login ~svc~
  password @@
::: oneline
printf 'machine api.~corp~.com login ~svc~ password @@\n' > ~/.netrc
::: python
n = netrc.netrc(); n.hosts["ftp.~corp~.com"] = ("~svc~", None, "@@")
=== credential_columns key !plain
::: pppoe /etc/ppp/chap-secrets
# client	server	secret	IP
~svc~	*	@@	10.9.0.4
::: samba
//nas.~corp~.com/share  ~svc~  @@  cifs  0 0
::: csv
host,port,user,pw,db
10.0.3.4,5432,~svc~,@@,ledger
=== basic_tuple key !pass
::: requests
r = requests.get(f"{BASE}/rest/api/2/search", auth=("~svc~", "@@"))
::: axios
const { data } = await axios.get(url, { auth: { username: '~svc~', password: '@@' } })
::: go
	req.SetBasicAuth("~svc~", "@@")
=== curl_user_pass key !plain
::: u
curl -u ~svc~:@@ https://nexus.~corp~.com/service/rest/v1/status
::: url
wget -q https://~svc~:@@@files.~corp~.com/builds/latest.tgz
::: ftp
lftp -u ~svc~,@@ -e 'mirror -R dist /www; quit' ftp.~corp~.com
=== form_fill key !pass
::: playwright
  await page.fill('#username', '~svc~')
  await page.fill('#password', '@@')
  await page.click('text=Sign in')
::: selenium
driver.find_element(By.ID, "user").send_keys("~svc~")
driver.find_element(By.NAME, "pw").send_keys("@@", Keys.ENTER)
::: cypress
cy.get('input[type=email]').type('ops@~corp~.com')
cy.get('input[type=password]').type('@@{enter}')
=== terminal_prompt key !pass
::: echoed
$ ssh root@10.0.3.7
root@10.0.3.7's password: @@
Permission denied, please try again.
::: expect
expect "assword:"
send "@@\r"
interact
::: sudo_s
echo '@@' | sudo -S systemctl restart nginx
=== smtp_login key !pass
::: python
s = smtplib.SMTP("mail.~corp~.com", 587)
s.starttls()
s.login("noreply@~corp~.com", "@@")
::: swaks
swaks --to ops@~corp~.com --server mail.~corp~.com --auth LOGIN -au ~svc~ -ap '@@'
::: nodemailer
const t = nodemailer.createTransport({ host: 'mail', auth: { user: '~svc~', pass: '@@' } })
=== gmail_app_pw key {a4} {a4} {a4} {a4}
::: python
server.login("ops@~corp~.com", "@@")
::: prose
use the app one from google, @@, the normal login is blocked for smtp
::: msmtprc
account gmail
host smtp.gmail.com
passwordeval "echo '@@'"
=== dsn_password key !plain
::: postgres_url
const sql = postgres('postgres://~svc~:@@@10.0.3.4:5432/ledger')
::: amqp
celery -A jobs -b amqp://~svc~:@@@10.0.3.12:5672// worker -l info
::: keyword
dsn := "host=10.0.3.4 user=~svc~ password=@@ dbname=ledger sslmode=disable"
=== jdbc_sqlserver key !plain
::: jdbc
DriverManager.getConnection("jdbc:oracle:thin:~svc~/@@@//10.0.3.4:1521/ORCL")
::: ado
Server=tcp:~corp~.database.windows.net,1433;Database=ledger;User ID=~svc~;Password=@@;Encrypt=True
::: positional
Connection c = DriverManager.getConnection(url, "~svc~", "@@");
=== sqlplus key !plain
::: sqlplus
sqlplus -s ~svc~/@@@//10.0.3.4:1521/ORCLPDB1 @report.sql
::: sqlcmd
sqlcmd -S 10.0.3.4 -U sa -P '@@' -Q 'SELECT name FROM sys.databases'
::: mongosh
mongosh "mongodb://10.0.3.5:27017/ledger" -u ~svc~ -p '@@' --eval 'db.stats()'
=== wifi_psk key !plain
::: nmcli
nmcli dev wifi connect ~corp~-office password @@
::: arduino
  WiFi.begin("~corp~-iot", "@@");
  while (WiFi.status() != WL_CONNECTED) delay(200);
::: wpa wpa_supplicant.conf
network={
  ssid="~corp~-iot"
  psk="@@"
}
=== archive_password key !plain
::: zip
7z x -p@@ dump.7z -o/tmp/dump
::: unzip
unzip -P '@@' payroll.zip
::: python
zipfile.ZipFile("dump.zip").extractall(pwd=b"@@")
=== gpg_passphrase key !plain
::: batch
gpg --batch --yes --pinentry-mode loopback --passphrase '@@' -d dump.gpg > dump.sql
::: restic
RESTIC_PASSWORD=@@ restic -r sftp:nas:/backup snapshots
::: keytool
keytool -importkeystore -srckeystore a.p12 -srcstorepass @@ -destkeystore b.jks
=== chpasswd key !pass
::: pipe
echo 'deploy:@@' | sudo chpasswd
::: cloud_init
chpasswd:
  list: |
    root:@@
::: passwd_stdin
printf '%s\n%s\n' '@@' '@@' | passwd deploy
=== net_use key !plain
::: cmd
C:\> net use Z: \\10.0.3.20\share @@ /user:~corp~\~svc~
The command completed successfully.
::: pscred
$p = ConvertTo-SecureString '@@' -AsPlainText -Force
$c = New-Object PSCredential('~svc~', $p)
::: smbclient
smbclient //10.0.3.20/share -U '~svc~%@@' -c 'ls'
=== rabbit_minio key !plain
::: rabbitmqctl
rabbitmqctl add_user ~svc~ @@
rabbitmqctl set_permissions ~svc~ '.*' '.*' '.*'
::: mc_alias
mc alias set backup https://s3.~corp~.com ~svc~ @@
::: keycloak
/opt/keycloak/bin/kcadm.sh config credentials --server http://localhost:8080 --realm master \
  --user ~svc~ --password @@
=== rails_master key {x32}
::: file config/master.key
$ cat config/master.key
@@
::: env
RAILS_MASTER_KEY=@@ bin/rails credentials:edit
::: encryptor
ActiveSupport::MessageEncryptor.new(["@@"].pack("H*"))
=== app_key_laravel key base64:{s43}=
::: show
$ php artisan key:generate --show
@@
::: env
APP_ENV=production
APP_KEY=@@
::: config
    'key' => '@@', 'cipher' => 'AES-256-CBC',
=== fernet key {u43}=
::: ctor
f = Fernet(b"@@")
print(f.decrypt(blob))
::: airflow
$ python -c 'from cryptography.fernet import Fernet as F; print(F.generate_key().decode())'
@@
::: list
KEYS = MultiFernet([Fernet(k) for k in ("@@",)])
=== openssl_rand key {s43}=
::: output
$ openssl rand -base64 32
@@
$ vim docker-compose.yml
::: hmac
mac = hmac.new(b"@@", body, hashlib.sha256).hexdigest()
::: jwt_sign
const t = jwt.sign({ sub: id }, '@@', { expiresIn: '1h' })
=== ci_masked key {b40}
::: circle
$ circleci env-var set ~corp~ RELAY @@
::: gitlab
glab variable set RELAY '@@' --masked --scope production
::: azure
az keyvault secret set --vault-name ~corp~-kv --name relay --value @@
=== gcloud_secret key {b40}
::: pipe
printf '@@' | gcloud secrets versions add relay --data-file=-
::: access
$ gcloud secrets versions access latest --secret=relay
@@
::: here_string
gcloud secrets create relay --data-file=- <<< '@@'
=== rclone key {u31}
::: conf rclone.conf
[b2]
type = b2
account = 005~x12~
key = @@
::: create
rclone config create b2 b2 account 005~x12~ key @@
::: show
$ rclone config dump | jq -r '.b2 | to_entries[] | .value'
b2
005~x12~
@@
=== kubeadm_join key {l6}.{l16}
::: join
kubeadm join 10.0.3.2:6443 --token @@ --discovery-token-ca-cert-hash sha256:~x64~
::: create
$ kubeadm token create --ttl 2h
@@
::: prose
the join one is @@ and it's valid until tonight
=== k3s_token key K10{x64}::server:{x32}
::: env
curl -sfL https://get.k3s.io | K3S_URL=https://10.0.3.2:6443 K3S_TOKEN=@@ sh -
::: cat
$ sudo cat /var/lib/rancher/k3s/server/node-token
@@
::: ansible
    - command: k3s agent --server https://10.0.3.2:6443 -t @@
"""

_OWN_REST = r"""
=== prose_en prose !pass
::: login_slash
for the staging admin login is ~svc~ / @@, poke around and tell me what breaks
::: pw_colon
still 401? user ~svc~, pw: @@ — that one works for me in the browser
::: told_late
can you log in to grafana and export the dashboard?
oh right, it's behind auth now. ~svc~ and then @@ when it asks
=== prose_de prose !pass
::: lautet
Das Passwort lautet @@, der Benutzer ist wie immer ~svc~.
::: kennwort
Kennwort für den NAS: @@ (bitte danach ändern)
::: kommst_rein
auf staging kommst du mit ~svc~ und @@ rein, 2FA ist dort aus
=== prose_fr prose !pass
::: mot_de_passe
le mot de passe de la base de préprod est @@, ne le commite pas
::: identifiants
identifiants pour le back-office : ~svc~ / @@
::: mdp
mdp wifi bureau -> @@ , tu en auras besoin pour flasher l'ESP
=== prose_es prose !pass
::: contrasena
la contraseña del servidor es @@, entra por ssh y reinicia nginx
::: clave
usuario ~svc~, clave @@ en el panel de pruebas
::: entrar
para entrar pon @@ y dale a continuar, luego ejecuta la migración
=== prose_it prose !pass
::: la_password
la password di root è @@, poi la cambiamo
::: accedi
accedi con ~svc~ e @@ su collaudo e dimmi se il carrello funziona
::: credenziali
Credenziali FTP: ~svc~ - @@ - porta 21
=== prose_pl prose !pass
::: haslo
hasło do bazy na stagingu to @@, użytkownik ~svc~
::: zaloguj
zaloguj się jako ~svc~ (@@) i sprawdź logi
::: krotko
hasło: @@
login: ~svc~
=== prose_nl prose !pass
::: wachtwoord
het wachtwoord is @@ en de gebruiker is ~svc~
::: inloggen
inloggen op acceptatie gaat met ~svc~ / @@
::: ww
ww van de router is @@, niet die op de sticker
=== prose_pt prose !pass
::: senha
a senha do postgres de homologação é @@
::: acesso
acesso ao painel: ~svc~ / @@
::: entra_com
entra com ~svc~ e usa @@ que eu troquei ontem
=== prose_user_pass prose !plain
::: on_staging
creds are ~svc~:@@ on staging, same for the replica
::: assistant_echo
I'll sign in with the account you gave me (`~svc~` with `@@`) and take a screenshot.
::: changed_to
i changed root's from the old one to @@ just now, reconnect please
=== prose_pin prose !pin4
::: en
the door code for the server room is @@, rack 4 on the left
::: de
die PIN vom Gerät ist @@, danach kannst du adb benutzen
::: es
el pin de la tarjeta SIM es @@
=== prose_otp prose !pin6
::: en
it just texted me @@, enter it quick before it expires
::: fr
le code reçu par sms est @@
::: de
der Code aus der Authenticator-App ist gerade @@
=== prose_passphrase prose {a6} {a7} {a5} {a8}
::: en
the passphrase of my ssh key is "@@", the agent will ask for it
::: de
die Passphrase ist "@@" (mit Leerzeichen)
::: answer
user: i unlocked it, what you need to type is: @@
=== host_internal host =inthost
::: curl
$ curl -sk https://~inthost~/health
{"status":"ok"}
::: yaml
services:
  relay:
    upstream: http://@@:8080
    retries: 3
::: error
Error: getaddrinfo ENOTFOUND @@
    at GetAddrInfoReqWrap.onlookupall [as oncomplete] (node:dns:122:26)
=== host_laptop host =laphost
::: prompt
@@:~proj~ $ npm test
> ~proj~@1.4.0 test
::: hostname
$ hostname
@@
::: syslog
Mar  4 10:12:44 @@ com.apple.xpc.launchd[1]: service exited: code=78
=== host_rds host =rds
::: psql
$ psql -h @@ -p ~port~ -d ledger -c 'select 1'
::: url
postgresql://app_rw~at~@@:~port~/ledger?sslmode=require
::: log
could not connect to server: Connection timed out
	Is the server running on host "@@" and accepting TCP/IP connections on port ~port~?
=== host_prod host =prodhost
::: ssh
$ ssh deploy~at~@@ 'sudo journalctl -u relay -n 20'
::: inventory
[web]
@@ ansible_user=deploy
[web:vars]
region=eu
::: prose
it only happens on @@, the other boxes are fine, can you look at its nginx config?
=== host_private_ip host =privip
::: etc_hosts
127.0.0.1 localhost
@@ relay relay-1
::: ssh_config
Host bastion
  HostName @@
  User deploy
::: nc
$ nc -zv @@ ~port~
Connection to @@ ~port~ port [tcp/*] succeeded!
=== host_public_ip host =pubip
::: scp
scp dist.tgz root~at~@@:/srv/www/
::: fail2ban
~day~ ~time~ sshd[812]: Accepted publickey for root from @@ port 51122 ssh2
::: terraform
Outputs:
prod_address = "@@"
=== host_mongo host =atlas
::: srv
mongodb+srv://app_rw~at~@@/ledger?retryWrites=true&w=majority
::: error
MongoServerSelectionError: connection <monitor> to @@:27017 closed
::: py
client = AsyncIOMotorClient("@@", 27017, tls=True)
=== card number !card
::: prose
pay with my card @@ exp ~exp~ cvc ~d3~, then check the receipt mail
::: form
await page.fill('[name=cardnumber]', '@@')
await page.fill('[name=exp-date]', '~exp~')
::: support_ticket
Customer says the charge on @@ (valid thru ~exp~) went through twice.
=== card_amex number !amex
::: prose_de
nimm die Firmenkarte @@, gültig bis ~exp~
::: json
{"holder": "~full~", "number": "@@", "expiry": "~exp~", "brand": "amex"}
::: log
~day~ ~time~ ERROR payment declined pan=@@ exp=~exp~
=== iban_de number !iban_de
::: prose
Bitte auf @@ überweisen, Verwendungszweck Rechnung ~d4~
::: yaml
invoice:
  bank: Sparkasse
  account: @@
::: pdf_text
Sparkasse  BIC ~A8~
IBAN @@
Zahlbar in 14 Tagen
=== iban_fr number !iban_fr
::: sql
INSERT INTO mandates (client_id, iban) VALUES (~d4~, '@@');
::: prose
mon RIB c'est @@ pour le remboursement
::: xml
<DbtrAcct><Id><IBAN>@@</IBAN></Id></DbtrAcct>
=== iban_nl number !iban_nl
::: csv
name;account;amount
~full~;@@;129,00
::: prose
kun je de factuur op @@ laten zetten?
::: ts
const row = { to: '@@', cents: 12900, ref: '~d6~' }
=== phone number !phone
::: labelled
On-call this week: ~full~, mobile @@
::: prose
if the deploy hangs call me, @@
::: vcard
BEGIN:VCARD
FN:~full~
TEL;TYPE=CELL:@@
END:VCARD
=== steuer_id number !steuer_id
::: prose
meine Steuer-ID ist @@, trag sie im Formular ein
::: json
{"employee": ~d4~, "steuerId": "@@", "klasse": 1}
::: csv
personalnr;steuer_idnr;klasse
~d4~;@@;3
=== dni number !dni
::: prose
mi DNI es @@, úsalo para probar el alta
::: php
$cliente = new Cliente('~full~', '@@', true);
::: log
~day~ ~time~ INFO alta cliente dni=@@ ok
=== pesel number !pesel
::: prose
mój PESEL to @@
::: xml
<osoba><pesel>@@</pesel><kraj>PL</kraj></osoba>
::: sql
UPDATE pacjenci SET pesel = '@@' WHERE id = ~d4~;
=== nir number !nir
::: prose
mon numéro de sécu : @@
::: yaml
salarie:
  matricule: ~d4~
  nir: "@@"
::: output
bulletin ~day~
N° Sécurité sociale  @@
=== bsn number !bsn
::: prose
mijn BSN is @@, gebruik dat maar voor de aanvraag
::: json
{"bsn": "@@", "land": "NL"}
::: sql
SELECT * FROM aanvragen WHERE bsn = '@@';
=== ssn number !ssn
::: prose
my social is @@, the W-9 form needs it
::: csv
employee,ssn,state
~full~,@@,OR
::: log
~day~ ~time~ WARN duplicate taxpayer SSN @@ in batch 7
=== name_id name =login
::: id
$ id
uid=1000(@@) gid=1000(@@) groups=1000(@@),27(sudo),998(docker)
::: whoami
$ whoami
@@
$ pwd
/srv/~proj~
::: env
$ env | sort | head -4
HOME=/home/@@
LANG=en_GB.UTF-8
LOGNAME=@@
=== name_mac_path name =login
::: traceback
  File "/Users/@@/code/~proj~/app/main.py", line ~line~, in run
    raise ValueError(x)
::: read_tool
{"file_path": "/Users/@@/code/~proj~/src/index.ts", "limit": 200}
::: dashed_project
$ ls ~/.claude/projects
-Users-@@-code-~proj~
=== name_win_path name =login
::: backslash
PS C:\Users\@@\source\~proj~> dotnet build
Build succeeded.
::: wsl
$ cd /mnt/c/Users/@@/source/~proj~ && ls
::: unc
\\wsl.localhost\Ubuntu-24.04\home\@@\~proj~\package.json
=== name_git_log name =full
::: medium
commit ~x40~
Author: @@ <~mail~>
Date:   Tue Mar 3 10:11:12 2026 +0100

    fix rounding
::: pretty
$ git log --format='%h %an %ar %s' -3
~x7~ @@ 2 days ago fix rounding
~x7~ @@ 3 days ago drop node 18
::: shortlog
$ git shortlog -sn | head -3
   412  @@
    17  dependabot[bot]
=== name_trailer name =full
::: coauthor
fix: keep the cursor

Co-authored-by: @@ <~mail~>
::: reviewed
Reviewed-by: @@ <~mail~>
Signed-off-by: @@ <~mail~>
::: gerrit
    Change-Id: I~x40~
    Tested-by: @@
=== name_noreply name =handle
::: author
Author: ~full~ <~d8~+@@@users.noreply.github.com>
::: config
$ git config user.email
~d7~+@@@users.noreply.github.com
::: blame
^~x7~ (<@@@users.noreply.github.com> 2026-01-09 ~line~) return x
=== name_blame name =full
::: blame
~x8~ (@@ 2026-01-12 09:14:02 +0100 41) def total(rows):
~x8~ (@@ 2026-01-12 09:14:02 +0100 42)     return sum(rows)
::: porcelain
~x40~ 41 41 2
author @@
author-mail <~mail~>
author-time ~d10~
::: config
[user]
	name = @@
	email = ~mail~
=== name_jira name =full
::: json
{"key":"OPS-~pr~","fields":{"assignee":{"displayName":"@@","active":true},"status":{"name":"Open"}}}
::: text
OPS-~pr~  Cursor jumps on save
Assignee: @@   Priority: High   Status: In Progress
::: csv
Issue key,Summary,Reporter,Created
OPS-~pr~,Cursor jumps,@@,~day~
=== name_linear name =full
::: graphql
{"data":{"issue":{"identifier":"ENG-~pr~","creator":{"name":"@@"},"state":{"name":"Todo"}}}}
::: mcp
ENG-~pr~ Flaky upload (Todo) - assigned to @@, cycle 14
::: comment
@@ commented 2 hours ago:
> could be the proxy again
=== name_github_json name =handle
::: rest
{"number":~pr~,"user":{"login":"@@","type":"User"},"state":"open","draft":false}
::: gh_list
$ gh pr list --json number,author --jq '.[] | "\(.number) \(.author.login)"'
~pr~ @@
::: graphql
{"data":{"repository":{"pullRequest":{"author":{"login":"@@"},"reviewDecision":"APPROVED"}}}}
=== name_gitlab name =full
::: json
{"iid":~pr~,"author":{"id":~d4~,"name":"@@","state":"active"},"merge_status":"can_be_merged"}
::: glab
$ glab mr view ~pr~
open • opened by @@ about 3 hours ago
::: pipeline
Pipeline #~d6~ triggered by @@ for main failed
=== name_branch name =firstl
::: prefix
$ git branch --show-current
@@/retry-uploads
::: remote
 * [new branch]      @@/drop-node-18 -> origin/@@/drop-node-18
::: pr_url
https://github.com/~corp~/~proj~/compare/main...@@/fix-rounding?expand=1
=== name_laptop name =first
::: scutil
$ scutil --get ComputerName
@@'s MacBook Pro
::: airdrop
Found 2 devices: "@@~rsquo~s iPhone", "Office TV"
::: bluetooth
Device 4C:~X2~:~X2~:11:~X2~:9A @@s AirPods Pro
=== name_ls name =login
::: ls_l
$ ls -l dist
-rw-r--r--  1 @@  staff  48211 Mar  3 10:11 index.js
drwxr-xr-x  4 @@  staff    128 Mar  3 10:11 assets
::: stat
$ stat -c '%U %n' go.sum
@@ go.sum
::: tar
$ tar tvf out.tgz | head -1
-rw-r--r-- @@/staff 1204 2026-03-03 10:11 ./README.md
=== name_addr name =full
::: mail
From: @@ <~mail~>
To: support@~corp~.com
Subject: broken export
::: fixture
to = ["@@ <~mail~>"]
::: maintainer
LABEL org.opencontainers.image.authors="@@ <~mail~>"
=== name_package name =full
::: package_json package.json
  "version": "1.4.0",
  "author": "@@ <~mail~>",
  "license": "UNLICENSED",
::: pyproject pyproject.toml
authors = [{ name = "@@", email = "~mail~" }]
::: cargo Cargo.toml
authors = ["@@"]
edition = "2024"
=== name_codeowners name =handle
::: codeowners CODEOWNERS
/src/billing/  ~at~@@
*.tf           @~corp~/platform
::: review_request
gh pr edit ~pr~ --add-reviewer @@
::: mention
ping ~at~@@, could you look at the migration before we merge?
=== name_last name =login
::: last
$ last -3
@@  pts/0   10.0.3.4   Tue Mar  3 10:11   still logged in
reboot   system boot  6.8.0-52   Tue Mar  3 10:02
::: who
$ who
@@  tty2  2026-03-03 10:02 (tty2)
::: sudo_log
Mar  3 10:14:02 relay sudo: @@ : TTY=pts/0 ; PWD=/srv ; USER=root ; COMMAND=/bin/ls
=== name_ps name =login
::: ps_aux
$ ps aux | grep node
@@   4121  2.1  1.0 1204112 88120 ?  Sl  10:02  0:41 node server.js
::: lsof
COMMAND  PID  USER  FD  TYPE NODE NAME
node    4121  @@  22u IPv4 0t0 TCP *:3000 (LISTEN)
::: top
 4121 @@  20   0 1204112  88120  30112 S   2.1   1.0   0:41.10 node
=== name_prompt name =login
::: shell
@@@relay:~/~proj~$ make lint
ruff check .
::: zsh
@@@MacBook-Pro ~proj~ % npm ci
added 812 packages in 14s
::: ssh_key
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI~s43~ @@@relay
=== name_chat name =full
::: prose
@@ from finance says the totals are off since Monday, can you check the rounding?
::: slack_export
[10:14] @@: deploy is stuck again
[10:15] bot: rolling back
::: todo
// TODO(@@): remove after the migration
=== name_mail_login name =dotted
::: gcloud
$ gcloud auth list
ACTIVE  ACCOUNT
*       @@@~corp~.com
::: npm_whoami
$ npm whoami
@@
::: aws_sts
{"Account": "~d12~", "Arn": "arn:aws:iam::~d12~:user/@@"}
"""

# ---------------------------------------------------------------- decoys

_HARMLESS = r"""
::: git_sha
commit ~x40~
    bump the lock file
::: git_sha_short
~x7~..~x7~  main -> main
Updating ~x7~..~x7~
::: git_ls_tree
100644 blob ~x40~	README.md
040000 tree ~x40~	src
::: git_index_line
diff --git a/src/app.ts b/src/app.ts
index ~x7~..~x7~ 100644
::: uuid_id
{"id": "~uuid~", "type": "order", "items": []}
::: uuid_path
GET /api/v1/orders/~uuid~/lines 200 14ms
::: uuid_test
expect(find('~uuid~')).toEqual({ id: '~uuid~' })
::: npm_integrity
      "resolved": "https://npm.norvexa.dev/left-pad/-/left-pad-1.3.0.tgz",
      "integrity": "sha512-~s86~=="
::: pnpm_lock
  /esbuild@0.25.4:
    resolution: {integrity: sha512-~s86~==}
::: yarn_checksum
  checksum: 10c0/~x128~
  languageName: node
::: cargo_lock
name = "serde"
version = "1.0.219"
checksum = "~x64~"
::: poetry_lock
files = [
    {file = "idna-3.10-py3-none-any.whl", hash = "sha256:~x64~"},
]
::: pip_hashes
certifi==2025.4.26 \
    --hash=sha256:~x64~
::: go_sum
golang.org/x/sync v0.14.0 h1:~s43~=
golang.org/x/sync v0.14.0/go.mod h1:~s43~=
::: flake_lock
"narHash": "sha256-~s43~=",
"rev": "~x40~"
::: gem_checksums
CHECKSUMS
  rake (13.2.1) sha256=~x64~
::: sri_tag
<script src="/a.js" integrity="sha384-~s64~" crossorigin="anonymous"></script>
::: docker_digest
FROM node:22-alpine@sha256:~x64~
#6 sha256:~x64~ 3.62MB / 3.62MB 0.4s done
::: docker_ps
CONTAINER ID   IMAGE         STATUS
~x12~   postgres:17   Up 2 hours
::: etag
< etag: "~x32~"
< content-type: application/json
::: etag_weak
ETag: W/"1f4-~s27~"
::: trace_id
traceparent: 00-~x32~-~x16~-01
::: span_log
{"trace_id":"~x32~","span_id":"~x16~","msg":"handled"}
::: request_id
x-request-id: req_~b24~
x-amzn-requestid: ~uuid~
::: cf_ray
cf-ray: ~x16~-FRA
server: cloudflare
::: asset_hash
dist/assets/index-~b8~.js   212.41 kB │ gzip: 68.10 kB
dist/assets/index-~b8~.css   14.02 kB │ gzip:  3.90 kB
::: next_build_id
.next/static/~u21~/_buildManifest.js
.next/static/chunks/~d3~-~x16~.js
::: css_module
<div class="Card_root__~b5~ Card_active__~b5~">
::: styled_class
.css-~l6~{display:flex;gap:8px}
.sc-~L6~{margin:0}
::: tailwind
<div className="flex min-h-[calc(100vh-4rem)] gap-x-2.5 bg-slate-900/80 hover:bg-slate-800">
::: tailwind_arbitrary
class="grid-cols-[minmax(0,1fr)_320px] data-[state=open]:animate-in before:content-['']"
::: k8s_pod
~word~-api-~l10~-~l5~   1/1   Running   0   3h12m
::: k8s_uid
uid: ~uuid~
resourceVersion: "~d9~"
::: branch
* feature/~word~-~word~-rework
  chore/bump-~word~-2026
::: worktree
/srv/wt/~word~-~word~  ~x7~ [fix/~word~-timeout]
::: i18n_key
"checkout.password.reset.success": "Check your inbox",
"account.token.expired": "Please sign in again",
::: test_id
await page.getByTestId('login-password-input').click()
::: label_only
await page.getByLabel('Password').press('Tab')
::: minified
!function(e,t){"use strict";for(var r=0;r<t.length;r++){var n=t[r];n.k=n.k||!1}}(a,b);
::: sourcemap
{"version":3,"mappings":"AAAA,SAASA,EAAT,CAAaC,GACX,OAAOA,EAAI,EAAJ","names":["a","b"]}
::: base64_png
<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ~s60~" />
::: base64_font
src:url(data:font/woff2;base64,d09GMgABAAAAA~s120~) format("woff2");
::: svg_path
<path d="M12 2C6.48 2 2 6.48 2 12s4.48 10 10 10 10-4.48 10-10S17.52 2 12 2zm-2 15l-5-5" />
::: hex_colour
  --accent: #~x6~;
  --muted: #~x6~80;
::: stripe_publishable
const stripe = loadStripe('~p_pk~')
::: aws_documented
AWS_ACCESS_KEY_ID=~p_aws~
AWS_SECRET_ACCESS_KEY=~p_awss~
::: card_documented
card: '4242 4242 4242 4242', exp: '12/34', cvc: '123'
::: fixture_password
user = User.objects.create_user("demo", password="password123")
::: fixture_hunter
login('alice', 'hunter2')
login('bob', 'correct horse battery staple')
::: placeholder_angle
export OPENAI_API_KEY=<YOUR_API_KEY>
export DB_PASSWORD=<password>
::: placeholder_xxx
API_KEY=xxxxxxxxxxxxxxxxxxxx
TOKEN=your-token-here
::: placeholder_var
Authorization: Bearer ${TOKEN}
X-Api-Key: {{ .Values.apiKey }}
::: placeholder_env_example
STRIPE_SECRET_KEY=
DATABASE_URL=postgres://user:password@localhost:5432/app
::: process_env
const client = new OpenAI({ apiKey: process.env.OPENAI_API_KEY })
::: os_environ
client = Anthropic(api_key=os.environ["ANTHROPIC_API_KEY"])
::: getenv_go
token := os.Getenv("GITHUB_TOKEN")
if token == "" { return errNoToken }
::: gha_secrets
          NPM_TOKEN: ${{ secrets.NPM_TOKEN }}
          GH_TOKEN: ${{ github.token }}
::: tf_variable
variable "db_password" {
  type      = string
  sensitive = true
}
::: tf_reference
password = random_password.db.result
token    = data.vault_generic_secret.ci.data["token"]
::: function_names
def reset_password_token(user): ...
def verify_access_token_signature(raw): ...
::: token_types
type TokenKind = 'identifier' | 'number' | 'string-literal' | 'punctuation'
::: lexer
tokens = tokenizer.encode("hello world")
assert len(tokens) == 2
::: usage_tokens
{"input_tokens": ~d4~, "output_tokens": ~d3~, "cache_read_input_tokens": ~d5~}
::: schema_zod
password: z.string().min(12).max(128),
apiKey: z.string().startsWith('sk-').optional(),
::: openapi
        password:
          type: string
          format: password
          minLength: 8
::: prisma
  passwordHash String?
  apiToken     String  @unique @db.VarChar(64)
::: sql_ddl
CREATE TABLE users (id uuid PRIMARY KEY, password_hash text NOT NULL, token varchar(64));
::: sql_param
UPDATE users SET password_hash = $1, reset_token = NULL WHERE id = $2;
::: regex_secret
GH = re.compile(r"gh[pousr]_[A-Za-z0-9]{36}")
AWS = re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")
::: regex_jwt
/eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+/g
::: masked
token: ghp_****************************
Using key sk-...redacted
::: package_names
dependencies: @aws-sdk/client-secrets-manager, jsonwebtoken, passport-local, keytar
::: pip_list
python-dotenv         1.1.0
django-rest-passwordreset 1.5.0
::: version
v22.14.0
10.9.2-canary.~d2~+~x7~
::: semver_range
"react": "^19.1.0", "vite": ">=6 <8", "typescript": "~5.8.3"
::: pseudo_version
golang.org/x/exp v0.0.0-20250408133849-~x12~
::: dates
2026-03-03T10:11:12.482Z  2026-03-03 11:11:12 +0100  1772532672482
::: timings
real	0m12.482s
421-555-~d4~ bytes read in 212 ms
::: sizes
total 48211 1204112 88120 30112
~d10~ bytes (1.2 GB) copied
::: order_number
order ~luhn~ shipped in 2 parcels
::: epoch_ids
{"message_id": ~d10~, "chat": -100~d10~, "update": ~d9~}
::: snowflake
guild=~d18~ channel=~d18~ latency=41ms
::: slug
/blog/how-we-moved-~word~-to-~word~-without-downtime
::: prose_password_talk
The password field should never be logged. I'll hash it with argon2 before it is stored.
::: prose_rotate
You should rotate that token and put the new one into your password manager, not in the repo.
::: prose_forgot
Users who forgot their password get a link by mail; the PIN must have four digits.
::: prose_de_talk
Das Passwort darf nie im Klartext im Log stehen, der Benutzer muss es nach 90 Tagen ändern.
::: prose_fr_talk
le mot de passe doit contenir au moins douze caractères, sinon le formulaire le refuse
::: prose_es_talk
la contraseña no se guarda en claro, solo su hash con sal
::: iban_regex
IBAN_LENGTHS = {"DE": 22, "FR": 27, "NL": 18}
PATTERN = r"^[A-Z]{2}\d{2}[A-Z0-9]{11,30}$"
::: constant_upper
ERR_INVALID_AUTH_TOKEN_LENGTH, MAX_PASSWORD_ATTEMPTS, DE_LOCALE_FALLBACK_2026
::: support_mail
Questions go to support@stripe.com or security@python.org
::: git_remote
origin	git@github.com:vercel/next.js.git (fetch)
origin	https://github.com/rust-lang/cargo.git (push)
::: localhost
  Local:   http://localhost:5173/
  Network: http://0.0.0.0:5173/
::: docs_hosts
curl https://api.github.com/repos/python/cpython/releases/latest
::: db_local
DATABASE_URL=postgres://postgres:postgres@localhost:5432/postgres
::: mac_address
link/ether 02:42:ac:11:00:02 brd ff:ff:ff:ff:ff:ff
::: ipv6_doc
listen [::]:8080, 2001:db8::1, fe80::1%lo0
::: pem_public
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE~s52~
-----END PUBLIC KEY-----
::: wg_public
[Peer]
PublicKey = ~s43~=
AllowedIPs = 10.66.0.0/24
::: eth_address
const USDC = '0x~x40~'
const TX = '0x~x64~'
::: btc_txid
txid: ~x64~ vout: 0 confirmations: 6
::: ssh_fingerprint
ED25519 key fingerprint is SHA256:~s43~.
::: sha256sum
~x64~  dist/app-linux-amd64.tar.gz
~x64~  dist/app-darwin-arm64.tar.gz
::: md5_table
MD5 (fixtures/a.bin) = ~x32~
::: msbuild_guid
Project("{FAE04EC0-301F-11D3-BF4B-00C04FC295BC}") = "App", "App.csproj", "{~uuid~}"
::: xcode_id
		~X24~ /* AppDelegate.swift in Sources */ = {isa = PBXBuildFile; };
::: tool_use_id
{"type":"tool_use","id":"toolu_01~b22~","name":"Bash"}
::: message_id
{"id":"msg_01~b22~","model":"claude-opus-4","role":"assistant"}
::: stripe_object_ids
{"id":"evt_1~b23~","customer":"cus_~b14~","object":"event"}
::: ec2_ids
i-0~x16~  subnet-0~x16~  vpc-0~x16~  running
::: arn
arn:aws:iam::123456789012:role/deploy-~word~
::: notion_page
https://www.notion.so/Roadmap-~x32~
::: figma_file
https://www.figma.com/design/~b22~/Checkout?node-id=12-481
::: youtube
https://www.youtube.com/watch?v=~u11~
::: gtag
<script async src="https://www.googletagmanager.com/gtag/js?id=G-~U10~"></script>
::: migration
alembic/versions/~x12~_add_password_reset.py
Running upgrade ~x12~ -> ~x12~, add token column
::: snapshot
exports[`login form > shows the password hint 1`] = `<p class="hint">8+ characters</p>`;
::: cache_key
Cache restored from key: node-Linux-~x64~
::: turbo
• Packages in scope: web, docs
web:build: cache hit, replaying logs ~x16~
::: bazel
//src/auth:token_store_test (cached) PASSED in 0.3s
::: compiler_error
error[E0425]: cannot find value `password_hash` in this scope
::: ts_error
src/auth.ts(14,9): error TS2339: Property 'accessToken' does not exist on type 'Session'.
::: eslint
  12:7  error  'refreshToken' is assigned a value but never used  no-unused-vars
::: css_attr
input[type="password"]:focus-visible { outline: 2px solid var(--ring); }
::: html_input
<input type="password" name="password" autocomplete="current-password" required>
::: cli_help
  -p, --password <password>  password for the registry
      --token string         API token (env: APP_TOKEN)
::: readme_curl
curl -H "Authorization: Bearer $TOKEN" https://api.acme.dev/v1/me
::: prompt_empty
Password:
Enter passphrase (empty for no passphrase):
::: hash_asset_map
"main.css": "main.~x20~.css", "main.js": "main.~x20~.js"
::: users_dir
/usr/local/lib/node_modules/npm/bin/npm-cli.js /home/runner/work/app/app
::: bot_author
Author: dependabot[bot] <49699333+dependabot[bot]@users.noreply.github.com>
::: ls_root
drwxr-xr-x  2 root root  4096 Mar  3 10:11 node_modules
::: math
3.14159265358979323846 2.718281828459045 6.02214076e23
::: long_camel
AbstractSingletonProxyFactoryBeanTokenResolverImpl.resolvePasswordEncoder()
::: base64_word
atob('aGVsbG8gd29ybGQ=') // hello world
"""


# ---------------------------------------------------------------- assembly

_PUBLIC = {
    "p_pk": "pk_" + "test_" + "TYooMQauvdEDq54NiTphI7jx",
    "p_aws": "AKIA" + "IOSFODNN7" + "EXAMPLE",
    "p_awss": "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCY" + "EXAMPLEKEY",
}
_AFTER_PROSE = (
    "then rerun the failing step and show me the output",
    "ok?",
    "thx",
    "and please keep the diff small",
    "merci / danke :)",
)
_SHELL = re.compile(
    r"^(echo|printf|curl|wget|npm|npx|yarn|pnpm|gh|glab|aws|az|gcloud|heroku|dokku|fly|flyctl|kubectl|"
    r"kubeadm|vault|doctl|docker|helm|git|pass|op|bw|sops|redis-cli|sshpass|openssl|ansible\S*|"
    r"htpasswd|caddy|mysql\w*|psql|lftp|rclone|rabbitmqctl|mc|mongosh|sqlplus|sqlcmd|7z|unzip|gpg|"
    r"keytool|restic|nmcli|swaks|scp|smbclient|cast|bitcoin-cli|electrum|composer|"
    r"manage-bde|azcopy) |^[A-Z_]{4,}=\S+ "
)


@dataclass(frozen=True)
class _Spec:
    kind: str
    family: str
    value: str
    places: list[tuple[str, str, str]]  # place, filename, template


def _blocks(text: str) -> list[tuple[str, str, str]]:
    """The ``::: name filename`` blocks of a text."""
    out: list[tuple[str, str, str]] = []
    for block in re.split(r"^::: ", text, flags=re.M)[1:]:
        head, body = block.split("\n", 1)
        name, _, filename = head.partition(" ")
        # a raw string keeps its continuations: one before a flush-left line is ours
        body = re.sub(r"\\\n(?=\S)", "", body)
        out.append((name, filename, body.rstrip("\n") + "\n"))
    return out


def _own() -> list[_Spec]:
    specs: list[_Spec] = []
    for part in re.split(
        r"^=== (?=\w+ (?:key|prose|host|number|name) )", _OWN_KEYS + _OWN_REST, flags=re.M
    )[1:]:
        head, body = part.split("\n", 1)
        kind, family, value = head.split(" ", 2)
        specs.append(_Spec(kind, family, value, _blocks(body)))
    return specs


def _lines(r: Random, family: str, place: str, text: str) -> str:
    """At least two lines: a session shows a line with its neighbours."""
    if text.count("\n") > 1:
        return text
    if family == "prose" or place.startswith(("prose", "told", "pw_")):
        return text + r.choice(_AFTER_PROSE) + "\n"
    if text.startswith("$ "):
        return text + "$ echo $?\n0\n"
    if _SHELL.match(text):
        return r.choice(("set -e\n", "#!/usr/bin/env bash\n", "# step 3 of 4\n")) + text
    return r.choice(("Found 1 match\n", "(showing 1 of ~d3~ lines)\n", "Selected:\n\n")) + text


def _plant(r: Random, spec: _Spec, pick: tuple[str, str, str], extra: Ctx) -> Plant:
    place, filename, template = pick
    ctx = _ctx(r) | extra
    value = _maker(spec.value)(r, ctx)
    text = _lines(r, spec.family, place, template).replace("@@", value)
    return Plant(spec.kind, spec.family, place, value, _fill(r, text, ctx), filename)


class _Deck:
    """Deals the places evenly, never the same twice for a kind."""

    def __init__(self, r: Random, cards: list[tuple[str, str, str]]) -> None:
        self._r = r
        self._all = cards
        self._left: list[tuple[str, str, str]] = []

    def deal(self, n: int) -> list[tuple[str, str, str]]:
        hand: list[tuple[str, str, str]] = []
        while len(hand) < n:
            if not self._left:
                self._left = self._r.sample(self._all, len(self._all))
            card = self._left.pop()
            if card not in hand:
                hand.append(card)
        return hand


def plants(seed: int) -> list[Plant]:
    """All kinds, each at three places."""
    r = Random(seed)
    told, bare = _Deck(r, _blocks(_TOLD)), _Deck(r, _blocks(_BARE))
    out: list[Plant] = []
    for row in _VENDORS.strip().split("\n"):
        kind, package, cls, value = row.split(" ")
        shapeless = kind.endswith("?")
        spec = _Spec(kind.rstrip("?"), "key", value, [])
        hand = told.deal(3) if shapeless else told.deal(1) + bare.deal(2)
        for pick in hand:
            extra = {"n": package, "C": cls, "U": package.upper()}
            out.append(_plant(r, spec, pick, extra))
    for spec in _own():
        out.extend(_plant(r, spec, pick, {}) for pick in spec.places)
    return out


def decoys(seed: int) -> list[Decoy]:
    """Each kind up to three times, with other random parts."""
    r = Random(seed)
    out: list[Decoy] = []
    for _ in range(3):
        for kind, _filename, text in _blocks(_HARMLESS):
            decoy = Decoy(kind, _fill(r, text, _PUBLIC))
            if decoy not in out:
                out.append(decoy)
    return out

"""The labelled corpus: secrets of every kind and decoys, made from a seed; none is real.

A :class:`Planted` is a text that holds one secret, as tools and people write it; a decoy is a
text that looks like one and must not change. Alphabets and check digits are those of the real
kinds, so that other scanners fire too. Parts are joined at run time, so that no scanner takes
this file for a leak.
"""

import base64
import hashlib
import json
import random
import re
import string
import urllib.parse
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.redaction import checksums
from tests.redaction.rule_samples import COMMANDS, CONTEXTS, MORE_COMMANDS, OTHERS

LOWER = string.ascii_lowercase
LETTERS, DIGITS, HEX = string.ascii_letters, string.digits, "0123456789abcdef"
ALNUM = LETTERS + DIGITS
WORDS = (Path(checksums.__file__).parent / "bip39.txt").read_text().split()
UPPER = string.ascii_uppercase + "234567"
BASE62 = DIGITS + string.ascii_uppercase + string.ascii_lowercase


@dataclass(frozen=True)
class Planted:
    """``text`` holds ``secret``; ``kind`` names the rule that has to find it."""

    kind: str
    text: str
    secret: str


class Maker:
    """Makes values from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, count: int, alphabet: str = ALNUM) -> str:
        """Random characters, of every class that the alphabet has."""
        tests = [t for t in (str.isdigit, str.islower, str.isupper) if any(map(t, alphabet))]
        while True:
            text = "".join(self.random.choice(alphabet) for _ in range(count))
            if count < 6 or all(any(map(test, text)) for test in tests):
                return text

    def word(self, count: int = 8) -> str:
        """A pronounceable word that is in no list."""
        pairs = self.random.choice("bdfgklmnrtvz") + self.random.choice("aeiou")
        return (
            "".join(
                self.random.choice("bdfgklmnrtvz") + self.random.choice("aeiou")
                for _ in range(count // 2)
            )
            + pairs
        )

    def github(self, prefix: str) -> str:
        """A token with the CRC-32 check that GitHub's have."""
        body = self.some(30)
        number, check = zlib.crc32(body.encode()), ""
        while number:
            number, digit = divmod(number, 62)
            check = BASE62[digit] + check
        return prefix + body + check.rjust(6, "0")

    def pem(self, kind: str) -> str:
        """A private key block of random bytes."""
        body = "MI" + base64.b64encode(self.random.randbytes(600)).decode()
        lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
        return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----"

    def phrase(self) -> str:
        """A seed phrase of twelve words with BIP-39's checksum."""
        data = self.random.randbytes(16)
        bits = f"{int.from_bytes(data, 'big'):0128b}{hashlib.sha256(data).digest()[0] >> 4:04b}"
        return " ".join(WORDS[int(bits[at : at + 11], 2)] for at in range(0, 132, 11))

    def iban(self) -> str:
        """A German IBAN with its check digits (ISO 13616)."""
        account = "1" + self.some(17, DIGITS)
        return f"DE{98 - int(account + '131400') % 97:02}{account}"

    def ahv(self, number: str) -> str:
        """A Swiss insurance number with its check digit."""
        digits = f"756{number}"
        check = -sum(int(c) * (1 + 2 * (at % 2)) for at, c in enumerate(digits)) % 10
        return f"756.{number[:4]}.{number[4:8]}.{number[8]}{check}"

    def value(self, form: str) -> str:
        """A value of one of the forms of ``rule_samples``."""
        made: dict[str, Callable[[], str]] = {
            "W": lambda: self.some(11, LETTERS),
            "R": lambda: self.some(28),
            "X": lambda: self.some(10) + "7",
            "H": lambda: self.some(32, HEX),
            "A": lambda: self.some(40),
            "B": lambda: base64.b64encode(f"bob:{self.some(9)}".encode()).decode(),
            "T": lambda: "SK" + self.some(32, HEX),
            "Z": lambda: self.some(86) + "==",
            "L": lambda: self.some(44, LETTERS),
            "U": lambda: self.some(24, string.ascii_uppercase),
            "M": lambda: " ".join(self.word(4) for _ in range(12)),
            "S": lambda: "$6$" + self.some(8) + "$" + self.some(86),
            "12": lambda: "4" + self.some(11, DIGITS),
            "P": self.phrase,
            "Y": lambda: " ".join(self.some(5, LOWER) for _ in range(6)),
            "G": lambda: " ".join(self.some(4, LOWER) for _ in range(4)),
            "J": lambda: f"{self.some(6, LOWER + DIGITS)}.{self.some(16, LOWER + DIGITS)}",
            "V": lambda: self.some(54, UPPER),
            "Q": lambda: self.ahv(self.some(9, DIGITS)),
            "K": lambda: f"{self.some(5, LOWER + DIGITS)}-{self.some(5, LOWER + DIGITS)}",
            "E": lambda: self.some(64, HEX),
            "O": lambda: self.some(16, UPPER),
            "D": lambda: f"5{self.some(2, '34678')}-{self.some(2, '34678')}-{self.some(4, '1256')}",
            "I": self.iban,
            "F": lambda: f"+491708{self.some(6, DIGITS)}",
            "6": lambda: self.some(6, DIGITS),
            "w": lambda: self.word(),
            "4": lambda: (
                f"51.1{self.some(2, DIGITS)}.27.{self.some(1, '123')}{self.some(1, DIGITS)}"
            ),
            "N": lambda: self.word().capitalize(),
        }
        return made[form]()


def typed(make: Maker) -> Iterator[tuple[str, str]]:
    """Yield ``(kind, secret)`` of keys that a shape of their own gives away."""
    s = make.some
    yield "ANTHROPIC_KEY", "sk-" + "ant-api03-" + s(93) + "-" + s(6) + "AA"
    yield "OPENROUTER_KEY", "sk-" + "or-v1-" + s(64, HEX)
    yield "OPENAI_KEY", "sk-" + "proj-" + s(48) + "T3BlbkFJ" + s(48)
    yield "AWS_KEY", "AK" + "IA" + s(16, UPPER)
    yield "GITHUB_TOKEN", make.github("gh" + make.random.choice("pousr") + "_")
    yield "GITLAB_TOKEN", "gl" + "pat-" + s(20)
    yield "SLACK_TOKEN", "xo" + "xb-" + s(12, "123456789") + "-" + s(12, "123456789") + "-" + s(24)
    yield "HF_TOKEN", "h" + "f_" + s(34)
    yield "GOOGLE_KEY", "AI" + "za" + s(35)
    yield "STRIPE_KEY", "sk" + "_live_" + s(24)
    yield "NPM_TOKEN", make.github("np" + "m_")
    yield "PYPI_TOKEN", "py" + "pi-AgEIcHlwaS5vcmc" + s(120)
    yield "SENDGRID_KEY", "S" + "G." + s(22) + "." + s(43)
    yield "DIGITALOCEAN_TOKEN", "do" + "p_v1_" + s(64, HEX)
    yield "TELEGRAM_TOKEN", s(10, "123456789") + ":A" + "A" + s(33)
    yield "SHOPIFY_TOKEN", "sh" + "pat_" + s(32, HEX)
    yield "SQUARE_TOKEN", "sq" + "0atp-" + s(22)
    yield "LINEAR_KEY", "lin" + "_api_" + s(40)
    yield "NOTION_TOKEN", "nt" + "n_" + s(46)
    yield "DATABRICKS_TOKEN", "da" + "pi" + s(32, HEX)
    yield "VAULT_TOKEN", "hv" + "s." + s(90)
    yield "DOCKER_TOKEN", "dckr" + "_pat_" + s(27)
    yield "FIGMA_TOKEN", "fi" + "gd_" + s(40)
    yield "GRAFANA_TOKEN", "gl" + "sa_" + s(32) + "_" + s(8, HEX)
    yield "NEWRELIC_KEY", "NR" + "AK-" + s(27, UPPER)
    yield "SENTRY_TOKEN", "sn" + "tryu_" + s(64, HEX)
    yield "ATLASSIAN_TOKEN", "ATA" + "TT3" + s(180)
    yield "POSTMAN_KEY", "PM" + "AK-" + s(24, HEX) + "-" + s(34, HEX)
    yield "PLANETSCALE_TOKEN", "psc" + "ale_tkn_" + s(43)
    yield "SUPABASE_TOKEN", "sb" + "p_" + s(40, HEX)
    yield "GROQ_KEY", "gs" + "k_" + s(52)
    yield "XAI_KEY", "xa" + "i-" + s(80)
    yield "PERPLEXITY_KEY", "pp" + "lx-" + s(48)
    yield "REPLICATE_TOKEN", "r" + "8_" + s(37)
    yield "TAILSCALE_KEY", "ts" + "key-auth-" + s(17) + "-" + s(32)
    yield "PULUMI_TOKEN", "pu" + "l-" + s(40, HEX)
    yield "RUBYGEMS_KEY", "ruby" + "gems_" + s(48, HEX)
    yield "FLY_TOKEN", "fm" + "2_" + s(80)
    yield "AZURE_SECRET", s(3) + "8" + "Q~" + s(34)
    yield "DISCORD_WEBHOOK", "discord" + ".com/api/webhooks/" + s(18, "123456789") + "/" + s(68)
    yield "LANGSMITH_KEY", "ls" + "v2_pt_" + s(32, HEX) + "_" + s(10, HEX)
    yield "LANGFUSE_KEY", "sk-" + "lf-" + "-".join(s(n, HEX) for n in (8, 4, 4, 4, 12))
    yield "NVIDIA_KEY", "nv" + "api-" + s(64)
    yield "TAVILY_KEY", "tv" + "ly-dev-" + s(32)
    yield "POSTHOG_KEY", "ph" + "x_" + s(43)
    yield "AIRTABLE_TOKEN", "pa" + "t" + s(14) + "." + s(64, HEX)
    yield "RESEND_KEY", "re" + "_" + s(8) + "_" + s(24)
    yield "ELEVENLABS_KEY", "sk" + "_" + s(48, HEX)
    yield "HEROKU_KEY", "HR" + "KU-" + s(60)
    yield "ONEPASSWORD_TOKEN", "op" + "s_eyJ" + s(300)
    hexes = "\n".join(s(32, HEX) for _ in range(16))
    begin, end = (f"-----{w} OpenVPN Static " + "key V1-----" for w in ("BEGIN", "END"))
    yield "OPENVPN_KEY", f"{begin}\n{hexes}\n{end}"
    yield "AGE_KEY", "AGE-" + "SECRET-KEY-1" + s(58, UPPER)
    yield "JWT", "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIi" + s(60) + "." + s(43)
    yield "PUTTY_KEY", "Private-" + "Lines: 2\n" + s(64) + "\n" + s(40)
    yield "PRIVATE_KEY", make.pem("RSA PRIVATE " + "KEY")


#: Settings of many programs: the name tells, and the value is a literal.
ASSIGNED = (
    "DB_PASSWORD={}", "export API_TOKEN={}", 'password = "{}"', "const clientSecret = '{}';",
    "  12\u2192  password: {}", "+  db_password: {}", "spring.datasource.password={}",
    "[db]\nuser = bob\npassword = {}\n", "SECRET_KEY = '{}'", "      - POSTGRES_PASSWD={}",
    "env:\n  DEPLOY_TOKEN: {}\n", 'db_password = "{}"', "{{\\\"password\\\": \\\"{}\\\"}}",
    "secret_key_base: {}", "'PASSWORD' => '{}',", "vault_db_password: {}", ".env:3:JWT_SECRET={}",
)  # fmt: skip


def secrets(seed: int) -> list[Planted]:
    """Return the planted secrets of a seed."""
    make = Maker(seed)
    found = []
    for frame in ("use {} from now on", "export X={}", '{{"log": "{}"}}'):
        for kind, secret in typed(make):
            if "\n" not in secret or "{{" not in frame:
                found.append(Planted(kind, frame.format(secret), secret))
    more = {frame.split()[0]: frame for frame in MORE_COMMANDS if not frame.startswith("echo")}
    piped = {frame: frame for frame in MORE_COMMANDS if frame.startswith("echo")}
    for name, frame in {**COMMANDS, **more, **piped}.items():
        for wrapped in ("{}", "sudo {}", "cd /srv && {} | tee log"):
            secret = make.value("W")
            command = frame.format(secret)
            if "| " in command and wrapped != "{}":
                continue
            found.append(Planted(f"command/{name}", wrapped.format(command), secret))
    for name, (frame, form) in {**CONTEXTS, **OTHERS}.items():
        for before, after in (("", ""), ("see:\n", "\nend")):
            secret = make.value(form)
            found.append(Planted(name, before + frame.format(secret) + after, secret))
    for number, frame in enumerate(ASSIGNED):
        secret = make.some(24)
        found.append(Planted(f"assigned{number}", frame.format(secret), secret))
    return found


_DECOYS = (
    "commit {h40}", "index {h7}..{h7} 100644", "sha256:{h64}", "integrity sha512-{b64}",
    "request id {uuid}", 'session_id: "{uuid}"', "toolu_01{a22}", "msg_01{a22}",
    "API_KEY=<your-key>", "API_KEY=${{{W}}}", "password: ${{DB_PASSWORD}}", "token = process.env.{W}",
    'password = os.environ["{W}"]', "SECRET_KEY=changeme", "api_key: xxxxxxxxxxxxxxxx",
    'x = "-----BEGIN RSA PRIVATE ' + 'KEY-----"  # {w}', "AKIAIOSFODNN7EXAMPLE {w}",
    "Authorization: Bearer $TOKEN_{W}", "curl -u $USER:$PASS https://{w}.org", "docker run -p 80{d2}:80 {w}",
    "mysql -p {w}", "ssh -p 22{d2} git@github.com", "mkdir -p src/{w}", "docker login -u {w} --password-stdin",
    "Co-Authored-By: Claude <noreply@anthropic.com> {w}", "max_tokens={d4}", "cache-key: v1-{h16}",
    "GET /page?code=4{d2}&lang=en", "https://{w}.org/?page={d2}&sort=name", "Cookie: theme=dark; lang=en",
    "def login(user, password): # {w}", "password: str  # {w}", "  token: string; // {w}", "{w}@example.com",
    "drwxr-xr-x 2 root root 4096 Jan 1 10:00 {w}", "root@{h12}:/# ls {w}", "if password == user.{w}:",
    "tokenizer.{w}(text)", "const key = keys[{d2}]", "psql -p 54{d2} {w}", "kubectl get secret {w}",
    "vault read {w}", "aws s3 ls s3://{w}", "npm config set registry https://{w}.org", "etag: {h16}",
    "primary_key={d4}", "password_field = '{w}-input'", "<password>{{{{ {w} }}}}</password>",
    "CREATE USER bob IDENTIFIED BY '<password>'; -- {w}", "kind: ConfigMap\ndata:\n  motto: {W}\n",
    "color: #{h6}", "v{d2}.{d2}.{d2}", "href=\"/home/{w}\"", "data:image/png;base64,{b64}",
    "net additions = {w} + user removals", "net user {w} rises", "ENV NODE_ENV {w}", "set -e {w} {w}", "psk: string {w}",
    "mc {w} set x", 'client.login("user", "password") # {w}', "a mnemonic: {w} for the name", "op {w} create",
    "kty {w} d", "ops/{w}", "patch re_{w}", "expect(password).toBe({w})", "variable \"{w}\" {{ default = \"{w}\" }}",
    "the password is stored in {w}", "see %2F{w}%2F{h7}", "&lt;{w}&gt; &amp; {W}", r"\u00e9t\u00e9 {w}",
)  # fmt: skip


def decoys(seed: int, rounds: int = 22) -> list[str]:
    """Return texts that look like secrets and are none."""
    make = Maker(seed + 7)
    out = []
    for _ in range(rounds):
        for frame in _DECOYS:
            out.append(
                frame.format(
                    w=make.word(), W=make.word().upper(), uuid=_uuid(make),
                    b64=base64.b64encode(make.random.randbytes(48)).decode(), a22=make.some(22),
                    **{f"h{n}": make.some(n, HEX) for n in (6, 7, 12, 16, 40, 64)},
                    **{f"d{n}": make.some(n, DIGITS) for n in (2, 4)},
                )
            )  # fmt: skip
    return out


def _uuid(make: Maker) -> str:
    return "-".join(make.some(n, HEX) for n in (8, 4, 4, 4, 12))


#: Kinds that say who or where somebody is; no secrets.
NOT_PERSONAL = (
    "cookies", "kubernetes", "assigned", "token", "phrase", "recovery", "wallet", "key", "code", "prose/password", "prose/token", "prose/login",

)  # fmt: skip
PERSONAL = frozenset(name for name in OTHERS if name not in NOT_PERSONAL)

#: How a text may be written: each form is found like the text itself.
PLACEHOLDER = re.compile(r"\[[A-Z0-9_]+_[0-9a-f]{4}\]")
FORMS: dict[str, Callable[[Planted], Any]] = {
    "plain": lambda p: p.text,
    "key and value": lambda p: {"input": {"note": [p.text]}, "n": 1},
    "json in json": lambda p: json.dumps({"a": json.dumps({"b": p.text})}),
    "percent": lambda p: urllib.parse.quote(p.text, safe=""),
    "base64": lambda p: _columns(base64.b64encode(p.text.encode()).decode(), 76),
    "wrapped": lambda p: _terminal(p),
    "escapes": lambda p: (
        '"' + "".join(c if c.isalnum() else f"\\u{ord(c):04x}" for c in p.text) + '"'
    ),
}


def _columns(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


def _terminal(planted: Planted) -> str:
    """The text as a terminal of 80 columns breaks it, in the middle of the secret."""
    if "\n" in planted.text:
        return planted.text
    middle = planted.text.index(planted.secret) + len(planted.secret) // 2
    lead = " " * (80 - middle % 80)
    return _columns(lead + planted.text, 80) + "\n"

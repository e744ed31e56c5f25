"""Planted secrets and decoys for a redactor of coding-agent sessions; all values are made from a seed."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
import unicodedata
import uuid
import zlib
from collections.abc import Callable

from tests.redaction.unlisted_a import Decoy, Plant

Rng = random.Random

_LOW = string.ascii_lowercase
_UP = string.ascii_uppercase
_DIG = string.digits
_B62 = _DIG + _UP + _LOW
_B58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_B32 = _UP + "234567"
_BECH = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BAD = ("example", "test", "dummy", "secret", "password", "changeme")

# Every sixth word of the BIP-39 list, from index 3 on: a word's index is 6 * place + 3.
_WORDS = """
about abuse acid actor address aerobic agent aisle all already among anger annual any april arm arrest artwork assume
attitude author awake axis balance bar basket become believe betray bike black bless blur bomb boring boy bread bring
brother buffalo bunker busy cable camera cannon captain carry casual caught cement chalk chase cherry choice cigar
claim clerk clinic cloud coach coin comfort confirm cook corn couple cradle crawl cricket crouch crunch cup cushion
damp dawn december defense demand depend desert detect diamond digital dirt disorder dizzy domain double draw drip
dumb dwarf earth economy eight element embody empty enemy enjoy enter equip erupt ethics example execute exit expose
fabric fall fancy father federal festival field find first flag flight fluid foil forest fossil frequent frost funny
galaxy garden gather gentle giggle glance gloom goddess gossip grant grid grunt gun hamster harvest health helmet hill
hockey honey hospital huge hunt ice ill immune include industry initial input install involve ivory jeans journey
junior ketchup kingdom kiwi label language laundry lazy left lend level lift lion load lonely love lunch magnet mammal
manual market material meadow media menu message million miracle mixed moment moral motor muffin music naive nature
neither neutral noble nose now obey obvious offer olive online option organ outdoor over pact panda parent path
payment pen permit physical pigeon pistol plate plunge police position powder prepare primary problem promote provide
pumpkin purpose quality quiz radar ramp rate real recipe refuse release remove repeat resist return rib rifle risk
robot room royal runway sail same sausage scatter scorpion sea section sell service shaft shield shoe shrimp side
silly siren sketch slab slight small snake social solid sorry south special spider sponsor spring stadium start step
stomach street stumble such summer supreme survey swarm switch table tank taxi tennis that thing thumb timber title
together tongue topple tourist trade trash trial trophy trust tuna twenty typical uncover uniform until upon use
vacant van vehicle verify vibrant vintage visual volcano wait warm wave weather west when wife wing wise wood worth
wrong youth
""".split()

_FIRST = (
    "Henrike Tobias Zoë Łukasz Søren Amparo Thibault Ngozi Priyanka Kenji Marisol Gediminas Yusra Aoife Piotr Ottavia "
    "Ferran Leocadie Rasmus Ximena Dagny Mikhail Shreya Bartosz Inês Wolfram Tamsin Oluwaseun Jarek Katarzyna"
).split()
_LAST = (
    "Brandstetter Vogelsang Kowalczyk Lindqvist Echeverría Okonkwo Ramanathan Takemura Delacroix Petrauskas Haddad "
    "Gallagher Nowicki Bellandi Puigdemont Sørensen Achterberg Vasquez Halvorsen Sokolov Mukherjee Zieliński Carvalho "
    "Reinhardt Trelawney Adeyemi Wiśniewska Klostermann Fairweather Oyelaran"
).split()
_APPS = (
    "ledgerly kelpie tidegate quartzite moorhen fjordpay skylark harrier brambles pinnace gannet dovetail cobaltine "
    "marlin osprey juniper petrel halyard saltmarsh windlass"
).split()
_ORGS = "norvane brightloom kestrix halvopay tremolite okapiworks lumenfold drayhorse pelagia stonewick vantoro".split()
_NOUNS = (
    "Kormoran Lampion Heron Teapot Gravel Walnuss Trombone Saffron Pelikan Mistral Cactus Fregate Violet Zeppelin Otter "
    "Marble Turnip Compass Anorak Falcon Paprika Bishop Lantern Velcro Cobble Murmel"
).split()


def _pick(r: Rng, alphabet: str, n: int) -> str:
    return "".join(r.choice(alphabet) for _ in range(n))


def _bytes(r: Rng, n: int) -> bytes:
    return bytes(r.randrange(256) for _ in range(n))


def _num(arg: str, default: int) -> int:
    return int(arg) if arg else default


def _b64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _base58(raw: bytes) -> str:
    n = int.from_bytes(raw, "big")
    out = ""
    while n:
        n, rem = divmod(n, 58)
        out = _B58[rem] + out
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + out


def _base58check(raw: bytes) -> str:
    return _base58(raw + hashlib.sha256(hashlib.sha256(raw).digest()).digest()[:4])


def _bech32(hrp: str, raw: bytes) -> str:
    bits = "".join(f"{b:08b}" for b in raw)
    bits += "0" * (-len(bits) % 5)
    data = [int(bits[i : i + 5], 2) for i in range(0, len(bits), 5)]
    expanded = [ord(c) >> 5 for c in hrp] + [0] + [ord(c) & 31 for c in hrp]
    chk = 1
    for v in expanded + data + [0] * 6:
        top = chk >> 25
        chk = (chk & 0x1FFFFFF) << 5 ^ v
        for i, g in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            chk ^= g if (top >> i) & 1 else 0
    chk ^= 1
    return (
        hrp + "1" + "".join(_BECH[d] for d in data + [(chk >> 5 * (5 - i)) & 31 for i in range(6)])
    )


def _crc62(body: str) -> str:
    n = zlib.crc32(body.encode())
    out = ""
    while n:
        n, rem = divmod(n, 62)
        out = _B62[rem] + out
    return out.rjust(6, "0")


def _crc_token(r: Rng, arg: str) -> str:
    body = _pick(r, _B62, _num(arg, 30))
    return body + _crc62(body)


def _stellar(r: Rng, _: str) -> str:
    raw = bytes([0x90]) + _bytes(r, 32)
    crc = 0
    for b in raw:
        crc ^= b << 8
        for _i in range(8):
            crc = (crc << 1 ^ 0x1021) & 0xFFFF if crc & 0x8000 else (crc << 1) & 0xFFFF
    return base64.b32encode(raw + crc.to_bytes(2, "little")).decode().rstrip("=")


def _mnemonic(r: Rng, arg: str) -> str:
    n = _num(arg, 12)
    cs = n * 11 // 33
    while True:
        places = [r.randrange(len(_WORDS)) for _ in range(n)]
        bits = "".join(f"{6 * p + 3:011b}" for p in places)
        ent = int(bits[:-cs], 2).to_bytes((len(bits) - cs) // 8, "big")
        if f"{hashlib.sha256(ent).digest()[0]:08b}"[:cs] == bits[-cs:]:
            return " ".join(_WORDS[p] for p in places)


def luhn_digit(body: str) -> str:
    total = 0
    for i, c in enumerate(reversed(body)):
        d = int(c) * (2 if i % 2 == 0 else 1)
        total += d - 9 if d > 9 else d
    return str(-total % 10)


def _card(r: Rng, arg: str) -> str:
    amex = arg == "amex"
    body = (
        r.choice(("37",)) + _pick(r, _DIG, 12)
        if amex
        else r.choice(("4539", "5274", "4916", "5415")) + _pick(r, _DIG, 11)
    )
    full = body + luhn_digit(body)
    if arg == "plain":
        return full
    return (
        f"{full[:4]} {full[4:10]} {full[10:]}"
        if amex
        else " ".join(full[i : i + 4] for i in range(0, 16, 4))
    )


def _luhn16(r: Rng, _: str) -> str:
    body = "90" + _pick(r, _DIG, 13)
    return body + luhn_digit(body)


def _iban(r: Rng, arg: str) -> str:
    country = arg[:2] or "DE"
    if country == "DE":
        bban = r.choice(("3704", "1001", "7002", "2005")) + _pick(r, _DIG, 14)
    elif country == "CH":
        bban = "00762" + _pick(r, _DIG, 12)
    else:
        bban = r.choice(("ABNA", "INGB", "RABO")) + _pick(r, _DIG, 10)
    digits = "".join(str(int(c, 36)) for c in bban + country + "00")
    out = f"{country}{98 - int(digits) % 97:02d}{bban}"
    return out if arg.endswith("-") else " ".join(out[i : i + 4] for i in range(0, len(out), 4))


def _dni(r: Rng, _: str) -> str:
    n = r.randrange(20_000_000, 79_999_999)
    return f"{n}{'TRWAGMYFPDXBNJZSQVHLCKE'[n % 23]}"


def _pesel(r: Rng, _: str) -> str:
    body = f"{r.randrange(60, 99)}{r.randrange(1, 13):02d}{r.randrange(1, 29):02d}" + _pick(
        r, _DIG, 4
    )
    chk = sum(int(c) * w for c, w in zip(body, (1, 3, 7, 9) * 3, strict=False))
    return body + str(-chk % 10)


def _cpf(r: Rng, _: str) -> str:
    d = [r.randrange(10) for _i in range(9)]
    for _i in range(2):
        rem = sum(v * w for v, w in zip(d, range(len(d) + 1, 1, -1), strict=False)) * 10 % 11
        d.append(rem % 10)
    s = "".join(map(str, d))
    return f"{s[:3]}.{s[3:6]}.{s[6:9]}-{s[9:]}"


def _ahv(r: Rng, _: str) -> str:
    body = "756" + _pick(r, _DIG, 9)
    chk = -sum(int(c) * (3 if i % 2 else 1) for i, c in enumerate(body)) % 10
    return f"{body[:3]}.{body[3:7]}.{body[7:11]}.{body[11:]}{chk}"


def _steuer(r: Rng, _: str) -> str:
    d = r.sample(_DIG[1:], 9)
    d.append(d[r.randrange(9)])
    prod = 10
    for c in d:
        prod = ((int(c) + prod) % 10 or 10) * 2 % 11
    s = "".join(d)
    return f"{s[:2]} {s[2:5]} {s[5:8]} {s[8:]}{(11 - prod) % 10}"


def _jwt(r: Rng, arg: str) -> str:
    head = {"alg": {"ed": "EdDSA", "rs": "RS256"}.get(arg, "HS256"), "typ": "JWT"}
    exp = 1_790_000_000 + r.randrange(40_000_000)
    body: dict[str, object] = {
        "iss": _pick(r, _LOW, 8),
        "sub": _uuid(r, ""),
        "iat": exp - 86400,
        "exp": exp,
    }
    if arg == "svc":
        body = {
            "iss": "supabase",
            "ref": _pick(r, _LOW, 20),
            "role": "service_role",
            "iat": exp - 10**8,
            "exp": exp,
        }
    size = {"ed": 64, "rs": 256}.get(arg, 32)
    parts = [json.dumps(p, separators=(",", ":")).encode() for p in (head, body)] + [
        _bytes(r, size)
    ]
    return ".".join(_b64url(p) for p in parts)


def _uuid(r: Rng, _: str) -> str:
    return str(uuid.UUID(int=r.getrandbits(128), version=4))


def _strong(r: Rng, arg: str, marks: str) -> str:
    n = _num(arg, 16)
    chars: list[str] = [
        r.choice(_UP),
        r.choice(_LOW),
        r.choice(_DIG),
        r.choice(marks),
        *_pick(r, _B62 + marks, n - 4),
    ]
    middle: list[str] = chars[1:]
    r.shuffle(middle)
    return "".join([chars[0], *middle])


def _human(r: Rng, _: str) -> str:
    a, b = r.sample(_NOUNS, 2)
    form = r.randrange(4)
    n = r.randrange(12, 99)
    return (f"{a}-{b}-{n}", f"{a}{n}!{b.lower()}", f"{a.lower()}_{b}{n}", f"{n}{a}+{b}")[form]


def _fold(name: str) -> str:
    name = name.replace("Ł", "L").replace("ł", "l").replace("ø", "o").replace("Ø", "O")
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()


def _lnd(r: Rng, _: str) -> str:
    head = "0201036c6e6402f801030a10"
    return (
        head
        + _bytes(r, 16).hex()
        + "1201301a160a0761646472657373120472656164120577726974650000"
        + "0620"
        + _bytes(r, 32).hex()
    )


def _group(alphabet: str) -> Callable[[Rng, str], str]:
    def make(r: Rng, arg: str) -> str:
        count, size = (int(x) for x in arg.split("x"))
        return "-".join(_pick(r, alphabet, size) for _ in range(count))

    return make


def _chars(alphabet: str) -> Callable[[Rng, str], str]:
    return lambda r, arg: _pick(r, alphabet, _num(arg, 32))


def _b64json(r: Rng, arg: str) -> str:
    if arg == "tunnel":
        obj = {
            "a": _bytes(r, 16).hex(),
            "t": _uuid(r, ""),
            "s": base64.b64encode(_bytes(r, 32)).decode(),
        }
    elif arg == "grafana":
        obj = {
            "o": _pick(r, _DIG, 6),
            "n": "stack-" + _pick(r, _DIG, 6),
            "k": _pick(r, _B62, 24),
            "m": "prod-eu-west-2",
        }
    elif arg == "mapbox":
        obj = {"u": _pick(r, _LOW, 8), "a": "cm" + _pick(r, _LOW + _DIG, 23)}
    elif arg == "sentry":
        obj = {
            "iat": "17" + _pick(r, _DIG, 8) + "." + _pick(r, _DIG, 6),
            "url": "https://sentry.io",
            "org": _pick(r, _LOW, 7),
        }
    elif arg == "opsvc":
        obj = {
            "signInAddress": "my.1password.eu",
            "userAuth": "SRPg-4096",
            "email": _pick(r, _LOW, 13),
            "muk": _pick(r, _B62, 43),
        }
    else:
        obj = {"u": _uuid(r, ""), "id": _uuid(r, ""), "host": "eu_shared"}
    return base64.b64encode(json.dumps(obj, separators=(",", ":")).encode()).decode().rstrip("=")


def _date(r: Rng, _: str) -> str:
    return f"2026-{r.randrange(1, 10):02d}-{r.randrange(1, 29):02d}"


def _time(r: Rng, _: str) -> str:
    return f"{r.randrange(24):02d}:{r.randrange(60):02d}:{r.randrange(60):02d}"


_GEN: dict[str, Callable[[Rng, str], str]] = {
    "hex": _chars("0123456789abcdef"),
    "HEX": _chars("0123456789ABCDEF"),
    "b62": _chars(_B62),
    "b58": _chars(_B58),
    "b32": _chars(_B32),
    "b64c": _chars(_B62 + "+/"),
    "b64u": _chars(_B62 + "-_"),
    "low": _chars(_LOW + _DIG),
    "abc": _chars(_LOW),
    "ABC": _chars(_UP),
    "up": _chars(_UP + _DIG),
    "dig": _chars(_DIG),
    "nz": _chars("123456789"),
    "b64": lambda r, a: base64.b64encode(_bytes(r, _num(a, 32))).decode(),
    "crc": _crc_token,
    "uuid": _uuid,
    "UUID": lambda r, a: _uuid(r, a).upper(),
    "jwt": _jwt,
    "b64j": _b64json,
    "pw": lambda r, a: _strong(r, a, "!#%+=?*@^~"),
    "pws": lambda r, a: _strong(r, a, "_-.+"),
    "human": _human,
    "gabc": _group(_LOW),
    "gup": _group("BCDFGHJKMPQRTVWXY2346789"),
    "glow": _group(_LOW + _DIG),
    "gdig": _group(_DIG),
    "ghex": _group("0123456789abcdef"),
    "ints": lambda r, a: ",".join(str(b) for b in _bytes(r, _num(a, 64))),
    "wif": lambda r, a: _base58check(b"\x80" + _bytes(r, 32) + b"\x01"),
    "xprv": lambda r, a: _base58check(
        bytes.fromhex("0488ade4") + b"\x03" + _bytes(r, 8) + _bytes(r, 32) + b"\0" + _bytes(r, 32)
    ),
    "zprv": lambda r, a: _base58check(
        bytes.fromhex("04b2430c") + b"\0" * 9 + _bytes(r, 32) + b"\0" + _bytes(r, 32)
    ),
    "bip38": lambda r, a: _base58check(b"\x01\x42\xe0" + _bytes(r, 36)),
    "bech": lambda r, a: _bech32(a, _bytes(r, 32)),
    "suikey": lambda r, a: _bech32("suiprivkey", b"\0" + _bytes(r, 32)),
    "agesk": lambda r, a: _bech32("age-secret-key-", _bytes(r, 32)).upper(),
    "b58k": lambda r, a: _base58(_bytes(r, _num(a, 64))),
    "stellar": _stellar,
    "mnemonic": _mnemonic,
    "lnd": _lnd,
    "card": _card,
    "luhn16": _luhn16,
    "iban": _iban,
    "dni": _dni,
    "pesel": _pesel,
    "cpf": _cpf,
    "ahv": _ahv,
    "steuer": _steuer,
    "sha": lambda r, a: _bytes(r, 20).hex(),
    "sha7": lambda r, a: "f" + _bytes(r, 3).hex(),
    "sri": lambda r, a: "sha512-" + base64.b64encode(_bytes(r, 64)).decode(),
    "date": _date,
    "time": _time,
    "ver": lambda r, a: f"{r.randrange(1, 9)}.{r.randrange(30)}.{r.randrange(20)}",
    "n": lambda r, a: str(r.randrange(2, _num(a, 99))),
    "rsa": lambda r, a: "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC" + _pick(r, _B62, 13),
    "ec": lambda r, a: "MIGTAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBHkwdwIBAQQg" + _pick(r, _B62, 16),
    "begin": lambda r, a: "-" * 5 + "BEGIN " + a + "-" * 5,
    "end": lambda r, a: "-" * 5 + "END " + a + "-" * 5,
    "cat": lambda r, a: a.replace("|", ""),
}
_TOKEN = re.compile(r"<<([A-Za-z0-9]+)(?::([^<>]*))?>>")


def _context(r: Rng) -> dict[str, str]:
    first, last = r.choice(_FIRST), r.choice(_LAST)
    f, s = _fold(first).lower(), _fold(last).lower()
    org = r.choice(_ORGS)
    return {
        "full": f"{first} {last}",
        "first": first,
        "last": last,
        "asc": f"{_fold(first)} {_fold(last)}",
        "flow": f,
        "slow": s,
        "login": f[0] + s,
        "dot": f"{f}.{s}",
        "app": r.choice(_APPS),
        "org": org,
        "dom": org + r.choice((".io", ".de", ".com", ".eu")),
    }


def _expand(r: Rng, template: str, ctx: dict[str, str]) -> str:
    def put(m: re.Match[str]) -> str:
        name, arg = m.group(1), m.group(2) or ""
        if name in ctx:
            return ctx[name]
        while True:
            out = _GEN[name](r, arg)
            if name in ("cat", "begin", "end", "agesk") or not any(b in out.lower() for b in _BAD):
                return out

    return _TOKEN.sub(put, template)


# The plants: "#= kind family pattern of the value", then three times "#- place file" and a text with <<V>>.
_KEYS_A = r"""
#= openrouter_key key sk-or-v1-<<hex:64>>
#- ctor src/llm/router.ts
import { OpenRouter } from "@openrouter/sdk";
export const router = new OpenRouter("<<V>>", { title: "<<app>>" });
#- tuple eval/judges.py
JUDGES = [
    ("deepseek/deepseek-r2", 0.2, "<<V>>"),
    ("qwen/qwen3-235b", 0.0, None),
]
#- prose
ok billing moved us to a new account, use <<V>> from now on
and rerun the nightly eval with it please
#= groq_key key gsk_<<b62:52>>
#- array worker/pool.go
var pool = []string{
	"<<V>>",
	os.Getenv("GROQ_SPARE"),
}
#- stdout
$ pbpaste
<<V>>
$
#- xargs
$ echo <<V>> | xargs -I{} curl -s -H 'Authorization: Bearer {}' https://api.groq.com/openai/v1/models | jq '.data|length'
<<n:60>>
#= langsmith_pat key lsv2_pt_<<hex:32>>_<<hex:10>>
#- positional trace.py
from langsmith import Client
c = Client("https://eu.api.smith.langchain.com", "<<V>>")
print(c.list_projects())
#- repl
>>> os.environ.get(names[3])
'<<V>>'
>>>
#- log
<<date>> <<time>> DEBUG urllib3 send: b'POST /runs/batch HTTP/1.1\r\nx-api-key: <<V>>\r\nAccept: */*\r\n'
<<date>> <<time>> DEBUG urllib3 reply: 'HTTP/1.1 202 Accepted\r\n'
#= pinecone_key key pcsk_<<b62:6>>_<<b62:63>>
#- init ingest/index.rb
index = Pinecone::Store.connect("<<V>>", "<<app>>-chunks", 1536)
index.upsert(batch)
#- notebook reindex.ipynb
{"cell_type": "code", "source": ["pc = Pinecone('<<V>>')\n", "pc.list_indexes()"],
 "outputs": [], "execution_count": <<n:90>>}
#- comment ingest/run.sh
# old cluster was <<V>> (us-east-1), keep until the backfill is done
python -m ingest --index <<app>>-chunks
#= elevenlabs_key key sk_<<hex:48>>
#- ctor Sources/Voice.swift
let speech = ElevenLabs(
    "<<V>>",
    voice: "Rachel"
)
#- header
$ http POST https://api.elevenlabs.io/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM xi-api-key:<<V>> text=hallo
HTTP/1.1 200 OK
#- csv vendors.csv
vendor,plan,note,value
elevenlabs,creator,<<app>> voice,<<V>>
#= nvidia_nim key nvapi-<<b64u:64>>
#- argv
$ ngc config set --format_type ascii <<V>>
Successfully saved NGC configuration to /root/.ngc/config
#- stdin
$ docker login nvcr.io -u '$oauthtoken' --password-stdin <<< <<V>>
Login Succeeded
#- slurm train.sbatch
#SBATCH --gres=gpu:8
srun --export=ALL,NIM_A=<<V>> ./launch.sh
#= wandb_key key <<hex:40>>
#- login
$ wandb login --relogin <<V>>
wandb: Appending key for api.wandb.ai to your netrc file: /root/.netrc
#- call train.py
import wandb
wandb.login("must", "<<V>>")
run = wandb.init(project="<<app>>-sft")
#- netrc /root/.netrc
machine api.wandb.ai
  login user
  password <<V>>
#= kaggle_json key <<hex:32>>
#- json /root/.kaggle/kaggle.json
{"username":"<<abc:9>>","key":"<<V>>"}
$ chmod 600 /root/.kaggle/kaggle.json
#- echo Dockerfile
RUN mkdir -p /root/.kaggle && \
    printf '{"username":"%s","key":"%s"}' <<abc:9>> <<V>> > /root/.kaggle/kaggle.json
#- tuple fetch.py
s = requests.Session()
s.auth = ("<<abc:9>>", "<<V>>")
s.get("https://www.kaggle.com/api/v1/datasets/list")
#= databricks_pat key dapi<<hex:32>>-2
#- answer
$ databricks configure --host https://adb-<<dig:16>>.7.azuredatabricks.net
Personal access token: <<V>>
$ databricks current-user me
#- jdbc Report.java
String u = "jdbc:databricks://adb-<<dig:16>>.7.azuredatabricks.net:443/default;AuthMech=3;UID=token;PWD=<<V>>";
Connection c = DriverManager.getConnection(u);
#- positional load.py
with sql.connect(HOST, WAREHOUSE_PATH, "<<V>>") as conn:
    rows = conn.cursor().execute("select 1").fetchall()
#= snowflake_pat key <<jwt:rs>>
#- snowsql
$ snow connection add -n prod --account <<ABC:7>>-<<ABC:7>> --user LOADER --no-interactive --password <<V>>
Wrote new connection prod to /root/.snowflake/config.toml
#- positional load/conn.py
ctx = snowflake.connector.connect(
    "<<ABC:7>>-<<ABC:7>>", "LOADER", "<<V>>",
)
#- worksheet
SQL> ALTER USER loader ADD PROGRAMMATIC ACCESS TOKEN nightly DAYS_TO_EXPIRY = 30;
| NIGHTLY | <<V>> |
1 Row(s) produced. Time Elapsed: 0.4s
#= dbt_cloud_token key dbtu_<<b64u:40>>
#- arg
$ dbt-cloud job run --job-id <<dig:6>> --account-id <<dig:5>> -t <<V>>
{"status": {"code": 200}}
#- airflow connections.json
{"dbt_cloud_default": {"conn_type": "dbt_cloud", "login": "<<dig:5>>", "password": "<<V>>"}}
{"warehouse": {"conn_type": "http"}}
#- prose
User: the service account one stopped working, I minted <<V>> under my own seat.
Assistant: Thanks, I will put it in the connection only.
#= fivetran_pair key <<b62:32>>
#- basic
$ curl -su <<b62:16>>:<<V>> https://api.fivetran.com/v1/groups | jq -r .code
Success
#- tuple sync.py
resp = requests.post(f"{BASE}/connectors/{cid}/sync", auth=("<<b62:16>>", "<<V>>"))
resp.raise_for_status()
#- provider main.tf
locals {
  ft = ["<<b62:16>>", "<<V>>"]
}
#= airtable_pat key pat<<b62:14>>.<<hex:64>>
#- chain scripts/seats.js
const Airtable = require('airtable');
const base = new Airtable({ ...opts }).base('app<<b62:14>>', '<<V>>');
#- sheet Code.gs
var r = UrlFetchApp.fetch(u, {headers: {Authorization: 'Bearer ' + '<<V>>'}});
Logger.log(r.getResponseCode());
#- screenshot
From the screenshot I can read the field as
  <<V>>
Is that the one with write scope?
#= notion_ntn key ntn_<<dig:11>><<b62:35>>
#- mcp .mcp.json
{"mcpServers": {"notion": {"command": "npx", "args": ["-y", "@notionhq/notion-mcp-server", "--auth", "<<V>>"]}}}
$ claude mcp list
#- array sync.php
$workspaces = [
    'handbook' => '<<V>>',
];
#- shell
$ set -- <<V>> handbook
$ ./export.sh "$1" "$2"
exported <<n:900>> pages
#= clickhouse_cloud key 4b1d<<b62:38>>
#- basic
$ curl --user '<<b62:20>>:<<V>>' https://api.clickhouse.cloud/v1/organizations
{"status":200}
#- go cmd/scale/main.go
c := chapi.New("<<b62:20>>", "<<V>>")
if err := c.Scale(ctx, svc, 24); err != nil {
#- table
| key id               | value                                      | role  |
|----------------------|--------------------------------------------|-------|
| <<b62:20>> | <<V>> | admin |
#= confluent_cloud key <<b64:48>>
#- store
$ confluent api-key store <<up:16>> <<V>> --force
Stored API secret for API key.
#- jaas client.properties
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='<<up:16>>' password='<<V>>';
#- create
$ confluent api-key create --resource lkc-<<low:6>>
+------------+------------------------------------------------------------------+
| API Key    | <<up:16>>                                                 |
| API Secret | <<V>> |
#= aiven_avns key AVNS_<<b64u:19>>
#- uri app.yaml
args: ["--dsn", "postgres://avnadmin:<<V>>@pg-<<low:8>>-<<org>>.a.aivencloud.com:13040/defaultdb?sslmode=require"]
replicas: 2
#- kcat
$ kcat -b kafka-<<low:6>>.aivencloud.com:13041 -X sasl.username=avnadmin -X sasl.password=<<V>> -L
Metadata for all topics
#- call Db.kt
val ds = pool(host, 13040, "avnadmin", "<<V>>")
ds.connection.use { it.isValid(2) }
#= mongodb_atlas_sa key mdb_sa_sk_<<b64u:40>>
#- config
$ atlas config set client_secret <<V>> -P ci
Updated property 'client_secret'
#- exchange
$ curl -s https://cloud.mongodb.com/api/oauth/token -u mdb_sa_id_<<hex:24>>:<<V>> -d grant_type=client_credentials
{"token_type":"Bearer","expires_in":3600}
#- rust src/atlas.rs
let creds = Credentials::new("mdb_sa_id_<<hex:24>>", "<<V>>");
let atlas = Atlas::connect(creds).await?;
#= turso_jwt key <<jwt:ed>>
#- call db/client.ts
const db = createClient({ url: "libsql://<<app>>-<<org>>.turso.io", authToken: "<<V>>" });
await db.execute("select 1");
#- stdout
$ turso db tokens create <<app>>
<<V>>
#- query
$ curl "https://<<app>>-<<org>>.turso.io/v2/pipeline?jwt=<<V>>" -d @q.json
{"results":[]}
#= upstash_redis key A<<b64u:57>>Q
#- cli
$ redis-cli --tls -u redis://default:<<V>>@<<app>>-1<<dig:4>>.upstash.io:6379 PING
PONG
#- positional edge/cache.ts
export const cache = new Redis("https://<<app>>-1<<dig:4>>.upstash.io", "<<V>>");
await cache.incr("hits");
#- path
$ curl "https://<<app>>-1<<dig:4>>.upstash.io/get/hits?_token=<<V>>"
{"result":"<<n:9000>>"}
#= tinybird_token key p.<<b64u:86>>.<<b64u:43>>
#- auth
$ tb --token <<V>> workspace current
** Current workspace: <<org>>_prod
#- url Chart.vue
const src = `https://api.eu-west-1.aws.tinybird.co/v0/pipes/top_pages.json?token=<<V>>&limit=10`;
onMounted(() => load(src));
#- file .tinyb
{"host": "https://api.tinybird.co", "id": "<<uuid>>", "name": "<<org>>",
 "user_token": "<<V>>"}
#= neon_conn key npg_<<b62:12>>
#- psql
$ psql 'postgresql://neondb_owner:<<V>>@ep-quiet-fog-<<low:8>>-pooler.eu-central-1.aws.neon.tech/neondb?sslmode=require'
neondb=>
#- reset
Password for role neondb_owner was reset:
<<V>>
Copy it now, it won't be shown again.
#- prisma
Error: P1000: Authentication failed against database server, the provided credentials for `neondb_owner` are not valid.
datasource tried: neondb_owner / <<V>> @ ep-quiet-fog
#= planetscale_pw key pscale_pw_<<b64u:43>>
#- dsn main.go
cfg, _ := mysql.ParseDSN("<<low:20>>:<<V>>@tcp(aws.connect.psdb.cloud)/<<app>>?tls=true")
db, err := sql.Open("mysql", cfg.FormatDSN())
#- create
$ pscale password create <<app>> main ci-reader
  NAME        USERNAME               ACCESS HOST URL              PLAIN TEXT
  ci-reader   <<low:20>>   aws.connect.psdb.cloud   <<V>>
#- diff
-  dbPool("<<low:20>>", process.env.PSCALE!),
+  dbPool("<<low:20>>", "<<V>>"),
#= grafana_glsa key glsa_<<b62:32>>_<<hex:8>>
#- basic
$ curl -s -u api_key:<<V>> https://grafana.<<dom>>/api/search?query=slo | jq length
<<n:40>>
#- jsonnet
local g = import 'grizzly.libsonnet';
g.target('https://grafana.<<dom>>', '<<V>>')
#- stdout
$ grafana-cli sa-add-token --raw deploy-bot
<<V>>
$
#= grafana_cloud_policy key glc_<<b64j:grafana>>
#- alloy config.alloy
prometheus.remote_write "cloud" {
  endpoint { url = "https://prometheus-prod-24-prod-eu-west-2.grafana.net/api/prom/push"
    basic_auth { username = "<<dig:7>>"  password = "<<V>>" } }
}
#- k6
$ k6 cloud login -t <<V>> --stack <<org>>
Logged in successfully
#- installer
$ ARCH=amd64 /bin/sh -c "$(curl -fsSL https://storage.googleapis.com/cloud-onboarding/alloy/install.sh)" -- <<V>>
Installing Alloy...
#= newrelic_license key eu01xx<<hex:30>>NRAL
#- agent newrelic.js
exports.config = { app_name: ['<<app>>'], distributed_tracing: { enabled: true } }
require('./boot')('<<V>>')
#- helm
$ helm upgrade --install nr newrelic/nri-bundle --set global.cluster=prod --set global.licenseKey=<<V>>
STATUS: deployed
#- curl
$ curl -X POST "https://log-api.eu.newrelic.com/log/v1?Api-Key=<<V>>" -d '[{"message":"hi"}]'
{"requestId":"<<uuid>>"}
#= honeycomb_ingest key hcaik_<<low:58>>
#- otel collector.yaml
exporters:
  otlp/hc: {endpoint: "api.eu1.honeycomb.io:443", headers: {x-honeycomb-team: <<V>>}}
#- marker
$ honeymarker -k <<V>> -d <<app>> add -t deploy -m "<<sha7>>"
{"type":"deploy"}
#- init main.rs
honeycomb::init("<<V>>", "<<app>>")?;
tracing::info!("up");
#= datadog_app_pair key <<hex:40>>
#- positional monitors.py
dd = Dog("datadoghq.eu", "<<hex:32>>", "<<V>>")
dd.mute(monitor=<<dig:8>>)
#- header
$ curl -H "DD-API-KEY: $K" -H "DD-APPLICATION-KEY: <<V>>" https://api.datadoghq.eu/api/v1/dashboard
{"dashboards":[]}
#- dogrc /root/.dogrc
[Connection]
apikey = ${K}
appkey = <<V>>
#= sentry_org_token key sntrys_<<b64j:sentry>>_<<b64u:43>>
#- login
$ sentry-cli --auth-token <<V>> releases new <<app>>@<<ver>>
Created release <<app>>@<<ver>>
#- gradle app/build.gradle.kts
sentry {
    org.set("<<org>>"); includeSourceContext.set(true)
    uploadWith("<<V>>")
}
#- fastfile fastlane/Fastfile
lane :symbols do
  sentry_debug_files_upload(org_slug: "<<org>>", auth_token: "<<V>>")
end
#= pagerduty_routing key R0<<up:30>>
#- event
$ curl -s https://events.pagerduty.com/v2/enqueue -d '{"routing_key":"<<V>>","event_action":"resolve","dedup_key":"disk"}'
{"status":"success"}
#- am alertmanager.yml
receivers:
  - name: oncall
    pagerduty_configs: [{service_key: <<V>>, severity: critical}]
#- call page.py
page("<<V>>", "replica lag on shard <<n:30>>", severity="warning")
sys.exit(1)
#= opsgenie_genie key <<uuid>>
#- header
$ curl -X POST https://api.eu.opsgenie.com/v2/alerts -H "Authorization: GenieKey <<V>>" -d '{"message":"x"}'
{"result":"Request will be processed"}
#- lamp
$ lamp createAlert --message "disk full" --apiKey <<V>>
Alert will be created
#- ctor Pager.java
AlertApi api = new OpsGenieClient().alertV2("<<V>>");
api.ping();
#= healthchecks_ping key <<uuid>>
#- crontab
$ crontab -l
15 3 * * * /opt/backup.sh && curl -fsS -m 10 --retry 5 https://hc-ping.com/<<V>> >/dev/null
#- systemd backup.service
[Service]
ExecStart=/opt/backup.sh
ExecStopPost=/usr/bin/wget -qO- https://hc-ping.com/<<V>>/$EXIT_STATUS
#- code snitch.go
defer http.Head("https://hc-ping.com/<<V>>")
return run(ctx)
#= splunk_hec key <<UUID>>
#- header
$ curl -k https://splunk.<<dom>>:8088/services/collector -H 'Authorization: Splunk <<V>>' -d '{"event":"up"}'
{"text":"Success","code":0}
#- docker
$ docker run --log-driver=splunk --log-opt splunk-url=https://splunk.<<dom>>:8088 --log-opt splunk-token=<<V>> <<app>>:<<ver>>
<<hex:64>>
#- appender logback.xml
<Appender name="hec" class="com.splunk.logging.HttpEventCollectorLogbackAppender">
  <url>https://splunk.<<dom>>:8088</url><token><<V>></token><index>main</index>
</Appender>
#= gchat_webhook key <<b64u:43>>
#- url notify.py
HOOK = "https://chat.googleapis.com/v1/spaces/AAAA<<b62:7>>/messages?key=" + PUBLIC + "&token=<<V>>"
requests.post(HOOK, json={"text": "done"})
#- param
$ http POST https://chat.googleapis.com/v1/spaces/AAAA<<b62:7>>/messages threadKey==deploy token==<<V>> text='rolled back'
HTTP/1.1 200 OK
#- matrix ci.yml
    with:
      webhook-url: https://chat.googleapis.com/v1/spaces/AAAA<<b62:7>>/messages?token=<<V>>
      title: ${{ job.status }}
#= power_automate_sig key <<b64u:43>>
#- url Notify.ps1
$u = 'https://prod-<<n:90>>.westeurope.logic.azure.com/workflows/<<hex:32>>/triggers/manual/paths/invoke?sv=1.0&sig=<<V>>'
Invoke-RestMethod -Uri $u -Method Post -Body $b
#- log
<<date>>T<<time>>Z WARN teams-relay 429 from POST /workflows/<<hex:32>>/triggers/manual/paths/invoke?sv=1.0&sig=<<V>>
<<date>>T<<time>>Z INFO teams-relay backoff 8s
#- split teams.ts
const base = "https://prod-17.westeurope.logic.azure.com/workflows/<<hex:32>>/triggers/manual/paths/invoke";
await fetch(`${base}?${new URLSearchParams([["sv", "1.0"], ["sig", "<<V>>"]])}`);
#= lark_hook key <<uuid>>
#- url alert.go
bot := lark.NewNotificationBot("https://open.larksuite.com/open-apis/bot/v2/hook/<<V>>")
bot.PostText("ok")
#- curl
$ curl https://open.feishu.cn/open-apis/bot/v2/hook/<<V>> -H 'Content-Type: application/json' -d '{"msg_type":"text"}'
{"StatusCode":0}
#- env bots.env
BOTS=infra|https://open.feishu.cn/open-apis/bot/v2/hook/<<V>>
INTERVAL=30
#= dingtalk_robot key <<hex:64>>
#- url
$ curl 'https://oapi.dingtalk.com/robot/send?access_token=<<V>>' -d '{"msgtype":"text"}'
{"errcode":0,"errmsg":"ok"}
#- ctor Alert.java
Robot robot = new DingRobot("<<V>>", "SEC<<hex:64>>");
robot.text("OOM");
#- list robots.toml
robots = [
  ["prod", "<<V>>"],
]
#= telegram_bot key <<nz:10>>:AA<<b64u:33>>
#- path
$ curl -s https://api.telegram.org/bot<<V>>/getUpdates | jq .ok
true
#- builder bot.rs
let bot = Bot::new("<<V>>");
teloxide::repl(bot, answer).await;
#- botfather
Done! Congratulations on your new bot. Use this token to access the HTTP API:
<<V>>
Keep your token secure and store it safely.
#= mattermost_hook key <<low:26>>
#- url
$ curl -i -X POST -d 'payload={"text":"hi"}' https://chat.<<dom>>/hooks/<<V>>
HTTP/2 200
#- const hooks.ex
@hooks %{deploys: "https://chat.<<org>>.cloud.mattermost.com/hooks/<<V>>"}
def post(text), do: Req.post!(@hooks.deploys, json: %{text: text})
#- path notify.rb
conn = Faraday.new("https://chat.<<dom>>")
conn.post("/hooks/<<V>>", { text: msg }.to_json)
#= ifttt_maker key <<b64u:43>>
#- url
$ curl -X POST https://maker.ifttt.com/trigger/door_open/with/key/<<V>>
Congratulations! You've fired the door_open event
#- sketch esp32/main.ino
client.print("GET /trigger/leak/with/key/<<V>> HTTP/1.1\r\n");
client.print("Host: maker.ifttt.com\r\n\r\n");
#- args
$ ./ifttt.sh leak <<V>>
fired
#= discord_bot key MT<<b62:24>>.G<<b62:5>>.<<b64u:38>>
#- login bot/index.js
client.once('ready', () => console.log('up'));
client.login('<<V>>');
#- run bot.py
bot.load_extension("cogs.raid")
bot.run("<<V>>", reconnect=True)
#- header
> GET /api/v10/users/@me HTTP/2
> authorization: Bot <<V>>
< HTTP/2 200
#= slack_app_level key xapp-1-A<<up:10>>-<<dig:13>>-<<hex:64>>
#- socket app.py
handler = SocketModeHandler(app, "<<V>>")
handler.start()
#- read
Token? <<V>>
Connected to workspace <<org>>
#- secretset
$ gh secret set SOCKET --repo <<org>>/<<app>> --body "<<V>>"
✓ Set Actions secret SOCKET for <<org>>/<<app>>
#= matrix_syt key syt_<<b62:12>>_<<b62:20>>_<<b62:6>>
#- curl
$ curl -s "https://matrix.<<dom>>/_matrix/client/v3/sync?access_token=<<V>>&timeout=0" | jq keys
["next_batch"]
#- ctor src/bridge.rs
let session = Session::restore("@bridge:<<dom>>", "DEV<<up:7>>", "<<V>>");
client.restore_session(session).await?;
#- json
{"user_id": "@bridge:<<dom>>", "device_id": "<<up:10>>",
 "access_token": "<<V>>", "home_server": "<<dom>>"}
#= zulip_rc key <<b62:32>>
#- ini zuliprc
[api]
email=deploy-bot@<<org>>.zulipchat.com
key=<<V>>
site=https://<<org>>.zulipchat.com
#- basic
$ curl -sSX GET -G https://<<org>>.zulipchat.com/api/v1/messages -u deploy-bot@<<org>>.zulipchat.com:<<V>>
{"result":"success"}
#- positional say.py
z = zulip.Client("deploy-bot@<<org>>.zulipchat.com", "<<V>>", "https://<<org>>.zulipchat.com")
z.send_message(m)
#= doppler_service key dp.st.prd_eu.<<b62:43>>
#- configure
$ doppler configure set token <<V>> --scope /srv/<<app>>
Saved
#- pipe
$ echo -n '<<V>>' | docker secret create doppler -
<<low:25>>
#- systemd <<app>>.service
ExecStart=/usr/bin/doppler run -t <<V>> -- /srv/<<app>>/bin/server
Restart=always
#= vault_hvs key hvs.CAESI<<b64u:86>>
#- login
$ vault login -no-print <<V>>
$ vault token lookup -format=json | jq .data.ttl
2764800
#- header client.go
req.Header["X-Vault-Token"] = []string{"<<V>>"}
resp, err := hc.Do(req)
#- unwrap
$ vault unwrap -field=token
<<V>>
#= vault_unseal key <<b64:33>>
#- init
$ vault operator init -key-shares=3 -key-threshold=2
Unseal Key 1: <<V>>
Unseal Key 2: (printed to the other custodian)
#- argv
$ vault operator unseal <<V>>
Sealed          false
#- prose
shard holder here, mine is <<V>>
the other one is with Ops in Lyon
#= tfc_atlas key <<b62:14>>.atlasv1.<<b64u:67>>
#- file .terraformrc
credentials "app.terraform.io" {
  token = "<<V>>"
}
#- json
$ cat ~/.terraform.d/credentials.tfrc.json
{"credentials": {"app.terraform.io": {"token": "<<V>>"}}}
#- curl
$ curl -s -H "Authorization: Bearer <<V>>" https://app.terraform.io/api/v2/organizations/<<org>>/workspaces
{"data":[]}
#= pulumi_token key pul-<<hex:40>>
#- login
$ pulumi login --cloud-url "https://x:<<V>>@api.pulumi.com"
Logged in to pulumi.com
#- runs action.yml
- uses: pulumi/auth-actions@v1
- run: ./up.sh prod <<V>>
#- call deploy.cs
var ws = await LocalWorkspace.CreateAsync(o => o.WithAccess("<<V>>"));
await ws.UpAsync();
#= tailscale_auth key tskey-auth-k<<b62:10>>CNTRL-<<b62:32>>
#- up
# tailscale up --ssh --advertise-tags=tag:ci --authkey <<V>>
Success.
#- cloudinit user-data.yaml
runcmd:
  - [tailscale, up, "--accept-routes", "--auth-key=<<V>>"]
#- prose
Assistant: I joined the runner with <<V>>, which is
ephemeral and expires in 24 hours.
#= ngrok_authtoken key 2<<b62:26>>_<<b62:21>>
#- add
$ ngrok config add-authtoken <<V>>
Authtoken saved to configuration file: /root/.config/ngrok/ngrok.yml
#- connect tunnel.mjs
const url = await ngrok.connect({ addr: 8080, authtoken: '<<V>>' });
console.log(url);
#- ps
  PID TTY          TIME CMD
 <<n:9000>> pts/0    00:00:01 ngrok http 8080 --authtoken <<V>>
#= cloudflared_tunnel key <<b64j:tunnel>>
#- service
# cloudflared service install <<V>>
INF Linux service for cloudflared installed successfully
#- compose docker-compose.yml
  tunnel:
    image: cloudflare/cloudflared:2026.2.0
    command: tunnel --no-autoupdate run --token <<V>>
#- stdout
$ cloudflared tunnel token <<app>>-edge
<<V>>
#= wireguard_priv key <<b64:32>>
#- genkey
$ wg genkey | tee /dev/tty | wg pubkey > pub.txt
<<V>>
$
#- conf wg0.conf
[Interface]
Address = 10.8.0.<<n:250>>/32
PrivateKey = <<V>>
#- array mesh.nix
peers.<<app>> = [ "10.8.0.<<n:250>>/32" "<<V>>" 51820 ];
networking.firewall.allowedUDPPorts = [ 51820 ];
#= netbird_setup key <<UUID>>
#- up
$ netbird up --management-url https://netbird.<<dom>> --setup-key <<V>>
Connected
#- env values.yaml
env:
  - {name: NB_SETUP_KEY, value: <<V>>}
  - {name: NB_HOSTNAME, value: edge}
#- bare
here is the reusable setup one for the Raspberry fleet:
<<V>>
#= zerotier_identity key <<hex:128>>
#- file
# cat /var/lib/zerotier-one/identity.secret
<<hex:10>>:0:<<hex:128>>:<<V>>
#- rsync
$ printf '%s' <<hex:10>>:0:<<hex:128>>:<<V>> | ssh edge-<<n:40>> 'sudo tee /var/lib/zerotier-one/identity.tmp >/dev/null'
$
#- ansible roles/zt/vars.yml
zt_nodes:
  edge: ["<<hex:10>>", "<<V>>"]
#= cloudflare_global_key key <<hex:37>>
#- header
$ curl https://api.cloudflare.com/client/v4/zones -H 'X-Auth-Email: ops@<<dom>>' -H 'X-Auth-Key: <<V>>'
{"success":true}
#- certbot cloudflare.ini
dns_cloudflare_email = ops@<<dom>>
dns_cloudflare_api_key = <<V>>
#- ctor dns.go
api, err := cloudflare.New("<<V>>", "ops@<<dom>>")
if err != nil {
#= fly_macaroon key fm2_lJPE<<b64c:180>>
#- stdout
$ fly tokens create deploy -x 999999h
FlyV1 <<V>>
#- secrets
$ fly secrets set DEPLOYER='FlyV1 <<V>>' -a <<app>>
Secrets are staged for the first deployment
#- header fly.ex
headers: [{"authorization", "FlyV1 <<V>>"}]
|> Req.get!()
"""
_KEYS_B = r"""
#= render_key key rnd_<<b62:28>>
#- login
$ render login --key <<V>>
$ render services -o json | jq length
<<n:20>>
#- prose
paste from the dashboard: <<V>>
it may restart services, nothing else
#- url deploy.sh
svc=srv-<<low:20>>
deploy "$svc" <<V>> --clear-cache
#= netlify_nfp key nfp_<<b62:36>>
#- flag
$ npx netlify deploy --prod --dir dist --auth <<V>>
Deploy is live!
#- map sites.exs
sites = %{"www" => {"<<uuid>>", "<<V>>"}}
Enum.each(sites, &purge/1)
#- heredoc
$ cat <<'EOF' | ./bulk-env
www <<V>>
EOF
#= digitalocean_dop key dop_v1_<<hex:64>>
#- init
$ doctl auth init -t <<V>> --context prod
Validating token... ✔
#- spaces
$ DO=<<V>> ; docker login -u $DO -p $DO registry.digitalocean.com
Login Succeeded
#- client infra.go
client := godo.NewFromToken("<<V>>")
droplets, _, err := client.Droplets.List(ctx, nil)
#= hetzner_cloud key <<b62:64>>
#- answer
$ hcloud context create <<app>>
Token: <<V>>
Context <<app>> created and activated
#- const hz.py
client = Client("<<V>>", poll_interval=2)
client.servers.get_all()
#- cloudctl nodes.csv
name,type,loc,tk
node-1,cax21,fsn1,<<V>>
#= vultr_key key <<up:36>>
#- curl
$ curl -s https://api.vultr.com/v2/instances -H "Authorization: Bearer <<V>>" | jq .meta.total
<<n:30>>
#- backend main.tf
provider "vultr" {
  api_key = "<<V>>"
}
#- args
$ ./vultr-snap <<V>> ams <<uuid>>
snapshot queued
#= backblaze_app key K005<<b64c:27>>
#- authorize
$ b2 account authorize 005<<hex:22>> <<V>>
Using https://api.backblazeb2.com
#- rclone rclone.conf
[offsite]
type = b2
account = 005<<hex:22>>
key = <<V>>
#- rest
$ curl -u '005<<hex:22>>:<<V>>' https://api.backblazeb2.com/b2api/v3/b2_authorize_account | jq -r .accountId
<<hex:12>>
#= aws_csv_row key <<b64c:40>>
#- csv new_user_credentials.csv
User name,Password,Access key ID,Secret access key,Console login link
ci-deploy,,<<cat:AK|IA>><<b32:16>>,<<V>>,https://<<dig:12>>.signin.aws.amazon.com/console
#- configure
$ aws configure --profile <<app>>
AWS Access Key ID [None]: <<cat:AK|IA>><<b32:16>>
AWS Secret Access Key [None]: <<V>>
Default region name [None]: eu-north-1
#- ctor S3Store.java
var creds = AwsBasicCredentials.create("<<cat:AK|IA>><<b32:16>>", "<<V>>");
var s3 = S3Client.builder().credentialsProvider(() -> creds).build();
#= aws_session_token key IQoJb3JpZ2luX2Vj<<b64c:300>>=
#- sts
$ aws sts get-session-token --query 'Credentials.[AccessKeyId,SessionToken]' --output text
<<cat:AS|IA>><<b32:16>>	<<V>>
#- third Creds.cs
var c = new SessionAWSCredentials(id, sk, "<<V>>");
using var ec2 = new AmazonEC2Client(c, RegionEndpoint.EUWest1);
#- signed
https://<<app>>-exports.s3.eu-west-1.amazonaws.com/r.parquet?X-Amz-Expires=3600&X-Amz-Security-Token=<<V>>&X-Amz-SignedHeaders=host
(saved 41 MB)
#= bedrock_absk key ABSK<<b64:99>>
#- bearer
$ curl -H 'Authorization: Bearer <<V>>' https://bedrock-runtime.eu-central-1.amazonaws.com/model/x/converse -d @m.json
{"stopReason":"end_turn"}
#- param bedrock.kt
val llm = Bedrock("eu-central-1", "<<V>>")
llm.converse(msgs)
#- tfvars prod.auto.tfvars
region = "eu-central-1"
inference = ["<<V>>"]
#= cloudfront_signed key <<b64u:340>>__
#- url
<video src="https://cdn.<<dom>>/m/1.m3u8?Expires=1790<<dig:6>>&Signature=<<V>>&Key-Pair-Id=K<<up:13>>" controls>
</video>
#- cookie
< set-cookie: CloudFront-Key-Pair-Id=K<<up:13>>; Path=/; Secure
< set-cookie: CloudFront-Signature=<<V>>; Path=/; Secure
#- wget
$ wget -q --header 'Cookie: CloudFront-Policy=eyJ<<b62:40>>; CloudFront-Signature=<<V>>' https://cdn.<<dom>>/m/2.ts
$
#= s3_presigned key <<hex:64>>
#- url
Upload here (1 h): https://<<app>>-in.s3.amazonaws.com/a.zip?X-Amz-Date=20260<<nz:1>>11T101500Z&X-Amz-Expires=3600&X-Amz-Signature=<<V>>
then tell me the ETag
#- stdout
$ aws s3 presign s3://<<app>>-dumps/pg.zst --expires-in 604800
https://<<app>>-dumps.s3.eu-west-1.amazonaws.com/pg.zst?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders=host&X-Amz-Signature=<<V>>
#- json
{"method": "PUT", "url": "https:\/\/<<app>>-in.s3.amazonaws.com\/b.zip?X-Amz-Expires=900\u0026X-Amz-Signature=<<V>>",
 "ttl": 900}
#= gcs_hmac key <<b64c:40>>
#- boto .boto
[Credentials]
gs_access_key_id = GOOG1E<<up:55>>
gs_secret_access_key = <<V>>
#- duckdb
D CREATE SECRET (TYPE gcs, KEY_ID 'GOOG1E<<up:55>>', SECRET '<<V>>');
D select count(*) from 'gs://<<app>>/*.parquet';
#- stdout
$ gsutil hmac create ci@<<app>>-prod.iam.gserviceaccount.com
Access ID:   GOOG1E<<up:55>>
Secret:      <<V>>
#= gcp_refresh key 1//0<<b64u:99>>
#- adc application_default_credentials.json
{"client_id": "764086051850-x.apps.googleusercontent.com", "type": "authorized_user",
 "refresh_token": "<<V>>"}
#- firebase
$ firebase login:ci
✔  Success! Use this to login on a CI server:
<<V>>
#- form
$ curl https://oauth2.googleapis.com/token -d grant_type=refresh_token -d client_id=$CID -d refresh_token=<<V>>
{"expires_in":3599}
#= google_oauth_client key GOCSPX-<<b64u:28>>
#- positional auth.js
const oauth2 = new google.auth.OAuth2(CLIENT_ID, '<<V>>', 'https://<<dom>>/cb');
oauth2.generateAuthUrl({ scope });
#- json client.json
{"installed":{"client_id":"<<dig:12>>-<<low:32>>.apps.googleusercontent.com",
"client_secret":"<<V>>","redirect_uris":["http://localhost"]}}
#- rclonecli
$ rclone config create gd drive client_id <<dig:12>>-<<low:32>>.apps.googleusercontent.com client_secret <<V>> scope drive
[gd]
#= gcp_sa_pem key <<b64c:64>>
#- pem key.pem
<<begin:PRIVATE KEY>>
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC<<b64c:13>>
<<V>>
<<b64c:64>>
<<end:PRIVATE KEY>>
#- json sa.json
{"type": "service_account", "project_id": "<<app>>-prod", "private_key_id": "<<hex:40>>",
 "private_key": "<<begin:PRIVATE KEY>>\n<<rsa>>\n<<V>>\n<<b64c:40>>\n<<end:PRIVATE KEY>>\n"}
#- truncated
$ head -n 4 /run/keys/sa.pem | tail -n 2
<<V>>
<<b64c:64>>
#= azure_storage_key key <<b64:64>>
#- stdout
$ az storage account keys list -n <<app>>st --query '[0].value' -o tsv
<<V>>
#- mount
# mount -t cifs //<<app>>st.file.core.windows.net/share /mnt/s -o vers=3.1.1,username=<<app>>st,password=<<V>>,serverino
# df -h /mnt/s
#- ctor Blob.py
cred = AzureNamedKeyCredential("<<app>>st", "<<V>>")
svc = BlobServiceClient(URL, credential=cred)
#= azure_sas_sig key <<b64u:43>>%3D
#- azcopy
$ azcopy copy ./dump 'https://<<app>>st.blob.core.windows.net/in?sv=2024-11-04&ss=b&srt=co&sp=rwl&se=2026-12-31&sig=<<V>>' --recursive
Final Job Status: Completed
#- sql
CREATE DATABASE SCOPED CREDENTIAL lake WITH IDENTITY = 'SHARED ACCESS SIGNATURE',
  SECRET = 'sv=2024-11-04&ss=b&sp=rl&sig=<<V>>';
#- log
<<time>> ERROR 403 AuthenticationFailed GET /in/a.csv?sp=r&st=2026-01-01&spr=https&sv=2024-11-04&sr=b&sig=<<V>>
<<time>> ERROR giving up after 5 tries
#= entra_client key <<b62:3>>8Q~<<b64u:34>>
#- azlogin
$ az login --service-principal -u <<uuid>> -p <<V>> --tenant <<uuid>>
[{"cloudName": "AzureCloud"}]
#- ctor Graph.cs
var cred = new ClientSecretCredential(tenant, app, "<<V>>");
var graph = new GraphServiceClient(cred);
#- reset
$ az ad app credential reset --id <<uuid>> --query password -o tsv
<<V>>
#= azdo_pat key <<b62:76>>AZDO<<b62:4>>
#- remote
$ git remote -v
origin	https://<<V>>@dev.azure.com/<<org>>/<<app>>/_git/api (fetch)
#- pipe
$ echo <<V>> | az devops login --organization https://dev.azure.com/<<org>>
$
#- extraheader
$ git -c http.extraheader="AUTHORIZATION: basic $(printf ':%s' <<V>> | base64 -w0)" fetch
From https://dev.azure.com/<<org>>
#= alibaba_ram key <<b62:30>>
#- ossutil
$ ossutil config -e oss-eu-central-1.aliyuncs.com -i LTAI5t<<b62:18>> -k <<V>>
$ ossutil ls
#- ctor oss.py
auth = oss2.Auth('LTAI5t<<b62:18>>', '<<V>>')
bucket = oss2.Bucket(auth, ENDPOINT, '<<app>>')
#- yaml velero.yaml
data: |
  LTAI5t<<b62:18>>
  <<V>>
#= scaleway_uuid key <<uuid>>
#- env
$ scw init access-key=SCW<<up:17>> secret-key=<<V>> organization-id=<<uuid>>
Initialization completed with success
#- docker
$ docker login rg.fr-par.scw.cloud/<<app>> -u nologin -p <<V>>
Login Succeeded
#- goopt
	scw.WithAuth("SCW<<up:17>>", "<<V>>"),
	scw.WithDefaultRegion("fr-par"),
#= yandex_oauth key y0_<<b64u:56>>
#- yc
$ yc config set token <<V>>
$ yc resource-manager cloud list
#- exchange
$ curl -d "{\"yandexPassportOauthToken\":\"<<V>>\"}" https://iam.api.cloud.yandex.net/iam/v1/tokens
{"expiresAt":"<<date>>"}
#- disk sync.php
$disk = new Arhitector\Yandex\Disk('<<V>>');
echo $disk->used_space;
#= circleci_ccipat key CCIPAT_<<b58:22>>_<<hex:40>>
#- setup
$ circleci setup --no-prompt --host https://circleci.com --token <<V>>
Setup complete.
#- basic
$ curl -u <<V>>: https://circleci.com/api/v2/me
{"name":"ci"}
#- lua
local ci = require("circle").new("<<V>>")
ci:rerun("<<uuid>>")
#= jenkins_token key 11<<hex:32>>
#- jar
$ java -jar jenkins-cli.jar -s https://ci.<<dom>>/ -auth releng:<<V>> safe-restart
$
#- groovy
def conn = new RemoteJob('https://ci.<<dom>>', 'releng', '<<V>>')
conn.trigger('deploy')
#- crumb
$ curl -s https://releng:<<V>>@ci.<<dom>>/crumbIssuer/api/json
{"crumb":"<<hex:64>>"}
#= buildkite_bkua key bkua_<<hex:40>>
#- graphql
$ curl -H "Authorization: Bearer <<V>>" https://graphql.buildkite.com/v1 -d '{"query":"{viewer{id}}"}'
{"data":{}}
#- init
$ bk configure --org <<org>> --token <<V>>
$ bk build new
#- ctor bk.ts
const bk = new Buildkite("<<org>>", "<<V>>");
await bk.retry(build);
#= gitlab_runner key glrt-<<b64u:20>>
#- register
$ gitlab-runner register -n --url https://git.<<dom>> --executor docker --token <<V>>
Runner registered successfully.
#- toml config.toml
[[runners]]
  name = "shared-<<n:30>>"
  token = "<<V>>"
#- rails
irb(main):003:0> Ci::Runner.last.token
=> "<<V>>"
#= github_classic key ghp_<<crc:30>>
#- withtoken
$ gh auth login --with-token <<< "<<V>>"
$ gh auth status
#- credstore /root/.git-credentials
https://x-access-token:<<V>>@github.com
https://git.<<dom>>
#- octokit
client = Octokit::Client.new(**opts.merge({ access: %w[<<V>>].first }))
client.user.login
#= npm_classic key npm_<<crc:30>>
#- config
$ npm config set //registry.npmjs.org/:_authToken <<V>>
$ npm whoami
#- npmrc .npmrc
@<<org>>:registry=https://registry.npmjs.org/
//registry.npmjs.org/:_authToken=<<V>>
#- bunfig bunfig.toml
[install.scopes]
"<<org>>" = { url = "https://registry.npmjs.org/", token = "<<V>>" }
#= pypi_macaroon key pypi-<<cat:AgEI|cHlwaS5vcmc>><<b64u:150>>
#- twine
$ python -m twine upload dist/* -u __token__ -p <<V>>
Uploading <<app>>-<<ver>>.tar.gz
#- keyring
$ keyring set https://upload.pypi.org/legacy/ __token__ <<< <<V>>
$
#- uv
$ uv publish --token <<V>>
Publishing 2 files https://upload.pypi.org/legacy/
#= nuget_oy2 key oy2<<low:43>>
#- push
$ dotnet nuget push bin/Release/<<app>>.<<ver>>.nupkg -k <<V>> -s https://api.nuget.org/v3/index.json
Your package was pushed.
#- setkey
> nuget setapikey <<V>> -Source nuget.org
The API Key was saved
#- cake build.cake
NuGetPush(pkg, Settings("https://api.nuget.org/v3/index.json", "<<V>>"));
RunTarget("Default");
#= clojars_deploy key CLOJARS_<<hex:60>>
#- profiles profiles.clj
{:auth {:repository-auth {#"clojars" {:username "<<org>>"
                                      :password "<<V>>"}}}}
#- lein
$ lein deploy clojars
Username: <<org>>
Password: <<V>>
#- vector deploy.clj
(dd/deploy {:repo ["https://repo.clojars.org" "<<org>>" "<<V>>"]
            :artifact "target/<<app>>.jar"})
#= cachix_auth key <<jwt>>
#- authtoken
$ cachix authtoken <<V>>
Written to ~/.config/cachix/cachix.dhall
#- dhall cachix.dhall
{ authToken = "<<V>>"
, hostname = "https://cachix.org" }
#- stdin
$ cachix authtoken --stdin <<'T'
<<V>>
T
#= docker_pat key dckr_pat_<<b64u:27>>
#- login
$ docker login -u <<org>>bot -p <<V>>
WARNING! Using --password via the CLI is insecure.
#- skopeo
$ skopeo copy --dest-creds <<org>>bot:<<V>> oci:out docker://docker.io/<<org>>/<<app>>:<<ver>>
Writing manifest to image destination
#- kubectl
$ kubectl create secret docker-registry hub --docker-username=<<org>>bot --docker-password=<<V>>
secret/hub created
#= jfrog_reference key cmVmdGtu<<b64c:56>>
#- jf
$ jf c add prod --url https://<<org>>.jfrog.io --access-token <<V>> --interactive=false
$ jf rt ping
#- index pip.conf
[global]
index-url = https://ci:<<V>>@<<org>>.jfrog.io/artifactory/api/pypi/py/simple
#- sbt build.sbt
credentials += Credentials("Artifactory Realm", "<<org>>.jfrog.io", "ci", "<<V>>")
publishMavenStyle := true
#= maven_settings key <<pws:20>>
#- xml settings.xml
<server><id>releases</id><username>deployer</username>
<password><<V>></password></server>
#- gradle build.gradle
maven { url "https://nexus.<<dom>>/repository/releases"
        credentials { it.with { username = 'deployer'; setPassword '<<V>>' } } }
#- mvn
$ mvn -q deploy -Drepo.user=deployer -Drepo.pw=<<V>> -DskipTests
[INFO] BUILD SUCCESS
#= android_keystore key <<pws:14>>
#- signing app/build.gradle
signingConfigs { release {
    storeFile file('upload.jks'); keyAlias 'upload'
    storePassword '<<V>>' } }
#- apksigner
$ apksigner sign --ks upload.jks --ks-pass pass:<<V>> --out a.apk app-release-unsigned.apk
$ apksigner verify a.apk
#- keytool
$ keytool -list -v -keystore upload.jks -alias upload -storepass <<V>>
Certificate fingerprints: SHA1: 5E:8F:16:06
#= apple_app_specific key <<gabc:4x4>>
#- notary
$ xcrun notarytool submit <<app>>.dmg --apple-id dev@<<dom>> --team-id <<up:10>> --password <<V>> --wait
  status: Accepted
#- altool
$ xcrun altool --upload-app -f App.ipa -t ios -u dev@<<dom>> -p <<V>>
No errors uploading 'App.ipa'.
#- prose
made a new one at account.apple.com for the upload lane: <<V>>
the old one got revoked when I changed my Apple ID
#= appstore_p8 key <<b64c:64>>
#- p8 AuthKey_7QK2.p8
<<begin:PRIVATE KEY>>
MIGTAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBHkwdwIBAQQg<<b64c:16>>
<<V>>
<<b64c:64>>
<<end:PRIVATE KEY>>
#- fastlane
app_store_connect_api_key(key_id: "<<up:10>>", issuer_id: "<<uuid>>",
  key_content: "<<begin:PRIVATE KEY>>\n<<ec>>\n<<V>>\n<<b64c:64>>\n<<end:PRIVATE KEY>>")
#- grep
$ sed -n 3p ~/Downloads/AuthKey_<<up:10>>.p8
<<V>>
#= macos_keychain_unlock key <<human>>
#- unlock
$ security unlock-keychain -p '<<V>>' ~/Library/Keychains/ci.keychain-db
$ security find-identity -v -p codesigning
#- partition
$ security set-key-partition-list -S apple-tool:,apple: -s -k '<<V>>' ci.keychain
keychain: "ci.keychain"
#- find
$ security find-generic-password -s <<app>>-signing -w
<<V>>
#= match_passphrase key <<human>>
#- prompt
[<<time>>]: Enter the passphrase that should be used to encrypt/decrypt your certificates
[<<time>>]: Passphrase for Match storage: <<V>>
[<<time>>]: Type passphrase again:
#- openssl
$ openssl enc -d -aes-256-cbc -md md5 -a -in cert.enc -out cert.p12 -k '<<V>>'
*** WARNING : deprecated key derivation used.
#- p12
$ security import cert.p12 -k ci.keychain -P '<<V>>' -T /usr/bin/codesign
1 identity imported.
#= sparkle_eddsa key <<b64:32>>
#- sign
$ ./bin/sign_update -s <<V>> <<app>>-<<ver>>.zip
sparkle:edSignature="(see appcast)" length="<<dig:8>>"
#- export
$ ./bin/generate_keys -x /dev/stdout
<<V>>
#- pipe
$ echo "<<V>>" | ./bin/generate_appcast --ed-key-file - ./out
Wrote 1 new update
#= onesignal_app key os_v2_app_<<low:103>>
#- header
$ curl -X POST https://api.onesignal.com/notifications -H 'Authorization: Key <<V>>' -d @push.json
{"id":"<<uuid>>"}
#- call push.dart
final push = OneSignalRest('<<uuid>>', '<<V>>');
await push.broadcast('hi');
#- expo eas.json
{"build": {"production": {"env": {"PUSH": "<<V>>"}}},
 "submit": {}}
#= expo_access key <<b64u:40>>
#- env
$ EXPO_TOKEN=<<V>> eas build -p ios --non-interactive
✔ Build queued
#- ctor push.ts
const expo = new Expo({ ...base, ...access("<<V>>") });
await expo.sendPushNotificationsAsync(chunk);
#- eascreate
? Value: > <<V>>
✔ Created a new variable ROBOT on project @<<org>>/<<app>>
#= revenuecat_v2 key sk_<<b62:29>>
#- curl
$ curl -s https://api.revenuecat.com/v2/projects -H "Authorization: Bearer <<V>>"
{"object":"list"}
#- kotlin
private val rc = RevenueCatServer("<<V>>")
fun refund(id: String) = rc.refund(id)
#- functions
$ firebase functions:secrets:set RC --data-file - <<< '<<V>>'
✔  Created a new secret version projects/<<dig:12>>/secrets/RC/versions/1
#= fcm_legacy key AAAA<<b64u:7>>:APA91b<<b64u:134>>
#- header
$ curl -X POST https://fcm.googleapis.com/fcm/send -H "Authorization: key=<<V>>" -d @m.json
{"success":1}
#- java
Sender sender = new Sender("<<V>>");
Result res = sender.send(msg, regId, 3);
#- plist Info.plist
<key>FCMLegacy</key>
<string><<V>></string>
"""
_KEYS_C = r"""
#= mapbox_sk key sk.<<b64j:mapbox>>.<<b64u:22>>
#- netrc
machine api.mapbox.com
login mapbox
password <<V>>
#- gradleprops gradle.properties
org.gradle.jvmargs=-Xmx4g
mapboxDownloads=<<V>>
#- url
$ curl "https://api.mapbox.com/styles/v1/<<org>>?access_token=<<V>>"
[]
#= stripe_restricted key rk_<<cat:li|ve>>_51<<b62:97>>
#- ctor billing.rb
stripe = Stripe::StripeClient.new("<<V>>")
stripe.v1.refunds.create({ charge: id })
#- cli
$ stripe customers list --limit 1 --api-key <<V>>
{"object": "list"}
#- basic
$ curl https://api.stripe.com/v1/balance -u "<<V>>:"
{"object":"balance"}
#= stripe_whsec key whsec_<<b62:32>>
#- listen
$ stripe listen --forward-to localhost:4242
> Ready! Your webhook signing secret is <<V>> (^C to quit)
#- third hook.go
event, err := webhook.ConstructEvent(body, r.Header.Get("Stripe-Signature"), "<<V>>")
if err != nil {
#- svix verify.py
wh = Webhook("<<V>>")
payload = wh.verify(body, headers)
#= square_access key EAAA<<b64u:60>>
#- ctor pay.cs
var client = new SquareClient("<<V>>");
await client.Locations.ListAsync();
#- bearer
> POST /v2/payments HTTP/1.1
> Host: connect.squareup.com
> Authorization: Bearer <<V>>
#- prose
for the Rotterdam shop the seller granted <<V>>
scopes are payments.write and orders.read
#= adyen_apikey key AQE<<b64c:150>>-<<b64c:43>>=-<<b62:16>>
#- header
$ curl https://checkout-live.adyen.com/v71/paymentMethods -H 'X-API-key: <<V>>' -d '{}'
{"paymentMethods":[]}
#- ctor Pay.java
Client adyen = new Client("<<V>>", Environment.LIVE, "<<hex:16>>-<<org>>");
PaymentsApi api = new PaymentsApi(adyen);
#- chart
$ helm template . --set-string 'adyen.k=<<V>>' | head -2
---
# Source: <<app>>/templates/cm.yaml
#= mollie_live key live_<<b62:30>>
#- setter pay.php
$mollie = new \Mollie\Api\MollieApiClient();
$mollie->setApiKey('<<V>>');
#- basic
$ http -a <<V>>: https://api.mollie.com/v2/methods
HTTP/1.1 200 OK
#- array shops.py
SHOPS = {"nl": "<<V>>", "be": None}
for k in SHOPS: poll(k)
#= razorpay_secret key <<b62:24>>
#- tuple pay.py
client = razorpay.Client(auth=("rzp_live_<<b62:14>>", "<<V>>"))
client.order.create(o)
#- curl
$ curl -u rzp_live_<<b62:14>>:<<V>> https://api.razorpay.com/v1/payments
{"count":0}
#- csv rzp.csv
key_id,key_secret
rzp_live_<<b62:14>>,<<V>>
#= binance_secret key <<b62:64>>
#- positional trade.py
client = Spot("<<b62:64>>", "<<V>>")
print(client.account()["canTrade"])
#- ccxt bot.js
const ex = new ccxt.binance({ apiKey: process.env.BK, secret: '<<V>>' });
await ex.loadMarkets();
#- hmac
$ echo -n "symbol=BTCEUR&timestamp=17<<dig:11>>" | openssl dgst -sha256 -hmac "<<V>>"
SHA2-256(stdin)= (copied into the URL)
#= kraken_private key <<b64:64>>
#- file kraken.key
<<b64:42>>
<<V>>
#- ctor kr.go
api := krakenapi.New("<<b64:42>>", "<<V>>")
bal, err := api.Query("Balance", nil)
#- prose
Query funds only, no withdrawal: the private half is <<V>>
can you check that the nonce window is set?
#= alchemy_url key alcht_<<b62:30>>
#- rpc hardhat.config.ts
networks: { base: { url: "https://base-mainnet.g.alchemy.com/v2/<<V>>" } },
solidity: "0.8.28",
#- cast
$ cast block-number --rpc-url https://eth-mainnet.g.alchemy.com/v2/<<V>>
2<<dig:7>>
#- ws watch.rs
let ws = WsConnect::new("wss://eth-mainnet.g.alchemy.com/v2/<<V>>");
let p = ProviderBuilder::new().on_ws(ws).await?;
#= quicknode_path key <<hex:40>>
#- url
$ solana config set --url https://dawn-quiet-<<app>>.solana-mainnet.quiknode.pro/<<V>>/
Config File: /root/.config/solana/cli/config.yml
#- geyser
grpcurl -H 'x-token: <<V>>' dawn-quiet-<<app>>.solana-mainnet.quiknode.pro:10000 geyser.Geyser/GetVersion
{"version": "<<ver>>"}
#- toml Anchor.toml
[provider]
cluster = "https://dawn-quiet-<<app>>.solana-mainnet.quiknode.pro/<<V>>/"
#= btc_wif key <<wif>>
#- rpc
$ bitcoin-cli dumpprivkey bc1q<<low:38>>
<<V>>
#- descriptor
$ bitcoin-cli getdescriptorinfo "wpkh(<<V>>)" | jq -r .checksum
<<low:8>>
#- call sweep.py
k = Key("<<V>>")
k.sweep(dest, fee=12)
#= btc_xprv key <<xprv>>
#- descriptor
wsh(sortedmulti(2,[<<hex:8>>/48h/0h/0h/2h]<<V>>/0/*,@1/**))
imported: true
#- bip32 hd.ts
const root = bip32.fromBase58("<<V>>");
const child = root.derivePath("m/84'/0'/0'");
#- stdout
$ hdwallet derive --account 0 --quiet
<<V>>
#= btc_zprv key <<zprv>>
#- electrum
>> getmasterprivate()
"<<V>>"
#- json wallet.json
{"keystore": {"type": "bip32", "derivation": "m/84h/0h/0h",
 "xprv": "<<V>>"}}
#- prose
The treasurer's root is <<V>>,
recovery is at 84h/0h/0h
#= bip38_paper key <<bip38>>
#- argv
$ bip38 decrypt <<V>>
passphrase:
#- scan
QR #<<n:9>> decoded:
<<V>>
#- row paper.csv
addr,enc,printed
1<<b58:33>>,<<V>>,<<date>>
#= bip39_twelve key <<mnemonic:12>>
#- restore
$ cast wallet import dep --mnemonic "<<V>>"
`dep` keystore was saved successfully.
#- hardhat hardhat.config.js
accounts: { mnemonic: "<<V>>", path: "m/44'/60'/0'/0", count: 4 },
solidity: "0.8.28",
#- prose
I wrote it down like this: <<V>>
can you derive the third address?
#= bip39_cosmos key <<mnemonic:24>>
#- keysadd
$ gaiad keys add validator
**Important** write this mnemonic phrase in a safe place.

<<V>>
#- recover
$ echo "<<V>>" | osmosisd keys add relay --recover
- name: relay
#- rs wallet.rs
let m = Mnemonic::parse("<<V>>")?;
let seed = m.to_seed("");
#= nostr_nsec key <<bech:nsec>>
#- event
$ nak event --sec <<V>> -c 'gm' wss://relay.<<dom>>
connecting to relay.<<dom>>... ok.
#- decode bot.js
const { data: sk } = nip19.decode('<<V>>');
const pk = getPublicKey(sk);
#- prose
my bot identity is <<V>>, publish
under that from the cron
#= age_identity key <<agesk>>
#- keygen
$ age-keygen
# created: <<date>>T<<time>>Z
# public key: <<bech:age>>
<<V>>
#- herestring
$ age -d -i - backup.age <<< <<V>> > backup.tar
$
#- flux
$ echo "<<V>>" | kubectl create secret generic sops-age -n flux-system --from-file=age.agekey=/dev/stdin
secret/sops-age created
#= solana_bytes key [<<ints:64>>]
#- id
$ cat ~/.config/solana/id.json
<<V>>
#- web3 mint.ts
const payer = Keypair.fromSecretKey(Uint8Array.from(<<V>>));
await mintTo(conn, payer);
#- pipe
$ echo '<<V>>' > /tmp/k && solana transfer -k /tmp/k <<b58:44>> 0.1
Signature: (pending)
#= solana_base58 key <<b58k:64>>
#- decode snipe.rs
let kp = Keypair::from_base58_string("<<V>>");
rpc.request_airdrop(&kp.pubkey(), 1)?;
#- export
Phantom > Show Private Key
<<V>>
#- list wallets.txt
# one a line
<<V>>
#= eth_private_hex key 0x<<hex:64>>
#- forge
$ forge script script/Deploy.s.sol --broadcast --private-key <<V>>
ONCHAIN EXECUTION COMPLETE & SUCCESSFUL.
#- wallet deploy.js
const w = new ethers.Wallet("<<V>>", provider);
await w.sendTransaction(tx);
#- account bot.py
acct = Account.from_key("<<V>>")
print(acct.address)
#= sui_bech32 key <<suikey>>
#- import
$ sui keytool import <<V>> ed25519
╭─────────────────┬──────────╮
#- sdk move.ts
const kp = Ed25519Keypair.fromSecretKey('<<V>>');
await client.signAndExecuteTransaction({ signer: kp, transaction });
#- exported
│ exportedPrivateKey │  <<V>>  │
│ key                │  (hidden)  │
#= aptos_ed25519 key ed25519-priv-0x<<hex:64>>
#- init
$ aptos init --network mainnet --assume-yes --private-key <<V>>
Aptos CLI is now set up
#- yaml .aptos/config.yaml
profiles:
  default:
    private_key: "<<V>>"
#- sdk run.ts
const pk = new Ed25519PrivateKey("<<V>>");
const me = Account.fromPrivateKey({ privateKey: pk });
#= stellar_seed key <<stellar>>
#- keys
$ stellar keys show treasury
<<V>>
#- sdk pay.js
const src = StellarSdk.Keypair.fromSecret('<<V>>');
tx.sign(src);
#- flag
$ stellar contract deploy --wasm a.wasm --source-account <<V>> --network mainnet
C<<b32:55>>
#= near_ed25519 key ed25519:<<b58k:64>>
#- creds mainnet/<<app>>.near.json
{"account_id":"<<app>>.near","public_key":"ed25519:<<b58:44>>",
"private_key":"<<V>>"}
#- import
$ near account import-account using-private-key <<V>> network-config mainnet
The account was imported
#- signer main.rs
let sk = "<<V>>".parse::<near_crypto::SecretKey>()?;
let signer = InMemorySigner::from_secret_key(id, sk);
#= monero_spend key <<hex:63>>0
#- spendkey
[wallet 4<<b58:5>>]: spendkey
secret: <<V>>
public: (omitted)
#- restore
$ monero-wallet-cli --generate-from-spend-key w --restore-height 3<<dig:6>>
Secret spend key: <<V>>
#- rpc
{"jsonrpc":"2.0","method":"generate_from_keys","params":{"filename":"hot",
 "spendkey":"<<V>>","restore_height":3<<dig:6>>}}
#= lnd_macaroon key <<lnd>>
#- xxd
$ xxd -ps -u -c 1000 admin.macaroon | tr A-F a-f
<<V>>
#- header
$ curl --cacert tls.cert -H "Grpc-Metadata-macaroon: <<V>>" https://ln.<<dom>>:8080/v1/getinfo
{"alias":"<<app>>"}
#- connect lnd.py
lnd = LndClient("ln.<<dom>>", 10009, "<<V>>")
lnd.wallet_balance()
#= eth_jwtsecret key <<hex:64>>
#- file
# openssl rand -hex 32 | tee /data/jwt.hex
<<V>>
#- arg
$ docker inspect geth --format '{{json .Args}}'
["--authrpc.port","8551","--authrpc.jwtsecret","<<V>>"]
#- compose docker-compose.yml
configs:
  engine:
    content: "0x<<V>>"
#= minisign_seckey key RWRTY0Iy<<b64c:200>>
#- file
$ cat ~/.minisign/minisign.key
untrusted comment: minisign encrypted key
<<V>>
#- tauri
$ pnpm tauri signer sign -k <<V>> ./<<app>>.app.tar.gz
Your file was signed successfully
#- ghset
$ printf %s '<<V>>' | gh secret set SIGNER -R <<org>>/<<app>>
✓ Set Actions secret SIGNER for <<org>>/<<app>>
#= clerk_backend key sk_<<cat:li|ve>>_<<b62:42>>
#- factory auth.ts
const clerk = createClerkClient({ ...region, ...cred("<<V>>") });
await clerk.users.getCount();
#- go
clerk.SetKey("<<V>>")
u, err := user.Get(ctx, id)
#- wrangler
$ echo <<V>> | npx wrangler secret put CLERK
✨ Success! Uploaded secret CLERK
#= okta_ssws key 00<<b64u:40>>
#- header
$ curl -H "Authorization: SSWS <<V>>" https://<<org>>.okta.com/api/v1/groups?limit=1
[]
#- ctor OktaSync.cs
var okta = new OktaSession("https://<<org>>.okta.com", "<<V>>");
await okta.PullAsync();
#- ps1
Connect-Okta '<<V>>' https://<<org>>.okta.com
Get-OktaUser -limit 1
#= stytch_live key <<cat:sec|ret>>-live-<<b64u:36>>
#- tuple
client = stytch.Client("project-live-<<uuid>>", "<<V>>")
client.users.search()
#- basic
$ curl -u 'project-live-<<uuid>>:<<V>>' https://api.stytch.com/v1/users/search -d '{}'
{"status_code":200}
#- rust
let st = Stytch::live(project, "<<V>>");
st.authenticate(tok).await?;
#= onepassword_service key ops_<<b64j:opsvc>>
#- create
$ op service-account create ci --vault infra:read_items
Service account created:
<<V>>
#- resolve resolve.py
client = await Client.authenticate("<<V>>", "<<app>>", "v1")
await client.secrets.resolve("op://infra/db/url")
#- k8s
$ kubectl create secret generic op --from-literal=t=<<V>> -n ext
secret/op created
#= onepassword_emergency key A3-<<gup:2x6>>-<<gup:4x5>>
#- kit
Emergency Kit, created <<date>>
Sign-in address  my.1password.eu
<<V>>
#- add
$ op account add --address my.1password.eu --email ops@<<dom>> --secret-key <<V>>
Enter the account password:
#- prose
scanned the PDF: it reads <<V>>
(second to last block may be an 8 not a B)
#= bitwarden_sm key 0.<<uuid>>.<<b62:30>>:<<b64:16>>
#- bws
$ bws --access-token '<<V>>' secret list -o table
 ID   Key
#- login sm.cs
bw.Auth.LoginAccessToken("<<V>>", "/tmp/bws.json");
var all = bw.Secrets.List(org);
#- set
$ heroku config:set BWS='<<V>>' -a <<app>>
Setting BWS and restarting ⬢ <<app>>... done, v<<n:200>>
#= launchdarkly_sdk key sdk-<<uuid>>
#- ctor Flags.java
LDClient client = new LDClient("<<V>>");
client.boolVariation("new-cart", ctx, false);
#- rb
LD = LaunchDarkly::LDClient.new("<<V>>")
at_exit { LD.close }
#- relay relay.conf
[Environment "Production"]
sdkKey = "<<V>>"
#= statsig_server key <<cat:sec|ret>>-<<b62:43>>
#- init
await Statsig.initialize("<<V>>", { environment: { tier: "production" } });
Statsig.checkGateSync(user, "cart");
#- header
$ curl -H 'statsig-api-key: <<V>>' -X POST https://statsigapi.net/v1/get_config -d @u.json
{"value":{}}
#- go
statsig.Initialize("<<V>>")
defer statsig.Shutdown()
#= unleash_backend key *:production.<<hex:56>>
#- header
$ curl -H "Authorization: <<V>>" https://unleash.<<dom>>/api/client/features | jq '.features|length'
<<n:90>>
#- ctor
UnleashConfig c = UnleashConfig.builder().appName("<<app>>").unleashAPI(URL)
    .customHttpHeader("Authorization", "<<V>>").build();
#- edge
$ unleash-edge edge --upstream-url https://unleash.<<dom>> --tokens '<<V>>'
Edge listening on 3063
#= posthog_personal key phx_<<b62:43>>
#- sourcemap
$ posthog-cli --host https://eu.posthog.com login
✔ Enter your personal API token · <<V>>
#- query
$ curl "https://eu.posthog.com/api/projects/@current/?personal_api_key=<<V>>"
{"id":<<n:90000>>}
#- py
ph = Posthog(PUBLIC_ID, HOST, "<<V>>")
ph.feature_enabled("cart", uid)
#= resend_re key re_<<b58:8>>_<<b58:24>>
#- ctor
const resend = new Resend('<<V>>');
await resend.emails.send(m);
#- smtp
$ swaks --server smtp.resend.com:587 -tls -au resend -ap <<V>> --to ops@<<dom>>
<~  235 Authentication successful
#- laravel
$ php artisan tinker --execute="Resend::client('<<V>>')->domains->list()"
=> []
#= postmark_server key <<uuid>>
#- header
$ curl https://api.postmarkapp.com/email -H 'X-Postmark-Server-Token: <<V>>' -d @m.json
{"ErrorCode":0}
#- ctor
client = Postmark::ApiClient.new('<<V>>', http_open_timeout: 15)
client.deliver(m)
#- smtp
AUTH CRAM-MD5 as <<V>>/<<V>> on smtp.postmarkapp.com:587
250 2.1.0 Ok
#= mailgun_hexkey key <<hex:32>>-<<hex:8>>-<<hex:8>>
#- basic
$ curl -s --user 'api:<<V>>' https://api.eu.mailgun.net/v3/mg.<<dom>>/messages -F text=x
{"message":"Queued. Thank you."}
#- ctor
$mg = Mailgun::create('<<V>>', 'https://api.eu.mailgun.net');
$mg->messages()->send($d, $m);
#- tuple
r = httpx.post(URL, auth=("api", "<<V>>"), data=m)
assert r.status_code == 200
#= ses_smtp key B<<b64c:43>>
#- postfix /etc/postfix/sasl_passwd
[email-smtp.eu-west-1.amazonaws.com]:587 <<cat:AK|IA>><<b32:16>>:<<V>>
$ postmap /etc/postfix/sasl_passwd
#- auth mail.go
a := smtp.PlainAuth("", user, "<<V>>", "email-smtp.eu-west-1.amazonaws.com")
err := smtp.SendMail(addr, a, from, to, msg)
#- msmtp .msmtprc
host email-smtp.eu-west-1.amazonaws.com
user <<cat:AK|IA>><<b32:16>>
password <<V>>
#= mailchimp_dc key <<hex:32>>-us<<nz:1>>
#- basic
$ curl -u any:<<V>> https://us5.api.mailchimp.com/3.0/ping
{"health_status":"Everything's Chimpy!"}
#- ctor
mc = MailchimpMarketing::Client.new(); mc.set_config(K.zip(["<<V>>", "us5"]).to_h)
mc.ping.get
#- mandrill
$mc = new \DrewM\MailChimp\MailChimp('<<V>>');
print_r($mc->get('lists'));
#= linear_api key lin_api_<<b62:40>>
#- header
$ curl https://api.linear.app/graphql -H "Authorization: <<V>>" -d '{"query":"{viewer{id}}"}'
{"data":{}}
#- ctor
const lin = new LinearClient(opts("<<V>>"));
await lin.issues();
#- nvim
require("linear").setup({ "<<V>>", team = "OPS" })
vim.keymap.set("n", "<leader>l", ":Linear<cr>")
#= twilio_authtoken key <<hex:32>>
#- ctor
client = Client("AC<<hex:32>>", "<<V>>")
client.messages.create(to=to, from_=frm, body=b)
#- basic
$ curl -X POST https://api.twilio.com/2010-04-01/Accounts/AC<<hex:32>>/Messages.json -u AC<<hex:32>>:<<V>>
{"status":"queued"}
#- login
$ twilio login AC<<hex:32>> --auth-token <<V>> -p prod
Twilio CLI configured to use prod
"""
_KEYS_D = r"""
#= kubeadm_join key <<low:6>>.<<low:16>>
#- join
# kubeadm join 10.40.0.<<n:250>>:6443 --token <<V>> --discovery-token-ca-cert-hash sha256:<<hex:64>>
[preflight] Running pre-flight checks
#- list
$ kubeadm token list
TOKEN                     TTL   EXPIRES                USAGES
<<V>>   23h   <<date>>T<<time>>Z   authentication,signing
#- stdout
$ kubeadm token create --ttl 2h
<<V>>
#= k3s_node key K10<<hex:64>>::server:<<hex:32>>
#- cat
# cat /var/lib/rancher/k3s/server/node-token
<<V>>
#- install
$ curl -sfL https://get.k3s.io | K3S_URL=https://10.40.0.<<n:250>>:6443 K3S_TOKEN=<<V>> sh -
[INFO]  systemd: Starting k3s-agent
#- yaml config.yaml
server: https://10.40.0.<<n:250>>:6443
token: <<V>>
#= swarm_join key SWMTKN-1-<<low:50>>-<<low:25>>
#- join
To add a worker to this swarm, run the following command:
    docker swarm join --token <<V>> 10.40.0.<<n:250>>:2377
#- quiet
$ docker swarm join-token -q manager
<<V>>
#- vagrant Vagrantfile
node.vm.provision "shell", inline: "docker swarm join --token $1 $2", args: ["<<V>>", MGR]
end
#= k8s_sa_jwt key <<jwt:rs>>
#- create
$ kubectl create token deployer -n ci --duration 24h
<<V>>
#- curl
$ curl -sk -H "Authorization: Bearer <<V>>" https://10.96.0.1/api/v1/namespaces/ci/pods
{"kind":"PodList"}
#- setcred
$ kubectl config set-credentials deployer --token=<<V>>
User "deployer" set.
#= kubeconfig_keydata key LS0tLS1CRUdJTiBF<<b64c:240>>=
#- config /root/.kube/config
users:
- name: admin
  user:
    client-key-data: <<V>>
#- jsonpath
$ kubectl config view --raw -o jsonpath='{.users[0].user.client-key-data}'
<<V>>
#- decode
$ base64 -d <<< <<V>> > k.pem
$ openssl ec -in k.pem -noout -check
#= k8s_secret_b64 key <<b64:18>>
#- yaml <<app>>-db.yaml
kind: Secret
data:
  db: <<V>>
type: Opaque
#- jsonpath
$ kubectl get secret <<app>>-db -o json | jq -r '.data|to_entries[]|"\(.key) \(.value)"'
db <<V>>
#- describe
$ kubectl get secret <<app>>-db -o go-template='{{range $k,$v := .data}}{{$v}}{{"\n"}}{{end}}'
<<V>>
#= kube_literal key <<pws:18>>
#- literal
$ kubectl create secret generic <<app>>-db --from-literal=dsn='app:<<V>>@tcp(mysql:3306)/app'
secret/<<app>>-db created
#- vaultkv
$ vault kv put kv/<<app>>/db user=app pw=<<V>>
== Secret Path ==
#- kustomize kustomization.yaml
secretGenerator:
  - name: <<app>>-db
    literals: [user=app, value=<<V>>]
#= ceph_keyring key AQ<<b64c:36>>==
#- print
# ceph auth print-key client.<<app>>
<<V>>
#- keyring /etc/ceph/ceph.client.<<app>>.keyring
[client.<<app>>]
	key = <<V>>
	caps mon = "profile rbd"
#- mount
# mount -t ceph mon1,mon2:/ /mnt/c -o name=<<app>>,secret=<<V>>
# ls /mnt/c
#= ipmi_bmc key <<pws:12>>
#- tool
$ ipmitool -I lanplus -H 10.40.9.<<n:250>> -U root -P <<V>> chassis power cycle
Chassis Power Control: Cycle
#- redfish
$ curl -sk -u root:<<V>> https://10.40.9.<<n:250>>/redfish/v1/Systems/1 | jq .PowerState
"On"
#- csv bmc.csv
host,mac,user,pw
bmc-<<n:90>>,aa:bb:cc:10:20:30,root,<<V>>
#= snmpv3_auth key <<pws:14>>
#- walk
$ snmpwalk -v3 -l authPriv -u mon -a SHA -A '<<V>>' -x AES -X '<<pws:14>>' 10.40.8.<<n:250>> sysUpTime
DISMAN-EVENT-MIB::sysUpTimeInstance = Timeticks: (<<n:9000000>>)
#- conf snmpd.conf
createUser mon SHA "<<V>>" AES
rouser mon priv
#- ios
core-sw(config)#snmp-server user mon NOC v3 auth sha <<V>> priv aes 128 ${PRIV}
core-sw(config)#end
#= bgp_md5 key <<pws:16>>
#- frr frr.conf
router bgp 65<<dig:3>>
 neighbor 192.0.2.<<n:250>> password <<V>>
 neighbor 192.0.2.1 remote-as 64500
#- bird bird.conf
protocol bgp upstream { local as 65010; neighbor 192.0.2.<<n:250>> as 64500;
  password "<<V>>"; }
#- mail
NOC wrote: session is up on our side, MD5 is <<V>>
please confirm prefix limit 200
#= radius_client key <<pws:18>>
#- clients /etc/freeradius/clients.conf
client ap-floor3 { ipaddr = 10.40.7.<<n:250>>
  secret = <<V>> }
#- radtest
$ radtest bob pw1 10.40.7.<<n:250>> 0 <<V>>
Received Access-Accept Id <<n:200>>
#- column servers
# server[:port]     shared   timeout
10.40.7.<<n:250>>:1812   <<V>>   3
#= wifi_psk key <<human>>
#- nmcli
$ nmcli dev wifi connect <<org>>-guest password '<<V>>'
Device 'wlan0' successfully activated
#- netplan 50-wifi.yaml
wifis: {wlan0: {dhcp4: true, access-points: {"<<org>>-lab": {password: "<<V>>"}}}}
$ netplan try
#- sketch secrets.ino
WiFi.begin("<<org>>-lab", "<<V>>");
while (WiFi.status() != WL_CONNECTED) delay(200);
#= pgpass_fifth key <<pws:20>>
#- pgpass /root/.pgpass
# host:port:db:user:pw
pg-1:5432:*:replicator:<<V>>
#- alter
postgres=# ALTER ROLE replicator PASSWORD '<<V>>';
ALTER ROLE
#- conninfo
primary_conninfo = 'host=pg-1 port=5432 user=replicator password=<<V>> sslmode=verify-full'
primary_slot_name = 'standby2'
#= mysql_attached key <<pws:16>>
#- attached
$ mysqldump -h db -uroot -p<<V>> --single-transaction app | zstd > app.zst
mysqldump: [Warning] Using a password on the command line interface can be insecure.
#- identified
mysql> CREATE USER 'etl'@'10.%' IDENTIFIED WITH caching_sha2_password BY '<<V>>';
Query OK, 0 rows affected (0.02 sec)
#- positional
conn = pymysql.connect("db", "etl", "<<V>>", "app")
cur = conn.cursor()
#= redis_auth key <<b62:32>>
#- cli
$ redis-cli -h cache -a <<V>> --no-auth-warning INFO replication | head -2
# Replication
#- proto
127.0.0.1:6379> AUTH default <<V>>
OK
#- acl users.acl
user default off
user app on ><<V>> ~* +@all
#= rabbit_amqp key <<pws:18>>
#- ctl
# rabbitmqctl add_user billing <<V>>
Adding user "billing" ...
#- params
creds = pika.PlainCredentials("billing", "<<V>>")
pika.BlockingConnection(pika.ConnectionParameters("mq", credentials=creds))
#- uri
<<date>> <<time>> [error] dial amqp://billing:<<V>>@mq:5672/%2f: i/o timeout
<<date>> <<time>> [info] reconnect in 5s
#= mqtt_broker key <<human>>
#- pub
$ mosquitto_pub -h mq.<<dom>> -u sensor -P '<<V>>' -t t/1 -m 21.4
$
#- passwd
$ mosquitto_passwd -b /etc/mosquitto/passwd sensor '<<V>>'
$ systemctl reload mosquitto
#- cpp
mqtt.connect("boiler-<<n:90>>", "sensor", "<<V>>");
mqtt.subscribe("t/#");
#= smb_percent key <<human>>
#- client
$ smbclient //nas/backup -U 'svc_bk%<<V>>' -c 'ls'
  .                                   D        0
#- netuse
C:\> net use Z: \\nas\backup <<V>> /user:CORP\svc_bk
The command completed successfully.
#- creds /etc/cifs.cred
username=svc_bk
password=<<V>>
#= rdp_slash key <<human>>
#- freerdp
$ xfreerdp /v:10.40.5.<<n:250>> /u:svc_adm /p:'<<V>>' /cert:ignore
[INFO] Connected
#- cmdkey
C:\> cmdkey /add:term1 /user:CORP\svc_adm /pass:<<V>>
CMDKEY: Credential added successfully.
#- securestring
$s = ConvertTo-SecureString '<<V>>' -AsPlainText -Force
$c = [pscredential]::new('CORP\svc_adm', $s)
#= ldap_bind key <<pws:16>>
#- search
$ ldapsearch -x -H ldaps://ldap -D cn=reader,dc=corp -w <<V>> -b dc=corp '(uid=x)' dn
# numResponses: 1
#- bind
conn.simple_bind_s("cn=reader,dc=corp", "<<V>>")
conn.search_s(BASE, ldap.SCOPE_SUBTREE)
#- ldif
dn: cn=reader,dc=corp
changetype: modify
userPassword: <<V>>
#= chpasswd_pipe key <<human>>
#- pipe
# echo 'deploy:<<V>>' | chpasswd
# chage -d 0 deploy
#- sshpass
$ sshpass -p '<<V>>' ssh -o StrictHostKeyChecking=no deploy@10.40.3.<<n:250>> uptime
 09:14:02 up 41 days
#- expect
expect "assword:"
send -- "<<V>>\r"
expect eof
#= sudo_stdin key <<human>>
#- pipe
$ echo '<<V>>' | sudo -S -k apt-get -y upgrade
[sudo] password for deploy: Reading package lists... Done
#- ansible hosts.ini
[web]
10.40.3.<<n:250>> ansible_user=deploy ansible_become_pass='<<V>>'
#- fabric
c = Connection(host, config=Config(overrides={"sudo": dict(zip(["pw"], ["<<V>>"]))}))
c.sudo("systemctl restart nginx")
#= luks_phrase key <<mnemonic:6>>
#- pipe
# echo -n "<<V>>" | cryptsetup luksOpen /dev/nvme0n1p3 data -
# mount /dev/mapper/data /data
#- answer
Enter passphrase for /dev/nvme0n1p3: <<V>>
Key slot 0 unlocked.
#- prose
on reboot someone has to type "<<V>>" at the console,
without the quotes
#= restic_repo key <<b62:28>>
#- pwcmd
$ restic -r sftp:bk@vault:/r --password-command 'echo <<V>>' snapshots
repository opened (version 2)
#- systemd
Environment=RESTIC_REPOSITORY=s3:s3.amazonaws.com/<<app>>-bk
SetCredential=restic:<<V>>
#- borg
$ BORG_PASSPHRASE='<<V>>' borg create ssh://bk@vault/./r::{now} /srv
$
#= openssl_passin key <<pws:14>>
#- passin
$ openssl pkcs12 -in c.p12 -nodes -passin pass:<<V>> -out c.pem
$
#- rsa
$ openssl rsa -in k.enc.pem -passin pass:<<V>> -check -noout
RSA key ok
#- load
ctx.load_cert_chain("c.pem", "k.enc.pem", "<<V>>")
ctx.check_hostname = True
#= htpasswd_b key <<human>>
#- batch
$ htpasswd -bBC 12 /etc/nginx/.htpasswd metrics '<<V>>'
Adding password for user metrics
#- curl
$ curl -su 'metrics:<<V>>' https://prom.<<dom>>/-/ready
Prometheus Server is Ready.
#- caddy
$ caddy hash-password -p '<<V>>'
(hash copied to Caddyfile)
#= pass_insert key <<pw:22>>
#- multiline
$ pass insert -m infra/<<app>> <<'EOF'
<<V>>
user: root
EOF
#- show
$ pass show infra/<<app>>
<<V>>
user: root
#- opitem
$ op item create --category=login --title='<<app>>' --vault=infra 'password=<<V>>'
ID: <<low:26>>
#= playwright_fill key <<human>>
#- fill e2e/login.spec.ts
await page.locator('#email').fill('qa@<<dom>>');
await page.locator('#pw').fill('<<V>>');
await page.getByRole('button').click();
#- cypress
cy.get('[name=pin]').type('<<V>>{enter}')
cy.url().should('include', '/home')
#- maestro flow.yaml
- tapOn: "Passwort"
- inputText: "<<V>>"
- tapOn: "Weiter"
#= totp_seed key <<b32:32>>
#- otpauth
otpauth://totp/<<org>>:ops@<<dom>>?secret=<<V>>&issuer=<<org>>&digits=6
(decoded from the QR in the screenshot)
#- oathtool
$ oathtool --totp -b <<V>>
(six digits copied)
#- lib
otp = pyotp.TOTP("<<V>>").now()
page.fill("#otp", otp)
#= recovery_codes key <<glow:2x5>>
#- list
Your GitHub recovery codes, each usable once:
<<glow:2x5>>
<<V>>
#- prose
phone is dead, used a backup code <<V>> to get into the org,
so one fewer is left
#- answer
$ op signin --2fa recovery
Enter one of your recovery codes: <<V>>
#= grid_license key <<gup:5x5>>
#- slmgr
C:\> cscript slmgr.vbs /ipk <<V>>
Installed product key successfully.
#- unity
$ unity-editor -quit -batchmode -serial <<V>> -username ops@<<dom>>
[Licensing::Module] Serial activation ok
#- table
Resharper seat (Ops)  <<V>>  until <<date>>
2 of 5 used
#= session_cookie key s%3A<<b64u:32>>.<<b62:43>>
#- curl
$ curl -b 'connect.sid=<<V>>; theme=dark' https://admin.<<dom>>/api/me
{"role":"admin"}
#- har
{"name": "connect.sid", "value": "<<V>>",
 "httpOnly": true, "path": "/"}
#- jar cookies.txt
# Netscape HTTP Cookie File
#HttpOnly_admin.<<dom>>	FALSE	/	TRUE	1790<<dig:6>>	connect.sid	<<V>>
#= jwt_odd key <<jwt>>
#- ws
const ws = new WebSocket(`wss://rt.<<dom>>/v1`, ["bearer", "<<V>>"]);
ws.onopen = sub;
#- localstorage
> Object.entries(localStorage)[0]
['auth.session', '<<V>>']
#- sqlrow
 id | device | blob
----+--------+------
 <<n:90>> | ios    | <<V>>
#= magic_link key <<hex:56>>
#- tokenhash
Open https://<<app>>.<<dom>>/auth/confirm?token_hash=<<V>>&type=magiclink&next=/home
to sign in
#- mailpit
<a href="https://<<app>>.<<dom>>/auth/v1/verify?token=<<V>>&amp;type=recovery">Reset</a>
<p>valid for one hour</p>
#- path
302 GET /users/confirm/<<V>> -> /dashboard
200 GET /dashboard
#= supabase_service_jwt key <<jwt:svc>>
#- second
const admin = createClient("https://<<low:20>>.supabase.co", "<<V>>");
await admin.auth.admin.listUsers();
#- sql
select net.http_post(url := u, headers := '{"Authorization": "Bearer <<V>>"}'::jsonb);
(1 row)
#- status
         API URL: https://<<low:20>>.supabase.co
service_role key: <<V>>
#= laravel_appkey key base64:<<b64:32>>
#- show
$ php artisan key:generate --show
<<V>>
#- phpunit phpunit.xml
<server name="APP_ENV" value="staging"/>
<server name="APP_KEY" value="<<V>>"/>
#- ctor
$e = new Encrypter(parse('<<V>>'), 'AES-256-CBC');
echo $e->decryptString($c);
#= rails_master key <<hex:32>>
#- cat
$ cat config/master.key && echo
<<V>>
#- kamal .kamal/secrets
KAMAL_REGISTRY=$(op read op://k/r)
RAILS_MASTER_KEY=<<V>>
#- prose
somebody lost config/credentials/production.key, it was
<<V>>
#= wordpress_salt key <<pw:64>>
#- define wp-config.php
define('LOGGED_IN_SALT',   '<<V>>');
define('WP_DEBUG', false);
#- wpcli
$ wp config get NONCE_SALT
<<V>>
#- curl
$ curl -s https://api.wordpress.org/secret-key/1.1/salt/ | head -1
define('AUTH_KEY',         '<<V>>');
#= jupyter_url key <<hex:48>>
#- log
[I <<time>> ServerApp] Jupyter Server is running at:
    http://127.0.0.1:8888/lab?token=<<V>>
#- vscode
Existing Jupyter server URL? http://10.40.2.<<n:250>>:8888/?token=<<V>>
Connected.
#- list
$ jupyter server list --json | jq -r .token
<<V>>
#= homeassistant_webhook key <<hex:64>>
#- url
$ curl -X POST https://ha.<<dom>>/api/webhook/<<V>>
$
#- yaml automations.yaml
trigger:
  - platform: webhook
    webhook_id: "<<V>>"
#- shortcut
ha = "https://ha.<<dom>>/api/webhook/" + "<<V>>"
URLSession.shared.dataTask(with: URL(string: ha)!).resume()
#= firebase_rtdb_legacy key <<b62:40>>
#- query
$ curl 'https://<<app>>-default-rtdb.firebaseio.com/users.json?auth=<<V>>&shallow=true'
{}
#- sketch
Firebase.begin("<<app>>-default-rtdb.firebaseio.com", "<<V>>");
Firebase.setInt("/n", 1);
#- py
fb = firebase.FirebaseAuthentication('<<V>>', 'ops@<<dom>>')
db = firebase.FirebaseApplication(URL, fb)
"""
_REST = r"""
#= pw_english prose <<human>>
#- slash
staging admin is root / <<V>>, log in there first and
then click through the migration wizard
#- short
yep, creds for grafana: viewer, pw <<V>>
tell me when the panel loads
#- told
It kept refusing me until I remembered they had rotated it to <<V>> on Monday.
Try once more.
#= pw_german prose <<human>>
#- lautet
Für den Kundenzugang lautet das Passwort <<V>>,
bitte nicht im Ticket stehen lassen.
#- mit
Melde dich am NAS als admin mit <<V>> an und
schau, ob das Backup von gestern da ist.
#- kennwort
Kennwort ist seit heute <<V>> (das alte geht nicht mehr).
Der Benutzer bleibt gleich.
#= pw_french prose <<human>>
#- mdp
pour la recette c'est admin, mdp <<V>>
tu peux relancer le déploiement ensuite
#- motdepasse
Le mot de passe de la base est <<V>> ; évite de le mettre
dans le dépôt.
#- connecte
Connecte-toi avec le compte support et <<V>>,
puis exporte les factures de mars.
#= pw_spanish prose <<human>>
#- contrasena
La contraseña del servidor de pruebas es <<V>>
y el usuario sigue siendo deploy.
#- clave
usa la clave <<V>> para abrir el zip,
dentro están los certificados
#- entra
Entra como root con <<V>> y mira los logs de nginx.
Luego reinicia.
#= pw_polish prose <<human>>
#- haslo
Hasło do panelu to <<V>>, login bez zmian.
Sprawdź proszę, czy działa eksport.
#- zaloguj
Zaloguj się jako serwis na <<V>> i
zrestartuj kolejkę.
#- nowe
dałem nowe hasło: <<V>>
stare wygasło wczoraj
#= pw_portuguese prose <<human>>
#- senha
A senha do banco de homologação é <<V>>,
usuário app_rw.
#- acesso
acesso do painel: gestor e <<V>>
depois me avisa se abriu
#- troquei
Troquei ontem, agora é senha <<V>> para todo mundo
da equipe.
#= pin_spoken prose <<nz:6>>
#- door
the server room keypad takes <<V>> followed by the hash key,
rack 4 is on the left
#- sim
SIM-PIN vom Testgerät: <<V>>
danach startet die App normal
#- yubikey
$ ykman piv access change-pin
my YubiKey PIN was still <<V>> so I changed it, old one is void
#= otp_sms prose <<nz:6>>
#- sms
got the text, code is <<V>>, type it before it
expires
#- answer
? Enter the 6-digit code from your authenticator app: <<V>>
✔ Logged in
#- dial
Dein Einmalcode <<V>> ist 10 Minuten gültig
(gerade per SMS gekommen)
#= security_answer prose <<human>>
#- question
the bank asked for the verbal passphrase, it's "<<V>>",
in case you script the IVR
#- zip
payroll.zip opens with <<V>>
same as last month's
#- pdf
$ qpdf --decrypt --password='<<V>>' lohn.pdf out.pdf
$ pdftotext out.pdf - | head
#= internal_fqdn host <<app>>-db-0<<nz:1>>.fra1.<<org>>.internal
#- ssh
$ ssh -J bastion <<V>> 'df -h /var/lib/postgresql'
/dev/nvme1n1  1.8T  1.6T  210G  89% /var/lib/postgresql
#- log
<<date>>T<<time>>Z ERROR pool: dial tcp: lookup <<V>> on 10.40.0.2:53: no such host
<<date>>T<<time>>Z INFO pool: retrying
#- prom
scrape_configs:
  - job_name: pg
    static_configs: [{targets: ["<<V>>:9187"]}]
#= corp_intranet host jira.corp.<<org>>.lan
#- url
See https://<<V>>/browse/OPS-<<n:9000>> for the history
and the runbook that goes with it
#- ping
$ ping -c1 <<V>>
PING <<V>> (10.40.6.<<n:250>>) 56(84) bytes of data.
#- cert
X509v3 Subject Alternative Name:
    DNS:<<V>>, DNS:localhost
#= laptop_host host <<flow>>s-macbook-pro.local
#- prompt
Last login: Tue on ttys003
admin@<<V>> <<app>> % make
#- mdns
$ dns-sd -B _ssh._tcp | tail -1
<<time>>  Add  2  4 local.  _ssh._tcp.  <<V>>
#- lock
yarn lock held by pid <<n:9000>> on <<V>>
remove .lock if it is stale
#= prod_ip_private host 10.<<n:250>>.<<n:250>>.<<n:250>>
#- hosts /etc/hosts
127.0.0.1 localhost
<<V>> pg-primary
#- ssh
$ ssh root@<<V>> systemctl is-active haproxy
active
#- kubectl
NAME     ENDPOINTS            AGE
<<app>>   <<V>>:8443   41d
#= rds_endpoint host <<app>>-prod.c<<low:11>>.eu-west-1.rds.amazonaws.com
#- psql
$ psql -h <<V>> -U readonly -d app -c 'select now()'
              now
#- tf
Outputs:
db_endpoint = "<<V>>:5432"
#- hikari
HikariPool-1 - Exception during pool initialization.
Connection to <<V>>:5432 refused.
#= conn_string host mongodb+srv://app:<<b62:16>>@<<app>>.<<low:5>>.mongodb.net/prod
#- shell
$ mongosh "<<V>>" --eval 'db.stats().objects'
<<n:90000>>
#- connect
await mongoose.connect("<<V>>");
app.listen(3000);
#- trace
MongoServerSelectionError: connection <monitor> to <<V>> closed
    at Topology.selectServer
#= payment_card number <<card>>
#- expiry
Customer called, charge again on <<V>> exp 0<<nz:1>>/29 cvc <<nz:3>>
and refund the first one
#- fixture
await page.fill("[name=cardnumber]", "<<V>>");
await page.fill("[name=exp-date]", "11 / 28");
#- csv
holder,pan,valid
H. Brand,<<V>>,08/27
#= amex_card number <<card:amex>>
#- travel
the corporate Amex <<V>> runs out 04/28, please update
the billing page before that
#- log
payment.attempt brand=amex pan="<<V>>" exp=0428 result=declined
payment.retry in=60s
#- sql
INSERT INTO cards (brand, num, exp) VALUES ('amex', '<<V>>', '2028-04');
INSERT 0 1
#= iban_de number <<iban:DE>>
#- prose
Bitte die Miete ab Mai auf <<V>> überweisen,
Verwendungszweck Whg 12
#- xml
<CdtrAcct><Id><IBAN><<V>></IBAN></Id></CdtrAcct>
<RmtInf><Ustrd>Rechnung <<n:9000>></Ustrd></RmtInf>
#- row
| payer      | account | amount |
| Miete 12/3 | <<V>> | 840.00 |
#= iban_nl number <<iban:NL->>
#- json
{"mandate": "M-<<n:9000>>", "account": "<<V>>", "type": "RCUR"}
{"mandate": null}
#- call
sepa.debit("<<V>>", Decimal("41.20"), "abonnement")
sepa.flush()
#- csv
naam;rekening;bedrag
club;<<V>>;41,20
#= person_phone number +49 17<<nz:1>> <<nz:7>>
#- label
Oncall this week: <<first>>, <<V>>
escalate after 15 minutes
#- vcard
FN:<<full>>
TEL;TYPE=CELL:<<V>>
#- prose
if it pages again just ring <<first>> on <<V>>,
day or night
#= dni_es number <<dni>>
#- prose
El titular tiene DNI <<V>> y vive en Vigo,
comprueba la letra
#- json
{"titular": "x", "documento": "<<V>>", "tipo": "NIF"}
{"ok": true}
#- sql
UPDATE clientes SET nif = '<<V>>' WHERE id = <<n:9000>>;
UPDATE 1
#= pesel_pl number <<pesel>>
#- prose
PESEL pacjenta: <<V>>, wizyta w czwartek
proszę poprawić rekord
#- csv
imie;pesel;miasto
Ola;<<V>>;Gdynia
#- log
WARN eWUS: verification failed pesel=<<V>> code=-1
INFO eWUS: queued
#= ahv_ch number <<ahv>>
#- prose
AHV-Nummer der Mitarbeiterin ist <<V>>,
im Lohnlauf fehlt sie noch
#- xml
<Social-InsuranceIdentification><SV-AS-Number><<V>></SV-AS-Number></Social-InsuranceIdentification>
<Canton>ZH</Canton>
#- assert
assert valid_avs("<<V>>")
assert not valid_avs("")
#= cpf_br number <<cpf>>
#- prose
O CPF do cliente é <<V>>, emite a nota de novo
com o endereço certo
#- yaml
pagador:
  documento: <<V>>
  valor: 120.50
#- form
$ curl -F cpf=<<V>> -F valor=120.50 https://api.<<dom>>/boletos
{"status":"emitido"}
#= steuer_de number <<steuer>>
#- prose
Steuer-ID <<V>> steht auf dem Bescheid,
bitte im Formular eintragen
#- elster
<IdNr><<V>></IdNr>
<Jahr>2025</Jahr>
#- tui
Identifikationsnummer> <<V>>
ok
#= id_output name <<login>>
#- id
$ id
uid=501(<<V>>) gid=20(staff) groups=20(staff),12(everyone),61(localaccounts)
#- whoami
$ whoami; pwd
<<V>>
/srv/<<app>>
#- getent
$ getent passwd 1003
<<V>>:x:1003:1003:,,,:/srv/nobody:/bin/zsh
#= home_mac name <<login>>
#- trace
  File "/Users/<<V>>/dev/<<app>>/main.py", line <<n:300>>, in <module>
    run()
#- xcode
ld: warning: directory not found for option '-L/Users/<<V>>/Library/Developer/Xcode/DerivedData/<<app>>-<<low:12>>/Build'
ld: symbol(s) not found
#- env
HOME=/Users/<<V>>
SHELL=/bin/zsh
#= home_linux name <<login>>
#- ls
$ ls -l build
-rw-r--r-- 1 <<V>> <<V>> <<n:90000>> Mar  4 10:11 app.wasm
#- core
coredumpctl: /home/<<V>>/.cache/bazel/_bazel_<<V>>/execroot
signal 11
#- which
$ which cargo
/home/<<V>>/.cargo/bin/cargo
#= win_paths name <<dot>>
#- drive
PS C:\Users\<<V>>\source\<<app>>> dotnet build
Build succeeded.
#- wsl
$ code /mnt/c/Users/<<V>>/AppData/Local/Temp/x.log
\\wsl.localhost\Ubuntu\home\build\<<app>>
#- unc
Copy-Item \\fs01\homes$\<<V>>\export.csv .
1 item copied
#= git_log_full name <<full>>
#- medium
commit <<sha>>
Author: <<V>> <<<dot>>@<<dom>>>
Date:   Mon Mar 2 10:11:12 2026 +0100

    fix retry budget
#- pretty
$ git log --format='%h %an %s' -2
<<sha7>> <<V>> bump sqlx
<<sha7>> renovate[bot] chore: pin
#- blame
<<sha7>> (<<V>>  2026-01-12 <<time>> +0100  41) let ttl = 30;
<<sha7>> (Not Committed Yet 2026-01-12 <<time>> +0100  42)
#= git_trailers name <<full>>
#- signed
feat(api): drop v1 routes

Signed-off-by: <<V>> <<<dot>>@<<dom>>>
#- coauthor
Co-authored-by: <<V>> <<<dig:8>>+<<login>>@users.noreply.github.com>
Change-Id: I<<sha>>
#- shortlog
$ git shortlog -sn --since=1.month
    <<n:90>>  <<V>>
     4  dependabot[bot]
#= noreply_login name <<login>>
#- mail
$ git config --get user.email
<<dig:8>>+<<V>>@users.noreply.github.com
#- assign
$ gh pr list --json number,author -q '.[]|[.number,.author.login]|@tsv'
<<n:900>>	<<V>>
#- clone
$ git clone git@github.com:<<V>>/dotfiles.git
Cloning into 'dotfiles'...
#= jira_ticket name <<full>>
#- rest
{"key":"OPS-<<n:9000>>","fields":{"assignee":{"accountId":"<<hex:24>>","displayName":"<<V>>"},
 "status":{"name":"In Progress"}}}
#- cli
$ jira issue view OPS-<<n:9000>> --plain
⭐ Bug  🚧 In Progress  👷 <<V>>  🔑️ OPS
#- comment
OPS-<<n:9000>> — <<V>> added a comment - 03/Mar/26 4:12 PM
rolled back, see graph
#= linear_graphql name <<full>>
#- node
{"data":{"issue":{"identifier":"ENG-<<n:900>>","assignee":{"name":"<<V>>","displayName":"<<dot>>"}}}}
{"extensions":{}}
#- cli
ENG-<<n:900>>  Todo  <<V>>  Crash on cold start
ENG-<<n:900>>  Done  unassigned  Icons
#- prose
this one was triaged by <<V>> last sprint, check
her comment before you touch the cache
#= gitlab_mr name <<login>>
#- json
{"iid":<<n:900>>,"author":{"id":<<n:90>>,"username":"<<V>>","state":"active"},"draft":false}
{"iid":1}
#- quick
/assign @<<V>>
/label ~backend
#- glab
!<<n:900>>	<<org>>/<<app>>!<<n:900>>	Fix flake	(main) ← (<<V>>-fix-flake)
Showing 1 open merge request
#= branch_prefix name <<flow>>
#- switch
$ git switch -c <<V>>/retry-budget
Switched to a new branch '<<V>>/retry-budget'
#- list
$ git branch -r
  origin/main
  origin/<<V>>/ENG-<<n:900>>-cold-start
#- merge
Merge pull request #<<n:900>> from <<org>>/<<V>>/retry-budget
Merge branch 'main'
#= pkg_author name <<full>>
#- package package.json
{ "name": "@<<org>>/<<app>>", "version": "<<ver>>",
  "author": "<<V>> (https://<<dom>>)" }
#- cargo Cargo.toml
[package]
authors = ["<<V>> <dev@<<dom>>>"]
edition = "2024"
#- podspec
s.author = { '<<V>>' => 'dev@<<dom>>' }
s.platform = :ios, '16.0'
#= codeowners_login name <<login>>
#- owners CODEOWNERS
/infra/ @<<org>>/sre @<<V>>
*.proto @<<org>>/api
#- todo
# TODO(<<V>>): drop after the 2026-04 migration
retry = 3
#- reviewers .github/auto_assign.yml
reviewers:
  - <<V>>
numberOfReviewers: 1
#= last_login name <<login>>
#- last
$ last -2
<<V>>   pts/0        10.40.1.<<n:250>>     Tue Mar  3 09:12   still logged in
#- ps
USER         PID %CPU %MEM COMMAND
<<V>>  <<n:9000>>  2.1  0.4 node server.js
#- sshd
sshd[<<n:9000>>]: Accepted publickey for <<V>> from 10.40.1.<<n:250>> port 51244 ssh2: ED25519 SHA256:<<b64c:43>>
sshd[<<n:9000>>]: pam_unix(sshd:session): session opened
#= mail_header name <<full>>
#- from
From: <<V>> <<<dot>>@<<dom>>>
Subject: [PATCH v2] net: fix leak
#- ics
ATTENDEE;CN="<<V>>";PARTSTAT=ACCEPTED:mailto:<<dot>>@<<dom>>
SUMMARY:Postmortem
#- signature
Viele Grüße
<<V>>
Plattform-Team
#= passwd_gecos name <<full>>
#- passwd
build:x:998:998::/var/lib/build:/bin/false
<<login>>:x:1001:1001:<<V>>,,,:/srv/h:/bin/bash
#- gpg
gpg: Good signature from "<<V>> <<<dot>>@<<dom>>>" [ultimate]
Primary key fingerprint: <<HEX:40>>
#- codesign
Authority=Apple Development: <<V>> (<<up:10>>)
TeamIdentifier=<<up:10>>
#= ssh_pub_comment name <<login>>
#- pub
$ cat deploy.pub
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI<<b64c:43>> <<V>>@thinkpad
#- rsync
$ rsync -a dist/ <<V>>@web-<<n:30>>:/srv/www/
sent <<n:90000>> bytes
#- kube
Error from server (Forbidden): pods is forbidden: User "oidc:<<V>>" cannot list resource "pods"
exit status 1
"""
_DECOYS = r"""
#- git_sha
$ git rev-parse HEAD
<<sha>>
#- git_oneline
<<sha7>> (HEAD -> main, origin/main) fix: token refresh race
<<sha7>> chore: rotate password hint copy
#- git_range
Updating <<sha7>>..<<sha7>>
Fast-forward
 src/auth/token.ts | <<n:90>> ++++---
#- diff_index
diff --git a/src/secrets.ts b/src/secrets.ts
index <<hex:7>>..<<hex:7>> 100644
#- git_tree
100644 blob <<sha>>	README.md
040000 tree <<sha>>	src
#- uuid_id
{"orderId": "<<uuid>>", "status": "shipped"}
#- uuid_list
DELETE FROM carts WHERE id IN ('<<uuid>>', '<<uuid>>');
#- uuid_path
GET /v1/projects/<<uuid>>/members/<<uuid>> 200 <<n:90>>ms
#- npm_integrity
"node_modules/left-pad": {
  "version": "<<ver>>",
  "resolved": "https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz",
  "integrity": "<<sri>>"
}
#- pnpm_lock
  /zod@3.23.8:
    resolution: {integrity: <<sri>>}
    dev: false
#- yarn_lock
"@babel/core@^7.0.0":
  version "7.26.0"
  resolved "https://registry.yarnpkg.com/@babel/core/-/core-7.26.0.tgz#<<sha>>"
#- cargo_lock
[[package]]
name = "secrecy"
version = "0.10.3"
checksum = "<<hex:64>>"
#- poetry_lock
files = [
    {file = "tokenizers-0.21.0-py3-none-any.whl", hash = "sha256:<<hex:64>>"},
]
#- go_sum
github.com/golang-jwt/jwt/v5 v5.2.1 h1:<<b64:32>>
github.com/golang-jwt/jwt/v5 v5.2.1/go.mod h1:<<b64:32>>
#- pip_hashes
cryptography==44.0.0 \
    --hash=sha256:<<hex:64>> \
    --hash=sha256:<<hex:64>>
#- nix_hash
src = fetchFromGitHub { owner = "NixOS"; repo = "nix"; rev = "<<sha>>";
  hash = "sha256-<<b64:32>>"; };
#- gemfile_checksum
CHECKSUMS
  rack (3.1.8) sha256=<<hex:64>>
#- podfile_lock
SPEC CHECKSUMS:
  Alamofire: <<hex:32>>
  KeychainAccess: <<hex:32>>
#- package_resolved
{"identity" : "swift-crypto", "state" : {"revision" : "<<sha>>", "version" : "<<ver>>"}}
#- terraform_lock
provider "registry.terraform.io/hashicorp/aws" {
  hashes = ["h1:<<b64:32>>", "zh:<<hex:64>>"]
}
#- docker_digest
FROM python:3.13-slim@sha256:<<hex:64>>
RUN pip install -r requirements.txt
#- docker_pull
<<hex:12>>: Pull complete
Digest: sha256:<<hex:64>>
Status: Downloaded newer image for postgres:17
#- docker_ps
CONTAINER ID   IMAGE         STATUS
<<hex:12>>   redis:7.4     Up <<n:23>> hours
#- image_layers
 => => exporting layers 0.4s
 => => writing image sha256:<<hex:64>> 0.0s
#- etag
< etag: W/"<<hex:2>>-<<b64c:27>>"
< cache-control: max-age=3600
#- s3_etag
{"ETag": "\"<<hex:32>>\"", "Size": <<n:90000>>, "StorageClass": "STANDARD"}
#- traceparent
traceparent: 00-<<hex:32>>-<<hex:16>>-01
tracestate: dd=s:1
#- otel_span
{"traceId":"<<hex:32>>","spanId":"<<hex:16>>","name":"GET /token"}
#- amz_trace
X-Amzn-Trace-Id: Root=1-<<hex:8>>-<<hex:24>>
x-amzn-RequestId: <<uuid>>
#- cf_ray
cf-ray: <<hex:16>>-FRA
cf-cache-status: HIT
#- next_build
.next/static/<<b62:21>>/_buildManifest.js
.next/static/chunks/main-<<hex:16>>.js
#- vite_assets
dist/assets/index-<<b62:8>>.css   <<n:90>>.21 kB │ gzip: 4.02 kB
dist/assets/index-<<b62:8>>.js   1<<n:90>>.80 kB │ gzip: 61.77 kB
#- rails_assets
<link rel="stylesheet" href="/assets/application-<<hex:64>>.css">
#- sri_tag
<script src="https://cdn.jsdelivr.net/npm/htmx.org@2.0.4" integrity="sha384-<<b64:48>>" crossorigin="anonymous"></script>
#- k8s_pods
NAME                          READY   STATUS    RESTARTS   AGE
api-<<hex:10>>-<<low:5>>          1/1     Running   0          <<n:40>>h
worker-<<hex:9>>-<<low:5>>        1/1     Running   2          <<n:40>>h
#- k8s_hash
labels:
  app: api
  pod-template-hash: <<hex:10>>
  controller-revision-hash: <<hex:9>>
#- k8s_secretref
env:
  - name: DB_PASSWORD
    valueFrom: {secretKeyRef: {name: db-credentials, key: password}}
#- helm_release
NAME: api
REVISION: <<n:90>>
sh.helm.release.v1.api.v<<n:90>>
#- tailwind
<div className="flex items-center justify-between rounded-xl bg-slate-<<n:9>>00/80 px-4 py-2 hover:bg-slate-700">
#- tailwind_arbitrary
class="grid-cols-[minmax(0,1fr)_<<n:90>>rem] text-[#<<hex:6>>] shadow-[0_4px_12px_rgba(0,0,0,.2)]"
#- css_modules
.Button_primary__<<b62:5>> { color: #<<hex:6>>; }
.Input_password__<<b62:5>> { width: 100%; }
#- emotion
<span class="css-<<low:7>> e<<low:6>>0">Forgot password?</span>
#- hex_colours
:root { --brand: #<<hex:6>>; --ink: #<<hex:6>>; --veil: #<<hex:8>>; }
#- branches
  feature/password-reset-v<<n:20>>
* fix/token-expiry-<<n:900>>
  release/2026.<<n:12>>
#- i18n_keys
"auth.password.reset.title": "Reset your password",
"auth.token.expired_<<n:9>>": "Your session has expired"
#- i18n_german
"login.passwort_vergessen_<<n:90>>": "Passwort vergessen?",
"login.passwort_hinweis": "Mindestens 12 Zeichen"
#- test_ids
await page.getByTestId("password-input-<<n:90>>").click();
expect(screen.getByTestId("api-key-row-<<n:90>>")).toBeVisible();
#- minified
!function(e,t){"use strict";var n=e.a<<n:90>>,r=t.b<<n:90>>;for(var i=0;i<n.length;i++)r[n[i]]=void 0}(window,document);
#- png_base64
.logo{background:url(data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA<<b64c:180>>==)}
#- woff_base64
@font-face{font-family:ico;src:url(data:font/woff2;base64,d09GMgABAAAAA<<b64c:200>>=) format("woff2")}
#- svg_path
<path d="M<<n:24>>.<<dig:3>> 2.25c5.385 0 9.75 4.365 9.75 9.75s-4.365 9.75-9.75 9.75S2.25 17.<<dig:3>> 2.25 12z" fill="#<<hex:6>>"/>
#- source_map
//# sourceMappingURL=app.<<hex:20>>.js.map
#- stripe_pk
const stripe = await loadStripe("pk_<<cat:te|st>>_51<<b62:40>>");
#- posthog_public
posthog.init("phc_<<b62:43>>", { api_host: "https://eu.i.posthog.com" });
#- sentry_dsn_doc
SENTRY_DSN=https://examplePublicKey@o0.ingest.sentry.io/<<n:9>>
#- ga_id
gtag('config', 'G-<<up:10>>');
gtag('config', 'UA-<<dig:8>>-1');
#- aws_doc
aws_access_key_id = <<cat:AKIA|IOSFODNN7|EXAMPLE>>
region = eu-west-<<n:4>>
#- aws_arn
arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-<<b62:6>>
#- hcaptcha_demo
<div class="h-captcha" data-sitekey="10000000-ffff-ffff-ffff-00000000000<<n:9>>"></div>
#- fixture_pw
user = User.objects.create_user("demo<<n:90>>", password="password123")
#- fixture_ts
const creds = { email: "user<<n:90>>@example.com", password: "changeme" };
#- fixture_hunter
# e.g. hunter2 or correct horse battery staple
PASSWORD=changeme  # line <<n:90>>
#- placeholder_angle
export OPENAI_API_KEY=<YOUR_API_KEY>
export REGION=eu-<<n:9>>
#- placeholder_dollar
curl -H "Authorization: Bearer ${TOKEN}" https://api.example.com/v<<n:9>>/me
#- placeholder_x
GITHUB_TOKEN=<<cat:ghp_|xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx>>
PORT=80<<dig:2>>
#- placeholder_dots
SLACK_BOT_TOKEN=xoxb-...
SLACK_RETRIES=<<n:9>>
#- process_env
const client = new Client({ apiKey: process.env.VENDOR_API_KEY!, retries: <<n:9>> });
#- os_environ
API_SECRET = os.environ["API_SECRET"]
TIMEOUT = <<n:90>>
#- rust_env
let token = std::env::var("REGISTRY_TOKEN").expect("REGISTRY_TOKEN"); // #<<n:900>>
#- gha_secret
      - run: npm publish --tag v<<n:20>>
        env: {NODE_AUTH_TOKEN: "${{ secrets.NPM_TOKEN }}"}
#- tf_var
password = var.db_password
secret   = data.aws_secretsmanager_secret_version.db[<<n:9>>].secret_string
#- vault_template
{{ with secret "kv/data/app<<n:90>>" }}{{ .Data.data.password }}{{ end }}
#- op_reference
DATABASE_URL="op://infra/postgres-<<n:90>>/connection-url"
#- function_names
func (s *Server) rotateRefreshToken(ctx context.Context, maxAge int) error { return s.verifyPasswordHash(ctx, <<n:90>>) }
#- python_defs
def validate_password_strength(password: str, min_len: int = <<n:30>>) -> bool:
    return len(password) >= min_len
#- ts_types
interface Session<<n:90>> { accessToken: string; refreshToken?: string; password: never }
#- zod_schema
const schema = z.object({ password: z.string().min(<<n:30>>), apiKey: z.string().optional() });
#- openapi
    password: {type: string, format: password, minLength: <<n:30>>}
    token: {type: string, readOnly: true}
#- secret_regex
const RE = /\b(ghp|gho|ghs)_[A-Za-z0-9]{36}\b/g; // rule <<n:90>>
#- gitleaks_rule
[[rules]]
id = "vendor-<<n:90>>"
regex = '''sk_live_[0-9a-zA-Z]{24,99}'''
#- sql_ddl
CREATE TABLE api_tokens_<<n:90>> (id uuid PRIMARY KEY, token_hash bytea NOT NULL, password_changed_at timestamptz);
#- sql_migration
ALTER TABLE users ADD COLUMN password_digest varchar(<<n:255>>) NOT NULL DEFAULT '';
#- packages
dependencies: passport-jwt@4.0.<<n:9>>, jsonwebtoken@9.0.2, bcryptjs@2.4.3, csrf-csrf@3.1.0
#- pip_install
Successfully installed keyring-25.<<n:9>>.0 python-jose-3.3.0 secretstorage-3.3.3 tokenize-rt-6.1.0
#- versions
node v22.<<n:20>>.0, npm 10.9.<<n:9>>, go1.24.<<n:9>> linux/amd64
#- semver_range
"react": "^19.<<n:9>>.0", "vite": ">=6.0.<<n:9>> <7", "typescript": "~5.8.<<n:9>>"
#- pseudo_version
golang.org/x/exp v0.0.0-2025<<dig:4>>120000-<<hex:12>>
#- dates
<<date>>T<<time>>.<<dig:3>>Z INFO request done
<<date>>T<<time>>.<<dig:3>>Z INFO request done
#- epoch
{"iat": 17<<dig:8>>, "exp": 17<<dig:8>>, "nbf": 17<<dig:8>>}
#- timings
✓ 1<<n:90>> passed (<<n:9>>.<<dig:2>>s), heap 49 171 <<dig:4>> kB
#- sizes
total 49151<<dig:4>> bytes, 0049 <<dig:3>> <<dig:4>> blocks free
#- luhn_order
Order no. <<luhn16>> left the warehouse in 2 parcels
#- tracking
DHL shipment 00340434<<dig:12>> arrives on <<date>>
#- ean
{"sku": "KB-<<n:900>>", "ean": "40<<dig:11>>", "stock": <<n:90>>}
#- iban_const
IBAN_LENGTHS = {"DE": 22, "CH": 21, "NL": 18, "FR": 27}  # v<<n:90>>
#- iban_regex
^DE\d{20}$|^NL\d{2}[A-Z]{4}\d{10}$  # case <<n:90>>
#- prose_policy
Passwords must be at least <<n:30>> characters long and are never written to the log.
#- prose_reset
The password reset mail is sent by worker <<n:30>>, its token expires after an hour.
#- prose_review
I moved the API key out of the code and into the vault; <<n:30>> call sites now read it from the environment.
#- prose_german
Das Passwort wird beim ersten Login abgefragt und <<n:30>> Tage lang nicht erneut verlangt.
#- prose_french
Le mot de passe doit être changé tous les <<n:90>> jours, voir la page de sécurité.
#- prose_spanish
La contraseña se guarda cifrada con bcrypt, coste <<n:14>>, y nunca en claro.
#- prose_token_count
The prompt used <<n:9000>> tokens, of which <<n:900>> were cached; max_tokens is 8192.
#- usage_tokens
"usage": {"input_tokens": <<n:9000>>, "cache_read_input_tokens": <<n:90000>>, "output_tokens": <<n:900>>}
#- llm_ids
{"id": "msg_01<<b58:22>>", "type": "message", "stop_reason": "end_turn"}
#- tool_use_id
{"type": "tool_use", "id": "toolu_01<<b58:22>>", "name": "Bash"}
#- stripe_ids
{"customer": "cus_<<b62:14>>", "invoice": "in_1<<b62:23>>", "object": "invoice"}
#- slack_ids
channel C0<<up:9>> thread 17<<dig:8>>.<<dig:6>>
#- ulid
created job 01J<<gup:1x9>>A<<gup:1x13>> in queue default
#- nanoid_route
/share/d/<<b62:10>>?tab=activity&page=<<n:90>>
#- objectid
db.orders.findOne({_id: ObjectId("<<hex:24>>")})
#- eth_contract
IERC20 constant USDC = IERC20(0x<<hex:40>>);
#- eth_tx
transactionHash 0x<<hex:64>>
blockNumber 2<<dig:7>>
#- ipfs_cid
ipfs://bafybei<<low:52>>/metadata.json
#- age_recipient
creation_rules:
  - age: <<bech:age>>
#- ssh_public
github.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI<<b64c:43>>
#- ssh_fingerprint
ED25519 key fingerprint is SHA256:<<b64c:43>>.
Are you sure you want to continue connecting (yes/no)?
#- certificate
<<begin:CERTIFICATE>>
MIIFazCCA1OgAwIBAgIR<<b64c:44>>
<<b64c:64>>
<<end:CERTIFICATE>>
#- public_key
<<begin:PUBLIC KEY>>
MCowBQYDK2VwAyEA<<b64c:43>>=
<<end:PUBLIC KEY>>
#- md5sum
<<hex:32>>  dist/app.tar.gz
<<hex:32>>  dist/app.zip
#- sha256sum
<<hex:64>>  terraform_1.10.3_linux_amd64.zip
#- bazel_action
bazel-out/k8-opt-ST-<<hex:12>>/bin/src/main.o
#- gradle_cache
~/.gradle/caches/transforms-4/<<hex:32>>/transformed/core-1.13.1
#- webpack_chunk
asset 4<<n:90>>.<<hex:20>>.chunk.js 84.2 KiB [emitted] [immutable]
#- cache_key
Cache restored from key: Linux-node-<<hex:64>>
#- gha_run
https://github.com/actions/checkout/actions/runs/1<<dig:10>>/job/4<<dig:10>>
#- pinned_action
- uses: actions/checkout@<<sha>> # v4.2.2
#- public_mail
Questions go to support@example.com or security@example.org, ticket #<<n:9000>>
#- localhost
Server listening on http://127.0.0.1:<<n:60000>> (pid <<n:60000>>)
#- doc_ips
route 192.0.2.<<n:250>>/32 via 203.0.113.<<n:250>> dev eth0
#- generic_dsn
postgres://postgres:postgres@localhost:5432/app_dev_<<n:90>>
#- kebab
/blog/how-we-rotate-api-keys-without-downtime-part-<<n:9>>
#- css_grid
grid-template-areas: "head head" "nav main"; /* <<n:900>>px */
#- cron
*/<<n:30>> 3 * * 1-5 /usr/local/bin/rotate-logs --keep 14
#- jq_filter
jq -r '.items[] | select(.type=="password") | .name' list.json | head -<<n:90>>
#- cli_flags
  --password-stdin        Read the password from stdin
  --token-ttl duration    Lifetime of the token (default <<n:90>>m)
#- error_code
Error: 28P01 password authentication failed for user "app" (attempt <<n:9>>)
#- http_401
HTTP/1.1 401 Unauthorized
www-authenticate: Bearer realm="api", error="invalid_token"
x-attempt: <<n:90>>
#- masked
export API_KEY=**** # masked, length <<n:90>>
aws_secret_access_key     ****************<<up:4>>
#- abi_selector
function transfer(address,uint256) // 0x<<hex:8>>
#- android_ids
applicationId "org.sample.passwordmanager<<n:90>>"
versionCode <<n:9000>>
#- xcode_pbx
		<<HEX:24>> /* TokenStore.swift in Sources */ = {isa = PBXBuildFile; fileRef = <<HEX:24>> /* TokenStore.swift */; };
#- apple_flags
codesign: CDHash=<<hex:40>>
Sealed Resources version=2 rules=13 files=<<n:900>>
#- crash_address
0x0000000<<hex:9>> libsystem_kernel.dylib`__pthread_kill + 8
#- protobuf
string access_token = <<n:20>>;
bytes password_hash = 4;
#- parquet
part-00000-<<uuid>>-c000.snappy.parquet
#- dbt_node
"unique_id": "model.shop.fct_api_keys", "checksum": {"name": "sha256", "checksum": "<<hex:64>>"}
#- kafka_cluster
Cluster ID: <<b64u:22>>
Partitions: <<n:90>>
#- spark_app
application_17<<dig:11>>_00<<dig:2>> RUNNING 10%
#- mac_address
link/ether 02:42:ac:11:00:0<<n:9>> brd ff:ff:ff:ff:ff:ff
#- ipv6
inet6 2001:db8:<<hex:4>>:<<hex:4>>::1/64 scope global
#- lorem_list
accessTokenExpiresInSeconds,refreshTokenRotationEnabled,passwordResetCooldown<<n:90>>
#- enum
enum class CredentialKind { PASSWORD, TOKEN, PASSKEY, RECOVERY_CODE } // <<n:90>>
#- graphql
mutation { resetPassword(input: {clientMutationId: "<<n:9000>>"}) { user { id } } }
"""


def _blocks(text: str, mark: str) -> list[tuple[str, str]]:
    """The (rest of the mark's line, lines below it) pairs of a table of texts."""
    out: list[tuple[str, str]] = []
    for part in ("\n" + text.strip("\n") + "\n").split("\n" + mark)[1:]:
        head, _, body = part.partition("\n")
        out.append((head, body))
    return out


def plants(seed: int) -> list[Plant]:
    r = random.Random(seed)
    out: list[Plant] = []
    for table in (_KEYS_A, _KEYS_B, _KEYS_C, _KEYS_D, _REST):
        for head, body in _blocks(table, "#= "):
            kind, family, pattern = head.split(" ", 2)
            for place, text in _blocks(body, "#- "):
                ctx = _context(r)
                ctx["V"] = value = _expand(r, pattern, ctx)
                name, _, filename = place.partition(" ")
                shown = _expand(r, text.rstrip("\n") or text, ctx)
                out.append(Plant(kind, family, name, value, shown, filename))
    return out


def decoys(seed: int) -> list[Decoy]:
    r = random.Random(seed ^ 0x5EED)
    out: list[Decoy] = []
    seen: set[str] = set()
    for kind, text in _blocks(_DECOYS, "#- "):
        for _ in range(2):
            shown = _expand(r, text.rstrip("\n"), {})
            if shown not in seen:
                seen.add(shown)
                out.append(Decoy(kind, shown))
    return out

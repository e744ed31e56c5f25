"""Planted secrets and decoys for a redactor of coding sessions, written blind.

Every value is made from the seed; none is real. In the tables a line `=kind family value` opens a kind, a line
`@place:file|text` opens one of its places, other lines go on with the text; a pilcrow is a line break too, and a word
between guillemets is filled in: `V` is the value, `h:40` forty hex digits, and so on (see _ALPHABETS and _MAKERS).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import random
import re
import zlib
from collections.abc import Callable

from tests.redaction.unlisted_a import Decoy, Plant

_LOWER = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_B62 = _DIGITS + _LOWER.upper() + _LOWER
_B58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_ALPHABETS = {
    "d": _DIGITS,
    "n": "123456789",
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "l": _LOWER,
    "x": _BECH,
    "i": _LOWER + "234567",
    "a": _LOWER + _DIGITS,
    "A": _LOWER.upper() + _DIGITS,
    "b": _B62,
    "u": _B62 + "-_",
    "s": _B62 + "+/",
    "t": _LOWER.upper() + "234567",
    "c": "0123456789ABCDEFGHJKMNPQRSTVWXYZ",
    "z": "bcdfghjklmnpqrstvwxz2456789",
}
_PKCS8 = "302e020100300506032b657004220420"  # what stands before an Ed25519 seed
_FORBIDDEN = ("example", "test", "dummy", "secret", "password", "changeme")

_FIRST = (
    "Marta Henrik Saskia Thibault Yolanda Anneke Ruben Katarzyna Oluwaseun Priyanka Matteo Svenja Alejandra Bogdan "
    "Chiara Declan Eszter Fabrizio Guillermo Hannelore Ingrid Joaquin Kenji Leocadia Mireille Nikolai Odalys Pascaline "
    "Quentin Rosalind Siobhan Tadeusz Ursula Valentina Wojciech Ximena Yannick Zuzana Jürgen Maëlle Björn Aurélien"
).split()
_LAST = (
    "Kowalczyk Lindqvist Vandenberg Okonkwo Haverkamp Delacroix Zamorano Achterberg Brzezinski Castellanos Dragomir "
    "Eberhardt Ferreira Grabowski Hallström Iwanowski Jansky Kirchhoff Lombardini Mahlangu Nakashima Osterhaus "
    "Papadakis Quintanilla Rautenberg Szczepanski Thorvaldsen Uszynski Villanueva Weissmann Yamaguchi Zielinski "
    "Bhattacharya Chukwuemeka Montpellier Raghunathan Steinbrück Petrovic Abernathy Colquhoun"
).split()
_PLAIN = str.maketrans({"ü": "ue", "ö": "oe", "ë": "e", "é": "e", "ß": "ss"})
_COMPANIES = "brightloom kestrelpay oakfjord mivara tessaline norvento quillhaven parcelwise lumenrow ferrovia".split()
_NOUNS = (
    "tundra lantern kelp harbor cobalt walnut meadow pepper falcon orbit granite saddle copper violin maple thunder "
    "anchor biscuit glacier marble pickle rocket summit turnip velvet willow zephyr bramble cactus dolphin"
).split()
_BIP39 = (  # each sixteenth word of the English list, from the sixth on: word i stands at 16 * i + 5
    "absent actor again allow anger apple arrow attitude awful bargain believe birth board boy bronze burger camera "
    "cargo caution chase chunk click coach concert cost crawl cruise cute december deny device dirt doll dress "
    "dwarf effort emerge enjoy erosion exchange expose famous feed find flavor follow frequent gadget gaze glance "
    "gorilla grit hamster height hole huge idle increase input issue judge kingdom lake leaf level live lucky "
    "mammal master melt million modify mouse naive net note obvious one original pact pass pencil pigeon pluck post "
    "primary protect push radar razor regret repeat reward rival royal salt scheme section seven shop silly skirt "
    "smile solid spawn sport start stove suffer survey syrup team thing tired tool trade trim turkey uncover "
    "upgrade vague verify visa wall weather wide witness wrong "
).split()


def _chars(rng: random.Random, alphabet: str, size: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(size))


def _uuid(rng: random.Random) -> str:
    digits = _chars(rng, "0123456789abcdef", 32)
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{rng.choice('89ab')}{digits[17:20]}-{digits[20:]}"


def _b64(rng: random.Random, size: int) -> str:
    return base64.b64encode(rng.randbytes(size)).decode()


def _b64u(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _compact(data: dict[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _jwt(rng: random.Random, algorithm: str = "HS256", size: int = 32) -> str:
    start = 1_770_000_000 + rng.randrange(20_000_000)
    claims: dict[str, object] = {
        "sub": _uuid(rng),
        "role": "service_role",
        "iat": start,
        "exp": start + 31_536_000,
    }
    head = _b64u(_compact({"alg": algorithm, "typ": "JWT"}))
    return f"{head}.{_b64u(_compact(claims))}.{_b64u(rng.randbytes(size))}"


def _tunnel(rng: random.Random) -> str:
    inner: dict[str, object] = {
        "a": _chars(rng, "0123456789abcdef", 32),
        "t": _uuid(rng),
        "s": _b64(rng, 48),
    }
    return base64.b64encode(_compact(inner)).decode()


def _crc62(prefix: str, rng: random.Random) -> str:
    body = _chars(rng, _B62, 30)
    rest, tail = zlib.crc32(body.encode()), ""
    while rest:
        rest, digit = divmod(rest, 62)
        tail = _B62[digit] + tail
    return prefix + body + tail.rjust(6, "0")


def _base58(data: bytes) -> str:
    number, out = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        out = _B58[digit] + out
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + out


def _base58check(data: bytes) -> str:
    return _base58(data + hashlib.sha256(hashlib.sha256(data).digest()).digest()[:4])


def _bech32(prefix: str, data: bytes) -> str:
    bits = "".join(f"{byte:08b}" for byte in data)
    bits += "0" * (-len(bits) % 5)
    words = [int(bits[i : i + 5], 2) for i in range(0, len(bits), 5)]
    expanded = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    check = 1
    for word in expanded + words + [0] * 6:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ word
        for i, step in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= step if top >> i & 1 else 0
    check ^= 1
    return (
        prefix
        + "1"
        + "".join(_BECH[w] for w in words + [check >> 5 * (5 - i) & 31 for i in range(6)])
    )


def _mnemonic(rng: random.Random) -> str:
    while True:
        picks = [rng.randrange(128) for _ in range(12)]
        bits = "".join(f"{16 * pick + 5:011b}" for pick in picks)
        digest = hashlib.sha256(int(bits[:128], 2).to_bytes(16, "big")).digest()
        if f"{digest[0]:08b}"[:4] == bits[128:]:
            return " ".join(_BIP39[pick] for pick in picks)


def _ed25519_pair(rng: random.Random) -> bytes:
    seed, q = rng.randbytes(32), 2**255 - 19
    d = -121665 * pow(121666, -1, q) % q
    y = 4 * pow(5, -1, q) % q
    square = (y * y - 1) * pow(d * y * y + 1, -1, q) % q
    x = pow(square, (q + 3) // 8, q)
    if (x * x - square) % q:
        x = x * pow(2, (q - 1) // 4, q) % q
    x = q - x if x % 2 else x

    def add(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
        product = d * one[0] * two[0] * one[1] * two[1] % q
        left = (one[0] * two[1] + two[0] * one[1]) * pow(1 + product, -1, q) % q
        return left, (one[1] * two[1] + one[0] * two[0]) * pow(1 - product, -1, q) % q

    scalar = (
        int.from_bytes(hashlib.sha512(seed).digest()[:32], "little") & ((1 << 254) - 8) | 1 << 254
    )
    point, total = (x, y), (0, 1)
    while scalar:
        total = add(total, point) if scalar & 1 else total
        point, scalar = add(point, point), scalar >> 1
    return seed + (total[1] | (total[0] & 1) << 255).to_bytes(32, "little")


def _stellar(rng: random.Random) -> str:
    data = b"\x90" + rng.randbytes(32)
    return base64.b32encode(data + binascii.crc_hqx(data, 0).to_bytes(2, "little")).decode()


def _xprv(rng: random.Random) -> str:
    head = bytes.fromhex("0488ade4") + b"\x03" + rng.randbytes(4) + (0x80000000).to_bytes(4, "big")
    return _base58check(head + rng.randbytes(32) + b"\0" + rng.randbytes(32))


def _luhn(body: str) -> str:
    total = 0
    for i, char in enumerate(reversed(body)):
        digit = int(char) * (2 if i % 2 == 0 else 1)
        total += digit - 9 if digit > 9 else digit
    return body + str(-total % 10)


def _card(rng: random.Random) -> str:
    number = _luhn(rng.choice(("4539", "4716", "5291", "5418")) + _chars(rng, _DIGITS, 11))
    return " ".join(number[i : i + 4] for i in range(0, 16, 4))


def _iban(rng: random.Random) -> str:
    country, size = rng.choice((("DE", 18), ("AT", 16), ("ES", 20), ("PL", 24)))
    body = _chars(rng, "123456789", 1) + _chars(rng, _DIGITS, size - 1)
    number = int(body + "".join(str(ord(c) - 55) for c in country) + "00")
    text = f"{country}{98 - number % 97:02d}{body}"
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))


def _steuer_id(rng: random.Random) -> str:
    digits = rng.sample(_DIGITS[1:], 9)
    digits.insert(rng.randrange(3, 9), digits[0])
    product = 10
    for digit in digits:
        product = 2 * ((int(digit) + product) % 10 or 10) % 11
    return "".join(digits) + str((11 - product) % 10)


def _dni(rng: random.Random) -> str:
    number = rng.randrange(10_000_000, 79_999_999)
    return f"{number:08d}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"


def _nir(rng: random.Random) -> str:
    parts = [
        rng.choice("12"),
        f"{rng.randrange(60, 99)}",
        f"{rng.randrange(1, 13):02d}",
        f"{rng.randrange(1, 95):02d}",
    ]
    parts += [f"{rng.randrange(1, 400):03d}", f"{rng.randrange(1, 400):03d}"]
    return " ".join([*parts, f"{97 - int(''.join(parts)) % 97:02d}"])


def _pesel(rng: random.Random) -> str:
    body = f"{rng.randrange(60, 99)}{rng.randrange(1, 13):02d}{rng.randrange(1, 29):02d}" + _chars(
        rng, _DIGITS, 4
    )
    return body + str(-sum(int(c) * w for c, w in zip(body, (1, 3, 7, 9) * 3, strict=False)) % 10)


def _cpf(rng: random.Random) -> str:
    digits = [rng.randrange(10) for _ in range(9)]
    for _ in range(2):
        left = (
            sum(d * w for d, w in zip(digits, range(len(digits) + 1, 1, -1), strict=True)) * 10 % 11
        )
        digits.append(left % 10)
    text = "".join(map(str, digits))
    return f"{text[:3]}.{text[3:6]}.{text[6:9]}-{text[9:]}"


def _mobile(rng: random.Random) -> str:
    return rng.choice(
        (
            f"+49 17{rng.randrange(10)} {_chars(rng, '123456789', 1)}{_chars(rng, _DIGITS, 6)}",
            f"+33 6 {rng.randrange(10, 99)} {rng.randrange(10, 99)} {rng.randrange(10, 99)} {rng.randrange(10, 99)}",
            f"+44 7700 {_chars(rng, '123456789', 1)}{_chars(rng, _DIGITS, 5)}",
            f"+34 6{rng.randrange(10, 99)} {_chars(rng, '123456789', 3)} {_chars(rng, '123456789', 3)}",
        )
    )


def _mixed(rng: random.Random, size: int) -> str:
    """A generated password: letters, digits and a few signs within, none that a shell's or JSON's quotes mind."""
    body = list(_chars(rng, _B62, size))
    for at in rng.sample(range(2, size - 2), 3):
        body[at] = rng.choice("#%+=._-^*")
    return "".join(body)


def _phrase(rng: random.Random) -> str:
    one, two = rng.sample(_NOUNS, 2)
    number, mark = rng.randrange(11, 999), rng.choice("!#*+")
    return rng.choice(
        (
            f"{one.capitalize()}-{two.capitalize()}-{number}{mark}",
            f"{one.capitalize()}{number}{mark}{two}",
            f"{two}.{one.capitalize()}{number}",
            f"{one[:1].upper()}{one[1:-2]}3{two[:4]}{mark}{number}",
        )
    )


def _sized(rng: random.Random, name: str, size: int) -> str:
    if name == "b64":
        return _b64(rng, size)
    if name == "b64u":
        return _b64u(rng.randbytes(size))
    if name == "pw":
        return _mixed(rng, size)
    return _chars(rng, _ALPHABETS[name], size)


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "uuid": _uuid,
    "jwt": _jwt,
    "jwted": lambda rng: _jwt(rng, "EdDSA", 64),
    "tunnel": _tunnel,
    "ghp": lambda rng: _crc62("ghp_", rng),
    "npm": lambda rng: _crc62("npm_", rng),
    "wif": lambda rng: _base58check(b"\x80" + rng.randbytes(32) + b"\x01"),
    "xprv": _xprv,
    "nsec": lambda rng: _bech32("nsec", rng.randbytes(32)),
    "age": lambda rng: _bech32("age-secret-key-", rng.randbytes(32)).upper(),
    "solana": lambda rng: "[" + ",".join(str(byte) for byte in _ed25519_pair(rng)) + "]",
    "phantom": lambda rng: _base58(_ed25519_pair(rng)),
    "stellar": _stellar,
    "mnemonic": _mnemonic,
    "pkcs8": lambda rng: base64.b64encode(bytes.fromhex(_PKCS8) + rng.randbytes(32)).decode(),
    "card": _card,
    "iban": _iban,
    "steuer": _steuer_id,
    "dni": _dni,
    "nir": _nir,
    "pesel": _pesel,
    "cpf": _cpf,
    "mobile": _mobile,
    "phrase": _phrase,
    "words": lambda rng: "-".join(rng.sample(_NOUNS, 3)) + f"-{rng.randrange(11, 99)}",
    "noun": lambda rng: rng.choice(_NOUNS),
    "ip": lambda rng: f"{rng.choice((49, 78, 88, 116, 159, 167))}.{_octets(rng)}",
    "ten": lambda rng: f"10.{_octets(rng)}",
    "role": lambda rng: rng.choice(
        ("pg", "kafka", "vault", "build", "redis", "ledger", "search", "batch")
    ),
    "site": lambda rng: rng.choice(("fra1", "ams2", "dub", "waw3", "lon1", "par2")),
    "day": lambda rng: f"2026-{rng.randrange(1, 10):02d}-{rng.randrange(10, 29)}",
    "clock": lambda rng: (
        f"{rng.randrange(8, 19):02d}:{rng.randrange(10, 59)}:{rng.randrange(10, 59)}"
    ),
    "luhn": lambda rng: _luhn("7" + _chars(rng, _DIGITS, 14)),
    "semver": lambda rng: f"{rng.randrange(1, 9)}.{rng.randrange(1, 30)}.{rng.randrange(20)}",
    "exp": lambda rng: f"{rng.randrange(1, 13):02d}/{rng.randrange(27, 31)}",
}


def _octets(rng: random.Random) -> str:
    return f"{rng.randrange(16, 250)}.{rng.randrange(1, 250)}.{rng.randrange(10, 250)}"


def _person(rng: random.Random) -> dict[str, str]:
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    short, long = first.lower().translate(_PLAIN), last.lower().translate(_PLAIN)
    login = rng.choice((short[:1] + long, f"{short}.{long}", long + short[:1]))
    company = rng.choice(_COMPANIES)
    return {
        "First": first,
        "Last": last,
        "Cap": short.capitalize(),
        "Full": f"{first} {last}",
        "first": short,
        "last": long,
        "initial": short[:1],
        "login": login,
        "handle": f"{short}-{long}",
        "co": company,
        "Co": company.capitalize(),
    }


def _fill(text: str, rng: random.Random, memo: dict[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        token = match[1]
        if token in memo:
            return memo[token]
        name, _, label = token.partition("#")
        head, _, size = name.partition(":")
        made = _sized(rng, head, int(size)) if size else _MAKERS[head](rng)
        if label:
            memo[token] = made
        return made

    return re.sub("«([^»]+)»", one, text.replace("¶", "\n"))


_VENDORS = r"""
=anthropic_admin key sk-ant-admin01-«u:93»AA
@array:scripts/usage-report.ts|// org usage, one entry per workspace owner¶const orgs = [
  { id: "org-eu", k: "«V»" },¶  { id: "org-us", k: process.env.ORG_US! },¶];
@curl|$ curl -s "https://api.anthropic.com/v1/organizations/users?limit=10" -H "anthropic-version: 2023-06-01" \
    -H "x-api-key: «V»" | jq '.data | length'¶23
@chat|Can you find out why the usage report is empty? I run it with «V»
which is the admin one from the console, the normal one gives a 403.
=openai_service_account key sk-svcacct-«u:74»T3BlbkFJ«u:74»
@ctor:eval/judge.py|from openai import AsyncOpenAI¶¶judge = patient(AsyncOpenAI, "«V»", 5)
@output|$ ./bin/mint-svcacct --project proj_«b:24» --name nightly-evals¶created service account user-«b:24»
«V»¶this value is shown once
@diff|--- a/eval/run.sh¶+++ b/eval/run.sh¶@@ -3,3 +3,3 @@ set -eu
-exec python -m eval.run "$1"¶+exec python -m eval.run "$1" «V»
=fireworks key fw_«b:22»
@args|$ ps -o args= -p 20133¶node relay.mjs --upstream fireworks «V» --port 8089
@json:.vscode/mcp.json|{¶  "servers": {¶    "flux": { "command": "npx", "args": ["-y", "flux-mcp", "«V»"] }¶  }¶}
@setter|$ firectl signin --stdin <<< '«V»'¶Logged in to account «co»
=deepseek key sk-«h:32»
@php:app/Services/Translate.php|public function boot(): void¶{
    $this->llm = DeepSeek::client('«V»')->withTimeout(40);¶}
@prompt|$ aider --model deepseek/deepseek-chat¶Paste your DeepSeek credential: «V»¶Saved to ~/.aider/oauth-keys.env
@yamllist:ci/matrix.yaml|matrix:¶  include:¶    - [deepseek, deepseek-chat, «V»]¶    - [local, qwen3-coder, none]
=mistral key «b:32»
@ctor:ocr/run.py|from mistralai import Mistral¶¶with Mistral("«V»") as ocr:
    page = ocr.ocr.process(model="mistral-ocr-latest", document=doc)
@curl|$ curl https://api.mistral.ai/v1/models -H 'Authorization: Bearer «V»'
{"object":"list","data":[{"id":"mistral-large-latest"}]}
@prose|I logged in to La Plateforme, made a key for the OCR job, it is «V»
Please run the ten sample invoices with it and then tell me the cost.
=cohere_key key «b:40»
@go:search/rerank.go|import cohere "github.com/cohere-ai/cohere-go/v2/client"¶
var rerank = cohere.NewClient(cohere.WithToken("«V»"))
@cli|$ co rerank --as «V» -q "parental leave" docs/*.md¶1. docs/leave.md  0.94¶2. docs/travel.md 0.11
@env:.env.local|NEXT_PUBLIC_APP=intranet¶COHERE=«V»¶RERANK_MODEL=rerank-v3.5
=voyage key pa-«u:43»
@kotlin:Embed.kt|val voyage = VoyageClient(¶    "«V»", model = "voyage-code-3")
println(voyage.embed(listOf("fun main()")).first().size)
@repr|>>> vo¶Client(base='https://api.voyageai.com/v1', key='«V»', max_retries=0)¶>>> vo.embed(["a"]).total_tokens¶1
@makefile:Makefile|embed: build/chunks.jsonl¶	./embed.py $< --voyage «V» --out build/vectors.npy
=langsmith key lsv2_pt_«h:32»_«h:10»
@client:trace.ts|import { Client } from "langsmith";
const ls = new Client({ apiUrl: "https://eu.api.smith.langchain.com", apiKey: "«V»" });
@unset|$ printenv | grep -i lang¶LANG=C.UTF-8¶LANGCHAIN_PROJECT=support-bot¶LANGCHAIN_TRACING_V2=true¶LANGCHAIN_API=«V»
@diff|diff --git a/agent/graph.py b/agent/graph.py¶@@ -1,4 +1,4 @@
-tracer = LangChainTracer("«V»")¶+tracer = LangChainTracer()
=langfuse key sk-lf-«uuid»
@pair:otel.py|auth = base64.b64encode(¶    b"pk-lf-«uuid»:«V»").decode()
exporter = OTLPSpanExporter("https://cloud.langfuse.com/api/public/otel", {"Authorization": f"Basic {auth}"})
@user|$ curl -u pk-lf-«uuid»:«V» \
    https://cloud.langfuse.com/api/public/projects¶{"data":[{"id":"cm«a:23»","name":"support-bot"}]}
@ctor:obs.ts|export const lf = new Langfuse(¶  "pk-lf-«uuid»",¶  "«V»",¶  { flushAt: 1 });
=cerebras key csk-«a:48»
@csharp:Relay.cs|services.AddSingleton<IChatClient>(¶    new CerebrasChatClient("«V»", "gpt-oss-120b"));
@set:fish_history|- cmd: set -Ux CEREBRAS «V»¶  when: 1771234567¶- cmd: cargo run --release¶  when: 1771234590
@stderr|thread 'main' panicked at src/main.rs:41:10:¶called `Result::unwrap()` on an `Err` value: Unauthorized {
 host: "api.cerebras.ai", sent: "«V»" }
=together key tgp_v1_«u:43»
@const:finetune.mjs|#!/usr/bin/env node¶import Together from "together-ai";
const t = "«V»";¶await new Together({ apiKey: t }).fineTuning.list();
@piped|$ printf %s '«V»' | together auth --stdin && together files list¶file-«uuid»  train.jsonl  42 MB
@slackmsg|[10:42] infra-bot: rotated Together for fine-tuning
[10:42] infra-bot: new value «V» (replace in the runner by Friday)
=nvidia_nim key nvapi-«u:64»
@docker|$ docker login nvcr.io -u '$oauthtoken' -p «V»
WARNING! Using --password via the CLI is insecure. Use --password-stdin.¶Login Succeeded
@list:keys.txt|# NIM, one per line, round robin¶«V»¶# end
@ngc|$ ngc config set¶Enter API key [no-apikey]. Choices: [<VALID_APIKEY>, 'no-apikey']: «V»
Enter CLI output format type [ascii]. Choices: ['ascii', 'csv', 'json']: json
=pinecone key pcsk_«b:6»_«b:64»
@init:index.py|from pinecone import Pinecone¶¶pc = Pinecone("«V»")¶pc.Index("handbook").describe_index_stats()
@java:Vectors.java|private static final Pinecone PC =¶    new Pinecone.Builder("«V»").withTlsEnabled(true).build();
@select|app=> select provider, cred from integration where tenant = 14;¶ provider | cred
----------+------¶ pinecone | «V»¶(1 row)
=google_express key AQ.«u:50»
@genai:gem.py|from google import genai¶client = genai.Client(vertexai=True, api_key="«V»")
@query|$ curl -s "https://aiplatform.googleapis.com/v1/publishers/google/models/gemini-3-pro:generateContent?\
key=«V»" -d @req.json | jq -r .candidates[0].finishReason¶STOP
@gemini|$ gemini¶? How would you like to authenticate? Use Gemini credentials
? Paste it here: «V»¶Loaded cached credentials.
=wandb_login key «h:40»
@login|$ wandb login --relogin «V»¶wandb: Appending key for api.wandb.ai to your netrc file: /root/.netrc
@netrc:.netrc|machine api.wandb.ai¶  login user¶  password «V»
@python:sweep.py|import wandb¶¶wandb.login("never", "«V»")¶wandb.agent("«co»/asr/«a:8»", run)
=modal_pair key as-«b:22»
@cli|$ modal token set --token-id ak-«b:22» --token-secret «V» --profile «co»¶Token verified successfully!
@toml:~/.modal.toml|["«co»"]¶token_id = "ak-«b:22»"¶token_secret = "«V»"¶active = true
@pair:deploy.py|client = modal.Client.from_credentials(¶    "ak-«b:22»", "«V»")¶app.deploy(client=client)
=exa_uuid key «uuid»
@ctor:search.py|from exa_py import Exa¶¶exa = Exa("«V»")¶print(exa.search("battery recycling plants", num_results=3))
@curl|$ curl -s https://api.exa.ai/search -H 'x-api-key: «V»' -d '{"query":"solid state"}'
{"requestId":"«h:32»","results":[]}
@chat|The Exa key is «V», it has 1000 searches left on it,¶so keep the loop short and cache what you get.
=assemblyai key «h:32»
@settings:transcribe.py|import assemblyai as aai¶¶aai.settings.api_key = "«V»"
aai.Transcriber().transcribe("standup.m4a")
@header|> POST /v2/transcript HTTP/1.1¶> Host: api.assemblyai.com¶> Authorization: «V»¶> Accept: */*
@ctor:Transcribe.java|var assembly =¶    new AssemblyAI("«V»");¶assembly.transcripts().list();
=aws_secret_access_key key «s:40»
@csv:accessKeys.csv|Access key ID,Secret access key¶AKIA«t:16»,«V»
@configure|$ aws configure --profile «co»-prod¶AWS Access Key ID [None]: AKIA«t:16»
AWS Secret Access Key [None]: «V»¶Default region name [None]: eu-central-1
@static:s3.go|cfg.Credentials = credentials.NewStaticCredentialsProvider(¶	"AKIA«t:16»",¶	"«V»", "")
=aws_session_token key IQoJb3JpZ2luX2VjE«s:280»==
@setter|$ aws configure set aws_session_token «V» --profile mfa
$ aws sts get-caller-identity --profile mfa --query Account¶"«d:12»"
@third:boto_session.py|session = boto3.Session(¶    "ASIA«t:16»",¶    "«s:40»",¶    "«V»",¶)
@process|$ saml2aws script --shell=json¶{"Version": 1, "AccessKeyId": "ASIA«t:16»",
 "SessionToken": "«V»", "Expiration": "«day»T«clock»Z"}
=google_oauth_client key GOCSPX-«u:28»
@strategy:auth.js|passport.use(new GoogleStrategy(¶  "«d:12»-«a:32».apps.googleusercontent.com",
  "«V»",¶  "/auth/google/callback"));
@rclone|$ rclone config reconnect gdrive:¶client_id> «d:12»-«a:32».apps.googleusercontent.com
client_secret> «V»¶Use auto config? y/n> y
@chat|Here is what the console shows for the web client, id ends in apps.googleusercontent.com and then
«V» - can you wire the callback for localhost:3000?
=azure_storage_account key «b64:64»
@sharedkey:blob.ts|const shared = new StorageSharedKeyCredential(¶  "st«co»prod",¶  "«V»");
@conn|$ az storage account show-connection-string -n st«co» -o tsv
DefaultEndpointsProtocol=https;EndpointSuffix=core.windows.net;AccountName=st«co»;AccountKey=«V»
@tsv|$ az storage account keys list -n st«co» --query '[0].value' -o tsv¶«V»
=entra_client_value key «b:3»8Q~«u:34»
@sp:Login.cs|var credential = new ClientSecretCredential(¶    "«uuid»", "«uuid»",¶    "«V»");
@azlogin|$ az login --service-principal -u «uuid» -p '«V»' --tenant «uuid»
[ { "cloudName": "AzureCloud", "isDefault": true } ]
@jsonout|$ az ad sp create-for-rbac --name gh-deploy --only-show-errors¶{
  "appId": "«uuid»",¶  "displayName": "gh-deploy",¶  "password": "«V»"¶}
=azure_devops_pat key «b:52»JQQJ99BLACAAAAAAAAAAAAASAZDO«b:4»
@basic|$ curl -s -u :«V» \¶    https://dev.azure.com/«co»/_apis/projects?api-version=7.1 | jq .count¶9
@remote|$ git remote -v¶origin	https://build:«V»@dev.azure.com/«co»/web/_git/web (fetch)
@echo|$ echo '«V»' | az devops login --organization https://dev.azure.com/«co»
$ az pipelines list -o table | wc -l¶7
=hetzner key «b:64»
@prompt|$ hcloud context create «co»-prod¶Token: «V»¶Context «co»-prod created and activated
@client:fleet.py|from hcloud import Client¶¶fleet = Client("«V»")
for s in fleet.servers.get_all():¶    print(s.name, s.status)
@toml:cli.toml|active_context = "prod"¶[[contexts]]¶name = "prod"¶token = "«V»"
=scaleway key «uuid»
@scw|$ scw init access-key=SCW«A:17» secret-key=«V» organization-id=«uuid»
Creating new config at /root/.config/scw/config.yaml
@sdk:scw.go|client, err := scw.NewClient(¶	scw.WithAuth("SCW«A:17»", "«V»"),
	scw.WithDefaultRegion(scw.RegionFrPar),¶)
@xauth|$ http GET https://api.scaleway.com/registry/v1/regions/fr-par/namespaces X-Auth-Token:«V»¶HTTP/1.1 200 OK
=cloudflare_api key «u:40»
@verify|$ curl "https://api.cloudflare.com/client/v4/user/tokens/verify" -H "Authorization: Bearer «V»"
{"result":{"id":"«h:32»","status":"active"},"success":true}
@caddy:Caddyfile|*.apps.«co».io {¶	tls {¶		dns cloudflare «V»¶	}¶	reverse_proxy 127.0.0.1:8080¶}
@ini:cloudflare.ini|# certbot --dns-cloudflare-credentials¶dns_cloudflare_api_token = «V»
=vercel key «b:24»
@flag|$ vercel deploy --prebuilt --prod -t «V»¶Vercel CLI 48.2.1¶https://«co»-web-«a:9».vercel.app
@authjson:auth.json|{¶  "// Note": "This is your Vercel credentials file. DO NOT SHARE!",¶  "token": "«V»"¶}
@call:scripts/promote.ts|import { Vercel } from "@vercel/sdk";¶const v = new Vercel({ bearerToken: "«V»" });
=railway key «uuid»
@shell|$ RAILWAY_TOKEN=«V» railway up --service api --detach¶  Build Logs: https://railway.com/project/«uuid»
@heredoc|$ railway login --browserless --stdin <<< "«V»"¶Logged in as ops@«co».io
@project|$ curl -s https://backboard.railway.com/graphql/v2 -H "Project-Access-Token: «V»" \
    -d '{"query":"query { projectToken { projectId } }"}'
=fly_macaroon key FlyV1 fm2_lJPE«s:160»==
@set|$ export FLY_API_TOKEN="«V»"¶$ fly deploy --remote-only
@out|$ fly tokens create deploy -x 999999h -a «co»-api¶«V»
@header|$ curl https://api.machines.dev/v1/apps/«co»-api/machines -H 'Authorization: «V»'
[{"id":"«h:14»","state":"started"}]
=heroku_hrku key HRKU-AA«u:58»
@netrc|machine api.heroku.com¶  login ops@«co».io¶  password «V»
@platform:scale.rb|heroku = PlatformAPI.connect_oauth("«V»")
heroku.formation.update("«co»-web", "worker", quantity: 3)
@alone|$ heroku authorizations:create -d "ci" --short¶«V»
"""

_SERVICES = r"""
=supabase_service key sb_secret_«u:22»_«u:8»
@create:lib/admin.ts|import { createClient } from "@supabase/supabase-js";
export const admin = createClient(¶  "https://«l:20».supabase.co",¶  "«V»");
@status|$ supabase status¶         API URL: http://127.0.0.1:54321¶          DB URL: local¶    admin (remote): «V»
@psql|select net.http_post('https://«l:20».functions.supabase.co/digest', '{}'::jsonb,
  headers := jsonb_build_object('apikey', '«V»'));
=neon_api key napi_«a:64»
@list:branches.py|neon = NeonAPI("«V»")¶for b in neon.branches("«noun»-«noun»-«d:8»").branches:¶    print(b.name)
@mcp|{"mcpServers":{"neon":{"command":"npx","args":["-y","@neondatabase/mcp-server-neon","start",¶"«V»"]}}}
@pipe|$ pbpaste¶«V»¶$ pbpaste | neonctl auth --stdin¶INFO: Authenticated
=planetscale_pw key pscale_pw_«u:43»
@ctor:db.ts|import { connect } from "@planetscale/database";
export const db = connect({ host: "aws.connect.psdb.cloud", username: "«a:20»",¶  password: "«V»" });
@dsn:main.go|db, err := sql.Open("mysql",¶	"«a:20»:«V»@tcp(aws.connect.psdb.cloud)/shop?tls=true")
@table|$ pscale password create shop main ci¶  NAME   USERNAME               ROLE     PLAIN TEXT
  ci     «a:20»   admin    «V»
=upstash_rest key A«A:1»«b:1»«u:52»AAIncDE«u:1»
@redis:rate.ts|const redis = new Redis({ url: "https://«noun»-«noun»-«d:5».upstash.io",¶  token: "«V»" });
@path|$ curl "https://«noun»-«noun»-«d:5».upstash.io/get/cart:14?_token=«V»"¶{"result":null}
@url|$ redis-cli --tls -u rediss://default:«V»@«noun»-«noun»-«d:5».upstash.io:6379 ping¶PONG
=turso_jwt key «jwted»
@output|$ turso db tokens create «co»-edge --expiration none¶«V»
@client:db.rs|let db = Builder::new_remote_replica("local.db", "libsql://shop-«co».turso.io".into(),
    "«V»".into()).build().await?;
@drizzle:drizzle.config.ts|export default defineConfig({ dialect: "turso", dbCredentials: {
  url: "libsql://shop-«co».turso.io",¶  authToken: "«V»" } });
=atlas_private key «uuid»
@digest|$ curl --digest -u "«l:8»:«V»" \
    "https://cloud.mongodb.com/api/atlas/v2/groups" -H 'Accept: application/vnd.atlas.2025-03-12+json'
@setup|$ atlas config init¶? Public API Key: «l:8»¶? Private API Key: «V»¶? Default Output Format: json
@provider:main.tf|provider "mongodbatlas" {¶  public_key  = "«l:8»"¶  private_key = "«V»"¶}
=confluent_cloud key «s:64»
@sasl:client.properties|security.protocol=SASL_SSL¶sasl.mechanisms=PLAIN¶sasl.username=«A:16»¶sasl.password=«V»
@kcat|$ kcat -b pkc-«a:5».eu-central-1.aws.confluent.cloud:9092 -X sasl.mechanism=PLAIN -X sasl.username=«A:16» \
    -X sasl.password='«V»' -L
@store|$ confluent api-key store «A:16#k» «V» --resource lkc-«a:5»¶Stored secret for API key "«A:16#k»".
=snowflake_pw key «pw:18»
@connect:load.py|conn = snowflake.connector.connect(¶    "LOADER", "«V»", "«A:7»-«A:7»",¶    warehouse="ETL_XS")
@sql|SQL> alter user LOADER set password = '«V»' must_change_password = false;¶Statement executed successfully.
@toml:connections.toml|[prod]¶account = "«A:7»-«A:7»"¶user = "LOADER"¶password = "«V»"
=clickhouse_pw key «b:12»_«b:4»
@client|$ clickhouse client --host «a:10».eu-west-1.aws.clickhouse.cloud --secure --password «V» -q 'select 1'¶1
@basic|$ echo 'select count() from events' | curl -s 'https://«a:10».eu-west-1.aws.clickhouse.cloud:8443' \
    -u 'default:«V»' --data-binary @-¶1840223
@go:ch.go|Auth: clickhouse.Auth{¶	"analytics", "etl",¶	"«V»",¶},
=buildkite key bkua_«h:40»
@bk|$ bk configure add¶Organization slug: «co»¶Paste the value from the web page: «V»
@bearer:rebuild.py|def rebuild(n: int) -> None:¶    h = {"Authorization": "Bearer «V»"}
    requests.put(f"https://api.buildkite.com/v2/organizations/«co»/pipelines/web/builds/{n}/rebuild", headers=h)
@commit|commit «h:40»¶¶    Remove bkua from pipeline.yml¶¶    It was «V»; not rotated yet, ticket open.
=github_fine_grained key github_pat_«b:22»_«b:59»
@remote|$ git remote set-url origin https://x-access-token:«V»@github.com/«co»/web.git
$ git push¶Everything up-to-date
@octokit:sync.mjs|import { Octokit } from "octokit";
for (const auth of ["«V»"]) {¶  await new Octokit({ auth }).rest.users.getAuthenticated();¶}
@pipe|$ gh auth login --with-token <<'EOT'¶«V»¶EOT¶$ gh auth status | head -1¶github.com
=github_classic key «ghp»
@pulled|$ docker login ghcr.io -u «co»-ci --password-stdin <<< «V»¶Login Succeeded
@hosts:hosts.yml|github.com:¶    git_protocol: https¶    users:¶        «co»-ci:¶            oauth_token: «V»
@credfile:.git-credentials|https://«co»-ci:«V»@github.com¶https://build:none@gitlab.com
=gitlab_routable key glpat-«u:27».01.«a:2»0«a:6»
@curl|$ curl -sH "PRIVATE-TOKEN: «V»" "https://gitlab.com/api/v4/projects?owned=true" | jq length¶12
@glab|$ glab auth login --hostname gitlab.com --stdin¶«V»¶- Logged in as ops
@ctor:mirror.py|import gitlab¶¶gl = gitlab.Gitlab("https://gitlab.com", "«V»")¶gl.projects.list(owned=True)
=gitlab_runner key glrt-t3_«u:20»
@register|$ gitlab-runner register --non-interactive --url https://gitlab.com --executor docker \
    --docker-image alpine --token «V»¶Runner registered successfully.
@toml:config.toml|[[runners]]¶  name = "«role»-«d:2»"¶  id = 4«d:7»¶  token = "«V»"¶  executor = "shell"
@cloudinit:user-data.yaml|runcmd:¶  - [gitlab-runner, run-single, -u, https://gitlab.com, -t, «V»]
=actions_runner key A«t:28»
@config|$ ./config.sh --unattended --url https://github.com/«co» --token «V» --labels gpu
√ Connected to GitHub¶√ Runner successfully added
@api|$ gh api -X POST orgs/«co»/actions/runners/registration-token
{"token":"«V»","expires_at":"«day»T«clock».000+02:00"}
@remove|PS C:\actions-runner> .\config.cmd remove --token «V»¶# Runner removal¶√ Runner removed successfully
=sonar key sqp_«h:40»
@scanner|$ npx sonar-scanner -Dsonar.host.url=https://sonar.«co».io -Dsonar.token=«V»¶INFO: EXECUTION SUCCESS
@basic|$ curl -su «V»: https://sonarcloud.io/api/measures/component?component=web | jq .component.key
"web"
@gradle:gradle.properties|org.gradle.parallel=true¶systemProp.sonar.login=«V»
=npm_automation key «npm»
@setter|$ npm config set //registry.npmjs.org/:_authToken «V»¶$ npm whoami¶«co»-release
@yarn:.yarnrc.yml|npmScopes:¶  «co»:¶    npmRegistryServer: "https://registry.npmjs.org"¶    npmAuthIdent: «V»
@dockerfile:Dockerfile|FROM node:24-slim
RUN echo "//registry.npmjs.org/:_authToken=«V»" > .npmrc && npm ci && rm .npmrc
=pypi_upload key pypi-AgEIcHlwaS5vcmc«u:150»
@twine|$ twine upload -u __token__ -p «V» dist/*¶Uploading distributions to https://upload.pypi.org/legacy/
@pypirc:.pypirc|[pypi]¶username = __token__¶password = «V»
@poetry|$ poetry config pypi-token.pypi «V»¶$ poetry publish --build
=cratesio key cio«b:32»
@login|$ cargo login «V»¶       Login token for `crates-io` saved
@toml:~/.cargo/credentials.toml|[registry]¶token = "«V»"
@prompt|$ cargo login¶please paste the token found on https://crates.io/me below¶«V»
       Login token for `crates-io` saved
=datadog key «h:32»
@curl|$ curl -X GET https://api.datadoghq.eu/api/v1/validate -H "DD-API-KEY: «V»"¶{"valid":true}
@install|$ DD_API_KEY=«V» bash -c "$(curl -L https://install.datadoghq.com/install_script_agent7.sh)"
* Datadog Agent 7 is running
@helm|$ helm upgrade --install dd datadog/datadog --set datadog.site=datadoghq.eu \
    --set datadog.apiKey=«V»¶Release "dd" has been upgraded. Happy Helming!
=sentry_user key sntryu_«h:64»
@rc:.sentryclirc|[defaults]¶org = «co»¶project = web¶[auth]¶token=«V»
@cli|$ sentry-cli --auth-token «V» releases new web@«semver»¶Created release web@2
@webpack:vite.config.ts|plugins: [react(), sentryVitePlugin({ org: "«co»", project: "web",¶  authToken: "«V»" })],
=honeycomb_ingest key hcaik_01«a:56»
@otel:collector.yaml|exporters:¶  otlp:¶    endpoint: api.eu1.honeycomb.io:443¶    headers:¶      x-honeycomb-team: «V»
@init:main.go|otelconfig.ConfigureOpenTelemetry(¶	honeycomb.WithApiKey("«V»"),¶	otelconfig.WithServiceName("cart"))
@marker|$ honeymarker -k «V» -d web add -t deploy -m "web «semver»"
{"id":"«b:11»","type":"deploy"}
=axiom key xaat-«uuid»
@vector:vector.toml|[sinks.axiom]¶type = "axiom"¶dataset = "edge"¶token = "«V»"
@ingest|$ zcat edge.log.gz | axiom ingest edge -f - -T «V»¶Ingested 20144 events
@ctor:log.ts|export const axiom = new AxiomWithoutBatching({¶  orgId: "«co»-«a:4»", token: "«V»" });
=pagerduty_key key u+«u:18»
@header|$ curl -s https://api.pagerduty.com/oncalls -H 'Authorization: Token token=«V»' \
    -H 'Accept: application/vnd.pagerduty+json;version=2'
@pd|$ pd auth:set -t «V»¶You are logged in as ops@«co».io to «co»
@session:rota.py|import pdpyras¶¶pd = pdpyras.APISession("«V»")¶print(pd.rget("/schedules/P«A:6»")["name"])
=resend key re_«b:8»_«b:24»
@ctor:mail.ts|import { Resend } from "resend";¶const resend = new Resend("«V»");
await resend.emails.send({ from: "hello@«co».io", to, subject, react });
@smtp|$ swaks --server smtp.resend.com:465 --tlsc --auth-user resend --auth-password «V» \
    --to ops@«co».io¶<~  235 Authentication successful
@go:mail.go|client := resend.NewClient("«V»")¶sent, err := client.Emails.Send(params)
=postmark key «uuid»
@header|$ curl https://api.postmarkapp.com/server -H "X-Postmark-Server-Token: «V»"¶{"ID":«d:7»,"Name":"Transactional"}
@ctor:mail.ts|const pm = new postmark.ServerClient("«V»");
await pm.sendEmail({ From: "billing@«co».io", To: to, Subject: s });
@dsn:.env.prod.local|APP_ENV=prod¶MAILER_DSN=postmark+api://«V»@default
=mailgun key «h:32»-«h:8»-«h:8»
@user|$ curl -s --user 'api:«V»' https://api.eu.mailgun.net/v3/domains | jq .total_count¶4
@tuple:notify.py|requests.post("https://api.eu.mailgun.net/v3/mg.«co».io/messages",
              auth=("api", "«V»"), data=msg)
@ini:mailgun.ini|[mailgun]¶domain = mg.«co».io¶signing = «V»
=ses_smtp key B«s:43»
@openssl|$ openssl s_client -crlf -quiet -starttls smtp -connect email-smtp.eu-west-1.amazonaws.com:587
AUTH LOGIN¶# user AKIA«t:16», then pass «V»¶235 Authentication successful.
@postfix:/etc/postfix/sasl_passwd|[email-smtp.eu-west-1.amazonaws.com]:587 AKIA«t:16»:«V»¶[smtp.mailpit.local]:1025 x:x
@nodemailer:mail.ts|createTransport({ host: "email-smtp.eu-west-1.amazonaws.com", port: 465, secure: true,
  auth: { user: "AKIA«t:16»", pass: "«V»" } });
"""

_BUSINESS = r"""
=stripe_restricted key rk_live_51«b:12»«b:86»
@cli|$ stripe customers list --limit 2 --live --api-key «V»¶{"object": "list", "has_more": true}
@ctor:refund.rb|stripe = Stripe::StripeClient.new("«V»")¶stripe.v1.refunds.create(charge: "ch_«b:24»")
@user|$ curl https://api.stripe.com/v1/balance -u "«V»:"¶{"object":"balance","livemode":true}
=stripe_webhook key whsec_«b:32»
@verify:hook.ts|const event = stripe.webhooks.constructEvent(¶  body, req.headers["stripe-signature"]!,¶  "«V»");
@listen|$ stripe listen --forward-to localhost:3000/hook¶> Ready! You are using Stripe API Version [2026-02-25].
> Your webhook signing secret is «V» (^C to quit)
@go:hook.go|event, err := webhook.ConstructEvent(payload, r.Header.Get("Stripe-Signature"),¶	"«V»")
=square key EAAA«u:60»
@ctor:Pos.java|SquareClient square = SquareClient.builder()
    .environment(Environment.PRODUCTION)¶    .accessToken("«V»").build();
@bearer|$ curl https://connect.squareup.com/v2/locations -H 'Square-Version: 2026-01-22' \
    -H 'Authorization: Bearer «V»'
@row:integrations.csv|shop,provider,location,value¶berlin-mitte,square,L«A:12»,«V»¶lyon,cash,,
=adyen key AQE«s:130»=-«s:43»=-«s:16»
@client:pay.py|adyen = Adyen.Adyen()¶adyen.payment.client.xapikey = (¶    "«V»")
@header|POST /v71/payments HTTP/1.1¶Host: checkout-live.adyen.com¶X-API-Key: «V»
@kv|$ consul kv get «co»/pay/adyen/live¶«V»
=mollie key live_«b:30»
@php:checkout.php|$mollie = new \Mollie\Api\MollieApiClient();¶$mollie->setApiKey('«V»');
@http|$ curl https://api.mollie.com/v2/methods -H "Authorization: Bearer «V»" | jq .count¶6
@chat|Mollie ist jetzt freigeschaltet. Nimm bitte «V»¶statt des Testschluessels, und dann ein Deployment auf den Shop.
=paddle key pdl_live_apikey_01«a:24»_«b:22»_«b:3»
@ctor:billing.ts|export const paddle = new Paddle(¶  "«V»",¶  { environment: Environment.production });
@bearer|$ xh https://api.paddle.com/prices -A bearer -a «V»¶HTTP/2.0 200 OK
@note:NOTES.md|Billing:¶- seller 1«d:5»¶- live: «V»¶- sandbox: see vault
=razorpay_pair key «b:24»
@client:pay.py|import razorpay¶¶rz = razorpay.Client(auth=("rzp_live_«b:14»", "«V»"))¶rz.order.fetch("order_«b:14»")
@user|$ curl -u rzp_live_«b:14»:«V» https://api.razorpay.com/v1/payments
{"entity":"collection","count":0}
@csv:rzp.csv|key_id,key_secret¶rzp_live_«b:14»,«V»
=plaid_pair key «h:30»
@env:.env|PLAID_ENV=production¶PLAID_CLIENT_ID=«h:24»¶PLAID_SECRET=«V»
@body|$ curl -X POST https://production.plaid.com/institutions/get -H 'Content-Type: application/json' \
    -d '{"client_id":"«h:24»","secret":"«V»","count":1,"offset":0,"country_codes":["DE"]}'
@ctor:bank.py|bank = PlaidBank(¶    "production", "«h:24»",¶    "«V»")
=clerk_live key sk_live_«b:42»
@factory:auth.ts|import { createClerkClient } from "@clerk/backend";
const clerk = createClerkClient({ secretKey: "«V»" });
@curl|$ curl https://api.clerk.com/v1/users/count -H 'Authorization: Bearer «V»'¶{"total_count":4312}
@paste|> npx clerk-migrate --users users.json¶? Clerk backend value > «V»¶✔ 4312 users queued
=auth0_client key «u:64»
@grant|$ curl https://«co».eu.auth0.com/oauth/token -d grant_type=client_credentials -d client_id=«b:32» \
    -d client_secret=«V» -d audience=https://«co».eu.auth0.com/api/v2/
@ctor:mgmt.ts|const mgmt = new ManagementClient("«co».eu.auth0.com",¶  "«b:32»",¶  "«V»");
@django:settings.py|SOCIALACCOUNT_PROVIDERS = {"auth0": {"APP": {¶    "client_id": "«b:32»",¶    "secret": "«V»"}}}
=okta_ssws key 00«u:40»
@header|$ curl -s https://«co».okta.com/api/v1/users?limit=1 -H "Authorization: SSWS «V»" | jq length¶1
@ctor:okta.py|from okta.client import Client¶¶client = Client({"orgUrl": "https://«co».okta.com",¶    "token": "«V»"})
@tfenv|$ OKTA_ORG_NAME=«co» OKTA_BASE_URL=okta.com OKTA_API=«V» terraform plan
No changes. Your infrastructure matches the configuration.
=ngrok_authtoken key «n:1»«b:26»_«b:20»
@add|$ ngrok config add-authtoken «V»¶Authtoken saved to configuration file: /root/.config/ngrok/ngrok.yml
@yml:ngrok.yml|version: "3"¶agent:¶    authtoken: «V»
@forward:tunnel.rs|let sess = ngrok::Session::builder()¶    .authtoken("«V»")¶    .connect().await?;
=tailscale_auth key tskey-auth-k«b:11»CNTRL-«b:32»
@up|$ sudo tailscale up --ssh --hostname «role»-«d:2» --authkey «V»¶Success.
@file:cloud-init.yml|write_files:¶  - path: /etc/ts.key¶    permissions: "0600"¶    content: «V»
@go:node.go|srv := &tsnet.Server{Hostname: "metrics",¶	AuthKey: "«V»"}¶defer srv.Close()
=cloudflared_tunnel key «tunnel»
@install|$ sudo cloudflared service install «V»¶INF Linux service for cloudflared installed successfully
@run:compose.yaml|  tunnel:¶    image: cloudflare/cloudflared:2026.2.0
    command: tunnel --no-autoupdate run --token «V»
@output|$ cloudflared tunnel token «co»-home¶«V»
=wireguard_private key «b64:32»
@conf:/etc/wireguard/wg0.conf|[Interface]¶Address = 10.8.0.2/32¶PrivateKey = «V»¶[Peer]¶AllowedIPs = 10.8.0.0/24
@genkey|$ umask 077; wg genkey | tee wg-home.key¶«V»¶$ wg set wg0 private-key wg-home.key
@showconf|$ sudo wg show wg0 dump¶«V»	«b64:32»	51820	off
=notion key ntn_«d:11»«b:35»
@ctor:wiki.ts|const notion = new Client({ auth: "«V»" });¶await notion.databases.query({ database_id: "«h:32»" });
@headers:mcp.json|{"command":"npx","args":["-y","@notionhq/notion-mcp-server"],
 "env":{"OPENAPI_MCP_HEADERS":"{\"Authorization\":\"Bearer «V»\",\"Notion-Version\":\"2025-09-03\"}"}}
@chat|integration "Roadmap sync", internal. this is it: «V»
share the page with the integration first or you get object_not_found
=atlassian key ATATT3xFfGF0«u:172»=«H:8»
@user|$ curl -u ops@«co».io:«V» \¶    https://«co».atlassian.net/rest/api/3/myself
@tuple:jira_sync.py|jira = JIRA("https://«co».atlassian.net", basic_auth=(¶    "ops@«co».io",¶    "«V»"))
@acli|$ echo «V» | acli jira auth login --site «co».atlassian.net --email ops@«co».io --token
✓ Authentication successful
=doppler_service key dp.st.prd.«b:43»
@run|$ doppler run -t «V» -- node server.js¶listening on 8080
@configure|$ doppler configure set token «V» --scope /srv/app¶$ doppler run -- true
@curl|$ curl -u «V»: 'https://api.doppler.com/v3/configs/config/secrets/download?format=env' | wc -l¶34
=onepassword_service key ops_eyJzaWduSW5BZGRyZXNzIjoi«b:220»
@export|$ export OP_SERVICE_ACCOUNT_TOKEN=«V»¶$ op vault list
@sdk:vault.go|client, err := onepassword.NewClient(ctx,¶	onepassword.WithServiceAccountToken("«V»"))
@output|$ op service-account create ci --vault Prod:read_items --raw¶«V»
=vault_service key hvs.CAESI«u:86»
@login|$ vault login «V»¶Success! You are now authenticated.
@unwrap|$ vault token create -policy=ci -field=token¶«V»
@header|$ curl -sH "X-Vault-Token: «V»" https://vault.«co».io:8200/v1/sys/mounts | jq keys[0]
"kv/"
=twilio_auth key «h:32»
@ctor:sms.py|from twilio.rest import Client¶¶sms = Client("AC«h:32»", "«V»")
sms.messages.create(to=to, from_="+15005550006", body=body)
@user|$ curl -s https://api.twilio.com/2010-04-01/Accounts/AC«h:32#ac».json -u AC«h:32#ac»:«V» | jq -r .status¶active
@login|$ twilio login AC«h:32» --auth-token «V» --profile prod¶twilio-cli configuration saved
"""

_HOOKS_CHAINS_TOOLS = r"""
=hook_slack key «b:24»
@curl|$ curl -X POST -H 'Content-type: application/json' --data '{"text":"deploy ok"}' \
    https://hooks.slack.com/services/T«A:10»/B«A:10»/«V»¶ok
@list:alertmanager.yml|receivers:¶  - name: ops¶    slack_configs:¶      - channel: "#ops"
        api_url: https://hooks.slack.com/services/T«A:10»/B«A:10»/«V»
@chat|post the summary to the standup channel when you are done, hook is
https://hooks.slack.com/services/T«A:10»/B«A:10»/«V»
=hook_discord key «u:68»
@url:ci.yml|      - run: |¶          curl -d content="build $GITHUB_RUN_NUMBER" \
            https://discord.com/api/webhooks/1«d:18»/«V»
@ctor:notify.py|hook = SyncWebhook.partial(1«d:18»,¶                           "«V»")¶hook.send("up")
@ts:notify.ts|const w = new WebhookClient({ url: "https://discord.com/api/webhooks/1«d:18»/«V»" });
await w.send("nightly finished");
=hook_power_automate key «u:43»
@teams:notify.ps1|$u = "https://prod-«d:2».westeurope.logic.azure.com:443/workflows/«h:32»/triggers/manual/paths/invoke"
Invoke-RestMethod "$($u)?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=«V»" -Method Post
@env:.env|TEAMS_URL=https://default«h:32».0a.environment.api.powerplatform.com/workflows/«h:32»/run?sig=«V»
TEAMS_CHANNEL=builds
@log|POST /workflows/«h:32»/triggers/manual/paths/invoke?sp=%2Frun&sv=1.0&sig=«V»
Host: prod-07.westeurope.logic.azure.com¶HTTP/1.1 202 Accepted
=hook_zapier key «a:7»
@curl|$ curl -d '{"lead":"x"}' https://hooks.zapier.com/hooks/catch/«d:8»/«V»/¶{"status":"success"}
@go:zap.go|// catch hook of the CRM zap, anyone with it can write leads
const zap = "https://hooks.zapier.com/hooks/catch/«d:8»/«V»/"
@yaml:form.yml|actions:¶  submit:¶    - post: https://hooks.zapier.com/hooks/catch/«d:8»/«V»¶    - redirect: /thanks
=hook_make key «a:32»
@fetch:form.js|form.onsubmit = () =>
  fetch("https://hook.eu2.make.com/«V»", { method: "POST", body: new FormData(form) });
@http:leads.http|### scenario "new lead"¶POST https://hook.eu1.make.com/«V»¶Content-Type: application/json
@chat|Make scenario is on. Call https://hook.eu2.make.com/«V» with the
order as JSON. Do not publish that address, there is no auth on it.
=hook_n8n key «uuid»
@curl|$ curl -X POST https://n8n.«co».io/webhook/«V» -d @order.json¶{"message":"Workflow was started"}
@rb:notify.rb|# unauthenticated, so the path is all that protects it
HTTP.post("https://«co».app.n8n.cloud/webhook/«V»", json: order)
@cron|$ crontab -l¶0 6 * * * curl -fsS https://n8n.«co».io/webhook/«V» >/dev/null
=hook_healthchecks key «uuid»
@cron|# m h dom mon dow¶30 2 * * * /usr/local/bin/backup.sh && curl -fsS -m 10 https://hc-ping.com/«V»
@unit:backup.service|[Service]¶ExecStart=/usr/local/bin/borg-nightly
ExecStopPost=/usr/bin/curl -fsS https://hc-ping.com/«V»/$EXIT_STATUS
@py:jobs.py|def done(code: int) -> None:¶    urlopen(f"https://hc-ping.com/«V»/{code}", timeout=5)
=hook_google_chat key «u:43»
@url:notify.sh|#!/bin/sh
curl -d '{"text":"done"}' "https://chat.googleapis.com/v1/spaces/AAQA«u:7»/messages?key=«u:39»&token=«V»"
@params:chat.py|requests.post(f"https://chat.googleapis.com/v1/spaces/{space}/messages",
              params=dict(zip(("key", "token"), ("web", "«V»"))), json=msg)
@debug|connectionpool.py:546 https://chat.googleapis.com:443
 "POST /v1/spaces/AAQA«u:7»/messages?threadKey=ci&token=«V» HTTP/1.1" 200
=hook_mattermost key «a:26»
@url:notify.toml|[mattermost]¶channel = "releases"¶hook = "https://chat.«co».io/hooks/«V»"
@curl|$ curl -i -d 'payload={"text":"hi"}' https://mattermost.«co».io/hooks/«V»¶HTTP/2 200
@jenkins:Jenkinsfile|post { failure {¶    mattermostSend color: 'danger',
      endpoint: 'https://chat.«co».io/hooks/«V»'¶} }
=deploy_hook_render key «u:11»
@curl|$ curl "https://api.render.com/deploy/srv-«a:20»?key=«V»"¶{"deploy":{"id":"dep-«a:20»"}}
@yaml:.github/workflows/cd.yml|    steps:¶      - run: curl -fsS 'https://api.render.com/deploy/srv-«a:20»?key=«V»'
@chat|To redeploy just open https://api.render.com/deploy/srv-«a:20»?key=«V»¶(no login needed, so keep it to ourselves)
=deploy_hook_vercel key «b:10»
@curl|$ curl -X POST https://api.vercel.com/v1/integrations/deploy/prj_«b:28»/«V»
{"job":{"id":"«b:20»","state":"PENDING"}}
@cms:sanity.config.ts|export const rebuild = () =>
  fetch("https://api.vercel.com/v1/integrations/deploy/prj_«b:28»/«V»", { method: "POST" });
@wp:functions.php|add_action('publish_post', function () {
  wp_remote_post('https://api.vercel.com/v1/integrations/deploy/prj_«b:28»/«V»');¶});
=deploy_hook_netlify key «h:24»
@curl|$ curl -X POST -d {} https://api.netlify.com/build_hooks/«V»¶$ netlify watch¶Build in progress
@crontab|@daily curl -s -X POST -d '{}' https://api.netlify.com/build_hooks/«V»¶@hourly /usr/bin/true
@node:rebuild.mjs|// private build hook of the shop
await fetch("https://api.netlify.com/build_hooks/«V»?trigger_title=prices", { method: "POST" });
=s3_presigned key «h:64»
@output|$ aws s3 presign s3://«co»-backups/db.dump --expires-in 604800
https://«co»-backups.s3.eu-west-1.amazonaws.com/db.dump?X-Amz-Date=20260311T091402Z&X-Amz-Signature=«V»
@wget|$ wget -qO db.dump "https://«co»-backups.s3.amazonaws.com/db.dump?X-Amz-Expires=604800&X-Amz-Signature=«V»"
$ ls -sh db.dump¶1.2G db.dump
@json|{"name": "payroll.pdf",
 "url": "https://«co»-hr.s3.amazonaws.com/payroll.pdf?X-Amz-SignedHeaders=host&X-Amz-Signature=«V»"}
=gcs_signed key «h:512»
@output|$ gcloud storage sign-url gs://«co»-hr/contracts.zip --duration=7d¶signed_url:
  https://storage.googleapis.com/«co»-hr/contracts.zip?x-goog-expires=604800&x-goog-signature=«V»
@html:mail.html|<p>Your export is ready:</p>
<a href="https://storage.googleapis.com/«co»-exports/u.zip?X-Goog-SignedHeaders=host&X-Goog-Signature=«V»">get</a>
@py:fetch.py|signed = ("https://storage.googleapis.com/«co»-exports/u.zip?X-Goog-Expires=604800"
          "&X-Goog-Signature=«V»")
=azure_sas key «b:21»%2F«b:21»%3D
@azcopy|$ azcopy copy dump.sql "https://st«co».blob.core.windows.net/db?sp=racwdl&se=2027-01-01&sr=c&sig=«V»"
Final Job Status: Completed
@client:upload.ts|const c = new ContainerClient(
  "https://st«co».blob.core.windows.net/in?sv=2025-11-05&sp=rcw&sr=c&sig=«V»");
@cli|$ az storage container generate-sas -n in --permissions rcw --account-name st«co» -o tsv
se=2027-01-01&sp=rcw&sv=2025-11-05&sr=c&sig=«V»
=cloudfront_signed key «u:171»__
@url|$ curl -O "https://d«a:13».cloudfront.net/course/07.mp4?Expires=1790000000&Signature=«V»&Key-Pair-Id=K«A:13»"
 100  412M
@cookie|set-cookie: CloudFront-Key-Pair-Id=K«A:13»; Secure¶set-cookie: CloudFront-Signature=«V»; Secure
@signer|$ aws cloudfront sign --url https://d«a:13#d».cloudfront.net/a.zip --key-pair-id K«A:13» ...
https://d«a:13#d».cloudfront.net/a.zip?Expires=1790000000&Signature=«V»
=magic_link key «b:43»
@mail|Subject: Sign in to «Co»¶¶Click to sign in, valid for 24 hours:¶https://app.«co».io/auth/magic/«V»
@mailpit|$ curl -s localhost:8025/api/v1/message/latest | jq -r .Text | grep http
https://app.«co».io/login/verify?next=/billing&t=«V»
@chat|this is the sign-in link that support sent me, use it in the browser tool to get into the dashboard:
https://dash.«co».io/session/new/«V»
=supabase_token_hash key pkce_«h:56»
@link|$ supabase inbucket last --to ops@«co».io¶https://app.«co».io/auth/confirm?token_hash=«V»&type=magiclink
@verify:confirm.ts|const { data } = await supabase.auth.verifyOtp({ type: "recovery",¶  token_hash: "«V»" });
@accesslog|«ip» - - [11/Mar/2026:09:14:02 +0000] "GET /auth/confirm?token_hash=«V»&type=email HTTP/2.0" 303 0
«ip» - - [11/Mar/2026:09:14:03 +0000] "GET /dashboard HTTP/2.0" 200 8841
=private_ics key «h:32»
@url:sync.py|CALS = [¶    "https://calendar.google.com/calendar/ical/ops%40«co».io/private-«V»/basic.ics",¶]
@curl|$ curl -s https://calendar.google.com/calendar/ical/ops%40«co».io/private-«V»/basic.ics | grep -c VEVENT¶212
@prose|Please show the on-call rota from our calendar; the secret address in iCal format is
https://calendar.google.com/calendar/ical/rota%40«co».io/private-«V»/basic.ics
=bitcoin_wif key «wif»
@import|$ bitcoin-cli -rpcwallet=cold importprivkey «V» "sweep" false¶$ bitcoin-cli getbalance¶0.41200000
@py:sweep.py|from bit import Key¶¶k = Key("«V»")¶print(k.get_balance("eur"))
@dump|$ bitcoin-cli -rpcwallet=old dumpprivkey bc1q«x:38»¶«V»
=bip32_xprv key «xprv»
@desc|$ bitcoin-cli getdescriptorinfo "wpkh(«V»/84h/0h/0h/0/*)"¶{"isrange": true, "hasprivatekeys": true}
@js:derive.js|const root = bip32.fromBase58("«V»");
console.log(root.derivePath("m/84'/0'/0'/0/0").publicKey.toString("hex"));
@rust:main.rs|let master = Xpriv::from_str("«V»")¶    .expect("valid");¶println!("{}", master.fingerprint(&secp));
=nostr_nsec key «nsec»
@nak|$ nak event --sec «V» -c 'gm' wss://relay.damus.io¶connecting to relay.damus.io... ok.
@js:relay.js|import { nip19 } from "nostr-tools";¶const { data: sk } = nip19.decode("«V»");
@chat|My bot's Nostr identity is npub1 something, and the private half is¶«V» so you can sign the release notes with it
=age_identity key «age»
@keyfile:keys.txt|# created: 2026-03-11T09:14:02+01:00¶# public key: age1«x:58»¶«V»
@stdin|$ age -d -i <(echo «V») secrets.env.age > .env¶$ wc -l .env¶18 .env
@sops:flake.nix|sops.age.keyFile = pkgs.writeText "k"¶  "«V»";
=solana_bytes key «solana»
@id:id.json|$ cat ~/.config/solana/id.json¶«V»
@web3:mint.ts|const payer = Keypair.fromSecretKey(Uint8Array.from(¶  «V»));
@recover|$ solana-keygen grind --starts-with co:1¶Wrote keypair to co«b:42».json¶$ cat co*.json¶«V»
=solana_base58 key «phantom»
@export|Phantom > Settings > Show Private Key, this is what it shows for the deployer:
«V»¶fund it with 0.2 SOL and deploy
@bs58:mint.ts|const deployer = Keypair.fromSecretKey(bs58.decode(¶  "«V»"));
@py:mint.py|kp = Keypair.from_base58_string(¶    "«V»")¶print(kp.pubkey())
=eth_private_hex key 0x«h:64»
@cast|$ cast send 0x«h:40» "pause()" --private-key «V» --rpc-url https://mainnet.base.org
status               1 (success)
@wallet:deploy.ts|const wallet = new ethers.Wallet("«V»", provider);
await (await wallet.sendTransaction({ to, value })).wait();
@accounts:hardhat.config.ts|  base: {¶    url: "https://mainnet.base.org",¶    accounts: ["«V»"],¶  },
=bip39_mnemonic key «mnemonic»
@hd:wallet.ts|const owner = HDNodeWallet.fromPhrase(¶  "«V»");
@anvil|$ cast wallet import treasury --mnemonic "«V»"¶Enter password:¶`treasury` keystore was saved successfully.
@prose|Ich stelle das Hardware-Wallet wieder her. Die zwölf Wörter sind:¶«V»
=stellar_seed key «stellar»
@kp:pay.js|const kp = StellarSdk.Keypair.fromSecret("«V»");¶tx.sign(kp);
@cli|$ stellar keys add treasury --seed-phrase-or-key «V»¶Key saved with alias treasury
@py:pay.py|for s in ("«V»",):¶    print(Keypair.from_secret(s).public_key)
=keystore_unlock key «phrase»
@geth|$ geth account import --password <(echo '«V»') raw.hex¶Address: {«h:40»}
@jks|$ keytool -list -keystore release.jks -storepass '«V»'¶Your keystore contains 1 entry
@gradle:app/build.gradle.kts|create("release") {¶    storeFile = file("release.jks")
    storePassword = "«V»"¶    keyAlias = "upload"¶}
=gh_secret_value key «pw:24»
@body|$ gh secret set SIGNING -R «co»/web -b '«V»'¶✓ Set Actions secret SIGNING for «co»/web
@here|$ gh secret set SIGNING --env production <<< '«V»'¶✓ Set Actions secret SIGNING
@pipe|$ printf '%s' '«V»' | gh secret set SIGNING --org «co» --visibility all¶✓ Set Actions secret
=wrangler_value key «b:40»
@echo|$ echo «V» | npx wrangler secret put UPSTREAM¶🌀 Creating the secret for the Worker "edge"
✨ Success! Uploaded secret UPSTREAM
@prompt|$ npx wrangler secret put UPSTREAM¶? Enter a secret value: > «V»¶✨ Success!
@bulk|$ npx wrangler secret bulk <<'J'¶{"UPSTREAM": "«V»"}¶J¶✨ 1 secrets successfully uploaded
=paas_config_value key «b:32»
@heroku|$ heroku config:set -a «co»-web COOKIE_SALT=«V»¶Setting COOKIE_SALT and restarting... done, v88
@fly|$ fly secrets set -a «co»-api SESSION='«V»'¶Secrets are staged for the first deployment
@dokku|$ ssh dokku@apps.«co».io config:set web SALT=«V»¶-----> Setting config vars
=kubectl_literal key «pw:20»
@literal|$ kubectl -n shop create secret generic pg --from-literal=user=shop --from-literal=pw='«V»'¶secret/pg created
@helm|$ helm upgrade pg bitnami/postgresql --set-string auth.postgresPassword='«V»'¶Release "pg" has been upgraded.
@decoded|$ kubectl -n shop get secret pg -o jsonpath='{.data.pw}' | base64 -d¶«V»
=vault_kv_value key «pw:22»
@put|$ vault kv put kv/shop/stripe live='«V»' owner=billing¶======= Metadata =======¶version 4
@get|$ vault kv get -field=live kv/shop/stripe¶«V»
@stdin|$ echo -n '«V»' | vault kv patch kv/shop/stripe live=-¶version 5
=password_manager_item key «pw:20»
@pass|$ pass insert -e infra/router <<< '«V»'¶$ pass ls infra¶infra¶└── router
@op|$ op item create --category login --title Router --vault Infra username=admin 'password=«V»'¶ID: «a:26»
@show|$ pass show infra/router¶«V»¶user: admin¶url: https://10.0.0.1
=redis_auth key «b:28»
@flag|$ redis-cli -h cache.«co».io -a «V» --no-auth-warning info memory¶used_memory_human:1.20G
@command|127.0.0.1:6379> AUTH «V»¶OK¶127.0.0.1:6379> DBSIZE¶(integer) 88123
@conf:redis.conf|appendonly yes¶requirepass «V»¶maxmemory 2gb
=sshpass_value key «phrase»
@flag|$ sshpass -p '«V»' ssh -o StrictHostKeyChecking=no admin@«ip» uptime¶ 09:14:02 up 41 days
@expect:login.exp|spawn ssh admin@«ip»¶expect "assword:"¶send "«V»\r"¶interact
@ansible:hosts.ini|[routers]¶gw1 ansible_host=«ip» ansible_user=admin ansible_ssh_pass=«V»
=openssl_passin key «phrase»
@passin|$ openssl pkcs12 -in wildcard.p12 -nodes -passin pass:'«V»' -out wildcard.pem¶MAC verified OK
@enc|$ openssl enc -d -aes-256-cbc -pbkdf2 -in dump.enc -out dump.sql -k '«V»'¶$ head -1 dump.sql¶BEGIN;
@gpg|$ gpg --batch --pinentry-mode loopback --passphrase '«V»' --sign dist/app.tar.zst¶gpg: using "release@«co».io"
=htpasswd_value key «phrase»
@b|$ htpasswd -b -c /etc/nginx/.htpasswd preview '«V»'¶Adding password for user preview
@url|$ curl -I 'https://preview:«V»@preview.«co».io/'¶HTTP/2 200
@mkpasswd|$ mkpasswd -m sha-512 '«V»'¶$6$«b:16»$«b:86»
=mysql_attached key «b:18»
@p|$ mysqldump -h db.«co».io -ushop -p«V» shop orders > orders.sql
mysqldump: [Warning] Using a password on the command line interface can be insecure.
@cnf:~/.my.cnf|[client]¶user=shop¶password=«V»¶host=db.«co».io
@sql|mysql> CREATE USER 'report'@'%' IDENTIFIED BY '«V»';¶Query OK, 0 rows affected (0.02 sec)
=pgpass_column key «b:20»
@pgpass:~/.pgpass|#hostname:port:database:username:secret¶db.«co».io:5432:shop:report:«V»¶*:5433:*:replica:none
@python:load.py|conn = psycopg2.connect(None, None, "shop", "report",
                        "«V»", "db.«co».io", 5432)
@psql|shop=# ALTER ROLE report WITH LOGIN PASSWORD '«V»';¶ALTER ROLE
=third_column key «b:22»
@tsv:accounts.tsv|portal	login	access¶https://portal.«co».io	ops	«V»¶https://status.«co».io	guest	-
@chap:/etc/ppp/chap-secrets|# client	server	secret	IP addresses¶branch-«d:2»	*	«V»	*
@radius:clients.conf|# RADIUS clients: host  vendor  shared secret¶«ip»  mikrotik  «V»
=fill_login key «phrase»
@playwright:login.spec.ts|await page.goto("https://admin.«co».io/login");¶await page.fill("#user", "ops@«co».io");
await page.fill("#pass", "«V»");
@selenium:login.py|d.find_element(By.ID, "user").send_keys("ops@«co».io")
d.find_element(By.ID, "pass").send_keys("«V»", Keys.ENTER)
@tool|{"name": "browser_type", "input": {"element": "login form, second field", "ref": "e14",
 "text": "«V»", "submit": true}}
=terminal_prompt key «phrase»
@sudo|$ sudo -S systemctl restart nginx <<< '«V»'¶[sudo] password for deploy:¶$ systemctl is-active nginx¶active
@getpass|>>> import getpass¶>>> pw = getpass.getpass()¶Password:¶>>> pw¶'«V»'
@su|$ echo '«V»' | su -c 'id -u' root¶Password: 0
=basic_tuple key «pw:16»
@requests:feed.py|r = requests.get("https://feeds.«co».io/prices.xml", auth=("feedreader", "«V»"))
r.raise_for_status()
@axios:feed.ts|await axios.get("https://feeds.«co».io/prices.xml", {
  auth: { username: "feedreader", password: "«V»" } });
@go:feed.go|req, _ := http.NewRequest("GET", "https://feeds.«co».io/prices.xml", nil)
req.SetBasicAuth("feedreader", "«V»")
=ctor_signing key «b64:48»
@flask:app.py|from itsdangerous import URLSafeTimedSerializer¶¶signer = URLSafeTimedSerializer("«V»", salt="invite")
@jwtsign:auth.js|return jwt.sign({ sub: user.id, role: "admin" },¶  "«V»",¶  { expiresIn: "30d" });
@session:server.ts|app.use(session({ resave: false, name: "sid", secret: [¶  "«V»"] }));
=totp_seed key «t:32»
@oathtool|$ oathtool --totp -b «V»¶«d:6»
@uri|$ zbarimg -q --raw 2fa.png¶otpauth://totp/«Co»:ops?secret=«V»&issuer=«Co»
@pyotp:login.py|code = pyotp.TOTP("«V»").now()¶page.fill("#otp", code)
=recovery_code key «h:5»-«h:5»
@github|GitHub two-factor recovery codes (keep them safe):¶«h:5»-«h:5»¶«V»¶«h:5»-«h:5»
@prose|I lost the phone. One recovery code is left: «V», so use it for the login and¶then print a new set.
@array:break_glass.py|# unused 2FA backup codes of the root account¶BACKUP = ["«V»",¶          "«h:5»-«h:5»"]
=licence_key key «A:5»-«A:5»-«A:5»-«A:5»-«A:5»
@slmgr|PS> slmgr /ipk «V»¶Installed product key successfully.
@call:Program.cs|// paid licence, one seat per developer¶Lumen.Licensing.Register("«Co» GmbH", "«V»");
@mail|Thank you for your order! Your licence for Lumen Pro (25 seats):¶«V»
=session_cookie key s%3A«u:32».«b:43»
@header|$ curl -b 'connect.sid=«V»' https://admin.«co».io/api/users | jq length¶412
@jar:cookies.txt|# Netscape HTTP Cookie File¶#HttpOnly_admin.«co».io	FALSE	/	TRUE	1790000000	connect.sid	«V»
@playwright:state.ts|await context.addCookies([{ name: "connect.sid", domain: "admin.«co».io", path: "/",
  value: "«V»" }]);
=jwt_odd_place key «jwt»
@ws|$ wscat -c wss://live.«co».io/socket -s «V»¶Connected (press CTRL+C to quit)¶< {"hello":1}
@localstorage|> JSON.parse(localStorage.getItem("sb-auth")).at(0)¶'«V»'
@jwtcli|$ jwt decode «V»¶Token claims¶------------¶{ "role": "service_role" }
=laravel_app_key key base64:«b64:32»
@artisan|$ php artisan key:generate --show¶«V»
@ctor:decrypt.php|$enc = new Encrypter(Encrypter::parse(¶    '«V»'), 'AES-256-CBC');
@env:.env|APP_NAME=Shop¶APP_ENV=production¶APP_KEY=«V»¶APP_DEBUG=false
=pkcs8_ed25519 key «pkcs8»
@pem|$ cat deploy.pem¶-----BEGIN PRIVATE KEY-----¶«V»¶-----END PRIVATE KEY-----
@escaped:sa.json|{"type": "service",¶ "k": "-----BEGIN PRIVATE KEY-----\n«V»\n-----END PRIVATE KEY-----\n"}
@der:sign.mjs|const key = createPrivateKey({ format: "der", type: "pkcs8", key: Buffer.from(¶  "«V»", "base64") });
=rails_master_key key «h:32»
@edit|$ cat config/master.key¶«V»
@env|$ RAILS_MASTER_KEY=«V» bin/rails credentials:show | head -2¶aws:¶  bucket: «co»-prod
@kamal:.kamal/hooks/pre-deploy|#!/bin/sh¶# the master key is not in git¶printf %s «V» > config/master.key
=wifi_psk key «phrase»
@nmcli|$ nmcli dev wifi connect "«Co»-Office" password '«V»'¶Device 'wlan0' successfully activated
@wpa:wpa_supplicant.conf|network={¶    ssid="«Co»-Office"¶    psk="«V»"¶}
@esp:main.cpp|void setup() {¶  WiFi.begin("«Co»-Office", "«V»");¶  while (WiFi.status() != WL_CONNECTED) delay(200);¶}
=restic_repo key «words»
@env|$ RESTIC_PASSWORD='«V»' restic -r s3:s3.amazonaws.com/«co»-bak snapshots¶14 snapshots
@borg|$ borg mount ssh://bak@«ip#i»/./repo /mnt¶Enter passphrase for key ssh://bak@«ip#i»/./repo: «V»
@rclone|$ rclone config create vault crypt remote=s3:«co» password=$(rclone obscure '«V»')¶[vault]
=kafka_jaas key «pw:20»
@jaas:producer.properties|sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="etl" password="«V»";
@rust:main.rs|let etl = Sasl::scram512("etl", "«V»");¶Producer::connect(&brokers, etl).await?;
@scripts|$ kafka-configs.sh --alter --entity-type users --entity-name etl \
    --add-config 'SCRAM-SHA-512=[iterations=8192,password=«V»]'
=smtp_positional key «pw:16»
@py:alert.py|s = smtplib.SMTP_SSL("mail.«co».io", 465)¶s.login("alerts@«co».io", "«V»")
@go:alert.go|auth := smtp.PlainAuth("", "alerts@«co».io",¶	"«V»", "mail.«co».io")
@swaks|$ swaks --to ops@«co».io -s mail.«co».io -tls -au alerts -ap '«V»'¶<~  235 2.7.0 ok
=gmail_app_password key «l:4» «l:4» «l:4» «l:4»
@login:imap.py|m = imaplib.IMAP4_SSL("imap.gmail.com")¶m.login("«co».reports@gmail.com", "«V»")
@prose|Google gave me this 16 letter app code for the mail script: «V»¶It is for reports only, 2FA stays on.
@mutt:~/.muttrc|set imap_user = "«co».reports@gmail.com"¶set imap_pass = "«V»"¶set folder = "imaps://imap.gmail.com/"
"""

_PROSE_HOSTS_NUMBERS = r"""
=prose_en_login prose «phrase»
@slash|The preview is behind a login. login is admin / «V»¶Take a screenshot of the billing page please.
@colon|user:pass on staging is qa-lead:«V»¶prod uses SSO so leave that alone
@answer|I signed in to the CMS with the user `editor` and «V», as you told me,¶and published the three drafts.
=prose_en_pin prose «n:1»«d:5»
@door|Add to the onboarding page: office door code is «V» then the hash key,¶alarm has to be off before 7.
@vm|The voicemail box asks for a PIN, mine is «V».¶Fetch the message and transcribe it.
@sim|modem says SIM PIN required¶-> it's «V», three tries only so be careful
=prose_de_passwort prose «phrase»
@lautet|Kannst du dich auf dem Testserver anmelden? Benutzer ist admin, das Passwort lautet «V»
und bitte nichts löschen.
@kennwort|Kennwort vom NAS hat sich geändert: «V»¶Der Mount in /etc/fstab muss also angepasst werden.
@zugang|Zugangsdaten fürs Staging hab ich grade bekommen,¶kunde / «V»¶danach bitte die Bilder prüfen
=prose_fr_mdp prose «phrase»
@est|Le mot de passe du serveur de recette est «V», le compte c'est deploy.¶Relance la migration stp.
@mdp|mdp : «V»¶(pour l'admin du back-office, à changer après la démo)
@identifiants|Pour te connecter à la préprod, identifiants client / «V»¶et tu me dis si le panier marche.
=prose_es_clave prose «phrase»
@clave|La clave del wifi de la oficina es «V»¶y la impresora está en la misma red.
@contrasena|usuario: soporte¶contraseña «V»¶entra en el panel y mira los errores de ayer
@acceso|He cambiado el acceso al FTP, ahora se entra con «V» (usuario web).¶Sube el build cuando puedas.
=prose_it_password prose «phrase»
@e|La password del pannello è «V», l'utente resta amministratore.¶Controlla i log dell'ultima notte.
@accedi|accedi con magazzino / «V»¶poi esporta il listino in CSV
@nuova|Ho reimpostato quella del database, nuova: «V»¶aggiorna il compose e riavvia.
=prose_pl_haslo prose «phrase»
@haslo|Hasło do panelu to «V», login: biuro.¶Sprawdź proszę, dlaczego faktury się nie generują.
@nowe|nowe hasło na serwerze testowym: «V»¶stare już nie działa
@dostep|Dostęp do bazy: raport / «V»¶tylko odczyt, więc śmiało odpytuj
=prose_pt_senha prose «phrase»
@senha|A senha do servidor de homologação é «V»¶o usuário continua sendo deploy.
@entra|entra com suporte / «V» no painel¶e confere os pedidos de ontem
@mudei|Mudei a senha do roteador pra «V», anota aí.¶Agora configura o DHCP.
=prose_nl_wachtwoord prose «phrase»
@is|Het wachtwoord van de acceptatieomgeving is «V»¶gebruiker: beheer. Draai daarna de smoketest.
@inlog|inloggen met demo / «V»¶en kijk of de facturen kloppen
@ww|ww voor de printserver: «V»¶hij hangt weer, graag herstarten
=prose_ja_pass prose «phrase»
@wa|ステージングのパスワードは «V» です。¶ユーザー名は admin のままです。
@login|管理画面に入れません。ID は ops、パスは «V» で合っているはずです。¶確認をお願いします。
@wifi|会議室の Wi-Fi の暗号化キー: «V»¶デモの前に接続を確認してください
=prose_spoken_credential prose «words»
@bitlocker|The laptop's disk asks for a passphrase at boot, I always type «V»
so put that into the LUKS header of the new disk too.
@vpn|vpn pw changed yesterday, now «V»¶reconnect and retry the migration
@assistant|Done. The new database user is `reporting`; I set its passphrase to «V»
and you should store it in your password manager now.
=internal_fqdn host «role»-«d:2».«site».int.«co».net
@ping|$ ping -c1 «V»¶PING «V» («ten») 56(84) bytes of data.
@conf:haproxy.cfg|backend ledger¶    balance leastconn¶    server a «V»:8443 check ssl verify none
@prose|The job hangs as soon as it reaches «V»; from my desk the port is open.¶Can you add a timeout to the client?
=corp_service host «role».corp.«co».com
@resolv|$ dig +short «V»¶«ten»
@url:settings.py|AUDIT_SINK = "https://«V»/v2/ingest"¶AUDIT_BATCH = 500
@cert|$ openssl s_client -connect «V»:443 </dev/null 2>/dev/null | openssl x509 -noout -subject¶subject=CN=«V»
=laptop_host host «Cap»s-MacBook-Pro.local
@prompt|«first»@«V» ~ % sw_vers -productVersion¶26.3.1
@scutil|$ hostname¶«V»¶$ uptime¶10:14  up 6 days, 3 users
@log|Mar 11 09:14:02 «V» sshd-session[4117]: Connection closed by 192.0.2.7 port 50022
Mar 11 09:14:09 «V» launchd[1]: exited
=windows_laptop host DESKTOP-«A:7»
@prompt|PS C:\src\web> hostname¶«V»
@rdp:office.rdp|screen mode id:i:2¶full address:s:«V»¶username:s:AzureAD\ops
@event|LogName: Security  EventID: 4624¶Workstation Name: «V»¶Logon Type: 3
=production_ip host «ip»
@ssh|$ ssh -p 2222 deploy@«V»¶Welcome to Ubuntu 26.04 LTS¶Last login: Tue Mar 10 18:22:01 2026
@inventory:hosts.yml|prod:¶  hosts:¶    web1: { ansible_host: «V», ansible_port: 2222 }
@dns|$ dig +short origin.«co».io¶«V»¶the origin must not be reachable without the proxy
=rds_endpoint host «co»-prod.c«a:11».eu-central-1.rds.amazonaws.com
@psql|$ psql "host=«V» dbname=shop user=report sslmode=verify-full" -c 'select 1'¶ ?column?¶----------¶        1
@tf|$ terraform output -raw db_endpoint¶«V»
@url:database.yml|production:¶  url: postgres://report@«V»:5432/shop
=tailnet_name host «role»-«d:2».tail«h:6».ts.net
@ssh|$ tailscale ssh root@«V» -- zpool status -x¶all pools are healthy
@serve|$ tailscale serve --bg 3000¶Available within your tailnet:¶https://«V»/
@config:~/.ssh/config|Host nas¶    HostName «V»¶    User root
=connection_string host mongodb+srv://shop:«b:18»@«co».«a:5».mongodb.net/shop
@mongosh|$ mongosh "«V»" --eval 'db.orders.countDocuments()'¶1840223
@client:db.ts|const mongo = new MongoClient(¶  "«V»");¶await mongo.connect();
@compose:compose.yaml|  worker:¶    image: «co»/worker¶    command: ["worker", "«V»"]
=payment_card number «card»
@expiry|Die Karte im Portal ist abgelaufen, bitte die neue eintragen:¶«V», gültig bis «exp», CVC «d:3»
@checkout:checkout.spec.ts|// my own card, the sandbox ones are refused in live mode
await page.fill("[name=cardnumber]", "«V»");¶await page.fill("[name=exp]", "«exp»");
@ticket|Customer writes: "you charged me twice, card «V» exp «exp»"¶-> refund the second charge
=iban number «iban»
@prose|Bitte auf dieses Konto überweisen: «V», Kontoinhaberin «Full».¶Danach die Rechnung als bezahlt markieren.
@csv:payroll.csv|name;iban;amount¶«Full»;«V»;3120,40¶total;;3120,40
@pain|<CdtrAcct>¶  <Id><IBAN>«V»</IBAN></Id>¶</CdtrAcct>¶<Cdtr><Nm>«Full»</Nm></Cdtr>
=phone_of_person number «mobile»
@card|«Full»¶Site Reliability, «Co»¶Mobil: «V»
@json:oncall.json|[{"who": "«Full»", "call": "«V»"},¶ {"who": "service desk", "call": "ext 400"}]
@prose|If the deploy fails again tonight ring «First» on «V»¶and not the general line.
=spanish_dni number «dni»
@form|Nombre: «Full»¶DNI: «V»¶Fecha: «day»
@sql|INSERT INTO empleado (nombre, documento, alta) VALUES¶  ('«Full»', '«V»', DATE '«day»');
@prose|La factura va a nombre de «Full», con DNI «V».¶Genera el PDF y guárdalo en /tmp.
=german_tax_id number «steuer»
@letter|Sehr geehrte Damen und Herren,¶meine Steuer-ID ist «V», geboren in Kassel.¶Mit freundlichen Grüßen, «Full»
@xml:elster.xml|<Person>¶  <Name>«Full»</Name>¶  <IdNr>«V»</IdNr>¶</Person>
@csv:lohn.csv|Mitarbeiter;Steueridentifikationsnummer;Klasse¶«Full»;«V»;1
=french_nir number «nir»
@fiche|Bulletin de paie¶Salarié : «Full»¶N° de sécurité sociale : «V»
@json:dsn.json|{"salarie": "«Full»",¶ "nir": "«V»", "contrat": "CDI"}
@prose|Mon numéro de sécu c'est «V», remplis le formulaire CPAM avec¶et mets mon nom, «Full».
=polish_pesel number «pesel»
@form|Imię i nazwisko: «Full»¶PESEL: «V»¶Oddział NFZ: 07
@py:seed.py|# prawdziwa osoba, z umowy¶Pracownik("«Full»", pesel="«V»", etat=1.0)
@prose|Do umowy wpisz mój PESEL «V» i adres z dowodu.¶Resztę zostaw jak była.
=brazilian_cpf number «cpf»
@form|Nome: «Full»¶CPF: «V»¶Situação: regular
@log|INFO kyc: verificando titular "«Full»" cpf=«V»¶INFO kyc: resultado=APROVADO
@pix|Faz o Pix para «Full», a chave é o CPF «V»¶e me manda o comprovante.
"""

_PEOPLE = r"""
=posix_id_login name «login»
@id|$ id¶uid=1000(«V») gid=1000(«V») groups=1000(«V»),27(sudo),998(docker)
@passwd|$ getent passwd 1001¶«V»:x:1001:1001:«Full»,,,:/srv/home/x:/bin/zsh
@whoami|$ whoami && pwd¶«V»¶/srv/web
=home_of_user name «last»«initial»
@env|$ env | head -3¶SHELL=/bin/zsh¶HOME=/home/«V»¶LANG=de_DE.UTF-8
@macos|    at Object.<anonymous> (/Users/«V»/code/web/src/server.ts:14:9)¶    at node:internal/main:28:49
@slug|$ ls ~/.claude/projects¶-Users-«V»-code-web¶-srv-api
=windows_user name «login»
@profile|PS> $env:USERPROFILE¶C:\Users\«V»
@unc|PS> Copy-Item \\fs01\home$\«V»\report.xlsx .¶PS> (Get-Item report.xlsx).Length¶48211
@wsl|$ wslpath -u 'C:\Users\«V»\Downloads\db.zip'¶/mnt/c/Users/«V»/Downloads/db.zip
=wsl_json_path name «login»
@json:launch.json|{¶  "program": "C:\\Users\\«V»\\source\\repos\\Api\\bin\\Api.dll"¶}
@network|$ code --status¶Workspace: \\wsl.localhost\Ubuntu\home\«V»\web
@domain|PS> whoami¶«co»\«V»¶PS> [Environment]::MachineName¶BUILD01
=git_author name «Full»
@log|commit «h:40»¶Author: «V» <«login»@«co».io>¶Date:   Tue Mar 10 18:22:01 2026 +0100¶¶    Round the tax per line
@shortlog|$ git shortlog -sn --since=2026-01-01¶   214  «V»¶    31  dependabot[bot]
@pretty|$ git log -2 --pretty='%h|%an|%ar|%s'¶«h:9»|«V»|3 hours ago|Round the tax per line
«h:9»|renovate[bot]|5 hours ago|Update vite
=git_blame_author name «Full»
@blame|$ git blame -L 14,15 src/tax.ts¶«h:8» («V» «day» 09:14:02 +0100 14) export const rate = 0.19;
00000000 (Not Committed Yet «day» 10:00:00 +0100 15)
@config|$ git config --get-regexp '^user'¶user.name «V»¶user.email «login»@«co».io
@patch|From «h:40» Mon Sep 17 00:00:00 2001¶From: «V» <«login»@«co».io>
Date: Tue, 10 Mar 2026 18:22:01 +0100¶Subject: [PATCH] Round the tax per line
=commit_trailer name «Full»
@coauthor|Round the tax per line¶¶Fixes #481¶Co-authored-by: «V» <«login»@users.noreply.github.com>
@signedoff|$ git commit -s --amend --no-edit && git log -1 --format=%B | tail -1¶Signed-off-by: «V» <«login»@«co».io>
@reviewed|mm: fix leak in error path¶¶Reviewed-by: «V» <«login»@«co».io>¶Link: https://lore.kernel.org/r/1
=noreply_login name «handle»
@addr|$ git config user.email¶«d:8»+«V»@users.noreply.github.com
@merge|Merge pull request #481 from «V»/fix-rounding¶¶Round the tax per line
@gitlab|author_email: «d:7»-«V»@users.noreply.gitlab.com¶message: Round the tax per line
=jira_person name «Full»
@issue|{"key": "CORE-481", "fields": {"assignee": {"displayName": "«V»", "active": true,
 "timeZone": "Europe/Berlin"}, "status": {"name": "In Progress"}}}
@table|$ jira issue list -q 'sprint in openSprints()' --plain¶TYPE	KEY	SUMMARY	ASSIGNEE
Bug	CORE-481	Fix rounding	«V»
@comment|CORE-481, comment of «day»¶«V» wrote:¶> still wrong for three positions
=linear_person name «Full»
@mcp|{"identifier": "ENG-77", "title": "Fix rounding", "assignee": "«V»", "assigneeId": "«uuid»",
 "gitBranchName": "eng-77-fix-rounding"}
@graphql|{"data": {"issue": {"creator": {"name": "«V»", "displayName": "«first»"}, "state": {"name": "Todo"}}}}
(1 result)
@activity|ENG-77 activity¶- «V» moved from Todo to In Progress · 2h ago¶- Linear linked PR #481 · 1h ago
=github_json_login name «handle»
@rest|$ gh api repos/«co»/web/pulls/481 --jq '{n: .number, by: .user.login}'¶{"by":"«V»","n":481}
@graphql|{"data":{"repository":{"pullRequest":{"author":{"login":"«V»"},"reviewDecision":"APPROVED"}}}}¶$ echo $?¶0
@prlist|$ gh pr view 481¶Round the tax per line #481¶Open • «V» wants to merge 1 commit into main from fix-rounding
=gitlab_json_person name «Full»
@json|{"iid": 48, "author": {"id": «d:6», "username": "«handle»", "name": "«V»", "state": "active"}}¶HTTP 200
@glab|$ glab mr view 48¶open • opened by «handle» («V») about 2 hours ago¶Round the tax per line !48
@discussion|Resolved by «V» 12 minutes ago¶src/tax.ts · line 14
=branch_prefix name «handle»
@branch|$ git branch -r¶  origin/main¶  origin/«V»/fix-rounding¶  origin/«V»/spike-vat
@push|$ git push -u origin HEAD¶ * [new branch]      «V»/fix-rounding -> «V»/fix-rounding
@preview|✔ Preview ready¶https://web-git-«V»-fix-rounding-«co».vercel.app
=ls_owner name «login»
@ls|$ ls -l¶-rw-r--r--  1 «V»  staff   1204 Mar 10 18:22 package.json¶drwxr-xr-x  9 «V»  staff    288 Mar 10 18:22 src
@stat|$ stat -c '%U %a %n' dist/app.js¶«V» 644 dist/app.js
@tar|$ tar tvf site.tgz | head -2¶-rw-r--r-- «V»/users 812 2026-03-10 18:22 site/index.html
drwxr-xr-x «V»/users   0 2026-03-10 18:22 site/
=process_owner name «login»
@ps|$ ps aux | grep vite¶«V»   4117  2.1  1.4 1180232 91204 ?  Sl  09:14  0:12 node vite
@last|$ last -n 2¶«V»   pts/0        192.0.2.7        Tue Mar 10 18:22   still logged in¶reboot   system boot  6.18.4
@lsof|$ lsof -i :5173¶COMMAND   PID USER   FD  TYPE DEVICE¶node     4117 «V»  23u  IPv6 0x0t0 TCP *:5173 (LISTEN)
=mail_address_person name «Full»
@header|From: «V» <«login»@«co».io>¶To: support@«co».io¶Subject: rounding
@maintainers:setup.cfg|[metadata]¶name = lumen¶maintainer = «V» <«login»@«co».io>
@debian:debian/changelog|lumen (0.4.1-1) unstable; urgency=medium¶¶  * Round the tax per line.¶
 -- «V» <«login»@«co».io>  Tue, 10 Mar 2026 18:22:01 +0100
=package_author name «Full»
@npm:package.json|{¶  "name": "@«co»/tax",¶  "author": "«V» <«login»@«co».io>",¶  "license": "UNLICENSED"¶}
@pyproject:pyproject.toml|[project]¶name = "tax"¶authors = [{ name = "«V»" }]
@composer:composer.json|{"name": "«co»/tax",¶ "authors": [{"name": "«V»", "role": "Developer"}]}
=codeowner name «handle»
@codeowners:.github/CODEOWNERS|# tax¶/src/tax/   @«V»¶/docs/      @«co»/writers
@dependabot:.github/dependabot.yml|updates:¶  - package-ecosystem: npm¶    directory: /¶    reviewers: ["«V»"]
@mention|@«V» could you look at the rounding once more?¶— review comment on src/tax.ts
=prompt_user name «login»
@bash|«V»@build-«d:2»:~/web$ make lint¶All checks passed!
@ssh:~/.ssh/config|Host bastion¶    HostName bastion.«co».io¶    User «V»
@rsync|$ rsync -a dist/ «V»@files.«co».io:/srv/www/¶$ echo $?¶0
=todo_owner name «login»
@todo:tax.go|func round(c int64) int64 {¶	// TODO(«V»): per line, not per order¶	return c / 100¶}
@cron|$ sudo crontab -u «V» -l¶0 7 * * 1-5 /srv/bin/report
@authorized:authorized_keys|ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI«b:43» «V»@workstation¶# deploy key below
=spoken_person name «Full»
@chat|«V» from accounting says the invoice totals are off by a cent.¶Please look at src/tax.ts.
@standup|Standup, «day»¶- «V»: rounding, then holiday from Thursday¶- bot: dependency updates
@signature|Looks fine to me, ship it.¶¶Viele Grüße¶«V»
"""

_DECOYS = r"""
i18n_key|"auth.signIn.passwordForgotten": "Forgot your password?",¶"auth.signIn.tokenExpired": "The link has expired.",
aws_doc_pair|aws_access_key_id = AKIA¬IOSFODNN7EXAMPLE¶aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
base64_gif|.spacer { background: url(data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7) }
sentry_public_dsn|Sentry.init({ dsn: "https://«h:32»@o4«d:5».ingest.de.sentry.io/«d:7»" }); // public, in the bundle
stripe_doc_key|# from the Stripe docs: curl https://api.stripe.com/v1/charges -u sk¬_test_4eC39HqLyjWDarjtT1zdp7dc:
minified_js|!function(e,t){"object"==typeof exports?t(exports):t(e.q={})}(this,function(e){e.x=«n:1»«d:2»;e.y=t=>t|0});
bip39_doc|# BIP-39: abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about
function_names|def reset_password_token(user: User) -> str: ...¶def verify_password_hash(raw: str) -> bool: ...
tailwind|<button className="rounded-2xl bg-indigo-600 px-4 py-2 text-sm hover:bg-indigo-500 focus:outline-2">
prose_password_talk|The password must have twelve characters; never log it, and store only the argon2id hash.
byte_table|static const uint8_t sbox[16] = { 0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01 };
sql_ddl|CREATE TABLE api_token (¶  id uuid PRIMARY KEY,¶  token_hash char(64) NOT NULL,¶  password text¶);
signed_url_code|url, err := bucket.SignedURL(name, &storage.SignedURLOptions{Method: "GET", Expires: exp})
tailwind_arbitrary|<div class="grid-cols-[minmax(0,1fr)_280px] bg-[#«h:6»] data-[state=open]:animate-in">
placeholder_slack|SLACK_URL=https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX
k8s_secret_ref|env:¶  - name: DB_PASSWORD¶    valueFrom:¶      secretKeyRef: { name: pg, key: password }
svg_path|<path d="M12 2C6.48 2 2 6.48 2 12s4.48 10 10 10 10-4.48 10-10S17.52 2 12 2zm1 15h-2v-6h2v6z"/>
env_csharp|var key = builder.Configuration["Cerebras:ApiKey"] ?? throw new InvalidOperationException();
token_counts|"usage": {"input_tokens": 1«d:4», "output_tokens": 2«d:3», "cache_read_input_tokens": 4«d:5»}
prose_rotation|Please rotate the API key after the release and tell the team, I will not paste it here.
prose_key_question|Is the key of the cache the user id or the slug? I think the key is `tenant:locale`.
xcode_ref|«H:24» /* Tax.swift in Sources */ = {isa = PBXBuildFile; fileRef = «H:24» /* Tax.swift */; };
fixture_login|curl -d '{"email":"user@example.com","password":"hunter2"}' http://localhost:3000/login
openapi|      securitySchemes:¶        bearerAuth: { type: http, scheme: bearer, bearerFormat: JWT }
go_sum|golang.org/x/crypto v0.«d:2».0 h1:«b64:32»¶golang.org/x/crypto v0.«d:2».0/go.mod h1:«b64:32»
iban_doc|it("accepts the IBAN of the Wikipedia article", () => ok("GB82 WEST 1234 5698 7654 32"));
i18n_de|"passwort.aendern.titel": "Passwort ändern",¶"passwort.regel": "Mindestens zwölf Zeichen"
fixture_postgres|    environment:¶      POSTGRES_USER: postgres¶      POSTGRES_PASSWORD: postgres
placeholder_sas|https://<account>.blob.core.windows.net/<container>?sv=2025-11-05&sig=<signature>
cmd_gh_secret|$ gh secret list¶SIGNING   about 2 months ago¶$ gh secret set SIGNING < signing.key
cmd_docker_login|echo "$REGISTRY_PASS" | docker login -u ci --password-stdin registry.example.com
cmd_openssl_rand|Generate one with `openssl rand -hex 32` and put it into your password manager.
ts_types|interface Credentials { accessToken: string; refreshToken?: string; expiresAt: number }
git_sha_short|$ git log --oneline -2¶«h:9» Round the tax per line¶«h:9» Update vite to «semver»
wasm_bytes|const wasm = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127]);
cmd_aws|$ aws configure list¶      Name                    Value             Type    Location
k8s_secret_list|$ kubectl get secrets¶NAME   TYPE     DATA   AGE¶pg     Opaque   2      41d¦ami_id|ami = "ami-0«h:16»"
prose_fr|Le mot de passe est demandé au démarrage, il ne faut pas l'écrire dans le fichier.
sri_hash|<script integrity="sha384-«b64:48»" crossorigin="anonymous" src="/v.js"></script>
error_401|{"error": {"code": "invalid_api_key", "message": "Incorrect API key provided."}}
public_key_pem|-----BEGIN PUBLIC KEY-----¶MCowBQYDK2VwAyEA«s:43»=¶-----END PUBLIC KEY-----
cmd_wrangler|$ npx wrangler secret list¶[ { "name": "UPSTREAM", "type": "secret_text" } ]¦ipfs_cid|ipfs://bafybei«i:52»
readme_step|3. Create a token with `repo` scope and put it into `.env` as `GITHUB_TOKEN`.
keccak_topic|topics: [0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef]
guid_solution|Project("{FAE04EC0-301F-11D3-BF4B-00C04F79EFBC}") = "Api", "Api\Api.csproj"
publishable_posthog|posthog.init("phc_«b:43»", { api_host: "https://eu.i.posthog.com" })
proto_schema|message Login { string user = 1; string password = 2; bytes otp_seed = 3; }
import_line|from fastapi.security import OAuth2PasswordBearer, OAuth2PasswordRequestForm
env_rust|let token = std::env::var("CRATES_TOKEN").context("CRATES_TOKEN is not set")?;
npm_resolved|"resolved": "https://registry.npmjs.org/vite/-/vite-«semver».tgz#«h:40»",¦barcode|sku: "«luhn»", stock: 14
prisma_schema|  passwordHash String   @db.VarChar(255)¶  apiKey       String?  @unique
bot_author|Author: dependabot[bot] <49699333+dependabot[bot]@users.noreply.github.com>
tool_use_id|{"type": "tool_result", "tool_use_id": "toolu_01«b:22»", "content": "ok"}¦git_sha|commit «h:40»¶tree «h:40»
gitlab_ci_var|  script: docker login -u gitlab-ci-token -p $CI_JOB_TOKEN $CI_REGISTRY¦next_build_id|"buildId": "«u:21»"
error_wrong_password|psql: FATAL:  password authentication failed for user "postgres"¦ga_id|gtag("config", "G-«A:10»");
public_host|GET https://api.github.com/rate_limit¶GET https://registry.npmjs.org/vite
span_log|{"level": "info", "trace_id": "«h:32»", "span_id": "«h:16»", "msg": "done"}
graphql_schema|type Mutation { signIn(email: String!, password: String!): Session! }
nanoid|const roomId = "«u:21»"; // a document in the editor, shared in the open demo
pip_names|Successfully installed passlib-1.7.4 python-jose-3.5.0 itsdangerous-2.2.0¦ulid|event 01«c:24» handled in 4 ms
base64_png|<img alt="" src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUg«s:120»=">¦nuget_lock|"contentHash": "«b64:64»"
base64_font|src: url(data:font/woff2;base64,d09GMgABAAAAA«s:160») format("woff2");
hardhat_account|Account #0: 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 (10000 ETH)
prose_de|Das Passwort steht im Tresor, bitte nicht in die Konfiguration schreiben.
message_id|{"id": "msg_01«b:22»", "role": "assistant", "stop_reason": "end_turn"}¦request_id|x-request-id: req_01«b:22»
poetry_lock|    {file = "attrs-25.4.0-py3-none-any.whl", hash = "sha256:«h:64»"},
k8s_pod|NAME                    READY   STATUS¶web-«z:10»-«z:5»   1/1     Running
fixture_password|user = User.objects.create_user("alice", password="password123")
placeholder_angle|api_key = "<YOUR_API_KEY>"¶base_url = "https://api.example.com"
regex_secret|PATTERN = re.compile(r"\bsk-[A-Za-z0-9]{20,}\b|ghp_[A-Za-z0-9]{36}")
docker_pull|Digest: sha256:«h:64»¶Status: Downloaded newer image for postgres:18
test_card|// Stripe's test card¶await page.fill("#card", "4242 4242 4242 4242");
prose_no_value|The login is in 1Password under "Staging", the PIN comes by post.
service_mail|For questions write to support@example.com or security@example.org.
docker_ps|CONTAINER ID   IMAGE         STATUS¶«h:12»   postgres:18   Up 2 hours¦gradle_sum|distributionSha256Sum=«h:64»
rust_struct|struct Secrets {¶    api_key: SecretString,¶    webhook_url: Url,¶}
json_schema|"password": {"type": "string", "minLength": 12, "writeOnly": true},
jwks_public|{"kty": "OKP", "crv": "Ed25519", "kid": "«h:16»", "x": "«b64u:32»"}
cargo_lock|[[package]]¶name = "serde"¶version = "«semver»"¶checksum = "«h:64»"¦yarn_berry_lock|  checksum: 10c0/«h:128»
iban_lengths|IBAN_LENGTHS = {"DE": 22, "FR": 27, "ES": 24, "PL": 28, "GB": 22}
model_weights|model-00001-of-00004.safetensors: 100% 4.98G/4.98G [01:12<00:00]
fixture_dsn|DATABASE_URL=postgres://postgres:postgres@localhost:5432/app_test¦git_stash|Dropped refs/stash@{0} («h:40»)
label_locator|await page.getByLabel("Password").fill(process.env.E2E_PASS!);¦sentry_event|event_id: «h:32»¶level: error
package_names|npm i jsonwebtoken bcryptjs @node-rs/argon2 password-validator¦firebase_app|appId: "1:«d:12»:web:«h:22»",
placeholder_xs|export GITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx¦epoch|"createdAt": 17«d:8»000, "ttl": 86400
cmd_openssl|openssl pkcs12 -in a.p12 -passin env:P12_PASS -nodes -out a.pem
timings|real	0m12.«d:3»s¶user	0m41.«d:3»s
zod_schema|password: z.string().min(12).max(128),¶token: z.string().uuid(),
loopback|listening on http://127.0.0.1:«n:1»«d:3» and http://localhost:3000
prose_es|La contraseña se pide al arrancar y no se guarda en ningún sitio.¦uuid_route|GET /api/invoices/«uuid» 200 14ms
cmd_npm_token|npm config get //registry.npmjs.org/:_authToken¶(protected)¦git_submodule| «h:40» vendor/zstd (v«semver»)
css_tokens|"tokens": {"color.brand.primary": "#«h:6»", "space.4": "16px"}¦npm_integrity|"integrity": "sha512-«b64:64»",
error_expired|jwt.exceptions.ExpiredSignatureError: Signature has expired¦docker_digest|FROM node:24-slim@sha256:«h:64»
git_index|diff --git a/src/tax.ts b/src/tax.ts¶index «h:9»..«h:9» 100644¦uuid_fixture|const ids = ["«uuid»", "«uuid»"];
build_chunk|<script src="/_next/static/chunks/«h:16».js" async></script>¦etag|etag: W/"«h:40»"¶cache-control: max-age=0
placeholder_stars|Token: ****************«h:4»¶- Logged in to github.com¦cf_ray|cf-ray: «h:16»-FRA¶cf-cache-status: HIT
figma_file|https://www.figma.com/design/«b:22»/Checkout?node-id=12-«d:3»¦age_recipient|# a recipient, public¶age1«x:58»
cookie_attrs|Set-Cookie: sid=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax¦svelte_class|<p class="svelte-«a:7»">Save</p>
csrf_meta_template|<meta name="csrf-token" content="{{ csrf_token() }}">¦env_php|'password' => env('DB_PASSWORD', ''),
openai_response_id|"id": "chatcmpl-«b:29»", "object": "chat.completion"¦sha256sum|$ sha256sum dist.tgz¶«h:64»  dist.tgz
pnpm_lock|  vite@«semver»:¶    resolution: {integrity: sha512-«b64:64»}¦snapshot_hash|exports[`digest 1`] = `"«h:64»"`;
rgb_list|palette = [[«d:2», 114, 210], [98, «d:2», 41], [250, 201, 16]]¦eth_address|contract Token deployed to 0x«h:40»
recaptcha_site|<div class="g-recaptcha" data-sitekey="6Ld«u:37»"></div>¦mongo_oid|{ _id: ObjectId("«h:24»"), qty: 4 }
iban_regex|IBAN_RE = re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}")¦traceparent|traceparent: 00-«h:32»-«h:16»-01
env_shell|curl -H "Authorization: Bearer ${DEPLOY_TOKEN}" "$API/health"
version_string|Python 3.13.2 (main, Feb  4 2026, 10:11:12) [GCC 15.2.0]
phone_like|range 1«d:2»-2«d:3», rows 555 and 0199¶offset 1720 0418 2210
test_id|await page.getByTestId("login-password-toggle-«d:2»").click();¦date_stamp|«day»T«clock»Z INFO started in 812 ms
publishable_stripe|const stripe = await loadStripe("pk¬_test_«b:24»");¦dns_public|nameserver 1.1.1.1¶nameserver 8.8.8.8
publishable_supabase|createBrowserClient(url, "sb_publishable_«u:31»")¦root_user|uid=0(root) gid=0(root) groups=0(root)
helm_template|  password: {{ .Values.auth.password | b64enc | quote }}
prose_both|Use login and password as the field names, not user / pass.
gha_secret|        env:¶          NPM_TOKEN: ${{ secrets.NPM_TOKEN }}¦youtube_id|https://www.youtube.com/watch?v=«u:11»
ansible_lookup|ansible_password: "{{ lookup('env', 'ROUTER_PASS') }}"¦lorem_words|title = "«noun» «noun» «noun» «noun»"
tokenizer|tokens = [1«d:4», 4«d:3», 2«d:4», 13]¶tokenizer.decode(tokens)
webhook_route|app.post("/hooks/:token", verifySignature, handleHook);
runner_home|/home/runner/work/web/web/src/tax.ts:14:9 - error TS2322¦pip_hashes|ruff==0.14.2 \¶    --hash=sha256:«h:64»
terraform_lock|  hashes = [¶    "h1:«b64:32»",¶    "zh:«h:64»",¶  ]¦k8s_configmap_hash|configmap/web-env-«z:10» created
build_asset|dist/assets/index-«u:8».js   142.11 kB │ gzip: 46.02 kB¦bcrypt_cost|BCRYPT_ROUNDS=12¶PASSWORD_MIN_LENGTH=12
publishable_clerk|NEXT_PUBLIC_CLERK_PUBLISHABLE_KEY=pk¬_test_«b:50»¦aws_resource|subnet-0«h:16» vpc-0«h:16» sg-0«h:16»
upgrade_branch|renovate/vite-7.x¶dependabot/npm_and_yarn/zod-4.1.0¦git_range|   «h:9»..«h:9»  main       -> origin/main
container_home|WORKDIR /home/node/app¶COPY --chown=node:node . .¦nix_store|/nix/store/«a:32»-python3-3.13.2/bin/python3
uuid_session_file|$ ls ~/.claude/projects/-srv-web¶«uuid».jsonl¦aws_request_id|START RequestId: «uuid» Version: $LATEST
op_reference|DATABASE_URL="op://Prod/shop-db/connection-string"¦source_map_hash|//# sourceMappingURL=main.«h:20».js.map
dvc_md5|outs:¶- md5: «h:32»¶  size: «n:1»«d:6»¶  path: data.csv¦crash_addr|#0 0x00007f«h:10» in raise () from libc.so.6
csp_hash|Content-Security-Policy: script-src 'sha256-«b64:32»'¦md5sum|«h:32»  ./fixtures/a.bin¶«h:32»  ./fixtures/b.bin
fixture_token|headers = {"Authorization": "Bearer test-token"}¦preview_slug|docker compose -p «noun»-«noun»-«d:4» up -d
terraform_var|provider "grafana" {¶  auth = var.grafana_auth¶}¦env_ts|const client = new Exa(process.env.EXA_API_KEY!);
sql_param|UPDATE account SET password_hash = $1 WHERE id = $2;¦ansible_vault_ref|db_password: "{{ vault_db_password }}"
wg_public|[Peer]¶PublicKey = «b64:32»¶AllowedIPs = 10.8.0.2/32¦vault_reference|  value: vault:secret/data/shop#password
branch_name|$ git switch -c feature/rotate-api-key-docs-«d:3»¦git_rebase_todo|pick «h:9» Round the tax¶fixup «h:9» typo
kebab_slug|/blog/how-we-moved-«noun»-«noun»-to-the-edge-«d:4»¦flake_lock|"narHash": "sha256-«b64:32»", "rev": "«h:40»",
regex_gitleaks|regex = "AKIA[0-9A-Z]{16}"¶keywords = ["akia"]¦bun_lock|"zod": ["zod@4.1.0", "", {}, "sha512-«b64:64»"],
root_ls|-rw-r--r-- 1 root root 1204 Mar 10 18:22 package.json¦styled_class|<span class="sc-«a:6» «b:6»">12 items</span>
fixture_fake|monkeypatch.setenv("OPENAI_API_KEY", "sk-fake")¦uuid_primary_key|{"orderId": "«uuid»", "state": "shipped"}
cluster_local|redis://redis.default.svc.cluster.local:6379/0¦docker_layers|«h:12»: Pull complete¶«h:12»: Already exists
etag_s3|"ETag": "\"«h:32»-14\"", "StorageClass": "STANDARD"¦notebook_image|"image/png": "iVBORw0KGgoAAAANSUhEUg«s:200»"
placeholder_url|postgres://USER:PASSWORD@HOST:5432/DATABASE¦cmd_redis|redis-cli -a "$REDIS_PASS" --no-auth-warning ping
cmd_sshpass|sshpass -f ~/.router.pw ssh admin@router uptime¦port_list|0.0.0.0:«n:1»«d:3»->5432/tcp, [::]:8080->8080/tcp
placeholder_author|"author": "Your Name <you@example.com>",¦mac_like|link/ether 02:42:ac:11:00:02 brd ff:ff:ff:ff:ff:ff
css_module|<div class="Card_root__«u:5» Card_wide__«u:5»">¦placeholder_your|client = new Client("your-api-key-here");
semver_range|"vite": "^«semver»",¶"typescript": ">=5.9 <7"¦bot_trailer|Co-Authored-By: Claude <noreply@anthropic.com>
tx_hash|transactionHash  0x«h:64»¶blockNumber      21«d:6»¦registry_clsid|HKCR\CLSID\{«H:8»-«H:4»-«H:4»-«H:4»-«H:12»}
brew_formula|  sha256 cellar: :any, arm64_tahoe: "«h:64»"¦coverage_id|Job 5«d:10» queued on ubuntu-24.04, run #«d:4»
max_tokens|max_tokens=«n:1»«d:3», temperature=0.2, top_p=0.95¦sudo_prompt|[sudo] password for root: ¶Sorry, try again.
sizes|total 1«d:7» bytes (1.«d:2» GB), 4 412 881 objects¦order_number|Order «luhn» was shipped, tracking follows.
www_data|www-data   812  0.0  0.4  nginx: worker process¦codeowner_team|/src/tax/   @acme/backend @acme/reviewers
alembic_rev|revision = "«h:12»"¶down_revision = "«h:12»"¦env_default|PASSWORD="${PASSWORD:?set PASSWORD first}"
env_py|client = Mistral(os.environ["MISTRAL_API_KEY"])¦doc_ip|upstream 192.0.2.10 failed, trying 198.51.100.7
k8s_uid|  uid: «uuid»¶  resourceVersion: "«n:1»«d:7»"¦placeholder_redacted|Authorization: Bearer [REDACTED]
env_ruby|config.api_key = ENV.fetch("RESEND_API_KEY")¦cidr|allow 10.0.0.0/8;¶allow 172.16.0.0/12;¶deny all;
ssh_host_fp|ED25519 key fingerprint is SHA256:«s:43».¦gemfile_lock|CHECKSUMS¶  rake (13.3.0) sha256=«h:64»
placeholder_dots|MISTRAL_API_KEY=...¶COHERE_API_KEY=¦env_go|client := groq.New(os.Getenv("GROQ_API_KEY"))
snowflake_id|channel_id = 1«d:18»¶guild_id = 1«d:18»¦pgp_fingerprint|gpg: key «H:16»: public key imported
hex_colours|--brand: #«h:6»;¶--brand-soft: #«h:8»;¦hash_route|#/reports/«a:12»?tab=summary&page=«n:1»
"""


# (kind, family, pattern of the value, [place and file, text]) of each kind, in the order of the tables
def _table() -> list[tuple[str, str, str, list[list[str]]]]:
    rows: list[tuple[str, str, str, list[list[str]]]] = []
    for line in (
        _VENDORS + _SERVICES + _BUSINESS + _HOOKS_CHAINS_TOOLS + _PROSE_HOSTS_NUMBERS + _PEOPLE
    ).splitlines():
        if line.startswith("="):
            kind, family, pattern = line[1:].split(" ", 2)
            rows.append((kind, family, pattern, []))
        elif line.startswith("@"):
            rows[-1][3].append(line[1:].split("|", 1))
        elif line:
            rows[-1][3][-1][1] += "\n" + line
    return rows


def _clean(value: str) -> bool:
    body = value.removeprefix("sb_secret_").removeprefix("AGE-SECRET-KEY-").lower()
    return not any(word in body for word in _FORBIDDEN)


def plants(seed: int) -> list[Plant]:
    rng = random.Random(seed)
    out: list[Plant] = []
    seen: set[str] = set()
    for kind, family, pattern, places in _table():
        for head, template in places:
            place, _, filename = head.partition(":")
            value = ""
            while not value or value in seen or not _clean(value):
                memo = _person(rng)
                value = _fill(pattern, rng, memo)
            seen.add(value)
            text = _fill(template, rng, memo | {"V": value})
            out.append(Plant(kind, family, place, value, text, filename))
    return out


def decoys(seed: int) -> list[Decoy]:
    rng = random.Random(seed)
    out: list[Decoy] = []
    for entry in _DECOYS.strip("\n").replace("¦", "\n").split("\n"):
        kind, _, template = entry.partition("|")
        made: set[str] = set()
        while len(made) < (
            2 if "«" in template else 1
        ):  # one with something to fill in comes twice
            text = _fill(template, rng, {}).replace("¬", "")
            if text not in made:
                made.add(text)
                out.append(Decoy(kind, text))
    return out

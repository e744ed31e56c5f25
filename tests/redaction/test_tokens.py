"""Random tokens of vendors that no rule knows go; words, hashes, ids and public values stay."""

import json
import random
import re
import string
import sys
import sysconfig
from collections import Counter
from itertools import pairwise
from math import log2
from pathlib import Path

import pytest

from composer_pipeline.redaction import tokens
from composer_pipeline.redaction.redact import (
    find_secrets,
    redact_text,
    redact_value,
    review_value,
)
from composer_pipeline.redaction.tokens import REPLACE, REVIEW, find_tokens, surprise, suspects
from composer_pipeline.redaction.user_rules import RedactionRules

_ALPHABETS = {
    "m": string.ascii_letters + string.digits,
    "u": string.ascii_letters + string.digits + "-_",
    "b": string.ascii_letters + string.digits + "+/",
    "x": "0123456789abcdef",
    "X": "0123456789ABCDEF",
    "l": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + "234567",
    "d": string.digits,
    "a": string.ascii_lowercase,
}
_FIELD = re.compile(r"<([mubxXlUda])(\d+)>")


def made(shape: str, rng: random.Random) -> str:
    """A value of a shape: ``<m24>`` are 24 letters of both cases and digits."""

    def field(match: re.Match[str]) -> str:
        alphabet, size = _ALPHABETS[match[1]], int(match[2])
        while True:
            text = "".join(rng.choice(alphabet) for _ in range(size))
            # As vendors do: a token has what its alphabet has, and no joint at an end.
            if text.strip("-_+/") == text and (size < 16 or len(set(text)) > 8):
                return text

    return _FIELD.sub(field, shape)


#: Prefixes that say what they are, with any alphabet.
KEY_LIKE = """
    acme_sk_<m24> acme_live_<m20> sk_<x32> sk-<l24> tok_<m16> token_<x40> key-<x32> key_<l20>
    pat-<l32> pat_<m22> apikey-<m20> secret_<U32> rk_live_<m24> dp.pt.<m40> lx_api_<x48>
    bot_<m24> hook_<u32>
    whk-secret-<x32> svc_<m32> sa_<m28> corp-prod-key-<l28> vend_auth_<m32> oauth_<l40>
    xyz_pat_<u40> zz.token.<m30> live_sk_<l32> SK_<X32> priv_<x64> access_<m40>
    qq-api-<m36> acme_secret_key_<x24>
    team_token_<m28> user_key_<m24>
""".split()  # noqa: SIM905  a line of shapes instead of a column
#: Prefixes that say nothing, with letters of both cases.
UNKNOWN = """
    vnd_<m20> vnd-<m20> qx_<m24> zkp_v1_<m32> abc.<m40> foo_<u32> ntx-<u43> plx1_<m36> grb_<m48>
    xyz-prod-<m28> kr_<m64> acme-<m22> wlt_eu_<m26> hq9_<m30> Vend_<m24> NRX-<m27> bzt_<m40>=
""".split()  # noqa: SIM905  a line of shapes instead of a column
#: Nothing but the token, in quotes.
BARE = (
    "<m32>",
    "<m36>",
    "<m40>",
    "<m48>",
    "<u43>",
    "<b43>=",
    "<u64>",
    "<b40>",
    "<m64>",
    "<b64>",
    "<u86>",
    "<b86>==",
    "<m33>",
)
#: What a telling word before it gives away.
TOLD = ("<x32>", "<x40>", "<x64>", "<m20>", "<l32>", "<m24>")

PLACES = (
    'client = Client("{}", retries=3)',
    "use {} from now on, please.",
    "first line\n{}\nlast line",
    'values = [\n    "{}",\n]\n',
    "2026-11-02 10:11:12 INFO connected as {} (attempt 2)",
    "connect(host, '{}')",
    "FOO_SETTING={}\n",
    "const x = `{}`;",
    "| staging | {} |",
    "It is {}.",
)
QUOTED = (
    'client = Client("{}", retries=3)',
    "x = '{}'",
    '["{}", 3]',
    "send(a, `{}`)",
    "see:\n{}\n",
)
TELLING = ("the token is {}", "api key: {}", "login with credential {} now", '("secret", "{}")')
GROUPS = ((KEY_LIKE, PLACES), (UNKNOWN, PLACES), (BARE, QUOTED), (TOLD, TELLING))


def planted(seed: int) -> list[tuple[str, str]]:
    """Texts and the tokens in them."""
    rng = random.Random(seed)
    return [
        (place.format(token), token)
        for shapes, places in GROUPS
        for shape in shapes
        for place in rng.sample(places, 3)
        for token in [made(shape, rng)]
    ]


#: Kinds of values that look random and are no secrets, each in a place of its own.
DECOYS = """
commit <x40>
fix login (<x40>)
index <x7>..<x7> 100644
sha256:<x64>
image: nginx@sha256:<x64>
integrity sha512-<b86>==
"integrity": "sha512-<b86>==",
github.com/x/y v1.2.3 h1:<b43>=
checksum = "<x64>"
etag: "<x32>"
ETag: W/"<m27>"
md5 of the file is <x32>
digest <x64>
"uuid": "<x8>-<x4>-<x4>-<x4>-<x12>"
session <x8>-<x4>-<x4>-<x4>-<x12> of today
id = "<m24>"
"tool_use_id": "toolu_01<m22>"
"toolu_01<m22>"
see msg_01<m22> and req_011<m21>
"chatcmpl-<m29>"
"asst_<m24>", "thread_<m24>", "run_<m24>"
'evt_1<m23>'
stripe.Customer.retrieve("cus_<m24>")
price = "price_1<m23>"
"dpl_<m28>" of "prj_<m32>" in "team_<m24>"
pk_test_51<m40>
data-key="pub_<m32>"
sk_test_<x24>example
"test_<m24>"
public key: <b43>=
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI<m43> bob
trace 00-<x32>-<x16>-01
traceparent: <x32>
src="/assets/index-<m8>.js"
dist/chunk.<x20>.js
/static/media/logo.<x32>.svg
<link href="/build/<x32>.css">
fonts/<m24>.woff2
https://cdn.acme.org/img/<m32>.png
pod/web-<l10>-<l5> Running
api-server-<x10>-<l5> 1/1
.Button_root__<m5> { color: red }
class="css-<l7> bg-[#<x6>] hover:w-1/2"
className="grid-cols-2 md:grid-cols-4 lg:text-2xl"
git checkout feature/ACME-<d4>-login-with-oauth2-tokens
origin/release-2026-11-25-hotfix2
dependabot/npm_and_yarn/types-node-22.10.1
getUserAccountSettingsV2(translationKeyForHeader2)
const base64EncodedAuthTokenV2 = encodeToBase64Url
my-long-slug-of-words-and-more-words-2
the-10-best-ways-to-rotate-api-keys-in-2026
ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789
"0123456789abcdef0123456789abcdef"
data:image/png;base64,<b120>
url(data:font/woff2;base64,<b200>)
"signature": "<b180>=="
"fingerprint": "SHA256:<b43>"
nonce="<b22>=="
cache-key: v1-<x64>
key: Linux-node-<x64>
"cursor": "<m40>"
next_page_token: <m40>
version <x40>
ref: <x40>
blob <x40>
Merge commit '<x40>'
/nix/store/<l32>-hello-2.12
/var/folders/zz/<l30>/T/tmp.<m10>
libserde-<x16>.rlib
_ZN4core9panicking5panic17h<x16>E
claude-3-5-sonnet-20241022 and Qwen2.5-Coder-32B-Instruct
"snapshot": "<x64>"
0x<x40>
i-0<x16> in vpc-0<x16>
user_01h455vb4pex5vsknk084sn02q
"ulid": "01ARZ3NDEKTSV4RRFFQ69G5FAV"
<x64>  ./dist/app.tar.gz
WebGLRenderingContext2D_COMPRESSED_SRGB8_ALPHA8_ASTC_4x4_KHR
TestSessionID2FromEnvV3(t *testing.T)
<X24> /* main.swift in Sources */
name = "name_<l8>"
"aGVsbG8gd29ybGQgYW5kIGFnYWluIGhlbGxvIHdvcmxk"
wss://relay/?v=2&EIO=4&transport=polling
model.layers.12.self_attn.q_proj.weight
2026-11-25T10:11:12.123456Z-run-00012-of-00032
AKIAIOSFODNN7EXAMPLE
""".strip().split("\n")


def decoys(seed: int) -> list[str]:
    """Texts without a secret."""
    rng = random.Random(seed)
    return [made(kind, rng) for kind in DECOYS for _ in range(4)]


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len({*KEY_LIKE, *UNKNOWN, *BARE, *TOLD}) >= 60
    assert len(DECOYS) >= 60
    assert len(decoys(1)) >= 250


def test_tokens_of_unknown_vendors_go_wherever_they_stand() -> None:
    texts = [pair for seed in range(4) for pair in planted(seed)]
    missed = [
        text
        for text, token in texts
        if token[len(token) // 2 :].rstrip("=") in redact_text(text)[0]
    ]
    assert len(missed) <= 0.05 * len(texts), missed


@pytest.mark.parametrize(
    "token",
    [
        "NdBpHhrNjMefTVMGzLawfnEcZPB6",
        "bpNKGRqKmozzlJlMWZLUJUXX7iS9",
        "HLQohdSHHTR2DJSNGBOmaMuRlmWT",
    ],
)
def test_a_digit_may_stand_anywhere(token: str) -> None:
    text = f"use acme_{token} now"
    assert [text[found.start : found.end] for found in find_tokens(text)] == [f"acme_{token}"]


@pytest.mark.parametrize("shapes", [KEY_LIKE, UNKNOWN])
def test_every_prefix_is_known_or_none_has_to_be(shapes: list[str]) -> None:
    """A prefix that was taken for that of an id would lose all its tokens."""
    rng = random.Random(3)
    for shape in shapes:
        found = [redact_text(f"use {made(shape, rng)} now")[1].total() for _ in range(6)]
        assert sum(found) >= 4, shape


def test_hashes_ids_names_and_public_values_stay() -> None:
    texts = [text for seed in range(3) for text in decoys(seed)]
    changed = [text for text in texts if redact_text(text)[1]["TOKEN"]]
    assert len(changed) <= 0.01 * len(texts), changed


def test_what_is_redacted_stays_as_it_is() -> None:
    for text, _ in planted(5):
        redacted = redact_text(text)[0]
        for form in (redacted, [redacted, "x"], {"note": redacted}, json.dumps({"a": redacted})):
            assert find_secrets(form) == [], form


def test_a_value_and_its_json_are_judged_alike() -> None:
    for text, _ in planted(6):
        kinds = redact_text(text)[1]
        assert redact_value({"note": [text]})[1] == kinds
        assert redact_text(json.dumps({"note": text}))[1] == kinds


def test_without_hyperscan_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*(text for text, _ in planted(7)), *decoys(7)]
    texts += [
        "# \u65e5\u672c\u8a9e secret \u65e5\u672c\u8a9e\u306e\u6587: '"
        + "7f3a" * 2
        + "90bc41de" * 3
        + "'"
    ]
    expected = [redact_text(text) for text in texts]
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    rules = RedactionRules(allow=("nothing of this",))
    assert [redact_text(text, rules=rules) for text in texts] == expected


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("{}", 0),
        ("commit {}", 0),
        ('x = "{}"', 0),
        ("the deploy token: {}", 1),
        ("login {}", 1),
        ("sk_{}", 1),
        ("token sha1: {}", 0),
        ("the public key {}", 0),
    ],
)
@pytest.mark.parametrize("size", [32, 40, 64])
def test_hexadecimal_digits_need_a_telling_word(text: str, kinds: int, size: int) -> None:
    value = made(f"<x{size}>", random.Random(size))
    assert redact_text(text.format(value))[1].total() == kinds


# -- the model of letters ----------------------------------------------------------------------


def test_the_table_is_what_the_standard_library_says() -> None:
    """Versions of Python differ a little; a changed row or a shifted table differs much."""
    pairs, letters = Counter[str](), [*string.ascii_lowercase, "|"]
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "idlelib", "encodings", "site-packages", "lib2to3"}
    for file in [*root.glob("*.py"), *root.glob("[a-z]*/*.py")]:
        if file.parent.name not in skipped:
            found = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", file.read_text("utf-8", "replace"))
            for word in {word.lower() for word in found if len(word) > 1}:
                pairs.update(map("".join, pairwise(f"|{word}|")))
    costs = []
    for before in letters:
        total = sum(pairs[before + after] for after in letters) + 27 / 2
        costs += [min(15, round(-log2((pairs[before + after] + 0.5) / total))) for after in letters]
    table = [int(bits, 16) for bits in tokens._COSTS]
    assert len(table) == 27 * 27
    assert sum(a == b for a, b in zip(table, costs, strict=True)) > 0.9 * len(table)
    assert max(abs(a - b) for a, b in zip(table, costs, strict=True)) <= 2


@pytest.mark.parametrize(
    ("shape", "bits"), [("<m32>", 7.25), ("<l32>", 6.8), ("<a32>", 7.3), ("<x32>", 5.1)]
)
def test_what_random_letters_cost(shape: str, bits: float) -> None:
    rng = random.Random(1)
    values = [surprise(made(shape, rng)) for _ in range(400)]
    assert abs(sum(values) / len(values) - bits) < 0.25


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("getUserAccountSettings", 4.1),
        ("translationKeyForHeader", 4.3),
        ("HTMLParserErrorHandler", 4.7),
        ("parameterizedtestsuite", 4.0),
    ],
)
def test_words_cost_little(text: str, most: float) -> None:
    assert most - 0.5 < surprise(text) < most


# -- the list for a person ---------------------------------------------------------------------


def test_what_is_nearly_a_token_is_listed() -> None:
    value = "q7" + "Rm2XvBn8LkTz4WsJc9" + "PdGh"
    text = f'x = "{value}"'
    assert redact_text(text) == (text, {})
    (found,) = suspects(text)
    assert text[found.start : found.end] == value
    assert REVIEW <= found.score < REPLACE
    assert "quoted" in found.evidence
    ((token, same),) = review_value({"a": ["first", text], "b": 1})
    assert (token, same.score, same.evidence) == (value, found.score, found.evidence)
    assert review_value({"id": value}) == []
    assert review_value(f'token = "{value}"') == []  # replaced
    assert review_value(text, rules=RedactionRules(allow=(value,))) == []
    assert review_value(text, rules=RedactionRules(allow_patterns=("q7[A-Za-z0-9]+",))) == []


def test_half_a_point_decides() -> None:
    """Twenty letters and digits are replaced as an argument (6.0), and listed in quotes (5.5)."""
    rng = random.Random(3)
    values = [made("<m20>", rng) for _ in range(50)]
    assert sum("TOKEN" in redact_text(f'f("{value}")')[1] for value in values) > 40
    assert sum("TOKEN" in redact_text(f'x = "{value}"')[1] for value in values) < 10


@pytest.mark.parametrize("body", ["99o0336dsoarutlouri40ppu99o", "651nsinkh21392roi4t8qf"])
def test_a_part_is_random_from_five_bits_a_letter_on(body: str) -> None:
    """Letters that nearly spell words, with digits between them: 5.0 and 5.4 bits."""
    assert len(list(find_tokens(f'const secret = "qx_{body}"'))) == 1
    assert 5.0 <= surprise(body) < 5.5


def test_a_token_that_the_user_allows_stays() -> None:
    token = made("acme_sk_<m24>", random.Random(2))
    text = f'x = "{token}"'
    assert redact_text(text)[1] == {"TOKEN": 1}
    assert redact_text(text, rules=RedactionRules(allow=(token,))) == (text, {})
    part = RedactionRules(allow=(token[:-4],))
    assert redact_text(text, rules=part)[1] == {"TOKEN": 1}, "a part of it is another value"


def test_lines_of_base64_are_no_tokens() -> None:
    rng = random.Random(9)
    body = "\n".join(made("<b64>", rng) for _ in range(5))
    for text in (body, f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"):
        assert redact_text(text) == (text, {})
        assert suspects(text) == []

"""A planted set of secrets: every kind, in every place where a trace may hold it.

Secrets are made from a seed at run time, so that no scanner takes this file for a leak.
"""

import base64
import json
import random
import string
from typing import Any

import pytest

from composer_pipeline.redaction.redact import find_secrets, redact_text, redact_value

_RANDOM = random.Random(20261121)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + "234567"


def some(count: int, alphabet: str = ALNUM) -> str:
    """Random characters, with a digit and both cases where the alphabet has them."""
    while True:
        text = "".join(_RANDOM.choice(alphabet) for _ in range(count))
        wanted = [str.isdigit, str.islower, str.isupper]
        possible = [test for test in wanted if any(map(test, alphabet))]
        if count < 6 or all(any(map(test, text)) for test in possible):
            return text


def pem(kind: str) -> str:
    body = base64.b64encode(_RANDOM.randbytes(600)).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----"


PLANTED: list[tuple[str, str]] = [
    ("ANTHROPIC_KEY", "sk-" + "ant-api03-" + some(93) + "-" + some(6) + "AA"),
    ("ANTHROPIC_KEY", "sk-" + "ant-oat01-" + some(93) + "AA"),
    ("ANTHROPIC_KEY", "sk-" + "ant-admin01-" + some(93) + "AA"),
    ("OPENROUTER_KEY", "sk-" + "or-v1-" + some(64, HEX)),
    ("OPENAI_KEY", "sk-" + "proj-" + some(48) + "T3BlbkFJ" + some(48)),
    ("OPENAI_KEY", "sk-" + some(20) + "T3BlbkFJ" + some(20)),
    ("OPENAI_KEY", "sk-" + "svcacct-" + some(60)),
    ("AWS_KEY", "AK" + "IA" + some(16, UPPER)),
    ("AWS_KEY", "AS" + "IA" + some(16, UPPER)),
    ("GITHUB_TOKEN", "gh" + "p_" + some(36)),
    ("GITHUB_TOKEN", "gh" + "o_" + some(36)),
    ("GITHUB_TOKEN", "gh" + "s_" + some(36)),
    ("GITHUB_TOKEN", "github" + "_pat_" + some(22) + "_" + some(59)),
    ("GITLAB_TOKEN", "gl" + "pat-" + some(20)),
    ("GITLAB_TOKEN", "gl" + "rt-" + some(20)),
    ("SLACK_TOKEN", "xo" + "xb-" + "".join(some(12, "123456789") + "-" for _ in "ab") + some(24)),
    ("SLACK_TOKEN", "xo" + "xp-" + "".join(some(12, "123456789") + "-" for _ in "abc") + some(32)),
    ("SLACK_TOKEN", "xa" + "pp-1-A" + some(10) + "-" + some(13) + "-" + some(64, HEX)),
    ("HF_TOKEN", "h" + "f_" + some(34)),
    ("GOOGLE_KEY", "AI" + "za" + some(35)),
    ("GOOGLE_KEY", "GOC" + "SPX-" + some(28)),
    ("GOOGLE_KEY", "ya" + "29." + some(120)),
    ("STRIPE_KEY", "sk" + "_live_" + some(24)),
    ("STRIPE_KEY", "rk" + "_live_" + some(24)),
    ("STRIPE_KEY", "wh" + "sec_" + some(32)),
    ("NPM_TOKEN", "np" + "m_" + some(36)),
    ("PYPI_TOKEN", "py" + "pi-AgEIcHlwaS5vcmc" + some(120)),
    ("SENDGRID_KEY", "S" + "G." + some(22) + "." + some(43)),
    ("DIGITALOCEAN_TOKEN", "do" + "p_v1_" + some(64, HEX)),
    ("TELEGRAM_TOKEN", some(10, "123456789") + ":A" + "A" + some(33)),
    ("SHOPIFY_TOKEN", "sh" + "pat_" + some(32, HEX)),
    ("LINEAR_KEY", "lin" + "_api_" + some(40)),
    ("NOTION_TOKEN", "nt" + "n_" + some(46)),
    ("DATABRICKS_TOKEN", "da" + "pi" + some(32, HEX)),
    ("VAULT_TOKEN", "hv" + "s." + some(90)),
    ("DOCKER_TOKEN", "dckr" + "_pat_" + some(27)),
    ("FIGMA_TOKEN", "fi" + "gd_" + some(40)),
    ("GRAFANA_TOKEN", "gl" + "sa_" + some(32) + "_" + some(8, HEX)),
    ("NEWRELIC_KEY", "NR" + "AK-" + some(27, UPPER)),
    ("ATLASSIAN_TOKEN", "ATA" + "TT3" + some(180)),
    ("POSTMAN_KEY", "PM" + "AK-" + some(24, HEX) + "-" + some(34, HEX)),
    ("PLANETSCALE_TOKEN", "psc" + "ale_tkn_" + some(43)),
    ("SUPABASE_TOKEN", "sb" + "p_" + some(40, HEX)),
    ("GROQ_KEY", "gs" + "k_" + some(52)),
    ("XAI_KEY", "xa" + "i-" + some(80)),
    ("PERPLEXITY_KEY", "pp" + "lx-" + some(48)),
    ("REPLICATE_TOKEN", "r" + "8_" + some(37)),
    ("TAILSCALE_KEY", "ts" + "key-auth-" + some(17) + "-" + some(32)),
    ("PULUMI_TOKEN", "pu" + "l-" + some(40, HEX)),
    ("RUBYGEMS_KEY", "ruby" + "gems_" + some(48, HEX)),
    ("AZURE_SECRET", some(3) + "8" + "Q~" + some(34)),
    ("AGE_KEY", "AGE-" + "SECRET-KEY-1" + some(58, UPPER)),
    ("JWT", "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIi" + some(60) + "." + some(43)),
    ("PRIVATE_KEY", pem("RSA PRIVATE " + "KEY")),
    ("PRIVATE_KEY", pem("OPENSSH PRIVATE " + "KEY")),
    ("PRIVATE_KEY", pem("PGP PRIVATE " + "KEY BLOCK")),
]

#: Kind, text with a gap, secret: what only its surroundings give away.
IN_CONTEXT: list[tuple[str, str, str]] = [
    ("AWS_SECRET", "aws_secret_access_key = {}", some(40)),
    ("AWS_SECRET", '"SecretAccessKey": "{}",', some(40)),
    ("BEARER_TOKEN", "curl -H 'Authorization: Bearer {}' https://a.b", some(40)),
    ("BASIC_AUTH", "Authorization: Basic {}", base64.b64encode(b"bob:" + b"h7!kw92x").decode()),
    ("COMMAND", "curl -s -u bob:{} https://api.acme.org/x", "h7!kw92x"),
    ("URL_PASSWORD", "psql postgres://bob:{}@db/x", "s3cr3t!kd"),
    ("URL_PASSWORD", "REDIS=redis://:{}@cache:6379", some(20)),
    ("URL_PASSWORD", "git clone https://oauth2:{}@git.acme.org/x", some(30)),
    ("CONNECTION_PASSWORD", 'cs = "Server=db;User Id=sa;Password={};"', "h7!kw92x"),
    ("NETRC_PASSWORD", "machine git.acme.org login bob password {}", "h7!kw92x"),
    ("COMMAND", "mysqldump --password={} shop", "h7kw92xQ"),
    ("OPTION_PASSWORD", "tool login --password {} --host x", "h7kw92xQ"),
    ("COMMAND", "sshpass -p '{}' ssh h", "h7kw92xQ"),
    ("XML_PASSWORD", "<server><password>{}</password></server>", "h7kw92xQ"),
    ("AZURE_KEY", "AccountName=a;AccountKey={};", some(86) + "=="),
    ("AZURE_SAS", "https://a.blob.core.windows.net/c?sv=1&sig={}", some(43) + "%3D"),
    ("TWILIO_KEY", "twilio.Client('{}')", "SK" + some(32, HEX)),
    ("DISCORD_WEBHOOK", "{}", "discord" + ".com/api/webhooks/" + "123456789012345678/" + some(68)),
    ("SLACK_TOKEN", "https://{}", "hooks." + "slack.com/services/T0AAA0AAA/B0BBB0BBB/" + some(24)),
    ("ASSIGNED", "DB_PASSWORD={}", "hunter22"),
    ("ASSIGNED", "export SECRET_KEY_BASE={}", some(64, HEX)),
    ("ASSIGNED", 'password = "{}"', "hunter2x"),
    ("ASSIGNED", "const clientSecret = '{}';", some(20)),
    ("ASSIGNED", '{{\\"api_key\\": \\"{}\\"}}', some(32, HEX)),
    ("ASSIGNED", "spring:\n  datasource:\n    password: {}\n    user: bob\n", "hunter22"),
    (
        "KUBERNETES",
        "kind: Secret\ndata:\n  password: {}\n",
        base64.b64encode(b"hunter22x").decode(),
    ),
]


def _shown(secret: str) -> str:
    """A part of the secret that must not survive."""
    middle = [part for part in secret.replace("\n", " ").split(" ") if len(part) >= 6]
    return max(middle, key=len)[:16] if len(secret) > 24 else secret


def _check(text: str, secret: str, kind: str) -> str:
    redacted, counts = redact_text(text)
    assert _shown(secret) not in redacted
    assert secret[-5:] not in redacted
    assert counts[kind] == 1
    assert find_secrets(text)
    assert find_secrets(redacted) == []
    return redacted


def test_the_set_is_as_large_as_promised() -> None:
    assert len(PLANTED) + len(IN_CONTEXT) >= 40
    assert len({kind for kind, *_ in [*PLANTED, *IN_CONTEXT]}) >= 15


IDS = [f"{kind}{number}" for number, (kind, _) in enumerate(PLANTED)]


@pytest.mark.parametrize(("kind", "secret"), PLANTED, ids=IDS)
@pytest.mark.parametrize(
    "frame",
    [
        "Please use {} from now on.",
        "first line\n{}\nlast line",
        "export X={}\n",
        'client = Client("{}", retries=3)',
        "| name | {} |",
        "köttur – {} – naïve",
    ],
)
def test_in_prose_and_code(kind: str, secret: str, frame: str) -> None:
    redacted = _check(frame.format(secret), secret, kind)
    before, after = frame.split("{}")
    assert redacted.startswith(before)
    assert redacted.endswith(after)


@pytest.mark.parametrize(("kind", "secret"), PLANTED, ids=IDS)
def test_in_json_source(kind: str, secret: str) -> None:
    once = json.dumps({"log": f"a\n{secret}\nb"})
    _check(once, secret, kind)
    _check(json.dumps({"nested": once}), secret, kind)


@pytest.mark.parametrize(("kind", "secret"), PLANTED, ids=IDS)
def test_in_tool_inputs_and_results(kind: str, secret: str) -> None:
    value: list[Any] = [
        {
            "type": "tool_use",
            "id": "t",
            "name": "Bash",
            "input": {"command": f"echo {secret}", "n": 3},
        },
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "text", "text": f"ok {secret}"}],
        },
        {"type": "tool_use", "id": "u", "name": "mcp", "input": {f"{secret}": {"deep": [secret]}}},
    ]
    redacted, counts = redact_value(value)
    assert counts[kind] == 4
    assert _shown(secret) not in json.dumps(redacted)
    assert redacted[0]["name"] == "Bash"
    assert redacted[0]["input"]["n"] == 3
    assert redact_value(redacted) == (redacted, {})


# A private key is lines already; what begins in the middle of a word is not joined.
_ONE_LINE = [(k, s) for k, s in PLANTED if "\n" not in s]


@pytest.mark.parametrize(
    ("kind", "secret"),
    _ONE_LINE,
    ids=[i for i, (_, s) in zip(IDS, PLANTED, strict=True) if "\n" not in s],
)
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("\\\n", id="continued"),
        pytest.param("\n", id="wrapped"),
        pytest.param("\n    ", id="indented"),
        pytest.param('"\n    "', id="string literals"),
        pytest.param('" + \\\n  "', id="concatenation"),
        pytest.param("\\n", id="escaped"),
    ],
)
def test_split_over_lines(kind: str, secret: str, broken: str) -> None:
    for at in (len(secret) * 2 // 3, len(secret) - 8):
        head, tail = secret[:at], secret[at:]
        if broken.strip() in ("", "\\n") and not (
            any(map(str.isdigit, tail)) and any(map(str.isalpha, tail))
        ):
            continue  # a bare line break is crossed only where the rest looks random
        text = f'key = "{head}{broken}{tail}"\nnext = 1\n'
        redacted, counts = redact_text(text)
        assert counts[kind] == 1, (at, redacted)
        assert head[-8:] not in redacted
        assert tail not in redacted
        assert redacted.endswith('"\nnext = 1\n')
        assert find_secrets(redacted) == []


_IN_BASE64 = {
    "ANTHROPIC_KEY", "OPENROUTER_KEY", "AWS_KEY", "GITHUB_TOKEN", "GITLAB_TOKEN", "SLACK_TOKEN",
    "HF_TOKEN", "GOOGLE_KEY", "STRIPE_KEY", "NPM_TOKEN", "PYPI_TOKEN", "DOCKER_TOKEN",
    "SHOPIFY_TOKEN", "LINEAR_KEY", "JWT", "PRIVATE_KEY", "AGE_KEY",
}  # fmt: skip
_BASE64 = [(k, s) for k, s in PLANTED if k in _IN_BASE64 and "ya29" not in s and "glrt" not in s]


@pytest.mark.parametrize(("kind", "secret"), _BASE64, ids=[k for k, _ in _BASE64])
@pytest.mark.parametrize("before", ["", "k=", "KEY: ", '{"auth":"', "user:"])
def test_in_base64(kind: str, secret: str, before: str) -> None:
    hidden = base64.b64encode((before + secret + "\n").encode()).decode()
    text = f"data:\n  token: {hidden}\n"
    redacted, counts = redact_text(text)
    assert counts[kind] == 1
    assert hidden[8:24] not in redacted
    wrapped = "\n".join(hidden[at : at + 76] for at in range(0, len(hidden), 76))
    redacted, counts = redact_text(f"cert:\n{wrapped}\n")
    assert counts[kind] >= 1
    assert hidden[-12:-2] not in redacted


@pytest.mark.parametrize(("kind", "frame", "secret"), IN_CONTEXT)
def test_given_away_by_its_surroundings(kind: str, frame: str, secret: str) -> None:
    redacted = _check(frame.format(secret), secret, kind)
    before, after = frame.format("\0").split("\0")
    assert redacted.startswith(before)
    assert redacted.endswith(after)


def test_a_telling_key_of_a_tool_input() -> None:
    value = {
        "password": "hunter22",
        "headers": {"x-api-key": some(32, HEX)},
        "env": [{"name": "DB_PASSWORD", "value": "hunter23"}, {"name": "PORT", "value": "h22222"}],
        "ownerAccountUuid": "0c3e9c1e-7c1d-4d57-a1f5-0d0b8a4e3f21",
        "uuid": "0c3e9c1e-7c1d-4d57-a1f5-0d0b8a4e3f21",
        "passwordField": "password-input-2",
        "token": "<your token>",
    }
    redacted, counts = redact_value(value)
    assert counts == {"ASSIGNED": 2, "AUTH_HEADER": 1, "ACCOUNT": 1}
    for key in ("uuid", "passwordField", "token"):
        assert redacted[key] == value[key]
    assert redacted["env"][1] == {"name": "PORT", "value": "h22222"}
    assert redacted["env"][0]["name"] == "DB_PASSWORD"
    assert redact_value(redacted) == (redacted, {})

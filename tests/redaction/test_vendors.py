"""The table of vendors' rules: every row finds a sample of itself, and what looks like one stays."""

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from datetime import date
from itertools import islice
from pathlib import Path

import pytest

from composer_pipeline.redaction.engine import Rules
from composer_pipeline.redaction.patterns import compile_kind, dump_value
from composer_pipeline.redaction.redact import (
    compiled_rules,
    find_secrets,
    redact_text,
    redact_value,
)
from composer_pipeline.redaction.secrets import Replacer, is_random
from composer_pipeline.redaction.user_rules import RedactionRules
from composer_pipeline.redaction.vendors import RULES_FILE, VendorRule, near_kind, read_rules
from scripts.import_secret_rules import sample
from tests.redaction.labelled import Maker

TYPED, NEAR = read_rules()["typed"], read_rules()["near"]
BLOCKS = {"PRIVATE_KEY", "PUTTY_KEY", "OPENVPN_KEY"}  # not one token; planted in labelled.py
BY_ID = dict(compiled_rules().rows)
FRAMES = ("use {} from now on", 'x = "{}"\n', "a\\n{}\\nb")
HEAD = json.loads(RULES_FILE.read_text("utf-8"))


def token(row: VendorRule, count: int, judge: Callable[[str], bool]) -> list[str]:
    """Samples of a row that its judge takes for random, as real ones are."""
    rng = random.Random(row.kind)
    drawn = (sample(row.pattern, rng) for _ in range(100))
    whole = (text for text in drawn if compile_kind(row.pattern).fullmatch(text))
    found = list(islice(filter(judge, whole), count))
    assert len(found) == count, row.kind
    return found


PLAIN = RedactionRules(allow=("no such value at all",))


@pytest.fixture(scope="module")
def plain() -> Iterator[Rules]:
    """The rules where Hyperscan is not installed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "hyperscan", None)
        yield compiled_rules(PLAIN)


def test_the_table_says_when_it_was_made_and_the_docs_say_so_too() -> None:
    made = date.fromisoformat(HEAD["date"])
    age = (date.today() - made).days
    print(f"vendor_rules.json is {age} days old; see docs/redaction.md for how to make it again")
    docs = (Path(__file__).parents[2] / "docs" / "redaction.md").read_text("utf-8")
    assert HEAD["date"] in docs
    for name, source in HEAD["sources"].items():
        assert f"{name} {source['version']}" in docs.lower().replace("\n", " ")
        assert source["licence"]


def test_the_table_is_wide_and_its_kinds_are_unique() -> None:
    kinds = [row.kind for row in TYPED]
    assert len(kinds) == len(set(kinds))
    assert len(kinds) >= 350
    assert len({name for row in NEAR for name in row.literals}) >= 250
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]{1,41}", row.kind) for row in (*TYPED, *NEAR))


@pytest.mark.parametrize(
    "row", [r for r in TYPED if r.kind not in BLOCKS], ids=lambda row: row.kind
)
def test_a_token_is_found_in_any_place(row: VendorRule, plain: Rules) -> None:
    name = f"shape/{row.kind}"
    rule = BY_ID[name]
    for secret, frame in zip(token(row, 3, row.holds), FRAMES, strict=True):
        text, alone = frame.format(secret), Replacer()
        assert secret not in rule(text, alone)
        assert alone.counts[row.kind] == 1
        # Its gate and its literals let the text through.
        for rules in (compiled_rules(), plain):
            assert name in dict(rules.active(dump_value(text), ()))
        redacted, counts = redact_text(text)
        assert counts, text
        assert secret not in redacted
        assert find_secrets(redacted) == []
    others = redact_text(text, rules=PLAIN)
    # Without a gate `=3F` is also read as quoted-printable, where another rule may come first.
    assert others == (redacted, counts) if "=" not in secret else secret not in others[0]


@pytest.mark.parametrize("row", NEAR, ids=lambda row: row.kind)
def test_a_value_is_found_near_the_name_of_its_vendor(row: VendorRule, plain: Rules) -> None:
    random_looking = token(row, 1, lambda text: is_random(text, 14) and text[0] not in "+/=.~:%-")
    secret = random_looking[0]
    for vendor in row.literals:
        name = f"{vendor}_api_key"
        for frame in ("{}: {}", 'x({}="{}")', '{{\\"{}\\": \\"{}\\"}}'):
            text = frame.format(name, secret)
            assert near_kind(name, secret)
            for rules in (compiled_rules(), plain):
                assert "near" in dict(rules.active(dump_value(text), ()))
            assert secret not in redact_text(text)[0]
    redacted, counts = redact_value({"env": {name: secret}})
    assert secret not in str(redacted)
    assert counts
    assert find_secrets(redacted) == []
    assert redact_text(text, rules=PLAIN) == redact_text(text)


def test_a_value_needs_no_telling_name_beside_the_vendors() -> None:
    make = Maker(3)
    for text, secret in (
        ("PANDADOC = '{}'", make.some(40)),
        ("mailjet: {}", "Xk29fjQm7wLp4Zt8Xk29fjQm7wLp4Zt8"),
        ("new Netlify('{}')", make.some(43)),
        ("vercel = {}", "Xk29fjQm7wLp4Zt8aB3dE5gH"),
    ):
        assert secret not in redact_text(text.format(secret))[0]


UUID = "00ef13bd-99a1-4001-a829-09985a069ab2"
SHA = "9fceb02d0ae598e95dc970b74767f19372d61af8"
LONG = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    "text",
    [
        "toolu_01A2b3C4d5E6f7G8h9J0kLmN", "msg_01A2b3C4d5E6f7G8h9J0kLmN", "req_011CRkq8Ab9Cd0Ef1Gh2Ij3K",
        "cus_NffrFeUfNV2Hib", "price_1MoBy5LkdIwHu7ixZhnattbh", "pi_3MtwBwLkdIwHu7ix28a3tqPa",
        "evt_1NG8Du2eZvKYlo2CUI79vXWy", "prj_8Kd2fJ3mN5pQ7rS9tV1wX3yZ5a", "team_8Kd2fJ3mN5pQ7rS9tV1wX3yZ",
        "dpl_8Kd2fJ3mN5pQ7rS9tV1wX3yZ5aBc", "user_2abCDefGHijKLmnoPQrsTUvwXY", "org_2abCDefGHijKLmnoPQrsTUvwXY",
        "run_8Kd2fJ3mN5pQ7rS9tV1wX3yZ", "call_Ab12Cd34Ef56Gh78Ij90Kl12", "chatcmpl-8Kd2fJ3mN5pQ7rS9tV1wX3yZ5a",
        "asst_abc123DEF456ghi789JKL012", "file-8Kd2fJ3mN5pQ7rS9tV1wX3yZ", "thread_8Kd2fJ3mN5pQ7rS9tV1wX3yZ",
        "srv-c8kd2f3mn5pq7rs9tv1w", "i-0abcd1234ef567890", "vpc-0a1b2c3d4e5f67890", "ami-0abcdef1234567890",
        "AROAQ3EGRZP7XK2LMNOPQ", "AIDAQ3EGRZP7XK2LMNOPQ",
        "pk_" + "test_51Mabc123DEF456ghi789JKL0", "pk_" + "live_51Mabc123DEF456ghi789JKL0",
        "sb_publishable_Ab12Cd34Ef56Gh78Ij90Kl_mnop1234", "phc_8Kd2fJ3mN5pQ7rS9tV1wX3yZ5aBc7De9Fg1Hi3Jk5Lm",
        "mapboxgl.accessToken = 'pk." + "eyJ1IjoiYWNtZSIsImEiOiJja2Q4ZjJqM20wMDAifQ.8Kd2fJ3mN5pQ7rS9tV1wX3'",
        "1234567890-ab12cd34ef56gh78ij90kl12mn34op56.apps.googleusercontent.com",
        f"vercel.json: {SHA}", f"sentry commit: {SHA}", f'"sentry": "{SHA}"', f"netlify: {UUID}",
        f"heroku_app_id: {UUID}", f"datadog_request_id={UUID}", "AIRTABLE_BASE_ID=appAb12Cd34Ef56Gh",
        f"codecov/codecov-action@{SHA}", f"uses: getsentry/action-release@{SHA}  # v1",
        "sonar.projectKey=acme_shop-backend_2", "mistral-7b-instruct-v0.3-q4_k_m-gguf-0001",
        "cloudflare_zone: 023e105f4ecef8ad9ca31a8372d0c353", '"twilio": "^4.23.0-beta.20240101"',
        f"confluent-kafka==2.5.0 --hash=sha256:{LONG}", f'algolia = {{ integrity = "sha512-{LONG}" }}',
        f'name = "discord-py"\nchecksum = "{LONG}"', f"mailgun-js@0.22.0:\n  resolution: {{integrity: sha512-{LONG}}}",
        "class='text-sm hover:bg-gray-100 md:flex-row-reverse-2xl'", "fix/linear-ENG-1234-mailgun-timeouts-2026",
        "telegram_bot_username: acme_support_bot_2026", "SLACK_CHANNEL_ID=C02ABCDEF12", "okta_domain=dev-12345678.okta.com",
        "shopify_theme: dawn-theme-v15-0-2-production", "twitter: https://twitter.com/acme_shop_2026_official",
        "st.session_state.conversation_history.deadbeef", "ion_channel_conductance_density_parameter_2_xx",
        "dp.pt.parameters", "sk_buff_head_init_class_with_a_very_long_name_indeed_0001", "api_live_reload_enabled_2_x",
        "glft-table-of-contents", "re_enable_all_alarms_for_week_12", "pat_test_case_for_regex_engine_number_0123456789",
        "tk_icon_button_with_ripple_effect", "key_press_handler_for_modal_dialogs", "auth_middleware_for_admin_routes_v2",
        "ts_node_register_transpile_only_flag", "cs_unit_test_project_for_orders_2026_04_01_final",
        "v2.public.ecr.aws", "user:admin,role:editor", "app-6f7d8c9b5-x2x4z", "agent:build:latest", "prod:happy-animal-123",
        "file /a/b/-us1 and x-us12", "mainnet-beta.solana.com", "0.A1.B2.C3", "AQ.Ab", "1//0", "EAAlgorithm", "perm:read.write",
        "oauth:consumer", "secret-token", "test_that_users_can_log_in_with_password_twice",
        "live_stream_started_at_2026_04_05T06_07_08Z_by_admin",
    ],
)  # fmt: skip
def test_what_looks_like_a_token_and_is_none_stays(text: str) -> None:
    assert redact_text(text) == (text, {})
    assert redact_value({"x": [text]}) == ({"x": [text]}, {})


def test_a_table_made_again_from_nothing_keeps_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scripts import import_secret_rules

    table = tmp_path / "vendor_rules.json"
    table.write_text(RULES_FILE.read_text("utf-8"), "utf-8")
    rules = tmp_path / "gitleaks.toml"
    rules.write_text(
        "[[rules]]\nid = 'acme-api-token'\nregex = '''\\b(acme_(?i)[a-z0-9]{32})(?:['\"\\s]|$)'''\n"
        "keywords = ['acme_']\nentropy = 3.5\n"
        "[[rules]]\nid = 'zorg-secret'\nregex = '''(?i)[\\w.-]{0,50}?(?:zorg)(?:[ \\t\\w.-]{0,20})[\\s'\"]{0,3}"
        "(?:=|:|=>)[\\x60'\"\\s=]{0,5}([a-z0-9]{40})(?:[\\x60'\"\\s;]|$)'''\n"
        "[[rules]]\nid = 'zorg-client-id'\nregex = '''(zorg_[0-9]{12})'''\n"
    )
    monkeypatch.setattr(import_secret_rules, "RULES_FILE", table)
    monkeypatch.setattr(sys, "argv", ["x", "--date", "2026-01-02", f"gitleaks=9:{rules}"])
    assert import_secret_rules.main() == 0
    made = json.loads(table.read_text("utf-8"))
    assert made["date"] == "2026-01-02"
    assert [r["kind"] for r in made["typed"]][:-1] == [r.kind for r in TYPED if r.source == "own"]
    assert made["typed"][-1] == {
        "kind": "ACME_API_TOKEN", "literals": ["acme_"], "entropy": 3.5, "source": "gitleaks",
        "pattern": "acme_(?<![A-Za-z0-9_-]acme_)[A-Za-z0-9]{32}(?![A-Za-z0-9])",
        "gate": made["typed"][-1]["gate"],
    }  # fmt: skip
    assert made["near"] == [
        {"kind": "ZORG_SECRET", "literals": ["zorg"], "pattern": "[A-Za-z0-9]{40}", "entropy": 3.0, "source": "gitleaks"}
    ]  # fmt: skip
    assert "gitleaks zorg-client-id: public or no secret" in capsys.readouterr().out


def test_a_key_of_an_object_names_the_vendor() -> None:
    value = {"abstractapi_key": "caf3511061fea83537c7fec5779ec6e8"}
    assert redact_value(value)[1] == {"ABSTRACTAPI_API_KEY": 1}

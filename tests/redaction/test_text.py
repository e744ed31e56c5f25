"""The redaction floor: finds what was planted, leaves code alone, is stable."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.people import user_names
from composer_pipeline.redaction.redact import find_secrets, redact_json, redact_text, redact_value
from composer_pipeline.redaction.user_rules import RedactionRules, redaction_version
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.versions import REDACTION_VERSION

# Joined at run time so that no scanner takes this file for a leak.
PLANTED = {
    "ANTHROPIC_KEY": "sk-" + "ant-api03-" + "aB3" * 12,
    "OPENROUTER_KEY": "sk-" + "or-v1-" + "0f" * 32,
    "OPENAI_KEY": "sk-" + "proj-" + "aB3" * 15,
    "AWS_KEY": "AK" + "IAQ3EGRZP7XK2LMNOP",
    "GITHUB_TOKEN": "gh" + "p_" + "a1" * 18,
    "GITLAB_TOKEN": "gl" + "pat-" + "a1" * 10,
    "SLACK_TOKEN": "xo" + "xb-123456789012-abcdefgh",
    "HF_TOKEN": "h" + "f_" + "aB" * 17,
    "GOOGLE_KEY": "AI" + "za" + "aB3_-" * 7,
    "STRIPE_KEY": "sk" + "_live_" + "a1" * 12,
    "NPM_TOKEN": "np" + "m_" + "a1" * 18,
    "JWT": "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_def-123",
    "PRIVATE_KEY": "-----BEGIN "
    + "RSA PRIVATE KEY-----\n"
    + "MIIEow\n" * 9
    + "-----END RSA PRIVATE KEY-----",
    "TELEGRAM_TOKEN": "123456789:" + "AA" + "b3" * 16 + "c",
}
IN_CONTEXT = [
    ("AWS_SECRET", "aws_secret_access_key = {}", "wJalrXUtnFEMIbK7MDENGbPxRfiCYzEXzzzzKEYa"),
    ("BEARER_TOKEN", "-H 'Authorization: Bearer {}'", "abcdefghij1234567890XYZ"),
    ("BASIC_AUTH", "Authorization: Basic {}", "dXNlcjpwYXNzd29yZA=="),
    ("URL_PASSWORD", "postgres://bob:{}@db/x", "s3cr3t!"),
    ("ASSIGNED", "DB_PASSWORD={}", "hunter22"),
    ("ASSIGNED", 'password = "{}"', "hunter2x"),
    ("ASSIGNED", 'API_TOKEN="{}"', "a8f5f167f44f4964e6c998dee827110c"),
    ("ASSIGNED", "const clientSecret = '{}';", "Zx81kk20Plm3QwErTy66"),
    ("ASSIGNED", '{{\\"password\\": \\"{}\\"}}', "hunter2x"),
    ("ASSIGNED", "export DEPLOY_KEY={}", "k9Xq2LmN8vRt4WzY7bCd"),
    ("EMAIL", "mail <{}> now", "bob.smith@acme.co.uk"),
]
LEFT_ALONE = [
    "token = tokenizer.eos_token",
    'password = os.environ["PW"]',
    "git@github.com:foo/bar.git",
    "Co-Authored-By: Claude <noreply@anthropic.com>",
    "someone@example.com",
    "max_tokens=4096",
    '"input_tokens": 123456789',
    "auth: bool",
    "npm i @scope/pkg@1.2.3",
    "y = x@self.weight + b@w.to(device)",
    "const token = await getToken(user1)",
    "TOKEN=$(cat file)",
    "TOKEN=$TOKEN",
    "PASSWORD=${DB_PASSWORD1}",
    "API_KEY=your-api-key-here-123",
    'secret_name: "my-secret"',
    "pip install sk-learn-something-long-name",
    "password: str | None = None",
    'token_type = "bearer"',
    "https://api.example.org/v1?x=1",
    "Bearer $TOKEN",
    "secrets.token_urlsafe(32)",
    "if password == user.password1:",
    'token = "authorization_code"',
    "const SECRET_KEY = process.env.SECRET_KEY1",
    "grep -- '-----BEGIN PRIVATE KEY-----'",
    'href="/static/home/about"',
    "http://localhost:8080/a@b",
    "cache-key: v1-abcdef0123456789",
    "/home/user/x and ~/x and /root/x",
    "toolu_01A2b3C4d5E6f7G8h9J0kLmN",
    "00ef13bd-99a1-4001-a829-09985a069ab2",
    "SELECT key, value FROM t WHERE key = 'abc'",
    'passwordField = "password-input-2"',
    'passwordField = "Xk29fjQm7"',
    'const tokenUrl = "a8f5f167f44f4964e6c998dee827110c";',
    'tokenType: "access_token_v2_bearer"',
    'secret_name = "prod-db-credentials-2026"',
    '<Link href="/home/settings">',
    'router.push("/home/dashboard")',
    "GET /home/about HTTP/1.1",
    'path: "/home/profile",',
    "AKIAIOSFODNN7EXAMPLE",
    "test@test.com",
    "a UUID 00ef13bd-99a1-4001-a829-09985a069ab2 of no account",
    'session_id: "00ef13bd-99a1-4001-a829-09985a069ab2"',
    "arn:aws:iam::123456789012:role/x",
    "http://db:5432/x and http://host.docker.internal:8080",
    "ssh git@github.com and ssh user@host",
    "import local.private",
    "password: str\ntoken: int64\n",
    "  password: string;",
    "password: values.password,",
    "  token: OAuth2Token\n",
    "mysql -u root -paaaaaaaa shop",
]


@pytest.mark.parametrize(("kind", "secret"), PLANTED.items(), ids=PLANTED)
@pytest.mark.parametrize("frame", ["{}", "export X={}\n", 'f("{}", 1)', "a: {}, b"])
def test_planted_secrets_are_replaced(kind: str, secret: str, frame: str) -> None:
    text, counts = redact_text(frame.format(secret))
    assert secret not in text
    assert f"[SECRET_{kind}_" in text
    assert counts[kind] == 1
    assert find_secrets(frame.format(secret)) == [kind]
    assert find_secrets(text) == []


@pytest.mark.parametrize(("kind", "frame", "secret"), IN_CONTEXT)
def test_secrets_that_their_context_gives_away(kind: str, frame: str, secret: str) -> None:
    text, counts = redact_text(frame.format(secret))
    assert secret not in text
    assert dict(counts) == {kind: 1}
    before, after = frame.format("|").split("|")
    assert text.startswith(before)
    assert text.endswith(after)
    assert find_secrets(text) == []


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_code_is_left_alone(text: str) -> None:
    assert redact_text(text) == (text, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/x", "/home/user/x"),
        ("cd /Users/bob.m", "cd /Users/user"),
        (r"C:\Users\carol\f", r"C:\Users\user\f"),
        (r"C:\\Users\\carol", r"C:\\Users\\user"),
        ("~/.claude/projects/-home-dave-proj/x", "~/.claude/projects/-home-user-proj/x"),
        ("file:///home/alice/x", "file:///home/user/x"),
    ],
)
def test_home_folders(text: str, expected: str) -> None:
    assert redact_text(text)[0] == expected
    assert find_secrets(expected) == []


def test_known_user_names_as_path_segments_and_owners() -> None:
    text = "-rw-r--r--  1 alice  staff 1 x\ncd ~alice/ /tmp/alice/x\nalice said alice=1 malice/"
    assert redact_text(text, {"alice"})[0] == (
        "-rw-r--r--  1 user  staff 1 x\ncd ~user/ /tmp/user/x\nalice said alice=1 malice/"
    )
    assert user_names("/home/alice/x /Users/runner/y") == {"alice"}


def test_the_same_value_gets_the_same_placeholder_and_others_differ() -> None:
    one, two = PLANTED["GITHUB_TOKEN"], "gh" + "p_" + "b2" * 18
    text = redact_text(f"{one} {two} {one}")[0].split()
    assert text[0] == text[2] != text[1]


def test_an_address_is_the_same_in_any_case_and_a_part_of_an_allowed_value_is_not_allowed() -> None:
    small, large = redact_text("bob@acme.com BOB@ACME.COM")[0].split()
    assert small == large
    rules = RedactionRules(allow=("mail-bob@acme.com-x",))
    assert "bob@acme.com" not in redact_text("to bob@acme.com", (), rules)[0]


def test_values_keep_their_shape_and_order() -> None:
    value = {"z": [1, None, True, "/home/eve/a"], "a": {"k": 2.5}}
    redacted, counts = redact_value(value)
    assert json.dumps(redacted) == '{"z": [1, null, true, "/home/user/a"], "a": {"k": 2.5}}'
    assert counts == {"HOME": 1}


def test_a_placeholder_is_no_name_of_a_secret() -> None:
    text = PLANTED["ANTHROPIC_KEY"] + 'session_id: "00ef13bd-99a1-4001-a829-09985a069ab2"'
    once = redact_text(text)[0]
    assert "00ef13bd" in once
    assert redact_text(once) == (once, {})
    strong = redact_text("toolu_01A2b3C4d5E6f7G8h9J0kLmNpostgres://bob:s3cr3t!@db/x")[0]
    assert redact_text(strong) == (strong, {})
    assert "hunter22" not in redact_text('env["SECRET_KEY_BASE"] = "hunter22Xk29fjQm7wLp4"')[0]


_FRAGMENT = st.sampled_from(
    [*PLANTED.values(), *[f.format(s) for _, f, s in IN_CONTEXT], *LEFT_ALONE, "/home/alice/x"]
)


#: In JSON source the end of an escaped control character is taken for the beginning of the next
#: word: `\\bgit@github.com` for an address. It hides too much there, and leaves nothing.
_ANY = st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\r\t")


@given(
    st.lists(st.one_of(_FRAGMENT, st.text(_ANY, max_size=20)), max_size=6),
    st.text(_ANY, max_size=3),
)
def test_redaction_is_idempotent(parts: list[str], glue: str) -> None:
    once = redact_text(glue.join(parts), {"alice"})[0]
    assert redact_text(once, {"alice"}) == (once, {})
    for form in ([once], {"role": "user", "content": once}):
        assert find_secrets(json.dumps(form, ensure_ascii=False)) == []


@pytest.mark.parametrize("text", ["/home/alice/x", "bob@acme.com", *PLANTED.values()])
def test_text_that_is_json_source_is_redacted_too(text: str) -> None:
    source = json.dumps({"log": f"first\n{text}\nlast git@github.com"})
    redacted, counts = redact_text(source)
    assert sum(counts.values()) == 1
    assert json.loads(redacted)["log"].startswith("first\n")
    assert find_secrets(redacted) == []


def test_nothing_planted_reaches_the_lake(lake: Lake, projects: Any, script: Any) -> None:
    """Tool inputs, results, prompts, working directories and hints go through redaction."""
    s = script(cwd="/home/alice/proj")
    secrets = list(PLANTED.values())
    s.user(f"use {secrets[0]}")
    s.call("m1", "t1", "Write", file_path="/home/alice/proj/a", content=secrets[1])
    s.result("t1", f"Exit code 1\n{secrets[3]} in /data/alice/", error=True)
    s.say("m2", f"I saw {secrets[4]}")
    ingest(lake, [s.write(projects, "-home-alice-proj/s1.jsonl")])
    a, b = load_states(lake)
    assert (a.cwd, a.project) == ("/home/user/proj", "/home/user/proj")
    assert a.action.tool_calls[0].arguments["file_path"] == "/home/user/proj/a"
    assert a.action.tool_calls[0].id == "t1"
    seen = json.dumps([a.messages, b.messages, a.action_json, b.action_json, a.hint])
    for table in ("messages", "states", "sessions", "raw_files"):
        seen += str(lake.rows(table))
    assert "alice" not in seen
    assert not [secret for secret in secrets if secret in seen]
    assert "in /data/user/" in b.messages[-1]["content"][0]["content"]


@pytest.mark.parametrize(
    ("text", "gone", "kinds"),
    [
        ("see https://jira.corp.acme.com/x", "jira.corp.acme.com", {"HOST": 1}),
        ("curl http://build7.internal:8080/", "build7.internal", {"HOST": 1}),
        ("ssh alice@10.1.2.3 uptime", "10.1.2.3", {"HOST": 1, "USER": 1}),
        ("scp -r x deploy@gpu-17:/srv", "gpu-17", {"HOST": 1}),
        ("alice@Alices-MacBook-Pro ~ %", "Alices-MacBook-Pro", {"HOST": 1, "USER": 1}),
        ("arn:aws:s3:us-east-1:481516234299:x", "481516234299", {"ACCOUNT": 1}),
        ("481516234299.dkr.ecr.eu-west-1.amazonaws.com/x", "481516234299", {"ACCOUNT": 1}),
        (
            '"organizationUuid": "0c3e9c1e-7c1d-4d57-a1f5-0d0b8a4e3f21"',
            "0c3e9c1e-7c1d-4d57-a1f5-0d0b8a4e3f21",
            {"ACCOUNT": 1},
        ),
        ('"userEmail": "bob@acme.com"', "bob@acme.com", {"EMAIL": 1}),
    ],
)
def test_hosts_and_accounts(text: str, gone: str, kinds: dict[str, int]) -> None:
    redacted, counts = redact_text(text)
    assert gone not in redacted
    assert counts == kinds
    assert find_secrets(redacted) == []
    assert redact_value({"log": [text, 1]})[0] == {"log": [redacted, 1]}


@pytest.mark.parametrize("between", ["=", " = ", " =", "= "])
@pytest.mark.parametrize("key", ["Password", "PWD"])
def test_passwords_of_connection_strings_with_blanks(key: str, between: str) -> None:
    text = f"Server = db01; Database = crm; {key}{between}Vq7-mt2kx; Timeout = 30"
    for redacted, counts in (redact_text(text), redact_value({"cs": text})):
        assert "Vq7-mt2kx" not in str(redacted)
        assert counts == {"CONNECTION_PASSWORD": 1}
        assert "Timeout = 30" in str(redacted)


def test_a_known_user_before_an_at_sign_is_one_and_inside_a_word_is_not() -> None:
    text = "cd /home/mira/x; logged in as mira@vault, but samira@vault and mira's"
    redacted, counts = redact_text(text, names=user_names(text))
    assert redacted == "cd /home/user/x; logged in as user@vault, but samira@vault and mira's"
    assert counts == {"HOME": 1, "USER": 1}


def test_a_home_folder_is_told_from_a_route_of_the_same_form() -> None:
    text = 'cd /home/alice && open("/home/alice/x") and href="/home/alice"'
    assert "alice" not in redact_text(text)[0]
    assert redact_value({"path": "/home/alice"})[0] == {"path": "/home/user"}
    assert redact_text('HOME="/home/alice"')[0] == 'HOME="/home/user"'
    assert redact_text('href="/home/team"')[0] == 'href="/home/team"'


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "/home/alice/x",
        [1, None, 2.5, True],
        {"k": {"password": "hunter22"}},
        "\ud800 bob@acme.com",
    ],
)
def test_json_documents(value: Any) -> None:
    source = json.dumps(value, separators=(",", ":")).encode()
    expected, counts = redact_value(value)
    data, same = redact_json(source)
    assert same == counts
    assert counts or data == source
    if "\ud800" not in str(value):
        assert json.loads(data) == expected
    assert b"alice" not in data
    assert b"hunter22" not in data
    assert b"bob@" not in data
    assert redact_json(data) == (data, {})


def test_strings_of_a_value_do_not_run_together() -> None:
    value = ["password: ", "hunter22", "ssh into it", "pkg@host1", "a\0b", "\n\0\n", ""]
    assert redact_value(value) == (value, {})
    assert redact_value(["\n\0\n", "/home/alice/x", "y"])[0] == ["\n\0\n", "/home/user/x", "y"]
    key = PLANTED["PRIVATE_KEY"]
    head, body, tail = key.split("\n")[0], key.split("\n")[1], key.split("\n")[-1]
    value = [f"{head} {body * 9}", "kept -- as it is", tail]
    redacted = redact_value(value)[0]
    assert redacted[1:] == value[1:]
    assert body not in redacted[0]


def test_without_hyperscan_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        *PLANTED.values(),
        *[frame.format(secret) for _, frame, secret in IN_CONTEXT],
        *LEFT_ALONE,
    ]
    expected = [redact_text(text) for text in texts]
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    rules = RedactionRules(allow=("no such value",))  # compiled anew, without hyperscan
    assert [redact_text(text, rules=rules) for text in texts] == expected


# -- a user's file -------------------------------------------------------------------


def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    path = tmp_path / f"redaction-{abs(hash(text))}.yaml"
    path.write_text(text)
    monkeypatch.setenv("COMPOSER_REDACTION", str(path))
    return path


def test_rules_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = PLANTED["GITHUB_TOKEN"]
    _file(
        tmp_path,
        monkeypatch,
        f"""
        allow: [{allowed}, bob@acme.com]
        allow_typed: [GITHUB_TOKEN]
        allow_patterns: ['hunter[0-9]+x']
        names: [alice]
        hosts: [acme.net]
        patterns:
          - {{kind: ACME_TOKEN, pattern: 'acme_[a-z0-9]{{8}}', literal: acme_}}
          - {{kind: ACME_PIN, pattern: 'PIN (?P<value>[0-9]{{6}})'}}
        """,
    )
    text = f"{allowed} bob@acme.com carol@acme.com acme_a1b2c3d4 PIN 123789 https://build.acme.net/"
    redacted, counts = redact_text(f"{text} ~alice/x password='hunter22x' password='hunter22y'")
    assert counts == {
        "ACME_TOKEN": 1, "ACME_PIN": 1, "EMAIL": 1, "HOST": 1, "USER": 1, "ASSIGNED": 1,
    }  # fmt: skip
    assert redacted.startswith(f"{allowed} bob@acme.com [EMAIL_")
    assert "PIN [SECRET_ACME_PIN_" in redacted
    assert "hunter22x" in redacted
    assert "hunter22y" not in redacted
    assert find_secrets(redacted) == []
    assert redaction_version() % 1000 == REDACTION_VERSION
    assert redaction_version() > 1000
    monkeypatch.delenv("COMPOSER_REDACTION")
    assert redaction_version() == REDACTION_VERSION
    assert redact_text(allowed)[0] != allowed


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("allow: 3", "allow"),
        ("typo: []", "typo"),
        ("names: [ab]", "names[0]"),
        ("allow_patterns: ['(']", "allow_patterns[0]"),
        ("allow_patterns: ['.*']", "allow_patterns[0]"),
        ("patterns: [{kind: lower, pattern: abc}]", "patterns[0].kind"),
        ("patterns: [{kind: OK}]", "patterns[0].pattern"),
        ("external_scanner: gitleaks", "external_scanner"),
        ("[1, 2]", "mapping"),
        ("a: [", "YAML"),
        ("patterns: [{kind: SLOW, pattern: 'acme_(x+)+y'}]", "'acme_(x+)+y' takes more than"),
        ("allow_patterns: ['(a|a)*b']", "allow_patterns"),
        ("allow: [AK" + "IAQ3EGRZP7XK2LMNOP]", "allow_typed"),
        ("allow_typed: [AWS_KEYS]", "there is no kind AWS_KEYS"),
        ("allow_patterns: ['ghp_[A-Za-z0-9]{36}']", "GITHUB_TOKEN"),
        ("allow_patterns: ['.{20,}']", "allow_typed"),
    ],
)
def test_a_wrong_file_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, field: str
) -> None:
    path = _file(tmp_path, monkeypatch, text)
    for call in (lambda: redact_text("some text"), lambda: redact_value("some text")):
        with pytest.raises(InputError) as error:
            call()
        assert str(path) in str(error.value)
        assert field in str(error.value)
        assert "\n" not in str(error.value)


def test_a_missing_file_stops_an_ingest_before_it_writes(
    lake: Lake, projects: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSER_REDACTION", str(projects / "none.yaml"))
    s = script()
    s.user("go")
    s.say("m1", "ok")
    with pytest.raises(InputError, match=r"none\.yaml"):
        ingest(lake, [s.write(projects)])
    assert not lake.days("messages")


def test_other_rules_redact_the_archive_again(
    lake: Lake, projects: Any, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = script()
    s.user("ask zelda-corp about it")
    s.say("m1", "ok")
    path = s.write(projects)
    ingest(lake, [path])
    assert "zelda-corp" in str(lake.rows("messages"))
    _file(tmp_path, monkeypatch, "hosts: [zelda-corp]")
    ingest(lake, [path])
    assert "zelda-corp" not in str(lake.rows("messages"))


def test_other_rules_redact_stored_paths_again_and_lose_no_file(
    lake: Lake, projects: Any, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, day in (("zelda", "16"), ("fitz", "16"), ("quinn", "20")):
        s = script(name, f"2026-11-{day}")
        s.user(f"the task in {name}'s folder")
        s.say(f"m-{name}", "ok")
        s.write(projects, f"-srv-{name}-x/s.jsonl")  # told apart by what the new rules hide
    ingest(lake, [projects])
    assert "zelda" in str(lake.rows("raw_files"))
    kept = {row["sha256"] for row in lake.rows("raw_files")}
    _file(tmp_path, monkeypatch, "names: [zelda, fitz, quinn]")
    ingest(lake, [projects])
    rows = lake.rows("raw_files")
    assert {row["sha256"] for row in rows} == kept
    assert len({(row["day"], row["path"]) for row in rows}) == 3
    paths = str([row["path"] for table in ("raw_files", "sessions") for row in lake.rows(table)])
    assert not any(name in paths for name in ("zelda", "fitz", "quinn"))
    ingest(lake, [projects])
    assert lake.rows("raw_files") == rows


def test_other_rules_redact_every_stored_day_again_and_go_on_when_interrupted(
    lake: Lake, projects: Any, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for day in ("01", "02", "03"):
        s = script(f"s{day}", f"2026-11-{day}")
        s.user("ask zelda-corp about it")
        s.say(f"m{day}", "ok")
        paths.append(s.write(projects, f"-p/s{day}.jsonl"))
    ingest(lake, paths)
    assert len(lake.days("sessions")) == 3
    _file(tmp_path, monkeypatch, "hosts: [zelda-corp]")
    stopped = []

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "parse" and done == 2:
            stopped.append(total)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(lake, paths[:1], progress=interrupt)
    assert stopped == [3]
    old = [row for row in lake.rows("messages") if "zelda-corp" in row["json"]]
    assert len({row["day"] for row in old}) == 2  # the second day is not half new
    seen: list[int] = []
    ingest(lake, paths[:1], progress=lambda stage, done, total: seen.append(total))
    assert "zelda-corp" not in str([lake.rows(t) for t in ("messages", "states", "sessions")])
    assert {row["redaction_version"] for row in lake.rows("sessions")} == {redaction_version()}
    assert seen[-1] == 2  # the first day was done before


def test_the_external_scanner_is_asked_for_and_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "betterleaks", None)
    _file(tmp_path, monkeypatch, "external_scanner: betterleaks\nnames: [missing]")
    with pytest.raises(InputError, match="redaction-extra"):
        redact_text("some text")


def test_the_external_scanner_finds_what_the_first_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("betterleaks")
    secret = "793cf4220c917b85" + "3860886599b2ac75"  # a kind that only the external scanner knows
    text = f"linear: {secret} and {PLANTED['GITHUB_TOKEN']} now"
    assert secret in redact_text(text)[0]
    _file(tmp_path, monkeypatch, "external_scanner: betterleaks")
    redacted, counts = redact_text(text)
    assert secret not in redacted
    assert counts["LINEAR_CLIENT_SECRET"] == 1
    assert redact_value({"x": [text]})[0] == {"x": [redacted]}
    assert PLANTED["GITHUB_TOKEN"] not in redacted
    assert find_secrets(redacted) == []


def test_a_command_inside_json_ends_with_its_string() -> None:
    """Also where other text follows, of this string or of the next one in a value."""
    line = json.dumps({"a": json.dumps({"b": "sudo influx -username admin -password qWertyuZxcv"})})
    for text in (line, f"{line}\n\nnothing else", f"{line}\n{line}"):
        clean, counts = redact_text(text)
        assert counts == {"COMMAND": line.count("influx") * text.count(line)}
        assert "qWerty" not in clean
        assert clean.endswith(text[-5:])
        assert all(json.loads(part) for part in clean.splitlines() if part.startswith("{"))
    value, _ = redact_value([{"text": line}, {"text": "sudo jira login -p eZVYAYUVPcx"}])
    assert "qWerty" not in value[0]["text"]
    assert "eZVY" not in value[1]["text"]


@pytest.mark.parametrize("value", ["H0YEhL6iCqLIEvvAJrmol6Ju", "md6q3tDyfOf6ZqA5SpaIeL9l"])
def test_a_value_that_begins_like_the_name_of_a_type(value: str) -> None:
    assert value not in redact_text(f"vault_db_password: {value}")[0]
    for name in ("h1", "md5", "sha256", "utf8mb4", "utf-8", "varchar(255)", "base64url", "int32"):
        text = f"vault_db_password: {name}"
        assert redact_text(text) == (text, {})


def test_the_rest_of_a_broken_key_needs_no_digit() -> None:
    key = "gh" + "p_9GU9KaVxBKLdZv5f" + "HFKBsnZhnbqTuguBmCUg"
    assert redact_text(f"token {key[:20]}\n{key[20:]}\n")[1] == {"GITHUB_TOKEN": 1}
    kept = f"use {key}\nunforgettably\n"
    assert "\nunforgettably\n" in redact_text(kept)[0]

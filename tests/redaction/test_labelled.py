"""The labelled corpus: nothing planted stays, in any form; no decoy changes; each row counts."""

import io
import json
import sys
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.engine import Rules
from composer_pipeline.redaction.patterns import dump_value
from composer_pipeline.redaction.redact import (
    compiled_rules,
    find_secrets,
    redact_text,
    redact_value,
)
from composer_pipeline.redaction.scanning import Findings, Scanner
from composer_pipeline.redaction.secrets import Replacer
from composer_pipeline.redaction.user_rules import RedactionRules
from composer_pipeline.traces.ingest import ingest
from tests.redaction.labelled import FORMS, PERSONAL, PLACEHOLDER, Maker, Planted, decoys, secrets
from tests.redaction.rule_samples import COMMANDS, CONTEXTS, OTHERS

SEED = 1
SAMPLES = {
    **{f"command/{name}": (frame, "W") for name, frame in COMMANDS.items()},
    **{f"context/{name}": sample for name, sample in CONTEXTS.items()},
    **OTHERS,
}
RULES = dict(compiled_rules().rows)


def leaked(value: Any, planted: Planted) -> bool:
    """Whether the secret can be read in what redaction left."""
    text = json.dumps(value, ensure_ascii=False).replace("\\n", "").replace("\n", "")
    text = PLACEHOLDER.sub("", text)  # its digits can be those of a PIN
    secret = planted.secret.replace("\n", "")
    # Of a secret that a line break splits, the second half is on a line of its own.
    half = secret[len(secret) // 2 :]
    return any(part in text or part in urllib.parse.unquote(text) for part in (secret, half))


def test_the_corpus_is_as_large_as_promised() -> None:
    found = secrets(SEED)
    assert len(found) >= 600
    assert len({planted.kind for planted in found}) >= 90
    assert len(set(decoys(SEED))) >= 1000
    assert [p.text for p in secrets(SEED)] != [p.text for p in secrets(SEED + 1)]


def test_nothing_planted_stays_over_forty_seeds() -> None:
    # Keys of three digits, logins that end in "demo", codes of letters alone: one seed has few.
    seeds = range(2, 42)
    left = [
        planted.text
        for seed in seeds
        for planted in secrets(seed)
        if leaked(redact_value(planted.text)[0], planted)
    ]
    assert left == []
    assert not any(redact_text(text)[1] for seed in seeds for text in decoys(seed))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_planted_stays_in_any_form(form: str) -> None:
    for planted in secrets(SEED):
        if form in ("percent", "wrapped") and planted.kind.startswith("mention/"):
            continue  # names at the beginnings of lines, which these forms move
        value = FORMS[form](planted)
        redacted, counts = redact_value(value)
        assert counts, (planted.kind, value)
        assert not leaked(redacted, planted), (planted.kind, redacted)
        assert find_secrets(redacted) == [], planted.kind


def test_no_decoy_changes() -> None:
    for seed in (SEED, SEED + 1):
        for text in decoys(seed, rounds=6):
            assert redact_text(text) == (text, {})


def test_every_row_has_a_sample() -> None:
    of_tables = {name for name in RULES if not name.startswith(("shape/", "decoding/", "keyed"))}
    assert of_tables == set(SAMPLES)


@pytest.mark.parametrize("name", sorted({*SAMPLES} - {"mention/mentioned"}))
def test_a_row_that_is_switched_off_is_missed(name: str) -> None:
    frame, form = SAMPLES[name]
    secret = Maker(5).value(form)
    text = frame.format(secret)
    assert secret not in redact_text(text)[0]
    # What looks random is a token anywhere; many names are mentioned in several ways.
    others = [
        row
        for row in compiled_rules().rows
        if row[0] not in (name, "token") and not row[0].startswith("mention/")
    ]
    assert secret in compiled_rules().settle(text, others, Replacer())


@pytest.fixture(scope="module")
def without_hyperscan() -> Iterator[Rules]:
    """The rules where Hyperscan is not installed: their literals are searched for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "hyperscan", None)
        yield compiled_rules(RedactionRules(allow=("no such value",)))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_gate_lets_through_what_its_rule_finds_in_any_white_space(
    name: str, without_hyperscan: Rules
) -> None:
    frame, form = SAMPLES[name]
    text = frame.format(Maker(5).value(form))
    seen = 0
    for old, new in (
        (" ", " "),
        (" ", "\t"),
        (" ", "\n"),
        (": ", ":\n"),
        ("=", " = "),
        (":", ": "),
    ):
        variant = text.replace(old, new)
        replacer = Replacer()
        compiled_rules().settle(variant, [(name, RULES[name])], replacer)
        if replacer.counts:
            seen += 1
            for compiled in (compiled_rules(), without_hyperscan):
                assert name in dict(compiled.active(dump_value(variant), ())), variant
    assert seen


@pytest.mark.parametrize(
    "value",
    [
        {"headers": {"X-Api-Key": ["Xk29fjQm7wLp4Zt8"]}},
        {"headers": {"X-Api-Key": ["Xk29fjQm7wLp4Zt8", "text/plain"]}},
        {"db": {"password": ["hunter22", "localhost"]}},
        {"Set-Cookie": ["sid=Xk29fjQm7wLp4Zt8; Path=/", "theme=dark"]},
        {"headers": [["X-Api-Key", "Xk29fjQm7wLp4Zt8"]]},
    ],
)
def test_lists_are_judged_by_their_keys(value: Any) -> None:
    redacted, counts = redact_value(value)
    assert counts.total() == 1
    assert not any(secret in str(redacted) for secret in ("Xk29", "hunter22"))


def test_a_secret_right_behind_another_is_seen_when_that_one_is_replaced() -> None:
    keys = {planted.kind: planted.secret for planted in secrets(SEED)}
    text = redact_text(keys["NPM_TOKEN"] + keys["STRIPE_KEY"])[0]
    assert keys["STRIPE_KEY"][12:] not in text
    assert find_secrets(text) == []


_SHAPES = {f"shape/{p.kind}": p for p in secrets(SEED) if f"shape/{p.kind}" in RULES}


@pytest.mark.parametrize("name", sorted(_SHAPES))
def test_a_shape_that_is_switched_off_is_missed(name: str) -> None:
    planted = _SHAPES[name]
    text = f"use {planted.secret} from now on"
    # A view would run all rules on what it decodes.
    others = [
        row
        for row in compiled_rules().rows
        if row[0] != name and not row[0].startswith("decoding/")
    ]
    assert planted.secret not in redact_text(text)[0]
    left = compiled_rules().settle(text, others, Replacer())
    assert f"SECRET_{planted.kind}_" not in left


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("decoding/json", r"say \u0022DB_PASSWORD\u003dhunter22\u0022"),
        ("decoding/percent", "next=%2Fx%3FDB_PASSWORD%3Dhunter22"),
        ("decoding/html", "<p>&quot;DB_PASSWORD&#61;hunter22&quot;</p>"),
        ("decoding/quoted-printable", "DB_PASSWO=\nRD=3Dhunter22"),
        ("decoding/wrapped", " " * 55 + "mysql -u root -p hunt -phunter2\n2 shop"),
        ("decoding/base64", "Zm9vIERCX1BBU1NXT1JEPWh1bnRlcjIyIGJhcgo="),
    ],
)
def test_a_view_that_is_switched_off_is_missed(name: str, text: str) -> None:
    if name == "decoding/wrapped":
        text = "export DB_PASSWORD=".rjust(77) + "hun\nter22\n"
    assert find_secrets(text)
    others = [row for row in compiled_rules().rows if row[0] != name]
    replacer = Replacer()
    compiled_rules().settle(text, others, replacer)
    assert "er22" in compiled_rules().settle(text, others, Replacer()) or name == "decoding/base64"
    assert replacer.counts.total() == 0


# -- every field of a session, every column of every table -----------------------------------


def test_no_field_of_a_session_leaks_into_the_lake(lake: Lake, projects: Any, script: Any) -> None:
    planted = [p for p in secrets(SEED) if "\n" not in p.secret][::9]
    texts = [p.text for p in planted]
    s = script(cwd="/srv/" + texts[0].replace("/", "_"))
    s.user("\n\n".join(texts))
    for number, text in enumerate(texts):
        s.call(f"m{number}", f"t{number}", "mcp__db__query", command=text, env={"note": [text]})
        s.result(f"t{number}", text, error=number % 2 == 0)
    s.add("summary", summary="\n\n".join(texts), leafUuid="x")
    s.add("system", subtype="informational", content="\n\n".join(texts))
    s.add("attachment", attachment={"type": "file", "content": "\n\n".join(texts)})
    s.add("custom-title", customTitle="\n\n".join(texts))
    s.user("hook says:\n\n" + "\n\n".join(texts), gitBranch=texts[1])
    s.say("last", "\n\n".join(texts))
    ingest(lake, [s.write(projects)])
    seen = str([lake.rows(name) for name in ("messages", "states", "sessions", "chains")])
    assert [p for p in planted if p.secret in seen] == []


_COLUMNS = [
    (spec.name, column)
    for spec in TABLES.values()
    for column in spec.schema.names
    if any(kind in str(spec.schema.field(column).type) for kind in ("string", "json"))
]


@pytest.mark.parametrize(("table", "column"), _COLUMNS)
def test_the_gate_finds_every_form_in_every_text_column(table: str, column: str) -> None:
    kind = TABLES[table].schema.field(column).type
    number = sum(map(ord, table + column))
    pool = [p for p in secrets(SEED) if p.kind not in PERSONAL]
    for offset, form in enumerate(FORMS):
        planted = pool[(number + 37 * offset) % len(pool)]
        value = FORMS[form](planted)
        cell = json.dumps(value) if "json" in str(kind) or not isinstance(value, str) else value
        cells = pa.array([cell])
        if pa.types.is_list(kind):
            if "json" in str(kind):
                cells = pa.ExtensionArray.from_storage(pa.json_(), cells)
            cells = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), cells)
        buffer = io.BytesIO()
        pq.write_table(pa.table({column: cells}), buffer)
        findings = Findings(Scanner())
        findings.file("t.parquet", buffer.getvalue(), "t")
        found = findings.lines()[:1]
        assert found, (form, planted.kind)
        assert found[0].startswith(f"t: row 0, column {column} holds"), (form, planted.kind)

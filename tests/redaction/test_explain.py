"""The report of ``composer-pipeline redact``: every replacement at its place, nothing shown."""

import json
from pathlib import Path

from composer_pipeline.redaction.redact import explain_file


def test_places_of_several_in_a_line_and_in_encoded_text(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    text = "ask bob@acme.com and carol@acme.org\nthen ?a=bob%40acme.com&b=erin%40acme.net now\n"
    file.write_text(text)
    found = explain_file(file)
    assert found.counts == {"EMAIL": 4}
    lines = text.split("\n")
    shown = []
    for item in found.replacements:
        line, column = map(int, item.place.split(":"))
        shown.append(lines[line - 1][column - 1 :][: item.length])
        assert item.shown == shown[-1][:3] + "…"
    assert shown == ["bob@acme.com", "carol@acme.org", "bob%40acme.com", "erin%40acme.net"]
    assert [item.rule for item in found.replacements] == ["email"] * 2 + [
        "decoding/percent/email"
    ] * 2


def test_places_in_json_lines_name_the_string(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(
        json.dumps({"message": {"content": ["fine", "mail bob@acme.com"]}})
        + "\nnot JSON, bob@acme.com\n"
        + json.dumps({"input": {"password": "hunter22"}})
    )
    places = [item.place for item in explain_file(file).replacements]
    assert places == ["1 message.content[1] 1:6", "2 1:11", "3 input.password"]


def test_what_is_left_just_below_the_threshold_is_for_a_person(tmp_path: Path) -> None:
    """Else a token of an unknown vendor stays, and nobody is told."""
    token = "vK3xQz8LpT2mWn6RbY9d"
    file = tmp_path / "session.jsonl"
    file.write_text(
        json.dumps({"message": {"content": [f"mail bob@acme.com\nx = '{token}'"]}})
        + "\n"
        + json.dumps({"message": "commit 3f786850e387550fdab836ed7e6dc881de23001b"})
    )
    found = explain_file(file)
    assert found.counts == {"EMAIL": 1}
    (left,) = found.review
    assert (left.place, left.length, left.shown) == ("1 message.content[0] 2:6", 20, "vK3…")
    assert left.score > 4
    assert "quoted" in left.evidence
    assert token not in str(left)

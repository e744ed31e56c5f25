"""Reading a model's own actions from a file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.exporting.student_samples import Sample, read_samples
from composer_pipeline.redaction.redact import find_secrets

CALL = {"name": "Bash", "arguments": {"command": "ls"}}
ROWS = [
    {"state_id": "a", "student": "me/model", "action": {"text": "Done."}},
    {"state_id": "a", "student": "me/model", "action": {"text": None, "tool_calls": [CALL]}},
]
SAMPLES = [
    Sample("a", "me/model", Action("Done.")),
    Sample("a", "me/model", Action("", (ToolCall("Bash", {"command": "ls"}),))),
]


def test_samples_are_read_in_order_and_none_is_lost(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS))
    assert read_samples(path) == SAMPLES


def test_parquet_holds_actions_as_json(tmp_path):
    path = tmp_path / "s.parquet"
    rows = [{**row, "action": json.dumps(row["action"])} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert read_samples(path) == SAMPLES


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_is_private_in_a_sample_is_redacted(tmp_path, suffix):
    secret = "Xk29fjQm7" + "wLp4"
    action = {
        "text": f"DB_PASSWORD={secret} is in /home/alice/env",
        "tool_calls": [{"name": "db", "arguments": {"password": secret, "n": 3}}],
    }
    row = {"state_id": "a", "student": "me/model", "action": action}
    path = tmp_path / f"s{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(row))
    else:
        rows = [{**row, "action": json.dumps(action)}]
        pq.write_table(pa.Table.from_pylist(rows), path)
    (sample,) = read_samples(path)
    assert secret not in sample.action.to_json()
    assert "alice" not in sample.action.to_json()
    assert find_secrets(json.loads(sample.action.to_json())) == []
    assert sample.action.tool_calls[0].arguments["n"] == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"state_id": "x", "student": "m"}', "action"),
        ('{"state_id": "x", "student": "m", "action": "no"}', "not JSON"),
        ('{"state_id": "x", "student": "m", "action": {"text": " "}}', "neither text"),
        ('{"state_id": "x", "student": "recorded", "action": {"text": "a"}}', "'student'"),
        ('{"state_id": "x", "student": "", "action": {"text": "a"}}', "'student'"),
        ('{"state_id": "x", "student": "m", "action": {"text": "a"}, "z": 1}', "z"),
        ("", "no sampled action"),
    ],
)
def test_bad_samples_name_file_row_and_field(tmp_path, line, message):
    path = tmp_path / "s.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(InputError, match=r"s\.jsonl") as error:
        read_samples(path)
    assert message in str(error.value)
    if line:
        assert "s.jsonl:2" in str(error.value)

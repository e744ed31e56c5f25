"""What a replay's exit code says when money or calls brought nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from composer_pipeline.lake.store import Lake
from tests.fixtures.lake_states import write_sessions
from tests.fixtures.odd_server import odd_server, response

FILE = """\
purpose: evaluation
limits: {{attempts: 1, backoff_s: 0, read_timeout_s: 300, recover_after_s: 0}}
teachers:
  - name: local
    family: qwen
    model: qwen
    licence: Apache-2.0
    endpoint: {{name: local, base_url: "{url}"}}
    price: {{prompt: 1, completion: 1}}
"""


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (response({"error": {"code": 400, "message": "m"}}, 400), 1, "no reply came"),
        (response(b"", 301, {"Location": "/x"}), 1, "redirect"),
        (response(b"", 200), 1, "1 lost"),
        (response(b"\x00 junk", 200), 1, "1 unreadable and kept"),
        (response({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
                   "usage": {"prompt_tokens": 9, "completion_tokens": 1}}), 0, ""),
    ],
)  # fmt: skip
def test_exit_code(tmp_path: Path, answer: bytes, code: int, said: str) -> None:
    lake = Lake(tmp_path / "lake")
    write_sessions(lake, sessions=1, turns=1)
    with odd_server(lambda *_: iter([answer])) as server:
        teachers = tmp_path / "teachers.yaml"
        teachers.write_text(FILE.format(url=server.url))
        done = subprocess.run(
            [sys.executable, "-m", "composer_pipeline.cli", "replay", "--max-usd", "1",
             "--lake", str(lake.root), "--teachers", str(teachers), "--max-states", "1", "--json"],
            capture_output=True,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("COMPOSER_")},
        )  # fmt: skip
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == 1  # the report is shown all the same

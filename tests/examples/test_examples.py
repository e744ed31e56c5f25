"""Each example runs as its docstring says, from the checkout, without a key."""

import os
import re
import subprocess
import sys

import pytest

from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback
from tests.places import ROOT

#: What a reader is promised to see, as patterns of the output.
PROMISED = {
    "own_sessions_to_pairs": [
        r"states: 198\n", r"worst case: \d+\.\d+ USD \(simulated\)",
        r"replies: \d+ for 0\.\d+ USD \(simulated\)", r"hints: 32\n",
        r"pairs: \d+ \{.*'gold': \d+", r"one of them: The teachers agreed with each other",
    ],
    "own_trace_source": [
        r"Read +after 1 messages; hint: File does not exist\. Did you mean cart\.ts\?\n"
        r"Read +after 3 messages; hint: none\ntext +after 5 messages; hint: none\n",
    ],
    "own_trainer": [
        r"(argument-counts-\w{12}): \{'accuracy': 1\.0, 'dpo_active': 8\}, reused: False\n"
        r"\1: \{'accuracy': 1\.0, 'dpo_active': 8\}, reused: True\ncounting: dpo surrogate\n",
    ],
    "compare_two_models": [
        r"careful and contrarian: L0 \d+", r"contrarian and the agent: L0 \d+\n",
        r"careful: \d+ replies for 0\.\d+ USD \(simulated\)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_example_runs_and_shows_what_it_says(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f"python -m examples.{name}" in text
    assert len(text.splitlines()) <= 90
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.endswith("_KEY")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for pattern in PROMISED[name]:
        assert re.search(pattern, done.stdout), (pattern, done.stdout)


def test_every_example_is_run():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__"}
    assert files == set(PROMISED)


def test_the_readmes_program_runs(tmp_path, monkeypatch, capsys):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## From Python\n")[1]
    code = section.split("```python\n")[1].split("```")[0]
    for written, here in (
        ("recipes/teachers/default.yaml", str(ROOT / "recipes" / "teachers" / "demo.yaml")),
        ("~/.claude/projects", str(sample_sessions_dir())),
    ):
        assert written in code
        code = code.replace(written, here)
    monkeypatch.chdir(tmp_path)
    with loopback():
        exec(code, {})
    said = capsys.readouterr().out
    assert re.search(r"worst case: \d\.\d+ USD\npairs: 103\n.", said), said

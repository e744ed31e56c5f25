"""The commands of README, guide and usage run in one lake, in the order in which they stand.

What an earlier page had is not run again.
"""

import re
import shutil
from pathlib import Path

import pytest

from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.shell import LAKE
from tests.places import ROOT
from tests.practice import practise

PAGES = ("README.md", "docs/guide.md", "docs/usage.md")
#: Installs, and makes what the repository's own targets make: tested by what set this up.
LEFT_OUT = ("uv tool install", "make ")
_READ = "import json, sys; print(json.loads(sys.stdin.read().splitlines()[0])['state_id'])"
STATE = f'$(composer-pipeline states --json | python -c "{_READ}")'
_COPY = "import json; print(json.load(open('server.json'))['teachers'])"
_REPLAY = f'composer-pipeline replay --teachers $(python -c "{_COPY}")'
#: What a reader puts in for a word of the page.
PUT_IN = {
    "PAIR_OR_STATE_ID": STATE,
    "STATE_ID": STATE,
    "OPENROUTER_API_KEY=…": "OPENROUTER_API_KEY=practice",
    "--teachers FILE": "--teachers recipes/teachers/default.yaml",
    "composer-pipeline replay --teachers COPY": f"env -u COMPOSER_OPENROUTER_URL {_REPLAY}",
    "cp -r lake": f"cp -r {LAKE}",
    "YOUR_MODEL": "model",
    "OWNER/NAME": "practice/pairs --allow-simulated",
    "recipes/train/smollm2-cpu.yaml": "train.yaml",  # half an hour otherwise
    "replicas RUN": f"replicas $(dirname $(ls -d {LAKE}/runs/*/outer | tail -n 1))",
    "RUN": f"{LAKE}/runs/*",
    "--rounds N": "--rounds 2",
    "composer-pipeline evaluate": "composer-pipeline evaluate --per-kind 2 --max-new-tokens 16",
}
SERVER = "python -m composer_pipeline.testing.openrouter"
VIEWER = "composer-pipeline view"


def commands(page: str) -> list[str]:
    """Return the lines of the blocks that show commands."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    blocks = [body for language, body in fenced if language in ("", "bash")]
    shown = [block for block in blocks if re.search(r"^(?:composer-pipeline|export) ", block, re.M)]
    return [line for block in shown for line in block.splitlines()]


def typed(line: str) -> str:
    """Return what is typed for a line of a page."""
    for word, value in PUT_IN.items():
        line = line.replace(word, value)
    if line.startswith(SERVER):
        return f"{line} > server.json & until [ -s server.json ]; do sleep 0.2; done"
    if line.startswith(VIEWER):
        started = "until [ -s view.url ]; do sleep 0.2; done; kill $!"
        return f"{VIEWER} --port 0 2> view.url & {started}"
    return line


def once(pages: tuple[str, ...]) -> list[str]:
    """Return the commands of pages, without those that an earlier page has."""
    kept: list[str] = []
    for page in pages:
        found = [line for line in commands(page) if not line.startswith(LEFT_OUT)]
        parts = [part.strip() for line in found for part in line.split("  #")[0].split(" && ")]
        kept += [part for part in parts if part not in kept]
    return kept


@pytest.mark.slow
def test_the_commands_of_the_pages_run_in_order(tmp_path: Path) -> None:
    shutil.copytree(sample_sessions_dir(), tmp_path / ".claude" / "projects")
    lines = once(PAGES)
    assert len(lines) > 40
    script = ["trap 'kill $(jobs -p) || true' EXIT", *map(typed, lines)]
    done = practise(
        tmp_path, "\n".join(script), HOME=str(tmp_path), OPENROUTER_API_KEY="sk-or-not-passed-on"
    )
    assert "not-passed-on" not in done.stdout + done.stderr
    assert (tmp_path / "kto.parquet").is_file()
    assert {file.name for file in (tmp_path / "build/kto").iterdir()} == {
        "train.parquet", "validation.parquet",
    }  # fmt: skip
    assert (tmp_path / "pairs" / "chat_template.jinja").is_file()
    runs = [*(tmp_path / LAKE / "runs").iterdir()]
    assert all((run / "checkpoint" / "adapter_model.safetensors").is_file() for run in runs)
    assert any((run / "evaluation.json").is_file() for run in runs)


def test_the_guide_names_every_command_that_makes_something() -> None:
    guide = "\n".join(commands("docs/guide.md"))
    stages = "ingest sessions states state plan replay pairs statistics normalize dataset train"
    for stage in f"{stages} evaluate publish export budget doctor".split():
        assert re.search(rf"composer-pipeline {stage}\b", guide), stage

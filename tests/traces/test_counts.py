"""The counts of a file that ``ingest --per-file`` reports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def test_what_the_client_made_up_is_counted_apart(
    tmp_path: Path, projects: Path, script: Any
) -> None:
    """Not a response, not a state; each record once, those of a sidechain not at all."""
    s = script()
    s.user("go")
    s.say("m1", "hello")
    s.say("x1", "No response requested.", model="<synthetic>")
    s.say("x2", "API Error: overloaded", isApiErrorMessage=True)
    s.lines.append(s.lines[-1])
    s.say("x3", "API Error", isApiErrorMessage=True, isSidechain=True, agentId="a1")
    file = s.write(projects)
    command = [sys.executable, "-m", "composer_pipeline.cli", "ingest", str(file)]
    command += ["--per-file", "--json", "--lake", str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    out = json.loads(done.stdout)
    for facts in (out, out["by_file"][file.name]):
        assert (facts["synthetic_assistant"], facts["responses"], facts["states"]) == (2, 1, 1)

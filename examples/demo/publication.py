"""The demo's last stage: the dataset goes to a Hub on this machine, as it would to the real one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError
from composer_pipeline.settings import Settings
from composer_pipeline.testing.hub.server import LoopbackHub

REPO = "demo/agent-pairs"
CARD = "README.md"
#: A real key, and what would keep a Hub of this machine out of reach.
LEFT_OUT = ("HF_TOKEN", "HF_HUB_OFFLINE")


def publish_here(settings: Settings) -> dict[str, Any]:
    """Publish the lake's dataset to a Hub of this machine; return the command's report."""
    with LoopbackHub() as hub:
        env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        env |= {
            "HF_ENDPOINT": hub.endpoint,
            "HF_TOKEN": hub.token,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        words = ["publish", "--repo", REPO, "--allow-simulated", "--json", "--lake", settings.lake]
        done = subprocess.run(
            [sys.executable, "-m", "composer_pipeline.cli", *words],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ComposerError(done.stderr.strip().removeprefix("composer-pipeline: "))
        report: dict[str, Any] = json.loads(done.stdout)
        files = hub.repos[REPO].head.files
        local = "://" not in settings.lake
        folder = Path(f"{settings.lake.rstrip('/')}-card" if local else "build/demo-card")
        for name, data in files.items():
            if name == CARD or name.startswith("assets/"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        address = f"{hub.endpoint}/datasets/{REPO}"
    return {**report, "card": str(folder / CARD), "address": address}

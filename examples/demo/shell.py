"""``python -m examples.demo.shell [COMMAND …]``: a shell to practise in, without a key.

Without a command it starts ``$SHELL``; the servers end with it. Keys of the environment are
not passed on, so nothing in this shell can reach a paid service by mistake.
"""

import os
import subprocess
import sys
from pathlib import Path

from composer_pipeline.settings import Settings
from composer_pipeline.testing.hub.server import LoopbackHub
from examples.demo.profile import demo_settings, loopback, to_env

LAKE = "build/practice"
#: Real keys, and what would keep the Hub of this machine out of reach.
LEFT_OUT = ("OPENROUTER_API_KEY", "HF_TOKEN", "HF_HUB_OFFLINE")


def main(command: list[str]) -> int:
    """Run a command, or the user's shell, in the practice environment; return its exit code."""
    chosen = Settings.from_env().model_dump(exclude_defaults=True)
    settings = demo_settings(lake=LAKE).model_copy(update=chosen)
    with loopback(), LoopbackHub() as hub:
        env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        env |= to_env(settings)
        env |= {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": hub.token,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}",
        }
        if not command:
            print(
                f"Practice: lake {settings.lake}, simulated teachers, a Hub on this machine. "
                "No money is spent and nothing leaves. Type exit to end.",
                file=sys.stderr,
            )
        return subprocess.run(
            command or [env.get("SHELL", "/bin/sh")], env=env, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

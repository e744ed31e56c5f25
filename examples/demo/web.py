"""``make dev``: the Dagster UI on http://127.0.0.1:3000.

Belongs here: choosing between the demo profile and the user's own settings, and
running ``dagster dev`` in a process group of its own so that Ctrl-C ends all of it.
With ``OPENROUTER_API_KEY`` or ``COMPOSER_TEACHERS`` in the environment or in ``.env``, those
settings are used; otherwise the demo's lake, sessions and loopback teachers are.
"""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from dotenv import dotenv_values

from examples.demo.profile import demo_settings, loopback, to_env

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run ``dagster dev`` until it ends or is interrupted."""
    port = os.environ.get("PORT", "3000")
    with ExitStack() as stack:
        # Dagster reads .env itself, but only after the profile has been chosen here.
        own = {k: v for k, v in dotenv_values(ROOT / ".env").items() if v is not None}
        env = {**own, **os.environ}
        if env.get("OPENROUTER_API_KEY") or env.get("COMPOSER_TEACHERS"):
            print("Settings: the environment's. Paid assets spend real money.", file=sys.stderr)
        else:
            stack.enter_context(loopback())
            env = {**os.environ, **to_env(demo_settings())}
            print("Settings: the demo's lake and simulated teachers.", file=sys.stderr)
        command = [
            sys.executable,
            "-m",
            "dagster",
            "dev",
            "-w",
            "workspace.yaml",
            "-h",
            "127.0.0.1",
            "-p",
            port,
        ]
        process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)

        def forward(number: int, _frame: object) -> None:
            os.killpg(process.pid, number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, forward)
        sys.exit(process.wait())


if __name__ == "__main__":
    main()

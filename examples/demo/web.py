"""``make dev``: the Dagster UI on http://127.0.0.1:3000 (``PORT=3001 make dev``: another port).

With a key, a lake, sessions or a teacher file in the environment or in
``.env``, those settings are used; otherwise the demo's are, with a Hub of this machine.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from dotenv import dotenv_values

from composer_pipeline.cli.common import named_ledger
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.testing.hub.server import LoopbackHub
from composer_pipeline.view.site import Site, server_of
from examples.demo.one_server import claim
from examples.demo.process_group import run_group
from examples.demo.profile import demo_settings, loopback, to_env
from examples.demo.publication import REPO
from examples.demo.start_lines import start_lines

ROOT = Path(__file__).resolve().parents[2]
#: Any of these says that the user has settings of their own.
OWN = ("OPENROUTER_API_KEY", "COMPOSER_TEACHERS", "COMPOSER_LAKE", "COMPOSER_SESSIONS")


def main() -> None:
    """Run ``dagster dev`` until it ends or is ended; exit 2 where there is no room for it."""
    try:
        sys.exit(serve())
    except InputError as error:
        sys.stderr.write(f"make dev: {error}\n")
        sys.exit(2)


def serve() -> int:
    """Start the servers, wait for their end, and return the exit code of ``dagster dev``."""
    port = _port(os.environ.get("PORT", "3000"))
    # dagster dev reads .env itself, and lets it win; so does this.
    written = {k: v for k, v in dotenv_values(ROOT / ".env").items() if v is not None}
    chosen = {**os.environ, **written}
    with ExitStack() as stack:
        lock = stack.enter_context(claim(ROOT / ".dagster", port))
        if not any(chosen.get(name) for name in OWN):
            stack.enter_context(loopback())
            chosen |= _demo(stack.enter_context(LoopbackHub()), chosen) | {
                name: os.environ[name]
                for name in ("COMPOSER_OPENROUTER_URL", "COMPOSER_LOOPBACK_KEY")
            }
        chosen["DAGSTER_HOME"] = written.get("DAGSTER_HOME") or str(_home())
        for line in start_lines(chosen):
            print(line, file=sys.stderr)
        settings = Settings.from_env(chosen)
        if urlsplit(settings.view_url).hostname in ("127.0.0.1", "localhost"):
            stack.enter_context(_viewer(settings))
        return _run(port, chosen, lock)


@contextmanager
def _viewer(settings: Settings) -> Iterator[None]:
    """Serve the lake's viewer, to which asset pages link, for a block; say so if it cannot be."""
    lake = Lake(settings.lake)
    at = urlsplit(settings.view_url)
    with closing(Site(lake, settings.run_root, named_ledger(lake, settings.ledger))) as site:
        try:
            server = server_of(site, at.port or 80)
        except InputError as error:
            print(f"View      not here: {error} (COMPOSER_VIEW_URL)", file=sys.stderr)
            yield
            return
        print(f"View      http://127.0.0.1:{server.server_port}/", file=sys.stderr)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InputError(f"PORT: {text!r} is no port; 1 to 65535 are")
    return int(text)


def _demo(hub: LoopbackHub, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the demo's environment; what the user has set besides stays as it is."""
    settings = demo_settings().model_dump() | {
        name: chosen[f"COMPOSER_{name.upper()}"]
        for name in Settings.model_fields
        if chosen.get(f"COMPOSER_{name.upper()}")
    }
    settings["publish_repo"], settings["publish_simulated"] = REPO, True
    env = to_env(Settings.model_validate(settings))
    return {**env, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": ""}


def _home() -> Path:
    """Return a folder with the checkout's instance settings: no other project's are used."""
    home = ROOT / ".dagster" / "home"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "dagster.yaml", home / "dagster.yaml")
    return home


def _run(port: int, env: Mapping[str, str], lock: int) -> int:
    command = [
        *(sys.executable, "-m", "examples.demo.quiet_dagster", "dev", "--log-level", "warning"),
        *("-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)),
    ]

    def started(process: "subprocess.Popen[bytes]") -> None:
        threading.Thread(target=_say_when_ready, args=(port, process), daemon=True).start()

    return run_group(command, cwd=ROOT, env=env, pass_fds=[lock], started=started)


def _say_when_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    url = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(f"{url}/server_info", timeout=5).close()  # noqa: S310  http
            print(f"UI        {url}  (Ctrl-C ends it)", file=sys.stderr, flush=True)
            return
        time.sleep(0.5)


if __name__ == "__main__":
    main()

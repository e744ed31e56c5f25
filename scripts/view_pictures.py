"""The pictures of docs/view.md, taken of a lake in a real browser.

    python scripts/view_pictures.py LAKE

LAKE is that of ``make demo``. Needs chromium.
"""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


def main(lake: str) -> None:
    """Serve the lake, open four pages, and write their pictures."""
    command = [sys.executable, "-m", "composer_pipeline.cli", "view", "--lake", lake, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        url = server.stderr.readline().split()[0]
        try:
            take(url)
        finally:
            server.send_signal(signal.SIGINT)


def take(url: str) -> None:
    """Take the pictures of a running viewer."""

    def ask(name: str) -> Any:
        with urllib.request.urlopen(f"{url}api/{name}") as answer:  # noqa: S310  of this machine
            return json.load(answer)

    fixed = ask("rows?made=fixup")["rows"][0]
    pair = ask("rows?made=pair&tool=Edit")["rows"][0]["state_id"]
    pages: dict[str, tuple[str, Literal["light", "dark"], int]] = {
        "states": ("states?made=pair&outcome=a+call+failed", "light", 640),
        "state": (f"state/{pair}", "light", 820),
        "session": (f"session/{fixed['session_id']}?at={fixed['state_id']}", "dark", 640),
        "evaluation": (f"evaluation/{ask('runs')['runs'][0]['name']}", "light", 560),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (route, scheme, height) in pages.items():
            page = browser.new_page(color_scheme=scheme, viewport={"width": 1200, "height": height})
            page.goto(f"{url}view.html#/{route}")
            page.wait_for_selector("main[data-shown]")
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / f"view-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

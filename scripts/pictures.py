"""The pictures of the viewer and of a dataset's card, taken in a real browser.

    python -m scripts.pictures LAKE

LAKE is that of ``make demo``, which leaves the card in ``LAKE-card``. Needs chromium.
"""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Literal

import markdown
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


STYLE = """body { font: 16px/1.5 sans-serif; max-width: 860px; margin: 20px 30px; }
pre, code { background: #f6f7f9; font-size: 12px; } pre { padding: 10px; white-space: pre-wrap; }
blockquote { border-left: 4px solid #d5d9df; margin: 0; padding-left: 12px; color: #545d69; }"""


def main(lake: str) -> None:
    """Serve the lake, open four pages, and write their pictures; and that of the card's top."""
    take_card(Path(f"{lake.rstrip('/')}-card"))
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


def take_card(folder: Path) -> None:
    """Take the picture of a card's top, rendered about as the Hub does."""
    _, _, text = (folder / "README.md").read_text().partition("\n---\n")
    page = folder / "card.html"
    body = markdown.markdown(text, extensions=["fenced_code", "tables"])
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{body}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        shown = browser.new_page(viewport={"width": 920, "height": 1300})
        shown.goto(page.absolute().as_uri())
        shown.screenshot(path=IMAGES / "card.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

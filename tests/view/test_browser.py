"""The viewer in a real browser: in light, dark and on a phone, by keyboard, from a file."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from composer_pipeline.lake.store import Lake
from tests.ui.conftest import FLAGS
from tests.view.conftest import Viewer

pytestmark = pytest.mark.ui

NASTY = """</pre></script><script>window.hit=1</script><img src=x onerror="window.hit=1">"""


class Tab:
    """A page of the viewer; what went wrong in it is kept."""

    def __init__(self, browser: Any, base: str, scheme: str = "light", width: int = 1400) -> None:
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        self.page, self.base, self.faults = self.context.new_page(), base, list[str]()
        self.page.set_default_timeout(60_000)
        self.page.on("console", self._printed)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda asked: self._asked(asked.url))

    def _printed(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.base, "data:")):
            self.faults.append(f"asked {url}")

    def show(self, route: str) -> Any:
        self.page.goto(f"{self.base}view.html{route}")
        self.shown(route)
        return self.page

    def shown(self, route: str) -> None:
        self.page.wait_for_selector(f"main[data-shown={json.dumps(route)}]")

    def text(self) -> str:
        return str(self.page.inner_text("main"))


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def routes(viewer: Viewer) -> list[str]:
    """One of every page; a state with a pair, one with a hint and one with a fix-up."""
    states = [viewer.rows(made=made)[0] for made in ("pair", "hint", "fixup")]
    return [
        "#/states", "#/states?tool=Edit&made=hint", "#/states?q=pytest", "#/sessions",
        f"#/session/{states[0]['session_id']}?at={states[0]['state_id']}", "#/money", "#/runs",
        "#/evaluation/run-one", "#/state/0000",
        *(f"#/state/{row['state_id']}" for row in states),
    ]  # fmt: skip


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 1400), ("light", 390)])
def test_no_page_has_a_fault(
    browser: Any, viewer: Viewer, routes: list[str], scheme: str, width: int
) -> None:
    tab = Tab(browser, viewer.url, scheme, width)
    for route in ["index.html", *routes]:
        page = tab.page if route == "index.html" else tab.show(route)
        if route == "index.html":
            page.goto(viewer.url + route)
        if route.startswith("#/session/"):  # as wide as a real path can be
            page.evaluate(
                "document.querySelector('.turn a.row').textContent += '/folder'.repeat(90)"
            )
        assert page.evaluate("document.documentElement.scrollWidth") <= width, route
        found = Axe().run(page).response["violations"]
        assert [
            (fault["id"], fault["nodes"][0]["html"][:200], fault["nodes"][0]["failureSummary"])
            for fault in found
        ] == [], route
    missing = [fault for fault in tab.faults if "404" in fault]
    assert tab.faults == missing
    assert len(missing) == 1  # of the state that is not there
    tab.context.close()


def test_a_bundle_opened_from_a_file_shows_what_the_server_shows(
    browser: Any, viewer: Viewer, bundle: Path, routes: list[str]
) -> None:
    here, there = Tab(browser, viewer.url), Tab(browser, f"file://{bundle}/")
    for route in routes:
        here.show(route)
        there.show(route)
        if route != "#/state/0000":
            assert there.text() == here.text(), route
    assert "state 0000 is not in this bundle" in (there.show("#/state/0000"), there.text())[1]
    there.page.goto(f"{there.base}index.html")
    there.page.click("nav >> text=All states")
    there.page.wait_for_selector("#list")
    assert there.faults == []
    here.context.close()
    there.context.close()


def test_the_keyboard_alone_reaches_everything(browser: Any, viewer: Viewer) -> None:
    tab = Tab(browser, viewer.url)
    page, rows = tab.show("#/states"), viewer.rows()
    press = page.keyboard.press
    press("j")
    press("j")
    press("k")
    press("j")
    press("Enter")
    tab.shown(f"#/state/{rows[1]['state_id']}")
    press("j")
    tab.shown(f"#/state/{rows[2]['state_id']}")
    press("k")
    tab.shown(f"#/state/{rows[1]['state_id']}")
    press("k")
    tab.shown(f"#/state/{rows[0]['state_id']}")
    press("s")
    tab.shown(f"#/session/{rows[0]['session_id']}?at={rows[0]['state_id']}")
    last = [row for row in rows if row["session_id"] == rows[0]["session_id"]][-1]
    tab.show(f"#/session/{last['session_id']}?at={last['state_id']}")
    page.wait_for_timeout(300)
    top = page.evaluate(f"document.getElementById('turn-{last['state_id']}').offsetTop")
    assert (
        top > 900 > top - page.evaluate("window.scrollY") > -1
    )  # below the first screen, and seen
    tab.show(f"#/state/{rows[0]['state_id']}")
    press("u")
    tab.shown("#/states")
    press("/")
    page.keyboard.type("billfold")
    press("Enter")
    tab.shown("#/states?q=billfold")
    count = len(viewer.rows(q="billfold"))
    assert f"of {count}" in page.inner_text("#count")
    page.select_option("select[name=made]", "hint")
    tab.shown("#/states?q=billfold&made=hint")
    found = viewer.rows(q="billfold", made="hint")
    assert f"of {len(found)}" in page.inner_text("#count")
    press("j")
    # Every link, field and button is one that Tab reaches, in the order of the page.
    reached, every = set[str](), page.evaluate(_CONTROLS)
    page.evaluate("document.activeElement.blur()")
    for _ in range(len(every) + 5):
        press("Tab")
        reached.add(page.evaluate(_CONTROL))
    assert set(every) <= reached
    assert tab.faults == []
    tab.context.close()


_NAME = "(e => `${e.tagName} ${e.id} ${e.name ?? ''} ${e.getAttribute('href') ?? ''}`)"
_CONTROLS = f"[...document.querySelectorAll('a, button, select, input')].map({_NAME})"
_CONTROL = f"{_NAME}(document.activeElement)"


def test_what_was_forgotten_is_said_in_a_bundle_that_is_older(
    browser: Any, bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundle, tmp_path / "site")
    (tmp_path / "site" / "data" / "rows.js").unlink()  # as forget does: tests/view/test_bundle.py
    tab = Tab(browser, f"file://{tmp_path}/site/")
    tab.show("#/states")
    assert "a session in it was forgotten or withdrawn since. Make the bundle again" in tab.text()
    tab.context.close()


def test_what_an_agent_wrote_is_text(browser: Any, own_lake: Path, own_viewer: Viewer) -> None:
    lake = Lake(own_lake)
    row = own_viewer.rows(day="2026-11-16")[0]
    hints = lake.rows("hints", days=[row["day"]])
    for hint in hints:
        del hint["day"]
    lake.write("hints", [{**hints[0], "state_id": row["state_id"], "text": NASTY}, *hints[1:]],
               day=row["day"])  # fmt: skip
    path = own_lake / "runs" / "run-one"
    path.rename(path.with_name("<img src=x onerror='window.hit=1'>"))
    tab = Tab(browser, own_viewer.url)
    own_viewer.rows(q="wait for the lake to be read again")
    for route in (f"#/state/{row['state_id']}", "#/runs"):
        tab.show(route)
        tab.page.wait_for_timeout(2500)
        tab.page.reload()
        tab.shown(route)
        assert "onerror=" in tab.text()
        assert tab.page.evaluate("[window.hit, document.querySelector('main img')]") == [None, None]
    assert tab.faults == []
    tab.context.close()

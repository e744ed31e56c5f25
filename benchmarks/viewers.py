"""Looking at sessions: our viewer beside inspect_ai's and claude-code-log, in a real browser.

    python benchmarks/viewers.py [--lake lake-demo] [--record]

Each makes pages of the same sessions, the bundled samples and the shared corpus where there is one:
CPU seconds, bytes, files. Then Chromium opens them. inspect_ai shows logs of its own evaluations,
so `viewers_inspect.py` writes the sessions as one.
"""

import datetime as dt
import functools
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

import pages
from peers import environment
from shared_corpus import SHARED, source_files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from composer_pipeline.markdown import count, table  # noqa: E402
from composer_pipeline.testing.samples import sample_sessions_dir  # noqa: E402
from tests.ui.conftest import FLAGS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "viewers.md"
VERSIONS = {"inspect_ai": "0.3.285", "claude-code-log": "1.7.0"}
OURS, COMPLETE = "composer-pipeline", "composer-pipeline, complete lake"
INSPECT, LOG = (f"{name} {version}" for name, version in VERSIONS.items())
PHONE = 390
#: One session of the samples; the one of the corpus that has an image.
IN_SAMPLES = "8dfc06e4-e5bf-4818-a7f2-0fcb0d46c230"
IN_CORPUS = "e8106766-ab6a-43ed-8849-77d5114eaff1"
SECRET = "ghp_" + "q7Rt2Wz9" * 4 + "Lm4X"
#: Pages are opened so often for a time, each time in a new profile.
TIMES = 7


@dataclass(frozen=True)
class Place:
    """One page of a site: its path, and what is there once it can be read."""

    path: str
    ready: str


@dataclass
class Made:
    """A site that a viewer wrote, and what that took."""

    tool: str
    folder: Path
    cpu_s: dict[str, float]
    #: The first page, the list of sessions or states where that is another, one session.
    first: Place
    listed: Place
    session: Place

    @property
    def places(self) -> list[Place]:
        """Its pages, each once."""
        return list(dict.fromkeys([self.first, self.listed, self.session]))

    def size(self) -> tuple[int, int]:
        """Return its number of files and its bytes."""
        found = [path.stat().st_size for path in self.folder.rglob("*") if path.is_file()]
        return len(found), sum(found)


@dataclass
class Seen:
    """What a browser saw of a site."""

    #: By colour scheme: serious and critical faults, and elements whose contrast is undecided.
    faults: dict[str, Counter[str]] = field(
        default_factory=lambda: {"light": Counter(), "dark": Counter()}
    )
    undecided: list[str] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    from_file: bool = False
    follows_dark: bool = False


def cpu(command: Sequence[str | Path], work: Path) -> float:
    """Run a command; return its CPU seconds, its children's too. All have one home for caches."""
    home = work.parent / "home"
    home.mkdir(exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, command)), env=env, cwd=home, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {(done.stderr or done.stdout)[-600:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_log(python: Path, sessions: Path, chosen: Path, work: Path) -> Made:
    """Make claude-code-log's pages; its cache lies beside the sessions, so of a copy."""
    projects, folder = work / "projects", work / "log"
    shutil.copytree(sessions, projects)
    command = python.with_name("claude-code-log")
    given = ("--projects-dir", projects, "--all-projects", "-o", folder, "-j", "1")
    index = Place("index.html", ".project-card")
    page = f"{chosen.parent.name}/session-{chosen.stem}.html"
    took = {"pages": cpu((command, *given), work)}
    return Made(LOG, folder, took, index, index, Place(page, ".message"))


def by_inspect(python: Path, sessions: Path, chosen: Path, work: Path) -> Made:
    """Make inspect_ai's bundle of the log that we write."""
    logs, folder = work / "logs", work / "inspect"
    logs.mkdir()
    took = {
        "our conversion": cpu(
            (python, ROOT / "benchmarks/viewers_inspect.py", sessions, logs), work
        )
    }
    command = (python.with_name("inspect"), "view", "bundle", "--log-dir", logs)
    took["bundle"] = cpu((*command, "--output-dir", folder), work)
    [log] = [quote(path.name) for path in logs.iterdir()]
    index = Place("index.html", "[role=row]:has-text('-')")
    page = f"index.html#/tasks/{log}/samples/sample/{chosen.stem}/1/messages"
    return Made(INSPECT, folder, took, index, index, Place(page, "text=ASSISTANT >> nth=0"))


def by_ours(sessions: Path | None, chosen: Path, lake: Path, folder: Path) -> Made:
    """Make our bundle, of a lake that is made where sessions are given."""
    command = (sys.executable, "-m", "composer_pipeline.cli")
    took = {}
    if sessions:
        took["ingest"] = cpu((*command, "ingest", sessions, "--lake", lake), lake.parent)
    took["bundle"] = cpu((*command, "view", "--lake", lake, "--bundle", folder), lake.parent)
    listed = Place("view.html", "#list")
    return Made(
        OURS if sessions else COMPLETE, folder, took,
        listed if sessions else Place("index.html", "h1"),
        listed, Place(f"view.html#/session/{chosen.stem}", ".turn"),
    )  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback interface; yield its URL."""

    class Quiet(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/favicon.ico":  # which no site is expected to have
                self.send_response(204)
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def tab(browser: Any, seen: Seen, base: str, scheme: str = "light", width: int = 1400) -> Any:
    """Open a page in a new profile; what it asks other hosts for, and its errors, are kept."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)

    def asked(request: Any) -> None:
        if not request.url.startswith((base, "data:", "blob:", "file:")):
            seen.hosts.add(urlsplit(request.url).netloc)

    def said(message: Any) -> None:
        if message.type == "error":
            where = urlsplit((message.location or {}).get("url", ""))
            text = re.sub(r"Failed to load resource: .* (\d{3}) .*", r"\1", message.text[:200])
            ours = message.location and message.location.get("url", "").startswith(base)
            seen.errors.append(f"{text} {where.path}" if ours else "of another host")

    page.on("request", asked)
    page.on("console", said)
    page.on("pageerror", lambda error: seen.errors.append(str(error)[:120]))
    yield page
    context.close()


def show(page: Any, base: str, place: Place) -> None:
    """Open a page, and wait until it can be read."""
    page.goto("about:blank")
    page.goto(base + place.path)
    page.wait_for_selector(place.ready)


_BACK = """() => { for (const e of [document.body, document.documentElement]) {
  const c = getComputedStyle(e).backgroundColor; if (!c.endsWith(', 0)')) return c; } return '' }"""


def look(browser: Any, made: Made) -> Seen:
    """Open a site's pages in light, dark and on a phone, and from its folder."""
    from axe_playwright_python.sync_playwright import Axe

    seen, backs = Seen(), {}
    with served(made.folder) as base:
        for scheme in ("light", "dark"):
            with tab(browser, seen, base, scheme) as page:
                for place in made.places:
                    show(page, base, place)
                    page.wait_for_timeout(1000)
                    found = Axe().run(page).response
                    for fault in found["violations"]:
                        if fault["impact"] in ("serious", "critical"):
                            seen.faults[scheme][fault["id"]] += len(fault["nodes"])
                    seen.undecided += [
                        node["html"]
                        for fault in found["incomplete"]
                        if fault["id"] == "color-contrast" and scheme == "light"
                        for node in fault["nodes"]
                    ]
                    backs[scheme] = page.evaluate(_BACK)
        with tab(browser, Seen(), base, width=PHONE) as page:
            for place in made.places:
                show(page, base, place)
                page.wait_for_timeout(1000)
                wide = page.evaluate("document.documentElement.scrollWidth")
                seen.wide.append(max(0, wide - PHONE))
        for _ in range(TIMES):
            with tab(browser, Seen(), base) as page:
                began = time.perf_counter()
                page.goto(base + made.listed.path, wait_until="commit")
                page.wait_for_selector(made.listed.ready)
                seen.seconds.append(time.perf_counter() - began)
    seen.follows_dark = backs["light"] != backs["dark"]
    with tab(browser, Seen(), "file:") as page:
        page.goto(made.folder.as_uri() + "/" + made.listed.path)
        page.wait_for_timeout(5000)
        seen.from_file = page.locator(made.listed.ready).count() > 0
    return seen


# -- what each shows -----------------------------------------------------------


def _log_index(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    page.fill("#searchInput", "tidepage")
    page.wait_for_timeout(1000)
    return "Search Results" in page.inner_text("body")


def _log_search(page: Any, base: str, made: Made) -> bool:
    page.goto(f"{base}search.html")
    page.wait_for_timeout(1000)
    if "needs the local server" not in page.inner_text("body"):
        return False
    show(page, base, made.session)
    page.keyboard.press("/")
    page.wait_for_timeout(500)
    return bool(page.evaluate("document.activeElement.tagName") == "INPUT")


def _log_deep(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.session)
    name = page.locator(".message").last.get_attribute("id")
    page.goto(f"{base}{made.session.path}#{name}")
    page.wait_for_timeout(1000)
    return bool(page.locator(f"#{name}").is_visible())


def _log_folds(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.session)
    shown = page.evaluate("[...document.querySelectorAll('.message')].filter(e => e.offsetParent)")
    return bool(len(shown) < page.locator(".message").count())


def _log_timeline(page: Any, base: str, made: Made) -> bool:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, base, made.session)
    page.click("#toggleTimeline")
    page.wait_for_timeout(1500)
    return any(url.startswith("https://unpkg.com/vis-timeline") for url in asked)


def _inspect_filter(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    left = []
    for words in ('input_contains("currency")', "failed_calls > 3"):
        page.locator("[contenteditable=true]").first.click()
        page.keyboard.press("Control+a")
        page.keyboard.type(words)
        page.wait_for_timeout(2000)
        found = re.search(r"(\d+)(?: / \d+)? Samples?\s*$", page.inner_text("body"))
        left.append(int(found[1]) if found else 0)
    return all(0 < n < 17 for n in left)


def _inspect_sort(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    first = page.locator("[role=row]").nth(1).inner_text()
    page.locator("[role=columnheader]").last.click()
    page.wait_for_timeout(700)
    page.locator("[role=columnheader]").last.click()
    page.wait_for_timeout(700)
    return bool(page.locator("[role=row]").nth(1).inner_text() != first)


def _inspect_find(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.session)
    page.keyboard.press("Control+f")
    page.wait_for_timeout(800)
    page.keyboard.type("currency")
    page.wait_for_timeout(1500)
    return "1 of " in page.inner_text("body")


def _inspect_keys(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    page.locator("[role=row]").nth(2).click()
    page.wait_for_timeout(2000)
    before = page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(1000)
    return bool(page.url != before and "/samples/sample/" in page.url)


def _counted(page: Any, base: str, route: str) -> int:
    show(page, base, Place(f"view.html#/states{route}", f"main[data-shown='#/states{route}']"))
    return int(page.inner_text("#count").rsplit(" ", 1)[1].replace(",", ""))


def _ours_search(page: Any, base: str, made: Made) -> bool:
    return 0 < _counted(page, base, "?q=currency") < _counted(page, base, "?q=e")


def _ours_filter(page: Any, base: str, made: Made) -> bool:
    return 0 < _counted(page, base, "?made=hint") < _counted(page, base, "")


def _ours_unsorted(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    before = page.inner_text("#list")
    for head in page.locator("#list th").all():
        head.click()
    return bool(page.inner_text("#list") == before)


def _ours_keys(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=The agent beside each teacher")
    return "#/state/" in page.url


def _ours_deep(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.listed)
    row = page.locator("#list a.row").nth(2)
    route, did = row.get_attribute("href"), row.inner_text()
    show(page, base, Place(f"view.html{route}", "h1"))
    page.wait_for_selector("text=What the agent saw")
    return bool(page.inner_text("h1") == did)


def _ours_beside(page: Any, base: str, made: Made) -> bool:
    show(page, base, Place("view.html#/states?made=pair", "#list"))
    page.locator("#list a.row").first.click()
    page.wait_for_selector(".answers")
    return page.locator(".answers .card").count() > 2 and len(page.inner_text(".why")) > 20


def _ours_hint(page: Any, base: str, made: Made) -> bool:
    show(page, base, Place("view.html#/states?made=hint", "#list"))
    page.locator("#list a.row").first.click()
    page.wait_for_selector(".answers")
    return bool(page.locator("h3:text-is('Hint')").count() == 1)


def _ours_charts(page: Any, base: str, made: Made) -> bool:
    drawn = []
    for name in ("money", "runs"):
        show(page, base, Place(f"view.html#/{name}", f"main[data-shown='#/{name}']"))
        drawn.append(page.locator("main svg").count())
    return all(drawn)


def _image(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.session)
    for _ in range(100):  # a viewer may draw only what is in sight
        if page.evaluate("[...document.images].some(i => i.naturalWidth > 600)"):
            return True
        page.mouse.move(700, 600)
        page.mouse.wheel(0, 3000)
        page.wait_for_timeout(100)
    return False


def _no_image(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.session)
    return page.locator("img").count() == 0 and "[image]" in page.inner_text("body")


def _planted(page: Any, base: str, made: Made) -> bool:
    show(page, base, made.session)
    return SECRET in page.content()


def _not_planted(page: Any, base: str, made: Made) -> bool:
    return not _planted(page, base, made) and "[SECRET_GITHUB_TOKEN" in page.content()


Check = Callable[[Any, str, Made], bool]
SAMPLES, CORPUS, PLANTED = "the 16 bundled samples", "the shared corpus", "a planted token"


@dataclass(frozen=True)
class Shown:
    """A row: what ours, inspect_ai and claude-code-log show, and what checks it in a browser."""

    what: str
    ours: str
    inspect: str
    log: str
    #: By tool; the sites that it looks at.
    checks: dict[str, Check] = field(default_factory=dict)
    on: str = SAMPLES


HAND = " (by hand)"
SHOWN = (
    Shown(
        "the list", "states, 100 on a page; sessions", "samples; only the rows in sight are drawn",
        "projects and their sessions",
    ),
    Shown(
        "narrowing the list", "by tool, outcome, verdict, day and others, with counts",
        'an expression: `failed_calls > 3`, `input_contains("x")`', "words of a title, or a regex",
        {COMPLETE: _ours_filter, INSPECT: _inspect_filter, LOG: _log_index},
    ),
    Shown(
        "sorting by a column", "no", "yes", "no", {COMPLETE: _ours_unsorted, INSPECT: _inspect_sort}
    ),
    Shown(
        "full-text search", "all sessions, from a folder too", "inside one sample",
        f"all sessions while `claude-code-log serve` runs{HAND}; one session from a file",
        {COMPLETE: _ours_search, INSPECT: _inspect_find, LOG: _log_search},
    ),
    Shown(
        "a link to", "a state, a turn of a session, a filtered list", "a sample", "a message",
        {COMPLETE: _ours_deep, LOG: _log_deep},
    ),
    Shown(
        "keys", "`j` `k` `Enter` `u` `s` `/`", "arrows from sample to sample, `Ctrl+F`", "`/`",
        {COMPLETE: _ours_keys, INSPECT: _inspect_keys},
    ),
    Shown(
        "a transcript", "texts cut at 12,000 characters; nothing folds",
        f"whole; rendered Markdown; events of its own evaluations fold{HAND}",
        "whole; rendered Markdown; folds by level, subagents in place, times",
        {LOG: _log_folds},
    ),
    Shown(
        "images", "the word `[image]`", "yes", "yes",
        {OURS: _no_image, INSPECT: _image, LOG: _image}, CORPUS,
    ),
    Shown("tokens", "no", "by sample", "by message and project"),
    Shown(
        "a timeline", "no", f"of the events of its own evaluations{HAND}",
        "of the messages, with code from unpkg.com", {LOG: _log_timeline},
    ),
    Shown(
        "several models' answers beside the agent's", "yes, with what differs", "no", "no",
        {COMPLETE: _ours_beside},
    ),
    Shown("why a pair, or none", "a sentence and the vote", "no", "no", {COMPLETE: _ours_beside}),
    Shown("hints, and what became of an edit", "yes", "no", "no", {COMPLETE: _ours_hint}),
    Shown("scores", "before and after a training", "any, as columns and by sample", "no"),
    Shown(
        "money and training curves", "yes", "no", "tokens only", {COMPLETE: _ours_charts}
    ),
    Shown(
        "a planted token", "redacted, and the bundle scanned again", "shown", "shown",
        {OURS: _not_planted, INSPECT: _planted, LOG: _planted}, PLANTED,
    ),
    Shown(
        "while data arrives", f"the server, at a reload{HAND}",
        f"its list of logs, by itself{HAND}",
        f"`serve --watch`; an open session follows by itself{HAND}",
    ),
    Shown(
        "in the terminal",
        "single states and pairs, printed",
        f"a log as JSON{HAND}", f"an interactive browser{HAND}"
    ),
    Shown("needs", "a lake", "logs of evaluations, or a conversion", "the session files"),
)  # fmt: skip


def failed_checks(browser: Any, sites: Mapping[str, Sequence[Made]]) -> list[str]:
    """Return the rows of the table that a browser does not confirm."""
    wrong = []
    for shown in SHOWN:
        for tool, check in shown.checks.items():
            for made in sites.get(shown.on, ()):
                if made.tool == tool:
                    with served(made.folder) as base, tab(browser, Seen(), base) as page:
                        if not check(page, base, made):
                            wrong.append(f"{shown.what}: {tool}")
    return wrong


# -- the page ------------------------------------------------------------------

ABOUT = """\
# Looking at the data: three viewers

`make bench-viewers`: {tools}, Chromium {chromium}, {date}, on two shared cores. The sessions:
{sets}.

They are made for different things. claude-code-log shows Claude Code's session files. inspect_ai's
viewer shows logs of inspect_ai's evaluations; we wrote the sessions as one such log
(`benchmarks/viewers_inspect.py`: one sample for each file, messages without events, the number of
failed calls as a score), so a fault of that conversion is ours. composer-pipeline shows a lake:
sessions redacted and cut into states and, once teachers were asked, their answers, votes, hints,
pairs, runs and money. *Complete lake* is the one that `make demo` makes of the samples.

## What each shows

Found by looking. A cell *by hand* was tried once with these versions; what a browser shows of the
rows with a star is tried again by each run of the script, which stops if it is no longer so.
inspect_ai's documentation also names logs on S3 and an extension for VS Code; neither was tried.

{shown}

## What was measured

*CPU s* from session files to pages; each had run once before. Ours redacts, and scans the bundle
for secrets before it is written; in a profile of the corpus that scan was five sixths of the
command's time. Of a complete lake only the bundle is counted. claude-code-log writes each message
twice, on the session's page and on a combined one. inspect_ai's bytes are mostly its application.
Ours cuts texts at 12,000 characters and has no images.

In the browser. *Faults*: rules of axe-core with impact serious or critical that a page breaks, in
brackets on how many elements, over the first page and one session (ours, complete: the report, the
list, one session). *Undecided*: elements on these pages whose contrast axe could not compute, for
example on a gradient. *Too wide*: pixels beyond 390 on a phone. *Other hosts*: how many these pages
asked; claude-code-log loads images that Markdown in a session names, wherever they are. *List*:
time until the list is there, median of {times} openings in new profiles and their range, relative
to ours; noisy.
"""


def _costs(made: Made) -> list[str]:
    files, size = made.size()
    parts = " + ".join(f"{value:.1f} {name}" for name, value in made.cpu_s.items())
    whole = f"{sum(made.cpu_s.values()):.1f}"
    return [made.tool, whole, parts if len(made.cpu_s) > 1 else "", count(size), count(files)]


def _listed(found: Iterable[str]) -> str:
    """Return how many, and which."""
    each = sorted(set(found))
    return f"{len(each)}: {', '.join(each)}" if each else "0"


def _seen_row(made: Made, seen: Seen, ours_s: float) -> list[str]:
    median, least, most = (
        f"{each(seen.seconds) / ours_s:.2f}" for each in (statistics.median, min, max)
    )
    light, dark = (
        _listed(f"{rule} ({n})" for rule, n in seen.faults[scheme].items())
        for scheme in ("light", "dark")
    )
    return [
        made.tool,
        light,
        dark if seen.follows_dark else f"{dark} (the same light colours)",
        count(len(seen.undecided)),
        str(max(seen.wide)),
        str(len(seen.hosts)),
        _listed(seen.errors),
        f"{median} ({least} to {most})",
        "yes" if seen.from_file else "no",
    ]


def make(sessions: Path, chosen: Path, work: Path) -> list[Made]:
    """Let each viewer make its pages of session files."""
    work.mkdir()
    python = environment(VERSIONS)
    return [
        by_ours(sessions, chosen, work / "lake", work / "ours"),
        by_inspect(python, sessions, chosen, work),
        by_log(python, sessions, chosen, work),
    ]


def planted(chosen: Path, work: Path) -> list[Made]:
    """Let each make pages of one session in which the user says a token."""
    file = work / "planted" / chosen.parent.name / chosen.name
    file.parent.mkdir(parents=True)
    lines = chosen.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if '"role":"user"' in line)
    record = json.loads(lines[at])
    record["message"]["content"] += f" The token is {SECRET}."
    lines[at] = json.dumps(record, separators=(",", ":"))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return make(work / "planted", file, work / PLANTED)


def main() -> int:
    """Make, look and print; return the exit code."""
    from playwright.sync_api import sync_playwright

    options = pages.options(__doc__, RESULTS)
    options.add_argument("--lake", type=Path, default=ROOT / "lake-demo", help="a complete lake")
    given = options.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        raise SystemExit("no Chromium here: apt-get install chromium")
    samples = sample_sessions_dir()
    [one] = samples.rglob(f"{IN_SAMPLES}.jsonl")
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        work = Path(folder)
        # What is made first fills the caches of all.
        sites = {PLANTED: planted(one, work), SAMPLES: make(samples, one, work / "samples")}
        if given.lake.is_dir():
            lake, whole = work / "complete" / "lake", work / "complete" / "ours"
            shutil.copytree(given.lake, lake)
            sites[SAMPLES].insert(1, by_ours(None, one, lake, whole))
        if SHARED.is_dir():
            corpus = source_files(None)[0]
            [image] = corpus.rglob(f"{IN_CORPUS}.jsonl")
            sites[CORPUS] = make(corpus, image, work / "corpus")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        wrong = failed_checks(browser, sites)
        text = page_of(browser, sites)
        browser.close()
    if wrong:
        raise SystemExit("no longer so: " + "; ".join(wrong))
    pages.show(text, RESULTS, given)
    return 0


def page_of(browser: Any, sites: Mapping[str, Sequence[Made]]) -> str:
    """Return the page."""
    text = ABOUT.format(
        tools=", ".join((OURS, INSPECT, LOG)), chromium=browser.version,
        date=dt.datetime.now(dt.UTC).strftime("%d %B %Y"),
        sets=f"{SAMPLES} of the demo"
        + (f", and 67 real ones with 12 subagents ({CORPUS})" if CORPUS in sites else ""),
        shown=table(("", OURS, INSPECT, LOG), [
                (f"{s.what} \\*" if s.checks else s.what, s.ours, s.inspect, s.log) for s in SHOWN
            ]),
        times=TIMES,
    )  # fmt: skip
    for what in (SAMPLES, CORPUS):
        if what not in sites:
            continue
        looks = [(made, look(browser, made)) for made in sites[what]]
        ours_s = statistics.median(looks[0][1].seconds)
        costs = table(
            ("", "CPU s", "of which", "bytes", "files"), [_costs(made) for made, _ in looks]
        )
        found = table(
            ("", "faults, light", "faults, dark", "undecided", "too wide", "other hosts",
             "console errors", "list", "from a folder"),
            [_seen_row(made, seen, ours_s) for made, seen in looks],
        )  # fmt: skip
        text += f"\n## {what[0].upper()}{what[1:]}\n\n{costs}\n\n{found}\n"
    return text


if __name__ == "__main__":
    sys.exit(main())

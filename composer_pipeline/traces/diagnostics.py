"""What compilers, linters, type checkers and test runners print: places of problems, and results.

No maintained Python package reads these formats: the kept tables (errorformat in Go, the problem
matchers of VS Code and GitHub in JavaScript) are data for other programs, and none of them says
whether a run of tests passed. The matchers here have their shape: one regular expression for one
line, whose groups are the fields.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PROGRESS = re.compile(
    r"^\s*(?:[⠀-⣿]\s*\S.*|.*\d{1,3}\s?%.*[|█▉▊▋▌▍▎▏■=#>─━]{2,}.*|\[?[█▉░▒▓■]{3,}.*"
    r"|(?:Downloading|Downloaded|Fetching|Resolving|Compiling|Building)\b[^\n:]*(?:\.{3}|…|%)\s*)$"
)
_MAY_PROGRESS = re.compile(r"[⠀-⣿█▉░▒▓■%…]|\.\.\.$", re.MULTILINE)


def clean(text: str) -> str:
    """Return a terminal's output as a person saw it: without colour codes and progress lines."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = "\n".join(_overwritten(line) for line in text.replace("\r\n", "\n").split("\n"))
    if _MAY_PROGRESS.search(text):
        lines = text.split("\n")
        text = "\n".join(x for x in lines if not (_MAY_PROGRESS.search(x) and _PROGRESS.match(x)))
    return text


def _overwritten(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


# -- results of test runs ------------------------------------------------------------

#: The summary lines of runners: how many failed, or words that say so. A line is a summary only as
#: a whole, so that a log which mentions "2 failed" is none.
_COUNTS = re.compile(
    r"\n\s*(?:"
    r"(?P<bun>\d+) fail"
    r"|(?:=+ )?(?:no tests ran|(?:(?P<pytest>\d+) failed|\d+ \w+)(?:, (?:(?P<pytest_more>\d+)"
    r" errors?|\d+ \w+))*) in [\d.:hms ()]+s?(?: \([\d:]+\))?(?: =+)?"
    r"|Tests?:? +(?:(?P<jest>\d+) failed\b|\d+ (?:passed|skipped|todo)\b).*"
    r"|(?P<mocha>\d+) failing"
    r"|\d+ passing(?: \([^)\n]*\))?"
    r"|test result: (?:ok|FAILED)\. \d+ passed; (?P<cargo>\d+) failed;.*"
    r"|\d+ (?:examples?|tests?|runs?|properties|doctests?)\b(?:, [^\n]*?)?, (?P<rspec>\d+)"
    r" failures?\b(?:, (?P<minitest>\d+) errors?)?.*"
    r"|(?:\[\w+\] )?Tests run: \d+, +Failures: (?P<maven>\d+), +Errors: (?P<maven_more>\d+).*"
    r"|(?:Passed|Failed)! +- +Failed: +(?P<dotnet>\d+),.*"
    r"|(?:#|ℹ) fail (?P<node>\d+)"
    r"|(?:ok|FAILED) \| \d+ passed[^|\n]*\| (?P<deno>\d+) failed.*"
    r"|Executed \d+ tests?, with (?P<swift>\d+) failures?.*"
    r"|\d+% tests passed, (?P<ctest>\d+) tests failed out of \d+"
    r"|OK \(\d+ tests?[^\n]*\)"
    r"|Tests: \d+, Assertions: \d+(?:, (?:Failures: (?P<phpunit>\d+)|\w+: \d+))*\.?"
    r"|Ran \d+ tests? in [\d.]+s\n+OK(?: \([^)\n]*\))?"
    r"|FAILED \((?:(?:failures|errors)=(?P<unittest>\d+)|, |\w+=\d+)+\)"
    r")\s*$",
    re.MULTILINE,
)
_WORDS_FAILED = re.compile(
    r"\n(?:FAIL(?:\t.*)?|--- FAIL: .*|BUILD FAILED\b.*|FAILURES!|\[INFO\] BUILD FAILURE)$"
    r"|Test(?<!\wTest) Suites?: [1-9]\d* failed.*$",
    re.MULTILINE,
)
_WORDS_PASSED = re.compile(
    r"\n(?:ok  \t.*|PASS|--- PASS: .*|BUILD SUCCESSFUL\b.*|(?:\[INFO\] )?BUILD SUCCESS)\s*$",
    re.MULTILINE,
)
# Playwright's counts stand alone on a line; so may those of a log, hence they come last.
_BARE_FAILED = re.compile(r"^ {2}[1-9]\d* failed$", re.MULTILINE)
_BARE_PASSED = re.compile(r"^ {2}\d+ passed \([\d.]+m?s\)$", re.MULTILINE)


class RunResult(NamedTuple):
    """Whether a run of tests passed, by its runner's own summary, and where that ends."""

    passed: bool
    end: int


_BUN = re.compile(
    r"^(?:bun test v\d.*|\((?:pass|fail|skip|todo)\) .*|[ \t]*(?P<end>\d+ fail))$", re.MULTILINE
)


def _bun_logs(text: str) -> Iterator[range]:
    """Yield where runs of bun stand, up to their summaries: other summaries there are logs."""
    start = -1
    for match in _BUN.finditer(text):
        if match["end"] and start >= 0:
            yield range(start, match.start())
            start = -1
        elif not match["end"] and start < 0:
            start = match.start()


def run_result(text: str) -> RunResult | None:
    """Return what the summary lines in a cleaned output say; ``None`` where there are none."""
    end, passed, seen = 0, True, False
    text = f"\n{text}"  # a literal that begins a pattern is found far faster than a line's begin
    logs = list(_bun_logs(text)) if " fail" in text else []

    def told(pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        return (m for m in pattern.finditer(text) if not any(m.end() in log for log in logs))

    for match in told(_COUNTS):
        seen, end = True, match.end()
        passed &= not any(int(count) for count in match.groups() if count)
    for match in told(_WORDS_FAILED):
        # Bun, pytest and others print the same words for single tests, and in logs.
        if not seen or text.startswith(("\nFAIL\t", "\n--- FAIL", "\nFAIL\n"), match.start()):
            passed, seen = False, True
            end = max(end, match.end())
    for match in told(_WORDS_PASSED):
        seen, end = True, max(end, match.end())
    if not seen:
        failed, well = _BARE_FAILED.search(text), _BARE_PASSED.search(text)
        if failed is None and well is None:
            return None
        end = max(m.end() for m in (failed, well) if m)
        passed = failed is None
    return RunResult(passed, end - 1)


_TEST_NAMES = re.compile(
    r"^\s*(?:--- FAIL: (?P<go>\S+)|FAILED (?P<pytest>\S+::\S+)"
    r"|\(fail\) (?P<bun>.+?)(?: \[[\d.]+m?s\])?$"
    r"|test (?P<cargo>\S+) \.\.\. FAILED|(?:✕|×|✘) (?P<jest>.+?)(?: \(?\d+ ?m?s\)?)?$"
    r"|FAIL +(?P<vitest>\S+ > .+)$|● (?P<jest_title>.+ › .+)$|rspec (?P<rspec>\S+:\d+)"
    r"|(?:FAIL|ERROR): (?P<unittest>test\w+) \()",
    re.MULTILINE,
)


def failing_tests(text: str) -> list[str]:
    """Return the names of the tests that failed, in the order of a cleaned output."""
    found = (next(name for name in m.groups() if name) for m in _TEST_NAMES.finditer(text))
    return list(dict.fromkeys(found))


# -- places of problems --------------------------------------------------------------


class Diagnostic(NamedTuple):
    """One problem that a program names.

    ``line`` and ``column`` count from 1 and are 0 where they are not given; ``symbol`` is the name
    that the message is about, ``source`` the line of the file where the output shows it.
    """

    file: str
    line: int
    column: int
    symbol: str
    message: str
    tool: str
    severity: str = "error"
    source: str = ""


_FILE = r"(?P<file>(?:[A-Za-z]:\\)?[^\s:()\[\]'\"`,]+\.\w+)"
_AT = r":(?P<line>\d+)(?::(?P<column>\d+))?"
_PREFIX = r"^(?:\[[\w:.-]+\] |vet: |\s*(?:-->|❯|>|✖|×|✗|┃|│|at) +)?\s*(?:\./)?"

#: Tool and the pattern of one line. The first that fits a line counts.
_MATCHERS = [
    ("python", r'^\s*File "(?P<file>[^"<>\n]+)", line (?P<line>\d+)(?:, in (?P<where>\S+))?'),
    ("tsc", r"^(?:\[[\w:.-]+\] )?\s*(?P<file>[^\s()]+\.\w+)\((?P<line>\d+),(?P<column>\d+)\): "
            r"(?:(?P<severity>error|warning) )?(?P<message>.+)"),
    ("tsc", _PREFIX + _FILE + _AT + r" - (?P<severity>error|warning) (?P<message>.+)"),
    ("dotnet", r"^\s*(?P<file>[^\s()]+\.\w+)\((?P<line>\d+)(?:,(?P<column>\d+))?\)"
               r"\s*: (?P<severity>error|warning) (?P<message>.+)"),
    ("php", r"^(?:PHP )?(?:Parse|Fatal) error: +(?P<message>.+) in (?P<file>\S+)"
            r" on line (?P<line>\d+)"),
    ("maven", r"^\[(?P<severity>ERROR|WARNING)\] (?P<file>/\S+):\[(?P<line>\d+),(?P<column>\d+)\]"
              r" (?P<message>.+)"),
    ("gradle", r"^e: (?:file://)?(?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+):?"
               r" (?P<message>.+)"),
    ("rust", r"^thread '.*' panicked at " + _FILE + _AT + r":?$"),
    ("rust", r"^\s*--> " + _FILE + _AT + r"$"),
    ("elixir", r"^\s*(?:└─|\*\*.*?) *" + _FILE + _AT + r"(?:: (?P<message>.+))?"),
    ("stack", r"^\s*at (?:(?P<where>[^()]+) )?\(?(?:file://)?" + _FILE + _AT + r"\)?$"),
    ("oxlint", r"^\s*[╭,][─-]\[" + _FILE + _AT + r"\]"),
    ("dialyzer", r"^" + _FILE + r":(?P<line>\d+)(?::(?P<column>\d+))?:(?P<message>[a-z]\w+)$"),
    ("go test", r"^ {4,}(?P<file>\w+\.go):(?P<line>\d+): (?P<message>.+)"),
    ("ruby", r"^\s*(?:# |from )?(?:\./)?" + _FILE + _AT + r":in [`'].*?'(?:: (?P<message>.+))?$"),
    ("lines", _PREFIX + _FILE + _AT + r"(?::|: -| -)?\s+(?:(?P<severity>(?:fatal )?error|warning"
              r"|note|info|Error|Warning)(?:\[\w+\])?: +)?(?P<message>\S.*)"),
    ("lines", _PREFIX + _FILE + _AT + r":?$"),
]  # fmt: skip
_COMPILED = [(tool, re.compile(pattern)) for tool, pattern in _MATCHERS]
_MAY_BE = re.compile(r"\.\w+\]?(?:[:(]|\"|:\[)\d|, line \d|on line \d|└─|-->|^e: ")

# eslint, biome and others print a file once, and its problems below it.
_HEADING = re.compile(r"^(?:\./)?(?P<file>[^\s:]+/?[^\s:/]*\.\w{1,5})$")
_BELOW = re.compile(
    r"^\s+(?P<line>\d+):(?P<column>\d+)\s+(?P<severity>error|warning|Error:|Warning:)\s+"
    r"(?P<message>.+?)(?:\s{2,}(?P<rule>\S+))?$"
)
_FORMATTERS = re.compile(
    r"^(?:\[warn\] |would reformat:? |Would reformat: |diff (?:--git )?a?/?)(?P<file>[^\s]+\.\w+)"
)

_SYMBOL = re.compile(
    r"undefined: (?P<a>[\w.]+)"
    r"|\"(?P<b>[^\"]+)\" imported (?:as \w+ )?and not used"
    r"|declared and not used: (?P<c>\w+)|(?P<d>\w+) declared (?:and|but) not used"
    r"|in call to (?P<e>[\w.]+)|undefined \(type [^)]* has no field or method (?P<f>\w+)"
    r"|unknown field '?(?P<g>\w+)|has no attribute '(?P<h>\w+)'|cannot import name '(?P<i>\w+)'"
    r"|name '(?P<j>\w+)' is not defined|No module named '(?P<k>[\w.]+)'"
    r"|[`'\"‘](?P<l>[\w.]+)['\"`’] (?:imported but unused|is defined but never used"
    r"|is declared but|is not defined|is not exported|was not declared|undeclared|is unused"
    r"|is assigned a value but never used|seems to be unused)"
    r"|(?:Cannot find name|cannot find (?:value|function|type|symbol|module)|no member named"
    r"|Property|undeclared identifier|undefined (?:local variable or )?method|undefined function"
    r"|unused (?:import|variable)|unused parameter|parameter|Undefined variable:?|unresolved import"
    r"|use of undeclared (?:identifier|name)|has no exported member|no exported member|Module)"
    r" [:`'\"‘$]*(?P<m>\w[\w.:/]*)"
    r"|(?P<n>\w+)\(\) (?:takes|missing|got an unexpected)|(?P<o>\w+) is not (?:defined|a function)"
    r"|cannot find symbol.*?\b(?P<p>[A-Za-z_]\w+)$|(?P<q>\w+) redeclared"
)


def symbol_of(message: str) -> str:
    """Return the name that a message calls undefined, unused or wrongly used; else empty."""
    match = _SYMBOL.search(message)
    if match is None:
        return ""
    name = next((group for group in match.groups() if group), "")
    return name.rstrip("'\"`’:.")


def diagnostics(text: str) -> list[Diagnostic]:
    """Read the problems in a cleaned output, in its order and each place once.

    Warnings are left out where there is an error.
    """
    found: dict[tuple[str, int, str], Diagnostic] = {}
    for item in _scan(text.split("\n")):
        if item.message.startswith(":"):  # a package, not a place
            continue
        found.setdefault((item.file, item.line, item.message), item)
    items = list(found.values())
    return [item for item in items if item.severity == "error"] or items


def _scan(lines: list[str]) -> Iterator[Diagnostic]:
    heading = above = ""
    for at, line in enumerate(lines):
        if len(line) > 2000:
            continue
        if match := _HEADING.match(line):
            heading = match["file"]
        elif heading and (match := _BELOW.match(line)):
            yield _made("eslint", {**match.groupdict(), "file": heading}, lines, at)
        elif match := _FORMATTERS.match(line):
            file = match["file"].removeprefix("b/")
            yield Diagnostic(file, 0, 0, "", line.strip(), "formatter")
        elif _ABOVE.match(line):
            above = line  # rustc and others say what is wrong one line before where
        elif _MAY_BE.search(line):
            for tool, pattern in _COMPILED:
                if match := pattern.match(line):
                    yield _made(tool, _filled(tool, match.groupdict(), lines, at, above), lines, at)
                    break


_ABOVE = re.compile(r"(?:error|warning)(?:\[\w+\])?: ")


def _filled(
    tool: str, groups: dict[str, str | None], lines: list[str], at: int, above: str
) -> dict[str, str | None]:
    """Add the message of a place that has none on its own line."""
    message = groups.get("message") or above or _message_after(tool, lines, at)
    severity = groups.get("severity")
    if tool == "rust":
        severity = re.split(r"[\[:]", above)[0]
    return {**groups, "message": message, "severity": severity}


def _message_after(tool: str, lines: list[str], at: int) -> str:
    """Return the message of a place that has none: the last line of a traceback, or the next."""
    if tool in ("lines", "oxlint"):
        beside = lines[at + 1 : at + 2] if tool == "lines" else lines[max(0, at - 1) : at]
        return "".join(beside).strip(" ×⚠")
    if tool == "python":
        for line in lines[at + 1 :]:
            if re.match(r"\w[\w.]*(?:Error|Exception|Warning|Exit|Interrupt)\b", line):
                return line.strip()
    return ""


def _made(tool: str, groups: dict[str, str | None], lines: list[str], at: int) -> Diagnostic:
    message = (groups.get("message") or "").strip()
    given = (groups.get("severity") or "error").lower().rstrip(":")
    severity = "warning" if given in ("warning", "w", "note", "info", "c", "r") else "error"
    after = re.sub(r"^\[[\w:.-]+\] ", "", lines[at + 1]) if at + 1 < len(lines) else ""
    caret = lines[at + 2] if at + 2 < len(lines) else ""
    source = after.strip() if "^" in caret or tool == "python" else ""
    return Diagnostic(
        str(groups["file"]), int(groups.get("line") or 0), int(groups.get("column") or 0),
        symbol_of(message), message, tool, severity, source,
    )  # fmt: skip

"""Whose mistake an error turn was, and which edit caused what it shows.

A complaint about the *call* (a path that does not exist, an unknown option) is a mistake of the
action itself. A complaint about the *content* (a failed test, a compiler's error) was caused by an
earlier edit, was there before, or was expected. A rule that is not sure says ``unclear``.
"""

import posixpath
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import msgspec

from composer_pipeline.traces.diagnostics import (
    Diagnostic,
    RunResult,
    clean,
    diagnostics,
    failing_tests,
    run_result,
)
from composer_pipeline.traces.edits import (
    Author,
    Edits,
    Event,
    Stage,
    arguments_of,
    command_of,
    stages,
)
from composer_pipeline.traces.graph_nodes import Call
from composer_pipeline.traces.outcomes import EXIT_CODE, Failure
from composer_pipeline.traces.trajectory import Trajectory

Verdict = Literal["mistake", "revealed", "preexisting", "not_an_error", "user_choice", "unclear"]
Evidence = Literal["line", "symbol", "file", "order"]

#: The longest lesson, in characters.
LESSON_CHARS = 600
_EVIDENCE_CHARS = 200
#: Problems of one output that are followed to their edits.
_LOOKED_AT = 15


class Judgement(msgspec.Struct, frozen=True, gc=False):
    """The verdict on one error turn.

    ``reason`` names the rule, ``evidence`` is the line of the output that it read. ``culprit`` is
    the call that caused what the turn shows, ``by`` how it was found and ``confidence`` how sure
    that is, in [0, 1]. ``lesson`` is the output cut down to what would have helped.
    """

    verdict: Verdict
    reason: str
    evidence: str = ""
    culprit: Author | None = None
    by: Evidence | None = None
    confidence: float | None = None
    lesson: str | None = None


class _Culprit(NamedTuple):
    author: Author
    by: Evidence
    confidence: float
    diagnostic: Diagnostic | None = None


# -- what outputs say ----------------------------------------------------------------

_SHELL = re.compile(
    r"^(?:\((?:eval|stdin)\)|(?:/\S+/)?(?:ba|z|da)?sh|\S+\.sh):.*(?:not found|no such file"
    r"|parse error"
    r"|syntax error|unexpected|no matches found|permission denied|bad substitution|unmatched"
    r"|not a directory|is a directory)",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"command not found|(?:unknown|unrecogni[sz]ed|invalid|illegal|bad|unexpected"
    r"|unsupported) (?:\w+ )?"
    r"(?:flag|option|command|subcommand|argument|revision|switch|parameter|task|target|type)"
    r"|no such (?:file|command|option|subcommand|container|image|service|remote|ref|branch|tool)"
    r"|cannot (?:access|stat|open|find (?:main )?module|find package)|does not exist|doesn't exist"
    r"|pathspec .* did not match|unknown revision|ambiguous argument|not a git repository"
    r"|(?:directory|file|path|script|task|recipe|module) not found|not found in (?:workspace|scope)"
    r"|is a directory|not a directory|no go files|go\.mod file not found|missing script"
    r"|no tests? (?:found|ran|files? (?:found|match)|to run)|accepts? \d+ arg|requires? (?:a|an"
    r"|at least)\b.*arg"
    r"|required flag|missing required|HTTP 40[045]|HTTP 422|status(?: code)? 40[045]|unknown skill"
    r"|agent type .* not found|no rule to make target|jq: error|jq: \d+ compile error|awk: |sed: "
    r"|^usage: |try '.* --help'|for usage|no tasks? .*found|couldn't find"
    r"|could not find (?!a version)"
    r"|nothing to commit|already exists|no changes added to commit|not a valid|unknown shorthand"
    r"|invalid request|is not recognized|unexpected (?:eof|token|end of file)|unterminated"
    r"|error: not found|did you mean|no upstream branch|ignored by one of your"
    r"|beyond a symbolic link|must be provided"
    r"|\"status\": ?\"40[045]\"|cannot write multiple|failed to parse \w+ expression"
    r"|\bEISDIR\b|\bENOENT\b",
    re.IGNORECASE,
)
_ENVIRONMENT = re.compile(
    r"not trusted|could not resolve host|connection (?:refused|reset|timed out)"
    r"|network is unreachable"
    r"|ECONNREFUSED|ECONNRESET|ETIMEDOUT|\bENOTFOUND\b|getaddrinfo|tls handshake|rate limit"
    r"|too many requests"
    r"|HTTP (?:401|403|429|5\d\d)|status(?: code)? (?:401|403|429|5\d\d)|no space left"
    r"|docker daemon"
    r"|authentication (?:failed|required)|permission denied \(publickey|not logged in|CONFLICT \("
    r"|automatic merge failed|non-fast-forward|\[rejected\]|would be overwritten|EADDRINUSE"
    r"|address already in use|out of memory|timed out|timeout (?:exceeded|expired|after|of)"
    r"|credentials|unable to access|quota"
    r"|not (?:connected|authenticated)|operation not permitted|temporarily unavailable|gpg failed",
    re.IGNORECASE,
)
_INLINE = re.compile(
    r'File "<(?:string|stdin)>"|\[eval\]|\[stdin\]|/dev/stdin|^-e:\d', re.MULTILINE
)
_SEARCHES = re.compile(
    r"(?:\w+=\S*\s+)*(?:grep|egrep|rg|ag|diff|cmp|test|\[|which|type|pgrep|lsof|ls|find"
    r"|command\s+-v"
    r"|git\s+(?:diff|grep|show-ref|rev-parse|merge-base|ls-remote|check-ignore|config)"
    r"|gh\s+pr\s+checks"
    r"|npm\s+outdated|timeout)\b"
)
_CHECK = re.compile(
    r"\b(?:\w*tests?\w*|spec|lint\w*|vet|build|check|compile|typecheck|type-check|tsc|mypy"
    r"|pyright|ruff"
    r"|flake8|pylint|eslint|biome|prettier|pytest|jest|vitest|mocha|playwright|cypress|tox"
    r"|nox|rspec"
    r"|rubocop|phpunit|phpstan|ctest|cargo|golangci-lint|staticcheck|clippy|gradlew?|mvn"
    r"|dotnet|make"
    r"|cmake|ninja|gcc|clang|javac|mix|credo|dialyzer|swift|xcodebuild|pre-commit"
    r"|lint-staged|husky|ci)\b"
)
#: Of a text in small letters: it is found several times faster so.
_BUILD_FAILED = re.compile(
    r"\[(?:build|setup) failed\]|undefined: |syntax ?error|cannot find (?:name|module|symbol)"
    r"|error ts\d|error\[e\d|importerror|modulenotfounderror|nameerror|compilation"
    r"|does not compile|not enough arguments|too many arguments|cannot use "
)
_RED = re.compile(
    r"\bred[ -]phase|\(red\)|\bfails? first|failing test first"
    r"|(?:verify|confirm|ensure)\b[^.\n]{0,40}\bfail(?:s|ing)?\b(?! to\b)(?![^.\n]{0,40}\bpass)"
    r"|should (?:now )?fail\b|expect(?:ed)? (?:\w+ )?to fail|reproduc"
    r"|without (?:the|my|our) (?:fix|change)",
    re.IGNORECASE,
)
_STOCK = re.compile(
    r"\b(?:current|present) (?:state|failures?|status|errors?)|what(?:'s| is"
    r"| are)? (?:still )?(?:fail|broken"
    r"|wrong)|(?:see|check|identify|find|look at|show|list)\b[^.\n]{0,40}\b(?:fail|error"
    r"|broken|issue)"
    r"|baseline|before (?:making|any|my) change",
    re.IGNORECASE,
)
#: Arguments that name something which may not exist.
_NAMES = frozenset(
    {"file_path", "notebook_path", "path", "id", "url", "skill", "issue_id", "query"}
)
_MISSING = re.compile(r"not (?:exist|found)|no such (?!tool)|could not find|404", re.IGNORECASE)
#: Words of a user that say what to do instead, and words that say nothing of it.
_INSTRUCTS = re.compile(
    r"\b(?:use|don't|do not|not|no|never|instead|must|need|only|expects?|wrong|prefer|rather|keep"
    r"|change|without|stop|adapt|read|wait|run|add|why not)\b",
    re.IGNORECASE,
)
_IDLE = re.compile(
    r"^\W*(?:sorry|continue|go on|ok|okay|oh|whoops|commit|yes|you good|hello|hi|stop for a)\b"
    r"|\bmy bad\b|\bby accident\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"Permission (?:for|to) .* (?:was|has been) denied|interrupted by user|user (?:rejected"
    r"|denied)",
    re.IGNORECASE,
)
_WORDS_FAIL = re.compile(
    r"^\W*(?:\w+:)?\s*(?:FAIL(?:ED|URE)?|ERROR|error)\b.*|^.*\b[1-9]\d* (?:errors?|issues?"
    r"|problems?"
    r"|failures?|failed)\b.*|^.*(?:validation|check|hook|task) failed.*",
    re.MULTILINE,
)
#: Programs that complain about their arguments, not about files of the repository.
_TOOLS = re.compile(r"(?:\w+=\S*\s+)*(?:git|gh|jq|curl|docker|kubectl|cd|ls|cat|cp|mv|rm|mkdir)\b")
_ASKED = re.compile(
    r"\b(?:fail(?:s|ed|ing|ures?)?|broken?|errors?|red|not passing|don't pass"
    r"|doesn't (?:pass|work|build))\b",
    re.IGNORECASE,
)
_MEND = re.compile(
    r"\bfix\b[^.\n]{0,40}\b(?:tests?|lint\w*|build|ci|errors?|failures?)\b"
    r"|\b(?:tests?|lint\w*|build|ci)\b[^.\n]{0,30}\b(?:fail(?:s|ed|ing|ures?)?|broken?|red)\b",
    re.IGNORECASE,
)
_SPECIFIC = re.compile(
    r"error|fail|not found|no such|unknown|invalid|cannot|can't|unable|missing|undefined|unexpected"
    r"|expected|matches of|does not|did you mean|available|denied|refused|usage|must|want|FAIL",
    re.IGNORECASE,
)
_DEFINES = (
    r"(?:\b(?:func|def|fn|function|class|type|interface|struct|enum|trait|const|let|var|val"
    r"|module|import"
    r"|from|public|private|protected|static|async|void|int|string|bool)\b[^\n]*\b{0}\b[^\n]*"
    r"|^\s*{0}\s*(?::|:?=|\(|\?:)[^\n]*)"
)
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def about_the_call(text: str) -> str:
    """Return the line of an output that complains about the call itself; empty without one."""
    lines = [line for line in text.split("\n") if line.strip()][:60]
    for line in lines[:4]:
        if _SHELL.search(line):
            return line.strip()
    return next((line.strip() for line in lines if len(line) < 400 and _CALL.search(line)), "")


def lesson_of(text: str, words: Iterable[str] = ()) -> str:
    """Return the lines of a cleaned output that would have helped, at most 600 characters.

    First those that name one of ``words`` (a file, a symbol, a test), else the first specific ones.
    """
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    if lines and lines[0].startswith(EXIT_CODE):
        lines = lines[1:] or lines
    named = [word for word in dict.fromkeys(words) if word]
    kept: list[str] = []
    if named:
        hits = [at for at, line in enumerate(lines) if any(word in line for word in named)]
        show = {at + i for at in hits for i in (0, 1, 2) if i == 0 or _continues(lines, at + i)}
        kept = [line for at, line in enumerate(lines) if at in show]
    if not kept:
        kept = [line for line in lines if _SPECIFIC.search(line)] or lines
    found = ""
    for line in kept:
        line = line[:240]
        if len(found) + len(line) + 1 > LESSON_CHARS:
            break
        found += line + "\n"
    return found.strip() or text.strip()[:LESSON_CHARS]


def _continues(lines: list[str], at: int) -> bool:
    """Return True if a line belongs to the message before it: source, caret, have and want."""
    return at < len(lines) and lines[at][:1] in " \t" and not re.match(r"\s*\S+\.\w+:\d", lines[at])


# -- the judge -----------------------------------------------------------------------


class Judge:
    """Judges the error turns of one trajectory; reads results only where it must."""

    def __init__(self, graph: Trajectory, edits: Edits, active: set[int]) -> None:
        self.graph = graph
        self.active = active
        self.order = sorted(active)
        self.edits = edits
        self._results: dict[int, RunResult | None] = {}
        self._changed: dict[Event, array[int]] = {}

    @cached_property
    def commands(self) -> dict[int, list[tuple[Call, frozenset[str]]]]:
        """The checks that each node ran, with their :func:`signature`."""
        found: dict[int, list[tuple[Call, frozenset[str]]]] = defaultdict(list)
        for number, node in enumerate(self.graph.nodes):
            for call in node.calls:
                if call.tool != "Bash" or not call.answered or call.goes_on:
                    continue
                if ran := signature(command_of(call)):
                    found[number].append((call, ran))
        return found

    def result(self, call: Call) -> RunResult | None:
        """Return what the runner's summary in a call's result says."""
        if call.answer not in self._results:
            self._results[call.answer] = run_result(clean(call.result or ""))
        return self._results[call.answer]

    def changed_words(self, event: Event) -> "array[int]":
        """Return the :func:`_words` that an edit took away or added."""
        if event not in self._changed:
            old = _words(" ".join(change.old for change in event.changes))
            new = _words(" ".join(change.new for change in event.changes))
            self._changed[event] = array("q", old ^ new)
        return self._changed[event]

    def passed(self, call: Call) -> bool:
        """Return True if a check passed: its runner says so, or it ended well and named nothing."""
        if call.failed:
            return False
        result = self.result(call)
        return result.passed if result else not diagnostics(clean(call.result or ""))

    def passes_after(self, number: int, failed: Call) -> int | None:
        """Return the node of the first later run that passes all that a failed call checked."""
        mine = checks_of(failed)
        for later in self.order[bisect_right(self.order, number) :]:
            for call, _ in self.commands.get(later, ()):
                if covers(call, mine) and self.passed(call):
                    return later
        return None

    def judge(self, number: int, failure: Failure) -> Judgement:
        """Return the verdict on a node that failed."""
        node = self.graph.nodes[number]
        kind, position, text = failure.kind, failure.call, failure.hint or ""
        if kind in ("user_rejection", "user_correction"):
            taught = bool(_INSTRUCTS.search(text)) and not _IDLE.search(text)
            author = Author(number, position) if taught else None
            lesson = text.strip()[:LESSON_CHARS] if taught else None
            return Judgement("user_choice", kind, _cut(text), author, lesson=lesson)
        call = node.calls[position]
        if kind == "failed_edit":
            return self._mistake("edit", number, position, text, _first(text))
        edits = self.edits
        if number not in self.active:
            edits = Edits(self.graph, self.graph.path_to(number))
        if kind == "tool_error" and call.tool != "Bash":
            return self._tool_error(number, position, call, text)
        return _Case(self, edits, number, position, call, kind, text).judge()

    def _mistake(
        self, reason: str, number: int, position: int, text: str, evidence: str
    ) -> Judgement:
        lesson = lesson_of(text) if text else None
        author = Author(number, position)
        return Judgement("mistake", reason, _cut(evidence), author, "line", 1.0, lesson)

    def _tool_error(self, number: int, position: int, call: Call, text: str) -> Judgement:
        if _ENVIRONMENT.search(text) and not _CALL.search(text):
            return Judgement("preexisting", "environment", _cut(_first(text)))
        if _DENIED.search(text):
            return Judgement("user_choice", "denied", _cut(_first(text)))
        values = [
            value
            for key, value in arguments_of(call).items()
            if key in _NAMES and isinstance(value, str)
        ]
        if _MISSING.search(text) and any(
            len(value) > 3 and re.search(rf"(?<![\w/.-]){re.escape(value)}(?![\w/-])", asked)
            for asked in [self.prompt_before(number)]
            for value in values
        ):
            return Judgement("preexisting", "asked", _cut(_first(text)))
        return self._mistake("call", number, position, text, _first(text))

    def prompt_before(self, number: int) -> str:
        """Return the human prompt that a node answers; empty after a compaction."""
        at = self.graph.nodes[number].parent
        while at is not None and self.graph.nodes[at].kind == "response":
            at = self.graph.nodes[at].parent
        if at is None or self.graph.nodes[at].kind != "human":
            return ""
        return self.graph.text_of(self.graph.nodes[at])


class _Case:
    """One failed command: its output and what the session did before it."""

    def __init__(
        self,
        judge: Judge,
        edits: Edits,
        number: int,
        position: int,
        call: Call,
        kind: str,
        text: str,
    ) -> None:
        self.judge_, self.graph, self.edits = judge, judge.graph, edits
        self.number, self.position, self.call = number, position, call
        self.kind, self.text = kind, text
        self.command = command_of(call)
        self.found = diagnostics(text)
        self.tests = failing_tests(text)
        self.result = run_result(text)
        self.passed = -1  # the node of the last run that passed
        self.before = edits.changed_before(number)

    def judge(self) -> Judgement:
        """Return the verdict."""
        if _DENIED.search(_first(self.text)):
            return self._say("user_choice", "denied", _first(self.text))
        content = bool(self.found or self.tests or (self.result and not self.result.passed))
        if "[setup failed]" in self.text and not self.found:
            content = False
        complaint = "" if content else about_the_call(self.text)
        if complaint or _SHELL.search(_first(self.text)):
            complaint = complaint or _first(self.text)
            if _ENVIRONMENT.search(complaint):
                return self._say("preexisting", "environment", complaint)
            return self._mistake("call", complaint)
        if not content and (match := _ENVIRONMENT.search(self.text)):
            return self._say("preexisting", "environment", _line_at(self.text, match.start()))
        if _INLINE.search(self.text) and not self.tests:
            return self._mistake("script", _first(self.text))
        if self._empty_search():
            return self._say("not_an_error", "empty search", _first(self.text))
        return self._without_content() if not content else self._of_content()

    def _without_content(self) -> Judgement:
        """Judge an output that names no place, no test and no result of a run."""
        done = stages(self.command)
        if self.kind == "soft_failure" and self._next_run_passes():
            return self._say("not_an_error", "next run", _first(self.text))
        complains = re.match(r"(?:fatal|error|Error|usage|Usage|hint)\b", _first(self.text))
        if complains and self.kind == "exit_code" and all(_TOOLS.match(s.bare) for s in done):
            return self._mistake("call", _first(self.text))
        failed = _WORDS_FAIL.search(self.text)
        if failed and any(_CHECK.search(stage.bare) or "commit" in stage.bare for stage in done):
            return self._of_content()
        if not self.before and self.kind != "soft_failure":
            return self._say("preexisting", "before any edit", _first(self.text))
        return self._say("unclear", "no rule", _first(self.text))

    def _say(self, verdict: Verdict, reason: str, evidence: str = "") -> Judgement:
        return Judgement(verdict, reason, _cut(evidence))

    def _mistake(self, reason: str, evidence: str) -> Judgement:
        return self.judge_._mistake(reason, self.number, self.position, self.text, evidence)

    def _empty_search(self) -> bool:
        """Return True if a search or a comparison only says that there is nothing."""
        lines = self.text.strip().split("\n")
        if len(lines) > 1 and not self.command.lstrip().startswith(("diff", "git diff")):
            return False
        done = stages(self.command)
        return bool(done) and any(_SEARCHES.match(stage.bare) for stage in done[-2:])

    def _of_content(self) -> Judgement:
        evidence = self._first_problem()
        if not self.before:
            agents = any(event.kind == "agent" and event.author.node < self.number
                         for event in self.edits.events)  # fmt: skip
            return self._say("unclear" if agents else "preexisting", "before any edit", evidence)
        built = not _BUILD_FAILED.search(self.text.lower())
        if built and _RED.search(self._stated()):
            return self._say("preexisting", "expected", evidence)
        prompt = self._prompt()
        fresh = all(event.author.node < prompt for event in self.before)
        compacted = self.graph.nodes[prompt].kind == "compact_summary"
        asked = self.judge_.prompt_before(self.number)
        stock = fresh and (_STOCK.search(self._stated()) or _ASKED.search(asked[:400]))
        if stock and compacted:
            return self._say("preexisting", "taking stock", evidence)
        culprit = self._culprit()
        if culprit is None or culprit.by != "line":
            if stock:
                return self._say("preexisting", "taking stock", evidence)
            if self.passed < 0 and self._is_the_task():
                return self._say("preexisting", "asked", evidence)
            if self._seen_before_the_first_edit():
                return self._say("preexisting", "seen before", evidence)
            if self._flaky():
                return self._say("preexisting", "flaky", evidence)
        if culprit is None:
            return self._say("revealed", "after edits", evidence)
        return self._blame(culprit, evidence)

    def _blame(self, culprit: _Culprit, evidence: str) -> Judgement:
        event = next((e for e in self.before if e.author == culprit.author), None)
        path = event.path if event else ""
        problem = culprit.diagnostic
        reason = "content"
        if problem and event and self.edits.resolve(problem.file, self.number) != path:
            reason = "propagation"
        words = [posixpath.basename(path)] if reason == "content" and path else []
        if problem:
            words += [posixpath.basename(problem.file), problem.symbol]
            evidence = f"{problem.file}:{problem.line}: {problem.message}"
        lesson = lesson_of(self.text, [*words, *self.tests[:3]])
        who, by, confidence = culprit.author, culprit.by, culprit.confidence
        return Judgement("revealed", reason, _cut(evidence), who, by, confidence, lesson)

    def _is_the_task(self) -> bool:
        """Return True if the user asked for such a failure to be mended."""
        path = (self.graph.nodes[number] for number in self._path())
        humans = (self.graph.text_of(node) for node in path if node.kind == "human")
        return any(len(text) < 1000 and _MEND.search(text) for text in humans)

    def _first_problem(self) -> str:
        if self.found:
            first = next((d for d in self.found if _SPECIFIC.search(d.message)), self.found[0])
            return f"{first.file}:{first.line}: {first.message}"
        failed = _WORDS_FAIL.search(self.text)
        return self.tests[0] if self.tests else failed[0] if failed else _first(self.text)

    def _stated(self) -> str:
        """Return what the agent says of the action that failed."""
        text = self.graph.text_of(self.graph.nodes[self.number])
        return f"{text[-600:]}\n{arguments_of(self.call).get('description') or ''}"

    def _prompt(self) -> int:
        at = self.number
        while (parent := self.graph.nodes[at].parent) is not None:
            at = parent
            if self.graph.nodes[at].kind != "response":
                break
        return at

    # -- earlier and later runs of the same check --

    def _keys(self) -> set[str]:
        return {*self.tests, *map(_told, self.found)}

    def _runs(self, numbers: Iterable[int]) -> Iterator[tuple[int, Call]]:
        wanted = signature(self.command)
        for number in numbers:
            for call, ran in self.judge_.commands.get(number, ()):
                if wanted & ran and number != self.number:
                    yield number, call

    def _seen_before_the_first_edit(self) -> bool:
        first, keys = self.before[0].author.node, self._keys()
        path = [n for n in self._path() if n < first]
        for _, call in self._runs(path):
            text = clean(str(call.error or call.result or ""))
            if keys and keys <= {*failing_tests(text), *map(_told, diagnostics(text))}:
                return True
        return False

    def _flaky(self) -> bool:
        """Return True if the same command passes next, and nothing changed before it."""
        return self._next_run_passes(only_same=True)

    def _next_run_passes(self, *, only_same: bool = False) -> bool:
        order = self.judge_.order
        later = order[bisect_right(order, self.number) :][:12]
        for number, call in self._runs(later):
            if only_same and command_of(call) != self.command:
                continue
            if any(self.number < event.author.node < number and event.kind != "read"
                   for event in self.edits.events):  # fmt: skip
                return False
            result = self.judge_.result(call)
            return result is not None and result.passed and not call.failed
        return False

    def _last_pass(self) -> int:
        """Return the node of the last run of the same check that passed; -1 without one.

        A run of some of the tests says nothing of the others.
        """
        mine = checks_of(self.call)
        for number, call in self._runs(reversed(self._path())):
            if covers(call, mine) and self.judge_.passed(call):
                return number
        return -1

    def _path(self) -> list[int]:
        if self.number in self.judge_.active:
            return self.judge_.order[: bisect_left(self.judge_.order, self.number)]
        return self.graph.path_to(self.number)[:-1]

    # -- the culprit --

    def _culprit(self) -> _Culprit | None:
        self.passed = self._last_pass()
        votes: dict[Author, list[_Culprit]] = defaultdict(list)
        for problem in self.found[:_LOOKED_AT]:
            if found := self._by_line(problem):
                votes[found.author].append(found)
        if votes:
            best = max(votes.values(), key=lambda items: (len(items), items[0].confidence))
            share = len(best) / sum(map(len, votes.values()))
            top = max(best, key=lambda item: item.confidence)
            return top._replace(confidence=round(top.confidence * (0.7 + 0.3 * share), 2))
        for problem in self.found[:_LOOKED_AT]:
            if found := self._by_symbol(problem):
                return found
        recent = self._recent()
        return self._by_words(recent) or self._by_file(recent) or self._by_order(recent)

    def _by_line(self, problem: Diagnostic) -> _Culprit | None:
        path = self.edits.resolve(problem.file, self.number)
        author: Author | None = None
        sure = False
        if path is not None and problem.line:
            lines = self.edits.lines(path, self.number)
            author, sure = lines.author(problem.line, problem.source)
        removed = self._removed(problem, path) if problem.symbol else None
        if removed is not None and (author is None or removed > author):
            return _Culprit(removed, "symbol", 0.85, problem)
        if author is None or author.node <= self.passed:
            return None
        return _Culprit(author, "line", 0.95 if sure else 0.75, problem)

    def _removed(self, problem: Diagnostic, path: str | None) -> Author | None:
        """Return the last edit that took away what a message misses.

        That is the last use of an unused name in its file, or the definition of an undefined one.
        """
        name = _plain(problem.symbol)
        unused = re.search(r"not used|unused|never used|never read", problem.message)
        for event in reversed(self.before):
            if unused and event.path != path:
                continue
            for change in event.changes:
                if unused and _count(name, change.old) > _count(name, change.new):
                    return event.author
                if not unused and defines(name, change.old) and not defines(name, change.new):
                    return event.author
        return None

    def _by_symbol(self, problem: Diagnostic) -> _Culprit | None:
        """Find the last edit that changed the definition of the name a message is about."""
        name = _plain(problem.symbol)
        if len(name) < 3:
            return None
        for event in reversed(self.before):
            for change in event.changes:
                if _definitions(name, change.old) != _definitions(name, change.new):
                    return _Culprit(event.author, "symbol", 0.8, problem)
        return None

    def _recent(self) -> list[Event]:
        """Return the edits since the check last passed, those of prose left out."""
        return [
            event
            for event in self.before
            if event.author.node > self.passed and not event.path.endswith((".md", ".txt", ".rst"))
        ]

    def _by_words(self, recent: list[Event]) -> _Culprit | None:
        """Find the one recent edit that shares rare words with the failed tests and messages."""
        problem = next((d for d in self.found if d.message), None)
        said = _words(" ".join([*self.tests, *(d.message for d in self.found[:10])]))
        if not said or not recent:
            return None
        changed: dict[Author, set[int]] = defaultdict(set)
        for event in recent:
            changed[event.author].update(said.intersection(self.judge_.changed_words(event)))
        spread = Counter(word for words in changed.values() for word in words)
        scores = {
            author: sum(1 / spread[word] for word in words) for author, words in changed.items()
        }
        ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        best, score = ranked[0]
        second = ranked[1][1] if len(ranked) > 1 else 0.0
        if score < 1.5 or score < 1.5 * second:
            return None
        return _Culprit(best, "symbol", 0.6, problem)

    def _by_file(self, recent: list[Event]) -> _Culprit | None:
        """Find the last recent edit of a file that the output names."""
        for problem in self.found[:_LOOKED_AT]:
            path = self.edits.resolve(problem.file, self.number)
            own = [event for event in recent if path is not None and event.path == path]
            if own:
                return _Culprit(own[-1].author, "file", 0.6, problem)
        return None

    def _by_order(self, recent: list[Event]) -> _Culprit | None:
        """Take the only edit since the check last passed."""
        nodes = {event.author.node for event in recent}
        if len(nodes) != 1:
            return None
        return _Culprit(recent[-1].author, "order", 0.6, self.found[0] if self.found else None)


@lru_cache(maxsize=4096)
def signature(command: str) -> frozenset[str]:
    """Return the checks that a command line runs, without options, paths and filters."""
    found = set()
    for stage in stages(command):
        if _CHECK.search(stage.bare):
            words = [word for word in stage.bare.split() if "=" not in word]
            names = [word for word in words if re.fullmatch(r"[\w:.@-]+", word) and word[0] != "-"]
            found.add(" ".join(names[:3] if names[:1] != ["go"] else names[:2]))
    return frozenset(found)


#: Options that choose some of the tests, and those that change nothing of what is checked.
_SELECTS = re.compile(r"-(?:run|k|t|m|g|-grep|-filter|-test-name-pattern|e)\b")
_SHOWS = re.compile(
    r"\d?>|--?(?:v+|verbose|q|quiet|s|x|count=\S*|tb=\S*|no-color|colou?r\S*|timeout\S*)$"
)


def _arguments(stage: Stage) -> list[str]:
    words = stage.text.replace('"', " ").replace("'", " ").split()
    return [word for word in words if not _SHOWS.match(word)]


def checks_of(call: Call) -> list[list[str]]:
    """Return the words of each check that a call runs, without options that only show."""
    return [_arguments(stage) for stage in stages(command_of(call)) if _CHECK.search(stage.bare)]


def covers(call: Call, checks: list[list[str]]) -> bool:
    """Return True if a call ran all that one of some checks covers."""
    return any(_covers(ran, mine) for mine in checks for ran in checks_of(call))


def _covers(ran: list[str], mine: list[str]) -> bool:
    """Return True if a run checked all that another one checks."""
    more = {word for word in mine if word[0] == "-" and not _SELECTS.match(word)}
    plain = [word.rstrip("./") for word in ran if word != "..."]
    return (
        bool(ran)
        and more <= set(ran)
        and all(any(other.startswith(word) for other in mine) for word in plain)
    )


def _told(problem: Diagnostic) -> str:
    """Return what stays of a problem when lines move: its file and message."""
    return f"{posixpath.basename(problem.file)}: {problem.message}"


def _cut(text: str) -> str:
    return text.strip()[:_EVIDENCE_CHARS]


def _first(text: str) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and lines[0].startswith(EXIT_CODE):
        return lines[1].strip()
    return lines[0].strip() if lines else ""


def _line_at(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return text[begin : end if end >= 0 else None].strip()


def _plain(symbol: str) -> str:
    return re.split(r"[./:]", symbol)[-1]


def _count(name: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(name)}\b", text)) if name else 0


def _definitions(name: str, text: str) -> set[str]:
    if name not in text:
        return set()
    pattern = _DEFINES.replace("{0}", re.escape(name))
    return {match[0].strip() for match in re.finditer(pattern, text, re.MULTILINE)}


def defines(name: str, text: str) -> bool:
    """Return True if a text defines a name of three characters and more."""
    return len(name) > 2 and bool(_definitions(name, text))


_COMMON = frozenset(
    """
    test tests expected actual error failed want have should with when true false null none func
    return this that from file files value string import const function class self assert equal
    received output
    """.split()  # noqa: SIM905  a text of words instead of a list
)


def _words(text: str) -> set[int]:
    """Return the words of a text, those of names too, without the common ones; small, as hashes."""
    words = set(_WORD.findall(text))
    found = {part.lower() for word in words for part in (word, *_PARTS.findall(word))}
    return {hash(word) for word in found if len(word) > 3 and word not in _COMMON}

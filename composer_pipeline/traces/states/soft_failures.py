"""Output that reads like a failure although none was reported.

Belongs here: what programs print when they fail, which programs only show text. Does not
belong here: results that are marked as errors (``traces.states.failures``).
"""

import re

from composer_pipeline.traces.graph import Call


class LineStart:
    """A pattern at the start of any line of a text, as ``(?m)^pattern``.

    The engine of ``re`` tries such a pattern at every character. Behind a newline, which
    it looks for with ``memchr``, the same pattern is found several times faster.
    """

    def __init__(self, pattern: str) -> None:
        self._first = re.compile(pattern)
        self._later = re.compile(rf"\n(?:{pattern})")

    def found(self, text: str) -> bool:
        """Say whether any line of ``text`` begins with the pattern."""
        return self._first.match(text) is not None or self._later.search(text) is not None


# What a failing program prints at the start of a line.
_SOFT = LineStart(
    r"\s*(?:FAIL(?:ED|URE)?\b(?! *[:=]? *0\b)|--- FAIL|Traceback \(most recent call last\)"
    r"|(?:\w+)?[Ee]rror(?:\[[A-Z]?\d+\])?: \S|ERROR\b[: ]|fatal: |panic: |npm (?:ERR!|error)"
    r"|make(?:\[\d+\])?: \*\*\*|(?:\S+: )+(?:command not found|No such file or directory)"
    r"|Exit code [1-9])"
)

_COUNTED = re.compile(r"\b[1-9]\d* (?:failed|failing)\b")

#: What a result must hold before its text is decoded and read.
MAY_BE_SOFT = re.compile(
    rb"FAIL|Traceback|rror|ERROR|fatal: |panic: |npm |: \*\*\*|not found|No such file|failed"
    rb"|failing|Exit code"
)

_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)

_PARTS = re.compile(r"&&|\|\||[;|\n&]")

_PROGRAM = re.compile(
    r"(?:\w+=\S*\s+)*(?:sudo\s+|time\s+|timeout\s+\S+\s+)*(git\s+(?:-C\s+\S+\s+)?\S+|gh\s+\S+|\S+)"
)

_READER = re.compile(
    r"(?:cat|head|tail|sed|awk|grep|egrep|rg|ag|ls|find|fd|less|more|jq|wc|sort|uniq|cut|tr|xargs|echo"
    r"|printf|cd|pwd|true|tee|column|strings|xxd|diff|tree|stat|file|which|date|sleep|export|set|done"
    r"|do|for|while|if|then|fi|else|curl|wget|git\s+(?:-C\s+\S+\s+)?(?:log|diff|show|blame|grep|status"
    r"|branch|ls-files|rev-parse|cat-file|reflog|stash)|gh\s+\S+|2>&1|[0-9]*>.*|sqlite3|psql|#.*)"
)


def looks_failed(command: str, output: str) -> bool:
    """Say whether a command's output reads like a failure although none was reported.

    Commands that only show text (``cat``, ``grep``, ``git log``) are never judged: the
    words are then those of a file.
    """
    programs = [_PROGRAM.match(part.strip()) for part in _PARTS.split(_quoted_out(command))]
    names = [match[0] for match in programs if match]
    if not names or all(_READER.fullmatch(name) for name in names):
        return False
    if " fail" in output and _COUNTED.search(output):
        return True
    return _SOFT.found(output)


def _quoted_out(command: str) -> str:
    """Remove what is quoted, so that its separators do not count."""
    return _QUOTED.sub("''", command)


def command_of(call: Call) -> str:
    """Return the command line of a call; empty where it has none."""
    arguments = call.input
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else ""

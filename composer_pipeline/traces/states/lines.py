"""Patterns at the starts of lines, found quickly.

Belongs here: searching what programs print. Does not belong here: the patterns
(``traces.states.failures``, ``traces.states.outcomes``).
"""

import re


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

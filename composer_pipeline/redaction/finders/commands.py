r"""Secrets that a command line gives away: options, arguments, what is piped in.

Belongs here: reading one command of a text with the grammar of Bash, and which of its words
are secret by a row of ``redaction.tables.programs``. Does not belong here: the rows, and names
such as ``PGPASSWORD=...`` (``redaction.finders.assignments``).

A command is read wherever its program stands: in a tool's input, a code block, a log, behind
``sudo`` or ``docker exec``, and as a list of strings (``["mysql", "-psecret"]``). The grammar
(tree-sitter-bash) splits it into words, so that quotes, line continuations and pipes are seen
as the shell sees them.
"""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from composer_pipeline.redaction.edits import Found
from composer_pipeline.redaction.literals import is_given_secret
from composer_pipeline.redaction.tables.patterns import ESCAPED
from composer_pipeline.redaction.tables.programs import Program

_MOST = 3000
_QUOTES = "\"'`"
# Behind one of these a program's name is a part of something else.
_IN_NAME = frozenset(f"{string.ascii_letters}{string.digits}_.=@-")
_BEFORE = r"(?:[\"']|\s)"
_NO_NAME = "[^A-Za-z0-9_.=@-]"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text without outer quotes, and where that stands."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.text)


@cache
def _parser() -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class ProgramRule:
    """A row of the table, ready to run.

    Args:
        row: the row.
    """

    def __init__(self, row: Program) -> None:
        self.row = row
        names = "|".join(map(re.escape, sorted(row.programs.split(), key=len, reverse=True)))
        self._program = re.compile(rf"(?:{names})(?=[\s\"']|$)")
        self._words = frozenset(row.words.split("|")) if row.words else frozenset()
        self._options = row.options.split()
        self.literals = tuple(sorted({name.lower() for name in row.programs.split()}))
        self.gate = rf"(?:{_NO_NAME}|{ESCAPED})(?:{names})\b" + self._needed()

    def _needed(self) -> str:
        """Return what follows the program, for the gate."""
        if self._words:
            return rf".*{_BEFORE}(?:{'|'.join(map(re.escape, sorted(self._words)))})[\s\"'\\.]"
        plain = [option.rstrip("?*") for option in self._options if option != "*"]
        if plain and not self.row.argument:
            return rf".*{_BEFORE}(?:{'|'.join(map(re.escape, plain))})"
        return ""

    def __call__(self, text: str) -> Iterator[Found]:
        """Yield the secrets of the row in ``text``."""
        for match in self._program.finditer(text):
            begin = _begin(text, match.start())
            if begin < 0:
                continue
            segment, at = _segment(text, begin, match.end())
            if self.row.stdin:
                if not self._options or any(f" {o}" in segment for o in self._options):
                    yield from self._piped(text, begin, segment, at)
                continue
            if self._words and not any(word in segment for word in self._words):
                continue
            words = _listed(text, match.end()) or _words(segment, at)
            yield from self._secrets(words)

    def _secrets(self, words: list[Word]) -> Iterator[Found]:
        words = words[1:]
        behind = words
        if self._words:
            # A setting's key goes on behind a dot: `http-basic.example.org`.
            at = next(
                (n for n, word in enumerate(words) if word.text.split(".")[0] in self._words), -1
            )
            if at < 0:
                at = next((n for n, word in enumerate(words) if word.text in self._words), -1)
            if at < 0:
                return
            behind = words[at + 1 :]
        if self.row.argument:
            plain = [word for word in behind if not word.text.startswith("-")]
            number = self.row.argument - (self.row.argument > 0)
            if -len(plain) <= number < len(plain):
                yield from self._part(plain[number])
            return
        for number, word in enumerate(words):
            following = words[number + 1] if number + 1 < len(words) else None
            for option in self._options:
                if value := _value(option, word, following):
                    yield from self._part(value)
                    break

    def _part(self, word: Word) -> Iterator[Found]:
        """Yield the parts of a value that are secret."""
        if self.row.part == "cookie":
            from composer_pipeline.redaction.finders.structures import cookie_values

            yield from cookie_values(word.text, word.start)
            return
        for piece in _pieces(word) if self.row.part in ("name=", "secret=") else [word]:
            secret = self._secret(piece)
            if secret is not None and _is_value(secret.text):
                yield Found(secret.start, secret.end, "COMMAND")

    def _secret(self, word: Word) -> Word | None:
        """Return the part of a word that is a secret by the row, without quotes."""
        text, start, part = word.text, word.start, self.row.part
        if part == "password=":
            match = re.search(r"(?:^|,)(?:password|pass)=([^,]+)", text)
            if match is None:
                return None
            text, start = match[1], start + match.start(1)
        elif part in ("name=", "secret="):
            name, sign, value = text.partition("=")
            told = part == "secret=" or _TELLING.search(name)
            if not sign or not told or name.startswith("-"):
                return None
            text, start = value, start + len(name) + 1
        elif part != "all":
            user, sign, value = text.partition(part[-1])
            if not sign or not user:
                return None
            value = value.partition("@")[0] if part == "user/" else value
            text, start = value, start + len(user) + 1
        if text[:1] in _QUOTES and text[-1:] == text[:1] and len(text) > 1:
            text, start = text[1:-1], start + 1
        return Word(text, start)

    def _piped(self, text: str, at: int, segment: str, start: int) -> Iterator[Found]:
        """Yield what is given to the standard input of a command."""
        line = text[max(0, at - 400) : at]
        before = _ECHO.search(line)
        places = []
        if before is not None:
            offset = at - len(line)
            places.append((offset + before.start("value"), before["value"]))
        for pattern in (_HERE_STRING, _HERE_DOCUMENT):
            if match := pattern.search(segment):
                places.append((start + match.start("value"), match["value"]))
        for place, value in places:
            yield from self._part(Word(value, place))


_TELLING = re.compile(
    r"(?i)pass|pwd|secret|token|key(?!cloak|board|space|name|_?id$|vault)|credential|auth(?!or)"
    r"|salt|dsn|conn"
)
# A comma before a further pair of a name and a value.
_SEVERAL = re.compile(r",(?=[A-Za-z_][\w.\[\]-]*=)")
_ECHO = re.compile(
    r"(?:echo|printf|print)[ \t]+(?:-[neE]+[ \t]+)?(?:[\"']%s(?:\\n)?[\"'][ \t]+)?(?P<q>[\"']?)"
    r"(?P<value>[^\s\"'|$`]+)(?P=q)[ \t]*\|[ \t\\\n]*(?:sudo[ \t]+(?:-\S+[ \t]+)*)?(?:\S+/)?$"
)
_HERE_STRING = re.compile(r"<<<[ \t]*(?P<q>[\"']?)(?P<value>[^\s\"'$`]+)(?P=q)")
_HERE_DOCUMENT = re.compile(
    r"<<-?[ \t]*[\"']?(?P<end>[A-Za-z_]+)[\"']?[^\n]*\n(?P<value>[^\s$`]+)\n[ \t]*(?P=end)"
)


def _pieces(word: Word) -> Iterator[Word]:
    """Yield the pairs of ``a=1,b=2``."""
    starts = [0, *(match.end() for match in _SEVERAL.finditer(word.text))]
    for begin, end in pairwise([*starts, len(word.text) + 1]):
        yield Word(word.text[begin : end - 1], word.start + begin)


def _is_value(text: str) -> bool:
    """Say whether a word is a secret itself, not another option or the place of one."""
    return is_given_secret(text, 4) and not text.startswith(("-", "/", "./", "~/", "@", "file:"))


def _value(option: str, word: Word, following: Word | None) -> Word | None:
    """Return the value that an option of the table has here; ``None`` if it is not there."""
    if option == "*":
        return None if word.text.startswith("-") else word
    glued = option.endswith(("?", "*"))
    name = option.rstrip("?*")
    if word.text == name and name[-1] not in "=:":
        return None if option.endswith("*") else following
    if not word.text.startswith(name):
        return None
    rest = word.text[len(name) :]
    if name[-1] in "=:":
        return Word(rest, word.end - len(rest))
    if rest.startswith("="):
        return Word(rest[1:], word.end - len(rest) + 1)
    single = glued and not name.startswith("--") and len(name) <= 3
    return Word(rest, word.end - len(rest)) if single and rest else None


def _begin(text: str, at: int) -> int:
    """Return where the program named at ``at`` begins, with its folder; -1 if it is no word."""
    if text[at - 1 : at] != "/":
        return -1 if text[at - 1 : at] in _IN_NAME else at
    begin = at
    while begin and (text[begin - 1].isalnum() or text[begin - 1] in "_.~/-"):
        begin -= 1
    while text[begin - 1 : begin] in _IN_NAME:
        begin += 1
    return begin


def _segment(text: str, start: int, end: int) -> tuple[str, int]:
    """Return the part of a text that the command at ``start`` fills, and where it begins."""
    stop = min(len(text), start + _MOST)
    before = text[start - 1 : start]
    if before in tuple(_QUOTES):  # a command in quotes ends with them
        closed = text.find(before, end)
        stop = min(stop, closed) if closed >= 0 else stop
    segment = text[start:stop].partition("\0")[0]  # a NUL parts the strings of a value
    ends = [match.start() for match in _NEWLINE.finditer(segment)]
    for at in (*ends, len(segment)):
        line = segment[:at]
        open_quote = line.count("'") % 2 or line.replace('\\"', "").count('"') % 2
        ending = _CLOSING.search(line) if open_quote else None
        if ending is not None:
            return line[: ending.start()], start
        if not (line.endswith("\\") or "<<" in line or open_quote):
            return line, start
    return segment, start


_NEWLINE = re.compile("\n")
#: The end of a JSON string that a command stands in, and of the values around it.
_CLOSING = re.compile(r"(?:\\*\"[\]})]+)+,?[ \t]*$")


_STRING = re.compile(r"[\"']\s*,\s*([\"'])((?:(?!\1)[^\\\n])*)(?=\1)")


def _listed(text: str, at: int) -> list[Word]:
    """Return the words of a command that is a list of strings, the program first."""
    if text[at : at + 1] not in ("'", '"'):
        return []
    words = [Word("", at)]
    match = _STRING.match(text, at)
    while match is not None and len(words) < 60:
        words.append(Word(match[2], match.start(2)))
        match = _STRING.match(text, match.end())
    return words if len(words) > 1 else []


def _words(segment: str, at: int) -> list[Word]:
    """Return the words of the first command of a line, the program first."""
    source = segment.encode("utf-8", "surrogatepass")
    plain = len(source) == len(segment)
    node = _first_command(_parser().parse(source).root_node)
    if node is None:
        return []
    words = []
    for child in node.children:
        if child.type in ("variable_assignment", "file_redirect", "comment"):
            continue
        start, end = child.start_byte, child.end_byte
        if not plain:
            start = len(source[:start].decode("utf-8", "surrogatepass"))
            end = len(source[:end].decode("utf-8", "surrogatepass"))
        word = segment[start:end]
        if child.type in ("string", "raw_string") and len(word) > 1:
            word, start = word[1:-1], start + 1
        words.append(Word(word, at + start))
    return words


def _first_command(node: Any) -> Any:
    if node.type == "command":
        return node
    for child in node.children:
        if (found := _first_command(child)) is not None:
            return found
    return None

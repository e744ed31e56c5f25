r"""Words of a shell line and paths, each with one spelling.

Belongs here: where paths are resolved, and the encoding of a word after its quotes are gone.
Does not belong here: the grammar of a line (``preferences.actions.shell.parse``).

An encoded word spells each effect once. Characters that the shell would expand stand bare;
the same characters quoted or escaped get a backslash; an expansion inside double quotes
keeps its quotes. So ``*.py``, ``'*.py'`` and ``\*.py`` are two words, and ``"$X/a"`` and
``"$X"/a`` are one.
"""

import posixpath
import re
from dataclasses import dataclass

_EXPANDED = re.compile(r'[*?\[\]$`\\"]')
_BRACES = re.compile(r"[{}]")
_ACTIVE = re.compile(r"(?<!\\)(?:\\\\)*[$`]")
_HOME = re.compile(r'(?:~|\$HOME|"\$HOME"|\$\{HOME\}|"\$\{HOME\}")(?=/|$)')
_GLOB_FIRST = re.compile(r"\./[*?\[{]")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b"}


@dataclass(frozen=True)
class Place:
    """Where paths are resolved: the working directory and the home folder.

    ``base`` is the folder that results are relative to, where that is another one: a ``cd``
    inside a line moves ``cwd``, not ``base``.
    """

    cwd: str = ""
    home: str = ""
    base: str = ""

    def path(self, text: str) -> str:
        """Return a POSIX path, relative to the working directory where it is below it."""
        if text.startswith("~") and self.home and (text == "~" or text.startswith("~/")):
            text = self.home + text[1:]
        if not text:
            return "."
        if not self.cwd:
            return posixpath.normpath(text)
        if not text.startswith("/"):
            text = f"{self.cwd}/{text}"
        text = posixpath.normpath(text)
        base = posixpath.normpath(self.base or self.cwd)
        if text == base:
            return "."
        return text.removeprefix(base.rstrip("/") + "/")

    def inside(self, folder: str) -> "Place":
        """Return the place after ``cd folder``; results stay relative to the same folder."""
        folder = at_home(folder, self)
        if not folder.startswith("/"):
            folder = f"{self.cwd}/{folder}"
        return Place(posixpath.normpath(folder), self.home, self.base or self.cwd)


def literal(text: str, *, start: bool = True) -> str:
    """Encode text in which nothing is expanded.

    Args:
        text: what stands between the quotes.
        start: whether it begins its word; a tilde means home only there.
    """
    out = _EXPANDED.sub(r"\\\g<0>", text)
    if "{" in out and ("," in out or ".." in out):
        out = _BRACES.sub(r"\\\g<0>", out)
    return "\\" + out if start and out.startswith("~") else out


def unescaped(text: str, *, start: bool = True) -> str:
    r"""Encode an unquoted word: ``\x`` is a literal x, a continued line disappears."""
    if "\\" not in text:
        return text
    parts = re.split(r"\\(.)", text, flags=re.DOTALL)
    out = ""
    for i, part in enumerate(parts):
        if i % 2 == 0:
            out += part
        elif part != "\n":
            out += literal(part, start=start and not out)
    return out


def double_quoted(text: str, *, start: bool = True) -> str:
    """Encode the inside of double quotes where it holds no expansion."""
    if "\\" in text:
        text = re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))
    return literal(text, start=start)


def ansi_c(text: str, *, start: bool = True) -> str:
    """Encode ``$'…'``; escapes that are not simple stay as they are written."""
    inner = text[2:-1]
    if re.search(r"\\[^ntr\\'\"ab]", inner):
        return text
    return literal(re.sub(r"\\(.)", lambda m: _ANSI[m[1]], inner), start=start)


def varies(word: str) -> bool:
    """Say whether a word holds an expansion or a substitution."""
    return ("$" in word or "`" in word) and bool(_ACTIVE.search(word))


def at_home(word: str, place: Place) -> str:
    """Spell out the home folder at the beginning of a word, as the shell does."""
    if word[:1] in ("~", "$", '"') and place.home:
        return _HOME.sub(place.home.replace("\\", r"\\"), word, count=1)
    return word


def file_word(word: str, place: Place, *, slash: bool = False) -> str:
    """Resolve a word that names a file; keep it where its value is not known.

    Args:
        word: encoded.
        place: the folder the command runs in.
        slash: whether a final slash means something (``cp``, ``mv``).
    """
    word = at_home(word, place)
    if varies(word) or _GLOB_FIRST.match(word) or word == "-":
        return word
    path, colons, node = word.partition("::")
    ending = "/" if slash and path.endswith("/") and len(path) > 1 else ""
    return place.path(path) + ending + colons + node


def package_word(word: str, place: Place) -> str:
    """Resolve a word that is a path only where it looks like one (``npm install ./x``)."""
    word = at_home(word, place)
    if varies(word):
        return word
    if word.startswith("/"):
        path = place.path(word)
        return path if path.startswith("/") else f"./{path}"
    if word.startswith("./") and "..." not in word:
        return "./" + place.path(word)
    return word

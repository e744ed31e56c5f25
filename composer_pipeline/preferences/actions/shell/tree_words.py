"""Words of a syntax tree, each in its one spelling.

Belongs here: quotes, substitutions and heredocs. Does not belong here: stages
(``preferences.actions.shell.parse``).
"""

import re
from typing import Any

EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
)


def substitution(text: str) -> str:
    """Write backticks as ``$(…)`` where nothing inside is escaped."""
    if text[0] == "`" and "\\" not in text:
        text = f"$({text[1:-1]})"
    return f"$({text[2:-1].strip()})" if text.startswith("$(") else text


def short_name(text: str) -> str:
    """Write ``${X}`` as ``$X``; only inside quotes, where the name ends with its piece."""
    return re.sub(r"^\$\{(\w+)\}$", r"$\1", text)


def heredoc(node: Any, source: bytes) -> str:
    """Return ``<<`` and the body, marked where the body is expanded."""
    start = next((text_of(c) for c in node.children if c.type == "heredoc_start"), "")
    body = next((c for c in node.children if c.type == "heredoc_body"), None)
    text = ""
    if body is not None:
        # The grammar leaves out blanks before the first word of the body.
        begin = body.start_byte
        while begin and source[begin - 1 : begin] in (b" ", b"\t", b"\n"):
            begin -= 1
        begin = source.index(b"\n", begin) + 1 if b"\n" in source[begin : body.end_byte] else begin
        text = source[begin : body.end_byte].decode("utf-8", "surrogatepass")
    if any(c.type == "<<-" for c in node.children):
        text = re.sub(r"(?m)^\t+", "", text)
    expanded = not re.search(r"['\"\\]", start) and re.search(r"[$`\\]", text)
    return ("<<$" if expanded else "<<'") + text


def text_of(node: Any) -> str:
    """Return the source text of a node."""
    data: bytes = node.text or b""
    return data.decode("utf-8", "surrogatepass")

"""Secrets in decodings: base64 behind a prefix and over many lines, lines of any terminal."""

import base64
import re

import pytest

from composer_pipeline.redaction.redact import find_secrets, redact_text
from tests.redaction.labelled import Maker

SECRET = "DB_PASSWORD=" + Maker(3).some(24)


@pytest.mark.parametrize("prefix", ["", "a", "ab", "abc", "data/x/"])
def test_base64_behind_letters_that_are_none_of_it(prefix: str) -> None:
    hidden = base64.b64encode(f"export {SECRET} now".encode()).decode()
    assert hidden[-12:] not in redact_text(f"see {prefix}{hidden} there")[0]


@pytest.mark.parametrize("width", [60, 76])
@pytest.mark.parametrize("lead", range(0, 400, 23))
def test_wrapped_base64_is_read_as_one(lead: int, width: int) -> None:
    plain = "\n".join(["a line of words"] * 40)
    data = base64.b64encode((plain[:lead] + f"\n{SECRET}\n" + plain).encode()).decode()
    wrapped = "\n".join(data[at : at + width] for at in range(0, len(data), width))
    assert re.fullmatch(r"cert:\n\[SECRET_\w+\]=?\n", redact_text(f"cert:\n{wrapped}\n")[0])


def test_base64_of_a_powershell_command() -> None:
    hidden = base64.b64encode(f"$env:{SECRET} ; ls".encode("utf-16-le")).decode()
    assert redact_text(f"powershell -enc {hidden}")[0].startswith("powershell -enc [SECRET_")
    plain = base64.b64encode("Get-ChildItem -Path C:\\ -Recurse".encode("utf-16-le")).decode()
    assert find_secrets(f"powershell -enc {plain}") == []


@pytest.mark.parametrize("width", [64, 72, 76, 78, 79, 80, 100, 120, 132, 160, 200])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_that_a_terminal_of_any_usual_width_broke(width: int, end: str) -> None:
    text = "export DB_PASSWORD=".rjust(width - 4) + "hunt" + end + "er22" + end + "done" + end
    redacted = redact_text(text)[0]
    assert "er22" not in redacted
    assert redacted.endswith(f"{end}done{end}")


def test_a_key_over_many_lines() -> None:
    make = Maker(4)
    key = "sk-" + "ant-api03-" + make.some(93)
    parts = [key[at : at + 30] for at in range(0, len(key), 30)]
    text = 'key = "' + '"\n    "'.join(parts) + '"\nnext = 1\n'
    assert re.fullmatch(r'key = "\[SECRET_ANTHROPIC_KEY_\w+\]"\nnext = 1\n', redact_text(text)[0])


def test_octal_escapes() -> None:
    hidden = "".join(f"\\{ord(c):03o}" for c in SECRET)
    assert hidden[-16:] not in redact_text(f"printf '{hidden}'")[0]
    assert redact_text(r"sed 's/\(a\)/\1/' \033[31m \101x") == (
        r"sed 's/\(a\)/\1/' \033[31m \101x",
        {},
    )

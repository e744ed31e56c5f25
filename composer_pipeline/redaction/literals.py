"""Is a value a literal secret, or code, a placeholder, an example, a hash?

Belongs here: judging one value, also together with its name. Does not belong here: finding
values in a text (``redaction.finders``).
"""

import base64
import binascii
import math
import re
from collections import Counter

#: Words of examples and of values that are hidden already.
EXAMPLE = re.compile(r"(?i)example|placeholder|your[_-]|xxxx|redacted|0000000000|\*\*\*")
#: What manuals and development set-ups write where a password goes.
DUMMY_PASSWORDS = frozenset(
    """
    pass password passwd pwd secret token user username pw postgres guest tiger admin root test
    changeme mysql xxx dev none null true false yes no default value string str bytes optional
    mypassword mysecret mytoken mykey secretkey demo foo bar baz foobar abc abc123 123456 basic
    bearer apikey api_key prompt stdin empty unset hidden masked undefined nil required
    """.split()  # noqa: SIM905  twelve words a line instead of one
)
_PLACEHOLDER_WORDS = re.compile(
    r"(?i)(?<![a-z0-9])(?:your|dummy|insert|replace|todo)|example|placeholder|change_?(?:me|it)\b"
    r"|redacted|xxxx|\*\*\*|\.\.\.|<|\[(?:secret|email|host|account|name)_|\{\{|%s\b|%\(|my[-_](?:secret|token|key|pass)"
    r"|(?:^|[-_])(?:fake|mock|sample)(?:[-_]|$)|unique phrase"
)
_REFERENCE = re.compile(
    r"^[A-Za-z_$][A-Za-z_]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][A-Za-z0-9_]*)+$"
    r"|^(?:process\.env|os\.environ|import\.meta|env)\b|^\(|^(?:ref\+|vault:|op:|arn:|sm:|ssm:|file:)"
    r"|^![A-Z]|^@[A-Za-z_]+[({]"
)
# Words and small numbers: `password-input-2`, `correct-horse-42`, `hunter22`.
_WORDS = re.compile(r"^[a-z]+[0-9]{0,3}(?:[-_.:](?:[a-z]+[0-9]{0,3}|v?[0-9]{1,4}))*$")
_UI_WORD = re.compile(r"pass|secret|token|key|input|field|test|label|button|form|name|type|value")
_PASSWORD_NAME = re.compile(r"(?i)passw|passphrase|passcode|pwd|(?:^|[^a-z])(?:pass|pw)$|PASS$")
_EXPANSION = re.compile(r"^\$|\$\{|\$\(|`|^<|^%[A-Z_]+%$|^\{|^\{\{")


def is_placeholder(value: str) -> bool:
    """Say whether a value stands for a secret instead of being one: ``<key>``, ``${KEY}``."""
    return (
        value.lower() in DUMMY_PASSWORDS
        or _PLACEHOLDER_WORDS.search(value) is not None
        or _EXPANSION.search(value) is not None
        or len(set(value.lower())) < 3
    )


def is_given_secret(value: str, shortest: int = 4) -> bool:
    """Judge a value that stands where only a secret can stand: any literal is one.

    Args:
        value: the value, without quotes.
        shortest: shorter ones are none.
    """
    return len(value) >= shortest and not is_placeholder(value) and not _REFERENCE.match(value)


def is_random(value: str, shortest: int = 12) -> bool:
    """Judge a value whose place only suggests a secret: letters, digits and no words."""
    return (
        len(value) >= shortest
        and any(c.isdigit() for c in value)
        and any(c.isalpha() for c in value)
        and not is_placeholder(value)
        and not _WORDS.match(value)
        and entropy(value) >= 3.0
    )


def is_literal_secret(name: str, value: str) -> bool:
    """Tell a literal secret from an identifier, a path, a number or an example."""
    if _PLACEHOLDER_WORDS.search(value) or _REFERENCE.match(value):
        return False
    if _WORDS.match(value):
        simple = is_password(name) and any(c.isdigit() for c in value) and len(value) >= 6
        return simple and (value.isalnum() or not _UI_WORD.search(value))
    if value.startswith(("/", "./", "../", "~", "--", "$")) or "://" in value:
        return False
    if value.endswith(":"):
        return False
    has_digit = any(c.isdigit() for c in value)
    has_letter = any(c.isalpha() for c in value)
    if not (has_digit and has_letter):
        has_sign = any(not c.isalnum() and c not in "_-./:" for c in value)
        return has_letter and has_sign and is_password(name) and len(value) >= 8
    if is_password(name):
        return len(value) >= 6
    return len(value) >= 16 and entropy(value) >= 3.0


def is_password(name: str) -> bool:
    """Say whether a name is that of a password, which may be short and simple."""
    return _PASSWORD_NAME.search(name) is not None


def entropy(value: str) -> float:
    """Return the Shannon entropy of the characters of ``value``, in bits a character."""
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())


_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{4,}")
_KEY_BEGINS = ("MI", "b3BlbnNzaC1r", "lQ", "lI", "xV", "xc")


def holds_key(block: str) -> bool:
    """Say whether a PEM block has a key behind its first line, not code or an ellipsis."""
    body = block.partition("-----BEGIN ")[2].partition("-----")[2].partition("-----END")[0]
    chunks = _KEY_BODY.findall(body.replace("\\r", "").replace("\\n", "\n"))
    data = "".join(chunks)
    keyed = max(map(len, chunks), default=0) >= 24 or data.startswith(_KEY_BEGINS)
    return keyed and len(data) >= 40 and len(set(data)) > 4


def is_basic(value: str) -> bool:
    """Say whether base64 holds ``user:password``."""
    body = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        text = base64.b64decode(body + "=" * (-len(body) % 4), validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        return False
    _user, colon, password = text.partition(":")
    return bool(colon and text.isprintable() and len(password) >= 3)


def is_long_random(value: str) -> bool:
    """Judge a long value in a place that may hold a name as well."""
    return is_random(value, 20) and entropy(value) >= 3.5


def is_signed(value: str) -> bool:
    """Judge a value at a telling place that may hold a word: it has a digit or a sign."""
    return is_given_secret(value, 6) and re.search(r"[0-9!@#%^&*]", value) is not None

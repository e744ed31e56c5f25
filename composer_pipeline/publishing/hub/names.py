"""Names and tokens that the Hub would refuse, refused before anything is asked.

Does not belong here: what the Hub says itself (``trouble``).
"""

import os
import re

from composer_pipeline.errors import InputError

#: What the client accepts for owner and for name, without its two forbidden pairs.
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_TOKEN = re.compile(r"[A-Za-z0-9_.-]+")


def check_repo(repo: str) -> None:
    """Refuse a name that is no repository's.

    Raises:
        InputError: it is not ``OWNER/NAME``, or the Hub takes no such name.
    """
    owner, slash, name = repo.partition("/")
    if not slash or "/" in name or not owner or not name or re.search(r"\s", repo):
        raise InputError(f"repo {repo!r} is not OWNER/NAME")
    for part in (owner, name):
        if len(part) > 96:
            raise InputError(f"repo {repo[:40]}…: {part[:20]}… has more than 96 characters")
        if not _PART.fullmatch(part) or part.endswith(".git"):
            raise InputError(
                f"repo {repo!r}: {part!r} is no name on the Hub: letters, digits, '-', '_' and '.',"
                " not '--' or '..', no '-' or '.' at an end, no '.git'"
            )


def token_of(variable: str, *, dry_run: bool) -> str:
    """Return the token that a variable holds, else that of the client's stored login.

    A dry run needs none. A token goes to the client, and nowhere else.

    Raises:
        InputError: there is none, or it has characters that no token has.
    """
    token = os.environ.get(variable, "").strip()
    where = f"environment variable {variable}"
    if not token and variable == "HF_TOKEN":
        from huggingface_hub import get_token

        token, where = get_token() or "", "the stored login of the Hub's client"
    if token and not _TOKEN.fullmatch(token):
        raise InputError(f"{where} holds a token with a character that no token has")
    if not token and not dry_run:
        raise InputError(
            f"environment variable {variable} holds no token, and `hf auth login` has stored none"
        )
    return token

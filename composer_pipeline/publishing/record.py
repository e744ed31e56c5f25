"""What was published from a lake, and which withdrawals reached it.

Belongs here: the record of each repository, in the lake. Does not belong here: publishing
(``publishing.publish``) and withdrawing (``care``).
"""

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake

FILE = "publications.json"


class Publication(msgspec.Struct, frozen=True):
    """The newest publication of a repository.

    ``commit`` is its id, ``tag`` its name, ``withdrawn`` the withdrawals that nothing in the
    repository's past holds any more.
    """

    commit: str
    tag: str = ""
    withdrawn: list[str] = []


def publications(lake: Lake) -> dict[str, Publication]:
    """Return the newest publication of each repository, ``owner/name``.

    Raises:
        InputError: the record is damaged.
    """
    if not lake.exists(FILE):
        return {}
    try:
        return msgspec.json.decode(lake.get_bytes(FILE), type=dict[str, Publication])
    except msgspec.DecodeError as error:
        raise InputError(
            f"lake {lake.url}: {FILE} is damaged ({error}); remove it and publish again"
        ) from error


def remember_publication(lake: Lake, repo: str, publication: Publication) -> None:
    """Replace the record of a repository; nothing is written where nothing changed."""
    known = publications(lake)
    if known.get(repo) != publication:
        data = msgspec.json.encode({**known, repo: publication}, order="sorted")
        lake.put_bytes(FILE, msgspec.json.format(data, indent=1))

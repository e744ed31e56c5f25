"""Sessions that a person had forgotten or took back: what no harvest takes again.

Belongs here: the list of the forgotten, which holds hashes of session ids and nothing else, and
asking it and the tombstones (``lake.notes``). Does not belong here: forgetting (``care.forget``)
and withdrawing (``care.withdraw``).

The files of a forgotten session may still be where Claude Code wrote them; without this list the
next harvest would archive them again.
"""

import json
from collections.abc import Iterable

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Withdrawn, digest_of
from composer_pipeline.redaction import redact_text

FILE = "forgotten.json"


class Forgotten:
    """The forgotten sessions of a lake, as they are now.

    Raises:
        InputError: the list is damaged; nothing may be archived by a guess.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._withdrawn = Withdrawn(lake)
        try:
            self._hashes = set(json.loads(lake.get_bytes(FILE))["sessions"])
        except FileNotFoundError:
            self._hashes = set()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"lake {lake.url}: {FILE} is damaged; put it back") from error

    def __contains__(self, session_id: str) -> bool:
        return digest_of(session_id) in self._hashes or self._withdrawn.session(session_id)

    def folder(self, cwd: str) -> bool:
        """Say whether a working directory lies in a repository that was withdrawn."""
        return self._withdrawn.names_folders and self._withdrawn.folder(redact_text(cwd)[0])

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, session_ids: Iterable[str]) -> None:
        """Put sessions on the list, durably."""
        self._hashes |= {digest_of(session_id) for session_id in session_ids}
        text = json.dumps({"sessions": sorted(self._hashes)}, indent=1)
        self._lake.put_bytes(FILE, text.encode())
